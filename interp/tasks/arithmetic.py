"""Arithmetic: "Q: How much is 34 plus 58? A:" -> " 92"; corrupted by other operands or by the other operation.

How results are written depends on the tokenizer: the first form whose every result is one token is used and recorded.
A result begins with a space, or follows one that ends the prompt; results go up to the largest asked for or, where
every digit is a token, up to 9.
"""

import itertools
from functools import partial
from typing import Any, Literal, NamedTuple

from interp.errors import OptionError, TaskError, check_choice
from interp.tasks.base import Task
from interp.tasks.pair import Pair, single_ids
from interp.tasks.template import Lexicon, Lists, choose, drawn_task, fill, filled_pair
from interp.tokens import token_strings

OPERATIONS = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}
# What an operation becomes when it is corrupted.
OTHER = {"plus": "minus", "minus": "plus", "times": "plus"}
STANDARD = Lexicon(
    "standard",
    "Q: How much is 3 plus 5? A: 8",
    {"templates": ("Q: How much is {a} {operation} {b}? A:", "Q: What is {a} {operation} {b}? A:")},
)


class Problem(NamedTuple):
    """Two operands and what to do with them."""

    a: int
    operation: str
    b: int

    @property
    def result(self) -> int:
        """The right answer."""
        return OPERATIONS[self.operation](self.a, self.b)

    @property
    def slots(self) -> dict[str, str]:
        """What fills a template."""
        return {name: str(value) for name, value in self._asdict().items()}


class Form(NamedTuple):
    """How results are written: what ends the prompt, what begins the answer, and the largest result."""

    before: str
    space: str
    largest: int


def arithmetic(
    tokenizer: Any,
    *,
    operation: Literal["plus", "minus", "times"] = "plus",
    n: int = 100,
    seed: int = 0,
    corruption: Literal["operands", "operation"] = "operands",
    largest: int = 99,
    lists: Lists | None = None,
) -> Task:
    """Arithmetic on two whole numbers: the result against the corrupted prompt's result.

    Args:
        operation: what is asked for.
        n: number of prompts.
        seed: of the draws.
        corruption: other operands, or the other operation (plus for minus and times, minus for plus).
        largest: no operand and no result is above it.
        lists: templates (slots a, operation, b; without a space at the end) to use instead.

    Raises:
        OptionError: an option outside its values.
        TaskError: a tokenizer with no form of one-token results, or fewer prompts than were asked for.
    """
    check_choice("operation", operation, OPERATIONS)
    check_choice("corruption", corruption, ("operands", "operation"))
    if largest < 1:
        raise OptionError(f"largest is {largest}; it must be at least 1, so that there are two results.")
    lexicon = choose(tokenizer, "auto", lists, STANDARD)
    form = _find_form(tokenizer, lexicon["templates"][0], operation, largest)
    numbers = range(form.largest + 1)
    problems = [Problem(a, operation, b) for a, b in itertools.product(numbers, numbers)]
    problems = [problem for problem in problems if 0 <= problem.result <= form.largest]
    others = problems if corruption == "operands" else [None]
    choices = {"template": lexicon["templates"], "problem": problems, "other": others}
    record = {"operation": operation, "corruption": corruption, "form": form._asdict()}
    return drawn_task("arithmetic", choices, partial(_pair, form), lexicon, tokenizer, n, seed, record)


def _find_form(tokenizer: Any, template: str, operation: str, largest: int) -> Form:
    """The first form whose every result is one token after the prompt."""
    text, _ = fill(template, Problem(1, operation, 1).slots)
    for top, (before, space) in itertools.product((largest, min(largest, 9)), (("", " "), (" ", ""))):
        if single_ids(tokenizer, text + before, [space + str(result) for result in range(top + 1)]):
            return Form(before, space, top)
    shown = token_strings(tokenizer, tokenizer(f"{text} 9")["input_ids"])[-4:]
    raise TaskError(
        f"arithmetic: this tokenizer writes the end of the prompt and the result as {shown}; allowed: results of one "
        "token each. Use another task or another template."
    )


def _pair(form: Form, template: str, problem: Problem, other: Problem | None) -> Pair | None:
    """The prompt of one draw, or None where the corrupted result is the same or out of range."""
    changed = other or problem._replace(operation=OTHER[problem.operation])
    if problem.result == changed.result or not 0 <= changed.result <= form.largest:
        return None
    return filled_pair(
        template + form.before,
        problem.slots,
        changed.slots,
        form.space + str(problem.result),
        form.space + str(changed.result),
        {"template": template, "entity": f"{problem.a} {problem.operation} {problem.b}"},
    )
