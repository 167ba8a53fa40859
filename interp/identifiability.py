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
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from interp import overlaps
from interp.circuit import Circuit
from interp.circuit_algebra import on_one_universe
from interp.comparison import Comparison, canonical, compare, named_circuits, rows_table
from interp.criteria import criteria, criteria_runs, holm, localisation, minimality_test, preservation
from interp.errors import CircuitError, OptionError
from interp.evaluate import JudgedRuns, Members
from interp.featurizers.base import Featurizer
from interp.identifiability_parts import (
    Bars,
    Setting,
    controls_of,
    functional_classes,
    spread_of,
    stability_of,
)
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.recovery import recovery
from interp.scoring import checked_metrics
from interp.table import Table
from interp.tasks.base import Task

VERDICTS = ("no faithful circuit", "unstable", "unique", "core + variants", "many equivalent")
BARS = np.round(np.arange(0.0, 1.001, 0.05), 2)


@dataclass(frozen=True, eq=False)
class IdentifiabilityReport:
    """What `identifiability_report` found.

    Attributes:
        verdict: one of `VERDICTS`; reason says why.
        verdict_share: share of the resamples of prompts in which the same verdict comes out.
        faithful, minimal, one_minimal: how many distinct circuits are, on all prompts.
        faithful_range, minimal_range: 95 % of these counts over resamples.
        circuits: one row a circuit: circuit, size, faithful, minimal, one_minimal, same_members_as (the first circuit
            with these members), functional_class and intervened_class (-1: not faithful), stability, one faithfulness
            with low and high an ablation, the criteria, the tests' corrected p-values (preserved_p, localised_p), and
            minimal_share, the share of members that pass theirs.
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
            the full run from the empty one, prompts that the circuits were found on.
        OptionError: no ablation, counts below 1.
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
    setting = Setting(
        members, np.stack([members.of(one) for one in placed]), task, used, ablations[0], seed, bars or Bars()
    )  # fmt: skip
    judged = {ablation: setting.runs(setting.masks, ablation) for ablation in ablations}
    if reason := recovery(judged[ablations[0]].values, judged[ablations[0]].full, judged[ablations[0]].empty).reason:
        raise CircuitError(f"faithfulness is undefined: {reason}; choose prompts on which the runs differ.")
    return _report(
        setting, given, labels, judged, groups, elsewhere, discover, featurizers, (n_boot, random, interventions)
    )


def _report(
    setting: Setting, given: Mapping[str, Circuit], labels: tuple[str, ...], judged: Mapping[str, JudgedRuns],
    groups: Any, elsewhere: Task | None, discover: Any, featurizers: Any, numbers: tuple[int, int, int],
) -> IdentifiabilityReport:  # fmt: skip
    n_boot, random, interventions = numbers
    spread = {name: spread_of(runs, n_boot, setting.seed) for name, runs in judged.items()}
    value, low, _, each = spread[setting.ablation]
    bar = setting.bars.at_least
    first, which = overlaps.distinct(setting.masks)
    as_first = first[which]  # circuits with the same members are one
    good = np.flatnonzero(low >= bar)
    good = good[np.isin(good, first)]
    small = good[overlaps.minimal(setting.masks[good])] if len(good) else good
    stability = np.array([stability_of(one, n_boot, setting.seed) for one in given.values()])
    verdict, reason = _verdict(setting.masks, small, stability, setting.bars)
    over = [_counted(setting.masks, each[:, n] >= bar, stability, setting.bars) for n in range(n_boot)]
    tests = {n: _minimality(setting, setting.masks[n]) for n in good.tolist()}
    classes = functional_classes(setting, good, interventions, labels)
    columns = {
        "circuit": np.array(labels, dtype=object), "size": setting.masks.sum(1), "faithful": low >= bar,
        "minimal": np.isin(as_first, small),
        "one_minimal": np.array([n in tests and bool(tests[n]["needed"].all()) for n in as_first]),
        "same_members_as": np.array(labels, dtype=object)[as_first],
        "functional_class": classes.data[as_first], "intervened_class": classes.intervened[as_first],
        "stability": stability,
        **{f"faithfulness.{name}{end}": values for name, found in spread.items()
           for end, values in zip(("", ".low", ".high"), found, strict=False)},
        **_criteria(setting, judged[setting.ablation], elsewhere),
        "minimal_share": np.array([float(np.mean(tests[n]["p"] < 0.05)) if n in tests else np.nan for n in as_first]),
    }  # fmt: skip
    chosen = {labels[n]: given[labels[n]] for n in (good if len(good) > 1 else range(len(labels)))}
    rows = [{"circuit": labels[n], **row} for n, table in tests.items() for row in table.rows()]
    return IdentifiabilityReport(
        verdict, reason, float(np.mean([one[0] == verdict for one in over])), len(good), len(small),
        int(columns["one_minimal"][good].sum()), _range([one[1] for one in over]), _range([one[2] for one in over]),
        Table(columns), _curve(setting.masks, low), compare(chosen, groups=groups),
        _named(overlaps.substitutes(setting.masks[small]), setting.members.names), classes.pairs,
        rows_table(rows, "circuit member"), controls_of(setting, random, discover, featurizers), setting.bars,
        judged[setting.ablation].outside,
    )  # fmt: skip


def _verdict(
    masks: np.ndarray, small: Int[np.ndarray, " minimal"], stability: Float[np.ndarray, " circuit"], bars: Bars
) -> tuple[str, str]:
    if not len(small):
        return VERDICTS[0], f"no circuit reaches a faithfulness of {bars.at_least:g}"
    known = stability[~np.isnan(stability)]
    if len(known) and known.mean() < bars.stability:
        said = f"circuits chosen on resampled prompts overlap by {known.mean():.2f}, below {bars.stability:g}"
        return VERDICTS[1], said
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


def _criteria(setting: Setting, independence: JudgedRuns, elsewhere: Task | None) -> dict[str, np.ndarray]:
    """The criteria of every circuit, and the corrected p-values of preservation and localisation."""
    runs = criteria_runs(
        setting.members, setting.task, setting.masks, setting.metric, ablation=setting.ablation, seed=setting.seed,
        independence=independence,
    )  # fmt: skip
    found = criteria(runs)
    if elsewhere is not None:
        other = setting.runs(setting.masks, task=elsewhere)
        found["elsewhere"] = recovery(other.values, other.full, other.empty).value.numpy()
    found["preserved_p"] = holm(preservation(runs["independence"], setting.bars.margin, setting.seed))
    found["localised_p"] = holm(localisation(runs["necessity"], setting.bars.at_least, setting.seed))
    return found


def _minimality(setting: Setting, kept: Bool[np.ndarray, " member"]) -> Table:
    return minimality_test(
        setting.members, setting.task, kept, setting.metric, ablation=setting.ablation,
        at_least=setting.bars.at_least, seed=setting.seed,
    )  # fmt: skip


def _named(parts: Sequence[tuple[np.ndarray, np.ndarray]], names: np.ndarray) -> tuple[tuple[str, str], ...]:
    return tuple((" + ".join(names[one]), " + ".join(names[other])) for one, other in parts)
