"""Train the model that ships in the package (interp/embedded/), and measure it.

    OMP_NUM_THREADS=1 python experiments/train_embedded.py

A 4-layer GPT-2 on the training mixture of `interp.toy`: documents behind one another, separated by <eos>, cut into
rows. Writes the weights as float16, the tokenizer, and a README with the accuracies on held-out prompts, all of
them measured on the files as they were written.
"""

import argparse
import logging
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from interp import toy

log = logging.getLogger("train_embedded")


@dataclass(frozen=True)
class Config:
    """What decides the weights; learning rate by a linear warm-up and a cosine to zero."""

    seed: int = 0
    steps: int = 5000
    rows: int = 24
    length: int = 96
    layers: int = 4
    heads: int = 8
    d_model: int = 128
    d_ff: int = 256
    learning_rate: float = 3e-3
    warmup: int = 200
    weight_decay: float = 0.1


def make_tokenizer(length: int) -> PreTrainedTokenizerFast:
    """One token a word, words split at white space; nothing is added to a text."""
    vocabulary = {word: index for index, word in enumerate(toy.vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<eos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=length, clean_up_tokenization_spaces=False, **names
    )


def make_model(config: Config, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=config.length,
            n_embd=config.d_model,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=config.d_ff,
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def token_rows(config: Config, tokenizer: PreTrainedTokenizerFast, chunk: int = 20_000):
    """Endless batches of token ids [rows, length]; every other row begins a document at position 0, without <eos>."""
    size, seed, stream = config.rows, config.seed, []
    while True:
        ids = tokenizer(toy.documents(chunk, seed), add_special_tokens=False)["input_ids"]
        rows, row = [], []
        for document in ids:
            row += [*document, tokenizer.eos_token_id]
            if len(row) >= config.length:
                rows.append(row[: config.length])
                row = [tokenizer.eos_token_id] if len(rows) % 2 else []
        stream += rows
        while len(stream) >= size:
            yield torch.tensor(stream[:size])
            stream = stream[size:]
        seed += 1_000_003
