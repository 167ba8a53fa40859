"""Pieces of the identifiability report: what is judged on what, stability, functional classes, controls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import overlaps
from interp.circuit import Circuit
from interp.comparison import rows_table
from interp.errors import ModelError, OptionError
from interp.evaluate import JudgedRuns, Members, judged_runs, random_masks
from interp.metrics import Answers, Metric
from interp.models.random_copy import random_copy
from interp.recovery import recovery, resampled, resamples
from interp.scoring import OutputScorer
from interp.table import Table
from interp.tasks.base import Task

KNOCKED_OUT = 0.1  # share of the members of any circuit that an intervention takes away


@dataclass(frozen=True)
class Bars:
    """What a verdict rests on.

    Args:
        at_least: faithfulness that the lower end of the 95 % interval must reach.
        stability: mean pairwise Jaccard index of circuits chosen on resampled prompts.
        core_share: mean share of a minimal circuit that all minimal ones have.
        margin: of the preservation test, in units of the gap between the full and the empty run.
    """

    at_least: float = 0.9
    stability: float = 0.8
    core_share: float = 0.5
    margin: float = 0.1

    def __post_init__(self) -> None:
        wrong = {name: value for name, value in vars(self).items() if not 0 < value <= 1}
        if wrong:
            raise OptionError(f"bars {wrong}; allowed: above 0, at most 1.")


@dataclass(frozen=True, eq=False)
class Setting:
    """What is judged on what."""

    members: Members
    masks: Bool[np.ndarray, "circuit member"]
    task: Task
    metric: Metric
    ablation: str
    seed: int
    bars: Bars

    def runs(self, masks: np.ndarray, ablation: str = "", task: Task | None = None) -> JudgedRuns:
        return judged_runs(
            self.members, task or self.task, masks, "faithfulness", self.metric, ablation=ablation or self.ablation,
            seed=self.seed,
        )  # fmt: skip


def spread_of(runs: JudgedRuns, n_boot: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Faithfulness of each circuit, its 95 % interval, and its value in each resample of the prompts."""
    value = recovery(runs.values, runs.full, runs.empty).value.numpy()
    weights = resamples(len(runs.full), n_boot, seed)
    each = resampled(runs.values - runs.empty, weights, runs.full - runs.empty).numpy()
    low, high = np.quantile(each, [0.025, 0.975], axis=1)
    return value, np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf), each


def stability_of(circuit: Circuit, n_boot: int, seed: int) -> float:
    """Mean pairwise Jaccard index of the circuits of this size that resampled prompts would have chosen; NaN where the
    circuit holds no scores by prompt, or keeps all or nothing."""
    for name, score in circuit.scores.items():
        axes = (score.over.removesuffix("s"), "prompt")
        size = int(circuit.kept(score.over).sum())
        if name in circuit.tensors and circuit.tensors[name].axes == axes and 0 < size < circuit.count(score.over):
            rank: Any = circuit.provenance.ranking or "absolute"
            if rank == "signed" and not score.header.signed:
                continue
            values = torch.from_numpy(np.nan_to_num(circuit.tensors[name].array)).double()
            means = resampled(values, resamples(values.shape[1], n_boot, seed)).numpy()
            known = ~np.isnan(score.values)
            keys = np.where(known[:, None], means if rank == "signed" else np.abs(means), -np.inf)
            chosen = np.argsort(-keys, axis=0, kind="stable")[:size].T
            masks = np.zeros((n_boot, len(values)), bool)
            np.put_along_axis(masks, chosen, True, axis=1)
            return overlaps.mean_of_pairs(overlaps.jaccard(masks))
    return float("nan")


@dataclass(frozen=True, eq=False)
class Classes:
    """Which circuits do the same, on the prompts and under interventions; -1 for those that are not faithful."""

    data: Int[np.ndarray, " circuit"]
    intervened: Int[np.ndarray, " circuit"]
    pairs: Table


