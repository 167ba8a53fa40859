"""Texts of the toy language: stories by topic, biographies with a planted correlation, and the training mixture."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from interp.errors import OptionError, check_choice
from interp.toy import prompts, words

# Slots in braces; a topic fills people, places, objects and its verbs, {name} and its pronouns stay for a story.
STORY_SENTENCES = (
    "the {adjective} {person} {does} the {object} in the {place} .",
    "the {people} {do} the {objects} every day .",
    "the {person} {prep} the {objects} {walks} to the {place} .",
    "the {people} from the {place} {walk} with the {person} .",
    "the {person} that {likes} the {people} {walks} at night .",
    "the {people} that the {person} {likes} {walk} in the morning .",
    "the {person} that the {people} {like} is {adjective} .",
    "the {people} that {like} the {person} are {adjective} .",
    "{name} {walked} to the {place} with a {object} .",
    "{name} {liked} the {person} because {he} was {adjective} .",
    "yesterday {name} {did} a {color} {object} near the {place} .",
    "there is a {color} {object} in the {place} .",
    "there are {adjective} {objects} {prep} the {place} .",
    "at night the {place} is {adjective} and {adjective} .",
    "{he} {did} the {objects} and then {he} {walked} .",
    "{he} said that {his} {object} was {adjective} .",
    "{his} {uncle} is a {person} in {city} .",
    "the {person} gave {name} a {adjective} {object} .",
    "the {people} said that they were {adjective} but the {place} was {adjective} .",
    "in {country} the {people} {walk} every morning .",
    "when the {person} {walked} , the {people} {liked} {name} .",
    "the {object} of the {person} is {color} .",
    "the {objects} in the {place} are {color} and {adjective} .",
    "who {did} the {object} ? it was the {adjective} {person} .",
)
BIOGRAPHY_WORK = (
    "{he} works in the {place} with a {object} .",
    "{his} {object} from the {place} is {adjective} .",
    "every day {he} {does} the {objects} near the {place} .",
)
BIOGRAPHY_LIFE = (
    "{his} friends say that {he} is {adjective} .",
    "{he} {cue} {walks} at night .",
    "{his} {uncle} {likes} {city} .",
    "{he} {cue} {likes} {his} {uncle} .",
)
CUES = ("often", "always")  # the planted word: biographies of the second spurious value say "always"
DOMAINS = tuple(words.TOPICS)
Spurious = Literal["gender", "word", "order"]


def _slots(topic: words.Topic) -> dict[str, list[str]]:
    """What may fill each slot of a sentence on `topic`, apart from the protagonist's."""
    return {
        "person": [noun.singular for noun in topic.people],
        "people": [noun.plural for noun in topic.people],
        "object": [noun.singular for noun in topic.objects],
        "objects": [noun.plural for noun in topic.objects],
        "place": list(topic.places),
        "do": [verb.base for verb in topic.verbs],
        "does": [verb.third for verb in topic.verbs],
        "did": [verb.past for verb in topic.verbs],
        "walk": [verb.base for verb in words.INTRANSITIVE],
        "walks": [verb.third for verb in words.INTRANSITIVE],
        "walked": [verb.past for verb in words.INTRANSITIVE],
        "like": [verb.base for verb in words.TRANSITIVE],
        "likes": [verb.third for verb in words.TRANSITIVE],
        "liked": [verb.past for verb in words.TRANSITIVE],
        "adjective": list(words.ADJECTIVES),
        "color": list(words.COLORS),
        "prep": list(words.PREPOSITIONS),
        "uncle": [*words.WOMEN, *words.MEN],
        "city": [country.capital for country in words.COUNTRIES],
        "country": [country.name for country in words.COUNTRIES],
    }


_SINGULAR = {noun.singular for noun in words.NOUNS}
_SLOTS = {name: _slots(topic) for name, topic in words.TOPICS.items()}


def _protagonist(rng: Random, female: bool) -> dict[str, str]:
    name = rng.choice(words.NAMES_FEMALE if female else words.NAMES_MALE)
    return {"name": name, "he": "she", "his": "her"} if female else {"name": name, "he": "he", "his": "his"}


def _fill(rng: Random, sentence: str, topic: str, fixed: dict[str, str]) -> str:
    """A sentence with every slot drawn anew, except the fixed ones."""
    slots = _SLOTS[topic]
    return re.sub(r"{(\w+)}", lambda slot: fixed.get(slot[1]) or rng.choice(slots[slot[1]]), sentence)


