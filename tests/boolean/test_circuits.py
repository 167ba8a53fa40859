"""Circuits of small networks: counts against the formula, lists against running every mask, known answers."""

import itertools

import numpy as np
import pytest
from jaxtyping import Int

from interp.boolean.circuits import Counting, count_candidates, enumerate_circuits, is_right
from interp.boolean.known import known_mlp
from interp.boolean.minimal import canonical, inclusion_minimal, one_minimal
from interp.boolean.network import ACTIVATIONS, GATES, SmallMlp, Wiring, gate_answers, run_circuits, truth_table
from interp.boolean.sampling import draw_circuits, sample_circuits
from interp.errors import ModelError, OptionError, TaskError

PAPER = Counting(full_mask=False)


def random_mlp(sizes: tuple[int, ...], seed: int, activation: str = "leaky_relu", **options: bool) -> SmallMlp:
    rng = np.random.default_rng(seed)
    shapes = list(zip(sizes, sizes[1:], strict=False))
    weights = tuple(rng.normal(size=shape) for shape in shapes)
    return SmallMlp(weights, tuple(rng.normal(size=above) for _, above in shapes), activation, **options)


def all_codes(sizes: tuple[int, ...]) -> Int[np.ndarray, " circuit"]:
    """Circuits found by looking at every set of edges."""
    wiring = Wiring(sizes)
    codes = np.arange(1 << wiring.edges, dtype=np.int64)
    return codes[wiring.is_circuit(codes)]


def units_on(sizes: tuple[int, ...], codes: np.ndarray) -> np.ndarray:
    return sum(mask.any(2).sum(1) for mask in Wiring(sizes).masks(codes)[1:])


@pytest.mark.parametrize(
    ("sizes", "everything", "paper", "without_full"),
    [
        ((2, 2, 1), 9, 8, 8), ((2, 3, 1), 49, 48, 48), ((2, 4, 1), 225, None, 224), ((2, 6, 1), 3969, None, 3968),
        ((2, 2, 2, 1), 69, 20, 20), ((2, 3, 3, 1), 9625, 3000, 3000), ((2, 4, 4, 1), 4_346_385, 168_672, 1_067_648),
        ((2, 5, 5, 1), 7_271_931_361, 1_092_035, None), ((3, 3, 3, 1), 94_591, 24_366, 24_366),
        ((2, 2, 2, 2, 1), 513, None, None), ((2, 3, 3, 3, 1), 2_568_433, None, None), ((3, 2, 2, 1), 231, None, None),
    ],
)  # fmt: skip
def test_candidates_are_as_many_as_known(sizes, everything, paper, without_full) -> None:
    assert count_candidates(sizes) == everything
    if without_full and sizes != (2, 2, 1) and len(sizes) > 3:
        assert count_candidates(sizes, counting=PAPER) == without_full
    if paper and len(sizes) > 3:
        assert count_candidates(sizes, mode="paper") == paper


@pytest.mark.parametrize("sizes", [(2, 2, 1), (2, 4, 1), (2, 2, 2, 1), (2, 3, 3, 1), (2, 2, 2, 2, 1), (3, 2, 2, 1)])
def test_candidates_are_those_among_all_sets_of_edges(sizes) -> None:
    codes = all_codes(sizes)
    assert len(codes) == count_candidates(sizes)
    hidden = sum(sizes[1:-1])
    for off in (None, 0.2, 0.5):
        counting = Counting(full_mask=False, off=off)
        allowed = [counting.allows(int(on), hidden) for on in units_on(sizes, codes)]
        assert sum(allowed) == count_candidates(sizes, counting=counting)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(2, 3, 1), (2, 2, 2, 1), (2, 3, 3, 1), (2, 2, 2, 2, 1), (3, 2, 2, 1)])
def test_the_list_is_that_of_running_every_circuit(sizes, activation) -> None:
    codes, hidden = all_codes(sizes), sum(sizes[1:-1])
    rng = np.random.default_rng(3)
    found_any = 0
    for seed in range(4):
        network = random_mlp(sizes, seed, activation, output_activation=seed == 3)
        inputs = truth_table(sizes[0]) + (0 if seed < 2 else rng.normal(size=(2 ** sizes[0], sizes[0])) * 0.1)
        inputs = np.concatenate([inputs, inputs + rng.normal(size=inputs.shape) * 0.2]) if seed else inputs
        said = run_circuits(network, codes, inputs)[-1][:, :, 0]
        label = (said[seed * 7 % len(said)] > 0.5).astype(float)  # some circuits are right
        for counting in (Counting(), Counting(accuracy="threshold", share=0.75), Counting(full_mask=False, off=0.3),
                         Counting(against="model", accuracy="threshold", share=0.75)):  # fmt: skip
            truth = label if counting.against == "labels" else network.outputs(inputs)[:, 0].round()
            right = is_right(said, truth, counting).mean(1) >= counting.share - 1e-9
            right &= [counting.allows(int(on), hidden) for on in units_on(sizes, codes)]
            found = enumerate_circuits(network, inputs, label, counting=counting)
            assert found.codes.tolist() == codes[right].tolist()
            found_any += len(found)
    assert found_any > 10


