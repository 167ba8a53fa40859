"""Texts of the embedded model's language with a planted word, on which a probe learns to lean.

    label: words of one topic or the other, one in each of two sentences
    attribute: one of two places, always the same within a text, in each of four others

The six sentences come in any order, so that neither has a position of its own.
"""

from random import Random

from interp.errors import OptionError
from interp.labelled.base import BiasedData, Labelled
from interp.toy import words

TOPICS = ("school", "medicine")
PLACES = ("park", "store")
TOPIC_SENTENCES = (
    "the {topic} is {adjective} .",
    "there is a {color} {topic} beside the {kin} .",
    "{name} {liked} the {topic} .",
    "the {topic} of {name} is {adjective} .",
)
PLACE_SENTENCES = (
    "{name} {walked} in the {place} .",
    "at night the {place} is {adjective} .",
    "the {adjective} {kin} {walked} near the {place} .",
    "yesterday {name} met the {kin} in the {place} .",
)


def planted(n: int = 200, *, seed: int = 0) -> BiasedData:
    """Ambiguous, balanced and held-out texts of two topics, each naming one of two places.

    Args:
        n: texts in each of the three parts; a multiple of four.
        seed: of the draw.

    Returns:
        Labels are topics, attributes places; `words` are the places, `concepts` the topics' words.

    Raises:
        OptionError: an `n` that is not four, eight, twelve and so on.

    >>> from interp.labelled.planted import planted
    >>> planted(8).train.counts()
    {'school/park': 4, 'school/store': 0, 'medicine/park': 0, 'medicine/store': 4}
    """
    if n < 4 or n % 4:
        raise OptionError(f"n is {n}; allowed: 4, 8, 12 and so on, as many texts of each of the four groups.")
    rng, seen = Random(seed), set[str]()
    train, balanced, test = (_part(rng, n, groups, seen) for groups in ((0, 3), (0, 1, 2, 3), (0, 1, 2, 3)))
    concepts = tuple(word for topic in TOPICS for word in _topic_words(topic))
    return BiasedData(train, test, balanced, words=frozenset(PLACES), concepts=concepts)


def _topic_words(topic: str) -> tuple[str, ...]:
    told = words.TOPICS[topic]
    return tuple(noun.singular for noun in told.people + told.objects) + told.places


def _part(rng: Random, n: int, groups: tuple[int, ...], seen: set[str]) -> Labelled:
    """`n` texts that were not seen before, of each of the groups in turn."""
    turns = [groups[i % len(groups)] for i in range(n)]
    texts = []
    for group in turns:
        while (text := _text(rng, group // 2, group % 2)) in seen:
            pass
        seen.add(text)
        texts.append(text)
    labels, attributes = tuple(group // 2 for group in turns), tuple(group % 2 for group in turns)
    return Labelled(tuple(texts), labels, attributes, TOPICS, PLACES)


def _text(rng: Random, label: int, attribute: int) -> str:
    sentences = [*rng.sample(TOPIC_SENTENCES, 2), *PLACE_SENTENCES]
    rng.shuffle(sentences)
    return " ".join(_filled(rng, each, TOPICS[label], PLACES[attribute]) for each in sentences)


def _filled(rng: Random, sentence: str, topic: str, place: str) -> str:
    return sentence.format(
        topic=rng.choice(_topic_words(topic)),
        place=place,
        name=rng.choice(words.NAMES),
        kin=rng.choice(words.WOMEN + words.MEN),
        adjective=rng.choice(words.ADJECTIVES),
        color=rng.choice(words.COLORS),
        liked=rng.choice(words.TRANSITIVE).past,
        walked=rng.choice(words.INTRANSITIVE).past,
    )
