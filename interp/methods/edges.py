"""Edge attribution: the effect of every edge of the component graph, estimated from gradients at its reader.

    estimate(u -> v) = (a_u(other) - a_u(base)) . d metric / d(what v reads)

summed over positions. What v reads is the residual stream as v alone sees it: the gradient at a query, key or value
head is pulled back through its projection, rotary embedding and input norm, so no input is ever split and grouped heads
keep their own key and value readers. One forward of each run, one backward pass and a vector-Jacobian product a reader
give all edges.

    eap                   gradient in the base run (Syed et al. 2023, arXiv 2310.10348)
    eap-ig-inputs         mean gradient over embeddings between base and other (Hanna et al. 2024, 2403.17806)
    eap-ig-activations    for each sublayer, mean gradient while its own output moves from base to other; its edges only
    clean-corrupted       mean of the gradients in both runs
    conductance           along the path of embeddings, each step's change of a_u times the gradient there
    ifr                   information-flow routes (Ferrando & Voita 2024, 2403.00824): no gradient and no other run;
                          unsigned share of what v reads that u brings, in L1 norm

Paths take their points from the base's end on: point j of m lies j/m of the way to the other run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from interp.circuit import BASES, Circuit, NamedTensor, Score, ScoreHeader, signed_score
from interp.errors import OptionError, check_choice
from interp.graph import Granularity, Graph, component_graph
from interp.intervention import Intervention, Patch
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.models.runs import Watched
from interp.origin import provenance_of
from interp.score_columns import UNITS, Columns, joined, score_columns
from interp.scoring import checked_metrics, clean_reference, metric_of_logits, refuse_blind
from interp.site import Site
from interp.sources import Direction, directions_of
from interp.tasks.base import Task
from interp.tokens import Prompts, batches
from interp.written import written, written_sites

EdgeMethod = Literal["eap", "eap-ig-inputs", "eap-ig-activations", "clean-corrupted", "conductance", "ifr"]
EMBED = Site("embed")


class _Point(NamedTuple):
    """One place at which gradients are taken.

    Attributes:
        interventions: what leads there from the base run.
        changes: what is multiplied with the gradients there [writer, batch, pos, d_model], already weighted.
        first, last: the writers whose edges it counts for.
    """

    interventions: Sequence[Intervention]
    changes: Tensor
    first: int
    last: int


def reader_gradients(run: Watched, graph: Graph) -> Iterator[tuple[int, Float[Tensor, "reader batch pos d_model"]]]:
    """Gradients of the sum of `run.values` at what each reader reads, in the order of the graph's readers.

    Yields:
        how many writers the readers see, and their gradients: layer by layer the attention's readers, then the MLP;
        last the logits.
    """
    layers = range(graph.n_layers)
    kinds = attention_kinds(graph)
    heads = [Site(kind, layer) for layer in layers for kind in kinds]
    outputs = [Site("mlp_out", layer) for layer in layers]
    top = Site("resid_post", graph.n_layers - 1)
    sites = [*heads, *outputs, top]
    found = torch.autograd.grad(run.values.sum(), [run.sites[s] for s in sites], retain_graph=True, allow_unused=True)
    at = {s: torch.zeros_like(run.sites[s]) if g is None else g for s, g in zip(sites, found, strict=True)}
    for layer in layers:
        stream = run.sites[Site("resid_pre", layer)]
        if graph.granularity == "head":
            by_kind = [_by_head(run.sites[Site(k, layer)], at[Site(k, layer)], stream) for k in kinds]
        else:
            by_kind = [_pulled_back(run, at, Site("attn_out", layer), stream)]
        yield graph.seen_by_attention(layer), torch.cat(by_kind)
        read = run.sites[Site("resid_mid", layer)] if graph.serial else stream
        yield graph.seen_by_mlp(layer), _pulled_back(run, at, outputs[layer], read)
    yield len(graph.writers), at[top][None]


def _pulled_back(
    run: Watched, gradients: Mapping[Site, Tensor], output: Site, read: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "1 batch pos d_model"]:
    """The gradient at a sublayer's output pulled back to what the sublayer read."""
    return torch.autograd.grad(run.sites[output], read, gradients[output], retain_graph=True)[0][None]


