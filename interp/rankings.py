"""Orders in which to verify candidates one by one, and what each costs: estimates, and the baselines of the AtP* paper.

A `Ranking` says in which order candidates are patched and how many forward passes have been spent by the time each is
known. Without gradients, joint patches guide the search: random subsets (the mean effect with a node less that without
it), fixed blocks (a block's joint effect ranks its members), or a tree of blocks that is opened from the largest effect
down. Effects are means over prompts of absolute values.

Source: Kramár et al. 2024 (arXiv 2403.00745), section 4.2.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from interp.errors import OptionError
from interp.recall import ranked, summary_cost, true_top
from interp.welch import random_subsets, welch

Joint = Callable[[Bool[np.ndarray, "subset candidate"]], Float[np.ndarray, " subset"]]
"""The mean absolute effect of each subset, patched together."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """An order of verification.

    Attributes:
        order: the candidates.
        spent: forward passes a prompt when each of them, in this order, is known.
    """

    order: Int64[np.ndarray, " candidate"]
    spent: Float[np.ndarray, " candidate"]

    def costs(self, truth: Float[np.ndarray, " candidate"], most: int) -> Float[np.ndarray, " k"]:
        """For k = 1 ... most, what is spent until the true top k are all known.

        Raises:
            OptionError: fewer than `most` candidates have an effect.
        """
        known = np.empty(len(self.order))
        known[self.order] = self.spent
        return np.maximum.accumulate(known[true_top(truth, most)])

    def summary(self, truth: Float[np.ndarray, " candidate"], most: int) -> float:
        """The costs in one number; see `summary_cost`."""
        return summary_cost(self.costs(truth, most))


def by_estimate(values: Float[np.ndarray, " candidate"], passes: float = 0.0) -> Ranking:
    """By descending magnitude of an estimate that cost `passes` forward passes a prompt."""
    return Ranking(ranked(values), passes + np.arange(1.0, len(values) + 1))


def at_random(n: int, seed: int = 0) -> Ranking:
    """In random order."""
    return Ranking(np.random.default_rng(seed).permutation(n), np.arange(1.0, n + 1))


def by_subsets(joint: Joint, n: int, *, rounds: int, share: float, seed: int = 0) -> Ranking:
    """By random subsets: each node's mean effect with it less the mean without it.

    Raises:
        OptionError: too few rounds for some node to be in, and out, at least twice.
    """
    members = random_subsets(n, rounds=rounds, share=share, seed=seed)
    return by_estimate(welch(joint(members), members)[0], float(rounds))


def by_blocks(joint: Joint, n: int, size: int) -> Ranking:
    """Block after block of neighbours, the block of the largest joint effect first."""
    if not 1 <= size <= n:
        raise OptionError(f"size={size}; allowed: 1 to {n}.")
    block = np.arange(n) // size
    members = block == np.arange(block[-1] + 1)[:, None]
    rank = np.argsort(np.argsort(-joint(members), kind="stable"))
    return Ranking(np.argsort(rank[block], kind="stable"), len(members) + np.arange(1.0, n + 1))


def by_tree(joint: Joint, n: int, branching: int) -> Ranking:
    """Down a tree of blocks: the block of the largest effect is split, its parts are patched, and so on; a part of one
    candidate is that candidate, verified.

    All blocks are patched beforehand, so that the order can be followed without waiting; `spent` counts those that the
    search would have patched by then.

    Raises:
        OptionError: fewer than two branches.
    """
    if branching < 2:
        raise OptionError(f"branching={branching}; allowed: 2 and more.")
    spans = _spans(n, branching)
    index = {span: number for number, span in enumerate(spans)}
    members = np.zeros((len(spans), n), dtype=bool)
    for number, (start, stop) in enumerate(spans):
        members[number, start:stop] = True
    effects = joint(members)
    heap, order, spent, count = [(0.0, 0, n)], [], [], 0
    while heap:
        _, start, stop = heapq.heappop(heap)
        for part in _split(start, stop, branching):
            count += 1
            if part[1] - part[0] == 1:
                order.append(part[0])
                spent.append(float(count))
            else:
                heapq.heappush(heap, (-float(effects[index[part]]), *part))
    return Ranking(np.array(order), np.array(spent))


def _split(start: int, stop: int, branching: int) -> list[tuple[int, int]]:
    """Up to `branching` parts of nearly equal size."""
    ends = np.linspace(start, stop, min(branching, stop - start) + 1).round().astype(int).tolist()
    return list(zip(ends, ends[1:], strict=False))


def _spans(n: int, branching: int) -> list[tuple[int, int]]:
    """Every block of the tree that has more than one candidate, but for the root."""
    found, front = [], _split(0, n, branching)
    while front:
        found += [span for span in front if span[1] - span[0] > 1]
        front = [part for span in front if span[1] - span[0] > 1 for part in _split(*span, branching)]
    return found
