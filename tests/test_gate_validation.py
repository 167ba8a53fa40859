"""Validation of gates: curves against runs by hand, rankings on planted heads, mediators against made-up effects."""

import numpy as np
import pytest
import torch
from tiny import hooked, task
from torch import nn

import interp
from interp.errors import OptionError
from interp.gate_classes import start_values
from interp.gate_fit import draw_gates, fit
from interp.gate_runs import GatedTask, ones
from interp.gate_settings import NLL, GateSettings
from interp.gate_stage import FitRow, HardConcrete, Stage
from interp.models.hf import HookedHF

QUIET = interp.FitEngine(progress=False)
SHORT = GateSettings(steps=(20, 40), batch=2)


@pytest.fixture(scope="module")
def found() -> interp.Circuit:
    return interp.gate(hooked("llama"), task(), starts=2, settings=SHORT, engine=QUIET)


@pytest.mark.parametrize("mode", ["cumulative", "single"])
def test_a_curve_closes_and_opens_what_its_mode_says(found, mode):
    model, given = hooked("llama"), task()
    table = interp.ablation_curve(model, given, found, "facilitation", ranks=[1, 5, 24], mode=mode, random=2)
    gated, values = GatedTask(model, given, NLL), []
    for start in range(2):
        order = np.argsort(-start_values(found, "facilitation")[start], kind="stable")
        for rank in (1, 5, 24):
            heads = order[:rank] if mode == "cumulative" else order[rank - 1 : rank]
            ends = []
            for gate in (0.0, 1.0):
                gates = torch.from_numpy(start_values(found, "retain")[start].copy())
                gates[heads.copy()] = gate
                ends.append(float(gated.table(gates.reshape(1, 3, 8)).mean()))
            values.append(ends[0] - ends[1])
    expected = np.array(values).reshape(2, 3)
    assert np.allclose(table["difference"], expected.mean(0), atol=1e-5)
    assert np.allclose(table["low"], expected.min(0), atol=1e-5) and np.allclose(
        table["high"], expected.max(0), atol=1e-5
    )
    if mode == "cumulative":
        assert table["random"][-1] == pytest.approx(table["difference"][-1], abs=1e-5), "all heads are all heads"
    with pytest.raises(OptionError, match="ranks=.25.*allowed: ranks 1 to 24"):
        interp.ablation_curve(model, given, found, "facilitation", ranks=[25])


def planted() -> tuple[HookedHF, np.ndarray]:
    """Heads 0 and 5 of a layer write towards the answers, the others nowhere; loss convex in the gates."""
    from tiny import build

    raw = build("gpt2", n_layer=2)
    head = raw.lm_head.weight.data
    direction = (head[[10, 11, 12]] - head[[20, 21, 22]]).mean(0)
    for block in raw.transformer.h:
        block.attn.c_proj.weight.data[:] = block.mlp.c_proj.weight.data[:] = 0.0
    for layer, number in ((0, 0), (1, 1)):
        attn, at = raw.transformer.h[layer].attn, 8 * number
        attn.c_proj.weight.data[at] = direction / direction.norm()
        attn.c_attn.weight.data[:, 64 + at : 64 + at + 8] = 0.0
        attn.c_attn.bias.data[64 + at] = 1.0
    raw.transformer.ln_f = nn.Identity()
    truth = np.zeros(8, dtype=bool)
    truth[[0, 5]] = True
    return HookedHF(raw, check=False), truth


