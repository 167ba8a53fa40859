"""The lattice: values by brute force, its identities, redundant and joint groups, and what it refuses."""

from itertools import permutations

import numpy as np
import planted as p
import pytest
import tiny
import torch

from interp.candidate_nodes import candidates
from interp.circuit import Circuit
from interp.errors import CircuitError, OptionError
from interp.featurizers.linear import coordinates
from interp.group_lattice import lattice
from interp.methods.features import attribute_features
from interp.run_circuit import run_circuits
from interp.sweep import Engine

QUIET = Engine(progress=False)
G2, TASK = tiny.hooked("gpt2"), tiny.task()
GROUPS = {
    "early": ["z[0] head 0", "z[0] head 1"],
    "mlp": ["mlp_out[1]"],
    "late": ["z[2] head 3"],
    "more": ["z[1] head 2"],
}


@pytest.mark.parametrize("ablation", ["counterfactual", "zero", "mean"])
def test_every_subset_is_the_circuit_that_keeps_it(ablation: str) -> None:
    found = lattice(G2, TASK, GROUPS, ablation=ablation, engine=QUIET)
    nodes = candidates(G2, TASK, ["z", "mlp_out"])
    listed = [text for members in GROUPS.values() for text in members]
    universe = Circuit(nodes.take([nodes.index(text) for text in listed]))
    owner = [n for n, members in enumerate(GROUPS.values()) for _ in members]
    masks = found.subsets[:, owner]
    expected = run_circuits(G2, TASK, universe, masks, ablation=ablation).values[0]
    torch.testing.assert_close(found.values, expected, atol=2e-5, rtol=1e-4)
    assert found.subsets[0].sum() == 0 and found.subsets[-1].all() and found.subsets[5].tolist() == [1, 0, 1, 0]


def test_shapley_values_are_means_over_orders_and_sum_to_one() -> None:
    found = lattice(G2, TASK, GROUPS, engine=QUIET)
    v = found.faithfulness
    brute = np.zeros(4)
    for order in permutations(range(4)):
        before = 0
        for group in order:
            brute[group] += (v[before | 1 << group] - v[before]) / 24
            before |= 1 << group
    table = found.shapley()
    np.testing.assert_allclose(table["shapley"], brute, atol=1e-10)
    assert table["shapley"].sum() == pytest.approx(1)
    np.testing.assert_allclose(table["alone"], v[[1, 2, 4, 8]])
    assert ((table["low"] <= table["shapley"] + 1e-9) & (table["shapley"] <= table["high"] + 1e-9)).all()


def test_interactions_of_two_groups_alone_are_the_second_difference() -> None:
    two = {name: GROUPS[name] for name in ("early", "mlp")}
    found = lattice(G2, TASK, two, engine=QUIET)
    v = found.faithfulness
    assert found.interactions()["interaction"][0] == pytest.approx(v[3] - v[1] - v[2] + v[0])
    assert found.shapley()["shapley"][0] == pytest.approx((v[1] - v[0] + v[3] - v[2]) / 2)


def test_a_redundant_pair_is_found_by_name() -> None:
    known, task, _ = p.planted("redundant")
    groups = {"h0": [p.H0], "h3": [p.H3], "mlp": [p.MLP], "junk": [p.JUNK]}
    found = lattice(known.model, task, groups, engine=QUIET)
    assert found.minimal_sets() == [("h0", "mlp"), ("h3", "mlp")]
    assert found.maximal_sets() == [("h0", "h3", "junk"), ("mlp", "junk")]
    assert found.substitutes() == [("h0", "h3")]
    assert found.shapley()["shapley"] == pytest.approx([1 / 6, 1 / 6, 2 / 3, 0], abs=2e-3)
    pair = found.interactions().rows()[0]
    assert ({pair["first"], pair["second"]}, pair["interaction"]) == ({"h0", "h3"}, pytest.approx(-0.5, abs=2e-3))
    assert found.table()["faithfulness"][:3] == pytest.approx([1, 1, 1], abs=2e-3)


def test_of_a_joint_pair_neither_stands_in_for_the_other() -> None:
    known, task, _ = p.planted("conjunction")
    found = lattice(known.model, task, {"h0": [p.H0], "h3": [p.H3], "mlp": [p.MLP]}, engine=QUIET)
    assert found.minimal_sets() == [("h0", "h3", "mlp")] and found.substitutes() == []
    assert found.shapley()["shapley"] == pytest.approx([1 / 3] * 3, abs=2e-3)


def test_the_rest_of_a_circuit_is_ablated_throughout() -> None:
    known, task, nodes = p.planted("conjunction")
    universe = p.keeping(nodes, p.H0)
    free = lattice(known.model, task, {"h0": [p.H0], "mlp": [p.MLP]}, engine=QUIET)
    assert free.faithfulness[3] == pytest.approx(1) and free.minimal_sets() == [("h0", "mlp")]
    with pytest.raises(CircuitError, match="undefined"):
        lattice(known.model, task, {"h0": [p.H0], "mlp": [p.MLP]}, circuit=universe, engine=QUIET).shapley()


def test_features_are_groups_too() -> None:
    one = coordinates(G2, "mlp_out[1]")
    scored = attribute_features(G2, TASK, [one], positions="all", progress=False)
    labels = scored.nodes.labels
    groups = {"first": labels[:16].tolist(), "second": labels[16:].tolist()}
    whole = lattice(G2, TASK, {"mlp": ["mlp_out[1]"], "head": ["z[0] head 0"]}, engine=QUIET)
    parts = lattice(G2, TASK, groups, circuit=scored, featurizers=[one])
    torch.testing.assert_close(parts.values[0], whole.values[2], atol=1e-4, rtol=1e-4)  # the MLP gone, nothing else
    torch.testing.assert_close(parts.values[3], whole.values[3], atol=1e-4, rtol=1e-4)


def test_what_is_no_lattice_is_refused() -> None:
    with pytest.raises(OptionError, match="1 groups mean"):
        lattice(G2, TASK, {"a": ["z[0] head 0"]})
    many = {str(n): [f"z[{n // 4}] head {n % 4}"] for n in range(12)} | {"13": ["mlp_out[0]"]}
    with pytest.raises(OptionError, match=r"13 groups mean 2\^13 runs; give 2 to 12"):
        lattice(G2, TASK, many)
    with pytest.raises(CircuitError, match=r"group 'b' is empty; z\[0\] head 0 is in more than one place"):
        lattice(G2, TASK, {"a": ["z[0] head 0"], "b": [], "c": ["z[0] head 0"]})
    universe = Circuit(candidates(G2, TASK, ["z"]))
    with pytest.raises(CircuitError, match=r"mlp_out\[1\] is not in the circuit"):
        lattice(G2, TASK, GROUPS, circuit=universe)
