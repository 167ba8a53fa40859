"""Projected gradients: a matrix written out, inner products in expectation, which weights count."""

import numpy as np
import pytest
import torch
from context_examples import ragged_contexts
from tiny import build, hooked

import interp.gradient_vectors as module
from interp.errors import ModelError, OptionError
from interp.gradient_vectors import Projection, block_weights, gradient_vectors, projected
from interp.models.hf import HookedHF


def written_out(projection: Projection, sizes: list[int]) -> torch.Tensor:
    """R [width, weight], one entry after the other."""
    parts = []
    for name, size in enumerate(sizes):
        own = torch.zeros(projection.width, size, dtype=torch.float64)
        for piece, cells, signs in projection.blocks(size, name):
            for k in range(projection.nonzeros):
                for place, (cell, sign) in enumerate(zip(cells[k].tolist(), signs[k].tolist(), strict=True)):
                    own[cell, piece.start + place] += sign
        parts.append(own)
    return torch.cat(parts, 1) / projection.nonzeros**0.5


def plain_gradient(raw, ids: list[int], answer: int) -> dict[str, torch.Tensor]:
    """d log p(answer) / d every parameter, by plain transformers and backward()."""
    for p in raw.parameters():
        p.requires_grad_(True).grad = None
    raw(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[answer].backward()
    return {name: p.grad.clone() for name, p in raw.named_parameters() if p.grad is not None}


def test_they_are_the_projected_gradients_of_plain_backward_passes():
    raw = build("gpt2", n_layer=1, n_embd=8, n_head=2)
    model, contexts = HookedHF(raw), ragged_contexts()
    projection = Projection(50, nonzeros=3, seed=4)
    found = gradient_vectors(model, contexts.task(), projection, batch=2)
    names = {id(p): name for name, p in raw.named_parameters()}
    chosen = [names[id(p)] for p in block_weights(model)]
    matrix = written_out(projection, [raw.get_parameter(name).numel() for name in chosen])
    for row, ids in enumerate(contexts.prompts.rows()):
        gradient = plain_gradient(raw, ids, int(contexts.answers[row]))
        parts = [gradient[name] if ".h." in name else torch.zeros_like(gradient[name]) for name in chosen]
        wanted = matrix @ torch.cat([part.flatten() for part in parts]).double()
        np.testing.assert_allclose(found[row], wanted.numpy(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "opt"])
def test_embeddings_norms_and_biases_are_left_out_and_the_matrices_of_all_blocks_count(family):
    model = hooked(family)
    names = {id(p): name for name, p in model.model.named_parameters()}
    chosen = [names[id(p)] for p in block_weights(model)]
    matrices = {name for name, p in model.model.named_parameters() if p.ndim > 1}
    blocks = {name for name in matrices if ".h." in name or ".layers." in name}
    assert blocks <= set(chosen) <= matrices and len(blocks) % model.shape.n_layers == 0
    assert not [name for name in chosen if "embed_tokens" in name or "wte" in name or "lm_head" in name]


@pytest.mark.parametrize("nonzeros", [1, 4])
def test_inner_products_are_kept_in_expectation(nonzeros):
    g, h = (torch.randn(1, 60), torch.randn(1, 60))
    h = h + 0.5 * g
    width, draws = 16, 3000
    found = []
    for seed in range(draws):
        both = projected([torch.cat([g[:, :40], h[:, :40]]), torch.cat([g[:, 40:], h[:, 40:]])],
                         Projection(width, nonzeros, seed))  # fmt: skip
        found.append([float(both[0] @ both[1]), float(both[0] @ both[0])])
    means, spread = np.mean(found, 0), np.std(found, 0)
    for mean, sd, wanted in zip(means, spread, (float(g[0] @ h[0]), float(g[0] @ g[0])), strict=True):
        assert abs(mean - wanted) < 4 * sd / draws**0.5
    assert spread[0] < 1.6 * float(g.norm() * h.norm()) / width**0.5


def test_the_seed_decides_and_blocks_are_drawn_one_by_one(monkeypatch):
    gradient = torch.randn(2, 300)
    first, again, other = (projected([gradient], Projection(20, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.allclose(first, other)
    monkeypatch.setattr(module, "BLOCK", 128)
    pieces = [piece for piece, _, _ in Projection(20).blocks(300, 0)]
    assert pieces == [slice(0, 128), slice(128, 256), slice(256, 300)]
    draws = [cells for _, cells, _ in Projection(20).blocks(256, 0)] + [next(Projection(20).blocks(128, 1))[1]]
    assert not torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    matrix = written_out(Projection(20), [300]).float()
    torch.testing.assert_close(projected([gradient], Projection(20)), gradient @ matrix.T, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_is_said(monkeypatch):
    for wrong in ({"width": 0}, {"nonzeros": 0}):
        with pytest.raises(OptionError, match="width and nonzeros from 1"):
            Projection(**wrong)
    model = HookedHF(build("gpt2"))
    monkeypatch.setattr(model, "parameters", lambda: [p for p in model.model.parameters() if p.ndim == 1])
    with pytest.raises(ModelError, match="no weight matrices besides the embeddings"):
        block_weights(model)
