"""How well an interchange does: Cause, Iso, Disentangle.

    Cause(A)       = share of cause examples of concept A answered with the source's value
    Iso(A)         = mean over what else is asked of the share answered with the base's own value
    Disentangle(A) = (Cause(A) + Iso(A)) / 2

An answer counts where each of its first tokens has the largest logit after the right ones before it, which is when
greedy decoding gives these tokens.

Sources: RAVEL (arXiv 2402.17700): macro averages over what is asked and over concepts. HyperDAS (arXiv 2503.10894):
micro averages over all examples.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from tqdm import tqdm

from interp.errors import OptionError, check_choice
from interp.interchange.examples import Counterfactuals, batch_of
from interp.interchange.placing import Interchange, Mode, interchanged
from interp.interchange.states import Resumption
from interp.recovery import resamples
from interp.table import Table
from interp.tokens import batches

Convention = Literal["macro", "micro"]
Answer = Literal["full", "first"]
DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class InterchangeScores:
    """Which examples were answered as they should.

    Attributes:
        data: the examples.
        full, first: whether the whole answer is right, and its first token.
    """

    data: Counterfactuals
    full: Bool[np.ndarray, " example"]
    first: Bool[np.ndarray, " example"]

    def cause(self, concept: str | None = None, **how: str) -> float:
        """Share of cause examples answered with the source's value; over all concepts when None."""
        return float(self._means(concept, **how)[0])

    def isolate(self, concept: str | None = None, **how: str) -> float:
        """Share of isolate examples answered with the base's own value."""
        return float(self._means(concept, **how)[1])

    def disentangle(self, concept: str | None = None, **how: str) -> float:
        """Mean of cause and isolate.

        Args:
            how: ``convention``: ``"macro"`` (default) or ``"micro"``; ``answer``: ``"full"`` (default) or ``"first"``.
        """
        return float(self._means(concept, **how).mean())

    def interval(self, concept: str | None = None, *, seed: int = 0, **how: str) -> tuple[float, float]:
        """95 % interval of `disentangle`, by resampling the base prompts' entities (prompts where they have none)."""
        means = self._means(concept, weights=self._weights(seed), **how).mean(-1)
        return _bounds(means)

    def gain_over(
        self, other: "InterchangeScores", concept: str | None = None, *, seed: int = 0, **how: str
    ) -> tuple[float, float, float]:
        """Difference of `disentangle` to another interchange on the same examples, and its paired 95 % interval.

        Raises:
            OptionError: other examples.
        """
        if self.data.answers != other.data.answers or not np.array_equal(self.data.base, other.data.base):
            raise OptionError("the two scores are of different examples; score both on the same data.")
        weights = self._weights(seed)
        difference = self.disentangle(concept, **how) - other.disentangle(concept, **how)
        draws = [one._means(concept, weights=weights, **how).mean(-1) for one in (self, other)]
        return difference, *_bounds(draws[0] - draws[1])

    def table(self, **how: str) -> Table:
        """Cause, isolate and disentangle of every concept, and of all."""
        names = [*self.data.concept_names, None]
        rows = [self._means(name, **how) for name in names]
        intervals = [self.interval(name, **how) for name in names]
        return Table({
            "concept": [name or "all" for name in names], "cause": [float(r[0]) for r in rows],
            "isolate": [float(r[1]) for r in rows], "disentangle": [float(r.mean()) for r in rows],
            "low": [low for low, _ in intervals], "high": [high for _, high in intervals],
        })  # fmt: skip

    def _entities(self) -> list[str]:
        """What is resampled: each example's base entity."""
        named = self.data.groups.get("entity")
        return [str(row) if named is None else named[row] for row in self.data.base.tolist()]

    def _weights(self, seed: int) -> Float[np.ndarray, "resample entity"]:
        return resamples(len({*self._entities()}), DRAWS, seed).numpy()

    def _means(
        self, concept: str | None, weights: Float[np.ndarray, "*resample entity"] | None = None,
        convention: str = "macro", answer: str = "full",
    ) -> Float[np.ndarray, "*resample 2"]:  # fmt: skip
        """Cause and isolate; NaN where there is no example of the kind."""
        check_choice("convention", convention, get_args(Convention))
        check_choice("answer", answer, get_args(Answer))
        right = self.full if answer == "full" else self.first
        names = sorted({*(entities := self._entities())})
        number = {name: n for n, name in enumerate(names)}
        if concept is not None:
            self.data.about(concept)
        cells: dict[tuple[str, str], int] = {}
        for pair in zip(self.data.concepts, self.data.queried, strict=True):
            if concept in (None, pair[0]):
                cells.setdefault(pair, len(cells))
        sums = np.zeros((2, len(names), len(cells)))  # right ones, all
        for n, pair in enumerate(zip(self.data.concepts, self.data.queried, strict=True)):
            if pair in cells:
                sums[:, number[entities[n]], cells[pair]] += right[n], 1
        weights = np.full(len(names), 1 / len(names)) if weights is None else weights
        return _reduced(*(weights @ one for one in sums), list(cells), convention)


