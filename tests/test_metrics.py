"""Metrics: hand-computed values, exact relations between them, and errors by their message."""

import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import MetricError, OptionError
from interp.metrics import (
    KL,
    METRICS,
    Accuracy,
    Answers,
    Logit,
    LogitDiff,
    LogitDirection,
    LogProb,
    Metric,
    NegNLL,
    Preference,
    Prob,
    ProbDiff,
    metric,
)


def answers(correct, wrong, positions=None) -> Answers:
    """Answers from nested lists [batch][target][id]."""
    correct, wrong = torch.tensor(correct), torch.tensor(wrong, dtype=torch.long)
    return Answers(
        torch.zeros(correct.shape[:2]).long() if positions is None else torch.tensor(positions), correct, wrong
    )


def random_case(seed: int, batch: int = 3, targets: int = 2, vocab: int = 7) -> tuple[torch.Tensor, Answers]:
    """Random logits, with answers of varying number and an absent target."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, targets, vocab, generator=generator)
    ids = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(batch * targets)])
    ids = ids.view(batch, targets, vocab)
    correct, wrong = ids[..., :3].clone(), ids[..., 3:5].clone()
    correct[0, :, 2] = -1
    wrong[1, :, 1] = -1
    positions = torch.arange(targets).repeat(batch, 1)
    positions[2, -1] = -1
    return logits, Answers(positions, correct, wrong)


def unchecked(kind: type, *parts: Any, **options: Any) -> Any:
    """An instance made without the tests' own checks of types and shapes, as a user makes it."""
    made = object.__new__(kind)
    inspect.unwrap(kind.__init__)(made, *parts, **options)
    return made


LOGITS = torch.tensor([[[1.0, 2.0, 4.0, -1.0]]])
ONE = answers([[[2, 1]]], [[[0, 3]]])


def test_logit_diff_is_mean_correct_minus_mean_wrong() -> None:
    assert LogitDiff()(LOGITS, ONE).tolist() == [3.0 - 0.0]


def test_logit_is_the_mean_correct_logit_alone() -> None:
    assert Logit()(LOGITS, ONE).tolist() == [3.0]
    assert Logit()(LOGITS, answers([[[2]]], [[[]]])).tolist() == [4.0]


def test_logit_diff_against_max_takes_the_largest_wrong_logit() -> None:
    assert LogitDiff(against="max")(LOGITS, ONE).tolist() == [3.0 - 1.0]


def test_absent_ids_do_not_count() -> None:
    padded = answers([[[2, -1]]], [[[-1, 0]]])
    assert LogitDiff()(LOGITS, padded).tolist() == [3.0]
    assert LogitDiff(against="max")(LOGITS, padded).tolist() == [3.0]
    assert torch.equal(ProbDiff()(LOGITS, padded), ProbDiff()(LOGITS, answers([[[2]]], [[[0]]])))


def test_probabilities_of_sets_add() -> None:
    probs = LOGITS.softmax(-1)[0, 0]
    assert Prob()(LOGITS, ONE).item() == pytest.approx(float(probs[1] + probs[2]), abs=1e-6)
    assert ProbDiff()(LOGITS, ONE).item() == pytest.approx(float(probs[1] + probs[2] - probs[0] - probs[3]), abs=1e-6)
    assert LogProb()(LOGITS, ONE).item() == pytest.approx(math.log(float(probs[1] + probs[2])), abs=1e-6)


def test_logprob_sums_and_neg_nll_averages_over_the_targets() -> None:
    logits = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([1, 4, 2])
    each = -torch.nn.functional.cross_entropy(logits[0], targets, reduction="none")
    sequence = answers(targets.view(1, 3, 1).tolist(), [[[], [], []]])
    torch.testing.assert_close(LogProb()(logits, sequence), each.sum()[None])
    torch.testing.assert_close(NegNLL()(logits, sequence), each.mean()[None])
    torch.testing.assert_close(NegNLL(reduction="first")(logits, sequence), each[:1])


