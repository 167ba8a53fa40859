"""Any next-token data set: texts of which some tokens are scored, each given what precedes it.

A row has the columns of one of two formats; every other column is a group to split by:

- `prompt` (text, or chat messages) and `target`, the text that continues it, with its leading space: all its tokens
  are scored;
- `text` and `target`, a list of character spans [start, end): the tokens that overlap one of them are scored.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from interp.errors import FileError, OptionError, PromptError, TaskError, check_choice
from interp.metrics import Answers, NegNLL
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.files import Cells, read_rows, read_table, renamed
from interp.tasks.pair import Pair, Row, read_pair
from interp.tokens import Prompts, from_ids, tokenizer_fingerprint

SHOWN = 10  # faulty rows that a message shows


def next_token(
    tokenizer: Any,
    *,
    path: str | Path | None = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
    columns: Mapping[str, str] | None = None,
    n: int | None = None,
    on_fault: Literal["raise", "drop"] = "raise",
) -> Task:
    """A next-token data set: mean log-probability of the target's tokens.

    Args:
        path: a JSONL, JSON or CSV file; in CSV, spans are a JSON list.
        rows: instead of a file, any finite iterable of rows by column name, such as a list of dicts or a
            ``datasets.Dataset``; it is read in full.
        columns: the table's own names of columns, each with the name meant here, as ``{"question": "prompt"}``.
        n: the first that many good rows; None for all. Repeated rows are kept once.
        on_fault: raise for faulty rows, or drop them and count them in ``parameters["dropped"]``.

    Raises:
        OptionError: both or none of path and rows, an option outside its values, a column that the table lacks.
        FileError: a file that cannot be read, columns of no known format, or cells that do not follow theirs.
        PromptError: targets that the tokenizer or the text does not allow, all together, unless they are dropped.
        TaskError: fewer good rows than asked for.

    Example:
        ``next_token(tokenizer, rows=[{"prompt": "The sky is", "target": " blue"}])`` and
        ``next_token(tokenizer, rows=[{"text": "The sky is blue.", "target": [[11, 15]]}])`` score the same token.
    """
    check_choice("on_fault", on_fault, ("raise", "drop"))
    if (path is None) == (rows is None):
        raise OptionError("next_token takes its rows from a path or from rows; give one of the two.")
    name = "rows" if path is None else Path(path).name
    found = read_table(path) if path is not None else list(rows or ())
    table = [renamed(cells, columns or {}) for cells in found]
    present = frozenset.intersection(*(frozenset(cells) for cells in table)) if table else frozenset()
    if not {"prompt", "target"} <= present and not {"text", "target"} <= present:
        raise FileError(
            f"{name}: {len(table)} rows have the columns {sorted(present)} in common; allowed: prompt and target, or "
            "text and target. Use `columns`."
        )
    title = "next_token" if path is None else Path(path).stem
    if "prompt" in present:
        pairs = read_rows(table, _continued, name)
        return make_task(
            title, pairs, tokenizer, metric="neg_nll", multi_token="sequence", on_fault=on_fault, n=n,
            parameters={"source": name},
        )  # fmt: skip
    return _span_task(title, read_rows(table, _marked, name), tokenizer, n, on_fault, name)


def _continued(cells: Cells) -> Pair:
    """A row with a prompt and the text that continues it."""
    prompt, target = cells["prompt"], cells["target"]
    if not isinstance(prompt, str | list):
        raise TypeError(f"prompt {prompt!r} is neither text nor chat messages")
    if not isinstance(target, str):
        raise TypeError(f"target {target!r} is no text; spans go with the column 'text'")
    return Pair(prompt, target, groups=_groups(cells, "prompt"))


def _marked(cells: Cells) -> Pair:
    """A row with a whole text, whose targets are a role until they are tokens."""
    text, target = cells["text"], cells["target"]
    spans = json.loads(target) if isinstance(target, str) else target
    if not isinstance(text, str):
        raise TypeError(f"text {text!r} is no text")
    if not isinstance(spans, list | tuple) or not all(_is_span(span) for span in spans):
        raise TypeError(f"target {target!r} is no list of character spans [start, end)")
    unused_answer = 0  # a token id: the answers are read from the text itself
    return Pair(text, unused_answer, roles={"target": [(a, b) for a, b in spans]}, groups=_groups(cells, "text"))


def _is_span(span: Any) -> bool:
    return isinstance(span, list | tuple) and len(span) == 2 and all(isinstance(bound, int) for bound in span)


def _groups(cells: Cells, text: str) -> dict[str, str]:
    return {name: str(cell) for name, cell in cells.items() if name not in (text, "target")}


def _span_task(title: str, marked: Sequence[Pair], tokenizer: Any, n: int | None, on_fault: str, source: str) -> Task:
    """A task of the rows with spans, or all that is wrong with them."""
    good, faulty, duplicates = _read(marked, tokenizer, n)
    if faulty and on_fault == "raise":
        raise PromptError(f"task {title!r}: {len(faulty)} rows are faulty.\n{_report(faulty)}")
    if len(good) < (n or 1):
        raise TaskError(
            f"task {title!r}: {len(good)} good distinct rows for the {n or 'at least 1'} asked for; ask for fewer, or "
            f"mend the faulty ones.\n{_report(faulty)}"
        )
    dropped = {"rows": len(faulty)} if faulty else {}
    return _assemble(title, good, tokenizer, {"source": source, "duplicates": duplicates, "dropped": dropped})


def _read(pairs: Sequence[Pair], tokenizer: Any, n: int | None) -> tuple[list[Row], dict[int, list[str]], int]:
    """Good rows, the faults of the others by their number, and how many rows came again."""
    good: list[Row] = []
    faulty: dict[int, list[str]] = {}
    seen: set[str] = set()
    duplicates = 0
    for number, pair in enumerate(pairs):
        key = repr((pair.clean, pair.roles))
        duplicates += key in seen
        if key in seen:
            continue
        seen.add(key)
        found = _tokens_of(pair, tokenizer)
        if isinstance(found, Row):
            good.append(found)
        else:
            faulty[number] = found
        if n is not None and len(good) == n:
            break
    return good, faulty, duplicates


def _tokens_of(pair: Pair, tokenizer: Any) -> Row | list[str]:
    """The row whose targets are the tokens that the pair's spans overlap, or all that is wrong with it."""
    text, spans = str(pair.clean), pair.roles["target"]
    outside = [list(span) for span in spans if not 0 <= int(span[0]) < int(span[1]) <= len(text)]
    if not spans or outside:
        shown = f"spans {outside} lie outside the text or are empty" if spans else "there is no span to score"
        return [f"{shown}; allowed: 0 <= start < end <= {len(text)} of {text!r}"]
    row = read_pair(pair, tokenizer, "first")
    if not isinstance(row, Row):
        return [fault.text for fault in row]
    where = row.roles["target"]
    if where[0] == 0:
        return [f"the first token of {text!r} has nothing before it that could predict it; allowed: from the second on"]
    scored = [[row.clean.ids[position]] for position in where]
    return Row(row.clean, None, [p - 1 for p in where], scored, [[]] * len(where), {"target": where}, row.groups)


