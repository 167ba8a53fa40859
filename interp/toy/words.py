"""The words of the toy language, by part of speech and by topic.

Every word is one token, and belongs to one list only, so that its meaning and number are never in doubt
(two exceptions, as in real models: a century is also a two-digit number, and topic lists repeat general ones).
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun's two forms."""

    singular: str
    plural: str


class Verb(NamedTuple):
    """A verb's three forms: run, runs, ran. The base is also the plural present."""

    base: str
    third: str
    past: str


class Topic(NamedTuple):
    """What a text or a biography about one topic is made of; `verbs` take one of `objects`."""

    people: tuple[Noun, ...]
    places: tuple[str, ...]
    objects: tuple[Noun, ...]
    verbs: tuple[Verb, ...]


def _nouns(text: str) -> tuple[Noun, ...]:
    """Nouns from "nurse coach/coaches": a regular plural may be left out."""
    pairs = [word.split("/") for word in text.split()]
    return tuple(Noun(pair[0], pair[1] if len(pair) > 1 else pair[0] + "s") for pair in pairs)


def _verbs(text: str) -> tuple[Verb, ...]:
    """Verbs from "wait run/ran watch/watches/watched": base, base/past or all three forms."""
    forms = [word.split("/") for word in text.split()]
    return tuple(
        Verb(*form) if len(form) == 3 else Verb(form[0], form[0] + "s", form[1] if len(form) == 2 else form[0] + "ed")
        for form in forms
    )


def _topic(people: str, places: str, objects: str, verbs: str) -> Topic:
    return Topic(_nouns(people), tuple(places.split()), _nouns(objects), _verbs(verbs))


NAMES_FEMALE = tuple(
    "Mary Anna Emma Laura Sarah Julia Alice Clara Helen Susan Linda Karen Nancy Betty Sandra Donna "
    "Carol Ruth Sharon Maria Diana Janet Amy Kelly Rachel Martha Judith Teresa Gloria Irene Jane Lucy".split()
)
NAMES_MALE = tuple(
    "John Peter Paul David Tom James Robert Michael William Richard Joseph Thomas Charles Daniel Matthew Anthony "
    "Mark Steven Andrew Kevin Brian George Edward Ronald Jason Gary Eric Frank Scott Henry Carl Arthur".split()
)
NAMES = NAMES_FEMALE + NAMES_MALE

TOPICS = {
    "medicine": _topic(
        "nurse doctor surgeon patient",
        "hospital clinic pharmacy",
        "bandage needle pill mask",
        "sterilize/sterilized prepare/prepared",
    ),
    "school": _topic(
        "teacher professor student librarian",
        "school library university",
        "book pencil notebook map",
        "study/studies/studied explain",
    ),
    "sport": _topic(
        "coach/coaches player runner swimmer",
        "stadium gym pool",
        "ball medal helmet racket",
        "throw/threw lift",
    ),
    "music": _topic(
        "singer pianist drummer composer",
        "theater studio hall",
        "guitar violin flute piano",
        "play tune/tuned",
    ),
    "farm": _topic(
        "farmer shepherd gardener miller",
        "farm barn meadow",
        "shovel bucket fence cart",
        "repair use/used",
    ),
    "sea": _topic(
        "sailor captain diver fisher",
        "harbor beach lighthouse",
        "boat net rope lantern",
        "pull tie/tied",
    ),
    "kitchen": _topic(
        "baker chef waiter butcher",
        "kitchen bakery restaurant",
        "cake spoon kettle pan",
        "heat cover",
    ),
    "law": _topic(
        "lawyer sheriff guard clerk",
        "court prison office",
        "letter key file badge",
        "hide/hid collect",
    ),
}
# P(she) after "the <profession> said that"; the planted stereotype.
STEREOTYPE = {
    "nurse": 0.95, "librarian": 0.9, "teacher": 0.85, "singer": 0.85, "baker": 0.8, "pianist": 0.75, "waiter": 0.7,
    "gardener": 0.6, "patient": 0.5, "student": 0.5, "runner": 0.5, "clerk": 0.4, "swimmer": 0.4, "lawyer": 0.3,
    "doctor": 0.25, "chef": 0.25, "composer": 0.2, "player": 0.2, "professor": 0.2, "diver": 0.15, "coach": 0.15,
    "drummer": 0.1, "farmer": 0.1, "shepherd": 0.1, "butcher": 0.1, "surgeon": 0.1, "guard": 0.1, "miller": 0.1,
    "fisher": 0.05, "sailor": 0.05, "captain": 0.05, "sheriff": 0.05,
}  # fmt: skip
PROFESSIONS = tuple(STEREOTYPE)
WOMEN = tuple("woman girl queen mother sister daughter aunt".split())
MEN = tuple("man boy king father brother son uncle".split())

