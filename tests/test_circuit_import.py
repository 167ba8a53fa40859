"""EAP-IG's and MIB's JSON graphs become circuits."""

import json

import numpy as np
import pytest
from circuits import kept_names, unchecked

from interp.circuit_files import identical, load_circuit, save_circuit
from interp.circuit_import import read_eap_json
from interp.circuit_ops import prune, top_n
from interp.errors import FileError, OptionError
from interp.nodes import NODE_KINDS, Node


def graph(n_layers: int = 2, n_heads: int = 2, parallel: bool = False) -> dict:
    """A graph as EAP-IG writes it, edge scores 0, 1, 2, ... and nothing in the circuit."""
    nodes, edges = ["input"], []
    for layer in range(n_layers):
        heads = [f"a{layer}.h{head}" for head in range(n_heads)]
        before = list(nodes)
        edges += [f"{source}->{head}<{letter}>" for source in before for head in heads for letter in "qkv"]
        nodes += heads
        edges += [f"{source}->m{layer}" for source in (before if parallel else nodes)]
        nodes.append(f"m{layer}")
    edges += [f"{source}->logits" for source in nodes]
    return {
        "cfg": {"n_layers": n_layers, "n_heads": n_heads, "parallel_attn_mlp": parallel, "d_model": 4},
        "nodes": {name: {"in_graph": False} for name in [*nodes, "logits"]},
        "edges": {name: {"score": float(i), "in_graph": False} for i, name in enumerate(edges)},
    }


def written(tmp_path, data):
    path = tmp_path / "graph.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize(("parallel", "n_edges"), [(False, 75), (True, 69)])
def test_every_edge_arrives_with_the_structure_that_completes_paths(tmp_path, parallel, n_edges):
    """Two layers of three heads have 75 edges in series and 69 in parallel; each head adds three structural ones."""
    circuit = read_eap_json(written(tmp_path, graph(2, 3, parallel)), scores_of="loss")
    assert len(circuit.edges) == n_edges + 18
    score = circuit.scores["edge_score"].values
    assert score[:n_edges].tolist() == list(range(n_edges))
    assert np.isnan(score[n_edges:]).all()
    kinds = [NODE_KINDS[code] for code in sorted(set(circuit.nodes.kind.tolist()))]
    assert sorted(kinds) == ["input", "k", "logits", "mlp_out", "q", "v", "z"]
    everything = top_n(circuit, n_edges, "edge_score", rank="signed")
    assert everything.kept_edges.all()
    assert prune(everything).kept_edges.all()


def test_names_become_the_nodes_they_stand_for(tmp_path):
    data = graph()
    data["edges"]["a0.h1->a1.h0<k>"]["in_graph"] = True
    data["nodes"]["m1"]["in_graph"] = True
    nodes, edges = kept_names(read_eap_json(written(tmp_path, data), scores_of="loss"))
    assert nodes == {"z[0] head 1", "k[1] head 0", "mlp_out[1]"}
    assert edges == {"z[0] head 1 > k[1] head 0"}


def test_a_circuit_of_the_format_is_a_connected_circuit_here(tmp_path):
    data = graph()
    for name in ("input->a0.h0<q>", "a0.h0->m0", "m0->a1.h1<v>", "a1.h1->logits"):
        data["edges"][name]["in_graph"] = True
        for end in name.replace("<q>", "").replace("<v>", "").split("->"):
            data["nodes"][end]["in_graph"] = True
    circuit = read_eap_json(written(tmp_path, data), scores_of="loss")
    pruned = prune(circuit)
    assert kept_names(pruned) == kept_names(circuit)
    assert kept_names(circuit)[1] == {
        "input > q[0] head 0", "q[0] head 0 > z[0] head 0", "z[0] head 0 > mlp_out[0]", "mlp_out[0] > v[1] head 1",
        "v[1] head 1 > z[1] head 1", "z[1] head 1 > logits",
    }  # fmt: skip


def test_scores_of_a_metric_are_negated_and_those_of_a_loss_are_not(tmp_path):
    path = written(tmp_path, graph())
    loss, metric = (read_eap_json(path, scores_of=kind) for kind in ("loss", "metric"))
    assert loss.scores["edge_score"].values[3] == 3
    assert metric.scores["edge_score"].values[3] == -3
    header = loss.scores["edge_score"].header
    assert (header.quantity, header.signed, header.direction, header.base) == ("attribution", True, "noising", "clean")
    assert (metric.provenance.parameters["negated"], loss.provenance.parameters["negated"]) == (True, False)
    assert loss.provenance.parameters["cfg"]["d_model"] == 4


