"""A forward pass that ends as soon as the sites wanted of it have been seen."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from torch import Tensor

from interp.intervention import Edit, Intervention
from interp.models.base import HookedModel
from interp.site import Site
from interp.tokens import Prompts


class _Enough(Exception):  # noqa: N818 - no error: ends a forward pass once all that is wanted of it is known
    pass


def run_until(
    model: HookedModel, prompts: Prompts, sites: Sequence[Site], interventions: Sequence[Intervention] = ()
) -> dict[Site, Tensor]:
    """The activations of prompts at some sites, after the interventions; what comes after the last site is not run."""
    found: dict[Site, Tensor] = {}

    def take(site: Site, x: Tensor) -> Tensor:
        found[site] = x.clone()
        if len(found) == len(sites):
            raise _Enough
        return x

    taking = [Edit(site, function=partial(take, site)) for site in sites]
    with suppress(_Enough):
        model.run(prompts, [*interventions, *taking], logits="none")
    return found