def _by_head(
    output: Float[Tensor, "batch pos head d_head"],
    gradient: Float[Tensor, "batch pos head d_head"],
    stream: Float[Tensor, "batch pos d_model"],
) -> Float[Tensor, "head batch pos d_model"]:
    """The gradient at each head pulled back to the residual stream, one head at a time."""
    one = torch.eye(output.shape[2], dtype=output.dtype, device=output.device)
    cotangents = gradient * one[:, None, None, :, None]
    return torch.autograd.grad(output, stream, cotangents, retain_graph=True, is_grads_batched=True)[0]


def attention_kinds(graph: Graph) -> Sequence[str]:
    """Kinds of the sites at which the attention's readers have their gradients."""
    return ("q", "k", "v") if graph.granularity == "head" else ("attn_out",)


def watched_sites(model: HookedModel, graph: Graph) -> list[Site]:
    """Sites a differentiable run must watch for `reader_gradients`."""
    kinds = ["resid_pre", *attention_kinds(graph), "mlp_out"] + ["resid_mid"] * graph.serial
    return [*model.sites(*kinds), Site("resid_post", graph.n_layers - 1)]


def _products(
    changes: Float[Tensor, "writer batch pos d_model"], gradients: Float[Tensor, "reader batch pos d_model"]
) -> Float[Tensor, "reader writer batch"]:
    """Dot products over positions and coordinates."""
    left, right = (x.flatten(2).transpose(0, 1) for x in (gradients, changes))  # batch first
    return (left @ right.transpose(1, 2)).permute(1, 2, 0)


@dataclass(frozen=True, eq=False)
class _Setting:
    """What one call of `attribute_edges` holds fixed."""

    model: HookedModel
    task: Task
    graph: Graph
    method: EdgeMethod
    steps: int
    batch: int
    metrics: tuple[Metric, ...]
    reference: Float[Tensor, "prompt target d_vocab"] | None


def attribute_edges(
    model: HookedModel,
    task: Task,
    *,
    method: EdgeMethod = "eap",
    granularity: Granularity = "head",
    direction: Direction | Literal["both"] = "noising",
    metrics: str | Metric | Sequence[str | Metric] = (),
    steps: int = 5,
    batch: int = 8,
    progress: bool = True,
) -> Circuit:
    """Estimated effects of patching every edge, as a `Circuit` with the component graph as its universe.

    Args:
        method: see the module.
        granularity: ``"head"``, or ``"sublayer"`` with each layer's attention as one component.
        direction: which run is changed by the other's values: the clean one in ``"noising"``.
        metrics: differentiable ones, by name or value; the task's own when none is given.
        steps: points of a path.
        batch: prompts differentiated at once.
        progress: show a bar where there is a terminal.

    Returns:
        For each metric and direction a signed score ``metric.direction`` over edges (mean over prompts, in the
        metric's unit; positive: the clean value of this edge helps), NaN on structural edges; per-prompt values as a
        tensor of that name. For ``"ifr"`` one unsigned score ``flow``.

    Raises:
        OptionError, TaskError, MetricError, SiteError: before anything runs.

    Example:
        circuit = interp.grow(interp.attribute_edges(model, task), 300, "logit_diff.noising", rank="absolute")
    """
    check_choice("method", method, get_args(EdgeMethod))
    if steps < 1 or batch < 1:
        raise OptionError(f"steps={steps}, batch={batch}; allowed: 1 and more.")
    graph = component_graph(model, granularity)
    if method == "ifr":
        return _flow(model, task, graph, batch)
    measured = checked_metrics(model, task, metrics)
    ways = directions_of(task, direction, "counterfactual")
    if "noising" in ways and method == "eap":
        refuse_blind(measured, "an integrated method")
    setting = _Setting(model, task, graph, method, steps, batch, measured, clean_reference(model, measured, task))
    total = len(ways) * len(measured) * len(task)
    with tqdm(total=total, disable=None if progress else True, desc="prompts", unit="prompt", leave=False) as bar:
        found = {(way, n): _edge_effects(setting, way, n, bar.update) for way in ways for n in range(len(measured))}
    columns = joined([_columns(setting, *at, values) for at, values in found.items()])
    points = {"eap": 1, "clean-corrupted": 2, "eap-ig-activations": steps * (2 * graph.n_layers + 1)}.get(method, steps)
    provenance = provenance_of(
        model, task, method, metrics=measured, directions=ways, ablation="counterfactual",
        parameters={"steps": steps, "batch": batch, "granularity": granularity}, forwards=float(total * (points + 2)),
        backwards=float(total * points),
    )  # fmt: skip
    return Circuit(graph.nodes, graph.edges, scores=columns.scores, tensors=columns.tensors, provenance=provenance)


