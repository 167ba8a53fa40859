"""Dictionaries with random weights for tests."""

from typing import Any

import torch

from interp.featurizers.base import site_width
from interp.featurizers.dictionary import Dictionary
from interp.models.base import HookedModel
from interp.site import Site


def random_dictionary(
    model: HookedModel, site: str, *, reads: str | None = None, n: int = 40, seed: int = 0,
    dtype: torch.dtype = torch.float64, select: str = "gate", **options: Any,
) -> Dictionary:  # fmt: skip
    """A dictionary in which every parameter is random and about half of the features are active."""
    generator = torch.Generator().manual_seed(seed)
    d, d_read = (site_width(model, Site.parse(one)) for one in (site, reads or site))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    kind: dict[str, Any] = {"gate_bias": draw(n) * 0.1 - 0.1} if select == "gate" else {"k": 5}
    return Dictionary(
        site, reads=reads, encoder=draw(d_read, n) / d_read**0.5, bias=draw(n) * 0.1, decoder=draw(n, d) / d**0.5,
        decoder_bias=draw(d) * 0.3, shift=draw(d_read) * 0.1, select=select, **kind, **options,
    )  # fmt: skip


def dictionaries(model: HookedModel, *kinds: str, **options: Any) -> list[Dictionary]:
    """One dictionary at every site of the kinds."""
    return [random_dictionary(model, str(site), seed=n, **options) for n, site in enumerate(model.sites(*kinds))]


def signed_basis(model: HookedModel, site: str, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Dictionary:
    """An orthonormal basis and its negatives with a ReLU: it explains every activation, with an error term of zero."""
    width = site_width(model, Site.parse(site))
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=dtype))[0]
    both = torch.cat([basis, -basis], 1)
    zeros = torch.zeros(2 * width, dtype=dtype)
    return Dictionary(site, encoder=both, bias=zeros, decoder=both.T.clone(), decoder_bias=zeros[:width])
