"""Verdicts: their file, what is wrong with one line by line, and how two judges agree."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp import verdicts as module
from interp.errors import FileError, OptionError
from interp.verdicts import (
    WORDS,
    Agreement,
    Verdict,
    combined_verdicts,
    judge_agreement,
    load_verdicts,
    read_verdicts,
    save_verdicts,
)

TEXTS = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates too
SCORES = st.none() | st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(
    st.tuples(TEXTS, st.sampled_from([None, *WORDS]), TEXTS, SCORES), unique_by=lambda row: row[0], max_size=5
)


def said(**words: str | None) -> list[Verdict]:
    """One judge's verdicts: node=word."""
    return [Verdict(node, word) for node, word in words.items()]


# --- the file ---


@given(ROWS)
def test_verdicts_come_back_from_their_lines_as_they_were(rows):
    verdicts = [Verdict(*row) for row in rows]
    assert read_verdicts(module.verdict_lines(verdicts).encode("ascii"), "a") == verdicts


def test_a_file_has_one_line_a_node_in_ascii_and_its_path_is_returned(tmp_path):
    verdicts = [Verdict("a", "irrelevant", 'é"\n\u2028', 0.5), Verdict("b", None)]
    path = save_verdicts(verdicts, tmp_path / "new" / "a.jsonl")
    assert path.read_bytes() == (
        b'{"node": "a", "verdict": "irrelevant", "note": "\\u00e9\\"\\n\\u2028", "score": 0.5}\n'
        b'{"node": "b", "verdict": null, "note": ""}\n'
    )
    assert load_verdicts(str(path)) == verdicts and [one.name for one in path.parent.iterdir()] == ["a.jsonl"]


def test_a_file_edited_in_a_text_editor_is_read(tmp_path):
    lines = ['{"node": "a", "verdict": "relevant"}', "", '  {"verdict": null, "node": "b \u2028", "score": 1}  ', "\t"]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert load_verdicts(path) == [Verdict("a", "relevant"), Verdict("b \u2028", None, score=1.0)]
    path.write_bytes(b"")
    assert load_verdicts(path) == []


FAULTS = {
    "no json": "no JSON (Expecting value at character 1)",
    "[1]": "'[1]' is no JSON object",
    '{"node": "x", "verdict": "Irrelevant"}': "verdict is 'Irrelevant'; nearest: 'irrelevant'",
    '{"node": "x", "verdict": ["unsure"]}': "verdict is ['unsure']",
    '{"node": 5, "verdict": null}': "node is 5.0, not text",
    '{"verdict": null}': "no 'node'",
    '{"node": "x"}': "no 'verdict'",
    '{"node": "x", "verdict": null, "note": null}': "note is None, not text",
    '{"node": "x", "verdict": null, "notes": "y"}': "unknown entry 'notes'; nearest: 'note', 'node'",
    '{"node": "x", "verdict": null, "score": true}': "score is True, not a finite number",
    '{"node": "x", "verdict": null, "score": 1e999}': "score is inf, not a finite number",
    '{"node": "x", "verdict": null, "score": NaN}': "NaN is no number",
    '{"node": "x", "verdict": "relevant", "verdict": "irrelevant"}': "entries ['verdict'] stand there twice",
    "[" * 100_000: "maximum recursion depth exceeded",
}


@pytest.mark.parametrize(("line", "fault"), FAULTS.items(), ids=range(len(FAULTS)))
def test_a_line_that_is_no_verdict_is_named_with_its_fault(line, fault, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"node": "a", "verdict": null}\n\n' + line)
    with pytest.raises(FileError) as error:
        load_verdicts(path)
    assert str(error.value).startswith(f"{path}: line 3: {fault}")
    assert 'Needed: {"node": "...", "verdict": "irrelevant", "relevant"' in str(error.value)


def test_all_faults_are_told_at_once_and_many_are_counted():
    good, bad = '{"node": "a", "verdict": null}', '{"node": 1, "verdict": 2}'
    data = "\n".join([good, bad, good, "x"]).encode() + b"\n\xff"
    with pytest.raises(FileError) as error:
        read_verdicts(data, "it")
    assert str(error.value).startswith(
        "it: line 2: node is 1.0, not text, verdict is 2.0; line 3: 'a' has a verdict in line 1; line 4: no JSON "
        "(Expecting value at character 1); line 5: not UTF-8 text; save the file as UTF-8. Needed: "
    )
    with pytest.raises(FileError, match="line 20: no JSON .*; and 30 more. Needed") as error:
        read_verdicts(b"x\n" * 50, "it")
    assert "line 21" not in str(error.value)


def test_what_is_no_file_of_verdicts_is_one_error(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="cannot read verdicts at .*a.jsonl.*check the path"):
        load_verdicts(tmp_path / "a.jsonl")
    with pytest.raises(FileError, match="cannot read verdicts"):
        load_verdicts(tmp_path)
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    path = save_verdicts([Verdict("a", None)], tmp_path / "b.jsonl")
    with pytest.raises(FileError, match="has 43 bytes; verdicts take up to 10"):
        load_verdicts(path)


