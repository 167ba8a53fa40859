"""Models with known circuits: they do what they say, and each holds the failure it was built for."""

import warnings

import numpy as np
import pytest

import interp
from interp.errors import OptionError
from interp.known import FAINT, KNOWN, known_circuit
from interp.recall import auroc


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


def test_an_unknown_circuit_is_named():
    with pytest.raises(OptionError, match="known circuit is 'chian'.*nearest: 'chain'"):
        known_circuit("chian")
