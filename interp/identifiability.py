"""How unique is an explanation? One report on circuits that are each claimed to carry a behaviour.

Circuits are brought to one universe, pruned to the paths from input to logits where they have edges, and run on
held-out prompts. The report then says

1. how many distinct ones are faithful (the lower end of the bootstrap interval reaches the bar), how many of these
   contain no other (minimal) and how many could not lose any one member (1-minimal), for every bar;
2. how much they overlap (`interp.compare`), and which parts are core, contested or substitutable;
3. which do the same: equal top answers on all prompts, and still so when members are knocked out of all of them alike;
4. a vector of criteria for each, and tests with corrections (`interp.criteria`);
5. the same count for controls: random circuits, random weights, and (where the search can be run again) circuits
   found for shuffled answers; a circuit that was found already keeps what the model says, whatever the answers are;
6. a verdict by stated bars:

    no faithful circuit   none reaches the bar
    unstable              other prompts would have chosen other members (mean pairwise Jaccard below the bar)
    unique                one minimal faithful circuit, which all others contain
    core + variants       several, and on average more than `core_share` of each is in all of them
    many equivalent       several, with less in common

Faithfulness is no monotone property: a superset of a faithful circuit never adds to the minimal count, but it may add
to the 1-minimal one.

Source: Méloux et al. 2025 (arXiv 2502.20914) for the question; the verdict's bars are ours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import overlaps
from interp.circuit import Circuit
from interp.circuit_algebra import on_one_universe
from interp.comparison import Comparison, canonical, compare, named_circuits, rows_table
from interp.criteria import criteria, criteria_runs, holm, localisation, minimality_test, preservation
from interp.errors import CircuitError, ModelError, OptionError
from interp.evaluate import JudgedRuns, Members, judged_runs, random_masks
from interp.featurizers.base import Featurizer
from interp.metrics import Answers, Metric
from interp.models.base import HookedModel
from interp.models.random_copy import random_copy
from interp.recovery import recovery, resampled, resamples
from interp.scoring import OutputScorer, checked_metrics
from interp.table import Table
from interp.tasks.base import Task

VERDICTS = ("no faithful circuit", "unstable", "unique", "core + variants", "many equivalent")
BARS = np.round(np.arange(0.0, 1.001, 0.05), 2)
KNOCKED_OUT = 0.1  # share of the members of any circuit that an intervention takes away


@dataclass(frozen=True)
class Bars:
    """What a verdict rests on.

    Args:
        at_least: faithfulness that the lower end of the 95 % interval must reach.
        stability: mean pairwise Jaccard index of circuits chosen on resampled prompts.
        core_share: mean share of a minimal circuit that all minimal ones have.
        margin: of the preservation test, in units of the gap between the full and the empty run.
    """

    at_least: float = 0.9
    stability: float = 0.8
    core_share: float = 0.5
    margin: float = 0.1

    def __post_init__(self) -> None:
        wrong = {name: value for name, value in vars(self).items() if not 0 < value <= 1}
        if wrong:
            raise OptionError(f"bars {wrong}; allowed: above 0, at most 1.")


@dataclass(frozen=True, eq=False)
class IdentifiabilityReport:
    """What `identifiability_report` found.

    Attributes:
        verdict: one of `VERDICTS`; reason says why.
        verdict_share: share of the resamples of prompts in which the same verdict comes out.
        faithful, minimal, one_minimal: how many distinct circuits are, on all prompts.
        faithful_range, minimal_range: 95 % of these counts over resamples.
        circuits: one row a circuit: circuit, size, faithful, minimal, one_minimal, same_members_as (the first circuit
            with these members), functional_class, intervened_class, stability, one faithfulness with low and high an ablation, the criteria, and the tests'
            corrected p-values (preserved_p, localised_p) with minimal_share, the share of members that pass theirs.
        counts: one row a bar: at_least, faithful, minimal.
        comparison: of the faithful circuits, of all where fewer than two are.
        substitutable: pairs of parts of which every minimal circuit has exactly one.
        equivalence: one row a pair of faithful circuits: first, second, same_answers and kl on the prompts, and the
            same under interventions.
        members: one row a faithful circuit and member: the minimality test.
        controls: one row a control: control, circuits, faithful, largest, note.
        bars: what the verdict rests on.
        outside: what has no candidate and ran as it is.
    """

    verdict: str
    reason: str
    verdict_share: float
    faithful: int
    minimal: int
    one_minimal: int
    faithful_range: tuple[float, float]
    minimal_range: tuple[float, float]
    circuits: Table
    counts: Table
    comparison: Comparison
    substitutable: tuple[tuple[str, str], ...]
    equivalence: Table
    members: Table
    controls: Table
    bars: Bars
    outside: tuple[str, ...]

    def __str__(self) -> str:
        low, high = self.minimal_range
        lines = [
            f"{self.verdict}: {self.reason} (in {self.verdict_share:.0%} of the resamples)",
            f"{self.faithful} distinct faithful circuits among {len(self.circuits)}, {self.minimal} minimal "
            f"[{low:.0f}, {high:.0f}], {self.one_minimal} 1-minimal",
        ]
        lines += [f"every minimal circuit has either {one} or {other}" for one, other in self.substitutable]
        for row in self.controls.rows():
            note = f" ({row['note']})" if row["note"] else ""
            lines.append(f"control, {row['control']}: {row['faithful']} of {row['circuits']} faithful{note}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class _Setting:
    """What is judged on what."""

    members: Members
    masks: Bool[np.ndarray, "circuit member"]
    task: Task
    metric: Metric
    ablation: str
    seed: int
    bars: Bars

    def runs(self, masks: np.ndarray, ablation: str = "", task: Task | None = None) -> JudgedRuns:
        return judged_runs(
            self.members, task or self.task, masks, "faithfulness", self.metric, ablation=ablation or self.ablation,
            seed=self.seed,
        )  # fmt: skip


def identifiability_report(
    model: HookedModel,
    task: Task,
    circuits: Mapping[str, Circuit] | Sequence[Circuit],
    *,
    bars: Bars | None = None,
    groups: Mapping[str, Sequence[Any]] | None = None,
    metric: str | Metric | None = None,
    ablations: Sequence[str] = ("counterfactual", "mean", "zero"),
    found_on: Task | None = None,
    elsewhere: Task | None = None,
    discover: Callable[[HookedModel, Task], Circuit] | None = None,
    featurizers: Sequence[Featurizer] = (),
    n_boot: int = 100,
    random: int = 20,
    interventions: int = 4,
    seed: int = 0,
) -> IdentifiabilityReport:
    """Judge circuits together; see the module.

    Args:
        task: held-out prompts.
        circuits: label -> circuit, of any methods or seeds; at one granularity (`interp.compare` says how to reach
            one). What a circuit could not have chosen counts as left out of it.
        bars: what the verdict rests on.
        groups: of nodes, for the overlaps; as in `compare`.
        metric: its name, or the metric; the task's own when None.
        ablations: what replaces the rest; the first decides, the others stand beside it.
        found_on: the prompts that the circuits were found on, to be told when the held-out ones are among them.
        elsewhere: prompts of another distribution, for the criterion ``elsewhere``.
        discover: the search itself, run again for the controls: on random weights and on shuffled answers, over the
            universe of the circuits. Without it the circuits at hand are judged on random weights.
        featurizers: those that nodes name.
        n_boot: resamples of the prompts.
        random: random circuits of each circuit's size.
        interventions: sets of members that are knocked out of all circuits alike.
        seed: of every draw.

    Raises:
        CircuitError: fewer than two circuits, circuits that cannot be brought together, a metric that does not tell
            the full run from the empty one.
        OptionError: no ablation, counts below 1; TaskError: prompts that the circuits were found on.
    """
    if not ablations or n_boot < 1 or random < 0 or interventions < 1:
        raise OptionError(
            f"ablations={list(ablations)}, n_boot={n_boot}, random={random}, interventions={interventions}; give at "
            "least one ablation, resample and intervention."
        )
    if found_on is not None and (leaks := task.leakage(found_on)["prompt"]):
        raise CircuitError(f"{leaks} of {len(task)} held-out prompts are among those the circuits were found on.")
    given = named_circuits(circuits)
    labels = tuple(given)
    placed = on_one_universe([canonical(one) for one in given.values()])
    (used,) = checked_metrics(model, task, metric or ())
    members = Members(model, placed[0], featurizers)
    setting = _Setting(
        members, np.stack([members.of(one) for one in placed]), task, used, ablations[0], seed, bars or Bars()
    )  # fmt: skip
    judged = {ablation: setting.runs(setting.masks, ablation) for ablation in ablations}
    if reason := recovery(judged[ablations[0]].values, judged[ablations[0]].full, judged[ablations[0]].empty).reason:
        raise CircuitError(f"faithfulness is undefined: {reason}; choose prompts on which the runs differ.")
    return _report(
        setting, given, labels, judged, groups, elsewhere, discover, featurizers, (n_boot, random, interventions)
    )


def _report(
    setting: _Setting, given: Mapping[str, Circuit], labels: tuple[str, ...], judged: Mapping[str, JudgedRuns],
    groups: Any, elsewhere: Task | None, discover: Any, featurizers: Any, numbers: tuple[int, int, int],
) -> IdentifiabilityReport:  # fmt: skip
    n_boot, random, interventions = numbers
    spread = {name: _spread(runs, n_boot, setting.seed) for name, runs in judged.items()}
    value, low, _, each = spread[setting.ablation]
    bar = setting.bars.at_least
    first, which = overlaps.distinct(setting.masks)
    as_first = first[which]  # circuits with the same members are one
    good = np.flatnonzero(low >= bar)
    good = good[np.isin(good, first)]
    small = good[overlaps.minimal(setting.masks[good])] if len(good) else good
    stability = np.array([_stability(one, n_boot, setting.seed) for one in given.values()])
    verdict, reason = _verdict(setting.masks, small, stability, setting.bars)
    over = [_counted(setting.masks, each[:, n] >= bar, stability, setting.bars) for n in range(n_boot)]
    tests = {n: _minimality(setting, setting.masks[n]) for n in good.tolist()}
    classes = _classes(setting, good, interventions, labels)
    columns = {
        "circuit": np.array(labels, dtype=object), "size": setting.masks.sum(1), "faithful": low >= bar,
        "minimal": np.isin(as_first, small),
        "one_minimal": np.array([n in tests and bool(tests[n]["needed"].all()) for n in as_first]),
        "same_members_as": np.array(labels, dtype=object)[as_first],
        "functional_class": classes.data[as_first], "intervened_class": classes.intervened[as_first],
        "stability": stability,
        **{f"faithfulness.{name}{end}": values for name, found in spread.items()
           for end, values in zip(("", ".low", ".high"), found, strict=False)},
        **_criteria(setting, elsewhere),
        "minimal_share": np.array([float(np.mean(tests[n]["p"] < 0.05)) if n in tests else np.nan for n in as_first]),
    }  # fmt: skip
    chosen = {labels[n]: given[labels[n]] for n in (good if len(good) > 1 else range(len(labels)))}
    rows = [{"circuit": labels[n], **row} for n, table in tests.items() for row in table.rows()]
    return IdentifiabilityReport(
        verdict, reason, float(np.mean([one[0] == verdict for one in over])), len(good), len(small),
        int(columns["one_minimal"][good].sum()), _range([one[1] for one in over]), _range([one[2] for one in over]),
        Table(columns), _curve(setting.masks, low), compare(chosen, groups=groups),
        _named(overlaps.substitutes(setting.masks[small]), setting.members.names), classes.pairs,
        rows_table(rows, "circuit member"), _controls(setting, random, discover, featurizers), setting.bars,
        judged[setting.ablation].outside,
    )  # fmt: skip


def _spread(runs: JudgedRuns, n_boot: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Faithfulness of each circuit, its 95 % interval, and its value in each resample of the prompts."""
    value = recovery(runs.values, runs.full, runs.empty).value.numpy()
    weights = resamples(len(runs.full), n_boot, seed)
    each = resampled(runs.values - runs.empty, weights, runs.full - runs.empty).numpy()
    low, high = np.quantile(each, [0.025, 0.975], axis=1)
    return value, np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf), each


