"""Files: a user's own tables, the public ones, and what is wrong with a file."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from interp.errors import FileError, OptionError, PromptError
from interp.metrics import ProbDiff
from interp.tasks.choices import mcqa
from interp.tasks.files import from_file, read_lists, read_table
from interp.tasks.ioi import ioi

ROWS = [
    {
        "clean": "Mary and John went to the store, John gave it to",
        "corrupted": "Mary and John went to the store, Mary gave it to",
        "answer": [" Mary", " Anna"],
        "wrong": " John",
        "roles": {"IO": "Mary", "S": [[9, 13], [33, 37]]},
        "template": "t1",
    },
    {"clean": "John went to", "corrupted": "Mary went to", "answer": " Mary", "wrong": " John", "template": "t2"},
]


def write(folder: Path, kind: str) -> Path:
    path = folder / f"mine.{kind}"
    if kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, [*ROWS[0]], restval="")
            table.writeheader()
            for row in ROWS:
                cells = {**row, "answer": "|".join(row["answer"]) if isinstance(row["answer"], list) else row["answer"]}
                table.writerow(cells | ({"roles": json.dumps(row["roles"])} if "roles" in row else {}))
    else:
        lines = [json.dumps(row) for row in ROWS]
        path.write_text("\n\n".join(lines) + "\n" if kind == "jsonl" else f"[{','.join(lines)}]", encoding="utf-8-sig")
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json"])
def test_a_users_table_reads_the_same_in_every_format(bpe: Any, tmp_path: Path, kind: str) -> None:
    task = from_file(bpe, write(tmp_path, kind))
    known = bpe.get_vocab()
    assert task.name == "mine" and task.clean.texts == tuple(row["clean"] for row in ROWS)
    assert task.answers.correct.tolist() == [[[known["ĠMary"], known["ĠAnna"]]], [[known["ĠMary"], -1]]]
    assert task.groups == {"template": ("t1", "t2")} and task.parameters["files"] == path_name(kind)
    tokens = task.clean.tokens[0]
    assert [tokens[p] for p in task.roles["S"][0]] == [" John", " John"] and task.roles["S"][1] == ()


def path_name(kind: str) -> str:
    return f"mine.{kind}"


def test_columns_can_be_renamed(bpe: Any, tmp_path: Path) -> None:
    path = tmp_path / "theirs.jsonl"
    path.write_text(json.dumps({"prompt": "Mary went to", "target": " Mary", "answer": "unused"}))
    task = from_file(bpe, path, columns={"prompt": "clean", "target": "answer"})
    assert task.answers.correct.tolist() == [[[bpe.get_vocab()["ĠMary"]]]]
    with pytest.raises(OptionError, match="no column 'promt'; allowed: prompt, target, answer; nearest: 'prompt'"):
        from_file(bpe, path, columns={"promt": "clean"})


def test_faulty_prompts_of_a_file_raise_or_are_dropped(bpe: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [ROWS[1], ROWS[1] | {"answer": " Marymary"}]))
    with pytest.raises(PromptError, match="task 'mine': 1 pairs are faulty"):
        from_file(bpe, path)
    assert len(from_file(bpe, path, on_fault="drop")) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.csv", None, "absent.csv cannot be read"),
        ("a.jsonl", '{"clean": "x"}\n{bro', r"rows \[2\] of 2 are no records; each must be a JSON object"),
        ("b.jsonl", "", "rows none of 0 are no records"),
        ("c.csv", "clean,answer\nx,y,z\nx\n", r"rows \[1, 2\] of 2 are no records"),
        ("d.json", "[1, 2]", r"rows \[1, 2\] of 2 are no records"),
        ("e.csv", "text,answer\nx,y\n", r"columns \['answer', 'text'\] are of no known format; allowed: agreement: "),
        (
            "f.jsonl",
            '{"clean": "x", "answer": " y", "roles": "{"}',
            "f.jsonl: 1 rows do not follow their format: row 1",
        ),
        (
            "g.csv",
            "clean_prefix,patch_prefix,clean_answer,patch_answer\nThe a b,The c d, is, are\n",
            "row 1: 'The a b' and 'The c d' differ in 2 words, not in the subject alone",
        ),
        (
            "h.csv",
            "clean,corrupted,correct_idx,incorrect_idx\nx,y,1,2\n",
            "does not name one person once and one twice",
        ),
        ("i.csv", "clean,corrupted,label\nThe war,The,12\n", "'The war' is no span of years"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    bpe: Any, tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(FileError, match=message):
        from_file(bpe, tmp_path / name)


def test_binary_content_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="cannot be read .*; give a JSONL, JSON or CSV file in UTF-8"):
        read_table(tmp_path / "x.csv")


def test_public_agreement_files_leak_until_split_again(shared: Path, bpe: Any) -> None:
    """Sparse Feature Circuits: 113 of the 120 test rows repeat a (prefix, answer) of the train file."""
    files = [shared / "sva-feature-circuits" / f"simple_{side}.jsonl" for side in ("train", "test")]
    train, test = (from_file(bpe, path, on_fault="drop") for path in files)
    assert test.leakage(train)["prompt"] > 0.9 * len(test)
    rows = [{(row["clean_prefix"], row["clean_answer"]) for row in read_table(path)} for path in files]
    assert sum((row["clean_prefix"], row["clean_answer"]) in rows[0] for row in read_table(files[1])) == 113
    train, test = from_file(bpe, files, on_fault="drop").split()
    assert test.leakage(train)["prompt"] == test.leakage(train)["entity"] == 0


def test_public_ioi_prompts_are_read_from_their_text(shared: Path, bpe: Any) -> None:
    task = from_file(bpe, shared / "ioi" / "ioi_llama.csv", on_fault="drop", n=15)
    for row, tokens in enumerate(task.clean.tokens):
        names = {role: [tokens[p].strip() for p in task.roles[role][row]] for role in ("IO", "S1", "S2")}
        assert "".join(names["S1"]) == "".join(names["S2"]) != "".join(names["IO"])
        assert bpe.decode([int(task.answers.correct[row, 0, 0])]).strip() == "".join(names["IO"])
    hard = from_file(
        bpe, shared / "ioi" / "ioi_llama.csv", on_fault="drop", n=5, columns={"corrupted_hard": "corrupted"}
    )
    assert hard.require_corrupted().texts != task.require_corrupted().texts[:5]


def test_public_spans_of_years_are_scored_as_the_tokenizer_writes_them(shared: Path, bpe: Any) -> None:
    task = from_file(bpe, shared / "greater-than" / "greater_than_data.csv", on_fault="drop", n=40)
    assert task.metric == ProbDiff() and all(text.startswith("The ") for text in task.clean.texts or ())
    digits = [bpe.decode([int(i)]) for i in task.answers.correct[0, 0] if i >= 0]
    assert digits == [str(d) for d in range(int(task.groups["year"][0][2]) + 1, 10)]


def test_public_word_lists_serve_their_tasks(shared: Path, bpe: Any) -> None:
    lists = read_lists(shared / "ioi")
    assert len(lists["names"]) == 99 and all("{first}" in text for text in lists["templates"])
    known = [name for name in lists["names"] if f"Ġ{name}" in bpe.get_vocab()]
    assert len(ioi(bpe, n=10, lists=lists | {"names": known})) == 10
    assert len(mcqa(bpe, n=3, lists=read_lists(shared / "mcqa"), multi_token="first")) == 3


def test_a_folder_without_lists_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="has no JSON file; give a folder of word lists"):
        read_lists(tmp_path)
    (tmp_path / "names.json").write_text("{broken")
    with pytest.raises(FileError, match="names.json is no list of words .*; give a JSON list"):
        read_lists(tmp_path)
