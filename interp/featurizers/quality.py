"""Quality cards: how much of a site, and of what the model does, a dictionary explains.

    explained variance  1 - E|x - x^|^2 / E|x - E x|^2                         x^ = decode(encode(x)), over all tokens
    cross-entropy recovered  (CE_zero - CE_dictionary) / (CE_zero - CE_clean)

where the site is replaced by x^ or by zeros at every token that the dictionary explains, and CE is the mean over the
predictions made there of the next token of the context. Padding and the first `skip` positions never count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from tqdm import tqdm

from interp.errors import OptionError, PromptError
from interp.featurizers.base import Featurizer, checked_featurizers, flat
from interp.featurizers.dictionary import Dictionary
from interp.intervention import Patch
from interp.models.base import HookedModel
from interp.models.runs import Run
from interp.site import Site
from interp.tokens import batches

VARIANCE, RECOVERED, DEAD = 0.8, 0.9, 0.3
"""Least explained variance, least cross-entropy recovered and most dead features of a dictionary fit for circuits: our
own bounds, within what published dictionaries reach (Marks et al. 2024, arXiv 2403.19647, but for dead features)."""
ENOUGH = 100_000
"""Tokens below which features that are merely rare count as dead."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class QualityCard:
    """How good a dictionary is on some text.

    Attributes:
        key, site: which dictionary.
        model: whose activations.
        tokens: that were counted; `predictions` of them have a next token.
        skip: first positions of each context left out.
        features: of the dictionary.
        l0: features active at a token, mean.
        explained_variance: 1 is all; NaN where the activations do not vary.
        relative_norm: mean of |x^| / |x|; 1 is ideal, and a shrinking dictionary is below; NaN where some x is 0.
        dead: share of features active at none of the tokens, an upper bound on those that never are.
        density: quantile -> share of tokens at which a feature is active, over features.
        ce_clean, ce_dictionary, ce_zero: cross-entropies in nats.
    """

    key: str
    site: str
    model: str
    tokens: int
    predictions: int
    skip: int
    features: int
    l0: float
    explained_variance: float
    relative_norm: float
    dead: float
    density: Mapping[str, float]
    ce_clean: float
    ce_dictionary: float
    ce_zero: float

    @property
    def ce_recovered(self) -> float:
        """Share of what zeros cost that the dictionary saves; NaN where zeros cost nothing."""
        cost = self.ce_zero - self.ce_clean
        return (self.ce_zero - self.ce_dictionary) / cost if cost else float("nan")

    @property
    def faults(self) -> list[str]:
        """Why it should not be used to find circuits, in words; empty when it may be."""
        faults = [
            f"{name} is {value:.3f}, needed {least} and more"
            for name, value, least in (
                ("explained variance", self.explained_variance, VARIANCE),
                ("cross-entropy recovered", self.ce_recovered, RECOVERED),
            )
            if not value >= least  # NaN is a fault
        ]
        if self.dead >= DEAD:
            few = f" (below {ENOUGH:,}, where rare features seem dead too)" if self.tokens < ENOUGH else ""
            found = f"{self.dead:.1%} of features were active at none of {self.tokens:,} tokens{few}"
            faults.append(f"{found}, needed below {DEAD:.0%}")
        return faults

    @property
    def acceptable(self) -> bool:
        """Whether it is fit to find circuits with; `faults` says why not."""
        return not self.faults

    def __str__(self) -> str:
        verdict = "acceptable" if self.acceptable else "; ".join(self.faults)
        found = f"L0 {self.l0:.1f}, explained variance {self.explained_variance:.3f}"
        found += f", CE recovered {self.ce_recovered:.3f}"
        seen = f"dead {self.dead:.1%} of {self.tokens:,} tokens"
        return f"{self.site}: {self.features} features, {found}, {seen} ({verdict})"

    def values(self) -> dict[str, Any]:
        """All numbers and the verdict, as JSON values; a number that is not defined is None."""
        found = {**asdict(self), "ce_recovered": self.ce_recovered, "faults": self.faults}
        return {name: None if isinstance(v, float) and not isfinite(v) else v for name, v in found.items()}


def with_quality(dictionary: Dictionary, card: QualityCard) -> Dictionary:
    """The dictionary with its card in its description, where it is saved with it.

    Raises:
        OptionError: the card of another dictionary.
    """
    if (card.key, card.site) != (dictionary.key, str(dictionary.site)):
        raise OptionError(f"the card is of {card.key!r} at {card.site}, not of {dictionary}; give the one of its own.")
    return replace(dictionary, description={**dictionary.description, "quality": card.values()})


