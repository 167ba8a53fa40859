"""Where in a network a formula's variables may be: interchange interventions that always come out right.

A variable is mapped to a set of hidden units. In a base run those units are overwritten with their values from a source
run; the network must then say what the formula says when the variable has its value from the source. All sets are tried
on all pairs in one pass; each formula reads its answers off that table.

One variable at a time, the smallest mappings are products of each variable's smallest sets, where they share no unit.
All at once (`joint`), a mapping is right or not as a whole, and larger sets may be right where smaller ones are not:
all products of right sets are tried, and those that contain another are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.boolean.formulas import Formula
from interp.boolean.minimal import inclusion_minimal
from interp.boolean.network import SmallMlp, truth_table
from interp.errors import TaskError, check_choice

Pairs = Literal["all", "paper"]
Layers = Literal["single", "distributed"]
MOST_TUPLES = 200_000


@dataclass(frozen=True, eq=False)
class Mappings:
    """The smallest mappings of a formula's variables onto a network, and what was counted.

    Args:
        formula: whose `variables` are mapped, in their order.
        found: of each mapping, a bit mask of hidden units a variable; bits run over the layers, then over units.
        right: per variable, all sets that pass alone.
        pairs, layers, joint: what they had to pass.
    """

    formula: Formula
    found: tuple[tuple[int, ...], ...]
    right: tuple[tuple[int, ...], ...]
    pairs: Pairs
    layers: Layers
    joint: bool

    def __len__(self) -> int:
        return len(self.found)

    def units(self, mapping: Sequence[int], sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """(layer, unit) of a mapping, a list a variable; `sizes` are the network's."""
        names = [(layer, unit) for layer, size in enumerate(sizes[1:-1], 1) for unit in range(size)]
        return [[name for n, name in enumerate(names) if mask >> n & 1] for mask in mapping]


def unit_sets(sizes: Sequence[int], layers: Layers = "single") -> Int[np.ndarray, " set"]:
    """Sets of hidden units that a variable may be mapped to: within one layer, or over neighbouring ones."""
    check_choice("layers", layers, ("single", "distributed"))
    starts = np.cumsum([0, *sizes[1:-1]])
    found = set()
    for code in range(1, 1 << int(starts[-1])):
        used = [n for n in range(len(starts) - 1) if code >> int(starts[n]) & (1 << sizes[n + 1]) - 1]
        if len(used) == 1 or (layers == "distributed" and used[-1] - used[0] == len(used) - 1):
            found.add(code)
    return np.array(sorted(found), dtype=np.int64)


def find_mappings(
    network: SmallMlp,
    formulas: Sequence[Formula],
    *,
    pairs: Pairs = "all",
    layers: Layers = "single",
    joint: bool = True,
    most: int = MOST_TUPLES,
) -> list[Mappings]:
    """The smallest mappings of each formula's variables (2502.20914, "what then where").

    Args:
        network: of two inputs and one output; it says 1 above 1/2.
        formulas: as `boolean_formulas` gives them.
        pairs: "all" ordered pairs of base and source, or the "paper"'s: half of them, the source before the base.
        layers: a variable's units lie in one layer, or in neighbouring ones ("distributed").
        joint: test all variables at once, each from any source; the paper tests one at a time.
        most: mappings of one formula to try jointly.

    Raises:
        TaskError: a network of other inputs, or more mappings than `most`.
    """
    check_choice("pairs", pairs, ("all", "paper"))
    if (network.sizes[0], network.sizes[-1]) != (2, 1):
        raise TaskError(f"the network has sizes {network.sizes}; formulas have two inputs and one output.")
    runs = _Runs(network)
    sets = unit_sets(network.sizes, layers)
    table = runs.singles(sets)
    tested = _tested(pairs, len(runs.inputs))
    found = []
    for formula in formulas:
        right = tuple(sets[_agrees(runs, formula, path, table, tested)] for path in formula.variables())
        minimal = _joint(runs, formula, right, most) if joint else _products(right)
        kept = tuple(tuple(one.tolist()) for one in right)
        found.append(Mappings(formula, tuple(minimal), kept, pairs, layers, joint))
    return found


