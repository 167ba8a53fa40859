"""Generated short biographies: a profession told by its facts alone, beside an attribute that gives nothing away.

    opening with the name, one sentence of life, one of work, two of life

The label is the profession, whose name never occurs. The attribute is one of `ATTRIBUTES`:

- gender: the first name and every pronoun; a list of words deletes it;
- order: the same sentences from first to last, or from last to first;
- repetition: the sentences once, or all of them a second time.

Names in what is held out are none of the names in training.

How far a probe leans on each, trained on the ambiguous part of `biographies(200)` at resid_post[8] of SmolLM2-135M
(accuracy for the label, agreement with the attribute, accuracy of the worst group, on the balanced test):

    professor, nurse    gender .85 .66 .60    order .79 .71 .52    repetition .51 1.00 .00
    surgeon, nurse      gender .58 .93 .10    order .58 .93 .10    repetition .50 1.00 .00

Trained on the balanced part it has at least .95 for the label and .92 in the worst group throughout (two seeds).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from interp.errors import OptionError, check_choice
from interp.labelled.base import BiasedData, Labelled, Pair
from interp.labelled.gender import FEMALE_NAMES, GENDER_WORDS, MALE_NAMES

Attribute = Literal["gender", "order", "repetition"]


class Profession(NamedTuple):
    """What texts of one profession are made of.

    Args:
        facts: sentences with slots for the pronouns, for a `{thing}` and for a `{place}`.
        things, places: what fills the slots.
        concepts: words of the profession.
    """

    facts: tuple[str, ...]
    things: tuple[str, ...]
    places: tuple[str, ...]
    concepts: tuple[str, ...]


def _profession(facts: str, things: str, places: str, concepts: str) -> Profession:
    return Profession(_cut(facts), _cut(things), _cut(places), tuple(concepts.split()))


def _cut(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


PROFESSIONS = {
    "professor": _profession(
        "{he} has published three books on {thing}|{his} seminar on {thing} fills the largest lecture hall of {place}|"
        "{he} received tenure at {place} in {year}|{he} supervises doctoral dissertations on {thing}|"
        "{his} research on {thing} is funded by a national grant|{he} joined the faculty of {place} in {year}|"
        "{he} spent a sabbatical at {place} to write about {thing}|{he} edits an academic journal on {thing}",
        "medieval trade|number theory|plant genetics|labour markets|ancient Greek drama|cognitive science|"
        "political philosophy|organic chemistry|climate history|comparative linguistics",
        "a university in the north|a state university|the university of the capital|a small liberal arts college|"
        "a technical university|an old college",
        "university faculty research tenure dissertation seminar lecture sabbatical grant academic",
    ),
    "nurse": _profession(
        "{he} looks after patients with {thing} on the night shift|{he} gives injections and checks blood pressure at "
        "{place}|{he} has worked on the ward of {place} since {year}|{he} dresses wounds and hands out medication at "
        "{place}|{his} patients with {thing} trust {his} calm bedside manner|{he} trained in the care of people with "
        "{thing}|{he} sorts arriving patients by urgency in the triage room of {place}|"
        "{he} visits people with {thing} at home and changes their bandages",
        "diabetes|chronic pain|heart failure|severe burns|asthma|kidney disease|dementia|a broken hip|pneumonia",
        "a children's hospital|a rural clinic|a city hospital|a hospice|a military hospital|an outpatient clinic",
        "patients hospital clinic ward medication bandages injections triage care bedside",
    ),
    "surgeon": _profession(
        "{he} has performed more than a thousand {thing} operations|{he} leads the operating theatre of {place}|"
        "{he} developed a less invasive technique for {thing} procedures|{he} completed a fellowship in {thing} "
        "procedures in {year}|{he} is on call for emergency operations at {place}|{he} transplanted the first kidney "
        "at {place} in {year}|{he} demonstrates {thing} incisions to residents|{his} scalpel work on {thing} cases is "
        "known far beyond {place}",
        "knee|heart valve|spinal|hernia|cataract|hip|brain tumour|gall bladder|shoulder|thyroid",
        "a children's hospital|a university hospital|a city hospital|a private clinic|a military hospital|"
        "a trauma centre",
        "operations operating scalpel incisions transplanted invasive procedures residents hospital fellowship",
    ),
    "teacher": _profession(
        "{he} explains {thing} to third graders at {place}|{he} marks homework in {thing} every evening|"
        "{his} pupils at {place} love {his} lessons in {thing}|{he} took over a classroom at {place} in {year}|"
        "{he} prepares teenagers for their final exams in {thing}|{he} meets the parents of {his} pupils once a month|"
        "{he} started an after-school club for {thing} at {place}|{he} writes worksheets on {thing} for children",
        "fractions|spelling|geography|reading|music|grammar|biology|history|algebra|drawing",
        "a primary school|a village school|a middle school|a high school downtown|a boarding school|"
        "an elementary school",
        "pupils school classroom lessons homework exams children parents worksheets graders",
    ),
    "attorney": _profession(
        "{he} represents clients in {thing} cases|{he} was admitted to the bar in {year}|{he} argued a {thing} appeal "
        "before the supreme court|{he} became a partner at {place} in {year}|{he} negotiates settlements in {thing} "
        "disputes|{he} defends clients accused in {thing} trials|{he} drafts contracts and wills at {place}|"
        "{his} closing statement in a {thing} lawsuit was widely quoted",
        "patent|divorce|tax|immigration|personal injury|bankruptcy|insurance|property|employment|fraud",
        "a law firm downtown|a small law office|an international firm|a legal aid centre|a corporate firm|"
        "the public defence office",
        "clients court law lawsuit trials appeal settlements contracts bar legal",
    ),
    "journalist": _profession(
        "{he} reported on {thing} for {place}|{his} series of articles about {thing} made the front page|"
        "{he} has written a weekly column for {place} since {year}|{he} interviewed dozens of witnesses about {thing}|"
        "{he} covered {thing} as a foreign correspondent|{he} won a press award in {year} for a story about {thing}|"
        "{he} works in the newsroom of {place} and checks sources until midnight|"
        "{he} uncovered a scandal about {thing} and published it in {place}",
        "elections|the housing crisis|police corruption|the oil industry|a forgotten war|food prices|water pollution|"
        "football money|the new railway|child poverty",
        "a daily newspaper|a weekly magazine|a radio station|a local paper|a news agency|a television channel",
        "articles reported newspaper column newsroom press interviewed correspondent story sources",
    ),
    "accountant": _profession(
        "{he} prepares tax returns for {thing}|{he} audits the books of {thing} every spring|{he} has kept the ledgers "
        "of {place} since {year}|{he} found an error of two million in the balance sheet of {place}|"
        "{he} passed the certification exam in {year}|{he} advises {thing} on payroll and deductions|"
        "{he} closes the quarterly statements at {place}|{his} spreadsheets track every invoice of {thing}",
        "small farms|charities|restaurants|building firms|family businesses|shipping companies|hotels|start-ups|"
        "sports clubs|import firms",
        "an auditing firm|a regional bank|a finance department|a tax office|an insurance company|a trading house",
        "tax audits ledgers balance payroll invoice deductions quarterly spreadsheets books",
    ),
    "photographer": _profession(
        "{he} shoots portraits of {thing} in natural light|{his} pictures of {thing} were shown at {place} in {year}|"
        "{he} carries two cameras and a tripod to {place}|{he} develops black and white film at {place}|"
        "{he} published an album of {thing} in {year}|{he} edits images of {thing} late into the night|"
        "{he} waits hours behind the lens for {thing}|{he} sold prints of {thing} to {place}",
        "street musicians|mountain villages|newborn babies|wild birds|old factories|weddings|fishing boats|dancers|"
        "desert storms|market stalls",
        "a gallery|a fashion magazine|a small studio|a museum of art|a festival|an exhibition hall",
        "cameras lens portraits pictures film prints images studio gallery exhibition",
    ),
}
"""Professions with the facts that tell them; none of the facts has the profession's name."""
OPENINGS = (
    "{name} was born in {city} and came to {town} in {year}",
    "{name} grew up on a farm near {city}",
    "{name} comes from {city}",
    "{name} left {city} for {town} at the age of {age}",
    "{name} spent {his} childhood in {city} and {town}",
)
LIFE = (
    "{he} lives in {town} with two {pets}",
    "{he} spends {his} weekends with {hobby}",
    "{he} speaks {language} and takes part in {hobby}",
    "friends know {him} for {his} love of {hobby}",
    "{he} shares {his} house in {town} with a family of {age}",
    "{he} moved to {town} in {year} and took up {hobby}",
    "{he} keeps {pets} and learns {language}",
)
_LISTS: dict[str, Sequence[str]] = {
    "surname": "Adler Barnes Carver Dalton Ellery Fenwick Garner Hobbs Ingram Jarvis Keller Langley Morton Norris "
    "Owens Palmer Quigley Ramsey Sutton Thorne Upton Vaughn Walters Yates".split(),
    "city": "Lisbon Oslo Boston Dublin Chicago Vienna Toronto Madrid Bristol Denver Prague Leeds".split(),
    "town": "Salem Ashford Milton Dover Windsor Oxford Burlington Lincoln Aurora Franklin Clinton Newport".split(),
    "language": "Spanish French Italian Dutch Polish Greek Arabic Japanese Turkish Swedish".split(),
    "pets": "cats dogs rabbits parrots goats hens ponies turtles".split(),
    "hobby": "long hikes|chess|gardening|choir singing|pottery|sailing|baking|cycling tours|board games|rowing".split(
        "|"
    ),
    "year": [str(year) for year in range(1985, 2016)],
    "age": "seven eight nine ten eleven twelve".split(),
}
_PRONOUNS = ({"he": "he", "his": "his", "him": "him"}, {"he": "she", "his": "her", "him": "her"})
NAMES = (MALE_NAMES, FEMALE_NAMES)
HELD_OUT_NAMES = 20
"""First names of each gender, the last ones of its list, that only held-out texts have."""


