"""Running a circuit: the model with everything of a universe ablated except what the circuit keeps.

What candidates cover and no kept node covers is set to the ablation's value; everything else runs as it is: sites
without candidates, and the rest of sites that candidates cover only in part (some positions, heads or units). A node
covers everything inside it (`attn_out` its heads, `mlp_out` its neurons), and keeping a part of a dropped whole keeps
the part. So the full universe is the model, and with the counterfactual ablation of a universe that cuts the graph,
the empty circuit is the corrupted run.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.candidate_nodes import check_nodes, positions_of
from interp.cells import Source
from interp.circuit import Circuit
from interp.errors import CircuitError, OptionError
from interp.intervention import Edit
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import Node
from interp.scoring import FINAL, Scorer, checked_metrics, clean_reference
from interp.site import Site
from interp.sources import Direction, base_and_source, directions_of
from interp.tasks.base import Task
from interp.tokens import Prompts

PARTS_OF = {"attn_out": "z", "mlp_out": "neuron"}
"""A whole and the kind at which its parts live; a whole whose parts are candidates is ablated through them."""

SUBLAYERS = {
    "attn_out": "attn_in q k v k_of_query_head v_of_query_head pattern z attn_proj attn_out".split(),
    "mlp_out": "mlp_in neuron mlp_proj mlp_out".split(),
}


@dataclass(frozen=True, eq=False)
class CircuitRuns:
    """Metrics of several circuits' runs.

    Attributes:
        values: [metric, circuit, prompt].
        outside: what ran as it is: sublayers without a candidate, such as the MLPs of a circuit of heads, and sites
            that candidates cover only in part.
    """

    values: Float[Tensor, "metric circuit prompt"]
    outside: tuple[str, ...]


class _Place(NamedTuple):
    """What one node covers of a site: its column in the masks, positions a prompt (None for all), and inner axes."""

    column: int
    positions: tuple[tuple[int, ...], ...] | None
    inner: tuple[int | slice, ...]


def run_circuits(
    model: HookedModel,
    task: Task,
    universe: Circuit,
    kept: Bool[np.ndarray, "circuit node"],
    *,
    metrics: str | Metric | Sequence[str | Metric] = (),
    direction: Direction = "noising",
    ablation: str = "counterfactual",
    seed: int = 0,
    rows: int = 64,
) -> CircuitRuns:
    """Run circuits over one universe on the task's prompts.

    Args:
        universe: whose nodes are the candidates.
        kept: one row a circuit.
        metrics: names or metrics; the task's own when none is given.
        direction: ``"noising"`` runs the clean prompts; ``"denoising"`` the corrupted ones, with clean values for
            what is not kept.
        ablation: ``"counterfactual"``, ``"zero"``, ``"mean"``, ``"mean_by_position"`` or ``"resample"``.
        seed: of the donors of ``"resample"``.
        rows: prompts in one forward.

    Raises:
        CircuitError: edges without nodes, coordinates of a whole beside its parts, masks that do not fit.
        SiteError, TaskError, MetricError, OptionError: nodes, prompts, metrics or an ablation that cannot be run.
    """
    if kept.ndim != 2 or not len(kept) or kept.shape[1] != len(universe.nodes):
        raise CircuitError(f"masks have shape {kept.shape}; [circuit, {len(universe.nodes)}] is needed.")
    if universe.scores and all(s.over == "edges" for s in universe.scores.values()) and len(universe.edges):
        raise CircuitError("this circuit's members are edges; running it needs edge patching, not node ablation.")
    if rows < 1:
        raise OptionError(f"rows={rows}; allowed: 1 and more.")
    directions_of(task, direction, ablation)
    chosen = checked_metrics(model, task, metrics)
    check_nodes(model, task, universe.nodes)
    coverage = _coverage(universe, task)
    base, source = base_and_source(model, task, direction, ablation, list(coverage), seed)
    values = _values(model, source, list(coverage))
    scorer = Scorer(model, chosen, task.answers, clean_reference(model, chosen, task))
    pairs = np.stack(np.meshgrid(range(len(kept)), range(len(task)), indexing="ij"), -1).reshape(-1, 2)
    found = [
        _run_rows(model, base, coverage, kept[chunk[:, 0]], values, scorer, chunk[:, 1].tolist())
        for chunk in np.split(pairs, range(rows, len(pairs), rows))
    ]
    measured = torch.cat(found, 1).reshape(len(chosen), len(kept), len(task))
    return CircuitRuns(measured, _outside(model, task, coverage))


def _coverage(universe: Circuit, task: Task) -> dict[Site, list[_Place]]:
    """For each site to ablate, in forward order, the candidates that cover something of it."""
    sites = {node.site for node in universe.nodes}
    found: dict[Site, list[_Place]] = defaultdict(list)
    for column, node in enumerate(universe.nodes):
        part = Site(PARTS_OF[node.kind], node.layer) if node.kind in PARTS_OF else None
        is_whole = part in sites
        if is_whole and node.unit is not None:
            raise CircuitError(f"'{node}' is a coordinate beside candidates at {part}; keep one of the two kinds.")
        site = part if part is not None and is_whole else node.site
        found[site].append(_Place(column, positions_of(node, task), _inner(node)))
    return dict(sorted(found.items(), key=lambda item: item[0].order))


def _inner(node: Node) -> tuple[int | slice, ...]:
    """Index of the node in the site's axes after the position."""
    units = slice(None) if node.unit is None else slice(node.unit, node.unit + node.width)
    head = slice(None) if node.head is None else node.head
    return (head, units) if node.site.has_heads else (units,)