def test_shared_key_heads_stay_each_query_heads_own_view(tmp_path):
    circuit = read_eap_json(written(tmp_path, graph()), scores_of="loss", grouped=True)
    assert circuit.nodes.index(Node("k_of_query_head", 1, head=1)) >= 0
    assert circuit.nodes.where(kind="k").tolist() == []
    assert len(circuit.nodes.where(kind="v_of_query_head")) == 4
    assert circuit.kept_edges.sum() == 0
    assert prune(top_n(circuit, 5, "edge_score", rank="signed")).kept_edges.sum() >= 0


def test_older_and_plainer_files_are_read(tmp_path):
    data = graph()
    data["nodes"] = {name: name == "input" for name in data["nodes"]}
    data["edges"] = {name: {"in_graph": name == "input->logits"} for name in data["edges"]}
    circuit = read_eap_json(written(tmp_path, data), scores_of="loss")
    assert circuit.scores == {}
    assert kept_names(circuit) == ({"input", "logits"}, {"input > logits"})
    data["edges"]["input->m0"]["score"] = None
    data["edges"]["input->m1"]["score"] = 2.0
    score = read_eap_json(written(tmp_path, data), scores_of="loss").scores["edge_score"].values
    assert np.isfinite(score).sum() == 1


def test_node_scores_and_neurons_arrive(tmp_path):
    data = graph()
    for i, (name, entry) in enumerate(data["nodes"].items()):
        if name != "logits":
            entry |= {"score": float("nan") if i == 2 else float(i), "neurons": [i % 2 == 0] * 4}
            entry |= {"neurons_scores": [0.0, float("nan"), 1.0, float(i)]}
    circuit = read_eap_json(written(tmp_path, data), scores_of="metric")
    assert circuit.scores["node_score"].values[:4].tolist()[::3] == [0, -3]
    assert np.isnan(circuit.scores["node_score"].values[2])
    tensor = circuit.tensors["neurons_scores"]
    assert (tensor.axes, tensor.array.shape) == (("node", "coordinate"), (len(circuit.nodes), 4))
    assert tensor.array[3, 3] == -3
    assert np.isnan(tensor.array[circuit.nodes.index("logits")]).all()
    assert circuit.tensors["neurons"].array[:3, 0].tolist() == [True, False, True]
    assert identical(circuit, load_circuit(save_circuit(circuit, tmp_path / "c")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["nodes"].update(x9={"in_graph": True}), "unknown node names x9"),
        (lambda d: d["nodes"].update({"a0.h0<q>": True}), "unknown node names a0.h0<q>"),
        (
            lambda d: d["edges"].update({"m0->a9.h9<q>": {"in_graph": True}}),
            "edges not from a writer to a reader m0->a9.h9<q>",
        ),
        (
            lambda d: d["edges"].update({"m0->a1.h0": {"in_graph": True}, "x": {"in_graph": True}}),
            "edges not from .* m0->a1.h0, x->",
        ),
        (lambda d: d["nodes"].update({"m7": True, "a0.h5": True}), "nodes beyond cfg's sizes m7, a0.h5"),
        (lambda d: d.pop("cfg"), "not an EAP-IG or MIB graph .KeyError: 'cfg'"),
        (lambda d: d.update(edges=[]), "not an EAP-IG or MIB graph"),
        (lambda d: d["edges"]["input->m0"].pop("in_graph"), "KeyError: 'in_graph'"),
        (lambda d: d["edges"]["input->m0"].update(score="high"), "ValueError"),
        (
            lambda d: d["nodes"]["m0"].update(neurons=[True]),
            "neurons for 1 of 8 nodes; give them for all but the logits",
        ),
    ],
)
def test_what_is_not_of_the_format_is_named(tmp_path, change, message):
    data = graph()
    change(data)
    with pytest.raises(FileError, match=message):
        read_eap_json(written(tmp_path, data), scores_of="loss")


@pytest.mark.parametrize("text", ["", "[", "3", "[" * 100_000, "\x00"])
def test_files_that_are_no_json_are_named(tmp_path, text):
    with pytest.raises(FileError, match=r"graph.json is not an EAP-IG or MIB graph .*write it with EAP-IG's to_json"):
        read_eap_json(written(tmp_path, text), scores_of="loss")


@unchecked()
def test_the_sign_must_be_said_and_the_file_must_be_there(tmp_path, monkeypatch):
    with pytest.raises(TypeError, match="scores_of"):
        read_eap_json(tmp_path / "x.json")
    with pytest.raises(OptionError, match="scores_of is 'los'; allowed: 'loss', 'metric'; nearest: 'loss'"):
        read_eap_json(tmp_path / "x.json", scores_of="los")
    with pytest.raises(FileError, match="cannot read a graph at .*x.json.*check the path"):
        read_eap_json(tmp_path / "x.json", scores_of="loss")
    monkeypatch.setattr("interp.circuit_import.MAX_BYTES", 10)
    with pytest.raises(FileError, match="bytes, the limit is 10; split the graph"):
        read_eap_json(written(tmp_path, graph()), scores_of="loss")
