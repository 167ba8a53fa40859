"""Metrics: logits at the scored positions in, one number per prompt out; higher = more of the behaviour.

A `Metric` scores the logits that predict each target of an `Answers` and reduces over the targets present.
All arithmetic is in float32 (float64 where the logits are), so half-precision models are scored in full precision.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import MetricError, check_choice, nearest
from interp.tokens import row_numbers

Reduction = Literal["mean", "sum", "first"]


@dataclass(frozen=True, eq=False)
class Answers:
    """What the model should say, and where: one row a prompt, one column a scored position (a target).

    Args:
        positions: positions whose logits are scored (they predict the next token), counted from the first real
            token; -1 where absent.
        correct: token ids that count as right at each target, -1 where absent; at least one for a present target.
        wrong: token ids that count as wrong, -1 where absent; `n_wrong` may be 0.

    Raises:
        MetricError: shapes that disagree, a prompt without a target, a target without a correct answer.
    """

    positions: Int[Tensor, "batch target"]
    correct: Int[Tensor, "batch target n_correct"]
    wrong: Int[Tensor, "batch target n_wrong"]

    def __post_init__(self) -> None:
        shape = self.positions.shape
        if self.correct.shape[:2] != shape or self.wrong.shape[:2] != shape:
            raise MetricError(
                f"answers disagree: positions {tuple(shape)}, correct {tuple(self.correct.shape)}, wrong "
                f"{tuple(self.wrong.shape)}; the first two axes (batch, target) must be the same."
            )
        _refuse(~self.present.any(1), "have no target", "give each at least one position from 0")
        unanswered = self.present & ~(self.correct >= 0).any(-1)
        _refuse(unanswered.any(1), "have a target without a correct answer", "give each at least one token id")

    def __len__(self) -> int:
        return self.positions.shape[0]

    def __getitem__(self, rows: int | slice | Sequence[int]) -> "Answers":
        """The chosen prompts' answers; an integer keeps the batch axis."""
        picked = row_numbers(rows, len(self))
        return Answers(self.positions[picked], self.correct[picked], self.wrong[picked])

    @property
    def present(self) -> Bool[Tensor, "batch target"]:
        """True where there is a target."""
        return self.positions >= 0

    def to(self, device: torch.device | str) -> "Answers":
        """The same answers on `device`."""
        return Answers(self.positions.to(device), self.correct.to(device), self.wrong.to(device))


