"""Circuits on disk: JSON for what can be read, safetensors for the arrays, checksums over both.

A path that ends in ``.safetensors`` is one file whose metadata holds the JSON. Any other path is a folder with
``circuit.json`` and ``circuit-<checksum>.safetensors``; the JSON names its arrays by checksum and is renamed into
place last, so that a save cut short at any moment leaves the older circuit whole.

Neither torch nor pickle is involved. A damaged, truncated, foreign or too large file ends in one `FileError`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from interp.atomic import one_error, replacing
from interp.circuit import Attribute, Circuit, NamedTensor, Score, ScoreHeader
from interp.edges import Edges
from interp.errors import FileError
from interp.nodes import COLUMNS, NODE_KINDS, Nodes
from interp.provenance import Provenance

FORMAT = "interp circuit"
SCHEMA = 1
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}  # schema n -> content of schema n + 1
MAX_JSON = 2**28  # bytes; 1,000 prompts of 100 tokens take about 2**19
MAX_BYTES = 2**36

_DTYPES = {  # safetensors' names
    np.dtype(kind): name
    for kind, name in {
        "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8",
        "uint16": "U16", "uint32": "U32", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64",
    }.items()
}  # fmt: skip


def save_circuit(circuit: Circuit, path: str | Path) -> Path:
    """Write a circuit, whole or not at all; an older one at `path` is replaced.

    Args:
        path: a folder (made if missing; other files in it stay), or a file that ends in ``.safetensors``.

    Returns:
        the path.
    """
    path = Path(path)
    content, arrays = _taken_apart(circuit)
    document = _document(content)
    text = _text(document)
    if path.suffix == ".safetensors":
        with replacing(path) as temporary:
            save_file(arrays, temporary, metadata={"circuit": text})
        return path
    arrays_file = _arrays_file(path, document)
    with replacing(arrays_file) as temporary:
        save_file(arrays, temporary)
    with replacing(path / "circuit.json") as temporary:
        temporary.write_text(text, encoding="ascii")
    for older in path.glob("circuit-" + "[0-9a-f]" * 16 + ".safetensors"):
        if older != arrays_file:
            older.unlink(missing_ok=True)
    return path


def load_circuit(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Circuit:
    """Read a circuit that `save_circuit` wrote, of this schema or an older one. Tensors stay on disk until used.

    Args:
        path: the folder, its ``circuit.json``, or the single file.
        max_bytes: the largest file to open.

    Raises:
        FileError: no circuit there, too large, damaged, or of a schema that this version does not know.
    """
    path = Path(path)
    if path.name == "circuit.json":
        path = path.parent
    with one_error(path, "a circuit"):
        arrays_file = path
        if path.is_file():
            _check_size(path, max_bytes)
            with safe_open(path, framework="numpy") as file:
                document = json.loads((file.metadata() or {}).get("circuit", "null"))
        else:
            _check_size(path / "circuit.json", MAX_JSON)
            document = json.loads((path / "circuit.json").read_bytes())
        content = _content(document, path)
        if path.is_dir():
            arrays_file = _arrays_file(path, document)
            _check_size(arrays_file, max_bytes)
        return _put_together(content, _stored(content["arrays"], arrays_file))


def identical(first: Circuit, second: Circuit) -> bool:
    """Whether two circuits are equal to the bit: names, order, dtypes, every value (NaN equals NaN) and provenance."""
    return _seal(SCHEMA, _taken_apart(first)[0]) == _seal(SCHEMA, _taken_apart(second)[0])


@dataclass(frozen=True)
class _Stored:
    """An array in a safetensors file, checked against its checksum when it is read."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sha256: str

    def __call__(self) -> np.ndarray:
        with one_error(self.file, "a circuit"):
            with safe_open(self.file, framework="numpy") as file:
                array = file.get_tensor(self.name)
            if _digest(array) != self.sha256:
                raise ValueError(f"array {self.name!r} does not match its checksum")
            array.setflags(write=False)
            return array


def _taken_apart(circuit: Circuit) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The circuit as JSON content and named arrays."""
    arrays = {f"nodes.{name}": getattr(circuit.nodes, name) for name in COLUMNS}
    arrays |= {"edges.source": circuit.edges.source, "edges.destination": circuit.edges.destination}
    arrays |= {"kept_nodes": circuit.kept_nodes, "kept_edges": circuit.kept_edges}
    arrays |= {f"scores.{name}": score.values for name, score in circuit.scores.items()}
    arrays |= {f"tensors.{name}": tensor.array for name, tensor in circuit.tensors.items()}
    attributes = {}
    for name, one in circuit.attributes.items():
        words, arrays[f"attributes.{name}"] = _coded(one.values) if one.values.dtype == object else (None, one.values)
        attributes[name] = {"over": one.over, "meaning": one.meaning, "words": words}
    content = {
        "provenance": asdict(circuit.provenance),
        "node_kinds": list(NODE_KINDS),
        "node_roles": list(circuit.nodes.roles),
        "node_featurizers": list(circuit.nodes.featurizers),
        "scores": {name: asdict(score.header) for name, score in circuit.scores.items()},
        "attributes": attributes,
        "tensors": {name: {"axes": list(tensor.axes)} for name, tensor in circuit.tensors.items()},
        "featurizers": circuit.featurizers,
        "arrays": {
            name: {"dtype": _DTYPES[array.dtype], "shape": list(array.shape), "sha256": _digest(array)}
            for name, array in arrays.items()
        },
    }
    return content, arrays


def _coded(strings: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Strings as a vocabulary, and the number of each in it."""
    words = {word: code for code, word in enumerate(dict.fromkeys(strings.tolist()))}
    return list(words), np.array([words[word] for word in strings.tolist()], dtype=np.int32)


