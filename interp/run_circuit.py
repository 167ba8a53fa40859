"""Running a circuit: the model with everything of a universe ablated except what the circuit keeps.

What candidates cover and no kept node covers is set to the ablation's value; everything else runs as it is: sites
without candidates, and the rest of sites that candidates cover only in part (some positions, heads or units). A node
covers everything inside it (`attn_out` its heads, `mlp_out` its neurons), and keeping a part of a dropped whole keeps
the part. So the full universe is the model, and with the counterfactual ablation of a universe that cuts the graph,
the empty circuit is the corrupted run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.candidate_nodes import check_nodes
from interp.cells import Source
from interp.circuit import Circuit
from interp.coverage import Cover, covers
from interp.errors import CircuitError, OptionError
from interp.feature_values import Ablated, FeatureEdit, ablated
from interp.featurizers.base import Featurizer, checked_featurizers
from interp.intervention import Edit
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import Nodes
from interp.scoring import FINAL, Scorer, checked_metrics, clean_reference
from interp.site import Site
from interp.sources import Direction, base_and_source, directions_of
from interp.tasks.base import Task
from interp.tokens import Prompts

SUBLAYERS = {
    "attn_out": "attn_in q k v k_of_query_head v_of_query_head pattern z attn_proj attn_out".split(),
    "mlp_out": "mlp_in neuron mlp_proj mlp_out".split(),
}


@dataclass(frozen=True, eq=False)
class CircuitRuns:
    """Metrics of several circuits' runs.

    Attributes:
        values: [metric, circuit, prompt].
        outside: what ran as it is: sublayers without a candidate, such as the MLPs of a circuit of heads, and sites
            that candidates cover only in part.
    """

    values: Float[Tensor, "metric circuit prompt"]
    outside: tuple[str, ...]


def run_circuits(
    model: HookedModel,
    task: Task,
    universe: Circuit,
    kept: Bool[np.ndarray, "circuit node"],
    *,
    metrics: str | Metric | Sequence[str | Metric] = (),
    direction: Direction = "noising",
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    seed: int = 0,
    rows: int = 64,
    scorer: Scorer | None = None,
) -> CircuitRuns:
    """Run circuits over one universe on the task's prompts.

    Args:
        universe: whose nodes are the candidates.
        kept: one row a circuit.
        metrics: names or metrics; the task's own when none is given.
        direction: ``"noising"`` runs the clean prompts; ``"denoising"`` the corrupted ones, with clean values for
            what is not kept.
        ablation: ``"counterfactual"``, ``"zero"``, ``"mean"``, ``"mean_by_position"`` or ``"resample"``.
        featurizers: those that nodes name. Features and error terms are taken from the running, already ablated
            activation; what is not kept of them gets the ablation's values, and only that changes.
        seed: of the donors of ``"resample"``.
        rows: prompts in one forward.
        scorer: what is measured of all prompts, in the place of metrics.

    Raises:
        CircuitError: edges without nodes, coordinates of a whole beside its parts, masks that do not fit.
        SiteError, TaskError, MetricError, OptionError: nodes, prompts, metrics or an ablation that cannot be run.
    """
    if kept.ndim != 2 or not len(kept) or kept.shape[1] != len(universe.nodes):
        raise CircuitError(f"masks have shape {kept.shape}; [circuit, {len(universe.nodes)}] is needed.")
    if universe.scores and all(s.over == "edges" for s in universe.scores.values()) and len(universe.edges):
        raise CircuitError("this circuit's members are edges; running it needs edge patching, not node ablation.")
    if rows < 1:
        raise OptionError(f"rows={rows}; allowed: 1 and more.")
    directions_of(task, direction, ablation)
    chosen = checked_metrics(model, task, metrics)
    used = featurizers_of(model, universe, featurizers)
    plain_nodes = universe.nodes.take(np.flatnonzero(_plain(universe.nodes)))
    if len(plain_nodes) or not used:
        check_nodes(model, task, plain_nodes)
    places = covers(universe, task, _inner_shapes(model, task, universe), {f.key: (f.n_features, f.skip) for f in used})
    plain = [cover.site for cover in places if cover.featurizer is None]
    base, source = base_and_source(model, task, direction, ablation, plain, seed)
    other = _Other(
        _values(model, source, plain), ablated(model, task, used, ablation, direction, seed) if used else None
    )
    runs = _Runs(model, base, places, {one.key: one for one in used}, other)
    scorer = scorer or Scorer(model, chosen, task.answers, clean_reference(model, chosen, task))
    pairs = np.stack(np.meshgrid(range(len(kept)), range(len(task)), indexing="ij"), -1).reshape(-1, 2)
    found = [
        runs.measure(kept[chunk[:, 0]], scorer, chunk[:, 1].tolist())
        for chunk in np.split(pairs, range(rows, len(pairs), rows))
    ]
    measured = torch.cat(found, 1).reshape(scorer.size, len(kept), len(task))
    sizes = {one.key: one.n_features + 1 for one in used}
    return CircuitRuns(measured, _outside(model, task, places, len(universe.nodes), sizes))


def featurizers_of(model: HookedModel, circuit: Circuit, given: Sequence[Featurizer]) -> list[Featurizer]:
    """The featurizers that a circuit's nodes name, once all are at hand and fit.

    Raises:
        CircuitError: one is missing, or stands at another site or has fewer features than the nodes say.
    """
    keys = [key for key in circuit.nodes.featurizers if len(circuit.nodes.where(featurizer=key))]
    if not keys:
        return []
    known = {one.key: one for one in checked_featurizers(model, given)} if len(given) else {}
    if missing := [key for key in keys if key not in known]:
        raise CircuitError(
            f"the circuit's nodes are features of {', '.join(map(repr, missing))}; running it needs these; give "
            f"them as featurizers=[...] (given: {', '.join(map(repr, known)) or 'none'})."
        )
    faults = []
    for key in keys:
        nodes = circuit.nodes.take(circuit.nodes.where(featurizer=key))
        sites = {str(node.site) for node in nodes.take(np.unique(nodes.layer, return_index=True)[1])}
        if sites != {str(known[key].site)}:
            faults.append(f"{key!r} is at {known[key].site}, its nodes at {', '.join(sorted(sites))}")
        if (last := int((nodes.unit + nodes.width).max()) - 1) >= known[key].n_features:
            faults.append(f"{key!r} has features 0 to {known[key].n_features - 1}, its nodes go to {last}")
    if faults:
        raise CircuitError("; ".join(faults) + ".")
    return [known[key] for key in keys]


def _plain(nodes: Nodes) -> Bool[np.ndarray, " node"]:
    """Nodes that are parts of a site as it is."""
    return (nodes.featurizer < 0) & (nodes.names("kind") != "logits")


def _inner_shapes(model: HookedModel, task: Task, universe: Circuit) -> dict[Site, tuple[int, ...]]:
    """Sizes of the axes after the position, of all sites at which something is ablated."""
    sites = {node.site for node in universe.nodes.take(np.flatnonzero(_plain(universe.nodes)))}
    return {site: _inner_shape(model, site, task.clean.ids.shape[1]) for site in sites}


def _values(model: HookedModel, source: Source, sites: Sequence[Site]) -> Mapping[Site, Tensor]:
    """The new values at every site, one row a prompt (or one for all)."""
    return source.values if source.prompts is None else model.run(source.prompts, record=sites, logits="none").cache


@dataclass(frozen=True, eq=False)
class _Other:
    """What is put in place of the ablated: activations by site, and values of features."""

    values: Mapping[Site, Tensor]
    features: Ablated | None

    def cache(self, model: HookedModel, prompts: list[int]) -> Mapping[Site, Tensor]:
        """The run that features are taken from, for some prompts."""
        return {} if self.features is None else self.features.run(model, prompts)


@dataclass(frozen=True, eq=False)
class _Runs:
    """Circuits over one universe, ready to run."""

    model: HookedModel
    base: Prompts
    places: Sequence[Cover]
    featurizers: Mapping[str | None, Featurizer]
    other: _Other

    @torch.no_grad()
    def measure(
        self, kept: Bool[np.ndarray, "row node"], scorer: Scorer, prompts: list[int]
    ) -> Float[Tensor, "metric row"]:
        """Metrics of rows, each one circuit on one prompt; float64 on the CPU."""
        batch, cache = self.base[prompts], self.other.cache(self.model, prompts)
        edits = [edit for cover in self.places for edit in self._edits(cover, kept, prompts, batch, cache)]
        run = self.model.run(batch, edits, [FINAL], logits="none")
        return scorer(run[FINAL], torch.tensor(prompts, device=run[FINAL].device)).cpu().double()

    def _edits(
        self, cover: Cover, kept: np.ndarray, prompts: list[int], batch: Prompts, cache: Mapping[Site, Tensor]
    ) -> list[Edit]:
        """What ablates one site's candidates that no row keeps."""
        one, width = self.featurizers.get(cover.featurizer), batch.ids.shape[1]
        inner = (one.n_features + 1,) if one else _inner_shape(self.model, cover.site, self.base.ids.shape[1])
        units = int(np.prod(inner))
        off = cover.mask(np.ones_like(kept), prompts, width, units) & ~cover.mask(kept, prompts, width, units)
        if not off.any():
            return []
        mask = torch.from_numpy(off)
        if one is not None:
            assert self.other.features is not None, "featurizers come with their ablated values"
            replaced = FeatureEdit(one, mask, self.other.features.of(one, cache, width))
            return replaced.edits()
        given = self.other.values[cover.site]
        mask = mask.unflatten(2, inner)
        if cover.site.kind == "pattern":
            mask = mask.transpose(1, 2)[..., :width]
        return [Edit(cover.site, function=_Replace(mask, given if given.shape[0] == 1 else given[prompts]))]


