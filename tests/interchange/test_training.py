"""Training: batches, losses, early stopping, bit-equal resume after a kill, two processes as one."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from interchange_examples import examples, resumption
from tiny import build, hooked

from interp.errors import FileError, OptionError
from interp.interchange.examples import batch_of
from interp.interchange.exchanges import BoundlessSubspace, Subspace
from interp.interchange.placing import AtRoles
from interp.interchange.training import History, Keeping, TrainSettings, answer_losses, picks, train_interchange
from interp.models.hf import HookedHF

QUIET = Keeping(progress=False)
SITE = "resid_post[0]"
D = 32


def trained(settings: TrainSettings, keeping: Keeping = QUIET, **options) -> tuple[Subspace, History]:
    model, data = hooked("llama"), examples(12)
    exchange = Subspace(D, 4)
    runs = resumption(model, data, SITE)
    history = train_interchange(
        runs, data, AtRoles(SITE, exchange, "last_entity"), settings, keeping=keeping, **options
    )
    return exchange, history


def test_batches_hold_both_kinds_and_passes_follow_one_another() -> None:
    data = examples(12)
    causes = set(np.flatnonzero(data.causes).tolist())
    assert len(causes) == 6
    drawn = [picks(data, 4, step, seed=1) for step in range(6)]
    for batch in drawn:
        assert sum(n in causes for n in batch) == 2
    for first in (0, 3):
        assert sorted(n for batch in drawn[first : first + 3] for n in batch) == list(range(12))
    assert picks(data, 4, 5, seed=1) == drawn[5] != picks(data, 4, 5, seed=2)
    alone = data[sorted(causes)]
    assert sorted(picks(alone, 6, 0, seed=0)) == list(range(6))


def test_the_loss_is_the_mean_over_the_answer_s_tokens() -> None:
    data = examples(6)
    batch = batch_of(data, range(6), torch.device("cpu"))
    logits = torch.randn(6, batch.ids.shape[1], 97, generator=torch.Generator().manual_seed(0))
    for n, answer in enumerate(data.answers):
        by_hand = torch.nn.functional.cross_entropy(logits[n, : len(answer)], torch.tensor(answer))
        torch.testing.assert_close(answer_losses(logits, batch)[n], by_hand)


def test_learning_rates_rise_and_fall() -> None:
    settings = TrainSettings(steps=100, warm_up=0.1, decay=True)
    assert settings.factor(0) == pytest.approx(0.1) and settings.factor(10) == pytest.approx(1.0)
    assert settings.factor(55) == pytest.approx(0.5) and settings.factor(99) < 0.01
    assert TrainSettings().factor(999) == 1.0


def test_kinds_are_weighed() -> None:
    model, data = hooked("llama"), examples(12)
    runs = resumption(model, data, SITE)
    found = []
    for weights in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        settings = TrainSettings(steps=1, batch=12, cause_weight=weights[0], isolate_weight=weights[1])
        one = AtRoles(SITE, Subspace(D, 4), "last_entity")
        found.append(train_interchange(runs, data, one, settings, keeping=QUIET).losses[0])
    assert found[2] == pytest.approx(2 * found[0] + 3 * found[1], rel=1e-5)


def test_the_loss_falls_and_the_best_validation_is_kept() -> None:
    _, history = trained(TrainSettings(steps=60, batch=12, rate=1e-2))
    assert np.mean(history.losses[-5:]) < history.losses[0]
    scores = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    seen: list[torch.Tensor] = []
    model, data = hooked("llama"), examples(12)
    exchange = Subspace(D, 4)

    def validate() -> float:
        seen.append(exchange.rotation().detach().clone())
        return next(scores)

    settings = TrainSettings(steps=50, batch=4, evaluate_every=2, patience=2)
    history = train_interchange(
        resumption(model, data, SITE), data, AtRoles(SITE, exchange, "end"), settings, validate=validate, keeping=QUIET
    )
    assert history.scores == [(2, 0.1), (4, 0.5), (6, 0.4), (8, 0.3)] and history.best == (4, 0.5)
    assert torch.equal(exchange.rotation(), seen[1]) and len(history.losses) == 8


def test_an_interrupted_run_goes_on_to_the_bit_equal_result(tmp_path: Path) -> None:
    settings = TrainSettings(steps=9, batch=4, rate=1e-2, warm_up=0.2, decay=True, evaluate_every=3)
    scores = {3: 0.2, 6: 0.1, 9: 0.05}

    def run(folder: Path, stop: int | None) -> tuple[torch.Tensor, History]:
        keeping = Keeping(folder / "run.safetensors", minutes=0.0, progress=False)
        model, data = hooked("llama"), examples(12)
        exchange, count = Subspace(D, 4), [0]

        def validate() -> float:
            count[0] += 1
            if count[0] == stop:
                raise KeyboardInterrupt
            return scores[3 * (count[0] + (1 if stop is None and folder.name == "cut" else 0))]

        one = AtRoles(SITE, exchange, "end")
        history = train_interchange(
            resumption(model, data, SITE), data, one, settings, validate=validate, keeping=keeping
        )
        return exchange.rotation(), history

    whole, history = run(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", 2)
    again, resumed = run(tmp_path / "cut", None)
    assert torch.equal(again, whole) and resumed.losses == history.losses and resumed.scores == history.scores


def test_a_checkpoint_of_something_else_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "run.safetensors", progress=False)
    settings = TrainSettings(steps=2, batch=4)
    one, _ = trained(settings, keeping)
    same, history = trained(settings, keeping)
    assert torch.equal(one.rotation(), same.rotation()) and len(history.losses) == 2
    with pytest.raises(FileError, match="checkpoint of another model, data, interchange or settings; delete it"):
        trained(replace(settings, rate=2e-3), keeping)
    (tmp_path / "run.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(FileError, match="run.safetensors is damaged"):
        trained(settings, keeping)


def test_settings_out_of_range_and_no_data() -> None:
    with pytest.raises(OptionError, match="steps=0, batch=0, rate=-1.0, warm_up=1.0 are outside"):
        TrainSettings(steps=0, batch=0, rate=-1.0, warm_up=1.0)
    model, data = hooked("llama"), examples(6)
    with pytest.raises(OptionError, match="no example to train on"):
        train_interchange(resumption(model, data, SITE), data[[]], AtRoles(SITE, Subspace(D, 1), "end"), keeping=QUIET)


def test_hooks_flags_and_modes_stay_when_training_is_interrupted() -> None:
    model, data = HookedHF(build("gpt2")), examples(6)
    flags = [p.requires_grad for p in model.parameters()]
    one = AtRoles(SITE, BoundlessSubspace(D), "end").eval()

    def validate() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_interchange(
            resumption(model, data, SITE), data, one, TrainSettings(steps=2, batch=2, evaluate_every=1),
            validate=validate, keeping=QUIET,
        )  # fmt: skip
    assert [p.requires_grad for p in model.parameters()] == flags and not one.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.model.modules())


SCRIPT = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, {tests!r})
    import torch
    import torch.distributed as dist
    from interchange_examples import examples, resumption
    from tiny import hooked
    from interp.interchange.exchanges import Subspace
    from interp.interchange.placing import AtRoles
    from interp.interchange.training import Keeping, TrainSettings, train_interchange

    torch.set_num_threads(1)
    if {processes} > 1:
        meet, rank = "file://" + sys.argv[2], int(sys.argv[3])
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size={processes})
    exchange, data = Subspace(32, 4), examples(12)
    keeping = Keeping(sys.argv[1], minutes=0.0, progress=False)
    settings = TrainSettings(steps={steps}, batch=6, rate=1e-2)
    one = AtRoles("resid_post[0]", exchange, "end")
    runs = resumption(hooked("llama"), data, "resid_post[0]")
    history = train_interchange(runs, data, one, settings, keeping=keeping)
    torch.save([exchange.rotation().detach(), history.losses], sys.argv[1] + ".done")
    """
)


