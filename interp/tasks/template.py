"""Prompts from templates and word lists: draw what fills the slots, and fill clean and corrupted alike.

A `Lexicon` is data: a behaviour's templates and word lists in one style. "standard" is ordinary English, "toy" the
embedded model's language. One builder a behaviour works on either.
"""

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from interp.errors import OptionError, TaskError, check_choice, nearest
from interp.metrics import Metric
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.pair import Answer, MultiToken, Pair, Span

# Lists by name; words may be given as one string with spaces between.
Lists = Mapping[str, str | Sequence[Any]]

# Draws after which a search for prompts ends, whatever it has found.
MOST_DRAWS = 50_000
_SLOT = re.compile(r"{(\w+)}")


@dataclass(frozen=True)
class Lexicon:
    """Templates and word lists of one style.

    Args:
        style: its name.
        probe: a text of typical words; the style suits tokenizers that know them all.
        lists: templates and words by name.
        keep: which clean prompts may be used (the toy model was trained on the others).
    """

    style: str
    probe: str
    lists: Lists
    keep: Callable[[str], bool] = bool

    def __getitem__(self, name: str) -> Sequence[Any]:
        values = self.lists[name]
        return values.split() if isinstance(values, str) else values


def choose(tokenizer: Any, style: str, lists: Lists | None, *lexicons: Lexicon) -> Lexicon:
    """The lexicon of that style, or for "auto" the first whose words the tokenizer knows (else the first of all).

    Args:
        lists: lists to use in place of the lexicon's own of the same names.

    Raises:
        TaskError: no tokenizer.
        OptionError: an unknown style or list.
    """
    if tokenizer is None:
        raise TaskError("a task in words needs a tokenizer, got None; pass the model's, or use the task 'induction'.")
    known = {lexicon.style: lexicon for lexicon in lexicons}
    check_choice("style", style, ("auto", *known))
    fitting = [each for each in lexicons if tokenizer.unk_token_id not in tokenizer(each.probe)["input_ids"]]
    chosen = (fitting or lexicons)[0] if style == "auto" else known[style]
    for name in lists or {}:
        if name not in chosen.lists:
            raise OptionError(f"no list {name!r}; allowed: {', '.join(chosen.lists)}{nearest(name, chosen.lists)}.")
    return replace(chosen, lists={**chosen.lists, **(lists or {})})


def sample(rng: random.Random, what: str, values: Sequence[Any], count: int) -> list[Any]:
    """`count` different values in random order.

    Raises:
        OptionError: when there are fewer.
    """
    distinct = list(dict.fromkeys(values))
    if len(distinct) < count:
        raise OptionError(f"the list of {what} has {len(distinct)} different entries, {count} are needed; give more.")
    return rng.sample(distinct, count)


def in_use(templates: Sequence[str], values: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Those of `values` that are named as a slot of some template."""
    slots = {slot for template in templates for slot in _SLOT.findall(template)}
    return {slot: each for slot, each in values.items() if slot in slots}


def fill(template: str, words: Mapping[str, str]) -> tuple[str, dict[str, list[Span]]]:
    """The template with its slots filled, and each slot's character spans.

    Raises:
        TaskError: a slot without a word.

    >>> fill("{A} saw {B}", {"A": "Mary", "B": "John"})
    ('Mary saw John', {'A': [(0, 4)], 'B': [(9, 13)]})
    """
    text, done = "", 0
    spans: dict[str, list[Span]] = {}
    for slot in _SLOT.finditer(template):
        if slot[1] not in words:
            raise TaskError(
                f"template {template!r} has a slot {slot[1]!r}; allowed: {', '.join(words)}; rename it or give a list."
            )
        text += template[done : slot.start()]
        spans.setdefault(slot[1], []).append((len(text), len(text) + len(words[slot[1]])))
        text, done = text + words[slot[1]], slot.end()
    return text + template[done:], spans


def filled_pair(
    template: str,
    words: Mapping[str, str],
    changed: Mapping[str, str],
    answer: Answer | Sequence[Answer],
    wrong: Answer | Sequence[Answer],
    groups: Mapping[str, str],
) -> Pair:
    """A pair from one template: filled with `words`, corrupted by `changed`; every slot is a role."""
    clean, roles = fill(template, words)
    corrupted, corrupted_roles = fill(template, {**words, **changed})
    return Pair(clean, answer, wrong, corrupted, roles, corrupted_roles, groups)


def draw_pairs(
    choices: Mapping[str, Sequence[Any]],
    make: Callable[..., Pair | None],
    seed: int,
    keep: Callable[[str], bool] = bool,
) -> Iterator[Pair]:
    """Pairs made from random draws of one value from each list; from every combination, where they are few.

    Args:
        choices: what each keyword of `make` may be.
        make: the pair of a draw, or None where the draw makes no prompt (the same name twice, say).
        seed: of a generator of its own.
        keep: which clean texts to use.
    """
    rng, total = random.Random(seed), math.prod(map(len, choices.values()))
    few = total <= MOST_DRAWS
    for number in rng.sample(range(total), total) if few else (rng.randrange(total) for _ in range(MOST_DRAWS)):
        drawn = {}
        for name, values in choices.items():
            number, index = divmod(number, len(values))
            drawn[name] = values[index]
        pair = make(**drawn)
        if pair is not None and keep(str(pair.clean)):
            yield pair


def drawn_task(
    name: str,
    choices: Mapping[str, Sequence[Any]],
    make: Callable[..., Pair | None],
    lexicon: Lexicon,
    tokenizer: Any,
    n: int,
    seed: int,
    record: Mapping[str, Any],
    *,
    metric: str | Metric | None = None,
    multi_token: MultiToken = "error",
) -> Task:
    """A task of `n` prompts drawn as in `draw_pairs`; pairs that do not fit the tokenizer are dropped and counted.

    Args:
        record: what the task was asked for, kept beside seed and style.
        metric, multi_token: see `make_task`.
    """
    pairs = draw_pairs(choices, make, seed, lexicon.keep)
    asked = {"seed": seed, "style": lexicon.style, **record}
    return make_task(
        name, pairs, tokenizer, metric=metric, n=n, on_fault="drop", multi_token=multi_token, parameters=asked
    )
