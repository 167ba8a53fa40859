"""Orders of verification: what has been spent when each candidate is known."""

import numpy as np
import pytest

from interp.errors import OptionError
from interp.rankings import at_random, by_blocks, by_estimate, by_subsets, by_tree

EFFECTS = np.array([0.0, 0.1, 0.0, 5.0, 0.0, 0.0, 2.0, 0.3, 0.0, 1.0])


def joint(members: np.ndarray) -> np.ndarray:
    """Effects that add up."""
    return members @ EFFECTS


def test_an_estimate_orders_by_magnitude_and_costs_its_passes_first():
    found = by_estimate(-EFFECTS, 4.0)
    assert found.order[:3].tolist() == [3, 6, 9] and found.spent[:3].tolist() == [5, 6, 7]
    assert found.costs(EFFECTS, 4).tolist() == [5, 6, 7, 8]


def test_random_order_is_one_of_all_and_comes_from_its_seed():
    found = at_random(10, seed=3)
    assert sorted(found.order) == list(range(10)) and found.spent.tolist() == list(range(1, 11))
    assert found.order.tolist() == at_random(10, seed=3).order.tolist() != at_random(10, seed=4).order.tolist()


def test_blocks_are_opened_from_the_largest_joint_effect_down():
    found = by_blocks(joint, 10, 4)  # joint effects 5.1, 2.3, 1.0
    assert found.order.tolist() == list(range(10)) and found.spent[0] == 4
    found = by_blocks(lambda members: members @ EFFECTS[::-1], 10, 4)  # 3.3, 5.0 and 0.1
    assert found.order.tolist() == [4, 5, 6, 7, 0, 1, 2, 3, 8, 9]
    assert by_blocks(joint, 10, 1).order[:3].tolist() == [3, 6, 9]


def test_subsets_find_what_adds_up():
    found = by_subsets(joint, 10, rounds=4000, share=0.3, seed=1)
    assert found.order[:3].tolist() == [3, 6, 9] and found.spent[:2].tolist() == [4001, 4002]
    with pytest.raises(OptionError, match="rounds=3.*raise rounds"):
        by_subsets(joint, 10, rounds=3, share=0.3)


def test_a_tree_opens_the_largest_block_and_counts_what_it_patched():
    found = by_tree(
        lambda members: members @ EFFECTS[:8], 8, 2
    )  # blocks 0-3 (5.1) and 4-7 (2.3), then 2-3 (5.0), then its two candidates
    assert sorted(found.order) == list(range(8))
    assert found.order[:2].tolist() == [2, 3] and found.spent[:2].tolist() == [5, 6]
    assert found.order[2:4].tolist() == [6, 7], "4-7 (2.3) comes before 0-1 (0.1)"
    assert found.spent[2:4].tolist() == [9, 10] and found.spent[-1] == 14
    assert by_tree(joint, 10, 10).spent.tolist() == list(range(1, 11))
    with pytest.raises(OptionError, match="branching=1"):
        by_tree(joint, 10, 1)


def test_every_candidate_is_verified_once_whatever_the_numbers():
    for n in (1, 2, 7, 30):
        for branching in (2, 3, 8):
            found = by_tree(lambda members: members.sum(1).astype(float), n, branching)
            assert sorted(found.order) == list(range(n)) and (np.diff(found.spent) > 0).all()