def _verdict(
    masks: np.ndarray, small: Int[np.ndarray, " minimal"], stability: Float[np.ndarray, " circuit"], bars: Bars
) -> tuple[str, str]:
    if not len(small):
        return VERDICTS[0], f"no circuit reaches a faithfulness of {bars.at_least:g}"
    known = stability[~np.isnan(stability)]
    if len(known) and known.mean() < bars.stability:
        return VERDICTS[
            1
        ], f"circuits chosen on resampled prompts overlap by {known.mean():.2f}, below {bars.stability:g}"
    if len(small) == 1:
        return VERDICTS[2], "one minimal faithful circuit"
    core = masks[small].all(0)
    share = float(np.mean(core.sum() / masks[small].sum(1)))
    said = f"{len(small)} minimal faithful circuits, {share:.0%} of each in all of them"
    return (VERDICTS[3] if share > bars.core_share else VERDICTS[4]), said


def _counted(masks: np.ndarray, enough: np.ndarray, stability: np.ndarray, bars: Bars) -> tuple[str, int, int]:
    """Verdict, faithful and minimal circuits in one resample."""
    good = np.flatnonzero(enough)
    small = good[overlaps.minimal(masks[good])] if len(good) else good
    distinct = len(overlaps.distinct(masks[good])[0]) if len(good) else 0
    return _verdict(masks, small, stability, bars)[0], distinct, len(small)


