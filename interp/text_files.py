"""Running text from files: plain text, JSON and JSON lines, CSV and TSV, and zip archives of these."""

import csv
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from interp.errors import FileError

LARGEST = 2**32
"""Bytes that one member of an archive may unpack to."""
NAMES = ("text", "Text", "story", "content", "document")
SUFFIXES = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".zip")


def read_texts(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """The texts of files, in order.

    A ``.txt`` file is one text; ``.json`` holds a list of strings, or of objects with a text; ``.jsonl``, ``.csv`` and
    ``.tsv`` one a line, under a name such as ``text``; a ``.zip`` any of these.

    Raises:
        FileError: a file that is missing, damaged or of another kind, or without any text.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    texts = []
    for path in map(Path, given):
        if not path.is_file():
            raise FileError(f"{path} is no file; give files of kind {', '.join(SUFFIXES)}.")
        found = [text for text in _of_file(path.name, path.read_bytes(), str(path)) if text.strip()]
        if not found:
            raise FileError(f"{path} holds no text; allowed: {', '.join(SUFFIXES)} with at least one.")
        texts += found
    return texts


def _of_file(name: str, data: bytes, where: str) -> Iterator[str]:
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(f"{where}: kind {suffix or 'unknown'}; allowed: {', '.join(SUFFIXES)}.")
    try:
        if suffix == ".zip":
            yield from _of_archive(data, where)
        elif suffix == ".txt":
            yield data.decode("utf-8", errors="replace")
        elif suffix == ".json":
            yield from (_text(one, where) for one in json.loads(data))
        elif suffix == ".jsonl":
            yield from (_text(json.loads(line), where) for line in data.decode().splitlines() if line.strip())
        else:
            rows = csv.DictReader(io.StringIO(data.decode()), delimiter="\t" if suffix == ".tsv" else ",")
            yield from (_text(row, where) for row in rows)
    except (ValueError, zipfile.BadZipFile, csv.Error) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{where} cannot be read as {suffix} ({error}); save it anew.") from error


def _of_archive(data: bytes, where: str) -> Iterator[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            if member.is_dir() or Path(member.filename).suffix.lower() not in SUFFIXES[:-1]:
                continue
            if member.file_size > LARGEST:
                raise FileError(
                    f"{where}: {member.filename} unpacks to {member.file_size:,} bytes; allowed {LARGEST:,}."
                )
            yield from _of_file(member.filename, archive.read(member), f"{where}/{member.filename}")


def _text(row: object, where: str) -> str:
    """The text of one entry: a string, or a field of an object."""
    if isinstance(row, str):
        return row
    fields = {key: value for key, value in row.items() if isinstance(value, str)} if isinstance(row, dict) else {}
    name = next((name for name in NAMES if name in fields), None)
    if name is None:
        raise FileError(f"{where}: an entry has no text; name its field one of {', '.join(NAMES)}.")
    return fields[name]
