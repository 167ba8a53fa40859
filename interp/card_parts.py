"""What a feature card says, worked out from a feature's values at every token: pure functions of these columns."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from interp.cards import Context, TokenValue
from interp.tokens import Prompts

BINS = 16  # of a card's histogram
Namer = Callable[[int], str]  # a token's text by its id


@dataclass(frozen=True, eq=False)
class Seen:
    """The wanted features of one featurizer at every token that counts, prompt after prompt."""

    prompt: Int[np.ndarray, " token"]
    pos: Int[np.ndarray, " token"]
    ids: Int[np.ndarray, " token"]
    values: Float[np.ndarray, "token unit"]

    @cached_property
    def kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The different token ids, which of them each token is, and how often each occurs."""
        return np.unique(self.ids, return_inverse=True, return_counts=True)


def statistics(values: Float[np.ndarray, " token"]) -> dict[str, Any]:
    """How a feature is distributed over the tokens."""
    wide = values.astype(float)
    active = wide[wide != 0]
    counts, edges = np.histogram(active, BINS) if len(active) else (active, active)
    share = len(active) / len(wide)
    return {
        "n_tokens": len(wide), "density": share, "max": plain(values.max()), "mean": float(wide.mean()),
        "edges": tuple(map(float, edges)), "counts": tuple(map(int, counts)),
    }  # fmt: skip


def contexts(seen: Seen, column: int, prompts: Prompts, top: int, window: int, name: Namer) -> tuple[Context, ...]:
    """Where a feature is largest, one context a prompt."""
    values = seen.values[:, column]
    starts = np.flatnonzero(np.diff(seen.prompt, prepend=-1))
    ends = np.append(starts[1:], len(values))
    peaks = np.maximum.reduceat(values, starts)
    order = [place for place in np.argsort(-peaks, kind="stable")[:top] if peaks[place] != 0]
    return tuple(_context(seen, values, slice(starts[at], ends[at]), prompts, window, name) for at in order)


def _context(
    seen: Seen, values: Float[np.ndarray, " token"], own: slice, prompts: Prompts, window: int, name: Namer
) -> Context:
    """The window around the maximum of one prompt, whose counted tokens are `own`."""
    prompt, first = int(seen.prompt[own.start]), int(seen.pos[own.start])
    position = first + int(values[own].argmax())
    shown = range(max(0, position - window), min(int(prompts.lengths[prompt]), position + window + 1))
    ids = prompts.ids[prompt, shown.start : shown.stop].tolist()
    activations = (plain(values[own.start + pos - first]) if pos >= first else None for pos in shown)
    return Context(prompt, shown.start, position, tuple(map(name, ids)), tuple(activations))


def top_tokens(seen: Seen, column: int, tokens: int, at_least: int, name: Namer) -> tuple[TokenValue, ...]:
    """The tokens at which a feature is largest on average, those at which it is always 0 left out."""
    ids, which, counts = seen.kinds
    means = np.bincount(which, seen.values[:, column], len(ids)) / counts
    often = np.flatnonzero((counts >= at_least) & (means != 0))
    best = often[np.argsort(-means[often], kind="stable")[:tokens]]
    return tuple(TokenValue(name(int(ids[one])), float(means[one]), int(counts[one])) for one in best)


def plain(value: np.floating) -> float:
    """The shortest number that is this float32: a card's file holds thousands."""
    return float(str(value))