@dataclass(frozen=True, eq=False)
class _Replace:
    """Take the ablation's values where the mask says so, keep the running ones elsewhere."""

    mask: Tensor
    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        values = self.values[tuple(slice(0, n) for n in x.shape)].to(x.device, x.dtype)
        return torch.where(self.mask.to(x.device), values, x)


def _inner_shape(model: HookedModel, site: Site, width: int) -> tuple[int, ...]:
    """Sizes of the site's axes after the position."""
    sizes = model.shape.sizes(site)
    units = sizes["d"] or width
    return (sizes["kv_head" if "kv_head" in site.axes else "head"], units) if site.has_heads else (units,)


def _outside(
    model: HookedModel, task: Task, places: Sequence[Cover], n_nodes: int, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Sublayers without a candidate, and sites that all candidates together cover only in part."""
    kinds = [kind for kind in SUBLAYERS if kind not in model.unavailable]
    touched = {cover.site for cover in places}
    untouched = [
        str(site)
        for site in (model.sites(*kinds) if kinds else [])
        if not any(Site(kind, site.layer) in touched for kind in SUBLAYERS[site.kind])
    ]
    real = task.clean.mask.cpu().numpy()
    everyone, width = np.ones((1, n_nodes), bool), real.shape[1]
    partly = []
    for cover in places:
        units = np.unique(np.concatenate([place.units for place in cover.places]))
        shape = _inner_shape(model, cover.site, width)
        whole = int(np.prod(shape)) if cover.featurizer is None else sizes[cover.featurizer]
        covered = all(
            cover.mask(everyone, [row], width, int(units.max()) + 1)[0][real[row]][:, units].all()
            for row in range(len(task))
        )
        if not covered or len(units) < whole:
            partly.append(f"{cover.site} in part")
    return (*untouched, *partly)
