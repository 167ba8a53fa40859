"""Distributed alignment search: the subspace at a site and position whose exchange changes one concept alone.

    for each concept, for each site and role (or for the ones given):
        R <- orthonormal, random
        repeat: h' = h + R R^T (s - h) at the role's positions;  R <- step on the cross-entropy of the answers
    keep the site and role that do best on validation; score on the test set

DAS trains on cause examples alone; MDAS on isolate examples too, so that what is exchanged must leave the rest.

Sources: DAS, Geiger et al. 2024 (arXiv 2303.02536); boundless DAS, Wu et al. 2023 (arXiv 2305.08809); MDAS, Huang et
al. 2024 (arXiv 2402.17700); masks, Mueller et al. 2025 (arXiv 2504.13151).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from interp.circuit import Circuit
from interp.errors import OptionError, check_choice
from interp.featurizers.base import Featurizer, site_width
from interp.featurizers.linear import coordinates, orthonormal
from interp.interchange.circuits import Placed, interchange_circuit
from interp.interchange.examples import Counterfactuals, checked_sets, rows_of
from interp.interchange.exchanges import (
    BoundlessSubspace,
    Exchange,
    Features,
    FullVector,
    Mask,
    Subspace,
    random_subspace,
)
from interp.interchange.placing import AtRoles
from interp.interchange.scores import score_interchange
from interp.interchange.states import Resumption, States, states_of
from interp.interchange.training import Keeping, TrainSettings, train_interchange
from interp.models.base import HookedModel
from interp.site import Site

What = Literal["subspace", "boundless", "mask", "full_vector", "principal_components", "random"]
TRAINED = ("subspace", "boundless", "mask")


def das(
    model: HookedModel,
    data: Mapping[str, Counterfactuals],
    sites: Site | str | Sequence[Site | str],
    *,
    what: What = "subspace",
    rank: int = 32,
    roles: str | Sequence[str] = "last_entity",
    source_role: str | None = None,
    isolate: bool = True,
    featurizer: Featurizer | None = None,
    weight: float = 0.0,
    settings: TrainSettings = TrainSettings(rate=1e-3),  # noqa: B008 - frozen
    states: States | None = None,
    keeping: Keeping = Keeping(),  # noqa: B008 - frozen
) -> Circuit:
    """A subspace for each concept (DAS; MDAS with isolate examples), or something else to exchange, at fixed positions.

    Args:
        data: ``train``, ``test`` and, to search or to stop early, ``val``, over the same prompts.
        sites: where; of several, the one that does best on validation, concept by concept.
        what: ``"subspace"`` (rank), ``"boundless"`` (a rotation with a learned number of directions), ``"mask"`` (of
            the featurizer's features, the site's coordinates when None), or without training ``"full_vector"``,
            ``"principal_components"`` (the first `rank` of the training prompts at these positions), ``"random"``.
        roles: positions of the exchange; of several, the best, like sites.
        source_role: where it is read in the source; as in the base when None.
        isolate: train on isolate examples too (MDAS); False for DAS.
        weight: of the size of a mask or a boundless subspace in the loss.
        settings: of training; validations need ``val``.
        states: activations of the prompts at the sites (`interp.interchange_states`), where they are at hand.
        keeping: where training is saved (a file a concept, site and role beside the one named) and whether it is shown.

    Returns:
        one node a concept (site, role, featurizer ``das.concept``), attributes cause, isolate, disentangle, its 95 %
        interval and rank, directions as a tensor (`interp.subspace_basis` gives them as a featurizer).

    Raises:
        OptionError, SiteError: before anything runs.
        TaskError: sets that are missing or over different prompts.

    Example:
        circuit = interp.das(model, data, "resid_post[15]", rank=32)
    """
    check_choice("what", what, get_args(What))
    places = [(model.check_site(site), role) for site in _listed(sites) for role in _listed(roles)]
    searched = len(places) > 1
    train, test = checked_sets(data, "val" if searched else None)
    search = _Search(what, rank, source_role, isolate, featurizer, weight, settings, keeping, data.get("val"))
    for site, _ in places:
        search.made(model, site, None)
    needed = list(dict.fromkeys(site for place, _ in places for site in AtRoles(place, FullVector(), "").needs))
    used = [part for name in ("train", "val", "test") if (part := data.get(name)) is not None]
    states = states or states_of(model, test.prompts, needed, rows=rows_of(used), progress=keeping.progress)
    found = []
    for concept in test.concept_names:
        tried = [search.at(Resumption(model, site, states), train.about(concept), role) for site, role in places]
        best = max(tried, key=lambda one: one.validated)
        runs = Resumption(model, best.interchange.site, states)
        scores = score_interchange(runs, test.about(concept), best.interchange, progress=keeping.progress)
        found.append(Placed(
            concept, best.interchange.site, best.interchange.base_role, best.interchange.exchange.basis(), scores,
            {"kind": what, "searched": [one.told() for one in tried] if searched else []},
            {} if best.updates is None else {"updates": float(best.updates)},
        ))  # fmt: skip
    rows = settings.batch * sum(one.more.get("updates", 0.0) for one in found)
    return interchange_circuit(
        model, test, found, "das", seed=settings.seed, forwards=rows, backwards=rows,
        parameters={
            "what": what, "rank": rank, "isolate": isolate, "source_role": source_role, "weight": weight,
            "sites": [str(site) for site, _ in places], "roles": list(_listed(roles)), "settings": asdict(settings),
            "train": len(train), "test": len(test),
        },
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Tried:
    """An interchange at one site and role, and its validation score (0 where there is nothing to choose)."""

    interchange: AtRoles
    validated: float
    updates: int | None

    def told(self) -> dict[str, Any]:
        return {"site": str(self.interchange.site), "role": self.interchange.base_role, "validation": self.validated}


@dataclass(frozen=True, eq=False)
class _Search:
    """What is tried at each place."""

    what: What
    rank: int
    source_role: str | None
    isolate: bool
    featurizer: Featurizer | None
    weight: float
    settings: TrainSettings
    keeping: Keeping
    val: Counterfactuals | None

    def at(self, runs: Resumption, train: Counterfactuals, role: str) -> _Tried:
        """Train at one place, on one concept."""
        concept = train.concepts[0]
        one = AtRoles(runs.site, self.made(runs.model, runs.site, (runs.states, train, role)), role, self.source_role)
        one.weight = self.weight
        one.to(runs.model.device)
        val = None if self.val is None else self.val.about(concept)

        def validate() -> float:
            assert val is not None, "called with validation examples only"
            scores = score_interchange(runs, val, one, progress=False)
            return scores.disentangle(concept) if self.isolate else scores.cause(concept)

        updates = None
        if self.what in TRAINED:
            rows = [n for n, cause in enumerate(train.causes) if cause or self.isolate]
            history = train_interchange(
                runs, train[rows], one, self.settings, validate=None if val is None else validate,
                keeping=self._kept(concept, runs.site, role), identity=repr(self.source_role),
            )  # fmt: skip
            updates = len(history.losses)
        return _Tried(one, 0.0 if val is None else validate(), updates)

    def _kept(self, concept: str, site: Site, role: str) -> Keeping:
        """A checkpoint of its own for each concept and place."""
        if self.keeping.checkpoint is None:
            return self.keeping
        path = Path(self.keeping.checkpoint)
        name = "".join(c if c.isalnum() else "_" for c in f"{concept} {site} {role}")
        return replace(self.keeping, checkpoint=path.with_name(f"{path.stem}.{name}.safetensors"))

    def made(self, model: HookedModel, site: Site, at: tuple[States, Counterfactuals, str] | None) -> Exchange:
        """What is exchanged at a site; `at` says of which activations principal components are taken (None: any, to see
        whether it can be made)."""
        d, seed = site_width(model, site), self.settings.seed
        if self.featurizer is not None and (self.what != "mask" or self.featurizer.site != site):
            raise OptionError(
                f"{self.featurizer} with what={self.what!r} at {site}; a featurizer goes with 'mask' at its site."
            )
        if not 1 <= self.rank <= d:
            raise OptionError(f"rank={self.rank} at {site}, which has {d} coordinates; allowed: 1 to {d}.")
        if self.what == "mask":
            return Mask((self.featurizer or coordinates(model, site)).to(model.device))
        if self.what == "principal_components":
            directions = torch.eye(d)[:, : self.rank] if at is None else _components(site, self.rank, *at)
            return Features(orthonormal(site, directions, key="pca").to(model.device))
        made: dict[str, Callable[[], Exchange]] = {
            "subspace": lambda: Subspace(d, self.rank, seed), "boundless": lambda: BoundlessSubspace(d, seed),
            "full_vector": FullVector, "random": lambda: random_subspace(d, self.rank, seed),
        }  # fmt: skip
        return made[self.what]()


def _components(site: Site, rank: int, states: States, data: Counterfactuals, role: str) -> Tensor:
    """Principal directions of the activations that the data exchange, [d, rank]."""
    rows = sorted({*data.base.tolist(), *data.source.tolist()})
    x = torch.cat(
        [states[site][row, list(at)] for row, at in zip(rows, data.positions(role, rows), strict=True)]
    ).float()
    if rank > len(x) - 1:
        raise OptionError(f"rank={rank} principal components of {len(x)} activations; allowed: up to {len(x) - 1}.")
    return torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:rank].T


def _listed(given: Any) -> list[Any]:
    return [given] if isinstance(given, str | Site) else list(given)
