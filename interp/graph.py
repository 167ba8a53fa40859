"""The component graph of a decoder: who writes to the residual stream, who reads it, and every edge between them.

Writers are the embedding (`input`), every head (`z`) and every MLP (`mlp_out`). Readers are every query head (`q`), key
and value head (`k`, `v`: the model's own, however many query heads share them), every MLP (its `mlp_out`) and the
`logits`. An edge leads from a writer to each later reader; in serial blocks the heads of a layer also reach its MLP, in
parallel blocks they do not. Structural edges from a head's readers to its `z` complete the paths.

At the coarser granularity, that of sublayers, a layer's attention is one component, which reads and writes as MLPs do.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Int64

from interp.circuit import Circuit
from interp.edges import NO_EDGES, Edges
from interp.errors import CircuitError, check_choice
from interp.models.base import HookedModel
from interp.nodes import Node, Nodes, rows_in

Granularity = Literal["head", "sublayer"]
GRANULARITIES = ("head", "sublayer")


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and edges, and how the edges are laid out: a reader at a time, layer by layer, from the first writer on.

    Attributes:
        n_layers: of the model.
        writers_a_layer, readers_a_layer: components of a layer's attention: its heads, and its query, key and value
            heads in this order; 1 and 1 where attention is one component.
        serial: whether a layer's attention reaches its MLP.
        granularity: ``"head"`` or ``"sublayer"``.
        nodes, edges: the universe of a circuit; the structural edges come last.
        n_scored: edges that carry a score: all but the structural ones.
        writers: node row of each writer, in forward order.
        readers: node row of each reader, in forward order.
    """

    n_layers: int
    writers_a_layer: int
    readers_a_layer: int
    serial: bool
    granularity: Granularity
    nodes: Nodes
    edges: Edges
    n_scored: int
    writers: Int64[np.ndarray, " writer"]
    readers: Int64[np.ndarray, " reader"]

    def seen_by_attention(self, layer: int) -> int:
        """How many of the writers, in order, the attention of a layer reads: the input and all of earlier layers."""
        return 1 + layer * (self.writers_a_layer + 1)

    def seen_by_mlp(self, layer: int) -> int:
        """How many of the writers, in order, the MLP of a layer reads."""
        return self.seen_by_attention(layer) + (self.writers_a_layer if self.serial else 0)

    @property
    def seen(self) -> Int64[np.ndarray, " reader"]:
        """How many of the writers, in order, each reader reads."""
        counts = []
        for layer in range(self.n_layers):
            counts += [self.seen_by_attention(layer)] * self.readers_a_layer + [self.seen_by_mlp(layer)]
        return np.array([*counts, len(self.writers)])

    @property
    def reader_layers(self) -> Int64[np.ndarray, " reader"]:
        """The layer of each reader; for the logits the number of layers."""
        return np.append(np.repeat(np.arange(self.n_layers), self.readers_a_layer + 1), self.n_layers)


def component_graph(model: HookedModel, granularity: Granularity = "head") -> Graph:
    """The graph of a model.

    Edges between heads: (H + 2 K) sum_l (1 + l (H + 1))  +  sum_l (1 + l (H + 1) + [serial] H)  +  1 + L (H + 1), with
    K key/value heads; and 3 H structural ones a layer. Between sublayers: sum_l (1 + 2 l)  +  sum_l (1 + 2 l +
    [serial])  +  1 + 2 L.
    """
    check_choice("granularity", granularity, GRANULARITIES)
    shape, serial = model.shape, "resid_mid" not in model.unavailable
    nodes, writers, readers, structural = [Node("input")], [0], list[int](), list[tuple[int, int]]()
    n_writers, n_readers = (shape.n_heads, shape.n_heads + 2 * shape.n_kv_heads) if granularity == "head" else (1, 1)
    for layer in range(shape.n_layers):
        first, mlp = len(nodes), Node("mlp_out", layer)
        if granularity == "sublayer":
            nodes += [Node("attn_out", layer), mlp]
            readers += [first, first + 1]
            writers += [first, first + 1]
            continue
        nodes += [Node("q", layer, head=h) for h in range(shape.n_heads)]
        nodes += [Node(kind, layer, head=h) for kind in "kv" for h in range(shape.n_kv_heads)]
        z = len(nodes)
        nodes += [*(Node("z", layer, head=h) for h in range(shape.n_heads)), mlp]
        readers += [*range(first, z), z + shape.n_heads]
        writers += range(z, z + shape.n_heads + 1)
        for h in range(shape.n_heads):
            k = first + shape.n_heads + h * shape.n_kv_heads // shape.n_heads
            structural += [(first + h, z + h), (k, z + h), (k + shape.n_kv_heads, z + h)]
    readers.append(len(nodes))
    nodes.append(Node("logits"))
    made = Graph(
        shape.n_layers, n_writers, n_readers, serial, granularity, Nodes.of(nodes), NO_EDGES, 0, np.array(writers),
        np.array(readers),
    )  # fmt: skip
    ends = np.array(structural, dtype=int).reshape(-1, 2)
    source = np.concatenate([*(made.writers[:n] for n in made.seen), ends[:, 0]])
    destination = np.concatenate([np.repeat(made.readers, made.seen), ends[:, 1]])
    return replace(made, edges=Edges(source, destination), n_scored=len(source) - len(ends))


def graph_of(model: HookedModel, circuit: Circuit) -> Graph:
    """The graph of a model at the granularity of a circuit's nodes."""
    return component_graph(model, "sublayer" if len(circuit.nodes.where(kind="attn_out")) else "head")


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
            "edges lead from input, z and mlp_out to q, k, v, mlp_out and logits, with the model's own k and v heads; "
            "or from input, attn_out and mlp_out to attn_out, mlp_out and logits."
        )
    return found
