"""From prompts in words to `Counterfactuals`, for the tokenizer at hand; all faults are told together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from interp.errors import PromptError
from interp.interchange.examples import Counterfactuals
from interp.tasks.base import Positions
from interp.tasks.pair import Encoded, Fault, Span, answer_ids, encode, role_positions
from interp.tokens import Prompts, from_ids, tokenizer_fingerprint

SHOWN = 5
"""Faults that a message shows."""


@dataclass(frozen=True)
class Prompt:
    """A prompt in words.

    Args:
        text: the prompt, which an answer continues.
        answer: what the model says after it, as text with its leading space where it has one.
        queried: what it asks for.
        roles: position sets: character spans.
        groups: properties, such as ``{"entity": "Paris", "template": "..."}``; the same ones in every prompt.
    """

    text: str
    answer: str
    queried: str
    roles: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """An interchange: the concept's value goes from `source` into `base`, and `answer` should follow."""

    base: Prompt
    source: Prompt
    concept: str
    answer: str


class CounterfactualBuilder:
    """Collects examples, and the rows that they share.

    Args:
        tokenizer: of the model that they are for.
        longest: tokens of an answer that count; what comes after is left out.
    """

    def __init__(self, tokenizer: Any, longest: int = 3) -> None:
        self.tokenizer, self.longest = tokenizer, longest
        self._encoded: dict[str, Encoded | None] = {}
        self._rows: dict[tuple[str, tuple[int, ...]], int] = {}
        self._prompts: list[Prompt] = []
        self._ids: list[list[int]] = []
        self._lengths: list[int] = []
        self._roles: list[dict[str, Positions]] = []
        self.faults: list[Fault] = []

    def answer(self, prompt: Prompt, answer: str) -> tuple[int, ...]:
        """An answer's first token ids after the prompt; empty where a fault was noted."""
        encoded = self._read(prompt)
        if encoded is None:
            return ()
        return tuple(answer_ids(self.tokenizer, encoded, answer, "sequence", self.faults)[: self.longest])

    def row(self, prompt: Prompt, after: Sequence[int] = ()) -> int:
        """The number of the row that holds the prompt and `after` it; it is made where it is new."""
        key = (prompt.text, tuple(after))
        if key not in self._rows:
            encoded = self._read(prompt)
            ids = [] if encoded is None else encoded.ids
            found = {} if encoded is None else role_positions(self.tokenizer, encoded, prompt.roles, self.faults)
            self._rows[key] = len(self._ids)
            self._prompts.append(prompt)
            self._ids.append([*ids, *after])
            self._lengths.append(len(ids))
            self._roles.append(_with_ends(found, len(ids)))
        return self._rows[key]

    def _read(self, prompt: Prompt) -> Encoded | None:
        if prompt.text not in self._encoded:
            self._encoded[prompt.text] = encode(self.tokenizer, prompt.text, "prompt", self.faults)
        return self._encoded[prompt.text]

    def prompts(self) -> Prompts:
        """All rows so far."""
        made = from_ids(self._ids, tokenizer=self.tokenizer)
        return Prompts(made.ids, made.lengths, tuple(one.text for one in self._prompts), made.tokens)

    def build(self, name: str, sets: Mapping[str, Iterable[Example]], **parameters: Any) -> dict[str, Counterfactuals]:
        """`Counterfactuals` over the same prompts, one a set of examples.

        Raises:
            PromptError: faulty prompts or answers, all of them.
        """
        columns: dict[str, list[tuple[int, int, tuple[int, ...], str, str]]] = {}
        for key, examples in sets.items():
            columns[key] = []
            for one in examples:
                ids = self.answer(one.base, one.answer)
                base, source = self.row(one.base, ids[:-1]), self.row(one.source)
                columns[key].append((base, source, ids, one.concept, one.base.queried))
        if self.faults:
            shown = "; ".join(dict.fromkeys(f"{fault.kind}: {fault.text}" for fault in self.faults[:SHOWN]))
            raise PromptError(f"counterfactuals {name!r}: {len(self.faults)} faults, such as {shown}.")
        roles = dict.fromkeys(role for row in self._roles for role in row)
        shared: dict[str, Any] = {
            "prompts": self.prompts(),
            "lengths": tuple(self._lengths),
            "roles": {role: tuple(row.get(role, ()) for row in self._roles) for role in roles},
            "groups": {key: tuple(one.groups[key] for one in self._prompts) for key in self._prompts[0].groups},
            "tokenizer_fingerprint": tokenizer_fingerprint(self.tokenizer),
        }
        return {
            key: Counterfactuals(name, **shared, parameters={**parameters, "set": key}, **_columns(rows))
            for key, rows in columns.items()
        }


def _columns(examples: Sequence[tuple[int, int, tuple[int, ...], str, str]]) -> dict[str, Any]:
    base, source, answers, concepts, queried = zip(*examples, strict=True) if examples else ((), (), (), (), ())
    rows = {"base": np.array(base, dtype=np.int64), "source": np.array(source, dtype=np.int64)}
    return {**rows, "answers": answers, "concepts": concepts, "queried": queried}


def _with_ends(roles: Mapping[str, Positions], length: int) -> dict[str, Positions]:
    """The roles, and for each of several tokens its first and last one and the token after; ``end`` of the prompt."""
    made = dict(roles)
    for name, where in roles.items():
        if where:
            after = where[-1] + 1
            made |= {f"first_{name}": where[:1], f"last_{name}": where[-1:]}
            made[f"after_{name}"] = (after,) if after < length else ()
    return made | {"end": (length - 1,)}
