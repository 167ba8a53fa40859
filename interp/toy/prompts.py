"""Prompts of the toy language, one kind of behaviour each: a clean text, its minimal corruption, and the answers.

A prompt's words are its tokens, so a role's word indices are its token positions. `BEHAVIOURS` names every kind;
`examples` draws from one. The same draws, finished by their answer, are what the embedded model was trained on.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from interp.errors import OptionError, check_choice
from interp.toy import words

Split = Literal["train", "test", "all"]


@dataclass(frozen=True)
class ToyExample:
    """One prompt with its corruption.

    Args:
        behaviour: a key of `BEHAVIOURS`.
        template: which of the behaviour's templates it was made from; equal templates have equal roles.
        text: the clean prompt, words separated by single spaces.
        corrupted: the prompt with the fewest words changed so that the answer changes; as many words as `text`.
        correct: words that continue the clean prompt rightly (one for most behaviours).
        wrong: words to compare them with; where there is one, it is the corrupted prompt's right answer.
        roles: named word indices, `end` always among them.
    """

    behaviour: str
    template: str
    text: str
    corrupted: str
    correct: tuple[str, ...]
    wrong: tuple[str, ...]
    roles: Mapping[str, tuple[int, ...]]


IOI_TEMPLATES = (
    "when {first} and {second} went to the {place} , {S2} gave a {object} to",
    "then {first} and {second} went to the {place} . {S2} gave the {object} to",
    "after {first} and {second} left the {place} , {S2} sold a {object} to",
    "while {first} and {second} were at the {place} , {S2} handed the {object} to",
    "{first} and {second} had a talk at the {place} . later {S2} lent a {object} to",
    "friends {first} and {second} found a {object} near the {place} . {S2} passed it to",
    "yesterday {first} met {second} at the {place} and {S2} showed the {object} to",
)
GREATER_THAN_TEMPLATES = (
    "the {event} lasted from the year {XX} {YY} to {XX}",
    "the {event} lasted from the year {XX} {YY} to the year {XX}",
    "the {event} began in the year {XX} {YY} and ended in the year {XX}",
)
_TWO_NOUNS = "{subject} {preposition} the {attractor}"
AGREEMENT_TEMPLATES = {
    "sva_simple": ("the {subject}", "the {adjective} {subject}"),
    "sva_pp": (
        "the {subject} {preposition} the {attractor}",
        "the {adjective} {subject} {preposition} the {attractor}",
    ),
    "sva_within_rc": ("the {attractor} that the {subject}", "the {attractor} that the {adjective} {subject}"),
    "sva_rc": ("the {subject} that the {attractor} {inner}", "the {adjective} {subject} that the {attractor} {inner}"),
}
PRONOUN_TEMPLATES = (
    "{who} said that",
    "{who} went to the {place} because",
    "{who} was {adjective} because",
    "{who} knows that",
    "{who} was {adjective} in the {place} because",
)
COLOR_TEMPLATES = (
    "the {first} is {color1} and the {second} is {color2} . the color of the {query} is",
    "there is a {color1} {first} and a {color2} {second} in the {place} . the color of the {query} is",
)
FACT_TEMPLATES = {
    "capital": "the capital of {name} is",
    "country": "{capital} is the capital of",
    "continent": "{capital} is a city in",
    "language": "people in {capital} speak",
}
FACT_LEADS = ("", "{who} knows that ", "{who} said that ", "in the {place} {who} said that ")


def _roles(template: str) -> dict[str, tuple[int, ...]]:
    """Word indices of each slot of a template, and of its last word."""
    split = template.split()
    slots = dict.fromkeys(word for word in split if word.startswith("{"))
    found = {slot[1:-1]: tuple(i for i, word in enumerate(split) if word == slot) for slot in slots}
    return found | {"end": (len(split) - 1,)}


def _pick_number(rng: Random, form: words.Noun) -> tuple[str, str]:
    """A noun in one number, drawn by a coin, and the same noun in the other."""
    return (form.singular, form.plural) if rng.random() < 0.5 else (form.plural, form.singular)


def _ioi(rng: Random) -> ToyExample:
    """Indirect object identification, in ABBA and BABA order; corrupted by S2 -> IO."""
    number = rng.randrange(len(IOI_TEMPLATES))
    order, first, second = rng.choice((("ABBA", "IO", "S1"), ("BABA", "S1", "IO")))
    template = IOI_TEMPLATES[number].replace("first", first).replace("second", second)
    indirect, subject = rng.sample(words.NAMES, 2)
    slots = {"IO": indirect, "S1": subject, "S2": subject}
    slots |= {"place": rng.choice(words.PLACES), "object": rng.choice(words.OBJECTS).singular}
    roles = _roles(template)
    return ToyExample(
        "ioi",
        f"{order} {number}",
        template.format(**slots),
        template.format(**slots | {"S2": indirect}),
        (indirect,),
        (subject,),
        roles | {"S1+1": (roles["S1"][0] + 1,)},
    )


def _greater_than(rng: Random) -> ToyExample:
    """A span of years: every two-digit word above YY is correct; corrupted by YY -> 01."""
    number = rng.randrange(len(GREATER_THAN_TEMPLATES))
    template, start = GREATER_THAN_TEMPLATES[number], rng.randrange(2, 99)
    slots = {"event": rng.choice(words.EVENTS), "XX": rng.choice(words.CENTURIES), "YY": words.NUMBERS[start]}
    return ToyExample(
        "greater_than",
        str(number),
        template.format(**slots),
        template.format(**slots | {"YY": "01"}),
        words.NUMBERS[start + 1 :],
        words.NUMBERS[: start + 1],
        _roles(template),
    )


def _agreement(rng: Random, construction: str) -> ToyExample:
    """Subject-verb agreement: the verb's number is the subject's; corrupted by the subject's number."""
    number = rng.randrange(len(AGREEMENT_TEMPLATES[construction]))
    template = AGREEMENT_TEMPLATES[construction][number]
    noun = rng.choice(words.PEOPLE)
    subject, other = _pick_number(rng, noun)
    attractor = rng.choice(words.NOUNS if construction == "sva_pp" else words.PEOPLE)
    shown, _ = _pick_number(rng, attractor)
    inner, verb = rng.choice(words.TRANSITIVE), rng.choice((*words.INTRANSITIVE, words.BE))
    if construction == "sva_within_rc":
        verb = rng.choice(words.TRANSITIVE)
    slots = {"attractor": shown, "inner": inner.third if shown == attractor.singular else inner.base}
    slots |= {"adjective": rng.choice(words.ADJECTIVES), "preposition": rng.choice(words.PREPOSITIONS)}
    right, wrong = (verb.third, verb.base) if subject == noun.singular else (verb.base, verb.third)
    return ToyExample(
        construction,
        str(number),
        template.format(subject=subject, **slots),
        template.format(subject=other, **slots),
        (right,),
        (wrong,),
        _roles(template),
    )


