"""Texts from files of every kind, and what is wrong with those that have none."""

import json
import zipfile

import pytest

from interp.errors import FileError
from interp.text_files import read_texts


def test_every_kind_of_file_gives_its_texts_in_order(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "b.json").write_text(json.dumps(["three", {"text": "four", "other": 1}]))
    (tmp_path / "c.jsonl").write_text('{"story": "five"}\n\n"six"\n')
    (tmp_path / "d.tsv").write_text("ID\tText\n1\tseven\n2\teight\n")
    (tmp_path / "e.csv").write_text('text\n"nine, ten"\n')
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        archive.writestr("folder/g.txt", "eleven")
        archive.writestr("folder/README", "not read")
    texts = read_texts([tmp_path / name for name in "a.txt b.json c.jsonl d.tsv e.csv f.zip".split()])
    assert texts == ["one\ntwo", "three", "four", "five", "six", "seven", "eight", "nine, ten", "eleven"]
    assert read_texts(tmp_path / "a.txt") == ["one\ntwo"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pdf", b"x", r"kind \.pdf; allowed: \.txt"),
        ("a.json", b'["x", ', r"cannot be read as \.json"),
        ("a.jsonl", b'{"words": "x"}', "an entry has no text; name its field one of text"),
        ("a.json", b"[3]", "an entry has no text"),
        ("a.zip", b"PK not a zip", r"cannot be read as \.zip"),
        ("a.txt", b"  \n ", "holds no text"),
    ],
)
def test_what_has_no_text_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=said):
        read_texts(tmp_path / name)


def test_a_missing_file_and_an_archive_that_unpacks_too_far_are_refused(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="is no file"):
        read_texts(tmp_path / "none.txt")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as archive:
        archive.writestr("a.txt", "x" * 100)
    monkeypatch.setattr("interp.text_files.LARGEST", 99)
    with pytest.raises(FileError, match=r"unpacks to 100 bytes; allowed 99"):
        read_texts(tmp_path / "bomb.zip")
