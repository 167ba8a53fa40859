"""Where each family of decoders keeps its sites: one table, data instead of branches.

A `Point` is a module path inside a block (or inside the model, for the three kinds without a layer) and the side of it
to hook. Post-norm families add a sublayer's output after a norm of its own, so there `attn_out` and `mlp_out` are that
norm's output. A user describes a decoder of her own with `SiteMap`, in the same terms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from interp.errors import ModelError, SiteError, nearest
from interp.site import KINDS


class Point(NamedTuple):
    """A module path and the side of it where the site's tensor passes; '' is the block itself."""

    path: str
    side: Literal["input", "output"]


@dataclass(frozen=True)
class SiteMap:
    """Where a decoder keeps its sites.

    Args:
        blocks: path of the list of blocks.
        final_norm: path of the norm before the unembedding.
        unembed: path of the unembedding.
        attention: path of the attention module inside a block ('' when it does not use transformers' interface).
        points: site kind -> `Point` inside a block. `q`, `k`, `v`, `pattern` come from the attention interface
            unless given here; `embed`, `resid_pre`, `resid_post` and `resid_final` follow from the paths above.
        parallel: attention and MLP read the same residual, so there is no `resid_mid`.
        embed: path of the token embedding; transformers models name their own.
        learned_positions: positions are looked up in a table, so no prompt can be longer than the configuration says.
    """

    blocks: str
    final_norm: str
    unembed: str = "lm_head"
    attention: str = ""
    points: Mapping[str, Point] = field(default_factory=dict)
    parallel: bool = False
    embed: str = ""
    learned_positions: bool = False

    def __post_init__(self) -> None:
        unknown = [f"{k!r}{nearest(k, KINDS)}" for k in self.points if k not in KINDS or not KINDS[k].layered]
        if unknown:
            raise SiteError(f"the site map names kinds that do not exist: {', '.join(unknown)}.")


def _points(attention: str, out: str, mid: str, mlp: str, down: str, post: tuple[str, str] | None = None) -> dict:
    """Points of a block from the names of its attention, output projection, mid-norm, MLP and down projection."""
    attn_out, mlp_out = post or (f"{attention}.{out}", down)
    return {
        "attn_in": Point(attention, "input"),
        "z": Point(f"{attention}.{out}", "input"),
        "attn_proj": Point(f"{attention}.{out}", "output"),
        "attn_out": Point(attn_out, "output"),
        "resid_mid": Point(mid, "input"),
        "mlp_in": Point(mlp, "input"),
        "neuron": Point(down, "input"),
        "mlp_proj": Point(down, "output"),
        "mlp_out": Point(mlp_out, "output"),
    }


_LLAMA = SiteMap(
    "model.layers", "model.norm", "lm_head", "self_attn",
    _points("self_attn", "o_proj", "post_attention_layernorm", "mlp", "mlp.down_proj"),
)  # fmt: skip
_POST = ("post_attention_layernorm", "post_feedforward_layernorm")
_GEMMA = replace(
    _LLAMA, points=_points("self_attn", "o_proj", "pre_feedforward_layernorm", "mlp", "mlp.down_proj", _POST)
)

FAMILIES: dict[str, SiteMap] = {
    "gpt2": SiteMap(
        "transformer.h", "transformer.ln_f", "lm_head", "attn", _points("attn", "c_proj", "ln_2", "mlp", "mlp.c_proj"),
        learned_positions=True,
    ),
    "gpt_neox": SiteMap(
        "gpt_neox.layers", "gpt_neox.final_layer_norm", "embed_out", "attention",
        _points("attention", "dense", "post_attention_layernorm", "mlp", "mlp.dense_4h_to_h"),
    ),
    "gptj": SiteMap(
        "transformer.h", "transformer.ln_f", "lm_head", "attn",
        _points("attn", "out_proj", "", "mlp", "mlp.fc_out"), parallel=True,
    ),
    "opt": SiteMap(
        "model.decoder.layers", "model.decoder.final_layer_norm", "lm_head", "self_attn",
        _points("self_attn", "out_proj", "final_layer_norm", "fc1", "fc2"), learned_positions=True,
    ),
    "llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA, "phi3": _LLAMA,
    "gemma2": _GEMMA, "gemma3_text": _GEMMA,
    "olmo2": replace(_LLAMA, points=_points("self_attn", "o_proj", "mlp", "mlp", "mlp.down_proj", _POST)),
}  # fmt: skip

REFUSED = {
    "bert": "an encoder", "roberta": "an encoder", "distilbert": "an encoder", "deberta": "an encoder",
    "t5": "an encoder-decoder", "bart": "an encoder-decoder", "mamba": "a state-space model",
    "mamba2": "a state-space model", "rwkv": "a state-space model", "mixtral": "a mixture of experts",
    "qwen2_moe": "a mixture of experts", "qwen3_moe": "a mixture of experts", "gpt_oss": "a mixture of experts",
    "phimoe": "a mixture of experts", "olmoe": "a mixture of experts",
}  # fmt: skip


def site_map(config: Any) -> SiteMap:
    """The map of a configuration's family.

    Raises:
        ModelError: a family that is refused, with the kind of model it is, or unknown, with the cure.
    """
    kind = str(getattr(config, "model_type", "unknown"))
    if kind in REFUSED or getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{kind} is {REFUSED.get(kind, 'an encoder-decoder')}; only decoders with dense blocks are supported."
        )
    if kind not in FAMILIES:
        raise ModelError(
            f"family {kind!r} is not in the table (known: {', '.join(FAMILIES)}{nearest(kind, FAMILIES)}); "
            "pass site_map=SiteMap(...) that says where its sites are."
        )
    _refuse_variants(kind, config)
    parallel = kind == "gptj" or (kind == "gpt_neox" and bool(getattr(config, "use_parallel_residual", True)))
    return replace(FAMILIES[kind], parallel=parallel)


def _refuse_variants(kind: str, config: Any) -> None:
    """Refuse the members of a known family whose residual stream is not a sum."""
    if kind == "opt" and not config.do_layer_norm_before:
        raise ModelError("this OPT (like opt-350m) normalises after each sublayer, so its residual stream is no sum of "
                         "what sublayers add; use an OPT with do_layer_norm_before=True.")  # fmt: skip
    if kind == "opt" and config.word_embed_proj_dim != config.hidden_size:
        raise ModelError("this OPT projects its embeddings, so resid_final is not what the unembedding reads.")
    if getattr(config, "add_cross_attention", False):
        raise ModelError("a decoder with cross-attention is not supported; load it without add_cross_attention.")
