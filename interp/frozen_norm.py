"""Norms with their scale frozen, measured from outside, so that no weight is ever read.

At the statistics of one activation x, a LayerNorm or RMSNorm is affine:

    norm(x) = scale * gain * centred(x) + bias        (centred: minus the mean over coordinates, in a LayerNorm)

Gain and bias are measured on three probe vectors, the scale on x itself, and the result is checked against norm(x).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import ModelError


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm at fixed statistics, with one scale a row; in float64 on the CPU."""

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    centres: bool
    scale: Float[Tensor, "row 1"]

    def linear(self, pieces: Float[Tensor, "row piece d_model"]) -> Float[Tensor, "row piece d_model"]:
        """The norm without its bias, of every piece."""
        return self.scale[:, None] * self.gain * (_centred(pieces) if self.centres else pieces)

    def read_before(self, reader: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """The direction before the norm that is read when `reader` reads after it (the transpose of `linear`)."""
        scaled = self.scale * self.gain * reader
        return _centred(scaled) if self.centres else scaled

    def __call__(self, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """The norm of `x`, at the frozen scale."""
        return self.linear(wide(x)[:, None])[:, 0] + self.bias


def probes(like: Float[Tensor, "row d_model"]) -> Float[Tensor, "3 d_model"]:
    """The vectors a norm is measured on, in the dtype of `like`: v without mean, -v, and ones."""
    v = torch.ones_like(like[0])
    v[1::2] = -1
    v[1] -= v.sum()  # an odd width leaves one too many
    return torch.stack([v, -v, torch.ones_like(v)])


def freeze(
    of_probes: Float[Tensor, "3 d_model"],
    before: Float[Tensor, "row d_model"],
    after: Float[Tensor, "row d_model"],
    name: str,
) -> FrozenNorm:
    """The norm that gave `of_probes` for `probes`, at the scale with which it turned `before` into `after`.

    Raises:
        ModelError: it is no LayerNorm or RMSNorm; `name` says which.
    """  # fmt: skip
    plus, minus, ones = wide(of_probes)
    bias = (plus + minus) / 2
    gain = (plus - minus) / 2 / wide(probes(before))[0]  # times a factor near 1, which the scale takes up
    centres = bool((ones - bias).norm() < gain.norm() / 2)
    seen, made = wide(before), wide(after)
    direction = gain * (_centred(seen) if centres else seen)
    squares = direction.square().sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    norm = FrozenNorm(gain, bias, centres, (direction * (made - bias)).sum(-1, keepdim=True) / squares)
    error = float(((norm(before) - made).norm(dim=-1) / made.norm(dim=-1).clamp(min=1e-30)).max())
    if error > tolerance(before):
        raise ModelError(
            f"{name}: scaled gain and bias miss the norm's own output by {error:.1e} of its size, allowed "
            f"{tolerance(before):.1e}; only LayerNorm and RMSNorm (or no norm) can be frozen."
        )
    return norm


def freeze_module(
    norm: Callable[[Tensor], Tensor],
    before: Float[Tensor, "row d_model"],
    after: Float[Tensor, "row d_model"],
    name: str,
) -> FrozenNorm:
    """As `freeze`, for a norm that can be called."""  # fmt: skip
    with torch.no_grad():
        return freeze(norm(probes(after)), before, after, name)


def tolerance(x: Tensor) -> float:
    """How far an activation of this dtype may be from its reconstruction, relative to its size."""
    return max(1e-4, 8 * torch.finfo(x.dtype).eps)


def wide(x: Tensor) -> Tensor:
    """The values in float64, on the CPU (not every accelerator has float64)."""
    return x.detach().cpu().double()


def _centred(x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
    return x - x.mean(-1, keepdim=True)
