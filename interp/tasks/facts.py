"""Facts: "The capital of France is the city of" -> " Paris"; corrupted by another subject of the same relation.

The other subject makes a prompt of as many tokens and has another answer (paired facts), so that clean and corrupted
differ in the subject alone. A fact without such a partner is left out. Roles: subject, and its last token,
last_subject.
"""

import functools
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

from interp.errors import FileError, check_choice
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.pair import MultiToken, Pair, single_ids
from interp.tasks.template import Lexicon, Lists, choose, fill, filled_pair, sample
from interp.toy import prompts, words


class Fact(NamedTuple):
    """One fact: a template with the slot ``{subject}``, what fills it, what continues it, and its relation's name."""

    template: str
    subject: str
    answer: str
    relation: str

    @property
    def text(self) -> str:
        """The prompt."""
        return fill(self.template, {"subject": self.subject})[0]


# Country, capital, main language, continent.
_COUNTRIES = """
France, Paris, French, Europe; Italy, Rome, Italian, Europe; Spain, Madrid, Spanish, Europe
Germany, Berlin, German, Europe; Austria, Vienna, German, Europe; Greece, Athens, Greek, Europe
Norway, Oslo, Norwegian, Europe; Sweden, Stockholm, Swedish, Europe; Finland, Helsinki, Finnish, Europe
Denmark, Copenhagen, Danish, Europe; Poland, Warsaw, Polish, Europe; Hungary, Budapest, Hungarian, Europe
Portugal, Lisbon, Portuguese, Europe; Ireland, Dublin, English, Europe; Russia, Moscow, Russian, Europe
Ukraine, Kiev, Ukrainian, Europe; Romania, Bucharest, Romanian, Europe; Bulgaria, Sofia, Bulgarian, Europe
Croatia, Zagreb, Croatian, Europe; Serbia, Belgrade, Serbian, Europe; Turkey, Ankara, Turkish, Asia
Japan, Tokyo, Japanese, Asia; China, Beijing, Chinese, Asia; India, Delhi, Hindi, Asia
Iran, Tehran, Persian, Asia; Iraq, Baghdad, Arabic, Asia; Israel, Jerusalem, Hebrew, Asia
Syria, Damascus, Arabic, Asia; Lebanon, Beirut, Arabic, Asia; Thailand, Bangkok, Thai, Asia
Vietnam, Hanoi, Vietnamese, Asia; Nepal, Kathmandu, Nepali, Asia; Pakistan, Islamabad, Urdu, Asia
Afghanistan, Kabul, Persian, Asia; Egypt, Cairo, Arabic, Africa; Kenya, Nairobi, Swahili, Africa
Ghana, Accra, English, Africa; Nigeria, Abuja, English, Africa; Senegal, Dakar, French, Africa
Angola, Luanda, Portuguese, Africa; Libya, Tripoli, Arabic, Africa; Tunisia, Tunis, Arabic, Africa
Uganda, Kampala, English, Africa; Zimbabwe, Harare, English, Africa; Cuba, Havana, Spanish, America
Peru, Lima, Spanish, America; Chile, Santiago, Spanish, America; Colombia, Bogota, Spanish, America
Venezuela, Caracas, Spanish, America; Canada, Ottawa, English, America; Jamaica, Kingston, English, America
"""
_TABLE = [[part.strip() for part in entry.split(",")] for entry in _COUNTRIES.strip().replace("\n", ";").split(";")]


STANDARD = Lexicon(
    "standard",
    "The capital of France is the city of Paris",
    {
        "capital_templates": ("The capital of {subject} is the city of",),
        "capital": tuple((country, capital) for country, capital, _, _ in _TABLE),
        "language_templates": ("The main language spoken in {subject} is",),
        "language": tuple((country, language) for country, _, language, _ in _TABLE),
        "continent_templates": ("{subject} is a country on the continent of",),
        "continent": tuple((country, continent) for country, _, _, continent in _TABLE),
    },
)
_LEADS = tuple(
    lead.format(who=who, place=place)
    for lead in prompts.FACT_LEADS
    for who, place in zip(words.NAMES, cycle(words.PLACES), strict=False)
)
_TOY_TEMPLATES = {
    relation: tuple(lead + re.sub(r"{\w+}", "{subject}", text) for lead in dict.fromkeys(_LEADS))
    for relation, text in prompts.FACT_TEMPLATES.items()
}
TOY = Lexicon(
    "toy",
    "the capital of France is Paris",
    {
        "capital_templates": _TOY_TEMPLATES["capital"],
        "capital": tuple((country.name, country.capital) for country in words.COUNTRIES),
        "language_templates": _TOY_TEMPLATES["language"],
        "language": tuple((country.capital, country.language) for country in words.COUNTRIES),
        "continent_templates": _TOY_TEMPLATES["continent"],
        "continent": tuple((country.capital, country.continent) for country in words.COUNTRIES),
    },
    prompts.is_test,
)


