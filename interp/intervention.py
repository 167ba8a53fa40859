"""Interventions as values: where an activation is changed, and what replaces it.

Every intervention names a site and, optionally, heads, positions, units and rows of the batch; nothing else of the
activation changes. They apply in the order given, and each one must fire, or the run raises.

Positions count from a prompt's first real token. Besides numbers there are words: ``"all"`` (also None), ``"end"`` or
``"last prompt token"``, and in generation ``"prompt"`` and ``"new tokens"``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InterventionError, OptionError
from interp.site import Site

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
    """The selected part of one activation tensor: broadcastable index tensors, one an axis, and which exist."""

    indices: tuple[Tensor, ...]
    present: Tensor
    rows: Tensor
    positions: Tensor

    def take(self, x: Tensor) -> Tensor:
        """The region's values, shaped rows x positions x heads x units in the site's axis order."""
        return x[self.indices]

    def put(self, x: Tensor, values: Tensor) -> Tensor:
        """A copy of `x` with the region replaced where it exists."""
        shape = torch.broadcast_shapes(*(i.shape for i in self.indices))
        present = self.present.expand(shape)
        where = tuple(i.expand(shape)[present] for i in self.indices)
        return x.index_put(where, values.to(x.dtype).expand(shape)[present])


@dataclass(frozen=True, eq=False)
class Intervention(ABC):
    """What every intervention shares.

    Args:
        site: a `Site` or its text, such as ``"z[3]"``.
        head: one head or several (key/value heads at `k` and `v`); None for all.
        pos: positions (destinations at `pattern`): a number, several, one list a row, or a word; None for all.
        unit: neurons or coordinates of the last axis (source positions at `pattern`); None for all.
        rows: rows of the batch; None for all.
    """

    site: Any
    head: Index = field(default=None, kw_only=True)
    pos: Position = field(default=None, kw_only=True)
    unit: Index = field(default=None, kw_only=True)
    rows: Index = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", Site.parse(self.site))
        for needed in ("source", "reference"):
            if getattr(self, needed, self) is None:
                raise InterventionError(f"{self} has no {needed}; pass a Run that recorded the site.")
        if isinstance(self.pos, str) and self.pos not in WORDS:
            raise OptionError(f"position {self.pos!r} is not known; allowed words: {', '.join(map(repr, WORDS))}.")
        empty = [
            n for n in ("head", "pos", "unit", "rows") if isinstance(v := getattr(self, n), list | tuple) and not v
        ]
        if empty:
            raise InterventionError(f"{self.site}: {', '.join(empty)} given as an empty list; leave out to select all.")
        if self.head is not None and not self.site.has_heads:
            raise InterventionError(f"{self.site} has no heads, but head={self.head} was given; leave head out.")

    @abstractmethod
    def change(self, values: Tensor, region: Region) -> Tensor:
        """New values for the region's `values`; broadcastable to their shape."""

    def __str__(self) -> str:
        parts = [f"{n}={v}" for n in ("head", "pos", "unit", "rows") if (v := getattr(self, n)) is not None]
        return f"{type(self).__name__} at {self.site}" + (f" ({', '.join(parts)})" if parts else "")

    def faults(self, sizes: Mapping[str, int], lengths: list[int]) -> list[str]:
        """Every index that lies outside the model or the prompts, in words; empty when all fit.

        Args:
            sizes: size of each axis of the site's tensor, by name; ``d`` for the last.
            lengths: real tokens of each prompt.
        """
        faults = []
        heads = sizes.get("kv_head" if "kv_head" in self.site.axes else "head", 0)
        for name, given, size in (("head", self.head, heads), ("rows", self.rows, len(lengths))):
            bad = [i for i in as_list(given) if not 0 <= i < size]
            if bad:
                faults.append(f"{self}: {name} {bad} out of range; allowed 0 to {size - 1}")
        width = max(lengths) if self.site.kind == "pattern" else sizes["d"]
        bad = [i for i in as_list(self.unit) if not 0 <= i < width]
        if bad:
            faults.append(f"{self}: unit {bad} out of range; allowed 0 to {width - 1}")
        return faults or self._position_faults(lengths) or self.value_faults(lengths)

    def value_faults(self, lengths: list[int]) -> list[str]:
        """What is wrong with the new value for prompts of these lengths, in words."""
        return []

    def generation_faults(self) -> list[str]:
        """Why the new value does not serve in a generation, in words."""
        return []

    def _position_faults(self, lengths: list[int]) -> list[str]:
        if self.pos is None or isinstance(self.pos, str):
            return []
        rows = as_list(self.rows) or list(range(len(lengths)))
        lists = per_row(self.pos, len(rows))
        if lists is None:
            return [f"{self}: one list of positions a row is needed for {len(rows)} rows; got {len(as_list(self.pos))}"]
        return [
            f"{self}: position {p} of row {row} out of range; its prompt has positions 0 to {lengths[row] - 1}"
            for row, positions in zip(rows, lists, strict=True)
            for p in positions
            if not 0 <= p < lengths[row]
        ]

    def region(self, x: Tensor, layout: Layout) -> Region | None:
        """The part of `x` this intervention touches, or None when none of its positions is in this tensor."""
        axes = self.site.axes
        pos_axis = axes.index("dest") if self.site.kind == "pattern" else 1
        rows = torch.tensor(as_list(self.rows) or list(range(x.shape[0])), device=x.device)
        columns, present, positions = self._columns(rows, x.shape[pos_axis], layout)
        if not bool(present.any()):
            return None
        mask = present.view(len(rows), *_only(x.ndim - 1, pos_axis - 1, columns.shape[1]))
        index = []
        for axis, name in enumerate(axes):
            if axis == 0:
                index.append(rows.view(_only(x.ndim, 0, len(rows))))
            elif axis == pos_axis:
                index.append(columns.view(len(rows), *_only(x.ndim - 1, axis - 1, columns.shape[1])))
            elif name == "src" and self.unit is not None:
                sources, there = self._sources(rows, x, layout)
                index.append(sources)
                mask = mask & there
            else:
                chosen = self.head if name in ("head", "kv_head") else self.unit if axis == x.ndim - 1 else None
                picked = torch.tensor(as_list(chosen) or list(range(x.shape[axis])), device=x.device)
                index.append(picked.view(_only(x.ndim, axis, len(picked))))
        return Region(tuple(index), mask, rows, positions)

    def _sources(self, rows: Tensor, pattern: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Columns [rows, 1, 1, units] of the chosen source positions in a pattern, and which of them exist."""
        n_dest, n_src = pattern.shape[2:]
        first = layout.first + n_dest - n_src  # below layout.first where a key/value cache is read
        units = torch.tensor(as_list(self.unit), device=rows.device)
        columns = (units + layout.start.to(rows.device)[rows][:, None] - first)[:, None, None]
        return columns.clamp(0, n_src - 1), (columns >= 0) & (columns < n_src)

    def _columns(self, rows: Tensor, width: int, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Columns [rows, positions] of this tensor, which of them exist, and the positions they stand for."""
        start = layout.start.to(rows.device)[rows][:, None]
        lengths = layout.lengths.to(rows.device)[rows][:, None]
        columns = torch.arange(width, device=rows.device).expand(len(rows), -1)
        positions = columns + layout.first - start
        if self.pos in (None, "all", "prompt", "new tokens"):
            present = positions >= 0
            if self.pos == "prompt":
                present = present & (positions < lengths)
            elif self.pos == "new tokens":
                present = present & (positions >= lengths)
            return columns, present, positions
        if isinstance(self.pos, str):
            positions = lengths - 1
        else:
            positions = padded(per_row(self.pos, len(rows)) or [], rows.device)
        columns = positions + start - layout.first
        present = (positions >= 0) & (columns >= 0) & (columns < width)
        return columns.clamp(0, width - 1), present, positions

    def apply(self, x: Tensor, layout: Layout) -> Tensor | None:
        """`x` with this intervention made, or None when it touches nothing here."""
        region = self.region(x, layout)
        if region is None:
            return None
        values = region.take(x)
        new = self.change(values, region)
        try:
            torch.broadcast_shapes(new.shape, values.shape)
            fits = new.expand(values.shape)
        except RuntimeError:
            raise InterventionError(
                f"{self}: the new value has shape {tuple(new.shape)}; it must broadcast to {tuple(values.shape)} "
                f"({' x '.join(self.site.axes)} of the selected part)."
            ) from None
        return region.put(x, fits.to(x.device))


@dataclass(frozen=True, eq=False)
class Patch(Intervention):
    """Replace by the activation of another run (interchange).

    Args:
        source: a `Run` that recorded the site (of as many rows, or of one), or a tensor that broadcasts to the
            selected part.
        source_pos: positions to take from the source run, where they differ from `pos`; as many a row.
    """

    source: Any = None
    source_pos: Position = field(default=None, kw_only=True)

    def value_faults(self, lengths: list[int]) -> list[str]:
        return [] if isinstance(self.source, Tensor) else run_faults(self, self.source, lengths, self.source_pos)

    def generation_faults(self) -> list[str]:
        return [] if isinstance(self.source, Tensor) else beyond_run(self)

    def change(self, values: Tensor, region: Region) -> Tensor:
        if isinstance(self.source, Tensor):
            return self.source
        donors = region.rows if len(self.source.prompts) > 1 else torch.zeros_like(region.rows)
        return from_run(self, values, region, donors, self.source_pos)


@dataclass(frozen=True, eq=False)
class Resample(Intervention):
    """Replace by the activation of a random other row of `source` (a run that recorded the site).

    Args:
        source: run to draw donors from; row i never draws row i where the source has several rows.
        seed: of the draw.
    """

    source: Any = None
    seed: int = 0

    def value_faults(self, lengths: list[int]) -> list[str]:
        theirs = self.source.prompts.lengths.tolist()
        if len(theirs) < 2:
            return [f"{self}: the source run has {len(theirs)} row; at least 2 are needed"]
        if self.pos is None or isinstance(self.pos, str):
            both = sorted({*lengths, *theirs})
            unequal = f"{self}: prompts of unequal length ({both[0]} to {both[-1]} tokens); give the positions"
            return [unequal] if len(both) > 1 else []
        rows = len(as_list(self.rows)) or len(lengths)
        last = max((p for positions in per_row(self.pos, rows) or [] for p in positions), default=0)
        short = f"{self}: position {last} is asked of donors as short as {min(theirs)} tokens; leave the short ones out"
        return [short] if last >= min(theirs) else []

    def generation_faults(self) -> list[str]:
        return beyond_run(self)

    def change(self, values: Tensor, region: Region) -> Tensor:
        count = len(self.source.prompts)
        generator = torch.Generator().manual_seed(self.seed)
        shifts = torch.randint(1, count, (int(region.rows.max()) + 1,), generator=generator).to(region.rows.device)
        return from_run(self, values, region, (region.rows + shifts[region.rows]) % count, None)


@dataclass(frozen=True, eq=False)
class Mean(Intervention):
    """Replace by the mean over a reference run's real tokens.

    Args:
        reference: a run that recorded the site; padding never enters the mean.
        by_position: one mean a position, over the prompts long enough to have it.
        skip: first positions left out of a mean that is not by position (an attention sink).
    """

    reference: Any = None
    by_position: bool = field(default=False, kw_only=True)
    skip: int = field(default=0, kw_only=True)

    def value_faults(self, lengths: list[int]) -> list[str]:
        longest = int(self.reference.prompts.lengths.max())
        if self.site.kind == "pattern":
            return [f"{self}: a mean of attention patterns is not defined across positions; patch it instead"]
        if self.by_position and max(lengths) > longest:
            return [f"{self}: a prompt has {max(lengths)} tokens, the reference only {longest}; no mean there"]
        return [f"{self}: skip={self.skip} leaves no token of the reference"] if self.skip >= longest else []

    def generation_faults(self) -> list[str]:
        return beyond_run(self) if self.by_position else []

    def change(self, values: Tensor, region: Region) -> Tensor:
        means = mean_of(self.reference, self.site, by_position=self.by_position, skip=self.skip)
        index = list(region.indices)
        positions = region.positions if self.by_position else torch.zeros_like(region.positions)
        index[1] = positions.view(index[1].shape).clamp(0, means.shape[1] - 1)
        index[0] = torch.zeros_like(index[0])
        return means[tuple(i.to(means.device) for i in index)]


@dataclass(frozen=True, eq=False)
class Zero(Intervention):
    """Replace by zeros."""

    def change(self, values: Tensor, region: Region) -> Tensor:
        return torch.zeros_like(values)


@dataclass(frozen=True, eq=False)
class Scale(Intervention):
    """Multiply by `factor`: a number, or a tensor that broadcasts to the selected part (a gate)."""

    factor: float | Tensor = 1.0

    def change(self, values: Tensor, region: Region) -> Tensor:
        factor = self.factor
        return values * (factor.to(values.device, values.dtype) if isinstance(factor, Tensor) else factor)


@dataclass(frozen=True, eq=False)
class Add(Intervention):
    """Add `coefficient` times `direction` (steering); `direction` broadcasts to the selected part."""

    direction: Tensor | None = None
    coefficient: float = 1.0

    def change(self, values: Tensor, region: Region) -> Tensor:
        if self.direction is None:
            raise InterventionError(f"{self} has no direction; pass a tensor of the site's width.")
        return values + self.coefficient * self.direction.to(values.device, values.dtype)


@dataclass(frozen=True, eq=False)
class Edit(Intervention):
    """Replace by ``function(values)``, a tensor of the selected part's shape; the input may be edited in place."""

    function: Callable[[Tensor], Tensor] | None = None

    def change(self, values: Tensor, region: Region) -> Tensor:
        if self.function is None:
            raise InterventionError(f"{self} has no function; pass one that takes and returns a tensor.")
        new = self.function(values)
        if not isinstance(new, Tensor):
            raise InterventionError(f"{self}: the new value is {type(new).__name__}; a tensor is needed.")
        return new


def from_run(where: Any, values: Tensor, region: Region, donors: Tensor, source_pos: Position) -> Tensor:
    """What the run ``where.source`` has for the region's `values`, row `donors[i]` for the region's i-th row."""
    source = where.source[where.site]
    is_pattern = where.site.kind == "pattern"
    if is_pattern:  # a shorter prompt attends to nothing past its end
        source = torch.nn.functional.pad(source, (0, max(values.shape[-1] - source.shape[-1], 0)))
    elif any(source.shape[a] != values.shape[a] for a in _whole_axes(where)):
        raise InterventionError(
            f"{where}: the source run's {where.site} is {tuple(source.shape)}, this model's part is "
            f"{tuple(values.shape)}; patch between runs of one model."
        )
    positions = (
        region.positions if source_pos is None else padded(per_row(source_pos, len(donors)) or [], donors.device)
    )
    pos_axis = 2 if is_pattern else 1
    index = list(region.indices)
    index[0] = donors.view(index[0].shape)
    index[pos_axis] = positions.view(index[pos_axis].shape).clamp(0, source.shape[pos_axis] - 1)
    return source[tuple(i.to(source.device) for i in index)]


def run_faults(where: Intervention, source: Any, lengths: list[int], source_pos: Position) -> list[str]:
    """Why the run `source` cannot supply this intervention's values, in words."""
    theirs = source.prompts.lengths.tolist()
    if len(theirs) not in (1, len(lengths)):
        return [f"{where}: the source run has {len(theirs)} rows, this run {len(lengths)}; they must agree (or be 1)"]
    theirs = theirs * len(lengths) if len(theirs) == 1 else theirs
    rows = as_list(where.rows) or list(range(len(lengths)))
    if source_pos is not None and (where.pos is None or isinstance(where.pos, str)):
        return [f"{where}: source_pos needs pos; give the positions of both"]
    if isinstance(source_pos, str):
        return [f"{where}: source_pos={source_pos!r} is a word; give numbers"]
    if where.pos in (None, "all") or isinstance(where.pos, str):
        unequal = [r for r in rows if theirs[r] != lengths[r]]
        shown = ", ".join(f"row {r}: {theirs[r]} against {lengths[r]} tokens" for r in unequal)
        return [f"{where}: source and base have unequal lengths ({shown}); give the positions"] if unequal else []
    given, asked = per_row(where.pos, len(rows)), per_row(where.pos if source_pos is None else source_pos, len(rows))
    if given is None or asked is None:
        return [f"{where}: source_pos has {len(as_list(source_pos))} lists for {len(rows)} rows; give one a row"]
    faults = []
    for row, here, there in zip(rows, given, asked, strict=True):
        if len(here) != len(there):
            faults.append(f"{where}: row {row} has {len(here)} positions but {len(there)} source positions")
        elif any(not 0 <= p < theirs[row] for p in there):
            faults.append(f"{where}: the source's row {row} has {theirs[row]} tokens; positions {there} asked")
    return faults


def beyond_run(where: Intervention) -> list[str]:
    """Why values taken from a run position by position do not serve in a generation, in words."""
    if where.site.kind == "pattern":
        return [f"{where}: a run's patterns do not fit those of a generation; use Zero, Scale or Edit"]
    if where.pos in (None, "all", "new tokens"):
        return [f"{where}: a run has no values at new tokens; say pos='prompt' or give numbers"]
    return []


def _whole_axes(where: Intervention) -> list[int]:
    """Axes after the position that are taken whole."""
    chosen = (where.head if where.site.has_heads else where.unit, where.unit)
    return [axis for axis, index in zip(range(2, len(where.site.axes)), chosen, strict=False) if index is None]


def mean_of(run: Any, site: Site, *, by_position: bool, skip: int = 0) -> Tensor:
    """Mean of a recorded site over a run's real tokens: [1, 1, ...], or [1, pos, ...] by position (float32 sums)."""
    x, mask = run[site], run.prompts.mask.to(run[site].device)
    if not by_position:
        mask = mask & (torch.arange(mask.shape[1], device=mask.device) >= skip)
    axes = (0,) if by_position else (0, 1)
    weights = mask.view(*mask.shape, *[1] * (x.ndim - 2)).to(torch.promote_types(x.dtype, torch.float32))
    total = (x * weights).sum(axes, keepdim=True) / weights.sum(axes, keepdim=True)
    return total.to(x.dtype)


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


def _only(ndim: int, axis: int, size: int) -> tuple[int, ...]:
    """A shape of ones with `size` at `axis`."""
    return tuple(size if a == axis else 1 for a in range(ndim))