@torch.no_grad()
def dictionary_quality(
    model: HookedModel,
    dictionaries: Featurizer | Sequence[Featurizer],
    prompts: Any,
    *,
    batch: int = 8,
    progress: bool = True,
) -> list[QualityCard]:
    """A card for each dictionary, from the same text: one clean run for all of them, one more for each, and one for
    each site with zeros.

    Args:
        dictionaries: one or several, also several of one site.
        prompts: contexts that no dictionary was trained on, such as `contexts` gives; 10,000 tokens do for all but the
            share of dead features.
        batch: prompts in a forward.
        progress: show a bar where there is a terminal.

    Raises:
        OptionError, SiteError: dictionaries that do not fit the model; a batch below 1.
        PromptError: no token that a dictionary explains has a next one.
    """
    given = model.check_prompts(prompts)
    listed = [dictionaries] if isinstance(dictionaries, Featurizer) else list(dictionaries)
    if batch < 1:
        raise OptionError(f"batch={batch} prompts in a forward; allowed: 1 and more.")
    checked = [checked_featurizers(model, [one])[0] for one in listed] or checked_featurizers(model, [])
    longest, skip = int(given.lengths.max()), max(one.skip for one in checked)
    if longest < skip + 2:
        raise PromptError(
            f"the longest prompt has {longest} tokens; {skip + 2} are needed to predict one after skip={skip}."
        )
    tallies = [_Tally(one) for one in checked]
    sites = list(dict.fromkeys(site for one in checked for site in (one.site, one.reads)))
    with tqdm(total=len(given), desc="quality", unit="prompt", leave=False, disable=None if progress else True) as bar:
        for rows in batches(len(given), batch):
            run = model.run(given[rows], record=sites, logits="all")
            clean, run = _losses(run), replace(run, logits=None)
            zeros: dict[tuple[Site, int], Tensor] = {}
            for tally in tallies:
                tally.add(model, run, clean, zeros)
            bar.update(len(rows))
    return [tally.card(model) for tally in tallies]


class _Tally:
    """What a dictionary's card is made of, summed over the tokens so far."""

    def __init__(self, one: Featurizer) -> None:
        self.one = one
        self.tokens = self.predictions = 0
        self.active, self.mean = (torch.zeros(n, dtype=torch.float64) for n in (one.n_features, one.widths[1]))
        self.square = self.error = self.ratio = 0.0
        self.losses = torch.zeros(3, dtype=torch.float64)

    def add(
        self, model: HookedModel, run: Run, clean: Float[Tensor, "batch next"], zeros: dict[tuple[Site, int], Tensor]
    ) -> None:
        """The tokens of one clean run; `zeros` keeps the losses of runs with zeros for other dictionaries."""
        one, prompts = self.one, run.prompts
        keep = prompts.mask.clone()
        keep[:, : one.skip] = False
        features = one.encode(flat(run[one.reads])[keep])
        rebuilt = one.decode(features)
        self._add_tokens(flat(run[one.site])[keep].double(), features, rebuilt.double())
        predicted = keep[:, :-1] & prompts.mask[:, 1:]
        instead = _losses_with(model, run, one.site, keep, rebuilt)
        if (one.site, one.skip) not in zeros:
            zeros[one.site, one.skip] = _losses_with(model, run, one.site, keep, torch.zeros_like(rebuilt))
        every = torch.stack([clean, instead, zeros[one.site, one.skip]])
        self.losses += every[:, predicted].double().sum(1).cpu()
        self.predictions += int(predicted.sum())

    def _add_tokens(
        self, x: Float[Tensor, "token d"], features: Float[Tensor, "token feature"], rebuilt: Float[Tensor, "token d"]
    ) -> None:
        self.tokens += len(x)
        self.active += (features != 0).sum(0).cpu()
        self.mean += x.sum(0).cpu()
        self.square += float(x.square().sum())
        self.error += float((x - rebuilt).square().sum())
        self.ratio += float((rebuilt.norm(dim=1) / x.norm(dim=1)).sum())

    def card(self, model: HookedModel) -> QualityCard:
        density = self.active / self.tokens
        variance = self.square / self.tokens - float((self.mean / self.tokens).square().sum())
        quantiles = torch.quantile(density, torch.tensor(QUANTILES, dtype=torch.float64))
        ce_clean, ce_dictionary, ce_zero = (self.losses / self.predictions).tolist()
        return QualityCard(
            key=self.one.key,
            site=str(self.one.site),
            model=model.identity.name,
            tokens=self.tokens,
            predictions=self.predictions,
            skip=self.one.skip,
            features=self.one.n_features,
            l0=float(density.sum()),
            explained_variance=1 - self.error / self.tokens / variance if variance > 0 else float("nan"),
            relative_norm=self.ratio / self.tokens if isfinite(self.ratio) else float("nan"),
            dead=float((self.active == 0).double().mean()),
            density={str(q): value for q, value in zip(QUANTILES, quantiles.tolist(), strict=True)},
            ce_clean=ce_clean,
            ce_dictionary=ce_dictionary,
            ce_zero=ce_zero,
        )


def _losses(run: Run) -> Float[Tensor, "batch next"]:
    """-log p of each next token; a prompt at a time, as logits in full precision are large."""
    each = zip(run.logits[:, :-1], run.prompts.ids[:, 1:], strict=True)  # type: ignore[index]
    return torch.stack([torch.nn.functional.cross_entropy(x.float(), ids, reduction="none") for x, ids in each])


def _losses_with(
    model: HookedModel, run: Run, site: Site, keep: Bool[Tensor, "batch pos"], values: Float[Tensor, "token d"]
) -> Float[Tensor, "batch next"]:
    """The losses when the site holds other values at the tokens kept."""
    x = run[site]
    new = flat(x).clone()
    new[keep] = values.to(x.dtype)
    return _losses(model.run(run.prompts, [Patch(site, new.view_as(x))], logits="all"))