def _range(counts: Sequence[int]) -> tuple[float, float]:
    low, high = np.quantile(counts, [0.025, 0.975])
    return float(low), float(high)


def _curve(masks: np.ndarray, low: Float[np.ndarray, " circuit"]) -> Table:
    """How many distinct circuits, and minimal ones, are faithful at every bar."""
    sets = [masks[low >= bar] for bar in BARS]
    faithful = [len(overlaps.distinct(one)[0]) if len(one) else 0 for one in sets]
    smallest = [int(overlaps.minimal(one).sum()) if len(one) else 0 for one in sets]
    return Table({"at_least": BARS, "faithful": np.array(faithful), "minimal": np.array(smallest)})


def _stability(circuit: Circuit, n_boot: int, seed: int) -> float:
    """Mean pairwise Jaccard index of the circuits of this size that resampled prompts would have chosen; NaN where the
    circuit holds no scores by prompt, or keeps all or nothing."""
    for name, score in circuit.scores.items():
        axes = (score.over.removesuffix("s"), "prompt")
        size = int(circuit.kept(score.over).sum())
        if name in circuit.tensors and circuit.tensors[name].axes == axes and 0 < size < circuit.count(score.over):
            rank: Any = circuit.provenance.ranking or "absolute"
            if rank == "signed" and not score.header.signed:
                continue
            values = torch.from_numpy(np.nan_to_num(circuit.tensors[name].array)).double()
            means = resampled(values, resamples(values.shape[1], n_boot, seed)).numpy()
            known = ~np.isnan(score.values)
            keys = np.where(known[:, None], means if rank == "signed" else np.abs(means), -np.inf)
            chosen = np.argsort(-keys, axis=0, kind="stable")[:size].T
            masks = np.zeros((n_boot, len(values)), bool)
            np.put_along_axis(masks, chosen, True, axis=1)
            return overlaps.mean_of_pairs(overlaps.jaccard(masks))
    return float("nan")


