"""The contract of a featurizer: an activation as a sum over features, and the rest.

    x = decode(f) + error

The error term is x - decode(f) by definition, so nothing of the activation is ever lost. Features are computed from the
activation at `reads`, which is the site itself but for transcoders (they explain a sublayer's output from its input).
At sites with heads, all heads of a position are one vector.

Most decoders are affine, decode(f) = sum_i f_i v_i + b (`Affine`): then what a feature writes, and the gradient at it,
do not depend on the others. `interp.featurizers.autoencoder` is for those that are not.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import OptionError, SiteError
from interp.models.base import HookedModel
from interp.site import Site

Units = Int[Tensor, " unit"] | None


@dataclass(frozen=True, eq=False)
class Featurizer(ABC):
    """What every featurizer shares.

    Args:
        site: whose activation it explains.
        key: its name in circuits; '' for the site's own coordinates.
        reads: the site its features are computed from; the site itself when None.
        skip: first positions that it does not explain (an attention sink); no features stand there.
        description: JSON values that say where it came from.
    """

    site: Any
    key: str = field(default="", kw_only=True)
    reads: Any = field(default=None, kw_only=True)
    skip: int = field(default=0, kw_only=True)
    description: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", Site.parse(self.site))
        object.__setattr__(self, "reads", self.site if self.reads is None else Site.parse(self.reads))
        if self.site.kind == "pattern" or self.reads.kind == "pattern":
            raise SiteError("a featurizer explains vectors, one a position; 'pattern' holds attention weights.")
        if self.skip < 0:
            raise OptionError(f"{self}: skip={self.skip}; allowed: 0 and more.")

    @property
    @abstractmethod
    def n_features(self) -> int:
        """How many features it has."""

    @property
    @abstractmethod
    def widths(self) -> tuple[int, int]:
        """Sizes of the vectors it reads and writes."""

    @abstractmethod
    def encode(self, x: Float[Tensor, "*batch d_read"]) -> Float[Tensor, "*batch feature"]:
        """Features of activations at `reads`."""

    @abstractmethod
    def decode(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch d"]:
        """The activation that features alone would make."""

    @abstractmethod
    def written(
        self, features: Float[Tensor, "*batch feature"], change: Float[Tensor, "*batch unit"], units: Units = None
    ) -> Float[Tensor, "*batch d"]:
        """decode(features + change) - decode(features), the change one of some features (all when None)."""

    @abstractmethod
    def pulled(
        self, features: Float[Tensor, "*batch feature"], gradient: Float[Tensor, "... d"], units: Units = None
    ) -> Float[Tensor, "... unit"]:
        """The gradient at some features (all when None) that goes with a gradient at what decode makes of `features`.

        The gradient may have one more axis, in front: several gradients at the same features.
        """

    @abstractmethod
    def read_pulled(
        self, x: Float[Tensor, "*batch d_read"], gradient: Float[Tensor, "*batch feature"]
    ) -> Float[Tensor, "*batch d_read"]:
        """The gradient at what is read that goes with one at the features, selections held fixed."""

    @abstractmethod
    def read_pulled_each(
        self, x: Float[Tensor, "*batch d_read"], gradient: Float[Tensor, "*batch unit"], units: Int[Tensor, " unit"]
    ) -> Float[Tensor, "unit *batch d_read"]:
        """The same for each of some features alone."""

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "Featurizer":
        """A copy elsewhere, or in another precision."""

    @property
    def has_error(self) -> bool:
        """Whether activations have a part that the features do not explain."""
        return True

    def error(self, x: Float[Tensor, "*batch d"], features: Float[Tensor, "*batch feature"]) -> Tensor:
        """What the features leave unexplained of the activation `x` at the site."""
        wide = torch.promote_types(x.dtype, features.dtype)
        return x.to(wide) - self.decode(features).to(wide)

    def part(self, units: Int[Tensor, " unit"]) -> "tuple[Featurizer, Int[Tensor, ' unit']]":
        """A featurizer with these features as they are here, without others where it can do without; and their numbers
        in it."""
        return self, units

    @property
    def n_nodes(self) -> int:
        """Features, and the error term where there is one."""
        return self.n_features + self.has_error

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.key!r} at {self.site}"


@dataclass(frozen=True, eq=False)
class Affine(Featurizer):
    """A featurizer whose decoder is affine and whose features are affine where they are active.

    decode(f) = sum_i f_i v_i + b           v_i: the direction that feature i writes, b = decode(0)
    """

    @abstractmethod
    def directions(self, units: Units = None) -> Float[Tensor, "unit d"]:
        """What features (all when None) write, one row each."""

    @abstractmethod
    def readers(self, units: Units = None) -> Float[Tensor, "unit d_read"]:
        """The gradient of each feature with respect to the activation it reads, where it is active."""

    @abstractmethod
    def active(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch feature"]:
        """1 where a feature moves with its reader, else 0 (thresholds and selections held fixed)."""

    def written(
        self, features: Float[Tensor, "*batch feature"], change: Float[Tensor, "*batch unit"], units: Units = None
    ) -> Float[Tensor, "*batch d"]:
        return change @ self.directions(units).to(change)

    def pulled(
        self, features: Float[Tensor, "*batch feature"], gradient: Float[Tensor, "... d"], units: Units = None
    ) -> Float[Tensor, "... unit"]:
        return gradient @ self.directions(units).to(gradient).T

    def read_pulled(
        self, x: Float[Tensor, "*batch d_read"], gradient: Float[Tensor, "*batch feature"]
    ) -> Float[Tensor, "*batch d_read"]:
        return (gradient * self.active(self.encode(x)).to(gradient)) @ self.readers().to(gradient)

    def read_pulled_each(
        self, x: Float[Tensor, "*batch d_read"], gradient: Float[Tensor, "*batch unit"], units: Int[Tensor, " unit"]
    ) -> Float[Tensor, "unit *batch d_read"]:
        along = (gradient * self.active(self.encode(x))[..., units].to(gradient)).movedim(-1, 0)
        readers = self.readers(units).to(gradient)
        return along[..., None] * readers.view(len(readers), *[1] * (x.ndim - 1), readers.shape[1])


def flat(x: Float[Tensor, "..."]) -> Float[Tensor, "batch pos d"]:
    """An activation with all heads of a position as one vector."""
    return x.flatten(2)


def checked_featurizers(model: HookedModel, given: Any) -> list[Featurizer]:
    """The featurizers in forward order, on the model's device, once each is known to fit the model.

    Args:
        given: featurizers, or a mapping with them as values.

    Raises:
        OptionError: none, something else, two of one site or key, a width that is not the site's.
        SiteError: a site that the model lacks.
    """
    listed = list(given.values()) if isinstance(given, Mapping) else [given] if isinstance(given, Featurizer) else given
    wrong = [type(one).__name__ for one in listed if not isinstance(one, Featurizer)]
    if wrong or not len(listed):
        raise OptionError(
            f"featurizers are {', '.join(wrong) or 'an empty list'}; give a list of them, such as "
            "[interp.load_dictionary(path, site)] or [interp.coordinates(model, site)]."
        )
    model.check_sites([one.site for one in listed] + [one.reads for one in listed])
    faults = [fault for one in listed for fault in _misfits(model, one)]
    for what in ("site", "key"):
        names = [str(getattr(one, what)) for one in listed if getattr(one, what)]
        faults += [
            f"{what} {name} has {names.count(name)} featurizers" for name in sorted({*names}) if names.count(name) > 1
        ]
    if faults:
        raise OptionError("; ".join(faults) + ".")
    return [one.to(model.device) for one in sorted(listed, key=lambda one: one.site.order)]


def _misfits(model: HookedModel, one: Featurizer) -> list[str]:
    """Where a featurizer's widths are not those of the model's sites, in words."""
    return [
        f"{one}: it {verb} vectors of {width}, {site} of {model.identity.name} has {site_width(model, site)}"
        for verb, width, site in zip(("reads", "writes"), one.widths, (one.reads, one.site), strict=True)
        if width != site_width(model, site)
    ]


def site_width(model: HookedModel, site: Site) -> int:
    """Size of a position's vector at a site, all heads together."""
    sizes = model.shape.sizes(site)
    heads = sizes["kv_head" if "kv_head" in site.axes else "head"] if site.has_heads else 1
    return heads * sizes["d"]
