"""Tokenizers of the kinds that tasks must work with, built in milliseconds; the trained one is read in place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from interp import toy
from interp.tasks import agreement, arithmetic, choices, docstring, facts, greater_than, ioi, pronouns  # noqa: F401

SHARED = Path(__file__).parents[3] / "shared" / "data"


def fast(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def word_level(words: str, bos: str = "") -> PreTrainedTokenizerFast:
    """Words and punctuation marks are tokens, with a space before them or without; others are <unk>."""
    vocabulary = dict.fromkeys(["<unk>", "<eos>", *([bos] if bos else [])])
    vocabulary |= dict.fromkeys(form for word in words.split() for form in (word, "Ġ" + word))
    numbered = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbered, unk_token="<unk>"))
    pieces = pre_tokenizers.Split(Regex(r" ?[A-Za-z0-9']+| ?[^\sA-Za-z0-9']"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", None, [(bos, numbered[bos])])
    return fast(tokenizer, unk_token="<unk>", eos_token="<eos>", **({"bos_token": bos} if bos else {}))


def byte_level(corpus: list[str], *before: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    """A byte-level BPE that knows the words of `corpus` whole; `before` cuts the text first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=10_000, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    tokenizer.train_from_iterator(corpus, trainer)
    return fast(tokenizer)


class Spaced(PreTrainedTokenizer):
    """A tokenizer in Python: words between spaces, numbered as they come; it reports no offsets."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {"<s>": 0}
        super().__init__(bos_token="<s>")

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.words)

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.words.setdefault(token, len(self.words))

    def _convert_id_to_token(self, index: int) -> str:
        return list(self.words)[index]


@pytest.fixture(scope="session")
def words() -> Callable[..., PreTrainedTokenizerFast]:
    return word_level


@pytest.fixture(scope="session")
def bpe() -> PreTrainedTokenizerFast:
    """Knows English words as GPT-2's tokenizer does, and cuts numbers into digits."""
    ...
