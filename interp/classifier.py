"""A text classifier: first blocks of a decoder, a mean over tokens, a linear probe, features taken out on the way.

    z = w . mean over tokens of resid_post[layer] + b,    P(class 1) = sigmoid(z)

The logit is the mean of logits token by token, so the classifier is itself a decoder whose vocabulary are the classes
(`HookedModel.with_head`) and whose task has every token as a target (`classifier_task`): patching, attribution and
circuits work on it as on any other behaviour.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import SiteError, TaskError
from interp.feature_values import reading
from interp.featurizers.base import Featurizer, flat
from interp.intervention import Edit
from interp.labelled.base import Labelled, Pair
from interp.metrics import Answers, LogitDiff
from interp.models.base import HookedModel
from interp.probes import Probe, ProbeSettings, pool, train_probe
from interp.site import Site
from interp.tasks.base import Task
from interp.tokens import Prompts, shortened, tokenizer_fingerprint


@dataclass(frozen=True, eq=False)
class Removal:
    """Some features of one featurizer put to fixed values; the error term and all other features stay as they run.

        x' = x + sum_i (value_i - f_i(x)) v_i

    Args:
        units: which features.
        values: what they become: 0 for features of a dictionary, a mean for coordinates.
        nodes: what circuits call them.
    """

    featurizer: Featurizer
    units: Int[Tensor, " unit"]
    values: Float[Tensor, " unit"]
    nodes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.units)

    def edits(self) -> list[Edit]:
        """The interventions that make it."""
        return reading(self.featurizer, self._applied)

    def _applied(self, x: Tensor, read: Tensor) -> Tensor:
        one = self.featurizer
        units, values = self.units.to(x.device), self.values.to(x.device)
        features = one.encode(flat(read))
        change = one.written(features, values.to(features) - features[..., units], units)
        change[:, : one.skip] = 0.0
        return x + change.reshape(x.shape).to(x.dtype)


@dataclass(frozen=True, eq=False)
class TextClassifier:
    """A classifier of texts into two classes.

    Args:
        site: ``resid_post`` of a layer.
        probe: the linear read-out of its mean over tokens.
        classes: names of labels 0 and 1.
        removed: features taken out.
        length: tokens of a text that are read; longer texts are cut.
        batch: texts in one pass.

    Example:
        classifier = interp.load_classifier("debiased/classifier")
        classifier.predict(["She published on galaxies and supervises two doctoral students."])
    """

    model: HookedModel
    site: Site
    probe: Probe
    classes: Pair = ("0", "1")
    removed: tuple[Removal, ...] = ()
    length: int = 256
    batch: int = 32

    @property
    def n_removed(self) -> int:
        """How many features are taken out."""
        return sum(map(len, self.removed))

    def prompts(self, texts: str | Iterable[str]) -> Prompts:
        """Texts as this classifier reads them."""
        return text_prompts(self.model, [texts] if isinstance(texts, str) else list(texts), self.length)

    def pooled(self, texts: str | Iterable[str]) -> Float[Tensor, "text d"]:
        """What the probe reads, features already taken out."""
        edits = [edit for one in self.removed for edit in one.edits()]
        return pool(self.model, self.prompts(texts), self.site, edits, batch=self.batch)

    def logits(self, texts: str | Iterable[str]) -> Float[Tensor, " text"]:
        """Logits of class 1, on the CPU."""
        return self.probe(self.pooled(texts))

    def probabilities(self, texts: str | Iterable[str]) -> Float[Tensor, " text"]:
        """Probabilities of class 1."""
        return self.logits(texts).sigmoid()

    def predict(self, texts: str | Iterable[str]) -> list[str]:
        """The name of each text's likelier class."""
        return [self.classes[int(z > 0)] for z in self.logits(texts).tolist()]


def text_prompts(model: HookedModel, texts: Sequence[str], length: int) -> Prompts:
    """Texts as prompts of at most `length` tokens, and of no more than the model can read."""
    return shortened(model.prompts(texts), min(length, model.longest or length))


