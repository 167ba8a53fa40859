"""The command line's word for subspaces, as a user types it."""

import csv
import re

import pytest
from test_cli import here

import interp

SITE = "resid_post[0]"
QUICK = ["--steps", "4", "--n", "20", "--rank", "8", "--options", '{"entities": ["Paris", "Rome", "Tokyo", "Cairo", "Lima", "Delhi", "Oslo", "Berlin"], "most_templates": 3, "own_split": true}']  # fmt: skip  # noqa: E501


def test_subspaces_are_found_scored_and_kept(tmp_path, monkeypatch, capsys) -> None:
    line = ["subspace", "embedded", "toy_cities", f"{SITE},resid_post[1]", *QUICK, "--out", "s"]
    code, said, errors = here(line, tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert "train: Counterfactuals('ravel.city'" in said and "Wrote s: nodes.csv, circuit/." in said
    circuit = interp.load_circuit(tmp_path / "s" / "circuit")
    assert interp.subspace_basis(circuit, "Country").rotation.shape[1] == 8
    with open(tmp_path / "s" / "nodes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["concept"] for row in rows] == ["Country", "Continent", "Language"]
    assert not (tmp_path / ".s-unfinished").exists()


def test_hyperdas_is_trained_and_kept_with_a_figure(tmp_path, monkeypatch, capsys) -> None:
    network = '{"width": 16, "blocks": 1, "heads": 2, "reflections": 2}'
    line = [
        "subspace",
        "embedded",
        "toy_cities",
        SITE,
        "--method",
        "hyperdas",
        "--network",
        network,
        *QUICK,
        "--out",
        "h",
    ]
    code, said, errors = here(line, tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert "hyperdas/, selections.html" in said and (tmp_path / "h" / "selections.html").exists()
    one = interp.load_hyperdas(tmp_path / "h" / "hyperdas", interp.load("embedded"))
    assert one.settings.reflections == 2 and one.settings.rank == 8
    assert "hyperdas.Country.basis" in interp.load_circuit(tmp_path / "h" / "circuit").tensors


@pytest.mark.parametrize(("words", "told"), [
    (["embedded", "toy_cties", SITE], "no data 'toy_cties'; allowed: ravel, toy_cities, .*nearest: 'toy_cities'"),
    (["embedded", "toy_cities", "resid_pst[0]"], "no site kind 'resid_pst'.*nearest: 'resid_post'"),
    (["embedded", "toy_cities", SITE, "--method", "hypredas"], "method is 'hypredas'.*nearest: 'hyperdas'"),
    (["embedded", "ravel", SITE], "'ravel' needs path="),
    (["embedded", "toy_cities", SITE, "--options", '{"entites": []}'], "has no option 'entites'.*nearest: 'entities'"),
    (["embedded", "toy_cities", SITE, "--network", '{"width": 8}'], "--network goes with --method hyperdas"),
    (["embedded", "toy_cities", SITE, "--method", "hyperdas", "--network", '{"widht": 8}', *QUICK],
     "--network has no option 'widht'.*nearest: 'width'"),
    (["embedded", "toy_cities", f"{SITE},{SITE}", "--method", "hyperdas", *QUICK], "hyperdas takes one site, got 2"),
])  # fmt: skip
def test_mistakes_are_told_in_one_line(words, told, tmp_path, monkeypatch, capsys) -> None:
    code, _, errors = here(["subspace", *words, "--out", "x"], tmp_path, monkeypatch, capsys)
    assert code == 2 and "Traceback" not in errors
    assert re.search(told, errors), errors
    assert not (tmp_path / "x").exists()
