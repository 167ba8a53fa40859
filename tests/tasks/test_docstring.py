"""Docstrings: the answer is the third argument, and each corruption changes what it says."""

import inspect
from typing import Any

import pytest

from interp.errors import OptionError
from interp.metrics import LogitDiff
from interp.tasks.docstring import CORRUPTED, docstring


@pytest.mark.parametrize("corruption", CORRUPTED)
def test_the_answer_is_the_argument_after_those_described(bpe: Any, corruption: str) -> None:
    task = docstring(bpe, n=6, corruption=corruption)
    assert task.metric == LogitDiff(against="max") and task.answers.wrong.shape[-1] == 5
    corrupted = task.require_corrupted()
    for row, tokens in enumerate(task.clean.tokens):
        at = {role: where[row][0] for role, where in task.roles.items()}
        said, other = ({role: each[p].strip() for role, p in at.items()} for each in (tokens, corrupted.tokens[row]))
        assert said["A_doc"] == said["A_def"] and said["B_doc"] == said["B_def"]
        assert bpe.decode([int(task.answers.correct[row, 0, 0])]).strip() == said["C_def"]
        wrong = {bpe.decode([i]).strip() for i in task.answers.wrong[row, 0].tolist()}
        assert wrong == {said[role] for role in ("before1", "before2", "A_def", "B_def", "after")}
        assert {role for role in said if said[role] != other[role]} == set(CORRUPTED[corruption])
        assert task.clean.texts[row].endswith("\n    :param")


def test_bad_options_are_told(bpe: Any) -> None:
    with pytest.raises(OptionError, match="corruption is 'random_dec'; allowed: .*; nearest: 'random_do"):
        inspect.unwrap(docstring)(bpe, corruption="random_dec")
    with pytest.raises(OptionError, match="the list of nouns has 2 different entries, 7 are needed"):
        docstring(bpe, lists={"nouns": "house water"})
