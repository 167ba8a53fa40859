"""Gendered pronouns: "So Mary is such a good friend, isn't" -> " she"; corrupted by someone of the other gender.

`who` is a name, a noun of kin ("The mother"), or a profession by its stereotype ("The nurse").
"""

from typing import Any, Literal, get_args

from interp.errors import check_choice
from interp.tasks.base import Task
from interp.tasks.pair import MultiToken, Pair
from interp.tasks.template import Lexicon, Lists, choose, drawn_task, filled_pair, in_use
from interp.toy import prompts, words

Who = Literal["name", "noun", "profession"]

_NOUN_TEMPLATES = (
    "The {who} said that",
    "The {who} was {adjective} because",
    "The {who} went to the {place} because",
    "The {who} was promoted because",
    "The {who} cried because",
)
STANDARD = Lexicon(
    "standard",
    "So Mary is such a good friend, isn't she",
    {
        "name": (
            "So {who} is such a good friend, isn't",
            "{who} is really {adjective}, isn't",
            "After a day at the {place}, {who} said that",
            "Everyone likes {who} because",
            "{who} went to the {place} because",
        ),
        "noun": _NOUN_TEMPLATES,
        "profession": _NOUN_TEMPLATES,
        "name_female": "Mary Sarah Anna Emily Laura Alice Kate Jane Helen Rachel Julia Emma Susan Linda Karen Nancy",
        "name_male": "John Tom James Paul David Mark Peter Robert Daniel Michael Richard Thomas Andrew Kevin Brian",
        "noun_female": "woman girl mother daughter sister aunt queen wife grandmother lady",
        "noun_male": "man boy father son brother uncle king husband grandfather gentleman",
        "profession_female": "nurse librarian receptionist secretary nanny dancer housekeeper hairdresser",
        "profession_male": "mechanic carpenter plumber soldier engineer captain sheriff farmer",
        "adjectives": "happy tired angry kind nice funny clever brave",
        "places": "store school hospital office station park library market",
    },
)
TOY = Lexicon(
    "toy",
    "Mary said that she",
    {
        "name": prompts.PRONOUN_TEMPLATES,
        "noun": tuple(text.replace("{who}", "the {who}") for text in prompts.PRONOUN_TEMPLATES),
        "profession": tuple(text.replace("{who}", "the {who}") for text in prompts.PRONOUN_TEMPLATES),
        "name_female": words.NAMES_FEMALE,
        "name_male": words.NAMES_MALE,
        "noun_female": words.WOMEN,
        "noun_male": words.MEN,
        "profession_female": tuple(who for who, share in words.STEREOTYPE.items() if share >= 0.7),
        "profession_male": tuple(who for who, share in words.STEREOTYPE.items() if share <= 0.3),
        "adjectives": words.ADJECTIVES,
        "places": words.PLACES,
    },
    prompts.is_test,
)


def pronouns(
    tokenizer: Any,
    *,
    who: Who = "name",
    n: int = 100,
    seed: int = 0,
    style: str = "auto",
    lists: Lists | None = None,
    multi_token: MultiToken = "error",
) -> Task:
    """Gendered pronoun: he or she, as the person named before.

    Args:
        who: what the person is called by.
        n: number of prompts.
        seed: of the draws.
        style: "standard", "toy", or "auto" for what the tokenizer's vocabulary suits.
        lists: to use instead: templates under "name", "noun" or "profession" (slots who, adjective, place), words
            under those names with "_female" or "_male", adjectives, places.
        multi_token: see `make_task`.

    Raises:
        OptionError: an option outside its values.
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("who", who, get_args(Who))
    lexicon = choose(tokenizer, style, lists, STANDARD, TOY)
    choices = {
        "template": lexicon[who],
        "is_female": (True, False),
        "female": lexicon[f"{who}_female"],
        "male": lexicon[f"{who}_male"],
        **in_use(lexicon[who], {"adjective": lexicon["adjectives"], "place": lexicon["places"]}),
    }
    return drawn_task("pronouns", choices, _pair, lexicon, tokenizer, n, seed, {"who": who}, multi_token=multi_token)


def _pair(template: str, is_female: bool, female: str, male: str, **others: str) -> Pair:
    people = {"he": male, "she": female}
    right, wrong = ("she", "he") if is_female else ("he", "she")
    return filled_pair(
        template,
        {"who": people[right], **others},
        {"who": people[wrong]},
        " " + right,
        " " + wrong,
        {"template": template, "entity": f"{female}|{male}", "gender": "female" if is_female else "male"},
    )
