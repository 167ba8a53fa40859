"""Is a circuit any good? How much of the behaviour four runs of it keep, against random circuits of its size.

With m_full the model's metric and m_empty that of the run in which the whole universe is ablated, a run's recovery is

    R = (m(run) - m_empty) / (m_full - m_empty)       quotient of the means over prompts; it may leave [0, 1]

and the runs are (papers differ in the words; Wang et al. 2023, Marks et al. 2024, Hanna et al. 2024):

    faithfulness                 complement ablated in the clean run              ideal 1
    faithfulness_of_complement   circuit ablated in the clean run                 ideal 0 (Marks: completeness)
    necessity                    1 - faithfulness_of_complement                   ideal 1
    sufficiency                  circuit restored in the corrupted run            ideal 1
    completeness                 1 - recovery when the complement is restored     ideal 1
                                 in the corrupted run

The measures agree only where components do not interact. A circuit with edges is run by its edges
(`interp.run_edges`), one without by its nodes (`interp.run_circuit`). A denominator too small to divide by gives NaN
with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from interp.circuit import Circuit, Rows
from interp.edges import structural
from interp.errors import CircuitError, OptionError, check_choice
from interp.featurizers.base import Featurizer
from interp.graph import graph_edges, graph_of
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.recovery import bootstrap, recovery
from interp.run_circuit import CircuitRuns, run_circuits
from interp.run_edges import run_edge_circuits
from interp.scoring import Scorer, checked_metrics
from interp.sources import Direction
from interp.table import Table
from interp.tasks.base import Task

Measure = Literal["faithfulness", "faithfulness_of_complement"]
"""The measures that a curve over sizes can show."""


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """How much of the behaviour a circuit's run keeps, with what it was computed from.

    Attributes:
        value: the recovery that `measure` names; NaN where undefined, and then `reason` says why.
        low, high: 95 % bootstrap interval over prompts.
        random: the same of random circuits with as many members.
        size: members kept, of `universe` candidates; `over` says whether these are nodes or edges.
        circuit, model, empty: the metric per prompt of the three runs.
        outside: what has no candidate and ran as it is.
        metric, ablation: what was measured, and what replaced the rest.
    """

    value: float
    low: float
    high: float
    reason: str
    random: tuple[float, ...]
    size: int
    universe: int
    circuit: Float[Tensor, " prompt"]
    model: Float[Tensor, " prompt"]
    empty: Float[Tensor, " prompt"]
    outside: tuple[str, ...]
    metric: str
    ablation: str
    measure: str = "faithfulness"
    over: Rows = "nodes"

    def __str__(self) -> str:
        name = self.measure.replace("_", " ")
        if self.reason:
            return f"{name} undefined: {self.reason}"
        better = sum(self.value > other for other in self.random)
        versus = f"; above {better} of {len(self.random)} random circuits of its size" if self.random else ""
        return (
            f"{name} {self.value:.2f} [{self.low:.2f}, {self.high:.2f}] with {self.size} of {self.universe} "
            f"{self.over}{versus} ({self.metric}, {self.ablation} ablation)"
        )


def faithfulness(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    random: int = 20,
    seed: int = 0,
) -> Faithfulness:
    """Recovery of the clean run in which everything but the circuit is ablated.

    Args:
        metric: its name, or the metric; the task's own when None.
        ablation: what replaces everything else; see `run_circuits`.
        featurizers: those that the circuit's nodes name.
        random: how many random circuits; drawn among the universe's members without the circuit's own scores.
        seed: of the draw, the donors and the bootstrap.

    Raises:
        CircuitError, SiteError, TaskError, MetricError, OptionError: what cannot be run.
    """
    return _judged(model, task, circuit, "faithfulness", metric, ablation, featurizers, random, seed)


def faithfulness_of_complement(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    random: int = 20,
    seed: int = 0,
) -> Faithfulness:
    """Recovery of the clean run in which the circuit itself is ablated; ideally 0. Arguments as `faithfulness`."""
    return _judged(model, task, circuit, "faithfulness_of_complement", metric, ablation, featurizers, random, seed)


def necessity(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    random: int = 20,
    seed: int = 0,
) -> Faithfulness:
    """Share of the behaviour lost when the circuit is ablated in the clean run. Arguments as `faithfulness`."""
    found = _judged(model, task, circuit, "faithfulness_of_complement", metric, ablation, featurizers, random, seed)
    return _rest(found, "necessity")


def completeness(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    featurizers: Sequence[Featurizer] = (),
    random: int = 20,
    seed: int = 0,
) -> Faithfulness:
    """Share of the behaviour that stays away when everything but the circuit has its clean values in the corrupted run:
    nothing outside the circuit brings it back. (Marks et al. 2024 mean `faithfulness_of_complement` by the word.)
    Arguments as `faithfulness`."""
    found = _judged(model, task, circuit, "recovery_of_complement", metric, "counterfactual", featurizers, random, seed)
    return _rest(found, "completeness")


def _rest(found: Faithfulness, measure: str) -> Faithfulness:
    """1 minus a recovery, under the name of what that measures."""
    return replace(
        found, value=1 - found.value, low=1 - found.high, high=1 - found.low, measure=measure,
        random=tuple(1 - value for value in found.random),
    )  # fmt: skip


def sufficiency(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    featurizers: Sequence[Featurizer] = (),
    random: int = 20,
    seed: int = 0,
) -> Faithfulness:
    """Recovery of the corrupted run in which the circuit has its clean values. Arguments as `faithfulness`."""
    return _judged(model, task, circuit, "sufficiency", metric, "counterfactual", featurizers, random, seed)


def _judged(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    measure: str,
    metric: str | Metric | None,
    ablation: str,
    featurizers: Sequence[Featurizer],
    random: int,
    seed: int,
) -> Faithfulness:
    """The recovery of one kind of run, of the circuit and of random ones."""
    members = Members(model, circuit, featurizers)
    own = members.own
    masks = np.stack([own, *random_masks(own, random, seed)])
    (used,) = checked_metrics(model, task, metric or ())
    runs = judged_runs(members, task, masks, measure, used, ablation=ablation, seed=seed)
    full, empty, values = runs.full, runs.empty, runs.values
    shares = recovery(values, full, empty)
    low, high = bootstrap(values[:1] - empty, seed=seed, over=full - empty)
    return Faithfulness(
        float(shares.value[0]), float(low[0]), float(high[0]), shares.reason, tuple(shares.value[1:].tolist()),
        int(own.sum()), len(own), values[0], full, empty, runs.outside, used.name, ablation, measure, members.over,
    )  # fmt: skip


class JudgedRuns(NamedTuple):
    """Metrics per prompt of some circuits' runs, and of the two runs that recovery is measured between."""

    full: Float[Tensor, " prompt"]
    empty: Float[Tensor, " prompt"]
    values: Float[Tensor, "circuit prompt"]
    outside: tuple[str, ...]


