"""A run's folder: config, circuit, figures and log, complete or not there at all."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interp.errors import OptionError
from interp.provenance import installed_versions

CONFIG = "config.json"


@contextmanager
def run_folder(path: str | Path, config: Mapping[str, Any]) -> Iterator[Path]:
    """A folder to write a run into; it takes its place at `path` only when the block ends without an error.

    A folder left there by an earlier run is replaced; any other is refused before work begins.

    Args:
        path: where the run's folder will be.
        config: what was asked for, written to ``config.json`` with the versions of the packages used.

    Raises:
        OptionError: something else is at `path`.
    """
    target = Path(path)
    if target.exists() and not _is_run(target):
        raise OptionError(f"{target} exists and is no folder of an earlier run; choose another --out.")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    handler = logging.FileHandler(scratch / "log.txt", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("interp")
    level = logger.level
    try:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        made = {"made_by": "interp", "versions": installed_versions(), **config}
        (scratch / CONFIG).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        yield scratch
        handler.close()
        if target.exists():
            shutil.rmtree(target)
        os.replace(scratch, target)
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
        shutil.rmtree(scratch, ignore_errors=True)


def checkpoints(path: str | Path) -> Path:
    """Where an unfinished run into this folder keeps the state that it can go on from."""
    target = Path(path)
    return target.with_name(f".{target.name}-unfinished")


def _is_run(folder: Path) -> bool:
    """Whether `folder` is empty or was made by `run_folder`."""
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        return json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("made_by") == "interp"
    except (OSError, ValueError, AttributeError):
        return False
