"""How many circuits a network has, and all of those that do what it should.

Candidates are counted without listing them: with f(a, b) = sum_i (-1)^i C(a, i) (2^(a-i) - 1)^b matrices of 0 and 1
without an empty row or column, their number is sum over units on, a layer, of prod C(size, on) f(on below, on).

They are listed without running them one by one. For each choice of the layers before the last hidden one, each unit of
that one can read any subset of what is on (or be off): its contribution to the output is computed once per subset, and
the circuits are all sums of one contribution a unit. That is one addition a circuit and input.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb, prod
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.boolean.minimal import canonical, inclusion_minimal, one_minimal
from interp.boolean.network import SmallMlp, Wiring, run_circuits
from interp.errors import OptionError, TaskError, check_choice
from interp.table import Table

Accuracy = Literal["round", "threshold"]
MOST_SUMS = 1 << 20  # circuits in one piece
MOST_LISTED = 1e9


@dataclass(frozen=True)
class Counting:
    """What counts as a circuit that does the task; a number of circuits means nothing without it.

    Args:
        accuracy: "round" for |output - label| < 1/2 (the paper's); "threshold" for output > 1/2 where the label is 1.
        against: the labels, or what the whole network says (rounded), for them to agree with.
        share: of the inputs that must be right.
        full_mask: whether circuits with every hidden unit on count; the paper leaves them out.
        off: share of hidden units that must be off, exceeded strictly; the paper's sparsity floors.
    """

    accuracy: Accuracy = "round"
    against: Literal["labels", "model"] = "labels"
    share: float = 1.0
    full_mask: bool = True
    off: float | None = None

    def __post_init__(self) -> None:
        check_choice("accuracy", self.accuracy, ("round", "threshold"))
        check_choice("against", self.against, ("labels", "model"))
        if not 0 < self.share <= 1 or not (self.off is None or 0 <= self.off < 1):
            raise OptionError(f"share={self.share}, off={self.off}; allowed: 0 < share <= 1, 0 <= off < 1.")

    @classmethod
    def paper(cls, sizes: tuple[int, ...]) -> "Counting":
        """As the paper's code counts: no full mask, and more than .2 of units off in layers of 4, .3 in wider ones."""
        width = max(sizes[1:-1])
        return cls(full_mask=False, off=None if width < 4 else 0.2 if width == 4 else 0.3)

    def allows(self, on: int, hidden: int) -> bool:
        """Whether circuits with `on` of `hidden` units on count."""
        return (self.full_mask or on < hidden) and (self.off is None or (hidden - on) / hidden > self.off)


Mode = Literal["all", "paper"]


def counting_of(mode: Mode, sizes: tuple[int, ...]) -> Counting:
    """The `Counting` that a mode stands for."""
    check_choice("mode", mode, ("all", "paper"))
    return Counting.paper(sizes) if mode == "paper" else Counting()


@cache
def full_matrices(rows: int, columns: int) -> int:
    """How many matrices of 0 and 1 have neither an empty row nor an empty column."""
    return sum((-1) ** i * comb(rows, i) * (2 ** (rows - i) - 1) ** columns for i in range(rows + 1))


def layer_weights(sizes: tuple[int, ...], counting: Counting) -> dict[tuple[int, ...], int]:
    """How many circuits have how many units on, a hidden layer."""
    hidden = sizes[1:-1]
    found = {}
    for on in itertools.product(*(range(1, size + 1) for size in hidden)):
        if counting.allows(sum(on), sum(hidden)):
            chain = (sizes[0], *on, 1)
            units = [comb(size, n) for size, n in zip(hidden, on, strict=True)]
            matrices = [full_matrices(below, above) for below, above in zip(chain, chain[1:], strict=False)]
            found[on] = prod(units) * prod(matrices)
    return found


def count_candidates(sizes: tuple[int, ...], *, mode: Mode = "all", counting: Counting | None = None) -> int:
    """How many circuits a network of these sizes has, whether they do anything or not; exact.

    Args:
        sizes: units a layer, from the inputs to the one output.
        mode: "all", or "paper" for the paper's conventions.
        counting: own conventions in place of a mode.

    >>> count_candidates((2, 3, 3, 1)), count_candidates((2, 3, 3, 1), mode="paper")
    (9625, 3000)
    """
    sizes = Wiring(tuple(sizes)).sizes
    return sum(layer_weights(sizes, counting or counting_of(mode, sizes)).values())


@dataclass(frozen=True, eq=False)
class FoundCircuits:
    """Circuits of a network that do its task, and what was counted.

    Args:
        network, inputs, labels, counting: what was asked.
        codes: the circuits, ascending; bits as in `Wiring`.
        candidates: how many circuits there were to try.
    """

    network: SmallMlp
    inputs: np.ndarray
    labels: np.ndarray
    counting: Counting
    codes: np.ndarray
    candidates: int

    def __len__(self) -> int:
        return len(self.codes)

    def minimal(self) -> Int[np.ndarray, " circuit"]:
        """Those that contain no other; adding circuits that contain others never adds to these."""
        return inclusion_minimal(self.codes)

    def one_minimal(self) -> Int[np.ndarray, " circuit"]:
        """Those from which no single edge can go. Doing the task is not monotone, so these may be more."""
        return one_minimal(self.codes)

    def canonical(self) -> Int[np.ndarray, " circuit"]:
        """What is left of them, each once, without edges of weight 0 and units that are always 0 or lead nowhere."""
        return np.unique(canonical(self.network, self.codes, self.inputs))

    def outputs(self) -> Float[np.ndarray, "circuit input"]:
        """What each circuit says."""
        return run_circuits(self.network, self.codes, self.inputs)[-1][:, :, 0]

    def edge_shares(self) -> Float[np.ndarray, " edge"]:
        """Share of the circuits that each edge is in; 1 is the core, NaN without circuits."""
        if not len(self):
            return np.full(self.network.wiring.edges, np.nan)
        return (self.codes[:, None] >> np.arange(self.network.wiring.edges) & 1).mean(0)

    def table(self) -> Table:
        """One row a number and its meaning."""
        distinct = len(np.unique(self.outputs().round(9), axis=0))
        rows = [
            ("candidates", self.candidates), ("circuits", len(self)), ("inclusion-minimal", len(self.minimal())),
            ("1-minimal", len(self.one_minimal())), ("canonical", len(self.canonical())),
            ("distinct outputs", distinct), ("edges in all", int((self.edge_shares() == 1).sum())),
        ]  # fmt: skip
        convention = str(self.counting)
        return Table(
            {"what": [name for name, _ in rows], "number": [n for _, n in rows], "counting": [convention] * len(rows)}
        )


def enumerate_circuits(
    network: SmallMlp,
    inputs: Float[np.ndarray, "input size"],
    labels: Float[np.ndarray, " input"],
    *,
    mode: Mode = "all",
    counting: Counting | None = None,
    most: float = MOST_LISTED,
) -> FoundCircuits:
    """All circuits of a network that do its task (2502.20914, "where then what", first step).

    Args:
        network: with one output (`split` one with more).
        inputs, labels: what it should say, 0 or 1; any number of rows, noisy ones too.
        mode, counting: as for `count_candidates`; `Counting` says what counts as doing the task.
        most: candidates to try at most.

    Raises:
        TaskError: labels other than 0 and 1, shapes that do not fit, or more candidates than `most`.
    """
    inputs, labels = checked_task(network, inputs, labels)
    counting = counting or counting_of(mode, network.sizes)
    candidates = count_candidates(network.sizes, counting=counting)
    if candidates > most:
        raise TaskError(
            f"a network of sizes {network.sizes} has {candidates:,} circuits, over most={most:,.0f}; sample_circuits "
            "estimates the share that does the task."
        )
    truth = truth_of(network, inputs, labels, counting)
    found = [codes for prefix in _prefixes(network, inputs) for codes in _completions(network, prefix, truth, counting)]
    codes = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return FoundCircuits(network, inputs, labels, counting, codes, candidates)


def checked_task(network: SmallMlp, inputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels as arrays, or a `TaskError` for what is wrong with them."""
    network.wiring.check_bits()
    inputs, labels = np.asarray(inputs, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    wanted = (len(labels), network.sizes[0])
    if labels.ndim != 1 or not len(labels) or inputs.shape != wanted:
        raise TaskError(f"inputs have shape {inputs.shape}, labels {labels.shape}; expected {wanted} and one a row.")
    if wrong := sorted(set(labels.tolist()) - {0.0, 1.0}):
        raise TaskError(f"labels have the values {wrong[:5]}; allowed: 0 and 1.")
    return inputs, labels


def truth_of(network: SmallMlp, inputs: np.ndarray, labels: np.ndarray, counting: Counting) -> np.ndarray:
    """What a circuit has to say: the labels, or what the network itself says, rounded."""
    return labels if counting.against == "labels" else network.outputs(inputs)[:, 0].round()


def is_right(
    outputs: Float[np.ndarray, "*circuit"], truth: Float[np.ndarray, "..."] | float, counting: Counting
) -> Bool[np.ndarray, "*circuit"]:
    """Whether outputs count as saying the truth."""
    if counting.accuracy == "round":
        return np.abs(outputs - truth) < 0.5
    return (outputs > 0.5) == (np.asarray(truth) > 0.5)


@dataclass(frozen=True, eq=False)
class _Prefix:
    """Edges below the last hidden layer: their bits, what that layer can read, and how many units are on."""

    code: int
    values: np.ndarray  # [input, units below]
    alive: tuple[int, ...]
    units: int


def _prefixes(network: SmallMlp, inputs: np.ndarray) -> Iterator[_Prefix]:
    """All choices of the layers before the last hidden one in which everything below is read."""
    prefixes: Iterator[_Prefix] = iter([_Prefix(0, inputs, tuple(range(network.sizes[0])), 0)])
    for layer in range(1, len(network.sizes) - 2):
        prefixes = _all_longer(network, layer, prefixes)
    return prefixes


def _all_longer(network: SmallMlp, layer: int, prefixes: Iterator[_Prefix]) -> Iterator[_Prefix]:
    for prefix in prefixes:
        yield from _longer(network, layer, prefix)


def _longer(network: SmallMlp, layer: int, prefix: _Prefix) -> Iterator[_Prefix]:
    """A prefix with every choice of one more layer."""
    weight, bias, wiring = network.weights[layer - 1], network.biases[layer - 1], network.wiring
    reads = _deposited(prefix.alive)
    covered = reads[-1]
    on = _subsets(len(prefix.alive))
    values = network.act(np.einsum("nb,sb,bu->sun", prefix.values[:, prefix.alive], on, weight[list(prefix.alive)])
                         + bias[:, None])  # fmt: skip
    for choice in itertools.product(range(len(reads)), repeat=network.sizes[layer]):
        if np.bitwise_or.reduce(reads[list(choice)]) == covered:
            code = sum(int(reads[c]) << wiring.first_bit(layer, u) for u, c in enumerate(choice))
            alive = tuple(u for u, c in enumerate(choice) if c)
            units = np.stack([values[c, u] for u, c in enumerate(choice)], 1)
            yield _Prefix(prefix.code | code, units, alive, prefix.units + len(alive))


def _deposited(alive: tuple[int, ...]) -> Int[np.ndarray, " subset"]:
    """Bits of every subset of these positions; the subset of index s has the n-th position where bit n of s is 1."""
    return _subsets(len(alive)).astype(np.int64) @ (np.int64(1) << np.array(alive, dtype=np.int64))


@cache
def _subsets(size: int) -> Bool[np.ndarray, "subset size"]:
    return (np.arange(1 << size)[:, None] >> np.arange(size) & 1).astype(bool)


def _completions(
    network: SmallMlp, prefix: _Prefix, truth: np.ndarray, counting: Counting
) -> Iterator[Int[np.ndarray, " circuit"]]:
    """Circuits with this prefix that do the task, in pieces: all sums of one contribution a unit."""
    layer = len(network.sizes) - 2
    width, alive = network.sizes[layer], prefix.alive
    contributions = _contributions(network, prefix)  # [unit, subset, input]
    subsets = 1 << len(alive)
    free = width  # units whose choices are summed at once; those before them are gone through one by one
    while free > 1 and subsets**free > MOST_SUMS:
        free -= 1
    bits = np.stack([_unit_codes(network.wiring, layer, unit, alive) for unit in range(width)])  # [unit, subset]
    start = float(network.biases[-1][0])
    for fixed in itertools.product(range(subsets), repeat=width - free):
        said = [contributions[unit, subset] for unit, subset in enumerate(fixed)]
        base = start + np.sum(said, axis=0) if said else np.full(len(truth), start)
        possible = _possible(len(alive), free, _or(fixed), sum(1 for subset in fixed if subset), prefix.units,
                             sum(network.sizes[1:-1]), counting)  # fmt: skip
        hits = _right_sums(network, contributions[width - free :], base, truth, counting, possible)
        if len(hits):
            codes = np.full(len(hits), prefix.code, np.int64)
            codes += sum(int(bits[unit, subset]) for unit, subset in enumerate(fixed))
            for unit in range(free):
                chosen = hits >> len(alive) * (free - 1 - unit) & subsets - 1
                codes += bits[width - free + unit, chosen]
            yield codes


def _contributions(network: SmallMlp, prefix: _Prefix) -> Float[np.ndarray, "unit subset input"]:
    """What each unit of the last hidden layer adds to the output, for each subset that it may read; 0 for none."""
    alive = list(prefix.alive)
    on = _subsets(len(alive))
    before = np.einsum("nb,sb,bu->usn", prefix.values[:, alive], on, network.weights[-2][alive])
    added = network.act(before + network.biases[-2][:, None, None]) * network.weights[-1][:, 0][:, None, None]
    added[:, 0] = 0.0
    return added


def _unit_codes(wiring: Wiring, layer: int, unit: int, alive: tuple[int, ...]) -> Int[np.ndarray, " subset"]:
    """Bits of a unit of the last hidden layer that reads each subset, with its edge to the output."""
    codes = _deposited(alive) << wiring.first_bit(layer, unit)
    codes[1:] |= 1 << wiring.first_bit(layer + 1, 0) + unit
    return codes


def _or(subsets: tuple[int, ...]) -> int:
    found = 0
    for subset in subsets:
        found |= subset
    return found


@lru_cache(maxsize=256)
def _possible(
    alive: int, free: int, read: int, on: int, below: int, hidden: int, counting: Counting
) -> Bool[np.ndarray, " sum"]:
    """Which choices of the `free` units are circuits that count: everything alive is read, and units on are allowed."""
    reads = np.full(1, read, np.int64)
    units = np.full(1, on + below, np.int64)
    subsets = np.arange(1 << alive)
    for _ in range(free):
        reads = (reads[:, None] | subsets).reshape(-1)
        units = (units[:, None] + (subsets > 0)).reshape(-1)
    allowed = np.array([counting.allows(n, hidden) for n in range(hidden + 1)])
    return (reads == (1 << alive) - 1) & allowed[units]


def _right_sums(
    network: SmallMlp, contributions: np.ndarray, base: np.ndarray, truth: np.ndarray, counting: Counting,
    possible: Bool[np.ndarray, " sum"],
) -> Int[np.ndarray, " hit"]:  # fmt: skip
    """Indices of the sums of one contribution a unit that are right on enough inputs; the last unit changes fastest."""
    wrong_at_most = int(np.floor((1 - counting.share) * len(truth) + 1e-9))
    wrong = np.where(possible, 0, wrong_at_most + 1).astype(np.int32)
    for n, answer in enumerate(truth):
        sums = np.full(1, base[n])
        for unit in contributions[:, :, n]:
            sums = (sums[:, None] + unit).reshape(-1)
        wrong += ~is_right(network.act(sums) if network.output_activation else sums, answer, counting)
    return np.flatnonzero(wrong <= wrong_at_most)
