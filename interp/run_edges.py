"""Running an edge circuit: each reader sees the kept edges' writers as they run, the others as the ablation has them.

Every reader v reads the residual stream with its own correction,

    input(v) = stream + sum over edges u -> v outside the circuit of (a_u(ablation) - a_u(this run)),

where the stream holds all writers of this run. So the full graph is the model and the empty graph, with the
counterfactual ablation, the corrupted run. The blocks run one at a time: queries, keys and values from each reader's
own input, then the heads from these, then the MLP from its own input.

Source: the edge view of Syed et al. 2023 (arXiv 2310.10348) and Hanna et al. 2024 (2403.17806).
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import CircuitError, ModelError, OptionError, check_choice
from interp.frozen_norm import tolerance
from interp.graph import Graph
from interp.intervention import Edit, Patch
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.run_circuit import CircuitRuns
from interp.scoring import Scorer, checked_metrics, clean_reference
from interp.site import Site
from interp.sources import ABLATIONS, ablation_source
from interp.tasks.base import Task
from interp.tokens import Prompts, batches
from interp.written import heads_written, written, written_sites


class _Enough(Exception):  # noqa: N818 - no error: ends a forward pass once all that is wanted of it is known
    pass


class _Ablated(NamedTuple):
    """What every writer writes in the ablation, and what is in the stream before each layer that no writer wrote."""

    written: Float[Tensor, "writer prompt pos d_model"]
    rest: Float[Tensor, "layer d_model"]


def run_edge_circuits(
    model: HookedModel,
    task: Task,
    graph: Graph,
    kept: Bool[np.ndarray, "circuit edge"],
    *,
    metrics: str | Metric | Sequence[str | Metric] = (),
    ablation: str = "counterfactual",
    seed: int = 0,
    rows: int = 16,
) -> CircuitRuns:
    """Run edge circuits on the task's clean prompts.

    Args:
        kept: one row a circuit, one column an edge of the graph (structural edges say nothing here).
        metrics: names or metrics; the task's own when none is given.
        ablation: ``"counterfactual"``, ``"zero"`` (a writer writes nothing), ``"mean"``, ``"mean_by_position"`` or
            ``"resample"``.
        seed: of the donors of ``"resample"``.
        rows: circuits x prompts in one pass.

    Raises:
        CircuitError: masks that do not fit.
        SiteError, TaskError, MetricError, OptionError: what cannot be run.
    """
    if kept.ndim != 2 or not len(kept) or kept.shape[1] != len(graph.edges):
        raise CircuitError(f"masks have shape {kept.shape}; [circuit, {len(graph.edges)}] is needed.")
    if rows < 1:
        raise OptionError(f"rows={rows}; allowed: 1 and more.")
    check_choice("ablation", ablation, ABLATIONS)
    chosen = checked_metrics(model, task, metrics)
    scorer = Scorer(model, chosen, task.answers, clean_reference(model, chosen, task))
    found = torch.full((len(chosen), len(kept), len(task)), torch.nan, dtype=torch.float64)
    with torch.no_grad():
        given = _given(model, task, ablation, seed)
        for prompts in batches(len(task), rows):
            ablated = _ablated(model, task.clean[prompts], given, prompts)
            for circuits in batches(len(kept), max(rows // len(prompts), 1)):
                masks = kept[circuits, : graph.n_scored]
                values = _run(model, task.clean[prompts], graph, masks, ablated, scorer, prompts)
                found[:, circuits[0] : circuits[-1] + 1, prompts[0] : prompts[-1] + 1] = values
    return CircuitRuns(found, ())


def _given(
    model: HookedModel, task: Task, ablation: str, seed: int
) -> Prompts | Float[Tensor, "writer pos d_model"] | None:
    """What an ablation takes its values from: a run of other prompts, means, or None for zeros."""
    if ablation == "zero":
        return None
    if ablation.startswith("mean"):
        return _means(model, task, by_position=ablation == "mean_by_position")
    return ablation_source(model, task, ablation, [], seed).prompts


def _ablated(model: HookedModel, prompts: Prompts, given: Prompts | Tensor | None, rows: list[int]) -> _Ablated:
    """Writers' values in the ablation for some prompts, which are `rows` of the task."""
    layers = range(model.shape.n_layers)
    streams = [Site("resid_pre", layer) for layer in layers] + [Site("resid_post", layers[-1])]
    clean = model.run(prompts, record=[*written_sites(model), *streams], logits="none")
    own = written(model, clean.cache)
    rest = _biases(model, own)
    sums = own.cumsum(0)[:: model.shape.n_heads + 1]  # of the writers before each layer, and of all
    missing = float((torch.stack([clean[s] for s in streams]) - sums - rest[:, None, None]).abs().max())
    if missing > tolerance(own) * float(own.abs().max()):
        raise ModelError(
            f"the components of {model.identity.name} ({model.family}) do not add up to its residual stream: off by "
            f"{missing:.1e}, so its edges cannot be run; check the site map, or a scaled residual stream."
        )
    if given is None:
        return _Ablated(torch.zeros_like(own), rest)
    if isinstance(given, Tensor):
        return _Ablated(given[:, None, : own.shape[2]].expand_as(own), rest)
    run = model.run(given[rows], record=written_sites(model), logits="none")
    return _Ablated(written(model, run.cache), rest)


