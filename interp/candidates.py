"""Candidate nodes of a model and a task, and what they are in a run: the cells of a sweep."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from interp.errors import OptionError, TaskError, nearest
from interp.models.base import HookedModel
from interp.nodes import Node, Nodes
from interp.site import KINDS, Site
from interp.sweep import Cell, Part
from interp.tasks.base import Task

Positions = Literal["all", "each"] | Sequence[str]


def candidates(
    model: HookedModel,
    task: Task,
    kinds: str | Sequence[str] = "z",
    *,
    positions: Positions = "all",
    layers: Sequence[int] | None = None,
    heads: Literal["each", "all"] = "each",
    block: int | None = None,
) -> Nodes:
    """Every node of the given kinds.

    Args:
        kinds: site kinds; those with heads give one node a head unless ``heads="all"``.
        positions: ``"all"`` positions jointly, ``"each"`` position of the longest prompt, or role names of the task.
        layers: block indices; None for all.
        block: neurons (or coordinates) a node, for kinds without heads; None leaves the last axis whole.

    Raises:
        SiteError: a kind that the model lacks, with the reason.
        OptionError: a block on a kind with heads, an unknown role.
        TaskError: the task has no role of that name.
    """
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    where = _position_columns(task, positions)
    made: list[Node] = []
    for kind in kinds:
        for site in model.sites(kind):
            if layers is None or site.layer is None or site.layer in layers:
                made += _of_site(model, site, where, heads == "each", block)
    if not made:
        raise OptionError(
            f"no candidates: kinds {kinds} in layers {layers}; allowed layers 0 to {model.shape.n_layers - 1}."
        )
    return Nodes.of(made)


def _position_columns(task: Task, positions: Positions) -> list[dict]:
    if isinstance(positions, str) and positions == "all":
        return [{}]
    if isinstance(positions, str) and positions == "each":
        return [{"pos": p} for p in range(int(task.clean.lengths.max()))]
    roles = [positions] if isinstance(positions, str) else list(positions)
    unknown = [r for r in roles if r not in task.roles]
    if unknown or not roles:
        hint = nearest(str(unknown[0]), task.roles) if unknown else ""
        raise TaskError(
            f"task {task.name!r} has no roles {unknown}; it has {', '.join(task.roles)}{hint}; or 'all', 'each'."
        )
    return [{"role": r} for r in roles]


def _of_site(model: HookedModel, site: Site, where: list[dict], each_head: bool, block: int | None) -> list[Node]:
    sizes = model.shape.sizes(site)
    inner: list[dict] = [{}]
    if site.has_heads and each_head:
        inner = [{"head": h} for h in range(sizes["kv_head" if "kv_head" in site.axes else "head"])]
    if block is not None:
        if site.has_heads:
            raise OptionError(f"block={block} at {site}: blocks of units are for kinds without heads; leave it out.")
        inner = [{"unit": u, "width": min(block, sizes["d"] - u)} for u in range(0, sizes["d"], block)]
    return [Node(site.kind, site.layer, **place, **spot) for spot in where for place in inner]


def positions_of(node: Node, task: Task) -> tuple[tuple[int, ...], ...] | None:
    """Per prompt, the positions a node stands for; None for all, an empty tuple where a prompt lacks it.

    Raises:
        TaskError: a role that the task does not have.
    """
    if node.role is not None:
        if node.role not in task.roles:
            raise TaskError(
                f"node '{node}': task {task.name!r} has no role {node.role!r}; it has {', '.join(task.roles)}."
            )
        return task.roles[node.role]
    if node.pos is None:
        return None
    return tuple((node.pos,) if node.pos < n else () for n in task.clean.lengths.tolist())


def cell_of(node: Node, task: Task) -> Cell:
    """The one-part cell that patches `node`."""
    units = None if node.unit is None else (node.unit, node.unit + node.width)
    return (Part(node.site, positions_of(node, task), node.head, units),)


def check_nodes(model: HookedModel, task: Task, nodes: Nodes) -> None:
    """Raise unless every node exists in the model and can be patched.

    Raises:
        OptionError, SiteError, TaskError: all nodes of one fault together.
    """
    faults: list[str] = []
    for node in nodes:
        if node.kind == "logits" or node.featurizer is not None:
            faults.append(f"'{node}' is no activation that can be patched as it is")
            continue
        site = model.check_site(node.site)
        sizes = model.shape.sizes(site)
        heads = sizes["kv_head" if "kv_head" in site.axes else "head"]
        if node.head is not None and node.head >= heads:
            faults.append(f"'{node}': {model.identity.name} has heads 0 to {heads - 1} there")
        if node.unit is not None and sizes["d"] and node.unit + node.width > sizes["d"]:
            faults.append(f"'{node}': {site} has units 0 to {sizes['d'] - 1}")
        if node.role is None and node.pos is not None and node.pos >= int(task.clean.lengths.max()):
            faults.append(f"'{node}': the longest prompt has {int(task.clean.lengths.max())} tokens")
    if faults:
        more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise OptionError("; ".join(faults[:8]) + more + ".")


def window_cells(nodes: Nodes, task: Task, window: int, n_layers: int) -> list[Cell]:
    """For each node, its layer's window of `window` layers patched together (ROME's: [l - w//2, l + ceil(w/2)))."""
    cells = []
    for node in nodes:
        if node.layer is None or not KINDS[node.kind].layered:
            raise OptionError(f"'{node}' has no layer, so it has no window; use window=1.")
        span = range(max(0, node.layer - window // 2), min(n_layers, node.layer + -(-window // 2)))
        cells.append(tuple(cell_of(node._replace(layer=layer), task)[0] for layer in span))
    return cells


def window_sums(nodes: Nodes, singles: np.ndarray, window: int, n_layers: int) -> np.ndarray:
    """For each node, the sum of single-layer scores over its window; NaN where a layer was not a candidate.

    Args:
        singles: scores [..., node] of the single-layer patches.
    """
    row = {node: number for number, node in enumerate(nodes)}
    sums = np.full_like(singles, np.nan)
    for number, node in enumerate(nodes):
        assert node.layer is not None, "windows are over layers"
        span = range(max(0, node.layer - window // 2), min(n_layers, node.layer + -(-window // 2)))
        members = [row[one] for layer in span if (one := node._replace(layer=layer)) in row]
        if len(members) == len(span):
            sums[..., number] = singles[..., members].sum(-1)
    return sums
