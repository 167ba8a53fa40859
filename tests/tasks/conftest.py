"""Tokenizers of the kinds that tasks must work with, built in milliseconds; the trained one is read in place."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from interp import toy
from interp.tasks.choices import MCQA

BEHAVIOURS = ("agreement", "choices", "docstring", "facts", "greater_than", "ioi", "pronouns")
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


def strings(value: object) -> Iterator[str]:
    """Every string in nested lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from strings(each)


def corpus() -> list[str]:
    """Every word of the built-in prompts, with a space before it and without."""
    lexicons = [sys.modules[f"interp.tasks.{name}"].STANDARD for name in BEHAVIOURS] + [MCQA]
    found = sorted(
        {word for lexicon in lexicons for text in strings(lexicon.lists) for word in re.findall(r"\w+", text)}
    )
    return [f" {word} {word.capitalize()}" for word in found] + found + [" he she"]


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
    """Knows the words of every built-in prompt, as GPT-2's tokenizer does, and cuts numbers into digits."""
    return byte_level(corpus(), pre_tokenizers.Digits(individual_digits=True))


@pytest.fixture(scope="session")
def cutting() -> Callable[[str, list[str]], PreTrainedTokenizerFast]:
    """The same with numbers cut by a pattern, of which it knows those given."""
    return lambda pattern, known: byte_level(corpus() + known, pre_tokenizers.Split(Regex(pattern), "isolated"))


@pytest.fixture(scope="session")
def toy_tokenizer() -> PreTrainedTokenizerFast:
    """The embedded model's: words between spaces."""
    vocabulary = {word: i for i, word in enumerate(toy.vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast(tokenizer, unk_token="<unk>", pad_token="<pad>", bos_token="<eos>", eos_token="<eos>")


@pytest.fixture(scope="session")
def slow() -> PreTrainedTokenizer:
    return Spaced()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Public data, where it lies beside the project."""
    if not SHARED.is_dir():
        pytest.skip("the shared data folder is not here")
    return SHARED


@pytest.fixture(scope="session")
def pieces(shared: Path) -> PreTrainedTokenizerFast:
    """A trained tokenizer of 512 pieces, of the sentencepiece kind: it adds a BOS and cuts most names."""
    return AutoTokenizer.from_pretrained(shared / "stories260K")
