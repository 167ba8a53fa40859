"""Contexts for tests of the tiny models."""

from collections.abc import Sequence

import torch
from tiny import RAGGED

from interp.predicted import Contexts
from interp.tokens import from_ids


def ragged_contexts(rows: Sequence[list[int]] = RAGGED) -> Contexts:
    """The tiny models' prompts with answers 10, 11, ...; the losses are not theirs."""
    prompts, answers = from_ids([list(row) for row in rows]), torch.arange(10, 10 + len(rows))
    origin = torch.stack([torch.arange(len(rows)), prompts.lengths], 1)
    return Contexts(prompts, answers, torch.full((len(rows),), 0.25), origin)
