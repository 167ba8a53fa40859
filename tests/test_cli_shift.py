"""The command line's word for SHIFT, as a user types it."""

import csv
import json

import pytest
from test_cli import here

import interp

QUICK = ["--layer", "1", "--method", "atp", "--n-features", "8", "--examples", "20", "--options", '{"n": 80}']


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A folder with a dictionary that has a feature for each word."""
    folder = tmp_path_factory.mktemp("dictionary")
    return str(interp.save_dictionary(interp.token_dictionary(interp.load("embedded")), folder))


def test_cards_are_written_judged_by_hand_and_gone_on_from(words, tmp_path, monkeypatch, capsys) -> None:
    line = ["shift", "embedded", "planted", "--dictionaries", words, *QUICK, "--out", "s"]
    code, said, errors = here(line, tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert "cards.html with 8 features" in said and "--candidates s --judge FILE" in said
    cards = interp.load_cards(tmp_path / "s" / "cards.json")
    told = [interp.Verdict(card.node, "irrelevant" if card.top_tokens[0].token in ("park", "store") else "relevant")
            for card in cards]  # fmt: skip
    interp.save_verdicts(told, tmp_path / "mine.jsonl")
    monkeypatch.setattr(interp, "shift_candidates", None)  # must not be needed again
    line += ["--candidates", "s", "--judge", "mine.jsonl", "--baselines", "oracle,random"]
    code, said, errors = here(line, tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert "SHIFT + retrain" in said and "Wrote s: table.csv" in said
    with open(tmp_path / "s" / "table.csv", newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["original", "SHIFT", "SHIFT + retrain", "oracle", "random features"]
    assert rows["SHIFT"]["removed"] == "2" and float(rows["SHIFT + retrain"]["worst"]) > float(
        rows["original"]["worst"]
    )
    assert interp.load_classifier(tmp_path / "s" / "classifier").predict("there is a nurse .")[0] in (
        "school",
        "medicine",
    )
    assert interp.load_verdicts(tmp_path / "s" / "verdicts.jsonl")[0].node == cards[0].node


def test_the_datas_own_words_judge_a_table_of_texts(tmp_path, monkeypatch, capsys) -> None:
    data = interp.planted(120)
    rows = [{"said": text, "topic": part.classes[label], "where": part.values[attribute]}
            for part in (data.train, data.test, data.balanced)
            for text, label, attribute in zip(part.texts, part.labels, part.attributes, strict=True)]  # fmt: skip
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = json.dumps({"text": "said", "label": "topic", "attribute": "where", "words": ["park", "store"]})
    line = ["shift", "embedded", "mine.jsonl", "--dictionaries", "tokens", *QUICK[:-1], options, "--judge", "words"]
    code, said, errors = here([*line, "--baselines", "none", "--out", "t"], tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert "Wrote t: table.csv" in said and "oracle" not in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("embedded plantd --layer 1 --dictionaries embed", "nearest: 'planted'"),
        ("embedded planted --layer 9 --dictionaries embed", "layers 0 to 3"),
        ("embedded planted --layer 0 --dictionaries resid_post[2]", "come after resid_post[0]"),
        ("embedded planted --layer 1 --dictionaries embed --judge jugde.jsonl", "no file of verdicts; allowed"),
        ("embedded planted --layer 1 --dictionaries embed --options {n:3}", "is no JSON"),
        ('embedded planted --layer 1 --dictionaries embed --options {"m":3}', "has no option 'm'; allowed: n, seed"),
        ("embedded nowhere.csv --layer 1 --dictionaries embed", "nowhere.csv"),
    ],
)
def test_a_mistake_ends_in_one_clear_line(line, said, tmp_path, monkeypatch, capsys) -> None:
    code, _, errors = here(["shift", *line.split()], tmp_path, monkeypatch, capsys)
    assert code == 2 and said in errors and len(errors.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
