"""Reading a user's table: every kind of file, the choice of two values, and what is wrong with it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interp.errors import FileError, OptionError, TaskError
from interp.labelled.base import Labelled
from interp.labelled.tables import once, read_labelled

ROWS = [
    {"text": "a film, a role", "label": "screen", "sex": "F", "n": 3},
    {"text": 'a "goal" in time', "label": "sport", "sex": "M", "n": 2},
    {"text": "a song", "label": "music", "sex": "F", "n": 5},
    {"text": "a series", "label": "screen", "sex": "M", "n": 1},
    {"text": "a race", "label": "sport", "sex": "F", "n": 4},
]
CHOICE: dict[str, Any] = {"classes": ("screen", "sport"), "attribute": "sex", "values": ("M", "F")}


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return write


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def csv_text(rows: list[dict[str, Any]], separator: str) -> str:
    quote = '"' if separator == "," else ""
    cells = [[quote + str(cell).replace('"', 2 * quote or '"') + quote for cell in row.values()] for row in rows]
    return "\n".join([separator.join(rows[0]), *(separator.join(row) for row in cells)]) + "\n"


KINDS = {
    "a.jsonl": lines(ROWS),
    "a.json": json.dumps(ROWS, indent=1),
    "a.csv": csv_text(ROWS, ","),
    "a.tsv": csv_text(ROWS, "\t"),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_gives_the_same_texts(name: str, file: Callable[[str, str], Path]) -> None:
    read = read_labelled(file(name, KINDS[name]), **CHOICE)
    texts = ("a film, a role", 'a "goal" in time', "a series", "a race")
    assert read == Labelled(texts, (0, 1, 0, 1), (1, 0, 0, 1), ("screen", "sport"), ("M", "F"))


def test_a_tsv_with_stray_quotes_is_read_as_it_stands(file: Callable[[str, str], Path]) -> None:
    path = file("a.tsv", 'text\tlabel\n"So she said\t1\nit is 5" long\t0\n\'tis "it"\t1\n')
    assert read_labelled(path).texts == ('"So she said', 'it is 5" long', '\'tis "it"')


def test_two_values_are_found_and_sorted_unless_named(file: Callable[[str, str], Path]) -> None:
    path = file("a.jsonl", lines([{"text": "x", "label": 1}, {"text": "y", "label": 0}]))
    found, named = read_labelled(path), read_labelled(path, classes=(1, 0))
    assert (found.labels, found.classes, found.attributes) == ((1, 0), ("0", "1"), None)
    assert (named.labels, named.classes) == ((0, 1), ("1", "0"))


def test_rows_below_a_number_are_left_out(file: Callable[[str, str], Path]) -> None:
    assert len(read_labelled(file("a.csv", KINDS["a.csv"]), **CHOICE, at_least={"n": 2})) == 3


def test_a_file_saved_with_a_byte_order_mark_is_read(file: Callable[[str, str], Path]) -> None:
    assert len(read_labelled(file("a.csv", "\ufefftext,label\nx,0\ny,1\n"))) == 2


def test_a_text_that_occurs_twice_is_kept_once(file: Callable[[str, str], Path]) -> None:
    assert read_labelled(file("a.jsonl", lines([*ROWS, ROWS[0]])), **CHOICE).texts.count(ROWS[0]["text"]) == 1


@pytest.mark.parametrize(("column", "value"), [("label", "sport"), ("sex", "M")])
def test_a_text_with_two_labels_or_attributes_is_an_error_that_names_the_rows(
    column: str, value: str, file: Callable[[str, str], Path]
) -> None:
    path = file("a.jsonl", lines([*ROWS, ROWS[0] | {column: value}]))
    with pytest.raises(TaskError, match="rows 1 and 6 have the same text under another"):
        read_labelled(path, **CHOICE)


def test_repeated_texts_without_attributes_are_compared_by_label() -> None:
    assert once(Labelled(("x", "y", "x"), (0, 1, 0))).texts == ("x", "y")
    with pytest.raises(TaskError, match="rows 0 and 2"):
        once(Labelled(("x", "y", "x"), (0, 1, 1)))


def test_all_missing_columns_are_named_at_once_with_the_nearest(file: Callable[[str, str], Path]) -> None:
    path = file("a.csv", "texts,labels,gender\nx,0,F\n")
    with pytest.raises(FileError, match="'text'; nearest: 'texts' and 'label'; nearest: 'labels' and 'n_words'"):
        read_labelled(path, attribute="gender", at_least={"n_words": 1})


def test_more_than_two_values_are_named_with_the_cure(file: Callable[[str, str], Path]) -> None:
    path = file("a.jsonl", KINDS["a.jsonl"])
    with pytest.raises(TaskError, match=r"3 values: 'screen' \(2\), 'sport' \(2\), 'music' \(1\).*classes="):
        read_labelled(path)
    rows = [*ROWS, ROWS[0] | {"text": "z", "sex": "X"}]
    with pytest.raises(TaskError, match=r"'sex' has 3 values.*values="):
        read_labelled(file("b.jsonl", lines(rows)), classes=("screen", "sport"), attribute="sex")


def test_a_class_without_rows_is_named_with_the_nearest(file: Callable[[str, str], Path]) -> None:
    path = file("a.jsonl", KINDS["a.jsonl"])
    with pytest.raises(TaskError, match=r"no row has 'sports'; nearest: 'sport' in 'label'"):
        read_labelled(path, classes=("screen", "sports"))
    with pytest.raises(OptionError, match="two different values"):
        read_labelled(path, classes=("screen", "screen"))
    with pytest.raises(TaskError, match=r"none of 5 rows has at_least=\{'n': 9\}"):
        read_labelled(path, **CHOICE, at_least={"n": 9})


def test_the_choice_of_attributes_may_not_empty_a_class(file: Callable[[str, str], Path]) -> None:
    rows = [{"text": str(i), "label": i % 2, "sex": "MXFX"[i]} for i in range(4)]
    with pytest.raises(TaskError, match="only rows of '0' are left"):
        read_labelled(file("a.jsonl", lines(rows)), attribute="sex", values=("M", "F"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"text": "x", "label": 0}\n{"text": \n[1]\n', "rows 2, 3 of 3 are no records"),
        ("a.csv", "text,label\nx,0\ny\nz,1,2\n", "rows 2, 3 of 3 are no records"),
        ("a.csv", 'text,label\n"x,0\n', "cannot be read as .csv"),
        ("a.csv", "text,text\nx,0\n", "the name 'text' more than once"),
        ("a.json", '[{"text": "x"', "cannot be read as .json"),
        ("a.json", '{"text": "x"}', "not a list of objects"),
        ("a.csv", "text,label\n", "there is no row"),
        ("a.csv", "", "there is no row"),
        ("a.jsonl", "", "there is no row"),
        ("a.json", "", "cannot be read as .json"),
        ("a.parquet", "x", "allowed: .csv, .tsv, .jsonl, .json"),
        ("a.csv", "text,label\nx,0\n ,1\n", "rows 2 have no text in 'text'"),
        ("a.jsonl", '{"text": 5, "label": 0}\n{"text": "x", "label": 1}\n', "rows 1 have no text"),
    ],
)
def test_a_damaged_file_gives_one_clear_error(
    name: str, content: str, said: str, file: Callable[[str, str], Path]
) -> None:
    with pytest.raises(FileError, match=said):
        read_labelled(file(name, content))


def test_a_missing_file_and_one_that_is_not_text_give_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff\xfe,0\n")
    for name in ("a.csv", "none.csv"):
        with pytest.raises(FileError, match="cannot be read"):
            read_labelled(tmp_path / name)


def test_cells_that_are_no_numbers_are_named(file: Callable[[str, str], Path]) -> None:
    rows = [*ROWS, ROWS[0] | {"text": "z", "n": "many"}]
    with pytest.raises(FileError, match="no number stands in 'n' in rows 6"):
        read_labelled(file("a.jsonl", lines(rows)), **CHOICE, at_least={"n": 1})