def judged_runs(
    members: "Members",
    task: Task,
    masks: Bool[np.ndarray, "circuit member"],
    measure: str,
    metric: Metric,
    *,
    ablation: str,
    seed: int,
) -> JudgedRuns:
    """The runs of one measure: ``faithfulness``, ``faithfulness_of_complement``, ``sufficiency`` or
    ``recovery_of_complement``."""
    way: Direction = "denoising" if measure in ("sufficiency", "recovery_of_complement") else "noising"
    kept = _ends(masks if measure in ("faithfulness", "recovery_of_complement") else ~masks)  # left as the base has it
    runs = members.run(task, kept, metric, direction=way, ablation=ablation, seed=seed)
    full, empty, values = runs.values[0][0], runs.values[0][1], runs.values[0][2:]
    if way == "denoising":  # there the corrupted run changes nothing, and everything is restored at the other end
        full, empty = empty, full
    return JudgedRuns(full, empty, values, runs.outside)


def _ends(masks: Bool[np.ndarray, "circuit member"]) -> Bool[np.ndarray, "more member"]:
    """The masks after those of everything and of nothing."""
    return np.concatenate([np.ones_like(masks[:1]), np.zeros_like(masks[:1]), masks])


class Members:
    """What a circuit's membership is about, and how circuits over it are run.

    Attributes:
        over: ``"edges"`` where the circuit has some between whole components, else ``"nodes"`` (features, units).
        rows: where the members are among the circuit's nodes or edges; structural edges and logits are none.
        own: which members the circuit keeps.
    """

    def __init__(self, model: HookedModel, circuit: Circuit, featurizers: Sequence[Featurizer] = ()) -> None:
        self.model, self.circuit, self.featurizers = model, circuit, featurizers
        in_parts = bool(((circuit.nodes.featurizer >= 0) | (circuit.nodes.unit >= 0)).any())
        self.over: Rows = "edges" if len(circuit.edges) and not in_parts else "nodes"
        members = (
            ~structural(circuit.nodes, circuit.edges)
            if self.over == "edges"
            else circuit.nodes.names("kind") != "logits"
        )
        self.rows = np.flatnonzero(members)
        self.own = self.of(circuit)
        self._graph = graph_of(model, circuit) if self.over == "edges" else None
        self._places = None if self._graph is None else graph_edges(self._graph, circuit)[self.rows]

    def of(self, circuit: Circuit) -> Bool[np.ndarray, " member"]:
        """Membership of another circuit over the same universe."""
        return circuit.kept(self.over)[self.rows]

    @property
    def names(self) -> np.ndarray:
        """The members' names."""
        if self.over == "nodes":
            return self.circuit.nodes.labels[self.rows]
        table = self.circuit.frame("edges").take(self.rows)
        return table["source"] + " -> " + table["destination"]

    def run(
        self,
        task: Task,
        masks: Bool[np.ndarray, "circuit member"],
        metric: Metric,
        *,
        direction: Direction = "noising",
        ablation: str,
        seed: int,
        scorer: Scorer | None = None,
    ) -> CircuitRuns:
        """Metrics of circuits that keep the masked members; or what the scorer gives, in the metric's place."""
        options: dict[str, Any] = {
            "metrics": [metric], "direction": direction, "ablation": ablation, "seed": seed, "scorer": scorer,
        }  # fmt: skip
        graph = self._graph
        if graph is None or self._places is None:
            universe = Circuit(self.circuit.nodes.take(self.rows), featurizers=self.circuit.featurizers)
            return run_circuits(self.model, task, universe, masks, featurizers=self.featurizers, **options)
        kept = np.ones((len(masks), len(graph.edges)), dtype=bool)
        kept[:, self._places] = masks
        runs = run_edge_circuits(self.model, task, graph, kept, **options)
        missing = graph.n_scored - len(self._places)
        return replace(runs, outside=(f"{missing} edges without a candidate",) if missing else ())


