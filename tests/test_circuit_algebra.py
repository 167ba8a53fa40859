"""Two circuits in one, and one made coarser."""

from dataclasses import replace

import numpy as np
import pytest
from circuits import EFFECT, scored, unchecked, wired
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.circuit import Attribute, Circuit, NamedTensor, Score, ScoreHeader
from interp.circuit_algebra import align, coarsen, difference, intersection, union
from interp.circuit_ops import prune, top_n
from interp.errors import CircuitError, OptionError
from interp.nodes import Node, Nodes
from interp.provenance import Provenance

DROP = ScoreHeader("nodes", "attribution", signed=False)
HEADS = ["z[0] head 0", "z[0] head 1", "z[1] head 0"]


# Union, intersection, difference


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8), st.randoms())
def test_membership_follows_set_algebra_whatever_the_row_order(marks, random):
    names = [f"z[0] head {head}" for head in range(len(marks))]
    order = list(range(len(marks)))
    random.shuffle(order)
    first = Circuit(Nodes.of(names), kept_nodes=np.array([one for one, _ in marks]))
    second = Circuit(Nodes.of([names[i] for i in order]), kept_nodes=np.array([marks[i][1] for i in order]))
    assert union(first, second).kept_nodes.tolist() == [one or two for one, two in marks]
    assert intersection(first, second).kept_nodes.tolist() == [one and two for one, two in marks]
    assert difference(first, second).kept_nodes.tolist() == [one and not two for one, two in marks]


def test_edges_combine_whatever_the_order_of_nodes_and_edges():
    first = wired({"input > mlp_out[0]": 1, "mlp_out[0] > logits": 2, "input > logits": 3}, kept="110")
    second = wired({"input > logits": 30, "mlp_out[0] > logits": 20, "input > mlp_out[0]": 10}, ["logits"], "110")
    assert union(first, second).kept_edges.tolist() == [True, True, True]
    assert intersection(first, second).kept_edges.tolist() == [False, True, False]
    gone = difference(first, second)
    assert gone.kept_edges.tolist() == [True, False, False]
    assert gone.kept_nodes.tolist() == [True, True, False]
    assert union(first, second).scores["s (2)"].values.tolist() == [10, 20, 30]


def test_the_second_circuits_columns_stand_beside_the_firsts():
    first = scored(HEADS, [1, 2, 3])
    second = replace(
        scored(HEADS[::-1], [3, 2, 9]), attributes={"class": Attribute("nodes", np.array(["c", "b", "a"]))}
    )
    both = union(first, second)
    assert both.scores["s"].values.tolist() == [1, 2, 3]
    assert both.scores["s (2)"].values.tolist() == [9, 2, 3]
    assert both.attributes["class"].values.tolist() == ["a", "b", "c"]
    assert set(union(both, second).scores) == {"s", "s (2)", "s (3)"}


def test_equal_columns_are_not_repeated():
    whole = scored(HEADS, [1, np.nan, 3])
    assert set(union(top_n(whole, 1, "s", rank="signed"), scored(HEADS[::-1], [3, np.nan, 1])).scores) == {"s"}


def test_provenance_names_the_operation_and_the_other_circuit():
    first, second = (replace(scored(HEADS, [1, 2, 3]), provenance=Provenance(method=name)) for name in ("eap", "atp"))
    both = intersection(first, second)
    assert both.provenance.method == "eap"
    assert both.provenance.operations[0]["operation"] == "intersection"
    assert both.provenance.operations[0]["other"]["method"] == "atp"


def test_different_universes_are_refused_with_what_differs():
    first, second = scored(HEADS, [1, 2, 3]), scored([*HEADS[1:], "z[1] head 1", "z[2] head 0"], [1, 2, 3, 4])
    with pytest.raises(CircuitError) as raised:
        union(first, second)
    message = str(raised.value)
    assert "1 nodes only in the first (z[0] head 0)" in message
    assert "2 nodes only in the second (z[1] head 1, z[2] head 0)" in message
    assert "align(first, second, 'union') or 'intersection'" in message
    third = wired({"input > logits": 1})
    with pytest.raises(CircuitError, match="1 edges only in the first"):
        intersection(third, Circuit(third.nodes))


