"""How many ways there are to read a circuit as a logic circuit.

A reading gives every unit that is on a threshold, hence a truth table over the inputs, and a gate: what its parents'
tables say must determine what it says. What no input shows of a gate is filled in in every way. Their number is

    sum over tables of layer 1 ... sum over tables of layer d  prod_units c(table | parents' tables),

with c = 2^(combinations of parents that never occur), less the completions that are XOR or XNOR of two parents, and 0
where the tables do not determine each other. The output's table is what it rounds to.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from interp.boolean.network import SmallMlp, run_circuits
from interp.errors import TaskError, check_choice

Completion = Literal["all", "once"]
Polarity = Literal["above", "both"]
XOR, XNOR = 0b0110, 0b1001


@dataclass(frozen=True)
class Grounding:
    """One reading of a circuit.

    Args:
        tables: of each unit that is on, by (layer, unit): what it says to each input; bit n for input n.
        gates: of each, what it says to each combination of its parents; bit m for the combination m, in which bit p is
            the p-th parent. Units of layer 1 read the inputs themselves and have their table alone.
    """

    tables: tuple[tuple[tuple[int, int], int], ...]
    gates: tuple[tuple[tuple[int, int], int], ...]


@dataclass(frozen=True)
class _Unit:
    name: tuple[int, int]
    parents: tuple[int, ...]  # indices among the units on in the layer below
    tables: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Groundings:
    """Readings of one circuit, counted without listing them.

    Args:
        network, code, inputs: the circuit, and the inputs that tables are over.
        completion: "all" fills in what no input shows in every way; "once" counts tables alone.
        exclusive: whether a gate may be XOR or XNOR of two parents; the paper drops those.
        polarity: "above" reads a unit as 1 above its threshold; "both" also as 1 below it.
    """

    network: SmallMlp
    code: int
    inputs: np.ndarray
    completion: Completion
    exclusive: bool
    polarity: Polarity
    layers: tuple[tuple[_Unit, ...], ...]

    def count(self) -> int:
        """How many; exact."""
        return sum(weight for _, weight in self._paths())

    def iterate(self, limit: int | None = None) -> Iterator[Grounding]:
        """The readings one by one, at most `limit`."""
        return itertools.islice(self._all(), limit)

    def sample(self, n: int, *, seed: int = 0) -> list[Grounding]:
        """`n` readings, each equally likely, with replacement; none if there are none."""
        paths = list(self._paths())
        if not paths:
            return []
        rng = random.Random(seed)
        drawn = rng.choices(paths, [weight for _, weight in paths], k=n)
        return [self._grounding(path, [rng.choice(gates) for _, gates in self._gates(path)]) for path, _ in drawn]

    def _all(self) -> Iterator[Grounding]:
        for path, _ in self._paths():
            for gates in itertools.product(*(choices for _, choices in self._gates(path))):
                yield self._grounding(path, list(gates))

    def _paths(self) -> Iterator[tuple[tuple[tuple[int, ...], ...], int]]:
        """Tables of every layer, and in how many ways their gates can be filled in, where there is one."""
        paths: list[tuple[tuple[tuple[int, ...], ...], int]] = [
            ((tables,), 1) for tables in itertools.product(*(unit.tables for unit in self.layers[0]))
        ]
        for units in self.layers[1:]:
            longer = []
            for path, weight in paths:
                for tables in itertools.product(*(unit.tables for unit in units)):
                    ways = weight
                    for unit, table in zip(units, tables, strict=True):
                        ways = ways and ways * self._ways(table, [path[-1][parent] for parent in unit.parents])
                    if ways:
                        longer.append(((*path, tables), ways))
            paths = longer
        yield from paths

    def _ways(self, table: int, parents: Sequence[int]) -> int:
        seen = _seen(table, parents, len(self.inputs))
        if seen is None:
            return 0
        ways = 1 << (1 << len(parents)) - len(seen) if self.completion == "all" else 1
        if not self.exclusive and len(parents) == 2:
            barred = sum(all(gate >> combination & 1 == says for combination, says in seen.items())
                         for gate in (XOR, XNOR))  # fmt: skip
            ways = ways - barred if self.completion == "all" else int(barred < 1 << 4 - len(seen))
        return ways

    def _gates(self, path: Sequence[Sequence[int]]) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """Every gate that each unit above layer 1 may have, given all tables."""
        for units, below, tables in zip(self.layers[1:], path, path[1:], strict=False):
            for unit, table in zip(units, tables, strict=True):
                seen = _seen(table, [below[parent] for parent in unit.parents], len(self.inputs)) or {}
                shown = sum(says << combination for combination, says in seen.items())
                missing = [m for m in range(1 << len(unit.parents)) if m not in seen]
                gates = [
                    shown | sum(1 << m for m, says in zip(missing, filled, strict=True) if says)
                    for filled in itertools.product((0, 1), repeat=len(missing))
                ]
                if not self.exclusive and len(unit.parents) == 2:
                    gates = [gate for gate in gates if gate not in (XOR, XNOR)]
                yield unit.name, gates if self.completion == "all" else gates[:1]

    def _grounding(self, path: Sequence[Sequence[int]], gates: list[int]) -> Grounding:
        tables = [(unit.name, table) for units, row in zip(self.layers, path, strict=True)
                  for unit, table in zip(units, row, strict=True)]  # fmt: skip
        names = [unit.name for units in self.layers[1:] for unit in units]
        return Grounding(tuple(tables), tuple(zip(names, gates, strict=True)))


def _seen(table: int, parents: Sequence[int], inputs: int) -> dict[int, int] | None:
    """What a table says to each combination of its parents that occurs; None if it says two things to one."""
    seen: dict[int, int] = {}
    for n in range(inputs):
        combination = sum((parent >> n & 1) << p for p, parent in enumerate(parents))
        if seen.setdefault(combination, table >> n & 1) != table >> n & 1:
            return None
    return seen


def groundings(
    network: SmallMlp,
    code: int,
    inputs: Float[np.ndarray, "input size"],
    *,
    completion: Completion = "all",
    exclusive: bool = False,
    polarity: Polarity = "above",
) -> Groundings:
    """Readings of a circuit as a logic circuit (2502.20914, "where then what", second step).

    Args:
        network, code: the network and the circuit.
        inputs: all that tables are over: normally `truth_table`.
        completion, exclusive, polarity: as in `Groundings`; the defaults are those of the paper's code.

    Returns:
        A `Groundings`; a unit that says the same to all inputs has no threshold, so a circuit with one has no reading.
    """
    check_choice("completion", completion, ("all", "once"))
    check_choice("polarity", polarity, ("above", "both"))
    wiring = network.wiring
    if not wiring.is_circuit(np.array([code]))[0]:
        raise TaskError(f"{code} is no circuit of a network of sizes {network.sizes}: part of it leads nowhere.")
    masks = [mask[0] for mask in wiring.masks(np.array([code]))]
    values = [layer[0] for layer in run_circuits(network, np.array([code]), inputs)]
    layers, below = [], list(range(network.sizes[0]))
    for n, (mask, said) in enumerate(zip(masks, values, strict=True), 1):
        on = np.flatnonzero(mask.any(0)).tolist()
        tables = [_rounded(said[:, unit]) if n == len(masks) else _tables(said[:, unit], polarity) for unit in on]
        parents = [tuple(p for p, source in enumerate(below) if mask[source, unit]) for unit in on]
        layers.append(tuple(_Unit((n, unit), p, t) for unit, p, t in zip(on, parents, tables, strict=True)))
        below = on
    return Groundings(network, int(code), np.asarray(inputs), completion, exclusive, polarity, tuple(layers))


def _tables(values: Float[np.ndarray, " input"], polarity: Polarity) -> tuple[int, ...]:
    """What a unit says to each input, for a threshold between any two neighbouring values."""
    levels = np.unique(values)
    found = [_bits(values > threshold) for threshold in (levels[1:] + levels[:-1]) / 2]
    if polarity == "both":
        found += [(1 << len(values)) - 1 - table for table in found]
    return tuple(found)


def _rounded(values: Float[np.ndarray, " input"]) -> tuple[int, ...]:
    return (_bits(values.round() > 0),)


def _bits(says: np.ndarray) -> int:
    return sum(1 << n for n, one in enumerate(says.tolist()) if one)
