"""Choosing members of a circuit: top-n, threshold, growth from the logits, pruning, barring. All pure.

Each returns a circuit over the same universe that shares its arrays, with the operation written into its provenance.
Ranked operations name their column and their rule: `signed` (largest value first) or `absolute` (largest magnitude
first). NaN means "not run" and is never chosen; an infinity is refused.

Nodes and edges follow each other. Chosen edges keep both their nodes. Chosen nodes keep the edges among them, also
those that pass through nodes that are no candidates themselves: inputs, logits, and the readers q, k, v of a head.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int64

from interp.circuit import Attribute, Circuit, Rows
from interp.columns import some
from interp.edges import STRUCTURAL, ends, structural
from interp.errors import CircuitError, check_choice, nearest
from interp.nodes import ERROR, NODE_KINDS, Node

Rank = Literal["signed", "absolute"]
SOURCES = ("input", "embed")
BARRED, REQUIRED = "barred", "required"  # attributes that bar_nodes and require_nodes leave for later selections
_PASSED = (
    *SOURCES,
    "logits",
    *(reader for reader, _ in STRUCTURAL),
)  # kinds an unscored node of which is no candidate


def top_n(circuit: Circuit, n: int, by: str, *, rank: Rank) -> Circuit:
    """Keep the `n` highest rows of the score or attribute `by`; ties go to the earlier row.

    Args:
        n: how many of the rows that `by` runs over (nodes or edges), from 0. Required nodes are kept besides.
        by: a score or attribute.
        rank: `signed` or `absolute`.

    Raises:
        CircuitError: fewer than `n` rows have a number and are not barred; `by` does not exist or cannot be ranked so.

    >>> from interp.circuit import Score, ScoreHeader
    >>> from interp.nodes import Nodes
    >>> score = Score(ScoreHeader("nodes", "effect", signed=True), np.array([3.0, -5.0, 1.0, 2.0]))
    >>> circuit = Circuit(Nodes.from_columns("z", layer=0, head=range(4)), scores={"effect": score})
    >>> [np.flatnonzero(top_n(circuit, 2, "effect", rank=rank).kept_nodes).tolist() for rank in ("signed", "absolute")]
    [[0, 3], [0, 1]]
    """
    over, key = _ranked(circuit, by, rank)
    best = _best_first(key)
    _check_count(n, len(best), f"{over} that {by!r} can rank")
    chosen = np.zeros(len(key), dtype=bool)
    chosen[best[:n]] = True
    return _select(circuit, over, chosen, key, {"operation": "top_n", "n": n, "by": by, "rank": rank})


def threshold(circuit: Circuit, at_least: float, by: str, *, rank: Rank) -> Circuit:
    """Keep every row whose score (or its magnitude, for `absolute`) is `at_least` so large. Raises as `top_n`."""
    over, key = _ranked(circuit, by, rank)
    if np.isnan(at_least):
        raise CircuitError("the threshold is NaN, which nothing reaches; give a number.")
    record = {"operation": "threshold", "at_least": at_least, "by": by, "rank": rank}
    return _select(circuit, over, key >= at_least, key, record)


def grow(circuit: Circuit, n_edges: int, by: str, *, rank: Rank) -> Circuit:
    """Keep `n_edges` edges, greedily from the logits: always the best edge into a node already reached.

    With a node come its readers: reaching z makes the edges into its q, k and v eligible, at no cost.

    Raises:
        CircuitError: as `top_n`; `by` scores nodes; fewer edges can be reached.
    """
    over, key = _ranked(circuit, by, rank)
    if over != "edges":
        raise CircuitError(f"{by!r} scores nodes; growing follows edges: choose an edge score, or use top_n.")
    best = _best_first(key)
    _check_count(n_edges, len(best), f"edges that {by!r} can rank")
    found = _follow_up(circuit, best, n_edges)
    _check_count(n_edges, len(found), "edges that can be reached from the logits")
    chosen = np.zeros(len(key), dtype=bool)
    chosen[found] = True
    return _select(circuit, over, chosen, key, {"operation": "grow", "n_edges": n_edges, "by": by, "rank": rank})


def rankable(circuit: Circuit, by: str, *, rank: Rank, reachable: bool = False) -> int:
    """How many rows `top_n` can choose from, or edges `grow` can reach (`reachable`)."""
    best = _best_first(_ranked(circuit, by, rank)[1])
    return len(_follow_up(circuit, best, len(best))) if reachable else len(best)


def keep_rows(circuit: Circuit, over: Rows, kept: Bool[np.ndarray, " row"], record: Mapping[str, Any]) -> Circuit:
    """Keep exactly these nodes and the edges among them, or these edges, their ends and the structure between.

    Args:
        record: what is written into the provenance.
    """
    if over == "nodes":
        between = kept[circuit.edges.source] & kept[circuit.edges.destination]
        return _kept(circuit, kept, between, dict(record))
    nodes = ends(circuit.edges, kept, len(circuit.nodes))
    return _kept(circuit, nodes, _with_structure(circuit, nodes, kept), dict(record))


def _follow_up(circuit: Circuit, best: Int64[np.ndarray, " ranked"], n_edges: int) -> list[int]:
    """The edges that greedy growth takes, in order: a merge of each reached node's incoming edges, best first."""
    source, destination = circuit.edges.source, circuit.edges.destination
    place = np.argsort(destination[best], kind="stable")  # positions in `best`, grouped by destination, best first
    starts = np.searchsorted(destination[best][place], np.arange(len(circuit.nodes) + 1)).tolist()
    places, edges, sources = place.tolist(), best.tolist(), source[best].tolist()
    readers = _readers(circuit)
    taken: list[int] = []
    heap: list[tuple[int, int, int]] = []  # rank of a node's next edge, its index in `places`, where the node's end
    reached: set[int] = set()
    new = circuit.nodes.where(kind="logits").tolist()
    while True:
        while new:
            node = new.pop()
            reached.add(node)
            new += [reader for reader in readers.get(node, ()) if reader not in reached]
            if starts[node] < starts[node + 1]:
                heapq.heappush(heap, (places[starts[node]], starts[node], starts[node + 1]))
        if not heap or len(taken) == n_edges:
            return taken
        rank, index, end = heap[0]
        taken.append(edges[rank])
        if index + 1 < end:
            heapq.heapreplace(heap, (places[index + 1], index + 1, end))
        else:
            heapq.heappop(heap)
        new = [] if sources[rank] in reached else [sources[rank]]


