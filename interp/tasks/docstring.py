"""Docstring completion: which argument a Python docstring describes next, copied from the signature.

    def load(self, size, left, name, file, mode, key):
        \"\"\"open water house

        :param name: small paper
        :param file: early train
        :param

The answer is " mode" (C). A, B and C follow two other arguments in the signature and are followed by one; A and B have
been described. Measured against the largest logit of the other arguments. Corruptions:

- `random_random`: fresh arguments in the signature and fresh described ones;
- `random_doc`: fresh described arguments only;
- `random_def`: fresh arguments in the signature only;
- `random_answer`: a fresh C in the signature.
"""

import random
from functools import partial
from typing import Any, Literal

from interp.errors import check_choice
from interp.metrics import LogitDiff
from interp.tasks.base import Task
from interp.tasks.pair import Pair
from interp.tasks.template import Lexicon, Lists, choose, drawn_task, filled_pair, sample

Corruption = Literal["random_random", "random_doc", "random_def", "random_answer"]
# Slots of the signature and of the description that get fresh words.
SIGNATURE = ("before1", "before2", "A_def", "B_def", "C_def", "after")
CORRUPTED = {
    "random_random": (*SIGNATURE, "A_doc", "B_doc"),
    "random_doc": ("A_doc", "B_doc"),
    "random_def": SIGNATURE,
    "random_answer": ("C_def",),
}
STANDARD = Lexicon(
    "standard",
    "def load(self):",
    {
        "templates": (
            "def {method}(self, {before1}, {before2}, {A_def}, {B_def}, {C_def}, {after}):\n"
            '    """{noun1} {noun2} {noun3}\n\n'
            "    :param {A_doc}: {noun4} {noun5}\n"
            "    :param {B_doc}: {noun6} {noun7}\n"
            "    :param",
        ),
        "methods": "load run call save test build find start check send",
        "arguments": "size name file mode key value data path line text list item index count color width user group "
        "image table state date field label number order point title version level model target source option "
        "result parent node code page",
        "nouns": "house water city road river music story paper summer winter garden window train horse market island "
        "mountain bridge school letter doctor flower",
    },
)


def docstring(
    tokenizer: Any,
    *,
    n: int = 100,
    seed: int = 0,
    corruption: Corruption = "random_random",
    lists: Lists | None = None,
) -> Task:
    """Docstring completion: the next argument of the signature against all its other arguments.

    Args:
        n: number of prompts.
        seed: of the draws.
        corruption: see the module.
        lists: templates, methods, arguments or nouns to use instead.

    Raises:
        OptionError: an option outside its values.
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("corruption", corruption, CORRUPTED)
    lexicon = choose(tokenizer, "auto", lists, STANDARD)
    choices = {"template": lexicon["templates"], "method": lexicon["methods"], "draw": range(1_000_000)}
    make = partial(_pair, lexicon, CORRUPTED[corruption])
    record = {"corruption": corruption}
    return drawn_task("docstring", choices, make, lexicon, tokenizer, n, seed, record, metric=LogitDiff(against="max"))


def _pair(lexicon: Lexicon, fresh: tuple[str, ...], template: str, method: str, draw: int) -> Pair:
    """The prompt of one draw, whose number decides on the words."""
    rng = random.Random(draw)
    drawn = sample(rng, "arguments", lexicon["arguments"], len(SIGNATURE) + len(fresh))
    nouns = {f"noun{1 + i}": noun for i, noun in enumerate(sample(rng, "nouns", lexicon["nouns"], 7))}
    arguments = dict(zip(SIGNATURE, drawn, strict=False))
    answer = arguments["C_def"]
    described = {"A_doc": arguments["A_def"], "B_doc": arguments["B_def"]}
    return filled_pair(
        template,
        {"method": method, **nouns, **arguments, **described},
        dict(zip(fresh, drawn[len(SIGNATURE) :], strict=True)),
        " " + answer,
        [" " + other for other in arguments.values() if other != answer],
        {"template": template, "entity": answer},
    )
