"""Runs of base prompts with a site changed: states are computed once a prompt, then only the blocks after the site run.

    base states (once)  ->  change at the site  ->  blocks after it  ->  logits where the answer is read

Rows are padded on the right, which a causal model's earlier positions do not see; so rows of unequal length run as one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from interp.errors import OptionError, SiteError
from interp.featurizers.base import flat
from interp.interchange.examples import Batch
from interp.intervention import Edit
from interp.models.base import HookedModel, frozen
from interp.models.runs import Captured, Taps, Wave
from interp.run_until import run_until
from interp.site import Site
from interp.tokens import Prompts, by_length, from_ids

Change = Callable[[Float[Tensor, "example base d"]], Float[Tensor, "example base d"]]
"""The site's values of a batch of base rows -> what they become."""


def entry(site: Site) -> Site:
    """The residual from which a run with the site changed is resumed.

    Raises:
        SiteError: a site that belongs to no layer.
    """
    if site.layer is None or site.kind == "pattern":
        raise SiteError(f"{site}: an interchange takes place at a site of a layer that holds one vector a position.")
    return site if site.kind == "resid_post" else Site("resid_pre", site.layer)


@dataclass(frozen=True, eq=False)
class States:
    """Activations of every row of some prompts, all heads of a position as one vector.

    Attributes:
        prompts: the rows.
        values: site -> [row, pos, d]; columns past a row's length hold zeros.
    """

    prompts: Prompts
    values: Mapping[Site, Tensor]

    def __getitem__(self, site: Site) -> Tensor:
        return self.values[site]

    def take(self, site: Site, rows: Tensor, width: int, device: torch.device) -> Float[Tensor, "row pos d"]:
        """Some rows' states at a site, cut to `width` columns."""
        return self.values[site][rows.to(self.values[site].device), :width].to(device)


def states_of(
    model: HookedModel,
    prompts: Prompts,
    sites: Sequence[Site],
    *,
    rows: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    batch: int = 64,
    progress: bool = True,
) -> States:
    """Activations at some sites, in one pass over the prompts that ends at the last of them.

    Args:
        rows: those to run; the others stay zeros. All when None.
        dtype: to keep them in; the model's when None.
        batch: rows in one pass.
    """
    sites = sorted(model.check_sites(sites), key=lambda site: site.order)
    wanted = range(len(prompts)) if rows is None else sorted({*rows})
    values: dict[Site, Tensor] = {}
    chosen = prompts[list(wanted)]
    with tqdm(total=len(chosen), disable=None if progress else True, desc="states", unit="row", leave=False) as bar:
        for group in by_length(chosen):
            for start in range(0, len(group), batch):
                some = group[start : start + batch]
                found = run_until(model, chosen[some], sites)
                where = torch.tensor([wanted[n] for n in some])
                for site, x in found.items():
                    x = flat(x).to("cpu", dtype or x.dtype)
                    if site not in values:
                        values[site] = torch.zeros(len(prompts), prompts.ids.shape[1], x.shape[-1], dtype=x.dtype)
                    values[site][where, : x.shape[1]] = x
                bar.update(len(some))
    return States(prompts, values)


class Resumption:
    """Runs base rows from the site's layer on, with the site changed.

    Args:
        model: the model; one that cannot resume runs whole passes.
        site: where the change takes place.
        states: of the rows, at `entry(site)` among others.
    """

    def __init__(self, model: HookedModel, site: Site, states: States) -> None:
        self.model, self.site, self.states = model, model.check_site(site), states
        self.start = entry(self.site)
        if self.start not in states.values:
            raise OptionError(f"the states lack {self.start}, from which a run changed at {site} goes on.")
        self._blank = cache(self._captured)

    def logits(self, batch: Batch, change: Change) -> Float[Tensor, "example target d_vocab"]:
        """Logits where the answers are read, once `change` has been made; differentiable in what `change` depends on.

        Raises:
            SiteError: the change gave another shape.
        """
        with frozen(self.model.parameters()):
            return self._resumed(batch, change) if self.model.resumes else self._whole(batch, change)

    def _resumed(self, batch: Batch, change: Change) -> Tensor:
        x = self.states.take(self.start, batch.base, batch.width, self.model.device)
        layer, taps = (self.site.layer or 0) + (self.site.kind == "resid_post"), Taps()
        if self.start == self.site:
            x = self._checked(change, x)
        else:
            taps = {self.site: [lambda x, _: self._changed(change, x)]}
        wave = Wave(self._blank(batch.width), 0, [(layer, x)], torch.zeros(len(x), dtype=torch.long, device=x.device))
        final = self.model.resume(wave, taps)
        rows = torch.arange(len(x), device=x.device)[:, None]
        return self.model.unembed(final[rows, batch.at.clamp(min=0)])

    def _whole(self, batch: Batch, change: Change) -> Tensor:
        prompts = batch.data.prompts[batch.base.tolist()]
        edit = Edit(self.site, function=lambda x: self._changed(change, x))
        logits = self.model.run(prompts, [edit], logits=batch.at, differentiable=torch.is_grad_enabled()).logits
        assert logits is not None, "positions were asked for"
        return logits

    def _changed(self, change: Change, x: Tensor) -> Tensor:
        """The change at a site whose heads stand apart."""
        return self._checked(change, flat(x)).reshape(x.shape)

    def _checked(self, change: Change, x: Tensor) -> Tensor:
        new = change(x)
        if new.shape != x.shape:
            raise SiteError(f"the change at {self.site} made {tuple(new.shape)} of {tuple(x.shape)}.")
        return new.to(x.dtype)

    def _captured(self, width: int) -> Captured:
        """A run of so many tokens: what a resumed run takes from it (masks, positions) is the same for all rows."""
        return self.model.capture(from_ids([[int(self.states.prompts.ids[0, 0])] * width]))
