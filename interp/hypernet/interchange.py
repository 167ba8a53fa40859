"""HyperDAS as an interchange: what the network says of each example is done to its base run.

G, R = network(instruction, base states, source states)
change_j = sum_i G_ij s_i - (sum_i G_ij) b_j           b'_j = b_j + R R^T change_j
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.errors import OptionError
from interp.featurizers.base import site_width
from interp.hypernet.network import HyperNetwork, Instructed, Reading
from interp.hypernet.selection import Scores, chosen, fixed, sparsity, straight_through
from interp.hypernet.settings import HyperDasSettings
from interp.interchange.examples import Batch, Counterfactuals
from interp.interchange.exchanges import TEMPERATURES
from interp.interchange.placing import Interchange, Mode, paired
from interp.interchange.states import States, entry
from interp.models.base import HookedModel
from interp.site import Site


class HyperDas(Interchange):
    """A trained or untrained HyperDAS at a site of a model.

    Args:
        model: whose runs are changed.
        site: where.
        settings: of the network.
        instructions: concept -> what the network is told, as text or token ids; the concept's own name where missing.
        seed: of the first parameters, and of coins.

    Raises:
        OptionError: a site that is not in the residual stream, or a rank that it cannot have.
    """

    def __init__(
        self, model: HookedModel, site: Site | str, settings: HyperDasSettings | None = None,
        instructions: dict[str, Any] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.settings = settings or HyperDasSettings()
        self.site, self.seed = model.check_site(site), seed
        if self.site.kind != "resid_post":
            raise OptionError(f"HyperDAS at {self.site}; it reads and changes the residual stream: use resid_post[l].")
        d = site_width(model, self.site)
        if self.settings.rank > d:
            raise OptionError(
                f"rank={self.settings.rank} at {self.site}, which has {d} coordinates; allowed: 1 to {d}."
            )
        self.reads = read_sites(model, self.site, self.settings)
        self.instructions = dict(instructions or {})
        self.skip, self.model_fingerprint = int(model.has_sink), model.identity.fingerprint
        self._vectors = _instruction_reader(model)
        with torch.random.fork_rng(devices=[]):  # modules draw first values, which are then replaced
            self.network = HyperNetwork(self.settings, d, d, len(self.reads), seed).to(model.device)
        self.done = 0.0

    @property
    def needs(self) -> list[Site]:
        return list(dict.fromkeys([entry(self.site), self.site, *self.reads]))

    def anneal(self, done: float) -> None:
        self.done = done
        first, last = TEMPERATURES
        self.network.temperature = first + (last - first) * done

    def groups(self, rate: float) -> list[dict[str, Any]]:
        rest = [p for p in self.network.parameters() if p is not self.network.subspace]
        shared = {"params": [self.network.subspace], "lr": self.settings.subspace_rate, "weight_decay": 0.0}
        return [{"params": rest, "lr": rate}, shared]

    def placed(
        self, batch: Batch, states: States, base: Float[Tensor, "example base d"], mode: Mode, *, forced: bool = False
    ) -> tuple[Float[Tensor, "example base d"], Float[Tensor, " example"]]:
        here, there = self.readings(batch, states)
        aim, scores = self.judged(batch, here, there)
        soft = scores.weights()
        used = chosen(scores, mode, forced=forced)
        if self.training and mode != "soft":
            used = straight_through(used, soft)
        step = used.mT @ there.site.float() - used.sum(1)[..., None] * base.float()
        moved = self.network.project(aim, step)
        if self.training and self.done < self.settings.whole_until:
            moved = moved + (1 - self.done / self.settings.whole_until) * (step - moved)
        return base + moved.to(base), self._penalty(soft)

    def readings(self, batch: Batch, states: States) -> tuple[Reading, Reading]:
        """What is read of the base and of the source rows: tokens up to the role `up_to`, without a sink."""
        made = []
        for rows, real in ((batch.base, batch.base_real), (batch.source, batch.source_real)):
            device = real.device
            read = [states.take(site, rows, real.shape[1], device).float() for site in self.reads]
            at_site = states.take(self.site, rows, real.shape[1], device)
            seen = real.clone()
            seen[:, : self.skip] = False
            if self.settings.up_to:
                ends = [where[-1] for where in batch.data.positions(self.settings.up_to, rows.tolist())]
                seen &= torch.arange(seen.shape[1], device=device) <= torch.tensor(ends, device=device)[:, None]
            made.append(Reading(torch.stack(read, 2), at_site, seen))
        return made[0], made[1]

    def judged(self, batch: Batch, base: Reading, source: Reading) -> tuple[Float[Tensor, "example width"], Scores]:
        """The summaries that subspaces follow from, and the scores of pairs."""
        told = self.told(batch.data, base.real.device)
        e = self.network.summary(told, base, source)
        scores = self.network.scores(e, base, source, swapped=self._coin(batch))
        if role := self.settings.fixed:
            here, there = (batch.data.positions(role, rows.tolist()) for rows in (batch.base, batch.source))
            scores = fixed(*paired(here, there, e.device), scores)
        return e if self.settings.aimed_by == "example" else self.network.summary(told), scores

    def told(self, data: Counterfactuals, device: torch.device) -> Instructed:
        """Each example's instruction as vectors."""
        vectors = [self._vectors(given) for given in self.told_of(data)]
        real = [torch.ones(len(one), dtype=torch.bool) for one in vectors]
        return Instructed(pad_sequence(vectors, True).to(device), pad_sequence(real, True).to(device))

    def told_of(self, data: Counterfactuals) -> list[Any]:
        """What the network is told of each example, as text or token ids."""
        concepts = [self.instructions.get(one, one) for one in data.concepts]
        if self.settings.instructions == "concept":
            return concepts
        if "entity" not in data.groups:
            raise OptionError("instructions='entities' needs data with the group 'entity'; use 'concept'.")
        named = data.groups["entity"]
        sides = zip(data.base.tolist(), data.source.tolist(), concepts, strict=True)
        return [f"{named[base]} ; {named[source]} - {concept}" for base, source, concept in sides]

    def description(self) -> dict[str, Any]:
        """What it is, as JSON values."""
        return {
            "site": str(self.site), "settings": asdict(self.settings), "instructions": self.instructions,
            "seed": self.seed, "model": self.model_fingerprint,
        }  # fmt: skip

    def _penalty(self, weights: Float[Tensor, "example source base"]) -> Float[Tensor, " example"]:
        """What is added to the loss for source tokens used more than once, and for base tokens changed beside one."""
        start = self.settings.sparsity_from
        rise = max(self.done - start, 0.0) / (1 - start) if start < 1 else 0.0
        used = sparsity(weights, as_published=self.settings.published_sparsity)
        beside = (weights.sum((1, 2)) - 1).clamp(min=0)
        return rise * (self.settings.sparsity * used + self.settings.single * beside)

    def _coin(self, batch: Batch) -> bool:
        """Whether this batch's sides are read with each other's weights; from the seed and the examples alone."""
        if self.settings.symmetry != "coin":
            return False
        drawn = torch.Generator().manual_seed(self.seed + int(batch.base.sum()) + 7919 * int(batch.source.sum()))
        return bool(torch.rand((), generator=drawn) < 0.5)


def read_sites(model: HookedModel, site: Site, settings: HyperDasSettings) -> list[Site]:
    """The residuals that are read: the site's own, and every so many before it (or after it too, as published)."""
    last = model.shape.n_layers - 1 if settings.reads == "all" else site.layer or 0
    layers = sorted({*range(last, -1, -settings.stride), site.layer or 0})
    return [Site("embed"), *(Site("resid_post", layer) for layer in layers)]


def _instruction_reader(model: HookedModel) -> Callable[[Any], Float[Tensor, "token d"]]:
    """Texts or token ids as the model's own token embeddings, which stay as they are; each is read once."""
    embed = model.module("embed")
    known: dict[str, Tensor] = {}

    def read(given: Any) -> Tensor:
        if repr(given) not in known:
            with torch.no_grad():
                ids = model.prompts([given]).ids.to(model.device)
                known[repr(given)] = embed(ids)[0].float().cpu().clone()
        return known[repr(given)]

    return read