def _edge_effects(
    setting: _Setting, way: Direction, number: int, tick: Callable[[int], object]
) -> Float[np.ndarray, "edge prompt"]:
    """Estimated effects, metric(patched) - metric(base), of one metric in one direction."""
    clean, corrupted = setting.task.clean, setting.task.require_corrupted()
    base, other = (clean, corrupted) if way == "noising" else (corrupted, clean)
    parts = []
    for rows in batches(len(clean), setting.batch):
        parts.append(_edge_effects_of(setting, base[rows], other[rows], number, rows))
        tick(len(rows))
    return np.concatenate(parts, 1)


def _edge_effects_of(
    setting: _Setting, base: Prompts, other: Prompts, number: int, rows: list[int]
) -> Float[np.ndarray, "edge prompt"]:
    """Those of some prompts: at every point, the product of changes and reader gradients, added up."""
    model, graph = setting.model, setting.graph
    answers = setting.task.answers[rows]
    one = setting.metrics[number]
    reference = None if setting.reference is None else setting.reference[rows]
    metric = metric_of_logits(model, one, answers, reference)
    sites = watched_sites(model, graph)
    blocks: list[Tensor] = []
    for point in _points(setting, base, other):
        run = model.watch(base, metric, sites, point.interventions, logits=answers.positions)
        for place, (seen, gradients) in enumerate(reader_gradients(run, graph)):
            if place == len(blocks):
                blocks.append(gradients.new_zeros(len(gradients), seen, len(rows)))
            writers = slice(point.first, min(point.last, seen))
            if writers.start < writers.stop:
                blocks[place][:, writers] += _products(point.changes[writers], gradients)
    return torch.cat([block.flatten(0, 1) for block in blocks]).float().cpu().numpy()


def _points(setting: _Setting, base: Prompts, other: Prompts) -> Iterator[_Point]:
    """Where gradients are taken, and with what they are multiplied."""
    model, steps, count = setting.model, setting.steps, len(setting.graph.writers)
    here, there = (_run(model, prompts) for prompts in (base, other))
    level = setting.graph.granularity
    changes = written(model, there, level) - written(model, here, level)
    between = partial(_between, here, there)
    if setting.method == "eap":
        yield _Point((), changes, 0, count)
    elif setting.method == "clean-corrupted":
        yield _Point((), changes / 2, 0, count)
        yield _Point([between(EMBED, 1.0)], changes / 2, 0, count)
    elif setting.method == "eap-ig-inputs":
        for step in range(steps):
            yield _Point([between(EMBED, step / steps)], changes / steps, 0, count)
    elif setting.method == "conductance":
        before = written(model, here, level)
        for step in range(steps):
            ahead = written(model, _run(model, base, [between(EMBED, (step + 1) / steps)]), level)
            yield _Point([between(EMBED, step / steps)], ahead - before, 0, count)
            before = ahead
    else:
        for site, first, last in _sublayers(setting.graph):
            for step in range(steps):
                yield _Point([between(site, step / steps)], changes / steps, first, last)


