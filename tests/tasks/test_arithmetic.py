"""Arithmetic: results are right, written as the tokenizer writes them, and within its range."""

import inspect
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest

from interp.errors import OptionError, TaskError
from interp.tasks.arithmetic import arithmetic

OPERATIONS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}


def result(text: str) -> int:
    a, operation, b = re.search(r"(\d+) (\w+) (\d+)\? A:", text).groups()
    return OPERATIONS[operation](int(a), int(b))


@pytest.mark.parametrize("corruption", ["operands", "operation"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_right_and_wrong_are_the_results_of_the_two_prompts(bpe: Any, operation: str, corruption: str) -> None:
    task = arithmetic(bpe, operation=operation, corruption=corruption, n=10)
    assert task.parameters["form"] == {"before": " ", "space": "", "largest": 9}
    for ids, prompts in ((task.answers.correct, task.clean), (task.answers.wrong, task.require_corrupted())):
        for row, text in enumerate(prompts.texts or ()):
            assert bpe.decode([int(ids[row, 0, 0])]) == str(result(text)) and text.endswith("A: ")
    changed = "operation" if corruption == "operation" else "a"
    assert any(
        task.clean.tokens[r][w[0]] != task.require_corrupted().tokens[r][w[0]]
        for r, w in enumerate(task.roles[changed])
    )


def test_numbers_with_their_space_in_one_token_reach_further(cutting: Callable[..., Any]) -> None:
    tokenizer = cutting(r" ?\d+", [f" {number}" for number in range(100)])
    task = arithmetic(tokenizer, n=50)
    assert task.parameters["form"] == {"before": "", "space": " ", "largest": 99}
    results = [result(text) for text in task.clean.texts or ()]
    assert max(results) > 20 and [int(tokenizer.decode([i])) for i in task.answers.correct[:, 0, 0]] == results


def test_what_cannot_be_written_is_told(words: Callable[..., Any], bpe: Any) -> None:
    with pytest.raises(
        TaskError, match="arithmetic: this tokenizer writes the end of the prompt and the result as .*'<unk>'"
    ):
        arithmetic(words("Q : How much is ? A"))
    with pytest.raises(OptionError, match="largest is 0; it must be at least 1"):
        arithmetic(bpe, largest=0)
    with pytest.raises(OptionError, match="operation is 'add'; allowed: 'plus', 'minus', 'times'"):
        inspect.unwrap(arithmetic)(bpe, operation="add")
    with pytest.raises(OptionError, match="corruption is 'operand'; allowed: 'operands', 'operation'; nearest"):
        inspect.unwrap(arithmetic)(bpe, corruption="operand")
