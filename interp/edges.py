"""Edges of a circuit, in columns, and which of them are mere plumbing."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from interp.columns import repeats, row_keys, some, whole_numbers
from interp.errors import CircuitError
from interp.nodes import NODE_KINDS, Nodes

STRUCTURAL = (  # (reader, component) of one layer: the edge between them carries no score and completes paths
    *((reader, "z") for reader in ("q", "k", "v", "k_of_query_head", "v_of_query_head")),
    ("mlp_in", "mlp_out"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Edges:
    """Edges as two columns of node rows, kept as int32; all edges differ.

    Args:
        source: row of the node whose output is read.
        destination: row of the node that reads it.

    Raises:
        CircuitError: columns of unequal length, negative rows, equal edges.
    """

    source: Int[np.ndarray, " edge"]
    destination: Int[np.ndarray, " edge"]

    def __post_init__(self) -> None:
        for name in ("source", "destination"):
            object.__setattr__(self, name, whole_numbers(f"edge column {name!r}", getattr(self, name), np.int32))
        if len(self.source) != len(self.destination):
            counts = f"{len(self.source)} sources, {len(self.destination)} destinations"
            raise CircuitError(f"edges have {counts}; give one of each an edge.")
        negative = np.flatnonzero((self.source < 0) | (self.destination < 0))
        repeated = np.flatnonzero(repeats(row_keys([self.source, self.destination])))
        faults = [f"edges {some(negative)} have negative node rows"] if len(negative) else []
        faults += [f"edges {some(repeated)} are given more than once; keep one of each"] if len(repeated) else []
        if faults:
            raise CircuitError("; ".join(faults) + ".")

    def __len__(self) -> int:
        return len(self.source)


NO_EDGES = Edges(np.zeros(0, np.int32), np.zeros(0, np.int32))


def structural(nodes: Nodes, edges: Edges) -> Bool[np.ndarray, " edge"]:
    """Which edges join a reader to its own component (q, k, v to z; mlp_in to mlp_out): they carry no score."""
    pairs = np.zeros((len(NODE_KINDS), len(NODE_KINDS)), dtype=bool)
    for reader, writer in STRUCTURAL:
        pairs[NODE_KINDS.index(reader), NODE_KINDS.index(writer)] = True
    source, destination = edges.source, edges.destination
    return pairs[nodes.kind[source], nodes.kind[destination]] & (nodes.layer[source] == nodes.layer[destination])


def ends(edges: Edges, masked: Bool[np.ndarray, " edge"], n_nodes: int) -> Bool[np.ndarray, " node"]:
    """Which nodes stand at an end of a masked edge."""
    touched = np.zeros(n_nodes, dtype=bool)
    touched[edges.source[masked]] = True
    touched[edges.destination[masked]] = True
    return touched
