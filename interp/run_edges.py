"""Running an edge circuit: each reader sees the kept edges' writers as they run, the others as the ablation has them.

Every reader v reads the residual stream with its own correction,

    input(v) = stream + sum over edges u -> v outside the circuit of (a_u(ablation) - a_u(this run)),

where the stream holds all writers of this run. So the full graph is the model and the empty graph, with the
counterfactual ablation, the corrupted run. The blocks run one at a time: queries, keys and values from each reader's
own input, then the heads from these, then the MLP from its own input.

Source: the edge view of Syed et al. 2023 (arXiv 2310.10348) and Hanna et al. 2024 (2403.17806).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from interp.errors import CircuitError, ModelError, OptionError
from interp.frozen_norm import tolerance
from interp.graph import Graph
from interp.intervention import Patch
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.models.runs import Run
from interp.run_circuit import CircuitRuns
from interp.run_until import run_until
from interp.scoring import Scorer, checked_metrics, clean_reference
from interp.site import Site
from interp.sources import Direction, base_and_source, directions_of
from interp.tasks.base import Task
from interp.tokens import Prompts, batches, by_length
from interp.written import heads_written, written, written_sites


@dataclass(frozen=True, eq=False)
class EdgeRuns:
    """Some prompts of a task, with what every writer writes in the run that is changed and in the ablation.

    Attributes:
        members: which prompts of the task they are.
        base, ablated: what each writer writes.
        rest: what is in the stream before each layer, and at the end, that no writer wrote (biases).
        base_run: the run that is changed, with its residual streams and the sites of `written_sites`.
        rows: circuits x prompts in one pass.
    """

    model: HookedModel
    graph: Graph
    prompts: Prompts
    members: list[int]
    scorer: Scorer
    base: Float[Tensor, "writer prompt pos d_model"]
    ablated: Float[Tensor, "writer prompt pos d_model"]
    rest: Float[Tensor, "layer d_model"]
    base_run: Run
    rows: int

    def first_layers(self, kept: Bool[np.ndarray, "circuit edge"]) -> Int64[np.ndarray, " circuit"]:
        """For each circuit the first layer that reads without one of its edges: it runs from there on."""
        starts = np.cumsum(self.graph.seen) - self.graph.seen
        cut = np.logical_or.reduceat(~kept[:, : self.graph.n_scored], starts, axis=1)
        layers = np.where(cut, self.graph.reader_layers, self.graph.n_layers)
        return layers.min(1)

    @torch.no_grad()
    def values(self, kept: Bool[np.ndarray, "circuit edge"]) -> Float[Tensor, "metric circuit prompt"]:
        """Metrics of circuits on the prompts, those that begin at one layer together.

        Raises:
            CircuitError: masks that do not fit.
        """
        if kept.ndim != 2 or not len(kept) or kept.shape[1] != len(self.graph.edges):
            raise CircuitError(f"masks have shape {kept.shape}; [circuit, {len(self.graph.edges)}] is needed.")
        found = torch.full((self.scorer.size, len(kept), len(self.members)), torch.nan, dtype=torch.float64)
        layers = self.first_layers(kept)
        order = np.argsort(layers, kind="stable")
        for batch in batches(len(kept), max(self.rows // len(self.members), 1)):
            circuits = order[batch]
            masks = kept[circuits, : self.graph.n_scored]
            found[:, circuits] = self._run(masks, int(layers[circuits[0]]))
        return found

    def _run(self, kept: Bool[np.ndarray, "circuit edge"], first: int) -> Float[Tensor, "metric circuit prompt"]:
        """Metrics of circuits that cut no edge into a layer before `first`; all as rows of one batch."""
        model, graph = self.model, self.graph
        n_circuits, n_prompts = len(kept), len(self.members)
        rows = [p for _ in range(n_circuits) for p in range(n_prompts)]
        batch, removed = self.prompts[rows], _removed(graph, kept, self.ablated)
        state = _State(self.ablated, n_circuits)
        state.add(self.base[: graph.seen_by_attention(first)].repeat(1, n_circuits, 1, 1))
        for layer in range(first, graph.n_layers):
            stream = self.rest[layer] + state.sum
            inputs = stream + state.corrections(removed[2 * layer])
            heads, middle = _attention(model, batch, graph, layer, stream, inputs)
            state.add(heads)
            at, read = Site("resid_mid" if graph.serial else "resid_pre", layer), middle if graph.serial else stream
            changed = Patch(at, read + state.corrections(removed[2 * layer + 1])[0])
            state.add(block_values(model, batch, layer, [changed], ["mlp_out"])[Site("mlp_out", layer)][None])
        final = model.module("final_norm")(self.rest[-1] + state.sum + state.corrections(removed[-1])[0])
        return (
            self.scorer(final, torch.tensor(rows, device=final.device))
            .unflatten(1, (n_circuits, n_prompts))
            .cpu()
            .double()
        )


def run_edge_circuits(
    model: HookedModel,
    task: Task,
    graph: Graph,
    kept: Bool[np.ndarray, "circuit edge"],
    *,
    metrics: str | Metric | Sequence[str | Metric] = (),
    direction: Direction = "noising",
    ablation: str = "counterfactual",
    seed: int = 0,
    rows: int = 16,
    scorer: Scorer | None = None,
) -> CircuitRuns:
    """Run edge circuits on the task's prompts.

    Args:
        kept: one row a circuit, one column an edge of the graph (structural edges say nothing here).
        metrics: names or metrics; the task's own when none is given.
        direction: ``"noising"`` runs the clean prompts; ``"denoising"`` the corrupted ones, with clean values where an
            edge is cut.
        ablation: ``"counterfactual"``, ``"zero"`` (a writer writes nothing), ``"mean"``, ``"mean_by_position"`` or
            ``"resample"``.
        seed: of the donors of ``"resample"``.
        rows: circuits x prompts in one pass.
        scorer: what is measured of all prompts, in the place of metrics.

    Raises:
        CircuitError: masks that do not fit.
        SiteError, TaskError, MetricError, OptionError: what cannot be run.
    """
    chosen = checked_metrics(model, task, metrics)
    found: list[Tensor | None] = [None] * len(task)
    for runs in edge_runs(
        model, task, graph, metrics=chosen, direction=direction, ablation=ablation, seed=seed, rows=rows, scorer=scorer
    ):
        for prompt, values in zip(runs.members, runs.values(kept).unbind(2), strict=True):
            found[prompt] = values
    return CircuitRuns(torch.stack([one for one in found if one is not None], 2), ())


def edge_runs(
    model: HookedModel,
    task: Task,
    graph: Graph,
    *,
    metrics: str | Metric | Sequence[str | Metric] = (),
    direction: Direction = "noising",
    ablation: str = "counterfactual",
    seed: int = 0,
    rows: int = 16,
    same_length: bool = False,
    scorer: Scorer | None = None,
) -> Iterator[EdgeRuns]:
    """The task's prompts in batches, each ready to run circuits; arguments and errors as `run_edge_circuits`.

    Args:
        same_length: whether all prompts of a batch have one length.
    """
    if rows < 1:
        raise OptionError(f"rows={rows}; allowed: 1 and more.")
    directions_of(task, direction, ablation)
    chosen = checked_metrics(model, task, metrics)
    scorer = scorer or Scorer(model, chosen, task.answers, clean_reference(model, chosen, task))
    base = task.clean if direction == "noising" else task.require_corrupted()
    given = _given(model, task, graph, direction, ablation, seed)
    groups = by_length(base) if same_length else [list(range(len(task)))]
    for group in groups:
        for batch in batches(len(group), rows):
            members = [group[place] for place in batch]
            yield _edge_runs(model, base[members], graph, given, scorer.take(members), members, rows)


def _given(
    model: HookedModel, task: Task, graph: Graph, direction: str, ablation: str, seed: int
) -> Prompts | Float[Tensor, "writer pos d_model"] | None:
    """What an ablation takes its values from: a run of other prompts, means, or None for zeros."""
    if ablation == "zero":
        return None
    if ablation.startswith("mean"):
        return _means(model, task, graph, by_position=ablation == "mean_by_position")
    return base_and_source(model, task, direction, ablation, [], seed)[1].prompts


@torch.no_grad()
def _edge_runs(
    model: HookedModel,
    prompts: Prompts,
    graph: Graph,
    given: Prompts | Tensor | None,
    scorer: Scorer,
    members: list[int],
    rows: int,
) -> EdgeRuns:
    """Run some prompts, and the ablation where it is a run."""
    streams = [*model.sites("resid_pre"), Site("resid_post", graph.n_layers - 1)]
    middles = model.sites("resid_mid") if graph.serial else []
    run = model.run(prompts, record=[*written_sites(model), *streams, *middles], logits="none")
    own = written(model, run.cache, graph.granularity)
    rest = _biases(model, own, graph)
    sums = own.cumsum(0)[:: graph.writers_a_layer + 1]  # of the writers before each layer, and of all
    missing = float((torch.stack([run[s] for s in streams]) - sums - rest[:, None, None]).abs().max())
    if missing > tolerance(own) * float(own.abs().max()):
        raise ModelError(
            f"the components of {model.identity.name} ({model.family}) do not add up to its residual stream: off by "
            f"{missing:.1e}, so its edges cannot be run; check the site map, or a scaled residual stream."
        )
    if given is None:
        ablated = torch.zeros_like(own)
    elif isinstance(given, Tensor):
        ablated = given[:, None, : own.shape[2]].expand_as(own)
    else:
        other = model.run(given[members], record=written_sites(model), logits="none")
        ablated = written(model, other.cache, graph.granularity)
    return EdgeRuns(model, graph, prompts, members, scorer, own, ablated, rest, run, rows)


def _biases(model: HookedModel, like: Tensor, graph: Graph) -> Float[Tensor, "layer d_model"]:
    """The attention biases in the stream before each layer and, last, at the end, where no writer has them."""
    if graph.granularity == "sublayer":
        return like.new_zeros(graph.n_layers + 1, model.shape.d_model)
    nothing = like.new_zeros(1, model.shape.n_heads, model.shape.d_head)
    each = [model.project_heads(layer, nothing)[0, -1] for layer in range(model.shape.n_layers)]
    return torch.stack([torch.zeros_like(each[0]), *each]).cumsum(0)


def _means(model: HookedModel, task: Task, graph: Graph, *, by_position: bool) -> Float[Tensor, "writer pos d_model"]:
    """Means over the task's clean prompts without padding; where there is an attention sink, by position there."""
    counts = task.clean.mask.sum(0).to(model.device)[:, None]
    each = []
    for row in range(len(task)):
        one = task.clean[[row]]
        run = model.run(one, record=written_sites(model), logits="none")
        own = written(model, run.cache, graph.granularity)[:, 0]
        each.append(torch.nn.functional.pad(own, (0, 0, 0, len(counts) - own.shape[1])))
    sums = torch.stack(each).sum(0)
    if by_position:
        return sums / counts
    skip = int(model.has_sink)
    overall = sums[:, skip:].sum(1, keepdim=True) / counts[skip:].sum()
    return torch.cat([sums[:, :skip] / counts[:skip], overall.expand(-1, len(counts) - skip, -1)], 1)


