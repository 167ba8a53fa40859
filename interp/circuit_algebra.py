"""Two circuits in one: alignment, union, intersection, difference; and one circuit at a coarser granularity. All pure.

Circuits combine over equal universes, whatever the order of their rows. Unequal universes are brought together by
`align`, unequal granularities (heads against heads at positions) by `coarsen`; neither happens unasked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from interp.circuit import Attribute, Circuit, NamedTensor, Score
from interp.columns import find, row_keys, some
from interp.edges import Edges, ends, structural
from interp.errors import CircuitError, check_choice
from interp.nodes import COLUMNS, NODE_KINDS, Nodes, joint_columns, rows_in

_ABSENT = {"f": np.nan, "i": -1, "u": 0, "b": False, "O": ""}  # value of a row that a circuit did not have


def union(first: Circuit, second: Circuit) -> Circuit:
    """What either keeps, over the first's rows; the second's columns are added, renamed where the name is taken.

    Raises:
        CircuitError: universes or granularities that differ; the message names `align` or `coarsen`.
    """
    second = _on_rows_of(first, second)
    nodes, edges = first.kept_nodes | second.kept_nodes, first.kept_edges | second.kept_edges
    return _combined(first, second, nodes, edges, "union")


def intersection(first: Circuit, second: Circuit) -> Circuit:
    """What both keep; otherwise as `union`."""
    second = _on_rows_of(first, second)
    nodes, edges = first.kept_nodes & second.kept_nodes, first.kept_edges & second.kept_edges
    return _combined(first, second, nodes, edges, "intersection")


def difference(first: Circuit, second: Circuit) -> Circuit:
    """What the first keeps and the second does not, with both ends of such edges; otherwise as `union`."""
    second = _on_rows_of(first, second)
    edges = first.kept_edges & ~second.kept_edges
    nodes = (first.kept_nodes & ~second.kept_nodes) | ends(first.edges, edges, len(first.nodes))
    return _combined(first, second, nodes, edges, "difference")


def align(
    first: Circuit, second: Circuit, universe: Literal["union", "intersection"] = "union"
) -> tuple[Circuit, Circuit]:
    """Both circuits over one universe: every row of either, or the rows of both.

    A row that a circuit did not have is not kept in it, and its scores there are NaN (attributes: NaN, -1, False or
    ''). Tensors over nodes or edges stay behind.

    Raises:
        CircuitError: granularities that differ, or one featurizer key with two descriptions.
    """
    check_choice("universe", universe, ("union", "intersection"))
    check_granularity(first, second)
    columns, roles, featurizers = joint_columns(first.nodes, second.nodes)
    keys = row_keys(columns)
    node_keys = keys[: len(first.nodes)], keys[len(first.nodes) :]
    shared_keys = _merged_keys(*node_keys, universe)
    rows = find(keys, shared_keys)
    filled: dict[str, Any] = {name: column[rows] for name, column in zip(COLUMNS, columns, strict=True)}
    nodes = Nodes(**filled, roles=roles, featurizers=featurizers)
    edge_keys = tuple(
        _edge_keys(one.edges, find(shared_keys, own), len(nodes))
        for one, own in zip((first, second), node_keys, strict=True)
    )
    shared_edges = _merged_keys(edge_keys[0], edge_keys[1], universe)
    edges = _edges_of(shared_edges, len(nodes))
    described = joint_featurizers(first, second)
    made = [
        _on_rows(one, nodes, find(own, shared_keys), edges, find(own_edges, shared_edges), described)
        for one, own, own_edges in zip((first, second), node_keys, edge_keys, strict=True)
    ]
    record = {"universe": universe, "nodes": len(nodes), "edges": len(edges)}
    aligned = [replace(one, provenance=one.provenance.after("align", **record)) for one in made]
    return aligned[0], aligned[1]


def on_one_universe(circuits: Sequence[Circuit]) -> list[Circuit]:
    """All circuits over the rows of any of them, in one order; as `align`, which names the errors."""
    universe = circuits[0]
    for one in circuits[1:]:
        universe = align(universe, one)[0]
    return [_on_rows_of(universe, align(one, universe)[0]) for one in circuits]


def from_layer(circuit: Circuit, layer: int) -> Circuit:
    """The circuit without the candidates below a layer (`embed` among them): in a run they are left as they are.

    Feature circuits are judged so where features of early layers stand for single tokens (Marks et al. 2024 leave out
    the first third of the layers).

    Raises:
        CircuitError: no candidate is left.
    """
    last = circuit.nodes.names("kind")
    keep = (circuit.nodes.layer >= layer) | np.isin(last, ["logits", "resid_final"])
    if not (circuit.nodes.layer[keep] >= 0).any():
        raise CircuitError(
            f"no candidate stands at layer {layer} or above; the highest is {circuit.nodes.layer.max()}."
        )
    rows = np.flatnonzero(keep)
    new = np.cumsum(keep) - 1
    edge_rows = np.flatnonzero(keep[circuit.edges.source] & keep[circuit.edges.destination])
    edges = Edges(new[circuit.edges.source[edge_rows]], new[circuit.edges.destination[edge_rows]])
    cut = _on_rows(circuit, circuit.nodes.take(rows), rows, edges, edge_rows, dict(circuit.featurizers))
    return replace(cut, provenance=circuit.provenance.after(operation="from_layer", layer=layer))


def coarsen(
    circuit: Circuit,
    to: Sequence[str] = ("layer", "head"),
    *,
    kinds: Mapping[str, str] | None = None,
    magnitudes: Literal["sum", "max"] | None = None,
) -> Circuit:
    """Merge nodes that differ only in properties not named in `to`, and the edges between them.

    Signed scores add (NaN where any part was not run); a merged node or edge is kept if any part is. Edges inside one
    merged node vanish. Attributes, and tensors over nodes or edges, stay behind.

    Args:
        to: the properties to keep, of layer, head, role, pos, featurizer, unit; the layer always stays.
        kinds: kinds to rename first, such as ``{"neuron": "mlp_out"}`` or ``{"q": "z", "k": "z", "v": "z"}``.
        magnitudes: how unsigned scores merge; needed where there are any.

    Raises:
        CircuitError: unsigned scores without `magnitudes`; a merger with no meaning (units without their featurizer,
            key/value heads shared by several query heads into one of them).

    >>> circuit = Circuit(Nodes.from_columns("z", layer=0, head=[0, 0, 1], pos=[0, 1, 0]))
    >>> coarsen(circuit, ("layer", "head")).nodes
    Nodes(2: z[0] head 0, z[0] head 1)
    """
    unsigned = [name for name, score in circuit.scores.items() if not score.header.signed]
    if unsigned and magnitudes is None:
        raise CircuitError(f"scores {unsigned} are unsigned and do not add; say magnitudes='sum' or magnitudes='max'.")
    if magnitudes is not None:
        check_choice("magnitudes", magnitudes, ("sum", "max"))
    merger = _plan_merger(circuit, _coarse_columns(circuit.nodes, to, dict(kinds or {})))
    scores = {}
    for name, score in circuit.scores.items():
        how = "sum" if score.header.signed else magnitudes
        scores[name] = Score(score.header, _merge(merger, score.over, score.values, how))
    return replace(
        circuit,
        nodes=merger.nodes,
        edges=merger.edges,
        scores=scores,
        attributes={},
        kept_nodes=_merge(merger, "nodes", circuit.kept_nodes, "max") > 0,
        kept_edges=_merge(merger, "edges", circuit.kept_edges, "max") > 0,
        tensors=_without_rows(circuit),
        provenance=circuit.provenance.after("coarsen", to=list(to), kinds=kinds, magnitudes=magnitudes),
    )


class _Merger(NamedTuple):
    """The coarse rows, and for every fine row the coarse one it goes into (-1: an edge inside one coarse node)."""

    nodes: Nodes
    edges: Edges
    node_group: Int64[np.ndarray, " node"]
    edge_group: Int64[np.ndarray, " edge"]


def _coarse_columns(nodes: Nodes, to: Sequence[str], kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The node columns with kinds renamed and the properties not in `to` made absent."""
    known = {"to": [name for name in COLUMNS if name not in ("kind", "width")], "kinds": NODE_KINDS}
    unknown = [name for name in to if name not in known["to"]]
    unknown += [name for name in (*kinds, *kinds.values()) if name not in NODE_KINDS]
    if unknown:
        raise CircuitError(f"no properties or kinds {unknown}; allowed in to: {known['to']}; kinds: {NODE_KINDS}.")
    if "unit" in to and "featurizer" not in to and (nodes.featurizer >= 0).any():
        raise CircuitError(f"to={tuple(to)} keeps units and drops their featurizer; keep both, or drop 'unit' too.")
    absent = np.full(len(nodes), -1)
    columns = {name: getattr(nodes, name) if name in ("kind", "layer", *to) else absent for name in COLUMNS}
    columns["width"] = nodes.width if "unit" in to else np.ones(len(nodes), dtype=int)
    renamed = [NODE_KINDS.index(kinds.get(name, name)) for name in NODE_KINDS]
    columns["kind"] = np.array(renamed)[nodes.kind]
    return columns


