"""Which source token goes into which base token: from scores of pairs to weights, soft or hard.

    G_ij + ... softmax over the source tokens i and [SELF], separately for each base token j:
    sum_i G_ij + self_j = 1

Source: HyperDAS (arXiv 2503.10894), the authors' code for the modes.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import check_choice
from interp.interchange.placing import MODES, Mode

SELF_FLOOR = 0.1
"""Least weight of [SELF] where bids compete with it (the authors' code)."""


class Scores(NamedTuple):
    """What a selector says of a batch.

    Attributes:
        pairs: logit of each source token for each base token; -inf where one of them is no token of its prompt.
        self: logit of leaving a base token as it is.
    """

    pairs: Float[Tensor, "example source base"]
    self: Float[Tensor, "example base"]

    def weights(self) -> Float[Tensor, "example source base"]:
        """G; what is missing to 1 in each base token is [SELF]'s."""
        every = torch.cat([self.pairs, self.self[:, None]], 1).float()
        return every.softmax(1)[:, :-1]


def masked(
    pairs: Float[Tensor, "example source base"], own: Float[Tensor, "example base"],
    source_real: Bool[Tensor, "example source"], base_real: Bool[Tensor, "example base"],
) -> Scores:  # fmt: skip
    """Scores in which only real tokens can be paired."""
    allowed = source_real[:, :, None] & base_real[:, None]
    return Scores(pairs.masked_fill(~allowed, -torch.inf), own)


def fixed(rows: Int[Tensor, " pair"], base: Int[Tensor, " pair"], source: Int[Tensor, " pair"], like: Scores) -> Scores:
    """Scores by which these pairs, and no others, are taken."""
    pairs, own = torch.full_like(like.pairs, -torch.inf), torch.zeros_like(like.self)
    pairs[rows, source, base], own[rows, base] = 0.0, -torch.inf
    return Scores(pairs, own)


def chosen(scores: Scores, mode: Mode, *, forced: bool = False) -> Float[Tensor, "example source base"]:
    """Weights of pairs as they are used.

    Args:
        mode: ``"soft"``: G. ``"one_to_many"``: each base token takes its best source token, or none. ``"one_to_one"``:
            each source token bids for its best base token alone, and each base token takes its best bid, or none
            ([SELF] has at least `SELF_FLOOR`). ``"single"``: the best pair, always.
        forced: something is exchanged in any case. Soft: G over the sources of the one base token with the largest
            logit, no other; one-to-many: the best pair; one-to-one: the best pair where no bid survives.
    """
    check_choice("mode", mode, MODES)
    weights = scores.weights()
    if mode == "soft":
        return _one_column(scores) if forced else weights
    if mode == "single" or (mode == "one_to_many" and forced):
        return _best_pair(weights)
    own = 1 - weights.sum(1)
    if mode == "one_to_many":
        return _winners(weights, own)
    bids = torch.where(torch.nn.functional.one_hot(weights.argmax(2), weights.shape[2]).bool(), weights, 0.0)
    won = _winners(bids, own.clamp(min=SELF_FLOOR))
    none = won.sum((1, 2), keepdim=True) == 0
    return torch.where(none, _best_pair(weights), won) if forced else won


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """`hard`, with the gradient of `soft`."""
    return hard + soft - soft.detach()


def sparsity(weights: Float[Tensor, "example source base"], *, as_published: bool) -> Float[Tensor, " example"]:
    """How much source tokens are used more than once: sum_i relu(r_i - 1), r_i = sum_j G_ij; as published, sum of r_i
    where r_i > 1."""
    used = weights.sum(2)
    return torch.where(used > 1, used, 0.0).sum(1) if as_published else (used - 1).clamp(min=0).sum(1)


def _winners(weights: Tensor, own: Tensor) -> Tensor:
    """One-hot in each base token's largest weight, zeros where [SELF]'s is larger."""
    best = weights.max(1)
    hot = torch.nn.functional.one_hot(best.indices, weights.shape[1]).transpose(1, 2)
    return hot.to(weights) * (best.values > own)[:, None]


def _best_pair(weights: Tensor) -> Tensor:
    flat = weights.flatten(1)
    return torch.nn.functional.one_hot(flat.argmax(1), flat.shape[1]).to(weights).view_as(weights)


def _one_column(scores: Scores) -> Tensor:
    """Softmax over the sources in the base token with the largest logit of a pair."""
    column = scores.pairs.amax(1).argmax(1)
    over = scores.pairs.float().gather(2, column[:, None, None].expand(-1, scores.pairs.shape[1], 1)).softmax(1)
    hot = torch.nn.functional.one_hot(column, scores.pairs.shape[2]).to(over)
    return over * hot[:, None]