def _readers(circuit: Circuit) -> dict[int, list[int]]:
    """The reader nodes of each component that has them."""
    free = structural(circuit.nodes, circuit.edges)
    found: dict[int, list[int]] = {}
    for reader, component in zip(
        circuit.edges.source[free].tolist(), circuit.edges.destination[free].tolist(), strict=True
    ):
        found.setdefault(component, []).append(reader)
    return found


def prune(circuit: Circuit, sources: Any = None, targets: Any = None) -> Circuit:
    """Drop what lies on no kept path from an input to an output; a circuit without edges stays as it is.

    Args:
        sources, targets: nodes, texts or rows where paths may begin and end; by default every `input` and `embed`
            node, and every `logits` node.

    Raises:
        CircuitError: the universe has no such nodes, or a required node lies on no path.
    """
    if not len(circuit.edges):
        return circuit
    nodes = circuit.nodes
    begin = _mask(circuit, nodes.where(kind=SOURCES) if sources is None else sources)
    end = _mask(circuit, nodes.where(kind="logits") if targets is None else targets)
    missing = [name for name, mask in (("sources", begin), ("targets", end)) if not mask.any()]
    if missing:
        raise CircuitError(
            f"this universe has no {missing} (input or embed; logits) to prune to; name some of its nodes."
        )
    edges = _with_structure(circuit, circuit.kept_nodes, circuit.kept_edges)
    source, destination = circuit.edges.source[edges], circuit.edges.destination[edges]
    forward = _reachable(begin & circuit.kept_nodes, source, destination)
    on_path = forward & _reachable(end & circuit.kept_nodes, destination, source)
    stranded = np.flatnonzero(_flag(circuit, REQUIRED) & ~on_path)
    if len(stranded):
        raise CircuitError(
            f"required nodes {some(nodes.take(stranded).labels)} lie on no path; keep edges through them."
        )
    kept = edges & on_path[circuit.edges.source] & on_path[circuit.edges.destination]
    return _kept(circuit, on_path, kept, {"operation": "prune"})


