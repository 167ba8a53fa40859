"""Training finds the features that activations were made of, and leaves nothing else changed."""

import importlib.util
import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor
from torch.nn.functional import normalize

from interp.activation_store import ActivationStore, harvest
from interp.errors import InterpWarning, MissingExtraError, OptionError, SiteError
from interp.featurizers import training
from interp.featurizers.files import load_dictionary, save_dictionary
from interp.featurizers.training import train_dictionary
from interp.models.runs import Identity
from interp.site import Site

WIDTH, PLANTED, ACTIVE = 32, 48, 3
SITE = "resid_post[1]"


def directions() -> Tensor:
    return normalize(torch.randn(PLANTED, WIDTH, generator=torch.Generator().manual_seed(1)), dim=1)


def planted(folder: Path, tokens: int = 40_000, size: float = 7.0) -> ActivationStore:
    """A store of tokens at which 3 of 48 features are active on average, about a mean that is not zero."""
    generator = torch.Generator().manual_seed(2)
    active = torch.rand(tokens, PLANTED, generator=generator) < ACTIVE / PLANTED
    strength = active * (torch.rand(tokens, PLANTED, generator=generator) + 0.5)
    return written(folder, size * (strength @ directions() + 0.3))


def written(folder: Path, x: Tensor, skip: int = 1) -> ActivationStore:
    """A store of given activations, in contexts of 10 tokens, in the layout that the module documents."""
    folder.mkdir()
    lengths = [10 + skip] * (len(x) // 10)
    x.numpy().astype("<f4").tofile(folder / "resid_post.1.bin")
    np.zeros(sum(lengths), dtype="<i4").tofile(folder / "token_ids.bin")
    document = {
        "format": "interp activations", "schema": 1, "dtype": "float32", "skip": skip, "tokens": len(x),
        "widths": {SITE: x.shape[1]}, "model": {"name": "planted", "revision": "", "fingerprint": "ab"},
        "text": "planted features", "lengths": lengths,
    }  # fmt: skip
    (folder / "store.json").write_text(json.dumps(document))
    return ActivationStore.open(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ActivationStore:
    return planted(tmp_path_factory.mktemp("planted") / "store")


QUICK = {"features": 64, "tokens": 150_000, "batch": 256, "lr": 3e-3, "progress": False}
K = {"k": ACTIVE}


@pytest.mark.parametrize(
    "kind, own",
    [("batchtopk", K), ("topk", K), ("jumprelu", K), ("standard", {"sparsity": 1.0}), ("gated", {"sparsity": 1.0})],
)
def test_planted_features_are_found(kind, own, store):
    made = train_dictionary(store, SITE, kind=kind, **own, **QUICK)
    found = normalize(made.directions(), dim=1) @ directions().T
    assert found.max(0).values.mean() > 0.93, kind
    x = torch.from_numpy(np.array(store.site(SITE)[:5000]))
    features = made.encode(x)
    explained = 1 - made.error(x, features).square().sum() / (x - x.mean(0)).square().sum()
    assert explained > 0.8 and 2 < (features != 0).sum(1).float().mean() < 7
    assert torch.allclose(made.decoder_bias.mean(), torch.tensor(7 * 0.3), atol=1.0)


def test_it_is_a_dictionary_of_the_site_that_says_how_it_was_made(store, tmp_path):
    made = train_dictionary(store, SITE, k=ACTIVE, seed=5, tokens=2_700, batch=256, progress=False)
    assert (str(made.site), made.reads, made.skip, made.n_features) == (SITE, made.site, 1, 4 * WIDTH)
    told = made.description
    assert (told["model"], told["weights"]) == ("planted", "ab")
    assert (told["text"], told["kind"], told["k"], told["seed"]) == ("planted features", "batchtopk", ACTIVE, 5)
    assert told["lr"] == 1e-3 and told["tokens"] == 2_700 and told["sae_lens"].startswith("6.")
    assert set(told["losses"]) == {"mse_loss", "auxiliary_reconstruction_loss", "l0"}
    assert told["losses"]["l0"] == pytest.approx(ACTIVE)
    again = load_dictionary(save_dictionary(made, tmp_path))
    assert again.description == told and torch.equal(again.encoder, made.encoder)


def test_the_scale_is_folded_so_that_the_dictionary_acts_on_activations_as_they_are(store, tmp_path):
    """A thousandfold of the data gives a thousandfold of the features along the same directions."""
    x = torch.from_numpy(np.array(store.site(SITE)))
    large = written(tmp_path / "large", 1024 * x)
    for kind, own in (("batchtopk", K), ("gated", {})):
        options = {**QUICK, "tokens": 20_000}
        one, other = (train_dictionary(s, SITE, kind=kind, **own, **options) for s in (store, large))
        features, more = one.encode(x[:500]), other.encode(1024 * x[:500])
        assert (features != 0).any() and torch.allclose(features, more / 1024, atol=1e-3)
        assert torch.allclose(one.directions(), other.directions(), atol=1e-4)
        assert torch.allclose(one.decode(features), other.decode(more) / 1024, atol=1e-3)
        assert torch.allclose(other.directions().norm(dim=1), torch.ones(64))
        assert other.description["scale"] == pytest.approx(one.description["scale"] / 1024)
        assert one.description["losses"]["l0"] == pytest.approx(other.description["losses"]["l0"])
        assert one.description["losses"]["mse_loss"] == pytest.approx(other.description["losses"]["mse_loss"], rel=1e-3)
        trained_on = x * one.description["scale"]
        assert float(trained_on.square().sum(1).mean()) == pytest.approx(WIDTH, rel=1e-4)


def test_a_short_runs_threshold_keeps_as_many_features_as_its_batches_did(store):
    x = torch.from_numpy(np.array(store.site(SITE)))
    made = train_dictionary(store, SITE, k=ACTIVE, features=64, tokens=60 * 256, batch=256, lr=3e-3, progress=False)
    assert made.select == "gate" and (made.encode(x) != 0).sum(1).float().mean() == pytest.approx(ACTIVE, abs=1.0)


def test_a_jumprelu_that_did_not_come_near_k_is_told(store):
    with pytest.warns(InterpWarning, match=r"has \d\d features active at a token, k=3 was asked for: 10 updates"):
        train_dictionary(store, SITE, kind="jumprelu", k=ACTIVE, tokens=2_560, batch=256, progress=False)


def test_one_seed_gives_one_dictionary_whatever_the_global_one(store):
    options = {"k": ACTIVE, "tokens": 5_120, "batch": 256, "progress": False}
    first = train_dictionary(store, SITE, seed=1, **options)
    torch.manual_seed(99)
    same, other = (train_dictionary(store, SITE, seed=seed, **options) for seed in (1, 2))
    assert all(torch.equal(first.tensors[name], same.tensors[name]) for name in first.tensors)
    assert not torch.allclose(first.encoder, other.encoder, atol=1e-2)


def test_global_state_is_as_before_also_after_a_failure(store, monkeypatch):
    def state() -> tuple:
        numbers = np.random.get_state()[1].tolist()
        return (
            torch.get_rng_state().tolist(),
            numbers,
            random.getstate(),
            list(warnings.filters),
            torch.is_grad_enabled(),
        )

    def failing(*_):
        raise KeyboardInterrupt

    options = {"k": ACTIVE, "tokens": 2_560, "batch": 256, "progress": False}
    with tiny.unchecked():  # beartype draws from Python's global randomness
        before = state()
        made = train_dictionary(store, SITE, **options)
        assert state() == before
        with torch.no_grad():
            assert torch.equal(train_dictionary(store, SITE, **options).encoder, made.encoder)
        monkeypatch.setattr(training, "_parts", failing)
        with pytest.raises(KeyboardInterrupt):
            train_dictionary(store, SITE, **options)
        assert state() == before
    assert not any(tensor.requires_grad for tensor in made.tensors.values())


def test_nothing_is_printed(store, capsys):
    train_dictionary(store, SITE, k=ACTIVE, tokens=2_560, batch=256)
    assert capsys.readouterr() == ("", "")


def test_a_harvested_model_can_be_trained_on(tmp_path):
    model = tiny.HookedHF(tiny.build("llama"), identity=Identity("tiny"))
    prompts = torch.randint(0, tiny.VOCAB, (40, 12)).tolist()
    store = harvest(model, prompts, ["mlp_out[1]", "z[0]"], tmp_path / "store", progress=False)
    for site, width in (("mlp_out[1]", 32), ("z[0]", 128)):
        made = train_dictionary(store, site, batch=32, progress=False)
        assert made.site == Site.parse(site) and made.widths == (width, width) and made.n_features == 4 * width
        assert made.description["k"] == 16 and made.description["tokens"] == 480


def test_mistakes_are_named_all_together(store, tmp_path):
    with pytest.raises(SiteError, match="is not stored"):
        train_dictionary(store, "mlp_out[0]")
    with pytest.raises(OptionError, match=r"features=0, allowed: 1 and more; .*k=3, allowed: 1 to 0.*lr=-1.0"):
        train_dictionary(store, SITE, k=3, features=0, lr=-1.0)
    with pytest.raises(OptionError, match="k=32, allowed: 1 to 20 features"):
        train_dictionary(store, SITE, features=20)
    with pytest.raises(OptionError, match="k=4 with kind='gated', which has sparsity= in its place"):
        train_dictionary(store, SITE, kind="gated", k=4)
    with pytest.raises(OptionError, match="sparsity=4.0 with kind='topk', which has k= in its place"):
        train_dictionary(store, SITE, kind="topk", sparsity=4.0)
    with pytest.raises(OptionError, match="tokens=100, allowed: a batch \\(1024\\) and more"):
        train_dictionary(store, SITE, tokens=100)
    with tiny.unchecked(), pytest.raises(OptionError, match="kind is 'matryoshka'; allowed: 'batchtopk'"):
        train_dictionary(store, SITE, kind="matryoshka")
    with pytest.raises(OptionError, match="all activations stored of .* are 0"):
        train_dictionary(written(tmp_path / "zero", torch.zeros(2000, 8)), SITE, k=1)


def test_without_sae_lens_the_command_that_installs_it_is_named(store, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'interp\[sae\]'"):
        train_dictionary(store, SITE, k=ACTIVE, batch=256, progress=False)
