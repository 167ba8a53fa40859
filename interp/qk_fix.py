"""The QK fix of AtP*: how attention probabilities really change when queries or keys do, linearised only after them.

A saturated softmax has almost no slope, so the gradient at a query or key says nothing about a large change of it. With
probabilities A = softmax(S), the metric's gradient g at A, and the patched scores S',

    queries:  effect(i) = sum_j (A'_ij - A_ij) g_ij,  A' = softmax(q'_i k)                       rows are independent
    keys:     effect(t) = sum_i (sigma(S'_it - l_it) - sigma(S_it - l_it)) (g_it - m_it)
              l_it = logsumexp_{j != t} S_ij,  m_it = mean of g_i under the softmax without t    one column a row

The form for keys is exact and safe at any scale of the scores: where t is not the largest of its row, l and m follow
from the row's own logsumexp and mean; for the one largest they are computed with that entry left out.

Source: Kramár et al. 2024 (arXiv 2403.00745), section 3.1.1 and algorithm 4; the stable form is our derivation.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.models.runs import AttentionRule

Scores = Float[Tensor, "batch head dest src"]


def query_effects(
    rule: AttentionRule,
    q: Float[Tensor, "batch pos head d_head"],
    k: Float[Tensor, "batch pos kv_head d_head"],
    other_q: Float[Tensor, "batch pos head d_head"],
    gradient: Float[Tensor, "*stack batch head dest src"],
) -> Float[Tensor, "*stack batch dest head"]:
    """First-order effect, after the softmax, of replacing each position's query."""
    keys = _per_query_head(k, q.shape[2])
    change = _softmax(rule.scores(other_q, keys)) - _softmax(rule.scores(q, keys))
    return (change * gradient).sum(-1).transpose(-1, -2)


def key_effects(
    rule: AttentionRule,
    q: Float[Tensor, "batch pos head d_head"],
    k: Float[Tensor, "batch pos kv_head d_head"],
    other_k: Float[Tensor, "batch pos kv_head d_head"],
    gradient: Float[Tensor, "*stack batch head dest src"],
) -> Float[Tensor, "*stack batch src head"]:
    """First-order effect, after the softmax, of replacing each position's key alone, seen by each query head."""
    before = rule.scores(q, _per_query_head(k, q.shape[2]))
    after = rule.scores(q, _per_query_head(other_k, q.shape[2]))
    row, probabilities = before.logsumexp(-1, keepdim=True), _softmax(before)
    largest = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, before.argmax(-1, keepdim=True), True)
    rest = before.masked_fill(largest, -torch.inf)
    small = probabilities.masked_fill(largest, 0.0)  # at most 1/2
    others = torch.where(largest, rest.logsumexp(-1, keepdim=True), row + torch.log1p(-small))
    # A single visible key keeps probability 1: there l is -inf, and both sigmoids are exactly 1.
    shift = torch.where(rule.visible, torch.sigmoid(after - others) - torch.sigmoid(before - others), 0.0)
    total = (probabilities * gradient).sum(-1, keepdim=True)
    mean = torch.where(
        largest, (_softmax(rest) * gradient).sum(-1, keepdim=True), (total - small * gradient) / (1 - small)
    )
    return (shift * (gradient - mean)).sum(-2).transpose(-1, -2)


def joint_key_effects(
    rule: AttentionRule,
    q: Float[Tensor, "batch pos head d_head"],
    k: Float[Tensor, "batch pos kv_head d_head"],
    other_k: Float[Tensor, "batch pos kv_head d_head"],
    gradient: Float[Tensor, "*stack batch head dest src"],
    replaced: Bool[Tensor, "batch src"],
) -> Float[Tensor, "*stack batch head"]:
    """First-order effect, after the softmax, of replacing the keys of several positions at once."""
    before = rule.scores(q, _per_query_head(k, q.shape[2]))
    after = rule.scores(q, _per_query_head(other_k, q.shape[2]))
    change = _softmax(torch.where(replaced[:, None, None], after, before)) - _softmax(before)
    return (change * gradient).sum((-2, -1))


def per_kv_head(effects: Float[Tensor, "*lead head"], n_kv_heads: int) -> Float[Tensor, "*lead kv_head"]:
    """Effects summed over the query heads that share a key head; before any absolute value."""
    return effects.unflatten(-1, (n_kv_heads, -1)).sum(-1)


def _per_query_head(k: Float[Tensor, "batch pos kv d_head"], n_heads: int) -> Float[Tensor, "batch pos head d_head"]:
    return k.repeat_interleave(n_heads // k.shape[2], 2)


def _softmax(scores: Scores) -> Scores:
    """Probabilities; 0 in a row that sees nothing (padding)."""
    return scores.softmax(-1).nan_to_num(0.0)
