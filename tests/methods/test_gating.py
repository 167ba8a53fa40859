"""Head gating on models whose heads have known roles, and its results as circuits."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import F64, build, hooked, hooked64, task

import interp
from interp.errors import CircuitError, FileError, OptionError, TaskError
from interp.gate_classes import CLASSES, start_values
from interp.gate_fit import draw_gates, fit
from interp.gate_runs import GatedTask
from interp.gate_settings import NLL, FitEngine, GateSettings, Likelihood
from interp.gate_stage import FitRow
from interp.methods import gating
from interp.methods.contrastive_gating import Contrast, gate_contrastive, same_items
from interp.methods.gating import gate
from interp.models.hf import HookedHF
from interp.tasks.base import Task

QUIET = FitEngine(progress=False)
SHORT = GateSettings(steps=(8, 15), batch=2)


def quick(model, given, **options) -> interp.Circuit:
    engine = FitEngine(progress=False, **{key: options.pop(key) for key in ("checkpoint", "minutes") if key in options})
    return gate(model, given, **{"starts": 3, "settings": SHORT, "engine": engine, **options})


def named(count: int = 3, **changes) -> Task:
    """The ragged prompts with names, so that two tasks can be matched."""
    return task(groups={"entity": tuple("abc"[:count])}, **changes)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
def test_a_head_that_writes_nothing_is_irrelevant_in_every_start(family):
    raw = build(family)
    model = HookedHF(raw)
    width = model.shape.d_head
    attention = raw.get_submodule(model.map.blocks)[1].get_submodule(model.map.attention)
    name = {"gpt2": "c_proj", "gpt_neox": "dense"}.get(family, "o_proj")
    weight = attention.get_submodule(name).weight.data
    (weight.T if family != "gpt2" else weight)[width : 2 * width] = 0.0
    settings = GateSettings(steps=(2, 60), batch=2)
    found = quick(model, task(), settings=settings)
    row = found.nodes.index("z[1] head 1")
    for name, value in (("facilitation", 0.0), ("interference", 0.0), ("irrelevance", 1.0)):
        assert np.allclose(start_values(found, name)[:, row], value, atol=0.02), name
    assert found.attributes["irrelevant"].values[row] == 1.0
    assert found.scores["grad_at_one"].values[row] == 0.0
    assert found.attributes["remove.signal"].values[row] == 0.0


def planted(sign: float) -> HookedHF:
    """A GPT-2 of one layer in which head 2 alone writes, along the right answers' unembeddings less the wrong ones'.

    Without a final norm and MLP the logits are linear in its gate, so that the loss has one minimum (with the norm a
    gate of 0.05 is a second one, in which a start can stay).
    """
    raw = build("gpt2", n_layer=1)
    head, block = raw.lm_head.weight.data, raw.transformer.h[0]
    direction = (head[[10, 11, 12]] - head[[20, 21, 22]]).mean(0)
    block.attn.c_proj.weight.data[:] = block.mlp.c_proj.weight.data[:] = 0.0
    block.attn.c_proj.weight.data[16] = sign * 2 * direction / direction.norm()
    block.attn.c_attn.weight.data[:, 64 + 16 : 64 + 24] = 0.0
    block.attn.c_attn.bias.data[64 + 16] = 1.0  # its value is 1 at every position
    raw.transformer.ln_f = torch.nn.Identity()
    return HookedHF(raw, check=False)


@pytest.mark.parametrize(("sign", "label"), [(1.0, "facilitating"), (-1.0, "interfering")])
def test_planted_heads_are_found_for_what_they_do(sign, label):
    found = quick(planted(sign), task(), settings=GateSettings(steps=(50, 100), batch=3))
    row = found.nodes.index("z[0] head 2")
    assert found.attributes[label].values[row] == 1.0
    assert np.sign(found.scores["grad_at_one"].values[row]) == sign


def test_all_fits_of_a_run_are_those_of_runs_of_their_own():
    with F64():
        model, given = hooked64("llama"), task()
        whole = quick(model, given, starts=[(0, 0), (1, 1), (0, 7)])
        for number, start in enumerate([(0, 0), (1, 1), (0, 7)]):
            alone = quick(model, given, starts=[start])
            for name in ("initial", "retain", "remove"):
                assert np.allclose(start_values(whole, name)[number], start_values(alone, name)[0], atol=1e-6), name
            assert np.allclose(
                whole.tensors["hard.neg_nll"].array[number], alone.tensors["hard.neg_nll"].array[0], atol=1e-6
            )
    single = quick(hooked("llama"), given, starts=[(0, 0), (1, 1), (0, 7)])
    for name in CLASSES:
        assert np.array_equal(single.attributes[name].values, whole.attributes[name].values)


def test_without_likelihood_the_penalty_opens_or_closes_every_gate():
    model, given = hooked("gpt2"), task()
    found = quick(model, given, settings=GateSettings(steps=(0, 40), batch=1, penalty=1e4))
    assert start_values(found, "retain").min() > 0.98 and start_values(found, "remove").max() < 0.02
    assert np.array_equal(start_values(found, "irrelevance") > 0.9, np.ones((3, 12), bool))


def test_scores_and_classes_follow_their_formulas_and_tables_their_tensors():
    found = quick(hooked("llama"), task())
    up, down = start_values(found, "retain"), start_values(found, "remove")
    assert np.allclose(start_values(found, "facilitation"), down)
    assert np.allclose(start_values(found, "interference"), 1 - up)
    assert np.allclose(start_values(found, "irrelevance"), up * (1 - down))
    total = sum(found.attributes[name].values for name in ("facilitation", "interference", "irrelevance"))
    assert np.allclose(total, 1 + (down * (1 - up)).mean(0), atol=1e-6)
    assert np.allclose(sum(found.attributes[name].values for name in CLASSES), 1.0)
    assert np.array_equal(found.attributes["always_F"].values, (down >= 0.5).all(0))
    assert np.array_equal(found.attributes["any_N"].values, (1 - up >= 0.5).any(0))
    table = interp.gate_table(found)
    rows = {row["gates"]: row for row in table.rows()}
    assert list(rows) == ["ungated", "initial", "retain", "remove", "hard"]
    assert rows["ungated"]["heads_open"] == len(found.nodes)
    assert rows["hard"]["heads_open"] == pytest.approx((down >= 0.5).sum(1).mean())
    assert rows["remove"]["neg_nll"] == pytest.approx(found.tensors["remove.neg_nll"].array.mean(), rel=1e-6)
    header = found.scores["remove"].header
    assert (header.quantity, header.ablation, header.signed) == ("gate", "zero", False)


def test_the_hard_circuit_is_run_like_any_other():
    model, given = hooked("llama"), task()
    found = quick(model, given)
    hard = interp.hard_circuit(found, start=1)
    assert np.array_equal(hard.kept_nodes, start_values(found, "remove")[1] >= 0.5)
    runs = interp.run_circuits(model, given, hard, hard.kept_nodes[None], metrics="neg_nll", ablation="zero")
    assert np.allclose(runs.values[0, 0].numpy(), found.tensors["hard.neg_nll"].array[1], atol=1e-5)
    with pytest.raises(OptionError, match="start=3; allowed: 0 to 2"):
        interp.hard_circuit(found, start=3)
    with pytest.raises(CircuitError, match="no values per start called 'remove'"):
        interp.hard_circuit(interp.patch(model, given, "z", engine=interp.Engine(progress=False)))


def test_a_run_goes_on_from_its_checkpoint_to_the_same_result(tmp_path, monkeypatch):
    model, given = hooked("gpt2"), task()
    whole = quick(model, given)
    real, calls = gating.fit, []

    def stopping(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(gating, "fit", stopping)
    with pytest.raises(KeyboardInterrupt):
        quick(model, given, checkpoint=tmp_path / "run")
    monkeypatch.setattr(gating, "fit", real)
    again = quick(model, given, checkpoint=tmp_path / "run")
    for name, tensor in whole.tensors.items():
        assert np.array_equal(again.tensors[name].array, tensor.array), name


KILLED = """
import os, signal, sys
import torch
sys.path.insert(0, {tests!r})
from test_gating import SHORT, quick
from tiny import hooked, task

