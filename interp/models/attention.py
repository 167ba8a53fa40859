"""Reading and changing q, k, v and the attention pattern of unmodified transformers models.

transformers lets a model's attention function be chosen by name. For each of its own functions we register one of ours
that delegates to it, and switch the name only while a run with taps is under way: the function then sees queries and
keys after rotary embedding and QK norm, in every family, and outputs stay bit-equal unless a pattern is edited. Only an
edited or watched pattern (or a query head's own view of k or v) goes through the mathematics written here.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from interp.errors import ModelError
from interp.site import Site

SUPPORTED = ("sdpa", "eager")
ATTENTION_KINDS = ("q", "k", "v", "k_of_query_head", "v_of_query_head", "pattern")

Call = Callable[[Site, Tensor], Tensor | None]


@dataclass(eq=False)
class AttentionTaps:
    """What one run wants of the attention functions.

    Attributes:
        layers: id of an attention module -> its layer.
        wanted: sites with taps.
        call: calls the taps of a site; returns the new tensor, or None when nothing was returned.
        prefix: (layer, rows) -> keys and values [rows, kv_head, pos, d_head] that come before the ones computed.
        masks: per layer, the mask to use instead of the model's.
        seen: layer -> mask as the model made it.
        options: layer -> keyword arguments of its attention function.
    """

    layers: Mapping[int, int]
    wanted: frozenset[Site]
    call: Call
    prefix: Callable[[int, int], tuple[Tensor, Tensor]] | None = None
    masks: Sequence[Tensor | None] | None = None
    seen: dict[int, Tensor | None] = field(default_factory=dict)
    options: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def __call__(
        self, original: Callable[..., Any], module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of one layer, shaped as in transformers: [batch, head, pos, d_head] in, output and weights out."""
        layer = self.layers.get(id(module))
        if layer is None:
            return original(module, q, k, v, mask, **options)
        self.seen[layer], self.options[layer] = mask, options
        q, k, v = (self._heads(Site(kind, layer), x) for kind, x in (("q", q), ("k", k), ("v", v)))
        if self.prefix is not None:
            before_k, before_v = self.prefix(layer, k.shape[0])
            k, v = torch.cat([before_k, k], 2), torch.cat([before_v, v], 2)
        if self.masks is not None:
            mask = self.masks[layer]
        views = {kind: Site(f"{kind}_of_query_head", layer) for kind in "kv"}
        pattern = Site("pattern", layer)
        if not self.wanted & {pattern, *views.values()}:
            return original(module, q, k, v, mask, **options)
        return self._with_pattern(original, module, (q, k, v), mask, options, pattern, views)

    def _heads(self, site: Site, x: Tensor) -> Tensor:
        if site not in self.wanted:
            return x
        new = self.call(site, x.transpose(1, 2))
        return x if new is None else new.transpose(1, 2)

    def _with_pattern(
        self, original: Any, module: Any, qkv: tuple, mask: Any, options: dict, pattern: Site, views: dict[str, Site]
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = qkv
        groups = q.shape[1] // k.shape[1]
        k_each, v_each = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        new_k, new_v = self._heads(views["k"], k_each), self._heads(views["v"], v_each)
        weights = attention_pattern(q, new_k, mask, module, options)
        new = self.call(pattern, weights) if pattern in self.wanted else None
        if new is None and new_k is k_each and new_v is v_each:
            return original(module, q, k, v, mask, **options)
        weights = weights if new is None else new
        return (weights @ new_v).transpose(1, 2).contiguous(), weights


def attention_pattern(
    q: Float[Tensor, "batch head dest d_head"],
    k: Float[Tensor, "batch head src d_head"],
    mask: Any,
    module: Any,
    options: Mapping[str, Any],
) -> Float[Tensor, "batch head dest src"]:
    """softmax(softcap(q k^T x scaling) + mask), the softmax in float32 as the families do."""
    scores = (q @ k.transpose(-1, -2)) * scaling_of(options, q.shape[-1])
    softcap = options.get("softcap")
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is None and q.shape[2] > 1:
        mask = causal(q.shape[2], k.shape[2], q.device)
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype)


def scaling_of(options: Mapping[str, Any], d_head: int) -> float:
    """The factor of the scores, as given to the attention function."""
    scaling = options.get("scaling")
    return d_head**-0.5 if scaling is None else scaling


def causal(n_dest: int, n_src: int, device: torch.device) -> Tensor:
    """The plain causal mask [dest, src], for destinations at the end of the sources."""
    return torch.ones(n_dest, n_src, dtype=torch.bool, device=device).tril(n_src - n_dest)


_ACTIVE: ContextVar[AttentionTaps | None] = ContextVar("interp_attention_taps", default=None)


def _eager_of(module: Any) -> Callable[..., Any]:
    """The eager attention function of the file in which the module's class, or a base of it, was written."""
    if getattr(module, "reorder_and_upcast_attn", False):
        return lambda m, q, k, v, mask, **_: m._upcast_and_reordered_attn(q, k, v, mask)
    for base in type(module).__mro__:
        found = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    raise ModelError(f"{type(module).__name__} has no eager attention function; load the model with sdpa attention.")


def _delegating(name: str) -> Callable[..., Any]:
    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
        if name == "sdpa" and options.get("softcap") is not None:
            raise ModelError(
                f"{type(module).__name__} soft-caps its scores, which sdpa attention leaves out without a word; "
                "load the model with attn_implementation='eager'."
            )
        original = _eager_of(module) if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        taps = _ACTIVE.get()
        if taps is None:
            return original(module, query, key, value, attention_mask, **options)
        return taps(original, module, query, key, value, attention_mask, options)

    return attention


for _name in SUPPORTED:
    AttentionInterface.register(f"interp_{_name}", _delegating(_name))
    AttentionMaskInterface.register(f"interp_{_name}", ALL_MASK_ATTENTION_FUNCTIONS[_name])


@contextmanager
def tapped(configs: Sequence[Any], taps: AttentionTaps) -> Iterator[None]:
    """Switch the configs' attention to our delegating functions while inside."""
    names = [config._attn_implementation for config in configs]
    unknown = sorted({str(n) for n in names if n not in SUPPORTED and not str(n).startswith("interp_")})
    if unknown:
        raise ModelError(
            f"attention implementation {', '.join(unknown)} hides queries, keys and patterns; "
            "load the model with attn_implementation='sdpa' or 'eager'."
        )
    token = _ACTIVE.set(taps)
    try:
        for config, name in zip(configs, names, strict=True):
            config._attn_implementation_internal = name if name.startswith("interp_") else f"interp_{name}"
        yield
    finally:
        for config, name in zip(configs, names, strict=True):
            config._attn_implementation_internal = name
        _ACTIVE.reset(token)