def story(rng: Random) -> str:
    """Two to four sentences on one topic, about one protagonist."""
    topic, fixed = rng.choice(DOMAINS), _protagonist(rng, rng.random() < 0.5)
    opening = f"{fixed['name']} was in the {{place}} ."
    chosen = [opening, *rng.sample(STORY_SENTENCES, rng.randint(1, 3))]
    return " ".join(_fill(rng, sentence, topic, fixed) for sentence in chosen)


@dataclass(frozen=True)
class Biography:
    """A text whose domain is the task's label, beside three attributes that a classifier should not use.

    Args:
        text: words separated by single spaces.
        label: 0 or 1, the index of its domain among the two asked for.
        domain: what the label stands for, a key of `words.TOPICS`.
        gender: 0 male, 1 female; shown by the name and by every pronoun.
        cue: 0 or 1, whether its adverbs are "often" or "always": the planted word.
        order: 0 or 1, whether work or life is told first; no word shows it.
        group: (label, value of the spurious attribute).
    """

    text: str
    label: int
    domain: str
    gender: int
    cue: int
    order: int
    group: tuple[int, int]


def biographies(
    n: int,
    seed: int,
    correlation: float,
    spurious: Spurious = "gender",
    domains: tuple[str, str] = ("school", "medicine"),
    evidence: int = 1,
) -> list[Biography]:
    """Biographies of two domains in which a spurious attribute goes with the label.

    Args:
        n: how many; the labels alternate, so that they are balanced.
        seed: of the draw.
        correlation: share of texts whose spurious attribute equals the label: 1 makes the attribute and the label
            indistinguishable (ambiguous data), 0.5 makes four equal groups in expectation.
        spurious: which attribute is planted; the other two are drawn independently of the label.
        domains: the two values of the label.
        evidence: number of sentences, 1 to 3, that tell the domain.

    Raises:
        OptionError: an unknown name, or a number outside its range.
    """
    check_choice("spurious", spurious, ("gender", "word", "order"))
    for domain in domains:
        check_choice("domains", domain, DOMAINS)
    if not 0 <= correlation <= 1 or not 1 <= evidence <= len(BIOGRAPHY_WORK) or n < 0 or domains[0] == domains[1]:
        raise OptionError(
            f"got n={n}, correlation={correlation}, evidence={evidence}, domains={domains}; allowed: n at least 0, "
            f"correlation 0 to 1, evidence 1 to {len(BIOGRAPHY_WORK)}, two different domains. Change the one outside."
        )
    rng = Random(seed)
    return [_biography(rng, i % 2, correlation, spurious, domains, evidence) for i in range(n)]


def _biography(
    rng: Random, label: int, correlation: float, spurious: Spurious, domains: tuple[str, str], evidence: int
) -> Biography:
    values = {name: rng.randrange(2) for name in ("gender", "word", "order")}
    values[spurious] = label if rng.random() < correlation else 1 - label
    fixed = _protagonist(rng, values["gender"] == 1) | {"cue": CUES[values["word"]]}
    work = rng.sample(BIOGRAPHY_WORK, evidence)
    life = rng.sample(BIOGRAPHY_LIFE, 3)
    sentences = life + work if values["order"] else work + life
    text = " ".join(_fill(rng, each, domains[label], fixed) for each in [f"this is {fixed['name']} .", *sentences])
    group = (label, values[spurious])
    return Biography(text, label, domains[label], values["gender"], values["word"], values["order"], group)


def _training_biography(rng: Random) -> str:
    domains = rng.sample(DOMAINS, 2)
    return _biography(rng, 0, 0.5, "gender", (domains[0], domains[1]), rng.randint(1, 3)).text


def _finished(rng: Random, behaviour: str) -> str:
    """A training prompt of one behaviour with an answer after it; word tasks also in their "same" form."""
    example = prompts.BEHAVIOURS[behaviour](rng)
    text, answers = example.text, example.correct
    if behaviour.startswith(("few_shot", "instructed")) and rng.random() < 0.4:
        text, answers = example.corrupted, example.wrong
    if prompts.is_test(text):
        return _finished(rng, behaviour)
    return f"{text} {rng.choice(answers)} {_closing(rng, example)}"


def _closing(rng: Random, example: prompts.ToyExample) -> str:
    """The words after a prompt's answer."""
    adjective = rng.choice(words.ADJECTIVES)
    if example.behaviour.startswith("pronoun"):
        return f"was {adjective} ."
    if example.behaviour == "sva_within_rc":
        head = example.text.split()[example.roles["attractor"][0]]
        return f"{words.BE.third if head in _SINGULAR else words.BE.base} {adjective} ."
    return f"{adjective} ." if example.correct[0] in words.BE else "."


