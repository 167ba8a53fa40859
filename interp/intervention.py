"""Interventions as values: where an activation is changed, and what replaces it.

Every intervention names a site and, optionally, heads, positions, units and rows of the batch; nothing else of the
activation changes. They apply in the order given, and each one must fire, or the run raises.

Positions count from a prompt's first real token. Besides numbers there are words: ``"all"`` (also None), ``"end"`` or
``"last prompt token"``, and in generation ``"prompt"`` and ``"new tokens"``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from interp.errors import InterventionError, OptionError
from interp.regions import WORDS, Index, Layout, Position, Region, as_list, only_axis, padded, per_row
from interp.run_values import beyond_run, from_run, mean_of, run_faults
from interp.site import Site

WHOLE = (None, "all")  # positions that are all there are


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
        for name in ("head", "pos", "unit", "rows"):  # numpy's and torch's numbers become Python's
            given = getattr(self, name)
            object.__setattr__(self, name, given.tolist() if hasattr(given, "tolist") else given)
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
        mask = present.view(len(rows), *only_axis(x.ndim - 1, pos_axis - 1, columns.shape[1]))
        index = []
        for axis, name in enumerate(axes):
            if axis == 0:
                index.append(rows.view(only_axis(x.ndim, 0, len(rows))))
            elif axis == pos_axis:
                index.append(columns.view(len(rows), *only_axis(x.ndim - 1, axis - 1, columns.shape[1])))
            elif name == "src" and self.unit is not None:
                sources, there = self._sources(rows, x, layout)
                index.append(sources)
                mask = mask & there
            else:
                chosen = self.head if name in ("head", "kv_head") else self.unit if axis == x.ndim - 1 else None
                picked = torch.tensor(as_list(chosen) or list(range(x.shape[axis])), device=x.device)
                index.append(picked.view(only_axis(x.ndim, axis, len(picked))))
        whole = self.head is None and self.unit is None and self.rows is None and self.pos in WHOLE
        return Region(tuple(index), mask, rows, positions, whole)

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
        if self.pos in (*WHOLE, "prompt", "new tokens"):
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
        return region.put(x, self._spread(self.change(values, region), values).to(x.device))

    def _spread(self, new: Tensor, values: Tensor) -> Tensor:
        """`new` in the shape of the selected part."""
        try:
            return new.expand(values.shape)
        except RuntimeError:
            raise InterventionError(
                f"{self}: the new value has shape {tuple(new.shape)}; it must broadcast to {tuple(values.shape)} "
                f"({' x '.join(self.site.axes)} of the selected part)."
            ) from None


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
        if not isinstance(self.factor, Tensor):
            return values * self.factor
        return values * self._spread(self.factor.to(values.device, values.dtype), values)


@dataclass(frozen=True, eq=False)
class Add(Intervention):
    """Add `coefficient` times `direction` (steering); `direction` broadcasts to the selected part."""

    direction: Tensor | None = None
    coefficient: float = 1.0

    def change(self, values: Tensor, region: Region) -> Tensor:
        if self.direction is None:
            raise InterventionError(f"{self} has no direction; pass a tensor of the site's width.")
        return values + self.coefficient * self._spread(self.direction.to(values.device, values.dtype), values)


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
