"""Edges are pairs of node rows; some of them are structure."""

import numpy as np
import pytest
from circuits import unchecked

from interp.edges import NO_EDGES, Edges, ends, structural
from interp.errors import CircuitError
from interp.nodes import Nodes


def test_edges_are_read_only_pairs_of_rows():
    edges = Edges(np.array([0, 0, 1]), np.array([1, 2, 2]))
    assert len(edges) == 3
    assert edges.source.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        edges.source[0] = 1
    assert len(NO_EDGES) == 0


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ([0, 1], [1], "edges have 2 sources, 1 destinations; give one of each an edge"),
        ([0, 1, 0, 0], [1, 2, 1, 1], "edges 2, 3 are given more than once; keep one of each"),
        ([0, -1], [1, 1], "edges 1 have negative node rows"),
        ([0.5], [1], "edge column 'source' is float64"),
    ],
)
@unchecked()
def test_impossible_edges_are_refused(source, destination, message):
    with pytest.raises(CircuitError, match=message):
        Edges(np.array(source), np.array(destination))


def test_structure_joins_the_readers_of_a_component_to_it():
    nodes = Nodes.of(
        [
            "q[1] head 0",
            "k[1] head 0",
            "v_of_query_head[1] head 1",
            "mlp_in[1]",
            "z[1] head 0",
            "z[2] head 0",
            "mlp_out[1]",
        ]
    )
    source, destination = np.nonzero(np.ones((7, 7), dtype=bool))
    found = structural(nodes, Edges(source, destination))
    pairs = list(zip(source[found].tolist(), destination[found].tolist(), strict=True))
    assert pairs == [(0, 4), (1, 4), (2, 4), (3, 6)]


def test_ends_are_the_nodes_of_the_masked_edges():
    edges = Edges(np.array([0, 2]), np.array([1, 3]))
    assert ends(edges, np.array([False, True]), 5).tolist() == [False, False, True, True, False]
