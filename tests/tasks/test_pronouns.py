"""Pronouns: he and she as the person named, and the other in the corrupted prompt."""

import inspect
from typing import Any

import pytest

from interp.errors import OptionError
from interp.tasks.pronouns import STANDARD, TOY, pronouns


@pytest.mark.parametrize("kind", ["bpe", "toy_tokenizer"])
@pytest.mark.parametrize("who", ["name", "noun", "profession"])
def test_the_pronoun_has_the_persons_gender(kind: str, who: str, request: Any) -> None:
    tokenizer = request.getfixturevalue(kind)
    task = pronouns(tokenizer, who=who, n=20)
    lexicon = TOY if kind == "toy_tokenizer" else STANDARD
    lists = {"she": lexicon[f"{who}_female"], "he": lexicon[f"{who}_male"]}
    for row in range(len(task)):
        (place,) = task.roles["who"][row]
        right, wrong = (
            tokenizer.decode([int(ids[row, 0, 0])]).strip() for ids in (task.answers.correct, task.answers.wrong)
        )
        assert {right, wrong} == {"he", "she"}
        assert task.clean.tokens[row][place].strip() in lists[right]
        assert task.require_corrupted().tokens[row][place].strip() in lists[wrong]
    assert set(task.groups["gender"]) == {"female", "male"}


def test_an_unknown_kind_of_person_is_refused(bpe: Any) -> None:
    with pytest.raises(OptionError, match="who is 'nouns'; allowed: 'name', 'noun', 'profession'; nearest: 'noun'"):
        inspect.unwrap(pronouns)(bpe, who="nouns")
