"""Tables read, sort, print and save; they cannot be changed."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from circuits import unchecked

from interp.errors import MissingExtraError, OptionError
from interp.table import SHOWN, Table


@pytest.fixture
def table() -> Table:
    return Table(
        {
            "node": np.array(["b", "a", "c", "d"], dtype=object),
            "score": np.array([0.1, np.nan, -2, 0.1], np.float32),
            "rank": np.array([3, 1, 2, 0]),
            "kept": np.array([True, False, True, False]),
        }
    )


def test_columns_keep_their_order_and_rows_are_plain_values(table):
    assert table.columns == ("node", "score", "rank", "kept")
    assert len(table) == 4
    assert table.rows()[2] == {"node": "c", "score": -2.0, "rank": 2, "kept": True}
    assert type(table.rows()[0]["rank"]) is int


def test_columns_are_read_only_and_not_the_callers(table):
    mine = np.arange(2)
    made = Table({"x": mine})
    mine[0] = 9
    assert made["x"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        table["rank"][0] = 5
    with pytest.raises(AttributeError):
        table.data = {}


def test_sorting_is_stable_and_puts_nan_last_either_way(table):
    assert table.sort("score")["node"].tolist() == ["c", "b", "d", "a"]
    assert table.sort("score", descending=True)["node"].tolist() == ["b", "d", "c", "a"]
    assert table.sort("node", descending=True)["node"].tolist() == ["d", "c", "b", "a"]
    assert table.sort("kept")["rank"].tolist() == [1, 0, 3, 2]


def test_where_head_and_take_choose_rows(table):
    assert table.where(table["kept"])["node"].tolist() == ["b", "c"]
    assert table.head(1)["node"].tolist() == ["b"]
    assert len(table.head(99)) == 4
    assert len(table.head(0)) == 0
    assert table.take([3, 0])["rank"].tolist() == [0, 3]


@unchecked()
def test_mistakes_are_named(table):
    with pytest.raises(OptionError, match="no column 'scores'; allowed: node, score, rank, kept; nearest: 'score'"):
        table["scores"]
    with pytest.raises(OptionError, match=r"columns have shapes .*; give one-dimensional columns of equal length"):
        Table({"a": [1], "b": [1, 2]})
    with pytest.raises(OptionError, match=r"the mask is int64 \(2,\); give 4 booleans"):
        table.where([0, 1])


def test_csv_gives_the_values_back(table, tmp_path):
    path = tmp_path / "deep" / "table.csv"
    odd = Table({**table.data, "text": np.array(['a,"b"', "line\nbreak", "", "é"])})
    odd.to_csv(path)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == list(odd.columns)
    assert [row[1] for row in rows[1:]] == ["0.1", "nan", "-2.0", "0.1"]
    assert [row[4] for row in rows[1:]] == odd["text"].tolist()


def test_pandas_gets_the_same_columns(table):
    frame = table.to_pandas()
    assert list(frame.columns) == list(table.columns)
    assert frame["score"].dtype == np.float32
    frame.loc[0, "rank"] = 99
    assert table["rank"][0] == 3


def test_without_pandas_the_message_names_the_extra(table, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'interp\[view\]'"):
        table.to_pandas()


def test_text_shows_few_rows_and_says_how_many_there_are(table):
    assert repr(table).splitlines()[0] == "node  score  rank  kept"
    assert repr(table).splitlines()[-1] == "(4 rows)"
    long = Table({"x": np.arange(1000), "word": np.array(["two\nlines"] * 1000)})
    assert len(repr(long).splitlines()) == SHOWN + 2
    assert repr(long).endswith("(1,000 rows, 980 of them not shown)")
    assert repr(Table({})) == "(0 rows)"


def test_html_is_escaped():
    shown = Table({"<b>": np.array(["<script>alert(1)</script>", "&"])})._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "<th>&lt;b&gt;</th>" in shown
    assert shown.count("<tr>") == 3


def test_importing_the_circuit_modules_loads_neither_torch_nor_pandas_nor_networkx():
    modules = "interp.table, interp.circuit_ops, interp.circuit_algebra, interp.circuit_files"
    modules += ", interp.circuit_export, interp.circuit_import"
    code = f"import sys, {modules}; print([m for m in ('torch', 'pandas', 'networkx', 'plotly') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
    assert run.stderr == ""
