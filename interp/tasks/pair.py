"""One prompt pair from strings to token ids, or everything that is wrong with it.

1. Tokenise clean and corrupted; they must differ and have the same number of tokens.
2. Tokenise each answer *after* its prompt: prompt + answer must begin with the prompt's own tokens (no merging), and
   what is left must be one token, unless the caller says what to do with several.
3. Turn each role's characters into token positions, the same ones in both prompts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from interp.errors import PromptError
from interp.tasks.base import Positions
from interp.tokens import Message, token_strings, tokenize

Text = str | Sequence[Message]
Answer = str | int
Span = tuple[int, int]
MultiToken = Literal["error", "first", "sequence"]

# Kinds of fault and their cures.
CURES = {
    "prompt": "change the prompt's text",
    "unknown words": "use words of this tokenizer's vocabulary",
    "closed prompt": "switch off the tokenizer's end-of-text token, or use one without",
    "identical prompts": "let the corrupted prompt differ from the clean one",
    "unequal lengths": "reword the pair so that both prompts have the same number of tokens",
    "misaligned roles": "reword the pair so that each role has the same token positions in both prompts",
    "role": "give words that occur once in the prompt, or their character span (start, end)",
    "answers": "give at least one correct answer, and wrong ones where the metric compares",
    "merging answer": "end the prompt without a space and begin the answer with one, or pass the answer's token id",
    "several tokens": "choose multi_token='first' or 'sequence', pass a token id, or take another answer",
    "same answer": "let no token be both correct and wrong",
}


@dataclass(frozen=True)
class Pair:
    """A prompt and its corrupted counterpart, before tokenisation.

    Args:
        clean: text, or chat messages for the tokenizer's template.
        answer: what continues `clean` rightly, with its leading space (" Mary"), as text or token id; or several.
        wrong: what it is compared with, likewise; may be empty.
        corrupted: like `clean`; None for tasks without.
        roles: position sets: words that occur once in the text, or character spans (start, end); with chat messages
            both refer to the text that the template makes of them.
        corrupted_roles: spans of the same roles in `corrupted`; their positions are checked to be the same.
        groups: properties to split by, such as ``{"template": "3", "entity": "Mary|John"}``.
    """

    clean: Text
    answer: Answer | Sequence[Answer]
    wrong: Answer | Sequence[Answer] = ()
    corrupted: Text | None = None
    roles: Mapping[str, str | Sequence[Span]] = field(default_factory=dict)
    corrupted_roles: Mapping[str, str | Sequence[Span]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)


class Fault(NamedTuple):
    """What is wrong with a pair: a key of `CURES`, and the details with tokens shown."""

    kind: str
    text: str


class Encoded(NamedTuple):
    """A prompt as the tokenizer reads it: text, token ids, and whether special tokens already are in the text."""

    text: str
    ids: list[int]
    chat: bool


@dataclass(frozen=True)
class Row:
    """A pair in token ids, with the sets of correct and of wrong ids at each scored position."""

    clean: Encoded
    corrupted: Encoded | None
    positions: list[int]
    correct: list[list[int]]
    wrong: list[list[int]]
    roles: dict[str, Positions]
    groups: Mapping[str, str]


def read_pair(pair: Pair, tokenizer: Any, multi_token: MultiToken) -> Row | list[Fault]:
    """The pair in token ids, or all that is wrong with it.

    Args:
        multi_token: what an answer of several tokens is: a fault; its first piece; or all its pieces, both prompts
            being extended by the answer (one correct answer then, and the wrong ones are left out).
    """
    faults: list[Fault] = []
    clean = encode(tokenizer, pair.clean, "clean prompt", faults)
    corrupted = None if pair.corrupted is None else encode(tokenizer, pair.corrupted, "corrupted prompt", faults)
    if clean is None:
        return faults
    whole = multi_token == "sequence"
    correct = [answer_ids(tokenizer, clean, answer, multi_token, faults) for answer in _listed(pair.answer)]
    wrong_answers = [] if whole else _listed(pair.wrong)
    wrong = [answer_ids(tokenizer, clean, answer, multi_token, faults) for answer in wrong_answers]
    _check_answers(tokenizer, correct, wrong, whole, faults)
    roles = role_positions(tokenizer, clean, pair.roles, faults)
    if corrupted is not None:
        others = role_positions(tokenizer, corrupted, pair.corrupted_roles, faults)
        _compare(tokenizer, clean, corrupted, roles, others, faults)
    if faults:
        return faults
    roles["end"] = (len(clean.ids) - 1,)
    targets = [[piece] for piece in correct[0]] if whole else [[ids[0] for ids in correct]]
    given = correct[0][:-1] if whole else []
    return Row(
        clean=clean._replace(ids=clean.ids + given),
        corrupted=None if corrupted is None else corrupted._replace(ids=corrupted.ids + given),
        positions=[len(clean.ids) - 1 + step for step in range(len(targets))],
        correct=targets,
        wrong=[[ids[0] for ids in wrong]] * len(targets),
        roles=roles,
        groups=pair.groups,
    )


def encode(tokenizer: Any, prompt: Text, label: str, faults: list[Fault]) -> Encoded | None:
    """The prompt in token ids, or None where it has none; what is wrong is added to `faults`."""
    try:
        read = tokenize(tokenizer, [prompt])
    except PromptError as error:
        faults.append(Fault("prompt", f"{label}: {error}"))
        return None
    assert read.texts is not None, "tokenize keeps the texts"
    encoded = Encoded(read.texts[0], read.rows()[0], not isinstance(prompt, str))
    if tokenizer.unk_token_id in encoded.ids:
        faults.append(Fault("unknown words", f"{label} {encoded.text!r} is {list(read.tokens[0])}"))
    if encoded.ids[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        faults.append(Fault("closed prompt", f"{label} {encoded.text!r} ends with the token {read.tokens[0][-1]!r}"))
    return encoded


def answer_ids(
    tokenizer: Any, prompt: Encoded, answer: Answer, multi_token: MultiToken, faults: list[Fault]
) -> list[int]:
    """An answer's token ids after `prompt`, all or (for "first") one; none where a fault was added to `faults`."""
    if isinstance(answer, int):
        if 0 <= answer < len(tokenizer):
            return [answer]
        faults.append(Fault("answers", f"token id {answer} is outside the vocabulary, 0 to {len(tokenizer) - 1}"))
        return []
    ids = list(tokenizer(prompt.text + answer, add_special_tokens=not prompt.chat)["input_ids"])
    pieces = ids[len(prompt.ids) :]
    shown = token_strings(tokenizer, pieces)
    if ids[: len(prompt.ids)] != prompt.ids:
        before, after = (token_strings(tokenizer, tokens[-4:]) for tokens in (prompt.ids, ids))
        faults.append(Fault("merging answer", f"{answer!r} after ...{before} gives ...{after}"))
    elif not pieces:
        faults.append(Fault("answers", f"answer {answer!r} has no token"))
    elif tokenizer.unk_token_id in pieces:
        faults.append(Fault("unknown words", f"answer {answer!r} is {shown}"))
    elif len(pieces) > 1 and multi_token == "error":
        faults.append(Fault("several tokens", f"answer {answer!r} is {shown}"))
    else:
        return pieces[:1] if multi_token == "first" else pieces
    return []


