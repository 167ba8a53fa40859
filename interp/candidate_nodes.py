"""Candidate nodes of a model and a task, and what they are in a run: the cells of a sweep."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from interp.cells import Cell, Part
from interp.errors import OptionError, SiteError, TaskError, check_choice, nearest
from interp.models.base import HookedModel
from interp.nodes import Node, Nodes
from interp.site import KINDS, Site
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
        SiteError: a kind or layer that the model lacks, with the reason.
        OptionError: no kind or layer, a block on a kind with heads or of no size, `heads` neither word.
        TaskError: the task has no role of that name.
    """
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    check_choice("heads", heads, ("each", "all"))
    if not kinds or (layers is not None and not len(layers)) or (block is not None and block < 1):
        raise OptionError(f"no candidates of kinds={kinds}, layers={layers}, block={block}; give at least one of each.")
    last = model.shape.n_layers - 1
    strange = [layer for layer in layers or () if not 0 <= layer <= last]
    if strange:
        raise SiteError(f"layers {strange} are not in {model.identity.name}; allowed: 0 to {last}.")
    where = position_columns(task, positions)
    made: list[Node] = []
    for kind in kinds:
        for site in model.sites(kind):
            if layers is None or site.layer is None or site.layer in layers:
                made += _of_site(model, site, where, heads == "each", block)
    return Nodes.of(made)


def position_columns(task: Task, positions: Positions) -> list[dict]:
    """The columns that place a node: one dict for each position, role, or all positions jointly."""
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

    A prompt lacks an attention weight (`pattern`) on a token that it does not have.

    Raises:
        TaskError: a role that the task does not have.
    """
    lengths, where = task.clean.lengths.tolist(), None
    if node.role is not None:
        if node.role not in task.roles:
            raise TaskError(
                f"node '{node}': task {task.name!r} has no role {node.role!r}; it has {', '.join(task.roles)}."
            )
        where = task.roles[node.role]
    elif node.pos is not None:
        where = tuple((node.pos,) if node.pos < n else () for n in lengths)
    if node.kind != "pattern" or node.unit is None:
        return where
    where = where or tuple(tuple(range(n)) for n in lengths)
    return tuple(here if node.unit + node.width <= n else () for here, n in zip(where, lengths, strict=True))


def cell_of(node: Node, task: Task) -> Cell:
    """The one-part cell that patches `node`."""
    units = None if node.unit is None else (node.unit, node.unit + node.width)
    return (Part(node.site, positions_of(node, task), node.head, units),)


def check_nodes(model: HookedModel, task: Task, nodes: Nodes) -> None:
    """Raise unless every node exists in the model and the prompts, and can be patched.

    Raises:
        OptionError: no nodes at all.
        SiteError: all nodes that cannot be, together.
    """
    if not len(nodes):
        raise OptionError("there are no nodes; give at least one, or site kinds such as 'z'.")
    longest = int(task.clean.lengths.max())
    faults = [f"'{node}': {fault}" for node in nodes if (fault := _fault(model, node, longest))]
    if faults:
        more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise SiteError("; ".join(faults[:8]) + more + ".")


def _fault(model: HookedModel, node: Node, longest: int) -> str:
    """What keeps a node from being patched, or ''."""
    if node.kind == "logits" or node.featurizer is not None:
        return "no activation that can be patched as it is"
    try:
        site = model.check_site(node.site)
    except SiteError as error:
        return str(error).removesuffix(".")
    sizes = model.shape.sizes(site)
    heads = sizes["kv_head" if "kv_head" in site.axes else "head"]
    if node.head is not None and node.head >= heads:
        return f"{model.identity.name} has heads 0 to {heads - 1} there"
    what, width = ("units", sizes["d"]) if sizes["d"] else ("source positions", longest)
    if node.unit is not None and node.unit + node.width > width:
        return f"{site} has {what} 0 to {width - 1}"
    if node.role is None and node.pos is not None and node.pos >= longest:
        return f"the longest prompt has {longest} tokens"
    return ""


def chosen_nodes(
    model: HookedModel, task: Task, nodes: str | Sequence[str] | Nodes, positions: Positions = "all"
) -> Nodes:
    """The candidates a method is given, as site kinds or as nodes, once each is known to exist.

    Raises:
        OptionError: positions beside ready nodes; further what `candidates` and `check_nodes` raise.
    """
    if not isinstance(nodes, Nodes):
        nodes = candidates(model, task, nodes, positions=positions)
    elif positions != "all":
        raise OptionError(f"positions={positions!r} beside ready nodes; give it to candidates() when making them.")
    check_nodes(model, task, nodes)
    return nodes


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
