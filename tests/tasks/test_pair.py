"""Roles and answers in token positions, under every kind of tokenizer."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.tasks.build import make_task
from interp.tasks.pair import Pair, single_ids

TEXT = "When Mary and John went to the store, John gave a drink to"


def covered(tokenizer: Any, text: str, start: int, end: int) -> str:
    """What the tokens of a role say, without spaces."""
    task = make_task("roles", [Pair(text, 5, roles={"it": [(start, end)]})], tokenizer)
    ids = task.clean.rows()[0]
    return tokenizer.decode([ids[p] for p in task.roles["it"][0]]).replace(" ", "")


@pytest.mark.parametrize("kind", ["bpe", "pieces"])
@pytest.mark.parametrize("word", ["Mary", "and", "went", "drink", "gave a drink"])
def test_a_roles_tokens_spell_its_words(kind: str, word: str, request: pytest.FixtureRequest) -> None:
    start = TEXT.index(word)
    said = covered(request.getfixturevalue(kind), TEXT, start, start + len(word))
    assert said == word.replace(" ", "")


def test_a_role_may_have_several_spans_and_partial_words(bpe: Any) -> None:
    task = make_task("roles", [Pair(TEXT, 5, roles={"S": [(14, 18), (38, 42)], "oh": [(15, 17)]})], bpe)
    tokens = task.clean.tokens[0]
    assert [tokens[p] for p in task.roles["S"][0]] == [" John", " John"]
    assert [tokens[p] for p in task.roles["oh"][0]] == [" John"]


@settings(max_examples=40, deadline=None)
@given(
    words=st.lists(st.sampled_from("Mary John went to the store zebra 17 32 é naïve".split()), min_size=2, max_size=8),
    data=st.data(),
)
def test_neighbouring_roles_share_no_token_and_cover_every_word(
    bpe: Any, words: list[str], data: st.DataObject
) -> None:
    text = " ".join(words)
    cut = data.draw(st.integers(1, len(words) - 1))
    border = len(" ".join(words[:cut]))
    roles = {"before": [(0, border)], "after": [(border + 1, len(text))]}
    task = make_task("roles", [Pair(text, 5, roles=roles)], bpe)
    before, after = set(task.roles["before"][0]), set(task.roles["after"][0])
    assert not before & after
    blank = {p for p, token in enumerate(task.clean.tokens[0]) if not token.strip()}
    assert before | after | blank == set(range(int(task.clean.lengths[0])))


def test_a_tokenizer_without_offsets_finds_roles_too(slow: Any) -> None:
    text = "to Mary to John to"
    task = make_task("roles", [Pair(text, " Mary", roles={"who": "John", "last": [(16, 18)]})], slow)
    assert task.roles == {"who": ((3,),), "last": ((4,),), "end": ((4,),)}


def test_an_answer_is_read_after_its_prompt(pieces: Any) -> None:
    """A sentencepiece tokenizer writes " Mary" alone otherwise than after a word."""
    alone = pieces(" Mary", add_special_tokens=False)["input_ids"]
    task = make_task("after", [Pair(TEXT, " Mary")], pieces, multi_token="sequence")
    said = [row[0] for row in task.answers.correct[0].tolist()]
    assert said == pieces(TEXT + " Mary")["input_ids"][-3:] != alone


def test_single_ids_are_those_after_the_context(bpe: Any, words: Callable[..., Any]) -> None:
    known = bpe.get_vocab()
    assert single_ids(bpe, "the", [" Mary", " John"]) == [known["ĠMary"], known["ĠJohn"]]
    assert single_ids(bpe, "the", [" Mary", " Marymary"]) is None
    assert single_ids(words("the Mary"), "the", [" Zoe"]) is None
    assert single_ids(bpe, "", [" Mary"]) is None