def _criteria(setting: _Setting, elsewhere: Task | None) -> dict[str, np.ndarray]:
    """The criteria of every circuit, and the corrected p-values of preservation and localisation."""
    runs = criteria_runs(
        setting.members, setting.task, setting.masks, setting.metric, ablation=setting.ablation, seed=setting.seed
    )  # fmt: skip
    found = criteria(runs)
    if elsewhere is not None:
        other = setting.runs(setting.masks, task=elsewhere)
        found["elsewhere"] = recovery(other.values, other.full, other.empty).value.numpy()
    found["preserved_p"] = holm(preservation(runs["independence"], setting.bars.margin, setting.seed))
    found["localised_p"] = holm(localisation(runs["necessity"], setting.bars.at_least, setting.seed))
    return found


def _minimality(setting: _Setting, kept: Bool[np.ndarray, " member"]) -> Table:
    return minimality_test(
        setting.members, setting.task, kept, setting.metric, ablation=setting.ablation,
        at_least=setting.bars.at_least, seed=setting.seed,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Classes:
    """Which circuits do the same, on the prompts and under interventions; -1 for those that are not faithful."""

    data: Int[np.ndarray, " circuit"]
    intervened: Int[np.ndarray, " circuit"]
    pairs: Table


def _classes(setting: _Setting, good: np.ndarray, interventions: int, labels: Sequence[str]) -> _Classes:
    none = np.full(len(labels), -1)
    if not len(good):
        return _Classes(none, none, rows_table([], "first second"))
    masks = setting.masks[good]
    any_has = np.flatnonzero(masks.any(0))
    generator = np.random.default_rng(setting.seed)
    stacked = [masks]
    for _ in range(interventions):
        less = masks.copy()
        less[:, generator.permutation(any_has)[: max(1, round(KNOCKED_OUT * len(any_has)))]] = False
        stacked.append(less)
    model, task = setting.members.model, setting.task
    scorer = OutputScorer(model, (), task.answers)
    said = setting.members.run(
        task, np.concatenate(stacked), setting.metric, ablation=setting.ablation, seed=setting.seed, scorer=scorer
    ).values.unflatten(1, (len(stacked), len(good)))  # fmt: skip
    said = said.permute(2, 1, 3, 0)  # circuit, intervention, prompt, vocabulary
    top = said.argmax(-1).numpy()
    rows = []
    for i, j in combinations(range(len(good)), 2):
        same, kl = top[i] == top[j], _divergence(said[i], said[j])
        rows.append({
            "first": labels[good[i]], "second": labels[good[j]], "same_answers": float(same[0].mean()), "kl": kl[0],
            "same_answers_intervened": float(same[1:].mean()), "kl_intervened": float(np.mean(kl[1:])),
        })  # fmt: skip
    found = []
    for tops in (top[:, 0], top):
        which = none.copy()
        which[good] = overlaps.groups_of(tops.reshape(len(good), -1))
        found.append(which)
    return _Classes(found[0], found[1], rows_table(rows, "first second"))


def _divergence(one: Float[Tensor, "run prompt vocab"], other: Float[Tensor, "run prompt vocab"]) -> list[float]:
    """KL(one || other) of each run, mean over prompts, in nats."""
    return (one.exp() * (one - other)).sum(-1).mean(-1).tolist()


def _named(parts: Sequence[tuple[np.ndarray, np.ndarray]], names: np.ndarray) -> tuple[tuple[str, str], ...]:
    return tuple((" + ".join(names[one]), " + ".join(names[other])) for one, other in parts)


def _controls(setting: _Setting, random: int, discover: Any, featurizers: Any) -> Table:
    """How many circuits would have passed where there is nothing to find."""
    members, task = setting.members, setting.task
    drawn = [mask for kept in setting.masks for mask in random_masks(kept, random, setting.seed)]
    rows = [_control("random circuits", setting, members, task, np.stack(drawn))] if drawn else []
    if discover is not None:
        shuffled, note = _shuffled(task, setting.seed)
        masks = members.of(discover(members.model, shuffled))[None]
        rows.append(_control("shuffled answers", setting, members, shuffled, masks, *note))
    try:
        other = random_copy(members.model, setting.seed)
    except ModelError as error:
        rows.append({"control": "random weights", "circuits": 0, "faithful": 0, "largest": np.nan, "note": str(error)})
    else:
        there = Members(other, members.circuit, featurizers)
        masks = setting.masks if discover is None else there.of(discover(other, task))[None]
        rows.append(_control("random weights", setting, there, task, masks))
    return rows_table(rows)


def _shuffled(task: Task, seed: int) -> tuple[Task, list[str]]:
    """The task with each prompt's answers from another prompt of as many targets; and what did not move."""
    generator, order = np.random.default_rng(seed), np.arange(len(task))
    given = task.answers
    counts = given.present.sum(1).numpy()
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        order[rows] = generator.permutation(rows)
    moved = Answers(given.positions, given.correct[order], given.wrong[order])
    same = [
        torch.equal(given.correct[n], moved.correct[n]) and torch.equal(given.wrong[n], moved.wrong[n])
        for n in range(len(task))
    ]
    return replace(task, answers=moved), [f"{sum(same)} of {len(task)} prompts kept their answers"] * any(same)


def _control(
    name: str, setting: _Setting, members: Members, task: Task, masks: np.ndarray, *notes: str
) -> dict[str, Any]:
    runs = judged_runs(
        members, task, masks, "faithfulness", setting.metric, ablation=setting.ablation, seed=setting.seed
    )  # fmt: skip
    value, low, *_ = _spread(runs, 100, setting.seed)
    reason = recovery(runs.values, runs.full, runs.empty).reason
    largest = float(np.nanmax(value)) if np.isfinite(value).any() else float("nan")
    return {
        "control": name, "circuits": len(masks), "faithful": int((low >= setting.bars.at_least).sum()),
        "largest": largest, "note": "; ".join([*notes, *([reason] if reason else [])]),
    }  # fmt: skip