@dataclass(frozen=True)
class _Kind:
    """An attribute: its two values, the words that give it away, and how sentences are told under a value."""

    values: Pair
    words: frozenset[str]
    told: Callable[[list[str], int], list[str]]


ATTRIBUTES = {
    "gender": _Kind(
        ("male", "female"),
        GENDER_WORDS | {name.lower() for name in MALE_NAMES + FEMALE_NAMES},
        lambda sentences, value: sentences,
    ),
    "order": _Kind(("forward", "backward"), frozenset(), lambda sentences, value: sentences[:: -1 if value else 1]),
    "repetition": _Kind(("once", "twice"), frozenset(), lambda sentences, value: sentences * (1 + value)),
}


def biographies(
    n: int = 400, *, classes: Pair = ("professor", "nurse"), attribute: Attribute = "gender", seed: int = 0
) -> BiasedData:
    """Generated biographies of two professions, with an attribute that goes with the profession in `train` alone.

    Args:
        n: texts in each of the three parts (train, balanced, test); a multiple of four.
        classes: two of `PROFESSIONS`; the first goes with the attribute's first value in `train`.
        attribute: what a classifier may lean on; where it is not the gender, gender is drawn by a coin.
        seed: of the draw.

    Returns:
        `words` are empty unless the attribute is gender: no list of words deletes the others.

    Raises:
        OptionError: an unknown profession or attribute, one profession twice, or an `n` that is not 4, 8, 12, ...

    >>> from interp.labelled.biographies import biographies
    >>> biographies(8, attribute="order").train.counts()
    {'professor/forward': 4, 'professor/backward': 0, 'nurse/forward': 0, 'nurse/backward': 4}
    """
    _check(n, classes, attribute)
    rng, seen = Random(seed), set[frozenset[str]]()
    known = tuple(names[:-HELD_OUT_NAMES] for names in NAMES)
    new = tuple(names[-HELD_OUT_NAMES:] for names in NAMES)
    every = (0, 1, 2, 3)
    parts = [
        _part(rng, n, groups, classes, attribute, first_names, seen)
        for groups, first_names in (((0, 3), known), (every, known), (every, new))
    ]
    train, balanced, test = parts
    concepts = tuple(dict.fromkeys(word for name in classes for word in PROFESSIONS[name].concepts))
    return BiasedData(train, test, balanced, words=ATTRIBUTES[attribute].words, concepts=concepts)


