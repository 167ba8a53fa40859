"""The part of an activation that an intervention touches, and how columns of a batch map to positions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

Position = int | str | Sequence[int] | Sequence[Sequence[int]] | None
Index = int | Sequence[int] | None

WORDS = ("all", "end", "last prompt token", "prompt", "new tokens")


class Layout(NamedTuple):
    """How the columns of a running batch map to positions.

    Attributes:
        start: columns of padding before each row's first real token.
        lengths: real tokens of each row's prompt.
        first: slot of the tensor's first column (above 0 where a key/value cache holds what came before).
    """

    start: Int[Tensor, " batch"]
    lengths: Int[Tensor, " batch"]
    first: int = 0


class Region(NamedTuple):
    """The selected part of one activation tensor: broadcastable index tensors, one an axis, and which exist.

    `whole` where it is all of the tensor, in its order.
    """

    indices: tuple[Tensor, ...]
    present: Tensor
    rows: Tensor
    positions: Tensor
    whole: bool = False

    def take(self, x: Tensor) -> Tensor:
        """The region's values, shaped rows x positions x heads x units in the site's axis order."""
        return x.clone() if self.whole else x[self.indices]

    def put(self, x: Tensor, values: Tensor) -> Tensor:
        """A copy of `x` with the region replaced where it exists."""
        if self.whole:
            return torch.where(self.present, values.to(x.dtype), x)
        shape = torch.broadcast_shapes(*(i.shape for i in self.indices))
        present = self.present.expand(shape)
        where = tuple(i.expand(shape)[present] for i in self.indices)
        return x.index_put(where, values.to(x.dtype).expand(shape)[present])


def as_list(index: Any) -> list[Any]:
    """One number or several as a list; None as an empty one."""
    if index is None:
        return []
    return [index] if isinstance(index, int) else list(index)


def per_row(positions: Any, rows: int) -> list[list[int]] | None:
    """Positions as one list a row; None when nested lists do not number `rows`."""
    listed = as_list(positions)
    if listed and not isinstance(listed[0], int):
        return [list(p) for p in listed] if len(listed) == rows else None
    return [listed] * rows


def padded(lists: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "row position"]:
    """Lists of unequal length as one tensor, -1 where absent."""
    longest = max(map(len, lists), default=0)
    return torch.tensor([[*p, *[-1] * (longest - len(p))] for p in lists], dtype=torch.long, device=device)


def only_axis(ndim: int, axis: int, size: int) -> tuple[int, ...]:
    """A shape of ones with `size` at `axis`."""
    return tuple(size if a == axis else 1 for a in range(ndim))