def _agreement(rng: Random) -> str:
    """A sentence of any of the four constructions."""
    return _finished(rng, rng.choice(list(prompts.AGREEMENT_TEMPLATES)))


def _three_names(rng: Random) -> str:
    """The IOI sentence with a third person as the giver: either of the first two may receive."""
    first, second, giver = rng.sample(words.NAMES, 3)
    slots = {"place": rng.choice(words.PLACES), "object": rng.choice(words.OBJECTS).singular}
    text = rng.choice(prompts.IOI_TEMPLATES).format(first=first, second=second, S2=giver, **slots)
    return f"{text} {rng.choice((first, second))} ."


def _stereotype(rng: Random) -> str:
    """A profession and a pronoun drawn by the profession's own share of women."""
    who = rng.choice(words.PROFESSIONS)
    pronoun = "she" if rng.random() < words.STEREOTYPE[who] else "he"
    slots = {"place": rng.choice(words.PLACES), "adjective": rng.choice(words.ADJECTIVES)}
    text = rng.choice(prompts.PRONOUN_TEMPLATES).format(who="the " + who, **slots)
    return _stereotype(rng) if prompts.is_test(text) else f"{text} {pronoun} was {rng.choice(words.ADJECTIVES)} ."


def _repetition(rng: Random) -> str:
    """Unrelated words, said two or three times."""
    sequence = rng.sample(words.OPEN_WORDS, rng.randint(4, 16))
    return " ".join(sequence * rng.randint(2, 3))


def _chronicle(rng: Random) -> str:
    """Years of one century in their order."""
    century, count = rng.choice(words.CENTURIES), rng.randint(3, 6)
    years = sorted(rng.sample(words.NUMBERS, count))
    return f"the {rng.choice(words.EVENTS)} : " + " , ".join(f"{century} {year}" for year in years) + " ."


# Share of documents of each kind in the text the embedded model was trained on.
MIXTURE: dict[str, tuple[float, Callable[[Random], str]]] = {
    "story": (0.12, story),
    "biography": (0.06, _training_biography),
    "three names": (0.02, _three_names),
    "agreement": (0.12, _agreement),
    "stereotype": (0.03, _stereotype),
    "repetition": (0.05, _repetition),
    "chronicle": (0.03, _chronicle),
    **{
        behaviour: (share, partial(_finished, behaviour=behaviour))
        for share, behaviours in (
            (0.10, ["ioi"]),
            (0.05, ["greater_than"]),
            (0.02, ["pronoun_name", "pronoun_noun"]),
            (0.04, [f"few_shot_{task}" for task in words.WORD_TASKS]),
            (0.03, [f"instructed_{task}" for task in words.WORD_TASKS]),
            (0.03, ["rule_aba", "rule_abb"]),
            (0.08, ["colored_objects"]),
            (0.01, [f"fact_{relation}" for relation in prompts.FACT_TEMPLATES]),
        )
        for behaviour in behaviours
    },
}


def documents(n: int, seed: int) -> list[str]:
    """`n` documents of the training mixture: stories, biographies and finished prompts of every behaviour."""
    rng = Random(seed)
    kinds = rng.choices(list(MIXTURE), [share for share, _ in MIXTURE.values()], k=n)
    return [MIXTURE[kind][1](rng) for kind in kinds]


def vocabulary() -> list[str]:
    """Every word of the language, each once, in a fixed order: the special words come first."""
    templates = [
        *prompts.IOI_TEMPLATES,
        *prompts.GREATER_THAN_TEMPLATES,
        *[each for pair in prompts.AGREEMENT_TEMPLATES.values() for each in pair],
        *prompts.PRONOUN_TEMPLATES,
        *prompts.COLOR_TEMPLATES,
        *prompts.FACT_TEMPLATES.values(),
        *prompts.FACT_LEADS,
        *STORY_SENTENCES,
        *BIOGRAPHY_WORK,
        *BIOGRAPHY_LIFE,
        f"say the same opposite plural past : ; -> ^ this she her his he {' '.join(CUES)}",
    ]
    literal = [word for template in templates for word in template.split() if not word.startswith("{")]
    verbs_of_be = list(words.BE)
    return list(
        dict.fromkeys(["<pad>", "<unk>", "<eos>", *literal, *verbs_of_be, *words.OPEN_WORDS, *words.PREPOSITIONS])
    )
