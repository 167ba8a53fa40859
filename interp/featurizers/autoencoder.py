"""An autoencoder of any shape, given as two functions: gradients by autograd instead of directions.

Everything that takes features takes it: effects (AtP, IG along a straight line in features, exact), edges, runs and
removals. Only what needs one direction a feature is not for it: lens tokens on cards, scores of dictionaries, files.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import OptionError
from interp.featurizers.base import Featurizer, Units


@dataclass(frozen=True, eq=False)
class Autoencoder(Featurizer):
    """Features by an encoder, an activation by a decoder: differentiable functions of vectors, position by position.

    Args:
        encoder: [*batch, d_read] -> [*batch, feature].
        decoder: [*batch, feature] -> [*batch, d].
        sizes: d_read, feature, d.
        move: (device, dtype) -> the two functions there; None: they follow their inputs.

    Raises:
        OptionError: no key, or sizes below 1.
    """

    encoder: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    decoder: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    sizes: tuple[int, int, int] = (0, 0, 0)
    move: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.key or not callable(self.encoder) or not callable(self.decoder) or min(self.sizes) < 1:
            raise OptionError(
                f"{self}: it needs a key, an encoder and a decoder that can be called, and sizes (d_read, feature, d) "
                f"from 1; got key={self.key!r}, sizes={self.sizes}."
            )

    @property
    def n_features(self) -> int:
        return self.sizes[1]

    @property
    def widths(self) -> tuple[int, int]:
        return self.sizes[0], self.sizes[2]

    def encode(self, x: Float[Tensor, "*batch d_read"]) -> Float[Tensor, "*batch feature"]:
        return self.encoder(x)

    def decode(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch d"]:
        return self.decoder(features)

    def written(
        self, features: Float[Tensor, "*batch feature"], change: Float[Tensor, "*batch unit"], units: Units = None
    ) -> Float[Tensor, "*batch d"]:
        there = features + change if units is None else features.index_add(-1, units, change)
        return self.decoder(there) - self.decoder(features)

    def pulled(
        self, features: Float[Tensor, "*batch feature"], gradient: Float[Tensor, "... d"], units: Units = None
    ) -> Float[Tensor, "... unit"]:
        found = _back(self.decoder, features, gradient)
        return found if units is None else found[..., units]

    def read_pulled(
        self, x: Float[Tensor, "*batch d_read"], gradient: Float[Tensor, "*batch feature"]
    ) -> Float[Tensor, "*batch d_read"]:
        return _back(self.encoder, x, gradient)

    def read_pulled_each(
        self, x: Float[Tensor, "*batch d_read"], gradient: Float[Tensor, "*batch unit"], units: Int[Tensor, " unit"]
    ) -> Float[Tensor, "unit *batch d_read"]:
        apart = gradient.new_zeros(len(units), *gradient.shape[:-1], self.n_features)
        apart[torch.arange(len(units)), ..., units] = gradient.movedim(-1, 0)
        return _back(self.encoder, x, apart)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "Autoencoder":
        if self.move is None:
            return self
        encoder, decoder = self.move(device, dtype)
        return replace(self, encoder=encoder, decoder=decoder)


def _back(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient at `x` that goes with one at function(x), or with several, along one more axis in front."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(True)
        out = function(leaf)
        several = gradient.ndim > out.ndim
        (found,) = torch.autograd.grad(out, leaf, gradient.to(out), is_grads_batched=several)
    return found
