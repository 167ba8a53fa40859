"""Indirect object identification: "When Mary and John went to the store, John gave a drink to" -> " Mary".

Roles: IO, S1, S1+1 (the token after S1), S2 and every other slot of the template. Corruptions:

- `s2_swap`: S2 becomes IO, so that the two names change parts (symmetric: the answer becomes S);
- `s2_random`: S2 becomes a third name, so that nothing marks either name;
- `s1_io_swap`: the first two names change places; the answer stays, its position does not;
- `abc`: three fresh names throughout.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from interp.errors import check_choice
from interp.tasks.base import Task
from interp.tasks.pair import MultiToken, Pair
from interp.tasks.template import Lexicon, Lists, choose, drawn_task, filled_pair, in_use
from interp.toy import prompts, words

Corruption = Literal["s2_swap", "s2_random", "s1_io_swap", "abc"]
# Names of the corrupted prompt's slots: those of the clean prompt, or fresh ones.
CORRUPTED = {
    "s2_swap": {"S2": "IO"},
    "s2_random": {"S2": "fresh1"},
    "s1_io_swap": {"IO": "S1", "S1": "IO"},
    "abc": {"IO": "fresh1", "S1": "fresh2", "S2": "fresh3"},
}
# Slots besides the names, and the lists that fill them.
OTHERS = {"place": "places", "object": "objects"}
STANDARD = Lexicon(
    "standard",
    "When they went to the store, he gave a drink to Mary",
    {
        "templates": (
            "When {first} and {second} went to the {place}, {S2} gave a {object} to",
            "After {first} and {second} got home from the {place}, {S2} handed a {object} to",
            "While {first} and {second} were waiting at the {place}, {S2} passed a {object} to",
            "Then, {first} and {second} met near the {place}. {S2} gave a {object} to",
            "Then, {first} and {second} had a long talk at the {place}. {S2} decided to give a {object} to",
            "Yesterday {first} and {second} walked to the {place}. At the end, {S2} sold a {object} to",
            "Last week {first} and {second} found a {object} at the {place}. {S2} gave it to",
            "The old friends {first} and {second} saw a {object} in the {place}. {S2} bought it for",
            "Once {first} and {second} were inside the {place}, {S2} offered a {object} to",
            "As soon as {first} and {second} left the {place}, {S2} threw a {object} to",
            "Since {first} and {second} both work at the {place}, {S2} lent a {object} to",
            "Before {first} and {second} closed the {place}, {S2} showed a {object} to",
        ),
        "names": "Mary John Tom James Anna Paul Sarah David Emily Mark Laura Peter Alice Robert Kate Daniel Jane "
        "Michael Helen Richard Rachel Thomas Julia Andrew Emma Kevin Susan Brian Linda George Karen Edward Nancy Eric "
        "Lisa Steven Ruth Adam Amy Jack Rose Henry Claire Martin Grace Simon Maria Charles Diana Frank Sam Alex "
        "Ben Luke Ryan Jason Scott Justin Kelly Jennifer Jessica Ashley Michelle Elizabeth",
        "places": "store garden school hospital office house station park library market kitchen hotel",
        "objects": "drink ring ball book key letter coin map gift card lamp hat",
    },
)
TOY = Lexicon(
    "toy",
    "when Mary and John went to the store , John gave a drink to Mary",
    {
        "templates": prompts.IOI_TEMPLATES,
        "names": words.NAMES,
        "places": words.PLACES,
        "objects": tuple(noun.singular for noun in words.OBJECTS),
    },
    prompts.is_test,
)


def ioi(
    tokenizer: Any,
    *,
    n: int = 100,
    seed: int = 0,
    corruption: Corruption = "s2_swap",
    style: str = "auto",
    lists: Lists | None = None,
    multi_token: MultiToken = "error",
) -> Task:
    """Indirect object identification: who receives the object, the name that occurred once.

    Args:
        n: number of prompts.
        seed: of the draws.
        corruption: see the module.
        style: "standard", "toy", or "auto" for what the tokenizer's vocabulary suits.
        lists: templates (slots first, second, S2, place, object), names, places or objects to use instead.
        multi_token: see `make_task`.

    Raises:
        OptionError: an option outside its values.
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("corruption", corruption, CORRUPTED)
    lexicon = choose(tokenizer, style, lists, STANDARD, TOY)
    people = dict.fromkeys(["IO", "S1", *[name for name in CORRUPTED[corruption].values() if "fresh" in name]])
    choices = {"template": lexicon["templates"], "order": ("ABBA", "BABA")}
    choices |= dict.fromkeys(people, lexicon["names"])
    choices |= in_use(lexicon["templates"], {slot: lexicon[name] for slot, name in OTHERS.items()})
    make = partial(_pair, CORRUPTED[corruption])
    record = {"corruption": corruption}
    task = drawn_task("ioi", choices, make, lexicon, tokenizer, n, seed, record, multi_token=multi_token)
    after = tuple((where[-1] + 1,) for where in task.roles["S1"])
    return replace(task, roles={**task.roles, "S1+1": after})


def _pair(changes: dict[str, str], template: str, order: str, **drawn: str) -> Pair | None:
    """The prompt of one draw, or None where a name was drawn twice."""
    others = {slot: word for slot, word in drawn.items() if slot in OTHERS}
    names = {slot: word for slot, word in drawn.items() if slot not in OTHERS}
    if len(set(names.values())) < len(names):
        return None
    indirect, subject = names["IO"], names["S1"]
    first, second = ("{IO}", "{S1}") if order == "ABBA" else ("{S1}", "{IO}")
    return filled_pair(
        template.replace("{first}", first).replace("{second}", second),
        {"IO": indirect, "S1": subject, "S2": subject, **others},
        {slot: names[name] for slot, name in changes.items()},
        " " + indirect,
        " " + subject,
        {"template": template, "order": order, "entity": f"{indirect}|{subject}"},
    )