def _reduced(right: np.ndarray, count: np.ndarray, cells: list[tuple[str, str]], convention: str) -> np.ndarray:
    """Cause and isolate [..., 2] from weighted counts [..., cell]."""
    found = []
    for cause in (True, False):
        picked = [n for n, (concept, asked) in enumerate(cells) if (concept == asked) == cause]
        if not picked:
            found.append(np.full(right.shape[:-1], np.nan))
        elif convention == "micro":
            found.append(_ratio(right[..., picked].sum(-1), count[..., picked].sum(-1)))
        else:
            concepts = {cells[n][0] for n in picked}
            shares = _ratio(right, count)
            of = [np.nanmean(shares[..., [n for n in picked if cells[n][0] == one]], -1) for one in sorted(concepts)]
            found.append(np.mean(of, 0))
    return np.stack(found, -1)


def _ratio(right: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(right, count, out=np.full(np.shape(right), np.nan), where=np.asarray(count) > 0)


def _bounds(draws: np.ndarray) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def score_interchange(
    resumption: Resumption,
    data: Counterfactuals,
    interchange: Interchange | None,
    *,
    mode: Mode = "one_to_one",
    forced: bool = False,
    batch: int = 64,
    progress: bool = True,
) -> InterchangeScores:
    """Run every example with an interchange made (None: nothing is changed, a control).

    Args:
        resumption: runs of the model with the interchange's site changed.
        mode, forced: how a learned choice of positions is made; see `interp.methods.hyperdas`.
        batch: examples in one pass.

    Raises:
        OptionError: an interchange at another site, or data of other prompts.
    """
    if interchange is not None and interchange.site != resumption.site:
        raise OptionError(f"the interchange is at {interchange.site}, the runs change {resumption.site}.")
    if data.prompts is not resumption.states.prompts:
        raise OptionError("the states are of other prompts than the data's; compute them for these.")
    full, first = np.zeros(len(data), dtype=bool), np.zeros(len(data), dtype=bool)
    was = interchange.training if interchange is not None else False
    if interchange is not None:
        interchange.eval()
    order = np.argsort(data.prompts.lengths.numpy()[data.base], kind="stable").tolist()
    try:
        with torch.no_grad(), tqdm(total=len(data), disable=None if progress else True, leave=False) as bar:
            for some in batches(len(order), batch):
                rows = [order[n] for n in some]
                one = batch_of(data, rows, resumption.model.device)
                logits, _ = interchanged(resumption, one, interchange, mode, forced=forced)
                hit = (logits.argmax(-1) == one.ids) | (one.ids < 0)
                full[rows], first[rows] = hit.all(1).cpu().numpy(), hit[:, 0].cpu().numpy()
                bar.update(len(rows))
    finally:
        if interchange is not None:
            interchange.train(was)
    return InterchangeScores(data, full, first)
