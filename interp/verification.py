"""Checking a cheap score against exact effects, and bounding what it may have missed.

`verify` patches the k highest candidates exactly and stores both numbers. `bound_missed` then asks of the rest whether
any of them could have a large effect: random subsets of them are patched jointly, and for each node n the mean effect
of the subsets with it is compared with that of the subsets without it,

    D_n = mean(y | n in the subset) - mean(y | not),  SE_n^2 = s_in^2 / m_in + s_out^2 / m_out,

so that theta = max_n (|D_n| + t(nu_n, confidence) SE_n) exceeds the largest |D| with that confidence (every node's own
test must reject "as large as theta", so no correction for their number is needed). D_n is the effect of n beside the
other patched ones: it is n's own effect only as far as they do not interact.

Source: Kramár et al. 2024 (arXiv 2403.00745), section 3.3 and algorithm 1; the test is our reconstruction (Welch).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int64

from interp.circuit import Circuit, ScoreHeader, signed_score
from interp.circuit_ops import Rank, top_n
from interp.edge_effects import edge_effects
from interp.edges import structural
from interp.errors import CircuitError, OptionError
from interp.graph import graph_edges, graph_of
from interp.joint_effects import joint_effects
from interp.methods.patching import patch
from interp.metrics import Metric, metric
from interp.models.base import HookedModel
from interp.score_columns import score_columns
from interp.sweep import Engine
from interp.tasks.base import Task
from interp.welch import random_subsets, student_t, welch


def verify(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    k: int,
    *,
    by: str,
    rank: Rank,
    engine: Engine | None = None,
    seed: int = 0,
) -> Circuit:
    """Patch the `k` highest nodes or edges of a score exactly; estimate and exact effect then stand side by side.

    Args:
        by: a score with a direction and an ablation in its header, such as ``"logit_diff.noising"``.
        rank: ``"signed"`` or ``"absolute"``.
        engine: memory, chunking, progress of the sweep.
        seed: of donors and bootstrap.

    Returns:
        The circuit with the score ``BY.exact`` (NaN for what was not patched), its attributes ``.low`` and ``.high``,
        and as a tensor of that name the per-prompt effects. Membership is left as it was.

    Raises:
        CircuitError: `by` is no such score, fewer than `k` rows can be ranked, or edges of another model.
        SiteError, TaskError, MetricError: what cannot be run.
    """
    header = _header(circuit, by)
    best = top_n(circuit, k, by, rank=rank)
    measured = _metric_of(task, header)
    if header.over == "nodes":
        rows = np.flatnonzero(best.kept_nodes)
        exact = patch(
            model, task, circuit.nodes.take(rows), direction=header.direction, ablation=header.ablation,  # type: ignore[arg-type]
            metrics=measured, engine=engine, seed=seed,
        )  # fmt: skip
        values = exact.tensors[f"{measured.name}.{header.direction}"].array
    else:
        rows = np.flatnonzero(best.kept_edges & ~structural(circuit.nodes, circuit.edges))
        values = _edge_scores(model, task, circuit, rows, measured, header, seed, engine)
    n = circuit.count(header.over)
    per_prompt = np.full((n, len(task)), np.nan)
    per_prompt[rows] = values
    added = score_columns(
        f"{by}.exact", replace(header, quantity="effect", signed=True, method="patch"), per_prompt, seed=seed
    )
    kept = {name: one for name, one in added.attributes.items() if not name.endswith(".n")}
    return replace(
        circuit,
        scores={**circuit.scores, **added.scores},
        attributes={**circuit.attributes, **kept},
        tensors={**circuit.tensors, **added.tensors},
        provenance=circuit.provenance.after("verify", by=by, rank=rank, k=k, seed=seed),
    )


def _edge_scores(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    rows: Int64[np.ndarray, " edge"],
    measured: Metric,
    header: ScoreHeader,
    seed: int,
    engine: Engine | None,
) -> Float[np.ndarray, "edge prompt"]:
    """Signed exact scores of single edges."""
    graph, direction = graph_of(model, circuit), header.direction or ""
    found = edge_effects(
        model, task, graph, graph_edges(graph, circuit)[rows], metrics=[measured], direction=direction,  # type: ignore[arg-type]
        ablation=header.ablation or "", seed=seed, engine=engine,
    )  # fmt: skip
    return signed_score(found.effects[0], direction)


def _header(circuit: Circuit, by: str) -> ScoreHeader:
    """The header of a score that says how it can be measured."""
    score = circuit.scores.get(by)
    if score is None or score.header.direction is None or score.header.ablation is None:
        known = [name for name, one in circuit.scores.items() if one.header.direction]
        raise CircuitError(
            f"{by!r} is no score with a direction and an ablation; allowed: {', '.join(known) or 'none here'}."
        )
    return score.header


def _metric_of(task: Task, header: ScoreHeader) -> Metric:
    """The metric that a score names: the task's own where it has that name."""
    return task.metric if header.metric == task.metric.name else metric(header.metric or "")