def test_different_granularities_are_refused_naming_coarsen():
    fine = scored(["z[0] head 0 pos 0", "z[0] head 0 pos 1"], [1, 2])
    with pytest.raises(
        CircuitError, match=r"z by layer, head in the first, by layer, head, pos in the second.*coarsen\("
    ):
        union(scored(HEADS, [1, 2, 3]), fine)
    with pytest.raises(CircuitError, match=r"no kind in common: z; attn_out. Map the finer one with coarsen\("):
        difference(scored(HEADS, [1, 2, 3]), scored(["attn_out[0]"], [1]))
    with pytest.raises(CircuitError, match="neuron by layer, unit in the first, by layer, unit, width in the second"):
        align(scored(["neuron[0] unit 1"], [1]), Circuit(Nodes.of([Node("neuron", 0, unit=0, width=4)])))


def test_one_featurizer_key_has_one_meaning():
    nodes = Nodes.of([Node("resid_post", 0, featurizer="sae", unit=1)])
    with pytest.raises(CircuitError, match=r"featurizers \['sae'\] mean different things"):
        union(Circuit(nodes, featurizers={"sae": {"k": 1}}), Circuit(Nodes.of(nodes), featurizers={"sae": {"k": 2}}))


# Alignment


def test_aligning_to_the_union_marks_missing_rows_as_not_run_and_not_kept():
    first = replace(scored(HEADS[:2], [1, 2]), attributes={"a": Attribute("nodes", np.array(["x", "y"]))})
    second = replace(scored(HEADS[1:], [3, 4]), attributes={"b": Attribute("nodes", np.array([7, 8]))})
    one, other = align(first, second, "union")
    assert one.nodes is other.nodes
    assert one.nodes.labels.tolist() == HEADS
    assert one.kept_nodes.tolist() == [True, True, False]
    assert one.scores["s"].values.tolist()[:2] == [1, 2]
    assert np.isnan(one.scores["s"].values[2])
    assert other.attributes["b"].values.tolist() == [-1, 7, 8]
    assert one.attributes["a"].values.tolist() == ["x", "y", ""]
    both = union(one, other)
    assert both.kept_nodes.all()
    assert set(both.scores) == {"s", "s (2)"}
    assert one.provenance.operations[-1] == {"operation": "align", "universe": "union", "nodes": 3, "edges": 0}


def test_aligning_to_the_intersection_keeps_common_rows_and_edges():
    first = wired({"input > mlp_out[0]": 1, "mlp_out[0] > logits": 2, "input > logits": 3})
    second = wired({"input > logits": 30, "input > mlp_out[1]": 10, "mlp_out[1] > logits": 20})
    one, other = align(first, second, "intersection")
    assert one.nodes.labels.tolist() == ["input", "logits"]
    assert (one.scores["s"].values.tolist(), other.scores["s"].values.tolist()) == ([3], [30])
    one, other = align(first, second, "union")
    assert len(one.edges) == 5
    assert one.kept_edges.tolist() == [True, True, True, False, False]
    assert other.kept_edges.tolist() == [False, False, True, True, True]
    assert other.scores["s"].values.tolist()[2:] == [30, 10, 20]


def test_tensors_over_rows_stay_behind_when_rows_change():
    first = replace(
        scored(HEADS, [1, 2, 3]),
        tensors={"per_prompt": NamedTensor(np.zeros((2, 3)), ("prompt", "node")), "curve": NamedTensor([1.0], ("n",))},
    )
    one, _ = align(first, scored(HEADS[:1], [1]), "intersection")
    assert set(one.tensors) == {"curve"}


# Coarsening


def test_signed_scores_add_and_membership_is_any():
    fine = scored(["z[0] head 1 pos 0", "z[0] head 0 pos 0", "z[0] head 1 pos 2"], [1.5, 4.0, -0.25], "100")
    coarse = coarsen(fine, ("layer", "head"))
    assert coarse.nodes.labels.tolist() == ["z[0] head 1", "z[0] head 0"]
    assert coarse.scores["s"].values.tolist() == [1.25, 4.0]
    assert coarse.kept_nodes.tolist() == [True, False]
    assert coarse.provenance.operations[-1]["operation"] == "coarsen"


def test_a_part_that_was_not_run_leaves_the_whole_unknown():
    fine = scored(["z[0] head 0 pos 0", "z[0] head 0 pos 1", "z[0] head 1 pos 0"], [1.0, np.nan, 2.0])
    values = coarsen(fine).scores["s"].values
    assert np.isnan(values[0])
    assert values[1] == 2.0


def test_magnitudes_do_not_add_unasked():
    fine = Circuit(
        Nodes.of(["z[0] head 0 pos 0", "z[0] head 0 pos 1"]), scores={"drop": Score(DROP, np.array([1.0, 3.0]))}
    )
    with pytest.raises(CircuitError, match=r"scores \['drop'\] are unsigned and do not add; say magnitudes='sum' or"):
        coarsen(fine)
    assert coarsen(fine, magnitudes="max").scores["drop"].values.tolist() == [3.0]
    assert coarsen(fine, magnitudes="sum").scores["drop"].values.tolist() == [4.0]


