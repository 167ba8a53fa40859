"""From a table with all four groups to the disjoint parts that debiasing works with.

A label and an attribute that go together in ambiguous data make an *aligned* group; the other two are *counter* groups.

1. Of each counter group the share `test` is held out; of each aligned group no more of it than of the smaller counter
   group.
2. The rest of the counter groups can only serve the balanced part. It gets as many of each group as the smallest rest
   allows, and of the aligned groups at most the share `balanced` of theirs.
3. What then remains of the aligned groups, in equal numbers, is the ambiguous part.
4. What is left over is held out too, so that the worst group is measured on all there is. The test has as many of each
   group as the smallest that is held out.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from interp.errors import OptionError, TaskError
from interp.labelled.base import BiasedData, Labelled
from interp.labelled.tables import once

Rows = dict[int, list[int]]  # group -> its rows


def biased(
    data: Labelled,
    *,
    together: tuple[int, int] | None = None,
    test: float | int = 0.5,
    balanced: float | int = 0.5,
    words: Iterable[str] = (),
    concepts: Sequence[str] = (),
    seed: int = 0,
) -> BiasedData:
    """Ambiguous, balanced and held-out parts of labelled texts; every text is in one of them at most.

    Args:
        data: texts of all four groups; one that occurs twice counts once. Without attributes nothing is known of
            groups: the share `test` of each class is held out, all else is the training part.
        together: the attributes that label 0 and label 1 have in the ambiguous part, (0, 1) or (1, 0); None: those of
            the more frequent combination.
        test: share of the counter groups to hold out, between 0 and 1.
        balanced: largest share of what the aligned groups have left that goes to the balanced part; 0 leaves that
            part out, and then the counter groups are held out whole.
        words, concepts: see `BiasedData`.
        seed: of the draw.

    Raises:
        OptionError: shares or attributes outside their range.
        TaskError: a group too small to have a text in each part, or one text in two groups.
    """
    _check(together, test, balanced)
    data = once(data)
    rng = np.random.default_rng(seed)
    if data.attributes is None:
        return _without_attributes(data, test, rng, frozenset(words), tuple(concepts))
    groups = data.groups
    rows = {group: rng.permutation(np.flatnonzero(groups == group)).tolist() for group in range(4)}
    aligned = _aligned(rows, together)
    parts = _parted(rows, aligned, test, balanced)
    if parts is None:
        raise TaskError(
            f"a group is too small to share out: {data.counts()}; of {', '.join(map(data.group_name, aligned))} three "
            "texts are needed, of the other two groups two (one less without a balanced part): add texts, or use "
            "other classes or values, together= or shares."
        )

    def mixed(chosen: Rows) -> Labelled:
        return data[rng.permutation([row for group in chosen.values() for row in group]).tolist()]

    train, even, held = parts
    few = min(map(len, held.values()))
    return BiasedData(
        train=mixed(train),
        test=mixed({group: some[:few] for group, some in held.items()}),
        balanced=mixed(even) if balanced else None,
        held_out=mixed(held),
        words=frozenset(words),
        concepts=tuple(concepts),
    )


def _without_attributes(
    data: Labelled, test: float | int, rng: np.random.Generator, words: frozenset[str], concepts: tuple[str, ...]
) -> BiasedData:
    """Two parts, each with as large a share of either class."""
    held: list[int] = []
    for label in (0, 1):
        rows = rng.permutation([row for row, own in enumerate(data.labels) if own == label]).tolist()
        held += rows[: _share(len(rows), test)]
    rest = [row for row in range(len(data)) if row not in set(held)]
    if len({data.labels[row] for row in rest}) < 2 or len({data.labels[row] for row in held}) < 2:
        counts = [data.labels.count(label) for label in (0, 1)]
        raise TaskError(f"texts of the classes {data.classes} are {counts}; each needs at least two: add texts.")
    train, even = (data[rng.permutation(part).tolist()] for part in (rest, held))
    return BiasedData(train, even, words=words, concepts=concepts)


def _check(together: tuple[int, int] | None, test: float | int, balanced: float | int) -> None:
    faults = [] if together in (None, (0, 1), (1, 0)) else [f"together={together}; allowed: (0, 1), (1, 0) or None"]
    faults += [] if 0 < test < 1 else [f"test={test}; allowed: between 0 and 1"]
    faults += [] if 0 <= balanced < 1 else [f"balanced={balanced}; allowed: from 0 to below 1"]
    if faults:
        raise OptionError(f"texts cannot be shared out by {'; '.join(faults)}. Change these.")


def _aligned(rows: Rows, together: tuple[int, int] | None) -> tuple[int, int]:
    """The groups of the ambiguous part."""
    if together is None:
        together = (0, 1) if len(rows[0]) + len(rows[3]) >= len(rows[1]) + len(rows[2]) else (1, 0)
    return together[0], 2 + together[1]


def _parted(
    rows: Rows, aligned: tuple[int, int], test: float | int, balanced: float | int
) -> tuple[Rows, Rows, Rows] | None:
    """Rows by group of the ambiguous, the balanced and the held-out part; None where one lacks a group."""
    counter = [group for group in rows if group not in aligned]
    held = {group: _share(len(rows[group]), test if balanced else 1.0) for group in counter}
    most = min(held.values())
    held |= {group: min(most, _share(len(rows[group]), test)) for group in aligned}
    rest = {group: len(rows[group]) - held[group] for group in rows}
    even = min([rest[group] for group in counter] + [_share(rest[group], balanced) for group in aligned])
    ambiguous = min(rest[group] - even for group in aligned)
    if min(*held.values(), ambiguous) < 1 or (balanced and even < 1):
        return None
    train = {group: rows[group][held[group] + even :][:ambiguous] for group in aligned}
    balance = {group: rows[group][held[group] :][:even] for group in rows}
    used = {row for part in (train, balance) for some in part.values() for row in some}
    return train, balance, {group: [row for row in rows[group] if row not in used] for group in rows}


def _share(count: int, share: float | int) -> int:
    """A share of a count, at least one and, unless the share is 0 or all, not all."""
    return round(count * share) if share in (0, 1) else min(max(1, round(count * share)), count - 1)
