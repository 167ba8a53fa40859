"""Models with known circuits: they do what they say, and each holds the failure it was built for."""

import warnings

import numpy as np
import pytest

import interp
from interp.errors import OptionError
from interp.known import FAINT, KNOWN, known_circuit
from interp.recall import auroc

QUIET = interp.Engine(progress=False)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


def area(name: str, method: str, direction: str) -> float:
    known = known_circuit(name)
    if method == "patch":
        found = interp.patch(known.model, known.task, known.nodes, direction=direction)
    else:
        found = interp.attribute(known.model, known.task, known.nodes, direction=direction, method=method)
    column = f"logit_diff.{direction}"
    return auroc(found.scores.get(f"{column}.graddrop", found.scores[column]).values, known.truth)


@pytest.mark.parametrize("name", KNOWN)
def test_the_behaviour_is_there_and_only_the_circuit_carries_it(name):
    known = known_circuit(name)
    model, task = known.model, known.task
    values = [task.metric(model.run(ids).logits, task.answers).item() for ids in (task.clean, task.corrupted)]
    assert abs(values[0] - values[1]) > 0.4
    outside = np.flatnonzero(~known.truth)
    exact = interp.patch(model, task, known.nodes)
    for way in ("noising", "denoising"):
        assert abs(exact.scores[f"logit_diff.{way}"].values[outside]).max() < 20 * FAINT
    cut = interp.Circuit(known.nodes, kept_nodes=known.truth)
    assert interp.faithfulness(model, task, cut, random=0).value == pytest.approx(1, abs=0.1)


def test_exact_patching_and_attribution_find_a_plain_chain():
    for method in ("patch", "atp", "atp+qk", "atp+graddrop", "atp*"):
        assert area("chain", method, "noising") == 1.0


def test_a_saturated_query_is_found_with_the_fix_only():
    assert area("saturated", "atp", "noising") < 0.8
    for method in ("patch", "atp+qk", "atp*"):
        assert area("saturated", method, "noising") == 1.0


def test_paths_that_cancel_are_found_by_graddrop_only():
    for method in ("patch", "atp", "atp+qk"):
        assert area("cancelling", method, "noising") < 0.9
    for method in ("atp+graddrop", "atp*"):
        assert area("cancelling", method, "noising") == 1.0


def test_a_redundant_pair_is_found_by_denoising_only():
    for method in ("patch", "atp", "atp*"):
        assert area("redundant", method, "noising") < 0.6 and area("redundant", method, "denoising") == 1.0


def test_a_conjunction_is_found_by_noising_only():
    for method in ("patch", "atp", "atp*"):
        assert area("conjunction", method, "denoising") < 0.6 and area("conjunction", method, "noising") == 1.0


@pytest.mark.parametrize("name", KNOWN)
def test_cutting_any_edge_outside_the_truth_hardly_matters_and_the_truth_alone_carries_the_task(name):
    known = known_circuit(name)
    for way in ("noising", "denoising"):
        exact = interp.patch_edges(known.model, known.task, direction=way, engine=QUIET)
        scores = exact.scores[f"logit_diff.{way}"].values[: known.graph.n_scored]
        assert abs(scores[~known.edge_truth]).max() < 20 * FAINT
    kept = np.append(known.edge_truth, np.ones(len(known.graph.edges) - known.graph.n_scored, dtype=bool))
    alone = interp.Circuit(known.graph.nodes, known.graph.edges, kept_edges=kept)
    assert interp.faithfulness(known.model, known.task, alone, random=0).value == pytest.approx(1, abs=0.1)


def test_integrated_gradients_see_an_edge_of_a_redundant_pair_and_plain_ones_do_not():
    known = known_circuit("redundant")
    areas = {}
    for method in ("eap", "eap-ig-inputs"):
        found = interp.attribute_edges(known.model, known.task, method=method, progress=False)
        areas[method] = auroc(found.scores["logit_diff.noising"].values[: known.graph.n_scored], known.edge_truth)
    assert areas["eap"] < 0.7 and areas["eap-ig-inputs"] == 1.0


@pytest.mark.parametrize("name", ["saturated", "cancelling"])
def test_the_bound_on_what_attribution_missed_holds_as_often_as_it_says(name):
    known, by, seeds = known_circuit(name), "logit_diff.noising", 30
    cheap = interp.attribute(known.model, known.task, known.nodes, direction="noising")
    exact = interp.patch(known.model, known.task, known.nodes, direction="noising", engine=QUIET)
    held = []
    for seed in range(seeds):
        bound = interp.bound_missed(
            known.model, known.task, cheap, 1, by=by, rank="absolute", seed=seed, confidence=[0.9], engine=QUIET
        )
        held.append(bound.bounds[0.9] >= abs(exact.scores[by].values[bound.rows]).max())
    assert np.mean(held) >= 0.9 - 2 * np.sqrt(0.9 * 0.1 / seeds)


def test_an_unknown_circuit_is_named():
    with pytest.raises(OptionError, match="known circuit is 'chian'.*nearest: 'chain'"):
        known_circuit("chian")
