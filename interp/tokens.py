"""Prompts as token ids, always with their mask and positions, so that padding cannot change a result.

One layout everywhere: rows are padded on the right, and a position counts from a prompt's first real token.
A left-padded tensor with its attention mask is accepted and brought into this layout.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import PromptError

Message = dict[str, str]


def batches(count: int, size: int) -> Iterator[list[int]]:
    """The row numbers of `count` prompts, at most `size` at a time."""
    for start in range(0, count, size):
        yield list(range(start, min(start + size, count)))


def by_length(prompts: "Prompts") -> list[list[int]]:
    """The row numbers of the prompts, those of one length together."""
    groups: dict[int, list[int]] = defaultdict(list)
    for row, length in enumerate(prompts.lengths.tolist()):
        groups[length].append(row)
    return list(groups.values())


def row_numbers(rows: int | slice | Sequence[int], count: int) -> list[int]:
    """The row numbers that an index into `count` prompts means; one number keeps the batch axis.

    Raises:
        PromptError: rows given as true and false.
    """
    if isinstance(rows, slice):
        return list(range(count))[rows]
    listed = [rows] if isinstance(rows, Integral) else list(rows)  # type: ignore[arg-type]
    if any("bool" in str(getattr(row, "dtype", type(row))) for row in listed):
        raise PromptError("rows are given as true and false; give their numbers, such as mask.nonzero()[:, 0].")
    return [int(row) for row in listed]


@dataclass(frozen=True, eq=False)
class Prompts:
    """A batch of tokenised prompts.

    Args:
        ids: token ids, rows padded on the right (the padding's value never matters).
        lengths: number of real tokens of each row, at least 1.
        texts: the strings they came from, or None when they came as ids.
        tokens: each row's tokens as strings, without padding; empty when no tokenizer was at hand.
    """

    ids: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, " batch"]
    texts: tuple[str, ...] | None = None
    tokens: tuple[tuple[str, ...], ...] = ()

    def __len__(self) -> int:
        return self.ids.shape[0]

    def __iter__(self) -> "Iterator[Prompts]":
        return (self[i] for i in range(len(self)))

    def __getitem__(self, rows: int | slice | Sequence[int]) -> "Prompts":
        """The chosen rows as prompts of their own, cut to their longest row."""
        picked = row_numbers(rows, len(self))
        lengths = self.lengths[picked]
        width = int(lengths.max()) if picked else 0
        return Prompts(
            self.ids[picked, :width],
            lengths,
            None if self.texts is None else tuple(self.texts[r] for r in picked),
            tuple(self.tokens[r] for r in picked) if self.tokens else (),
        )

    @property
    def mask(self) -> Bool[Tensor, "batch pos"]:
        """True at real tokens."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]

    @property
    def position_ids(self) -> Int[Tensor, "batch pos"]:
        """0, 1, 2, ... on every row; padding goes on counting and is masked."""
        return torch.arange(self.ids.shape[1], device=self.ids.device).expand(len(self), -1)

    @property
    def last(self) -> Int[Tensor, " batch"]:
        """Position of each row's last real token."""
        return self.lengths - 1

    def rows(self) -> list[list[int]]:
        """Each row's real token ids, as lists."""
        return [row[:n].tolist() for row, n in zip(self.ids, self.lengths, strict=True)]

    def to(self, device: torch.device) -> "Prompts":
        """The same prompts on `device`."""
        return Prompts(self.ids.to(device), self.lengths.to(device), self.texts, self.tokens)


def from_ids(
    rows: Sequence[int] | Sequence[Sequence[int]] | Tensor, attention_mask: Tensor | None = None, tokenizer: Any = None
) -> Prompts:
    """Prompts from token ids: lists of unequal length, or a padded tensor with its mask (either side).

    Raises:
        PromptError: an empty row, a mask that is not one run of ones a row, or a shape that does not fit.
    """
    if isinstance(rows, Tensor):
        lists = _unpad(rows, attention_mask)
    elif attention_mask is not None:
        raise PromptError("an attention mask goes with a padded tensor; lists of ids carry their own lengths.")
    else:
        lists = [list(row) for row in ([rows] if rows and isinstance(rows[0], int) else rows)]  # type: ignore[arg-type]
    empty = [i for i, row in enumerate(lists) if not row]
    if empty or not lists:
        raise PromptError(f"prompts without a token: rows {empty if lists else 'none given'}; each needs at least one.")
    width = max(map(len, lists))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in lists], dtype=torch.long)
    tokens = tuple(tuple(token_strings(tokenizer, row)) for row in lists) if tokenizer is not None else ()
    return Prompts(ids, torch.tensor([len(row) for row in lists]), None, tokens)


