"""Faithfulness against size: the curve of a ranking's circuits, and the areas that sum it up (CPR, CMD)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.circuit import Circuit
from interp.circuit_ops import Rank, grow, top_n
from interp.edges import structural
from interp.errors import OptionError, check_choice
from interp.evaluate import Measure, curve_values
from interp.featurizers.base import Featurizer
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.recovery import bootstrap, recovery, resampled, resamples
from interp.table import Table
from interp.tasks.base import Task

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Sizes of MIB's circuit track, as shares of the scored members (Mueller et al. 2025, arXiv 2504.13151)."""


def faithfulness_curve(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    sizes: Sequence[int],
    by: str,
    *,
    rank: Rank,
    select: Literal["top_n", "grow"] = "top_n",
    measure: Measure = "faithfulness",
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    random: int = 5,
    seed: int = 0,
) -> Table:
    """Faithfulness of the circuits that a score chooses, for each size, beside random circuits.

    Args:
        sizes: how many nodes or edges to keep.
        by: the score.
        rank: ``"signed"`` or ``"absolute"``.
        select: the best members, or (edges only) greedily from the logits.
        measure: which run's recovery; see `interp.evaluate`.
        metric, ablation, featurizers, random, seed: as in `faithfulness`.

    Returns:
        One row a size: size, the measure (such as faithfulness), low, high, random_mean, random_max (NaN without
        random circuits), and the reason where it is undefined; each row is what the measure's verb gives for that
        circuit.
    """
    chosen = [selected(circuit, n, by, rank, select) for n in sizes]
    values = curve_values(
        model, task, circuit, chosen, metric=metric, ablation=ablation, featurizers=featurizers, random=random,
        seed=seed, measure=measure,
    )  # fmt: skip
    full, empty, values = values[0], values[1], values[2:]
    recovered = recovery(values, full, empty)
    shares = recovered.value.numpy()
    low, high = bootstrap(values[: len(chosen)] - empty, seed=seed, over=full - empty)
    controls = shares[len(chosen) :].reshape(len(chosen), random)
    none = np.full(len(chosen), np.nan)
    return Table(
        {
            "size": np.array(list(sizes)),
            measure: shares[: len(chosen)],
            "low": low.numpy(),
            "high": high.numpy(),
            "random_mean": controls.mean(1) if random else none,
            "random_max": controls.max(1) if random else none,
            "reason": np.full(len(chosen), recovered.reason, dtype=object),
        }
    )


def selected(circuit: Circuit, n: int, by: str, rank: Rank, select: str) -> Circuit:
    """The circuit of `n` members that a ranking selects."""
    check_choice("select", select, ("top_n", "grow"))
    return top_n(circuit, n, by, rank=rank) if select == "top_n" else grow(circuit, n, by, rank=rank)


@dataclass(frozen=True, eq=False)
class Areas:
    """A curve in four numbers, each with its 95 % bootstrap interval over prompts.

    Attributes:
        cpr: area under faithfulness f over the share of members kept (higher is better; MIB's CPR).
        cmd: area under |1 - f| (lower is better; MIB's CMD).
        log_cpr, log_cmd: the same over the logarithm of the share, per unit, where small circuits count.
        curve: fraction, size, faithfulness.
        rank, select: how members were chosen.
        reason: why the areas are NaN, or "".
    """

    cpr: tuple[float, float, float]
    cmd: tuple[float, float, float]
    log_cpr: tuple[float, float, float]
    log_cmd: tuple[float, float, float]
    curve: Table
    rank: str
    select: str
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"areas undefined: {self.reason}"
        names = ("cpr", "cmd", "log_cpr", "log_cmd")
        said = [f"{n} {v:.3f} [{low:.3f}, {high:.3f}]" for n in names for v, low, high in [getattr(self, n)]]
        return f"{', '.join(said)} ({self.rank} ranking, {self.select})"


def circuit_areas(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    by: str,
    *,
    rank: Rank,
    select: Literal["top_n", "grow"] = "top_n",
    fractions: Sequence[float] = FRACTIONS,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    seed: int = 0,
) -> Areas:
    """CPR and CMD of a ranking: trapezoids over the fractions, without a point at 0, as MIB computes them.

    Sizes are floor(fraction x members); the axis keeps the nominal fraction. MIB takes CPR from signed and CMD from
    absolute rankings; which was used here is stored. A perfect circuit at every size has CPR 1 - the first fraction.

    Raises:
        OptionError: fractions that do not ascend within (0, 1].
    """
    grid = np.asarray(fractions, dtype=float)
    if len(grid) < 2 or grid[0] <= 0 or grid[-1] > 1 or (np.diff(grid) <= 0).any():
        raise OptionError(f"fractions={list(fractions)}; allowed: two or more, ascending, above 0 and up to 1.")
    members = (~structural(circuit.nodes, circuit.edges)).sum() if len(circuit.edges) else len(circuit.nodes)
    sizes = [int(np.floor(fraction * members)) for fraction in grid]
    chosen = [selected(circuit, n, by, rank, select) for n in sizes]
    values = curve_values(
        model, task, circuit, chosen, metric=metric, ablation=ablation, featurizers=featurizers, random=0, seed=seed
    )
    full, empty, values = values[0], values[1], values[2:]
    recovered = recovery(values, full, empty)
    f = recovered.value.numpy()
    curve = Table({"fraction": grid, "size": np.array(sizes), "faithfulness": f})
    drawn = _resampled(values, full, empty, seed)
    areas = {}
    for name, (x, deviates) in {
        "cpr": (grid, False), "cmd": (grid, True), "log_cpr": (_log(grid), False), "log_cmd": (_log(grid), True)
    }.items():  # fmt: skip
        one, many = (abs(1 - y) if deviates else y for y in (f, drawn))
        low, high = np.quantile(np.trapezoid(many, x, axis=-1), [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
        areas[name] = (float(np.trapezoid(one, x)), float(low), float(high))
    return Areas(**areas, curve=curve, rank=rank, select=select, reason=recovered.reason)


def _log(grid: np.ndarray) -> np.ndarray:
    """The logarithm of the fractions, stretched to length 1."""
    return np.log(grid) / (np.log(grid[-1]) - np.log(grid[0]))


def _resampled(
    values: Float[Tensor, "run prompt"], full: Float[Tensor, " prompt"], empty: Float[Tensor, " prompt"], seed: int
) -> Float[np.ndarray, "resample run"]:
    """Faithfulness in 1,000 resamples of the prompts; none for a single prompt."""
    if len(full) < 2:
        return np.empty((0, len(values)))
    return resampled(values - empty, resamples(len(full), 1000, seed), full - empty).T.numpy()
