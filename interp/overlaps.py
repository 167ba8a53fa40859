"""Sets of members beside each other: how much they share, what of that is chance, and which parts stand in for which.

Everything is a membership matrix [circuit, member]; nothing here knows what a member is. Chance is the size-matched
null: two sets of the same sizes, drawn without replacement from the members that both could have. Its overlap is
hypergeometric, so its tail, mean and quantile are exact sums.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.errors import OptionError

Members = Bool[np.ndarray, "circuit member"]
CORE = 0.95
"""Share of the circuits from which on a member is core."""


def shared(members: Members) -> Int[np.ndarray, "circuit circuit"]:
    """How many members every two circuits have in common; their sizes on the diagonal."""
    counted = members.astype(np.int64)
    return counted @ counted.T


def jaccard(members: Members) -> Float[np.ndarray, "circuit circuit"]:
    """Intersection over union of every two; NaN where both are empty."""
    both = shared(members)
    sizes = both.diagonal()
    return _ratio(both, sizes[:, None] + sizes - both)


def overlap_of_smaller(members: Members) -> Float[np.ndarray, "circuit circuit"]:
    """Intersection over the smaller of every two: 1 where one contains the other; NaN where one is empty."""
    both = shared(members)
    return _ratio(both, np.minimum.outer(both.diagonal(), both.diagonal()))


def _ratio(over: np.ndarray, under: np.ndarray) -> Float[np.ndarray, "circuit circuit"]:
    return np.divide(over, under, out=np.full(under.shape, np.nan), where=under > 0)


def mean_of_pairs(values: Float[np.ndarray, "circuit circuit"]) -> float:
    """The mean over pairs of different circuits that have a value; NaN without any."""
    upper = values[np.triu_indices(len(values), 1)]
    return float(np.nanmean(upper)) if np.isfinite(upper).any() else float("nan")


class Chance(NamedTuple):
    """What two random sets of these sizes share.

    Attributes:
        p: the chance of sharing at least as many.
        jaccard: their mean Jaccard index.
        jaccard_high: the smallest index that they stay at or below 95 % of the time.
    """

    p: float
    jaccard: float
    jaccard_high: float


def chance(both: int, first: int, second: int, candidates: int) -> Chance:
    """The size-matched null of two sets that share `both` of `candidates`; NaN where it is no draw (a set is empty).

    Raises:
        OptionError: sizes that no two such sets have.
    """
    if not max(0, first + second - candidates) <= both <= min(first, second) <= max(first, second) <= candidates:
        raise OptionError(f"sets of {first} and {second} of {candidates} candidates cannot share {both}.")
    if not min(first, second):
        return Chance(*[float("nan")] * 3)
    possible = np.arange(max(0, first + second - candidates), min(first, second) + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, candidates + 1)))])

    def ways(n: Any, k: Any) -> Any:
        return logs[n] - logs[k] - logs[n - k]

    weights = np.exp(
        ways(first, possible) + ways(candidates - first, second - possible) - ways(candidates, second)
    )  # fmt: skip
    weights /= weights.sum()
    index = possible / (first + second - possible)
    high = index[min(int(np.searchsorted(weights.cumsum(), 0.95)), len(index) - 1)]
    return Chance(float(weights[possible >= both].sum()), float(weights @ index), float(high))


def groups_of(rows: np.ndarray) -> Int[np.ndarray, " row"]:
    """For each row the number of its group of equal rows, in order of appearance."""
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[which.ravel()]


def distinct(members: Members) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " circuit"]]:
    """The first circuit of each distinct set, in order, and for every circuit the number of its set."""
    which = groups_of(members)
    return np.unique(which, return_index=True)[1], which


def effective_number(members: Members) -> float:
    """exp(entropy) of the distinct circuits' frequencies: as many equally frequent ones would be as varied."""
    counts = np.bincount(distinct(members)[1]) / len(members)
    return float(np.exp(-(counts * np.log(counts)).sum()))


def minimal(members: Members) -> Bool[np.ndarray, " circuit"]:
    """Which circuits contain no other one, each distinct set once."""
    first, _ = distinct(members)
    sets = members[first]
    both = shared(sets)
    contains = both == both.diagonal()[None]  # the column's members are all in the row's set
    np.fill_diagonal(contains, False)
    found = np.zeros(len(members), bool)
    found[first[~contains.any(1)]] = True
    return found


def substitutes(members: Members) -> list[tuple[Int[np.ndarray, " one"], Int[np.ndarray, " other"]]]:
    """Parts of which every circuit has exactly one: members that always come together, beside those that come in
    exactly the circuits where the first do not. Members of all circuits or of none are no such parts."""
    patterns, which = np.unique(members.T, axis=0, return_inverse=True)
    which = which.ravel()
    place = {pattern.tobytes(): n for n, pattern in enumerate(patterns)}
    found = []
    for n, pattern in enumerate(patterns):
        other = place.get((~pattern).tobytes(), -1)
        if other > n and pattern.any() and not pattern.all():
            found.append((np.flatnonzero(which == n), np.flatnonzero(which == other)))
    found = [(one, other) if one[0] < other[0] else (other, one) for one, other in found]
    return sorted(found, key=lambda pair: int(pair[0][0]))


def variance_split(members: Members, factors: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Shares of the variance of membership, summed over members, between the levels of each factor, each given those
    before it (in a balanced design their order does not matter), and the rest; NaN where all circuits are equal.

    Args:
        factors: name -> one level a circuit, such as ``{"method": [...], "seed": [...]}``.

    Raises:
        OptionError: a factor without one level a circuit.
    """
    wrong = {name: len(levels) for name, levels in factors.items() if len(levels) != len(members)}
    if wrong:
        raise OptionError(f"factors {wrong} have so many levels; give one for each of {len(members)} circuits.")
    left = members - members.mean(0)
    total = float((left**2).sum())
    design = np.ones((len(members), 1))
    found = {}
    before = total
    for name, levels in factors.items():
        design = np.concatenate([design, np.equal.outer(np.array(levels), np.unique(levels)).astype(float)], 1)
        rest = left - design @ np.linalg.lstsq(design, left, rcond=None)[0]
        now = float((rest**2).sum())
        found[name], before = before - now, now
    return {name: value / total if total else float("nan") for name, value in {**found, "rest": before}.items()}
