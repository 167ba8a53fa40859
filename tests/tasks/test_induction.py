"""Induction: the second half repeats the first, and nothing in the corrupted prompt."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from interp.errors import OptionError
from interp.metrics import NegNLL
from interp.tasks.induction import induction


def test_every_scored_token_can_be_copied_from_the_first_half() -> None:
    task = induction(vocab_size=50, n=7, length=6)
    assert task.metric == NegNLL() and task.answers.wrong.shape[-1] == 0
    for ids, positions, answers in zip(task.clean.rows(), task.answers.positions, task.answers.correct, strict=True):
        assert len(ids) == 11 and len(set(ids[:6])) == 6
        for position, answer in zip(positions.tolist(), answers[:, 0].tolist(), strict=True):
            assert answer == ids[ids.index(ids[position]) + 1]
    assert task.roles["end"] == ((10,),) * 7 and task.answers.positions[0].tolist() == list(range(6, 11))


def test_the_corrupted_first_half_holds_nothing_of_the_second() -> None:
    task = induction(vocab_size=50, n=7, length=6)
    for clean, corrupted in zip(task.clean.rows(), task.require_corrupted().rows(), strict=True):
        assert corrupted[6:] == clean[6:] and not set(corrupted[:6]) & set(clean)


def test_a_tokenizers_bos_stands_first_and_special_tokens_nowhere_else(words: Callable[..., Any]) -> None:
    tokenizer = words("a b c d e f g h", "<s>")
    task = induction(tokenizer, n=5, length=8)
    for ids in task.clean.rows() + task.require_corrupted().rows():
        assert ids[0] == tokenizer.bos_token_id and not set(ids[1:]) & set(tokenizer.all_special_ids)
    assert task.roles["first_half"][0] == tuple(range(1, 9)) and task.tokenizer_fingerprint
    assert task.clean.tokens[0][0] == "<s>"


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (induction(vocab_size=50, n=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.clean.rows() == again.clean.rows() != other.clean.rows()


def test_what_cannot_be_drawn_is_told(bpe: Any) -> None:
    with pytest.raises(OptionError, match="from a tokenizer's ids or from vocab_size of them; give one of the two"):
        induction()
    with pytest.raises(OptionError, match="give one of the two"):
        induction(bpe, vocab_size=9)
    with pytest.raises(OptionError, match="n=1, length=16; n must be at least 1 and length from 2 to 15"):
        induction(vocab_size=30, n=1)