class _State:
    """What the writers so far have written in this run.

    Attributes:
        sum: of their outputs [row, pos, d_model], rows circuit by circuit.
    """

    def __init__(self, ablated: Float[Tensor, "writer prompt pos d_model"], n_circuits: int) -> None:
        n_writers, *shape = ablated.shape
        self._ablated, self._seen = ablated, 0
        self._changes = ablated.new_empty(n_circuits, n_writers, *shape)  # ablated value less this run's
        self.sum = ablated.new_zeros(n_circuits * shape[0], *shape[1:])

    def add(self, outputs: Float[Tensor, "writer row pos d_model"]) -> None:
        """The next writers' outputs."""
        here = slice(self._seen, self._seen + len(outputs))
        by_circuit = outputs.unflatten(1, (len(self._changes), -1)).transpose(0, 1)
        self._changes[:, here] = self._ablated[here] - by_circuit
        self.sum = self.sum + outputs.sum(0)
        self._seen = here.stop

    def corrections(self, removed: Float[Tensor, "circuit reader writer"]) -> Float[Tensor, "reader row pos d_model"]:
        """Per reader and row, the sum of the changes of its removed writers, of those that it sees."""
        found = removed @ self._changes[:, : removed.shape[2]].flatten(2)
        return found.transpose(0, 1).reshape(-1, *self.sum.shape)


