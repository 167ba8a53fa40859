"""The circuit holds a universe in columns, its scores and its members, and cannot contradict itself."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from circuits import mask, unchecked

from interp.circuit import Attribute, Circuit, NamedTensor, Score, ScoreHeader, signed_score
from interp.edges import Edges
from interp.errors import CircuitError, OptionError
from interp.nodes import Node, Nodes

OVER_NODES = ScoreHeader("nodes", "effect", signed=True, direction="noising", base="clean", unit="logits")
OVER_EDGES = replace(OVER_NODES, over="edges", quantity="attribution")


@pytest.fixture
def circuit() -> Circuit:
    """input -> q -> z -> logits and input -> mlp_out -> logits, all but the MLP kept."""
    nodes = Nodes.of(["input", "q[0] head 1", "z[0] head 1", "mlp_out[0]", "logits"])
    edges = Edges(np.array([0, 1, 2, 0, 3]), np.array([1, 2, 4, 3, 4]))
    return Circuit(
        nodes,
        edges,
        {
            "effect": Score(OVER_NODES, np.array([np.nan, np.nan, 2.0, -1.0, np.nan])),
            "eap": Score(OVER_EDGES, np.array([0.1, np.nan, 0.2, 0.3, -0.4])),
        },
        {"class": Attribute("nodes", np.array(["", "", "facilitating", "irrelevant", ""]), "of gates over seeds")},
        kept_nodes=mask("11101"),
        kept_edges=mask("11100"),
        tensors={"per_prompt": NamedTensor(np.zeros((3, 5)), ("prompt", "node"))},
    )


def test_positive_means_the_clean_value_helps_in_both_directions():
    """Taking away a helpful value lowers the metric by 2; putting it back raises it by 2."""
    assert signed_score(-2.0, "noising") == 2.0
    assert signed_score(2.0, "denoising") == 2.0
    assert signed_score(np.array([1.0, -1.0]), "noising").tolist() == [-1.0, 1.0]
    with pytest.raises(OptionError, match="direction is 'noise'; allowed: 'noising', 'denoising'; nearest: 'noising'"):
        signed_score(1.0, "noise")


def test_a_circuit_nobody_has_cut_keeps_its_universe():
    circuit = Circuit(Nodes.of(["input", "logits"]), Edges(np.array([0]), np.array([1])))
    assert circuit.kept_nodes.all()
    assert circuit.kept_edges.all()


def test_columns_are_typed_read_only_and_the_callers_stay_theirs(circuit):
    mine = np.array([1.0, 2.0])
    score = Score(OVER_NODES, mine)
    mine[0] = 9
    assert score.values.tolist() == [1.0, 2.0]
    assert score.values.dtype == np.float32
    for array in (score.values, circuit.kept_nodes, circuit.edges.source, circuit.tensors["per_prompt"].array):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(FrozenInstanceError):
        circuit.nodes = circuit.nodes


def test_the_callers_mappings_stay_theirs(circuit):
    scores = dict(circuit.scores)
    described = {"sae": {"width": 4}}
    made = Circuit(circuit.nodes, circuit.edges, scores, featurizers=described)
    scores.clear()
    described["sae"]["width"] = 5
    assert set(made.scores) == {"effect", "eap"}
    assert made.featurizers == {"sae": {"width": 4}}


def test_tensors_and_attributes_keep_integers_and_strings():
    assert NamedTensor(np.arange(3), ("prompt",)).array.dtype == np.int64
    assert NamedTensor(np.ones((1, 2)), ("a", "b")).array.dtype == np.float32
    assert Attribute("nodes", np.array([True, False])).values.dtype == bool
    words = Attribute("nodes", np.array(["a", "bc"])).values
    assert words.dtype == object
    assert words.tolist() == ["a", "bc"]


def test_an_unread_tensor_is_read_once_when_asked_for():
    calls = []

    class Stored:
        shape, dtype = (2,), np.dtype(np.float32)

        def __call__(self):
            calls.append(1)
            return np.ones(2, np.float32)

    tensor = NamedTensor(Stored(), ("node",))
    made = Circuit(Nodes.of(["input", "logits"]), tensors={"x": tensor})
    assert calls == []
    assert made.tensors["x"].array.tolist() == made.tensors["x"].array.tolist() == [1.0, 1.0]
    assert calls == [1]


def test_the_frame_of_nodes_names_everything(circuit):
    frame = circuit.frame()
    assert frame.columns == (
        "node", "kind", "layer", "head", "role", "pos", "featurizer", "unit", "width", "kept", "effect", "class",
    )  # fmt: skip
    assert frame.rows()[2] == {
        "node": "z[0] head 1", "kind": "z", "layer": 0, "head": 1, "role": "", "pos": -1, "featurizer": "", "unit": -1,
        "width": 1, "kept": True, "effect": 2.0, "class": "facilitating",
    }  # fmt: skip
    assert circuit.frame(kept_only=True)["node"].tolist() == ["input", "q[0] head 1", "z[0] head 1", "logits"]


@unchecked()
def test_the_frame_of_edges_names_both_ends(circuit):
    frame = circuit.frame("edges", kept_only=True)
    assert frame.columns == ("source", "destination", "kept", "eap")
    assert frame["destination"].tolist() == ["q[0] head 1", "z[0] head 1", "logits"]
    with pytest.raises(OptionError, match="over is 'edge'; allowed: 'nodes', 'edges'; nearest: 'edges'"):
        circuit.frame("edge")


def test_printing_tells_nodes_from_edges(circuit):
    assert repr(circuit) == (
        "Circuit(nodes: 4 of 5 kept, edges: 3 of 5 kept, effect: signed effect over nodes, "
        "eap: signed attribution over edges)"
    )
    assert repr(Circuit(circuit.nodes)) == "Circuit(nodes: 5 of 5 kept)"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"over": "node"}, "over is 'node'; allowed: 'nodes', 'edges'"),
        ({"quantity": "score"}, "quantity is 'score'; allowed: 'effect', 'attribution', 'gate', 'selection'"),
        (
            {"direction": "noise", "base": "dirty"},
            "direction is 'noise'.*; base is 'dirty'; allowed: 'clean', 'corrupted', None",
        ),
        ({"direction": "noising", "base": "corrupted"}, "base is 'corrupted' in noising; allowed: 'clean' or None"),
    ],
)
@unchecked()
def test_headers_outside_the_vocabulary_are_refused(header, message):
    with pytest.raises(CircuitError, match=message):
        ScoreHeader(**{"over": "nodes", "quantity": "effect", "signed": True, **header})


@unchecked()
def test_values_that_cannot_be_stored_are_refused():
    with pytest.raises(CircuitError, match=r"values 1e\+300 are beyond float32"):
        Score(OVER_NODES, [1e300, np.inf])
    with pytest.raises(CircuitError, match=r"attribute values \[None\] are no strings"):
        Attribute("nodes", ["a", None])
    with pytest.raises(CircuitError, match="attribute values are complex128; allowed: booleans, integers"):
        Attribute("nodes", [1j])
    with pytest.raises(CircuitError, match=r"a column has shape \(1, 2\); give one value a row"):
        Score(OVER_NODES, [[1, 2]])
    with pytest.raises(CircuitError, match=r"axis name 'a' given 2 times; keep one; 2 axis names .* for shape \(3,\)"):
        NamedTensor(np.zeros(3), ("a", "a"))


def test_infinities_and_nan_are_kept_as_they_are():
    assert Score(OVER_NODES, np.array([np.inf, -np.inf, np.nan])).values.tolist()[:2] == [np.inf, -np.inf]


@unchecked()
def test_all_contradictions_are_named_together(circuit):
    with pytest.raises(CircuitError) as raised:
        replace(
            circuit,
            scores={"node": Score(OVER_NODES, [1.0]), "": Score(OVER_EDGES, np.zeros(5))},
            attributes={},
            kept_nodes=[1, 1],
            tensors={"t": NamedTensor(np.zeros((2, 7)), ("prompt", "edge"))},
        )
    message = str(raised.value)
    assert "kept_nodes has shape (2,) over 5 nodes; give one value a row" in message
    assert "kept_nodes is int64; give booleans" in message
    assert "column 'node' has shape (1,) over 5 nodes" in message
    assert "column name ''; allowed: non-empty printable strings" in message
    assert "column name 'node' is taken by the table; choose another" in message
    assert "tensor 't': axis 'edge' has length 7 over 5 rows" in message


def test_a_score_and_an_attribute_cannot_share_a_name(circuit):
    with pytest.raises(CircuitError, match="column name 'eap' given 2 times; keep one"):
        replace(circuit, attributes={"eap": Attribute("edges", np.zeros(5))})


def test_edges_must_join_nodes_and_kept_edges_kept_nodes(circuit):
    with pytest.raises(CircuitError, match="edges 0 join rows beyond the 2 nodes"):
        Circuit(Nodes.of(["input", "logits"]), Edges(np.array([1]), np.array([2])))
    with pytest.raises(CircuitError, match="edges 3, 4 are kept without both their nodes; keep these too"):
        replace(circuit, kept_edges=np.ones(5, dtype=bool))


def test_every_featurizer_of_a_node_needs_a_description():
    nodes = Nodes.of([Node("resid_post", 0, featurizer="sae", unit=3)])
    with pytest.raises(CircuitError, match=r"featurizers \['sae'\] have no description; add them to featurizers"):
        Circuit(nodes)
    assert Circuit(nodes, featurizers={"sae": {"kind": "topk", "k": np.int64(4)}}).featurizers["sae"]["k"] == 4
    with pytest.raises(CircuitError, match="featurizers.sae is a object"):
        Circuit(nodes, featurizers={"sae": object()})
