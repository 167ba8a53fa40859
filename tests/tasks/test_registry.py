"""Every task by name, and the laws that all of them keep."""

from typing import Any

import pytest

from interp.errors import OptionError, TaskError
from interp.metrics import Answers
from interp.tasks import TASKS, describe_tasks, task
from interp.tasks.base import Task

FROM_DATA = ["in_context", "commonsense", "mathematics", "next_token", "file"]
BUILT_IN = [name for name in TASKS if name not in FROM_DATA]
TOY = ["ioi", "greater_than", "agreement", "induction", "pronouns", "coloured_objects", "facts"]
CASES = [("bpe", name) for name in BUILT_IN] + [("toy_tokenizer", name) for name in TOY]


@pytest.fixture(params=CASES, ids=["-".join(case) for case in CASES], scope="module")
def built(request: pytest.FixtureRequest) -> tuple[Any, Task]:
    kind, name = request.param
    tokenizer = request.getfixturevalue(kind)
    return tokenizer, task(name, tokenizer, n=8, seed=1)


def test_clean_and_corrupted_differ_and_are_equally_long(built: tuple[Any, Task]) -> None:
    _, one = built
    assert len(one) == 8 and one.clean.lengths.tolist() == one.require_corrupted().lengths.tolist()
    for clean, corrupted in zip(one.clean.rows(), one.require_corrupted().rows(), strict=True):
        assert clean != corrupted


def test_right_and_wrong_answers_are_disjoint(built: tuple[Any, Task]) -> None:
    answers: Answers = built[1].answers
    for row in range(len(answers)):
        for right, wrong in zip(answers.correct[row].tolist(), answers.wrong[row].tolist(), strict=True):
            assert not ({i for i in right if i >= 0} & {i for i in wrong if i >= 0})


def test_the_end_is_the_last_position_and_is_scored(built: tuple[Any, Task]) -> None:
    _, one = built
    assert one.roles["end"] == tuple((int(last),) for last in one.clean.last)
    assert one.answers.positions.amax(1).tolist() == one.clean.last.tolist()


def test_the_ids_are_those_of_the_text(built: tuple[Any, Task]) -> None:
    tokenizer, one = built
    for text, ids in zip(one.clean.texts or (), one.clean.rows(), strict=False):
        assert tokenizer(text)["input_ids"] == ids


def test_an_answer_continues_its_prompt(built: tuple[Any, Task]) -> None:
    """tok(prompt + answer) = tok(prompt) + answer, for answers in words."""
    tokenizer, one = built
    for row, text in enumerate(one.clean.texts or ()):
        answer = int(one.answers.correct[row, 0, 0])
        said = tokenizer.decode([*one.clean.rows()[row], answer])[len(tokenizer.decode(one.clean.rows()[row])) :]
        assert tokenizer(text + said)["input_ids"] == [*one.clean.rows()[row], answer]


def test_the_same_seed_gives_the_same_task(built: tuple[Any, Task]) -> None:
    tokenizer, one = built
    again = task(one.name, tokenizer, n=8, seed=1)
    assert again.clean.rows() == one.clean.rows() and again.roles == one.roles and again.parameters == one.parameters


def test_every_task_has_one_line_on_what_it_is() -> None:
    lines = describe_tasks()
    assert lines.keys() == TASKS.keys() and all(20 < len(line) < 120 and line.endswith(".") for line in lines.values())


def test_unknown_names_and_options_name_the_nearest(bpe: Any) -> None:
    with pytest.raises(TaskError, match="no task 'greater-than'; allowed: ioi, .*; nearest: 'greater_than'"):
        task("greater-than", bpe)
    with pytest.raises(
        OptionError, match="task 'ioi' has no option 'coruption'; allowed: n, seed, .*nearest: 'corruption'"
    ):
        task("ioi", bpe, coruption="abc")


@pytest.mark.parametrize("name", ["mcqa", "docstring", "arithmetic"])
def test_what_the_toy_language_cannot_say_is_told(toy_tokenizer: Any, name: str) -> None:
    with pytest.raises(TaskError, match="<unk>"):
        task(name, toy_tokenizer, n=2)