def _plan_merger(circuit: Circuit, columns: Mapping[str, np.ndarray]) -> _Merger:
    """Merge rows that are equal in `columns`, and edges whose ends are."""
    node_group, first = _groups(row_keys([columns[name] for name in COLUMNS]))
    merged: dict[str, Any] = {name: column[first] for name, column in columns.items()}
    nodes = Nodes(**merged, roles=circuit.nodes.roles, featurizers=circuit.nodes.featurizers)
    keys = _edge_keys(circuit.edges, node_group, len(nodes))
    outer = node_group[circuit.edges.source] != node_group[circuit.edges.destination]
    groups, first = _groups(keys[outer])
    edges = _edges_of(keys[outer][first], len(nodes))
    if (structural(circuit.nodes, circuit.edges)[outer] & ~structural(nodes, edges)[groups]).any():
        raise CircuitError(
            "these kinds would merge a key/value head into one of the query heads that share it; "
            "drop 'head' from `to` as well, or leave k and v as they are."
        )
    edge_group = np.full(len(outer), -1)
    edge_group[outer] = groups
    return _Merger(nodes, edges, node_group, edge_group)


def _groups(keys: Int64[np.ndarray, " row"]) -> tuple[Int64[np.ndarray, " row"], Int64[np.ndarray, " group"]]:
    """For each row the number of its group of equal keys, in order of appearance; and each group's first row."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[group], first[order]


def _merge(merger: _Merger, over: str, values: np.ndarray, how: str | None) -> Float[np.ndarray, " group"]:
    """Sum or maximum of the values that go into each coarse row; NaN where one of them is."""
    group, rows = (merger.node_group, merger.nodes) if over == "nodes" else (merger.edge_group, merger.edges)
    values, group = values[group >= 0].astype(np.float64), group[group >= 0]
    if how == "sum":
        return np.bincount(group, weights=values, minlength=len(rows)).astype(np.float64)  # integers when empty
    largest = np.full(len(rows), -np.inf)
    np.maximum.at(largest, group, values)
    return largest


def _edge_keys(edges: Edges, rows: np.ndarray, n_nodes: int) -> Int64[np.ndarray, " edge"]:
    """One number an edge, by the new `rows` of its nodes; -1 where a node has none."""
    source, destination = rows[edges.source].astype(np.int64), rows[edges.destination]
    return np.where((source < 0) | (destination < 0), -1, source * n_nodes + destination)


def _edges_of(keys: Int64[np.ndarray, " edge"], n_nodes: int) -> Edges:
    return Edges(*np.divmod(keys, max(n_nodes, 1)))


def _merged_keys(first: np.ndarray, second: np.ndarray, universe: str) -> Int64[np.ndarray, " row"]:
    """The keys of either, first's before second's, or of both."""
    if universe == "union":
        return np.concatenate([first, second[find(first, second) < 0]])
    return first[(find(second, first) >= 0) & (first >= 0)]


def _granularity(nodes: Nodes) -> dict[str, str]:
    """For each kind present, the properties that tell its nodes apart."""
    found = {}
    for code in np.unique(nodes.kind):
        rows = nodes.kind == code
        used = [name for name in COLUMNS[1:-1] if (getattr(nodes, name)[rows] != -1).any()]
        used += ["width"] if (nodes.width[rows] > 1).any() else []
        found[NODE_KINDS[code]] = ", ".join(used) or "kind"
    return found


def check_granularity(first: Circuit, second: Circuit) -> None:
    """Raise unless nodes of one kind are told apart by the same properties, and some kind is common."""
    one, other = _granularity(first.nodes), _granularity(second.nodes)
    faults = [
        f"{kind} by {one[kind]} in the first, by {other[kind]} in the second"
        for kind in one
        if kind in other and one[kind] != other[kind]
    ]
    inner = [set(kinds) - {"input", "embed", "logits"} for kinds in (one, other)]
    if not faults and all(inner) and not inner[0] & inner[1]:
        faults = [f"no kind in common: {', '.join(sorted(inner[0]))}; {', '.join(sorted(inner[1]))}"]
    if faults:
        raise CircuitError(
            f"circuits of different granularity: {'; '.join(faults)}. Map the finer one with coarsen(circuit, to=..., "
            "kinds=...) first."
        )


def _on_rows_of(first: Circuit, second: Circuit) -> Circuit:
    """The second circuit with its rows in the first's order; raises unless the universes are equal."""
    if first.nodes is second.nodes and first.edges is second.edges:
        return second
    check_granularity(first, second)
    n_nodes = len(first.nodes)
    rows, back = rows_in(second.nodes, first.nodes), rows_in(first.nodes, second.nodes)
    own, wanted = _edge_keys(second.edges, back, n_nodes), _edge_keys(first.edges, np.arange(n_nodes), n_nodes)
    edge_rows = find(own, wanted)
    lone = {
        "nodes only in the first": first.nodes.take(rows < 0).labels,
        "nodes only in the second": second.nodes.take(back < 0).labels,
        "edges only in the first": np.flatnonzero(edge_rows < 0),
        "edges only in the second": np.flatnonzero(find(wanted, own) < 0),
    }
    faults = [f"{len(rows):,} {what} ({some(rows, 3)})" for what, rows in lone.items() if len(rows)]
    if faults:
        raise CircuitError(
            f"the circuits have different universes: {'; '.join(faults)}. Bring them together with "
            "align(first, second, 'union') or 'intersection'."
        )
    return _on_rows(second, first.nodes, rows, first.edges, edge_rows, joint_featurizers(first, second))