def script(tmp_path: Path, **values) -> list[str]:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(tests=str(Path(__file__).parent.parent), **values))
    return [sys.executable, str(file)]


def test_killed_in_the_middle_it_resumes_to_the_bit_equal_curve(tmp_path: Path) -> None:
    command = script(tmp_path, processes=1, steps=60)
    subprocess.run([*command, str(tmp_path / "whole")], check=True)
    process = subprocess.Popen([*command, str(tmp_path / "cut")])
    deadline = time.monotonic() + 60
    while not (tmp_path / "cut").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut.done").exists(), "it ended before it was killed: train longer"
    subprocess.run([*command, str(tmp_path / "cut")], check=True)
    whole, cut = (torch.load(tmp_path / f"{name}.done") for name in ("whole", "cut"))
    assert torch.equal(whole[0], cut[0]) and whole[1] == cut[1]


def test_two_processes_are_one(tmp_path: Path) -> None:
    subprocess.run([*script(tmp_path, processes=1, steps=10), str(tmp_path / "one")], check=True)
    command = [*script(tmp_path, processes=2, steps=10), str(tmp_path / "two"), str(tmp_path / "meet")]
    both = [subprocess.Popen([*command, str(rank)]) for rank in (0, 1)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    one, two = (torch.load(tmp_path / f"{name}.done") for name in ("one", "two"))
    torch.testing.assert_close(one[0], two[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one[1], two[1], rtol=1e-5)


def test_validations_that_rest_at_the_best_are_no_reason_to_stop() -> None:
    history = History(scores=[(1, 0.5), (2, 0.5), (3, 0.5)])
    assert history.best == (1, 0.5) and history.worse_since() == 0
    history.scores += [(4, 0.4), (5, 0.5), (6, 0.3)]
    assert history.worse_since() == 2
    history.scores.append((7, 0.6))
    assert history.best == (7, 0.6) and history.worse_since() == 0
