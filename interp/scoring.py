"""Scoring rows of final residuals: only the logits a metric reads are ever computed.

A `Scorer` holds a task's answers and metrics for some prompts and turns `resid_final` rows into metric values. Where
every metric is local (logit difference, say), only the answers' own columns of the unembedding are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import MetricError
from interp.metrics import Answers, Metric
from interp.models.base import HookedModel, Run
from interp.site import Site
from interp.tokens import Prompts

FINAL = Site("resid_final")


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
    def last_target(self) -> Int[Tensor, " prompt"]:
        """The last position of each prompt whose logits are read."""
        return self.answers.positions.max(1).values

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
        return torch.stack(self._values(at, answers, prompts))

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


def clean_reference(
    model: HookedModel, metrics: Sequence[Metric], clean: Prompts, answers: Answers
) -> Float[Tensor, "prompt target d_vocab"] | None:
    """The clean prompts' logits at the targets, when one of the metrics needs them."""
    if not any(m.needs_reference for m in metrics):
        return None
    logits = model.run(clean, logits=answers.positions).logits
    if logits is None:
        raise MetricError("the clean run gave no logits; a metric needs them as its reference.")
    return logits
