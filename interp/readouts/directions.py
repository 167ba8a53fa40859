"""The logit lens of a direction: which tokens a feature's direction speaks for, whatever its length.

    logits = unembed(gain * n) - unembed(0),    n = v / rms(v)  (v less its mean first, under a LayerNorm)

That is the final norm and the unembedding as they read a residual stream that holds nothing but v, without the biases
of either and before a soft-cap. The order of tokens does not depend on the length of v, nor on any prompt; later layers
are passed over, as in every logit lens.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import SiteError
from interp.frozen_norm import freeze, freeze_module, probes
from interp.models.base import HookedModel
from interp.site import Site
from interp.written import post_norm_of_probes

IN_STREAM = ("embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
READABLE = (*IN_STREAM, "z", "resid_final")


@torch.no_grad()
def direction_logits(
    model: HookedModel, site: Site, directions: Float[Tensor, "row d"]
) -> Float[Tensor, "row d_vocab"]:
    """Logits of directions at a site, see the module; in float32 on the CPU, all 0 for a direction that is 0.

    At `z`, where a direction spans all heads, it goes through the output projection first (without its bias) and
    through the gain of a norm behind that, where the family has one. `resid_final` stands behind the final norm.

    Raises:
        SiteError: a site whose vectors are not added to the residual stream as they are.
        ModelError: a norm that is no LayerNorm or RMSNorm.
    """
    if site.kind not in READABLE:
        raise SiteError(
            f"directions at {site} do not stand in the residual stream, so no token can be read off them; "
            f"allowed kinds: {', '.join(READABLE)}."
        )
    final = Site("resid_final")
    like = model.run([[0]], record=[final], logits="none")[final][0]  # in the dtype that the unembedding reads
    written = _through_heads(model, site, directions.to(like)) if site.kind == "z" else directions.to(like)
    rms = written.float().square().mean(-1, keepdim=True).sqrt()
    unit = (written.float() / torch.where(rms > 0, rms, 1)).to(like)
    if site != final:
        norm = model.module("final_norm")
        unit = freeze_module(norm, unit, norm(unit), "final norm").linear(unit.cpu().double()[:, None])[:, 0].to(like)
    unembed = model.module("unembed")
    return (unembed(unit) - unembed(torch.zeros_like(unit[:1]))).float().cpu()


def _through_heads(model: HookedModel, site: Site, directions: Float[Tensor, "row d"]) -> Float[Tensor, "row d_model"]:
    """What directions of all heads' outputs write to the residual stream, but for the scale of a norm in between."""
    assert site.layer is not None, "z is of a layer"
    projected = model.project_heads(site.layer, directions.unflatten(1, (-1, model.shape.d_head)))[:, :-1].sum(1)
    of_probes = post_norm_of_probes(model, projected)[site.layer]
    norm = freeze(of_probes, probes(projected), of_probes, f"the norm after attention in layer {site.layer}")
    unscaled = replace(norm, scale=torch.ones(len(projected), 1, dtype=torch.float64))
    return unscaled.linear(projected.cpu().double()[:, None])[:, 0].to(projected)
