"""Contrastive gating fits one mask that keeps one formulation of the items and unlearns another:

    benefit = log p(retain) - max(log p(forget) - stopgrad log p(retain), -5),   lambda > 0

so that a closed gate means: needed by what is to be forgotten, dispensable for what is to be kept.

Source: Nam et al. 2025 (arXiv 2505.13737), section 5; the clamp of each pair as in the authors' code.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.candidate_nodes import candidates
from interp.circuit import Circuit, NamedTensor, Score, ScoreHeader
from interp.errors import OptionError, TaskError
from interp.gate_fit import fit
from interp.gate_runs import GatedTask
from interp.gate_settings import NLL, FitEngine, GateSettings, driven, fit_rows, flat
from interp.models.base import HookedModel
from interp.origin import provenance_of
from interp.tasks.base import Task


def gate_contrastive(
    model: HookedModel,
    retain: Task,
    forget: Task,
    *,
    starts: int | Sequence[tuple[int, int]] = 10,
    settings: GateSettings | None = None,
    floor: float = 5.0,
    seed: int = 0,
    engine: FitEngine | None = None,
) -> Circuit:
    """Fit gates that keep one formulation of the items and unlearn another.

    Args:
        retain, forget: the two formulations; row i of both is about the same item (`same_items` brings them there).
        floor: nats a target below the retained formulation at which the forgotten one is left alone.
        settings: of the fit; only the first number of `steps` and `first_lr` are used, and lambda is positive.
        starts, seed, engine: as in `gate`.

    Returns:
        One node a query head. The score ``forget_specific`` is 1 - gate, the mean over starts; tensors per start hold
        ``gates``, ``gates.theta`` and ``forget_specific``, and per fit the benefits of its batches.

    Raises:
        TaskError: tasks of different length, or whose items differ.
        OptionError, MetricError, SiteError, FileError: what cannot be run.
    """
    used = settings or GateSettings()
    if floor <= 0:
        raise OptionError(f"floor={floor}; allowed: above 0 nats.")
    _check_items(retain, forget)
    engine = engine or FitEngine()
    objective = Contrast(engine.gated(model, retain), engine.gated(model, forget), floor)
    fits = [row._replace(penalty=used.penalty) for row in fit_rows(starts, seed)]
    found = fit(
        objective, used.drawn(model, fits), fits, used.stage("contrast", used.steps[0], used.first_lr), len(retain),
        identity=f"{objective.retain.fingerprint} {objective.forget.fingerprint} {floor}", **engine.stage("contrast"),
    )  # fmt: skip
    gates = flat(torch.sigmoid(found.theta))
    header = ScoreHeader("nodes", "gate", False, None, None, "zero", "mean over starts", "gate", "gate", NLL.name)
    provenance = provenance_of(
        model, retain, "gate_contrastive", metrics=[NLL], directions=[], ablation="zero", seed=seed,
        parameters={
            "settings": asdict(used), "starts": [[row.init, row.data] for row in fits], "floor": floor,
            "retain": retain.name, "forget": forget.name, "forget_parameters": dict(forget.parameters),
        },
        forwards=2.0 * len(fits) * used.batch * used.steps[0], backwards=2.0 * len(fits) * used.batch * used.steps[0],
    )  # fmt: skip
    axes = ("start", "node")
    return Circuit(
        candidates(model, retain, "z"),
        scores={"forget_specific": Score(header, (1 - gates).mean(0))},
        tensors={
            "gates": NamedTensor(gates, axes), "gates.theta": NamedTensor(flat(found.theta), axes),
            "forget_specific": NamedTensor(1 - gates, axes),
            "contrast.benefits": NamedTensor(found.benefits.numpy(), ("step", "start")),
        },
        provenance=provenance,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Contrast:
    """The benefit of contrastive gating."""

    retain: GatedTask
    forget: GatedTask
    floor: float

    def __call__(self, gates: Tensor, chosen: Sequence[Sequence[int]]) -> Float[Tensor, " row"]:
        size = len(chosen[0])
        kept = driven(self.retain, gates, chosen, lambda x, rows: x.sum() / size)

        def unlearned(x: Tensor, rows: list[int]) -> Tensor:
            return -(x - kept[rows]).clamp(min=-self.floor).sum() / size

        lost = driven(self.forget, gates, chosen, unlearned)
        benefit = kept - (lost - kept).clamp(min=-self.floor)
        return benefit.unflatten(0, (len(chosen), -1)).mean(1)


def same_items(first: Task, second: Task, by: str = "entity") -> tuple[Task, Task]:
    """The prompts of two tasks about the same items, in one order.

    Args:
        by: the group that names the item.

    Raises:
        TaskError: a task without that group, or no common item.
    """
    names = []
    for task in (first, second):
        if by not in task.groups:
            raise TaskError(f"task {task.name!r} has no group {by!r}; it has {', '.join(task.groups) or 'none'}.")
        names.append({item: row for row, item in enumerate(task.groups[by])})
    common = [item for item in names[0] if item in names[1]]
    if not common:
        raise TaskError(f"tasks {first.name!r} and {second.name!r} have no item ({by}) in common.")
    return first[[names[0][item] for item in common]], second[[names[1][item] for item in common]]


def _check_items(retain: Task, forget: Task) -> None:
    """Raise unless the rows of the tasks are about the same items."""
    pairs = [task.groups.get("entity", ()) for task in (retain, forget)]
    if len(retain) != len(forget) or pairs[0] != pairs[1]:
        raise TaskError(
            f"retain has {len(retain)} prompts, forget {len(forget)}, and row i of both must be about the same item; "
            "bring them together with interp.same_items(retain, forget)."
        )
