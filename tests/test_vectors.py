"""Vectors of contexts: equal to what they are made of, whatever the batch; the model stays as it was."""

from functools import cache

import numpy as np
import pytest
import torch
from context_examples import ragged_contexts
from dictionaries import random_dictionary
from tiny import build, hooked

from interp.errors import OptionError
from interp.featurizers.base import flat
from interp.featurizers.linear import coordinates
from interp.gradient_vectors import Projection
from interp.methods.features import attribute_features
from interp.models.hf import HookedHF
from interp.tokens import from_ids
from interp.vectors import context_vectors

FAMILIES = ("gpt2", "gpt_neox", "gemma2")
SKIPS = {"mlp_out[0]": 0, "resid_post[1]": 2}


@cache
def featurizers(family):
    model = hooked(family)
    wide = [random_dictionary(model, site, dtype=torch.float32, skip=skip) for site, skip in SKIPS.items()]
    return [*wide, coordinates(model, "attn_out[1]")]


def dense(vectors) -> np.ndarray:
    return vectors.values.toarray()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("method", "steps"), [("atp", 0), ("ig", 3)])
def test_effects_are_the_signed_scores_of_each_prompt(family, method, steps):
    model, contexts = hooked(family), ragged_contexts()
    vectors = context_vectors(model, contexts, featurizers(family), steps=steps)
    circuit = attribute_features(
        model, contexts.task(), featurizers(family), method=method, steps=max(steps, 1), ablation="zero"
    )
    assert vectors.kind == "effects" and vectors.values.shape == (3, len(circuit.nodes)) and vectors.values.nnz
    np.testing.assert_allclose(dense(vectors), circuit.tensors["logprob.noising"].array.T, atol=2e-5, rtol=1e-4)


def test_effects_at_the_last_positions_are_those_of_roles_there():
    model, contexts = hooked("gpt2"), ragged_contexts()
    vectors = context_vectors(model, contexts, featurizers("gpt2"), last=2)
    circuit = attribute_features(
        model, contexts.task(), featurizers("gpt2"), method="atp", ablation="zero", positions=["end"]
    )
    ends = circuit.tensors["logprob.noising"].array.T
    sizes = [one.n_nodes for one in sorted(featurizers("gpt2"), key=lambda one: one.site.order)]
    starts = 2 * np.cumsum([0, *sizes[:-1]])
    first = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, sizes, strict=True)])
    np.testing.assert_allclose(dense(vectors)[:, first], ends, atol=2e-5, rtol=1e-4)


def test_the_columns_of_several_positions_are_whole_blocks_of_each_site():
    model, contexts = hooked("gpt2"), ragged_contexts()
    one = coordinates(model, "mlp_out[0]")
    run = model.run(contexts.prompts, record=["mlp_out[0]"], logits="none")
    found = dense(context_vectors(model, contexts, [one], "activations", last=7))
    for row, n in enumerate(contexts.prompts.lengths.tolist()):
        back = run["mlp_out[0]"][row, :n].flip(0)[:7]
        wanted = torch.zeros(7, one.n_features)
        wanted[: len(back)] = back
        np.testing.assert_allclose(found[row], wanted.flatten().numpy(), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_sums_of_features_over_real_positions(family):
    model, contexts = hooked(family), ragged_contexts()
    found = dense(context_vectors(model, contexts, featurizers(family), "activations"))
    order = sorted(featurizers(family), key=lambda one: one.site.order)
    for row, ids in enumerate(contexts.prompts.rows()):
        run = model.run(from_ids([ids]), record=[one.site for one in order], logits="none")
        sums = [one.encode(flat(run[one.site]))[0, one.skip :].sum(0) for one in order]
        np.testing.assert_allclose(found[row], torch.cat(sums).numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["activations", "effects", "gradients"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_vector_does_not_depend_on_its_batch(family, kind):
    model, contexts = hooked(family), ragged_contexts()
    used = () if kind == "gradients" else featurizers(family)
    options = {"projection": Projection(200)} if kind == "gradients" else {"last": 3}
    together, alone, turned = (
        context_vectors(model, given, used, kind, batch=batch, **options).values
        for given, batch in ((contexts, 3), (contexts, 1), (contexts[[2, 0, 1]], 2))
    )
    if kind != "gradients":
        together, alone, turned = together.toarray(), alone.toarray(), turned.toarray()
    np.testing.assert_allclose(together, alone, atol=1e-4, rtol=1e-3)
    np.testing.assert_allclose(together[[2, 0, 1]], turned, atol=1e-4, rtol=1e-3)
    assert np.abs(together).max() > 0.01


@pytest.mark.parametrize("kind", ["activations", "effects", "gradients"])
def test_the_model_stays_as_it_was_also_when_it_raises(kind, monkeypatch):
    raw = build("gpt2")
    first, second, *_ = raw.parameters()
    second.requires_grad_(False)
    first.grad = torch.ones_like(first)
    model = HookedHF(raw)
    before = {name: p.detach().clone() for name, p in raw.named_parameters()}
    flags = [p.requires_grad for p in raw.parameters()]

    def check():
        assert [p.requires_grad for p in raw.parameters()] == flags and not raw.training
        assert all(torch.equal(p, before[name]) for name, p in raw.named_parameters())
        assert [name for name, p in raw.named_parameters() if p.grad is not None] == [next(iter(before))]
        assert torch.equal(first.grad, torch.ones_like(first))
        assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in raw.modules())

    used = () if kind == "gradients" else [coordinates(model, "mlp_out[0]")]
    options = {"projection": Projection(20)} if kind == "gradients" else {}
    state = torch.get_rng_state()
    context_vectors(model, ragged_contexts(), used, kind, **options)
    check()
    assert torch.equal(state, torch.get_rng_state())
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="boom"):
        patched.setattr(raw.transformer.h[2].mlp, "forward", _boom)
        context_vectors(model, ragged_contexts(), used, kind, **options)
    check()


def _boom(*_, **__):
    raise RuntimeError("boom")


def test_what_cannot_be_is_said():
    model, contexts = hooked("gpt2"), ragged_contexts()
    used = featurizers("gpt2")
    for wrong in ({"last": 0}, {"last": 10}, {"steps": -1}, {"batch": 0}):
        with pytest.raises(OptionError, match="last from 1 to the longest context's 9 tokens, or None; steps from 0"):
            context_vectors(model, contexts, used, **wrong)
    with pytest.raises(OptionError, match="'effects' with 0 featurizers; allowed is at least one"):
        context_vectors(model, contexts)
    with pytest.raises(OptionError, match="'gradients' with 3 featurizers; allowed is none"):
        context_vectors(model, contexts, used, "gradients")
