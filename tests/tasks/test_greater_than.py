"""Greater-than: each way of writing years has its convention, and its sets are right."""

from collections.abc import Callable
from typing import Any

import pytest

from interp.errors import TaskError
from interp.metrics import ProbDiff
from interp.tasks.greater_than import greater_than

PAIRS = [f"{number:02d}" for number in range(100)]
TWO = (r" ?\d\d| ", [*PAIRS, *[f" {number}" for number in range(11, 18)]])
THREE = (r" |\d{1,3}", [*PAIRS, *[str(number) for number in range(1000)]])


@pytest.fixture(params=["year", "tens", "ones", "toy"])
def case(request: pytest.FixtureRequest, cutting: Callable[..., Any]) -> tuple[str, Any]:
    kinds = {"year": lambda: cutting(*TWO), "ones": lambda: cutting(*THREE)}
    fixture = {"tens": "bpe", "toy": "toy_tokenizer"}
    kind = request.param
    tokenizer = kinds[kind]() if kind in kinds else request.getfixturevalue(fixture[kind])
    return ("year" if kind == "toy" else kind), tokenizer


def test_right_and_wrong_labels_are_those_above_and_below(case: tuple[str, Any]) -> None:
    convention, tokenizer = case
    task = greater_than(tokenizer, n=30)
    assert task.parameters["convention"] == convention and task.metric == ProbDiff()
    for row in range(len(task)):
        year = int(task.groups["year"][row][2:])
        right = {int(tokenizer.decode([i])) for i in task.answers.correct[row, 0].tolist() if i >= 0}
        wrong = {int(tokenizer.decode([i])) for i in task.answers.wrong[row, 0].tolist() if i >= 0}
        own = {"year": year, "tens": year // 10, "ones": year % 10}[convention]
        labels = range(100 if convention == "year" else 10)
        assert right == {label for label in labels if label > own}
        assert wrong == {label for label in labels if label < own or (label == own and convention != "tens")}


def test_the_prompt_goes_on_with_a_label_and_the_corrupted_year_is_small(case: tuple[str, Any]) -> None:
    convention, tokenizer = case
    task = greater_than(tokenizer, n=10)
    corrupted = task.require_corrupted()
    for row, text in enumerate(task.clean.texts or ()):
        century, year = task.groups["year"][row][:2], task.groups["year"][row][2:]
        assert text.endswith(century + (year[0] if convention == "ones" else ""))
        digits = "".join(corrupted.tokens[row][p] for p in task.roles["YY"][row]).replace(" ", "")
        assert digits.endswith("1" if convention == "ones" else "01")
        assert task.clean.tokens[row][-1].strip() in (century, century[-1], century + year[0])


def test_years_that_are_cut_otherwise_are_left_out(cutting: Callable[..., Any]) -> None:
    """GPT-2 writes 1800 in one token, and other tokenizers some years as [163][2]: then YY has no tokens of its own."""
    pattern, known = (
        r" 17[3-9]\d| 16\d| ?\d\d?",
        [*TWO[1], *[f" {year}" for year in (*range(160, 170), *range(1730, 1800))]],
    )
    task = greater_than(cutting(pattern, known), n=60, lists={"centuries": "17 16 15"})
    assert {year for year in task.groups["year"] if "1600" < year < "1700" or year >= "1730"} == set()


def test_a_tokenizer_with_no_way_to_write_years_is_told(words: Callable[..., Any]) -> None:
    with pytest.raises(
        TaskError, match=r"writes ' 1732' as \['<unk>'\], which fits no convention; allowed: a token for"
    ):
        greater_than(words("The war lasted"))