@dataclass(frozen=True, eq=False)
class MissedBound:
    """What the nodes outside a verified list may have as their largest effect.

    Attributes:
        bounds: confidence -> theta, in the metric's unit.
        rows: the nodes it speaks of, as rows of the circuit.
        difference, error: D and its standard error, per node of `rows`.
        rounds, share: how many subsets were patched, and each node's probability to be in one.
    """

    bounds: Mapping[float, float]
    rows: Int64[np.ndarray, " node"]
    difference: Float[np.ndarray, " node"]
    error: Float[np.ndarray, " node"]
    rounds: int
    share: float

    def __str__(self) -> str:
        said = ", ".join(f"{theta:.3g} at {level:.0%}" for level, theta in self.bounds.items())
        return f"largest effect among {len(self.rows)} other nodes: below {said} ({self.rounds} random subsets)"


def bound_missed(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    k: int,
    *,
    by: str,
    rank: Rank,
    rounds: int = 200,
    share: float = 0.1,
    confidence: Sequence[float] = (0.5, 0.9, 0.99),
    seed: int = 0,
    engine: Engine | None = None,
) -> MissedBound:
    """Bound the largest mean effect among the nodes below the `k` highest of a score, by random subsets.

    Effects are means over the task's prompts, so that effects of opposite sign on different prompts cancel: give one
    prompt to bound them there.

    Args:
        by: a node score with a direction and an ablation in its header.
        rank: ``"signed"`` or ``"absolute"``.
        rounds: subsets patched, one forward of each prompt at most.
        share: probability of a node to be in a subset.
        confidence: of the bounds, one-sided.
        seed: of the subsets and donors.

    Raises:
        CircuitError: `by` is no such score, or `k` nodes cannot be ranked or leave none.
        OptionError: a share or confidence outside (0, 1), too few rounds for it.
    """
    header = _header(circuit, by)
    if header.over != "nodes":
        raise CircuitError(f"{by!r} scores edges; subsets of nodes are bounded only: choose a node score.")
    if not all(0 < level < 1 for level in confidence):
        raise OptionError(f"confidence={list(confidence)}; allowed: between 0 and 1.")
    rows = np.flatnonzero(~top_n(circuit, k, by, rank=rank).kept_nodes)
    if not len(rows):
        raise CircuitError(f"k={k} leaves no node to bound; the circuit has {len(circuit.nodes)}.")
    members = random_subsets(len(rows), rounds=rounds, share=share, seed=seed)
    effects = joint_effects(
        model, task, circuit.nodes.take(rows), members, metric=_metric_of(task, header),
        direction=header.direction or "", ablation=header.ablation or "", seed=seed, engine=engine,
    )  # fmt: skip
    difference, error, freedom = welch(np.nanmean(effects, 1), members)
    bounds = {
        level: float(np.max(np.abs(difference) + student_t(level, freedom) * error)) for level in sorted(confidence)
    }
    return MissedBound(bounds, rows, difference, error, rounds, share)
