"""Sites: the named activations of a decoder, and the order in which a forward pass makes them.

A `Site` is a kind and, where the kind has one, a layer; heads, positions and units index into its tensor.
`KINDS` holds the axes of each kind's tensor (DESIGN of the library: batch first, then position, head, width).
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from interp.errors import SiteError, nearest


class Kind(NamedTuple):
    """What a kind of site is: its tensor's axes, whether it has a layer, and one line of prose."""

    axes: tuple[str, ...]
    layered: bool
    meaning: str


_RESID = ("batch", "pos", "d_model")
_HEADS = ("batch", "pos", "head", "d_head")
_KV = ("batch", "pos", "kv_head", "d_head")

# In forward order within a block.
KINDS: dict[str, Kind] = {
    "embed": Kind(_RESID, False, "what enters block 0: token and position embedding, and any scaling"),
    "resid_pre": Kind(_RESID, True, "residual stream at the block's input"),
    "attn_in": Kind(_RESID, True, "input of the attention sublayer, normalised where the family does so before it"),
    "q": Kind(_HEADS, True, "queries, after rotary embedding and QK norm"),
    "k": Kind(_KV, True, "keys, after rotary embedding and QK norm; the model's own key/value heads"),
    "v": Kind(_KV, True, "values; the model's own key/value heads"),
    "k_of_query_head": Kind(_HEADS, True, "the keys as each query head sees them; equal to k without grouped heads"),
    "v_of_query_head": Kind(_HEADS, True, "the values as each query head sees them; equal to v without grouped heads"),
    "pattern": Kind(("batch", "head", "dest", "src"), True, "attention probabilities"),
    "z": Kind(_HEADS, True, "per-head attention output before the output projection"),
    "attn_proj": Kind(_RESID, True, "output of the attention's output projection, before a post-sublayer norm"),
    "attn_out": Kind(_RESID, True, "what attention adds to the residual stream"),
    "resid_mid": Kind(_RESID, True, "residual stream between attention and MLP; serial blocks only"),
    "mlp_in": Kind(_RESID, True, "input of the MLP sublayer, normalised where the family does so before it"),
    "neuron": Kind(("batch", "pos", "d_ff"), True, "MLP hidden units, the input of the down projection"),
    "mlp_proj": Kind(_RESID, True, "output of the MLP's down projection, before a post-sublayer norm"),
    "mlp_out": Kind(_RESID, True, "what the MLP adds to the residual stream"),
    "resid_post": Kind(_RESID, True, "residual stream at the block's output"),
    "resid_final": Kind(_RESID, False, "after the final norm, before the unembedding"),
}

HEAD_KINDS = tuple(name for name, kind in KINDS.items() if {"head", "kv_head"} & set(kind.axes))
_ORDER = {name: rank for rank, name in enumerate(KINDS)}
_PATTERN = re.compile(r"\s*([A-Za-z_]+)\s*(?:\[\s*(-?\d+)\s*\]|\.\s*(-?\d+))?\s*$")


@dataclass(frozen=True, order=False)
class Site:
    """One named activation, such as ``Site("z", 3)``; printed and parsed as ``z[3]``.

    Args:
        kind: a key of `KINDS`.
        layer: block index from 0, or None for kinds without a layer (`embed`, `resid_final`).

    Raises:
        SiteError: unknown kind, a missing, negative or superfluous layer.

    >>> str(Site("resid_post", 2)), Site.parse("z.1") == Site("z", 1)
    ('resid_post[2]', True)
    """

    kind: str
    layer: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SiteError(f"no site kind {self.kind!r}; allowed: {', '.join(KINDS)}{nearest(str(self.kind), KINDS)}.")
        if KINDS[self.kind].layered and self.layer is None:
            raise SiteError(f"site kind {self.kind!r} needs a layer; write {self.kind}[0].")
        if not KINDS[self.kind].layered and self.layer is not None:
            raise SiteError(f"site kind {self.kind!r} has no layer (got {self.layer}); write {self.kind!r}.")
        if self.layer is not None and (not isinstance(self.layer, int) or self.layer < 0):
            raise SiteError(
                f"layer {self.layer!r} of {self.kind!r} must be an integer from 0; negative is not allowed."
            )

    def __str__(self) -> str:
        return self.kind if self.layer is None else f"{self.kind}[{self.layer}]"

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of this site's tensor."""
        return KINDS[self.kind].axes

    @property
    def has_heads(self) -> bool:
        """Whether a head can be selected at this site."""
        return self.kind in HEAD_KINDS

    @property
    def order(self) -> tuple[float, int]:
        """Sort key in forward order."""
        if self.layer is not None:
            return (float(self.layer), _ORDER[self.kind])
        return (-1.0, 0) if self.kind == "embed" else (float("inf"), 0)

    @classmethod
    def parse(cls, text: "str | Site") -> "Site":
        """Read ``z[3]``, ``z.3`` or ``embed``; a `Site` passes through.

        Raises:
            SiteError: when the text is no site.
        """
        if isinstance(text, Site):
            return text
        match = _PATTERN.match(text) if isinstance(text, str) else None
        if match is None:
            raise SiteError(f"{text!r} is not a site; write kind[layer], such as 'z[3]', or 'embed'.")
        layer = match[2] or match[3]
        return cls(match[1], None if layer is None else int(layer))
