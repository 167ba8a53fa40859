"""Dictionaries come back from disk as they were, those of other libraries as these compute them, or not at all."""

import hashlib
import json
import os
import warnings

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from interp.errors import FileError, InterpWarning, MissingExtraError, OptionError
from interp.featurizers.base import checked_featurizers, flat
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.files import check_origin, load_dictionary, pretrained_dictionary, save_dictionary
from interp.featurizers.foreign import site_of
from interp.featurizers.linear import orthonormal
from interp.models.hf import HookedHF
from interp.models.runs import Identity

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sae_lens
    from sae_lens.registry import get_sae_class, get_sae_training_class

D, OUT, N = 12, 8, 40


def dictionary(**changes):
    parts = {
        "encoder": torch.randn(D, N), "bias": torch.randn(N), "decoder": torch.randn(N, OUT), "reads": "mlp_in[1]",
        "decoder_bias": torch.randn(OUT), "gate_bias": torch.randn(N), "shift": torch.randn(D), "skip": 1,
        "skip_weights": torch.randn(D, OUT), "description": {"kind": "trained", "model": "a/tiny", "tokens": 12},
    }  # fmt: skip
    return Dictionary("mlp_out[1]", **(parts | changes))


# --- our own folder ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_saved_dictionary_comes_back_equal_to_the_bit(tmp_path, dtype):
    for one in (
        dictionary(key="mine"),
        dictionary(select="abstopk", k=3, shift=None, gate_bias=None, skip_weights=None),
    ):
        given = one.to(torch.device("cpu"), dtype)
        again = load_dictionary(save_dictionary(given, tmp_path / "new" / "folder"))
        assert again.settings == given.settings and set(again.tensors) == set(given.tensors)
        assert all(torch.equal(again.tensors[name], tensor) for name, tensor in given.tensors.items())
    assert load_dictionary(tmp_path / "new" / "folder" / "dictionary.json").settings == given.settings


def test_tensors_that_share_memory_are_saved(tmp_path):
    shared = torch.randn(6)
    encoder = torch.randn(N, 6).T
    one = Dictionary(
        "embed", encoder=encoder, decoder=encoder.T, bias=torch.zeros(N), decoder_bias=shared, shift=shared
    )
    assert torch.equal(load_dictionary(save_dictionary(one, tmp_path)).shift, shared)


def test_site_key_and_skip_given_win_over_those_of_the_file(tmp_path):
    save_dictionary(dictionary(), tmp_path)
    plain = load_dictionary(tmp_path)
    assert (plain.key, plain.skip, str(plain.site), str(plain.reads)) == (
        "dictionary.mlp_out[1]", 1, "mlp_out[1]", "mlp_in[1]",
    )  # fmt: skip
    assert load_dictionary(tmp_path, skip=0, key="other").skip == 0
    with pytest.warns(InterpWarning, match=r"has site mlp_out\[1\], you give mlp_out\[2\]; its features mean little"):
        moved = load_dictionary(tmp_path, "mlp_out[2]")
    assert moved.key == "dictionary.mlp_out[2]" and str(moved.reads) == "mlp_in[1]"
    with pytest.warns(InterpWarning, match=r"has reads mlp_in\[1\], you give resid_mid\[1\]"):
        assert str(load_dictionary(tmp_path, reads="resid_mid[1]").reads) == "resid_mid[1]"
    assert load_dictionary(tmp_path, "mlp_out[1]", reads="mlp_in[1]").settings == plain.settings


