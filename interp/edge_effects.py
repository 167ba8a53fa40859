"""The exact effect of single edges: one reader sees one writer's other value, and everything after it runs.

For an edge u -> v the input of v is its own stream plus a_u(other) - a_u(base), so v comes out differently; that value
is then patched in at v by the sweep engine, for all readers of one writer at once.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from tqdm import tqdm

from interp.cells import Part, Source
from interp.graph import Graph
from interp.intervention import Patch
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import Node
from interp.run_edges import EdgeRuns, block_values, edge_runs
from interp.scoring import FINAL
from interp.site import Site
from interp.sources import Direction
from interp.sweep import Engine, sweep
from interp.tasks.base import Task


class EdgeEffects(NamedTuple):
    """Effects [metric, edge, prompt], metric(patched) - metric(base), and their cost in forward passes."""

    effects: Float[np.ndarray, "metric edge prompt"]
    forwards: float


def edge_effects(
    model: HookedModel,
    task: Task,
    graph: Graph,
    edges: Int64[np.ndarray, " edge"],
    *,
    metrics: Sequence[Metric],
    direction: Direction,
    ablation: str = "counterfactual",
    seed: int = 0,
    engine: Engine | None = None,
) -> EdgeEffects:
    """Exact effects of some scored edges, given as rows of the graph.

    Raises:
        SiteError, TaskError, MetricError, OptionError: what cannot be run.
    """
    engine = engine or Engine()
    readers = np.searchsorted(graph.readers, graph.edges.destination[edges])
    sources = graph.edges.source[edges]
    found = np.full((len(metrics), len(edges), len(task)), np.nan)
    forwards = 0.0
    bar = tqdm(total=len(edges) * len(task), disable=None if engine.progress else True, desc="edges", leave=False)
    options = engine.options | {"progress": False}
    with bar:
        for runs in edge_runs(
            model, task, graph, metrics=metrics, direction=direction, ablation=ablation, seed=seed, rows=8,
            same_length=True,
        ):  # fmt: skip
            for writer, row in enumerate(graph.writers):
                mine = np.flatnonzero(sources == row)
                if not len(mine):
                    continue
                nodes = [graph.nodes[graph.readers[reader]] for reader in readers[mine]]
                source = Source(values=_read(runs, runs.ablated[writer] - runs.base[writer], nodes))
                cells = [(Part(_site(node), None, node.head),) for node in nodes]
                swept = sweep(model, runs.prompts, source, cells, runs.scorer, **options)
                found[:, mine[:, None], runs.members] = swept.effects.double().numpy()
                forwards += swept.plan.forwards
                bar.update(len(mine) * len(runs.members))
    return EdgeEffects(found, forwards)


def _site(node: Node) -> Site:
    """Where a reader's own value is patched in."""
    return FINAL if node.kind == "logits" else node.site


@torch.no_grad()
def _read(
    runs: EdgeRuns, change: Float[Tensor, "prompt pos d_model"], readers: Sequence[Node]
) -> Mapping[Site, Tensor]:
    """Values at the readers' sites when what they read is changed, each site as if it alone were."""
    model, graph = runs.model, runs.graph
    by_input: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    found: dict[Site, Tensor] = {}
    for node in readers:
        if node.layer is None:
            stream = runs.base_run[Site("resid_post", graph.n_layers - 1)]
            found[FINAL] = model.module("final_norm")(stream + change)
            continue
        middle = graph.serial and node.kind == "mlp_out"
        by_input["resid_mid" if middle else "resid_pre", node.layer][node.kind] = None
    for (kind, layer), kinds in by_input.items():
        read = Site(kind, layer)
        moved = Patch(read, runs.base_run[read] + change)
        found |= block_values(model, runs.prompts, layer, [moved], list(kinds))
    return found
