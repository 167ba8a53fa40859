"""What a circuit can be asked besides faithfulness: a vector of criteria, and tests with stated margins.

The runs are those of `interp.evaluate`, in two directions and of the circuit and its complement:

                    clean run, ablated outside / inside          corrupted run, restored inside / outside
    circuit         independence = recovery (faithfulness)        sufficiency = recovery
    complement      necessity = 1 - recovery                      completeness = 1 - recovery

Tests, one p-value a circuit (Holm's correction over circuits; over members for minimality), by flipping the signs of
per-prompt values:

    preservation   the circuit's metric is within a margin of the model's: two one-sided tests, for a difference that is
                   not shown is not equality
    localisation   the complement recovers less than the bar
    minimality     taking a member away changes the metric more than taking away nine in ten random redundant members
                   does, each added to the circuit on its own (an inflated circuit)

Source of the tests: Shi et al. 2024 (arXiv 2410.13032); equivalence with a margin is ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.evaluate import JudgedRuns, Members, judged_runs
from interp.metrics import Metric
from interp.recovery import SMALLEST_GAP, recovery
from interp.table import Table
from interp.tasks.base import Task

FLIPS = 9999
REDUNDANT = 20
"""Members added, one at a time, to see what a redundant one changes."""
USUAL = 0.9  # share of redundant members below which a change is nothing special
MEASURES = {
    "independence": ("faithfulness", False), "necessity": ("faithfulness_of_complement", True),
    "sufficiency": ("sufficiency", False), "completeness": ("recovery_of_complement", True),
}  # fmt: skip


def criteria_runs(
    members: Members,
    task: Task,
    masks: Bool[np.ndarray, "circuit member"],
    metric: Metric,
    *,
    ablation: str,
    seed: int,
    independence: JudgedRuns,
) -> dict[str, JudgedRuns]:
    """The four runs of each circuit; those of the corrupted run only where there are corrupted prompts.

    Args:
        independence: the runs of the circuits' faithfulness, which are there already.
    """
    return {"independence": independence} | {
        name: judged_runs(
            members, task, masks, measure, metric, seed=seed,
            ablation=ablation if measure.startswith("faithfulness") else "counterfactual",
        )
        for name, (measure, _) in MEASURES.items()
        if name != "independence" and (measure.startswith("faithfulness") or task.corrupted is not None)
    }  # fmt: skip


def criteria(runs: Mapping[str, JudgedRuns]) -> dict[str, np.ndarray]:
    """Each criterion of each circuit; NaN where undefined."""
    found = {}
    for name, (_, inverse) in MEASURES.items():
        if name in runs:
            value = recovery(runs[name].values, runs[name].full, runs[name].empty).value.numpy()
            found[name] = 1 - value if inverse else value
    return found


def preservation(runs: JudgedRuns, margin: float, seed: int) -> Float[np.ndarray, " circuit"]:
    """p-value of "the circuit's metric differs from the model's by the margin or more", in units of the gap."""
    off = _in_gaps(runs.values - runs.full, runs)
    return np.array([max(sign_flip(margin - row, seed), sign_flip(margin + row, seed)) for row in off])


def localisation(complement: JudgedRuns, at_least: float, seed: int) -> Float[np.ndarray, " circuit"]:
    """p-value of "the complement recovers the bar or more"."""
    return np.array(
        [sign_flip(at_least - row, seed) for row in _in_gaps(complement.values - complement.empty, complement)]
    )


def _in_gaps(values: Float[Tensor, "circuit prompt"], runs: JudgedRuns) -> Float[np.ndarray, "circuit prompt"]:
    gap = (runs.full - runs.empty).mean()
    return (values / gap if gap.abs() >= SMALLEST_GAP else torch.full_like(values, torch.nan)).numpy()


def sign_flip(values: Float[np.ndarray, " prompt"], seed: int) -> float:
    """p-value of "the mean is 0 or less" for values that scatter symmetrically: the share of sign flips with a mean as
    large. NaN where a value is."""
    if np.isnan(values).any():
        return float("nan")
    n = len(values)
    if 2**n <= FLIPS + 1:  # all of them
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) % 2)
        return float((signs @ values >= values.sum() - 1e-9 * np.abs(values).sum()).mean())
    signs = np.random.default_rng(seed).choice([-1, 1], size=(FLIPS, n))
    return float((1 + (signs @ values >= values.sum() - 1e-9 * np.abs(values).sum()).sum()) / (FLIPS + 1))


def holm(p: Sequence[float] | Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """Holm's correction of several p-values; NaN stays and does not count."""
    given = np.asarray(p, dtype=float)
    found = np.full(len(given), np.nan)
    order = np.argsort(given)[: int((~np.isnan(given)).sum())]
    steps = given[order] * (len(order) - np.arange(len(order)))
    found[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return found


def minimality_test(
    members: Members,
    task: Task,
    kept: Bool[np.ndarray, " member"],
    metric: Metric,
    *,
    ablation: str,
    at_least: float,
    seed: int,
) -> Table:
    """Each member against random redundant ones.

    Returns:
        One row a member: member, faithfulness_without, needed (the circuit is below the bar without it), p (corrected;
        NaN where the circuit has all members, so that none can be added).
    """
    rows, others = np.flatnonzero(kept), np.flatnonzero(~kept)
    added = np.random.default_rng(seed).permutation(others)[:REDUNDANT]
    masks = np.repeat(kept[None], 1 + len(rows) + len(added), 0)
    masks[np.arange(1, 1 + len(rows)), rows] = False
    masks[np.arange(1 + len(rows), len(masks)), added] = True
    runs = judged_runs(members, task, masks, "faithfulness", metric, ablation=ablation, seed=seed)
    change = _in_gaps((runs.values - runs.values[:1]).abs(), runs)[1:]
    own, redundant = change[: len(rows)], change[len(rows) :]
    usual = np.quantile(redundant, USUAL, axis=0) if len(added) else np.nan
    p = [sign_flip(one - usual, seed) for one in own]
    without = recovery(runs.values[1 : 1 + len(rows)], runs.full, runs.empty).value.numpy()
    names: Any = members.names[rows]
    return Table({"member": names, "faithfulness_without": without, "needed": without < at_least, "p": holm(p)})