if {at}:
    calls, step = [], torch.optim.Adam.step

    def killing(self, closure=None):
        calls.append(1)
        if len(calls) == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, closure)

    torch.optim.Adam.step = killing
quick(hooked("gpt2"), task(), checkpoint={folder!r}, minutes=0.0)
"""


def test_a_run_killed_at_once_goes_on_to_the_bit_equal_result(tmp_path):
    """SIGKILL in the middle of the penalised fits (the 8 first updates are those without penalty)."""
    here = str(Path(__file__).parent)
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": str(Path(here).parent)}
    for at, code in ((15, -signal.SIGKILL), (0, 0)):
        script = KILLED.format(tests=here, at=at, folder=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert not list(tmp_path.glob("*.tmp"))
    again = quick(hooked("gpt2"), task(), checkpoint=tmp_path)
    whole = quick(hooked("gpt2"), task())
    for name, tensor in whole.tensors.items():
        assert np.array_equal(again.tensors[name].array, tensor.array), name


def test_a_checkpoint_of_another_task_or_of_other_first_gates_is_refused(tmp_path):
    model, given = hooked("gpt2"), task()
    quick(model, given, checkpoint=tmp_path)
    others = [(hooked("gpt2"), given[[2, 1, 0]], {}), (hooked("gpt2"), given, {"settings": replace(SHORT, low=0.9)})]
    others.append((hooked("opt"), given, {}))
    for other, task_, options in others:
        with pytest.raises(FileError, match="a checkpoint of other settings, fits or data"):
            quick(other, task_, checkpoint=tmp_path, **options)


def test_several_strengths_ride_in_one_run_and_are_those_of_runs_of_their_own():
    with F64():
        model, given = hooked64("gpt2"), task()
        both = interp.gate_strengths(model, given, penalties=[0.05, 0.4], starts=2, settings=SHORT, engine=QUIET)
        for penalty, found in both.items():
            alone = quick(model, given, starts=2, settings=replace(SHORT, penalty=penalty))
            for name in ("initial", "retain", "remove"):
                assert np.allclose(start_values(found, name), start_values(alone, name), atol=1e-6)
            assert found.provenance.parameters["settings"]["penalty"] == penalty
        assert abs(start_values(both[0.05], "remove") - start_values(both[0.4], "remove")).max() > 1e-3
    with pytest.raises(OptionError, match=r"penalties=\[0.0\]; allowed"):
        interp.gate_strengths(model, given, penalties=[0.0])


def test_parity_settings_are_those_of_the_published_code():
    authors = GateSettings.as_published_code()
    assert (authors.first_lr, authors.lr, authors.one_sided, authors.shared_clip) == (
        (1.0, 1.0),
        (1.0, 1.0),
        False,
        True,
    )
    paper = GateSettings()
    assert (paper.first_lr, paper.lr, paper.batch, paper.penalty) == ((0.1, 0.01), (0.5, 0.1), 64, 0.1)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_retaining_what_is_to_be_forgotten_leaves_the_penalty_alone(family):
    with F64():
        model, both = hooked64(family), named()
        settings = GateSettings(steps=(60, 0), batch=2)
        found = gate_contrastive(model, both, both, starts=2, settings=settings, engine=QUIET)
        fits = [FitRow(n, n, 0.1) for n in range(2)]
        start = draw_gates(fits, (3, model.shape.n_heads), dtype=torch.float64)
        stage = settings.stage("contrast", 60, settings.first_lr)

        def nothing(gates, chosen):
            return torch.zeros(len(gates))

        expected = fit(nothing, start, fits, stage, len(both), progress=False).theta.flatten(1)
        assert np.allclose(start_values(found, "gates.theta"), expected.numpy(), atol=1e-5)
        assert start_values(found, "gates.theta").std() > 0.1


def test_the_forgotten_task_gets_worse_than_the_retained_one():
    model = hooked("llama")
    retain, forget = named(), named(answers=replace(task().answers, correct=task().answers.correct + 40))
    found = gate_contrastive(
        model, retain, forget, starts=3, settings=GateSettings(steps=(60, 0), batch=3), engine=QUIET
    )
    benefits = found.tensors["contrast.benefits"].array
    assert benefits[-1].mean() > benefits[0].mean() + 0.3
    assert np.allclose(found.scores["forget_specific"].values, 1 - start_values(found, "gates").mean(0))


def test_the_floor_ends_the_pull_on_a_pair_once_it_is_that_far_behind():
    """Pair by pair: below the floor only the retained formulation has a gradient, above it both have."""
    with F64():
        model = hooked64("gpt2")
        tasks = named(), named(answers=replace(task().answers, correct=task().answers.correct + 40))
        retain, forget = (GatedTask(model, one, NLL) for one in tasks)
        gates = torch.full((1, 3, 4), 0.5, dtype=torch.float64)
        behind = (retain.table(gates) - forget.table(gates))[0, 0]
        floor = float(behind.max() / 2)

        def gradient(objective, prompt):
            leaf = gates.clone().requires_grad_()
            leaf.grad = torch.zeros_like(leaf)
            return objective(leaf, [[prompt]]), leaf.grad

        for prompt in range(3):
            value, found = gradient(Contrast(retain, forget, floor), prompt)
            (kept, keeping), (lost, losing) = (gradient(Likelihood(one), prompt) for one in (retain, forget))
            far = behind[prompt] > floor
            assert torch.allclose(found, keeping if far else keeping - losing, atol=1e-12)
            assert torch.allclose(value, kept - (lost - kept).clamp(min=-floor), atol=1e-12)
        assert 0 < int((behind > floor).sum()) < 3


def test_tasks_are_matched_by_item_and_mismatches_are_refused():
    first, second = named(), named()[[2, 0]]
    one, other = same_items(first, second)
    assert one.groups["entity"] == other.groups["entity"] == ("a", "c")
    with pytest.raises(TaskError, match="retain has 3 prompts, forget 2"):
        gate_contrastive(hooked("gpt2"), first, second)
    with pytest.raises(TaskError, match="no group 'entity'"):
        same_items(task(), first)
    with pytest.raises(OptionError, match="starts: there are none"):
        gate(hooked("gpt2"), task(), starts=0)
