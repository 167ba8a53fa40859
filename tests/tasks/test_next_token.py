"""Any next-token data set: which tokens are scored, and what is wrong with a row."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from interp.errors import FileError, OptionError, PromptError, TaskError
from interp.metrics import NegNLL
from interp.tasks.base import Task
from interp.tasks.next_token import next_token

TEXT = "Mary went to the store"
SPANS = [{"text": TEXT, "target": [[5, 9], [17, 22]], "kind": "a"}, {"text": "the garden", "target": [(4, 10)]}]


@pytest.fixture
def known(words: Any) -> Any:
    return words("Mary went to the store garden . John", bos="<s>")


def scored(task: Task) -> list[list[tuple[str, str]]]:
    """Each row's scored targets: the token at the position that is read, and the token that is right there."""
    vocabulary = {}
    for row, tokens in zip(task.clean.rows(), task.clean.tokens, strict=True):
        vocabulary |= dict(zip(row, tokens, strict=True))
    return [
        [(tokens[p], vocabulary[ids[0]]) for p, ids in zip(positions, correct, strict=True) if p >= 0]
        for tokens, positions, correct in zip(
            task.clean.tokens, task.answers.positions.tolist(), task.answers.correct.tolist(), strict=True
        )
    ]


def test_the_tokens_of_a_span_are_scored_where_they_are_predicted(known: Any) -> None:
    task = next_token(known, rows=SPANS)
    assert scored(task) == [[("Mary", " went"), (" the", " store")], [("the", " garden")]]
    assert task.answers.positions.tolist() == [[1, 4], [1, -1]] and task.answers.correct[1].tolist()[1] == [-1]
    assert task.clean.texts == (TEXT, "the garden") and task.roles == {"target": ((2, 5), (2,))}
    assert isinstance(task.metric, NegNLL) and task.answers.wrong.shape == (2, 2, 0) and task.groups == {}


def test_a_bos_lets_the_first_word_be_scored(known: Any, words: Any) -> None:
    rows = [{"text": TEXT, "target": [[0, 4]]}]
    assert scored(next_token(known, rows=rows)) == [[("<s>", "Mary")]]
    with pytest.raises(PromptError, match="row 1: the first token of 'Mary went to the store' has nothing before it"):
        next_token(words("Mary went to the store"), rows=rows)


def test_the_value_is_the_mean_log_probability_of_the_targets(known: Any) -> None:
    task = next_token(known, rows=SPANS)
    logits = torch.randn(2, 2, len(known))
    logprobs = logits.log_softmax(-1)
    ids = known.get_vocab()
    expected = [(logprobs[0, 0, ids["Ġwent"]] + logprobs[0, 1, ids["Ġstore"]]) / 2, logprobs[1, 0, ids["Ġgarden"]]]
    torch.testing.assert_close(task.metric(logits, task.answers), torch.stack(expected))


def test_both_formats_score_the_same_tokens(bpe: Any) -> None:
    continued = next_token(bpe, rows=[{"prompt": "Mary went to the", "target": " storehouse."}])
    marked = next_token(bpe, rows=[{"text": "Mary went to the storehouse.", "target": [[16, 28]]}])
    assert len(continued.answers.positions[0]) > 2
    assert continued.answers.positions.tolist() == marked.answers.positions.tolist()
    assert continued.answers.correct.tolist() == marked.answers.correct.tolist()
    assert marked.clean.rows()[0][:-1] == continued.clean.rows()[0]
    assert continued.metric == marked.metric


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_files_read_like_rows(known: Any, tmp_path: Path, kind: str) -> None:
    rows = [{"body": TEXT, "target": [[5, 9]], "kind": "a|b"}, {"body": "the garden", "target": [[4, 10]], "kind": 2}]
    path = tmp_path / f"mine.{kind}"
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) if kind == "jsonl" else f"[{','.join(lines)}]")
    if kind == "csv":
        path.write_text('body,target,kind\nMary went to the store,"[[5, 9]]",a|b\nthe garden,"[[4, 10]]",2\n')
    task = next_token(known, path=path, columns={"body": "text"})
    assert task.name == "mine" and task.parameters["source"] == path.name
    assert task.groups == {"kind": ("a|b", "2")}
    assert scored(task) == scored(next_token(known, rows=rows, columns={"body": "text"}))


def test_a_hubs_data_set_reads_like_a_list_of_rows(known: Any) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"text": TEXT, "target": [[5, 9], [17, 22]]}, {"text": "the garden", "target": [[4, 10]]}]
    task = next_token(known, rows=datasets.Dataset.from_list(rows))
    assert scored(task) == scored(next_token(known, rows=rows))
    pairs = [{"prompt": "Mary went to", "target": " the store", "topic": "x"}]
    task = next_token(known, rows=datasets.Dataset.from_list(pairs))
    assert task.clean.rows() == next_token(known, rows=pairs).clean.rows() and task.groups == {"topic": ("x",)}


