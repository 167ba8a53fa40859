"""What a reader of patching scores should be told, in words: where a metric cannot show what it seems to show."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from interp.metrics import Metric
from interp.recovery import SMALLEST_GAP

SMALLEST_HEADROOM = 1.5
"""Headroom P_corrupted / (2 SD - mean) below which a probability cannot show harmful components (Zhang & Nanda)."""


def cautions(
    metrics: Sequence[Metric],
    number: int,
    scores: Float[np.ndarray, "metric node"],
    direction: str,
    corrupted: float | None,
) -> tuple[str, ...]:
    """What to know about the scores of metric `number`.

    Args:
        scores: every metric's mean scores.
        corrupted: mean of this metric in the corrupted run, if there is one.
    """
    one, notes = metrics[number], []
    if one.discrete:
        notes.append(f"{one.name} moves in steps, so small effects do not show; measure logit_diff beside it.")
    if direction != "denoising":
        return tuple(notes)
    names = [m.name for m in metrics]
    if one.name == "prob" and corrupted is not None:
        notes += _floor(scores[number], corrupted)
    if one.name == "logit_diff" and "logit" in names:
        notes += _damage(scores[number], scores[names.index("logit")])
    return tuple(notes)


def _floor(scores: np.ndarray, floor: float) -> list[str]:
    """A probability cannot fall below 0, so where the corrupted run's is small no harmful effect can show."""
    known = scores[~np.isnan(scores)]
    if not known.size:
        return []
    room = 2 * known.std() - known.mean()
    if room <= 0 or floor / room >= SMALLEST_HEADROOM:
        return []
    return [
        f"the corrupted run's probability is {floor:.2g}, so no effect can be below -{floor:.2g}, while effects "
        f"spread by {known.std():.2g}: components that hurt the behaviour cannot show; use logit_diff."
    ]


def _damage(differences: np.ndarray, logits: np.ndarray) -> list[str]:
    """A logit difference that recovers while the answer's own logit falls may be mere damage to the wrong answer."""
    top = np.argsort(-differences)[:10]
    fooled = [int(i) for i in top if differences[i] > SMALLEST_GAP and logits[i] < -SMALLEST_GAP]
    if not fooled:
        return []
    return [
        f"{len(fooled)} of the 10 highest logit_diff scores raise the difference while the answer's own logit falls "
        f"(node rows {fooled}): the patch may just damage the run; look at the column 'logit.denoising'."
    ]