def joint_featurizers(first: Circuit, second: Circuit) -> dict[str, Any]:
    """The featurizers of both."""
    clash = [
        key
        for key in first.featurizers
        if second.featurizers.get(key, first.featurizers[key]) != first.featurizers[key]
    ]
    if clash:
        raise CircuitError(f"featurizers {clash} mean different things in the two circuits; rename them in one.")
    return {**first.featurizers, **second.featurizers}


def _on_rows(
    circuit: Circuit, nodes: Nodes, rows: np.ndarray, edges: Edges, edge_rows: np.ndarray, featurizers: dict[str, Any]
) -> Circuit:
    """The circuit over other rows: for each of them its old row, -1 where there was none."""

    def take(over: str, values: np.ndarray) -> np.ndarray:
        filler = np.array([_ABSENT[values.dtype.kind]], dtype=values.dtype)
        return np.concatenate([values, filler])[rows if over == "nodes" else edge_rows]

    return replace(
        circuit,
        nodes=nodes,
        edges=edges,
        scores={name: Score(one.header, take(one.over, one.values)) for name, one in circuit.scores.items()},
        attributes={name: replace(one, values=take(one.over, one.values)) for name, one in circuit.attributes.items()},
        kept_nodes=take("nodes", circuit.kept_nodes),
        kept_edges=take("edges", circuit.kept_edges),
        tensors=_without_rows(circuit),
        featurizers=featurizers,
    )