def _removed(
    graph: Graph, kept: Bool[np.ndarray, "circuit edge"], like: Tensor
) -> list[Float[Tensor, "circuit reader writer"]]:
    """1 where an edge is outside the circuit, in blocks of readers that see the same writers, in forward order."""
    shapes = []
    for layer in range(graph.n_layers):
        shapes += [(graph.readers_a_layer, graph.seen_by_attention(layer)), (1, graph.seen_by_mlp(layer))]
    shapes.append((1, len(graph.writers)))
    blocks = np.split(~kept, np.cumsum([a * b for a, b in shapes])[:-1], axis=1)
    return [
        torch.from_numpy(block.reshape(len(kept), *shape)).to(like) for block, shape in zip(blocks, shapes, strict=True)
    ]


def _attention(
    model: HookedModel,
    prompts: Prompts,
    graph: Graph,
    layer: int,
    stream: Float[Tensor, "row pos d_model"],
    inputs: Float[Tensor, "reader row pos d_model"],
) -> tuple[Float[Tensor, "writer row pos d_model"], Float[Tensor, "row pos d_model"]]:
    """What the attention's components write when each reader has its own input, and the stream with it."""
    n_rows, resid, out = len(prompts), Site("resid_pre", layer), Site("attn_out", layer)
    if graph.granularity == "sublayer":
        whole = block_values(model, prompts, layer, [Patch(resid, inputs[0])], ["attn_out"])[out]
        return whole[None], stream + whole
    each_reader = prompts[list(range(n_rows)) * len(inputs)]
    found = block_values(model, each_reader, layer, [Patch(resid, inputs.flatten(0, 1))], "qkv")
    patches, first = [], 0
    for site in (Site(kind, layer) for kind in "qkv"):
        each = found[site].unflatten(0, (len(inputs), n_rows))  # reader, row, pos, head, d_head
        size = each.shape[3]
        own = each[torch.arange(first, first + size), :, :, torch.arange(size)]  # each head from its own reader's run
        patches.append(Patch(site, own.movedim(0, 2)))
        first += size
    outputs = ("z", "attn_proj", "attn_out")
    cache = block_values(model, prompts, layer, [Patch(resid, stream), *patches], outputs)
    return heads_written(model, layer, cache), stream + cache[out]


def block_values(
    model: HookedModel, prompts: Prompts, layer: int, changes: Sequence[Patch], kinds: Sequence[str]
) -> dict[Site, Tensor]:
    """Activations of one block on given residuals; what comes after the last of them is not run."""
    with model.block_alone(layer):
        return run_until(model, prompts, [Site(kind, layer) for kind in kinds], changes)
