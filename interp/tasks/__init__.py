"""Behaviours to explain: prompts, answers and metric, built for the tokenizer at hand."""

from interp.tasks.agreement import agreement
from interp.tasks.arithmetic import arithmetic
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.choices import coloured_objects, mcqa
from interp.tasks.docstring import docstring
from interp.tasks.facts import Fact, facts, read_facts
from interp.tasks.files import from_file, read_lists
from interp.tasks.greater_than import greater_than
from interp.tasks.induction import induction
from interp.tasks.ioi import ioi
from interp.tasks.pair import Pair
from interp.tasks.pronouns import pronouns
from interp.tasks.registry import TASKS, describe_tasks, task

__all__ = [
    "TASKS",
    "Fact",
    "Pair",
    "Task",
    "agreement",
    "arithmetic",
    "coloured_objects",
    "describe_tasks",
    "docstring",
    "facts",
    "from_file",
    "greater_than",
    "induction",
    "ioi",
    "make_task",
    "mcqa",
    "pronouns",
    "read_facts",
    "read_lists",
    "task",
]