def test_a_save_cut_short_leaves_the_older_dictionary_and_no_litter(tmp_path, monkeypatch):
    first = dictionary()
    save_dictionary(first, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save_dictionary(dictionary(), tmp_path)
    assert torch.equal(load_dictionary(tmp_path).encoder, first.encoder)
    assert {file.name for file in tmp_path.iterdir()} == {"dictionary.json", "dictionary.safetensors", "notes.txt"}


def test_only_dictionaries_are_saved(tmp_path):
    with tiny.unchecked(), pytest.raises(OptionError, match="Basis 'b' at embed is no Dictionary"):
        save_dictionary(orthonormal("embed", torch.eye(3), key="b"), tmp_path)
    with pytest.raises(OptionError, match="description holds what JSON cannot .*Tensor"):
        save_dictionary(dictionary(description={"tensor": torch.zeros(1)}), tmp_path)
    assert not list(tmp_path.iterdir())


def rewritten(folder, **changes):
    """Tensors replaced (None: taken away), with a checksum that fits."""
    file, settings = folder / "dictionary.safetensors", folder / "dictionary.json"
    save_file({k: v for k, v in (load_file(file) | changes).items() if v is not None}, file)
    document = json.loads(settings.read_text())
    settings.write_text(json.dumps(document | {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}))


def changed(folder, **changes):
    settings = folder / "dictionary.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changes))


def cut(name, keep=-20):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


DAMAGE = {
    "tensors truncated": (cut("dictionary.safetensors"), "does not match its checksum"),
    "tensors empty": (cut("dictionary.safetensors", 0), "does not match its checksum"),
    "tensors gone": (lambda folder: (folder / "dictionary.safetensors").unlink(), "has only dictionary.json of them"),
    "settings truncated": (cut("dictionary.json"), "is damaged"),
    "settings no object": (lambda folder: (folder / "dictionary.json").write_text("[]"), "holds no JSON object"),
    "foreign": (lambda folder: changed(folder, format="else"), "is no interp dictionary; give a folder"),
    "newer": (lambda folder: changed(folder, schema=2), r"has schema 2, this version reads 1: update interp"),
    "no settings": (lambda folder: changed(folder, settings={}), "is damaged"),
    "missing": (lambda folder: rewritten(folder, bias=None), "bias is missing"),
    "unknown": (lambda folder: rewritten(folder, bais=torch.zeros(1)), "bais is unknown"),
    "shape": (
        lambda folder: rewritten(folder, bias=torch.zeros(3), shift=torch.zeros(2)),
        r"bias has shape \[3\], needed \[40\]; shift has shape \[2\], needed \[12\]",
    ),
    "flat": (lambda folder: rewritten(folder, encoder=torch.zeros(D * N)), r"encoder has shape \[480\]"),
    "other bytes": (
        lambda folder: save_file(dictionary().tensors, folder / "dictionary.safetensors"),
        "does not match its checksum",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_one_error_that_names_it(tmp_path, damage):
    folder = save_dictionary(dictionary(), tmp_path / "mine")
    break_it, message = DAMAGE[damage]
    break_it(folder)
    with pytest.raises(FileError, match=message) as raised:
        load_dictionary(folder)
    assert str(folder) in str(raised.value)


def test_where_nothing_readable_lies_the_message_says_what_would_be(tmp_path):
    with pytest.raises(FileError, match=r"gone holds no dictionary.*cfg.json with sae_weights.*it does not exist"):
        load_dictionary(tmp_path / "gone")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileError, match=r"has only config\.json of them.*pretrained_dictionary"):
        load_dictionary(tmp_path)


# --- sae-lens ---

SAES = ("standard", "gated", "topk", "abstopk", "jumprelu")
TRANSCODERS = ("transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder")
HOOKS = {"hook_name": "blocks.1.hook_resid_post", "model_name": "tiny-model"}


def sae(kind, **options):
    """A dictionary of sae-lens with every parameter random."""
    made, config = get_sae_class(kind)
    meta = options.pop("metadata", HOOKS)
    options = ({"k": 5} if "topk" in kind else {}) | options
    if "transcoder" in kind:
        options = {"d_out": OUT, "apply_b_dec_to_input": False} | options
        meta = {"hook_name": "blocks.1.mlp.hook_in", "hook_name_out": "blocks.1.hook_mlp_out"}
    one = made(config(d_in=D, d_sae=N, metadata=sae_lens.saes.sae.SAEMetadata(**meta), **options))
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.7)
    return one


def assert_computes_as(one, theirs, x, its=lambda x: x):
    """Equal features, support and reconstruction; `its` brings an activation to the shape that theirs takes."""
    with torch.no_grad():
        features, expected = one.encode(x), theirs.encode(its(x))
        assert torch.allclose(features, expected, atol=1e-5)
        assert torch.equal(features != 0, expected != 0) and 0 < (features != 0).float().mean() < 0.9
        assert torch.allclose(one.decode(features), theirs.decode(expected).reshape(*x.shape[:-1], -1), atol=1e-5)


CASES = [(kind, {"apply_b_dec_to_input": apply}) for kind in SAES for apply in (True, False)]
CASES += [(kind, {"rescale_acts_by_decoder_norm": True}) for kind in ("topk", "abstopk")]
CASES += [(kind, {}) for kind in TRANSCODERS]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_folder_of_sae_lens_computes_as_sae_lens_does(tmp_path, kind, options):
    theirs, x = sae(kind, **options), torch.randn(3, 20, D)
    theirs.save_model(tmp_path)
    one = load_dictionary(tmp_path)
    assert_computes_as(one, theirs, x)
    with torch.no_grad():
        whole = one.decode(one.encode(x)) + (0 if one.skip_weights is None else x @ one.skip_weights)
        assert torch.allclose(whole, theirs(x), atol=1e-5)
    assert (one.skip_weights is not None) == ("skip" in kind)
    described = {"library": "sae-lens", "kind": kind, "path": str(tmp_path)}
    assert described.items() <= one.description.items()
    again = load_dictionary(save_dictionary(one, tmp_path / "ours"))
    assert again.settings == one.settings and torch.equal(again.encode(x), one.encode(x))


def test_a_transcoder_reads_one_site_and_explains_another(tmp_path):
    sae("transcoder").save_model(tmp_path)
    one = load_dictionary(tmp_path)
    assert (str(one.site), str(one.reads), one.widths) == ("mlp_out[1]", "mlp_in[1]", (D, OUT))


@pytest.mark.parametrize("rescale", [True, False])
def test_a_batch_top_k_is_read_as_the_jumprelu_it_is_saved_as(tmp_path, rescale):
    made, config = get_sae_training_class("batchtopk")
    trained = made(config(d_in=D, d_sae=N, k=5, rescale_acts_by_decoder_norm=rescale))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.7)
    trained.topk_threshold.fill_(1.5)
    trained.save_inference_model(tmp_path)
    one = load_dictionary(tmp_path, "resid_post[1]")
    assert one.description["kind"] == "jumprelu" and one.gate_bias is not None
    assert_computes_as(one, sae_lens.SAE.load_from_disk(tmp_path), torch.randn(3, 20, D))
    trained.save_model(tmp_path)
    with pytest.raises(FileError, match=r"kind 'batchtopk': it is a training checkpoint.*save_inference_model"):
        load_dictionary(tmp_path, "resid_post[1]")


