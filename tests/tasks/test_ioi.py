"""IOI: who is named where, and what each corruption changes."""

import inspect
from typing import Any

import pytest

from interp import toy
from interp.errors import OptionError, TaskError
from interp.tasks.ioi import CORRUPTED, ioi


def named(task: Any, prompts: Any, role: str) -> list[str]:
    """The token at a role's first position, in each prompt."""
    return [tokens[where[0]].strip() for tokens, where in zip(prompts.tokens, task.roles[role], strict=True)]


@pytest.mark.parametrize("kind", ["bpe", "toy_tokenizer"])
@pytest.mark.parametrize("corruption", CORRUPTED)
def test_each_corruption_changes_the_names_it_says(kind: str, corruption: str, request: Any) -> None:
    tokenizer = request.getfixturevalue(kind)
    task = ioi(tokenizer, n=20, corruption=corruption)
    clean = {role: named(task, task.clean, role) for role in ("IO", "S1", "S2")}
    other = {role: named(task, task.require_corrupted(), role) for role in ("IO", "S1", "S2")}
    assert clean["S1"] == clean["S2"]
    assert clean["IO"] == [tokenizer.decode([i]).strip() for i in task.answers.correct[:, 0, 0]]
    assert clean["S1"] == [tokenizer.decode([i]).strip() for i in task.answers.wrong[:, 0, 0]]
    same = {role for role in clean if clean[role] == other[role]}
    assert same == {"s2_swap": {"IO", "S1"}, "s2_random": {"IO", "S1"}, "s1_io_swap": {"S2"}, "abc": set()}[corruption]
    if corruption == "s2_swap":
        assert other["S2"] == clean["IO"]
    if corruption == "s1_io_swap":
        assert (other["IO"], other["S1"]) == (clean["S1"], clean["IO"])
    for row in range(20):
        fresh = {other[role][row] for role in other} - {clean["IO"][row], clean["S1"][row]}
        assert len(fresh) == {"s2_swap": 0, "s2_random": 1, "s1_io_swap": 0, "abc": 3}[corruption]


def test_both_orders_occur_and_s1_plus_1_follows_s1(bpe: Any) -> None:
    task = ioi(bpe, n=40)
    assert set(task.groups["order"]) == {"ABBA", "BABA"}
    for order, first, subject, after in zip(
        task.groups["order"], task.roles["IO"], task.roles["S1"], task.roles["S1+1"], strict=True
    ):
        assert (first < subject) == (order == "ABBA") and after == (subject[-1] + 1,)


def test_the_toy_language_uses_prompts_its_model_was_not_trained_on(toy_tokenizer: Any) -> None:
    task = ioi(toy_tokenizer, n=30)
    assert task.parameters["style"] == "toy" and all(toy.is_test(text) for text in task.clean.texts or ())


def test_seeds_and_options_are_recorded_and_repeat(bpe: Any) -> None:
    first, again, other = (ioi(bpe, n=5, seed=seed) for seed in (3, 3, 4))
    assert first.clean.rows() == again.clean.rows() != other.clean.rows()
    assert first.parameters["seed"] == 3 and first.parameters["corruption"] == "s2_swap"


def test_a_split_by_names_leaks_no_name(bpe: Any) -> None:
    train, test = ioi(bpe, n=60).split(0.5)
    names = [{name for pair in side.groups["entity"] for name in pair.split("|")} for side in (train, test)]
    assert not names[0] & names[1]


def test_own_templates_and_names_can_be_given(bpe: Any) -> None:
    lists = {"templates": ["{first} met {second}; {S2} waved to"], "names": "Mary John Anna"}
    task = ioi(bpe, n=12, lists=lists)
    assert {text.split()[1] for text in task.clean.texts or ()} == {"met"}
    with pytest.raises(TaskError, match="12 good distinct pairs for the 13 asked for"):
        ioi(bpe, n=13, lists=lists)


def test_a_tokenizer_that_cuts_names_says_how(pieces: Any) -> None:
    with pytest.raises(
        TaskError, match=r"0 good distinct pairs for the 2(.|\n)*several tokens \(\d+\): pair .* answer ' "
    ):
        ioi(pieces, n=2)
    task = ioi(pieces, n=2, multi_token="sequence")
    assert len(task) == 2 and task.answers.positions.shape[1] > 1


def test_an_unknown_corruption_names_the_nearest(bpe: Any) -> None:
    with pytest.raises(OptionError, match="corruption is 's2_swp'; allowed: 's2_swap', .*; nearest: 's2_swap'"):
        inspect.unwrap(ioi)(bpe, corruption="s2_swp")
