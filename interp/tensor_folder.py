"""Settings and tensors in a folder: ``NAME.safetensors``, and ``NAME.json`` with settings and the tensors' checksum.

The JSON file is renamed into place last, so that a folder holds a whole pair or, after an interrupted write over an
older one, a pair whose checksum does not fit and is refused.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file
from torch import Tensor

from interp.atomic import replacing
from interp.errors import FileError

MAX_BYTES = 2**34
"""Of the tensors."""


class Kind(NamedTuple):
    """What a pair of files holds.

    Args:
        name: of the files.
        format: the word in their head.
        schema: version of the settings.
        writer: the function that makes them.
    """

    name: str
    format: str
    schema: int
    writer: str


def write_folder(folder: Path, kind: Kind, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a pair; an older one is replaced, other files in the folder stay.

    Raises:
        TypeError: settings that JSON cannot hold; nothing is written then.
    """
    plain = json.loads(json.dumps(settings))
    with replacing(folder / f"{kind.name}.safetensors") as temporary:
        # clones, as tensors in one file may not share memory
        save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, temporary)
        head = {"format": kind.format, "schema": kind.schema, "sha256": _checksum(temporary), "settings": plain}
    with replacing(folder / f"{kind.name}.json") as temporary:
        temporary.write_text(json.dumps(head, indent=1) + "\n", encoding="ascii")


def read_folder(folder: Path, kind: Kind) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and tensors of a pair.

    Raises:
        FileError: no pair of that kind, or of another schema.
        ValueError and others: damage (see `interp.atomic.one_error`).
    """
    settings_file, tensors_file = folder / f"{kind.name}.json", folder / f"{kind.name}.safetensors"
    if not settings_file.is_file():
        raise FileError(f"{folder} holds no {settings_file.name}; give a folder that {kind.writer} wrote.")
    document = json.loads(settings_file.read_bytes())
    if not isinstance(document, dict):
        raise ValueError(f"{settings_file.name} holds no JSON object")
    if document.get("format") != kind.format:
        raise FileError(f"{settings_file} is no {kind.format}; give a folder that {kind.writer} wrote.")
    if document.get("schema") != kind.schema:
        raise FileError(
            f"{settings_file} has schema {document.get('schema')!r}, this version reads {kind.schema}: update interp, "
            "or make it anew."
        )
    if (size := tensors_file.stat().st_size) > MAX_BYTES:
        raise FileError(f"{tensors_file} has {size:,} bytes; allowed: up to {MAX_BYTES:,}.")
    if _checksum(tensors_file) != document["sha256"]:
        raise ValueError(f"{tensors_file.name} does not match its checksum")
    return document["settings"], load_file(tensors_file)


def _checksum(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