def _put_together(content: dict[str, Any], stored: Mapping[str, _Stored]) -> Circuit:
    """The circuit of JSON content and arrays; all but the tensors are read here."""
    columns: dict[str, Any] = {name: stored[f"nodes.{name}"]() for name in COLUMNS}
    known = {kind: code for code, kind in enumerate(NODE_KINDS)}  # the file's own numbering may be older
    columns["kind"] = np.array([known.get(kind, -1) for kind in content["node_kinds"]])[columns["kind"]]
    attributes = {}
    for name, entry in content["attributes"].items():
        values = stored[f"attributes.{name}"]()
        if entry["words"] is not None:
            values = np.array([*entry["words"], None], dtype=object)[values]
        attributes[name] = Attribute(entry["over"], values, entry["meaning"])
    return Circuit(
        Nodes(**columns, roles=tuple(content["node_roles"]), featurizers=tuple(content["node_featurizers"])),
        Edges(stored["edges.source"](), stored["edges.destination"]()),
        {name: Score(ScoreHeader(**entry), stored[f"scores.{name}"]()) for name, entry in content["scores"].items()},
        attributes,
        stored["kept_nodes"](),
        stored["kept_edges"](),
        {
            name: NamedTensor(stored[f"tensors.{name}"], tuple(entry["axes"]))
            for name, entry in content["tensors"].items()
        },
        content["featurizers"],
        Provenance(**content["provenance"]),
    )


def _document(content: dict[str, Any]) -> dict[str, Any]:
    return {"format": FORMAT, "schema": SCHEMA, "sha256": _seal(SCHEMA, content), "content": content}


def _text(document: Mapping[str, Any]) -> str:
    """A document as JSON, one line a section."""
    sections = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document["content"].items()]
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "content"]
    text = "{" + ",\n ".join([*head, '"content": {' + ",\n  ".join(sections)]) + "}}\n"
    if len(text) > MAX_JSON:
        raise FileError(
            f"the circuit's JSON takes {len(text):,} bytes, the limit is {MAX_JSON:,}; save fewer token ids."
        )
    return text


def _content(document: Any, path: Path) -> dict[str, Any]:
    """The content of a document, brought to this schema."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileError(f"{path} holds no {FORMAT}; give a folder or file that save_circuit wrote.")
    schema: Any = document.get("schema")
    content: Any = document.get("content")
    readable = sorted({SCHEMA, *MIGRATIONS})
    if schema not in readable or isinstance(schema, bool):
        raise FileError(f"{path} has schema {schema!r}; this version reads {readable}: update interp, or save it anew.")
    if document.get("sha256") != _seal(schema, content):
        raise ValueError("the JSON does not match its checksum")
    for older in range(schema, SCHEMA):
        content = MIGRATIONS[older](content)
    return content


def _stored(entries: Mapping[str, Any], file: Path) -> dict[str, _Stored]:
    """What the JSON says about each array, compared with the file's own header before anything is read."""
    dtypes = {name: dtype for dtype, name in _DTYPES.items()}
    stored = {
        name: _Stored(file, name, tuple(entry["shape"]), dtypes[entry["dtype"]], entry["sha256"])
        for name, entry in entries.items()
    }
    with safe_open(file, framework="numpy") as opened:
        if set(opened.keys()) != set(stored):
            raise ValueError(
                f"arrays {sorted(set(opened.keys()) ^ set(stored))} are in the JSON or the file, not in both"
            )
        for name, array in stored.items():
            part = opened.get_slice(name)
            if (part.get_dtype(), tuple(part.get_shape())) != (_DTYPES[array.dtype], array.shape):
                raise ValueError(f"array {name!r} is {part.get_dtype()} {part.get_shape()}, not as the JSON says")
    return stored


def _check_size(file: Path, limit: int) -> None:
    size = file.stat().st_size
    if size > limit:
        raise FileError(f"{file} has {size:,} bytes, the limit is {limit:,}; raise max_bytes if you trust it.")


def _arrays_file(folder: Path, document: Any) -> Path:
    return folder / f"circuit-{document['sha256'][:16]}.safetensors"


def _seal(schema: int, content: Any) -> str:
    """Checksum of the content, whatever its spacing and the order of its keys."""
    text = json.dumps([schema, content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
