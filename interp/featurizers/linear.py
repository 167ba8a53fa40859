"""Linear featurizers: a site's own coordinates, an orthonormal basis, principal components.

f = (x - centre) R,    decode(f) = f R^T + centre,    R [d, feature] with orthonormal columns
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import OptionError, SiteError
from interp.featurizers.base import Affine, Featurizer, flat, site_width
from interp.models.base import HookedModel
from interp.site import Site

ORTHONORMAL = 1e-4
"""How far R^T R may be from the identity, in any entry."""


@dataclass(frozen=True, eq=False)
class Coordinates(Affine):
    """The site's own coordinates ("neurons" of attention, MLP and residual outputs): no basis, no error term."""

    width: int = 0
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32

    @property
    def n_features(self) -> int:
        return self.width

    @property
    def widths(self) -> tuple[int, int]:
        return self.width, self.width

    @property
    def has_error(self) -> bool:
        return False

    def encode(self, x: Float[Tensor, "*batch d_read"]) -> Float[Tensor, "*batch feature"]:
        return x

    def decode(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch d"]:
        return features

    def directions(self, units: Int[Tensor, " unit"] | None = None) -> Float[Tensor, "unit d"]:
        every = torch.arange(self.width) if units is None else units
        return torch.nn.functional.one_hot(every.to(self.device), self.width).to(self.dtype)

    readers = directions

    def active(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch feature"]:
        return torch.ones_like(features)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "Coordinates":
        return replace(self, device=device, dtype=dtype or self.dtype)


@dataclass(frozen=True, eq=False)
class Basis(Affine):
    """Coordinates along orthonormal directions; what lies outside their span is the error term.

    Args:
        rotation: one direction a column [d, feature].
        centre: taken off before, put back after; zero when None.
    """

    rotation: Tensor = None  # type: ignore[assignment]
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        overlap = self.rotation.T @ self.rotation
        worst = float((overlap - torch.eye(len(overlap)).to(overlap)).abs().max())
        if worst > ORTHONORMAL:
            raise OptionError(
                f"{self}: its directions are not orthonormal (R^T R is off the identity by {worst:.1e}, allowed "
                f"{ORTHONORMAL:.0e}); orthonormalise them with torch.linalg.qr."
            )

    @property
    def n_features(self) -> int:
        return self.rotation.shape[1]

    @property
    def widths(self) -> tuple[int, int]:
        return self.rotation.shape[0], self.rotation.shape[0]

    def encode(self, x: Float[Tensor, "*batch d_read"]) -> Float[Tensor, "*batch feature"]:
        x = x.to(self.rotation.dtype)
        return (x if self.centre is None else x - self.centre) @ self.rotation

    def decode(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch d"]:
        x = features.to(self.rotation.dtype) @ self.rotation.T
        return x if self.centre is None else x + self.centre

    def directions(self, units: Int[Tensor, " unit"] | None = None) -> Float[Tensor, "unit d"]:
        return self.rotation.T if units is None else self.rotation.T[units]

    readers = directions

    def active(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch feature"]:
        return torch.ones_like(features)

    def part(self, units: Int[Tensor, " unit"]) -> "tuple[Featurizer, Int[Tensor, ' unit']]":
        return replace(self, rotation=self.rotation[:, units]), torch.arange(len(units))

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "Basis":
        centre = None if self.centre is None else self.centre.to(device, dtype)
        return replace(self, rotation=self.rotation.to(device, dtype), centre=centre)


def coordinates(model: HookedModel, site: Site | str) -> Coordinates:
    """The site's own coordinates as features."""
    site = model.check_site(site)
    return Coordinates(site, width=site_width(model, site), skip=int(model.has_sink))


def principal_components(model: HookedModel, prompts: object, site: Site | str, n: int, *, key: str = "") -> Basis:
    """The `n` directions along which the site varies most over the prompts' tokens, without padding and sink.

    Raises:
        OptionError: more components than the site or the tokens can have.
    """
    site = model.check_site(site)
    if site.kind == "pattern":
        raise SiteError("principal components are of vectors, one a position; 'pattern' holds attention weights.")
    run = model.run(prompts, record=[site], logits="none")
    skip = int(model.has_sink)
    real = run.prompts.mask.clone()
    real[:, :skip] = False
    x = flat(run[site])[real].float()
    most = min(x.shape[1], len(x) - 1)
    if not 1 <= n <= most:
        raise OptionError(f"n={n} principal components of {len(x)} vectors of {x.shape[1]}; allowed: 1 to {most}.")
    centre = x.mean(0)
    _, values, rows = torch.linalg.svd(x - centre, full_matrices=False)
    share = float(values[:n].square().sum() / values.square().sum())
    described = {"kind": "principal components", "tokens": len(x), "variance_explained": share}
    return Basis(site, key=key or f"pca.{site}", skip=skip, description=described, rotation=rows[:n].T, centre=centre)


def orthonormal(site: Site | str, directions: Float[Tensor, "d feature"], *, key: str, skip: int = 0) -> Basis:
    """Coordinates along given orthonormal directions, one a column."""
    return Basis(site, key=key, skip=skip, description={"kind": "orthonormal"}, rotation=directions)