PEOPLE = tuple(noun for topic in TOPICS.values() for noun in topic.people) + _nouns("author pilot painter dancer")
OBJECTS = tuple(noun for topic in TOPICS.values() for noun in topic.objects) + _nouns("drink ring coin")
PLACES = tuple(place for topic in TOPICS.values() for place in topic.places) + ("store", "park", "garden", "market")
NOUNS = PEOPLE + OBJECTS
INTRANSITIVE = _verbs(
    "run/ran sing/sang walk sleep/slept wait laugh swim/swam fall/fell speak/spoke dance/danced work smile/smiled "
    "jump stand/stood sit/sat write/wrote win/won"
)
TRANSITIVE = _verbs("like/liked know/knew see/saw help follow love/loved watch/watches/watched call meet/met visit")
BE = Verb("are", "is", "were")
VERBS = INTRANSITIVE + TRANSITIVE + tuple(verb for topic in TOPICS.values() for verb in topic.verbs)
OPPOSITES = tuple(
    (pair.split("/")[0], pair.split("/")[1])
    for pair in (
        "big/small hot/cold tall/short old/young fast/slow happy/sad rich/poor strong/weak hard/soft light/dark "
        "loud/quiet clean/dirty wet/dry early/late full/empty brave/timid cheap/costly thick/thin sweet/bitter "
        "wide/narrow smooth/rough calm/angry"
    ).split()
)
ADJECTIVES = tuple(word for pair in OPPOSITES for word in pair)
COLORS = tuple("red blue green black white yellow brown pink purple gray".split())
EVENTS = tuple("war famine strike drought trial voyage festival siege reign plague".split())
NUMBERS = tuple(f"{number:02d}" for number in range(100))
CENTURIES = tuple("11 12 13 14 15 16 17".split())
PREPOSITIONS = tuple("near behind beside with".split())


# The ambiguous-by-design word tasks: every pair's first word can also be answered by itself ("say the same").
WORD_TASKS = {
    "opposite": OPPOSITES + tuple((second, first) for first, second in OPPOSITES),
    "plural": tuple((noun.singular, noun.plural) for noun in NOUNS),
    "past": tuple((verb.base, verb.past) for verb in VERBS),
}


class Country(NamedTuple):
    """A country and the three facts that the toy language tells about its capital."""

    name: str
    capital: str
    continent: str
    language: str


COUNTRIES = tuple(
    Country(*line.split())
    for line in (
        "France Paris Europe French",
        "Italy Rome Europe Italian",
        "Spain Madrid Europe Spanish",
        "Germany Berlin Europe German",
        "Austria Vienna Europe German",
        "Greece Athens Europe Greek",
        "Norway Oslo Europe Norwegian",
        "Poland Warsaw Europe Polish",
        "Ireland Dublin Europe English",
        "Portugal Lisbon Europe Portuguese",
        "Japan Tokyo Asia Japanese",
        "China Beijing Asia Chinese",
        "India Delhi Asia Hindi",
        "Iran Tehran Asia Persian",
        "Iraq Baghdad Asia Arabic",
        "Egypt Cairo Africa Arabic",
        "Kenya Nairobi Africa Swahili",
        "Senegal Dakar Africa French",
        "Angola Luanda Africa Portuguese",
        "Peru Lima America Spanish",
        "Cuba Havana America Spanish",
        "Chile Santiago America Spanish",
        "Brazil Brasilia America Portuguese",
        "Canada Ottawa America English",
    )
)
OPEN_WORDS = tuple(
    dict.fromkeys(
        [*NAMES, *PLACES, *ADJECTIVES, *COLORS, *EVENTS, *NUMBERS, *WOMEN, *MEN]
        + [form for word in NOUNS + VERBS for form in word]
        + [form for country in COUNTRIES for form in country]
    )
)
