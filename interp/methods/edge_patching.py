"""Edge patching: the exact effect of every edge of the component graph, by the sweep engine.

Noising hands one reader one writer's corrupted value in the clean run, denoising its clean value in the corrupted run;
everything after the reader runs. These are the effects that EAP and its kin estimate.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np

from interp.circuit import BASES, Circuit, ScoreHeader, signed_score
from interp.edge_effects import edge_effects
from interp.edges import structural
from interp.graph import Granularity, component_graph, graph_edges, graph_of
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.origin import provenance_of
from interp.score_columns import UNITS, joined, score_columns
from interp.scoring import checked_metrics
from interp.sources import Direction, directions_of
from interp.sweep import Engine
from interp.tasks.base import Task


def patch_edges(
    model: HookedModel,
    task: Task,
    circuit: Circuit | None = None,
    *,
    granularity: Granularity = "head",
    direction: Direction | Literal["both"] = "noising",
    ablation: str = "counterfactual",
    metrics: str | Metric | Sequence[str | Metric] = (),
    seed: int = 0,
    engine: Engine | None = None,
) -> Circuit:
    """Exact effects of edges, as a `Circuit` with the component graph as its universe.

    Args:
        circuit: measure the edges that it keeps only; all edges when None.
        granularity: ``"head"``, or ``"sublayer"`` with each layer's attention as one component; the circuit's own
            where one is given.
        direction: which run is changed; an ablation without a corrupted run knows only ``"noising"``.
        ablation: ``"counterfactual"``, ``"zero"``, ``"mean"``, ``"mean_by_position"`` or ``"resample"``.
        metrics: names or metrics; the task's own when none is given.
        seed: of donors.
        engine: memory, chunking, progress.

    Returns:
        For each metric and direction a signed score ``metric.direction`` over edges (mean over prompts, in the
        metric's unit; positive: the clean value of this edge helps), NaN on structural edges and what was not asked
        for; per-prompt values as a tensor of that name.

    Raises:
        CircuitError: edges that this model does not have.
        OptionError, TaskError, SiteError, MetricError: before anything runs.

    Source: the edge patching that Syed et al. 2023 (arXiv 2310.10348) approximate.
    """
    engine = engine or Engine()
    measured = checked_metrics(model, task, metrics)
    ways = directions_of(task, direction, ablation)
    graph = component_graph(model, granularity) if circuit is None else graph_of(model, circuit)
    rows = np.arange(graph.n_scored) if circuit is None else _kept(graph_edges(graph, circuit), circuit)
    columns, forwards = [], 0.0
    for way in ways:
        found = edge_effects(
            model, task, graph, rows, metrics=measured, direction=way, ablation=ablation, seed=seed, engine=engine
        )
        forwards += found.forwards
        for one, effects in zip(measured, found.effects, strict=True):
            header = ScoreHeader(
                "edges", "effect", True, way, BASES[way], ablation, "mean", UNITS.get(one.name), "patch_edges", one.name
            )
            scores = np.full((len(graph.edges), len(task)), np.nan, dtype=np.float32)
            scores[rows] = signed_score(effects, way) + 0.0
            columns.append(score_columns(f"{one.name}.{way}", header, scores, intervals=False))
    made = joined(columns)
    provenance = provenance_of(
        model, task, "patch_edges", metrics=measured, directions=ways, ablation=ablation, seed=seed, forwards=forwards,
        parameters={"granularity": graph.granularity, "edges": len(rows), "engine": asdict(engine)},
    )  # fmt: skip
    return Circuit(graph.nodes, graph.edges, scores=made.scores, tensors=made.tensors, provenance=provenance)


def _kept(places: np.ndarray, circuit: Circuit) -> np.ndarray:
    """The rows of the graph that a circuit keeps, without the structural ones."""
    return places[circuit.kept_edges & ~structural(circuit.nodes, circuit.edges)]
