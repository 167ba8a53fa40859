"""From per-prompt values to a number with its uncertainty: recovery between two runs, and bootstrap intervals.

Prompts are the last axis everywhere; leading axes (one entry a run or a patch) are carried along.
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import MetricError, check_choice

# SmolLM2's logits move by 1e-4 with the shape of the batch alone (measured): a smaller gap is rounding.
SMALLEST_GAP = 1e-4


@dataclass(frozen=True, eq=False)
class Recovery:
    """Where runs lie between the empty run (0) and the full run (1).

    Args:
        value: recovery, one a run; may leave [0, 1]; NaN where undefined.
        flagged: prompts whose full and empty values are closer than the smallest gap.
        reason: why values are NaN, or "".
    """

    value: Float[Tensor, "*run"]
    flagged: Bool[Tensor, " batch"]
    reason: str


def recovery(
    run: Float[Tensor, "*run batch"],
    full: Float[Tensor, " batch"],
    empty: Float[Tensor, " batch"],
    *,
    average: Literal["ratio_of_means", "mean_of_ratios"] = "ratio_of_means",
    smallest_gap: float = SMALLEST_GAP,
) -> Recovery:
    """(run - empty) / (full - empty) over the prompts: 0 as the empty (corrupted) run, 1 as the full (clean) one.

    Args:
        run, full, empty: per-prompt values of one metric; `run` may have leading axes, one entry a run.
        average: divide the means, or average the prompts' ratios, leaving out the flagged ones.
        smallest_gap: denominators of a smaller size are no denominators; in the metric's unit.

    Returns:
        A `Recovery` in float64 on the CPU. Never infinite: where the denominator is degenerate, every value is NaN
        and `reason` says so.
    """
    check_choice("average", average, ("ratio_of_means", "mean_of_ratios"))
    run, full, empty = (values.detach().cpu().double() for values in (run, full, empty))
    gap = full - empty
    flagged = gap.abs() < smallest_gap
    size = gap.mean().abs() if average == "ratio_of_means" else gap.abs().max()
    if size < smallest_gap:
        what = "on average by" if average == "ratio_of_means" else "on no prompt by more than"
        reason = f"full and empty run differ {what} {size:.3g}, which is below {smallest_gap:g}"
        return Recovery(torch.full_like(run[..., 0], torch.nan), flagged, reason)
    if average == "ratio_of_means":
        return Recovery((run - empty).mean(-1) / gap.mean(), flagged, "")
    return Recovery(((run - empty)[..., ~flagged] / gap[~flagged]).mean(-1), flagged, "")


def resamples(batch: int, n: int, seed: int) -> Float[Tensor, "resample batch"]:
    """Weights of the prompts in `n` resamples of `batch` prompts with replacement; each row sums to 1."""
    drawn = torch.randint(batch, (n, batch), generator=torch.Generator().manual_seed(seed))
    return torch.zeros(n, batch).double().scatter_add_(1, drawn, torch.ones(n, batch).double()) / batch


def resampled(
    values: Float[Tensor, "run batch"],
    weights: Float[Tensor, "resample batch"],
    over: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, "run resample"]:
    """Means in each resample, divided by that of `over` where given; NaN where that is below `SMALLEST_GAP`."""
    means = values.double() @ weights.T
    if over is None:
        return means
    denominator = weights @ over.detach().cpu().double()
    return means / denominator.where(denominator.abs() >= SMALLEST_GAP, torch.nan)


def bootstrap(
    values: Float[Tensor, "*run batch"],
    n: int = 1000,
    seed: int = 0,
    *,
    level: float = 0.95,
    over: Float[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "*run"], Float[Tensor, "*run"]]:
    """Percentile interval (low, high) of the mean over prompts, by resampling prompts.

    Args:
        values: per-prompt values; every leading entry meets the same resamples.
        n: number of resamples.
        seed: of a generator of its own, on the CPU; the global one is not touched.
        level: coverage between 0 and 1.
        over: divide each resample's mean by that of these values, as `recovery` does (give run - empty and
            full - empty); an interval is NaN where some resample's denominator is smaller than `SMALLEST_GAP`.

    Returns:
        Bounds in float64 on the CPU; NaN where a value is NaN, and everywhere when there is only one prompt.

    Raises:
        MetricError: `n` or `level` out of range.
    """
    if n < 1 or not 0 < level < 1:
        raise MetricError(f"bootstrap with n={n}, level={level}; n must be at least 1 and level between 0 and 1.")
    batch = values.shape[-1]
    if batch < 2:
        undefined = torch.full(values.shape[:-1], torch.nan, dtype=torch.float64)
        return undefined, undefined.clone()
    weights = resamples(batch, n, seed)
    bounds = torch.tensor([(1 - level) / 2, (1 + level) / 2]).double()
    rows = values.detach().cpu().double().reshape(-1, batch)
    # In parts, for torch.quantile takes at most 16 million numbers.
    parts = [resampled(part, weights, over).quantile(bounds, -1) for part in rows.split(max(1, 10_000_000 // n))]
    low, high = torch.cat(parts, -1).reshape(2, *values.shape[:-1])
    return low, high


def wilson(hits: Any, n: int, level: float = 0.95) -> tuple[Any, Any]:
    """Wilson's interval (low, high) of shares `hits` / `n`; of one count or of an array of them."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, scale = np.asarray(hits) / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) * z / scale
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)