def random_masks(kept: Bool[np.ndarray, " member"], count: int, seed: int) -> list[Bool[np.ndarray, " member"]]:
    """Random circuits with as many members as `kept`.

    Raises:
        OptionError: a negative count.
    """
    if count < 0:
        raise OptionError(f"random={count}; allowed: 0 and more.")
    generator = np.random.default_rng(seed)
    return [generator.permutation(kept) for _ in range(count)]


def minimality(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    seed: int = 0,
) -> Table:
    """What each single member adds: the circuit's faithfulness less that without the member (1-minimality).

    Returns:
        One row a member, least needed first: member, faithfulness_without, drop. A circuit is 1-minimal for a bar b
        when no row's faithfulness_without reaches b.

    Raises:
        CircuitError: the circuit is empty, or faithfulness is undefined, with the reason; further as `faithfulness`.
    """
    members = Members(model, circuit, featurizers)
    rows = np.flatnonzero(members.own)
    if not len(rows):
        raise CircuitError(f"the circuit keeps no {members.over}, so none can be left out.")
    without = np.repeat(members.own[None], len(rows) + 1, 0)
    without[np.arange(1, len(rows) + 1), rows] = False
    (used,) = checked_metrics(model, task, metric or ())
    values = members.run(task, _ends(without), used, ablation=ablation, seed=seed).values[0]
    shares = recovery(values[2:], values[0], values[1])
    if shares.reason:
        raise CircuitError(f"faithfulness is undefined: {shares.reason}; choose prompts on which the runs differ.")
    own, others = shares.value[0].item(), shares.value[1:].numpy()
    columns = {"member": members.names[rows], "faithfulness_without": others, "drop": own - others}
    return Table(columns).sort("drop")


def curve_values(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    chosen: Sequence[Circuit],
    *,
    metric: str | Metric | None,
    ablation: str,
    featurizers: Sequence[Featurizer] = (),
    random: int,
    seed: int,
    measure: Measure = "faithfulness",
) -> Float[Tensor, "run prompt"]:
    """Metrics of the full and the empty run, of the chosen circuits, and of `random` random ones for each of them."""
    members = Members(model, circuit, featurizers)
    tops = [members.of(one) for one in chosen]
    draws = [mask for kept in tops for mask in random_masks(kept, random, seed)]
    (used,) = checked_metrics(model, task, metric or ())
    check_choice("measure", measure, get_args(Measure))
    masks = np.stack([*tops, *draws])
    kept = _ends(masks if measure == "faithfulness" else ~masks)
    return members.run(task, kept, used, ablation=ablation, seed=seed).values[0]
