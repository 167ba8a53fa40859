"""Task: its parts fit, its rows stay together, its split leaks nothing."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import OptionError, TaskError
from interp.metrics import Answers, LogProb
from interp.tasks.base import Task
from interp.tokens import from_ids


def make(rows: list[list[int]], **parts: Any) -> Task:
    """A task of given ids whose last position is scored."""
    prompts = from_ids(rows)
    positions = prompts.last[:, None]
    one = torch.ones(len(rows), 1, 1, dtype=torch.long)
    return Task("toy", prompts, Answers(positions, one, one[..., :0]), LogProb(), **parts)


def grouped(entities: list[str], **groups: list[str]) -> Task:
    """A task with one distinct prompt a row."""
    columns = {"entity": entities, **groups}
    rows = [[5, i, 6] for i in range(len(entities))]
    return make(rows, groups={key: tuple(values) for key, values in columns.items()})


def test_rows_stay_together() -> None:
    task = make(
        [[1, 2], [3, 4, 5], [6]],
        corrupted=from_ids([[7, 8], [9, 10, 11], [12]]),
        roles={"end": ((1,), (2,), (0,))},
        groups={"entity": ("a", "b", "c")},
    )
    picked = task[[2, 1]]
    assert picked.clean.rows() == [[6], [3, 4, 5]] and picked.require_corrupted().rows() == [[12], [9, 10, 11]]
    assert picked.answers.positions.tolist() == [[0], [2]]
    assert picked.roles == {"end": ((0,), (2,))} and picked.groups == {"entity": ("c", "b")}
    assert len(task[0]) == 1 and len(task[1:]) == 2 and task[-1].clean.rows() == [[6]]


def test_what_does_not_fit_is_told_together() -> None:
    with pytest.raises(TaskError) as caught:
        make(
            [[1, 2], [3, 4, 5]],
            corrupted=from_ids([[7], [9, 10, 11]]),
            roles={"S": ((1,), (3,))},
        )
    assert "prompt 0 has 2 tokens, its corrupted one 1" in str(caught.value)
    assert "prompt 1 has 'S' at (3,) of 3 tokens" in str(caught.value)
    with pytest.raises(TaskError, match="role 'S' has 1 rows for 2 prompts; group 'entity' has 3 rows for 2 prompts"):
        make([[1], [2]], roles={"S": ((0,),)}, groups={"entity": ("a", "b", "c")})


def test_a_task_without_corrupted_prompts_says_so() -> None:
    with pytest.raises(TaskError, match="task 'toy' has no corrupted prompts, which this method needs; build it from"):
        make([[1]]).require_corrupted()


@settings(max_examples=60, deadline=None)
@given(
    entities=st.lists(st.sampled_from(["a", "b", "c", "d", "a|b", "c|d", "e"]), min_size=2, max_size=30),
    seed=st.integers(0, 100),
    train=st.sampled_from([0.2, 0.5, 0.8]),
)
def test_no_entity_and_no_prompt_is_on_both_sides(entities: list[str], seed: int, train: float) -> None:
    task = grouped(entities)
    try:
        first, second = task.split(train, seed=seed)
    except TaskError as error:
        assert "cannot be split by ['entity']" in str(error)
        return
    assert second.leakage(first) == {"prompt": 0, "entity": 0}
    left_out = first.parameters["split"]["left_out"]
    assert len(first) + len(second) + left_out == len(task)
    assert (first.parameters["split"]["side"], second.parameters["split"]["side"]) == ("train", "test")


def test_a_split_by_one_group_leaves_no_prompt_out() -> None:
    first, second = grouped([f"e{i % 10}" for i in range(40)]).split(0.7)
    assert (len(first), len(second)) == (28, 12)


def test_a_split_by_two_groups_separates_both() -> None:
    task = grouped([f"e{i % 5}" for i in range(50)], template=[f"t{i // 10}" for i in range(50)])
    first, second = task.split(0.6, by=("entity", "template"))
    assert second.leakage(first) == {"prompt": 0, "entity": 0, "template": 0}
    assert len(first) == 9 * 2 and len(second) == 4 * 2 and first.parameters["split"]["left_out"] == 24


def test_a_prompt_of_two_entities_never_falls_on_both_sides() -> None:
    task = make([[1, i] for i in range(20)] * 2, groups={"entity": tuple(f"e{i}" for i in range(40))})
    first, second = task.split(0.5)
    assert second.leakage(first)["prompt"] == 0
    assert first.parameters["split"]["left_out"] == 40 - len(first) - len(second) > 0


def test_prompts_alone_can_be_split() -> None:
    task = make([[i] for i in range(10)] * 2)
    first, second = task.split(0.8, by=())
    assert (len(first), len(second)) == (16, 4) and second.leakage(first) == {"prompt": 0}


def test_a_split_is_reproducible() -> None:
    task = grouped([f"e{i}" for i in range(20)])
    rows = [task.split(seed=seed)[1].clean.rows() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_leakage_counts_what_is_shared() -> None:
    first, second = grouped(["a|b", "c", "d"]), grouped(["b", "e"])
    assert second.leakage(first) == {"prompt": 2, "entity": 1}
    assert first.leakage(second) == {"prompt": 2, "entity": 1}


def test_what_cannot_be_split_is_told() -> None:
    task = grouped(["a", "b"])
    with pytest.raises(
        TaskError, match=r"no group 'entty'; allowed: \['entity'\]; nearest: 'entity'; with by=\(\) prompts"
    ):
        task.split(by="entty")
    with pytest.raises(OptionError, match="train=1.5 is no share; it must lie between 0 and 1"):
        task.split(1.5)
    with pytest.raises(TaskError, match=r"cannot be split by \['entity'\] with train=0.8: 0 prompts would train and 2"):
        grouped(["a", "a"]).split()