def test_edges_merge_with_their_nodes_and_inner_ones_vanish():
    edges = {
        "input > z[0] head 0 pos 0": 1,
        "input > z[0] head 0 pos 1": 2,
        "z[0] head 0 pos 0 > z[0] head 0 pos 1": 100,
        "z[0] head 0 pos 1 > logits": 4,
        "z[0] head 0 pos 0 > logits": 8,
    }
    fine = wired(edges, kept="01000")
    coarse = coarsen(fine)
    assert coarse.nodes.labels.tolist() == ["input", "z[0] head 0", "logits"]
    assert coarse.scores["s"].values.tolist() == [3, 12]
    assert coarse.kept_edges.tolist() == [True, False]


def test_readers_merge_into_their_heads():
    edges = {
        "input > q[0] head 0": 1,
        "input > k[0] head 0": 2,
        "q[0] head 0 > z[0] head 0": np.nan,
        "k[0] head 0 > z[0] head 0": np.nan,
        "z[0] head 0 > logits": 4,
    }
    fine = wired(edges)
    coarse = coarsen(fine, kinds={"q": "z", "k": "z", "v": "z"})
    assert coarse.nodes.labels.tolist() == ["input", "z[0] head 0", "logits"]
    assert coarse.scores["s"].values.tolist() == [3, 4]
    assert prune(coarse).kept_nodes.all()


def test_shared_key_heads_do_not_become_one_of_their_query_heads():
    grouped = wired({"k[0] head 0 > z[0] head 0": np.nan, "k[0] head 0 > z[0] head 1": np.nan})
    with pytest.raises(CircuitError, match="would merge a key/value head into one of the query heads that share it"):
        coarsen(grouped, kinds={"k": "z"})
    assert coarsen(grouped, ("layer",), kinds={"k": "z"}).nodes.labels.tolist() == ["z[0]"]
    assert coarsen(grouped).nodes.labels.tolist() == grouped.nodes.labels.tolist()


def test_neurons_and_blocks_merge_into_their_mlp():
    neurons = Nodes.of([Node("neuron", 0, unit=0, width=4), Node("neuron", 0, unit=4, width=4), Node("mlp_out", 1)])
    coarse = coarsen(
        Circuit(neurons, scores={"s": Score(EFFECT, np.array([1, 2, 4]))}), ("layer",), kinds={"neuron": "mlp_out"}
    )
    assert coarse.nodes.labels.tolist() == ["mlp_out[0]", "mlp_out[1]"]
    assert coarse.scores["s"].values.tolist() == [3, 4]


def test_meaningless_mergers_are_refused():
    features = Circuit(
        Nodes.of([Node("resid_post", 0, pos=p, featurizer="sae", unit=1) for p in (0, 1)]), featurizers={"sae": {}}
    )
    with pytest.raises(CircuitError, match="keeps units and drops their featurizer; keep both"):
        coarsen(features, ("layer", "unit"))
    assert len(coarsen(features, ("layer", "featurizer", "unit")).nodes) == 1
    with pytest.raises(CircuitError, match=r"no properties or kinds \['heads'\]; allowed in to: \['layer', 'head'"):
        coarsen(features, ("heads",))
    with pytest.raises(CircuitError, match="are of a kind without heads; drop the head"):
        coarsen(scored(HEADS, [1, 2, 3]), ("layer", "head"), kinds={"z": "attn_out"})


@unchecked()
def test_options_outside_their_values_are_named():
    circuit = scored(HEADS, [1, 2, 3])
    with pytest.raises(OptionError, match="universe is 'outer'; allowed: 'union', 'intersection'"):
        align(circuit, circuit, "outer")
    with pytest.raises(OptionError, match="magnitudes is 'mean'; allowed: 'sum', 'max'"):
        coarsen(circuit, magnitudes="mean")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000))
def test_coarsening_keeps_the_sum_of_signed_scores(seed):
    rng = np.random.default_rng(seed)
    rows = np.unique(rng.integers(0, 4, (12, 3)), axis=0)
    nodes = Nodes.from_columns("z", layer=rows[:, 0], head=rows[:, 1], pos=rows[:, 2])
    circuit = Circuit(nodes, scores={"s": Score(EFFECT, rng.integers(-9, 9, len(rows)))})
    for to in ((), ("layer", "head"), ("layer", "pos"), ("layer", "head", "pos")):
        assert coarsen(circuit, to).scores["s"].values.sum() == circuit.scores["s"].values.sum()