def single_ids(tokenizer: Any, context: str, answers: Sequence[str]) -> list[int] | None:
    """The answers' token ids, if after `context` each is one token and none merges with it; else None."""
    faults: list[Fault] = []
    prompt = encode(tokenizer, context, "context", faults)
    if prompt is None:
        return None
    ids = [answer_ids(tokenizer, prompt, answer, "error", faults) for answer in answers]
    return None if faults else [each[0] for each in ids]


def _listed(answers: Answer | Sequence[Answer]) -> list[Answer]:
    return [answers] if isinstance(answers, str | int) else list(answers)


def _check_answers(
    tokenizer: Any, correct: list[list[int]], wrong: list[list[int]], whole: bool, faults: list[Fault]
) -> None:
    if not correct:
        faults.append(Fault("answers", "there is no correct answer"))
    if whole and len(correct) > 1:
        faults.append(Fault("answers", f"{len(correct)} correct answers; a whole sequence is scored for one alone"))
    both = {ids[0] for ids in correct if ids} & {ids[0] for ids in wrong if ids}
    if both:
        faults.append(Fault("same answer", f"{token_strings(tokenizer, sorted(both))} is both correct and wrong"))


def _compare(
    tokenizer: Any,
    clean: Encoded,
    corrupted: Encoded,
    roles: Mapping[str, Positions],
    corrupted_roles: Mapping[str, Positions],
    faults: list[Fault],
) -> None:
    """Clean and corrupted must differ, have equally many tokens, and the roles at the same positions."""
    if clean.ids == corrupted.ids:
        faults.append(Fault("identical prompts", f"clean and corrupted are both {clean.text!r}"))
    shown = [f"{len(ids)} {token_strings(tokenizer, ids)}" for ids in (clean.ids, corrupted.ids)]
    if len(clean.ids) != len(corrupted.ids):
        faults.append(Fault("unequal lengths", f"clean {shown[0]}, corrupted {shown[1]}"))
        return
    moved = [role for role, where in corrupted_roles.items() if where != roles.get(role, where)]
    places = "; ".join(f"{role!r} at {roles[role]} and {corrupted_roles[role]}" for role in moved)
    if moved:
        faults.append(Fault("misaligned roles", f"{places} of clean {shown[0]}, corrupted {shown[1]}"))


def role_positions(
    tokenizer: Any, prompt: Encoded, roles: Mapping[str, str | Sequence[Span]], faults: list[Fault]
) -> dict[str, Positions]:
    """Positions of the tokens that overlap each role's characters."""
    tokens = _token_spans(tokenizer, prompt) if roles else []
    found = {}
    for role, where in roles.items():
        spans = _occurrences(prompt.text, where) if isinstance(where, str) else list(where)
        overlaps = [any(begin < stop and start < end for start, stop in spans) for begin, end in tokens]
        found[role] = tuple(position for position, overlap in enumerate(overlaps) if overlap)
        if isinstance(where, str) and len(spans) != 1:
            faults.append(Fault("role", f"{role!r}: {where!r} occurs {len(spans)} times in {prompt.text!r}"))
        elif not found[role]:
            faults.append(Fault("role", f"{role!r} at characters {spans} covers no token of {prompt.text!r}"))
    return found


def _occurrences(text: str, words: str) -> list[Span]:
    return [match.span() for match in re.finditer(re.escape(words), text)] if words else []


def _token_spans(tokenizer: Any, prompt: Encoded) -> list[Span]:
    """Each token's characters (start, end) in the text; special tokens that were added have none."""
    if tokenizer.is_fast:
        read = tokenizer(prompt.text, add_special_tokens=not prompt.chat, return_offsets_mapping=True)
        return [(start, end) for start, end in read["offset_mapping"]]
    spans, cursor = [], 0
    for token in token_strings(tokenizer, prompt.ids):
        start = prompt.text.find(token.strip(), cursor)
        cursor = max(cursor, start + len(token.strip()))
        spans.append((start, cursor) if start >= 0 else (cursor, cursor))
    return spans
