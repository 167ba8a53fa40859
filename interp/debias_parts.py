"""What debiasing a classifier is put together from: accuracies by group, scores by feature, features taken out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from interp.circuit import Circuit
from interp.classifier import Removal, TextClassifier, classifier_task
from interp.errors import OptionError, SiteError, check_choice
from interp.feature_effects import FeatureMethod, Rule
from interp.feature_values import ablated
from interp.featurizers.base import Featurizer, checked_featurizers
from interp.labelled.base import BiasedData, Labelled
from interp.methods.features import attribute_features
from interp.models.base import HookedModel
from interp.probes import ProbeSettings
from interp.site import Site

Units = Mapping[Site, Sequence[int]]
"""Features by the site of their featurizer."""


@dataclass(frozen=True)
class ShiftSettings:
    """How a classifier is trained and its features are found.

    Args:
        n_features: how many features a judge is shown, those with the largest score above 0; or
        at_least: those with a score of at least that, in logits (the paper: 0.1 for Pythia-70M, 6 for Gemma-2-2B).
        examples: ambiguous training texts that features are scored on.
        method, rule, steps: of the scores, as in `attribute_features`.
        ablation: what takes the place of a feature: ``"zero"``, or ``"mean"`` over those examples (for coordinates).
        probe: how probes are trained.
        length: tokens of a text that are read.
        batch: texts in one pass.
        seed: of probes, of the choice of examples, and of random controls.
    """

    n_features: int | None = 50
    at_least: float | None = None
    examples: int = 100
    method: FeatureMethod = "ig"
    rule: Rule = "midpoint"
    steps: int = 10
    ablation: str = "zero"
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    length: int = 256
    batch: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("ablation", self.ablation, ("zero", "mean"))
        check_choice("method", self.method, get_args(FeatureMethod))
        if self.at_least is not None and self.n_features is not None:
            raise OptionError(f"n_features={self.n_features} and at_least={self.at_least}; set the other one to None.")
        sizes = {name: getattr(self, name) for name in ("n_features", "examples", "steps", "length", "batch")}
        if low := [f"{name}={value}" for name, value in sizes.items() if value is not None and value < 1]:
            raise OptionError(f"{', '.join(low)}; allowed: 1 and more.")

    @classmethod
    def as_published_code(cls, at_least: float = 0.1) -> "ShiftSettings":
        """The authors' settings for Pythia-70M; ``at_least=6`` for Gemma-2-2B."""
        return cls(
            n_features=None, at_least=at_least, rule="code", probe=ProbeSettings.as_published_code(), seed=42,
            length=2**20,
        )  # fmt: skip


@dataclass(frozen=True)
class Accuracies:
    """How well predictions agree with labels, and with the attribute.

    Attributes:
        label: share of right labels on the balanced test.
        attribute: share of predictions there that say what the attribute alone would say; .5 is none of it.
        groups: share of right labels in each group of all that is held out.

    Where attributes are unknown, `attribute` is NaN and `groups` empty.
    """

    label: float
    attribute: float
    groups: Mapping[str, float]

    @property
    def worst(self) -> tuple[str, float]:
        """The group with the lowest accuracy, and that accuracy; '' and NaN where groups are unknown."""
        return min(self.groups.items(), key=lambda pair: pair[1], default=("", float("nan")))


def accuracies(logits_of: Callable[[Labelled], Float[Tensor, " text"]], data: BiasedData) -> Accuracies:
    """Accuracies of a classifier, given as the logits that it gives to labelled texts."""
    predicted = (logits_of(data.test) > 0).numpy().astype(int)
    label = float((predicted == np.array(data.test.labels)).mean())
    held_out = data.all_held_out
    if data.test.attributes is None or held_out.attributes is None:
        return Accuracies(label, float("nan"), {})
    expected = np.array(data.test.attributes) == data.aligned
    right = (logits_of(held_out) > 0).numpy().astype(int) == np.array(held_out.labels)
    groups = {held_out.group_name(g): float(right[held_out.groups == g].mean()) for g in range(4)}
    return Accuracies(label, float((predicted == expected).mean()), groups)