def functional_classes(setting: Setting, good: np.ndarray, interventions: int, labels: Sequence[str]) -> Classes:
    none = np.full(len(labels), -1)
    if not len(good):
        return Classes(none, none, rows_table([], "first second"))
    masks = setting.masks[good]
    any_has = np.flatnonzero(masks.any(0))
    generator = np.random.default_rng(setting.seed)
    stacked = [masks]
    for _ in range(interventions):
        less = masks.copy()
        less[:, generator.permutation(any_has)[: max(1, round(KNOCKED_OUT * len(any_has)))]] = False
        stacked.append(less)
    model, task = setting.members.model, setting.task
    scorer = OutputScorer(model, (), task.answers)
    said = setting.members.run(
        task, np.concatenate(stacked), setting.metric, ablation=setting.ablation, seed=setting.seed, scorer=scorer
    ).values.unflatten(1, (len(stacked), len(good)))  # fmt: skip
    said = said.permute(2, 1, 3, 0)  # circuit, intervention, prompt, vocabulary
    top = said.argmax(-1).numpy()
    rows = []
    for i, j in combinations(range(len(good)), 2):
        same, kl = top[i] == top[j], _divergence(said[i], said[j])
        rows.append({
            "first": labels[good[i]], "second": labels[good[j]], "same_answers": float(same[0].mean()), "kl": kl[0],
            "same_answers_intervened": float(same[1:].mean()), "kl_intervened": float(np.mean(kl[1:])),
        })  # fmt: skip
    found = []
    for tops in (top[:, 0], top):
        which = none.copy()
        which[good] = overlaps.groups_of(tops.reshape(len(good), -1))
        found.append(which)
    return Classes(found[0], found[1], rows_table(rows, "first second"))


def _divergence(one: Float[Tensor, "run prompt vocab"], other: Float[Tensor, "run prompt vocab"]) -> list[float]:
    """KL(one || other) of each run, mean over prompts, in nats."""
    return (one.exp() * (one - other)).sum(-1).mean(-1).tolist()


def controls_of(setting: Setting, random: int, discover: Any, featurizers: Any) -> Table:
    """How many circuits would have passed where there is nothing to find."""
    members, task = setting.members, setting.task
    drawn = [mask for kept in setting.masks for mask in random_masks(kept, random, setting.seed)]
    rows = [_control("random circuits", setting, members, task, np.stack(drawn))] if drawn else []
    if discover is not None:
        shuffled, note = _shuffled(task, setting.seed)
        masks = members.of(discover(members.model, shuffled))[None]
        rows.append(_control("shuffled answers", setting, members, shuffled, masks, *note))
    try:
        other = random_copy(members.model, setting.seed)
    except ModelError as error:
        rows.append({"control": "random weights", "circuits": 0, "faithful": 0, "largest": np.nan, "note": str(error)})
    else:
        there = Members(other, members.circuit, featurizers)
        masks = setting.masks if discover is None else there.of(discover(other, task))[None]
        rows.append(_control("random weights", setting, there, task, masks))
    return rows_table(rows)


def _shuffled(task: Task, seed: int) -> tuple[Task, list[str]]:
    """The task with each prompt's answers from another prompt of as many targets; and what did not move."""
    generator, order = np.random.default_rng(seed), np.arange(len(task))
    given = task.answers
    counts = given.present.sum(1).numpy()
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        order[rows] = generator.permutation(rows)
    moved = Answers(given.positions, given.correct[order], given.wrong[order])
    same = [
        torch.equal(given.correct[n], moved.correct[n]) and torch.equal(given.wrong[n], moved.wrong[n])
        for n in range(len(task))
    ]
    return replace(task, answers=moved), [f"{sum(same)} of {len(task)} prompts kept their answers"] * any(same)


def _control(
    name: str, setting: Setting, members: Members, task: Task, masks: np.ndarray, *notes: str
) -> dict[str, Any]:
    runs = judged_runs(
        members, task, masks, "faithfulness", setting.metric, ablation=setting.ablation, seed=setting.seed
    )  # fmt: skip
    value, low, *_ = spread_of(runs, 100, setting.seed)
    reason = recovery(runs.values, runs.full, runs.empty).reason
    largest = float(np.nanmax(value)) if np.isfinite(value).any() else float("nan")
    return {
        "control": name, "circuits": len(masks), "faithful": int((low >= setting.bars.at_least).sum()),
        "largest": largest, "note": "; ".join([*notes, *([reason] if reason else [])]),
    }  # fmt: skip