@dataclass(frozen=True)
class Metric(ABC):
    """One value per prompt from the logits at its targets; each subclass says how a target is scored.

    Class attributes: `name` (a key of `METRICS`), `local` (reads only the logits of the answers' own ids, so that
    no other column is needed), `discrete` (moves in steps: no gradient, hides small effects), `needs_reference`
    (the clean run's logits), `needs_wrong` (wrong answers at every target).

    Args:
        reduction: over a prompt's targets: their mean, their sum, or the first one alone.
    """

    reduction: Reduction = field(default="mean", kw_only=True)

    name: ClassVar[str]
    local: ClassVar[bool] = False
    discrete: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    needs_wrong: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("reduction", self.reduction, get_args(Reduction))

    @abstractmethod
    def score(
        self, logits: Float[Tensor, "batch target vocab"], answers: Answers, reference: Tensor | None
    ) -> Float[Tensor, "batch target"]:
        """Value at each target, from logits already checked and in full precision; absent targets are ignored."""

    def __call__(
        self,
        logits: Float[Tensor, "batch target vocab"],
        answers: Answers,
        reference: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, " batch"]:
        """One value per prompt, in this metric's unit, differentiable in `logits` unless the metric is discrete.

        Args:
            logits: at the answers' positions.
            reference: the clean run's logits at the same positions, for a metric that needs them.

        Raises:
            MetricError: shapes or ids that do not fit, wrong answers or a reference missing, an undefined value.
        """
        self.check(logits, answers, reference)
        logits = _full_precision(logits)
        scores = self.score(logits, answers, None if reference is None else reference.to(logits.dtype))
        values = _reduce(scores, answers.present, self.reduction)
        _refuse(~values.isfinite(), f"have an undefined {self.name}", "look for infinite or NaN logits")
        return values

    def check(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> None:
        """Raise unless logits, answers and reference fit each other and this metric's needs."""
        if logits.shape[:2] != answers.positions.shape:
            raise MetricError(
                f"{self.name}: logits are {tuple(logits.shape)}, the answers' (batch, target) is "
                f"{tuple(answers.positions.shape)}; give logits [batch, target, vocab] at the answers' positions."
            )
        top = max((int(ids.max()) for ids in (answers.correct, answers.wrong) if ids.numel()), default=-1)
        if top >= logits.shape[-1]:
            raise MetricError(
                f"{self.name}: answer id {top} is outside the logits' columns 0 to {logits.shape[-1] - 1}; "
                "build the task with this model's own tokenizer."
            )
        if self.needs_wrong:
            lacking = answers.present & ~(answers.wrong >= 0).any(-1)
            _refuse(lacking.any(1), f"have no wrong answer, which {self.name} needs", "give some, or use 'logprob'")
        if self.needs_reference and (reference is None or reference.shape != logits.shape):
            found = "none" if reference is None else str(tuple(reference.shape))
            raise MetricError(
                f"{self.name} needs the clean run's logits, shape {tuple(logits.shape)}, as reference; got {found}."
            )


@dataclass(frozen=True)
class LogitDiff(Metric):
    """Mean correct logit minus mean wrong logit, or minus the largest wrong logit; in logits."""

    against: Literal["mean", "max"] = "mean"
    name: ClassVar[str] = "logit_diff"
    local: ClassVar[bool] = True
    needs_wrong: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Metric.__post_init__(self)
        check_choice("against", self.against, ("mean", "max"))

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        wrong = _mean if self.against == "mean" else _largest
        return _mean(logits, answers.correct) - wrong(logits, answers.wrong)


@dataclass(frozen=True)
class Logit(Metric):
    """Mean logit of the correct ids, whatever happens to the others; in logits."""

    name: ClassVar[str] = "logit"
    local: ClassVar[bool] = True

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        return _mean(logits, answers.correct)


@dataclass(frozen=True)
class LogProb(Metric):
    """Log-probability of the answer, of all its tokens together; nats, at most 0.

    Where several tokens are correct at one target, it is the log of their total probability.
    """

    reduction: Reduction = field(default="sum", kw_only=True)
    name: ClassVar[str] = "logprob"

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        return _log_total(logits, answers.correct)


@dataclass(frozen=True)
class NegNLL(Metric):
    """Minus the loss: the log-probability of a correct token, averaged over the targets; nats, at most 0."""

    name: ClassVar[str] = "neg_nll"

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        return _log_total(logits, answers.correct)


@dataclass(frozen=True)
class Prob(Metric):
    """Total probability of the correct set, 0 to 1."""

    name: ClassVar[str] = "prob"

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        return _total(logits.softmax(-1), answers.correct)


@dataclass(frozen=True)
class ProbDiff(Metric):
    """Total probability of the correct set minus that of the wrong set, -1 to 1."""

    name: ClassVar[str] = "prob_diff"
    needs_wrong: ClassVar[bool] = True

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        probs = logits.softmax(-1)
        return _total(probs, answers.correct) - _total(probs, answers.wrong)


@dataclass(frozen=True)
class KL(Metric):
    """Minus KL(reference || run) over the whole vocabulary; nats, at most 0, and 0 for the clean run itself."""

    name: ClassVar[str] = "kl"
    needs_reference: ClassVar[bool] = True

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        assert reference is not None, "__call__ has checked that there is a reference"
        clean = reference.log_softmax(-1)
        terms = clean.exp() * (logits.log_softmax(-1) - clean)
        return terms.where(clean > -torch.inf, 0.0).sum(-1)  # 0 log 0 = 0


@dataclass(frozen=True)
class Accuracy(Metric):
    """1 where the most likely token of the vocabulary is correct, else 0."""

    name: ClassVar[str] = "accuracy"
    discrete: ClassVar[bool] = True

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        return (answers.correct == logits.argmax(-1, keepdim=True)).any(-1).to(logits.dtype)


@dataclass(frozen=True)
class Preference(Metric):
    """1 where the best correct answer beats every wrong one, else 0; a tie is 0."""

    name: ClassVar[str] = "preference"
    local: ClassVar[bool] = True
    discrete: ClassVar[bool] = True
    needs_wrong: ClassVar[bool] = True

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        return (_largest(logits, answers.correct) > _largest(logits, answers.wrong)).to(logits.dtype)


@dataclass(frozen=True, eq=False)
class LogitDirection(Metric):
    """Any linear read-out of the logits: their dot product with `weights`, one weight a vocabulary entry; logits."""

    weights: Float[Tensor, " vocab"] = field(repr=False)
    name: ClassVar[str] = "logit_direction"

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        if self.weights.shape[0] != logits.shape[-1]:
            raise MetricError(
                f"logit_direction has {self.weights.shape[0]} weights, the vocabulary has {logits.shape[-1]} entries; "
                "give one weight for each."
            )
        return logits @ self.weights.to(logits)


METRICS: dict[str, type[Metric]] = {
    kind.name: kind
    for kind in (LogitDiff, Logit, LogProb, Prob, ProbDiff, KL, NegNLL, Accuracy, Preference, LogitDirection)
}


def metric(name: "str | Metric", **options: Any) -> Metric:
    """The metric of that name; a `Metric` passes through.

    Args:
        name: a key of `METRICS`.
        options: the metric's own arguments, such as ``reduction="sum"``.

    Raises:
        MetricError: an unknown name or option, or options beside a ready `Metric`.

    >>> metric("logit_diff", against="max")
    LogitDiff(reduction='mean', against='max')
    """
    if isinstance(name, Metric):
        if options:
            raise MetricError(f"options {options} were given beside {name!r}; set them when making it.")
        return name
    if name not in METRICS:
        raise MetricError(f"no metric {name!r}; allowed: {', '.join(METRICS)}{nearest(str(name), METRICS)}.")
    allowed = [each.name for each in fields(METRICS[name])]
    unknown = [option for option in options if option not in allowed]
    if unknown:
        raise MetricError(f"metric {name!r} has no option {unknown}; allowed: {allowed}{nearest(unknown[0], allowed)}.")
    return METRICS[name](**options)


def _full_precision(values: Tensor) -> Tensor:
    """float64 stays, everything else becomes float32."""
    return values if values.dtype == torch.float64 else values.float()


def _reduce(scores: Tensor, present: Tensor, reduction: str) -> Tensor:
    """Over the targets present: [batch, target] to [batch]."""
    scores = scores.where(present, 0.0)
    if reduction == "first":
        return scores.gather(1, present.int().argmax(1, keepdim=True))[:, 0]
    return scores.sum(1) / (present.sum(1) if reduction == "mean" else 1)


def _picked(columns: Tensor, ids: Tensor) -> Tensor:
    """Columns of the ids, whatever stands in for absent ones: [batch, target, id]."""
    return columns.gather(-1, ids.clamp(min=0))


def _total(columns: Tensor, ids: Tensor) -> Tensor:
    return _picked(columns, ids).where(ids >= 0, 0.0).sum(-1)


def _mean(columns: Tensor, ids: Tensor) -> Tensor:
    return _total(columns, ids) / (ids >= 0).sum(-1).clamp(min=1)


def _largest(columns: Tensor, ids: Tensor) -> Tensor:
    return _floored(columns, ids).amax(-1)


def _log_total(logits: Tensor, ids: Tensor) -> Tensor:
    return _floored(logits.log_softmax(-1), ids).logsumexp(-1)


def _floored(columns: Tensor, ids: Tensor) -> Tensor:
    """Columns of the ids, minus infinity for absent ones."""
    return _picked(columns, ids).where(ids >= 0, -torch.inf)


def _refuse(faulty: Tensor, what: str, cure: str) -> None:
    """Raise `MetricError` naming the faulty prompts, if there are any."""
    if faulty.any():
        rows = faulty.nonzero()[:, 0].tolist()
        shown = ", ".join(map(str, rows[:10])) + (f" and {len(rows) - 10} more" if len(rows) > 10 else "")
        raise MetricError(f"prompts {shown} {what}; {cure}.")