def shortened(prompts: Prompts, length: int) -> Prompts:
    """The prompts, those longer than `length` tokens cut there."""
    if not len(prompts) or int(prompts.lengths.max()) <= length:
        return prompts
    tokens = tuple(row[:length] for row in prompts.tokens)
    return Prompts(prompts.ids[:, :length], prompts.lengths.clamp(max=length), prompts.texts, tokens)


def _unpad(ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Rows of a padded tensor without their padding."""
    if ids.ndim == 1:
        ids, mask = ids[None], mask if mask is None else mask[None]
    if ids.ndim != 2 or ids.is_floating_point():
        raise PromptError(f"token ids must be integers [batch, pos]; got {ids.dtype} {tuple(ids.shape)}.")
    if mask is None:
        return ids.tolist()
    if mask.shape != ids.shape:
        raise PromptError(f"attention mask is {tuple(mask.shape)}, token ids are {tuple(ids.shape)}; they must agree.")
    real = mask.bool()
    changes = (real[:, 1:] != real[:, :-1]).sum(1) + real[:, 0].logical_not() + real[:, -1].logical_not()
    broken = [i for i in range(len(real)) if int(changes[i]) > 2 or (int(real[i].sum()) > 0 and _has_hole(real[i]))]
    if broken:
        raise PromptError(f"attention mask of rows {broken} has holes; only padding at an end is allowed.")
    return [row[keep].tolist() for row, keep in zip(ids, real, strict=True)]


def _has_hole(real: Tensor) -> bool:
    where = real.nonzero()[:, 0]
    return int(where[-1] - where[0]) + 1 != len(where)


def tokenize(tokenizer: Any, prompts: str | Sequence[str | Message | Sequence[Message]]) -> Prompts:
    """Prompts from texts, or from chats (lists of messages) through the tokenizer's own template.

    A string becomes exactly ``tokenizer(text)``: no special token is added or taken away here, and the
    tokenizer's padding settings are neither used nor changed.

    Raises:
        PromptError: no tokenizer, an empty text, a doubled BOS token; all faulty prompts are named together.
    """
    texts: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    if not texts:
        raise PromptError("no prompts were given; pass at least one text.")
    if tokenizer is None:
        raise PromptError("a prompt given as text needs a tokenizer; this model has none: pass token ids instead.")
    if isinstance(texts[0], dict):  # one chat
        texts = [texts]
    rows, shown, faults = [], [], []
    for i, text in enumerate(texts):
        if isinstance(text, str):
            row = list(tokenizer(text)["input_ids"])
        else:
            rendered = tokenizer.apply_chat_template(list(text), tokenize=False, add_generation_prompt=True)
            row = list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
            text = rendered
        rows.append(row)
        shown.append(text)
        bos = getattr(tokenizer, "bos_token_id", None)
        if not row:
            faults.append(f"prompt {i} {text!r} has no token")
        elif bos is not None and row[:2] == [bos, bos]:
            faults.append(f"prompt {i} {text!r} begins with two BOS tokens (ids {row[:4]}...): the tokenizer adds one")
    if faults:
        raise PromptError("; ".join(faults) + ". Remove the BOS from the text, or pass ids.")
    made = from_ids(rows, tokenizer=tokenizer)
    return Prompts(made.ids, made.lengths, tuple(shown), made.tokens)


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Each id as the text it stands for, with its leading space."""
    return [tokenizer.decode([int(i)], clean_up_tokenization_spaces=False) for i in ids]


def gap_between(tokenizer: Any, ids: Sequence[int]) -> str:
    """What stands between tokens in running text: nothing where they carry their own spaces, as most tokenizers' do; a
    space where decoding `ids` as a whole gives more than token by token, and without a tokenizer."""
    if tokenizer is None:
        return " "
    joined = tokenizer.decode(list(map(int, ids)), clean_up_tokenization_spaces=False)
    return " " if len(joined) > sum(map(len, token_strings(tokenizer, ids))) else ""


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Sixteen hex digits that change when the vocabulary or the special tokens do; '' without a tokenizer."""
    if tokenizer is None:
        return ""
    digest = hashlib.sha256()
    for word, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        digest.update(f"{index}\t{word}\n".encode())
    digest.update(repr((tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)).encode())
    return digest.hexdigest()[:16]
