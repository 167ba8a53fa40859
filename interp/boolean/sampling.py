"""Circuits drawn evenly from all candidates, for networks with too many to list."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from interp.boolean.circuits import (
    Counting,
    Mode,
    checked_task,
    count_candidates,
    counting_of,
    is_right,
    layer_weights,
    truth_of,
)
from interp.boolean.network import SmallMlp, Wiring, run_circuits
from interp.errors import OptionError
from interp.recovery import wilson

PIECE = 1 << 14  # circuits run at once


@dataclass(frozen=True, eq=False)
class SampledCircuits:
    """How many circuits do the task, as far as an even sample tells.

    Args:
        codes: those of the sample that do, ascending, each once.
        right, drawn: how many that were, and how many were drawn.
        candidates: how many circuits there are, exactly.
        counting: what counted.
    """

    codes: np.ndarray
    right: int
    drawn: int
    candidates: int
    counting: Counting

    @property
    def share(self) -> float:
        """Of the candidates that do the task, estimated."""
        return self.right / self.drawn

    @property
    def number(self) -> float:
        """How many do the task, estimated."""
        return self.share * self.candidates

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Of `number`: Wilson's interval for the share, times the candidates."""
        low, high = wilson(self.right, self.drawn, level)
        return float(low) * self.candidates, float(high) * self.candidates


def draw_circuits(
    sizes: tuple[int, ...], n: int, *, seed: int = 0, mode: Mode = "all", counting: Counting | None = None
) -> Int[np.ndarray, " circuit"]:
    """`n` circuits of a network of these sizes, each equally likely, with replacement.

    How many units are on in each layer is drawn by the number of such circuits, which units evenly, and the edges
    between them evenly among the matrices without an empty row or column.
    """
    wiring = Wiring(tuple(sizes))
    weights = layer_weights(wiring.sizes, counting or counting_of(mode, wiring.sizes))
    if not weights:
        raise OptionError(f"no circuit of sizes {wiring.sizes} counts; allow more units to be on.")
    rng = np.random.default_rng(seed)
    total = sum(weights.values())
    counts = rng.multinomial(n, [weight / total for weight in weights.values()])
    masks = [np.zeros((n, *shape), bool) for shape in zip(sizes, sizes[1:], strict=False)]
    order, start = rng.permutation(n), 0
    for on, count in zip(weights, counts.tolist(), strict=True):
        rows = order[start : start + count]
        start += count
        chain = [_some_units(rng, count, size, k) for size, k in zip(sizes, (sizes[0], *on, 1), strict=True)]
        for layer, (below, above) in enumerate(zip(chain, chain[1:], strict=False)):
            full = _full_matrices(rng, count, below.shape[1], above.shape[1])
            masks[layer][rows[:, None, None], below[:, :, None], above[:, None, :]] = full
    return wiring.codes(masks)


def _some_units(rng: np.random.Generator, n: int, size: int, on: int) -> Int[np.ndarray, "n on"]:
    return rng.random((n, size)).argsort(1)[:, :on]


def _full_matrices(rng: np.random.Generator, n: int, rows: int, columns: int) -> np.ndarray:
    """Matrices of 0 and 1 without an empty row or column, evenly: columns that are not empty, until no row is."""
    found = np.zeros((n, rows, columns), bool)
    left = np.arange(n)
    while len(left):
        bits = rng.integers(1, 1 << rows, (len(left), columns))
        drawn = (bits[:, None, :] >> np.arange(rows)[:, None] & 1).astype(bool)
        found[left] = drawn
        left = left[~np.all(drawn.any(2), 1)]
    return found


def sample_circuits(
    network: SmallMlp,
    inputs: Float[np.ndarray, "input size"],
    labels: Float[np.ndarray, " input"],
    n: int = 100_000,
    *,
    seed: int = 0,
    mode: Mode = "all",
    counting: Counting | None = None,
) -> SampledCircuits:
    """Estimate how many circuits of a network do its task, where `enumerate_circuits` has too many to list.

    Args:
        network, inputs, labels, mode, counting: as for `enumerate_circuits`.
        n: circuits to draw; the interval narrows with its square root.
    """
    inputs, labels = checked_task(network, inputs, labels)
    if n < 1:
        raise OptionError(f"n={n} circuits to draw; allowed: 1 or more.")
    counting = counting or counting_of(mode, network.sizes)
    truth = truth_of(network, inputs, labels, counting)
    drawn = draw_circuits(network.sizes, n, seed=seed, counting=counting)
    right = np.concatenate([_right(network, drawn[k : k + PIECE], inputs, truth, counting) for k in range(0, n, PIECE)])
    candidates = count_candidates(network.sizes, counting=counting)
    return SampledCircuits(np.unique(drawn[right]), int(right.sum()), n, candidates, counting)


def _right(
    network: SmallMlp, codes: np.ndarray, inputs: np.ndarray, truth: np.ndarray, counting: Counting
) -> np.ndarray:
    said = run_circuits(network, codes, inputs)[-1][:, :, 0]
    return is_right(said, truth, counting).mean(1) >= counting.share - 1e-9