class PooledTexts:
    """What a classifier's probe reads of some texts, each text run once.

    Args:
        parts: all texts that will be asked for.
    """

    def __init__(self, classifier: TextClassifier, parts: Iterable[Labelled | None]) -> None:
        texts = list(dict.fromkeys(text for part in parts if part is not None for text in part.texts))
        self._rows = {text: row for row, text in enumerate(texts)}
        self._pooled = classifier.pooled(texts)

    def of(self, data: Labelled) -> Float[Tensor, "text d"]:
        """The rows of a part."""
        return self._pooled[[self._rows[text] for text in data.texts]]


def examples_of(data: Labelled, settings: ShiftSettings) -> Labelled:
    """The texts that features are scored on: as many of each class, in turn, drawn without replacement.

    With unequal numbers a feature that is the same in every text would get a score, though it tells no class.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(data), generator=generator).tolist()
    classes = [[row for row in order if data.labels[row] == label] for label in (0, 1)]
    each = max(1, min(settings.examples // 2, *map(len, classes)))
    return data[[row for pair in zip(*(rows[:each] for rows in classes), strict=True) for row in pair]]


def scored_features(
    classifier: TextClassifier, data: Labelled, featurizers: Sequence[Featurizer], settings: ShiftSettings
) -> Circuit:
    """Scores of every feature and error term for the classifier's margin on labelled texts."""
    model, task = classifier_task(classifier, data)
    return attribute_features(
        model, task, featurizers, method=settings.method, rule=settings.rule, steps=settings.steps,
        ablation=settings.ablation, seed=settings.seed, batch=settings.batch,
    )  # fmt: skip


def ranked_rows(circuit: Circuit) -> Int64[np.ndarray, " row"]:
    """Rows of the features (no error terms) with a score above 0, the largest first."""
    values = next(iter(circuit.scores.values())).values
    rows = np.flatnonzero((circuit.nodes.unit >= 0) & (values > 0))
    return rows[np.argsort(-values[rows], kind="stable")]


def leading_features(circuit: Circuit, model: HookedModel, n: int) -> list[tuple[Site, int]]:
    """The n features with the largest scores above 0: site, and number within the featurizer."""
    nodes = [circuit.nodes[row] for row in ranked_rows(circuit)[:n]]
    return [(node.site, (node.unit or 0) + (node.head or 0) * model.shape.sizes(node.site)["d"]) for node in nodes]


def by_site(features: Iterable[tuple[Site, int]]) -> dict[Site, list[int]]:
    """Features under the site of their featurizer."""
    found: dict[Site, list[int]] = {}
    for site, unit in features:
        found.setdefault(site, []).append(unit)
    return found


def with_removed(
    classifier: TextClassifier,
    featurizers: Sequence[Featurizer],
    units: Units,
    settings: ShiftSettings,
    reference: Labelled,
) -> TextClassifier:
    """The classifier with features taken out.

    Args:
        reference: texts that means are over, for ``ablation="mean"``.
    """
    chosen = [one for one in featurizers if units.get(one.site)]
    model, task = classifier_task(classifier, reference)
    constants = ablated(model, task, chosen, settings.ablation, "noising", settings.seed).constants
    removed = []
    for one in chosen:
        own = torch.tensor(sorted(units[one.site]))
        values = constants[one].features.expand(1, 1, one.n_features)[0, 0].cpu()[own]
        part, numbers = one.part(own.to(model.device))
        removed.append(Removal(part, numbers, values))
    return replace(classifier, removed=tuple(removed))


def upstream(model: HookedModel, given: Any, site: Site) -> list[Featurizer]:
    """The featurizers, checked, in forward order, none of them after the classifier's site.

    Raises:
        SiteError: featurizers that a classifier of that site does not see.
        OptionError: as `checked_featurizers`.
    """
    found = checked_featurizers(model, given)
    if late := [str(one.site) for one in found if one.site.order > site.order]:
        raise SiteError(
            f"featurizers at {', '.join(late)} come after {site}, which the classifier reads; leave them out, or read "
            "a later layer."
        )
    return found
