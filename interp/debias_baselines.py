"""What SHIFT is compared with.

    random              as many features as SHIFT takes out, drawn from all of them
    words deleted       texts without the words that give the attribute away; and with a new probe on such texts
    concept bottleneck  a probe on the cosines between a text's activation and those of given words of the task
    feature skyline     the features with the largest scores for the attribute, on balanced training texts
    neuron skyline      the same with coordinates of the same sites, put to their mean
    oracle              a probe trained on balanced texts

Source: Marks et al. 2024 (arXiv 2403.19647), section 4 and the authors' notebook.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.classifier import TextClassifier, text_prompts, without_words
from interp.debias_parts import (
    Accuracies,
    PooledTexts,
    ShiftSettings,
    Units,
    accuracies,
    by_site,
    examples_of,
    leading_features,
    scored_features,
    with_removed,
)
from interp.featurizers.base import Featurizer
from interp.featurizers.linear import coordinates
from interp.labelled.base import BiasedData, Labelled
from interp.probes import Probe, train_probe
from interp.run_until import run_until

ATTRIBUTES = "labels of the attribute"
BALANCED = "balanced texts"
WORDS = "a list of words"


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes:
        judged, removed: how many features.
        uses: what it knows that SHIFT does not.
    """

    method: str
    found: Accuracies
    judged: int = 0
    removed: int = 0
    uses: str = ""


@dataclass(frozen=True, eq=False)
class Ground:
    """What every baseline starts from.

    Attributes:
        plain: pooled activations of the original classifier, of every part of the data.
        removed: how many features SHIFT takes out.
    """

    classifier: TextClassifier
    data: BiasedData
    featurizers: Sequence[Featurizer]
    settings: ShiftSettings
    plain: PooledTexts
    removed: int

    def without(self, featurizers: Sequence[Featurizer], units: Units, settings: ShiftSettings) -> Accuracies:
        """Accuracies of the original probe with features taken out."""
        changed = with_removed(self.classifier, featurizers, units, settings, examples_of(self.data.train, settings))
        pooled = PooledTexts(changed, (self.data.test, self.data.held_out))
        return accuracies(lambda part: changed.probe(pooled.of(part)), self.data)


def baseline_rows(
    name: str, classifier: TextClassifier, data: BiasedData, featurizers: Sequence[Featurizer],
    settings: ShiftSettings, plain: PooledTexts, removed: int,
) -> list[Row]:  # fmt: skip
    """The lines of one baseline; none where the data lack what it needs."""
    return _RUN[name](Ground(classifier, data, featurizers, settings, plain, removed))


def _oracle(ground: Ground) -> list[Row]:
    if ground.data.balanced is None:
        return []
    balanced = ground.data.balanced
    probe = train_probe(ground.plain.of(balanced), balanced.labels, ground.settings.probe, seed=ground.settings.seed)
    return [Row("oracle", accuracies(lambda part: probe(ground.plain.of(part)), ground.data), uses=BALANCED)]


def _random(ground: Ground) -> list[Row]:
    if not ground.removed:
        return []
    sizes = [one.n_features for one in ground.featurizers]
    drawn = np.random.default_rng(ground.settings.seed).choice(
        sum(sizes), min(ground.removed, sum(sizes)), replace=False
    )
    owner = np.searchsorted(np.cumsum(sizes), drawn, side="right")
    first = np.cumsum([0, *sizes])
    units = by_site((ground.featurizers[o].site, int(n - first[o])) for o, n in zip(owner, drawn, strict=True))
    found = ground.without(ground.featurizers, units, ground.settings)
    return [Row("random features", found, removed=len(drawn))]


def _feature_skyline(ground: Ground) -> list[Row]:
    return _skyline("feature skyline", ground, ground.featurizers, ground.settings)


def _neuron_skyline(ground: Ground) -> list[Row]:
    sites = [one.site for one in ground.featurizers]
    own = [coordinates(ground.classifier.model, site) for site in sites]
    return _skyline("neuron skyline", ground, own, replace(ground.settings, ablation="mean"))


def _skyline(name: str, ground: Ground, featurizers: Sequence[Featurizer], settings: ShiftSettings) -> list[Row]:
    """As many features as SHIFT takes out, chosen by their scores for the attribute."""
    if ground.data.balanced is None or not ground.removed:
        return []
    about = by_attribute(ground.data.balanced, ground.data.aligned)
    circuit = scored_features(ground.classifier, examples_of(about, settings), featurizers, settings)
    chosen = leading_features(circuit, ground.classifier.model, ground.removed)
    units = by_site(chosen)
    found = ground.without([one.to(ground.classifier.model.device) for one in featurizers], units, settings)
    return [Row(name, found, removed=len(chosen), uses=ATTRIBUTES)]


def by_attribute(balanced: Labelled, aligned: int) -> Labelled:
    """Balanced texts labelled by what a classifier that leans on the attribute alone would say."""
    about = balanced.about_attributes()
    return replace(about, labels=tuple(int(one == aligned) for one in about.labels))


def _words_deleted(ground: Ground) -> list[Row]:
    data, words = ground.data, ground.data.words
    if not words:
        return []
    parts = {id(part): _deleted(part, words) for part in (data.train, data.test, data.all_held_out)}
    pooled = PooledTexts(ground.classifier, parts.values())
    old = ground.classifier.probe
    new = train_probe(
        pooled.of(parts[id(data.train)]), data.train.labels, ground.settings.probe, seed=ground.settings.seed
    )

    def found(probe: Probe) -> Accuracies:
        return accuracies(lambda part: probe(pooled.of(parts[id(part)])), data)

    return [
        Row("words deleted", found(old), uses=WORDS), Row("words deleted + retrain", found(new), uses=WORDS),
    ]  # fmt: skip


def _deleted(part: Labelled, words: frozenset[str]) -> Labelled:
    return replace(part, texts=tuple(without_words(part.texts, words)))


def _concept_bottleneck(ground: Ground) -> list[Row]:
    data, plain = ground.data, ground.plain
    if not data.concepts:
        return []
    concepts = concept_vectors(ground.classifier, data.concepts)

    def cosines(part: Labelled) -> Float[Tensor, "text concept"]:
        return torch.nn.functional.normalize(plain.of(part), dim=-1) @ concepts.T

    probe = train_probe(cosines(data.train), data.train.labels, ground.settings.probe, seed=ground.settings.seed)
    found = accuracies(lambda part: probe(cosines(part)), data)
    return [Row("concept bottleneck", found, uses=f"{len(data.concepts)} words of the task")]


def concept_vectors(classifier: TextClassifier, concepts: Sequence[str]) -> Float[Tensor, "concept d"]:
    """Activations at each word's last token, less their mean, of length 1.

    A word is run after a space; on a model with an attention sink also after a full stop, which takes the sink.
    """
    model = classifier.model
    before = ". " if model.has_sink else " "
    prompts = text_prompts(model, [before + word.strip() for word in concepts], classifier.length)
    with torch.no_grad():
        x = run_until(model, model.check_prompts(prompts), [classifier.site])[classifier.site].float().cpu()
    last = x[torch.arange(len(x)), prompts.last.cpu()]
    return torch.nn.functional.normalize(last - last.mean(0), dim=-1)


_RUN: Mapping[str, Callable[[Ground], list[Row]]] = {
    "concept bottleneck": _concept_bottleneck,
    "random": _random,
    "words deleted": _words_deleted,
    "neuron skyline": _neuron_skyline,
    "feature skyline": _feature_skyline,
    "oracle": _oracle,
}
BASELINES = tuple(_RUN)
