"""What of an activation is exchanged: everything, some features, or a subspace that is learned.

An exchange turns the base's and the source's activation into a change of the base's:

    h' = h + change(h, s)          full vector: s - h          subspace: R R^T (s - h)       mask: m * (s - h)

Sources: DAS, Geiger et al. 2024 (arXiv 2303.02536); boundless DAS, Wu et al. 2023 (arXiv 2305.08809); masks over
features ("DBM", "+PCA", "+SAE"), Mueller et al. 2025 (arXiv 2504.13151).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import OptionError
from interp.featurizers.base import Featurizer
from interp.featurizers.linear import Basis, Coordinates

TEMPERATURES = 50.0, 0.1
"""Of masks, at the first and at the last update (the boundless DAS authors' schedule)."""
BOUNDARY = 1e-3, 1.0
"""Least and greatest share of the rotated coordinates that a boundless subspace may have (same source)."""


class Exchange(nn.Module, ABC):
    """What every exchange shares; parameters are in float32, whatever the model's precision."""

    @abstractmethod
    def change(self, base: Float[Tensor, "*batch d"], source: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """What is added to the base's activation; in training mode a mask is soft, else it is hard."""

    def anneal(self, done: float) -> None:
        """Set temperatures for a share `done` (0 to 1) of the updates."""

    def penalty(self) -> Float[Tensor, ""]:
        """Size of what is exchanged, as a share; 0 where it is not learned."""
        return torch.zeros(())

    def basis(self) -> Float[Tensor, "d rank"] | None:
        """Orthonormal directions that are exchanged, where the exchange is a projection on some."""
        return None

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser whose usual rate is `rate`."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": rate, "weight_decay": 0.0}]

    def settings(self) -> dict[str, Any]:
        """How to make another of the same kind, as JSON values."""
        return {}


class FullVector(Exchange):
    """The whole activation: plain activation patching."""

    def change(self, base: Tensor, source: Tensor) -> Tensor:
        return source - base


class Features(Exchange):
    """Some features of a featurizer (a dictionary, principal components, coordinates); its error term stays the base's.

    Args:
        featurizer: of the site.
        units: the features; all when None.
    """

    def __init__(self, featurizer: Featurizer, units: Sequence[int] | None = None) -> None:
        super().__init__()
        wrong = [one for one in units or () if not 0 <= one < featurizer.n_features]
        if wrong:
            raise OptionError(f"{featurizer}: features {wrong[:5]}; allowed: 0 to {featurizer.n_features - 1}.")
        self.featurizer = featurizer
        self.units = None if units is None else torch.as_tensor(units, dtype=torch.long)

    def change(self, base: Tensor, source: Tensor) -> Tensor:
        here, there = self.featurizer.encode(base), self.featurizer.encode(source)
        step = there - here
        if self.units is None:
            return self.featurizer.written(here, step)
        units = self.units.to(step.device)
        return self.featurizer.written(here, step[..., units], units)

    def basis(self) -> Tensor | None:
        if not isinstance(self.featurizer, Basis):
            return None
        return self.featurizer.rotation if self.units is None else self.featurizer.rotation[:, self.units]


class Mask(Exchange):
    """Features chosen by a learned mask m = sigmoid(theta / temperature); hard (theta > 0) outside training.

    Args:
        featurizer: of the site; its own coordinates when it is `Coordinates`.
    """

    def __init__(self, featurizer: Featurizer) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.theta = nn.Parameter(torch.zeros(featurizer.n_features))
        self.temperature = TEMPERATURES[0]

    def anneal(self, done: float) -> None:
        self.temperature = _between(*TEMPERATURES, done)

    def mask(self) -> Float[Tensor, " feature"]:
        """Soft in training, else zeros and ones."""
        return torch.sigmoid(self.theta / self.temperature) if self.training else (self.theta > 0).to(self.theta)

    def change(self, base: Tensor, source: Tensor) -> Tensor:
        here, there = self.featurizer.encode(base), self.featurizer.encode(source)
        return self.featurizer.written(here, self.mask() * (there - here))

    def penalty(self) -> Tensor:
        return torch.sigmoid(self.theta / self.temperature).mean()

    def basis(self) -> Tensor | None:
        if not isinstance(self.featurizer, Coordinates):
            return None
        return torch.eye(len(self.theta), device=self.theta.device)[:, self.theta.detach() > 0]


