"""The component graph: how many edges there are, and which there are not."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny import hooked, unchecked

from interp.edges import structural
from interp.graph import component_graph


@pytest.mark.parametrize(
    ("layers", "heads", "kv_heads", "serial", "count"),
    [(12, 12, 12, True, 32_491), (30, 9, 3, True, 70_651), (30, 9, 9, True, 123_211), (32, 32, 8, True, 805_681),
     (2, 3, 3, True, 75), (2, 3, 3, False, 69)],
)  # fmt: skip
def test_the_number_of_edges_is_that_of_the_formula(layers, heads, kv_heads, serial, count):
    shape = SimpleNamespace(n_layers=layers, n_heads=heads, n_kv_heads=kv_heads)
    model = SimpleNamespace(shape=shape, unavailable={} if serial else {"resid_mid": "parallel"})
    with unchecked():
        graph = component_graph(model)
    assert graph.n_scored == count
    plumbing = structural(graph.nodes, graph.edges)
    assert not plumbing[:count].any() and plumbing[count:].all() and plumbing.sum() == 3 * layers * heads


@pytest.mark.parametrize(("layers", "serial", "count"), [(30, True, 1891), (12, True, 325), (2, False, 13)])
def test_sublayers_have_one_edge_from_each_to_each_later_one(layers, serial, count):
    shape = SimpleNamespace(n_layers=layers, n_heads=3, n_kv_heads=1)
    model = SimpleNamespace(shape=shape, unavailable={} if serial else {"resid_mid": "parallel"})
    with unchecked():
        graph = component_graph(model, "sublayer")
    assert graph.n_scored == count == len(graph.edges)
    assert len(graph.nodes) == 2 + 2 * layers and not structural(graph.nodes, graph.edges).any()


@pytest.mark.parametrize(("family", "reaches"), [("llama", True), ("gpt_neox_serial", True), ("gpt_neox", False)])
def test_heads_reach_the_mlp_of_their_own_layer_in_serial_blocks_only(family, reaches):
    graph = component_graph(hooked(family))
    z, mlp = graph.nodes.index("z[1] head 2"), graph.nodes.index("mlp_out[1]")
    assert bool(((graph.edges.source == z) & (graph.edges.destination == mlp)).any()) == reaches


def test_every_scored_edge_leads_from_a_writer_to_a_later_reader_and_none_is_missing():
    graph = component_graph(hooked("llama"))
    place = {row: number for number, row in enumerate(graph.writers)}
    sources, destinations = graph.edges.source[: graph.n_scored], graph.edges.destination[: graph.n_scored]
    for row in graph.readers:
        mine = sources[destinations == row]
        layer = graph.nodes.layer[row]
        before = [w for w in graph.writers if layer < 0 or graph.nodes.layer[w] < layer]
        if graph.nodes[row].kind == "mlp_out":
            before += graph.nodes.where(kind="z", layer=int(layer)).tolist()
        assert sorted(mine.tolist()) == sorted(before)
        assert np.all(np.diff([place[s] for s in mine]) > 0)


def test_a_query_head_reads_through_its_own_key_and_value_head():
    graph = component_graph(hooked("llama"))  # 8 query heads, 2 key/value heads
    for head, group in ((3, 0), (4, 1)):
        into = graph.edges.source[graph.edges.destination == graph.nodes.index(f"z[0] head {head}")]
        assert {str(graph.nodes[row]) for row in into} == {
            f"q[0] head {head}",
            f"k[0] head {group}",
            f"v[0] head {group}",
        }
