"""Overlaps of sets: against brute force, and their ends."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp import overlaps
from interp.errors import OptionError

ABC = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1], [1, 1, 0, 0]], bool)


def test_indices_of_known_sets() -> None:
    assert overlaps.jaccard(ABC)[0].tolist() == pytest.approx([1, 1 / 3, 1 / 4, 1])
    assert overlaps.overlap_of_smaller(ABC)[1].tolist() == pytest.approx([0.5, 1, 1, 0.5])
    assert np.isnan(overlaps.jaccard(np.zeros((2, 3), bool))).all()
    assert overlaps.mean_of_pairs(overlaps.jaccard(ABC)) == pytest.approx(
        (1 / 3 + 1 / 4 + 1 + 2 / 3 + 1 / 3 + 1 / 4) / 6
    )


@given(st.integers(1, 7), st.data())
@settings(max_examples=40, deadline=None)
def test_chance_is_a_draw_of_all_sets(candidates: int, data: st.DataObject) -> None:
    first, second = data.draw(st.integers(1, candidates)), data.draw(st.integers(1, candidates))
    fixed = set(range(first))
    drawn = [set(other) for other in combinations(range(candidates), second)]
    both = data.draw(st.sampled_from([len(fixed & other) for other in drawn]))
    found = overlaps.chance(both, first, second, candidates)
    index = np.array([len(fixed & other) / len(fixed | other) for other in drawn])
    assert found.p == pytest.approx(np.mean([len(fixed & other) >= both for other in drawn]))
    assert found.jaccard == pytest.approx(index.mean())
    assert (index <= found.jaccard_high + 1e-12).mean() >= 0.95 - 1e-9
    assert (index < found.jaccard_high - 1e-12).mean() < 0.95 + 1e-9


def test_chance_says_which_sizes_cannot_be() -> None:
    with pytest.raises(OptionError, match="sets of 3 and 3 of 4 candidates cannot share 1"):
        overlaps.chance(1, 3, 3, 4)
    assert np.isnan(overlaps.chance(0, 0, 2, 4)).all()


def test_minimal_sets_contain_no_other_and_supersets_never_add() -> None:
    assert overlaps.minimal(ABC).tolist() == [True, True, False, False], "each distinct set once"
    more = np.concatenate([ABC, np.ones((1, 4), bool)])
    assert overlaps.minimal(more).sum() == overlaps.minimal(ABC).sum()
    rng = np.random.default_rng(0)
    sets = rng.random((40, 6)) < 0.5
    brute = {row.tobytes() for row in sets if not any((other <= row).all() and (other != row).any() for other in sets)}
    found = sets[overlaps.minimal(sets)]
    assert {row.tobytes() for row in found} == brute and len(found) == len(brute)


def test_parts_of_which_every_circuit_has_exactly_one() -> None:
    found = overlaps.substitutes(ABC[:2])
    assert [(one.tolist(), other.tolist()) for one, other in found] == [([1], [2])]
    assert overlaps.substitutes(ABC[[0, 0]]) == [], "what all have, or none, stands in for nothing"
    assert overlaps.substitutes(np.array([[1, 1, 0, 0], [0, 0, 1, 1]], bool))[0][1].tolist() == [2, 3], "as one part"


def test_distinct_and_effective_numbers() -> None:
    first, which = overlaps.distinct(ABC)
    assert first.tolist() == [0, 1, 2] and which.tolist() == [0, 1, 2, 0]
    assert overlaps.effective_number(ABC[[0, 0, 0]]) == pytest.approx(1)
    assert overlaps.effective_number(ABC[:3]) == pytest.approx(3)
    assert overlaps.effective_number(ABC) == pytest.approx(np.exp(0.5 * np.log(2) + 0.5 * np.log(4)))


def test_the_variance_splits_between_factors() -> None:
    methods, seeds = ["a", "a", "b", "b"], ["0", "1", "0", "1"]
    by_method = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], bool)
    found = overlaps.variance_split(by_method, {"method": methods, "seed": seeds})
    assert found == pytest.approx({"method": 1, "seed": 0, "rest": 0}, abs=1e-9)
    mixed = np.array([[1, 0], [1, 1], [0, 0], [0, 1]], bool)
    found = overlaps.variance_split(mixed, {"seed": seeds, "method": methods})
    assert found == pytest.approx({"seed": 0.5, "method": 0.5, "rest": 0}, abs=1e-9)
    assert np.isnan(overlaps.variance_split(by_method[:2], {"seed": ["0", "1"]})["seed"])
    with pytest.raises(OptionError, match=r"\{'seed': 1\}.*4 circuits"):
        overlaps.variance_split(mixed, {"seed": ["0"]})
