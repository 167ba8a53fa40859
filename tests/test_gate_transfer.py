"""Leave one task out: what is fitted, and what is scored."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import hooked, task

import interp
from interp.errors import TaskError
from interp.gate_classes import start_values
from interp.gate_runs import GatedTask, ones
from interp.gate_settings import ACCURACY, NLL, GateSettings
from interp.tasks.base import Task
from interp.tasks.join import joined

QUIET = interp.FitEngine(progress=False)
SHORT = GateSettings(steps=(6, 0), batch=2)


def formulation(shift: int, name: str) -> Task:
    given = task().answers
    moved = replace(given, correct=given.correct + shift)
    return task(name=name, groups={"entity": tuple("abc")}, answers=moved)


def test_each_left_out_task_is_scored_with_gates_fitted_on_the_others():
    model = hooked("llama")
    first = {name: formulation(n, name) for n, name in enumerate(("one", "two", "three"))}
    second = {name: formulation(30 + n, name) for n, name in enumerate(("one", "two", "three"))}
    table = interp.leave_one_out(model, first, second, names=("shots", "told"), settings=SHORT, engine=QUIET)
    rows = {(row["task"], row["retained"], row["answered"]): row for row in table.rows()}
    assert len(table) == len(rows) == 12
    fitted = interp.gate_contrastive(
        model, joined([second["one"], second["three"]]), joined([first["one"], first["three"]]), starts=1,
        settings=SHORT, engine=QUIET,
    )  # fmt: skip
    gates = torch.tensor(start_values(fitted, "gates")).reshape(1, 3, 8)
    for answered, held in (("shots", first["two"]), ("told", second["two"])):
        row, gated = rows["two", "told", answered], GatedTask(model, held, NLL)
        assert row["gated_neg_nll"] == pytest.approx(float(gated.table(gates).mean()), abs=1e-5)
        assert row["default_neg_nll"] == pytest.approx(float(gated.table(ones(model)).mean()), abs=1e-5)
        assert row["gated"] == pytest.approx(float(gated.table(gates, [ACCURACY]).mean()))
        assert row["low"] <= row["gated"] <= row["high"]
        assert row["heads_open"] == float((gates >= 0.5).sum())
    assert np.isfinite(table["default"]).all()
    with pytest.raises(TaskError, match="both formulations need the same tasks, two at least"):
        interp.leave_one_out(model, {"one": first["one"]}, {"one": second["one"]})