def test_pieces_give_the_same_list(monkeypatch) -> None:
    network, inputs, labels = random_mlp((2, 3, 3, 1), 5), truth_table(2), gate_answers("nor")
    counting = Counting(accuracy="threshold", full_mask=False, share=0.5)
    whole = enumerate_circuits(network, inputs, labels, counting=counting)
    monkeypatch.setattr("interp.boolean.circuits.MOST_SUMS", 10)
    pieces = enumerate_circuits(network, inputs, labels, counting=counting)
    assert len(whole) > 0 and pieces.codes.tolist() == whole.codes.tolist()


@pytest.mark.parametrize("sizes", [(2, 3, 3, 1), (3, 4, 2)])
def test_nothing_masked_is_the_network(sizes) -> None:
    for network in random_mlp(sizes, 0).split():
        everything = np.array([(1 << network.wiring.edges) - 1])
        inputs = np.random.default_rng(0).normal(size=(9, sizes[0]))
        np.testing.assert_allclose(run_circuits(network, everything, inputs)[-1][0], network.outputs(inputs))
        masks = network.wiring.masks(everything)
        assert network.wiring.codes(masks).tolist() == everything.tolist()


def test_networks_of_several_outputs_are_split() -> None:
    network, inputs = random_mlp((2, 3, 3, 2), 1), truth_table(2)
    both = network.outputs(inputs)
    for n, one in enumerate(network.split()):
        np.testing.assert_allclose(one.outputs(inputs)[:, 0], both[:, n])
    with pytest.raises(TaskError, match="split"):
        enumerate_circuits(network, inputs, gate_answers("xor"))


@pytest.mark.parametrize(
    ("name", "counting", "circuits", "minimal"),
    [
        ("xor", PAPER, 85, 1), ("xor", Counting(), 352, 1), ("twins", PAPER, 118, 2),
        ("twins", Counting(full_mask=False, accuracy="threshold"), 131, 2), ("and", Counting(), None, 1),
        ("and_twice", Counting(), None, 2),
    ],
)  # fmt: skip
def test_known_networks_have_their_circuits(name, counting, circuits, minimal) -> None:
    known = known_mlp(name)
    found = enumerate_circuits(known.network, truth_table(2), gate_answers(known.gate), counting=counting)
    assert circuits in (None, len(found))
    names = {tuple(sorted(known.network.wiring.names(int(code)))) for code in found.minimal()}
    assert names == {tuple(sorted(circuit)) for circuit in known.minimal} and len(names) == minimal


def test_what_does_nothing_is_no_other_explanation() -> None:
    known = known_mlp("xor")
    found = enumerate_circuits(known.network, truth_table(2), gate_answers("xor"), mode="paper")
    assert found.candidates == 3000 and len(found.canonical()) == 1
    assert found.canonical().tolist() == found.minimal().tolist()
    assert known.network.wiring.names(int(found.canonical()[0])).__len__() == 7
    assert found.table()["number"].tolist()[:3] == [3000, 85, 1] and "full_mask=False" in found.table()["counting"][0]
    assert (found.edge_shares() == 1).sum() == 7


def test_a_canonical_circuit_says_the_same() -> None:
    network = random_mlp((2, 3, 3, 1), 2, "relu")
    weights = [weight.copy() for weight in network.weights]
    weights[0][:, 1], weights[1][0, 2] = 0.0, 0.0
    network = SmallMlp(tuple(weights), network.biases, "relu")
    codes, inputs = all_codes(network.sizes)[::7], truth_table(2)
    reduced = canonical(network, codes, inputs)
    before, after = (run_circuits(network, some, inputs)[-1] for some in (codes, reduced))
    np.testing.assert_allclose(after, before, atol=1e-12)
    assert (reduced != codes).any() and (reduced & ~codes == 0).all()
    assert canonical(network, reduced, inputs).tolist() == reduced.tolist()