def test_a_dictionary_of_heads_takes_them_side_by_side(tmp_path):
    model = tiny.hooked("gpt2")
    theirs = sae("jumprelu", reshape_activations="hook_z", metadata={"hook_name": "blocks.1.attn.hook_z"})
    theirs.save_model(tmp_path)
    one = load_dictionary(tmp_path)
    assert str(one.site) == "z[1]"
    x = torch.randn(2, 20, 3, 4)
    assert_computes_as(one, theirs, flat(x), lambda given: given.unflatten(-1, (3, 4)))
    with pytest.raises(OptionError, match=r"reads vectors of 12, z\[1\] of in-memory has 32"):
        checked_featurizers(model, [one])
    with pytest.warns(InterpWarning, match=r"hook_z.*you give resid_post\[1\]"):
        load_dictionary(tmp_path, "resid_post[1]")


def test_folders_from_before_version_6_are_read_as_sae_lens_reads_them(tmp_path):
    theirs = sae("standard")
    theirs.save_model(tmp_path)
    older = {
        "d_in": D, "d_sae": N, "dtype": "float32", "device": "cpu", "hook_point": "blocks.1.hook_resid_pre",
        "model_name": "gpt2-small", "normalize_activations": False, "activation_fn_str": "topk",
        "activation_fn_kwargs": {"k": 6},
    }  # fmt: skip
    (tmp_path / "cfg.json").write_text(json.dumps(older))
    one = load_dictionary(tmp_path)
    assert str(one.site) == "resid_pre[1]" and (one.select, one.k) == ("topk", 6)
    assert_computes_as(one, sae_lens.SAE.load_from_disk(tmp_path), torch.randn(3, 20, D))
    (tmp_path / "cfg.json").write_text(json.dumps(older | {"activation_fn_str": "tanh-relu"}))
    with pytest.raises(FileError, match=r"activation_fn='tanh-relu'; readable: 'relu', 'topk'"):
        load_dictionary(tmp_path)


