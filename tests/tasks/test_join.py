"""Joined tasks: every prompt as it was, in order."""

from dataclasses import replace

import pytest
import torch
from tiny import RAGGED, answers, hooked, task

from interp.errors import TaskError
from interp.metrics import Answers, metric
from interp.tasks.base import Task
from interp.tasks.join import joined
from interp.tokens import from_ids


def wide() -> Task:
    """One longer prompt, scored at two positions, with two right answers each."""
    prompts = from_ids([list(range(3, 15))])
    given = Answers(torch.tensor([[4, 11]]), torch.tensor([[[7, 8], [9, 5]]]), torch.tensor([[[1], [2]]]))
    return Task("wide", prompts, given, metric("logit_diff"), roles={"end": ((11,),)}, groups={"entity": ("w",)})


def test_every_prompt_scores_what_it_scored_alone():
    model, parts = hooked("llama"), [replace(task(), groups={"entity": tuple("abc")}), wide()]
    whole = joined(parts)
    values = whole.metric(model.run(whole.clean, logits=whole.answers.positions).logits, whole.answers)
    alone = [p.metric(model.run(p.clean, logits=p.answers.positions).logits, p.answers) for p in parts]
    assert torch.allclose(values, torch.cat(alone), atol=1e-5)
    assert whole.clean.rows() == [*RAGGED, list(range(3, 15))]
    assert whole.groups == {"entity": ("a", "b", "c", "w"), "task": ("tiny", "tiny", "tiny", "wide")}
    assert whole.roles == {"end": ((5,), (8,), (6,), (11,))}
    assert whole.corrupted is None and whole.name == "tiny + wide"
    assert len(joined([task(), task()], "twice").require_corrupted()) == 6


def test_tasks_that_do_not_go_together_are_refused():
    with pytest.raises(TaskError, match="no tasks to join"):
        joined([])
    with pytest.raises(TaskError, match="cannot be joined"):
        joined([task(), task(metric=metric("logprob"))])
    with pytest.raises(TaskError, match="different tokenizers"):
        joined([task(), task(tokenizer_fingerprint="other", answers=answers())])