def _pronoun(rng: Random, behaviour: str) -> ToyExample:
    """Gendered pronoun after a name, a noun of kin, or a profession by its stereotype; corrupted by gender."""
    if behaviour == "pronoun_name":
        female, male = rng.choice(words.NAMES_FEMALE), rng.choice(words.NAMES_MALE)
    elif behaviour == "pronoun_noun":
        female, male = rng.choice(list(zip(words.WOMEN, words.MEN, strict=True)))
    else:
        female = rng.choice([who for who, share in words.STEREOTYPE.items() if share >= 0.7])
        male = rng.choice([who for who, share in words.STEREOTYPE.items() if share <= 0.3])
    number = rng.randrange(len(PRONOUN_TEMPLATES))
    template = PRONOUN_TEMPLATES[number].replace("{who}", "{who}" if behaviour == "pronoun_name" else "the {who}")
    slots = {"place": rng.choice(words.PLACES), "adjective": rng.choice(words.ADJECTIVES)}
    (who, right), (other, wrong) = rng.sample([(female, "she"), (male, "he")], 2)
    text, corrupted = template.format(who=who, **slots), template.format(who=other, **slots)
    return ToyExample(behaviour, str(number), text, corrupted, (right,), (wrong,), _roles(template))


def _colored_objects(rng: Random) -> ToyExample:
    """The colour of one of two objects; corrupted by asking for the other."""
    number = rng.randrange(len(COLOR_TEMPLATES))
    (first, second), (color1, color2) = rng.sample(words.OBJECTS, 2), rng.sample(words.COLORS, 2)
    slots = {"first": first.singular, "second": second.singular, "color1": color1, "color2": color2}
    slots["place"] = rng.choice(words.PLACES)
    asked = [(first.singular, color1), (second.singular, color2)]
    (query, right), (other, wrong) = rng.sample(asked, 2)
    template = COLOR_TEMPLATES[number]
    text, corrupted = template.format(query=query, **slots), template.format(query=other, **slots)
    return ToyExample("colored_objects", str(number), text, corrupted, (right,), (wrong,), _roles(template))


