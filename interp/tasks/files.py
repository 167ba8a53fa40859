"""Tasks from files: a user's own prompts, and the public files of the field.

A file (JSONL, JSON list or CSV) is a table with one prompt a row; its columns say which it is (`FORMATS`):

- your own: `clean` and `answer` and, as you like, `corrupted`, `wrong` and `roles`; every other column is a group to
  split by. Answers keep their leading space; several are a JSON list, or have "|" between them. Roles are a JSON
  object: name to words that occur once, or to a list of character spans. In JSON, prompts may be chat messages.
- `ioi_llama.csv` and `greater_than_data.csv` of EAP-IG, read from their text: their token ids are another tokenizer's.
- the agreement files of Sparse Feature Circuits, whose test sets repeat prompts of their train sets: read both into
  one task, which keeps repeated pairs once, and `split` it again.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from interp.errors import FileError, OptionError, nearest
from interp.metrics import Metric
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.greater_than import find_years
from interp.tasks.pair import MultiToken, Pair
from interp.tasks.template import Lists

Cells = Mapping[str, Any]
Reader = Callable[[Cells], Pair]
Item = TypeVar("Item")


class Format(NamedTuple):
    """How rows with these columns become pairs for a tokenizer, and the metric they are meant for."""

    columns: frozenset[str]
    reader: Callable[[Any], Reader]
    metric: str | None = None


def from_file(
    tokenizer: Any,
    path: str | Path | Sequence[str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    metric: str | Metric | None = None,
    multi_token: MultiToken = "error",
    on_fault: Literal["raise", "drop"] = "raise",
    n: int | None = None,
) -> Task:
    """A task from one or several files of prompts.

    Args:
        path: files of one format; see the module.
        columns: the file's own names of columns, each with the name meant here, as ``{"prompt": "clean"}``.
        metric, multi_token, on_fault: see `make_task`.
        n: the first that many good prompts; None for all.

    Raises:
        FileError: a file that cannot be read, columns of no known format, or rows that do not follow theirs.
        PromptError: faulty pairs, all together, unless they are dropped.
        TaskError: fewer good prompts than asked for.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    table = [renamed(cells, columns or {}) for each in paths for cells in read_table(each)]
    names = ", ".join(Path(each).name for each in paths)
    present = frozenset.intersection(*(frozenset(cells) for cells in table)) if table else frozenset()
    found = next((each for each in FORMATS.values() if each.columns <= present), None)
    if found is None:
        known = "; ".join(f"{name}: {', '.join(sorted(each.columns))}" for name, each in FORMATS.items())
        raise FileError(f"{names}: columns {sorted(present)} are of no known format; allowed: {known}. Use `columns`.")
    pairs = read_rows(table, found.reader(tokenizer), names)
    return make_task(
        Path(paths[0]).stem,
        pairs,
        tokenizer,
        metric=metric or (found.metric if multi_token != "sequence" else None),
        multi_token=multi_token,
        on_fault=on_fault,
        n=n,
        parameters={"files": names},
    )


def read_table(path: str | Path) -> list[Cells]:
    """The rows of a JSONL, JSON or CSV file, by column name.

    Raises:
        FileError: a file that cannot be read; all broken lines are named.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read ({error}); give a JSONL, JSON or CSV file in UTF-8.") from error
    rows = list(csv.DictReader(io.StringIO(text, newline=""))) if path.suffix == ".csv" else _json_rows(text)
    broken = [i + 1 for i, row in enumerate(rows) if not isinstance(row, dict) or None in row or None in row.values()]
    if broken or not rows:
        raise FileError(
            f"{path}: rows {broken[:20] if broken else 'none'} of {len(rows)} are no records; each must be a JSON "
            "object, or a CSV line with as many cells as the header."
        )
    return rows


def read_lists(folder: str | Path) -> Lists:
    """The word lists and templates of a folder of MIB, for the `lists` of `ioi` or `mcqa`.

    Raises:
        FileError: a folder without lists, or a broken file.
    """
    lists: dict[str, Any] = {}
    for path in sorted(Path(folder).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if path.stem == "object_color_pairs":
                lists["pairs"] = tuple((each["object"], each["color"]) for each in content)
            else:
                # Their "an" templates go with none of their objects.
                lists[path.stem] = tuple(_rename_slots(each) for each in content if "an {object}" not in each)
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(
                f"{path} is no list of words ({type(error).__name__}: {error}); give a JSON list."
            ) from error
    if not lists:
        raise FileError(f"{folder} has no JSON file; give a folder of word lists, such as MIB's IOI_task.")
    return lists


def _rename_slots(template: str) -> str:
    for theirs, ours in (("{name_A}", "{first}"), ("{name_B}", "{second}"), ("{name_C}", "{S2}")):
        template = template.replace(theirs, ours)
    return template


def _json_rows(text: str) -> list[Any]:
    """A JSON list's entries, or one entry a line; what is no JSON becomes None."""
    rows = []
    for part in [text] if text.lstrip().startswith("[") else filter(str.strip, text.splitlines()):
        try:
            row = json.loads(part)
        except ValueError:
            row = None
        rows += row if isinstance(row, list) else [row]
    return rows