def _values(model: HookedModel, source: Source, sites: Sequence[Site]) -> Mapping[Site, Tensor]:
    """The new values at every site, one row a prompt (or one for all)."""
    return source.values if source.prompts is None else model.run(source.prompts, record=sites, logits="none").cache


def _run_rows(
    model: HookedModel,
    base: Prompts,
    coverage: Mapping[Site, Sequence[_Place]],
    kept: Bool[np.ndarray, "row node"],
    given: Mapping[Site, Tensor],
    scorer: Scorer,
    prompts: list[int],
) -> Float[Tensor, "metric row"]:
    """Metrics of rows, each one circuit on one prompt; float64 on the CPU."""
    batch = base[prompts]
    edits = []
    for site, places in coverage.items():
        shape = (*batch.ids.shape, *_inner_shape(model, site, batch.ids.shape[1]))
        ablated = _covered(places, np.ones_like(kept), prompts, shape) & ~_covered(places, kept, prompts, shape)
        if ablated.any():
            values = given[site] if given[site].shape[0] == 1 else given[site][prompts]
            mask = torch.from_numpy(ablated)
            edits.append(Edit(site, _Replace(mask.transpose(1, 2) if site.kind == "pattern" else mask, values)))
    run = model.run(batch, edits, [FINAL], logits="none")
    with torch.no_grad():
        return scorer(run[FINAL], torch.tensor(prompts, device=run[FINAL].device)).cpu().double()


@dataclass(frozen=True, eq=False)
class _Replace:
    """Take the ablation's values where the mask says so, keep the running ones elsewhere."""

    mask: Tensor
    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        values = self.values[tuple(slice(0, n) for n in x.shape)].to(x.device, x.dtype)
        return torch.where(self.mask.to(x.device), values, x)


def _inner_shape(model: HookedModel, site: Site, width: int) -> tuple[int, ...]:
    """Sizes of the site's axes after the position."""
    sizes = model.shape.sizes(site)
    units = sizes["d"] or width
    return (sizes["kv_head" if "kv_head" in site.axes else "head"], units) if site.has_heads else (units,)


def _covered(
    places: Sequence[_Place], members: Bool[np.ndarray, "row node"], prompts: Sequence[int], shape: tuple[int, ...]
) -> Bool[np.ndarray, "row pos *inner"]:
    """What of a site the members cover in each row, a prompt of the task; position on axis 1."""
    mask = np.zeros(shape, dtype=bool)
    for place in places:
        rows = np.flatnonzero(members[:, place.column]).tolist()
        if place.positions is None:
            mask[(rows, slice(None), *place.inner)] = True
        elif where := [(row, p) for row in rows for p in place.positions[prompts[row]]]:
            mask[(*zip(*where, strict=True), *place.inner)] = True
    return mask


def _outside(model: HookedModel, task: Task, coverage: Mapping[Site, Sequence[_Place]]) -> tuple[str, ...]:
    """Sublayers without a candidate, and sites that all candidates together cover only in part."""
    kinds = [kind for kind in SUBLAYERS if kind not in model.unavailable]
    untouched = [
        str(site)
        for site in (model.sites(*kinds) if kinds else [])
        if not any(Site(kind, site.layer) in coverage for kind in SUBLAYERS[site.kind])
    ]
    real = task.clean.mask.cpu().numpy()
    everyone = np.ones((len(task), 1 + max(place.column for places in coverage.values() for place in places)), bool)
    partly = []
    for site, places in coverage.items():
        shape = (*real.shape, *_inner_shape(model, site, real.shape[1]))
        if not _covered(places, everyone, range(len(task)), shape)[real].all():
            partly.append(f"{site} in part")
    return (*untouched, *partly)
