"""What goes into and comes out of a hooked model's passes, as values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import SiteError
from interp.regions import Layout
from interp.site import Site
from interp.tokens import Prompts

Tap = Callable[[Tensor, Layout], Tensor | None]
Taps = dict[Site, list[Tap]]
Targets = Literal["last", "all", "none"] | Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: from its configuration, verified on load.

    Args:
        d_vocab: columns of the logits.
        known_ids: token ids that it reads, where they are not as many (under a classifier's head).
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_ff: int
    d_vocab: int
    known_ids: int | None = None

    @property
    def n_ids(self) -> int:
        """How many token ids it reads, from 0."""
        return self.d_vocab if self.known_ids is None else self.known_ids

    def sizes(self, site: Site) -> dict[str, int]:
        """Size of the site's head axis and, as ``d``, of its last axis (0 where it depends on the prompt)."""
        last = {"d_model": self.d_model, "d_head": self.d_head, "d_ff": self.d_ff, "src": 0}[site.axes[-1]]
        return {"head": self.n_heads, "kv_head": self.n_kv_heads, "d": last}


@dataclass(frozen=True)
class Identity:
    """Where a model came from.

    Args:
        name: what the user called it.
        revision: the hub revision, or ''.
        fingerprint: sixteen hex digits of its weights, or ''.
    """

    name: str = "in-memory"
    revision: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, eq=False)
class Run:
    """What a forward pass left behind.

    Attributes:
        prompts: the prompts, as run.
        logits: [batch, target, d_vocab] at the positions asked for (one target for ``"last"``), or None.
        cache: site -> activation, in the axes of `KINDS`; columns past a prompt's length mean nothing.
        fired: site -> how often it was reached.
    """

    prompts: Prompts
    logits: Float[Tensor, "batch target d_vocab"] | None
    cache: Mapping[Site, Tensor]
    fired: Mapping[Site, int] = field(default_factory=dict)

    def __getitem__(self, site: Site | str) -> Tensor:
        site = Site.parse(site)
        if site not in self.cache:
            have = ", ".join(map(str, self.cache)) or "none"
            raise SiteError(f"{site} was not recorded in this run (recorded: {have}); add it to record=.")
        return self.cache[site]


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of a metric's sum at sites.

    Attributes:
        values: the metric, one a prompt.
        activations: site -> activation (detached).
        gradients: site -> d(sum of the metric) / d(activation), of the same shape.
    """

    values: Float[Tensor, " batch"]
    activations: Mapping[Site, Tensor]
    gradients: Mapping[Site, Tensor]


@dataclass(frozen=True, eq=False)
class Watched:
    """A forward pass that can be differentiated.

    Attributes:
        prompts: the prompts, as run.
        values: the metric, one a prompt, with its graph.
        sites: site -> activation, in the graph: the metric and later sites depend on it.
    """

    prompts: Prompts
    values: Float[Tensor, " batch"]
    sites: Mapping[Site, Tensor]


@dataclass(frozen=True, eq=False)
class AttentionRule:
    """How one layer makes attention probabilities: softmax(softcap(q k^T scaling) + mask).

    Attributes:
        visible: which sources each destination sees, padding and sliding window included.
        scaling: factor of the scores.
        softcap: bound of the soft-capped scores, or None.
    """

    visible: Bool[Tensor, "batch 1 dest src"]
    scaling: float
    softcap: float | None = None

    def scores(
        self, q: Float[Tensor, "batch dest head d_head"], k: Float[Tensor, "batch src head d_head"]
    ) -> Float[Tensor, "batch head dest src"]:
        """Masked scores in at least float32; -inf where a destination does not see a source."""
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = torch.einsum("bdhe,bshe->bhds", q.to(wide), k.to(wide)) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        return scores.masked_fill(~self.visible, -torch.inf)


@dataclass(frozen=True, eq=False)
class Captured:
    """A run from which others can resume: prompts of one length, with every layer's residual, keys and values.

    Attributes:
        run: the run, with whatever else it recorded.
        resid: per layer, the residual at the block's input [batch, pos, d_model]; one more for the last block's output.
        keys, values: per layer [batch, kv_head, pos, d_head].
        masks: per layer, the attention mask the model made (None for plain causal).
    """

    run: Run
    resid: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    masks: Sequence[Tensor | None]


@dataclass(frozen=True, eq=False)
class Wave:
    """Rows that run a suffix of positions, each row from a layer of its own.

    Attributes:
        first: first position computed.
        joins: (layer, residual [rows, pos - first, d_model]) in ascending order of layers; rows are numbered in
            the order they join. A row at layer n_layers only passes the final norm.
        donors: row -> which prompt of `base` gives it keys and values before `first`.
    """

    base: Captured
    first: int
    joins: Sequence[tuple[int, Tensor]]
    donors: Int[Tensor, " rows"]


@dataclass(frozen=True, eq=False)
class Generation:
    """Generated continuations.

    Attributes:
        prompts: what was continued.
        new_ids: per row, the ids produced (up to and without the end-of-sequence token's padding).
        texts: per row, the continuation as text; '' without a tokenizer.
        cache: site -> activations of every position run, prompt first; padding columns dropped is not possible in a
            ragged batch, so columns are slots: row r's first real token is at ``pads[r]``.
        pads: padding columns before each row's first real token.
    """

    prompts: Prompts
    new_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    cache: Mapping[Site, Tensor]
    pads: Int[Tensor, " batch"]
