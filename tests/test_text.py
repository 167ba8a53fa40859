"""Contexts: pieces of text that together are the text's own tokens, in an order of their own."""

from collections import Counter

import pytest

from interp.errors import OptionError, PromptError
from interp.text import contexts
from interp.tokens import Prompts

TEXTS = ["a b c d e f g h i j k", "", "l m n", "o p q r s t u v"]


def letters(text: str, **_: object) -> dict[str, list[int]]:
    """A tokenizer: one id a letter, and a BOS (0) before the text."""
    return {"input_ids": [0, *(ord(letter) - 96 for letter in text.split())]}


def rows(prompts: Prompts) -> list[tuple[int, ...]]:
    return [tuple(row) for row in prompts.rows()]


def test_pieces_are_the_tokens_of_the_texts_cut_every_length_tokens():
    found = contexts(letters, TEXTS, length=4, shortest=1)
    wanted = [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (0, 12, 13, 14), (0, 15, 16, 17), (18, 19, 20, 21), (22,)]
    assert Counter(rows(found)) == Counter(wanted)


def test_rests_shorter_than_asked_are_left_out():
    assert {len(row) for row in rows(contexts(letters, TEXTS, length=4))} == {4}
    assert {len(row) for row in rows(contexts(letters, TEXTS, length=5, shortest=3))} == {5, 4}
    assert {len(row) for row in rows(contexts(letters, TEXTS, length=10, shortest=2))} == {10, 2, 4, 9}


def test_one_a_text_is_the_beginning_of_each():
    found = contexts(letters, TEXTS, length=4, one_a_text=True)
    assert sorted(rows(found)) == [(0, 1, 2, 3), (0, 12, 13, 14), (0, 15, 16, 17)]


def test_the_order_is_the_seeds_and_goes_across_texts():
    long = [" ".join("abcdefgh" * 4)] * 8
    found = [rows(contexts(letters, long, length=4, seed=seed)) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2] and Counter(found[0]) == Counter(found[2])


def test_it_stops_once_the_tokens_are_reached():
    whole = rows(contexts(letters, TEXTS, length=4))
    for tokens, n_rows in ((1, 1), (4, 1), (5, 2), (8, 2), (1000, len(whole))):
        assert rows(contexts(letters, TEXTS, length=4, tokens=tokens)) == whole[:n_rows]


def test_what_cannot_be_is_said():
    for wrong in ({"length": 0}, {"length": 4, "shortest": 5}, {"length": 4, "tokens": 0}):
        with pytest.raises(OptionError, match="allowed: 1 <= shortest <= length, tokens from 1"):
            contexts(letters, TEXTS, **wrong)
    with pytest.raises(PromptError, match="no text has 50 tokens or more"):
        contexts(letters, TEXTS, length=50)
