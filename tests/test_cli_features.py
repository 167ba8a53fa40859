"""The command line's words for features, as a user types them."""

import json

import numpy as np
import pytest
from test_cli import call, here

import interp
from interp.toy.text import documents

QUICK = ["--n", "8", "--steps", "2"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file of the embedded model's own language."""
    path = tmp_path_factory.mktemp("texts") / "stories.json"
    path.write_text(json.dumps(documents(200, seed=3)))
    return path


@pytest.mark.filterwarnings("ignore::interp.errors.InterpWarning")
def test_from_text_to_dictionaries_to_a_circuit_to_cards(texts, tmp_path, monkeypatch, capsys):
    train = f"features train embedded {texts} --sites resid_post[1],mlp_out[2] --tokens 2000 --held-out 200 --times 1"
    code, said, errors = here([*train.split(), "--length", "12", "--out", "d"], tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert "explained variance" in said and "Wrote d: resid_post.1, mlp_out.2, store/." in said
    loaded = interp.load_dictionary(tmp_path / "d" / "resid_post.1")
    assert loaded.n_features == 128 and "quality" in loaded.description
    folders = "d/resid_post.1,d/mlp_out.2"
    words = ["features", "circuit", "embedded", "agreement", "--dictionaries", folders, "--nodes", "20", *QUICK]
    code, said, errors = here([*words, "--out", "c"], tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert (
        "error_share" in said
        and "faithfulness" in said
        and "Wrote c: circuit.html, edges.csv, nodes.csv, circuit/." in said
    )
    circuit = interp.load_circuit(tmp_path / "c" / "circuit")
    assert int(circuit.kept_nodes.sum()) == 21 and len(circuit.edges)
    words = ["features", "cards", "c/circuit", "embedded", "--dictionaries", folders, str(texts), "--length", "12"]
    code, said, errors = here([*words, "--out", "cards"], tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    features = circuit.kept_nodes & (circuit.nodes.unit >= 0) & (circuit.nodes.featurizer >= 0)
    assert len(interp.load_cards(tmp_path / "cards" / "cards.json")) == int(features.sum())
    assert "<script src=" not in (tmp_path / "cards" / "cards.html").read_text()


@pytest.mark.filterwarnings("ignore::interp.errors.InterpWarning")
def test_from_text_to_clusters_to_circuits(texts, tmp_path, monkeypatch, capsys):
    words = f"features cluster embedded {texts} --dictionaries mlp_out[1],mlp_out[2] --clusters 4 --contexts 40"
    code, said, errors = here([*words.split(), "--nodes", "9", "--out", "k"], tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    assert "within" in said and "Wrote k: clusters.html" in said
    circuits = [path for path in (tmp_path / "k").iterdir() if path.is_dir()]
    assert 1 <= len(circuits) <= 4 and not (tmp_path / ".k-unfinished").exists()
    for folder in circuits:
        assert int(interp.load_circuit(folder).kept_nodes.sum()) == 10
        assert f"{folder.name}.html" in (tmp_path / "k" / "clusters.html").read_text()


def test_coordinates_of_a_site_serve_without_a_dictionary(tmp_path, monkeypatch, capsys):
    words = ["features", "attribute", "embedded", "agreement", "--dictionaries", "mlp_out[1],z[2]", *QUICK]
    code, said, errors = here([*words, "--out", "a"], tmp_path, monkeypatch, capsys)
    assert code == 0, errors
    scores = interp.load_circuit(tmp_path / "a" / "circuit").scores["logit_diff.noising"].values
    assert len(scores) == 256 and np.abs(scores).max() > 0 and "Wrote a: circuit.html, nodes.csv" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("features attribute embedded agreement --dictionaries mlp_uot[1]", "nearest: 'mlp_out'"),
        ("features attribute embedded agreement --dictionaries ,", "an empty list was given"),
        ("features circuit embedded agreement --dictionaries mlp_out[1]", "give one of them"),
        ("features train embedded nowhere.txt --sites mlp_out[1]", "nowhere.txt is no file"),
    ],
)
def test_a_mistake_ends_in_one_clear_line(words, said, tmp_path, monkeypatch, capsys):
    code, _, errors = here(words.split(), tmp_path, monkeypatch, capsys)
    assert code == 2 and errors.startswith("interp: ") and said in errors
    assert not list(tmp_path.iterdir()), "a failed run left something behind"


def test_a_mistyped_method_is_no_traceback(tmp_path):
    done = call(
        "features", "attribute", "embedded", "agreement", "--dictionaries", "z[1]", "--method", "gi", cwd=tmp_path
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("interp: method is 'gi'") and "nearest: 'ig'" in done.stderr
