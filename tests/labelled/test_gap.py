"""Passages about people: the parts of the public file, and a file of the same kind."""

import json
from pathlib import Path

import pytest

from interp.errors import FileError, TaskError
from interp.labelled.gap import CONCEPTS, gap
from interp.labelled.gender import GENDER_WORDS

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "gap" / "gap_domain_gender.jsonl"


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    rows = [
        {"text": f"{domain} {gender} {number}", "domain": domain, "gender": gender, "n_keywords": number % 4}
        for domain in ("screen", "sport", "music")
        for gender in "FM"
        for number in range(12)
    ]
    path = tmp_path / "passages.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_the_public_file_gives_women_of_the_screen_against_men_of_sport() -> None:
    if not PUBLIC.is_file():
        pytest.skip("the shared data folder is not here")
    data = gap(PUBLIC)
    assert data.train.counts() == {"screen/M": 0, "screen/F": 71, "sport/M": 71, "sport/F": 0}
    assert set(data.test.counts().values()) == {36} and len(data.all_held_out) == 195
    assert data.balanced is not None and set(data.balanced.counts().values()) == {35}


def test_the_file_is_shared_out_by_domain_and_gender(passages: Path) -> None:
    data = gap(passages, classes=("screen", "music"), together=(1, 0))
    assert set(data.train.texts) <= {f"{who} {number}" for who in ("screen F", "music M") for number in range(12)}
    assert all(int(text.split()[2]) % 4 >= 2 for text in data.train.texts + data.all_held_out.texts)
    assert data.words == GENDER_WORDS and data.concepts == tuple(f"{CONCEPTS['screen']} {CONCEPTS['music']}".split())


def test_the_number_of_keywords_and_the_seed_are_used(passages: Path) -> None:
    def parts(n_keywords: int, seed: int) -> list[tuple[str, ...]]:
        data = gap(passages, n_keywords=n_keywords, seed=seed)
        return [data.train.texts, data.all_held_out.texts]

    assert sum(map(len, parts(0, 0))) > sum(map(len, parts(2, 0)))
    assert parts(2, 0) == parts(2, 0) != parts(2, 1)


def test_a_domain_or_a_file_that_is_not_there_is_named(passages: Path) -> None:
    with pytest.raises(TaskError, match="no row has 'sports'; nearest: 'sport'"):
        gap(passages, classes=("screen", "sports"))
    with pytest.raises(FileError, match="none.jsonl"):
        gap(passages.with_name("none.jsonl"))
