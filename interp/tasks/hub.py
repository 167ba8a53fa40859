"""Questions from public data sets of the hub, laid out as in causal head gating (Nam et al. 2025, arXiv 2505.13737).

An item is "Question: ...", its lettered options on a line each where it has any, and "Answer:"; solved items come
first, a blank line between. Solved items are drawn from the shortest ones, which are never asked. The rows are loaded
with the package `datasets`, or given: any rows with the same columns will do.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from string import ascii_uppercase
from typing import Any, NamedTuple

from interp.errors import OptionError, TaskError, require
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.files import Cells, read_rows
from interp.tasks.pair import MultiToken, Pair

COMMONSENSE, MATHEMATICS = "tau/commonsense_qa", "nvidia/OpenMathInstruct-2"
Rows = Iterable[Mapping[str, Any]]


class Item(NamedTuple):
    """One question: the text up to "Answer:", what follows with its leading space, and the other options' letters."""

    prompt: str
    answer: str
    wrong: tuple[str, ...]
    entity: str

    @property
    def solved(self) -> str:
        """The item as it is shown before the one asked."""
        return self.prompt + self.answer


def commonsense(
    tokenizer: Any,
    *,
    rows: Rows | None = None,
    split: str = "train",
    shots: int = 1,
    pool: int = 10,
    n: int | None = None,
    seed: int = 0,
) -> Task:
    """CommonsenseQA: log-probability of the right option's letter.

    Args:
        rows: to use instead of the hub's: question, choices (label and text, a list each) and answerKey.
        split: of the hub's data set; "test" has no answers.
        shots: solved items before each question.
        pool: solved items are drawn from that many of the shortest, which are never asked.
        n: number of questions; None for every one that fits.
        seed: of the order of the questions and of the options, and of the items shown.

    Raises:
        MissingExtraError: no rows, and the package `datasets` is not installed.
        OptionError: shots outside 0 to pool.
        FileError: rows that do not have these columns, or a right answer that is none of the options.
        TaskError: a data set that cannot be loaded, or fewer questions than were asked for.
    """
    source, table = _table(COMMONSENSE, split, rows)
    items = read_rows(list(table), _choice_reader(seed), source)
    record = {"source": source, "split": split if rows is None else None}
    return _asked("commonsense", items, tokenizer, shots, pool, n, seed, "error", record)


def mathematics(
    tokenizer: Any,
    *,
    rows: Rows | None = None,
    split: str = "train_1M",
    shots: int = 1,
    pool: int = 50,
    n: int | None = None,
    seed: int = 0,
) -> Task:
    """OpenMathInstruct-2: mean log-probability of the tokens of a whole step-by-step solution.

    Args:
        rows: to use instead of the hub's: problem, generated_solution and expected_answer. Those with an empty cell
            are left out, and of each problem the first row is kept.
        split: of the hub's data set.
        shots: solved problems before each one.
        pool: solved problems are drawn from that many of the shortest, which are never asked.
        n: number of problems; None for every one that fits.
        seed: of the order of the problems and of those shown.

    Raises:
        MissingExtraError: no rows, and the package `datasets` is not installed.
        OptionError: shots outside 0 to pool.
        FileError: rows that do not have these columns.
        TaskError: a data set that cannot be loaded, or fewer problems than were asked for.
    """
    source, table = _table(MATHEMATICS, split, rows)
    read = [each for each in read_rows(list(table), _solution, source) if each is not None]
    items = list({each.entity: each for each in reversed(read)}.values())[::-1]  # the first of each problem
    record = {"source": source, "split": split if rows is None else None, "rows": len(read)}
    return _asked("mathematics", items, tokenizer, shots, pool, n, seed, "sequence", record)


def _table(name: str, split: str, rows: Rows | None) -> tuple[str, Rows]:
    """Where the rows are from, and the rows: those given, or the hub's."""
    if rows is not None:
        return "rows", rows
    require("datasets", "data")
    try:
        return name, import_module("datasets").load_dataset(name, split=split)
    except (OSError, ValueError) as error:  # no connection, no such data set; no such split
        raise TaskError(
            f"split {split!r} of the data set {name!r} cannot be loaded from the hub ({type(error).__name__}: "
            f"{error}); look at the connection and at the split's name, or pass rows=."
        ) from error


def _choice_reader(seed: int) -> Callable[[Cells], Item]:
    """Reads rows of CommonsenseQA, whose options are shuffled by the seed and lettered anew."""

    def read(cells: Cells) -> Item:
        question, choices, key = _columns(cells, "question", "choices", "answerKey")
        labels, texts = _columns(choices, "label", "text")
        if key not in labels:
            raise ValueError(f"answerKey {key!r} is none of its labels {list(labels)}")
        options = list(zip(labels, texts, strict=True))
        random.Random(f"{seed} {question}").shuffle(options)
        letters = ascii_uppercase[: len(options)]
        shown = "".join(f"{letter}. {text}\n" for letter, (_, text) in zip(letters, options, strict=True))
        right = letters[[label for label, _ in options].index(key)]
        wrong = tuple(" " + letter for letter in letters if letter != right)
        return Item(f"Question: {question}\n{shown}Answer:", " " + right, wrong, question)

    return read


def _solution(cells: Cells) -> Item | None:
    """A row of OpenMathInstruct-2, or None for one with an empty cell."""
    found = _columns(cells, "problem", "generated_solution", "expected_answer")
    problem, solution, expected = ("" if cell is None else str(cell).strip() for cell in found)
    if not problem or not solution or not expected:
        return None
    return Item(f"Question: {problem}\nAnswer:", " " + solution, (), problem)


def _columns(cells: Cells, *names: str) -> list[Any]:
    """The cells of these columns.

    Raises:
        ValueError: columns that are missing.
    """
    if missing := [name for name in names if name not in cells]:
        raise ValueError(f"no {', '.join(map(repr, missing))} among {', '.join(map(repr, cells))}")
    return [cells[name] for name in names]


def _asked(
    name: str,
    items: Sequence[Item],
    tokenizer: Any,
    shots: int,
    pool: int,
    n: int | None,
    seed: int,
    multi_token: MultiToken,
    record: Mapping[str, Any],
) -> Task:
    """A task of every item outside the pool of the shortest, in the order of the seed."""
    if not 0 <= shots <= pool:
        raise OptionError(f"shots={shots}, pool={pool}; allowed: 0 to pool.")
    by_length = sorted(items, key=lambda item: len(item.solved))
    shown, asked = by_length[:pool], by_length[pool:]
    if not asked:
        raise TaskError(f"{name}: {len(items)} items leave none to ask for beside a pool of {pool}; lower pool.")
    return make_task(
        name,
        _pairs(shown, asked, shots, seed),
        tokenizer,
        metric="neg_nll",
        multi_token=multi_token,
        on_fault="drop",
        n=n,
        parameters={**record, "shots": shots, "pool": pool, "seed": seed},
    )


def _pairs(shown: Sequence[Item], asked: Sequence[Item], shots: int, seed: int) -> Iterator[Pair]:
    """Every asked item once, after solved ones; the order depends on the seed and on the items alone."""
    for number, item in enumerate(random.Random(seed).sample(list(asked), len(asked))):
        solved = random.Random(f"{seed} {number}").sample(list(shown), shots)
        prompt = "\n\n".join([*(each.solved for each in solved), item.prompt])
        # "|" would part a group's value in two.
        yield Pair(prompt, item.answer, item.wrong, groups={"entity": item.entity.replace("|", "/")})
