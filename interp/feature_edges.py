"""Edges between features: how much of a feature's effect runs through another one, all sites between held constant.

    E(u -> d) = dm/dd . (dd/du with every site between constant) . (u~ - u)          at the base run

One backward pass gives a target's weights from all upstream nodes. For a target d at activation x_d, with g = dm/dx_d,

    feature i       cotangent at what it reads:    (g . v_i) 1[active] W_enc[:, i]
    error term      cotangent at its site: g,      and at what the features read:   - W_enc (active * (W_dec g))

(for decoders and encoders that are not affine, their own derivatives instead)

and with w the gradient that this cotangent leaves at an upstream leaf, E(u_j -> d) = (w . v_j) (f~_j - f_j), for the
error term w . (error~ - error). Cutting the run into segments (`interp.segments`) makes every gradient a direct one,
for any architecture and any choice of sites. What reaches the metric without a further site is the edge to `logits`.

Prompts of a batch do not touch each other, so one pass serves all of them; where a site reads position by position
(`is_local`), it serves a feature at all its places. Passes for several targets run as one, batched.

Outgoing sums: over all d (features and error terms of all sites, and logits), E(u -> d) is u's own estimate.

Source: Marks et al. 2024 (arXiv 2403.19647), section 3 and appendix A.1; covectors and packing are our derivation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.feature_effects import FeatureBatch, feature_gradient, wide
from interp.feature_nodes import FeatureSite
from interp.feature_values import Split
from interp.featurizers.base import Featurizer, flat
from interp.segments import Segments, is_local, segments
from interp.tokens import batches

EdgeGradient = Literal["clean", "node"]
MOST_VALUES = 2**25
"""Numbers that a batch of backward passes may hold at once at one site: 128 MiB in float32."""


class Chosen(NamedTuple):
    """The nodes of one site between which edges are scored.

    Attributes:
        units: the distinct features.
        nodes: [node, 2]: place and column of each node; the column counts into `units`, its length is the error term.
        rows: the nodes' rows among all candidates.
    """

    units: Int[Tensor, " unit"]
    nodes: Int[Tensor, "node 2"]
    rows: np.ndarray


def chosen(one: FeatureSite, kept: Bool[np.ndarray, " node"]) -> Chosen:
    """The kept nodes of a site."""
    rows = np.flatnonzero(kept[one.rows])
    places, units = np.divmod(rows, one.shape[1])
    features = np.unique(units[units < one.featurizer.n_features])
    columns = np.where(units < one.featurizer.n_features, np.searchsorted(features, units), len(features))
    nodes = torch.from_numpy(np.stack([places, columns], 1))
    return Chosen(torch.from_numpy(features), nodes, rows + one.first)


@dataclass(frozen=True, eq=False)
class _Source:
    """The chosen nodes of one site as upstream ends, in one batch of prompts.

    Attributes:
        features: in the base run, all of the site's.
        change: of features [prompt, pos, unit] and of the error term [prompt, pos, d].
        places: positions of each place.
    """

    featurizer: Featurizer
    nodes: Chosen
    features: Float[Tensor, "prompt pos feature"]
    change: Split
    places: Float[Tensor, "place prompt pos"]

    def weights(
        self, w: Float[Tensor, "target prompt pos d"], at: Float[Tensor, "own prompt pos"]
    ) -> Float[Tensor, "target own node"]:
        """Weights summed over prompts, from the gradients at this site and the positions they are counted at."""
        each = self.featurizer.pulled(self.features, w, self.nodes.units.to(w.device)) * self.change.features
        if bool((self.nodes.nodes[:, 1] == len(self.nodes.units)).any()):
            each = torch.cat([each, (w * self.change.error).sum(-1, keepdim=True)], -1)
        sums = torch.einsum("kbpu,obp,sbp->kosu", each, at, self.places)
        return sums[:, :, self.nodes.nodes[:, 0], self.nodes.nodes[:, 1]]


class _Plan(NamedTuple):
    """The backward passes that serve a site's chosen nodes.

    Attributes:
        targets: (column, positions of its cotangent) of each pass.
        at: the sets of positions at which weights are counted.
        which: for each node its pass and its set in `at`.
    """

    targets: list[tuple[int, Float[Tensor, "prompt pos"]]]
    at: Float[Tensor, "own prompt pos"]
    which: Int[Tensor, "node 2"]


def edge_weights(
    batch: FeatureBatch, nodes: Sequence[Chosen], gradient: EdgeGradient = "clean"
) -> dict[tuple[int, int], Float[Tensor, "target source"]]:
    """Weights of all edges among the chosen nodes, summed over a batch's prompts; metric(ablated) - metric(base).

    Args:
        nodes: of each site of the search.
        gradient: dm/dd in the base run (``"clean"``, as in the paper, for which outgoing sums hold), or the one that
            the nodes' own estimates use (``"node"``, as in the authors' code).

    Returns:
        (source site, destination site) -> weights; destination -1 is the metric. Pairs without a direct path are left
        out.
    """
    search = batch.search
    cuts = [one.site for one in search.featurizers]
    cut = segments(search.behaviour, batch.rows, cuts, [f.reads for f in search.featurizers if f.reads != f.site])
    sources = [_source(batch, one, own) for one, own in zip(search.sites, nodes, strict=True)]
    found = {}
    everywhere = torch.ones_like(batch.gradients[cuts[0]][None, ..., 0])
    ones = torch.ones_like(cut.values)[None]
    for number, w in _pulled([cut.values], [ones], [cut.leaves[site] for site in cuts]):
        found[number, -1] = sources[number].weights(w, everywhere)[:, 0]
    for number, (one, own) in enumerate(zip(search.sites, nodes, strict=True)):
        if number and len(own.nodes):
            g = batch.gradients[one.featurizer.site] if gradient == "clean" else feature_gradient(batch, one)
            into = _weights_into(batch, cut, sources[:number], one, own, g)
            found |= {(source, number): weights for source, weights in into.items()}
    return found


def _source(batch: FeatureBatch, one: FeatureSite, own: Chosen) -> _Source:
    change = batch.change(one)
    units = own.units.to(change.error.device)
    picked = Split(change.features[..., units].to(change.error), change.error)
    return _Source(one.featurizer, own, batch.features(one), picked, batch.places(one).to(change.error))


def _weights_into(
    batch: FeatureBatch, cut: Segments, sources: Sequence[_Source], one: FeatureSite, own: Chosen,
    g: Float[Tensor, "prompt pos d"],
) -> dict[int, Float[Tensor, "target source"]]:  # fmt: skip
    """Weights of the edges into the chosen nodes of one site, by source site."""
    search, featurizer = batch.search, one.featurizer
    plan = _plan(batch, one, own, g)
    leaves = [cut.leaves[other.site] for other in search.featurizers[: len(sources)]]
    outputs = [cut.arrived[featurizer.site]]
    if featurizer.reads != featurizer.site:
        outputs.append(cut.read[featurizer.reads])
    parts: dict[int, list[Tensor]] = {}
    for rows in batches(len(plan.targets), max(MOST_VALUES // (g.numel() + 1), 1)):
        cotangents = _cotangents(batch, one, own, g, [plan.targets[row] for row in rows])
        shaped = [c.view(len(rows), *x.shape).to(x) for c, x in zip(cotangents, outputs, strict=True)]
        for number, w in _pulled(outputs, shaped, leaves):
            parts.setdefault(number, []).append(sources[number].weights(w, plan.at))
    return {number: torch.cat(each)[plan.which[:, 0], plan.which[:, 1]] for number, each in parts.items()}


def _plan(batch: FeatureBatch, one: FeatureSite, own: Chosen, g: Tensor) -> _Plan:
    """One pass a feature where the site reads position by position, else one a node."""
    search, places = batch.search, batch.places(one).to(g)
    cuts = [other.site for other in search.featurizers]
    n_layers = search.behaviour.model.shape.n_layers
    if all(is_local(site, cuts, n_layers) for site in {one.featurizer.site, one.featurizer.reads}):
        columns, which = own.nodes[:, 1].unique(return_inverse=True)
        targets = [(column, places.amax(0)) for column in columns.tolist()]
        return _Plan(targets, places, torch.stack([which, own.nodes[:, 0]], 1))
    targets = [(column, places[place]) for place, column in own.nodes.tolist()]
    passes = torch.arange(len(targets))
    return _Plan(targets, torch.ones_like(places[:1]), torch.stack([passes, torch.zeros_like(passes)], 1))


def _cotangents(
    batch: FeatureBatch, one: FeatureSite, own: Chosen, g: Float[Tensor, "prompt pos d"],
    targets: Sequence[tuple[int, Tensor]],
) -> list[Float[Tensor, "target prompt pos width"]]:  # fmt: skip
    """The targets' cotangents at the site and, where features read elsewhere, at what they read."""
    featurizer, features = one.featurizer, batch.features(one)
    read_x = flat(batch.base[featurizer.reads])
    columns = torch.tensor([column for column, _ in targets], device=g.device)
    masks = torch.stack([mask for _, mask in targets])[..., None]
    is_error = columns == len(own.units)
    units = own.units.to(g.device)[columns[~is_error]]
    read = g.new_zeros(len(targets), *g.shape[:2], featurizer.widths[0])
    if len(units):
        read[~is_error] = featurizer.read_pulled_each(read_x, featurizer.pulled(features, g, units), units).to(read)
    at_site = torch.where(is_error.view(-1, 1, 1, 1), g, 0)
    if is_error.any():
        read[is_error] = -featurizer.read_pulled(read_x, featurizer.pulled(features, g)).to(read)
    if featurizer.reads == featurizer.site:
        return [(at_site + read) * masks]
    return [at_site * masks, read * masks]


def _pulled(
    outputs: Sequence[Tensor], cotangents: Sequence[Float[Tensor, "target ..."]], leaves: Sequence[Tensor]
) -> Iterator[tuple[int, Float[Tensor, "target prompt pos d"]]]:
    """The gradients that several cotangents leave at the leaves; leaves without a path are left out."""
    if len(cotangents[0]) == 1:
        found = torch.autograd.grad(outputs, leaves, [c[0] for c in cotangents], retain_graph=True, allow_unused=True)
        found = tuple(None if w is None else w[None] for w in found)
    else:
        found = torch.autograd.grad(
            outputs, leaves, list(cotangents), retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    for number, w in enumerate(found):
        if w is not None:
            yield number, wide(w).flatten(3)
