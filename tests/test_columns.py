"""Columns are checked, read-only, and compared row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.columns import find, frozen, name_faults, repeats, row_keys, some, whole_numbers
from interp.errors import CircuitError

ROWS = st.integers(1, 30).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 1), min_size=n, max_size=n), min_size=1, max_size=5
    )
)


def test_frozen_copies_what_the_caller_can_write_and_shares_what_nobody_can():
    mine = np.arange(3)
    taken = frozen(mine)
    mine[0] = 7
    assert taken.tolist() == [0, 1, 2]
    assert mine.flags.writeable
    assert frozen(taken) is taken
    with pytest.raises(ValueError, match="read-only"):
        taken[0] = 1


@settings(max_examples=50, deadline=None)
@given(ROWS)
def test_row_keys_are_equal_exactly_where_rows_are(columns):
    rows = list(zip(*columns, strict=True))
    keys = row_keys([np.array(column, dtype=np.int64) for column in columns]).tolist()
    assert [[a == b for b in keys] for a in keys] == [[a == b for b in rows] for a in rows]


def test_row_keys_of_columns_too_wide_for_one_number_stay_exact():
    """Two columns of all 2**32 values push the first one out of 64 bits, unless it is packed."""
    low, high = -(2**31), 2**31 - 1
    wide = np.array([low, low, high, low])
    keys = row_keys([np.array([0, 1, 0, 0]), wide, wide])
    assert np.flatnonzero(repeats(keys)).tolist() == [3]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-5, 5), unique=True), st.lists(st.integers(-6, 6)))
def test_find_gives_the_place_or_minus_one(keys, wanted):
    found = find(np.array(keys, dtype=np.int64), np.array(wanted, dtype=np.int64))
    assert found.tolist() == [keys.index(value) if value in keys else -1 for value in wanted]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5], r"weights is float64 \(1,\); give a one-dimensional array of integers"),
        ([[1]], r"weights is int64 \(1, 1\)"),
        ([300], "weights reaches from 300 to 300; allowed: -128 to 127"),
    ],
)
def test_a_column_that_is_no_small_integer_is_refused_rather_than_wrapped(values, message):
    with pytest.raises(CircuitError, match=message):
        whole_numbers("weights", np.array(values), np.int8)


def test_names_must_be_printable_and_different():
    assert name_faults("role", ["S2", "last name", "été"]) == []
    assert name_faults("role", ["a", "a", "", "b\n", 3]) == [
        "role name ''; allowed: non-empty printable strings",
        "role name 'b\\n'; allowed: non-empty printable strings",
        "role name 3; allowed: non-empty printable strings",
        "role name 'a' given 2 times; keep one",
    ]


def test_long_lists_are_shortened():
    assert some(np.arange(3)) == "0, 1, 2"
    assert some(np.arange(2000)) == "0, 1, 2, 3, 4 and 1,995 more"
