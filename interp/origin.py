"""The provenance of what a method found: on which model and task, with which metrics, ablation and options."""

from collections.abc import Mapping, Sequence
from typing import Any

from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.provenance import Provenance
from interp.tasks.base import Task
from interp.tokens import tokenizer_fingerprint


def provenance_of(
    model: HookedModel,
    task: Task,
    method: str,
    *,
    metrics: Sequence[Metric],
    directions: Sequence[str],
    ablation: str,
    parameters: Mapping[str, Any],
    notes: Sequence[str] = (),
    seed: int = 0,
    forwards: float = 0.0,
    backwards: float = 0.0,
) -> Provenance:
    """Provenance of a method's result on the task's prompts.

    Args:
        directions: those that were run; ``direction`` names it where there is one.
        parameters: the method's own options, as JSON values.
        notes: warnings given to the user.
        forwards, backwards: cost in passes of an average prompt.
    """
    reference = {"reference": "the task's clean prompts", "sink_apart": model.has_sink}
    return Provenance(
        model=model.identity.name,
        revision=model.identity.revision or None,
        weights=model.identity.fingerprint,
        tokenizer=tokenizer_fingerprint(model.tokenizer),
        task=task.name,
        task_parameters=task.parameters,
        token_ids=tuple(map(tuple, task.clean.rows())),
        corrupted_token_ids=() if task.corrupted is None else tuple(map(tuple, task.corrupted.rows())),
        metric=metrics[0].name,
        direction=directions[0] if len(directions) == 1 else None,
        ablation=ablation,
        method=method,
        parameters={
            "metrics": [repr(m) for m in metrics],
            "directions": list(directions),
            **parameters,
            "mean": reference if ablation.startswith("mean") else None,
            "family": model.family,
            "warnings": list(notes),
        },
        seed=seed,
        forwards=forwards,
        backwards=backwards,
    )
