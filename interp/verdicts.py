"""Verdicts on features: what a judge says of each, as values and as a file that a person can edit.

The file has one JSON object a line, ``{"node": ..., "verdict": "irrelevant" | "relevant" | "unsure" | null, "note":
...}``, where null says: not judged yet; a number ``"score"`` may follow. Note and score may be left out.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from interp.atomic import one_error, replacing
from interp.errors import FileError, OptionError, check_choice, nearest

Word = Literal["irrelevant", "relevant", "unsure"]
Rule = Literal["both", "either"]
WORDS: tuple[Word, ...] = get_args(Word)
MAX_BYTES = 2**26  # a line with a long note takes about 2**10
MOST_FAULTS = 20  # told in one message
LAYOUT = (
    '{"node": "...", "verdict": "irrelevant", "relevant", "unsure" or null, "note": "..."} and perhaps '
    '"score": number, one line a node'
)


@dataclass(frozen=True)
class Verdict:
    """What a judge says of one feature.

    Attributes:
        node: text of its node, as on its card.
        verdict: ``irrelevant`` to the task (to be removed), ``relevant`` (to be kept), ``unsure``; None: not judged.
        note: why.
        score: a finite number that the verdict was taken from, larger = more irrelevant; None without one.

    Raises:
        OptionError: another word, or a score that is not finite.
    """

    node: str
    verdict: Word | None
    note: str = ""
    score: float | None = None

    def __post_init__(self) -> None:
        if self.verdict is not None:
            check_choice(f"the verdict on {self.node!r}", self.verdict, WORDS)
        if self.score is not None and not math.isfinite(self.score):
            raise OptionError(
                f"the score of {self.node!r} is {self.score}; give a finite number, or None for no score."
            )


@dataclass(frozen=True)
class Agreement:
    """How far two judges agree; ``unsure`` is a verdict like the others.

    Attributes:
        n: nodes that both judged.
        share: of them with the same verdict; NaN where n is 0.
        kappa: Cohen's, (share - chance) / (1 - chance), where chance is the share that two judges with these
            frequencies of words would reach by drawing at random: 1 = always the same, 0 = as by chance. NaN where
            chance is 1 (both gave all nodes one and the same word) and where n is 0.
        differing: nodes with different verdicts, in the first judge's order.
        only_a, only_b: nodes that one alone judged.
    """

    n: int
    share: float
    kappa: float
    differing: tuple[str, ...]
    only_a: int
    only_b: int


def judge_agreement(a: Sequence[Verdict], b: Sequence[Verdict]) -> Agreement:
    """Compare the verdicts of two judges; a verdict None counts as none.

    >>> first = [Verdict("f1", "irrelevant"), Verdict("f2", "relevant"), Verdict("f3", "unsure")]
    >>> second = [Verdict("f1", "irrelevant"), Verdict("f2", "irrelevant"), Verdict("f3", None)]
    >>> judge_agreement(first, second)
    Agreement(n=2, share=0.5, kappa=0.0, differing=('f2',), only_a=1, only_b=0)

    Raises:
        OptionError: a node twice in one of them.
    """
    first, second = _judged(a), _judged(b)
    both = [node for node in first if node in second]
    differing = tuple(node for node in both if first[node] != second[node])
    n, same = len(both), len(both) - len(differing)
    counts_a, counts_b = (Counter(words[node] for node in both) for words in (first, second))
    by_chance = sum(counts_a[word] * counts_b[word] for word in WORDS)  # n^2 times chance: kappa from whole numbers
    kappa = (n * same - by_chance) / (n * n - by_chance) if n * n > by_chance else math.nan
    return Agreement(n, same / n if n else math.nan, kappa, differing, len(first) - n, len(second) - n)


def _judged(verdicts: Sequence[Verdict]) -> dict[str, Word]:
    return {node: one.verdict for node, one in _by_node(verdicts).items() if one.verdict is not None}


def combined_verdicts(a: Sequence[Verdict], b: Sequence[Verdict], rule: Rule = "both") -> list[Verdict]:
    """One verdict a node from those of two judges: the first judge's nodes in order, then the second's others.

    Where both gave one word, that word. Where they differ, ``either`` makes it irrelevant if one says so; everything
    else is unsure. A node that one alone judged is not judged (None), except that under ``either`` one ``irrelevant``
    is enough. Notes are joined by `` | ``; scores are left out, since two judges' mean different things.

    Raises:
        OptionError: another rule, or a node twice in one of them.
    """
    check_choice("rule", rule, get_args(Rule))
    first, second = _by_node(a), _by_node(b)
    return [_one_of_two(node, first.get(node), second.get(node), rule) for node in {**first, **second}]


def _one_of_two(node: str, a: Verdict | None, b: Verdict | None, rule: Rule) -> Verdict:
    given = [one for one in (a, b) if one is not None]
    words = [one.verdict for one in given if one.verdict is not None]
    word: Word | None = "unsure"
    if rule == "either" and "irrelevant" in words:
        word = "irrelevant"
    elif len(words) < 2:
        word = None
    elif words[0] == words[1]:
        word = words[0]
    return Verdict(node, word, " | ".join(dict.fromkeys(one.note for one in given if one.note)))


def _by_node(verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    if twice := _twice(verdicts):
        raise OptionError(f"nodes {twice[:5]} have several verdicts of one judge; give one a node.")
    return {one.node: one for one in verdicts}


def _twice(verdicts: Sequence[Verdict]) -> list[str]:
    return [node for node, count in Counter(one.node for one in verdicts).items() if count > 1]


def save_verdicts(verdicts: Sequence[Verdict], path: str | Path) -> Path:
    """Write verdicts, one line each, whole or not at all; everything outside ASCII is escaped.

    Returns:
        the path.

    Raises:
        FileError: a node twice.
    """
    if twice := _twice(verdicts):
        raise FileError(f"nodes {twice[:5]} have several verdicts; {path} holds one a node: give each once.")
    with replacing(path) as temporary:
        temporary.write_text(verdict_lines(verdicts), encoding="ascii", newline="\n")
    return Path(path)


def verdict_lines(verdicts: Iterable[Verdict]) -> str:
    """The text of their file."""
    return "".join(_line(one) + "\n" for one in verdicts)


def _line(one: Verdict) -> str:
    score = {} if one.score is None else {"score": float(one.score)}
    return json.dumps({"node": one.node, "verdict": one.verdict, "note": one.note, **score})


def load_verdicts(path: str | Path) -> list[Verdict]:
    """Read verdicts that `save_verdicts`, a page of feature cards or a person wrote.

    Raises:
        FileError: no file there, too large, or lines that are no verdicts or of a node that had one, all told at once.
    """
    path = Path(path)
    with one_error(path, "verdicts"):
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise FileError(f"{path} has {size:,} bytes; verdicts take up to {MAX_BYTES:,}: give the file of verdicts.")
        return read_verdicts(path.read_bytes(), str(path))


def read_verdicts(data: bytes, where: str) -> list[Verdict]:
    """The verdicts of a file's bytes; `where` names it in errors. Empty lines, a byte order mark and CRLF are allowed.

    Raises:
        FileError: as `load_verdicts`.
    """
    found: dict[str, tuple[int, Verdict]] = {}
    faults: list[str] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            one = _verdict(line)
        except (ValueError, RecursionError) as error:
            faults.append(f"line {number}: {error}")
            continue
        earlier, _ = found.setdefault(one.node, (number, one))
        if earlier != number:
            faults.append(f"line {number}: {one.node!r:.80} has a verdict in line {earlier}")
    if faults:
        more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        raise FileError(f"{where}: {'; '.join(faults[:MOST_FAULTS])}{more}. Needed: {LAYOUT}; mend these lines.")
    return [one for _, one in found.values()]


def _verdict(line: bytes) -> Verdict:
    """One line's verdict; ValueError says what is wrong with it."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text; save the file as UTF-8") from None
    try:
        given = json.loads(text, parse_int=float, parse_constant=_refuse, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg} at character {error.pos + 1})") from None
    if not isinstance(given, dict):
        raise ValueError(f"{text.strip()!r:.40} is no JSON object")
    if wrong := _wrong(given):
        raise ValueError(", ".join(wrong))
    return Verdict(**given)


def _wrong(given: dict[str, Any]) -> list[str]:
    """What is wrong with a line's entries."""
    fields = ("node", "verdict", "note", "score")
    wrong = [f"unknown entry {name!r:.40}{nearest(name, fields)}" for name in given if name not in fields]
    wrong += [f"no {name!r}" for name in ("node", "verdict") if name not in given]
    wrong += [f"{name} is {given[name]!r:.40}, not text" for name in ("node", "note") if not _is_text(given, name)]
    word, score = given.get("verdict"), given.get("score")
    if word is not None and word not in WORDS:
        wrong.append(f"verdict is {word!r:.40}{nearest(str(word), WORDS, 1)}")
    if score is not None and not (isinstance(score, float) and math.isfinite(score)):
        wrong.append(f"score is {score!r:.40}, not a finite number")
    return wrong


def _is_text(given: dict[str, Any], name: str) -> bool:
    return isinstance(given.get(name, ""), str)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's entries; a second one of the same name would silently win."""
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"entries {twice} stand there twice")
    return dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
