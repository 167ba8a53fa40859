"""Estimates beside exact effects, and the bound on what a verified list has missed."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from tiny import LIN, hooked, task

import interp
from interp.candidate_nodes import candidates
from interp.errors import CircuitError, OptionError
from interp.graph import component_graph
from interp.joint_effects import joint_effects
from interp.methods.attribution import attribute
from interp.methods.edges import attribute_edges
from interp.methods.patching import patch
from interp.run_edges import run_edge_circuits
from interp.verification import bound_missed, verify
from interp.welch import student_t, welch

NAME = "logit_diff.noising"
PLAIN = interp.Engine("plain", progress=False)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


@pytest.mark.parametrize("way", ["noising", "denoising"])
def test_the_highest_get_their_exact_effect_and_the_others_none(way):
    model, given, name = hooked("llama"), task(), f"logit_diff.{way}"
    cheap = attribute(model, given, ["z", "mlp_out"], positions="each", direction=way)
    found = verify(model, given, cheap, 7, by=name, rank="absolute")
    exact = patch(model, given, cheap.nodes, direction=way)
    order = np.argsort(-abs(cheap.scores[name].values))
    chosen = np.sort(order[~np.isnan(cheap.scores[name].values[order])][:7])
    stored = found.scores[f"{name}.exact"]
    assert np.flatnonzero(~np.isnan(stored.values)).tolist() == chosen.tolist()
    assert np.allclose(stored.values[chosen], exact.scores[name].values[chosen], atol=1e-5, equal_nan=True)
    per_prompt = found.tensors[f"{name}.exact"].array[chosen]
    assert np.allclose(per_prompt, exact.tensors[name].array[chosen], atol=1e-5, equal_nan=True)
    for end in ("low", "high"):
        bound = found.attributes[f"{name}.exact.{end}"].values
        assert np.allclose(bound[chosen], exact.attributes[f"{name}.{end}"].values[chosen], atol=1e-5, equal_nan=True)
    assert (stored.header.quantity, stored.header.signed, stored.header.direction) == ("effect", True, way)
    assert found.scores[name] is cheap.scores[name] and found.kept_nodes.all()
    assert found.provenance.operations[-1] == {"operation": "verify", "by": name, "rank": "absolute", "k": 7, "seed": 0}


@pytest.mark.parametrize("way", ["noising", "denoising"])
def test_the_strongest_edges_get_their_exact_effect(way):
    model, given, name = hooked("llama"), task(), f"logit_diff.{way}"
    cheap = attribute_edges(model, given, direction=way)
    found = verify(model, given, cheap, 9, by=name, rank="absolute").scores[f"{name}.exact"]
    rows = np.flatnonzero(~np.isnan(found.values))
    order = np.argsort(-abs(np.nan_to_num(cheap.scores[name].values)), kind="stable")
    assert rows.tolist() == sorted(order[:9].tolist()) and found.over == "edges"
    graph = component_graph(model)
    kept = np.ones((2, len(graph.edges)), dtype=bool)
    kept[0, rows[4]] = False
    if way == "denoising":
        given = replace(given, clean=given.corrupted, corrupted=given.clean)
    one, base = run_edge_circuits(model, given, graph, kept).values[0].mean(1)
    assert found.values[rows[4]] == pytest.approx(float(one - base) * (1 if way == "denoising" else -1), abs=1e-4)


def test_what_cannot_be_verified_is_named():
    model, given = hooked("gpt2"), task()
    cheap = attribute(model, given)
    with pytest.raises(CircuitError, match="'nothing' is no score with a direction.*logit_diff.denoising"):
        verify(model, given, cheap, 3, by="nothing", rank="signed")
    with pytest.raises(CircuitError, match="'logit_diff.noising' scores edges"):
        bound_missed(model, given, attribute_edges(model, given), 3, by=NAME, rank="absolute")
    with pytest.raises(CircuitError, match="leaves no node"):
        bound_missed(model, given, cheap, len(cheap.nodes), by=NAME, rank="absolute")
    with pytest.raises(OptionError, match="share=1.5.*between 0 and 1"):
        bound_missed(model, given, cheap, 1, by=NAME, rank="absolute", share=1.5)
    with pytest.raises(OptionError, match="rounds=3.*raise rounds"):
        bound_missed(model, given, cheap, 1, by=NAME, rank="absolute", rounds=3)


@pytest.mark.parametrize(
    ("level", "freedom", "table"),
    [(0.9, 10, 1.3722), (0.95, 10, 1.8125), (0.95, 30, 1.6973), (0.99, 8, 2.8965), (0.99, 120, 2.3578), (0.5, 9, 0.0)],
)
def test_students_quantiles_are_those_of_the_tables(level, freedom, table):
    assert student_t(level, np.array([float(freedom)]))[0] == pytest.approx(table, abs=3e-3)


def test_welch_is_the_difference_of_means_with_its_error():
    effects, members = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.array([[1, 1, 1, 0, 0]]).T.astype(bool)
    difference, error, freedom = welch(effects, members)
    variances = np.var([1, 2, 4], ddof=1) / 3, np.var([8, 16], ddof=1) / 2
    assert difference[0] == pytest.approx(7 / 3 - 12)
    assert error[0] == pytest.approx(sum(variances) ** 0.5)
    assert freedom[0] == pytest.approx(sum(variances) ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 1))


def additive() -> tuple[np.ndarray, interp.Circuit]:
    """Exact effects of the neurons of one layer of a linear network, which add up in any subset."""
    model, given = LIN(), task()
    nodes = candidates(model, given, "neuron", positions="each", layers=[0], block=5)
    exact = patch(model, given, nodes, direction="noising", engine=PLAIN)
    return -np.nan_to_num(exact.tensors[NAME].array).astype(float), exact


def test_subsets_are_patched_together():
    per_prompt, exact = additive()
    rows = np.arange(len(exact.nodes))
    members = np.random.default_rng(0).random((12, len(rows))) < 0.3
    members[3] = False
    found = joint_effects(
        LIN(), task(), exact.nodes, members, metric=interp.metric("logit_diff"), direction="noising", engine=PLAIN
    )
    present = ~np.isnan(exact.tensors[NAME].array)
    touched = members.astype(float) @ present > 0
    expected = np.where(touched, members @ per_prompt, np.nan)
    expected[3] = 0.0
    assert np.allclose(found, expected, atol=1e-4, equal_nan=True)


def test_the_bound_covers_the_largest_effect_as_often_as_it_says():
    effects = additive()[0].mean(1)
    levels, trials, covered = (0.5, 0.9, 0.95), 400, {0.5: 0, 0.9: 0, 0.95: 0}
    for seed in range(trials):
        members = np.random.default_rng(seed).random((80, len(effects))) < 0.2
        difference, error, freedom = welch(members @ effects, members)
        for level in levels:
            theta = np.max(np.abs(difference) + student_t(level, freedom) * error)
            covered[level] += theta >= abs(effects).max()
    for level in levels:
        assert covered[level] / trials >= level - 2 * (level * (1 - level) / trials) ** 0.5, covered


def test_the_bound_of_a_sweep_lies_above_the_nodes_that_were_left_out():
    per_prompt, exact = additive()
    found = bound_missed(LIN(), task(), exact, 3, by=NAME, rank="absolute", rounds=150, share=0.2, engine=PLAIN)
    order = np.argsort(-abs(exact.scores[NAME].values), kind="stable")
    assert sorted(found.rows) == sorted(set(range(len(per_prompt))) - set(order[:3].tolist()))
    assert found.bounds[0.99] > found.bounds[0.9] > found.bounds[0.5]
    assert found.bounds[0.99] > abs(per_prompt.mean(1)[found.rows]).max()
    assert "other nodes: below" in str(found)
