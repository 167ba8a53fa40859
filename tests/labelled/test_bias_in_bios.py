"""Bias in Bios as in the paper: which biographies are in which part, in what order."""

import importlib.machinery
import random
import sys
import types
from typing import Any

import pytest

from interp.errors import FileError, MissingExtraError, OptionError, TaskError
from interp.labelled.base import Labelled
from interp.labelled.bias_in_bios import KEYWORDS, PROFESSIONS, bias_in_bios
from interp.labelled.gender import GENDER_WORDS

datasets = pytest.importorskip("datasets")
PROFESSOR, NURSE, POET = 21, 13, 20
TRAIN = {(PROFESSOR, 0): 9, (PROFESSOR, 1): 6, (NURSE, 0): 3, (NURSE, 1): 7, (POET, 0): 4}
TEST = {(PROFESSOR, 0): 5, (PROFESSOR, 1): 4, (NURSE, 0): 2, (NURSE, 1): 6, (POET, 1): 4}


def split(counts: dict[tuple[int, int], int], name: str) -> dict[str, list[Any]]:
    """Rows of several kinds in turn; a text says its split, kind and place among its kind."""
    rows = [(f"{name} {p} {g} {i}", p, g) for (p, g), count in counts.items() for i in range(count)]
    rows.sort(key=lambda row: (int(row[0].split()[-1]), row[1], row[2]))
    return dict(zip(("hard_text", "profession", "gender"), map(list, zip(*rows, strict=True)), strict=True))


def loaded(train: dict[str, list[Any]], test: dict[str, list[Any]]) -> Any:
    return datasets.DatasetDict({k: datasets.Dataset.from_dict(v) for k, v in (("train", train), ("test", test))})


@pytest.fixture(scope="module")
def bios() -> Any:
    return loaded(split(TRAIN, "train"), split(TEST, "test"))


def expected(name: str, *kinds: tuple[int, int, int]) -> set[str]:
    """The first so many texts of each kind."""
    return {f"{name} {p} {g} {i}" for p, g, count in kinds for i in range(count)}


def test_the_ambiguous_part_is_the_first_male_professors_and_female_nurses_in_equal_numbers(bios: Any) -> None:
    data = bias_in_bios(dataset=bios)
    assert set(data.train.texts) == expected("train", (PROFESSOR, 0, 7), (NURSE, 1, 7))
    assert data.train.counts() == {"professor/male": 7, "professor/female": 0, "nurse/male": 0, "nurse/female": 7}


def test_the_balanced_part_and_the_test_have_the_first_texts_of_each_group(bios: Any) -> None:
    data = bias_in_bios(dataset=bios)
    kinds = [(p, g) for p in (PROFESSOR, NURSE) for g in (0, 1)]
    assert data.balanced is not None
    assert set(data.balanced.texts) == expected("train", *[(p, g, 3) for p, g in kinds])
    assert set(data.test.texts) == expected("test", *[(p, g, 2) for p, g in kinds])
    assert set(data.train.texts) & set(data.balanced.texts)  # as in the paper


def test_all_that_is_held_out_counts_for_the_worst_group(bios: Any) -> None:
    assert list(bias_in_bios(dataset=bios).all_held_out.counts().values()) == [5, 4, 2, 6]


def test_the_order_is_that_of_the_authors_shuffle(bios: Any) -> None:
    rows = [f"train {PROFESSOR} 0 {i}" for i in range(7)] + [f"train {NURSE} 1 {i}" for i in range(7)]
    random.Random(42).shuffle(rows)
    assert list(bias_in_bios(dataset=bios).train.texts) == rows
    assert bias_in_bios(dataset=bios, seed=1).train.texts != tuple(rows)


def test_a_limit_bounds_every_group_of_every_part(bios: Any) -> None:
    data = bias_in_bios(dataset=bios, limit=2)
    assert data.balanced is not None
    assert list(data.train.counts().values()) == [2, 0, 0, 2]
    assert all(set(part.counts().values()) == {2} for part in (data.balanced, data.test, data.all_held_out))


def test_words_concepts_and_names_are_those_of_the_paper(bios: Any) -> None:
    data = bias_in_bios(dataset=bios)
    assert (data.words, data.concepts, len(KEYWORDS)) == (GENDER_WORDS, KEYWORDS, 20)
    assert (len(PROFESSIONS), PROFESSIONS[0], PROFESSIONS[NURSE]) == (28, "accountant", "nurse")
    assert PROFESSIONS[14:22:7] == ("painter", "professor") and PROFESSIONS[-2:] == ("teacher", "yoga_teacher")
    turned: Labelled = bias_in_bios(classes=("nurse", "professor"), dataset=bios).train
    assert turned.counts() == {"nurse/male": 3, "nurse/female": 0, "professor/male": 0, "professor/female": 3}


def test_held_out_texts_that_are_training_texts_are_left_out_and_so_are_empty_ones() -> None:
    test = split(TEST, "test")
    test["hard_text"][test["hard_text"].index(f"test {PROFESSOR} 0 0")] = f"train {PROFESSOR} 0 0"
    test["hard_text"][test["hard_text"].index(f"test {NURSE} 1 0")] = "  "
    data = bias_in_bios(dataset=loaded(split(TRAIN, "train"), test))
    assert list(data.all_held_out.counts().values()) == [4, 4, 2, 5]


def test_a_group_without_texts_is_an_error_with_the_counts(bios: Any) -> None:
    with pytest.raises(TaskError, match="'poet/female': 0"):
        bias_in_bios(classes=("professor", "poet"), dataset=bios)


def test_splits_columns_and_genders_that_do_not_fit_are_named(bios: Any) -> None:
    with pytest.raises(FileError, match="no split test; it has train"):
        bias_in_bios(dataset=datasets.DatasetDict({"train": bios["train"]}))
    with pytest.raises(FileError, match="train has no 'hard_text'; test has no 'hard_text'"):
        bias_in_bios(dataset=bios.rename_column("hard_text", "text"))
    train = split(TRAIN, "train")
    train["gender"][0] = 2
    with pytest.raises(FileError, match="train has the genders 2"):
        bias_in_bios(dataset=loaded(train, split(TEST, "test")))


def test_options_outside_their_range_are_errors(bios: Any) -> None:
    with pytest.raises(OptionError, match="nearest: 'nurse'"):
        bias_in_bios(classes=("professor", "nurses"), dataset=bios)
    with pytest.raises(OptionError, match="limit 0"):
        bias_in_bios(limit=0, dataset=bios)
    with pytest.raises(OptionError, match="two professions"):
        bias_in_bios(classes=("nurse", "nurse"), dataset=bios)


def test_without_a_connection_or_the_package_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ConnectionError(f"no route to {name}")

    absent = types.ModuleType("datasets")
    absent.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    absent.load_dataset = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", absent)
    with pytest.raises(TaskError, match="LabHC/bias_in_bios.*pass dataset="):
        bias_in_bios()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"interp\[data\]"):
        bias_in_bios()