def _without_rows(circuit: Circuit) -> dict[str, NamedTensor]:
    """The tensors that do not run over nodes or edges."""
    return {name: one for name, one in circuit.tensors.items() if not {"node", "edge"} & set(one.axes)}


def _combined(first: Circuit, second: Circuit, nodes: np.ndarray, edges: np.ndarray, operation: str) -> Circuit:
    """The first circuit with this membership and the second's columns beside its own."""
    columns = first.columns
    for name, column in second.columns.items():
        if name in columns and _equal(columns[name], column):
            continue
        number, new = 2, name
        while new in columns:
            new, number = f"{name} ({number})", number + 1
        columns[new] = column
    return replace(
        first,
        kept_nodes=nodes,
        kept_edges=edges,
        scores={name: one for name, one in columns.items() if isinstance(one, Score)},
        attributes={name: one for name, one in columns.items() if isinstance(one, Attribute)},
        featurizers=joint_featurizers(first, second),
        provenance=first.provenance.after(operation, other=asdict(second.provenance)),
    )


def _equal(one: Score | Attribute, other: Score | Attribute) -> bool:
    """Whether two columns mean and hold the same."""
    facts = [column.header if isinstance(column, Score) else (column.over, column.meaning) for column in (one, other)]
    if facts[0] != facts[1] or one.values.dtype != other.values.dtype:
        return False
    return bool(np.array_equal(one.values, other.values, equal_nan=one.values.dtype.kind == "f"))
