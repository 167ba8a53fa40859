"""Contexts that the model predicts: each one against a run of its own, and against the rule that chose it."""

from functools import cache

import pytest
import torch
from tiny import hooked, unchecked

import interp
from interp.errors import OptionError, PromptError
from interp.predicted import Contexts, cut_from_left, is_induction, predicted_contexts
from interp.tokens import Prompts, from_ids
from interp.toy import documents

BAR = 0.3


@cache
def embedded():
    return interp.load("embedded")


@cache
def texts() -> Prompts:
    return embedded().prompts(documents(40, 11))


def loss_alone(model, ids: list[int], answer: int) -> float:
    """-log p(answer) from a run of the one prompt, whose last position is looked at."""
    (logits,) = model.run(from_ids([ids]), logits="last").logits[0]
    return -float(logits.double().log_softmax(-1)[answer])


def expected(model, prompts, *, below, length, skip_induction):
    """All contexts, by definition: one run each."""
    found = {}
    for number, ids in enumerate(prompts.rows()):
        for place in range(1, len(ids)):
            context, answer = ids[max(0, place - length) : place], ids[place]
            pairs = [(context[k], context[k + 1]) for k in range(len(context) - 1)]
            if skip_induction and (context[-1], answer) in pairs:
                continue
            losses = {loss_alone(model, ids[:place], answer), loss_alone(model, context, answer)}
            if max(losses) < below:
                found.setdefault((tuple(context), answer), (number, place))
    return found


def keys(found: Contexts):
    return {
        (tuple(ids), int(answer)): tuple(origin.tolist())
        for ids, answer, origin in zip(found.prompts.rows(), found.answers, found.origin, strict=True)
    }


@pytest.mark.parametrize(("length", "skip_induction"), [(64, True), (64, False), (6, True)])
def test_they_are_all_that_the_definition_asks_for(length, skip_induction):
    few = texts()[[*range(12), 3]]  # one twice
    options = {"below": BAR, "length": length, "skip_induction": skip_induction}
    found = predicted_contexts(embedded(), few, batch=5, **options)
    wanted = expected(embedded(), few, **options)
    assert keys(found) == wanted and len(found) == len(wanted) > 20


def test_losses_are_those_of_the_cut_context():
    found = predicted_contexts(embedded(), texts(), below=BAR, length=5)
    assert found.dropped["cut"] > 0 and int(found.prompts.lengths.max()) == 5
    alone = [loss_alone(embedded(), ids, int(a)) for ids, a in zip(found.prompts.rows(), found.answers, strict=True)]
    torch.testing.assert_close(found.losses, torch.tensor(alone), atol=1e-5, rtol=1e-4)
    assert float(found.losses.max()) < BAR


def test_every_dropped_candidate_is_counted():
    for options in ({}, {"length": 5}, {"most": 7, "length": 5}, {"one_a_text": True}):
        found = predicted_contexts(embedded(), texts(), below=BAR, **options)
        assert found.parameters["predicted"] == len(found) + sum(found.dropped.values()), options


def test_a_context_does_not_depend_on_batch_or_on_other_prompts():
    whole = predicted_contexts(embedded(), texts(), below=BAR, batch=40)
    alone = predicted_contexts(embedded(), texts(), below=BAR, batch=1)
    assert keys(whole) == keys(alone)
    torch.testing.assert_close(whole.losses, alone.losses, atol=1e-5, rtol=1e-4)


def test_induction_is_a_pair_seen_before():
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(300):
        *context, answer = torch.randint(4, (9,), generator=generator).tolist()
        there = [k for k in range(len(context) - 1) if context[k] == context[-1] and context[k + 1] == answer]
        assert is_induction(context, answer) == bool(there)
        found.append(bool(there))
    assert {True, False} == set(found)
    assert not is_induction([5], 5) and is_induction([5, 5], 5)


