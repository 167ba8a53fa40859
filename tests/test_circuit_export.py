"""Circuits become networkx graphs and GraphML files with everything on them."""

import math
from dataclasses import replace

import networkx
import numpy as np
import pytest
from circuits import wired

from interp.circuit import Attribute, Circuit
from interp.circuit_export import to_graphml, to_networkx
from interp.errors import MissingExtraError
from interp.provenance import Provenance


@pytest.fixture
def circuit() -> Circuit:
    made = wired({"input > mlp_out[0]": 1.5, "mlp_out[0] > logits": np.nan, "input > logits": -np.inf}, kept="110")
    words = Attribute("nodes", np.array(["plain", '<&">', "bell \x07 and \ufffe"]))
    return replace(made, attributes={"label": words}, provenance=Provenance(method="eap", model="a\x00b"))


def test_a_graph_has_the_circuits_nodes_edges_and_columns(circuit):
    graph = to_networkx(circuit)
    assert graph.is_directed()
    assert list(graph.edges) == [("input", "mlp_out[0]"), ("mlp_out[0]", "logits")]
    assert graph.edges["input", "mlp_out[0]"] == {"kept": True, "s": 1.5}
    assert graph.nodes["mlp_out[0]"]["kind"] == "mlp_out"
    assert graph.nodes["mlp_out[0]"]["layer"] == 0
    assert graph.graph["method"] == "eap"
    assert networkx.shortest_path_length(graph, "input", "logits") == 2


def test_the_whole_universe_can_be_had(circuit):
    graph = to_networkx(circuit, kept_only=False)
    assert len(graph.edges) == 3
    assert graph.edges["input", "logits"]["kept"] is False


def test_graphml_gives_the_graph_back_with_forbidden_characters_replaced(circuit, tmp_path):
    path = tmp_path / "new" / "circuit.graphml"
    to_graphml(circuit, path, kept_only=False)
    graph = networkx.read_graphml(path)
    expected = to_networkx(circuit, kept_only=False)
    assert set(graph.edges) == set(expected.edges)
    assert graph.edges["input", "mlp_out[0]"] == {"kept": True, "s": 1.5}
    assert math.isnan(graph.edges["mlp_out[0]", "logits"]["s"])
    assert graph.edges["input", "logits"]["s"] == -math.inf
    assert [graph.nodes[name]["label"] for name in expected] == ["plain", '<&">', "bell \ufffd and \ufffd"]
    assert graph.graph["model"] == "a\ufffdb"
    assert list(path.parent.iterdir()) == [path]


def test_without_networkx_the_message_names_the_extra(circuit, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'networkx', which is not installed: pip install 'interp\[view\]'"):
        to_graphml(circuit, tmp_path / "x.graphml")
    assert list(tmp_path.iterdir()) == []
