"""Counterfactual examples: parts that fit, subsets, batches."""

from dataclasses import replace

import pytest
import torch
from interchange_examples import examples

from interp.errors import OptionError, TaskError
from interp.interchange.examples import batch_of, rows_of


def test_parts_that_do_not_fit_are_told_together() -> None:
    data = examples()
    with pytest.raises(
        TaskError, match="5 answers for 6 examples; 5 concepts for 6 examples; 3 lengths for 14 prompts"
    ):
        replace(data, answers=data.answers[:5], concepts=data.concepts[:5], lengths=data.lengths[:3])
    with pytest.raises(TaskError, match=r"rows \[101\] of 14 prompts"):
        replace(data, base=data.base + [93, 0, 0, 0, 0, 0])
    with pytest.raises(TaskError, match=r"examples \[0, .*must be prompt \+ answer\[:-1\]"):
        replace(data, answers=tuple((*one, 1) for one in data.answers))
    with pytest.raises(TaskError, match=r"roles \['end'\] lie outside"):
        replace(data, roles={"end": tuple((length,) for length in data.lengths)})


def test_subsets_keep_the_prompts() -> None:
    data = examples()
    some = data[[4, 1]]
    assert some.prompts is data.prompts and some.answers == (data.answers[4], data.answers[1]) and len(some) == 2
    assert data.about("A").concepts == ("A",) * 3 and data.concept_names == ("A", "B")
    assert rows_of([some]) == sorted({int(r) for n in (4, 1) for r in (data.base[n], data.source[n])})
    with pytest.raises(OptionError, match="no concept 'C'; allowed: A, B"):
        data.about("C")


def test_a_batch_says_where_answers_are_read_and_what_is_prompt() -> None:
    data = examples()
    batch = batch_of(data, range(6), torch.device("cpu"))
    for n, answer in enumerate(data.answers):
        length = data.lengths[data.base[n]]
        assert batch.ids[n, : len(answer)].tolist() == list(answer) and (batch.ids[n, len(answer) :] == -1).all()
        assert batch.at[n, : len(answer)].tolist() == list(range(length - 1, length - 1 + len(answer)))
        assert batch.base_real[n].sum() == length and batch.source_real[n].sum() == data.lengths[data.source[n]]
    assert batch.base_real.shape[1] == batch.width == int(data.prompts.lengths[data.base].max())
