"""Readings of circuits, formulas and their places: counts against listing, products against trying all."""

import itertools

import numpy as np
import pytest

from interp.boolean.circuits import enumerate_circuits
from interp.boolean.formulas import Formula, boolean_formulas, skeletons
from interp.boolean.groundings import groundings
from interp.boolean.known import known_mlp
from interp.boolean.mappings import find_mappings, unit_sets
from interp.boolean.network import GATES, SmallMlp, gate_answers, run_circuits, truth_table
from interp.boolean.training import MlpTraining, train_boolean
from interp.errors import OptionError, TaskError

INPUTS = truth_table(2)


@pytest.fixture(scope="module")
def networks() -> list[SmallMlp]:
    """Trained on XOR, noisily: these have mappings."""
    training = MlpTraining(noise=0.1, rate=1e-2, samples=2000)
    return [one.network for one in train_boolean("xor", seeds=range(12), training=training) if one.converged]


def listed(network: SmallMlp, code: int, *, exclusive: bool) -> int:
    """Readings by trying every table and every gate of every unit."""
    masks = [mask[0] for mask in network.wiring.masks(np.array([code]))]
    values = [layer[0] for layer in run_circuits(network, np.array([code]), INPUTS)]
    tables = []
    for n, (mask, said) in enumerate(zip(masks, values, strict=True)):
        on = np.flatnonzero(mask.any(0))
        if n == len(masks) - 1:
            choices = [[(said[:, u].round() > 0).tolist()] for u in on]
        else:
            levels = [np.unique(said[:, u]) for u in on]
            choices = [
                [(said[:, u] > (a + b) / 2).tolist() for a, b in zip(level, level[1:], strict=False)]
                for u, level in zip(on, levels, strict=True)
            ]
        tables.append([dict(zip(on.tolist(), chosen, strict=True)) for chosen in itertools.product(*choices)])
    count = 0
    for reading in itertools.product(*tables):
        ways = 1
        for layer in range(1, len(reading)):
            for unit, table in reading[layer].items():
                parents = [p for p in reading[layer - 1] if masks[layer][p, unit]]
                fits = 0
                for function in itertools.product((False, True), repeat=1 << len(parents)):
                    if not exclusive and len(parents) == 2 and function in (
                        (False, True, True, False), (True, False, False, True)
                    ):  # fmt: skip
                        continue
                    rows = [sum(reading[layer - 1][p][n] << m for m, p in enumerate(parents)) for n in range(4)]
                    fits += all(function[row] == says for row, says in zip(rows, table, strict=True))
                ways *= fits
        count += ways
    return count


