"""One feature for each token of the vocabulary, at `embed`: a dictionary that needs no training.

    f_t(x) = u_t . x where u_t . x is the largest of all tokens', else 0,    u_t = E_t / |E_t|

The embedding of a token has its largest dot product with its own unit direction (Cauchy-Schwarz), so without learned
positions exactly the token's own feature is active and the error term is zero; learned positions are the error term.
"""

import torch

from interp.featurizers.dictionary import Dictionary
from interp.models.base import HookedModel


def token_dictionary(model: HookedModel) -> Dictionary:
    """A dictionary at `embed` whose feature t is token t.

    Example:
        interp.shift(model, data, [interp.token_dictionary(model)], interp.TokenSetJudge(data.words), layer=2)
    """
    weight: torch.Tensor = model.module("embed").weight  # type: ignore[assignment]
    unit = torch.nn.functional.normalize(weight.detach().float(), dim=1)
    zeros = torch.zeros(len(unit), device=unit.device)
    return Dictionary(
        "embed", key="tokens", skip=int(model.has_sink), description={"kind": "tokens", "model": model.identity.name},
        encoder=unit.T, bias=zeros, decoder=unit, decoder_bias=torch.zeros_like(unit[0]), select="topk", k=1,
    )  # fmt: skip