def _report(faulty: Mapping[int, list[str]]) -> str:
    """The first faulty rows, counted from 1, with all that is wrong with each."""
    lines = [f"row {number + 1}: {'; '.join(texts)}." for number, texts in faulty.items()]
    return "\n".join(lines[:SHOWN] + ([f"And {len(lines) - SHOWN} more."] if len(lines) > SHOWN else []))


def _assemble(title: str, rows: Sequence[Row], tokenizer: Any, parameters: Mapping[str, Any]) -> Task:
    """Rows side by side, whose columns besides text and target are groups where every row has them."""
    made = from_ids([row.clean.ids for row in rows], tokenizer=tokenizer)
    where, ids = (
        pad_sequence([torch.tensor(each) for each in lists], batch_first=True, padding_value=-1)
        for lists in ([row.positions for row in rows], [row.correct for row in rows])
    )
    keys = [key for key in rows[0].groups if all(key in row.groups for row in rows)]
    return Task(
        title,
        Prompts(made.ids, made.lengths, tuple(row.clean.text for row in rows), made.tokens),
        Answers(where, ids, torch.empty(*where.shape, 0, dtype=torch.long)),
        NegNLL(),
        roles={"target": tuple(row.roles["target"] for row in rows)},
        groups={key: tuple(row.groups[key] for row in rows) for key in keys},
        parameters=parameters,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
    )
