"""Formulas of AND, OR and NOT that compute a gate of two inputs.

Trees of AND and OR over A and B to some depth; negations are tried over sets of nodes by increasing size, and the first
that gives the gate is kept, so each tree stands for at most one formula.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool

from interp.boolean.network import GATES
from interp.errors import OptionError, check_choice

FormulaMode = Literal["all", "paper"]
LEAVES = {"A": 0b1100, "B": 0b1010}  # bit n: value in row n of the truth table, the last input changing fastest
SIGNS = {"and": "∧", "or": "∨"}


@dataclass(frozen=True)
class Formula:
    """A node and what is under it.

    Args:
        name: and, or; or A, B for an input.
        children: none or two.
        negated: whether the node stands under a NOT, which then is the node's value to those above.
    """

    name: str
    children: tuple["Formula", ...] = ()
    negated: bool = False

    def __str__(self) -> str:
        inner = f"({f' {SIGNS[self.name]} '.join(map(str, self.children))})" if self.children else self.name
        return f"¬{inner}" if self.negated else inner

    def nodes(self, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], "Formula"]]:
        """Every node with its path from the root, each before its children."""
        yield path, self
        for n, child in enumerate(self.children):
            yield from child.nodes((*path, n))

    def variables(self) -> tuple[tuple[int, ...], ...]:
        """Paths of what has to be found in a network: all that is computed on the way, save the result itself.

        That is each node with children but the root, and each negated input; of a negated node, the value negated.
        """
        return tuple(path for path, node in self.nodes() if path and (node.children or node.negated))

    def value(
        self, inputs: Mapping[str, np.ndarray], given: Mapping[tuple[int, ...], np.ndarray] | None = None,
        path: tuple[int, ...] = (),
    ) -> Bool[np.ndarray, " row"]:  # fmt: skip
        """What it computes from A and B, with the values of some nodes given."""
        if given and path in given:
            return given[path]
        if self.children:
            parts = [child.value(inputs, given, (*path, n)) for n, child in enumerate(self.children)]
            found = np.logical_and(*parts) if self.name == "and" else np.logical_or(*parts)
        else:
            found = inputs[self.name]
        return ~found if self.negated else found


def skeletons(depth: int, mode: FormulaMode = "all") -> list[Formula]:
    """Trees of AND and OR over A and B, without negations, up to a depth (A and B alone have depth 0).

    Args:
        mode: "all": every unordered tree whose two branches differ. "paper": as its code: the first branch has all the
            depth and the second any less, and the tree is kept only if the first sorts before the second as a text.
    """
    check_choice("mode", mode, ("all", "paper"))
    if not 0 <= depth <= 3:
        raise OptionError(f"depth={depth}; allowed: 0 to 3 (there are over 30,000 trees of depth 4).")
    layers: list[list[Formula]] = [[Formula("A"), Formula("B")]]
    for _ in range(depth):
        pairs = _published_pairs(layers) if mode == "paper" else _all_pairs(layers)
        layers.append([Formula(op, pair) for pair in pairs for op in SIGNS])
    return [tree for layer in layers for tree in layer]


def _published_pairs(layers: list[list[Formula]]) -> list[tuple[Formula, Formula]]:
    below = [tree for layer in layers for tree in layer]
    return [(first, second) for first in layers[-1] for second in below if _sorted_by(first) < _sorted_by(second)]


def _sorted_by(tree: Formula) -> str:
    return str(tree)[1:-1] if tree.children else str(tree)


def _all_pairs(layers: list[list[Formula]]) -> list[tuple[Formula, Formula]]:
    top, lower = layers[-1], [tree for layer in layers[:-1] for tree in layer]
    return [(first, second) for first in top for second in lower] + list(itertools.combinations(top, 2))


def boolean_formulas(target: str, depth: int = 3, *, mode: FormulaMode = "all") -> list[Formula]:
    """The formulas that compute a gate: of each tree, the one with the fewest negations that is found first.

    Args:
        target: xor, and, or, imp, nand, nor, xnor.
        depth: of trees, at most 3.
        mode: as for `skeletons`. XOR has 132 in "all" and 56 in "paper" at depth 3.
    """
    check_choice("target", target, GATES)
    wanted = sum(1 << n for n, bit in enumerate(GATES[target]) if bit == "1")
    found = []
    for tree in skeletons(depth, mode):
        paths = [path for path, _ in tree.nodes()]
        for negated in itertools.chain.from_iterable(itertools.combinations(paths, n) for n in range(len(paths) + 1)):
            if _table(tree, frozenset(negated)) == wanted:
                found.append(_negated(tree, frozenset(negated)))
                break
    return found


def _table(tree: Formula, negated: frozenset[tuple[int, ...]], path: tuple[int, ...] = ()) -> int:
    if tree.children:
        first, second = (_table(child, negated, (*path, n)) for n, child in enumerate(tree.children))
        found = first & second if tree.name == "and" else first | second
    else:
        found = LEAVES[tree.name]
    return found ^ 0b1111 if path in negated else found


def _negated(tree: Formula, negated: frozenset[tuple[int, ...]], path: tuple[int, ...] = ()) -> Formula:
    children = tuple(_negated(child, negated, (*path, n)) for n, child in enumerate(tree.children))
    return Formula(tree.name, children, path in negated)
