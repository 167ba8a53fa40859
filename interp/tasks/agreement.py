"""Subject-verb agreement: "The keys near the cabinet" -> " are"; corrupted by the subject's number.

The verb agrees with its subject, whatever stands between: nothing (`simple`), a prepositional phrase (`across_pp`) or
a relative clause (`across_rc`); in `within_rc` the verb is the clause's own and agrees with the subject there. The
other noun, the attractor, is of either number.
"""

from typing import Any, Literal, get_args

from interp.errors import check_choice
from interp.tasks.base import Task
from interp.tasks.pair import MultiToken, Pair
from interp.tasks.template import Lexicon, Lists, choose, drawn_task, filled_pair, in_use
from interp.toy import prompts, words

Construction = Literal["simple", "across_pp", "within_rc", "across_rc"]
Forms = tuple[str, str]  # singular, plural

_PEOPLE = "author chef doctor driver farmer guard lawyer officer painter pilot player singer teacher worker writer girl"
_THINGS = "car book desk door house table tree truck window key road picture"
STANDARD = Lexicon(
    "standard",
    "The author that likes the table is",
    {
        "simple": ("The {subject}", "The {adjective} {subject}"),
        "across_pp": ("The {subject} {preposition} the {attractor}",),
        "within_rc": ("The {attractor} that the {subject}",),
        "across_rc": ("The {subject} that the {attractor} {inner}",),
        "people": tuple((noun, noun + "s") for noun in _PEOPLE.split()),
        "things": tuple((noun, noun + "s") for noun in _THINGS.split()),
        "adjectives": "old young tall happy famous local rich kind",
        "prepositions": "near behind beside with",
        "verbs": (("is", "are"), ("has", "have"), ("does", "do"), ("was", "were"), ("goes", "go")),
        "inner": (("likes", "like"), ("knows", "know"), ("sees", "see"), ("helps", "help"), ("loves", "love")),
    },
)
TOY = Lexicon(
    "toy",
    "the author that likes the",
    {
        "simple": prompts.AGREEMENT_TEMPLATES["sva_simple"],
        "across_pp": prompts.AGREEMENT_TEMPLATES["sva_pp"],
        "within_rc": prompts.AGREEMENT_TEMPLATES["sva_within_rc"],
        "across_rc": prompts.AGREEMENT_TEMPLATES["sva_rc"],
        "people": words.PEOPLE,
        "things": words.OBJECTS,
        "adjectives": words.ADJECTIVES,
        "prepositions": words.PREPOSITIONS,
        "verbs": tuple((verb.third, verb.base) for verb in (*words.INTRANSITIVE, words.BE)),
        "inner": tuple((verb.third, verb.base) for verb in words.TRANSITIVE),
    },
    prompts.is_test,
)


def agreement(
    tokenizer: Any,
    *,
    construction: Construction = "simple",
    n: int = 100,
    seed: int = 0,
    style: str = "auto",
    lists: Lists | None = None,
    multi_token: MultiToken = "error",
) -> Task:
    """Subject-verb agreement: the verb form of the subject's number against the other form.

    Args:
        construction: what stands between subject and verb; see the module.
        n: number of prompts.
        seed: of the draws.
        style: "standard", "toy", or "auto" for what the tokenizer's vocabulary suits.
        lists: to use instead: templates under the construction's name (slots subject, attractor, adjective,
            preposition, inner); people, things (attractors in a prepositional phrase), verbs and inner verbs as pairs
            (singular, plural); adjectives, prepositions.
        multi_token: see `make_task`.

    Raises:
        OptionError: an option outside its values.
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("construction", construction, get_args(Construction))
    lexicon = choose(tokenizer, style, lists, STANDARD, TOY)
    templates, people = lexicon[construction], lexicon["people"]
    others = {
        "attractor": [*people, *lexicon["things"]] if construction == "across_pp" else people,
        "adjective": lexicon["adjectives"],
        "preposition": lexicon["prepositions"],
        "inner": lexicon["inner"],
    }
    choices = {"template": templates, "subject": people, "is_plural": (False, True), **in_use(templates, others)}
    choices["verb"] = lexicon["inner" if construction == "within_rc" else "verbs"]
    if "attractor" in choices:
        choices["is_attractor_plural"] = (False, True)
    record = {"construction": construction}
    return drawn_task("agreement", choices, _pair, lexicon, tokenizer, n, seed, record, multi_token=multi_token)


def _pair(
    template: str,
    subject: Forms,
    verb: Forms,
    is_plural: bool,
    attractor: Forms = ("", ""),
    is_attractor_plural: bool = False,
    inner: Forms = ("", ""),
    **others: str,
) -> Pair | None:
    """The prompt of one draw, or None where the two nouns are the same."""
    if subject == attractor:
        return None
    numbers = ["plural" if is_plural else "singular"]
    numbers += [("plural" if is_attractor_plural else "singular")] if attractor[0] else []
    slots = {"subject": subject[is_plural], "attractor": attractor[is_attractor_plural]}
    return filled_pair(
        template,
        {**slots, "inner": inner[is_attractor_plural], **others},
        {"subject": subject[not is_plural]},
        " " + verb[is_plural],
        " " + verb[not is_plural],
        {"template": template, "entity": subject[0], "attractor": attractor[0], "case": "_".join(numbers)},
    )
