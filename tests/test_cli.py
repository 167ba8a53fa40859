"""The command line, as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from circuits import unchecked

import interp
from interp.cli import run


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    """The command line in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "interp.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def here(words: list[str], cwd: Path, monkeypatch, capsys) -> tuple[int, str, str]:
    """The command line in this process: exit code, output, errors."""
    monkeypatch.chdir(cwd)
    with pytest.raises(SystemExit) as ended:
        run(words)
    return (ended.value.code or 0, *capsys.readouterr())


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    """The folder of one `interp patch` run on the embedded model."""
    folder = tmp_path_factory.mktemp("cli")
    done = call("patch", "embedded", "ioi", "--n", "4", "--positions", "S2,end", "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "logit_diff.denoising" in done.stdout and "Wrote run" in done.stdout
    return folder / "run"


def test_patch_writes_circuit_page_table_config_and_log(patched) -> None:
    circuit = interp.load_circuit(patched / "circuit")
    shape = interp.load("embedded").shape
    assert len(circuit.nodes) == 2 * shape.n_layers * shape.n_heads
    config = json.loads((patched / "config.json").read_text())
    assert (config["command"], config["task"], config["n"]) == ("patch", "ioi", 4)
    assert {"circuit.html", "nodes.csv", "log.txt"} <= {p.name for p in patched.iterdir()}


def test_view_writes_a_page_of_its_own(patched, monkeypatch, capsys) -> None:
    code, said, _ = here(["view", "run/circuit", "--out", "page.html"], patched.parent, monkeypatch, capsys)
    assert code == 0 and "Wrote page.html" in said
    page = (patched.parent / "page.html").read_text()
    assert "<script src=" not in page and "Content-Security-Policy" in page


@pytest.mark.parametrize(
    ("words", "said"), [("models", "embedded"), ("tasks", "ioi"), ("check embedded", "Self-check passed")]
)
def test_models_tasks_and_check_describe_themselves(words, said, tmp_path, monkeypatch, capsys) -> None:
    code, output, _ = here(words.split(), tmp_path, monkeypatch, capsys)
    assert code == 0 and said in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["patch", "embeded", "ioi"], "embedded"),
        (["patch", "embedded", "iio"], "nearest: 'ioi'"),
        (["patch", "embedded", "ioi", "--nodes", "zz"], "no site kind 'zz'"),
        (["patch", "embedded", "ioi", "--positions", "S3"], "no roles ['S3']"),
        (["patch", "embedded", "ioi", "--metric", "logitdiff"], "nearest: 'logit_diff'"),
        (["patch", "embedded", "ioi", "--options", "{corruption"], "is no JSON"),
        (["patch", "embedded", "ioi", "--options", '{"corupt": 1}'], "no option 'corupt'"),
        (["view", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_ends_in_one_clear_line(words, said, tmp_path, monkeypatch, capsys) -> None:
    code, _, errors = here(words, tmp_path, monkeypatch, capsys)
    assert code == 2
    assert errors.startswith("interp: ") and said in errors
    assert not list(tmp_path.iterdir()), "a failed run left something behind"


@pytest.mark.parametrize(("words", "said"), [("demmo", "demmo"), ("patch embedded ioi --postions all", "--postions")])
def test_an_unknown_command_or_option_is_named(words, said, tmp_path, monkeypatch, capsys) -> None:
    code, _, errors = here(words.split(), tmp_path, monkeypatch, capsys)
    assert code == 2 and said in errors


def test_a_mistake_is_no_traceback_in_a_process_of_its_own(tmp_path) -> None:
    done = call("patch", "embedded", "ioi", "--direction", "denoise", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("interp: direction is 'denoise'") and "nearest: 'denoising'" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupting_leaves_no_half_written_folder(tmp_path) -> None:
    command = [sys.executable, "-m", "interp.cli", "patch", "embedded", "ioi", "--positions", "each", "--n", "200"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where these tests run in the background
    with subprocess.Popen(
        [*command, "--out", "run"], cwd=tmp_path, stderr=subprocess.DEVNULL, preexec_fn=heard
    ) as running:
        while running.poll() is None and not list(tmp_path.iterdir()):
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        running.wait(timeout=60)
    assert running.returncode != 0
    assert not list(tmp_path.iterdir())


def test_attribute_writes_estimates_and_the_exact_effects_of_the_highest(tmp_path, monkeypatch, capsys) -> None:
    words = "attribute embedded ioi --n 4 --method atp* --verify 3 --direction noising --out run".split()
    code, out, _ = here(words, tmp_path, monkeypatch, capsys)
    circuit = interp.load_circuit(tmp_path / "run" / "circuit")
    assert code == 0 and "nan" not in out
    assert circuit.provenance.method == "atp*"
    assert (~np.isnan(circuit.scores["logit_diff.noising.exact"].values)).sum() == 3


def test_edges_keeps_the_strongest_and_evaluate_judges_them(tmp_path, monkeypatch, capsys) -> None:
    words = "edges embedded ioi --n 4 --steps 2 --keep 30 --out run".split()
    code, out, _ = here(words, tmp_path, monkeypatch, capsys)
    assert code == 0 and " -> " in out and (tmp_path / "run" / "edges.csv").exists()
    words = "evaluate run/circuit embedded ioi --n 4 --random 2".split()
    code, out, _ = here(words, tmp_path, monkeypatch, capsys)
    assert code == 0 and "faithfulness" in out and "necessity" in out and "with 30 of 1519 edges" in out
    for method, most in (("exact", 20), ("acdc", 40)):
        words = f"edges embedded ioi --n 2 --method {method} --granularity sublayer --keep 20 --out {method}".split()
        code, out, err = here(words, tmp_path, monkeypatch, capsys)
        assert code == 0 and " -> " in out, err
        assert 0 < interp.load_circuit(tmp_path / method / "circuit").kept_edges.sum() <= most
    words = "edges embedded ioi --n 4 --method epa".split()
    with unchecked():
        code, _, err = here(words, tmp_path, monkeypatch, capsys)
    assert code == 2 and "method is 'epa'" in err and "nearest: 'eap'" in err


def test_gate_writes_its_tables_and_goes_on_after_an_interruption(tmp_path, monkeypatch, capsys) -> None:
    from interp.methods import gating

    words = "gate embedded ioi --n 6 --held-out 2 --starts 2 --first-steps 4 --steps 4 --batch 2 --out run".split()
    real, calls = gating.fit, []

    def stopping(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(gating, "fit", stopping)
    here(words, tmp_path, monkeypatch, capsys)
    assert not (tmp_path / "run").exists() and (tmp_path / ".run-unfinished" / "initial.safetensors").exists()
    monkeypatch.setattr(gating, "fit", real)
    code, out, err = here(words, tmp_path, monkeypatch, capsys)
    assert code == 0, err
    assert "ungated" in out and "facilitation always" in out and not (tmp_path / ".run-unfinished").exists()
    circuit = interp.load_circuit(tmp_path / "run" / "circuit")
    assert circuit.tensors["remove"].array.shape == (2, len(circuit.nodes))
    code, _, err = here([*words, "--held-out", "6"], tmp_path, monkeypatch, capsys)
    assert code == 2 and "--held-out 6 leaves none of 6 prompts" in err
