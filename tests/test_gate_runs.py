"""Runs under gates against zeroed weights, finite differences, rows of their own, and attribution patching."""

import numpy as np
import pytest
import torch
from tiny import F64, RAGGED, build, hooked, hooked64, state, task

from interp.gate_runs import GatedTask, gate_gradients, ones
from interp.methods.attribution import attribute
from interp.metrics import Accuracy, Answers, NegNLL, metric
from interp.models.hf import HookedHF
from interp.tasks.base import Task
from interp.tokens import from_ids

FAMILIES = ("gpt2", "gpt_neox", "llama", "gemma2")
families = pytest.mark.parametrize("family", FAMILIES)


def several() -> Task:
    """The ragged prompts, scored at two, one and three positions."""
    positions = torch.tensor([[2, 5, -1], [8, -1, -1], [1, 3, 6]])
    correct = torch.tensor([[[11], [4], [-1]], [[7], [-1], [-1]], [[3], [19], [30]]])
    return Task("several", from_ids(RAGGED), Answers(positions, correct, correct[..., :0]), NegNLL())


def random_gates(model, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(ones(model, rows).shape, generator=generator, dtype=ones(model).dtype)


@families
def test_gates_of_one_change_nothing_and_gates_of_zero_are_zeroed_output_weights(family):
    raw = build(family)
    model, given = HookedHF(raw), GatedTask(hooked(family), several(), NegNLL())
    plain = NegNLL()(model.run(RAGGED, logits=given.task.answers.positions).logits, given.task.answers)
    assert torch.equal(given.values(ones(model, 3), [0, 1, 2]), plain)
    gates = ones(model, 3)
    gates[:, 1, 2] = 0.0
    width = model.shape.d_head
    attention = raw.get_submodule(model.map.blocks)[1].get_submodule(model.map.attention)
    name = {"gpt2": "c_proj", "gpt_neox": "dense"}.get(family, "o_proj")
    weight = attention.get_submodule(name).weight.data
    columns = weight.T if family != "gpt2" else weight
    columns[2 * width : 3 * width] = 0.0
    zeroed = NegNLL()(model.run(RAGGED, logits=given.task.answers.positions).logits, given.task.answers)
    assert torch.allclose(given.values(gates, [0, 1, 2]), zeroed, atol=2e-5) and (zeroed - plain).abs().max() > 1e-3


@families
def test_the_gradient_of_every_gate_is_the_finite_difference_and_the_same_in_a_row_of_its_own(family):
    with F64():
        model = hooked64(family)
        gated = GatedTask(model, several(), NegNLL())
        gates = random_gates(model, 3).requires_grad_()
        gated.values(gates, [0, 1, 2]).sum().backward()
        step = 1e-5
        for row, layer, head in [(0, 0, 0), (1, 1, 3), (2, 2, 1), (0, 2, 2)]:
            moved = gates.detach().repeat(2, 1, 1, 1)
            moved[0, row, layer, head] += step
            moved[1, row, layer, head] -= step
            up, down = (gated.values(one, [0, 1, 2])[row].item() for one in moved)
            assert gates.grad[row, layer, head].item() == pytest.approx((up - down) / (2 * step), abs=1e-7)
            alone = gates.detach()[[row]].requires_grad_()
            gated.values(alone, [row]).sum().backward()
            assert torch.allclose(alone.grad[0], gates.grad[row], atol=1e-12)
        assert gates.grad.abs().max() > 1e-3


@families
def test_the_gradient_at_one_is_attribution_patching_with_a_zero_baseline(family):
    with F64():
        model, given = hooked64(family), task()
        found = gate_gradients(GatedTask(model, given, metric("logprob"))).flatten(1).T
        atp = attribute(model, given, "z", ablation="zero", direction="noising", metrics="logprob")
        expected = atp.tensors["logprob.noising"].array
        assert np.allclose(found.numpy(), expected, atol=1e-7, rtol=1e-6) and abs(expected).max() > 0.01


def test_values_do_not_depend_on_batches_memory_or_padding():
    model = hooked("llama")
    wide = GatedTask(model, several(), NegNLL())
    narrow = GatedTask(model, several(), NegNLL(), memory=1e-6)
    assert narrow.tokens == 9 < wide.tokens
    assert [sorted(batch) for batch in narrow.batches([0, 1, 2, 1])] != [sorted(b) for b in wide.batches([0, 1, 2, 1])]
    assert sorted(place for batch in narrow.batches([0, 1, 2, 1]) for place in batch) == [0, 1, 2, 3]
    gates = random_gates(model, 4)
    assert torch.allclose(wide.table(gates), narrow.table(gates), atol=1e-5)
    assert torch.allclose(gate_gradients(wide), gate_gradients(narrow), atol=1e-5)
    alone = GatedTask(model, several()[[0]], NegNLL()).table(gates)
    assert torch.allclose(wide.table(gates)[..., :1], alone, atol=1e-5)
    logits = model.run(RAGGED, logits=several().answers.positions).logits
    assert torch.equal(wide.table(ones(model), [Accuracy()])[0, 0], Accuracy()(logits, several().answers))


def test_half_precision_weights_have_full_precision_gates_and_the_model_is_left_as_it_was():
    raw = build("llama").to(torch.bfloat16)
    for p in list(raw.parameters())[::2]:
        p.requires_grad_(False)
    model, before = HookedHF(raw, check=False), state(raw)
    gated = GatedTask(model, several(), NegNLL())
    gates = ones(model, 3).requires_grad_()
    gated.values(gates, [0, 1, 2]).sum().backward()
    assert gates.dtype == gates.grad.dtype == torch.float32 and gates.grad.abs().max() > 0
    assert state(raw) == before and all(p.grad is None for p in raw.parameters())


@pytest.mark.parametrize("family", [*FAMILIES, "opt", "olmo2"])
def test_recomputed_blocks_give_the_same_gradients_from_less_memory(family):
    raw = build(family)
    model, before = HookedHF(raw), state(raw)
    kept, gradients, plans = [], [], []
    for recompute in (False, True):
        gated = GatedTask(model, several(), NegNLL(), recompute=recompute)
        plans.append(gated.bytes_per_token)
        gates, saved = random_gates(model, 3).requires_grad_(), []

        def pack(x: torch.Tensor, saved=saved) -> torch.Tensor:
            saved.append(x.nbytes)
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            values = gated.values(gates, [0, 1, 2])
        values.sum().backward()
        kept.append(sum(saved))
        gradients.append(gates.grad)
    assert torch.allclose(*gradients, atol=1e-6) and gradients[0].abs().max() > 1e-3
    assert kept[1] < kept[0] / 2
    assert plans[1] < plans[0]
    assert state(raw) == before


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "phi3", "olmo2", "opt"])
def test_the_memory_of_a_backward_pass_is_bounded_by_the_plan(family):
    """Bytes that autograd keeps for the backward pass of one batch, by the hooks of torch itself."""
    model = hooked(family)
    gated = GatedTask(model, several()[[1]], NegNLL())
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    gates = ones(model, 30).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        gated.values(gates, [0] * 30).sum().backward()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    used = sum(size for where, size in kept.items() if where not in weights)
    assert used / (30 * 9) < gated.bytes_per_token < 4 * used / (30 * 9)


def test_the_fingerprint_is_that_of_weights_prompts_and_answers():
    model, given = hooked("llama"), several()
    same = GatedTask(model, several(), NegNLL()).fingerprint
    assert GatedTask(model, given, NegNLL(), memory=1.0).fingerprint == same
    others = [GatedTask(model, given[[0, 1]], NegNLL()), GatedTask(model, task(), NegNLL())]
    others += [GatedTask(model, given, metric("logprob")), GatedTask(hooked("gpt2"), given, NegNLL())]
    assert len({one.fingerprint for one in others} | {same}) == 5
