"""Scores from final residuals equal the metrics of full logits, whatever part of the logits is computed."""

import pytest
import tiny
import torch
from torch import Tensor

import interp.scoring
from interp.errors import MetricError, OptionError, TaskError
from interp.metrics import METRICS, Answers, LogitDiff, LogitDirection, Metric, metric
from interp.models.base import HookedModel
from interp.scoring import FINAL, OutputScorer, Scorer, checked_metrics, clean_reference
from interp.tasks.base import Task
from interp.tokens import tokenizer_fingerprint

G2 = tiny.hooked("gpt2")
POSITIONS = torch.tensor([[5, -1, -1], [2, 4, 8], [6, 3, -1]])
CORRECT = torch.tensor([[[3, 4], [-1, -1], [-1, -1]], [[5, -1], [6, 7], [8, 3]], [[9, 1], [2, -1], [-1, -1]]])
SEVERAL = Answers(POSITIONS, CORRECT, torch.where(CORRECT < 0, -1, CORRECT + 30))
TASK = tiny.task(answers=SEVERAL)
NAMES = [name for name in METRICS if name != "logit_direction"]


def metrics(*names: str) -> tuple[Metric, ...]:
    return tuple(map(metric, names))


def whole(model: HookedModel, task: Task, one: Metric) -> Tensor:
    """The metric of the corrupted prompts' full logits."""
    logits, reference = (
        model.run(prompts, logits=task.answers.positions).logits for prompts in (task.corrupted, task.clean)
    )
    return one(logits, task.answers, reference if one.needs_reference else None)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gptj"])
def test_local_metrics_alone_and_all_metrics_together_equal_those_of_full_logits(family: str) -> None:
    model = tiny.hooked(family)
    run = model.run(TASK.corrupted, record=[FINAL], logits="none")
    local = [name for name in NAMES if METRICS[name].local]
    assert local == ["logit_diff", "logit", "preference"]
    for names in (local, NAMES):
        chosen = metrics(*names)
        found = Scorer(model, chosen, SEVERAL, clean_reference(model, chosen, TASK)).of_run(run)
        expected = torch.stack([whole(model, TASK, one) for one in chosen])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_options_of_a_metric_hold_where_only_the_answers_columns_are_computed() -> None:
    run = G2.run(TASK.corrupted, record=[FINAL], logits="none")
    for one in (LogitDiff(against="max"), LogitDiff(reduction="first"), LogitDiff(reduction="sum")):
        torch.testing.assert_close(Scorer(G2, (one,), SEVERAL).of_run(run)[0], whole(G2, TASK, one))


def test_a_metric_without_wrong_answers_needs_none() -> None:
    answers = Answers(POSITIONS, CORRECT, torch.zeros(3, 3, 0, dtype=torch.long))
    run = G2.run(TASK.corrupted, record=[FINAL], logits="none")
    torch.testing.assert_close(
        Scorer(G2, metrics("logit"), answers).of_run(run)[0], whole(G2, TASK, metric("logit")), atol=1e-5, rtol=1e-5
    )


def test_rows_choose_their_prompts_and_targets_before_a_suffix_come_from_the_base_run() -> None:
    chosen = metrics("logit_diff", "kl")
    scorer = Scorer(G2, chosen, SEVERAL, clean_reference(G2, chosen, TASK))
    final = G2.run(TASK.corrupted, record=[FINAL], logits="none")[FINAL]
    usual = scorer(final, torch.arange(3))
    rows = torch.tensor([2, 0, 2, 1])
    torch.testing.assert_close(scorer(final[rows], rows), usual[:, rows])
    base = G2.run(TASK.clean, record=[FINAL], logits="none")[FINAL]
    for first in range(1, 6):
        mixed = final.clone()
        mixed[:, :first] = base[:, :first]
        torch.testing.assert_close(
            scorer(final[:, first:], torch.arange(3), first, base), scorer(mixed, torch.arange(3))
        )


def test_few_rows_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = metrics("kl", "logit_diff")
    scorer = Scorer(G2, chosen, SEVERAL, clean_reference(G2, chosen, TASK))
    run = G2.run(TASK.corrupted, record=[FINAL], logits="none")
    usual = scorer.of_run(run)
    monkeypatch.setattr(interp.scoring, "MOST_LOGITS", 1)
    torch.testing.assert_close(scorer.of_run(run), usual)


def test_the_last_target_ignores_absent_ones_and_a_reference_is_made_only_when_needed() -> None:
    assert Scorer(G2, metrics("logit"), SEVERAL).last_target.tolist() == [5, 8, 6]
    assert clean_reference(G2, metrics("logit_diff", "prob"), TASK) is None
    reference = clean_reference(G2, metrics("kl"), TASK)
    assert reference is not None and reference.shape == (3, 3, 97)
    clean = Scorer(G2, metrics("kl"), SEVERAL, reference).of_run(G2.run(TASK.clean, record=[FINAL], logits="none"))
    torch.testing.assert_close(clean, torch.zeros(1, 3), atol=1e-6, rtol=0)


def test_metrics_are_the_tasks_own_or_those_named() -> None:
    assert checked_metrics(G2, TASK) == (TASK.metric,)
    assert checked_metrics(G2, TASK, "kl") == (metric("kl"),)
    assert checked_metrics(G2, TASK, LogitDiff(against="max")) == (LogitDiff(against="max"),)
    assert checked_metrics(G2, TASK, ["kl", LogitDirection(torch.ones(97))])[0] == metric("kl")


def test_metrics_that_cannot_be_measured_are_refused_without_a_run() -> None:
    with pytest.raises(MetricError, match="no metric 'k1'; allowed: .*nearest: 'kl'"):
        checked_metrics(G2, TASK, ["k1"])
    with pytest.raises(OptionError, match=r"metrics \['kl', 'kl'\] are given more than once"):
        checked_metrics(G2, TASK, ["kl", "kl"])
    bare = tiny.task(answers=Answers(POSITIONS, CORRECT, torch.zeros(3, 3, 0, dtype=torch.long)))
    with pytest.raises(MetricError, match="prompts 0, 1, 2 have no wrong answer, which prob_diff needs"):
        checked_metrics(G2, bare, ["kl", "prob_diff"])
    beyond = tiny.task(answers=Answers(POSITIONS, CORRECT + 90, CORRECT))
    with pytest.raises(MetricError, match="logit: answer id 99 is outside the logits' columns 0 to 96"):
        checked_metrics(G2, beyond, ["logit"])


def test_a_task_of_another_tokenizer_is_refused_and_one_without_is_taken() -> None:
    model = tiny.HookedHF(tiny.build("gpt2"), tiny.TK(), check=False)
    with pytest.raises(
        TaskError, match=r"task 'tiny' was built with another tokenizer \(fingerprint other\) than that"
    ):
        checked_metrics(model, tiny.task(tokenizer_fingerprint="other"))
    checked_metrics(model, tiny.task(tokenizer_fingerprint=tokenizer_fingerprint(tiny.TK())))
    checked_metrics(model, tiny.task())
    checked_metrics(G2, tiny.task(tokenizer_fingerprint="other"))


def test_outputs_are_log_probabilities_at_the_last_target() -> None:
    run = G2.run(TASK.clean, record=[FINAL], logits=POSITIONS)
    last = torch.tensor([0, 2, 0])  # of positions 5; 2, 4, 8; 6, 3
    expected = run.logits[torch.arange(3), last].float().log_softmax(-1)
    found = OutputScorer(G2, (), TASK.answers).of_run(run)
    torch.testing.assert_close(found.T, expected, atol=1e-5, rtol=1e-5)
