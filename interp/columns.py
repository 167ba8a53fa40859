"""Columns of numbers: checked and read-only, and rows of several columns compared at once."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int64

from interp.errors import CircuitError


def frozen(values: Any, dtype: Any = None) -> np.ndarray:
    """`values` as a read-only array; copied when the caller could still write into it."""
    array = np.asarray(values, dtype=dtype)
    if array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
        array.setflags(write=False)
    return array


def whole_numbers(what: str, values: Any, dtype: type) -> np.ndarray:
    """`values` as a read-only integer column of `dtype`.

    Raises:
        CircuitError: they are no integers, or reach beyond `dtype`.
    """
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise CircuitError(f"{what} is {array.dtype} {array.shape}; give a one-dimensional array of integers.")
    limits = np.iinfo(dtype)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise CircuitError(
            f"{what} reaches from {array.min()} to {array.max()}; allowed: {limits.min} to {limits.max}."
        )
    return frozen(array, dtype)


def row_keys(columns: Sequence[Int[np.ndarray, " row"]]) -> Int64[np.ndarray, " row"]:
    """One number a row, equal exactly where all columns are equal.

    The columns are the digits of a number in a mixed radix; what would overflow is replaced by its rank first.

    >>> row_keys([np.array([0, 1, 0]), np.array([-1, 5, -1])]).tolist()
    [0, 13, 0]
    """
    keys = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for column in columns if len(keys) else ():
        low = int(column.min())
        radix = int(column.max()) - low + 1
        if span * radix >= 2**62:
            keys = np.unique(keys, return_inverse=True)[1]
            span = len(keys)
        keys = keys * radix + (column.astype(np.int64) - low)
        span *= radix
    return keys


def repeats(keys: Int64[np.ndarray, " row"]) -> Bool[np.ndarray, " row"]:
    """True at every row whose key an earlier row already has."""
    order = np.argsort(keys, kind="stable")
    repeated = np.zeros(len(keys), dtype=bool)
    repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return repeated


def find(keys: Int64[np.ndarray, " key"], wanted: Int64[np.ndarray, " wanted"]) -> Int64[np.ndarray, " wanted"]:
    """Where each wanted value stands in `keys` (all different), -1 where nowhere."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys)
    place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    return np.where(keys[order[place]] == wanted, order[place], -1)


def some(values: np.ndarray, shown: int = 5) -> str:
    """The first few values, and how many more there are.

    >>> some(np.arange(9), 2)
    '0, 1 and 7 more'
    """
    text = ", ".join(map(str, values[:shown].tolist()))
    return text if len(values) <= shown else f"{text} and {len(values) - shown:,} more"


def name_faults(what: str, names: Iterable[object]) -> list[str]:
    """A fault for each name that is no printable, non-empty string, or comes twice."""
    names = list(names)
    faults = [
        f"{what} name {name!r}; allowed: non-empty printable strings"
        for name in names
        if not (isinstance(name, str) and name and name.isprintable())
    ]
    return faults + [f"{what} name {name!r} given {n} times; keep one" for name, n in Counter(names).items() if n > 1]