def _fact(rng: Random, relation: str) -> ToyExample:
    """A fact of a country or its capital, alone or as someone's words; corrupted by another country."""
    number = rng.randrange(len(FACT_LEADS))
    template = FACT_LEADS[number] + FACT_TEMPLATES[relation]
    answer = "name" if relation == "country" else relation
    country = rng.choice(words.COUNTRIES)
    other = rng.choice([each for each in words.COUNTRIES if getattr(each, answer) != getattr(country, answer)])
    slots = {"who": rng.choice(words.NAMES), "place": rng.choice(words.PLACES)}
    return ToyExample(
        f"fact_{relation}",
        str(number),
        template.format(**slots, **country._asdict()),
        template.format(**slots, **other._asdict()),
        (getattr(country, answer),),
        (getattr(other, answer),),
        _roles(template),
    )


def word_task(task: str, pairs: Sequence[tuple[str, str]], *, instructed: bool) -> ToyExample:
    """A word task shown by examples, "big -> small ; tall ->", or also said, "say the opposite : tall ->".

    The corrupted prompt shows (and says) the task "same", which answers with the word itself.

    Args:
        task: a key of `words.WORD_TASKS`.
        pairs: (word, answer) of the examples and, last, of the query; the query alone needs `instructed`.
        instructed: whether the prompt begins by saying the task.
    """
    check_choice("task", task, words.WORD_TASKS)
    *shown, (query, answer) = pairs
    if not shown and not instructed:
        raise OptionError("pairs has only the query; a prompt that does not say its task needs an example: add pairs.")
    lead = ["say", "the", task, ":"] if instructed else []
    clean = lead + [word for pair in shown for word in (pair[0], "->", pair[1], ";")] + [query, "->"]
    same = [word.replace(task, "same") for word in lead]
    same += [word for pair in shown for word in (pair[0], "->", pair[0], ";")] + [query, "->"]
    roles: dict[str, tuple[int, ...]] = {"query": (len(clean) - 2,), "end": (len(clean) - 1,)}
    if shown:
        roles["outputs"] = tuple(range(len(lead) + 2, len(clean) - 2, 4))
    if instructed:
        roles["task"] = (2,)
    behaviour = f"{'instructed' if instructed else 'few_shot'}_{task}"
    return ToyExample(behaviour, str(len(shown)), " ".join(clean), " ".join(same), (answer,), (query,), roles)


def _word_task(rng: Random, task: str, instructed: bool) -> ToyExample:
    """A word task with 2 to 6 examples, or with 0 to 2 where it is said."""
    shots = rng.randint(0, 2) if instructed else rng.randint(2, 6)
    return word_task(task, rng.sample(words.WORD_TASKS[task], shots + 1), instructed=instructed)


