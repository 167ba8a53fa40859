"""ACDC: prune the component graph edge by edge, from the logits down, as long as the metric hardly moves.

    H <- the full graph
    for reader v, from the logits down:
        if what v belongs to has lost all its outgoing edges: remove every edge into v
        else, for writer u, from the latest up:
            if m(H) - m(H without u -> v) < threshold: H <- H without u -> v

With m = -KL(clean || H), as in the paper, m(H) - m(H without the edge) is the rise in divergence.

Two facts save work, and neither is an approximation. All edges into readers before v are still there when v's turn
comes, so a run begins at v's layer, from the clean run. And most edges go: the next edges are tried together, row j
without the first j of them, and up to the first that stays every row is the one that the loop would have run.

Source: Conmy et al. 2023 (arXiv 2304.14997), algorithm 1; the latest writer first, as in the authors' code.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from tqdm import tqdm

from interp.circuit import Attribute, Circuit, ScoreHeader
from interp.circuit_ops import prune
from interp.errors import OptionError
from interp.graph import Granularity, Graph, component_graph, graph_edges, graph_of
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.origin import provenance_of
from interp.run_edges import EdgeRuns, edge_runs
from interp.score_columns import UNITS, score_columns
from interp.scoring import checked_metrics
from interp.tasks.base import Task

TESTED, NO_WAY_OUT, LEFT_OUT = "", "no outgoing edge", "not in the given circuit"


def acdc(
    model: HookedModel,
    task: Task,
    threshold: float,
    *,
    metric: str | Metric = "kl",
    granularity: Granularity = "head",
    start: Circuit | None = None,
    ablation: str = "counterfactual",
    seed: int = 0,
    rows: int = 64,
    progress: bool = True,
) -> Circuit:
    """The circuit that is left when every edge whose removal costs less than `threshold` is removed.

    Args:
        threshold: the largest fall of the metric (mean over prompts, in its unit) that is no loss.
        metric: ``"kl"`` (divergence from the clean run) or any other, by name or value.
        granularity: ``"head"``, or ``"sublayer"`` with each layer's attention as one component; that of `start` where
            one is given.
        start: begin with the edges that this circuit keeps, such as the best of an estimate (Syed et al. 2023).
        ablation: what a removed edge hands on instead: ``"counterfactual"``, ``"zero"``, ``"mean"``,
            ``"mean_by_position"`` or ``"resample"``.
        seed: of donors.
        rows: circuits x prompts in one pass.
        progress: show a bar where there is a terminal.

    Returns:
        The component graph, pruned; the signed score ``METRIC.acdc`` holds what each edge's removal cost when it was
        tested (positive: it helps), NaN where it was not, and the attribute ``METRIC.acdc.reason`` says why. It depends
        on the order of the tests: an edge of two that replace each other goes when it comes first.

    Raises:
        OptionError, TaskError, SiteError, MetricError, CircuitError: before anything runs.
    """
    if not threshold > 0:
        raise OptionError(f"threshold={threshold}; allowed: above 0, or every edge without an effect stays.")
    (measured,) = checked_metrics(model, task, [metric])
    graph = component_graph(model, granularity) if start is None else graph_of(model, start)
    kept = np.ones(len(graph.edges), dtype=bool)
    if start is not None:
        kept[:] = False
        kept[graph_edges(graph, start)[start.kept_edges]] = True
        kept[graph.n_scored :] = True
    given = kept.copy()
    batches = list(edge_runs(model, task, graph, metrics=[measured], ablation=ablation, seed=seed, rows=rows))
    search = _Search(graph, batches, threshold, kept, len(task), max(rows // min(rows, len(task)), 1))
    search.run(progress)
    header = ScoreHeader(
        "edges", "effect", True, "noising", None, ablation, "mean", UNITS.get(measured.name), "acdc", measured.name
    )
    name = f"{measured.name}.acdc"
    made = score_columns(name, header, search.costs, intervals=False)
    reasons = np.where(given, np.where(np.isnan(search.costs[:, 0]), NO_WAY_OUT, TESTED), LEFT_OUT).astype(object)
    reasons[graph.n_scored :] = "structural"
    provenance = provenance_of(
        model, task, "acdc", metrics=[measured], directions=["noising"], ablation=ablation, seed=seed,
        parameters={"threshold": threshold, "granularity": graph.granularity, "started": start is not None},
        forwards=search.forwards,
    )  # fmt: skip
    found = Circuit(
        graph.nodes, graph.edges, scores=made.scores, tensors=made.tensors, kept_edges=search.kept,
        attributes={f"{name}.reason": Attribute("edges", reasons, "why the removal of the edge was not tested")},
        provenance=provenance,
    )  # fmt: skip
    return prune(found)


@dataclass(eq=False)
class _Search:
    """The state of one search.

    Attributes:
        kept: the edges of H.
        costs: what each edge's removal cost when it was tested; NaN before.
        forwards: spent, in passes of an average prompt.
    """

    graph: Graph
    batches: list[EdgeRuns]
    threshold: float
    kept: Bool[np.ndarray, " edge"]
    n_prompts: int
    most: int
    forwards: float = 0.0
    costs: Float[np.ndarray, "edge prompt"] = field(init=False)

    def __post_init__(self) -> None:
        self.costs = np.full((len(self.kept), self.n_prompts), np.nan, dtype=np.float32)

    def run(self, progress: bool) -> None:
        """Visit every reader, from the logits down."""
        now = self._values(self.kept[None])[0]
        ends = np.cumsum(self.graph.seen)
        bar = tqdm(total=int(ends[-1]), disable=None if progress else True, desc="edges", unit="edge", leave=False)
        with bar:
            for reader in range(len(ends) - 1, -1, -1):
                into = np.arange(ends[reader] - 1, ends[reader] - self.graph.seen[reader] - 1, -1)
                if self._is_read(int(self.graph.readers[reader])):
                    now = self._visit(into[self.kept[into]], now)
                else:
                    self.kept[into] = False
                bar.update(len(into))

    def _is_read(self, reader: int) -> bool:
        """Whether what a reader belongs to (its heads, or itself) has an outgoing edge left."""
        graph, scored = self.graph, self.graph.n_scored
        if reader == graph.readers[-1]:
            return True
        heads = graph.edges.destination[scored:][graph.edges.source[scored:] == reader]
        own = heads if len(heads) else [reader]
        return bool(self.kept[:scored][np.isin(graph.edges.source[:scored], own)].any())

    def _visit(self, edges: Int64[np.ndarray, " edge"], now: Float[Tensor, " prompt"]) -> Float[Tensor, " prompt"]:
        """Test the edges in this order; the metric of H afterwards."""
        size = 1
        while len(edges):
            tried = edges[: min(size, self.most)]
            without = np.repeat(self.kept[None], len(tried), 0)
            without[np.tril_indices(len(tried))[0], tried[np.tril_indices(len(tried))[1]]] = False
            values = self._values(without)
            costs = torch.cat([now[None], values[:-1]]) - values
            stays = np.flatnonzero(costs.mean(1).numpy() >= self.threshold)
            gone = int(stays[0]) if len(stays) else len(tried)
            tested = tried[: gone + 1]
            self.costs[tested] = costs[: len(tested)].numpy()
            self.kept[tried[:gone]] = False
            now = values[gone - 1] if gone else now
            edges = edges[len(tested) :]
            size = 2 * size if gone == len(tried) else max(gone, 1)
        return now

    def _values(self, kept: Bool[np.ndarray, "circuit edge"]) -> Float[Tensor, "circuit prompt"]:
        found = torch.empty(len(kept), self.n_prompts, dtype=torch.float64)
        for runs in self.batches:
            found[:, runs.members] = runs.values(kept)[0]
        layers = self.batches[0].first_layers(kept)
        self.forwards += float((1 - layers / self.graph.n_layers).sum()) * self.n_prompts
        return found
