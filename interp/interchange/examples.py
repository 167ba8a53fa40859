"""Counterfactual examples: two prompts, and what the model should say of the base one after an interchange.

An example takes the value of one `concept` from the source prompt into the run of the base prompt. Where the base
prompt asks for that very concept (*cause*) the source's answer should follow; where it asks for another (*isolate*) the
base's own answer should stay.

Prompts are kept once each, however many examples use them, so that their states need be computed once. A base prompt is
kept together with all but the last token of the answer that is asked for (the answer is read off token by token,
each after the right ones); what is causal does not change by it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.errors import OptionError, TaskError, nearest
from interp.tasks.base import Positions
from interp.tokens import Prompts, row_numbers


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Examples of interchange interventions, in columns.

    Args:
        name: of the data.
        prompts: every different row that examples use: prompts, and prompts with an answer without its last token.
        lengths: tokens of each row's prompt, without what follows of an answer.
        base, source: rows of `prompts`, one an example; sources have nothing after the prompt.
        answers: token ids that should follow the base prompt once the concept was taken from the source.
        concepts: what is taken from the source.
        queried: what the base prompt asks for.
        roles: named position sets of each row, from the first real token, such as `entity` or `last_entity`.
        groups: named properties of each row, such as `entity` and `template`.
        tokenizer_fingerprint: of the tokenizer whose ids these are.
        parameters: how they were built, as JSON values.

    Raises:
        TaskError: parts that do not fit each other, all named together.
    """

    name: str
    prompts: Prompts
    lengths: tuple[int, ...]
    base: Int[np.ndarray, " example"]
    source: Int[np.ndarray, " example"]
    answers: tuple[tuple[int, ...], ...]
    concepts: tuple[str, ...]
    queried: tuple[str, ...]
    roles: Mapping[str, tuple[Positions, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer_fingerprint: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if faults := self._misfits():
            raise TaskError(f"counterfactuals {self.name!r} do not fit together: {'; '.join(faults)}.")

    def _misfits(self) -> list[str]:
        count, rows = len(self.base), len(self.prompts)
        faults = [
            f"{len(column)} {what} for {count} examples"
            for what, column in (("sources", self.source), ("answers", self.answers), ("concepts", self.concepts),
                                 ("queried", self.queried))
            if len(column) != count
        ]  # fmt: skip
        faults += [
            f"{len(column)} {what} for {rows} prompts"
            for what, column in [("lengths", self.lengths), *self.roles.items(), *self.groups.items()]
            if len(column) != rows
        ]
        outside = [int(row) for row in (*self.base, *self.source) if not 0 <= row < rows]
        if outside:
            faults.append(f"rows {outside[:5]} of {rows} prompts")
        if faults:
            return faults
        whole = self.prompts.lengths.tolist()
        odd = [n for n in range(count) if whole[self.base[n]] != self.lengths[self.base[n]] + len(self.answers[n]) - 1]
        odd += [n for n in range(count) if whole[self.source[n]] != self.lengths[self.source[n]]]
        if odd:
            faults.append(f"examples {odd[:5]}: the base row must be prompt + answer[:-1], the source row a prompt")
        beyond = [role for role, where in self.roles.items() for row, positions in enumerate(where)
                  if any(not 0 <= p < self.lengths[row] for p in positions)]  # fmt: skip
        return faults + ([f"roles {sorted({*beyond})} lie outside their prompts"] if beyond else [])

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: int | slice | Sequence[int]) -> "Counterfactuals":
        """The chosen examples; the prompts stay as they are, so that states computed for them still serve."""
        picked = row_numbers(rows, len(self))
        return replace(
            self, base=self.base[picked], source=self.source[picked],
            answers=tuple(self.answers[n] for n in picked), concepts=tuple(self.concepts[n] for n in picked),
            queried=tuple(self.queried[n] for n in picked),
        )  # fmt: skip

    @property
    def causes(self) -> Bool[np.ndarray, " example"]:
        """Where the base prompt asks for the concept that is taken from the source."""
        return np.array([one == asked for one, asked in zip(self.concepts, self.queried, strict=True)], dtype=bool)

    @property
    def concept_names(self) -> tuple[str, ...]:
        """The concepts, each once."""
        return tuple(dict.fromkeys(self.concepts))

    def about(self, concept: str) -> "Counterfactuals":
        """The examples of one concept.

        Raises:
            OptionError: none has it.
        """
        rows = [n for n, one in enumerate(self.concepts) if one == concept]
        if not rows:
            known = self.concept_names
            raise OptionError(f"no concept {concept!r}; allowed: {', '.join(known)}{nearest(concept, known)}.")
        return self[rows]

    def positions(self, role: str, rows: Sequence[int]) -> list[Positions]:
        """Positions of a role in some rows of `prompts`.

        Raises:
            OptionError: a role that the data lack, or that is empty in one of the rows.
        """
        if role not in self.roles:
            raise OptionError(f"no role {role!r}; allowed: {', '.join(self.roles)}{nearest(role, self.roles)}.")
        found = [self.roles[role][row] for row in rows]
        if not all(found):
            raise OptionError(f"role {role!r} is empty in row {rows[found.index(())]} of the prompts; use another.")
        return found

    def __repr__(self) -> str:
        kinds = Counter(zip(self.concepts, self.causes.tolist(), strict=True))
        parts = [f"{one}: {kinds[one, True]} cause, {kinds[one, False]} isolate" for one in self.concept_names]
        return f"Counterfactuals({self.name!r}, {len(self)} examples over {len(self.prompts)} rows; {'; '.join(parts)})"


@dataclass(frozen=True, eq=False)
class Batch:
    """Some examples as tensors, on the model's device.

    Attributes:
        data: the examples.
        base, source: rows of ``data.prompts``.
        base_real, source_real: which columns hold tokens of the prompt (of base rows without the answer's): these may
            be read, and intervened on.
        ids: answers, -1 where absent.
        at: base positions whose logits give the answers, -1 where absent.
    """

    data: Counterfactuals
    base: Int[Tensor, " example"]
    source: Int[Tensor, " example"]
    base_real: Bool[Tensor, "example base"]
    source_real: Bool[Tensor, "example source"]
    ids: Int[Tensor, "example target"]
    at: Int[Tensor, "example target"]

    def __len__(self) -> int:
        return len(self.base)

    @property
    def width(self) -> int:
        """Columns of the base rows: the longest prompt with its answer."""
        return int(self.data.prompts.lengths[self.base.cpu()].max())


def batch_of(data: Counterfactuals, rows: Sequence[int], device: torch.device) -> Batch:
    """The chosen examples as tensors."""
    some = data[rows]
    lengths = torch.tensor(some.lengths)
    base, source = torch.from_numpy(some.base), torch.from_numpy(some.source)
    ids = pad_sequence([torch.tensor(one) for one in some.answers], batch_first=True, padding_value=-1)
    at = torch.where(ids >= 0, lengths[base][:, None] - 1 + torch.arange(ids.shape[1]), -1)
    real = [torch.arange(int(lengths[r].max())) < lengths[r][:, None] for r in (base, source)]
    width = int(some.prompts.lengths[base].max())
    real[0] = torch.nn.functional.pad(real[0], (0, width - real[0].shape[1]))
    return Batch(some, *(x.to(device) for x in (base, source, *real, ids, at)))


def checked_sets(
    data: Mapping[str, Counterfactuals], needed: str | None = None
) -> tuple[Counterfactuals, Counterfactuals]:
    """The training and the test set, once all are known to share their prompts.

    Args:
        needed: a further set that must be there.

    Raises:
        TaskError: a set that is missing, or over other prompts.
    """
    missing = [name for name in ("train", "test", needed) if name is not None and name not in data]
    if missing:
        raise TaskError(f"the data have no {', '.join(missing)}; there are: {', '.join(data) or 'none'}.")
    train, test = data["train"], data["test"]
    other = [name for name, one in data.items() if one.prompts is not test.prompts]
    if other:
        raise TaskError(f"sets {', '.join(other)} are over other prompts than the test set; build all sets together.")
    lost = [one for one in test.concept_names if one not in train.concepts]
    if lost:
        raise TaskError(f"concepts {', '.join(lost)} of the test set are not in the training set.")
    return train, test


def rows_of(sets: Sequence[Counterfactuals]) -> list[int]:
    """Rows of the prompts that some sets use."""
    return sorted({int(row) for one in sets for row in (*one.base, *one.source)})