def bar_nodes(circuit: Circuit, nodes: Any) -> Circuit:
    """Drop nodes and their edges, and keep every later selection on this circuit from choosing them.

    Args:
        nodes: nodes, their texts or their rows.

    Raises:
        CircuitError: a node that the universe does not have, or that is required.
    """
    mask = _mask(circuit, nodes)
    marked = _marked(circuit, BARRED, mask, REQUIRED)
    kept = circuit.kept_nodes & ~mask
    edges = circuit.kept_edges & kept[circuit.edges.source] & kept[circuit.edges.destination]
    return _kept(marked, kept, edges, {"operation": "bar_nodes", "nodes": circuit.nodes.take(mask).labels})


def bar_errors(circuit: Circuit, *, keep: str | Sequence[str] = ()) -> Circuit:
    """Bar the error terms of featurizers, but those at sites of the kinds to `keep`; see `bar_nodes`."""
    kinds = [keep] if isinstance(keep, str) else list(keep)
    spared = np.isin(circuit.nodes.names("kind"), kinds)
    return bar_nodes(circuit, np.flatnonzero((circuit.nodes.unit == ERROR) & ~spared).tolist())


def require_nodes(circuit: Circuit, nodes: Any) -> Circuit:
    """Keep nodes, in every later selection on this circuit too.

    Args:
        nodes: nodes, their texts or their rows.

    Raises:
        CircuitError: a node that the universe does not have, or that is barred.
    """
    mask = _mask(circuit, nodes)
    marked = _marked(circuit, REQUIRED, mask, BARRED)
    kept = circuit.kept_nodes | mask
    edges = _with_structure(circuit, kept, circuit.kept_edges)
    return _kept(marked, kept, edges, {"operation": "require_nodes", "nodes": circuit.nodes.take(mask).labels})


def _ranked(circuit: Circuit, by: str, rank: Rank) -> tuple[Rows, Float[np.ndarray, " row"]]:
    """What `by` runs over, and its ranking key: higher is better, NaN is no candidate."""
    check_choice("rank", rank, ("signed", "absolute"))
    columns = circuit.columns
    if by not in columns:
        raise CircuitError(f"no score or attribute {by!r}; this circuit has {sorted(columns)}{nearest(by, columns)}.")
    if by in circuit.scores and rank == "signed" and not circuit.scores[by].header.signed:
        raise CircuitError(f"score {by!r} is unsigned, a magnitude; rank it with rank='absolute'.")
    column = columns[by]
    if column.values.dtype.kind not in "biuf":
        raise CircuitError(f"attribute {by!r} holds strings and has no order; rank by a number.")
    key = column.values.astype(np.float64)
    infinite = np.flatnonzero(np.isinf(key))
    if len(infinite):
        raise CircuitError(f"{by!r} is infinite in rows {some(infinite)}; mend the score, or set NaN for 'not run'.")
    key = np.abs(key) if rank == "absolute" else key
    barred = _flag(circuit, BARRED)
    if column.over == "edges":
        barred = barred[circuit.edges.source] | barred[circuit.edges.destination]
    return column.over, np.where(barred, np.nan, key)


