"""Templates and draws: what is filled where, and that draws are uniform, distinct and reproducible."""

import random
from typing import Any

import pytest

from interp.errors import OptionError, TaskError
from interp.tasks import template
from interp.tasks.pair import Pair
from interp.tasks.template import Lexicon, choose, draw_pairs, fill, filled_pair, in_use, sample


def test_filling_tells_where_each_slot_came_to_stand() -> None:
    text, spans = fill("{A} and {B} or {A}.", {"A": "x", "B": "long"})
    assert text == "x and long or x." and spans == {"A": [(0, 1), (14, 15)], "B": [(6, 10)]}
    assert [text[a:b] for a, b in spans["A"]] == ["x", "x"]


def test_a_slot_without_words_is_told() -> None:
    with pytest.raises(TaskError, match=r"template '\{name\} went' has a slot 'name'; allowed: first, second"):
        fill("{name} went", {"first": "a", "second": "b"})


def test_a_filled_pair_changes_only_what_it_should() -> None:
    pair = filled_pair("{A} saw {B}", {"A": "Mary", "B": "John"}, {"B": "Anna"}, " x", " y", {"entity": "e"})
    assert (pair.clean, pair.corrupted) == ("Mary saw John", "Mary saw Anna")
    assert pair.roles == pair.corrupted_roles == {"A": [(0, 4)], "B": [(9, 13)]}


def pair_of(a: int, b: str) -> Pair | None:
    return Pair(f"{a}{b}", " x") if a != 2 else None


def test_few_combinations_are_each_drawn_once() -> None:
    drawn = [pair.clean for pair in draw_pairs({"a": range(4), "b": "xy"}, pair_of, 0)]
    assert sorted(drawn) == ["0x", "0y", "1x", "1y", "3x", "3y"] and drawn != sorted(drawn)


def test_draws_depend_on_their_seed_alone() -> None:
    choices: dict[str, Any] = {"a": range(1000), "b": range(1000)}
    runs = []
    for seed, elsewhere in ((0, 0), (0, 1), (1, 0)):
        random.seed(elsewhere)
        pairs = draw_pairs(choices, pair_of, seed, lambda text: text[0] == "7")
        runs.append([next(pairs).clean for _ in range(5)])
    assert runs[0] == runs[1] != runs[2] and all(text[0] == "7" for text in runs[0])


def test_draws_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MOST_DRAWS", 100)
    assert sum(1 for _ in draw_pairs({"a": range(10**6)}, lambda a: Pair(str(a), " x"), 0)) == 100


PLAIN = Lexicon("plain", "The store", {"words": "a b", "pairs": (("a", "b"),)})
TOY = Lexicon("toy", "the store", {"words": "c"})


def test_the_style_that_the_tokenizer_knows_is_chosen(words: Any) -> None:
    assert choose(words("The store"), "auto", None, PLAIN, TOY).style == "plain"
    assert choose(words("the store"), "auto", None, PLAIN, TOY).style == "toy"
    assert choose(words("nothing"), "auto", None, PLAIN, TOY).style == "plain"
    assert choose(words("The store"), "toy", None, PLAIN, TOY)["words"] == ["c"]


def test_lists_can_be_replaced(words: Any) -> None:
    chosen = choose(words("The store"), "auto", {"words": "x y z"}, PLAIN, TOY)
    assert chosen["words"] == ["x", "y", "z"] and chosen["pairs"] == (("a", "b"),)


def test_without_a_tokenizer_there_are_no_words() -> None:
    with pytest.raises(TaskError, match="needs a tokenizer, got None; pass the model's, or use the task 'induction'"):
        choose(None, "auto", None, PLAIN)


def test_unknown_styles_and_lists_name_the_nearest(words: Any) -> None:
    with pytest.raises(OptionError, match="style is 'plane'; allowed: 'auto', 'plain', 'toy'; nearest: 'plain'"):
        choose(words("x"), "plane", None, PLAIN, TOY)
    with pytest.raises(OptionError, match="no list 'word'; allowed: words, pairs; nearest: 'words'"):
        choose(words("x"), "plain", {"word": "a"}, PLAIN, TOY)


def test_a_list_too_short_is_told() -> None:
    with pytest.raises(OptionError, match="the list of nouns has 1 different entries, 2 are needed; give more"):
        sample(random.Random(0), "nouns", ["a", "a"], 2)


def test_only_words_for_a_templates_slots_are_in_use() -> None:
    assert in_use(["{a} {b}", "{b} c"], {"b": "x y", "a": "z", "c": "no"}) == {"b": "x y", "a": "z"}
