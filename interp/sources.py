"""Where a patch's values come from: the prompt's own counterpart, noise, or an ablation that needs no counterpart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.cells import Source
from interp.errors import OptionError, TaskError, check_choice
from interp.models.base import HookedModel
from interp.run_values import mean_of
from interp.site import Site
from interp.tasks.base import Task
from interp.tokens import Prompts, by_length

Direction = Literal["denoising", "noising"]
ABLATIONS = ("counterfactual", "zero", "mean", "mean_by_position", "resample")


@dataclass(frozen=True)
class GaussianNoise:
    """Corruption by noise on the embeddings of key tokens, as causal tracing does (Meng et al. 2022).

    Args:
        role: the task's role whose tokens are noised.
        scale: standard deviation in units of that of the key tokens' embeddings.
        draws: corrupted runs to average; every cell of a sweep sees the same ones.
        seed: of the draws.
    """

    role: str = "subject"
    scale: float = 3.0
    draws: int = 10
    seed: int = 0

    def sample(self, model: HookedModel, task: Task) -> list[Float[Tensor, "prompt pos d_model"]]:
        """One noise tensor a draw, zero everywhere but at the key tokens.

        Raises:
            TaskError: the task has no such role.
            OptionError: a negative scale, fewer than one draw.
        """
        if self.role not in task.roles:
            raise TaskError(f"noise on role {self.role!r}: task {task.name!r} has {', '.join(task.roles)}.")
        if self.scale < 0 or self.draws < 1:
            raise OptionError(f"noise scale={self.scale}, draws={self.draws}; allowed: scale from 0, draws from 1.")
        if not any(map(len, task.roles[self.role])):
            raise TaskError(f"noise on role {self.role!r}: it has no token in any prompt; choose another role.")
        mask = torch.zeros(task.clean.ids.shape, dtype=torch.bool)
        for row, positions in enumerate(task.roles[self.role]):
            mask[row, list(positions)] = True
        deviation = self.scale * embedding_deviation(model, task.clean, mask)
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.draws, *mask.shape, model.shape.d_model)
        noise = torch.randn(shape, generator=generator) * deviation
        return list(noise * mask[None, ..., None])


def embedding_deviation(model: HookedModel, prompts: Prompts, mask: Tensor) -> float:
    """Standard deviation of the token embeddings at the masked tokens, in the units of the site `embed`.

    Families scale embeddings before block 0, and some add learned positions. The scale is read off prompts of one
    token each, at whose common position nothing but the token differs.
    """
    tokens = torch.cat([prompts.ids[prompts.mask], prompts.ids.new_tensor([0, 1])]).unique()[:, None]
    embedded = model.run(tokens, record=["embed"], logits="none")["embed"].float().cpu()
    with torch.no_grad():
        bare = model.module("embed")(tokens.to(model.device)).float().cpu()
        key = model.module("embed")(prompts.ids[mask].to(model.device)).float().cpu()
    scale = (embedded - embedded.mean(0)).norm() / (bare - bare.mean(0)).norm()
    return float(scale * key.std())


def ablation_source(model: HookedModel, task: Task, ablation: str, sites: Sequence[Site], seed: int = 0) -> Source:
    """The values that `ablation` puts at `sites`, for the task's clean prompts.

    Means are over the task's own clean prompts, without padding. Where the model parks an attention sink at position
    0, a mean is by position there, since one value would suit neither the sink nor the rest.

    Raises:
        TaskError: no corrupted prompts for ``"counterfactual"``; a prompt without a donor of its length for
            ``"resample"``.
        OptionError: an unknown ablation, a mean of attention patterns.
    """
    check_choice("ablation", ablation, ABLATIONS)
    if ablation == "counterfactual":
        return Source(task.require_corrupted())
    if ablation == "resample":
        return Source(task.clean[donors(task.clean, seed)])
    if ablation == "zero":
        return Source(values={s: torch.zeros([1] * len(s.axes)) for s in sites})
    if any(s.kind == "pattern" for s in sites):
        raise OptionError(f"ablation {ablation!r} at 'pattern': positions differ in length, so no mean; use 'zero'.")
    run = model.run(task.clean, record=sites, logits="none")
    means = {s: mean_of(run, s, by_position=True) for s in sites}
    if ablation == "mean":
        skip = int(model.has_sink)
        for site, at in means.items():
            overall = mean_of(run, site, by_position=False, skip=skip).expand_as(at[:, skip:])
            means[site] = torch.cat([at[:, :skip], overall], 1)
    return Source(values=means)


def donors(prompts: Prompts, seed: int) -> list[int]:
    """For each prompt a random other one of the same length.

    Raises:
        TaskError: prompts that are the only ones of their length.
    """
    groups = by_length(prompts)
    alone = [rows[0] for rows in groups if len(rows) == 1]
    if alone:
        raise TaskError(
            f"resample: prompts {alone} are the only ones of their length; give each a donor, or drop them."
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = [0] * len(prompts)
    for rows in groups:
        for place, row in enumerate(rows):
            shift = int(torch.randint(1, len(rows), (), generator=generator))
            chosen[row] = rows[(place + shift) % len(rows)]
    return chosen


def directions_of(task: Task, direction: str, ablation: str | GaussianNoise) -> tuple[Direction, ...]:
    """The directions to run; an ablation without a corrupted run knows only noising.

    Raises:
        OptionError: an unknown direction or ablation, or denoising without a corrupted run.
        TaskError: the counterfactual ablation of a task without corrupted prompts.
    """
    check_choice("direction", direction, ("denoising", "noising", "both"))
    if not isinstance(ablation, GaussianNoise):
        check_choice("ablation", ablation, ABLATIONS)
    if ablation == "counterfactual":
        task.require_corrupted()
    if isinstance(ablation, GaussianNoise) or ablation == "counterfactual":
        return ("denoising", "noising") if direction == "both" else (direction,)  # type: ignore[return-value]
    if direction == "denoising":
        raise OptionError(f"ablation {ablation!r} has no corrupted run to restore; use direction='noising'.")
    return ("noising",)


def base_and_source(
    model: HookedModel, task: Task, direction: str, ablation: str, sites: Sequence[Site], seed: int = 0
) -> tuple[Prompts, Source]:
    """The prompts whose runs a direction changes, and where the new values at `sites` come from."""
    if direction == "denoising":
        return task.require_corrupted(), Source(task.clean)
    return task.clean, ablation_source(model, task, ablation, sites, seed)
