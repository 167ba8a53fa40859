"""Tasks as counterfactuals: interchange accuracy at the last layer's end is the clean run's accuracy."""

import numpy as np
import pytest
import torch

import interp
from interp.errors import TaskError
from interp.interchange.exchanges import FullVector
from interp.interchange.from_task import task_counterfactuals
from interp.interchange.placing import AtRoles
from interp.interchange.scores import score_interchange
from interp.interchange.states import Resumption, entry, states_of
from interp.metrics import Accuracy
from interp.site import Site


@pytest.fixture(scope="module")
def model() -> interp.models.base.HookedModel:
    return interp.load("embedded")


def accuracy(model, data, site: str, role: str) -> interp.interchange.scores.InterchangeScores:
    place = Site.parse(site)
    states = states_of(model, data.prompts, list({entry(place), place}), progress=False)
    return score_interchange(Resumption(model, place, states), data, AtRoles(place, FullVector(), role), progress=False)


def test_the_whole_last_state_carries_the_answer_and_the_first_does_not(model) -> None:
    task = interp.task("ioi", model.tokenizer, n=40)
    sets = task_counterfactuals(task, concept="name", by="template")
    test = sets["test"]
    assert test.concept_names == ("name",) and test.causes.all() and test.prompts is sets["train"].prompts
    last = f"resid_post[{model.shape.n_layers - 1}]"
    found = accuracy(model, test, last, "end")
    rows = [int(row) for row in test.source]
    logits = model.run(test.prompts[rows]).logits[:, -1]
    right = (logits.argmax(-1) == torch.tensor([answer[0] for answer in test.answers])).numpy()
    assert np.array_equal(found.full, right) and found.cause("name") == right.mean()
    assert accuracy(model, test, "resid_post[0]", "end").cause() < found.cause()
    assert Accuracy().name == "accuracy"


def test_answers_of_several_tokens_follow_their_prompts(model) -> None:
    names = interp.task("ioi", model.tokenizer, n=8)
    pairs = [
        interp.Pair(clean, [" Mary went", " John went"][n % 2], corrupted=corrupted, groups={"entity": str(n)})
        for n, (clean, corrupted) in enumerate(zip(names.clean.texts, names.corrupted.texts, strict=True))
    ]
    task = interp.make_task("two words", pairs, model.tokenizer, multi_token="sequence")
    test = task_counterfactuals(task, by=())["test"]
    for n in range(len(test)):
        assert len(test.answers[n]) == 2
        base, length = test.prompts.rows()[test.base[n]], test.lengths[test.base[n]]
        assert base[length:] == list(test.answers[n][:-1]) and test.prompts.lengths[test.source[n]] == length


def test_a_task_without_counterparts_is_refused(model) -> None:
    task = interp.task("ioi", model.tokenizer, n=8)
    from dataclasses import replace

    with pytest.raises(TaskError, match="has no corrupted prompts"):
        task_counterfactuals(replace(task, corrupted=None), by=())
