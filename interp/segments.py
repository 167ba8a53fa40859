"""A run cut into segments: at each of some sites what comes later depends on a leaf, not on what came before.

So a gradient from what arrives at one site to the leaf of an earlier one takes only the paths on which no other of the
sites lies: all sites between are held constant, whatever the architecture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jaxtyping import Float
from torch import Tensor

from interp.behaviour import Behaviour
from interp.intervention import Edit
from interp.site import Site


@dataclass(frozen=True, eq=False)
class Segments:
    """A cut run.

    Attributes:
        values: the metric, a function of the leaves behind which no further cut lies.
        arrived: at each cut, the activation as a function of earlier leaves.
        leaves: at each cut, what goes on.
        read: further sites, as functions of earlier leaves (those of the same site included).
    """

    values: Float[Tensor, " prompt"]
    arrived: Mapping[Site, Tensor]
    leaves: Mapping[Site, Tensor]
    read: Mapping[Site, Tensor]


def segments(behaviour: Behaviour, rows: Sequence[int], cuts: Sequence[Site], read: Sequence[Site] = ()) -> Segments:
    """Run some prompts, cut at the given sites."""
    arrived: dict[Site, Tensor] = {}
    leaves: dict[Site, Tensor] = {}

    def cut(site: Site, x: Tensor) -> Tensor:
        arrived[site], leaves[site] = x, x.detach().clone().requires_grad_(True)
        return leaves[site].clone()

    edits = [Edit(site, function=partial(cut, site)) for site in cuts]
    run = behaviour.watch(rows, list(dict.fromkeys([cuts[-1], *read])), edits)
    return Segments(run.values, arrived, leaves, {site: run.sites[site] for site in read})


STREAM = ("embed", "resid_pre", "resid_mid", "resid_post")
_BEFORE_ATTENTION = ("embed", "resid_pre", "attn_in", "q", "k", "v")


def is_local(site: Site, cuts: Sequence[Site], n_layers: int) -> bool:
    """Whether each position that arrives at `site` depends on the same position of earlier leaves only.

    That holds when, going back to the nearest cut of the whole residual stream, every attention passed is cut too.
    """
    before = [cut for cut in cuts if cut.order < site.order]
    stream = max((cut for cut in before if cut.kind in STREAM), key=lambda cut: cut.order, default=None)
    if stream is None:
        return False
    first = (stream.layer or 0) + (stream.kind in ("resid_mid", "resid_post"))
    last = n_layers - 1 if site.layer is None else site.layer - (site.kind in _BEFORE_ATTENTION)
    attention_cut = {cut.layer for cut in before if cut.kind in ("z", "attn_proj", "attn_out")}
    return all(layer in attention_cut for layer in range(first, last + 1))
