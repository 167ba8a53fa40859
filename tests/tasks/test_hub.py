"""Questions of the hub's data sets: their layout, what is scored, and which are shown solved."""

import importlib.machinery
import random
import re
import sys
import types
from typing import Any

import pytest

from interp.errors import FileError, MissingExtraError, OptionError, TaskError
from interp.metrics import NegNLL
from interp.tasks import task as by_name
from interp.tasks.hub import commonsense, mathematics

THINGS = "bank shop river school garden office kitchen market park station tower bridge".split()


def question(number: int) -> dict[str, Any]:
    """A question that is longer the larger its number."""
    rng = random.Random(number)
    texts = rng.sample(THINGS, 5)
    text = f"Where is the {'very ' * number}old clock?"
    return {"question": text, "choices": {"label": [*"ABCDE"], "text": texts}, "answerKey": rng.choice("ABCDE")}


def problem(number: int) -> dict[str, Any]:
    solution = f"{'We add one. ' * (number + 1)}It is {number}."
    return {"problem": f"What is |{number}|?", "generated_solution": solution, "expected_answer": str(number)}


QUESTIONS = [question(number) for number in range(12)]
PROBLEMS = [problem(number) for number in range(8)]
LAYOUT = re.compile(r"Question: (.+)\nA\. (\w+)\nB\. (\w+)\nC\. (\w+)\nD\. (\w+)\nE\. (\w+)\nAnswer:( [A-E])?")


@pytest.fixture
def known(words: Any) -> Any:
    return words(
        f"Question Answer Where is the very old clock What We add one It A B C D E . : ? | Ċ ĊĊ {' '.join(THINGS)} "
        + " ".join(str(number) for number in range(8))
    )


def right_option(text: str) -> str:
    """The text of the right option of the question asked."""
    row = next(row for row in QUESTIONS if row["question"] == text)
    return row["choices"]["text"]["ABCDE".index(row["answerKey"])]


def test_the_letter_of_the_right_option_is_scored_against_the_others(known: Any) -> None:
    task = commonsense(known, rows=QUESTIONS, pool=3)
    letters = [known.get_vocab()[f"Ġ{letter}"] for letter in "ABCDE"]
    assert len(task) == 9 and isinstance(task.metric, NegNLL) and task.corrupted is None
    for row, text in enumerate(task.clean.texts or ()):
        shown, asked = (LAYOUT.fullmatch(part) for part in text.split("\n\n"))
        assert shown and asked and shown[7] and not asked[7]
        (right,) = task.answers.correct[row, 0].tolist()
        assert asked[2 + letters.index(right)] == right_option(asked[1])
        assert sorted([right, *task.answers.wrong[row, 0].tolist()]) == sorted(letters)
        assert shown[2 + "ABCDE".index(shown[7].strip())] == right_option(shown[1])
        assert task.groups["entity"][row] == asked[1]
        assert task.answers.positions[row].tolist() == [int(task.clean.last[row])]
        assert task.clean.tokens[row][-1] == ":"


def test_options_are_shuffled_with_their_labels(known: Any) -> None:
    task = commonsense(known, rows=QUESTIONS, pool=3)
    asked = [LAYOUT.fullmatch(text.split("\n\n")[1]) for text in task.clean.texts or ()]
    given = {row["question"]: row["choices"]["text"] for row in QUESTIONS}
    assert all(each and sorted(each.groups()[1:6]) == sorted(given[each[1]]) for each in asked)
    assert sum(list(each.groups()[1:6]) != given[each[1]] for each in asked if each) > 5
    assert len(set(task.answers.correct[:, 0, 0].tolist())) > 1


@pytest.mark.parametrize("build", [commonsense, mathematics])
def test_the_shortest_are_shown_and_never_asked(known: Any, build: Any) -> None:
    rows = QUESTIONS if build is commonsense else PROBLEMS
    key = "question" if build is commonsense else "problem"
    short = {row[key].replace("|", "/") for row in rows[:4]}
    task = build(known, rows=rows[::-1], shots=2, pool=4)
    assert len(task) == len(rows) - 4 and not short & set(task.groups["entity"])
    for text in task.clean.texts or ():
        *shown, _ = [part.partition("\n")[0].removeprefix("Question: ") for part in text.split("\n\n")]
        assert len(set(shown)) == 2 and {each.replace("|", "/") for each in shown} <= short


@pytest.mark.parametrize("build", [commonsense, mathematics])
def test_the_seed_decides_on_order_and_examples(known: Any, build: Any) -> None:
    rows = QUESTIONS if build is commonsense else PROBLEMS
    one, again, other = (build(known, rows=rows, pool=3, n=4, seed=seed) for seed in (1, 1, 2))
    assert one.clean.texts == again.clean.texts != other.clean.texts and len(one) == 4
    assert one.parameters == again.parameters and one.parameters["source"] == "rows" and one.parameters["pool"] == 3


