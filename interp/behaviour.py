"""What a method explains: some prompts' metric, as a function that can be run, differentiated and edited."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.intervention import Intervention
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.models.runs import Watched
from interp.scoring import FINAL, Scorer, clean_reference, metric_of_logits
from interp.site import Site
from interp.tasks.base import Task
from interp.tokens import Prompts


@dataclass(frozen=True, eq=False)
class Behaviour:
    """A task's metric on the prompts of one direction.

    Attributes:
        prompts: those whose run is changed.
        scorer: the one metric, at the task's answers.
    """

    model: HookedModel
    prompts: Prompts
    scorer: Scorer

    def watch(self, rows: Sequence[int], sites: Sequence[Site], interventions: Sequence[Intervention] = ()) -> Watched:
        """A differentiable run of some prompts; a row may come more than once."""
        rows = list(rows)
        scorer = self.scorer.take(rows)
        metric = metric_of_logits(self.model, scorer.metrics[0], scorer.answers, scorer.reference)
        return self.model.watch(self.prompts[rows], metric, sites, interventions, logits=scorer.answers.positions)

    @torch.no_grad()
    def measure(self, rows: Sequence[int], interventions: Sequence[Intervention] = ()) -> Float[Tensor, " row"]:
        """The metric of some prompts in an edited run, on the CPU."""
        rows = list(rows)
        run = self.model.run(self.prompts[rows], interventions, [FINAL], logits="none")
        return self.scorer(run[FINAL], torch.tensor(rows, device=run[FINAL].device))[0].cpu()


def behaviour(model: HookedModel, task: Task, metric: Metric, direction: str = "noising") -> Behaviour:
    """The task's metric on its clean prompts (noising) or its corrupted ones (denoising)."""
    prompts = task.clean if direction == "noising" else task.require_corrupted()
    return Behaviour(model, prompts, Scorer(model, (metric,), task.answers, clean_reference(model, (metric,), task)))
