"""Comparing circuits: levels, chance over what both could choose, parts, invariances, figures."""

from dataclasses import replace

import numpy as np
import pytest
import tiny

from interp.circuit import Circuit, Score, ScoreHeader
from interp.circuit_ops import grow, top_n
from interp.comparison import compare
from interp.edges import Edges
from interp.errors import CircuitError, OptionError
from interp.methods.edges import attribute_edges
from interp.methods.patching import patch
from interp.nodes import Nodes
from interp.overlaps import chance
from interp.sweep import Engine
from interp.view import agreement, membership

NODES = Nodes.from_columns("z", layer=0, head=range(8))


def of_heads(*kept: int, nodes: Nodes = NODES, values: object = None) -> Circuit:
    scores = {}
    if values is not None:
        scores["effect"] = Score(ScoreHeader("nodes", "effect", signed=True), np.array(values, float))
    return Circuit(nodes, kept_nodes=np.isin(np.arange(len(nodes)), kept), scores=scores)


def test_known_overlaps_and_chance() -> None:
    found = compare({"a": of_heads(0, 1, 2), "b": of_heads(1, 2, 3), "c": of_heads(1)})
    row = found.pairs.rows()[0]
    assert (row["first"], row["second"], row["shared"], row["jaccard"]) == ("a", "b", 2, 0.5)
    null = chance(2, 3, 3, 8)
    assert (row["chance_p"], row["chance_jaccard"]) == (pytest.approx(null.p), pytest.approx(null.jaccard))
    parts = {r["member"]: (r["part"], r["frequency"]) for r in found.parts.rows()}
    assert parts["z[0] head 1"] == ("core", 1) and parts["z[0] head 2"] == ("contested", pytest.approx(2 / 3))
    assert "z[0] head 4" not in parts
    assert (found.summary["in_all"][0], found.summary["in_any"][0]) == (1, 4)
    assert "core: z[0] head 1" in str(found)


def test_identical_circuits_are_one() -> None:
    found = compare([of_heads(0, 1), of_heads(0, 1), of_heads(0, 1)])
    assert found.summary["mean_jaccard"][0] == 1 and found.summary["distinct"][0] == 1
    assert found.summary["effective_number"][0] == pytest.approx(1) and not len(found.substitutable)


def test_the_order_of_circuits_and_of_rows_does_not_matter() -> None:
    circuits = {"a": of_heads(0, 1, 2), "b": of_heads(1, 2, 3), "c": of_heads(1, 5)}
    there = compare(circuits)
    rows = np.array([5, 3, 1, 0, 2, 4, 7, 6])
    back = {
        label: Circuit(one.nodes.take(rows), kept_nodes=one.kept_nodes[rows])
        for label, one in reversed(circuits.items())
    }
    again = compare(back)
    for one, other in ((there.matrix("nodes"), again.matrix("nodes")[::-1, ::-1]),):
        np.testing.assert_array_equal(one, other)
    assert {tuple(r.values()) for r in there.parts.rows()} == {tuple(r.values()) for r in again.parts.rows()}


def test_chance_is_over_what_both_could_choose() -> None:
    fewer = of_heads(0, nodes=NODES.take([1, 2]))
    row = compare([of_heads(0, 1), fewer]).pairs.rows()[0]
    assert row["candidates"] == 2 and row["chance_p"] == pytest.approx(0.5), "1 of 2, against 1 of 2"
    assert row["jaccard"] == 0.5


def test_substitutable_parts_groups_and_ranks() -> None:
    one, other = of_heads(0, 1, values=range(8)), of_heads(0, 2, values=range(0, -8, -1))
    found = compare([one, other], groups={"first": ["z[0] head 0"], "others": ["z[0] head 1", "z[0] head 2"]})
    nodes = found.substitutable.where(found.substitutable["level"] == "nodes").rows()
    assert nodes == [{"level": "nodes", "one": "z[0] head 1", "other": "z[0] head 2"}]
    assert found.matrix("groups").tolist() == [[1, 1], [1, 1]], "the same groups, by different heads"
    assert found.pairs["rank_agreement"][0] == pytest.approx(1), "of magnitudes"
    with pytest.raises(CircuitError, match=r"z\[0\] head 9 \(first\)"):
        compare([one, other], groups={"first": ["z[0] head 9"]})
    with pytest.raises(CircuitError, match="no score 'efect' of '1'; nearest: 'effect'"):
        compare([one, other], by="efect")


def test_factors_split_the_variance() -> None:
    circuits = [of_heads(0), of_heads(0), of_heads(1), of_heads(1)]
    found = compare(circuits, factors={"method": ["a", "a", "b", "b"], "seed": ["0", "1", "0", "1"]}).factors
    rows = {r["factor"]: r for r in found.rows()}
    assert rows["method"]["variance"] == pytest.approx(1) and rows["seed"]["variance"] == pytest.approx(0, abs=1e-9)
    assert (rows["method"]["within"], rows["method"]["across"]) == (1, 0)
    with pytest.raises(OptionError, match="factors"):
        compare(circuits, factors={"method": ["a"]})


def test_edges_that_lead_nowhere_make_no_difference() -> None:
    nodes = Nodes.of(["input", "mlp_out[0]", "mlp_out[1]", "logits"])
    edges = Edges(np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3]))
    whole = Circuit(nodes, edges, kept_nodes=np.array([1, 1, 0, 1], bool), kept_edges=np.array([1, 0, 1, 0], bool))
    loose = replace(whole, kept_nodes=np.ones(4, bool), kept_edges=np.array([1, 1, 1, 0], bool))
    found = compare([whole, loose])
    assert found.matrix("edges")[0, 1] == 1 and found.matrix("nodes")[0, 1] == 1
    assert "input" not in found.levels["nodes"].names and "logits" not in found.levels["nodes"].names


def test_circuits_of_methods_on_a_model() -> None:
    model, task = tiny.hooked("gpt2"), tiny.task()
    heads = patch(model, task, "z", engine=Engine(progress=False), direction="noising")
    edges = attribute_edges(model, task)
    by = next(iter(edges.scores))
    first, second = top_n(heads, 4, "logit_diff.noising", rank="absolute"), grow(edges, 20, by, rank="absolute")
    found = compare({"heads": first, "edges": second}, to=("layer", "head"), kinds={"q": "z", "k": "z", "v": "z"})
    assert list(found.levels) == ["nodes"], "edges are compared where all circuits have some"
    assert found.pairs["candidates"][0] == 12
    many = patch(model, task, "z", positions="each", engine=Engine(progress=False), direction="noising")
    many = top_n(many, 4, "logit_diff.noising", rank="absolute")
    with pytest.raises(CircuitError, match="coarsen"):
        compare([first, many])
    assert compare([first, many], to=("layer", "head")).pairs["candidates"][0] == 12


def test_one_circuit_is_not_compared() -> None:
    with pytest.raises(CircuitError, match="1 circuit to compare; give two or more"):
        compare([of_heads(0)])


def test_figures_show_pairs_and_members() -> None:
    found = compare({"a": of_heads(0, 1), "b": of_heads(0, nodes=NODES.take([1, 2]))})
    assert np.array(agreement(found).data[0].z).tolist() == [[1, 0.5], [0.5, 1]]
    shown = np.array(membership(found).data[0].z, float)
    assert shown.shape == (2, 2) and np.isnan(shown).sum() == 1, "head 0 was no candidate of b"
