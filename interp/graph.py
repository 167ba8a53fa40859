"""The component graph of a decoder: who writes to the residual stream, who reads it, and every edge between them.

Writers are the embedding (`input`), every head (`z`) and every MLP (`mlp_out`). Readers are every query head (`q`), key
and value head (`k`, `v`: the model's own, however many query heads share them), every MLP (its `mlp_out`) and the
`logits`. An edge leads from a writer to each later reader; in serial blocks the heads of a layer also reach its MLP, in
parallel blocks they do not. Structural edges from a head's readers to its `z` complete the paths.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from interp.circuit import Circuit
from interp.edges import Edges
from interp.errors import CircuitError
from interp.models.base import HookedModel
from interp.nodes import Node, Nodes, rows_in


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and edges, and how the edges are laid out: a reader at a time, layer by layer, from the first writer on.

    Attributes:
        n_layers, n_heads, n_kv_heads: sizes; `serial` whether a layer's heads reach its MLP.
        nodes, edges: the universe of a circuit; the structural edges come last.
        writers: node row of each writer, in forward order.
        readers: node row of each reader, in forward order.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    serial: bool
    nodes: Nodes
    edges: Edges
    writers: Int64[np.ndarray, " writer"]
    readers: Int64[np.ndarray, " reader"]

    @property
    def n_scored(self) -> int:
        """Edges that carry a score: all but the structural ones."""
        return len(self.edges) - 3 * self.n_layers * self.n_heads

    @property
    def readers_a_layer(self) -> int:
        """Attention readers of a layer: its query heads, then its key heads, then its value heads."""
        return self.n_heads + 2 * self.n_kv_heads

    def seen_by_attention(self, layer: int) -> int:
        """How many of the writers, in order, the attention of a layer reads."""
        return writers_before(layer, self.n_heads)

    def seen_by_mlp(self, layer: int) -> int:
        """How many of the writers, in order, the MLP of a layer reads."""
        return writers_before(layer, self.n_heads) + (self.n_heads if self.serial else 0)


def writers_before(layer: int, n_heads: int) -> int:
    """Writers before a layer: the input, and each earlier layer's heads and MLP."""
    return 1 + layer * (n_heads + 1)


def component_graph(model: HookedModel) -> Graph:
    """The graph of a model.

    Edges: (H + 2 K) sum_l (1 + l (H + 1))  +  sum_l (1 + l (H + 1) + [serial] H)  +  1 + L (H + 1), with K key/value
    heads; and 3 H structural ones a layer.
    """
    shape, serial = model.shape, "resid_mid" not in model.unavailable
    heads, kv_heads = range(shape.n_heads), range(shape.n_kv_heads)
    nodes = [Node("input")]
    writers, readers, n_seen = [0], list[int](), list[int]()
    structural: list[tuple[int, int]] = []
    for layer in range(shape.n_layers):
        first = len(nodes)
        nodes += [Node("q", layer, head=h) for h in heads]
        nodes += [Node(kind, layer, head=h) for kind in "kv" for h in kv_heads]
        z = len(nodes)
        nodes += [Node("z", layer, head=h) for h in heads] + [Node("mlp_out", layer)]
        before = writers_before(layer, shape.n_heads)
        readers += range(first, z)
        n_seen += [before] * (z - first)
        readers.append(z + shape.n_heads)
        n_seen.append(before + (shape.n_heads if serial else 0))
        writers += range(z, z + shape.n_heads + 1)
        for h in heads:
            group = h * shape.n_kv_heads // shape.n_heads
            k = first + shape.n_heads + group
            structural += [(first + h, z + h), (k, z + h), (k + shape.n_kv_heads, z + h)]
    readers.append(len(nodes))
    n_seen.append(len(writers))
    nodes.append(Node("logits"))
    all_writers, all_readers = np.array(writers), np.array(readers)
    ends = np.array(structural).reshape(-1, 2)
    source = np.concatenate([*(all_writers[:n] for n in n_seen), ends[:, 0]])
    destination = np.concatenate([np.repeat(all_readers, n_seen), ends[:, 1]])
    return Graph(
        shape.n_layers, shape.n_heads, shape.n_kv_heads, serial, Nodes.of(nodes), Edges(source, destination),
        all_writers, all_readers,
    )  # fmt: skip


def graph_edges(graph: Graph, circuit: Circuit) -> np.ndarray:
    """For each edge of the circuit its row in the model's graph.

    Raises:
        CircuitError: edges that the graph does not have.
    """
    nodes = rows_in(graph.nodes, circuit.nodes)
    size = len(graph.nodes)
    keys = graph.edges.source.astype(np.int64) * size + graph.edges.destination
    order = np.argsort(keys)
    source, destination = (nodes[ends] for ends in (circuit.edges.source, circuit.edges.destination))
    wanted = np.where((source < 0) | (destination < 0), -1, source * size + destination)
    found = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    unknown = np.flatnonzero(keys[found] != wanted)
    if len(unknown):
        row = int(unknown[0])
        ends = circuit.nodes[circuit.edges.source[row]], circuit.nodes[circuit.edges.destination[row]]
        raise CircuitError(
            f"{len(unknown)} edges are not in this model's component graph, such as '{ends[0]}' -> '{ends[1]}'; "
            "edges lead from input, z and mlp_out to q, k, v, mlp_out and logits, with the model's own k and v heads."
        )
    return found
