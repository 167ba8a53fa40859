"""Effects of features and error terms: estimated by gradients, or exact.

    estimate(f_i) = g . v_i (f~_i - f_i),    estimate(error) = g . (error~ - error),    g a gradient at x

with f~, error~ the ablated values (`interp.feature_values`) and x~ = decode(f~) + error~. AtP takes g at x; integrated
gradients (IG) take its mean over points x + t (x~ - x) of the straight line, on which all features, the error term and
all positions of one site move together while later sites are computed anew. Decoders are affine, so a straight line in
features is one in x: no dictionary is differentiated, and memory is that of activations, not of features.

    rule        points t of N steps             ends
    midpoint    (k + 1/2) / N, k = 0 .. N-1     neither: the error falls with N squared
    code        k / N                           x, not x~ (the authors' code)
    paper       (k + 1) / N                     x~, not x (the paper as printed)

Where a decoder is not affine, its own derivative at the point stands for v_i, and the line is one in features and error
term.

Conservation: the estimates of a site sum to g . (x~ - x), and under IG to metric(x~ at the site) - metric.

Source: Marks et al. 2024 (arXiv 2403.19647), equations 2 and 3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.behaviour import Behaviour
from interp.errors import OptionError
from interp.feature_nodes import FeatureSite
from interp.feature_values import Ablated, Split, recorded_sites, split
from interp.featurizers.base import Affine, Featurizer, flat
from interp.intervention import Edit
from interp.site import Site
from interp.tokens import batches

FeatureMethod = Literal["ig", "atp", "exact"]
Rule = Literal["midpoint", "code", "paper"]
POINTS: dict[str, Callable[[int, int], float]] = {
    "midpoint": lambda k, n: (k + 0.5) / n,
    "code": lambda k, n: k / n,
    "paper": lambda k, n: (k + 1) / n,
}


@dataclass(frozen=True, eq=False)
class FeatureSearch:
    """What one search for features holds fixed.

    Args:
        steps: points of an integrated gradient.
        batch: rows (prompts, or prompts x points) in one pass.
    """

    behaviour: Behaviour
    ablated: Ablated
    sites: Sequence[FeatureSite]
    method: FeatureMethod = "ig"
    rule: Rule = "midpoint"
    steps: int = 10
    batch: int = 16

    @property
    def featurizers(self) -> list[Featurizer]:
        """The featurizers, in forward order."""
        return [one.featurizer for one in self.sites]


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """Some prompts' base run, the ablated run, and the gradients in the base run.

    Attributes:
        rows: which prompts.
        base, other: activations.
        gradients: of the metric at the featurizers' sites, in the base run; flat heads.
        values: the metric.
    """

    search: FeatureSearch
    rows: list[int]
    base: Mapping[Site, Tensor]
    other: Mapping[Site, Tensor]
    gradients: Mapping[Site, Float[Tensor, "prompt pos d"]]
    values: Float[Tensor, " prompt"]

    def change(self, one: FeatureSite) -> Split:
        """By how much features and error term change under the ablation; by nothing where no node stands."""
        here = split(one.featurizer, self.base)
        there = self.search.ablated.of(one.featurizer, self.other, here.error.shape[1])
        real = self.places(one).any(0)[..., None]
        return Split(*((b.to(a) - a) * real for a, b in zip(here, there, strict=True)))

    def places(self, one: FeatureSite) -> Bool[Tensor, "place prompt pos"]:
        """The positions of each of a site's places in these prompts."""
        x = self.base[one.featurizer.site]
        return one.sets[:, self.rows, : x.shape[1]].to(x.device)

    def features(self, one: FeatureSite) -> Float[Tensor, "prompt pos feature"]:
        """The features in the base run."""
        return one.featurizer.encode(flat(self.base[one.featurizer.reads]))

    def sums(
        self, one: FeatureSite, gradient: Float[Tensor, "prompt pos d"],
        at_features: Float[Tensor, "prompt pos feature"] | None = None,
    ) -> Float[Tensor, "place node prompt"]:  # fmt: skip
        """The estimates of a site's nodes, metric(ablated) - metric(base), for one gradient at the site.

        Args:
            at_features: the gradient at the features, where it is not the one that goes with it in the base run.
        """
        change = self.change(one)
        own = one.featurizer.pulled(self.features(one), gradient) if at_features is None else at_features
        each = own * change.features.to(gradient)
        if one.featurizer.has_error:
            each = torch.cat([each, (gradient * change.error.to(gradient)).sum(-1, keepdim=True)], -1)
        return torch.einsum("bpu,sbp->sub", each, self.places(one).to(each))