def test_every_method_but_chance_finds_planted_heads_and_keeps_the_behaviour_with_them():
    model, truth = planted()
    gates = interp.gate(model, task(), starts=2, settings=GateSettings(steps=(40, 60), batch=3), engine=QUIET)
    few = interp.Baselines(starts=2, stage=Stage("baseline", 80, (0.1, 0.1), 3), penalty=1.0)
    rankings = interp.head_rankings(model, task(), few, circuit=gates, progress=False)
    table = interp.compare_rankings(model, task(), rankings, [2, 8], truth=truth)
    rows = {(row["method"], row["heads"]): row for row in table.rows()}
    whole = rows["random", 8]["neg_nll"]
    for method in rankings:
        assert rows[method, 8]["neg_nll"] == pytest.approx(whole, abs=1e-5)
        if method not in ("random", "mean ablation"):  # what a constant head writes is its mean
            assert rows[method, 2]["auroc"] == 1.0, method
            assert rows[method, 2]["neg_nll"] == pytest.approx(whole, abs=1e-4), method
    assert rows["gating", 2]["overlap"] == 1.0 and np.isnan(rows["first order", 2]["overlap"])
    assert rows["random", 2]["neg_nll"] < whole - 0.1
    with pytest.raises(OptionError, match=r"sizes \[9\]"):
        interp.compare_rankings(model, task(), rankings, [9])


def test_hard_concrete_gates_reach_both_ends_and_their_noise_is_the_rows_own():
    relaxation, rows = HardConcrete(), [FitRow(0, 0, -1.0), FitRow(1, 1, -1.0)]
    theta = torch.zeros(2, 20, 20)
    drawn = relaxation.drawn(theta, rows, 3)
    assert {0.0, 1.0} <= set(drawn.flatten().tolist()) and ((drawn >= 0) & (drawn <= 1)).all()
    assert torch.equal(drawn, relaxation.drawn(theta, rows, 3)) and not torch.equal(drawn[0], drawn[1])
    assert torch.equal(relaxation.drawn(theta[1:], rows[1:], 3)[0], drawn[1])
    many = torch.stack([relaxation.drawn(theta, rows, step) for step in range(200)])
    opened = float((many > 0).float().mean())
    assert opened == pytest.approx(
        float(relaxation.pulled(theta, rows, Stage("s", 1, (1.0, 1.0), 1)).mean()), abs=0.005
    )
    closed = fit(
        lambda gates, chosen: torch.zeros(len(gates)), draw_gates(rows, (3, 4), low=0.9, high=0.9, dtype=torch.float32),
        rows, Stage("s", 200, (0.1, 0.1), 1), 3, relaxation=relaxation, progress=False,
    )  # fmt: skip
    assert relaxation.final(closed.theta).max() == 0.0


def test_mediators_are_compared_with_the_others_by_welch_and_auroc(found):
    values = start_values(found, "facilitation")
    effects = np.zeros(values.shape[1])
    effects[[3, 7]] = 10.0, 12.0
    table = interp.mediation_agreement(found, effects, deviations=2.0)
    for row, one in zip(table.rows(), (values.max(0), values.mean(0)), strict=True):
        inside, outside = one[[3, 7]], np.delete(one, [3, 7])
        error = np.sqrt(inside.var(ddof=1) / 2 + outside.var(ddof=1) / len(outside))
        assert row["mediators"] == 2 and row["t"] == pytest.approx((inside.mean() - outside.mean()) / error)
        assert row["auroc"] == pytest.approx(np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside]))
    none = interp.mediation_agreement(found, np.zeros(values.shape[1]))
    assert none["mediators"].tolist() == [0, 0] and np.isnan(none["auroc"]).all()
    with pytest.raises(OptionError, match="one for each of 24 heads"):
        interp.mediation_agreement(found, np.zeros(5))


def test_gates_of_one_are_the_shape_that_everything_expects():
    assert ones(hooked("llama"), 2).shape == (2, 3, 8)


def test_on_a_trained_model_closing_the_facilitating_heads_first_hurts_more_than_any_order():
    model = interp.load("embedded")
    prompts = interp.task("ioi", model.tokenizer, n=20)
    settings = GateSettings(steps=(30, 50), batch=4)
    gates = interp.gate(model, prompts[:14], prompts[14:], starts=2, settings=settings, engine=QUIET)
    curve = interp.ablation_curve(model, prompts[14:], gates, "facilitation", ranks=[12, 16], random=4)
    assert (curve["difference"] < -1).all() and (curve["difference"] < curve["random_low"]).all()
    last = interp.ablation_curve(model, prompts[14:], gates, "irrelevance", ranks=[12, 16], random=0)
    assert (abs(last["difference"]) < 0.1).all()