def test_a_node_twice_is_not_written(tmp_path):
    save_verdicts([Verdict("a", "unsure")], tmp_path / "a.jsonl")
    with pytest.raises(FileError, match=r"nodes \['a'\] have several verdicts; .*give each once"):
        save_verdicts([Verdict("a", None), Verdict("b", None), Verdict("a", None)], tmp_path / "a.jsonl")
    assert load_verdicts(tmp_path / "a.jsonl") == [Verdict("a", "unsure")]


def test_a_score_is_finite():
    with pytest.raises(OptionError, match="the score of 'a' is nan; give a finite number, or None for no score"):
        Verdict("a", None, score=math.nan)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "Verdict('a', 'Relevant')",
            "the verdict on 'a' is 'Relevant'; allowed: 'irrelevant', 'relevant', 'unsure'; nearest",
        ),
        ("combined_verdicts([], [], 'any')", "rule is 'any'; allowed: 'both', 'either'"),
    ],
)
def test_other_words_are_refused(call, message):
    """In a process of its own, where no annotation is checked before."""
    done = subprocess.run(
        [sys.executable, "-c", f"from interp.verdicts import *; {call}"], capture_output=True, text=True
    )
    assert f"OptionError: {message}" in done.stderr


# --- two judges ---


def test_kappa_is_that_of_cohens_worked_example():
    table = {("irrelevant", "irrelevant"): 20, ("irrelevant", "relevant"): 5, ("relevant", "irrelevant"): 10,
             ("relevant", "relevant"): 15}  # fmt: skip
    pairs = [pair for pair, count in table.items() for _ in range(count)]
    a, b = ([Verdict(str(node), pair[side]) for node, pair in enumerate(pairs)] for side in (0, 1))
    found = judge_agreement(a, b[::-1])
    assert (found.n, found.share, len(found.differing)) == (50, 0.7, 15)
    assert found.kappa == pytest.approx(0.4, abs=1e-15)  # (0.7 - 0.5) / (1 - 0.5)
    assert (judge_agreement(b, a).kappa, judge_agreement(a, a).kappa) == (found.kappa, 1.0)


def test_only_nodes_that_both_judged_are_compared_and_unsure_is_a_verdict():
    a = said(one="unsure", two="relevant", three=None, four="relevant", five="irrelevant")
    b = said(five="relevant", one="unsure", two="unsure", three="relevant", four=None, six="relevant")
    found = judge_agreement(a, b)
    assert (found.n, found.differing, found.only_a, found.only_b) == (3, ("two", "five"), 1, 2)
    assert found.share == 1 / 3 and found.kappa == pytest.approx((3 - 3) / (9 - 3))
    opposite = judge_agreement(said(a="relevant", b="irrelevant"), said(a="irrelevant", b="relevant"))
    assert (opposite.share, opposite.kappa) == (0.0, -1.0)


def test_kappa_is_nan_where_chance_alone_agrees_and_where_nothing_was_judged_by_both():
    same = judge_agreement(said(a="relevant", b="relevant"), said(a="relevant", b="relevant"))
    assert (same.n, same.share) == (2, 1.0) and math.isnan(same.kappa)
    none = judge_agreement(said(a="relevant"), said(b="relevant"))
    assert math.isnan(none.share) and math.isnan(none.kappa)
    assert (none.n, none.differing, none.only_a, none.only_b) == (0, (), 1, 1)
    assert isinstance(none, Agreement) and judge_agreement([], []).n == 0


@pytest.mark.parametrize(
    ("a", "b", "both", "either"),
    [
        ("irrelevant", "irrelevant", "irrelevant", "irrelevant"),
        ("irrelevant", "relevant", "unsure", "irrelevant"),
        ("unsure", "irrelevant", "unsure", "irrelevant"),
        ("relevant", "relevant", "relevant", "relevant"),
        ("relevant", "unsure", "unsure", "unsure"),
        ("unsure", "unsure", "unsure", "unsure"),
        ("irrelevant", None, None, "irrelevant"),
        ("relevant", None, None, None),
        (None, None, None, None),
    ],
)
def test_two_verdicts_are_combined_by_the_rule_whoever_comes_first(a, b, both, either):
    for one, other in ((a, b), (b, a)):
        assert [v.verdict for v in combined_verdicts(said(x=one), said(x=other))] == [both]
        assert [v.verdict for v in combined_verdicts(said(x=one), said(x=other), "either")] == [either]
    if b is None:
        assert combined_verdicts(said(x=a), [], "either") == said(x=either)


def test_combined_verdicts_keep_the_order_and_the_notes():
    a = [Verdict("x", "relevant", "why", 0.5), Verdict("y", None, "later")]
    b = [Verdict("z", "unsure"), Verdict("y", "unsure", "hm"), Verdict("x", "relevant", "why")]
    assert combined_verdicts(a, b) == [
        Verdict("x", "relevant", "why"),
        Verdict("y", None, "later | hm"),
        Verdict("z", None),
    ]


def test_two_verdicts_of_one_judge_are_refused():
    with pytest.raises(OptionError, match=r"nodes \['x'\] have several verdicts of one judge; give one a node"):
        judge_agreement([], [Verdict("x", None), Verdict("x", "unsure")])