def test_every_token_of_a_solution_is_scored(known: Any) -> None:
    task = mathematics(known, rows=PROBLEMS, pool=2)
    solutions = {row["problem"]: row["generated_solution"] for row in PROBLEMS}
    for row, text in enumerate(task.clean.texts or ()):
        shown, asked = text.split("\n\n")
        said = {
            part.split("\n")[0].removeprefix("Question: "): part.partition("\nAnswer:")[2] for part in (shown, asked)
        }
        (first, solved), (last, nothing) = said.items()
        assert solved == " " + solutions[first] and nothing == ""
        targets = [ids[0] for ids in task.answers.correct[row].tolist() if ids[0] >= 0]
        assert known.decode(targets) == " " + solutions[last]
        start = int(task.answers.positions[row, 0])
        assert task.clean.tokens[row][start] == ":" and task.clean.rows()[row][start + 1 :] == targets[:-1]
    assert isinstance(task.metric, NegNLL)


def test_empty_answers_and_repeated_problems_are_left_out(known: Any) -> None:
    rows = [*PROBLEMS, {**PROBLEMS[7], "generated_solution": "It is one."}]
    rows += [{**problem(5), "problem": "What is the one?", "expected_answer": empty} for empty in ("", " ", None)]
    task = mathematics(known, rows=rows, pool=2)
    assert sorted(task.groups["entity"]) == [f"What is /{number}/?" for number in range(2, 8)]
    longest = task.answers.positions[task.groups["entity"].index("What is /7/?")]
    assert int((longest >= 0).sum()) == 8 * 4 + 4  # the solution that came first


def test_a_hubs_data_set_reads_like_a_list_of_rows(known: Any) -> None:
    datasets = pytest.importorskip("datasets")
    for build, rows in ((commonsense, QUESTIONS), (mathematics, PROBLEMS)):
        one, other = (build(known, rows=each, pool=3) for each in (rows, datasets.Dataset.from_list(rows)))
        assert one.clean.rows() == other.clean.rows()


def test_rows_come_from_the_hub_where_none_are_given(known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, split: str) -> list[dict[str, Any]]:
        asked.append((name, split))
        return QUESTIONS if "commonsense" in name else PROBLEMS

    put_datasets(monkeypatch, load)
    task = commonsense(known, pool=3, split="validation")
    assert task.clean.texts == commonsense(known, rows=QUESTIONS, pool=3).clean.texts
    assert len(mathematics(known, pool=3)) == 5
    assert asked == [("tau/commonsense_qa", "validation"), ("nvidia/OpenMathInstruct-2", "train_1M")]
    assert task.parameters["source"] == "tau/commonsense_qa" and task.parameters["split"] == "validation"


@pytest.mark.parametrize("error", [ConnectionError("no way there"), ValueError("Unknown split 'trian'")])
def test_a_hub_that_gives_nothing_is_told(known: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(name: str, split: str) -> None:
        raise error

    put_datasets(monkeypatch, load)
    message = f"split 'trian' of the data set 'tau/commonsense_qa' cannot be loaded .*{type(error).__name__}: {error}"
    with pytest.raises(TaskError, match=message + r"\); look at the connection .* or pass rows=\."):
        commonsense(known, split="trian")


def put_datasets(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    """A package `datasets` that loads with `load`."""
    package = types.ModuleType("datasets")
    package.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    package.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)


def test_a_missing_package_is_told(known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="needs the package 'datasets', which is not installed: pip install"):
        mathematics(known)


def test_all_rows_of_another_format_are_told_together(known: Any) -> None:
    rows = [*QUESTIONS, {**QUESTIONS[0], "answerKey": ""}, {"question": "Where?"}]
    message = r"2 rows .*: row 13: answerKey '' is none of its labels \['A'.*row 14: no 'choices', 'answerKey' among"
    with pytest.raises(FileError, match=message):
        commonsense(known, rows=rows)
    with pytest.raises(
        FileError, match="row 1: no 'problem', 'generated_solution', 'expected_answer' among 'question'"
    ):
        mathematics(known, rows=QUESTIONS)


def test_options_outside_their_values_are_told(known: Any) -> None:
    with pytest.raises(OptionError, match="shots=4, pool=3; allowed: 0 to pool"):
        commonsense(known, rows=QUESTIONS, shots=4, pool=3)
    with pytest.raises(TaskError, match="8 items leave none to ask for beside a pool of 50; lower pool"):
        mathematics(known, rows=PROBLEMS)
    with pytest.raises(TaskError, match="9 good distinct pairs for the 20 asked for"):
        commonsense(known, rows=QUESTIONS, pool=3, n=20)
    with pytest.raises(OptionError, match="no option 'shot'; .*nearest: 'shots'"):
        by_name("commonsense", known, shot=1)