def _biases(model: HookedModel, like: Tensor) -> Float[Tensor, "layer d_model"]:
    """The attention biases in the stream before each layer and, last, at the end."""
    nothing = like.new_zeros(1, model.shape.n_heads, model.shape.d_head)
    each = [model.project_heads(layer, nothing)[0, -1] for layer in range(model.shape.n_layers)]
    return torch.stack([torch.zeros_like(each[0]), *each]).cumsum(0)


def _means(model: HookedModel, task: Task, *, by_position: bool) -> Float[Tensor, "writer pos d_model"]:
    """Means over the task's clean prompts without padding; where there is an attention sink, by position there."""
    counts = task.clean.mask.sum(0).to(model.device)[:, None]
    each = []
    for row in range(len(task)):
        one = task.clean[[row]]
        own = written(model, model.run(one, record=written_sites(model), logits="none").cache)[:, 0]
        each.append(torch.nn.functional.pad(own, (0, 0, 0, len(counts) - own.shape[1])))
    sums = torch.stack(each).sum(0)
    if by_position:
        return sums / counts
    skip = int(model.has_sink)
    overall = sums[:, skip:].sum(1, keepdim=True) / counts[skip:].sum()
    return torch.cat([sums[:, :skip] / counts[:skip], overall.expand(-1, len(counts) - skip, -1)], 1)


def _run(
    model: HookedModel,
    prompts: Prompts,
    graph: Graph,
    kept: Bool[np.ndarray, "circuit edge"],
    ablated: _Ablated,
    scorer: Scorer,
    members: list[int],
) -> Float[Tensor, "metric circuit prompt"]:
    """Metrics of circuits on prompts, all as rows of one batch, circuit by circuit."""
    n_circuits, n_prompts = len(kept), len(prompts)
    rows = [p for _ in range(n_circuits) for p in range(n_prompts)]
    batch, removed = prompts[rows], iter(_removed(graph, kept, ablated.written))
    state = _State(ablated.written, n_circuits)
    state.add(_embedded(model, batch)[None])
    for layer in range(graph.n_layers):
        stream = ablated.rest[layer] + state.sum
        heads, middle = _attention(model, batch, layer, stream, stream + state.corrections(next(removed)))
        state.add(heads)
        at, read = Site("resid_mid" if graph.serial else "resid_pre", layer), middle if graph.serial else stream
        changed, out = Patch(at, read + state.corrections(next(removed))[0]), Site("mlp_out", layer)
        state.add(_block_values(model, batch, layer, [changed], ["mlp_out"])[out][None])
    final = model.module("final_norm")(ablated.rest[-1] + state.sum + state.corrections(next(removed))[0])
    numbers = torch.tensor([members[p] for p in rows], device=final.device)
    return scorer(final, numbers).unflatten(1, (n_circuits, n_prompts)).cpu().double()


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


def _embedded(model: HookedModel, prompts: Prompts) -> Float[Tensor, "row pos d_model"]:
    embed = Site("embed")
    with model.block_alone(0):
        return model.run(prompts, record=[embed], logits="none")[embed]


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
    layer: int,
    stream: Float[Tensor, "row pos d_model"],
    inputs: Float[Tensor, "reader row pos d_model"],
) -> tuple[Float[Tensor, "head row pos d_model"], Float[Tensor, "row pos d_model"]]:
    """What the heads write when each reader has its own input, and the stream with it."""
    n_rows, resid = len(prompts), Site("resid_pre", layer)
    each_reader = prompts[list(range(n_rows)) * len(inputs)]
    found = _block_values(model, each_reader, layer, [Patch(resid, inputs.flatten(0, 1))], "qkv")
    patches, first = [], 0
    for site in (Site(kind, layer) for kind in "qkv"):
        each = found[site].unflatten(0, (len(inputs), n_rows))  # reader, row, pos, head, d_head
        size = each.shape[3]
        own = each[torch.arange(first, first + size), :, :, torch.arange(size)]  # each head from its own reader's run
        patches.append(Patch(site, own.movedim(0, 2)))
        first += size
    outputs = ("z", "attn_proj", "attn_out")
    cache = _block_values(model, prompts, layer, [Patch(resid, stream), *patches], outputs)
    return heads_written(model, layer, cache), stream + cache[Site("attn_out", layer)]


def _block_values(
    model: HookedModel, prompts: Prompts, layer: int, changes: Sequence[Patch], kinds: Sequence[str]
) -> dict[Site, Tensor]:
    """Activations of one block on given residuals; what comes after the last of them is not run."""
    found: dict[Site, Tensor] = {}

    def take(site: Site, x: Tensor) -> Tensor:
        found[site] = x.clone()
        if len(found) == len(kinds):
            raise _Enough
        return x

    sites = [Site(kind, layer) for kind in kinds]
    edits = [Edit(site, function=partial(take, site)) for site in sites]
    with model.block_alone(layer), suppress(_Enough):
        model.run(prompts, [*changes, *edits], logits="none")
    return found