def _best_first(key: Float[np.ndarray, " row"]) -> Int64[np.ndarray, " ranked"]:
    """Rows with a number, highest first, ties in row order."""
    candidates = np.flatnonzero(~np.isnan(key))
    return candidates[np.argsort(-key[candidates], kind="stable")]


def _check_count(n: int, available: int, what: str) -> None:
    if not 0 <= n <= available:
        raise CircuitError(f"{n} asked for, and there are {available:,} {what}; ask for 0 to {available}.")


def _select(circuit: Circuit, over: Rows, chosen: np.ndarray, key: np.ndarray, record: dict[str, Any]) -> Circuit:
    """The circuit with the chosen rows kept, what follows from them, and what is required."""
    nodes, edges = circuit.nodes, circuit.edges
    required = _flag(circuit, REQUIRED)
    if over == "nodes":
        passed = np.isin(nodes.kind, [NODE_KINDS.index(kind) for kind in _PASSED]) & np.isnan(key)
        opened = chosen | required | (passed & ~_flag(circuit, BARRED))
        kept_edges = opened[edges.source] & opened[edges.destination]
        kept_nodes = chosen | required | ends(edges, kept_edges, len(nodes))
    else:
        kept_nodes = ends(edges, chosen, len(nodes)) | required
        kept_edges = _with_structure(circuit, kept_nodes, chosen)
    ranked = replace(circuit, provenance=replace(circuit.provenance, ranking=record["rank"]))
    return _kept(ranked, kept_nodes, kept_edges, record)


def _kept(circuit: Circuit, nodes: np.ndarray, edges: np.ndarray, record: dict[str, Any]) -> Circuit:
    """The circuit with this membership and one more operation in its provenance."""
    return replace(circuit, kept_nodes=nodes, kept_edges=edges, provenance=circuit.provenance.after(**record))


def _with_structure(circuit: Circuit, nodes: np.ndarray, edges: np.ndarray) -> Bool[np.ndarray, " edge"]:
    """The masked edges and the structural ones between masked nodes."""
    between = nodes[circuit.edges.source] & nodes[circuit.edges.destination]
    return edges | (between & structural(circuit.nodes, circuit.edges))


def _reachable(start: np.ndarray, source: np.ndarray, destination: np.ndarray) -> Bool[np.ndarray, " node"]:
    """Nodes that a walk along the edges reaches from `start`, these included."""
    reached = start.copy()
    front = start
    while front.any():
        ahead = np.zeros_like(reached)
        ahead[destination[front[source]]] = True
        front = ahead & ~reached
        reached |= front
    return reached


def _mask(circuit: Circuit, nodes: Any) -> Bool[np.ndarray, " node"]:
    """One or several nodes, texts or rows as a mask."""
    given = [nodes] if isinstance(nodes, str | Node | int) else list(nodes)
    rows = [circuit.nodes.index(one) if isinstance(one, str | Node) else int(one) for one in given]
    mask = np.zeros(len(circuit.nodes), dtype=bool)
    outside = [row for row in rows if not 0 <= row < len(mask)]
    if outside:
        raise CircuitError(f"node rows {outside} are not in this circuit; allowed: 0 to {len(mask) - 1}.")
    mask[rows] = True
    return mask


def _marked(circuit: Circuit, name: str, mask: np.ndarray, against: str) -> Circuit:
    """The circuit with these nodes added to those barred or required."""
    both = np.flatnonzero(mask & _flag(circuit, against))
    if len(both):
        raise CircuitError(f"nodes {some(circuit.nodes.take(both).labels)} are {against}; they cannot be {name} too.")
    flag = Attribute("nodes", _flag(circuit, name) | mask, f"{name} in every selection")
    return replace(circuit, attributes={**circuit.attributes, name: flag})


def _flag(circuit: Circuit, name: str) -> Bool[np.ndarray, " node"]:
    """The barred or required nodes."""
    if name in circuit.attributes:
        return circuit.attributes[name].values.astype(bool)
    return np.zeros(len(circuit.nodes), dtype=bool)
