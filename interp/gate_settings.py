"""How head gates are fitted: settings, what a run may take, starts, and the likelihood that they maximise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import OptionError
from interp.gate_fit import draw_gates
from interp.gate_runs import GatedTask, ones
from interp.gate_stage import FitRow, Stage
from interp.metrics import Accuracy, NegNLL
from interp.models.base import HookedModel
from interp.scoring import checked_metrics
from interp.tasks.base import Task

NLL, ACCURACY = NegNLL(), Accuracy()


@dataclass(frozen=True)
class GateSettings:
    """How gates are fitted; the defaults are the paper's.

    Args:
        steps: updates without penalty, and updates of each fit with one.
        batch: prompts of each fit in an update.
        penalty: lambda; both signs are fitted.
        first_lr, lr: learning rates without and with penalty: at the first and at the last update.
        low, high: gates are drawn uniformly between.
        clip, one_sided, per_head, grad_norm, bound, shared_clip: see `interp.gate_stage.Stage`.
    """

    steps: tuple[int, int] = (500, 500)
    batch: int = 64
    penalty: float = 0.1
    first_lr: tuple[float, float] = (0.1, 0.01)
    lr: tuple[float, float] = (0.5, 0.1)
    low: float = 0.0
    high: float = 1.0
    clip: float = 4.0
    one_sided: bool = True
    per_head: bool = False
    grad_norm: float | None = 1.0
    bound: float | None = None
    shared_clip: bool = False

    @classmethod
    def as_published_code(cls) -> "GateSettings":
        """What the authors' trainer does where it differs from the paper: constant rates of 1, a two-sided clip, one
        gradient norm for all fits of a sign. Its fits also share one order of the data: ``starts=[(0, 0), (1, 0)]``."""
        return cls(batch=32, first_lr=(1.0, 1.0), lr=(1.0, 1.0), one_sided=False, shared_clip=True)

    def drawn(self, model: HookedModel, rows: Sequence[FitRow]) -> Float[Tensor, "row layer head"]:
        """theta of each fit's first gates, on the model's device."""
        like = ones(model)
        return draw_gates(rows, like.shape[1:], low=self.low, high=self.high, dtype=like.dtype).to(like.device)

    def stage(self, name: str, steps: int, lr: tuple[float, float]) -> Stage:
        """One stage with these settings."""
        shared = {"clip", "one_sided", "per_head", "grad_norm", "bound", "shared_clip", "batch"}
        return Stage(name, steps, lr, **{key: getattr(self, key) for key in shared})


@dataclass(frozen=True)
class FitEngine:
    """How fits run; the gates do not depend on it beyond rounding.

    Args:
        memory: GiB of activations that one backward pass may hold.
        recompute: keep only the blocks' inputs for the backward pass (gradient checkpointing), which saves memory and
            takes a forward pass more an update.
        checkpoint: folder for the state of the fits; an interrupted run goes on from there, to the bit-equal result on
            the CPU.
        minutes: between savings.
        progress: show a bar where there is a terminal.
    """

    memory: float = 4.0
    recompute: bool = False
    checkpoint: str | Path | None = None
    minutes: float = 5.0
    progress: bool = True

    def gated(self, model: HookedModel, task: Task) -> GatedTask:
        """The task to be run under gates, once it is known that it can be scored.

        Raises:
            TaskError, MetricError: when it cannot.
        """
        checked_metrics(model, task, (NLL, ACCURACY))
        return GatedTask(model, task, NLL, self.memory, self.recompute)

    def stage(self, name: str) -> dict[str, Any]:
        """What `interp.gate_fit.fit` takes for one stage."""
        path = None if self.checkpoint is None else Path(self.checkpoint) / f"{name}.safetensors"
        return {"checkpoint": path, "minutes": self.minutes, "progress": self.progress}


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The benefit of plain gating: mean over a fit's prompts of the mean log-probability of the targets."""

    gated: GatedTask

    def __call__(self, gates: Tensor, chosen: Sequence[Sequence[int]]) -> Float[Tensor, " row"]:
        values = driven(self.gated, gates, chosen, lambda x, rows: x.sum() / len(chosen[0]))
        return values.unflatten(0, (len(chosen), -1)).mean(1)


def driven(
    gated: GatedTask, gates: Tensor, chosen: Sequence[Sequence[int]], benefit: Callable[[Tensor, list[int]], Tensor]
) -> Float[Tensor, " pair"]:
    """Log-probability of every fit's prompts, fit by fit; adds the gradient of `benefit` to the gates."""
    pairs = [(fit, prompt) for fit, prompts in enumerate(chosen) for prompt in prompts]
    found = torch.empty(len(pairs), dtype=gates.dtype, device=gates.device)
    for places in gated.batches([prompt for _, prompt in pairs]):
        fits, prompts = ([pairs[place][i] for place in places] for i in (0, 1))
        with torch.enable_grad():
            values = gated.values(gates[fits], prompts)
            benefit(values, places).backward()
        found[places] = values.detach().to(found)
    return found


def fit_rows(starts: int | Sequence[tuple[int, int]], seed: int) -> list[FitRow]:
    """The fits of so many starts, or of given seeds (gates, data), without penalty.

    Raises:
        OptionError: there are none.
    """
    if isinstance(starts, int):
        starts = [(seed + number, seed + number) for number in range(starts)]
    if not starts:
        raise OptionError("starts: there are none; give a number from 1, or pairs of seeds (gates, data).")
    return [FitRow(init, data) for init, data in starts]


def flat(values: Float[Tensor, "start layer head"]) -> Float[np.ndarray, "start node"]:
    """Gates in the order of the circuit's nodes."""
    return values.flatten(1).float().cpu().numpy()