def test_a_cut_keeps_a_bos():
    assert cut_from_left([9, 1, 2, 3, 4], 3, None) == [2, 3, 4]
    assert cut_from_left([9, 1, 2, 3, 4], 3, 9) == [9, 3, 4]
    assert cut_from_left([9, 1, 2], 3, 9) == [9, 1, 2] and cut_from_left([9, 1, 2], 1, 9) == [9]


def test_one_a_text_and_most_are_drawn_by_the_seed():
    every = keys(predicted_contexts(embedded(), texts(), below=BAR))
    ones = [predicted_contexts(embedded(), texts(), below=BAR, one_a_text=True, seed=seed) for seed in (0, 0, 1)]
    assert keys(ones[0]) == keys(ones[1]) != keys(ones[2])
    prompts = ones[0].origin[:, 0].tolist()
    assert len(set(prompts)) == len(prompts) == len({number for number, _ in every.values()})
    few = predicted_contexts(embedded(), texts(), below=BAR, most=9)
    assert len(few) == 9 and keys(few).items() <= every.items()
    assert few.origin.tolist() == sorted(few.origin.tolist())


def test_no_context_ends_at_the_sink(monkeypatch):
    bare = predicted_contexts(embedded(), texts(), below=BAR)
    assert int(bare.prompts.lengths.min()) == 1
    monkeypatch.setattr(embedded(), "has_sink", True)
    found = predicted_contexts(embedded(), texts(), below=BAR)
    assert keys(found) == {key: origin for key, origin in keys(bare).items() if len(key[0]) > 1}
    with pytest.raises(OptionError, match="length from 2"):
        predicted_contexts(embedded(), texts(), length=1)


def test_the_task_scores_minus_the_loss():
    found = predicted_contexts(embedded(), texts(), below=BAR, most=20)
    task = found.task("a name")
    run = embedded().run(task.clean, logits=task.answers.positions)
    torch.testing.assert_close(task.metric(run.logits, task.answers), -found.losses, atol=1e-5, rtol=1e-4)
    assert (task.name, task.metric.name, task.corrupted) == ("a name", "logprob", None)
    assert task.roles["end"] == tuple((n - 1,) for n in found.prompts.lengths.tolist())
    assert found.answer_tokens[3].strip() == embedded().tokenizer.decode([int(found.answers[3])]).strip()
    some = found[[3, 0]]
    assert some.answers.tolist() == found.answers[[3, 0]].tolist() and some.answer_tokens == (
        found.answer_tokens[3],
        found.answer_tokens[0],
    )


def test_a_model_without_a_tokenizer_gives_ids():
    found = predicted_contexts(hooked("gpt2"), [[5, 17, 3, 88, 41], [7, 8, 9]], below=50.0)
    assert len(found) == 6 and found.answer_tokens == () and found.prompts.tokens == ()
    assert len(found[:2]) == 2 and found[:2].answer_tokens == () and found.gap == " "


def test_the_gap_between_tokens_is_that_of_the_tokenizer():
    found = predicted_contexts(embedded(), texts(), below=BAR, most=5)
    for ids, tokens in zip(found.prompts.rows(), found.prompts.tokens, strict=True):
        assert found.gap.join(tokens) == embedded().tokenizer.decode(ids)
    assert found.gap == found[:2].gap == " "


def test_what_cannot_be_is_said():
    with unchecked():
        for wrong in ({"below": 0.0}, {"length": 0}, {"most": 0}, {"batch": 0}):
            with pytest.raises(OptionError, match="below above 0, length from 1"):
                predicted_contexts(embedded(), texts(), **wrong)
        with pytest.raises(PromptError, match=r"of \d+ tokens, 0 have a loss below 1e-09 and none is left; dropped"):
            predicted_contexts(embedded(), texts(), below=1e-9)
        with pytest.raises(PromptError, match=r"of 0 tokens, 0 have"):
            predicted_contexts(embedded(), [[5], [6]], below=1.0)
