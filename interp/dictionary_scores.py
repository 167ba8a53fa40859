"""How well a dictionary takes concepts apart: spurious correlation removal (SCR) and targeted probe perturbation (TPP).

    SCR = (A_ablated - A_biased) / (A_clean - A_biased)
    TPP = mean over classes i of (drop of probe i - mean drop of the other probes), the top features of class i ablated

A probe reads the mean over tokens of the dictionary's own site, and the error term stays. Putting features A to zero
therefore moves its logit by exactly

    - sum over i in A of F_i (w . v_i),    F_i = mean over the same tokens of f_i(x_t)

so one forward over the texts gives F and the pooled activations, and every ablation is a product of two matrices.

Source: SAEBench, Karvonen et al. 2025 (arXiv 2503.09532), and its code at version 0.6.0, `evals/scr_and_tpp`: texts of
128 tokens, the settings in `PROBE`, the ranking of features and the formulas. Different here: a probe is that of the
last epoch (the code keeps the first of those best on the test texts); the mean over tokens leaves out padding and a
sink (the code: padding, BOS and EOS); features are ablated at those tokens alone (the code also takes what they write
for x = 0 off the sum, once for every token left out); a quotient without a denominator is NaN (the code: 0); and there
are random controls. Else the figures agree: given the same probes and texts, to 1e-7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.classifier import text_prompts
from interp.errors import OptionError, TaskError
from interp.featurizers.base import Affine, Featurizer, checked_featurizers, flat
from interp.labelled.base import Labelled
from interp.models.base import HookedModel
from interp.probes import ProbeSettings, row_sums, token_means, train_probe
from interp.site import Site
from interp.table import Table
from interp.tokens import Prompts

SIZES = (2, 5, 10, 20, 50, 100, 500)
"""How many features SAEBench ablates."""
PROBE = ProbeSettings(learning_rate=1e-3, epochs=20, batch=16, l1=1e-3)
"""SAEBench's probes: AdamW, with PyTorch's weight decay of 0.01."""
LEAST = 1e-3
"""Least accuracy to be regained for which SAEBench computes a quotient."""
DRAWS = 10
"""Sets of random features whose mean is the control; our own choice."""
PAIRINGS = ((0, 3), (1, 2))
"""Groups that a biased probe is trained on, as 2 label + attribute; SAEBench has the first."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """Means over each text's tokens, in float32 on the CPU.

    Attributes:
        activations: of the featurizer's site [text, d].
        features: [text, feature]; positions that the featurizer skips count as 0.
    """

    activations: Float[Tensor, "text d"]
    features: Float[Tensor, "text feature"]


@dataclass(frozen=True, eq=False)
class Reading:
    """A probe on held-out texts, in the form from which every ablation follows.

    Attributes:
        labels: 0 or 1, one a text.
        logits: of label 1, nothing ablated.
        features: pooled, of all texts [any, feature], of which `rows` are the held-out ones.
        along: what one unit of each feature adds to the logit, w . v_i.
    """

    labels: Int[Tensor, " text"]
    logits: Float[Tensor, " text"]
    features: Float[Tensor, "any feature"]
    rows: Int[Tensor, " text"]
    along: Float[Tensor, " feature"]

    def without(self, units: Int[Tensor, " unit"]) -> Float[Tensor, " text"]:
        """Logits with some features put to zero."""
        return self.logits - self.features[self.rows[:, None], units] @ self.along[units]

    def accuracy(self, units: Int[Tensor, " unit"] | None = None) -> float:
        """Share of right labels, with some features put to zero."""
        logits = self.logits if units is None else self.without(units)
        return float(((logits > 0) == self.labels.bool()).double().mean())


def scr(
    model: HookedModel,
    dictionary: Featurizer,
    data: Labelled,
    *,
    n_features: Sequence[int] = SIZES,
    test: float = 0.2,
    length: int = 128,
    settings: ProbeSettings | None = None,
    seed: int = 0,
    batch: int = 32,
) -> Table:
    """How much of a probe's reliance on a spurious concept goes with the N features most tied to that concept.

    A biased probe learns the label on two groups only, in which label and attribute go together. Judged on balanced
    held-out texts, it is asked for the label and for the attribute; as in SAEBench, what it does worse at is the
    concept *judged* and the other one is *spurious*. Features rank by |mean over texts that have the spurious concept -
    mean over the others| |w . v_i|, with a probe of the spurious concept and the balanced training texts of it. The top
    N are put to zero in the held-out texts. SAEBench has one pairing of groups, the first here; the second swaps the
    attribute's values. Where both accuracies are equal, the label is judged.

    Memory: pooled features take 4 bytes x texts x features (5,000 texts, 16,384 features: 330 MB); a batch's features
    4 bytes x its tokens x features.

    Args:
        dictionary: any featurizer; coordinates of a site give the baseline of its neurons.
        data: texts of all four groups. The rarest group gives the share `test` of its texts to the held-out part and
            the rest to the balanced training part; the other groups give as many to either. A biased probe learns from
            twice as many of each of its two groups, as in SAEBench, where there are so many.
        n_features: how many features to ablate, a row of the table for each.
        test: share of the rarest group's texts that is held out.
        length: tokens of a text that are read.
        settings: of all probes; `PROBE` when None.
        seed: of the split, the probes and the control.
        batch: texts in a forward.

    Returns:
        a row for each pairing and each N: `pairing` (the two groups), `judged` (``"label"`` or ``"attribute"``),
        `n_features`, `ablated` (features put to zero: fewer than N where no more have an effect), accuracies `biased`,
        `clean` (of a probe of the concept itself) and `after` (of the biased probe, features ablated), `scr`, `random`
        (the mean SCR of ten sets of as many random features out of those active in any text) and `note`. Both are NaN
        where the clean probe is less than 0.001 above the biased one, and the note says so.

    Raises:
        TaskError: no attributes, a group without enough texts.
        OptionError, SiteError: numbers outside their range, more features than the dictionary has, a dictionary that
            does not fit the model.
        PromptError: texts without a token that counts.
    """
    one = _checked(model, dictionary, n_features, test, length, seed, batch)
    names = [data.group_name(group) for group in range(4)]
    used, train, held = _split(data.groups, names, test, seed, times=2)
    prompts = text_prompts(model, [data.texts[row] for row in used], length)
    bench = _Bench(one, pooled(model, one, prompts, batch=batch), settings or PROBE, seed)
    groups = torch.tensor(data.groups[used])
    case = _case(bench, groups, train, torch.cat(held))
    rows = [row for pairing in PAIRINGS for row in _scr_rows(case, pairing, names, n_features)]
    return Table({name: [row[name] for row in rows] for name in rows[0]})


def tpp(
    model: HookedModel,
    dictionary: Featurizer,
    texts: Sequence[str],
    labels: Sequence[str | int],
    *,
    n_features: Sequence[int] = SIZES,
    test: float = 0.2,
    length: int = 128,
    settings: ProbeSettings | None = None,
    seed: int = 0,
    batch: int = 32,
) -> Table:
    """How far the N features most tied to one class spoil the probe of that class and no other.

    Each class has a probe: its texts against as many of the other classes, evenly. Features of class i rank by
    max(0, mean over its texts - mean over the others) (w_i . v), and only those above 0 are ever ablated: they are more
    active in the class and speak for it. (SAEBench, asked for more, goes on to features without an effect, and draws
    the other classes' texts anew for every accuracy; here the held-out texts stay the same.) Memory as in `scr`.

    Args:
        dictionary: any featurizer; coordinates of a site give the baseline of its neurons.
        labels: the class of each text, two classes or more. As many texts of each class are used as the rarest has.
        n_features, test, length, settings, seed, batch: as in `scr`.

    Returns:
        a row for each N, means over the classes: `n_features`, `ablated` (features put to zero), `clean` (accuracy with
        nothing ablated), `intended` (drop in accuracy of the probe of the class whose features are ablated),
        `unintended` (mean drop of the others), `tpp` (intended - unintended), `random` (the mean TPP of ten sets of as
        many random features out of those active in any text; a set for each class) and `note`.

    Raises:
        TaskError: texts and labels that do not fit, empty texts, one class only, a class without enough texts.
        OptionError, SiteError, PromptError: as in `scr`.
    """
    one = _checked(model, dictionary, n_features, test, length, seed, batch)
    _check_texts(texts, labels)
    classes = sorted(set(labels), key=str)
    kinds = np.array([classes.index(label) for label in labels])
    used, train, held = _split(kinds, list(map(str, classes)), test, seed, times=1)
    prompts = text_prompts(model, [texts[row] for row in used], length)
    bench = _Bench(one, pooled(model, one, prompts, batch=batch), settings or PROBE, seed)
    readings, effects = _class_readings(bench, torch.tensor(kinds[used]), train, held)
    rows = [_tpp_row(bench, readings, effects, n, classes) for n in n_features]
    return Table({name: [row[name] for row in rows] for name in rows[0]})


def pooled(model: HookedModel, one: Featurizer, prompts: Prompts, *, batch: int = 32) -> Pooled:
    """Means over the tokens that `interp.probes.pool` counts, of a featurizer's site and of its features.

    Raises:
        PromptError: prompts without a token besides the attention sink.
    """

    def sums(seen: Mapping[Site, Tensor], counted: Tensor) -> list[Tensor]:
        explained = counted.clone()
        explained[:, : one.skip] = False
        return [row_sums(flat(seen[one.site]), counted), row_sums(flat(seen[one.reads]), explained, one.encode)]

    sites = list(dict.fromkeys((one.reads, one.site)))
    return Pooled(*token_means(model, prompts, sites, sums, batch=batch))


@dataclass(frozen=True, eq=False)
class _Bench:
    """What probes are trained and judged on."""

    featurizer: Affine
    pooled: Pooled
    settings: ProbeSettings
    seed: int

    def reading(self, values: Tensor, train: Tensor, held: Tensor) -> Reading:
        """A probe of 0/1 values [text], trained on some rows and judged on others."""
        activations = self.pooled.activations
        probe = train_probe(activations[train], values[train].tolist(), self.settings, seed=self.seed)
        directions = self.featurizer.directions().float()
        along = (directions @ probe.weight.to(directions)).cpu()
        return Reading(values[held], probe(activations[held]), self.pooled.features, held, along)

    def difference(self, values: Tensor, rows: Tensor) -> Float[Tensor, " feature"]:
        """Mean features of the rows with value 1, less those of the rows with value 0."""
        has, lacks = (self.pooled.features[rows[values[rows] == value]].mean(0) for value in (1, 0))
        return has - lacks

    def random(self, count: int, *key: int) -> list[Tensor]:
        """Ten sets of random features, each of which is active in some text."""
        draw = np.random.default_rng([self.seed, count, *key])
        active = (self.pooled.features != 0).any(0).nonzero()[:, 0].numpy()
        return [torch.tensor(draw.choice(active, count, replace=False), dtype=torch.long) for _ in range(DRAWS)]


@dataclass(frozen=True, eq=False)
class _Case:
    """SCR's two concepts, label and attribute: clean probes, and how strongly each feature is tied to them."""

    bench: _Bench
    label: Tensor
    train: Sequence[Tensor]
    held: Tensor
    clean: dict[str, Reading]
    effects: dict[str, Tensor]


def _case(bench: _Bench, groups: Tensor, train: Sequence[Tensor], held: Tensor) -> _Case:
    least = min(map(len, train))
    balanced = torch.cat([rows[:least] for rows in train])
    concepts = {"label": groups // 2, "attribute": groups % 2}
    clean = {name: bench.reading(values, balanced, held) for name, values in concepts.items()}
    effects = {
        name: (bench.difference(values, balanced) * clean[name].along).abs() for name, values in concepts.items()
    }
    return _Case(bench, concepts["label"], train, held, clean, effects)


def _scr_rows(
    case: _Case, pairing: tuple[int, int], names: Sequence[str], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """The rows of one biased probe."""
    count = min(2 * min(map(len, case.train)), *(len(case.train[group]) for group in pairing))
    train = torch.cat([case.train[group][:count] for group in pairing])
    biased = case.bench.reading(case.label, train, case.held)
    swapped = pairing[0] % 2  # then label 1 goes with attribute 0
    asked = {"label": biased, "attribute": replace(biased, labels=case.clean["attribute"].labels ^ swapped)}
    judged, spurious = sorted(asked, key=lambda name: asked[name].accuracy())  # stable: the label first
    named = {"pairing": " + ".join(names[group] for group in pairing), "judged": judged}
    clean = case.clean[judged].accuracy()
    return [named | _scr_row(case.bench, asked[judged], clean, case.effects[spurious], n) for n in sizes]


def _scr_row(bench: _Bench, biased: Reading, clean: float, effects: Tensor, n: int) -> dict[str, Any]:
    units = _top(effects, n)
    before, after = biased.accuracy(), biased.accuracy(units)
    control = float(np.mean([biased.accuracy(one) for one in bench.random(len(units))]))
    gap = clean - before
    notes = [f"features with an effect: {len(units)}"] if len(units) < n else []
    if gap < LEAST:
        notes.append(f"undefined: the clean probe's {clean:.3f} is not above the biased probe's {before:.3f}")
    scores = [(one - before) / gap if gap >= LEAST else float("nan") for one in (after, control)]
    return {
        "n_features": n, "ablated": len(units), "biased": before, "clean": clean, "after": after, "scr": scores[0],
        "random": scores[1], "note": "; ".join(notes),
    }  # fmt: skip


def _class_readings(
    bench: _Bench, kinds: Tensor, train: Sequence[Tensor], held: Sequence[Tensor]
) -> tuple[list[Reading], list[Tensor]]:
    """For each class its probe, and the features' effects on it."""
    readings, effects = [], []
    for number in range(len(train)):
        values = (kinds == number).long()
        rows = _against_others(train, number, bench.seed)
        readings.append(bench.reading(values, rows, _against_others(held, number, bench.seed)))
        effects.append(bench.difference(values, rows).clamp(min=0) * readings[-1].along)
    return readings, effects


def _against_others(parts: Sequence[Tensor], number: int, seed: int) -> Int[Tensor, " row"]:
    """All of a class's rows and as many of the others, evenly; classes have equally many rows, in random order."""
    others = [part for other, part in enumerate(parts) if other != number]
    wanted = len(parts[number])
    each = -(-wanted // len(others))
    drawn = torch.cat([part[:each] for part in others])
    order = np.random.default_rng([seed, number]).permutation(len(drawn))[:wanted]
    return torch.cat([parts[number], drawn[torch.tensor(order)]])


def _tpp_row(
    bench: _Bench, readings: Sequence[Reading], effects: Sequence[Tensor], n: int, classes: Sequence[str | int]
) -> dict[str, Any]:
    units = [_top(one, n) for one in effects]
    clean = np.array([one.accuracy() for one in readings])
    intended, unintended = _drops(readings, units, clean)
    randoms = [bench.random(len(one), number) for number, one in enumerate(units)]
    controls = [_drops(readings, one, clean) for one in zip(*randoms, strict=True)]
    short = [f"{name} {len(one)}" for name, one in zip(classes, units, strict=True) if len(one) < n]
    return {
        "n_features": n, "ablated": float(np.mean([len(one) for one in units])), "clean": float(clean.mean()),
        "intended": intended, "unintended": unintended, "tpp": intended - unintended,
        "random": float(np.mean([own - others for own, others in controls])),
        "note": f"features with an effect: {', '.join(short)}" if short else "",
    }  # fmt: skip


def _drops(readings: Sequence[Reading], units: Sequence[Tensor], clean: np.ndarray) -> tuple[float, float]:
    """Mean drop in accuracy of the probes whose features are ablated, and of the others."""
    after = np.array([[reading.accuracy(ablated) for reading in readings] for ablated in units])
    drops = clean - after  # class ablated, probe
    own = np.eye(len(readings), dtype=bool)
    return float(drops[own].mean()), float(drops[~own].mean())


def _top(effects: Float[Tensor, " feature"], n: int) -> Int[Tensor, " unit"]:
    """The `n` features of the largest effects, or all above 0 where they are fewer; ties go to the first."""
    order = effects.sort(descending=True, stable=True).indices[:n]
    return order[effects[order] > 0]


def _split(
    kinds: np.ndarray, names: Sequence[str], test: float, seed: int, *, times: int
) -> tuple[Int[np.ndarray, " used"], list[Tensor], list[Tensor]]:
    """The rows used, and for each kind the places among them of its training and its held-out texts, in random order.

    Of each kind as many are held out; for training there are at most `times` as many as the rarest kind has.

    Raises:
        TaskError: a kind of which no text is left for one of the two.
    """
    draw = np.random.default_rng(seed)
    rows = [draw.permutation(np.flatnonzero(kinds == kind)) for kind in range(len(names))]
    least = min(map(len, rows))
    held = round(test * least)
    if not 1 <= held < least:
        counts = ", ".join(f"{name} {len(one)}" for name, one in zip(names, rows, strict=True))
        raise TaskError(
            f"with test={test}, the rarest group or class has {held} texts to be judged on and {least - held} to train "
            f"on ({counts}); each needs at least 1 of both: give more texts of it, or change test."
        )
    chosen = [one[: held + times * (least - held)] for one in rows]
    ends = np.cumsum([0, *map(len, chosen)])
    train = [torch.arange(start + held, end) for start, end in zip(ends, ends[1:], strict=False)]
    return np.concatenate(chosen), train, [torch.arange(start, start + held) for start in ends[:-1]]


def _checked(
    model: HookedModel, given: Featurizer, sizes: Sequence[int], test: float, length: int, seed: int, batch: int
) -> Affine:
    """The featurizer on the model's device, once it and all numbers are known to fit."""
    one = checked_featurizers(model, [given])[0]
    if not isinstance(one, Affine):
        raise OptionError(f"{one} has no affine decoder, so ablations are no matrix products; give one that has.")
    outside = [n for n in sizes if not 1 <= n <= one.n_features]
    faults = [f"n_features has {outside}; allowed: 1 to the {one.n_features} of {one}"] if outside else []
    faults += [] if len(sizes) else ["n_features is empty; give numbers, such as (2, 5, 10)"]
    faults += [] if 0 < test < 1 else [f"test={test}; allowed: between 0 and 1, without both"]
    faults += [
        f"{name}={value}; allowed: {least} and more"
        for name, value, least in (("length", length, 1 + int(model.has_sink)), ("batch", batch, 1), ("seed", seed, 0))
        if value < least
    ]
    if faults:
        raise OptionError(f"the score cannot be computed: {'; '.join(faults)}.")
    return one


def _check_texts(texts: Sequence[str], labels: Sequence[str | int]) -> None:
    faults = [] if len(texts) == len(labels) else [f"{len(labels)} labels for {len(texts)} texts; give one a text"]
    if len(set(labels)) < 2:
        faults.append(f"classes {sorted(set(labels), key=str)}; two and more are needed")
    if empty := [row for row, text in enumerate(texts) if not text.strip()]:
        faults.append(f"texts {empty[:10]} are empty; leave them out")
    if faults:
        raise TaskError(f"texts and labels do not fit together: {'; '.join(faults)}.")
