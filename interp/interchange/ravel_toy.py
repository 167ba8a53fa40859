"""RAVEL in the toy language: cities of the embedded model with their country, continent and language."""

from itertools import cycle

from interp.interchange.ravel import RavelFiles
from interp.toy import prompts, words

ATTRIBUTES = {"Country": "country", "Continent": "continent", "Language": "language"}
PARTS = ("train", "train", "val", "test")
"""Of entities and of templates, one after the other."""


def toy_ravel(n_templates: int = 16) -> RavelFiles:
    """Cities and `n_templates` prompts for each attribute, every fourth of both held out for validation and for tests.

    >>> files = toy_ravel(4)
    >>> files.values["Paris"], files.templates["Language"][1]
    ({'Country': 'France', 'Continent': 'Europe', 'Language': 'French'}, 'Mary knows that people in %s speak')
    """
    values = {
        country.capital: {"Country": country.name, "Continent": country.continent, "Language": country.language}
        for country in words.COUNTRIES
    }
    leads = [
        lead.format(who=who, place=place)
        for who, place, lead in zip(words.NAMES, words.PLACES, cycle(prompts.FACT_LEADS[1:]), strict=False)
    ]
    leads = ["", *dict.fromkeys(leads)][:n_templates]
    templates = {
        name: [lead + prompts.FACT_TEMPLATES[relation].replace("{capital}", "%s") for lead in leads]
        for name, relation in ATTRIBUTES.items()
    }
    part = dict(zip(leads, cycle(PARTS), strict=False))
    split = {text: part[lead] for listed in templates.values() for text, lead in zip(listed, leads, strict=True)}
    return RavelFiles("city", values, templates, dict(zip(values, cycle(PARTS), strict=False)), split, {})
