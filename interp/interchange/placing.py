"""Where an exchange takes place: the contract of an interchange, and the one at fixed positions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.errors import OptionError, SiteError
from interp.interchange.examples import Batch
from interp.interchange.exchanges import Exchange
from interp.interchange.states import Resumption, States, entry
from interp.site import Site
from interp.tasks.base import Positions

Mode = Literal["soft", "one_to_many", "one_to_one", "single"]
"""How weights over pairs of tokens are used; at fixed positions all are the same."""
MODES: tuple[Mode, ...] = ("soft", "one_to_many", "one_to_one", "single")


class Interchange(nn.Module, ABC):
    """Puts a part of source runs into base runs at a site; what it learns are its parameters.

    Attributes:
        site: where.
    """

    site: Site

    @abstractmethod
    def placed(
        self, batch: Batch, states: States, base: Float[Tensor, "example base d"], mode: Mode, *, forced: bool = False
    ) -> tuple[Float[Tensor, "example base d"], Float[Tensor, " example"]]:
        """The base's values at the site, changed, and what is added to the loss of each example.

        Args:
            states: of all rows at `needs`.
            base: the site's values in the batch's base rows.
            mode, forced: how a learned choice of positions is made.
        """

    @property
    def needs(self) -> list[Site]:
        """Sites whose states it reads."""
        return list(dict.fromkeys([entry(self.site), self.site]))

    def anneal(self, done: float) -> None:
        """Set temperatures and weights for a share `done` (0 to 1) of the updates."""

    @abstractmethod
    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser whose usual rate is `rate`."""


class AtRoles(Interchange):
    """An exchange at positions that are roles of the prompts, such as the entity's last token.

    Args:
        site: where.
        exchange: of what.
        base_role, source_role: positions changed, and read; as many in both prompts of an example.
        weight: of the exchange's penalty in the loss.
    """

    def __init__(
        self, site: Site | str, exchange: Exchange, base_role: str, source_role: str | None = None, weight: float = 0.0
    ) -> None:
        super().__init__()
        self.site, self.exchange, self.weight = Site.parse(site), exchange, weight
        self.base_role, self.source_role = base_role, base_role if source_role is None else source_role
        if self.site.kind == "pattern":
            raise SiteError("an interchange takes place at a site that holds one vector a position; not at 'pattern'.")

    def placed(
        self, batch: Batch, states: States, base: Float[Tensor, "example base d"], mode: Mode, *, forced: bool = False
    ) -> tuple[Float[Tensor, "example base d"], Float[Tensor, " example"]]:
        source = states.take(self.site, batch.source, batch.source_real.shape[1], base.device)
        here = batch.data.positions(self.base_role, batch.base.tolist())
        there = batch.data.positions(self.source_role, batch.source.tolist())
        rows, at, of = paired(here, there, base.device)
        change = self.exchange.change(base[rows, at], source[rows, of])
        penalty = (self.weight * self.exchange.penalty()).to(base.device).expand(len(batch))
        return base.index_put((rows, at), base[rows, at] + change.to(base)), penalty

    def anneal(self, done: float) -> None:
        self.exchange.anneal(done)

    def groups(self, rate: float) -> list[dict[str, Any]]:
        return self.exchange.groups(rate)


def interchanged(
    resumption: Resumption, batch: Batch, interchange: Interchange | None, mode: Mode = "soft", *, forced: bool = False
) -> tuple[Float[Tensor, "example target d_vocab"], Float[Tensor, " example"]]:
    """Logits where the answers are read, with the interchange made (None: nothing is changed), and its penalties."""
    penalties = [torch.zeros(len(batch), device=resumption.model.device)]

    def change(base: Tensor) -> Tensor:
        if interchange is None:
            return base
        new, penalty = interchange.placed(batch, resumption.states, base, mode, forced=forced)
        penalties.append(penalty)
        return new

    return resumption.logits(batch, change), penalties[-1]


def paired(
    here: Sequence[Positions], there: Sequence[Positions], device: torch.device
) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Rows, base positions and source positions of every pair.

    Raises:
        OptionError: an example with more positions on one side than on the other.
    """
    uneven = [row for row, (one, other) in enumerate(zip(here, there, strict=True)) if len(one) != len(other)]
    if uneven:
        row = uneven[0]
        raise OptionError(
            f"{len(uneven)} examples have another number of base than of source positions (example {row}: "
            f"{list(here[row])} and {list(there[row])}); use roles of one token, such as last_entity."
        )
    flat = [(row, p, q) for row, pairs in enumerate(zip(here, there, strict=True)) for p, q in zip(*pairs, strict=True)]
    rows, at, of = torch.tensor(flat, device=device).T
    return rows, at, of