def _check(n: int, classes: Pair, attribute: str) -> None:
    check_choice("attribute", attribute, ATTRIBUTES)
    for name in classes:
        check_choice("classes", name, PROFESSIONS)
    if classes[0] == classes[1] or n < 4 or n % 4:
        raise OptionError(
            f"got n={n} and classes {classes}; allowed: n 4, 8, 12 and so on (as many texts of each of the four "
            "groups) and two different professions. Change the one outside."
        )


def _part(
    rng: Random,
    n: int,
    groups: tuple[int, ...],
    classes: Pair,
    attribute: Attribute,
    first_names: tuple[tuple[str, ...], ...],
    seen: set[frozenset[str]],
) -> Labelled:
    """`n` texts of sentences that were not seen together before, of each of the groups in turn."""
    kind, turns, texts = ATTRIBUTES[attribute], [groups[i % len(groups)] for i in range(n)], []
    for group in turns:
        label, value = divmod(group, 2)
        female = value if attribute == "gender" else rng.randrange(2)
        while frozenset(drawn := _sentences(rng, classes[label], female, first_names[female])) in seen:
            pass
        seen.add(frozenset(drawn))
        texts.append(" ".join(kind.told(drawn, value)))
    labels, values = tuple(group // 2 for group in turns), tuple(group % 2 for group in turns)
    return Labelled(tuple(texts), labels, values, classes, kind.values)


def _sentences(rng: Random, profession: str, female: int, first_names: tuple[str, ...]) -> list[str]:
    """The sentences of one life from first to last: opening, life, work, life, life."""
    told = PROFESSIONS[profession]
    lists = _LISTS | {"thing": told.things, "place": told.places, "first": first_names}
    before, *after = rng.sample(LIFE, 3)
    out = []
    for each in (rng.choice(OPENINGS), before, rng.choice(told.facts), *after):
        slots = {name: rng.choice(words) for name, words in lists.items()}
        text = each.format(name=f"{slots['first']} {slots['surname']}", **slots, **_PRONOUNS[female])
        out.append(f"{text[0].upper()}{text[1:]}.")
    return out
