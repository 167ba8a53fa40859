"""A run's folder is complete or not there."""

import json
import logging

import pytest

from interp.errors import OptionError
from interp.run_folder import run_folder


def test_a_finished_run_leaves_config_log_and_what_it_wrote(tmp_path) -> None:
    with run_folder(tmp_path / "run", {"command": "demo", "seed": 3}) as folder:
        (folder / "result.txt").write_text("42")
        logging.getLogger("interp.test").info("said something")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 3
    assert (tmp_path / "run" / "result.txt").read_text() == "42"
    assert "said something" in (tmp_path / "run" / "log.txt").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError])
def test_an_interrupted_run_leaves_nothing_and_the_earlier_one_as_it_was(tmp_path, fault) -> None:
    with run_folder(tmp_path / "run", {}) as folder:
        (folder / "result.txt").write_text("first")
    with pytest.raises(fault), run_folder(tmp_path / "run", {}) as folder:
        (folder / "result.txt").write_text("half")
        raise fault
    assert (tmp_path / "run" / "result.txt").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_earlier_run_is_replaced_whole(tmp_path) -> None:
    for name in ("old.txt", "new.txt"):
        with run_folder(tmp_path / "run", {}) as folder:
            (folder / name).write_text("")
    assert not (tmp_path / "run" / "old.txt").exists()


def test_a_folder_of_somebody_else_is_refused_before_work_begins(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(OptionError, match="choose another --out"), run_folder(tmp_path, {}):
        raise AssertionError("the work began")
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_the_logger_is_left_as_it_was(tmp_path) -> None:
    logger = logging.getLogger("interp")
    before = (logger.level, list(logger.handlers))
    with run_folder(tmp_path / "run", {}):
        pass
    assert (logger.level, list(logger.handlers)) == before
