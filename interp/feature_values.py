"""What features and error terms become under an ablation, prompt by prompt.

`counterfactual` and `resample` encode another prompt's run, `zero` switches all features and the error term off (so the
site becomes decode(0)), and a mean is one of features and one of error terms, over the task's clean prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.featurizers.base import Featurizer, flat
from interp.intervention import Edit
from interp.models.base import HookedModel
from interp.site import Site
from interp.sources import donors
from interp.tasks.base import Task
from interp.tokens import Prompts, batches


class Split(NamedTuple):
    """An activation taken apart; broadcastable over prompts and positions where it is a constant.

    Attributes:
        features: as encoded.
        error: what they leave unexplained.
    """

    features: Float[Tensor, "batch pos feature"]
    error: Float[Tensor, "batch pos d"]


def split(one: Featurizer, cache: Mapping[Site, Tensor]) -> Split:
    """A run's activation at the featurizer's site, taken apart; the run recorded `recorded_sites`."""
    features = one.encode(flat(cache[one.reads]))
    return Split(features, one.error(flat(cache[one.site]), features))


def recorded_sites(featurizers: Sequence[Featurizer]) -> list[Site]:
    """Sites whose activations `split` needs."""
    return list(dict.fromkeys(site for one in featurizers for site in (one.site, one.reads)))


@dataclass(frozen=True, eq=False)
class Ablated:
    """Where ablated values come from.

    Attributes:
        prompts: run for them, row by row, or None.
        constants: by featurizer, instead of a run.
    """

    featurizers: Sequence[Featurizer]
    prompts: Prompts | None
    constants: Mapping[Featurizer, Split]

    def run(self, model: HookedModel, rows: Sequence[int]) -> Mapping[Site, Tensor]:
        """The other run's activations for some of the prompts; nothing where the values are constants."""
        if self.prompts is None:
            return {}
        wanted = recorded_sites(self.featurizers)
        return model.run(self.prompts[list(rows)], record=wanted, logits="none").cache

    def of(self, one: Featurizer, cache: Mapping[Site, Tensor], width: int) -> Split:
        """The values of one featurizer, given that run, for prompts of up to `width` tokens."""
        found = split(one, cache) if self.prompts is not None else self.constants[one]
        return Split(*(part[:, :width] for part in found))


def ablated(
    model: HookedModel, task: Task, featurizers: Sequence[Featurizer], ablation: str, direction: str, seed: int
) -> Ablated:
    """The values that an ablation gives; `direction` and `ablation` are checked (`directions_of`)."""
    if direction == "denoising":
        return Ablated(featurizers, task.clean, {})
    if ablation == "counterfactual":
        return Ablated(featurizers, task.require_corrupted(), {})
    if ablation == "resample":
        return Ablated(featurizers, task.clean[donors(task.clean, seed)], {})
    if ablation == "zero":
        zeros = {
            one: Split(*(torch.zeros(1, 1, n, device=model.device) for n in (one.n_features, one.widths[1])))
            for one in featurizers
        }
        return Ablated(featurizers, None, zeros)
    return Ablated(featurizers, None, _means(model, task, featurizers, by_position=ablation == "mean_by_position"))


@torch.no_grad()
def _means(
    model: HookedModel, task: Task, featurizers: Sequence[Featurizer], *, by_position: bool, batch: int = 16
) -> dict[Featurizer, Split]:
    """Means of features and error terms over the task's clean prompts, without padding and skipped positions."""
    sums: dict[Featurizer, list[Tensor]] = {}
    longest = task.clean.ids.shape[1]
    for rows in batches(len(task), batch):
        prompts = task.clean[rows]
        run = model.run(prompts, record=recorded_sites(featurizers), logits="none")
        real = prompts.mask.to(model.device)[..., None]
        for one in featurizers:
            parts = [(part * real).double().sum(0) for part in split(one, run.cache)]
            grown = [torch.nn.functional.pad(part, (0, 0, 0, longest - len(part))) for part in parts]
            sums[one] = [a + b for a, b in zip(sums[one], grown, strict=True)] if one in sums else grown
    counts = task.clean.mask.sum(0).to(model.device)[:, None]
    found = {}
    for one, parts in sums.items():
        means = [part / counts for part in parts]
        if not by_position:
            means = [part[one.skip :].sum(0, keepdim=True) / counts[one.skip :].sum() for part in parts]
        found[one] = Split(*(mean[None].float() for mean in means))
    return found


def reading(one: Featurizer, change: Callable[[Tensor, Tensor], Tensor]) -> list[Edit]:
    """Interventions that change a featurizer's site, given its activation and the one that features are read from.

    Where features are read elsewhere (transcoders), that site is listened to.
    """
    seen: dict[Site, Tensor] = {}

    def listen(x: Tensor) -> Tensor:
        seen[one.reads] = x
        return x

    listening = [] if one.reads == one.site else [Edit(one.reads, function=listen)]
    return [*listening, Edit(one.site, function=lambda x: change(x, seen.get(one.reads, x)))]


@dataclass(frozen=True, eq=False)
class FeatureEdit:
    """Replaces some features, and the error term, of the running activation; nothing else of it changes.

        x' = x + sum over replaced i of (f~_i - f_i(x)) v_i + (error~ - error(x)), if that is replaced

    Attributes:
        replaced: which features are, and last whether the error term is.
        values: what they become; broadcastable.
    """

    featurizer: Featurizer
    replaced: Bool[Tensor, "row pos node"]
    values: Split

    def edits(self) -> list[Edit]:
        """The interventions that make the edit."""
        return reading(self.featurizer, self.applied)

    def applied(self, x: Tensor, read: Tensor) -> Tensor:
        """The new activation."""
        one, replaced = self.featurizer, self.replaced.to(x.device)
        features = one.encode(flat(read))
        off = replaced[..., : one.n_features]
        change = one.written(features, torch.where(off, self.values.features.to(features) - features, 0))
        if one.has_error and bool((gone := replaced[..., one.n_features]).any()):
            error = one.error(flat(x), features)
            change = change + torch.where(gone[..., None], self.values.error.to(error) - error, 0)
        return x + change.reshape(x.shape).to(x.dtype)
