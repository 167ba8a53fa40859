"""The command line, as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import interp


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "error", "-m", "interp.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    """The folder of one `interp patch` run on the embedded model."""
    here = tmp_path_factory.mktemp("cli")
    done = call("patch", "embedded", "ioi", "--n", "4", "--positions", "S2,end", "--out", "run", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "logit_diff.denoising" in done.stdout and "Wrote run" in done.stdout
    return here / "run"


def test_patch_writes_circuit_page_table_config_and_log(patched) -> None:
    circuit = interp.load_circuit(patched / "circuit")
    shape = interp.load("embedded").shape
    assert len(circuit.nodes) == 2 * shape.n_layers * shape.n_heads
    config = json.loads((patched / "config.json").read_text())
    assert (config["command"], config["task"], config["n"]) == ("patch", "ioi", 4)
    assert {"circuit.html", "nodes.csv", "log.txt"} <= {p.name for p in patched.iterdir()}


def test_view_writes_a_page_that_asks_nothing_of_the_network(patched) -> None:
    done = call("view", "run/circuit", "--out", "page.html", cwd=patched.parent)
    assert done.returncode == 0, done.stderr
    page = (patched.parent / "page.html").read_text()
    assert "<script src=" not in page and 'href="http' not in page


def test_models_tasks_and_check_describe_themselves(tmp_path) -> None:
    assert "embedded" in call("models", cwd=tmp_path).stdout
    assert "ioi" in call("tasks", cwd=tmp_path).stdout
    checked = call("check", "embedded", cwd=tmp_path).stdout
    assert "Self-check passed" in checked and "rows resume" in checked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["patch", "embeded", "ioi"], "embedded"),
        (["patch", "embedded", "iio"], "nearest: 'ioi'"),
        (["patch", "embedded", "ioi", "--nodes", "zz"], "no site kind 'zz'"),
        (["patch", "embedded", "ioi", "--positions", "S3"], "no roles ['S3']"),
        (["patch", "embedded", "ioi", "--direction", "denoise"], "nearest: 'denoising'"),
        (["patch", "embedded", "ioi", "--metric", "logitdiff"], "nearest: 'logit_diff'"),
        (["patch", "embedded", "ioi", "--options", "{corruption"], "is no JSON"),
        (["patch", "embedded", "ioi", "--options", '{"corupt": 1}'], "no option 'corupt'"),
        (["view", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_ends_in_one_clear_line(words, said, tmp_path) -> None:
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("interp: ") and said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "a failed run left something behind"


def test_an_unknown_command_or_option_is_named(tmp_path) -> None:
    assert "demmo" in call("demmo", cwd=tmp_path).stderr
    assert "--postions" in call("patch", "embedded", "ioi", "--postions", "all", cwd=tmp_path).stderr


def test_interrupting_leaves_no_half_written_folder(tmp_path) -> None:
    command = [sys.executable, "-m", "interp.cli", "patch", "embedded", "ioi", "--positions", "each", "--n", "200"]
    running = subprocess.Popen([*command, "--out", "run"], cwd=tmp_path, stderr=subprocess.PIPE)
    while running.poll() is None and not list(tmp_path.iterdir()):
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    running.wait(timeout=60)
    assert running.returncode != 0
    assert not list(tmp_path.iterdir())
