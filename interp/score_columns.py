"""The columns of a circuit that per-prompt scores make: their mean, its spread over prompts, and its share of the gap.

A method that scores nodes or edges on every prompt stores, for a score called `name`: the score itself (mean over the
prompts that have the candidate), attributes ``name.low``, ``name.high`` (95 % bootstrap interval) and ``name.n``, where
clean and corrupted runs differ ``name.normalised``, and as a tensor of that name the per-prompt values.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuit import Attribute, NamedTensor, Score, ScoreHeader
from interp.recovery import bootstrap, recovery

UNITS = {"logit_diff": "logits", "logit": "logits", "logit_direction": "logits", "kl": "nats", "logprob": "nats",
         "neg_nll": "nats", "prob": "probability", "prob_diff": "probability"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Columns:
    """What a method adds to a circuit, by name; `notes` are sentences that the user should read."""

    scores: Mapping[str, Score] = field(default_factory=dict)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    tensors: Mapping[str, NamedTensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def joined(columns: Iterable[Columns]) -> Columns:
    """All columns together; of two with one name the later stays, and each note is kept once."""
    scores: dict[str, Score] = {}
    attributes: dict[str, Attribute] = {}
    tensors: dict[str, NamedTensor] = {}
    notes: dict[str, None] = {}
    for one in columns:
        scores |= one.scores
        attributes |= one.attributes
        tensors |= one.tensors
        notes |= dict.fromkeys(one.notes)
    return Columns(scores, attributes, tensors, tuple(notes))


def score_columns(
    name: str,
    header: ScoreHeader,
    scores: Float[np.ndarray, "row prompt"],
    *,
    gap: Float[Tensor, " prompt"] | None = None,
    seed: int = 0,
    intervals: bool = True,
    attributes: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
) -> Columns:
    """The columns of one score.

    Args:
        name: of the score; attributes are called ``name.key``.
        scores: per row and prompt; NaN where a prompt lacks the candidate.
        gap: metric(clean) - metric(corrupted) per prompt, or None where there is no corrupted run.
        seed: of the bootstrap.
        intervals: False leaves out low, high, n and normalised, for very many rows.
        attributes: further ones of this score, as (values, meaning).
    """
    extra, undefined = _over_prompts(scores, gap, seed) if intervals else ({}, Counter[str]())
    extra |= dict(attributes)
    return Columns(
        {name: Score(header, mean(scores))},
        {f"{name}.{key}": Attribute(header.over, values, meaning) for key, (values, meaning) in extra.items()},
        {name: NamedTensor(scores, (header.over.removesuffix("s"), "prompt"))},
        tuple(f"{name}.normalised is undefined for {n} {header.over}: {why}." for why, n in undefined.items()),
    )


def end_columns(metrics: Iterable[str], ends: Mapping[str, Float[Tensor, "metric prompt"]]) -> Columns:
    """Tensors ``clean.METRIC`` and ``corrupted.METRIC``: the metrics of the two runs between which scores lie."""
    names = list(metrics)
    return Columns(
        tensors={
            f"{end}.{name}": NamedTensor(per_prompt.numpy(), ("prompt",))
            for end, values in ends.items()
            for name, per_prompt in zip(names, values, strict=True)
        }
    )


def mean(scores: Float[np.ndarray, "*rows prompt"]) -> Float[np.ndarray, "*rows"]:
    """Mean over the prompts that have the candidate; NaN where none has."""
    count = (~np.isnan(scores)).sum(-1)
    return np.where(count > 0, np.nansum(scores, -1) / np.maximum(count, 1), np.nan)


def _over_prompts(scores: np.ndarray, gap: Tensor | None, seed: int) -> tuple[dict[str, tuple[Any, str]], Counter[str]]:
    """Spread and share of the gap of each row, over the prompts that have it (NaN elsewhere), as (values, meaning).

    Returns:
        these; and for how many rows the share is undefined, by reason.
    """
    low, high, share = (np.full(len(scores), np.nan) for _ in range(3))
    undefined: Counter[str] = Counter()
    masks, which = np.unique(~np.isnan(scores), axis=0, return_inverse=True)
    for number, mask in enumerate(masks):
        rows = np.flatnonzero(which.ravel() == number)
        if not mask.any():
            continue
        values = torch.from_numpy(scores[rows][:, mask])
        low[rows], high[rows] = (bound.numpy() for bound in bootstrap(values, seed=seed))
        if gap is not None:
            shares = recovery(values, gap[torch.from_numpy(mask)], torch.zeros(int(mask.sum())))
            share[rows] = shares.value.numpy()
            undefined.update({shares.reason: len(rows)} if shares.reason else {})
    found: dict[str, tuple[Any, str]] = {
        "low": (low, "lower bound of the score's 95 % bootstrap interval over prompts"),
        "high": (high, "upper bound of that interval"),
        "n": ((~np.isnan(scores)).sum(1), "prompts that have the candidate's position"),
    }
    if gap is not None:
        found["normalised"] = (share, "score / (clean - corrupted), ratio of means; 1 is the whole gap")
    return found, undefined
