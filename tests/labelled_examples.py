"""Labelled texts over a vocabulary of numbered words, and models that read them."""

from itertools import product
from typing import Any

import torch
from tiny import VOCAB, build

from interp.labelled.base import BiasedData, Labelled
from interp.models.blank import blank_gpt2
from interp.models.hf import HookedHF


class Words:
    """A tokenizer whose words are ``w0`` to ``w96``, one token each."""

    bos_token_id = bos_token = eos_token = pad_token = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(word[1:]) for word in text.split()]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(f" w{i}" for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {f"w{i}": i for i in range(VOCAB)}


def worded(family: str) -> HookedHF:
    """A tiny model of a family that reads these words."""
    return HookedHF(build(family), Words())


def random_texts(n: int, *, longest: int = 9, seed: int = 0) -> Labelled:
    """Texts of random words and unequal lengths, labels and attributes alternating."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest + 1, (n,), generator=generator).tolist()
    words = [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    texts = tuple(" ".join(f"w{i}" for i in row) for row in words)
    return Labelled(texts, tuple(i % 2 for i in range(n)), tuple(i // 2 % 2 for i in range(n)))


# A model in which feature t is +-1 by words 1 and 2, feature s by words 3 and 4, and a third is 1 everywhere.

T, S, CONSTANT = 0, 1, 2


def plain_model() -> HookedHF:
    """One block that adds nothing; the mean over a text of one word of each kind is (t, s, 1, 0, ...)."""
    model = blank_gpt2(n_layers=1, n_heads=2, d_model=8, d_vocab=VOCAB, n_positions=16)
    rows = model.transformer.wte.weight
    for word, feature, value in ((1, T, 2.0), (2, T, -2.0), (3, S, 2.0), (4, S, -2.0)):
        rows[word, feature] = value
    rows[:, CONSTANT] = 1.0
    return HookedHF(model, Words(), check=False)


def four_groups(repeats: range) -> Labelled:
    """A text of each of the four groups for each number of repeats, which change no mean."""
    cells = [(n, t, s) for n in repeats for t, s in product((0, 1), repeat=2)]
    texts = tuple(" ".join([f"w{2 - t} w{4 - s}"] * n) for n, t, s in cells)
    return Labelled(texts, tuple(t for _, t, _ in cells), tuple(s for _, _, s in cells))


def leaning_data() -> BiasedData:
    """Ambiguous texts in which t and s agree; balanced ones for training and test."""
    train = four_groups(range(1, 4))
    aligned = [row for row in range(len(train)) if train.labels[row] == train.require_attributes()[row]]
    return BiasedData(train[aligned], four_groups(range(6, 8)), four_groups(range(4, 6)))
