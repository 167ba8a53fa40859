"""What is patched together, and where the new values come from: the input of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from interp.errors import PromptError, SiteError
from interp.models.base import HookedModel
from interp.scoring import Scorer
from interp.site import Site
from interp.tokens import Prompts


class Part(NamedTuple):
    """One place of a cell.

    Attributes:
        site: where.
        positions: per prompt, the positions (destinations at `pattern`); None for all of them.
        head: one head, or None for all.
        units: (start, stop) of the last axis, or None for all.
    """

    site: Site
    positions: tuple[tuple[int, ...], ...] | None = None
    head: int | None = None
    units: tuple[int, int] | None = None


Cell = tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class Source:
    """Where patched values come from: sites of a run, or a constant tensor per site that broadcasts to the run's.

    Args:
        prompts: run to take values from, row by row; None when `values` holds them all.
        noise: added to `embed` in that run [prompt, pos, d_model], or None.
        values: site -> [prompt or 1, pos or 1, ...], instead of a run.
    """

    prompts: Prompts | None = None
    noise: Tensor | None = None
    values: Mapping[Site, Tensor] = field(default_factory=dict)

    def constant(self, site: Site, like: Tensor, rows: list[int]) -> Tensor:
        """The constant values of some rows, broadcast to the running tensor `like`."""
        x = self.values[site].to(like)
        x = x if x.shape[0] == 1 else x[rows]
        if x.shape[1] != 1 and x.shape[1] != like.shape[1]:
            x = x[:, : like.shape[1]]
        return x.expand(like.shape)


def check_cells(model: HookedModel, cells: Sequence[Cell], lengths: list[int]) -> None:
    """Raise for the parts that name something the model or the prompts do not have."""
    parts = dict.fromkeys(part for cell in cells for part in cell)
    if faults := [fault for part in parts for fault in _part_faults(model, part, lengths)]:
        more = f"; and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise SiteError("; ".join(faults[:10]) + more + ".")


def _part_faults(model: HookedModel, part: Part, lengths: list[int]) -> list[str]:
    site, sizes, faults = model.check_site(part.site), model.shape.sizes(part.site), []
    heads = sizes["kv_head" if "kv_head" in site.axes else "head"] if site.has_heads else 0
    if part.head is not None and not 0 <= part.head < heads:
        allowed = f"allowed 0 to {heads - 1}" if heads else "it has no heads"
        faults.append(f"{site}: head {part.head} out of range; {allowed}")
    patched = [n for n, where in zip(lengths, part.positions or [lengths] * len(lengths), strict=False) if where]
    width = min(patched, default=max(lengths)) if site.kind == "pattern" else sizes["d"]
    if part.units is not None and not 0 <= part.units[0] < part.units[1] <= width:
        faults.append(f"{site}: units {part.units} out of range; allowed 0 to {width}")
    if part.positions is not None and len(part.positions) != len(lengths):
        return [*faults, f"{site}: positions for {len(part.positions)} prompts, there are {len(lengths)}"]
    return faults + [
        f"{site}: position {p} of prompt {row} out of range; it has {lengths[row]} tokens"
        for row, where in enumerate(part.positions or ())
        for p in where
        if not 0 <= p < lengths[row]
    ]


def check_prompts(base: Prompts, source: Source, cells: Sequence[Cell], scorer: Scorer) -> None:
    """Raise unless source and answers have a row for each prompt, of its length."""
    lengths, given = base.lengths.tolist(), source.prompts
    rows = {"answers": len(scorer.answers)} | ({} if given is None else {"source": len(given)})
    faults = [f"{what} for {n} prompts, there are {len(base)}" for what, n in rows.items() if n != len(base)]
    if given is None:
        missing = {str(part.site): None for cell in cells for part in cell if part.site not in source.values}
        faults += [f"the source has neither prompts nor values for {', '.join(missing)}"] if missing else []
    if not faults and given is not None:
        pairs = enumerate(zip(lengths, given.lengths.tolist(), strict=True))
        unequal = [f"prompt {row} has {n} and {other} tokens" for row, (n, other) in pairs if n != other]
        faults += [f"base and source differ in length: {', '.join(unequal)}"] if unequal else []
    if not faults:
        pairs = enumerate(zip(lengths, scorer.last_target.tolist(), strict=True))
        faults = [f"prompt {row} has {n} tokens, its answer is read at position {t}" for row, (n, t) in pairs if t >= n]
    if faults:
        raise PromptError("; ".join(faults) + "; patches go row by row and position by position.")
