"""What each component writes to the residual stream in a run: embedding, every head (or attention), every MLP."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from interp.frozen_norm import freeze, probes
from interp.intervention import Patch
from interp.models.base import HookedModel
from interp.site import Site
from interp.tokens import from_ids


def written_sites(model: HookedModel) -> list[Site]:
    """Sites a run must record for `written`."""
    return [Site("embed"), *model.sites("z", "attn_proj", "attn_out", "mlp_out")]


@torch.no_grad()
def written(
    model: HookedModel, cache: Mapping[Site, Tensor], granularity: str = "head"
) -> Float[Tensor, "writer batch pos d_model"]:
    """Every writer's output, in the order of `interp.graph`: the input, then layer by layer its attention's components
    and its MLP."""
    pieces = [cache[Site("embed")][None]]
    for layer in range(model.shape.n_layers):
        pieces += [attention_written(model, layer, cache, granularity), cache[Site("mlp_out", layer)][None]]
    return torch.cat(pieces)


def attention_written(
    model: HookedModel, layer: int, cache: Mapping[Site, Tensor], granularity: str
) -> Float[Tensor, "writer batch pos d_model"]:
    """What the components of a layer's attention write: its heads, or all of it (with the bias) as one."""
    return heads_written(model, layer, cache) if granularity == "head" else cache[Site("attn_out", layer)][None]


def heads_written(
    model: HookedModel, layer: int, cache: Mapping[Site, Tensor]
) -> Float[Tensor, "head batch pos d_model"]:
    """What each head of a layer adds to the residual stream; the projection's bias is no head's.

    Where a norm stands between attention and residual (Gemma, OLMo-2), a head's part goes through that norm at the
    scale of this run, so that the heads add up to `attn_out` in every run.
    """
    heads = model.project_heads(layer, cache[Site("z", layer)]).movedim(-2, 0)[:-1]
    before, after = cache[Site("attn_proj", layer)], cache[Site("attn_out", layer)]
    return heads if torch.equal(before, after) else _through_norm(model, layer, heads, before, after)


def _through_norm(
    model: HookedModel,
    layer: int,
    heads: Float[Tensor, "head batch pos d_model"],
    before: Float[Tensor, "batch pos d_model"],
    after: Float[Tensor, "batch pos d_model"],
) -> Float[Tensor, "head batch pos d_model"]:
    """The heads' parts after the post-sublayer norm, at the scale it used on their sum."""
    norm = freeze(post_norm_of_probes(model, before)[layer], before.flatten(0, 1), after.flatten(0, 1), f"norm {layer}")
    rows = heads.flatten(1, 2).transpose(0, 1)
    return norm.linear(rows.cpu().double()).to(heads).transpose(0, 1).unflatten(1, before.shape[:2])


def post_norm_of_probes(model: HookedModel, like: Tensor) -> list[Float[Tensor, "3 d_model"]]:
    """Each layer's `attn_out` where `attn_proj` is a probe: the probes themselves where no norm stands between."""
    source = probes(like.reshape(-1, like.shape[-1]))[:, None]
    patches = [Patch(site, source=source) for site in model.sites("attn_proj")]
    run = model.run(from_ids([[0]] * len(source)), patches, model.sites("attn_out"), logits="none")
    return [run[site][:, 0] for site in model.sites("attn_out")]
