"""Running a circuit: the model with everything of a universe ablated except what the circuit keeps.

At each site of the universe, what no kept node covers is set to the ablation's value; sites outside the universe run as
they are. A kept node covers everything inside it (`attn_out` its heads, `mlp_out` its neurons), and keeping a part of a
dropped whole keeps the part. So the full universe is the model, and with the counterfactual ablation of a universe that
cuts the graph, the empty circuit is the corrupted run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.candidates import check_nodes, positions_of
from interp.circuit import Circuit
from interp.errors import CircuitError
from interp.intervention import Edit
from interp.metrics import Metric
from interp.models.base import HookedModel, Run
from interp.nodes import Node
from interp.scoring import FINAL, Scorer, clean_reference
from interp.site import Site
from interp.sources import ablation_source
from interp.sweep import Source
from interp.tasks.base import Task

PARTS_OF = {"attn_out": ("z",), "mlp_out": ("neuron",)}
"""A whole and the sites at which its parts live; a whole whose parts are candidates is ablated through them."""


@dataclass(frozen=True, eq=False)
class CircuitRuns:
    """Metrics of several circuits' runs.

    Attributes:
        values: [metric, circuit, prompt].
        outside: sites that hold no candidate and ran as they are, such as the MLPs of a circuit of heads.
    """

    values: Float[Tensor, "metric circuit prompt"]
    outside: tuple[str, ...]


def run_circuits(
    model: HookedModel,
    task: Task,
    universe: Circuit,
    kept: Bool[np.ndarray, "circuit node"],
    *,
    metrics: Sequence[Metric] = (),
    ablation: str = "counterfactual",
    seed: int = 0,
    rows: int = 64,
) -> CircuitRuns:
    """Run circuits over one universe on the task's clean prompts.

    Args:
        universe: whose nodes are the candidates.
        kept: one row a circuit.
        metrics: the task's own when none is given.
        ablation: ``"counterfactual"``, ``"zero"``, ``"mean"``, ``"mean_by_position"`` or ``"resample"``.
        rows: prompts in one forward.

    Raises:
        CircuitError: nodes that cannot be run (features, edges without nodes), masks that do not fit.
    """
    if kept.ndim != 2 or kept.shape[1] != len(universe.nodes):
        raise CircuitError(f"masks have shape {kept.shape}; [circuit, {len(universe.nodes)}] is needed.")
    if universe.scores and all(s.over == "edges" for s in universe.scores.values()) and len(universe.edges):
        raise CircuitError("this circuit's members are edges; running it needs edge patching, not node ablation.")
    check_nodes(model, task, universe.nodes)
    chosen = tuple(metrics) or (task.metric,)
    sites = sorted({node.site for node in universe.nodes}, key=lambda s: s.order)
    places = [(node, positions_of(node, task)) for node in universe.nodes]
    source = _source_run(model, task, ablation_source(model, task, ablation, sites, seed), sites)
    reference = clean_reference(model, chosen, task.clean, task.answers)
    scorer = Scorer(model, chosen, task.answers, reference)
    pairs = [(c, p) for c in range(len(kept)) for p in range(len(task))]
    values = torch.full((len(chosen), len(kept), len(task)), torch.nan, dtype=torch.float64)
    for start in range(0, len(pairs), rows):
        chunk = pairs[start : start + rows]
        found = _run_rows(model, task, sites, places, kept, source, scorer, chunk)
        circuits, prompts = (torch.tensor(x) for x in zip(*chunk, strict=True))
        values[:, circuits, prompts] = found.cpu().double()
    inside = {s.kind for s in sites} | {
        whole for whole, parts in PARTS_OF.items() if set(parts) & {s.kind for s in sites}
    }
    outside = tuple(str(s) for s in model.sites("attn_out", "mlp_out") if s.kind not in inside)
    return CircuitRuns(values, outside)


def _source_run(model: HookedModel, task: Task, source: Source, sites: Sequence[Site]) -> Mapping[Site, Tensor]:
    """The ablation's values at every site, one row a prompt (or one for all)."""
    if source.prompts is None:
        return source.values
    run: Run = model.run(source.prompts, record=sites, logits="none")
    return run.cache


def _run_rows(
    model: HookedModel,
    task: Task,
    sites: Sequence[Site],
    places: Sequence[tuple[Node, tuple[tuple[int, ...], ...] | None]],
    kept: np.ndarray,
    source: Mapping[Site, Tensor],
    scorer: Scorer,
    chunk: Sequence[tuple[int, int]],
) -> Float[Tensor, "metric row"]:
    """Metrics of rows, each one circuit on one prompt."""
    prompts = task.clean[[p for _, p in chunk]]
    width = prompts.ids.shape[1]
    keep = {site: _keep_mask(model, site, sites, places, kept, chunk, width) for site in sites}
    edits = []
    for site in sites:
        mask = keep[site]
        if mask is None or bool(mask.all()):
            continue
        values = source[site] if source[site].shape[0] == 1 else source[site][[p for _, p in chunk]]
        edits.append(Edit(site, _Blend(mask, values, site.kind == "pattern")))
    run = model.run(prompts, edits, [FINAL], logits="none")
    with torch.no_grad():
        return scorer(run[FINAL], torch.tensor([p for _, p in chunk], device=run[FINAL].device))


@dataclass(frozen=True, eq=False)
class _Blend:
    """Keep the running values where the mask says so, take the ablation's elsewhere."""

    mask: Tensor
    values: Tensor
    is_pattern: bool

    def __call__(self, x: Tensor) -> Tensor:
        values = self.values.to(x.device, x.dtype)
        axes = [slice(None), *(slice(0, n) for n in x.shape[1:])]
        values = values[tuple(axes)].expand(x.shape)
        mask = self.mask.to(x.device)
        return torch.where(mask.transpose(1, 2) if self.is_pattern else mask, x, values)


def _keep_mask(
    model: HookedModel,
    site: Site,
    sites: Sequence[Site],
    places: Sequence[tuple[Node, tuple[tuple[int, ...], ...] | None]],
    kept: np.ndarray,
    chunk: Sequence[tuple[int, int]],
    width: int,
) -> Bool[Tensor, "row pos *inner"] | None:
    """What kept nodes cover at a site, position on axis 1; None when its parts are ablated in its place."""
    parts = [Site(kind, site.layer) for kind in PARTS_OF.get(site.kind, ())]
    if any(part in sites for part in parts):
        return None
    wholes = [Site(kind, site.layer) for kind, inner in PARTS_OF.items() if site.kind in inner]
    mask = np.zeros((len(chunk), width, *_inner_shape(model, site)), dtype=bool)
    for column, (node, positions) in enumerate(places):
        if node.site != site and node.site not in wholes:
            continue
        inner = _inner_index(node) if node.site == site else ()
        for row, (circuit, prompt) in enumerate(chunk):
            if kept[circuit, column]:
                where = slice(None) if positions is None else list(positions[prompt])
                mask[(row, where, *inner)] = True
    return torch.from_numpy(mask)


def _inner_shape(model: HookedModel, site: Site) -> tuple[int, ...]:
    """Axes after the position, of size 1 where nothing can be selected."""
    sizes = model.shape.sizes(site)
    if site.has_heads:
        return (sizes["kv_head" if "kv_head" in site.axes else "head"], 1)
    return (sizes["d"],)


def _inner_index(node: Node) -> tuple[int | slice, ...]:
    if node.head is not None:
        return (node.head,)
    return () if node.unit is None else (slice(node.unit, node.unit + node.width),)
