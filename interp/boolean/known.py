"""Small networks, set by hand, of which all circuits are known."""

from typing import NamedTuple

import numpy as np

from interp.boolean.network import SmallMlp
from interp.errors import check_choice


class KnownMlp(NamedTuple):
    """A network and what is known of it.

    Args:
        gate: what it computes.
        minimal: the circuits that do so and contain no other, as names of edges.
    """

    network: SmallMlp
    gate: str
    minimal: tuple[tuple[str, ...], ...]


def known_mlp(name: str) -> KnownMlp:
    """A network with 2 inputs, two hidden layers of 3 and leaky ReLU, whose circuits are known.

    Args:
        name: "xor": two units of layer 1, one of layer 2, all else is 0: one explanation.
            "twins": as xor, with the unit of layer 2 there twice, either of which is enough.
            "and": one path.
            "and_twice": AND by one unit of layer 1, there twice; the whole network gets it right as well.
    """
    check_choice("known network", name, _KNOWN)
    first, first_bias, second, last, bias, gate, circuits = _KNOWN[name]
    weights = (np.array(first), np.array(second), np.array(last)[:, None])
    network = SmallMlp(weights, (np.array(first_bias), np.zeros(3), np.array([bias])))
    return KnownMlp(network, gate, tuple(tuple(circuit.split()) for circuit in circuits))


_PAIR = "x0->h1.0 x1->h1.0 x0->h1.1 x1->h1.1"
_KNOWN = {
    "xor": (
        [[1.0, 1, 0], [1, 1, 0]], [0.0, -1, 0], [[1.0, 0, 0], [-2, 0, 0], [0, 0, 0]], [1.0, 0, 0], 0.0, "xor",
        [f"{_PAIR} h1.0->h2.0 h1.1->h2.0 h2.0->y"],
    ),
    "twins": (
        [[1.0, 1, 0], [1, 1, 0]], [0.0, -1, 0], [[1.0, 1, 0], [-2, -2, 0], [0, 0, 0]], [0.9, 0.9, 0], -0.1, "xor",
        [f"{_PAIR} h1.0->h2.{n} h1.1->h2.{n} h2.{n}->y" for n in range(2)],
    ),
    "and": (
        [[1.0, 0, 0], [1, 0, 0]], [-1.0, 0, 0], [[1.0, 0, 0], [0, 0, 0], [0, 0, 0]], [1.0, 0, 0], 0.0, "and",
        ["x0->h1.0 x1->h1.0 h1.0->h2.0 h2.0->y"],
    ),
    "and_twice": (
        [[1.0, 1, 0], [1, 1, 0]], [-1.0, -1, 0], [[1.0, 0, 0], [1, 0, 0], [0, 0, 0]], [0.7, 0, 0], 0.0, "and",
        [f"x0->h1.{n} x1->h1.{n} h1.{n}->h2.0 h2.0->y" for n in range(2)],
    ),
}  # fmt: skip
