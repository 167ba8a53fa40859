"""Attention patterns of chosen heads, with the tokens they run over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import SiteError
from interp.models.base import HookedModel
from interp.readouts.lens import token_labels
from interp.site import Site


@dataclass(frozen=True, eq=False)
class AttentionPatterns:
    """Attention probabilities.

    Attributes:
        values: a row (dest) sums to 1 over src; NaN outside a prompt.
        layers, heads: what the first and third axis stand for.
        tokens: each prompt's tokens as strings (their ids without a tokenizer).
    """

    values: Float[Tensor, "layer batch head dest src"]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    tokens: tuple[tuple[str, ...], ...]

    def of(self, layer: int, head: int, prompt: int = 0) -> Float[Tensor, "dest src"]:
        """One head on one prompt, without padding.

        Raises:
            SiteError: a layer, head or prompt that was not asked for.
        """
        allowed = {"layer": self.layers, "head": self.heads, "prompt": range(len(self.tokens))}
        asked = {"layer": layer, "head": head, "prompt": prompt}
        faults = [f"{n} {asked[n]} (has {list(have)})" for n, have in allowed.items() if asked[n] not in have]
        if faults:
            raise SiteError(f"these attention patterns do not have {', '.join(faults)}; ask for it when reading them.")
        length = len(self.tokens[prompt])
        return self.values[self.layers.index(layer), prompt, self.heads.index(head), :length, :length]


def attention_patterns(
    model: HookedModel,
    prompts: Any,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
) -> AttentionPatterns:
    """The attention patterns of every head, or of chosen layers and heads.

    The model's attention implementation and its outputs stay as they are.

    Args:
        layers, heads: one or several, None for all; every chosen layer gives every chosen head.

    Raises:
        SiteError: a layer or head that the model does not have, or a model whose patterns cannot be read (why).
    """
    prompts = model.check_prompts(prompts)
    chosen = [model.check_site(Site("pattern", layer)) for layer in _listed(layers, model.shape.n_layers)]
    picked = _listed(heads, model.shape.n_heads)
    wrong = [head for head in picked if not 0 <= head < model.shape.n_heads]
    if wrong or not chosen or not picked:
        raise SiteError(f"heads {picked} of layers {layers}: give some, heads from 0 to {model.shape.n_heads - 1}.")
    run = model.run(prompts, record=chosen, logits="none")
    values = torch.stack([run[site][:, picked].to(run[chosen[0]].device) for site in chosen])
    real = prompts.mask.to(values.device)
    inside = real[:, None, :, None] & real[:, None, None, :]
    labels = token_labels(prompts)
    return AttentionPatterns(
        values.masked_fill(~inside, torch.nan), tuple(s.layer or 0 for s in chosen), tuple(picked), labels
    )


def _listed(chosen: int | Sequence[int] | None, count: int) -> list[int]:
    return list(range(count)) if chosen is None else [chosen] if isinstance(chosen, int) else list(chosen)
