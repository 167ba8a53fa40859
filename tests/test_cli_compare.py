"""The command line's word for several circuits, as a user types it."""

import csv
from pathlib import Path

import numpy as np
import pytest
from test_cli import here

from interp.circuit import Circuit, Score, ScoreHeader
from interp.circuit_files import save_circuit
from interp.nodes import Nodes


@pytest.fixture
def two(tmp_path: Path) -> Path:
    nodes = Nodes.from_columns("z", layer=[0] * 8 + [1] * 8, head=[*range(8)] * 2)
    for name, values in (("a", np.arange(16.0)), ("b", -np.arange(16.0)[::-1])):
        score = Score(ScoreHeader("nodes", "effect", True), values)
        save_circuit(Circuit(nodes, scores={"effect": score}), tmp_path / name / "circuit")
    return tmp_path


def test_circuits_are_compared_and_kept(two, monkeypatch, capsys) -> None:
    line = ["compare", "a/circuit", "b/circuit", "--top", "4", "--out", "c"]
    code, said, errors = here(line, two, monkeypatch, capsys)
    assert code == 0, errors
    assert "2 circuits: a, b" in said and "nodes: 2 distinct, mean Jaccard 0.00, 0 of 8 in all" in said
    with open(two / "c" / "pairs.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["first"], row["second"], row["shared"], row["candidates"]) == ("a", "b", "0", "16")
    assert {f.name for f in (two / "c").iterdir()} >= {"agreement.html", "members.html", "parts.csv", "config.json"}


def test_with_a_model_they_are_judged(two, monkeypatch, capsys) -> None:
    line = ["compare", "a/circuit", "b/circuit", "--top", "4", "--model", "embedded", "--task", "ioi", "--n", "6"]
    code, said, errors = here([*line, "--at-least", "0.5", "--out", "c"], two, monkeypatch, capsys)
    assert code == 0, errors
    assert "distinct faithful circuits among 2" in said and "control, random circuits" in said
    assert (two / "c" / "report.txt").read_text().splitlines()[0] in said
    assert (two / "c" / "report_circuits.csv").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a/circuit"], "give two or more"),
        (["a/circuit", "a/circuit"], "is given twice"),
        (["a/circuit", "nothing"], "cannot read a circuit at nothing"),
        (["a/circuit", "b/circuit", "--model", "embedded"], "go together"),
        (["a/circuit", "b/circuit", "--top", "99"], "ask for 0 to 16"),
        (["a/circuit", "b/circuit", "--to", "layre"], "no properties or kinds ['layre']"),
    ],
)
def test_mistakes_are_one_clear_line(words, message, two, monkeypatch, capsys) -> None:
    code, _, errors = here(["compare", *words, "--out", "c"], two, monkeypatch, capsys)
    assert code == 2 and message in errors and errors.count("\n") == 1
    assert not (two / "c").exists()
