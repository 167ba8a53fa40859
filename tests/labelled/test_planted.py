"""Texts with a planted word, on which a probe of the embedded model leans."""

from typing import Any

import pytest
import torch

from interp.errors import OptionError
from interp.labelled.base import Labelled
from interp.labelled.planted import PLACES, TOPICS, planted
from interp.models.load import load
from interp.probes import pool, train_probe
from interp.toy import vocabulary

SITE = "resid_post[1]"


@pytest.fixture(scope="module")
def embedded() -> Any:
    return load("embedded")


def scores(model: Any, train: Labelled, test: Labelled) -> tuple[float, float, float]:
    """Accuracy for the label, agreement with the attribute, and accuracy of the worst group."""
    probe = train_probe(pool(model, model.prompts(train.texts), SITE), train.labels)
    said = (probe(pool(model, model.prompts(test.texts), SITE)) > 0).long()
    right = (said == torch.tensor(test.labels)).double()
    groups = torch.from_numpy(test.groups)
    worst = min(right[groups == group].mean().item() for group in range(4))
    return right.mean().item(), (said == torch.tensor(test.attributes)).double().mean().item(), worst


def test_a_probe_of_ambiguous_texts_leans_on_the_planted_word_and_one_of_balanced_texts_does_not(embedded: Any) -> None:
    data = planted()
    assert data.balanced is not None
    label, attribute, worst = scores(embedded, data.train, data.test)
    assert label < 0.65 and attribute > 0.85 and worst < 0.2  # measured: .555, .945, .10
    label, attribute, worst = scores(embedded, data.balanced, data.test)
    assert label > 0.9 and attribute < 0.6 and worst > 0.8  # measured: .935, .535, .86


def test_label_and_planted_word_go_together_in_training_alone() -> None:
    data = planted(40)
    assert data.balanced is not None
    assert list(data.train.counts().values()) == [20, 0, 0, 20]
    assert [*data.balanced.counts().values(), *data.test.counts().values()] == [10] * 8


def test_each_text_has_two_words_of_its_topic_and_its_place_four_times() -> None:
    data = planted(40)
    words = {topic: set(data.concepts[start : start + 11]) for topic, start in zip(TOPICS, (0, 11), strict=True)}
    for text, label, attribute in zip(data.test.texts, data.test.labels, data.test.attributes or (), strict=True):
        told = text.split()
        assert told.count(PLACES[attribute]) == 4 and PLACES[1 - attribute] not in told
        assert sum(word in words[TOPICS[label]] for word in told) == 2
        assert not words[TOPICS[1 - label]] & set(told)
    assert data.words == set(PLACES)


def test_the_planted_word_has_no_position_of_its_own() -> None:
    firsts = {text.split().index(PLACES[a]) for text, a in _rows(planted(40).test)}
    assert len(firsts) > 5


def _rows(part: Labelled) -> list[tuple[str, int]]:
    return list(zip(part.texts, part.attributes or (), strict=True))


def test_every_word_is_one_that_the_embedded_model_knows() -> None:
    data = planted(200)
    assert {word for text in data.train.texts + data.test.texts for word in text.split()} <= set(vocabulary())
    assert {*data.words, *data.concepts} <= set(vocabulary())


def test_no_text_is_in_two_parts_and_the_seed_alone_decides() -> None:
    data = planted(200)
    assert data.balanced is not None
    assert len({*data.train.texts, *data.balanced.texts, *data.test.texts}) == 600
    assert data == planted(200) != planted(200, seed=1)


def test_a_text_that_was_drawn_before_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = "interp.labelled.planted._text"
    monkeypatch.setattr(drawn, lambda rng, label, attribute: f"{rng.randrange(8)} {label} {attribute}")
    data = planted(8)  # all eight texts of a group: four, two and two of 0/0
    assert data.balanced is not None
    assert len({*data.train.texts, *data.balanced.texts, *data.test.texts}) == 24


def test_an_odd_size_is_an_error() -> None:
    with pytest.raises(OptionError, match="n is 6; allowed: 4, 8, 12"):
        planted(6)
