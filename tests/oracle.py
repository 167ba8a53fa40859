"""Hand-written torch hooks, one prompt and one patch at a time: what every faster way must agree with.

Nothing here is shared with the library: module paths are written out again, attention is computed again, and
`resid_mid` is changed through what attention adds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

Change = Callable[[Tensor], Tensor | None]
NAME = "oracle"
"""The attention implementation that a model must be set to."""
_LIVE: dict[tuple[str, int], Change] = {}


class Paths(NamedTuple):
    """Module paths of a family; `added` are the modules whose outputs are added to the residual stream."""

    blocks: str
    norm: str
    attn: str
    out: str
    mlp: str
    down: str
    added: tuple[str, str]


_LLAMA = Paths(
    "model.layers", "model.norm", "self_attn", "self_attn.o_proj", "mlp", "mlp.down_proj", ("self_attn", "mlp")
)
_POST = _LLAMA._replace(added=("post_attention_layernorm", "post_feedforward_layernorm"))
_NEOX = Paths(
    "gpt_neox.layers", "gpt_neox.final_layer_norm", "attention", "attention.dense", "mlp", "mlp.dense_4h_to_h",
    ("attention", "mlp"),
)  # fmt: skip
PATHS = {
    "gpt2": Paths("transformer.h", "transformer.ln_f", "attn", "attn.c_proj", "mlp", "mlp.c_proj", ("attn", "mlp")),
    "gptj": Paths("transformer.h", "transformer.ln_f", "attn", "attn.out_proj", "mlp", "mlp.fc_out", ("attn", "mlp")),
    "opt": Paths(
        "model.decoder.layers", "model.decoder.final_layer_norm", "self_attn", "self_attn.out_proj", "fc1", "fc2",
        ("self_attn", "fc2"),
    ),
    "gpt_neox": _NEOX, "gpt_neox_serial": _NEOX, "gemma2": _POST, "gemma3": _POST, "olmo2": _POST,
}  # fmt: skip


def _attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **options: Any) -> Any:
    """Attention by the book, changed by whatever is live at this layer; heads are [batch, head, pos, d_head]."""
    at = lambda kind, x, swap=True: _changed(kind, module.layer_idx, x, swap)  # noqa: E731
    q, k, v = at("q", q), at("k", k), at("v", v)
    groups = q.shape[1] // k.shape[1]
    k = at("k_of_query_head", torch.stack([k[:, h // groups] for h in range(q.shape[1])], 1))
    v = at("v_of_query_head", torch.stack([v[:, h // groups] for h in range(q.shape[1])], 1))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * scaling
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    pattern = at("pattern", (scores + mask).softmax(-1), swap=False)
    z = at("z", torch.einsum("bhij,bhjd->bhid", pattern, v))
    return z.transpose(1, 2), pattern


def _changed(kind: str, layer: int, x: Tensor, swap: bool) -> Tensor:
    change = _LIVE.get((kind, layer))
    if change is None:
        return x
    shown = x.transpose(1, 2) if swap else x
    new = change(shown.clone())
    return x if new is None else new.transpose(1, 2) if swap else new


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def _hooks(model: nn.Module, name: str, changes: dict[tuple[str, int], Change]) -> Iterator[None]:
    """Within, every change is made at its (kind, layer)."""
    paths = PATHS.get(name, _LLAMA)
    blocks = model.get_submodule(paths.blocks)
    handles, entered = [], {}
    _LIVE.clear()
    for (kind, layer), change in changes.items():
        block = blocks[max(layer, 0)]
        where = {
            "embed": (block, "in"), "resid_pre": (block, "in"), "attn_in": (block.get_submodule(paths.attn), "in"),
            "attn_proj": (block.get_submodule(paths.out), "out"),
            "attn_out": (block.get_submodule(paths.added[0]), "out"),
            "mlp_in": (block.get_submodule(paths.mlp), "in"), "neuron": (block.get_submodule(paths.down), "in"),
            "mlp_proj": (block.get_submodule(paths.down), "out"),
            "mlp_out": (block.get_submodule(paths.added[1]), "out"), "resid_post": (block, "out"),
            "resid_final": (model.get_submodule(paths.norm), "out"),
            "resid_mid": (block.get_submodule(paths.added[0]), "out"),
        }.get(kind)  # fmt: skip
        if where is None:
            _LIVE[kind, layer] = change
            continue
        if kind == "resid_mid":
            handles.append(
                block.register_forward_pre_hook(_pre(lambda x, e=entered: e.update(x=x) or x), with_kwargs=True)
            )
            change = lambda x, c=change, e=entered: c(e["x"] + x) - e["x"]  # noqa: E731
        if where[1] == "in":
            handles.append(where[0].register_forward_pre_hook(_pre(change), with_kwargs=True))
        else:
            handles.append(where[0].register_forward_hook(_post(change)))
    try:
        yield
    finally:
        _LIVE.clear()
        for handle in handles:
            handle.remove()


def _pre(change: Change) -> Any:
    def hook(_: Any, args: tuple, kwargs: dict) -> Any:
        if args:
            return ((_shaped(change, args[0]), *args[1:]), kwargs)
        return args, {**kwargs, "hidden_states": _shaped(change, kwargs["hidden_states"])}

    return hook


def _post(change: Change) -> Any:
    def hook(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (_shaped(change, output[0]), *output[1:])
        return _shaped(change, output)

    return hook


def _shaped(change: Change, x: Tensor) -> Tensor:
    """Some modules see [pos, width] of the one prompt; changes see [1, pos, width]."""
    return change(x.clone().view(1, -1, x.shape[-1])).view(x.shape)


def activations(
    model: nn.Module, name: str, ids: list[int], sites: list[tuple[str, int]]
) -> dict[tuple[str, int], Tensor]:
    """What passes at each site for one prompt; the layer of a site without one is -1."""
    found: dict[tuple[str, int], Tensor] = {}

    def keep(site: tuple[str, int]) -> Change:
        return lambda x: found.__setitem__(site, x.detach().clone()) or x

    with torch.no_grad(), _hooks(model, name, {site: keep(site) for site in sites}):
        model(torch.tensor([ids]), use_cache=False)
    return found


def logits(model: nn.Module, name: str, ids: list[int], changes: dict[tuple[str, int], Change]) -> Tensor:
    """Logits [pos, vocab] of one prompt with the changes made."""
    with torch.no_grad(), _hooks(model, name, changes):
        return model(torch.tensor([ids]), use_cache=False).logits[0]