def facts(
    tokenizer: Any,
    *,
    relation: Literal["capital", "language", "continent"] = "capital",
    path: str | Path | None = None,
    n: int | None = None,
    seed: int = 0,
    shots: int = 0,
    style: str = "auto",
    lists: Lists | None = None,
    multi_token: MultiToken = "error",
) -> Task:
    """Factual recall: the subject's answer against the answer of another subject of the same relation.

    Args:
        relation: which of the built-in facts.
        path: take the facts from this file instead: `known_1000.json` of ROME, or a relation of Linearity of Relation
            Decoding.
        n: number of prompts; None for every fact that fits.
        seed: of the order of the facts and of the choice of partners.
        shots: that many other facts of the relation stand before the prompt, with their answers.
        style: "standard", "toy", or "auto" for what the tokenizer's vocabulary suits.
        lists: pairs (subject, answer) under the relation's name, or its templates (slot subject) under the name with
            "_templates", to use instead.
        multi_token: see `make_task`.

    Raises:
        OptionError: an option outside its values.
        FileError: a file of another format.
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("relation", relation, ("capital", "language", "continent"))
    lexicon = choose(tokenizer, style, lists, STANDARD, TOY)
    texts, entries = lexicon[f"{relation}_templates"], lexicon[relation]
    known = (
        [Fact(text, subject, answer, relation) for subject, answer in entries for text in texts]
        if path is None
        else read_facts(path)
    )
    # An answer of several tokens would spoil the prompts it is the wrong answer of, too.
    is_one = functools.cache(lambda answer: single_ids(tokenizer, known[0].text, [" " + answer]) is not None)
    usable = [fact for fact in known if multi_token != "error" or is_one(fact.answer)]
    wanted = [fact for fact in usable if path is not None or lexicon.keep(fact.text)]
    pairs = _pairs(wanted, usable, tokenizer, seed, shots)
    source = relation if path is None else Path(path).name
    record = {"seed": seed, "shots": shots, "source": source, "several_tokens": len(known) - len(usable)}
    task = make_task("facts", pairs, tokenizer, n=n, on_fault="drop", multi_token=multi_token, parameters=record)
    return replace(task, roles={**task.roles, "last_subject": tuple(where[-1:] for where in task.roles["subject"])})


def _pairs(wanted: list[Fact], known: list[Fact], tokenizer: Any, seed: int, shots: int) -> Iterator[Pair]:
    """A pair for each wanted fact that has a partner among the known ones, in random order."""
    rng = random.Random(seed)
    lengths = functools.cache(lambda fact: len(tokenizer(fact.text)["input_ids"]))
    entries: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
    for fact in known:
        entries[fact.relation][fact.subject, fact.answer] = None
    for fact in rng.sample(wanted, len(wanted)):
        others = [
            fact._replace(subject=subject, answer=answer)
            for subject, answer in entries[fact.relation]
            if subject != fact.subject and answer != fact.answer
        ]
        rng.shuffle(others)
        partner = next((other for other in others if lengths(other) == lengths(fact)), None)
        if partner is not None:
            shown = [other for other in others if other.subject != partner.subject]
            lead = "".join(f"{each.text} {each.answer}\n" for each in sample(rng, "other facts", shown, shots))
            yield filled_pair(
                lead + fact.template,
                {"subject": fact.subject},
                {"subject": partner.subject},
                " " + fact.answer,
                " " + partner.answer,
                {"template": fact.template, "entity": fact.subject, "relation": fact.relation},
            )


def read_facts(path: str | Path) -> list[Fact]:
    """Facts of a public file: ROME's `known_1000.json`, or one relation of Linearity of Relation Decoding.

    Raises:
        FileError: a file that cannot be read, or of another format.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            template = content["prompt_templates"][0].replace("{}", "{subject}")
            return [Fact(template, each["subject"], each["object"], content["name"]) for each in content["samples"]]
        return [
            Fact(
                each["prompt"].replace(each["subject"], "{subject}"),
                each["subject"],
                each["attribute"],
                each["relation_id"],
            )
            for each in content
        ]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise FileError(
            f"{path} holds no facts that can be read ({type(error).__name__}: {error}); allowed: a list of objects "
            "with subject, attribute, prompt and relation_id, or an object with name, prompt_templates and samples."
        ) from error