def test_minimal_circuits_are_those_by_looking_at_all_pairs() -> None:
    rng = np.random.default_rng(0)
    codes = np.unique(rng.integers(1, 1 << 7, 40))
    inside = [[other for other in codes if other != code and other & code == other] for code in codes]
    assert inclusion_minimal(codes).tolist() == [c for c, others in zip(codes, inside, strict=True) if not others]
    less = [any((code ^ other).bit_count() == 1 for other in map(int, others))
            for code, others in zip(map(int, codes), inside, strict=True)]  # fmt: skip
    assert one_minimal(codes).tolist() == [c for c, has in zip(codes, less, strict=True) if not has]
    larger = np.append(codes, codes[:5] | rng.integers(1, 1 << 7, 5))
    assert inclusion_minimal(larger).tolist() == inclusion_minimal(codes).tolist()
    assert len(inclusion_minimal(codes[:0])) == len(one_minimal(codes[:0])) == 0


def test_circuits_are_drawn_evenly() -> None:
    sizes = (2, 2, 2, 1)
    codes = all_codes(sizes)
    drawn = draw_circuits(sizes, 69 * 400, seed=1)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == codes.tolist()
    assert ((counts - 400) ** 2 / 400).sum() < 120  # chi-square with 68 degrees: 99.99 % below 120
    few = draw_circuits(sizes, 2000, mode="paper")
    assert len(np.unique(few)) == 20 and units_on(sizes, few).max() == 3


def test_the_interval_of_a_sample_holds_the_count() -> None:
    known, inputs, inside = known_mlp("and"), truth_table(2), 0
    labels = gate_answers(known.gate)
    exact = len(enumerate_circuits(known.network, inputs, labels))
    for seed in range(40):
        found = sample_circuits(known.network, inputs, labels, 500, seed=seed)
        low, high = found.interval()
        inside += low <= exact <= high
        assert found.candidates == 9625 and 0 <= low < high <= 9625
        narrow = found.interval(0.5)
        assert low < narrow[0] < found.number < narrow[1] < high
    assert 34 <= inside <= 40  # 38 on average; binomial below 34 in 1.4 %
    again = sample_circuits(known.network, inputs, labels, 500, seed=39)
    assert again.codes.tolist() == found.codes.tolist() and again.number == found.number


def test_gates_and_tables() -> None:
    inputs = truth_table(2)
    assert inputs.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    a, b = inputs.T.astype(bool)
    wanted = {"xor": a ^ b, "and": a & b, "or": a | b, "imp": ~a | b, "nand": ~(a & b), "nor": ~(a | b), "xnor": a == b}
    assert set(wanted) == set(GATES)
    for name, says in wanted.items():
        assert gate_answers(name).tolist() == says.astype(float).tolist()


def test_mistakes_are_named() -> None:
    network, inputs = random_mlp((2, 5, 5, 1), 0), truth_table(2)
    with pytest.raises(TaskError, match="sample_circuits"):
        enumerate_circuits(network, inputs, gate_answers("xor"))
    with pytest.raises(TaskError, match="labels have the values"):
        enumerate_circuits(network, inputs, np.array([0.0, 1, 2, 3]))
    with pytest.raises(TaskError, match="shape"):
        enumerate_circuits(network, inputs[:, :1], gate_answers("xor"))
    with pytest.raises(TaskError, match="at most 62"):
        sample_circuits(random_mlp((2, 7, 7, 1), 0), inputs, gate_answers("xor"))
    with pytest.raises(OptionError, match="share=0"):
        Counting(share=0.0)
    with pytest.raises(OptionError, match="no circuit"):
        draw_circuits((2, 1, 1), 4, counting=Counting(full_mask=False))
    with pytest.raises(ModelError, match="two layers"):
        SmallMlp((np.ones((2, 3)), np.ones((2, 1))), (np.ones(3), np.ones(1)))
    with pytest.raises(OptionError, match="activation"):
        random_mlp((2, 2, 1), 0, "gelu")
    with pytest.raises(TaskError, match="then 1 output"):
        count_candidates((2, 3))


def test_every_pair_of_edges_has_a_name() -> None:
    for sizes in ((2, 3, 3, 1), (3, 2, 1)):
        wiring = Wiring(sizes)
        names = wiring.names((1 << wiring.edges) - 1)
        wanted = [
            (layer, below, unit) for layer in range(1, len(sizes))
            for unit, below in itertools.product(range(sizes[layer]), range(sizes[layer - 1]))
        ]  # fmt: skip
        assert len(set(names)) == len(names) == wiring.edges == len(wanted)
        for bit, (layer, below, unit) in enumerate(wanted):
            mask = wiring.masks(np.array([1 << bit]))[layer - 1][0]
            assert mask[below, unit] and mask.sum() == 1
