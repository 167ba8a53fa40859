"""Figures of a comparison: how much every two circuits share, and who has what."""

import numpy as np

from interp.comparison import Comparison
from interp.view.figures import Grid, heatmap, heatmaps
from interp.view.style import Figure

MOST_MEMBERS = 60


def agreement(comparison: Comparison, what: str = "jaccard") -> Figure:
    """The Jaccard index (or another column of `pairs`) of every two circuits, one map a level."""
    labels = list(comparison.labels)
    grids = [Grid(comparison.matrix(level, what), name=level) for level in comparison.levels]
    title = "Jaccard index of every two circuits" if what == "jaccard" else what.replace("_", " ")
    return heatmaps(grids, labels, labels, title=title, signed=what == "rank_agreement", limit=1.0)


def membership(comparison: Comparison, level: str = "nodes", *, most: int = MOST_MEMBERS) -> Figure:
    """Which circuit has which member, those that most circuits have first.

    Args:
        most: members shown; those that fewest circuits have are left out first.
    """
    one = comparison.levels[level]
    order = np.argsort(-one.kept.sum(0), kind="stable")
    order = order[np.any(one.kept[:, order], axis=0)][:most]
    values = np.where(one.candidates, one.kept.astype(float), np.nan)[:, order].T
    title = f"Who has what: {level}"
    return heatmap(values, comparison.labels, one.names[order].tolist(), title=title, signed=False, limit=1.0)
