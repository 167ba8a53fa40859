"""Settings of a stage of gate fits, and how gates follow from theta in it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import OptionError

EDGE = 1e-6
"""Gates are drawn this far from 0 and 1 at least, where theta is finite."""


class FitRow(NamedTuple):
    """One fit of a run.

    Attributes:
        init: seed of the gates it starts from, where it draws them.
        data: seed of its order of the data.
        penalty: lambda; 0 for none.
    """

    init: int
    data: int
    penalty: float = 0.0


@dataclass(frozen=True)
class Stage:
    """Settings of one stage of fits.

    Args:
        name: told apart from other stages in checkpoints and data orders.
        steps: updates.
        lr: learning rate at the first and the last update; linear between.
        batch: prompts of each fit in an update.
        clip: |theta| beyond which the penalty has no pull.
        one_sided: it has none beyond `clip` in its own direction only; False as in the authors' code.
        per_head: the penalty is lambda for each head, instead of lambda / (number of heads).
        grad_norm: largest norm of a fit's gradient; None for any.
        bound: theta is kept within plus and minus this after every update; None for no bound.
        shared_clip: clip the mean gradient of all fits of one penalty together, as the authors' code does.

    Raises:
        OptionError: a number outside its range.
    """

    name: str
    steps: int
    lr: tuple[float, float]
    batch: int
    clip: float = 4.0
    one_sided: bool = True
    per_head: bool = False
    grad_norm: float | None = 1.0
    bound: float | None = None
    shared_clip: bool = False

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1 or min(self.lr) <= 0 or self.clip <= 0:
            raise OptionError(
                f"steps={self.steps}, batch={self.batch}, lr={self.lr}, clip={self.clip}; allowed: steps from 0, batch "
                "from 1, the others above 0."
            )

    def rate(self, step: int) -> float:
        """The learning rate of an update."""
        first, last = self.lr
        return first + (last - first) * step / max(self.steps - 1, 1)


class Relaxation(ABC):
    """How gates follow from theta while they are fitted, and what the penalty pulls at."""

    @abstractmethod
    def drawn(
        self, theta: Float[Tensor, "row layer head"], rows: Sequence[FitRow], step: int
    ) -> Float[Tensor, "row layer head"]:
        """Gates of one update, differentiable in theta."""

    @abstractmethod
    def pulled(
        self, theta: Float[Tensor, "row layer head"], rows: Sequence[FitRow], stage: Stage
    ) -> Float[Tensor, "row layer head"]:
        """What lambda multiplies, for each head."""

    @abstractmethod
    def final(self, theta: Float[Tensor, "row layer head"]) -> Float[Tensor, "row layer head"]:
        """The gates that a fit ends with."""


@dataclass(frozen=True)
class Soft(Relaxation):
    """Causal head gating: G = sigmoid(theta), without noise; the penalty pulls at the clipped theta."""

    def drawn(self, theta: Tensor, rows: Sequence[FitRow], step: int) -> Tensor:
        return torch.sigmoid(theta)

    def pulled(self, theta: Tensor, rows: Sequence[FitRow], stage: Stage) -> Tensor:
        if not stage.one_sided:
            return theta.clamp(-stage.clip, stage.clip)
        up = torch.tensor([row.penalty > 0 for row in rows], device=theta.device)[:, None, None]
        return torch.where(up, theta.clamp(max=stage.clip), theta.clamp(min=-stage.clip))

    def final(self, theta: Tensor) -> Tensor:
        return torch.sigmoid(theta)


@dataclass(frozen=True)
class HardConcrete(Relaxation):
    """Noisy gates that reach 0 and 1 (Louizos et al. 2018, arXiv 1712.01312); the penalty pulls at P(gate > 0).

    With temperature 0.33 as in head pruning (Voita et al. 2019), with 2/3 as in subnetwork probing (Cao et al. 2021);
    the model's weights stay as they are in both.

    Args:
        temperature: of the concrete distribution.
        stretch: how far it reaches beyond 0 and 1 before it is cut.
    """

    temperature: float = 0.33
    stretch: float = 0.1

    def drawn(self, theta: Tensor, rows: Sequence[FitRow], step: int) -> Tensor:
        noise = []
        for row in rows:
            generator = torch.Generator().manual_seed(seed_of(row.data, "gates", step))
            uniform = torch.rand(theta.shape[1:], generator=generator, dtype=torch.float64)
            noise.append(torch.logit(uniform.clamp(EDGE, 1 - EDGE)))
        return self._cut(torch.sigmoid((theta + torch.stack(noise).to(theta)) / self.temperature))

    def pulled(self, theta: Tensor, rows: Sequence[FitRow], stage: Stage) -> Tensor:
        return torch.sigmoid(theta - self.temperature * math.log(self.stretch / (1 + self.stretch)))

    def final(self, theta: Tensor) -> Tensor:
        return self._cut(torch.sigmoid(theta))

    def _cut(self, x: Tensor) -> Tensor:
        return (x * (1 + 2 * self.stretch) - self.stretch).clamp(0.0, 1.0)


SOFT = Soft()


def seed_of(data: int, what: str, number: int) -> int:
    """A seed of its own for each purpose and number."""
    return int.from_bytes(sha256(f"{data} {what} {number}".encode()).digest()[:8])
