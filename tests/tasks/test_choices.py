"""Coloured objects and multiple choice: the answer is what the prompt says, the wrong one what it says corrupted."""

import inspect
import re
from typing import Any

import pytest

from interp.errors import OptionError
from interp.tasks.choices import coloured_objects, mcqa


def answer(tokenizer: Any, ids: Any, row: int) -> str:
    return tokenizer.decode([int(ids[row, 0, 0])]).strip().lower()


@pytest.mark.parametrize("kind", ["bpe", "toy_tokenizer"])
def test_the_colour_is_that_of_the_object_asked_for(kind: str, request: Any) -> None:
    tokenizer = request.getfixturevalue(kind)
    task = coloured_objects(tokenizer, n=30)
    ordinals = ("first", "second", "third")
    for ids, prompts in ((task.answers.correct, task.clean), (task.answers.wrong, task.require_corrupted())):
        for row, tokens in enumerate(prompts.tokens):
            said = {role: tokens[where[row][0]].strip() for role, where in task.roles.items() if where[row]}
            colors = {said[o]: said[f"color{i + 1}"] for i, o in enumerate(ordinals) if o in said}
            assert answer(tokenizer, ids, row) == colors[said["query"]]
            assert len(set(colors.values())) == len(colors)


@pytest.mark.parametrize("corruption", ["letters", "position"])
def test_the_letter_stands_beside_the_colour_named(bpe: Any, corruption: str) -> None:
    task = mcqa(bpe, n=20, corruption=corruption)
    for ids, prompts in ((task.answers.correct, task.clean), (task.answers.wrong, task.require_corrupted())):
        for row, text in enumerate(prompts.texts or ()):
            color = re.search(r"is (\w+)\. What", text)[1]
            listed = {choice: letter.lower() for letter, choice in re.findall(r"([A-Z])\. (\w+)\n", text)}
            assert len(listed) == 4 and answer(bpe, ids, row) == listed[color]
    symbols = [tokens[where[0]] for tokens, where in zip(task.clean.tokens, task.roles["symbol"], strict=True)]
    assert [symbol.lower() for symbol in symbols] == [answer(bpe, task.answers.correct, row) for row in range(20)]


def test_changed_letters_are_all_new(bpe: Any) -> None:
    task = mcqa(bpe, n=20)
    for clean, corrupted in zip(task.clean.texts or (), task.require_corrupted().texts or (), strict=True):
        letters = [set(re.findall(r"([A-Z])\. ", text)) for text in (clean, corrupted)]
        assert len(letters[0] | letters[1]) == 8


def test_wrong_options_and_short_lists_are_refused(bpe: Any) -> None:
    with pytest.raises(OptionError, match="corruption is 'letter'; allowed: 'letters', 'position'; nearest: 'letters'"):
        inspect.unwrap(mcqa)(bpe, corruption="letter")
    with pytest.raises(OptionError, match="the list of other colors has 1 different entries, 3 are needed"):
        mcqa(bpe, lists={"pairs": [("apple", "red"), ("sky", "blue")]})
