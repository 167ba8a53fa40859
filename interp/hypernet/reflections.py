"""Products of reflections in O(d): the subspace of each example is a shared one, reflected by vectors of its own.

    H_j = I - 2 v_j v_j^T        Q = H_1 H_2 ... H_r = I - V T V^T        R = Q R_0

with V the unit vectors as columns and T upper triangular, T^-1 = triu(V^T V, 1) + I / 2 (compact WY). One reflection
moves one direction of R_0 at most: two subspaces of rank k with r reflections each share at least k - 2 r directions.

Source: HyperDAS, Sun et al. 2025 (arXiv 2503.10894), with r = 1; the form is Schreiber & Van Loan's (1989).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def unit(v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Vectors of length 1; zeros stay zeros."""
    return v / v.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(v.dtype).tiny ** 0.5)


def triangle(v: Float[Tensor, "*batch r d"]) -> Float[Tensor, "*batch r r"]:
    """T of unit vectors v."""
    half = 0.5 * torch.eye(v.shape[-2], dtype=v.dtype, device=v.device)
    inverse = (v @ v.mT).triu(1) + half
    return torch.linalg.solve_triangular(inverse, (2 * half).expand_as(inverse), upper=True)


def reflected(
    x: Float[Tensor, "batch row d"], v: Float[Tensor, "batch r d"], t: Float[Tensor, "batch r r"], *, back: bool = False
) -> Float[Tensor, "batch row d"]:
    """Q applied to rows x; Q^T when `back`."""
    along = x @ v.mT
    return x - (along @ (t if back else t.mT)) @ v


def projected(
    x: Float[Tensor, "batch row d"], v: Float[Tensor, "batch r d"], shared: Float[Tensor, "d rank"],
    weights: Float[Tensor, "batch rank"] | None = None,
) -> Float[Tensor, "batch row d"]:  # fmt: skip
    """R R^T x for R = Q R_0, each direction of R_0 weighted where `weights` are given."""
    t = triangle(v)
    inner = reflected(x, v, t, back=True) @ shared
    inner = inner if weights is None else inner * weights[:, None]
    return reflected(inner @ shared.T, v, t)