def edited(folder, **changes):
    file = folder / "cfg.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "temporal"}, r"kind 'temporal': its features depend on other tokens.*readable: standard"),
        ({"architecture": "matching_pursuit"}, "one after another, so they are not affine"),
        ({"architecture": "crosscoder"}, "kind 'crosscoder': unknown"),
        ({"normalize_activations": "layer_norm"}, "'layer_norm', not folded: it scales each token by its own size"),
        ({"normalize_activations": "constant_norm_rescale"}, "scales each token by its own size"),
        ({"normalize_activations": "expected_average_only_in"}, "fold_activation_norm_scaling_factor"),
        ({"normalize_activations": "covariance_whitening"}, "fold_activation_whitening"),
        ({"architecture": "gated"}, r"no gated dictionary: it lacks b_gate; it lacks b_mag; .*it has b_enc, which"),
        ({"architecture": "topk"}, "it does not say k"),
        ({"architecture": "topk", "k": 99}, r"select='topk' with k=99; allowed: 1 to 40"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_reason(tmp_path, changes, message):
    sae("standard").save_model(tmp_path)
    edited(tmp_path, **changes)
    with pytest.raises(FileError, match=message) as raised:
        load_dictionary(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_folded_average_norm_is_read_as_it_was(tmp_path):
    theirs, x = sae("standard", normalize_activations="expected_average_only_in"), torch.randn(3, 20, D)
    theirs.fold_activation_norm_scaling_factor(3.0)
    theirs.save_model(tmp_path)
    assert_computes_as(load_dictionary(tmp_path), theirs, x)


def test_tensors_of_wrong_sizes_are_named_all_together(tmp_path):
    sae("jumprelu").save_model(tmp_path)
    file = tmp_path / "sae_weights.safetensors"
    save_file(load_file(file) | {"b_enc": torch.zeros(3), "threshold": torch.zeros(N, 2)}, file)
    with pytest.raises(FileError, match=r"b_enc has shape \[3\], needed \[40\]; threshold has shape \[40, 2\]"):
        load_dictionary(tmp_path)
    cut("sae_weights.safetensors")(tmp_path)
    with pytest.raises(FileError, match="is damaged.*restore it"):
        load_dictionary(tmp_path)


def test_half_precision_is_computed_in_single(tmp_path):
    theirs = sae("standard").to(dtype=torch.bfloat16)
    theirs.save_model(tmp_path)
    one = load_dictionary(tmp_path)
    assert one.encoder.dtype == torch.float32 and torch.equal(one.encoder, theirs.W_enc.float())


def test_where_it_was_not_trained_on_first_positions_they_are_skipped(tmp_path):
    sae("standard", metadata=HOOKS | {"seqpos_slice": [2, None]}).save_model(tmp_path)
    assert load_dictionary(tmp_path).skip == 2 and load_dictionary(tmp_path, skip=0).skip == 0
    for every in ([None], [-5, None]):
        sae("standard", metadata=HOOKS | {"seqpos_slice": every}).save_model(tmp_path)
        assert load_dictionary(tmp_path).skip == 0


def test_training_on_a_centred_residual_stream_is_said(tmp_path):
    centred = {"center_writing_weights": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sae-lens's own
        sae("standard", metadata=HOOKS | {"model_from_pretrained_kwargs": centred}).save_model(tmp_path)
    with pytest.warns(InterpWarning, match="residual stream without its mean"):
        load_dictionary(tmp_path)


def test_pretrained_dictionaries_come_through_sae_lens(monkeypatch):
    theirs, x = sae("jumprelu"), torch.randn(3, 20, D)
    asked = []

    def from_pretrained(release, sae_id, device):
        asked.append((release, sae_id))
        warnings.warn("of sae-lens", stacklevel=1)
        return theirs

    monkeypatch.setattr(sae_lens.SAE, "from_pretrained", from_pretrained)
    one = pretrained_dictionary("a-release", "layer/1", key="mine")
    assert_computes_as(one, theirs, x)
    assert asked == [("a-release", "layer/1")] and one.key == "mine" and str(one.site) == "resid_post[1]"
    assert one.description == {
        "release": "a-release", "id": "layer/1", "library": "sae-lens", "kind": "jumprelu", "model": "tiny-model",
        "hook": "blocks.1.hook_resid_post",
    }  # fmt: skip
    json.dumps(one.description)


def test_a_release_that_sae_lens_does_not_know_is_one_error():
    with pytest.raises(OptionError, match=r"does not load no-such-release/x: .*check both names"):
        pretrained_dictionary("no-such-release", "x")


def test_without_sae_lens_the_message_names_the_extra(monkeypatch, tmp_path):
    sae("standard").save_model(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'sae_lens', which is not installed: pip install 'interp\[sae\]'"):
        pretrained_dictionary("a", "b")
    assert load_dictionary(tmp_path).n_features == N  # folders need no sae-lens


# --- dictionary_learning ---


def linear(name, n_in, n_out, bias=True):
    return {f"{name}.weight": torch.randn(n_out, n_in)} | ({f"{name}.bias": torch.randn(n_out)} if bias else {})


def unlinked(state):
    """Its tensors as [in, out], whichever of the two naming habits they follow."""
    w_enc = state["W_enc"] if "W_enc" in state else state["encoder.weight"].T
    return w_enc, state["W_dec"] if "W_dec" in state else state["decoder.weight"].T


MATRICES = linear("encoder", D, N, bias=False) | linear("decoder", N, D, bias=False)
PLAIN = {"W_enc": torch.randn(D, N), "W_dec": torch.randn(N, D), "b_enc": torch.randn(N), "b_dec": torch.randn(D)}
CLASSES = {
    "AutoEncoder": (
        linear("encoder", D, N) | linear("decoder", N, D, bias=False) | {"bias": torch.randn(D)},
        lambda s, x: torch.relu((x - s["bias"]) @ s["encoder.weight"].T + s["encoder.bias"]),
        "bias",
    ),
    "AutoEncoderNew": (
        linear("encoder", D, N) | linear("decoder", N, D),
        lambda s, x: torch.relu(x @ s["encoder.weight"].T + s["encoder.bias"]),
        "decoder.bias",
    ),
    "GatedAutoEncoder": (
        MATRICES | {"decoder_bias": torch.randn(D)} | {k: torch.randn(N) for k in ("r_mag", "gate_bias", "mag_bias")},
        lambda s, x: (
            ((pre := (x - s["decoder_bias"]) @ s["encoder.weight"].T) + s["gate_bias"] > 0)
            * torch.relu(s["r_mag"].exp() * pre + s["mag_bias"])
        ),
        "decoder_bias",
    ),
    "AutoEncoderTopK": (
        MATRICES | {"encoder.bias": torch.randn(N), "b_dec": torch.randn(D), "threshold": torch.tensor(9.0)}
        | {"k": torch.tensor(4, dtype=torch.int)},
        lambda s, x: top((x - s["b_dec"]) @ s["encoder.weight"].T + s["encoder.bias"], 4),
        "b_dec",
    ),
    "BatchTopKSAE": (
        MATRICES | {"encoder.bias": torch.randn(N), "b_dec": torch.randn(D), "threshold": torch.tensor(1.5)}
        | {"k": torch.tensor(4, dtype=torch.int)},
        lambda s, x: jump((x - s["b_dec"]) @ s["encoder.weight"].T + s["encoder.bias"], s["threshold"]),
        "b_dec",
    ),
    "MatryoshkaBatchTopKSAE": (
        PLAIN | {"threshold": torch.tensor(1.5), "k": torch.tensor(4), "group_sizes": torch.tensor([10, 30])},
        lambda s, x: jump((x - s["b_dec"]) @ s["W_enc"] + s["b_enc"], s["threshold"]),
        "b_dec",
    ),
    "JumpReluAutoEncoder": (
        PLAIN | {"threshold": torch.rand(N)},
        lambda s, x: jump(x @ s["W_enc"] + s["b_enc"], s["threshold"]),
        "b_dec",
    ),
}  # fmt: skip


def jump(pre, threshold):
    return torch.relu(pre) * (pre > threshold)


def top(pre, k):
    kept = torch.relu(pre).topk(k, -1)
    return torch.zeros_like(pre).scatter(-1, kept.indices, kept.values)


def learned(folder, name, state, **trainer):
    config = {
        "trainer": {"dict_class": name, "layer": 1, "lm_name": "a/tiny", "submodule_name": "resid_post_layer_1"},
        "buffer": {"io": "out", "ctx_len": 128},
    }  # fmt: skip
    config["trainer"] |= trainer
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "ae.pt")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", CLASSES)
def test_a_folder_of_dictionary_learning_computes_as_its_class_does(tmp_path, name):
    state, encode, bias = CLASSES[name]
    one, x = load_dictionary(learned(tmp_path, name, state)), torch.randn(3, 20, D)
    features = encode(state, x)
    assert torch.allclose(one.encode(x), features, atol=1e-5) and torch.equal(one.encode(x) != 0, features != 0)
    assert 0 < (features != 0).float().mean() < 1
    assert torch.allclose(one.decode(features), features @ unlinked(state)[1] + state[bias], atol=1e-5)
    assert str(one.site) == "resid_post[1]" and one.description == {
        "path": str(tmp_path), "library": "dictionary_learning", "kind": name, "model": "a/tiny",
        "hook": "resid_post_layer_1",
    }  # fmt: skip
    assert torch.equal(load_dictionary(save_dictionary(one, tmp_path / "ours")).encode(x), one.encode(x))


def test_older_folders_of_dictionary_learning_print_the_class_and_give_k_elsewhere(tmp_path):
    state = {name: tensor for name, tensor in CLASSES["AutoEncoderTopK"][0].items() if name not in ("k", "threshold")}
    folder = learned(tmp_path, "<class 'dictionary_learning.trainers.top_k.AutoEncoderTopK'>", state, k=4)
    assert load_dictionary(folder).k == 4


def test_dictionary_learning_is_refused_where_it_cannot_be_read(tmp_path):
    state = CLASSES["BatchTopKSAE"][0]
    with pytest.raises(FileError, match=r"class 'CrossCoder'; readable: AutoEncoder, AutoEncoderNew"):
        load_dictionary(learned(tmp_path, "CrossCoder", state))
    with pytest.raises(FileError, match=r"no threshold yet \(it is negative\).*threshold_start_step"):
        load_dictionary(learned(tmp_path, "BatchTopKSAE", state | {"threshold": torch.tensor(-1.0)}))
    with pytest.raises(FileError, match="it lacks b_enc"):
        load_dictionary(learned(tmp_path, "AutoEncoder", MATRICES | {"bias": torch.zeros(D)}))
    with pytest.raises(FileError, match="holds something else than tensors by name"):
        load_dictionary(learned(tmp_path, "AutoEncoder", [torch.zeros(1)]))
    learned(tmp_path, "AutoEncoder", CLASSES["AutoEncoder"][0])
    cut("ae.pt", 300)(tmp_path)
    with pytest.raises(FileError, match=f"{tmp_path} .*damaged"):
        load_dictionary(tmp_path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_pickle_is_not_run(tmp_path):
    folder = learned(tmp_path / "learned", "AutoEncoder", {"bias": Evil(str(tmp_path / "harm"))})
    with pytest.raises(FileError, match="holds more than tensors, or is damaged; it is not opened"):
        load_dictionary(folder)
    assert not (tmp_path / "harm").exists()


# --- plain tensors ---


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("jumps", [False, True])
def test_a_file_of_tensors_is_a_relu_or_jumprelu_dictionary_under_either_naming(tmp_path, turned, jumps):
    names = {"W_enc": "encoder.weight", "W_dec": "decoder.weight", "b_enc": "encoder.bias", "b_dec": "decoder.bias"}
    tensors = {names[k] if turned else k: (v.T if turned and v.ndim == 2 else v).clone() for k, v in PLAIN.items()}
    threshold = torch.rand(N) if jumps else torch.zeros(N)
    file, x = tmp_path / "sae.safetensors", torch.randn(20, D)
    save_file({k: v.contiguous() for k, v in (tensors | ({"threshold": threshold} if jumps else {})).items()}, file)
    with pytest.warns(InterpWarning, match="does not say if the decoder's bias is taken off"):
        one = load_dictionary(file, "mlp_out[0]")
    assert torch.allclose(one.encode(x), jump(x @ PLAIN["W_enc"] + PLAIN["b_enc"], threshold), atol=1e-5)
    assert torch.allclose(one.decode(one.encode(x)), one.encode(x) @ PLAIN["W_dec"] + PLAIN["b_dec"], atol=1e-5)
    with pytest.raises(FileError, match=r"names no site that is known here.*give site=, such as"):
        load_dictionary(file)


def test_a_bias_without_a_part_is_taken_off_the_input(tmp_path):
    state, encode, _ = CLASSES["AutoEncoder"]
    save_file(state, tmp_path / "ae.safetensors")
    x = torch.randn(20, D)
    assert torch.allclose(load_dictionary(tmp_path / "ae.safetensors", "embed").encode(x), encode(state, x), atol=1e-5)


def test_a_file_of_tensors_can_be_gated_or_a_transcoder_but_nothing_unknown(tmp_path):
    file = tmp_path / "one.safetensors"
    gated = sae("gated", apply_b_dec_to_input=False)
    save_file(gated.state_dict() | {"b_dec": torch.zeros(D)}, file)
    gated.b_dec.data.zero_()
    assert_computes_as(load_dictionary(file, "embed"), gated, torch.randn(3, 20, D))
    theirs = sae("jumprelu_skip_transcoder")
    save_file(theirs.state_dict(), file)
    with pytest.raises(FileError, match=r"give site=, such as .* and reads=, such as"):
        load_dictionary(file)
    assert_computes_as(load_dictionary(file, "mlp_out[0]", reads="mlp_in[0]"), theirs, torch.randn(3, 20, D))
    save_file(PLAIN | {"k": torch.tensor(3)}, file)
    with pytest.raises(FileError, match="it has k, which a standard dictionary has not"):
        load_dictionary(file, "embed")


# --- where it was trained ---


@pytest.mark.parametrize(
    ("hook", "site"),
    [
        ("blocks.2.hook_resid_post", "resid_post[2]"), ("blocks.12.hook_resid_pre", "resid_pre[12]"),
        ("blocks.2.hook_out", "resid_post[2]"), ("blocks.2.hook_in", "resid_pre[2]"),
        ("blocks.0.hook_attn_out", "attn_out[0]"), ("blocks.0.mlp.hook_post", "neuron[0]"),
        ("blocks.2.hook_mlp_out", "mlp_out[2]"), ("blocks.2.attn.hook_z", "z[2]"), ("model.layers.2", "resid_post[2]"),
        ("transformer.h.3", "resid_post[3]"), ("gpt_neox.layers.4", "resid_post[4]"),
        ("gpt_neox.layers.4.attention", "attn_proj[4]"), ("model.layers.4.mlp", "mlp_proj[4]"),
        ("resid_post_layer_7", "resid_post[7]"), ("resid_out_layer3", "resid_post[3]"),
        ("attn_out_layer0", "attn_out[0]"),
        ("blocks.2.attn.hook_q", None), ("hook_embed", None), ("blocks.2.ln2.hook_normalized", None),
        ("model.layers.2.post_attention_layernorm", None), ("model.layers", None), ("", None), (None, None),
        ("strange_layer_2", None), ("embed_layer_1", None),
    ],
)  # fmt: skip
def test_names_of_hooks_mean_sites_where_that_is_certain(hook, site):
    assert site_of(hook) is None if site is None else str(site_of(hook)) == site


def test_a_hook_in_unknown_words_asks_for_the_site_and_a_known_one_warns_where_it_differs(tmp_path):
    sae("standard", metadata={"hook_name": "blocks.2.attn.hook_q"}).save_model(tmp_path)
    with pytest.raises(FileError, match=r"trained at: 'blocks\.2\.attn\.hook_q'\); give site=, such as site='resid_po"):
        load_dictionary(tmp_path)
    assert str(load_dictionary(tmp_path, "q[2]").site) == "q[2]"
    sae("standard").save_model(tmp_path)
    with pytest.warns(InterpWarning, match=r"site resid_post\[1\] \('blocks\.1\.hook_resid_post'\), you give embed;"):
        load_dictionary(tmp_path, "embed")
    load_dictionary(tmp_path, "resid_post[1]")  # no warning, which would be an error here


@pytest.mark.parametrize(
    ("trained", "given", "differ"),
    [
        ("EleutherAI/pythia-70m-deduped", "pythia-70m-deduped", False), ("gpt2-small", "openai-community/gpt2", False),
        ("SmolLM2-135M", "folder/smollm2_135m.gguf", False), ("gemma-2-2b", "google/gemma-2-2b-it", True),
        ("gpt2", "in-memory", False), (None, "gpt2", False), ("a/tiny", "b/small", True),
    ],
)  # fmt: skip
def test_another_model_than_it_was_trained_on_is_said(trained, given, differ):
    model = HookedHF(tiny.build("gpt2"), identity=Identity(given), check=False)
    one = dictionary(description={"model": trained} if trained else {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_origin(model, one)
    assert [f"was trained on {trained}, the model is {given};" in str(w.message) for w in caught] == [True] * differ
    assert all(w.category is InterpWarning for w in caught)


def test_a_dictionary_that_fits_runs_on_the_models_activations(tmp_path):
    model = tiny.hooked("gpt2")
    made, config = get_sae_class("standard")
    made(config(d_in=32, d_sae=N, metadata=sae_lens.saes.sae.SAEMetadata(**HOOKS))).save_model(tmp_path)
    [one] = checked_featurizers(model, load_dictionary(tmp_path))
    x = model.run(tiny.RAGGED, record=[one.site])[one.site]
    features = one.encode(flat(x))
    assert torch.allclose(one.decode(features) + one.error(x, features), x, atol=1e-5)
