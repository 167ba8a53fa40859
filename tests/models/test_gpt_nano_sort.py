"""A trained model against activations that an independent implementation computed at every point of its first block.

The model sorts six letters; its 25 reference tensors come from one batch of three sequences. Eighteen of them are
sites or logits; the others follow from sites and weights.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu
from transformers import GPT2LMHeadModel

from interp.models.hf import HookedHF

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "gpt-nano-sort"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the folder with gpt-nano-sort is not on this machine")

SITES = {
    "x": "embed", "ln1": "attn_in[0]", "q": "q[0]", "k": "k[0]", "v": "v[0]", "attSm": "pattern[0]", "y": "z[0]",
    "yProj": "attn_proj[0]", "attnResid": "resid_mid[0]", "ln2": "mlp_in[0]", "gelu": "neuron[0]", "mlp": "mlp_proj[0]",
    "mlpResid": "resid_post[0]", "block0": "resid_pre[1]", "block1": "resid_post[1]", "block2": "resid_post[2]",
    "ln_f": "resid_final",
}  # fmt: skip
"""Reference tensor -> site; with `lm_head`, the logits, eighteen."""


@cache
def _run():
    """The model, a run that recorded every site, and the reference."""
    reference = load_file(FOLDER / "reference_activations.safetensors")
    model = HookedHF(GPT2LMHeadModel.from_pretrained(FOLDER).eval())
    return model, model.run(reference["idx"].long(), record=model.sites(), logits="all"), reference


def _close(found, expected):
    assert float((found - expected.view(found.shape)).abs().max()) <= 1e-5


def _heads_first(site, x):
    """Reference queries, keys and values are [batch, head, pos, d_head]."""
    return x.transpose(1, 2) if site[0] in "qkv" else x


@pytest.mark.parametrize("name", SITES)
def test_a_site_matches_the_reference(name):
    _, run, reference = _run()
    _close(_heads_first(SITES[name], run[SITES[name]]), reference[name])


def test_the_logits_match_the_reference():
    _, run, reference = _run()
    _close(run.logits, reference["lm_head"])


def test_what_is_no_site_follows_from_sites_and_weights():
    model, run, reference = _run()
    raw, idx = model.model, reference["idx"].long()
    block = raw.transformer.h[0]
    with torch.no_grad():
        token, position = raw.transformer.wte(idx), raw.transformer.wpe.weight[: idx.shape[1]]
        _close(token, reference["tok_emb"])
        _close(position, reference["pos_emb"])
        _close(token + position, reference["x"])
        _close(block.attn.c_attn(run["attn_in[0]"]), reference["qkv"])
        _close(block.mlp.c_fc(run["mlp_in[0]"]), reference["fc"])
        _close(gelu(block.mlp.c_fc(run["mlp_in[0]"]), approximate="tanh"), reference["gelu"])
    _close(run.logits.softmax(-1), reference["probs"])
    scores = torch.einsum("bihd,bjhd->bhij", run["q[0]"], run["k[0]"]) * run["q[0]"].shape[-1] ** -0.5
    seen = reference["att"].isfinite()
    assert torch.equal(seen, torch.ones_like(seen).tril())
    _close(scores[seen], reference["att"][seen])
    _close(run["attn_out[0]"], reference["yProj"])
    _close(run["mlp_out[0]"], reference["mlp"])


def test_every_reference_tensor_is_covered():
    derived = {"idx", "tok_emb", "pos_emb", "qkv", "fc", "att", "probs"}
    assert set(_run()[2]) == set(SITES) | {"lm_head"} | derived
    assert len(SITES) + 1 == 18


def test_the_model_sorts_through_generation_too():
    model = _run()[0]
    letters = [[2, 0, 1, 1, 0, 2], [1, 2, 2, 0, 0, 0], [2, 2, 1, 1, 0, 0]]
    assert model.generate(letters, 6, eos_token_id=None).new_ids == tuple(tuple(sorted(row)) for row in letters)
