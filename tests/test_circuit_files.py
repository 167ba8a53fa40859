"""Circuits come back from disk equal to the bit, or not at all."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from circuits import mask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import save_file

from interp import circuit_files
from interp.circuit import Attribute, Circuit, NamedTensor, Score, ScoreHeader
from interp.circuit_files import identical, load_circuit, save_circuit
from interp.edges import Edges
from interp.errors import FileError
from interp.nodes import ERROR, NODE_KINDS, Node, Nodes
from interp.provenance import Provenance

EXAMPLE = Path(__file__).parent / "data" / "circuit_v1"
SHAPES = pytest.mark.parametrize("name", ["circuit", "circuit.safetensors"])


def example() -> Circuit:
    """The circuit of the committed example file: some of everything that the format holds."""
    nodes = Nodes.of(
        [
            Node("input"),
            Node("q", 0, head=1, role="last name"),
            Node("z", 0, head=1, pos=7),
            Node("neuron", 1, unit=64, width=32),
            Node("resid_post", 1, featurizer="sae", unit=17),
            Node("resid_post", 1, featurizer="sae", unit=ERROR),
            Node("logits"),
        ]
    )
    over_nodes = ScoreHeader(
        "nodes", "effect", True, "noising", "clean", "mean", "mean", "logits", "patching", "logit_difference"
    )
    return Circuit(
        nodes,
        Edges(np.array([0, 1, 2, 3]), np.array([1, 2, 6, 6])),
        {
            "effect": Score(over_nodes, np.array([np.nan, np.inf, 0.1, -np.inf, -0.0, 1e-45, np.nan])),
            "eap": Score(ScoreHeader("edges", "attribution", signed=True), np.array([0.5, np.nan, -2.0, 3e38])),
        },
        {
            "class": Attribute(
                "nodes",
                np.array(["", "é", "a", "a", "line\nbreak", "\x00", "😀"], dtype=object),
                "strings of any kind",
            ),
            "share": Attribute("edges", np.array([0.1, np.nan, 1.0, np.inf]), "float64"),
            "count": Attribute("edges", np.array([2**62, -1, 0, 5]), "int64"),
        },
        kept_nodes=mask("1110111"),
        kept_edges=mask("1010"),
        tensors={
            "per_prompt": NamedTensor(np.arange(14.0).reshape(2, 7), ("prompt", "node")),
            "ids": NamedTensor(np.array([[1, 2], [3, -1]]), ("prompt", "pos")),
            "nothing": NamedTensor(np.zeros((0, 3), bool), ("prompt", "axis")),
            "number": NamedTensor(np.array(2.5), ()),
        },
        featurizers={"sae": {"kind": "topk", "k": 4, "files": ["a", "b"]}},
        provenance=Provenance(
            model="a/model",
            revision="abc",
            weights="0123",
            tokenizer="4567",
            task="ioi",
            task_parameters={"n": 8, "names": ["Mary", "été"]},
            token_ids=((1, 2, 3), (4, 5)),
            corrupted_token_ids=((1, 9, 3), (4, 6)),
            metric="logit_difference",
            direction="noising",
            ablation="mean",
            method="patching",
            parameters={"reference": "train", "bound": float("inf"), "deep": {"list": [None, True, 0.1]}},
            ranking="absolute",
            seed=3,
            versions={"python": "3.11", "interp": "0.1"},
            forwards=12.5,
            backwards=1.0,
            operations=({"operation": "top_n", "n": 5, "by": "effect", "rank": "absolute"},),
        ),
    )


def assert_equal(first: Circuit, second: Circuit) -> None:
    """Equal part by part, so that a failure says where."""
    for name in ("kind", "layer", "head", "role", "pos", "featurizer", "unit", "width"):
        np.testing.assert_array_equal(getattr(first.nodes, name), getattr(second.nodes, name))
    assert list(first.nodes) == list(second.nodes)
    for rows in ("source", "destination"):
        np.testing.assert_array_equal(getattr(first.edges, rows), getattr(second.edges, rows))
    assert list(first.columns) == list(second.columns)
    for name, column in first.columns.items():
        other = second.columns[name]
        assert column.values.dtype == other.values.dtype
        assert column.values.tobytes() == other.values.tobytes() or column.values.tolist() == other.values.tolist()
        assert not other.values.flags.writeable
    assert {name: score.header for name, score in first.scores.items()} == {
        name: score.header for name, score in second.scores.items()
    }
    assert {k: (a.over, a.meaning) for k, a in first.attributes.items()} == {
        k: (a.over, a.meaning) for k, a in second.attributes.items()
    }
    assert list(first.tensors) == list(second.tensors)
    for name, tensor in first.tensors.items():
        other = second.tensors[name]
        assert (tensor.axes, tensor.array.dtype, tensor.array.shape) == (
            other.axes,
            other.array.dtype,
            other.array.shape,
        )
        assert tensor.array.tobytes() == other.array.tobytes()
        assert not other.array.flags.writeable
    assert first.kept_nodes.tolist() == second.kept_nodes.tolist()
    assert first.kept_edges.tolist() == second.kept_edges.tolist()
    assert first.featurizers == second.featurizers
    assert first.provenance == second.provenance
    assert identical(first, second)


# Round trips


@SHAPES
def test_everything_comes_back_equal_to_the_bit(tmp_path, name):
    path = save_circuit(example(), tmp_path / "new" / name)
    assert path.is_file() == name.endswith(".safetensors")
    assert_equal(example(), load_circuit(path))
    again = save_circuit(load_circuit(path), tmp_path / "again" / name)
    assert_equal(example(), load_circuit(again))


def test_the_committed_file_of_schema_1_reads_as_the_circuit_it_was_made_from():
    assert_equal(example(), load_circuit(EXAMPLE))
    assert_equal(example(), load_circuit(EXAMPLE / "circuit.json"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(min_size=1, max_size=6).filter(str.isprintable)


@st.composite
def parts(draw) -> dict[str, Any]:
    """What a circuit is made of, as plain values: the package draws random numbers when its calls are checked."""
    rows = draw(st.lists(st.tuples(st.integers(0, 9), st.none() | NAMES), unique=True, max_size=6))
    row = st.integers(0, max(len(rows) - 1, 0))
    edges = draw(st.lists(st.tuples(row, row), unique=True, max_size=6 if rows else 0))
    over = draw(st.sampled_from(["nodes", "edges"]))
    n = len(rows) if over == "nodes" else len(edges)
    shapes = npst.array_shapes(max_dims=2, min_side=0, max_side=3)
    return {
        "rows": rows,
        "edges": np.array(edges, dtype=np.int64).reshape(-1, 2),
        "over": over,
        "names": draw(st.lists(NAMES.map(lambda name: name + "!"), unique=True, min_size=3, max_size=3)),
        "values": draw(npst.arrays(np.float32, n, elements=st.floats(width=32))),
        "words": draw(st.lists(st.text(st.characters(), max_size=4), min_size=n, max_size=n)),
        "tensor": draw(npst.arrays(st.sampled_from([np.float32, np.int16, np.bool_]), shapes)),
        "featurizers": draw(st.dictionaries(NAMES, JSON, max_size=2)),
        "parameters": draw(st.dictionaries(st.text(max_size=5), JSON, max_size=3)),
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts(), st.sampled_from(["c", "c.safetensors"]))
def test_any_circuit_comes_back(tmp_path, drawn, name):
    first, second, third = drawn["names"]
    tensor = drawn["tensor"]
    circuit = Circuit(
        Nodes.of([Node("z", layer, role=role) for layer, role in drawn["rows"]]),
        Edges(drawn["edges"][:, 0], drawn["edges"][:, 1]),
        {first: Score(ScoreHeader(drawn["over"], "effect", signed=True, unit=second), drawn["values"])},
        {second: Attribute(drawn["over"], np.array(drawn["words"], dtype=object))},
        tensors={third: NamedTensor(tensor, tuple(f"axis {i}" for i in range(tensor.ndim)))},
        featurizers=drawn["featurizers"],
        provenance=Provenance(parameters=drawn["parameters"]),
    )
    assert_equal(circuit, load_circuit(save_circuit(circuit, tmp_path / name)))


def test_200_000_edges_come_back(tmp_path):
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 2000, (200_000, 2)), axis=0)
    header = ScoreHeader("edges", "attribution", signed=True)
    nodes = Nodes.from_columns("neuron", layer=0, unit=np.arange(2000))
    circuit = Circuit(nodes, Edges(*pairs.T), {"s": Score(header, rng.normal(size=len(pairs)))})
    assert identical(circuit, load_circuit(save_circuit(circuit, tmp_path / "c")))


def test_identical_sees_one_bit():
    circuit = example()
    assert identical(circuit, example())
    values = circuit.scores["eap"].values.copy()
    values.view(np.int32)[0] ^= 1
    scores = {**circuit.scores, "eap": Score(circuit.scores["eap"].header, values)}
    assert not identical(circuit, replace(circuit, scores=scores))
    assert not identical(circuit, replace(circuit, provenance=replace(circuit.provenance, seed=4)))


def test_circuits_travel_between_processes():
    circuit = load_circuit(EXAMPLE)
    sent = pickle.loads(pickle.dumps(circuit))  # noqa: S301 - bytes made here
    assert identical(sent, circuit)


def test_the_json_is_for_people_too(tmp_path):
    save_circuit(example(), tmp_path / "c")
    data = json.loads((tmp_path / "c" / "circuit.json").read_text())
    assert (data["format"], data["schema"]) == ("interp circuit", 1)
    assert data["content"]["provenance"]["model"] == "a/model"
    assert data["content"]["scores"]["effect"]["quantity"] == "effect"


def test_reading_needs_no_torch(tmp_path):
    code = f"import sys; from interp.circuit_files import load_circuit; load_circuit({str(EXAMPLE)!r}); "
    code += "print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# Tensors on disk


def test_tensors_are_read_when_used_and_checked_then(tmp_path):
    path = save_circuit(example(), tmp_path / "c.safetensors")
    data = bytearray(path.read_bytes())
    place = data.index(np.arange(14.0, dtype=np.float32).tobytes())
    data[place] ^= 1
    path.write_bytes(data)
    loaded = load_circuit(path)
    assert loaded.tensors["ids"].array.tolist() == [[1, 2], [3, -1]]
    with pytest.raises(FileError, match="array 'tensors.per_prompt' does not match its checksum"):
        _ = loaded.tensors["per_prompt"].array
    path.unlink()
    with pytest.raises(FileError, match="cannot read a circuit at .*c.safetensors"):
        _ = loaded.tensors["nothing"].array


@SHAPES
def test_a_loaded_circuit_can_be_saved_over_itself(tmp_path, name):
    path = save_circuit(example(), tmp_path / name)
    loaded = load_circuit(path)
    save_circuit(replace(loaded, scores={}), path)
    assert list(load_circuit(path).scores) == []
    assert loaded.tensors["per_prompt"].array.shape == (2, 7)


# Saving whole or not at all


@SHAPES
@pytest.mark.parametrize("step", [1, 2])
def test_a_save_cut_short_leaves_the_older_circuit(tmp_path, monkeypatch, name, step):
    path = save_circuit(example(), tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    calls = []

    def interrupted(source, target):
        calls.append(target)
        if len(calls) == step:
            raise KeyboardInterrupt
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("interp.atomic.os.replace", interrupted)
        if step == 2 and path.is_file():
            save_circuit(replace(example(), scores={}), path)
            return
        with pytest.raises(KeyboardInterrupt):
            save_circuit(replace(example(), scores={}), path)
    assert_equal(example(), load_circuit(path))
    assert not [file for file in tmp_path.rglob("*") if file.suffix == ".tmp"]
    save_circuit(example(), path)
    assert sorted(tmp_path.rglob("*")) == before


def test_saving_leaves_other_files_in_the_folder_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "circuit-notes.safetensors").write_text("mine")
    save_circuit(example(), tmp_path)
    save_circuit(replace(example(), scores={}), tmp_path)
    assert len(list(tmp_path.glob("circuit-*.safetensors"))) == 2
    assert (tmp_path / "circuit-notes.safetensors").read_text() == "mine"
    assert (tmp_path / "config.json").exists()


# Damaged, foreign and too large files


def broken(tmp_path: Path, change) -> Path:
    """A copy of the example whose JSON went through `change`."""
    path = Path(shutil.copytree(EXAMPLE, tmp_path / "broken"))
    data = json.loads((path / "circuit.json").read_text())
    (path / "circuit.json").write_text(json.dumps(change(data)))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data | {"schema": 99}, r"has schema 99; this version reads \[1\]: update interp"),
        (lambda data: data | {"schema": True}, "has schema True"),
        (lambda data: data | {"format": "other"}, "holds no interp circuit; give a folder or file"),
        (lambda data: [data], "holds no interp circuit"),
        (
            lambda data: data | {"content": data["content"] | {"node_roles": ["other"]}},
            "the JSON does not match its checksum",
        ),
        (lambda data: data | {"sha256": "../../../etc/passwd"}, "the JSON does not match its checksum"),
        (lambda data: {key: data[key] for key in ("format", "schema")}, "the JSON does not match its checksum"),
    ],
)
def test_a_foreign_or_edited_json_is_named(tmp_path, change, message):
    with pytest.raises(FileError, match=message):
        load_circuit(broken(tmp_path, change))


def forged(tmp_path: Path, change) -> Path:
    """A copy of the example whose content was changed and sealed again, as an attacker would."""

    def seal(data):
        change(data["content"])
        return data | {"sha256": circuit_files._seal(1, data["content"])}

    path = broken(tmp_path, seal)
    digest = json.loads((path / "circuit.json").read_text())["sha256"]
    next(path.glob("circuit-*.safetensors")).rename(path / f"circuit-{digest[:16]}.safetensors")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["arrays"]["kept_nodes"].update(shape=[10**15]),
            r"array 'kept_nodes' is BOOL \[7\], not as the JSON",
        ),
        (lambda c: c["arrays"].pop("kept_nodes"), r"arrays \['kept_nodes'\] are in the JSON or the file, not in both"),
        (
            lambda c: c["arrays"].update(more=c["arrays"]["kept_nodes"]),
            r"arrays \['more'\] are in the JSON or the file",
        ),
        (lambda c: c["arrays"]["kept_nodes"].update(dtype="I9"), "is damaged .KeyError: 'I9'"),
        (lambda c: c.pop("scores"), "is damaged .KeyError: 'scores'"),
        (lambda c: c.update(provenance=3), "is damaged .TypeError"),
        (lambda c: c["provenance"].update(spy=1), "is damaged .TypeError: .*spy"),
        (lambda c: c["node_roles"].clear(), "is damaged .CircuitError: these nodes cannot be"),
        (lambda c: c["node_kinds"].__setitem__(NODE_KINDS.index("z"), "spy"), "kind -1 of rows 2; allowed: 0 to"),
        (lambda c: c["attributes"]["class"].update(words=[]), "is damaged .IndexError"),
        (lambda c: c["tensors"]["per_prompt"].update(axes=["edge", "node"]), "axis 'edge' has length 2 over 4 rows"),
    ],
)
def test_a_forged_file_ends_in_one_error(tmp_path, change, message):
    with pytest.raises(FileError, match=message):
        load_circuit(forged(tmp_path, change))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "\xff", '{"format": ' + "9" * 5000 + "}"])
def test_json_that_is_none_is_named(tmp_path, text):
    path = tmp_path / "c"
    path.mkdir()
    (path / "circuit.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FileError, match=str(path)):
        load_circuit(path)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 8, (2**60).to_bytes(8, "little"), b"PK\x03\x04" * 99])
def test_files_of_another_kind_are_named(tmp_path, data):
    path = tmp_path / "c.safetensors"
    path.write_bytes(data)
    with pytest.raises(FileError, match=str(path)):
        load_circuit(path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileError, match=r"cannot read a circuit at .*nowhere: .*circuit.json.*check the path"):
        load_circuit(tmp_path / "nowhere")
    path = save_circuit(example(), tmp_path / "c")
    next(path.glob("*.safetensors")).unlink()
    with pytest.raises(FileError, match=r"cannot read a circuit at .*c: .*circuit-.*safetensors"):
        load_circuit(path)


def test_files_above_the_limit_are_not_opened(tmp_path, monkeypatch):
    path = save_circuit(example(), tmp_path / "c")
    with pytest.raises(FileError, match="bytes, the limit is 100; raise max_bytes if you trust it"):
        load_circuit(path, max_bytes=100)
    with pytest.raises(FileError, match="the limit is 100"):
        load_circuit(save_circuit(example(), tmp_path / "c.safetensors"), max_bytes=100)
    monkeypatch.setattr(circuit_files, "MAX_JSON", 100)
    with pytest.raises(FileError, match="circuit.json has .* bytes, the limit is 100"):
        load_circuit(path)
    with pytest.raises(FileError, match="the circuit's JSON takes .* bytes, the limit is 100; save fewer token ids"):
        save_circuit(example(), path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_damage_is_noticed_or_harmless(tmp_path, data):
    """Any byte changed, or any end cut off, in either kind of file: one FileError, or a circuit equal to the bit."""
    single = tmp_path / "c.safetensors"
    folder = tmp_path / "c"
    if not folder.exists():
        shutil.copytree(EXAMPLE, folder)
        save_circuit(example(), single)
    file = data.draw(st.sampled_from([single, *sorted(folder.iterdir())]))
    whole = file.read_bytes()
    content = bytearray(whole)
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    file.write_bytes(content)
    try:
        assert identical(load_circuit(single if file == single else folder), example())
    except FileError:
        pass
    finally:
        file.write_bytes(whole)


# Later versions


def test_an_older_schema_is_migrated_step_by_step(monkeypatch):
    def two(content):
        return content | {"provenance": content["provenance"] | {"task": content["provenance"]["task"] + " two"}}

    def three(content):
        return content | {"provenance": content["provenance"] | {"task": content["provenance"]["task"] + " three"}}

    monkeypatch.setattr(circuit_files, "SCHEMA", 3)
    monkeypatch.setattr(circuit_files, "MIGRATIONS", {1: two, 2: three})
    assert load_circuit(EXAMPLE).provenance.task == "ioi two three"


def test_the_files_numbering_of_kinds_may_differ_from_ours(tmp_path):
    content, arrays = circuit_files._taken_apart(example())
    content["node_kinds"] = content["node_kinds"][::-1]
    arrays["nodes.kind"] = (len(NODE_KINDS) - 1 - arrays["nodes.kind"]).astype(np.int8)
    content["arrays"]["nodes.kind"]["sha256"] = circuit_files._digest(arrays["nodes.kind"])
    text = circuit_files._text(circuit_files._document(content))
    save_file(arrays, tmp_path / "c.safetensors", metadata={"circuit": text})
    assert_equal(load_circuit(tmp_path / "c.safetensors"), example())
