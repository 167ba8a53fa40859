"""Generated biographies: what tells the label, what tells the attribute, and what no word tells."""

import re
from collections import Counter
from itertools import combinations

import pytest

from interp.errors import OptionError
from interp.labelled.base import Labelled
from interp.labelled.biographies import ATTRIBUTES, HELD_OUT_NAMES, PROFESSIONS, biographies
from interp.labelled.gender import FEMALE_NAMES, GENDER_WORDS, MALE_NAMES

SHE, HE = {"she", "her"}, {"he", "his", "him"}


def words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text.lower())


def sentences(text: str) -> list[str]:
    return re.findall(r"[^.]+\.", text.replace(". ", "."))


def parts(**options: object) -> list[Labelled]:
    data = biographies(**options)  # type: ignore[arg-type]
    assert data.balanced is not None
    return [data.train, data.balanced, data.test]


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_label_and_attribute_go_together_in_training_alone(attribute: str) -> None:
    train, balanced, test = parts(n=40, attribute=attribute)
    assert list(train.counts().values()) == [20, 0, 0, 20]
    assert list(balanced.counts().values()) == list(test.counts().values()) == [10, 10, 10, 10]


@pytest.mark.parametrize("classes", list(combinations(PROFESSIONS, 2)))
def test_any_two_professions_are_told_by_their_facts_without_their_names(classes: tuple[str, str]) -> None:
    assert len(PROFESSIONS) >= 6
    data = biographies(20, classes=classes)
    for text, label in zip(data.train.texts, data.train.labels, strict=True):
        assert not {"professor", "professors"} & set(words(text)) and classes[label] not in text.lower()
    assert data.train.classes == classes and 10 <= len(data.concepts) <= 20
    told = {word for text in data.train.texts + data.test.texts for word in words(text)}
    assert sum(concept in told for concept in data.concepts) >= 5


def test_every_concept_of_a_profession_is_a_word_of_its_facts() -> None:
    for profession in PROFESSIONS.values():
        said = " ".join(profession.facts + profession.things + profession.places).lower()
        assert [word for word in profession.concepts if word not in said] == []


def test_gender_is_told_by_the_pronouns_and_the_name() -> None:
    for part in parts(n=80):
        for text, female in zip(part.texts, part.attributes or (), strict=True):
            assert set(words(text)) & (HE if not female else SHE), text
            assert not set(words(text)) & (SHE if not female else HE), text
            assert set(text.split()) & set(FEMALE_NAMES if female else MALE_NAMES)


def test_gender_is_no_longer_told_once_the_words_are_deleted() -> None:
    data = biographies(80)
    left = [" ".join(w for w in words(text) if w not in data.words) for text in data.train.texts]
    assert not {name.lower() for name in MALE_NAMES + FEMALE_NAMES} & set(" ".join(left).split())
    assert data.words > GENDER_WORDS and not GENDER_WORDS & set(" ".join(left).split())


@pytest.mark.parametrize("attribute", ["order", "repetition"])
def test_no_list_of_words_deletes_an_attribute_that_is_not_lexical(attribute: str) -> None:
    data = biographies(40, attribute=attribute)
    assert not data.words
    told = ATTRIBUTES[attribute].told
    for text in data.test.texts:
        zero, one = (Counter(words(" ".join(told(sentences(text), value)))) for value in (0, 1))
        assert zero == one if attribute == "order" else zero.keys() == one.keys() and zero != one


def test_a_life_is_told_forward_from_its_opening_or_backward_to_it() -> None:
    (train, *_) = parts(n=40, attribute="order")
    names = set(MALE_NAMES + FEMALE_NAMES)
    for text, backward in zip(train.texts, train.attributes or (), strict=True):
        opening = sentences(text)[-1 if backward else 0]
        assert opening.split()[0] in names and len(sentences(text)) == 5


def test_a_repeated_life_is_told_twice() -> None:
    (train, *_) = parts(n=40, attribute="repetition")
    for text, twice in zip(train.texts, train.attributes or (), strict=True):
        assert len(sentences(text)) == 5 * (1 + twice) and len(set(sentences(text))) == 5


def test_gender_says_nothing_about_the_label_where_another_attribute_does() -> None:
    (train, *_) = parts(n=400, attribute="order")
    female = [bool(set(words(text)) & SHE) for text in train.texts]
    shares = [sum(f for f, label in zip(female, train.labels, strict=True) if label == one) / 200 for one in (0, 1)]
    assert all(0.4 < share < 0.6 for share in shares)


def test_training_and_held_out_share_neither_a_text_nor_a_first_name() -> None:
    train, balanced, test = parts(n=400)
    assert len({*train.texts, *balanced.texts, *test.texts}) == 1200
    names = set(MALE_NAMES + FEMALE_NAMES)
    used = [{word for text in part.texts for word in text.split()} & names for part in (train, balanced, test)]
    assert len(used[2]) == 2 * HELD_OUT_NAMES and len(used[0]) > 2 * HELD_OUT_NAMES
    assert not used[2] & (used[0] | used[1])


def test_sentences_that_were_drawn_together_before_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = "interp.labelled.biographies._sentences"
    monkeypatch.setattr(drawn, lambda rng, profession, *_: [f"{profession}.", f"{rng.randrange(12)}."])
    train, balanced, test = parts(n=8, attribute="order")  # twelve of each profession are needed
    told = [frozenset(sentences(text)) for part in (train, balanced, test) for text in part.texts]
    assert len(set(told)) == 24


def test_sentences_begin_with_a_capital_and_no_slot_is_left() -> None:
    for part in parts(n=400):
        assert not any(set("{}|") & set(text) or "  " in text for text in part.texts)
        assert all(each[0].isupper() for text in part.texts for each in sentences(text))


def test_the_seed_alone_decides() -> None:
    assert biographies(40, seed=3) == biographies(40, seed=3) != biographies(40, seed=4)


def test_unknown_names_and_odd_sizes_are_errors() -> None:
    with pytest.raises(OptionError, match="nearest: 'nurse'"):
        biographies(classes=("professor", "nurses"))
    with pytest.raises(OptionError, match="n=6"):
        biographies(6)
    with pytest.raises(OptionError, match="two different professions"):
        biographies(8, classes=("nurse", "nurse"))


def test_the_words_of_gender_are_lower_case_and_names_are_of_one_gender() -> None:
    assert all(word == word.lower() for word in GENDER_WORDS) and {"she", "actress", "mother"} <= GENDER_WORDS
    assert not set(FEMALE_NAMES) & set(MALE_NAMES)
    assert all(55 <= len(set(names)) == len(names) <= 70 for names in (FEMALE_NAMES, MALE_NAMES))
