"""Objects and their colours: asked in words (`coloured_objects`) or by the letter of a choice (`mcqa`)."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from string import ascii_uppercase
from typing import Any, Literal

from interp.errors import check_choice
from interp.tasks.base import Task
from interp.tasks.pair import MultiToken, Pair
from interp.tasks.template import Lexicon, Lists, choose, drawn_task, filled_pair, in_use, sample
from interp.toy import prompts, words

ORDINALS = ("first", "second", "third", "fourth")
COLORS = ("color1", "color2", "color3", "color4")
_COLORS = "red blue black white brown yellow"
_SHOT = (
    "Q: On the shelf, I see a green hat, a pink vase and a gray shoe. What color is the vase?\nA: Pink\n"
    "Q: On the {place}, I see a {color1} {first}, a {color2} {second} and a {color3} {third}. "
    "What color is the {query}?\nA:"
)
STANDARD = Lexicon(
    "standard",
    "What color is the red book",
    {
        "templates": (_SHOT,),
        "objects": "book pen cup bag ball box coin key plate lamp bottle ring phone clock",
        "colors": tuple((color, " " + color.capitalize()) for color in _COLORS.split()),
        "places": "table desk floor bed counter chair",
    },
)
TOY = Lexicon(
    "toy",
    "the color of the book is red",
    {
        "templates": prompts.COLOR_TEMPLATES,
        "objects": tuple(noun.singular for noun in words.OBJECTS),
        "colors": tuple((color, " " + color) for color in words.COLORS),
        "places": words.PLACES,
    },
    prompts.is_test,
)
MCQA = Lexicon(
    "standard",
    "What color is it?",
    {
        "templates": (
            "The {object} is {color}. What color is it?\n{letter1}. {choice1}\n{letter2}. {choice2}\n"
            "{letter3}. {choice3}\n{letter4}. {choice4}\nAnswer:",
        ),
        "pairs": tuple(
            (thing, color)
            for color, things in (
                ("red", "apple cherry tomato rose brick heart"),
                ("yellow", "banana lemon sun duck corn taxi"),
                ("green", "leaf frog lime grass pea cactus"),
                ("blue", "sky ocean jay whale sapphire lake"),
                ("black", "coal crow tire panther night raven"),
                ("white", "snow milk swan cloud bone salt"),
                ("brown", "bear acorn mud bark chocolate coffee"),
                ("orange", "carrot pumpkin tiger flame fox peach"),
                ("gray", "elephant mouse stone ash dolphin shark"),
                ("pink", "pig flamingo salmon shrimp ham gum"),
            )
            for thing in things.split()
        ),
    },
)


def coloured_objects(
    tokenizer: Any,
    *,
    n: int = 100,
    seed: int = 0,
    style: str = "auto",
    lists: Lists | None = None,
    multi_token: MultiToken = "error",
) -> Task:
    """Coloured objects: the colour of the object asked for, among those listed; corrupted by asking for another.

    Args:
        n: number of prompts.
        seed: of the draws.
        style: "standard", "toy", or "auto" for what the tokenizer's vocabulary suits.
        lists: to use instead: templates (slots first, color1, second, color2, ..., query, place), objects, colors
            as pairs (colour, answer), places.
        multi_token: see `make_task`.

    Raises:
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    lexicon = choose(tokenizer, style, lists, STANDARD, TOY)
    things = dict.fromkeys(ORDINALS, lexicon["objects"]) | dict.fromkeys(COLORS, lexicon["colors"])
    choices = in_use(lexicon["templates"], {**things, "place": lexicon["places"]})
    count = sum(ordinal in choices for ordinal in ORDINALS)
    choices |= {"template": lexicon["templates"], "asked": list(itertools.permutations(range(count), 2))}
    return drawn_task(
        "coloured_objects", choices, _coloured_pair, lexicon, tokenizer, n, seed, {}, multi_token=multi_token
    )


def _coloured_pair(template: str, asked: tuple[int, int], place: str = "", **drawn: Any) -> Pair | None:
    """The prompt of one draw, or None where an object or a colour was drawn twice, or one asked for is not shown."""
    count = sum(f"{{{ordinal}}}" in template for ordinal in ORDINALS)
    objects = [drawn[ordinal] for ordinal in ORDINALS[:count]]
    colors = [drawn[color] for color in COLORS[:count]]
    if len(set(objects)) < count or len(set(colors)) < count or max(asked) >= count:
        return None
    query, other = asked
    slots = dict(zip(ORDINALS, objects, strict=False)) | dict(zip(COLORS, (color[0] for color in colors), strict=False))
    return filled_pair(
        template,
        {**slots, "place": place, "query": objects[query]},
        {"query": objects[other]},
        colors[query][1],
        colors[other][1],
        {"template": template, "entity": objects[query]},
    )


def mcqa(
    tokenizer: Any,
    *,
    n: int = 100,
    seed: int = 0,
    corruption: Literal["letters", "position"] = "letters",
    lists: Lists | None = None,
    multi_token: MultiToken = "error",
) -> Task:
    """Multiple choice: the letter beside the colour that the prompt has just named.

    Args:
        n: number of prompts.
        seed: of the draws.
        corruption: four other letters stand beside the choices, or the right choice changes places with another; the
            wrong answer is the corrupted prompt's right one.
        lists: templates (slots object, color, letter1, choice1, ..., letter4, choice4) or pairs (object, colour) to
            use instead.
        multi_token: see `make_task`.

    Raises:
        OptionError: an option outside its values.
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("corruption", corruption, ("letters", "position"))
    lexicon = choose(tokenizer, "auto", lists, MCQA)
    choices = {"template": lexicon["templates"], "facts": lexicon["pairs"], "draw": range(1_000_000)}
    colors = sorted({color for _, color in lexicon["pairs"]})
    make = partial(_choice_pair, colors, corruption)
    record = {"corruption": corruption}
    return drawn_task("mcqa", choices, make, lexicon, tokenizer, n, seed, record, multi_token=multi_token)


def _choice_pair(colors: Sequence[str], corruption: str, template: str, facts: tuple[str, str], draw: int) -> Pair:
    """The prompt of one draw, whose number decides on the letters and on the order of the choices."""
    rng, (thing, color) = random.Random(draw), facts
    letters = rng.sample(ascii_uppercase, 8)
    shown = sample(rng, "other colors", [each for each in colors if each != color], 3)
    right, other = rng.sample(range(4), 2)
    shown.insert(right, color)
    slots = {f"letter{1 + i}": letters[i] for i in range(4)} | {f"choice{1 + i}": shown[i] for i in range(4)}
    if corruption == "letters":
        changed, wrong = {f"letter{1 + i}": letters[4 + i] for i in range(4)}, letters[4 + right]
    else:
        changed, wrong = {f"choice{1 + right}": shown[other], f"choice{1 + other}": color}, letters[other]
    words_in = {**slots, "object": thing, "color": color}
    groups = {"template": template, "entity": thing}
    pair = filled_pair(template, words_in, changed, " " + letters[right], " " + wrong, groups)
    return replace(pair, roles={**pair.roles, "symbol": pair.roles[f"letter{1 + right}"]})