def renamed(cells: Cells, columns: Mapping[str, str]) -> Cells:
    """Cells under the names meant here, where `columns` has the table's own names, each with the one meant.

    Raises:
        OptionError: a name that the table lacks.
    """
    for name in columns:
        if name not in cells:
            raise OptionError(f"no column {name!r}; allowed: {', '.join(cells)}{nearest(name, cells)}.")
    kept = {name: cell for name, cell in cells.items() if name not in columns}
    return kept | {ours: cells[theirs] for theirs, ours in columns.items()}


def read_rows(table: Sequence[Cells], read: Callable[[Cells], Item], names: str) -> list[Item]:
    """What `read` makes of every row.

    Raises:
        FileError: rows that do not follow their format, named together.
    """
    items, faulty = [], []
    for number, cells in enumerate(table):
        try:
            items.append(read(cells))
        except (ValueError, TypeError, KeyError) as error:
            faulty.append(f"row {number + 1}: {error}")
    if faulty:
        raise FileError(f"{names}: {len(faulty)} rows do not follow their format: {'; '.join(faulty[:10])}. Mend them.")
    return items


def _own(tokenizer: Any) -> Reader:
    return _own_pair


def _own_pair(cells: Cells) -> Pair:
    """A row of a user's file."""
    roles = cells.get("roles") or {}
    roles = json.loads(roles) if isinstance(roles, str) else roles
    known = {"clean", "answer", "corrupted", "wrong", "roles"}
    return Pair(
        cells["clean"],
        _several(cells["answer"]),
        _several(cells.get("wrong") or ()),
        cells.get("corrupted") or None,
        {name: where if isinstance(where, str) else [(a, b) for a, b in where] for name, where in roles.items()},
        groups={name: str(cell) for name, cell in cells.items() if name not in known},
    )


def _several(answers: Any) -> Any:
    return answers.split("|") if isinstance(answers, str) else answers


def _agreement(tokenizer: Any) -> Reader:
    return _agreement_pair


def _agreement_pair(cells: Cells) -> Pair:
    """A row of Sparse Feature Circuits: the subject is the word in which the two prefixes differ."""
    clean, corrupted = cells["clean_prefix"], cells["patch_prefix"]
    words = list(zip(re.finditer(r"\S+", clean), re.finditer(r"\S+", corrupted), strict=True))
    differing = [(a, b) for a, b in words if a[0] != b[0]]
    if len(differing) != 1:
        raise ValueError(f"{clean!r} and {corrupted!r} differ in {len(differing)} words, not in the subject alone")
    subject, other = differing[0]
    return Pair(
        clean,
        cells["clean_answer"],
        cells["patch_answer"],
        corrupted,
        {"subject": [subject.span()]},
        {"subject": [other.span()]},
        {"entity": min(subject[0], other[0]), "case": cells.get("case", "")},
    )


def _greater_than(tokenizer: Any) -> Reader:
    """Rows of `greater_than_data.csv`, scored as this tokenizer writes years."""
    template = "The {event} lasted from the year {XX}{YY} to the year {XX}"
    years = find_years(tokenizer, template, "war")

    def pair(cells: Cells) -> Pair:
        found = re.fullmatch(r"The (.+) lasted from the year (\d\d)(\d\d) to the year \2", cells["clean"])
        if found is None:
            raise ValueError(f"{cells['clean']!r} is no span of years")
        unscored = Pair(cells["clean"], (), (), cells["corrupted"])
        return years.pair(template, *found.groups()) or unscored

    return pair


def _ioi(tokenizer: Any) -> Reader:
    return _ioi_pair


def _ioi_pair(cells: Cells) -> Pair:
    """A row of `ioi_llama.csv`: of the two names joined by "and", S occurs again and IO does not."""
    clean = cells["clean"]
    names = re.search(r"\b([A-Z]\w+) and ([A-Z]\w+)\b", clean)
    places = {
        name: [m.span() for m in re.finditer(rf"\b{name}\b", clean)] for name in (names.groups() if names else ())
    }
    once = [name for name, spans in places.items() if len(spans) == 1]
    twice = [name for name, spans in places.items() if len(spans) == 2]
    if len(once) != 1 or len(twice) != 1:
        raise ValueError(f"{clean!r} does not name one person once and one twice")
    (indirect,), (subject,) = once, twice
    first, second = places[subject]
    roles = {"IO": places[indirect], "S1": [first], "S2": [second]}
    groups = {"entity": f"{indirect}|{subject}"}
    return Pair(clean, " " + indirect, " " + subject, cells["corrupted"], roles, groups=groups)


FORMATS = {
    "agreement": Format(frozenset({"clean_prefix", "patch_prefix", "clean_answer", "patch_answer"}), _agreement),
    "ioi": Format(frozenset({"clean", "corrupted", "correct_idx", "incorrect_idx"}), _ioi),
    "greater_than": Format(frozenset({"clean", "corrupted", "label"}), _greater_than, "prob_diff"),
    "prompts": Format(frozenset({"clean", "answer"}), _own),
}
