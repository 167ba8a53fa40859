"""Scoring rows of final residuals: only the logits a metric reads are ever computed.

A `Scorer` holds a task's answers and metrics for some prompts and turns `resid_final` rows into metric values. Where
every metric is local (logit difference, say), only the answers' own columns of the unembedding are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import MetricError, OptionError, TaskError
from interp.metrics import Answers, Metric, metric
from interp.models.base import HookedModel
from interp.models.runs import Run
from interp.site import Site
from interp.tasks.base import Task
from interp.tokens import tokenizer_fingerprint

FINAL = Site("resid_final")
MOST_LOGITS = 2**25
"""Logits in memory at once, 128 MiB in float32, for metrics that read the whole vocabulary."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """Metric values from `resid_final`.

    Args:
        metrics: evaluated together.
        answers: one row a prompt.
        reference: the clean run's logits at the targets [prompt, target, d_vocab], for metrics that need them.
    """

    model: HookedModel
    metrics: tuple[Metric, ...]
    answers: Answers
    reference: Float[Tensor, "prompt target d_vocab"] | None = None

    @property
    def size(self) -> int:
        """How many values it gives a row."""
        return len(self.metrics)

    @property
    def last_target(self) -> Int[Tensor, " prompt"]:
        """The last position of each prompt whose logits are read."""
        return self.answers.positions.max(1).values

    def take(self, rows: list[int]) -> "Scorer":
        """The scorer of some of the prompts."""
        reference = None if self.reference is None else self.reference[rows]
        return replace(self, answers=self.answers[rows], reference=reference)

    def of_run(self, run: Run) -> Float[Tensor, "metric prompt"]:
        """Values of a run that recorded `resid_final`, one row a prompt."""
        rows = torch.arange(len(run.prompts), device=run[FINAL].device)
        return self(run[FINAL], rows)

    def __call__(
        self,
        resid: Float[Tensor, "row pos d_model"],
        prompts: Int[Tensor, " row"],
        first: int = 0,
        before: Float[Tensor, "prompt width d_model"] | None = None,
    ) -> Float[Tensor, "metric row"]:
        """Values of rows that computed positions `first` and later of their prompts.

        Args:
            resid: `resid_final` of the rows.
            prompts: which prompt (row of the answers) each row belongs to.
            before: `resid_final` of the prompts, for targets before `first`, which no patch can change.
        """
        answers = self.answers.to(resid.device)[prompts.tolist()]
        wanted = answers.positions.clamp(min=0)
        rows = torch.arange(len(resid), device=resid.device)[:, None]
        at = resid[rows, (wanted - first).clamp(0, resid.shape[1] - 1)]
        if first and before is not None:
            earlier = before.to(resid.device)[prompts[:, None], wanted]
            at = torch.where((wanted < first)[..., None], earlier, at)
        size = self._rows_at_once(at)
        parts = [
            torch.stack(self._values(at[i : i + size], answers[i : i + size], prompts[i : i + size]))
            for i in range(0, len(at), size)
        ]
        return torch.cat(parts, 1)

    def _rows_at_once(self, at: Tensor) -> int:
        """Rows whose logits fit `MOST_LOGITS`; all of them where only the answers' own columns are computed."""
        if all(m.local for m in self.metrics):
            return max(len(at), 1)
        return max(MOST_LOGITS // (at.shape[1] * self.model.shape.d_vocab), 1)

    def _values(self, at: Tensor, answers: Answers, prompts: Tensor) -> list[Tensor]:
        if all(m.local for m in self.metrics):
            ids = torch.cat([answers.correct, answers.wrong], -1)
            logits = self.model.answer_logits(at, ids.clamp(min=0))
            order = torch.arange(ids.shape[-1], device=ids.device).expand(ids.shape)
            n_correct = answers.correct.shape[-1]
            own = torch.where(ids < 0, -1, order)
            answers = Answers(answers.positions, own[..., :n_correct], own[..., n_correct:])
            return [m(logits, answers) for m in self.metrics]
        logits = self.model.unembed(at)
        reference = None if self.reference is None else self.reference.to(at.device)[prompts]
        return [m(logits, answers, reference if m.needs_reference else None) for m in self.metrics]


class OutputScorer(Scorer):
    """The log-probabilities of the whole vocabulary at each prompt's last target, in the place of metrics."""

    @property
    def size(self) -> int:
        return self.model.shape.d_vocab

    def _rows_at_once(self, at: Tensor) -> int:
        return max(MOST_LOGITS // self.size, 1)

    def _values(self, at: Tensor, answers: Answers, prompts: Tensor) -> list[Tensor]:
        last = at[torch.arange(len(at), device=at.device), answers.positions.argmax(1)]
        return list(self.model.unembed(last).float().log_softmax(-1).T)


def clean_reference(
    model: HookedModel, metrics: Sequence[Metric], task: Task
) -> Float[Tensor, "prompt target d_vocab"] | None:
    """The clean prompts' logits at the targets, when one of the metrics needs them."""
    if not any(m.needs_reference for m in metrics):
        return None
    return model.run(task.clean, logits=task.answers.positions).logits


def checked_metrics(
    model: HookedModel, task: Task, given: str | Metric | Sequence[str | Metric] = ()
) -> tuple[Metric, ...]:
    """The metrics to measure, the task's own when none is given, once it is known that they can be; runs nothing.

    Raises:
        TaskError: the task's ids are those of another tokenizer than the model's.
        MetricError: an unknown name, wrong answers missing, answers outside the vocabulary.
        OptionError: two metrics of one name.
    """
    own = tokenizer_fingerprint(model.tokenizer)
    if own and task.tokenizer_fingerprint not in ("", own):
        raise TaskError(
            f"task {task.name!r} was built with another tokenizer (fingerprint {task.tokenizer_fingerprint}) than that "
            f"of {model.identity.name} ({own}); build it with this model's own."
        )
    chosen = tuple(map(metric, [given] if isinstance(given, str | Metric) else given)) or (task.metric,)
    names = [one.name for one in chosen]
    if len(set(names)) < len(names):
        raise OptionError(f"metrics {names} are given more than once; their columns would clash.")
    blank = torch.zeros(()).expand(*task.answers.positions.shape, model.shape.d_vocab)
    for one in chosen:
        one.check(blank, task.answers, blank)
    return chosen


def metric_of_logits(
    model: HookedModel, one: Metric, answers: Answers, reference: Float[Tensor, "prompt target d_vocab"] | None
) -> Callable[[Float[Tensor, "batch target d_vocab"]], Float[Tensor, " batch"]]:
    """The metric as a function of the logits at the answers' positions, on the model's device."""
    here = answers.to(model.device)
    return lambda logits: one(logits, here, reference if one.needs_reference else None)


def refuse_blind(metrics: Sequence[Metric], cure: str) -> None:
    """Raise for metrics without a gradient in the clean run.

    Raises:
        MetricError: with the cure, beside the ones that always are.
    """
    blind = [one.name for one in metrics if one.needs_reference]
    if blind:
        raise MetricError(
            f"{', '.join(blind)} compares with the clean run and has zero gradient there, so noising estimates would "
            f"all be 0; use logit_diff, {cure}, or direction='denoising'."
        )
