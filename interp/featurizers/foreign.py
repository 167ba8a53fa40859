"""Dictionaries of sae-lens and dictionary_learning, brought to the one form of `interp.featurizers.dictionary`.

    standard, transcoder    f = relu(pre + b_enc)
    jumprelu                bias = b_enc,    gate_bias = b_enc - threshold
    gated                   encoder = W_enc exp(r_mag),    bias = b_mag,    gate_bias = b_gate exp(r_mag)
    topk, abstopk           encoder and bias times |W_dec|, decoder over it, where features are rescaled by it

Every parameter is named as in sae-lens before it is converted. Half precision becomes float32. A setting that makes
features anything but affine in the encoder is refused, as is a tensor that is missing or that nobody expects: no
dictionary loads as something near it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from interp.errors import FileError
from interp.featurizers.dictionary import Select
from interp.site import KINDS, Site


@dataclass(frozen=True, eq=False)
class Stored:
    """What a file holds of a dictionary.

    Args:
        parts: arguments of `Dictionary`: tensors, select, k.
        description: JSON values that say where it came from.
        site: whose activation it explains; None when the file does not say, or in unknown words.
        reads: the site a transcoder reads, likewise.
        transcoder: whether it reads another site than it explains.
        key: its name, '' when it has none.
        skip: first positions that it was not trained on.
        note: what its user should know, '' for nothing.
    """

    parts: Mapping[str, Any]
    description: Mapping[str, Any]
    site: Site | None
    reads: Site | None = None
    transcoder: bool = False
    key: str = ""
    skip: int = 0
    note: str = ""


class Kind(NamedTuple):
    """A kind of dictionary: the tensors it has beside W_enc, W_dec and b_dec, and how it selects features."""

    own: str
    select: Select = "gate"
    transcoder: bool = False


_KINDS = {
    "standard": Kind("b_enc"),
    "gated": Kind("b_gate b_mag r_mag"),
    "topk": Kind("b_enc", "topk"),
    "abstopk": Kind("b_enc", "abstopk"),
    "jumprelu": Kind("b_enc threshold"),
    "transcoder": Kind("b_enc", transcoder=True),
    "skip_transcoder": Kind("b_enc W_skip", transcoder=True),
    "jumprelu_transcoder": Kind("b_enc threshold", transcoder=True),
    "jumprelu_skip_transcoder": Kind("b_enc threshold W_skip", transcoder=True),
}
_TRAINING = "it is a training checkpoint; save it with save_inference_model, which makes it a jumprelu"
_REFUSED = {
    "temporal": "its features depend on other tokens through attention, so they are not affine in an encoder",
    "matching_pursuit": "its features are chosen one after another, so they are not affine in an encoder",
    "batchtopk": _TRAINING,
    "matryoshka_batchtopk": _TRAINING,
}
_PER_TOKEN = "it scales each token by its own size, so features are not affine in the activation; train one without"
_NORMS = {
    "expected_average_only_in": "fold it in with sae.fold_activation_norm_scaling_factor(...), then save it anew",
    "covariance_whitening": "fold it in with sae.fold_activation_whitening(...), then save it anew",
    "layer_norm": _PER_TOKEN,
    "constant_norm_rescale": _PER_TOKEN,
}
_CENTRED = (
    "it was trained on a residual stream without its mean (center_writing_weights); other models keep theirs, so "
    "features come out somewhat different"
)
_OPEN = (
    "the file does not say if the decoder's bias is taken off what is encoded; it is not. If it should be, give a "
    "folder of sae-lens (cfg.json with apply_b_dec_to_input) instead"
)
_AXES = {
    "W_enc": ("read", "feature"), "W_dec": ("feature", "d"), "b_dec": ("d",), "b_enc": ("feature",),
    "threshold": ("feature",), "b_gate": ("feature",), "b_mag": ("feature",), "r_mag": ("feature",),
    "W_skip": ("d", "read"),
}  # fmt: skip

# dictionary_learning: class -> kind here, and whether b_dec is taken off the input
_CLASSES = {
    "AutoEncoder": ("standard", True), "AutoEncoderNew": ("standard", False), "GatedAutoEncoder": ("gated", True),
    "AutoEncoderTopK": ("topk", True), "BatchTopKSAE": ("jumprelu", True), "MatryoshkaBatchTopKSAE": ("jumprelu", True),
    "JumpReluAutoEncoder": ("jumprelu", False),
}  # fmt: skip
_RENAMED = {
    "encoder.weight": "W_enc", "decoder.weight": "W_dec", "encoder.bias": "b_enc", "decoder.bias": "b_dec",
    "bias": "b_dec", "decoder_bias": "b_dec", "gate_bias": "b_gate", "mag_bias": "b_mag",
}  # fmt: skip

_HOOKS = {  # names of hooks within a block; those that mean another tensor in some family are left out
    "hook_resid_pre": "resid_pre", "hook_in": "resid_pre", "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post", "hook_out": "resid_post", "hook_attn_out": "attn_out", "hook_mlp_out": "mlp_out",
    "attn.hook_out": "attn_proj", "mlp.hook_out": "mlp_proj", "mlp.hook_in": "mlp_in", "mlp.hook_post": "neuron",
    "attn.hook_z": "z", "attn.hook_v": "v",
}  # fmt: skip
_MODULES = {  # outputs of modules within a block; '' is the block's own
    "": "resid_post", "self_attn": "attn_proj", "attn": "attn_proj", "attention": "attn_proj", "mlp": "mlp_proj",
}  # fmt: skip
_HOOK = re.compile(r"blocks\.(\d+)\.(.+)")
_MODULE = re.compile(r"(?:model\.layers|transformer\.h|gpt_neox\.layers|model\.decoder\.layers)\.(\d+)(?:\.(\w+))?")
_SUBMODULE = re.compile(r"(\w+?)_layer_?(\d+)")


def site_of(hook: str | None) -> Site | None:
    """The site that another library's name of an activation means, or None where that is not known.

    >>> str(site_of("blocks.2.hook_mlp_out")), str(site_of("gpt_neox.layers.3")), site_of("blocks.2.hook_scale")
    ('mlp_out[2]', 'resid_post[3]', None)
    """
    hook = hook or ""
    if match := _HOOK.fullmatch(hook):
        layer, kind = match[1], _HOOKS.get(match[2])
    elif match := _MODULE.fullmatch(hook):
        layer, kind = match[1], _MODULES.get(match[2] or "")
    elif match := _SUBMODULE.fullmatch(hook):
        layer, kind = match[2], "resid_post" if match[1] == "resid_out" else match[1]
    else:
        return None
    return Site(kind, int(layer)) if kind in KINDS and KINDS[kind].layered else None


def from_sae_lens(config: Mapping[str, Any], weights: Mapping[str, Tensor], origin: Mapping[str, str]) -> Stored:
    """A dictionary of sae-lens, from its configuration (of any version) and tensors.

    Args:
        origin: where it came from, such as ``{"path": ...}``; stands in the description and in messages.

    Raises:
        FileError: a kind or setting that cannot be converted; tensors missing, unexpected or of wrong sizes.
    """
    where = "/".join(origin.values())
    meta = {**config, **config.get("metadata", {})}
    function = config.get("activation_fn", config.get("activation_fn_str")) or "relu"  # before version 6
    kind = "topk" if function == "topk" else config.get("architecture", "standard")
    if kind not in _KINDS:
        raise FileError(f"{where} is of kind {kind!r}: {_REFUSED.get(kind, 'unknown')}; readable: {', '.join(_KINDS)}.")
    norm = config.get("normalize_activations") or "none"
    norm = "expected_average_only_in" if norm is True else norm
    if norm != "none":
        raise FileError(f"{where} has normalize_activations={norm!r}, not folded: {_NORMS.get(norm, 'unknown')}.")
    if function not in ("relu", "topk"):
        raise FileError(f"{where} has activation_fn={function!r}; readable: 'relu', 'topk'.")
    weights = dict(weights)
    scale = weights.pop("scaling_factor", None)
    if scale is not None and not torch.allclose(scale, torch.ones_like(scale)):
        raise FileError(f"{where} has a finetuning scaling factor, which is not supported; use one without it.")
    if "log_threshold" in weights:
        weights["threshold"] = weights.pop("log_threshold").exp()
    hook = meta.get("hook_name", meta.get("hook_point"))
    form = _KINDS[kind]
    hook_out = meta.get("hook_name_out") if form.transcoder else None
    return Stored(
        _parts(
            kind, weights, where,
            subtract=config.get("apply_b_dec_to_input", True),
            rescale=config.get("rescale_acts_by_decoder_norm", False),
            k=config.get("k", (config.get("activation_fn_kwargs") or {}).get("k", 0)),
        ),
        _described(origin, library="sae-lens", kind=kind, model=meta.get("model_name"), hook=hook, hook_out=hook_out),
        site_of(hook_out if form.transcoder else hook),
        site_of(hook) if form.transcoder else None,
        form.transcoder,
        skip=max((meta.get("seqpos_slice") or [0])[0] or 0, 0),  # a negative one counts from the end
        note=_CENTRED if (meta.get("model_from_pretrained_kwargs") or {}).get("center_writing_weights") else "",
    )  # fmt: skip


def from_dictionary_learning(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], origin: Mapping[str, str]
) -> Stored:
    """A dictionary of dictionary_learning, from its configuration and tensors; features as its `encode` gives them.

    Raises:
        FileError: an unknown class; tensors missing, unexpected or of wrong sizes; a threshold never estimated.
    """
    where, trainer = "/".join(origin.values()), config["trainer"]
    name = re.findall(r"\w+", str(trainer.get("dict_class")))[-1]  # older files print the class itself
    if name not in _CLASSES:
        raise FileError(f"{where} is of class {name!r}; readable: {', '.join(_CLASSES)}.")
    kind, subtract = _CLASSES[name]
    weights = _renamed(weights)
    k = int(weights.pop("k", torch.tensor(trainer.get("k") or 0)))
    weights.pop("group_sizes", None)
    if kind == "topk":
        weights.pop("threshold", None)  # kept for another way of encoding
    elif "TopK" in name and "threshold" in weights and (weights["threshold"] < 0).any():
        raise FileError(f"{where} has no threshold yet (it is negative); train it beyond threshold_start_step.")
    hook = trainer.get("submodule_name")
    outputs = (config.get("buffer") or {}).get("io", "out") == "out"
    return Stored(
        _parts(kind, weights, where, subtract=subtract, k=k),
        _described(origin, library="dictionary_learning", kind=name, model=trainer.get("lm_name"), hook=hook),
        site_of(hook) if outputs else None,
    )


def from_tensors(weights: Mapping[str, Tensor], origin: Mapping[str, str]) -> Stored:
    """A dictionary of tensors alone.

    Thresholds make it a JumpReLU, ``b_gate`` a gated one, ``W_skip`` a skip transcoder; a ``bias`` without a part is
    that of dictionary_learning's AutoEncoder, which takes it off.

    Raises:
        FileError: tensors missing, unexpected or of wrong sizes.
    """
    subtract = bool({"bias", "decoder_bias"} & set(weights))
    weights = _renamed(weights)
    kind = "jumprelu" if "threshold" in weights else "gated" if "b_gate" in weights else "standard"
    if "W_skip" in weights:
        kind = "skip_transcoder" if kind == "standard" else "jumprelu_skip_transcoder"
    parts = _parts(kind, weights, "/".join(origin.values()), subtract=subtract)
    two_sites = _KINDS[kind].transcoder or parts["encoder"].shape[0] != parts["decoder"].shape[1]
    is_open = not (subtract or two_sites) and bool(parts["decoder_bias"].any())
    return Stored(parts, {**origin, "kind": kind}, None, transcoder=two_sites, note=_OPEN if is_open else "")


def shape_faults(tensors: Mapping[str, Tensor], axes: Mapping[str, Sequence[str]]) -> list[str]:
    """Tensors whose sizes contradict those before them, in words; `axes` names each one's axes."""
    sizes: dict[str, int] = {}
    faults = []
    for name, names in axes.items():
        if name in tensors:
            shape = tuple(tensors[name].shape)
            if len(shape) == len(names) and all(sizes.get(a, s) == s for a, s in zip(names, shape, strict=True)):
                sizes |= zip(names, shape, strict=True)
            else:
                wanted = ", ".join(str(sizes.get(axis, axis)) for axis in names)
                faults.append(f"{name} has shape {list(shape)}, needed [{wanted}]")
    return faults


