"""How well a cheap ranking finds what matters: rank agreement, recall of the true top k, and what full recall costs.

The cost of verified recall at k is what the estimates cost plus how many candidates must be patched, in order of the
ranking, until the true top k are among them (in forward passes of a prompt; the oracle pays k). Its summary weighs k by
1/k on a logarithmic scale: exp(sum_k ln C_k / k  /  sum_k 1/k).

Source: Kramár et al. 2024 (arXiv 2403.00745), section 4.1.
"""

import numpy as np
from jaxtyping import Bool, Float, Int64

from interp.errors import OptionError

Values = Float[np.ndarray, " candidate"]


def ranked(values: Values) -> Int64[np.ndarray, " candidate"]:
    """Candidates by descending magnitude, ties by row; those not run (NaN) last."""
    magnitude = np.where(np.isnan(values), -np.inf, np.abs(values))
    return np.argsort(-magnitude, kind="stable")


def rank_agreement(estimate: Values, truth: Values) -> float:
    """Spearman's correlation of the magnitudes, over candidates that both know; NaN where one of them is constant."""
    known = ~(np.isnan(estimate) | np.isnan(truth))
    if not known.any():
        return float("nan")
    ranks = [_mean_ranks(np.abs(x[known])) for x in (estimate, truth)]
    a, b = (x - x.mean() for x in ranks)
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else float("nan")


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value, the mean of the ranks where values are equal."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def recall(estimate: Values, truth: Values, k: int) -> float:
    """Share of the true top k that are in the estimate's top k.

    Raises:
        OptionError: fewer than k candidates have a true effect other than 0.
    """
    found = set(ranked(estimate)[:k].tolist())
    return len(found & set(true_top(truth, k).tolist())) / k


def summary_cost(costs: Float[np.ndarray, " k"] | Int64[np.ndarray, " k"]) -> float:
    """The geometric mean of the costs for k = 1, 2, ..., with weights 1/k."""
    weights = 1 / np.arange(1, len(costs) + 1)
    return float(np.exp((np.log(costs) * weights).sum() / weights.sum()))


def true_top(truth: Values, k: int) -> Int64[np.ndarray, " k"]:
    """The k candidates of the largest effect.

    Raises:
        OptionError: fewer than k candidates have an effect other than 0.
    """
    effective = int((np.nan_to_num(truth) != 0).sum())
    if not 1 <= k <= effective:
        raise OptionError(f"k={k}; allowed: 1 to {effective}, the candidates that have an effect.")
    return ranked(truth)[:k]


def roc_curve(
    scores: Values, truth: Bool[np.ndarray, " candidate"]
) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    """The ROC curve of a ranking by magnitude against known members: false and true positive rates, one point for each
    value at which the ranking may be cut, from (0, 0) to (1, 1). NaN scores rank last; `auroc` is the area below.

    Raises:
        OptionError: the truth holds all candidates, or none.
    """
    _check_truth(truth)
    values = np.where(np.isnan(scores), -1.0, np.abs(scores))
    order = np.argsort(-values, kind="stable")
    cuts = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))  # ties are cut together
    hits = np.cumsum(truth[order])[cuts]
    rates = (cuts + 1 - hits) / (~truth).sum(), hits / truth.sum()
    return np.append(0.0, rates[0]), np.append(0.0, rates[1])


def _check_truth(truth: Bool[np.ndarray, " candidate"]) -> None:
    if not 0 < truth.sum() < len(truth):
        raise OptionError(f"the truth holds {truth.sum()} of {len(truth)} candidates; both kinds are needed.")


def auroc(scores: Values, truth: Bool[np.ndarray, " candidate"]) -> float:
    """Area under the ROC curve of a ranking by magnitude against known members: the chance that a member of the truth
    is ranked above a candidate that is none (ties count half). NaN scores rank last.

    Raises:
        OptionError: the truth holds all candidates, or none.
    """
    _check_truth(truth)
    positive = int(truth.sum())
    ranks = _mean_ranks(np.where(np.isnan(scores), -1.0, np.abs(scores)))
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * (len(truth) - positive)))
