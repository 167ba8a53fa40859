"""Training many small networks at once: each as if alone, and the paper's protocol."""

import numpy as np
import pytest

from interp.boolean.circuits import enumerate_circuits
from interp.boolean.network import gate_answers, truth_table
from interp.boolean.training import MlpTraining, train_boolean, train_mlps
from interp.errors import OptionError, TaskError


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_network_does_not_depend_on_the_others(noise) -> None:
    training = MlpTraining(epochs=12, samples=500, rate=1e-2, noise=noise)
    together = train_boolean("or", seeds=range(5), training=training)
    assert len({one.epochs for one in together}) > 1  # some stop before others
    for seed in (1, 4):
        (alone,) = train_boolean("or", seeds=[seed], training=training)
        assert alone.epochs == together[seed].epochs
        for one, other in zip(alone.network.weights, together[seed].network.weights, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_how_training_ended_is_told_truly() -> None:
    for one in train_boolean(["and", "xor"], seeds=range(6), training=MlpTraining(epochs=40, rate=1e-2, samples=1000)):
        said, labels = one.network.outputs(truth_table(2)), np.stack([gate_answers("and"), gate_answers("xor")], 1)
        assert one.network.sizes == (2, 3, 3, 2)
        assert one.loss == pytest.approx(((said - labels) ** 2).mean(), abs=1e-6)
        assert one.accuracy == pytest.approx((np.abs(said - labels) < 0.5).all(1).mean())
        assert one.converged == (one.accuracy >= 0.99)


def test_rows_can_be_drawn_unevenly() -> None:
    seen = train_mlps(
        np.eye(4), np.eye(4)[:, :1], [2], seeds=[0], training=MlpTraining(epochs=1, shares=(1.0, 0.0, 0.0, 0.0))
    )[0]
    assert seen.accuracy < 1  # the other rows were never seen
    with pytest.raises(TaskError, match="one a row"):
        train_boolean("xor", training=MlpTraining(shares=(1.0,)))
    with pytest.raises(OptionError, match="epochs=0"):
        MlpTraining(epochs=0)


@pytest.mark.slow
def test_the_paper_s_protocol_gives_its_number_of_circuits() -> None:
    trained = [one for one in train_boolean("xor", seeds=range(130)) if one.converged]
    inputs, labels = truth_table(2), gate_answers("xor")
    numbers = [len(enumerate_circuits(one.network, inputs, labels, mode="paper")) for one in trained]
    assert len(trained) >= 100
    assert 45 <= np.mean(numbers) <= 65  # the spec's 53.5, 54.7, 55.0; at 100 networks the mean leaves this in .5 %
