"""Tasks: prompts, their corrupted counterparts, what should be said, and how it is measured.

Everything in a `Task` is already in token ids of one tokenizer; `make_task` builds one from strings, `Task.split`
divides one so that nothing of the test side was seen on the training side.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from interp.errors import OptionError, TaskError, nearest
from interp.metrics import Answers, Metric
from interp.tokens import Prompts, row_numbers

Positions = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Task:
    """A behaviour to explain: one row a prompt.

    Args:
        name: what the behaviour is called.
        clean: prompts that show the behaviour.
        answers: what is right and wrong, and at which positions of `clean` (and of `corrupted`) it is read off.
        metric: one value per prompt; higher = more of the behaviour.
        corrupted: their counterparts, equal in token length row by row, or None.
        roles: named position sets, such as `S2` or `end`: for each prompt its positions, from the first real token.
        groups: named properties, such as `template` or `entity`: one string a prompt, several values joined by "|".
        parameters: how it was built, as JSON values.
        tokenizer_fingerprint: of the tokenizer whose ids these are; "" when there was none.

    Raises:
        TaskError: parts that do not fit each other, all named together.
    """

    name: str
    clean: Prompts
    answers: Answers
    metric: Metric
    corrupted: Prompts | None = None
    roles: Mapping[str, tuple[Positions, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_fingerprint: str = ""

    def __post_init__(self) -> None:
        if faults := _misfits(self):
            raise TaskError(f"task {self.name!r} does not fit together: {'; '.join(faults)}. Build it with make_task.")

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, rows: int | slice | Sequence[int]) -> "Task":
        """The chosen prompts as a task of their own; an integer gives a task of one prompt."""
        picked = row_numbers(rows, len(self))
        return replace(
            self,
            clean=self.clean[picked],
            answers=self.answers[picked],
            corrupted=None if self.corrupted is None else self.corrupted[picked],
            roles={role: tuple(where[row] for row in picked) for role, where in self.roles.items()},
            groups={key: tuple(values[row] for row in picked) for key, values in self.groups.items()},
        )

    def require_corrupted(self) -> Prompts:
        """The corrupted prompts.

        Raises:
            TaskError: when there are none.
        """
        if self.corrupted is None:
            raise TaskError(
                f"task {self.name!r} has no corrupted prompts, which this method needs; build it from pairs with a "
                "corrupted prompt each, or use a method with an ablation of its own (zero, mean, resample)."
            )
        return self.corrupted

    def split(self, train: float = 0.8, by: str | Sequence[str] = ("entity",), seed: int = 0) -> "tuple[Task, Task]":
        """A training and a test task that share no clean prompt and no value of the groups in `by`.

        Each group's values are dealt to the two sides; a prompt whose values fall on both sides is left out (so two
        groups, or prompts with two entities, cost rows), and `parameters["split"]` says how many were.

        Args:
            train: share of each group's values, or of the prompts when `by` is empty, that go to the training side.
            by: groups to separate; none separates by clean prompt only.
            seed: of the deal.

        Raises:
            OptionError: `train` outside 0 to 1.
            TaskError: a group that the task lacks, or a side left without prompts.
        """
        if not 0 < train < 1:
            raise OptionError(f"train={train} is no share; it must lie between 0 and 1, both excluded.")
        by = (by,) if isinstance(by, str) else tuple(by)
        rng = random.Random(seed)
        prompts = self._prompt_keys()
        dealt = [_deal(self._values(key), train, rng) for key in by] or [_deal([[p] for p in prompts], train, rng)]
        sides = [side[0] if len(set(side)) == 1 else None for side in zip(*dealt, strict=True)]
        seen = {prompt for prompt, side in zip(prompts, sides, strict=True) if side == "train"}
        rows = {
            "train": [row for row, side in enumerate(sides) if side == "train"],
            "test": [row for row, side in enumerate(sides) if side == "test" and prompts[row] not in seen],
        }
        if not rows["train"] or not rows["test"]:
            raise TaskError(
                f"task {self.name!r} cannot be split by {list(by)} with train={train}: {len(rows['train'])} prompts "
                f"would train and {len(rows['test'])} test; use more prompts, another share, or fewer groups."
            )
        deal = {"by": list(by), "train": train, "seed": seed, "left_out": len(self) - sum(map(len, rows.values()))}
        return self._side("train", rows["train"], deal), self._side("test", rows["test"], deal)

    def _side(self, side: str, rows: list[int], deal: dict[str, Any]) -> "Task":
        return replace(self[rows], parameters={**self.parameters, "split": {"side": side, **deal}})

    def leakage(self, other: "Task") -> dict[str, int]:
        """How many prompts of this task share something with `other`.

        Returns:
            Counts of prompts: under "prompt" those whose clean prompt `other` has too, under each common group's
            name those with a value that `other` has too.
        """
        known = set(other._prompt_keys())
        found = {"prompt": sum(prompt in known for prompt in self._prompt_keys())}
        for key in self.groups.keys() & other.groups.keys():
            taken = {value for values in other._values(key) for value in values}
            found[key] = sum(not taken.isdisjoint(values) for values in self._values(key))
        return found

    def _prompt_keys(self) -> list[Positions]:
        return [tuple(row) for row in self.clean.rows()]

    def _values(self, key: str) -> list[list[str]]:
        """Each prompt's values of a group, taken apart at "|"."""
        if key not in self.groups:
            raise TaskError(
                f"task {self.name!r} has no group {key!r}; allowed: {list(self.groups)}{nearest(key, self.groups)}; "
                "with by=() prompts alone are separated."
            )
        return [value.split("|") for value in self.groups[key]]


def _deal(values: Sequence[Sequence[Any]], train: float, rng: random.Random) -> list[str | None]:
    """Each prompt's side, "train" or "test", or None where its values fall on both."""
    distinct = sorted({value for each in values for value in each})
    rng.shuffle(distinct)
    training = set(distinct[: min(max(round(train * len(distinct)), 1), len(distinct) - 1)])
    inside = [{value in training for value in each} for each in values]
    return ["train" if found == {True} else "test" if found == {False} else None for found in inside]


def _misfits(task: Task) -> list[str]:
    """What of a task's parts does not fit its clean prompts."""
    sizes = {"answers": len(task.answers)} | ({} if task.corrupted is None else {"corrupted": len(task.corrupted)})
    sizes |= {f"role {role!r}": len(where) for role, where in task.roles.items()}
    sizes |= {f"group {key!r}": len(values) for key, values in task.groups.items()}
    if uneven := [
        f"{what} has {size} rows for {len(task)} prompts" for what, size in sizes.items() if size != len(task)
    ]:
        return uneven
    faults = []
    for row, length in enumerate(task.clean.lengths.tolist()):
        if task.corrupted is not None and (other := int(task.corrupted.lengths[row])) != length:
            faults.append(f"prompt {row} has {length} tokens, its corrupted one {other}")
        places = {role: where[row] for role, where in task.roles.items()}
        places["scored"] = tuple(p for p in task.answers.positions[row].tolist() if p >= 0)
        outside = {role: where for role, where in places.items() if any(not 0 <= p < length for p in where)}
        faults += [f"prompt {row} has {role!r} at {where} of {length} tokens" for role, where in outside.items()]
    return faults
