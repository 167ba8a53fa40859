"""Rule induction: "a^ b^ a" or "a^ b^ b", line after line (Yang et al. 2025, arXiv 2502.20332).

Each line has two words of its own, so only the rule can say which of the last line's two follows: nothing can be
copied from the lines before. The corrupted prompt has the same words under the other rule, which makes the wrong answer
the right one. Words are lowercase ones of the tokenizer's vocabulary that are one token after a space and at a line's
start, so that all prompts of as many lines are equally long.

Roles: a1, b1 and c1 (the repeated word) to a, b and c of the last complete line, query_a, query_b and end.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from interp.errors import OptionError, TaskError, check_choice
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.pair import Pair, single_ids
from interp.tasks.template import filled_pair
from interp.tokens import token_strings

Pattern = Literal["both", "ABA", "ABB"]
POOL = 200  # words to draw from: enough for distinct prompts, few enough to be found at once in a large vocabulary


def rules(
    tokenizer: Any,
    *,
    n: int = 100,
    seed: int = 0,
    lines: int = 4,
    pattern: Pattern = "both",
    corrupted: bool = True,
) -> Task:
    """Rule induction: which of a line's two words comes again, the first (ABA) or the second (ABB).

    Args:
        n: number of prompts.
        seed: of the words and of the draws.
        lines: complete lines before the one to complete.
        pattern: the rule; "both" takes turns.
        corrupted: give each prompt its counterpart under the other rule.

    Raises:
        OptionError: an option outside its values.
        TaskError: too few words are one token, or fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("pattern", pattern, get_args(Pattern))
    if lines < 1:
        raise OptionError(f"lines={lines}; allowed: at least 1, to show the rule.")
    if tokenizer is None:
        raise TaskError("rules draws words of a tokenizer's vocabulary, got None; pass the model's.")
    words = _words(tokenizer, seed, max(POOL, 4 * (lines + 1)))
    if len(words) < 2 * (lines + 1):
        raise TaskError(
            f"{len(words)} words of 2 to 8 lowercase letters are one token of this tokenizer after a space and at a "
            f"line's start, {2 * (lines + 1)} are needed; use fewer lines, or a model with another tokenizer."
        )
    patterns = ("ABA", "ABB") if pattern == "both" else (pattern,)
    record = {"seed": seed, "lines": lines, "pattern": pattern, "corrupted": corrupted, "words": len(words)}
    pairs = _pairs(words, patterns, lines, 20 * n + 200, seed, corrupted)
    return make_task("rules", pairs, tokenizer, on_fault="drop", n=n, parameters=record)


def _words(tokenizer: Any, seed: int, wanted: int) -> list[str]:
    """The first `wanted` usable words of the shuffled vocabulary, or all that there are."""
    ids = sorted(tokenizer.get_vocab().values())
    random.Random(seed).shuffle(ids)
    found: dict[str, None] = {}
    for index in ids:
        word = token_strings(tokenizer, [index])[0].removeprefix(" ")
        if re.fullmatch("[a-z]{2,8}", word) and word not in found and _is_one_token(tokenizer, word):
            found[word] = None
        if len(found) == wanted:
            break
    return list(found)


def _is_one_token(tokenizer: Any, word: str) -> bool:
    """Whether a word is one token after a space and at a line's start."""
    if single_ids(tokenizer, f"{word}^", [" " + word]) is None:
        return False
    without, begun = (len(tokenizer(text)["input_ids"]) for text in (f"{word}\n^", f"{word}\n{word}^"))
    return begun == without + 1


def _pairs(
    words: Sequence[str], patterns: Sequence[str], lines: int, most: int, seed: int, corrupted: bool
) -> Iterator[Pair]:
    """At most so many prompts, of words drawn anew for each."""
    rng = random.Random(seed)
    template = "\n".join(f"{{a{i}}}^ {{b{i}}}^ {{c{i}}}" for i in range(1, lines + 1)) + "\n{query_a}^ {query_b}^"
    for number in range(most):
        rule = patterns[number % len(patterns)]
        drawn = rng.sample(list(words), 2 * (lines + 1))
        names = [*(str(i) for i in range(1, lines + 1)), "query"]
        duos = dict(zip(names, zip(drawn[::2], drawn[1::2], strict=True), strict=True))
        pair = _pair(template, rule, duos)
        yield pair if corrupted else replace(pair, corrupted=None, corrupted_roles={})


def _pair(template: str, rule: str, duos: dict[str, tuple[str, str]]) -> Pair:
    """The prompt with each line's two words, under one rule and under the other."""
    query = duos["query"]
    first, second = {"query_a": query[0], "query_b": query[1]}, {}
    again = 0 if rule == "ABA" else 1
    for name, duo in duos.items():
        if name != "query":
            first |= {f"a{name}": duo[0], f"b{name}": duo[1], f"c{name}": duo[again]}
            second[f"c{name}"] = duo[1 - again]
    groups = {"pattern": rule, "entity": "|".join(query)}
    return filled_pair(template, first, second, " " + query[again], " " + query[1 - again], groups)
