"""Contexts: pieces of running text as prompts, for harvesting activations, feature cards and clusters."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from interp.errors import OptionError, PromptError
from interp.tokens import Prompts, from_ids


def contexts(
    tokenizer: Any,
    texts: Iterable[str],
    *,
    length: int = 128,
    shortest: int | None = None,
    tokens: int | None = None,
    one_a_text: bool = False,
    seed: int = 0,
) -> Prompts:
    """Texts cut into pieces of `length` tokens, in random order across texts; tokens are not turned back into strings.

    Args:
        shortest: pieces of fewer tokens (the rests of texts) are left out; `length` when None.
        tokens: stop once this many tokens are reached; all when None.
        one_a_text: only the first piece of each text.
        seed: of the order.

    Raises:
        OptionError: a length or number of tokens below 1.
        PromptError: no text has a piece that is long enough.
    """
    shortest = length if shortest is None else shortest
    if not 1 <= shortest <= length or (tokens is not None and tokens < 1):
        raise OptionError(
            f"length={length}, shortest={shortest}, tokens={tokens}; allowed: 1 <= shortest <= length, tokens from 1."
        )
    pieces = [piece for text in texts if text for piece in _pieces(tokenizer, text, length, shortest, one_a_text)]
    if not pieces:
        raise PromptError(f"no text has {shortest} tokens or more; give longer texts or a smaller length.")
    order = np.random.default_rng(seed).permutation(len(pieces))
    if tokens is not None:
        reached = np.cumsum([len(pieces[place]) for place in order])
        order = order[: int(np.searchsorted(reached, tokens)) + 1]
    return from_ids([pieces[place] for place in order])


def _pieces(tokenizer: Any, text: str, length: int, shortest: int, one_a_text: bool) -> list[list[int]]:
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    cut = [ids[start : start + length] for start in range(0, length if one_a_text else len(ids), length)]
    return [piece for piece in cut if len(piece) >= shortest]