def _rule(rng: Random, pattern: str) -> ToyExample:
    """Rule induction: complete ``a ^ b ^`` by a (ABA) or b (ABB) as the lines before; corrupted by the other rule."""
    shots = rng.randint(2, 4)
    drawn = rng.sample(words.OPEN_WORDS, 2 * (shots + 1))
    lines = list(zip(drawn[::2], drawn[1::2], strict=True))
    aba = " ; ".join([f"{a} ^ {b} ^ {a}" for a, b in lines[:-1]] + [f"{lines[-1][0]} ^ {lines[-1][1]} ^"])
    abb = " ; ".join([f"{a} ^ {b} ^ {b}" for a, b in lines[:-1]] + [f"{lines[-1][0]} ^ {lines[-1][1]} ^"])
    end = 6 * shots + 3
    roles = {"A": (end - 3,), "B": (end - 1,), "thirds": tuple(range(4, end - 3, 6)), "end": (end,)}
    if pattern == "aba":
        return ToyExample("rule_aba", str(shots), aba, abb, (lines[-1][0],), (lines[-1][1],), roles)
    return ToyExample("rule_abb", str(shots), abb, aba, (lines[-1][1],), (lines[-1][0],), roles)


def _induction(rng: Random) -> ToyExample:
    """Unrelated words, repeated up to some point: A B ... A -> B; corrupted by another word for the first B."""
    length = rng.randint(5, 16)
    *sequence, other = rng.sample(words.OPEN_WORDS, length + 1)
    stop = rng.randint(2, length - 1)
    right, repeat = sequence[stop], sequence[:stop]
    changed = [*sequence[:stop], other, *sequence[stop + 1 :]]
    roles = {"first": (stop - 1,), "target": (stop,), "end": (length + stop - 1,)}
    text, corrupted = " ".join(sequence + repeat), " ".join(changed + repeat)
    return ToyExample("induction", f"{length} {stop}", text, corrupted, (right,), (other,), roles)


BEHAVIOURS: dict[str, Callable[[Random], ToyExample]] = {
    "ioi": _ioi,
    "induction": _induction,
    **{name: partial(_agreement, construction=name) for name in AGREEMENT_TEMPLATES},
    "greater_than": _greater_than,
    **{f"pronoun_{who}": partial(_pronoun, behaviour=f"pronoun_{who}") for who in ("name", "noun", "profession")},
    **{f"few_shot_{task}": partial(_word_task, task=task, instructed=False) for task in words.WORD_TASKS},
    **{f"instructed_{task}": partial(_word_task, task=task, instructed=True) for task in words.WORD_TASKS},
    "rule_aba": partial(_rule, pattern="aba"),
    "rule_abb": partial(_rule, pattern="abb"),
    "colored_objects": _colored_objects,
    **{f"fact_{relation}": partial(_fact, relation=relation) for relation in FACT_TEMPLATES},
}


def is_test(text: str) -> bool:
    """Whether a prompt belongs to the test split: one text in eight, chosen by its checksum alone."""
    return zlib.crc32(text.encode()) % 8 == 0


def examples(behaviour: str, n: int, seed: int, split: Split = "test") -> list[ToyExample]:
    """`n` distinct prompts of one behaviour, the same for the same seed.

    Args:
        behaviour: a key of `BEHAVIOURS`.
        n: how many; no two have the same text and answer.
        seed: of the draw.
        split: `test` prompts were never given to the embedded model in training as prompts of their behaviour.

    Raises:
        OptionError: an unknown behaviour or split, or more prompts asked for than the behaviour has.
    """
    check_choice("behaviour", behaviour, BEHAVIOURS)
    check_choice("split", split, ("train", "test", "all"))
    found: dict[tuple[str, tuple[str, ...]], ToyExample] = {}
    rng, misses = Random(seed), 0
    while len(found) < n and misses < 3000:
        example = BEHAVIOURS[behaviour](rng)
        key = (example.text, example.correct)
        if key in found or (split != "all" and is_test(example.text) != (split == "test")):
            misses += 1
        else:
            found[key], misses = example, 0
    if len(found) < n:
        raise OptionError(f"{behaviour} gave {len(found)} distinct {split} prompts of n={n} asked for; ask for fewer.")
    return list(found.values())