def _sublayers(graph: Graph) -> Iterator[tuple[Site, int, int]]:
    """Each sublayer's output with the writers it holds."""
    yield EMBED, 0, 1
    for layer in range(graph.n_layers):
        first = graph.seen_by_attention(layer)
        last = first + graph.writers_a_layer
        yield Site("attn_out", layer), first, last
        yield Site("mlp_out", layer), last, last + 1


def _between(here: Mapping[Site, Tensor], there: Mapping[Site, Tensor], site: Site, share: float) -> Patch:
    """The site moved by a share of the way from the base run to the other."""
    return Patch(site, torch.lerp(here[site], there[site], share))


def _run(model: HookedModel, prompts: Prompts, interventions: Sequence[Intervention] = ()) -> Mapping[Site, Tensor]:
    return model.run(prompts, interventions, written_sites(model), logits="none").cache


def _columns(setting: _Setting, way: Direction, number: int, effects: Float[np.ndarray, "edge prompt"]) -> Columns:
    """Score and per-prompt values of one metric in one direction."""
    one, graph = setting.metrics[number], setting.graph
    header = ScoreHeader(
        "edges", "attribution", True, way, BASES[way], "counterfactual", "mean", UNITS.get(one.name), setting.method,
        one.name,
    )  # fmt: skip
    scores = np.full((len(graph.edges), effects.shape[1]), np.nan, dtype=np.float32)
    scores[: graph.n_scored] = signed_score(effects, way) + 0.0
    return score_columns(f"{one.name}.{way}", header, scores, intervals=False)


def _flow(model: HookedModel, task: Task, graph: Graph, batch: int) -> Circuit:
    """Information-flow routes in the clean run: who brings how much of what each reader reads."""
    parts = []
    for rows in batches(len(task), batch):
        blocks = _flow_blocks(model, graph, task.clean[rows])
        parts.append(torch.cat([block.flatten(0, 1) for block in blocks]).cpu().numpy())
    values = np.full((len(graph.edges), len(task)), np.nan, dtype=np.float32)
    values[: graph.n_scored] = np.concatenate(parts, 1)
    header = ScoreHeader("edges", "attribution", False, reduction="mean", unit="share of L1 norm", method="ifr")
    provenance = provenance_of(
        model, task, "ifr", metrics=(task.metric,), directions=(), ablation="none",
        parameters={"batch": batch, "granularity": graph.granularity},
        forwards=float(len(task)),
    )  # fmt: skip
    return Circuit(
        graph.nodes, graph.edges, scores={"flow": Score(header, values.mean(1))},
        tensors={"flow": NamedTensor(values, ("edge", "prompt"))}, provenance=provenance,
    )  # fmt: skip


def _flow_blocks(model: HookedModel, graph: Graph, prompts: Prompts) -> Iterator[Float[Tensor, "reader writer batch"]]:
    """Shares in the order of the graph's readers, the mean over a prompt's positions."""
    middle = "resid_mid" if graph.serial else "resid_pre"
    streams = list(dict.fromkeys([*model.sites("resid_pre", middle), Site("resid_post", graph.n_layers - 1)]))
    run = model.run(prompts, record=[*written_sites(model), *streams], logits="none")
    writes = written(model, run.cache, graph.granularity)
    mask = prompts.mask.to(writes.device).float()

    def shares(stream: Tensor, seen: int) -> Tensor:
        near = stream.abs().sum(-1) - (stream - writes[:seen]).abs().sum(-1)
        proximity = near.float().clamp(min=0)
        share = proximity / proximity.sum(0).clamp(min=torch.finfo(proximity.dtype).tiny)
        return (share * mask).sum(-1) / mask.sum(-1)

    for layer in range(graph.n_layers):
        attention = shares(run[Site("resid_pre", layer)], graph.seen_by_attention(layer))
        yield attention.expand(graph.readers_a_layer, -1, -1)
        yield shares(run[Site(middle, layer)], graph.seen_by_mlp(layer))[None]
    yield shares(run[Site("resid_post", graph.n_layers - 1)], len(graph.writers))[None]
