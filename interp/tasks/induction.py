"""Induction: random tokens, then the same again; the second half can be copied from the first.

Every position of the second half is scored: it predicts the token that followed its own token before. In the corrupted
prompt the first half is drawn anew, so that there is nothing to copy. Only ids to draw from are needed.
"""

from typing import Any

import torch
from torch import Tensor

from interp.errors import OptionError
from interp.metrics import Answers, NegNLL
from interp.tasks.base import Task
from interp.tokens import from_ids, tokenizer_fingerprint


def induction(
    tokenizer: Any = None, *, vocab_size: int | None = None, n: int = 100, seed: int = 0, length: int = 16
) -> Task:
    """Induction on random tokens: mean log-probability of the repeated tokens.

    Args:
        tokenizer: its ids are drawn, special ones left out, after the BOS token where it adds one; or None.
        vocab_size: without a tokenizer: ids from 0 to vocab_size - 1 are drawn.
        n: number of prompts.
        seed: of a generator of its own.
        length: number of tokens, all different, that are repeated.

    Raises:
        OptionError: neither or both sources of ids, no prompts, or a length that does not fit the number of ids.
    """
    repeated, fresh = _draw(tokenizer, vocab_size, n, seed, length)
    added = [] if tokenizer is None else tokenizer("")["input_ids"][:1]
    lead = [i for i in added if i == tokenizer.bos_token_id]
    bos = torch.tensor([lead] * n, dtype=torch.long)
    clean, corrupted = (
        from_ids(torch.cat([bos, first, repeated[:, :-1]], 1), tokenizer=tokenizer) for first in (repeated, fresh)
    )
    half, end = len(lead) + length, len(lead) + 2 * length - 2
    positions = torch.arange(half, end + 1).expand(n, -1)
    roles = {"first_half": range(len(lead), half), "second_half": range(half, end + 1), "end": [end]}
    return Task(
        "induction",
        clean,
        Answers(positions, repeated[:, 1:, None], torch.empty(n, length - 1, 0, dtype=torch.long)),
        NegNLL(),
        corrupted,
        roles={role: (tuple(where),) * n for role, where in roles.items()},
        parameters={"seed": seed, "length": length, "vocab_size": vocab_size},
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
    )


def _draw(tokenizer: Any, vocab_size: int | None, n: int, seed: int, length: int) -> tuple[Tensor, Tensor]:
    """Ids to repeat and ids to put in their place, [n, length] each, all different within a row."""
    if (tokenizer is None) == (vocab_size is None):
        raise OptionError("induction draws from a tokenizer's ids or from vocab_size of them; give one of the two.")
    special = [] if tokenizer is None else tokenizer.all_special_ids
    pool = torch.tensor([i for i in range(vocab_size or len(tokenizer)) if i not in special])
    if n < 1 or not 2 <= length <= len(pool) // 2:
        raise OptionError(
            f"induction with n={n}, length={length}; n must be at least 1 and length from 2 to {len(pool) // 2}, half "
            "of the number of ids."
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([pool[torch.randperm(len(pool), generator=generator)[: 2 * length]] for _ in range(n)])
    return drawn[:, :length], drawn[:, length:]