def _parts(
    kind: str, weights: Mapping[str, Tensor], where: str, *, subtract: bool, k: int = 0, rescale: bool = False
) -> dict[str, Any]:
    """Arguments of `Dictionary` from tensors in sae-lens's names."""
    form = _KINDS[kind]
    needed = {"W_enc", "W_dec", "b_dec", *form.own.split()}
    faults = [f"it lacks {name}" for name in sorted(needed - set(weights))]
    faults += [f"it has {name}, which a {kind} dictionary has not" for name in sorted(set(weights) - needed)]
    faults += shape_faults(weights, _AXES)
    if form.select != "gate" and not k:
        faults.append("it does not say k")
    if faults:
        raise FileError(f"{where} holds no {kind} dictionary: {'; '.join(faults)}. Save or download it anew.")
    w = {name: tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)) for name, tensor in weights.items()}
    encoder, bias, decoder, gate_bias = w["W_enc"], w.get("b_enc"), w["W_dec"], None
    if kind == "gated":
        size = w["r_mag"].exp()
        encoder, bias, gate_bias = encoder * size, w["b_mag"], w["b_gate"] * size
    if "threshold" in w:
        gate_bias = w["b_enc"] - w["threshold"]
    if rescale:
        norms = decoder.norm(dim=1).clamp_min(1e-8)  # as sae-lens clamps it
        encoder, bias, decoder = encoder * norms, w["b_enc"] * norms, decoder / norms[:, None]
    return {
        "encoder": encoder, "bias": bias, "decoder": decoder, "decoder_bias": w["b_dec"], "gate_bias": gate_bias,
        "shift": w["b_dec"] if subtract and not form.transcoder else None,
        "skip_weights": w["W_skip"].T.contiguous() if "W_skip" in w else None,
        "select": form.select, "k": k if form.select != "gate" else 0,
    }  # fmt: skip


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under sae-lens's names and ways round; one threshold for all features becomes one each."""
    turned = {
        _RENAMED.get(name, name): tensor.T.contiguous() if name in ("encoder.weight", "decoder.weight") else tensor
        for name, tensor in weights.items()
    }
    if "threshold" in turned and turned["threshold"].ndim == 0 and "W_enc" in turned:
        turned["threshold"] = turned["threshold"].expand(turned["W_enc"].shape[-1])
    return turned


def _described(origin: Mapping[str, str], **values: Any) -> dict[str, Any]:
    return {**origin, **{name: value for name, value in values.items() if value is not None}}
