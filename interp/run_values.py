"""Values that an intervention takes from another run, and why a run cannot supply them."""

from typing import Any

import torch
from torch import Tensor

from interp.errors import InterventionError
from interp.regions import Position, Region, as_list, padded, per_row
from interp.site import Site


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


def run_faults(where: Any, source: Any, lengths: list[int], source_pos: Position) -> list[str]:
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


def beyond_run(where: Any) -> list[str]:
    """Why values taken from a run position by position do not serve in a generation, in words."""
    if where.site.kind == "pattern":
        return [f"{where}: a run's patterns do not fit those of a generation; use Zero, Scale or Edit"]
    if where.pos in (None, "all", "new tokens"):
        return [f"{where}: a run has no values at new tokens; say pos='prompt' or give numbers"]
    return []


def _whole_axes(where: Any) -> list[int]:
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