def residual_site(model: HookedModel, layer: int | str | Site) -> Site:
    """The site ``resid_post`` that a classifier reads.

    Raises:
        SiteError: another kind of site, or a layer that the model lacks.
    """
    site = Site("resid_post", layer) if isinstance(layer, int) else Site.parse(layer)
    if site.kind != "resid_post":
        raise SiteError(f"a classifier reads {site}; allowed: a layer's resid_post, such as 'resid_post[2]'.")
    return model.check_site(site)


def train_classifier(
    model: HookedModel,
    data: Labelled,
    layer: int | str | Site,
    *,
    settings: ProbeSettings | None = None,
    removed: Sequence[Removal] = (),
    length: int = 256,
    batch: int = 32,
    seed: int = 0,
) -> TextClassifier:
    """A classifier trained on labelled texts: its probe alone is trained, never the model.

    Args:
        layer: a number, or the site ``resid_post[layer]``.
        settings: of the probe's training.
        removed: features to take out before the probe reads.
        length: tokens of a text that are read.
        seed: of the probe's first weights and the order of texts.

    Raises:
        TaskError: texts of one class only.
        SiteError: a layer that the model lacks.
    """
    site = residual_site(model, layer)
    zero = Probe(torch.zeros(model.shape.d_model), torch.zeros(()))
    untrained = TextClassifier(model, site, zero, data.classes, tuple(removed), length, batch)
    return replace(untrained, probe=train_probe(untrained.pooled(data.texts), data.labels, settings, seed=seed))


def classifier_task(classifier: TextClassifier, data: Labelled, name: str = "classifier") -> tuple[HookedModel, Task]:
    """A classifier as a model and a task for any method: the metric is the margin of the right class, in logits.

    Every token but an attention sink is a target, and the metric is their mean, so it equals the classifier's logit
    (times -1 for label 0).

    Raises:
        TaskError: a classifier with features taken out, which a model and a task do not express.
    """
    if classifier.removed:
        raise TaskError(
            f"this classifier has {classifier.n_removed} features taken out, which a task "
            "does not express; explain the original one."
        )
    half, bias = classifier.probe.weight / 2, classifier.probe.bias / 2
    layer = classifier.site.layer
    assert layer is not None, "resid_post has a layer"
    model = classifier.model.with_head(layer, torch.stack([-half, half]), torch.stack([-bias, bias]))
    prompts, skip = classifier.prompts(data.texts), int(model.has_sink)
    columns = torch.arange(prompts.ids.shape[1]).expand(len(prompts), -1)
    positions = columns.where((columns >= skip) & prompts.mask.cpu(), -1)
    labels = torch.tensor(data.labels)[:, None, None].expand(-1, columns.shape[1], 1)
    groups = {"label": tuple(data.classes[label] for label in data.labels)}
    parameters: dict[str, Any] = {"site": str(classifier.site), "classes": list(data.classes)}
    return model, Task(
        name, prompts, Answers(positions, labels, 1 - labels), LogitDiff(), groups=groups, parameters=parameters,
        tokenizer_fingerprint=tokenizer_fingerprint(model.tokenizer),
    )  # fmt: skip


def without_words(texts: Iterable[str], words: Iterable[str]) -> list[str]:
    """Texts with whole words left out, in whatever case they are written.

    Raises:
        TaskError: a text of which nothing is left.

    >>> without_words(["She said that Sheila left her."], ["she", "her"])
    ['said that Sheila left.']
    """
    listed = sorted(words, key=len, reverse=True)
    if not listed:
        return list(texts)
    given = list(texts)
    pattern = re.compile(rf"\s*\b(?:{'|'.join(map(re.escape, listed))})\b", re.IGNORECASE)
    left = [pattern.sub("", text).strip() for text in given]
    if empty := [row for row, text in enumerate(left) if not text]:
        raise TaskError(f"texts {empty[:10]} consist of the words to delete alone; leave these texts or words out.")
    return left
