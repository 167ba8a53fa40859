"""A small multilayer perceptron with one output, and its circuits as sets of edges.

    v_0 = inputs        v_l = act(v_{l-1} W_l + b_l)        output = v_d W + b   (activation there only if asked)

A circuit is an integer: one bit an edge, layer by layer, unit by unit, input by input. Edges that are off carry 0;
biases stay; a unit is on if one of its outgoing edges is, and contributes nothing otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.errors import ModelError, TaskError, check_choice

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "identity": lambda x: x,
}
MOST_EDGES = 62  # bits of an int64 beside its sign


@dataclass(frozen=True, eq=False)
class SmallMlp:
    """Weights of a perceptron, [units below, units] a layer, and biases; the last layer is the output.

    Args:
        weights, biases: one a layer.
        activation: of the hidden layers: leaky_relu (slope .01), relu, tanh, sigmoid, identity.
        output_activation: the same activation on the output (the paper's first code did that).

    Raises:
        ModelError: shapes that do not fit, no hidden layer, or an unknown activation.
    """

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    activation: str = "leaky_relu"
    output_activation: bool = False

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ACTIVATIONS)
        weights = tuple(np.array(weight, dtype=np.float64) for weight in self.weights)
        biases = tuple(np.array(bias, dtype=np.float64) for bias in self.biases)
        shapes = [weight.shape for weight in weights]
        fits = len(weights) >= 2 and all(len(shape) == 2 for shape in shapes)
        fits = fits and all(below[1] == above[0] for below, above in zip(shapes, shapes[1:], strict=False))
        if not fits or [bias.shape for bias in biases] != [shape[1:] for shape in shapes]:
            raise ModelError(
                f"weights have shapes {shapes} and biases {[bias.shape for bias in biases]}; give at least two layers "
                "of weights [units below, units], each with a bias a unit."
            )
        for array in weights + biases:
            array.setflags(write=False)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "biases", biases)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units a layer, from the inputs to the output."""
        return (*(weight.shape[0] for weight in self.weights), self.weights[-1].shape[1])

    def act(self, x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return ACTIVATIONS[self.activation](x)

    def layers(self, inputs: Float[np.ndarray, "input _"]) -> list[Float[np.ndarray, "input _"]]:
        """Values of every layer, from the inputs themselves to the output."""
        values = [np.asarray(inputs, dtype=np.float64)]
        for n, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            before = values[-1] @ weight + bias
            last = n == len(self.weights) - 1
            values.append(before if last and not self.output_activation else self.act(before))
        return values

    def outputs(self, inputs: Float[np.ndarray, "input size"]) -> Float[np.ndarray, "input outputs"]:
        """What it says to each input."""
        return self.layers(inputs)[-1]

    def split(self) -> list["SmallMlp"]:
        """One network an output; they share the hidden layers."""
        return [
            SmallMlp(
                (*self.weights[:-1], self.weights[-1][:, n : n + 1]), (*self.biases[:-1], self.biases[-1][n : n + 1]),
                self.activation, self.output_activation,
            )
            for n in range(self.sizes[-1])
        ]  # fmt: skip

    @cached_property
    def wiring(self) -> "Wiring":
        """Which bit of a circuit is which edge; of a network with one output."""
        if self.sizes[-1] != 1:
            raise TaskError(f"circuits belong to one output, this network has {self.sizes[-1]}; split() it first.")
        return Wiring(self.sizes)


@dataclass(frozen=True)
class Wiring:
    """Bits of the edges of a network of these sizes.

    Args:
        sizes: units a layer, from the inputs to the one output.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) < 3 or min(self.sizes) < 1 or self.sizes[-1] != 1:
            raise TaskError(f"sizes are {self.sizes}; allowed: inputs, one or more hidden layers, then 1 output.")

    @property
    def edges(self) -> int:
        """How many there are."""
        return sum(below * units for below, units in zip(self.sizes, self.sizes[1:], strict=False))

    def first_bit(self, layer: int, unit: int) -> int:
        """Of the edges into a unit of a layer (1 is the first hidden one); those from the units below follow."""
        before = sum(self.sizes[n - 1] * self.sizes[n] for n in range(1, layer))
        return before + unit * self.sizes[layer - 1]

    def units(self) -> Iterator[tuple[int, int]]:
        """(layer, unit) of all units with incoming edges, in the order of their bits."""
        for layer in range(1, len(self.sizes)):
            for unit in range(self.sizes[layer]):
                yield layer, unit

    def masks(self, codes: Int[np.ndarray, " circuit"]) -> list[Bool[np.ndarray, "circuit _ _"]]:
        """Which edges are on, an array [circuit, units below, units] a layer of weights."""
        self.check_bits()
        bits = (np.asarray(codes, dtype=np.int64)[:, None] >> np.arange(self.edges)) & 1
        masks, start = [], 0
        for below, units in zip(self.sizes, self.sizes[1:], strict=False):
            block = bits[:, start : start + below * units].reshape(-1, units, below)
            masks.append(block.transpose(0, 2, 1).astype(bool))
            start += below * units
        return masks

    def codes(self, masks: Sequence[Bool[np.ndarray, "circuit _ _"]]) -> Int[np.ndarray, " circuit"]:
        """The inverse of `masks`."""
        self.check_bits()
        bits = np.concatenate([mask.transpose(0, 2, 1).reshape(len(mask), -1) for mask in masks], 1)
        return bits.astype(np.int64) @ (np.int64(1) << np.arange(self.edges, dtype=np.int64))

    def is_circuit(self, codes: Int[np.ndarray, " circuit"]) -> Bool[np.ndarray, " circuit"]:
        """Whether every input and every unit that is on has an outgoing edge, and every such unit an incoming one."""
        masks = self.masks(codes)
        right: np.ndarray = np.all(masks[0].any(2), 1) & np.any(masks[-1], (1, 2))
        for below, above in zip(masks, masks[1:], strict=False):
            right &= (below.any(1) == above.any(2)).all(1)
        return right

    def names(self, code: int) -> list[str]:
        """Edges of a circuit in words: ``x0->h1.2`` from an input to a unit of the first hidden layer, ``h2.0->y``."""
        found = []
        for layer, unit in self.units():
            first = self.first_bit(layer, unit)
            for below in range(self.sizes[layer - 1]):
                if code >> first + below & 1:
                    found.append(f"{self._name(layer - 1, below)}->{self._name(layer, unit)}")
        return found

    def _name(self, layer: int, unit: int) -> str:
        if layer == 0:
            return f"x{unit}"
        return "y" if layer == len(self.sizes) - 1 else f"h{layer}.{unit}"

    def check_bits(self) -> None:
        """Raise unless a circuit fits into an integer of 64 bits."""
        if self.edges > MOST_EDGES:
            raise TaskError(f"a network of sizes {self.sizes} has {self.edges} edges; allowed: at most {MOST_EDGES}.")


def run_circuits(
    network: SmallMlp, codes: Int[np.ndarray, " circuit"], inputs: Float[np.ndarray, "input size"]
) -> list[Float[np.ndarray, "circuit input _"]]:
    """Values of every hidden layer and the output under each circuit: a plain masked forward pass, all at once."""
    inputs = np.asarray(inputs, dtype=np.float64)
    values: list[np.ndarray] = [np.broadcast_to(inputs, (len(codes), *inputs.shape))]
    masks = network.wiring.masks(codes)
    for n, (mask, weight, bias) in enumerate(zip(masks, network.weights, network.biases, strict=True)):
        before = values[-1] @ (mask * weight) + bias
        last = n == len(masks) - 1
        values.append(before if last and not network.output_activation else network.act(before))
    return values[1:]


def truth_table(inputs: int) -> Float[np.ndarray, "row input"]:
    """All rows of 0 and 1, the last input changing fastest."""
    rows = np.arange(2**inputs)[:, None] >> np.arange(inputs)[::-1] & 1
    return rows.astype(np.float64)


GATES = {"xor": "0110", "and": "0001", "or": "0111", "imp": "1101", "nand": "1110", "nor": "1000", "xnor": "1001"}
"""Answers over the rows (0,0), (0,1), (1,0), (1,1)."""


def gate_answers(name: str) -> Float[np.ndarray, " row"]:
    """Answers of a gate of two inputs over `truth_table(2)`: xor, and, or, imp, nand, nor, xnor."""
    check_choice("gate", name, GATES)
    return np.array([float(bit) for bit in GATES[name]])
