"""Figures of a circuit: its scores over layers, heads and positions, and its largest members.

Each takes the name of a score or attribute. The whole universe is drawn and kept members are boxed; what was not run
is grey and says why.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.circuit import Circuit, Score
from interp.columns import find, row_keys
from interp.errors import CircuitError, nearest
from interp.nodes import NODE_KINDS
from interp.site import KINDS
from interp.view.figures import Grid, bars, heatmaps
from interp.view.style import Figure, visible

MOST_PANELS, MOST_ROWS = 24, 30
LAYERED = [code for code, kind in enumerate(NODE_KINDS) if kind in KINDS and KINDS[kind].layered]


class Column(NamedTuple):
    """A score or attribute to draw: its name, one value a row, and what the numbers are."""

    name: str
    over: str
    values: Float[np.ndarray, " row"]
    signed: bool
    unit: str


def heads(circuit: Circuit, score: str, *, kind: str = "z", tokens: Sequence[str] = ()) -> Figure:
    """A map of layers by heads; one beside the other for each role or position of the nodes.

    Args:
        score: a score or attribute over nodes.
        kind: a site kind with heads.
        tokens: names for positions 0, 1, ...

    Raises:
        CircuitError: no such score, or no node of that kind with a head.
    """
    column, rows = _column(circuit, score, "nodes"), _head_rows(circuit, kind)
    places, names = _places(circuit, rows, tokens)
    grids = _grids(circuit, column, rows, (places, circuit.nodes.layer[rows], circuit.nodes.head[rows]), names)
    strongest = np.argsort([-np.nan_to_num(np.abs(grid.values)).max() for grid in grids], kind="stable")
    left_out = f" (the {MOST_PANELS} largest of {len(grids)} maps)" if len(grids) > MOST_PANELS else ""
    n_layers, n_heads = grids[0].values.shape
    return heatmaps(
        [grids[i] for i in sorted(strongest[:MOST_PANELS])], range(n_heads), range(n_layers),
        title=f"{score}: heads ({kind}){left_out}", x_title="head", y_title="layer", unit=column.unit,
        signed=column.signed,
    )  # fmt: skip


def heads_by_position(
    circuit: Circuit, score: str, *, kind: str = "z", top: int = MOST_ROWS, tokens: Sequence[str] = ()
) -> Figure:
    """A map of the heads with the largest scores (rows, in order of layers) by role or position. As `heads`."""
    column, rows = _column(circuit, score, "nodes"), _head_rows(circuit, kind)
    layer, head = circuit.nodes.layer[rows], circuit.nodes.head[rows]
    _, first, which = np.unique(row_keys([layer, head]), return_index=True, return_inverse=True)
    largest = np.zeros(len(first))
    np.maximum.at(largest, which, np.nan_to_num(np.abs(column.values[rows])))
    shown = np.sort(np.argsort(-largest, kind="stable")[:top])
    line = find(shown, which)
    rows, line = rows[line >= 0], line[line >= 0]
    places, names = _places(circuit, rows, tokens)
    return heatmaps(
        _grids(circuit, column, rows, (np.zeros_like(places), line, places), [""]),
        names, [f"{layer[row]}.{head[row]}" for row in first[shown]],
        title=f"{score}: the {len(shown)} largest heads ({kind}) by position", x_title="position",
        y_title="layer.head", unit=column.unit, signed=column.signed,
    )  # fmt: skip


def positions(circuit: Circuit, score: str, *, tokens: Sequence[str] = ()) -> Figure:
    """A map of layers by roles or positions for each kind of whole activation (residual, attention or MLP output).

    Where no node has a role or position, one map of layers by kinds.

    Raises:
        CircuitError: no such score, or no node that is a whole activation of a layer.
    """
    nodes, column = circuit.nodes, _column(circuit, score, "nodes")
    rows = np.flatnonzero(_whole(circuit) & (nodes.head < 0) & np.isin(nodes.kind, LAYERED))
    _refuse_empty(rows, "nodes of a layer without heads")
    codes, kinds = np.unique(nodes.kind[rows], return_inverse=True)
    places, names = _places(circuit, rows, tokens)
    drawn = [NODE_KINDS[code] for code in codes]
    if len(names) == 1:
        grids, x, x_title = _grids(circuit, column, rows, (places, nodes.layer[rows], kinds), [""]), drawn, "kind"
    else:
        grids, x, x_title = _grids(circuit, column, rows, (kinds, nodes.layer[rows], places), drawn), names, "position"
    return heatmaps(
        grids, x, range(grids[0].values.shape[0]),
        title=f"{score}: layers by {x_title}", x_title=x_title, y_title="layer", unit=column.unit,
        signed=column.signed,
    )  # fmt: skip


def ranked(circuit: Circuit, score: str, *, top: int = MOST_ROWS) -> Figure:
    """Bars of the kept nodes or edges with the largest magnitude, with their interval where the circuit has one.

    Raises:
        CircuitError: no such score, or no kept row with a value.
    """
    column = _column(circuit, score, "nodes" if score not in circuit.columns else circuit.columns[score].over)
    order = best_first(circuit, column)[:top]
    _refuse_empty(order, f"kept {column.over} with a value of {score!r}")
    low, high = (circuit.attributes.get(f"{score}.{end}") for end in ("low", "high"))
    return bars(
        row_names(circuit, column.over, order), column.values[order],
        low=None if low is None or high is None else low.values[order],
        high=None if low is None or high is None else high.values[order],
        title=f"{score}: the {len(order)} largest kept {column.over}", unit=column.unit,
    )  # fmt: skip


def figures(circuit: Circuit, *, tokens: Sequence[str] = ()) -> dict[str, list[Figure]]:
    """Score -> every figure that applies to it."""
    nodes, whole = circuit.nodes, _whole(circuit)
    headed = sorted({NODE_KINDS[code] for code in nodes.kind[whole & (nodes.head >= 0)]})
    placed = bool(((nodes.pos >= 0) | (nodes.role >= 0)).any())
    flat = bool((whole & (nodes.head < 0) & np.isin(nodes.kind, LAYERED)).any())
    drawn: dict[str, list[Figure]] = {}
    for name, score in circuit.scores.items():
        made = drawn[name] = []
        if score.over == "nodes":
            for kind in headed:
                made += [heads_by_position(circuit, name, kind=kind, tokens=tokens)] if placed else []
                made.append(heads(circuit, name, kind=kind, tokens=tokens))
            made += [positions(circuit, name, tokens=tokens)] if flat else []
        if len(best_first(circuit, _column(circuit, name, score.over))):
            made.append(ranked(circuit, name))
    return drawn


def best_first(circuit: Circuit, column: Column) -> Int[np.ndarray, " ranked"]:
    """Kept rows that have a value, largest magnitude first."""
    rows = np.flatnonzero(circuit.kept(column.over) & ~np.isnan(column.values))
    return rows[np.argsort(-np.abs(column.values[rows]), kind="stable")]


def row_names(circuit: Circuit, over: str, rows: Int[np.ndarray, " row"]) -> list[str]:
    """Nodes as their texts, without the featurizer where the site has but one; edges as source -> destination."""
    nodes, edges = circuit.nodes, circuit.edges
    kinds = np.unique(np.stack([nodes.kind, nodes.layer, nodes.featurizer], 1), axis=0)
    sites, count = np.unique(kinds[:, :2], axis=0, return_counts=True)
    alone = {tuple(site) for site in sites[count == 1].tolist()}

    def name(row: int) -> str:
        is_clear = (int(nodes.kind[row]), int(nodes.layer[row])) in alone
        return str(nodes[row]._replace(featurizer=None) if is_clear else nodes[row])

    if over == "nodes":
        return [name(row) for row in rows.tolist()]
    ends = zip(edges.source[rows].tolist(), edges.destination[rows].tolist(), strict=True)
    return [f"{name(source)} → {name(destination)}" for source, destination in ends]


def _column(circuit: Circuit, name: str, over: str) -> Column:
    """A score or numeric attribute over the given rows."""
    columns = circuit.columns
    allowed = [n for n, one in columns.items() if one.over == over and one.values.dtype.kind != "O"]
    if name not in allowed:
        raise CircuitError(f"no number {name!r} over {over}; this circuit has {allowed}{nearest(name, allowed)}.")
    one, values = columns[name], columns[name].values.astype(float)
    if isinstance(one, Score):
        unit = f" ({one.header.unit})" if one.header.unit else ""
        return Column(name, over, values, one.header.signed, one.header.quantity + unit)
    return Column(name, over, values, bool((values < 0).any()), one.meaning)


def _whole(circuit: Circuit) -> Bool[np.ndarray, " node"]:
    """Nodes that are no units or features of an activation."""
    return (circuit.nodes.unit == -1) & (circuit.nodes.featurizer < 0)


def _head_rows(circuit: Circuit, kind: str) -> Int[np.ndarray, " found"]:
    """Rows of the nodes of a kind that are one head each."""
    if kind not in NODE_KINDS:
        raise CircuitError(f"no node kind {kind!r}; allowed: {', '.join(NODE_KINDS)}{nearest(kind, NODE_KINDS)}.")
    nodes = circuit.nodes
    rows = np.flatnonzero(_whole(circuit) & (nodes.head >= 0) & (nodes.kind == NODE_KINDS.index(kind)))
    _refuse_empty(rows, f"{kind} nodes with a head")
    return rows


def _refuse_empty(rows: np.ndarray, what: str) -> None:
    if not len(rows):
        raise CircuitError(f"there is nothing to draw: this circuit has no {what}; draw another kind or score.")


def _places(circuit: Circuit, rows: np.ndarray, tokens: Sequence[str]) -> tuple[Int[np.ndarray, " row"], list[str]]:
    """The number of each row's place, and the places' names: all positions jointly, then roles, then positions."""
    nodes = circuit.nodes
    role, pos = nodes.role[rows], np.where(nodes.role[rows] >= 0, -1, nodes.pos[rows])
    _, first, number = np.unique(row_keys([pos, role]), return_index=True, return_inverse=True)
    names = []
    for where, code in zip(pos[first].tolist(), role[first].tolist(), strict=True):
        token = f" {visible(tokens[where])}" if 0 <= where < len(tokens) else ""
        names.append(nodes.roles[code] if code >= 0 else f"{where}{token}" if where >= 0 else "all positions")
    return number, names


def _grids(
    circuit: Circuit, column: Column, rows: np.ndarray, index: tuple[Any, Any, Any], names: Sequence[str]
) -> list[Grid]:
    """The rows' values in named grids; `index` tells each row's grid, its line there and its cell in the line."""
    shape = tuple(int(axis.max()) + 1 for axis in index)
    values, notes = np.full(shape, np.nan), np.full(shape, "not a candidate", dtype=object)
    marked = np.zeros(shape, dtype=bool)
    reasons = circuit.attributes.get("reason")
    given = np.full(len(circuit.nodes), "", dtype=object) if reasons is None else reasons.values
    values[index] = column.values[rows]
    notes[index] = np.where(np.isnan(values[index]) & (given[rows] == ""), "not run", given[rows])
    marked[index] = circuit.kept_nodes[rows]
    boxes = [None] * shape[0] if circuit.kept_nodes.all() else list(marked)
    return [Grid(*cells) for cells in zip(values, notes, boxes, names, strict=True)]
