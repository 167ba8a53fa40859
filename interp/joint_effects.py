"""Exact effects of patching subsets of candidates together."""

import numpy as np
from jaxtyping import Bool, Float

from interp.candidate_nodes import cell_of, check_nodes
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import Nodes
from interp.scoring import Scorer, checked_metrics, clean_reference
from interp.sources import base_and_source
from interp.sweep import Engine, sweep
from interp.tasks.base import Task


def joint_effects(
    model: HookedModel,
    task: Task,
    nodes: Nodes,
    members: Bool[np.ndarray, "subset node"],
    *,
    metric: Metric,
    direction: str,
    ablation: str = "counterfactual",
    seed: int = 0,
    engine: Engine | None = None,
) -> Float[np.ndarray, "subset prompt"]:
    """metric(patched) - metric(base) of patching each subset together; 0 for an empty one, NaN where a prompt has none
    of its positions.

    Raises:
        SiteError, TaskError, MetricError, OptionError: before anything runs.
    """
    check_nodes(model, task, nodes)
    parts = [cell_of(node, task)[0] for node in nodes]
    cells = [tuple(parts[n] for n in np.flatnonzero(subset)) for subset in members]
    used = [number for number, cell in enumerate(cells) if cell]
    measured = checked_metrics(model, task, metric)
    scorer = Scorer(model, measured, task.answers, clean_reference(model, measured, task))
    sites = sorted({part.site for part in parts}, key=lambda s: s.order)
    base, source = base_and_source(model, task, direction, ablation, sites, seed)
    effects = np.zeros((len(cells), len(task)))
    found = sweep(model, base, source, [cells[n] for n in used], scorer, **(engine or Engine()).options)
    effects[used] = found.effects[0].double().numpy()
    return effects
