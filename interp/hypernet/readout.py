"""What a HyperDAS does, as data: scores in every mode, which tokens it pairs, how its subspaces lie to one another."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.hypernet.interchange import HyperDas
from interp.hypernet.selection import chosen
from interp.interchange.examples import Batch, Counterfactuals, batch_of
from interp.interchange.placing import MODES, Mode
from interp.interchange.scores import InterchangeScores, score_interchange
from interp.interchange.states import Resumption
from interp.table import Table
from interp.tokens import batches

OTHER = "another token"
_BATCH = 64


@dataclass(frozen=True, eq=False)
class Selections:
    """Which tokens were paired in each example.

    Attributes:
        data: the examples.
        weights: of every pair, as they are used; one [source, base] an example, without padding.
    """

    data: Counterfactuals
    weights: tuple[Float[np.ndarray, "_ _"], ...]

    def shares(self, concept: str | None = None) -> Table:
        """Share of all weight by what the base and the source token are (a role, or `OTHER`), the largest first."""
        found: Counter[tuple[str, str]] = Counter()
        for n, weights in enumerate(self.weights):
            if concept in (None, self.data.concepts[n]):
                names = [_names(self.data, int(rows[n])) for rows in (self.data.base, self.data.source)]
                for source, base in zip(*np.nonzero(weights), strict=True):
                    found[names[0][base], names[1][source]] += float(weights[source, base])  # type: ignore[assignment]
        total = sum(found.values()) or 1
        listed = found.most_common()
        return Table({
            "base": [base for (base, _), _ in listed], "source": [source for (_, source), _ in listed],
            "share": [count / total for _, count in listed],
        })  # fmt: skip

    def pairs(self) -> float:
        """Mean number of pairs an example (of weight, where they are soft)."""
        return float(np.mean([weights.sum() for weights in self.weights]))


def _names(data: Counterfactuals, row: int) -> list[str]:
    """What each token of a prompt is: the name of the smallest role that holds it, in the order of the roles."""
    names = [OTHER] * data.lengths[row]
    for role, where in sorted(data.roles.items(), key=lambda item: -len(item[1][row])):
        for position in where[row]:
            names[position] = role
    return names


def selections(
    runs: Resumption, data: Counterfactuals, one: HyperDas, *, mode: Mode = "one_to_one", forced: bool = False
) -> Selections:
    """Which tokens a HyperDAS pairs."""
    found: list[np.ndarray] = []
    for batch, _, weights in _judged(runs, data, one, mode, forced=forced):
        for n in range(len(batch)):
            source, base = data.lengths[int(batch.source[n])], data.lengths[int(batch.base[n])]
            found.append(weights[n, :source, :base].cpu().numpy())
    return Selections(data, tuple(found))


def mean_projectors(runs: Resumption, data: Counterfactuals, one: HyperDas) -> dict[str, Float[Tensor, "d d"]]:
    """The mean over a concept's examples of R R^T: eigenvalues near 1 are directions that all its examples exchange."""
    sums: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    for batch, e, _ in _judged(runs, data, one, "soft", forced=False):
        bases = one.network.basis(e)
        for n, concept in enumerate(batch.data.concepts):
            projector = bases[n] @ bases[n].T
            sums[concept] = projector if concept not in sums else sums[concept] + projector
            counts[concept] += 1
    return {concept: total / counts[concept] for concept, total in sums.items()}


def top_directions(projector: Float[Tensor, "d d"], rank: int) -> tuple[Float[Tensor, "d rank"], float]:
    """The leading directions of a mean projector, and the mean of their eigenvalues: 1 where all examples agree."""
    values, vectors = torch.linalg.eigh(projector.double())
    return vectors[:, -rank:].flip(1).float(), float(values[-rank:].mean())


def subspace_overlaps(projectors: dict[str, Float[Tensor, "d d"]], rank: int) -> Table:
    """How much any two concepts' subspaces share: tr(P Q) / rank, 1 where they are one, about rank / d by chance."""
    names = list(projectors)
    pairs = [(a, b) for a in names for b in names]
    return Table({
        "concept": [a for a, _ in pairs], "other": [b for _, b in pairs],
        "overlap": [float((projectors[a] * projectors[b]).sum()) / rank for a, b in pairs],
    })  # fmt: skip


def every_mode(
    runs: Resumption, data: Counterfactuals, one: HyperDas, modes: Sequence[Mode] = MODES, *, progress: bool = True
) -> dict[tuple[Mode, bool], InterchangeScores]:
    """Scores in each mode, as learned and forced."""
    return {
        (mode, forced): score_interchange(runs, data, one, mode=mode, forced=forced, progress=progress)
        for mode in modes
        for forced in (False, True)
    }


def _judged(
    runs: Resumption, data: Counterfactuals, one: HyperDas, mode: Mode, *, forced: bool
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Batches in order, with the summaries that subspaces follow from and the weights of pairs."""
    was = one.training
    one.eval()
    try:
        for rows in batches(len(data), _BATCH):
            batch = batch_of(data, rows, runs.model.device)
            with torch.no_grad():
                aim, scores = one.judged(batch, *one.readings(batch, runs.states))
                yield batch, aim, chosen(scores, mode, forced=forced)
    finally:
        one.train(was)