class Subspace(Exchange):
    """A learned subspace (DAS): R has orthonormal columns, those of QR's factor of a free matrix.

    Args:
        d: width of the site.
        rank: of the subspace.
        seed: of the first one.
        rotation: start from this [d, rank] instead.

    Raises:
        OptionError: a rank that the site cannot have.
    """

    def __init__(self, d: int, rank: int, seed: int = 0, rotation: Float[Tensor, "d rank"] | None = None) -> None:
        super().__init__()
        if not 1 <= rank <= d:
            raise OptionError(f"rank={rank} of a site of width {d}; allowed: 1 to {d}.")
        drawn = torch.randn(d, rank, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(orthonormalised(drawn) if rotation is None else rotation.detach().float().clone())

    def rotation(self) -> Float[Tensor, "d rank"]:
        """R, in float32 at least."""
        return orthonormalised(self.weight)

    def change(self, base: Tensor, source: Tensor) -> Tensor:
        rotation = self.rotation()
        step = (source - base).to(rotation.dtype)
        return (step @ rotation) @ rotation.T

    def basis(self) -> Tensor:
        return self.rotation().detach()

    def settings(self) -> dict[str, Any]:
        return {"d": self.weight.shape[0], "rank": self.weight.shape[1]}


class BoundlessSubspace(Exchange):
    """The first directions of a full learned rotation, as many as a learned boundary says (boundless DAS).

    Coordinate i of the rotated change counts m_i = sigmoid(i / temperature) sigmoid((b d - i) / temperature); outside
    training it counts whole where i < b d, else not.

    Args:
        d: width of the site.
        seed: of the first rotation.
    """

    def __init__(self, d: int, seed: int = 0) -> None:
        super().__init__()
        drawn = torch.randn(d, d, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(orthonormalised(drawn))
        self.boundary = nn.Parameter(torch.tensor(0.5))
        self.temperature = TEMPERATURES[0]

    def anneal(self, done: float) -> None:
        self.temperature = _between(*TEMPERATURES, done)

    def mask(self) -> Float[Tensor, " d"]:
        """Weight of each rotated coordinate."""
        d = len(self.weight)
        end = self.boundary.clamp(*BOUNDARY) * d
        i = torch.arange(d, device=self.weight.device)
        if not self.training:
            return (i < end).to(self.weight)
        return torch.sigmoid(i / self.temperature) * torch.sigmoid((end - i) / self.temperature)

    def change(self, base: Tensor, source: Tensor) -> Tensor:
        rotation = orthonormalised(self.weight)
        step = (source - base).to(rotation.dtype)
        return ((step @ rotation) * self.mask()) @ rotation.T

    def penalty(self) -> Tensor:
        return self.boundary.clamp(*BOUNDARY)

    def basis(self) -> Tensor:
        rank = int(
            (torch.arange(len(self.weight)) < self.boundary.detach().cpu().clamp(*BOUNDARY) * len(self.weight)).sum()
        )
        return orthonormalised(self.weight).detach()[:, :rank]

    def groups(self, rate: float) -> list[dict[str, Any]]:
        return [
            {"params": [self.weight], "lr": rate, "weight_decay": 0.0},
            {"params": [self.boundary], "lr": 10 * rate, "weight_decay": 0.0},
        ]

    def settings(self) -> dict[str, Any]:
        return {"d": len(self.weight)}


def orthonormalised(weight: Float[Tensor, "d rank"]) -> Float[Tensor, "d rank"]:
    """Q of W = Q R with a positive diagonal of R: W itself where its columns are orthonormal; differentiable."""
    q, r = torch.linalg.qr(weight)
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)


def random_subspace(d: int, rank: int, seed: int = 0) -> Subspace:
    """A subspace that nothing was learned of: a control."""
    return Subspace(d, rank, seed).requires_grad_(False)


def _between(first: float, last: float, done: float) -> float:
    return first + (last - first) * min(max(done, 0.0), 1.0)
