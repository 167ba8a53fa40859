"""The demonstration, on the embedded model and on SmolLM2."""

import numpy as np
import pytest

import interp
from interp.demo import BOTH, demo, write
from interp.errors import ModelError


@pytest.fixture(scope="module")
def result():
    return demo(interp.load("embedded"), pairs=4)


def test_the_circuit_beats_every_random_one_of_its_size(result) -> None:
    assert result.judged.value > max(result.judged.random)
    assert len(result.judged.random) == 20


def test_search_and_judgement_share_no_prompt(result) -> None:
    assert not set(result.train.clean.texts) & set(result.test.clean.texts)


def test_the_chosen_nodes_are_the_highest_of_both_directions(result) -> None:
    scores = result.circuit.scores[BOTH].values
    kept = result.circuit.kept_nodes
    assert scores[kept].min() >= np.nanmax(scores[~kept])


def test_the_summary_says_what_was_found(result) -> None:
    summary = result.summary()
    for part in ("indirect object", "clean:", "restored", "faithfulness", "Random circuits"):
        assert part in summary


def test_everything_is_written(result, tmp_path) -> None:
    write(result, tmp_path)
    assert {"circuit", "circuit.html", "faithfulness.html", "nodes.csv", "summary.txt"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert np.array_equal(interp.load_circuit(tmp_path / "circuit").kept_nodes, result.circuit.kept_nodes)


@pytest.mark.slow
def test_on_smollm2_one_head_dominates_the_last_position() -> None:
    try:
        model = interp.load("smollm2-135m")
    except ModelError as error:
        pytest.skip(str(error))
    result = demo(model, pairs=4)
    table = result.circuit.frame().sort("logit_diff.denoising", descending=True)
    last = int(result.train.clean.lengths[0]) - 1
    at_end = table.where(table["pos"] == last)
    assert at_end["node"][0] == f"z[23] head 3 pos {last}"
    assert at_end["logit_diff.denoising.normalised"][0] > 2 * at_end["logit_diff.denoising.normalised"][3]
    assert result.judged.value > max(result.judged.random)