class _Runs:
    """The network on all inputs, and with units overwritten."""

    def __init__(self, network: SmallMlp) -> None:
        self.network = network
        self.inputs = truth_table(2)
        self.values = network.layers(self.inputs)
        self.letters = {"A": self.inputs[:, 0] > 0.5, "B": self.inputs[:, 1] > 0.5}

    def singles(self, sets: Int[np.ndarray, " set"]) -> Bool[np.ndarray, "set base source"]:
        """What it says with each set of units from each source put into each base."""
        n = len(self.inputs)
        base, source = (np.tile(row.reshape(-1), len(sets)) for row in np.mgrid[:n, :n])
        return self.overwritten(np.repeat(sets, n * n)[None], source[None], base).reshape(len(sets), n, n)

    def overwritten(
        self, sets: Int[np.ndarray, "variable run"], sources: Int[np.ndarray, "variable run"],
        base: Int[np.ndarray, " run"],
    ) -> Bool[np.ndarray, " run"]:  # fmt: skip
        """What it says on base inputs with the units of each set taken from a source of its own."""
        network, bit = self.network, 0
        value = self.inputs[base]
        for layer in range(1, len(network.sizes) - 1):
            value = network.act(value @ network.weights[layer - 1] + network.biases[layer - 1])
            bits = bit + np.arange(network.sizes[layer])
            for units, source in zip(sets, sources, strict=True):
                value = np.where(units[:, None] >> bits & 1, self.values[layer][source], value)
            bit += network.sizes[layer]
        out: Float[np.ndarray, "run 1"] = value @ network.weights[-1] + network.biases[-1]
        return (network.act(out) if network.output_activation else out)[:, 0] > 0.5


def _tested(pairs: Pairs, n: int) -> Bool[np.ndarray, "base source"]:
    base, source = np.mgrid[:n, :n]
    return source < base if pairs == "paper" else source != base


def _agrees(
    runs: _Runs, formula: Formula, path: tuple[int, ...], table: np.ndarray, tested: np.ndarray
) -> Bool[np.ndarray, " set"]:
    """Which sets pass as the place of one variable."""
    n = len(runs.inputs)
    base, source = (row.reshape(-1) for row in np.mgrid[:n, :n])
    wanted = _swapped(runs, formula, [path], base, [source]).reshape(n, n)
    return ((table == wanted) | ~tested).all((1, 2))


def _swapped(
    runs: _Runs, formula: Formula, paths: Sequence[tuple[int, ...]], base: np.ndarray, sources: Sequence[np.ndarray]
) -> Bool[np.ndarray, " run"]:
    """What the formula says on base inputs with variables valued as in their sources."""
    own = {path: _at(formula, path).value(runs.letters) for path in paths}
    given = {path: own[path][source] for path, source in zip(paths, sources, strict=True)}
    return formula.value({name: letter[base] for name, letter in runs.letters.items()}, given)


def _at(formula: Formula, path: tuple[int, ...]) -> Formula:
    for step in path:
        formula = formula.children[step]
    return formula


def _products(right: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    """Products of the smallest sets of each variable, where no two share a unit."""
    return _disjoint([inclusion_minimal(sets) for sets in right])


def _disjoint(choices: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    found: list[tuple[tuple[int, ...], int]] = [((), 0)]
    for sets in choices:
        found = [((*sofar, one), used | one) for sofar, used in found for one in sets.tolist() if not used & one]
    return [mapping for mapping, _ in found]


def _joint(runs: _Runs, formula: Formula, right: Sequence[np.ndarray], most: int) -> list[tuple[int, ...]]:
    if prod(len(sets) for sets in right) > most:
        raise TaskError(
            f"{formula} has {prod(len(sets) for sets in right):,} mappings to try at once, over most={most:,}; "
            "joint=False tests one variable at a time."
        )
    paths, n = formula.variables(), len(runs.inputs)
    base, *sources = (row.reshape(-1) for row in np.mgrid[(slice(n),) * (len(paths) + 1)])
    wanted = _swapped(runs, formula, paths, base, sources)
    passed = []
    for mapping in _disjoint(right):
        sets = np.repeat(np.array(mapping, dtype=np.int64)[:, None], len(base), 1)
        if (runs.overwritten(sets, np.array(sources), base) == wanted).all():
            passed.append(mapping)
    return [one for one in passed if not any(other != one and _within(other, one) for other in passed)]


def _within(one: Sequence[int], other: Sequence[int]) -> bool:
    return all(a & b == a for a, b in zip(one, other, strict=True))