def test_chat_prompts_and_generators_are_rows(known: Any) -> None:
    known.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    rows = ({"prompt": [{"role": "user", "content": text}], "target": " to the"} for text in ("Mary went", "John went"))
    task = next_token(known, rows=rows)
    assert task.clean.texts == ("Mary went", "John went") and task.answers.positions.tolist() == [[1, 2], [1, 2]]


def test_a_tokenizer_without_offsets_will_do(slow: Any) -> None:
    task = next_token(slow, rows=[{"text": "we saw a cat", "target": [[9, 12]]}])
    assert task.answers.correct.tolist() == [[[slow.get_vocab()["cat"]]]] and task.answers.positions.tolist() == [[2]]


FAULTY = [
    {"text": TEXT, "target": [[5, 9]]},
    {"text": TEXT, "target": [[5, 90], [9, 9], [-1, 2]]},
    {"text": TEXT, "target": []},
    {"text": "Mary saw the store", "target": [[13, 18]]},
    {"text": TEXT, "target": [[4, 5]]},
    {"text": TEXT, "target": [[0, 9]]},
    {"text": TEXT, "target": [[5, 9]]},
]


def test_all_faulty_rows_are_told_together(words: Any) -> None:
    tokenizer = words("Mary went to the store")
    with pytest.raises(PromptError) as caught:
        next_token(tokenizer, rows=FAULTY)
    head, *told = str(caught.value).split("\n")
    assert head == "task 'next_token': 4 rows are faulty."
    assert told[0] == (
        "row 2: spans [[5, 90], [9, 9], [-1, 2]] lie outside the text or are empty; allowed: 0 <= start < end <= 22 of "
        f"{TEXT!r}."
    )
    assert told[1].startswith("row 3: there is no span to score")
    assert told[2].startswith("row 4: clean prompt 'Mary saw the store' is ['Mary', '<unk>'")
    assert told[3].startswith("row 6: the first token of") and len(told) == 4


def test_faulty_and_repeated_rows_are_dropped_and_counted(words: Any) -> None:
    tokenizer = words("Mary went to the store")
    task = next_token(tokenizer, rows=FAULTY, on_fault="drop")
    assert len(task) == 2 and task.parameters["dropped"] == {"rows": 4} and task.parameters["duplicates"] == 1
    assert len(next_token(tokenizer, rows=FAULTY, n=1)) == 1  # the faults come after the first good row
    with pytest.raises(TaskError, match="2 good distinct rows for the 3 asked for; .*\nrow 2: "):
        next_token(tokenizer, rows=FAULTY, on_fault="drop", n=3)


def test_faulty_targets_of_prompts_are_told_together_or_dropped(known: Any) -> None:
    rows = [{"prompt": "Mary went", "target": target} for target in (" to", " away", "", " home")]
    with pytest.raises(
        PromptError, match=r"3 pairs are faulty.\nunknown words \(2\): .*' away'.*' home'.*\nanswers \(1"
    ):
        next_token(known, rows=rows)
    assert len(next_token(known, rows=rows, on_fault="drop")) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": TEXT, "target": " x"}], "row 1: "),
        ([{"text": TEXT, "target": [5, 9]}, {"text": 3, "target": [[0, 1]]}], r"2 rows .*row 1: target \[5, 9\] is no "
         "list of character spans .*row 2: text 3 is no text"),
        ([{"prompt": "a", "target": [[0, 1]]}], "target .* is no text; spans go with the column 'text'"),
        ([{"prompt": 3, "target": "a"}], "prompt 3 is neither text nor chat messages"),
        ([{"prompt": "a", "answer": "b"}], r"1 rows have the columns \['answer', 'prompt'\] in common; "),
        ([], r"rows: 0 rows have the columns \[\] in common"),
    ],
)  # fmt: skip
def test_rows_of_another_format_are_told(known: Any, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(FileError, match=message):
        next_token(known, rows=rows)


def test_options_outside_their_values_are_told(known: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a path or from rows; give one of the two"):
        next_token(known)
    with pytest.raises(OptionError, match="a path or from rows; give one of the two"):
        next_token(known, rows=SPANS, path=tmp_path)
    with pytest.raises(OptionError, match="no column 'txt'; allowed: text, target, kind; nearest: 'text'"):
        next_token(known, rows=SPANS, columns={"txt": "text"})
