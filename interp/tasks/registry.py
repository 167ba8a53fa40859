"""Every task by name."""

import inspect
from collections.abc import Callable
from typing import Any

from interp.errors import TaskError, check_options, nearest
from interp.tasks.agreement import agreement
from interp.tasks.arithmetic import arithmetic
from interp.tasks.base import Task
from interp.tasks.choices import coloured_objects, mcqa
from interp.tasks.docstring import docstring
from interp.tasks.facts import facts
from interp.tasks.files import from_file
from interp.tasks.greater_than import greater_than
from interp.tasks.hub import commonsense, mathematics
from interp.tasks.in_context import in_context
from interp.tasks.induction import induction
from interp.tasks.ioi import ioi
from interp.tasks.next_token import next_token
from interp.tasks.pronouns import pronouns
from interp.tasks.rules import rules

# Each takes a tokenizer and keyword options; the first line of its docstring describes it.
TASKS: dict[str, Callable[..., Task]] = {
    "ioi": ioi,
    "greater_than": greater_than,
    "agreement": agreement,
    "induction": induction,
    "pronouns": pronouns,
    "coloured_objects": coloured_objects,
    "mcqa": mcqa,
    "docstring": docstring,
    "arithmetic": arithmetic,
    "facts": facts,
    "in_context": in_context,
    "rules": rules,
    "commonsense": commonsense,
    "mathematics": mathematics,
    "next_token": next_token,
    "file": from_file,
}


def task(name: str, tokenizer: Any, **options: Any) -> Task:
    """The task of that name, built for a tokenizer.

    Args:
        name: a key of `TASKS`.
        tokenizer: of the model that the task is for.
        options: the builder's keyword arguments, such as ``n=32`` or ``corruption="abc"``.

    Raises:
        TaskError: an unknown name.
        OptionError: an unknown option.
    """
    if name not in TASKS:
        raise TaskError(f"no task {name!r}; allowed: {', '.join(TASKS)}{nearest(str(name), TASKS)}.")
    allowed = list(inspect.signature(TASKS[name]).parameters)[1:]
    check_options(f"task {name!r}", options, allowed)
    return TASKS[name](tokenizer, **options)


def describe_tasks() -> dict[str, str]:
    """Each task's name with one line on what it is."""
    return {name: (inspect.getdoc(builder) or "").partition("\n")[0] for name, builder in TASKS.items()}