def wide(x: Tensor) -> Tensor:
    """The values in at least float32, in which scores add up."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def moved(
    one: Featurizer, features: Float[Tensor, "prompt pos feature"], change: Split
) -> Float[Tensor, "prompt pos d"]:
    """The change of the activation that goes with a change of features and error term."""
    return one.written(features, change.features) + change.error.to(change.features)


def feature_batches(search: FeatureSearch) -> Iterator[FeatureBatch]:
    """The prompts in batches, each with its base run and gradients."""
    behaviour, wanted = search.behaviour, recorded_sites(search.featurizers)
    at = [one.site for one in search.featurizers]
    for rows in batches(len(behaviour.prompts), search.batch):
        run = behaviour.watch(rows, wanted)
        found = torch.autograd.grad(run.values.sum(), [run.sites[site] for site in at], allow_unused=True)
        gradients = {
            site: flat(wide(torch.zeros_like(run.sites[site]) if g is None else g))
            for site, g in zip(at, found, strict=True)
        }
        base = {site: x.detach() for site, x in run.sites.items()}
        other = search.ablated.run(behaviour.model, rows)
        yield FeatureBatch(search, rows, base, other, gradients, run.values.detach().cpu())


def feature_gradient(batch: FeatureBatch, one: FeatureSite) -> Float[Tensor, "prompt pos d"]:
    """The gradient that a site's estimates use: in the base run (AtP), or its mean on the way to the other (IG).

    Raises:
        OptionError: IG at a site whose decoder is not affine, where gradients at its features are what counts.
    """
    if batch.search.method == "atp":
        return batch.gradients[one.featurizer.site]
    if not isinstance(one.featurizer, Affine):
        raise OptionError(
            f"{one.featurizer} is not affine, so IG has no one gradient at its site; use gradient='clean'."
        )
    return _mean_on_the_way(batch, one)[0]


def _mean_on_the_way(
    batch: FeatureBatch, one: FeatureSite
) -> tuple[Float[Tensor, "prompt pos d"], Float[Tensor, "prompt pos feature"] | None]:
    """IG's mean gradients at the site and, where the decoder is not affine, at the features."""
    search, featurizer = batch.search, one.featurizer
    site, x, features, change = featurizer.site, batch.base[featurizer.site], batch.features(one), batch.change(one)
    affine = isinstance(featurizer, Affine)
    step = moved(featurizer, features, change).reshape(x.shape).to(x) if affine else None
    total, at_features = torch.zeros_like(wide(x)), None if affine else torch.zeros_like(wide(features))
    points = [(row, k) for k in range(search.steps) for row in range(len(batch.rows))]
    for chunk in batches(len(points), search.batch):
        rows = [points[place][0] for place in chunk]
        shares = torch.tensor([POINTS[search.rule](points[place][1], search.steps) for place in chunk], device=x.device)
        share, index = shares.view(-1, *[1] * (x.ndim - 1)).to(x), torch.tensor(rows, device=x.device)
        if step is not None:
            there = x[rows] + step[rows] * share
        else:
            part = Split(*(each[rows] * share.view(-1, 1, 1).to(each) for each in change))
            there = x[rows] + moved(featurizer, features[rows], part).reshape(x[rows].shape).to(x)
        run = search.behaviour.watch([batch.rows[row] for row in rows], [site], [_moved_to(site, there)])
        (gradient,) = torch.autograd.grad(run.values.sum(), [run.sites[site]], allow_unused=True)
        if gradient is not None:
            width = gradient.shape[1]  # that of these rows alone
            total[:, :width].index_add_(0, index, wide(gradient))
            if at_features is not None:
                here = (features[rows] + part.features)[:, :width]
                at_features[:, :width].index_add_(0, index, wide(featurizer.pulled(here, flat(gradient).to(here))))
    return flat(total / search.steps), None if at_features is None else at_features / search.steps


def _moved_to(site: Site, there: Float[Tensor, "row pos ..."]) -> Edit:
    """The edit that puts a site to given values, which may have more padding than the rows that run."""
    return Edit(site, function=lambda x: there[:, : x.shape[1]].to(x))


def feature_estimates(batch: FeatureBatch, one: FeatureSite) -> Float[Tensor, "place node prompt"]:
    """Estimated effects of a site's nodes, metric(ablated) - metric(base)."""
    if batch.search.method == "atp":
        return batch.sums(one, batch.gradients[one.featurizer.site])
    return batch.sums(one, *_mean_on_the_way(batch, one))


def exact_effects(batch: FeatureBatch, one: FeatureSite) -> Float[Tensor, "place node prompt"]:
    """Exact effects of a site's nodes: one run for each that changes in a prompt; the others are exactly 0."""
    search, places, change = batch.search, batch.places(one), batch.change(one)
    base_features = batch.features(one)
    found = torch.zeros(*one.shape, len(batch.rows))
    features = torch.einsum("bpu,sbp->sub", (change.features != 0).to(change.error), places.to(change.error)) != 0
    errors = torch.einsum("bp,sbp->sb", change.error.abs().sum(-1), places.to(change.error)) != 0
    wanted = torch.cat([features, errors[:, None]], 1) if one.featurizer.has_error else features
    cells = wanted.nonzero().tolist()
    shape = batch.base[one.featurizer.site].shape[1:]
    for chunk in batches(len(cells), search.batch):
        added = []
        for place, unit, row in (cells[i] for i in chunk):
            is_error = unit == one.featurizer.n_features
            own = torch.tensor([unit], device=base_features.device)
            by = (
                change.error[row]
                if is_error
                else one.featurizer.written(base_features[row], change.features[row, :, unit, None], own).to(
                    change.error
                )
            )
            added.append((by * places[place, row, :, None]).reshape(shape))
        rows = [cells[i][2] for i in chunk]
        delta = torch.stack(added)
        there = batch.base[one.featurizer.site][rows] + delta
        values = search.behaviour.measure([batch.rows[row] for row in rows], [_moved_to(one.featurizer.site, there)])
        for i, value in zip(chunk, values, strict=True):
            found[tuple(cells[i])] = value - batch.values[cells[i][2]]
    return found
