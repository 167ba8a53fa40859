"""Labelled texts from a user's table: .csv, .tsv, .jsonl, or a .json list of objects.

Rows in messages count from 1 and leave the header out.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from interp.errors import FileError, OptionError, TaskError, nearest
from interp.labelled.base import Labelled, Pair

SHOWN = 10
"""Rows, values or columns that a message names at most."""
Row = Mapping[str, Any]


def read_labelled(
    path: str | Path,
    *,
    text: str = "text",
    label: str = "label",
    attribute: str | None = None,
    classes: tuple[Any, Any] | None = None,
    values: tuple[Any, Any] | None = None,
    at_least: Mapping[str, float | int] | None = None,
) -> Labelled:
    """Labelled texts from a file; a text that occurs twice is kept once.

    Args:
        path: a .csv, .tsv (where quotes are letters like others), .jsonl or .json file in UTF-8.
        text, label, attribute: names of its columns; no attribute leaves them unknown.
        classes: the raw labels that become 0 and 1, as they stand in the file; rows with others are left out. None:
            the two that there are, sorted.
        values: the same for the attribute.
        at_least: columns of numbers, each with the smallest that a row is kept with.

    Raises:
        FileError: a file that is missing, damaged, empty or of another kind; columns that it lacks; cells that are no
            numbers, or no text.
        TaskError: more than two labels or attributes and no choice of two, one that no row has, or one text under
            two labels or attributes.
    """
    path, at_least = Path(path), at_least or {}
    named = [column for column in (text, label, attribute) if column is not None]
    rows = _kept(_with_columns(read_rows(path), [*named, *at_least], path), at_least, path)
    rows, labels, classes = _two(rows, label, classes, "classes", path)
    attributes, pair = None, ("0", "1")
    if attribute is not None:
        rows, attributes, pair = _two(rows, attribute, values, "values", path)
        labels = tuple(classes.index(_raw(row[label])) for row in rows.values())
        if len(set(labels)) < 2:
            raise TaskError(
                f"{path}: with {attribute!r} one of {pair}, only rows of {classes[labels[0]]!r} are left; both of "
                f"{classes} are needed: choose other values= or classes=."
            )
    if blank := [number for number, row in rows.items() if not (isinstance(row[text], str) and row[text].strip())]:
        raise FileError(
            f"{path}: rows {_some(blank)} have no text in {text!r}; each needs a string that is not empty: fill it in "
            "or take the row out."
        )
    texts = tuple(row[text] for row in rows.values())
    return once(Labelled(texts, labels, attributes, classes, pair), list(rows), f"{path}: ")


def once(data: Labelled, numbers: Sequence[int] | None = None, where: str = "") -> Labelled:
    """The same texts, each the first time it occurs.

    Args:
        numbers: what a message calls the rows; 0, 1, 2, ... unless given.

    Raises:
        TaskError: a text under two labels or attributes.
    """
    numbers = range(len(data)) if numbers is None else numbers
    said = list(zip(data.labels, data.attributes or data.labels, strict=True))
    first: dict[str, int] = {}
    for row, each in enumerate(data.texts):
        first.setdefault(each, row)
    if at_odds := [
        (numbers[first[each]], numbers[row]) for row, each in enumerate(data.texts) if said[first[each]] != said[row]
    ]:
        pairs = ", ".join(f"{one} and {other}" for one, other in at_odds[:SHOWN])
        raise TaskError(
            f"{where}rows {pairs} have the same text under another label or attribute; a text may have one of each: "
            "take out one of the rows."
        )
    return data[list(first.values())]


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a table, by column name.

    Raises:
        FileError: a file that is missing, damaged, empty or of another kind; all broken rows are named.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise FileError(
            f"{path} is of kind {path.suffix or 'unknown'!r}; allowed: {', '.join(READERS)}. Save it as one."
        )
    try:
        rows = list(reader(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, csv.Error) as error:
        raise FileError(
            f"{path} cannot be read as {path.suffix} ({error}); give a whole file of that kind in UTF-8."
        ) from error
    broken = [number for number, row in enumerate(rows, 1) if not isinstance(row, dict) or None in row]
    if broken or not rows:
        what = f"rows {_some(broken)} of {len(rows)} are no records" if rows else "there is no row"
        raise FileError(
            f"{path}: {what}; each must be a JSON object, or a line with as many cells as the header. Mend the file."
        )
    return rows


def _cells(text: str, **dialect: Any) -> Iterator[Row]:
    """Rows of CSV; one with another number of cells than the header gets the key None."""
    reader = csv.DictReader(io.StringIO(text, newline=""), **dialect)
    if repeated := [name for name, count in Counter(reader.fieldnames or ()).items() if count > 1]:
        raise ValueError(f"its header has the name {repeated[0]!r} more than once")
    for row in reader:
        yield {None: None} if None in row.values() else row  # type: ignore[dict-item]


def _lines(text: str) -> Iterator[Any]:
    for line in filter(str.strip, text.split("\n")):
        try:
            yield json.loads(line)
        except ValueError:
            yield None


def _list(text: str) -> Iterator[Any]:
    rows = json.loads(text)
    if not isinstance(rows, list):
        raise ValueError(f"it holds a {type(rows).__name__}, not a list of objects")
    yield from rows


READERS: dict[str, Callable[[str], Iterator[Any]]] = {
    ".csv": lambda text: _cells(text, strict=True),
    ".tsv": lambda text: _cells(text, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".jsonl": _lines,
    ".json": _list,
}


def _with_columns(rows: list[Row], wanted: list[str], path: Path) -> list[Row]:
    """The rows, once every wanted column is there."""
    have = list(dict.fromkeys(column for row in rows for column in row))
    if lacking := [f"{column!r}{nearest(column, have)}" for column in wanted if column not in have]:
        raise FileError(
            f"{path} lacks the columns {' and '.join(lacking)}; it has {', '.join(map(repr, have[:SHOWN]))}. Name its "
            "own columns with text=, label=, attribute= and at_least=."
        )
    return [{column: row.get(column) for column in wanted} for row in rows]


def _kept(rows: list[Row], at_least: Mapping[str, float | int], path: Path) -> dict[int, Row]:
    """The rows whose numbers are large enough, by their number in the file."""
    kept, strange = dict(enumerate(rows, 1)), []
    for column, low in at_least.items():
        numbers = {number: _number(row[column]) for number, row in enumerate(rows, 1)}
        if bad := [number for number, value in numbers.items() if value is None]:
            strange.append(f"{column!r} in rows {_some(bad)}")
        kept = {number: row for number, row in kept.items() if (numbers[number] or 0.0) >= low}
    if strange:
        raise FileError(f"{path}: no number stands in {' and '.join(strange)}; fill in numbers or leave out at_least=.")
    if not kept:
        raise TaskError(f"{path}: none of {len(rows)} rows has at_least={dict(at_least)}; lower the numbers.")
    return kept


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _two(
    rows: dict[int, Row], column: str, chosen: tuple[Any, Any] | None, option: str, path: Path
) -> tuple[dict[int, Row], tuple[int, ...], Pair]:
    """The rows that have one of two values in a column, with 0 or 1 for each, and the two."""
    counts = Counter(_raw(row[column]) for row in rows.values())
    there = ", ".join(f"{value!r} ({count})" for value, count in counts.most_common(SHOWN))
    if chosen is None and len(counts) != 2:
        raise TaskError(
            f"{path}: {column!r} has {len(counts)} values: {there}; two are needed: choose them with {option}=(.., ..)."
        )
    pair = tuple(sorted(counts)) if chosen is None else tuple(map(_raw, chosen))
    if len(set(pair)) != 2:
        raise OptionError(f"{option} is {chosen!r}; allowed: two different values of {column!r}, such as {there}.")
    if absent := [f"{value!r}{nearest(value, counts)}" for value in pair if value not in counts]:
        raise TaskError(
            f"{path}: no row has {' or '.join(absent)} in {column!r}; there are {there}. Choose two of these with "
            f"{option}=."
        )
    kept = {number: row for number, row in rows.items() if _raw(row[column]) in pair}
    return kept, tuple(pair.index(_raw(row[column])) for row in kept.values()), (pair[0], pair[1])


def _raw(cell: Any) -> str:
    """A value as a name: 1 and "1" are the same, an absent one is empty."""
    return "" if cell is None else str(cell)


def _some(numbers: Sequence[int]) -> str:
    more = len(numbers) - SHOWN
    return ", ".join(map(str, numbers[:SHOWN])) + (f" and {more} more" if more > 0 else "")