def test_readings_are_counted_as_by_listing(networks) -> None:
    counts = []
    for network in networks[:4]:
        found = enumerate_circuits(network, INPUTS, gate_answers("xor"))
        for code in found.codes[:: max(len(found) // 8, 1)].tolist():
            for exclusive in (False, True):
                some = groundings(network, code, INPUTS, exclusive=exclusive)
                counts.append(some.count())
                assert some.count() == listed(network, code, exclusive=exclusive)
                if some.count() < 3000:
                    readings = list(some.iterate())
                    assert len(readings) == len(set(readings)) == some.count()
                    assert set(some.sample(50, seed=1)) <= set(readings)
    assert max(counts) > 500 and min(counts) < 20


def test_a_reading_is_consistent(networks) -> None:
    network = networks[0]
    code = int(enumerate_circuits(network, INPUTS, gate_answers("xor")).minimal()[0])
    some = groundings(network, code, INPUTS)
    masks = [mask[0] for mask in network.wiring.masks(np.array([code]))]
    drawn = some.sample(20)
    for reading in drawn:
        tables, gates = dict(reading.tables), dict(reading.gates)
        assert tables[len(network.sizes) - 1, 0] == 0b0110
        for (layer, unit), says in gates.items():
            parents = [tables[layer - 1, p] for p in np.flatnonzero(masks[layer - 1][:, unit]).tolist()]
            for n in range(4):
                combination = sum((parent >> n & 1) << p for p, parent in enumerate(parents))
                assert says >> combination & 1 == tables[layer, unit] >> n & 1
    assert some.sample(3, seed=4) == some.sample(3, seed=4) and len(list(some.iterate(limit=2))) == 2


def test_conventions_of_readings() -> None:
    known = known_mlp("xor")
    code = int(enumerate_circuits(known.network, INPUTS, gate_answers("xor")).minimal()[0])
    numbers = {
        (completion, exclusive, polarity): groundings(
            known.network, code, INPUTS, completion=completion, exclusive=exclusive, polarity=polarity
        ).count()
        for completion in ("all", "once") for exclusive in (False, True) for polarity in ("above", "both")
    }  # fmt: skip
    assert numbers["once", True, "above"] <= numbers["all", True, "above"]
    assert numbers["all", False, "above"] < numbers["all", True, "above"] < numbers["all", True, "both"]
    with pytest.raises(TaskError, match="leads nowhere"):
        groundings(known.network, 1, INPUTS)


def test_a_unit_that_never_changes_has_no_reading() -> None:
    network = SmallMlp((np.zeros((2, 1)), np.ones((1, 1))), (np.ones(1), np.zeros(1)))
    some = groundings(network, 0b111, INPUTS)
    assert some.count() == 0 and some.sample(3) == [] and list(some.iterate()) == []


@pytest.mark.parametrize(("mode", "trees", "xor", "others"), [("paper", 88, 56, 86), ("all", 184, 132, 182)])
def test_formulas_are_as_many_as_known(mode, trees, xor, others) -> None:
    assert len(skeletons(3, mode)) == trees
    assert len(boolean_formulas("xor", mode=mode)) == xor and len(boolean_formulas("xor", 2, mode=mode)) == 2
    for name in ("and", "or", "imp", "nand"):
        assert len(boolean_formulas(name, mode=mode)) == others


def test_formulas_compute_their_gate_and_differ() -> None:
    letters = {"A": INPUTS[:, 0] > 0.5, "B": INPUTS[:, 1] > 0.5}
    for name in GATES:
        found = boolean_formulas(name)
        assert len(set(found)) == len(found)
        for formula in found:
            assert formula.value(letters).tolist() == gate_answers(name).astype(bool).tolist()
    first = boolean_formulas("xor", mode="paper")[0]
    assert str(first) == "(¬(A ∧ B) ∧ (A ∨ B))" and first.variables() == ((0,), (1,))
    with pytest.raises(OptionError, match="0 to 3"):
        skeletons(4)


def test_given_values_replace_those_below() -> None:
    formula = Formula("and", (Formula("or", (Formula("A"), Formula("B"))), Formula("A", negated=True)))
    letters = {"A": np.array([True, False]), "B": np.array([False, True])}
    assert formula.variables() == ((0,), (1,))
    assert formula.value(letters).tolist() == [False, True]
    assert formula.value(letters, {(1,): np.array([True, True])}).tolist() == [True, True]
    assert formula.value(letters, {(0,): np.array([False, False])}).tolist() == [False, False]


def overwritten(network: SmallMlp, units: list[tuple[int, int, int]], base: int) -> bool:
    """What the network says on a base input with units (layer, unit, source) overwritten: one run, by hand."""
    own = network.layers(INPUTS)
    value = INPUTS[base]
    for layer in range(1, len(network.sizes) - 1):
        value = network.act(value @ network.weights[layer - 1] + network.biases[layer - 1])
        for at, unit, source in units:
            if at == layer:
                value[unit] = own[layer][source, unit]
    return bool((value @ network.weights[-1] + network.biases[-1])[0] > 0.5)


def by_trying(network: SmallMlp, formula: Formula, pairs: str, joint: bool, layers: str) -> set[tuple[int, ...]]:
    """The smallest mappings, by testing every tuple of sets of units and dropping those that contain another."""
    letters = {"A": INPUTS[:, 0] > 0.5, "B": INPUTS[:, 1] > 0.5}
    names = [(layer, unit) for layer, size in enumerate(network.sizes[1:-1], 1) for unit in range(size)]
    paths = formula.variables()
    right = []
    for mapping in itertools.product(unit_sets(network.sizes, layers).tolist(), repeat=len(paths)):
        if any(a & b for a, b in itertools.combinations(mapping, 2)):
            continue
        tests = []
        for base, *sources in itertools.product(range(4), repeat=len(paths) + 1):
            if joint:
                tests.append((base, sources))
        for base, source, n in itertools.product(range(4), range(4), range(len(paths))):
            if source < base if pairs == "paper" else source != base:
                tests.append((base, [source if m == n else None for m in range(len(paths))]))
        if all(_right(network, formula, paths, letters, names, mapping, *test) for test in tests):
            right.append(mapping)
    return {
        one for one in right
        if not any(o != one and all(a & b == a for a, b in zip(o, one, strict=True)) for o in right)
    }  # fmt: skip


def _right(network, formula, paths, letters, names, mapping, base, sources) -> bool:
    given, units = {}, []
    for path, mask, source in zip(paths, mapping, sources, strict=True):
        if source is None:
            continue
        node = formula
        for step in path:
            node = node.children[step]
        given[path] = node.value(letters)[[source]]
        units += [(*name, source) for n, name in enumerate(names) if mask >> n & 1]
    wanted = formula.value({name: letter[[base]] for name, letter in letters.items()}, given)
    return overwritten(network, units, base) == bool(wanted[0])


@pytest.mark.parametrize(("pairs", "joint"), [("all", False), ("paper", False), ("all", True)])
@pytest.mark.parametrize("layers", ["single", "distributed"])
def test_mappings_are_those_of_trying_all(networks, pairs, joint, layers) -> None:
    formulas, found_any = boolean_formulas("xor", 2), 0
    for network in networks[:3]:
        for formula, found in zip(
            formulas, find_mappings(network, formulas, pairs=pairs, joint=joint, layers=layers), strict=True
        ):
            assert len(set(found.found)) == len(found)
            assert set(found.found) == by_trying(network, formula, pairs, joint, layers)
            found_any += len(found)
    assert found_any > 0


def test_fewer_pairs_let_more_pass(networks) -> None:
    formulas = boolean_formulas("xor", mode="paper")
    fewer = 0
    for network in networks:
        for strict, loose in zip(
            find_mappings(network, formulas, joint=False), find_mappings(network, formulas, pairs="paper", joint=False),
            strict=True,
        ):  # fmt: skip
            for some, more in zip(strict.right, loose.right, strict=True):
                assert set(some) <= set(more)
                fewer += len(some) < len(more)
    assert fewer > 0


def test_the_known_network_holds_the_known_formula() -> None:
    network = known_mlp("xor").network
    formula = boolean_formulas("xor", 2)[0]  # ¬(A ∧ B) ∧ (A ∨ B); h1.1 is A ∧ B, but nothing there is A ∨ B alone
    (found,) = find_mappings(network, [formula], joint=False)
    assert 0b10 in found.right[0]
    assert found.units((0b10, 0b1000), network.sizes) == [[(1, 1)], [(2, 0)]]
    with pytest.raises(TaskError, match="joint=False"):
        find_mappings(network, boolean_formulas("xor"), most=0)
    with pytest.raises(TaskError, match="two inputs"):
        find_mappings(SmallMlp((np.ones((3, 2)), np.ones((2, 1))), (np.ones(2), np.ones(1))), [formula])
