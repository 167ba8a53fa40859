"""Sharing out labelled texts: what each part has, that no text is in two, and what is too little."""

from dataclasses import replace

import pytest

from interp.errors import OptionError, TaskError
from interp.labelled.base import BiasedData, Labelled
from interp.labelled.splitting import biased

GAP = (104, 160, 142, 71)  # screen M and F, sport M and F


def table(*counts: int) -> Labelled:
    """So many texts of each group in turn."""
    rows = [(group, row) for group, count in enumerate(counts) for row in range(count)]
    return Labelled(
        tuple(f"text {row} of {group}" for group, row in rows),
        tuple(group // 2 for group, _ in rows),
        tuple(group % 2 for group, _ in rows),
    )


def sizes(part: Labelled | None) -> tuple[int, ...]:
    assert part is not None
    return tuple(part.counts().values())


def test_the_parts_of_a_table_are_as_large_as_stated() -> None:
    data = biased(table(*GAP))
    assert sizes(data.train) == (0, 71, 71, 0)
    assert sizes(data.balanced) == (35, 35, 35, 35)
    assert sizes(data.test) == (36, 36, 36, 36)
    assert sizes(data.held_out) == (69, 54, 36, 36)


@pytest.mark.parametrize("counts", [GAP, (2, 3, 3, 2), (50, 9, 7, 400), (4, 300, 300, 300), (9, 4, 3, 8)])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 0.3), (0.9, 0.1), (0.5, 0.0)])
def test_no_text_is_in_two_parts_and_none_is_lost_but_from_the_aligned_groups(
    counts: tuple[int, ...], shares: tuple[float, float]
) -> None:
    given = table(*counts)
    data = biased(given, test=shares[0], balanced=shares[1])
    balanced = set(data.balanced.texts) if data.balanced else set()
    parts = [set(data.train.texts), balanced, set(data.all_held_out.texts)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(given)
    assert set(data.test.texts) <= parts[2]
    assert len(set(sizes(data.test))) == 1 and sizes(data.test)[0] == min(sizes(data.held_out))
    kept = dict(zip(given.texts, given.groups.tolist(), strict=True))
    for part in (data.train, data.test, data.all_held_out):
        assert [kept[text] for text in part.texts] == part.groups.tolist()


def test_a_larger_share_of_the_test_holds_out_more_of_the_counter_groups() -> None:
    few, many = (biased(table(*GAP), test=share) for share in (0.2, 0.8))
    assert sizes(few.test) == (14,) * 4 and sizes(many.test) == (57,) * 4
    assert sizes(few.balanced) == (57,) * 4 and sizes(many.balanced) == (14,) * 4


def test_the_balanced_part_takes_at_most_its_share_of_the_aligned_groups() -> None:
    assert sizes(biased(table(*GAP), balanced=0.1).balanced) == (11, 11, 11, 11)  # a tenth of 142 - 36


def test_without_a_balanced_part_the_counter_groups_are_held_out_whole() -> None:
    data = biased(table(*GAP), balanced=0)
    assert data.balanced is None and sizes(data.held_out) == (104, 89, 71, 71)
    assert sizes(data.train) == (0, 71, 71, 0) and sizes(data.test) == (71,) * 4
    assert sizes(biased(table(1, 2, 2, 1), balanced=0).train) == (0, 1, 1, 0)


def test_the_more_frequent_combination_is_ambiguous_unless_one_is_named() -> None:
    assert sizes(biased(table(9, 8, 8, 9)).train)[1] == 0
    assert sizes(biased(table(8, 9, 9, 8)).train)[0] == 0
    assert sizes(biased(table(8, 9, 9, 8), together=(0, 1)).train)[1] == 0


def test_the_same_seed_gives_the_same_parts_and_another_one_others() -> None:
    first, again, other = (biased(table(*GAP), seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert all(set(a.texts) != set(b.texts) for a, b in ((first.train, other.train), (first.test, other.test)))


def test_parts_are_mixed_so_that_a_batch_has_both_classes() -> None:
    data = biased(table(*GAP))
    assert all(set(part.labels[:20]) == {0, 1} for part in (data.train, data.test, data.all_held_out))


def test_names_words_and_concepts_travel_along() -> None:
    given = replace(table(*GAP), classes=("screen", "sport"), values=("M", "F"))
    data = biased(given, words=["she"], concepts=["film"])
    assert isinstance(data, BiasedData) and (data.words, data.concepts) == (frozenset({"she"}), ("film",))
    assert all(part.classes == given.classes and part.values == given.values for part in (data.train, data.test))


def test_a_text_that_occurs_twice_is_in_one_part_only() -> None:
    given = table(6, 6, 6, 6)
    twice = Labelled(given.texts * 2, given.labels * 2, (given.attributes or ()) * 2)
    data = biased(twice)
    assert len(data.train) + len(data.balanced or ()) + len(data.all_held_out) == 24


@pytest.mark.parametrize("counts", [(9, 1, 9, 9), (2, 9, 9, 9), (9, 9, 0, 9), (1, 9, 9, 1)])
def test_a_group_too_small_is_an_error_with_the_counts(counts: tuple[int, ...]) -> None:
    with pytest.raises(TaskError, match=rf"too small to share out: .*'0/0': {counts[0]}.*add texts"):
        biased(table(*counts), together=(0, 1))


def test_shares_and_pairs_outside_their_range_are_all_named() -> None:
    with pytest.raises(OptionError, match=r"together=\(0, 0\).*test=1.0.*balanced=-1"):
        biased(table(*GAP), together=(0, 0), test=1.0, balanced=-1)


def test_texts_without_attributes_are_shared_out_by_class() -> None:
    data = Labelled(tuple(f"text {i}" for i in range(30)), (0,) * 20 + (1,) * 10)
    parts = biased(data, test=0.3, seed=1)
    assert [parts.test.labels.count(label) for label in (0, 1)] == [6, 3] and len(parts.train) == 21
    assert set(parts.train.texts) | set(parts.test.texts) == set(data.texts)
    assert parts.balanced is None and biased(data, test=0.3, seed=1).test == parts.test
    with pytest.raises(TaskError, match=r"are \[1, 1\]; each needs at least two"):
        biased(Labelled(("a", "b"), (0, 1)))
