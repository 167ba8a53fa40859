"""Several tasks as one: their prompts one after another."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from interp.errors import TaskError
from interp.metrics import Answers
from interp.tasks.base import Task
from interp.tokens import Prompts


def joined(tasks: Sequence[Task], name: str = "") -> Task:
    """One task of all prompts, in order; ids and answers are padded to the widest.

    Only roles and groups that all tasks have are kept, and corrupted prompts where all have them; the group ``task``
    names the task that a prompt is from. The metric is the first task's.

    Args:
        name: of the whole; by default the names with plus signs between.

    Raises:
        TaskError: no tasks, metrics of different kinds, or other tokenizers.
    """
    if not tasks:
        raise TaskError("there are no tasks to join; give one at least.")
    first = tasks[0]
    if metrics := {repr(task.metric) for task in tasks} - {repr(first.metric)}:
        raise TaskError(f"tasks with the metrics {first.metric!r} and {', '.join(metrics)} cannot be joined; use one.")
    if len({task.tokenizer_fingerprint for task in tasks}) > 1:
        raise TaskError("the tasks were built with different tokenizers; build them all with the model's own.")
    roles = [role for role in first.roles if all(role in task.roles for task in tasks)]
    groups = [key for key in first.groups if all(key in task.groups for task in tasks) and key != "task"]
    corrupted = [task.corrupted for task in tasks if task.corrupted is not None]
    answers = [task.answers for task in tasks]
    return replace(
        first,
        name=name or " + ".join(task.name for task in tasks),
        clean=_prompts([task.clean for task in tasks]),
        answers=Answers(
            _stacked([one.positions for one in answers]),
            _stacked([one.correct for one in answers]),
            _stacked([one.wrong for one in answers]),
        ),
        corrupted=_prompts(corrupted) if len(corrupted) == len(tasks) else None,
        roles={role: tuple(where for task in tasks for where in task.roles[role]) for role in roles},
        groups={key: tuple(value for task in tasks for value in task.groups[key]) for key in groups}
        | {"task": tuple(task.name for task in tasks for _ in range(len(task)))},
        parameters={"joined": [dict(task.parameters) for task in tasks]},
    )


def _prompts(all_prompts: Sequence[Prompts]) -> Prompts:
    texts = [one.texts for one in all_prompts]
    return Prompts(
        _stacked([one.ids for one in all_prompts], fill=0),
        torch.cat([one.lengths for one in all_prompts]),
        None if any(one is None for one in texts) else tuple(text for one in texts for text in one or ()),
        tuple(tokens for one in all_prompts for tokens in one.tokens),
    )


def _stacked(tensors: Sequence[Tensor], fill: int = -1) -> Tensor:
    """All rows, every later axis padded at its end to the widest."""
    sizes = [max(t.shape[axis] for t in tensors) for axis in range(1, tensors[0].ndim)]
    rows = []
    for tensor in tensors:
        missing = [size - have for size, have in zip(sizes, tensor.shape[1:], strict=True)]
        rows.append(pad(tensor, [n for size in reversed(missing) for n in (0, size)], value=fill))
    return torch.cat(rows)
