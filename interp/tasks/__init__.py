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
from interp.tasks.hub import commonsense, mathematics
from interp.tasks.in_context import in_context, read_examples
from interp.tasks.induction import induction
from interp.tasks.ioi import ioi
from interp.tasks.join import joined
from interp.tasks.next_token import next_token
from interp.tasks.pair import Pair
from interp.tasks.pronouns import pronouns
from interp.tasks.registry import TASKS, describe_tasks, task
from interp.tasks.rules import rules

__all__ = [
    "TASKS",
    "Fact",
    "Pair",
    "Task",
    "agreement",
    "arithmetic",
    "coloured_objects",
    "commonsense",
    "describe_tasks",
    "docstring",
    "facts",
    "from_file",
    "greater_than",
    "in_context",
    "induction",
    "ioi",
    "joined",
    "make_task",
    "mathematics",
    "mcqa",
    "next_token",
    "pronouns",
    "read_examples",
    "read_facts",
    "read_lists",
    "rules",
    "task",
]
