"""A GPT-2 of zeros without norms, whose weights are to be set by hand."""

from typing import Any

import torch
from torch import nn


def blank_gpt2(
    *, n_layers: int, n_heads: int, d_model: int, d_vocab: int, n_positions: int, d_ff: int | None = None
) -> Any:
    """A transformers GPT-2 in eval mode: every weight 0, every norm the identity, ReLU neurons (d_model when None)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=d_model, n_layer=n_layers, n_head=n_heads, n_positions=n_positions, vocab_size=d_vocab,
        n_inner=d_ff or d_model, activation_function="relu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):  # first values are drawn, which are then replaced
        model: Any = GPT2LMHeadModel(config).eval().requires_grad_(False)
    for p in model.parameters():
        p.zero_()
    model.transformer.ln_f = nn.Identity()
    for block in model.transformer.h:
        block.ln_1, block.ln_2 = nn.Identity(), nn.Identity()
    return model
