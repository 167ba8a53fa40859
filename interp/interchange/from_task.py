"""Any task with corrupted prompts as counterfactual examples: its answer is the one variable.

The corrupted prompt is the base, the clean one the source; with the variable taken from it, the clean answer should
follow: interchange accuracy, as the causal-variable track of MIB measures it (Mueller et al. 2025, arXiv 2504.13151).
"""

from collections.abc import Sequence

import numpy as np

from interp.errors import TaskError
from interp.interchange.examples import Counterfactuals
from interp.tasks.base import Task
from interp.tokens import Prompts, from_ids


def task_counterfactuals(
    task: Task, *, concept: str = "answer", train: float = 0.8, by: str | Sequence[str] = ("entity",), seed: int = 0
) -> dict[str, Counterfactuals]:
    """Training and test examples from a task, split as `Task.split` does.

    Args:
        task: with corrupted prompts; its first correct answer is what should follow.
        concept: the name of the variable that is exchanged.
        train, by, seed: of the split.

    Raises:
        TaskError: no corrupted prompts, or answers that are not read at the prompts' ends.
    """
    sets = dict(zip(("train", "test"), task.split(train, by, seed), strict=True))
    parts = {name: _columns(one) for name, one in sets.items()}
    ids = [row for base, source, _, _ in parts.values() for row in base.rows() + source.rows()]
    made = from_ids(ids)
    tokens = tuple(row for base, source, _, _ in parts.values() for row in (*base.tokens, *source.tokens))
    prompts = Prompts(made.ids, made.lengths, None, tokens if len(tokens) == len(ids) else ())
    lengths = tuple(n for _, _, _, own in parts.values() for n in (*own, *own))
    roles = {
        role: tuple(where for one in sets.values() for _ in range(2) for where in one.roles[role])
        for role in task.roles
    }
    groups = {
        key: tuple(value for one in sets.values() for _ in range(2) for value in one.groups[key]) for key in task.groups
    }
    found, first = {}, 0
    for name, (base, _, answers, _) in parts.items():
        rows = np.arange(len(base))
        told = (concept,) * len(base)
        found[name] = Counterfactuals(
            f"{task.name} {concept}", prompts, lengths, first + rows, first + len(base) + rows, answers, told, told,
            roles=roles, groups=groups, tokenizer_fingerprint=task.tokenizer_fingerprint,
            parameters={**task.parameters, "set": name},
        )  # fmt: skip
        first += 2 * len(base)
    return found


def _columns(task: Task) -> tuple[Prompts, Prompts, tuple[tuple[int, ...], ...], list[int]]:
    """Base rows, source rows (without what follows the prompt), answers, and lengths of the prompts."""
    base, clean = task.require_corrupted(), task.clean
    present = task.answers.present
    answers = tuple(
        tuple(int(ids[0]) for ids, there in zip(row, own, strict=True) if there)
        for row, own in zip(task.answers.correct, present, strict=True)
    )
    at = [row[own].tolist() for row, own in zip(task.answers.positions, present, strict=True)]
    whole = clean.lengths.tolist()
    odd = [n for n, row in enumerate(at) if row != list(range(whole[n] - len(row), whole[n]))]
    if odd:
        raise TaskError(f"task {task.name!r}: prompts {odd[:5]} have answers elsewhere than at their ends.")
    lengths = [n - len(answer) + 1 for n, answer in zip(whole, answers, strict=True)]
    source = from_ids([row[:n] for row, n in zip(clean.rows(), lengths, strict=True)])
    tokens = tuple(row[:n] for row, n in zip(clean.tokens, lengths, strict=True)) if clean.tokens else ()
    return base, Prompts(source.ids, source.lengths, None, tokens), answers, lengths