def test_kl_is_zero_on_the_reference_and_negative_elsewhere() -> None:
    logits, given_answers = random_case(0)
    assert KL()(logits, given_answers, logits).tolist() == [0.0, 0.0, 0.0]
    other = logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.kl_div(
        other.log_softmax(-1), logits.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    value = KL()(other, given_answers, logits)
    torch.testing.assert_close(value, -torch.stack([expected[0].mean(), expected[1].mean(), expected[2, 0]]))
    assert (value < 0).all()


def test_kl_takes_tokens_that_the_reference_excludes() -> None:
    reference = LOGITS.clone()
    reference[..., 3] = -torch.inf
    expected = LOGITS[0, 0, :3].logsumexp(0) - LOGITS[0, 0].logsumexp(0)
    assert KL()(LOGITS, ONE, reference).item() == pytest.approx(float(expected), abs=1e-6)


def test_accuracy_reads_the_whole_vocabulary_and_preference_only_the_answers() -> None:
    case = answers([[[1]]], [[[0]]])
    assert Accuracy()(LOGITS, case).tolist() == [0.0]
    assert Preference()(LOGITS, case).tolist() == [1.0]
    assert Accuracy()(LOGITS, ONE).tolist() == [1.0]


def test_a_tie_is_no_preference() -> None:
    assert Preference()(torch.zeros(1, 1, 3), answers([[[1]]], [[[0]]])).tolist() == [0.0]


def test_a_logit_direction_can_be_a_logit_difference() -> None:
    weights = torch.tensor([-0.5, 0.5, 0.5, -0.5])
    assert torch.equal(LogitDirection(weights)(LOGITS, ONE), LogitDiff()(LOGITS, ONE))


@pytest.mark.parametrize("name", METRICS)
def test_a_prompt_scores_alone_as_in_its_batch(name: str) -> None:
    logits, given_answers = random_case(3)
    measure = metric(name, **({"weights": torch.arange(7.0)} if name == "logit_direction" else {}))
    reference = logits.flip(-1)
    together = measure(logits, given_answers, reference)
    alone = [measure(logits[i : i + 1], given_answers[i], reference[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("name", [name for name, kind in METRICS.items() if kind.local])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_local_metric_needs_only_its_own_columns(name: str, seed: int) -> None:
    logits, full = random_case(seed)
    ids = torch.cat([full.correct, full.wrong], -1)
    columns = logits.gather(-1, ids.clamp(min=0))
    order = torch.arange(ids.shape[-1]).expand_as(ids).where(ids >= 0, -1)
    compact = Answers(full.positions, order[..., :3], order[..., 3:])
    assert torch.equal(metric(name)(logits, full), metric(name)(columns, compact))


@pytest.mark.parametrize("name", [name for name, kind in METRICS.items() if not kind.discrete])
def test_gradients_are_finite_and_absent_targets_have_none(name: str) -> None:
    logits, full = random_case(5)
    full = Answers(full.positions, full.correct.clone(), full.wrong.clone())
    full.correct[2, -1], full.wrong[2, -1] = -1, -1
    logits.requires_grad_()
    measure = metric(name, **({"weights": torch.arange(7.0)} if name == "logit_direction" else {}))
    (gradient,) = torch.autograd.grad(measure(logits, full, logits.detach().flip(-1)).sum(), logits)
    assert gradient.isfinite().all() and gradient[0].abs().sum() > 0
    assert gradient[2, -1].abs().sum() == 0


def test_the_sum_is_the_mean_times_the_number_of_present_targets() -> None:
    logits, full = random_case(1)
    total, mean = LogitDiff(reduction="sum")(logits, full), LogitDiff()(logits, full)
    torch.testing.assert_close(total, mean * torch.tensor([2.0, 2.0, 1.0]))


def test_the_first_target_is_the_first_present_one() -> None:
    logits, _ = random_case(2)
    late = answers([[[1], [2]]] * 3, [[[0], [0]]] * 3, [[-1, 4]] * 3)
    torch.testing.assert_close(LogitDiff(reduction="first")(logits, late), logits[:, 1, 2] - logits[:, 1, 0])


@pytest.mark.parametrize(("dtype", "result"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_arithmetic_is_in_full_precision(dtype: torch.dtype, result: torch.dtype) -> None:
    logits, full = random_case(0)
    rounded = logits.to(dtype)
    value = LogProb()(rounded, full)
    assert value.dtype == result
    torch.testing.assert_close(value, LogProb()(rounded.to(result), full))


def test_answers_keep_their_rows_together() -> None:
    _, full = random_case(0)
    picked = full[[2, 0]]
    assert len(picked) == 2 and torch.equal(picked.correct[1], full.correct[0])
    assert len(full[1]) == 1 and len(full[1:]) == 2
    assert full.present.tolist() == [[True, True], [True, True], [True, False]]


def bad_answers() -> dict[str, tuple[object, str]]:
    ids = torch.zeros(2, 1, 1, dtype=torch.long)
    none = torch.zeros(2, 1, 0, dtype=torch.long)
    return {
        "shape": ((torch.zeros(3, 1).long(), ids, none), r"answers disagree: positions \(3, 1\), correct \(2, 1, 1\)"),
        "target": ((torch.tensor([[0], [-1]]), ids, none), "prompts 1 have no target; give each at least one"),
        "correct": ((torch.zeros(2, 1).long(), ids - 1, none), "prompts 0, 1 have a target without a correct answer"),
    }


@pytest.mark.parametrize("case", ["shape", "target", "correct"])
def test_answers_that_contradict_themselves_are_refused(case: str) -> None:
    parts, message = bad_answers()[case]
    with pytest.raises(MetricError, match=message):
        unchecked(Answers, *parts)


def test_logits_of_another_batch_are_refused() -> None:
    with pytest.raises(
        MetricError, match=r"logit_diff: logits are \(2, 1, 4\), the answers' \(batch, target\) is \(1, 1\)"
    ):
        LogitDiff()(LOGITS.repeat(2, 1, 1), ONE)


def test_an_answer_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(
        MetricError, match="answer id 4 is outside the logits' columns 0 to 3; build the task with this"
    ):
        LogProb()(LOGITS, answers([[[4]]], [[[]]]))


def test_missing_wrong_answers_are_named() -> None:
    with pytest.raises(MetricError, match="prompts 0 have no wrong answer, which logit_diff needs; give some, or use"):
        LogitDiff()(LOGITS, answers([[[1]]], [[[]]]))


@pytest.mark.parametrize(("reference", "found"), [(None, "got none"), (torch.zeros(1, 1, 3), r"got \(1, 1, 3\)")])
def test_kl_asks_for_a_reference_of_the_same_shape(reference: torch.Tensor | None, found: str) -> None:
    with pytest.raises(
        MetricError, match=rf"kl needs the clean run's logits, shape \(1, 1, 4\), as reference; {found}"
    ):
        KL()(LOGITS, ONE, reference)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_undefined_value_is_never_returned(value: float) -> None:
    logits = LOGITS.repeat(2, 1, 1)
    logits[1, 0, 2] = value
    with pytest.raises(MetricError, match="prompts 1 have an undefined logit_diff; look for infinite or NaN logits"):
        LogitDiff()(logits, answers([[[2]]] * 2, [[[0]]] * 2))


def test_a_logit_direction_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(MetricError, match="logit_direction has 3 weights, the vocabulary has 4 entries"):
        LogitDirection(torch.ones(3))(LOGITS, ONE)


def test_metrics_are_found_by_name() -> None:
    assert metric("logit_diff", against="max") == LogitDiff(against="max")
    assert metric(KL()) == KL()
    assert all(kind.name == name and issubclass(kind, Metric) for name, kind in METRICS.items())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("logitdiff", {}, r"no metric 'logitdiff'; allowed: logit_diff, .*nearest: 'logit_diff'"),
        ("kl", {"reduce": "sum"}, r"metric 'kl' has no option \['reduce'\]; allowed: \['reduction'\]; nearest"),
        (KL(), {"reduction": "sum"}, r"options \{'reduction': 'sum'\} were given beside KL"),
    ],
)
def test_unknown_metrics_and_options_name_the_nearest(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(MetricError, match=message):
        metric(name, **options)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(OptionError, match="reduction is 'avg'; allowed: 'mean', 'sum', 'first'"):
        unchecked(LogProb, reduction="avg")
    with pytest.raises(OptionError, match="against is 'min'; allowed: 'mean', 'max'"):
        unchecked(LogitDiff, against="min")
