"""How well an interchange does: Cause, Iso, Disentangle.

    Cause(A)       = share of cause examples of concept A answered with the source's value
    Iso(A)         = mean over what else is asked of the share answered with the base's own value
    Disentangle(A) = (Cause(A) + Iso(A)) / 2

An answer counts where each of its first tokens has the largest logit after the right ones before it, which is when
greedy decoding gives these tokens.

Sources: RAVEL (arXiv 2402.17700): macro averages over what is asked and over concepts. HyperDAS (arXiv 2503.10894):
micro averages over all examples.
"""

from collections.abc import Sequence
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

    def cause(self, concept: str | None = None, *, convention: Convention = "macro", answer: Answer = "full") -> float:
        """Share of cause examples answered with the source's value; over all concepts when None."""
        return float(self._means(concept, convention, answer)[0, 0])

    def isolate(
        self, concept: str | None = None, *, convention: Convention = "macro", answer: Answer = "full"
    ) -> float:
        """Share of isolate examples answered with the base's own value."""
        return float(self._means(concept, convention, answer)[0, 1])

    def disentangle(
        self, concept: str | None = None, *, convention: Convention = "macro", answer: Answer = "full"
    ) -> float:
        """Mean of cause and isolate; NaN where one of them has no example.

        Args:
            convention: ``"macro"``: mean over what is asked, then over concepts; ``"micro"``: over examples.
            answer: what must be right: the ``"full"`` answer or its ``"first"`` token.
        """
        return float(self._means(concept, convention, answer)[0].mean())

    def interval(
        self, concept: str | None = None, *, convention: Convention = "macro", answer: Answer = "full", seed: int = 0
    ) -> tuple[float, float]:
        """95 % interval of `disentangle`, by resampling the base prompts' entities (prompts where they have none)."""
        return _bounds(self._means(concept, convention, answer, self._weights(seed)).mean(-1))

    def gain_over(
        self, other: "InterchangeScores", concept: str | None = None, *, convention: Convention = "macro",
        answer: Answer = "full", seed: int = 0,
    ) -> tuple[float, float, float]:  # fmt: skip
        """Difference of `disentangle` to another interchange on the same examples, and its paired 95 % interval.

        Raises:
            OptionError: other examples.
        """
        if self.data.answers != other.data.answers or not np.array_equal(self.data.base, other.data.base):
            raise OptionError("the two scores are of different examples; score both on the same data.")
        weights = self._weights(seed)
        means = [one._means(concept, convention, answer).mean() for one in (self, other)]
        draws = [one._means(concept, convention, answer, weights).mean(-1) for one in (self, other)]
        return float(means[0] - means[1]), *_bounds(draws[0] - draws[1])

    def table(self, *, convention: Convention = "macro", answer: Answer = "full") -> Table:
        """Cause, isolate and disentangle of every concept, and of all."""
        names = [*self.data.concept_names, None]
        rows = [self._means(name, convention, answer)[0] for name in names]
        intervals = [self.interval(name, convention=convention, answer=answer) for name in names]
        return Table({
            "concept": [name or "all" for name in names], "cause": [float(row[0]) for row in rows],
            "isolate": [float(row[1]) for row in rows], "disentangle": [float(row.mean()) for row in rows],
            "low": [low for low, _ in intervals], "high": [high for _, high in intervals],
        })  # fmt: skip

    def _entities(self) -> list[str]:
        """What is resampled: each example's base entity."""
        named = self.data.groups.get("entity")
        return [str(row) if named is None else named[row] for row in self.data.base.tolist()]

    def _weights(self, seed: int) -> Float[np.ndarray, "resample entity"]:
        return resamples(len({*self._entities()}), DRAWS, seed).numpy()

    def _means(
        self, concept: str | None, convention: str, answer: str,
        weights: Float[np.ndarray, "resample entity"] | None = None,
    ) -> Float[np.ndarray, "resample 2"]:  # fmt: skip
        """Cause and isolate in each resample (one with all, when None); NaN where there is no example of the kind."""
        check_choice("convention", convention, get_args(Convention))
        check_choice("answer", answer, get_args(Answer))
        right = self.full if answer == "full" else self.first
        entities = self._entities()
        number = {name: n for n, name in enumerate(sorted({*entities}))}
        if concept is not None:
            self.data.about(concept)
        pairs = list(zip(self.data.concepts, self.data.queried, strict=True))
        cells = {pair: n for n, pair in enumerate(dict.fromkeys(p for p in pairs if concept in (None, p[0])))}
        hits, counts = (np.zeros((len(number), len(cells))) for _ in range(2))
        for n, pair in enumerate(pairs):
            if pair in cells:
                hits[number[entities[n]], cells[pair]] += right[n]
                counts[number[entities[n]], cells[pair]] += 1
        rows = np.full((1, len(number)), 1 / len(number)) if weights is None else weights
        return _reduced(rows @ hits, rows @ counts, list(cells), convention)


def joined_scores(parts: Sequence[tuple[Sequence[int], InterchangeScores]], data: Counterfactuals) -> InterchangeScores:
    """Scores of some data from those of its parts, each with the rows that it has."""
    full, first = np.zeros(len(data), dtype=bool), np.zeros(len(data), dtype=bool)
    for rows, one in parts:
        full[list(rows)], first[list(rows)] = one.full, one.first
    return InterchangeScores(data, full, first)


def _reduced(right: np.ndarray, count: np.ndarray, cells: list[tuple[str, str]], convention: str) -> np.ndarray:
    """Cause and isolate [resample, 2] from weighted counts [resample, cell]."""
    found = []
    for cause in (True, False):
        picked = [n for n, (concept, asked) in enumerate(cells) if (concept == asked) == cause]
        if not picked:
            found.append(np.full(len(right), np.nan))
        elif convention == "micro":
            found.append(_ratio(right[..., picked].sum(-1), count[..., picked].sum(-1)))
        else:
            concepts = {cells[n][0] for n in picked}
            shares = _ratio(right, count)
            of = [_mean(shares[..., [n for n in picked if cells[n][0] == one]]) for one in sorted(concepts)]
            found.append(_mean(np.stack(of, -1)))
    return np.stack(found, -1)


def _ratio(right: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(right, count, out=np.full(right.shape, np.nan), where=count > 0)


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the last axis, without NaN (cells that a resample has no example of); NaN where all are."""
    there = ~np.isnan(values)
    return _ratio(np.where(there, values, 0.0).sum(-1), there.sum(-1))


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
