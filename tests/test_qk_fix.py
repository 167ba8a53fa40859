"""The closed forms of the QK fix against replacing one query or key at a time and taking the softmax again."""

import itertools

import pytest
import torch
from torch import Tensor

from interp.models.runs import AttentionRule
from interp.qk_fix import joint_key_effects, key_effects, per_kv_head, query_effects

B, T, H, KV, D = 2, 7, 4, 2, 3


def rule(kind: str, softcap: float | None) -> AttentionRule:
    """Causal, or with a sliding window of 3; the second prompt has 5 tokens."""
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    if kind == "sliding":
        visible = visible & ~torch.ones(T, T, dtype=torch.bool).tril(-3)
    visible = visible.expand(B, 1, T, T).clone()
    visible[1, :, :, 5:] = False
    return AttentionRule(visible, D**-0.5, softcap)


def draw(scale: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys and their replacements whose scores spread by about `scale`; a gradient at the pattern."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, T, H, D), (B, T, KV, D), (B, T, H, D), (B, T, KV, D)]
    q, k, q2, k2 = (torch.randn(s, generator=generator, dtype=dtype) * scale**0.5 for s in shapes)
    return q, k, q2, k2, torch.randn(B, H, T, T, generator=generator, dtype=dtype)


def probabilities(rule: AttentionRule, q: Tensor, k: Tensor) -> Tensor:
    scores = torch.einsum("bdhe,bshe->bhds", q, k.repeat_interleave(H // k.shape[2], 2)) * rule.scaling
    scores = scores if rule.softcap is None else rule.softcap * (scores / rule.softcap).tanh()
    return scores.masked_fill(~rule.visible, -torch.inf).softmax(-1).nan_to_num(0)


CASES = list(itertools.product([1.0, 30.0, 200.0], ["causal", "sliding"], [None, 20.0]))


@pytest.mark.parametrize(("scale", "kind", "softcap"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_key_effects_equal_replacing_each_key_alone(scale, kind, softcap, dtype, tolerance):
    q, k, _, k2, g = draw(scale, dtype)
    wide = [x.double() for x in (q, k, k2, g)]
    one = rule(kind, softcap)
    expected = torch.zeros(B, T, KV, dtype=torch.float64)
    for t, head in itertools.product(range(T), range(KV)):
        patched = wide[1].clone()
        patched[:, t, head] = wide[2][:, t, head]
        change = probabilities(one, wide[0], patched) - probabilities(one, wide[0], wide[1])
        expected[:, t, head] = (change * wide[3]).sum((1, 2, 3))
    found = per_kv_head(key_effects(one, q, k, k2, g), KV)
    assert (found - expected).abs().max() <= tolerance * g.abs().max()


@pytest.mark.parametrize(("scale", "kind", "softcap"), CASES)
def test_query_effects_equal_replacing_each_query_alone(scale, kind, softcap):
    q, k, q2, _, g = draw(scale, torch.float64)
    one = rule(kind, softcap)
    expected = torch.zeros(B, T, H, dtype=torch.float64)
    for i, head in itertools.product(range(T), range(H)):
        patched = q.clone()
        patched[:, i, head] = q2[:, i, head]
        change = probabilities(one, patched, k) - probabilities(one, q, k)
        expected[:, i, head] = (change * g).sum((1, 2, 3))
    assert torch.allclose(query_effects(one, q, k, q2, g), expected, atol=1e-12)


def test_joint_key_effects_equal_replacing_them_together_and_not_the_sum_of_single_ones():
    q, k, _, k2, g = draw(3.0, torch.float64)
    one, replaced = rule("causal", None), torch.zeros(B, T, dtype=torch.bool)
    replaced[:, [1, 3, 4]] = True
    patched = torch.where(replaced[..., None, None], k2, k)
    expected = ((probabilities(one, q, patched) - probabilities(one, q, k)) * g).sum((2, 3))
    assert torch.allclose(joint_key_effects(one, q, k, k2, g, replaced), expected, atol=1e-12)
    single = key_effects(one, q, k, k2, g)
    assert (single[:, [1, 3, 4]].sum(1) - expected).abs().max() > 0.1
    for t in range(T):
        alone = torch.zeros(B, T, dtype=torch.bool)
        alone[:, t] = True
        assert torch.allclose(joint_key_effects(one, q, k, k2, g, alone), single[:, t], atol=1e-12)


def test_a_stack_of_gradients_gives_a_stack_of_effects():
    q, k, q2, k2, g = draw(2.0, torch.float64)
    stack, one = torch.stack([g, g.flip(2), 3 * g]), rule("causal", None)
    for number, row in enumerate(stack):
        assert torch.allclose(key_effects(one, q, k, k2, stack)[number], key_effects(one, q, k, k2, row))
        assert torch.allclose(query_effects(one, q, k, q2, stack)[number], query_effects(one, q, k, q2, row))


def test_a_saturated_key_that_loses_its_score_takes_two_thirds_with_it():
    visible = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    visible[..., 2, :] = True
    one = AttentionRule(visible, 1.0)
    q = torch.zeros(1, 3, 2, 1)
    q[:, 2] = 40.0
    k, k2 = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.zeros(1, 3, 1, 1)
    g = torch.zeros(1, 2, 3, 3)
    g[..., 2, 0] = 1.0
    each = key_effects(one, q, k, k2, g)
    assert each[0, 0].tolist() == pytest.approx([-2 / 3, -2 / 3], abs=1e-6)
    assert per_kv_head(each, 1)[0, 0].item() == pytest.approx(-4 / 3, abs=1e-6)
    assert each[0, 1:].abs().max() < 1e-6


def test_a_destination_that_sees_one_key_or_none_has_no_effect():
    q, k, _, k2, g = draw(50.0, torch.float32)
    one = AttentionRule(torch.eye(T, dtype=torch.bool).expand(B, 1, T, T), 1.0)
    assert key_effects(one, q, k, k2, g).abs().max() == 0.0
    none = AttentionRule(torch.zeros(B, 1, T, T, dtype=torch.bool), 1.0)
    assert key_effects(none, q, k, k2, g).abs().max() == 0.0
