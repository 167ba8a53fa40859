"""Do contrastive gates carry over to a task that they were not fitted on? Leave one task out, fit on the others.

For every task and both ways (keep formulation A and unlearn B, and the reverse) one set of gates is fitted on the other
tasks; then the left-out task is answered in both formulations, with the gates and without.

Source: Nam et al. 2025 (arXiv 2505.13737), figure 5; accuracy is teacher-forced, a mean over target tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from interp.errors import TaskError
from interp.gate_classes import start_values
from interp.gate_runs import GatedTask, as_gates, ones
from interp.gate_settings import ACCURACY, NLL, FitEngine, GateSettings
from interp.methods.contrastive_gating import gate_contrastive, same_items
from interp.models.base import HookedModel
from interp.recovery import bootstrap
from interp.table import Table
from interp.tasks.base import Task
from interp.tasks.join import joined


def leave_one_out(
    model: HookedModel,
    first: Mapping[str, Task],
    second: Mapping[str, Task],
    *,
    names: tuple[str, str] = ("first", "second"),
    starts: int = 1,
    settings: GateSettings | None = None,
    seed: int = 0,
    engine: FitEngine | None = None,
) -> Table:
    """Accuracy on each left-out task, in both formulations, without gates and with those fitted on the other tasks.

    Args:
        first, second: the tasks in two formulations, by the tasks' names; items are matched by entity.
        names: of the formulations.
        starts, settings, seed, engine: as in `gate_contrastive`; each fit has a folder of its own in the checkpoint.

    Returns:
        One row a left-out task, retained formulation and formulation answered: task, retained, answered, default and
        gated (accuracy, the mean over starts), low and high (95 % bootstrap interval of gated over items), neg_nll of
        both, heads_open.

    Raises:
        TaskError: fewer than two tasks, tasks of one formulation only, or without a common item.
    """
    if set(first) != set(second) or len(first) < 2:
        raise TaskError(
            f"tasks {sorted(first)} and {sorted(second)}; both formulations need the same tasks, two at least."
        )
    engine = engine or FitEngine()
    pairs = {task: same_items(first[task], second[task]) for task in first}
    rows: list[tuple[Any, ...]] = []
    for left_out, held in pairs.items():
        others = [pair for task, pair in pairs.items() if task != left_out]
        forms = [joined([pair[side] for pair in others]) for side in (0, 1)]
        for keep in (0, 1):
            folder = None if engine.checkpoint is None else Path(engine.checkpoint) / left_out / names[keep]
            found = gate_contrastive(
                model, forms[keep], forms[1 - keep], starts=starts, settings=settings, seed=seed,
                engine=replace(engine, checkpoint=folder),
            )  # fmt: skip
            gates = start_values(found, "gates")
            for answered in (0, 1):
                scores = _scores(engine.gated(model, held[answered]), gates, seed)
                rows.append((left_out, names[keep], names[answered], *scores, float((gates >= 0.5).sum(1).mean())))
    columns = ("task", "retained", "answered", "default", "gated", "low", "high", "default_neg_nll", "gated_neg_nll",
               "heads_open")  # fmt: skip
    return Table(dict(zip(columns, map(np.array, zip(*rows, strict=True)), strict=True)))


def _scores(gated: GatedTask, gates: Float[np.ndarray, "start node"], seed: int) -> tuple[float, ...]:
    """Accuracy without and with gates, the interval of the latter, and the log-probabilities."""
    sets = (ones(gated.model), as_gates(gated.model, gates))
    tables = [gated.table(one, (NLL, ACCURACY)).double() for one in sets]
    likelihood, accuracy = [float(table[0].mean()) for table in tables], [table[1].mean(0) for table in tables]
    low, high = bootstrap(accuracy[1][None], seed=seed)
    return float(accuracy[0].mean()), float(accuracy[1].mean()), float(low[0]), float(high[0]), *likelihood
