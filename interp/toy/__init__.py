"""The toy language of the embedded model: its words, its prompts with their answers, and its texts."""

from pathlib import Path

from interp.toy import words
from interp.toy.prompts import BEHAVIOURS, ToyExample, examples, is_test, word_task
from interp.toy.text import DOMAINS, MIXTURE, Biography, biographies, documents, story, vocabulary

EMBEDDED = Path(__file__).parents[1] / "embedded"  # config, weights, tokenizer, and a README on how they were made

__all__ = [
    "BEHAVIOURS",
    "DOMAINS",
    "EMBEDDED",
    "MIXTURE",
    "Biography",
    "ToyExample",
    "biographies",
    "documents",
    "examples",
    "is_test",
    "story",
    "vocabulary",
    "word_task",
    "words",
]
