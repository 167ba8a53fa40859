"""What a sweep must compute and in which order, decided before anything is computed.

A cell on a prompt is left out when it certainly has effect 0: base and source agree in it, or no target can see it. The
others are jobs, ordered so that those of one first position run together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from interp.cells import Cell, Part
from interp.models.base import HookedModel
from interp.models.runs import Captured
from interp.scoring import Scorer
from interp.site import Site
from interp.tokens import Prompts

REASONS = ("", "no difference", "no path to the metric", "position absent")
"""Why a cell was not run for a prompt. The effect is then exactly 0; NaN where the prompt lacks the position."""
NO_DIFFERENCE, NO_PATH, ABSENT = 1, 2, 3

_DEAD_ENDS = frozenset(
    "q pattern z attn_proj attn_out resid_mid mlp_in neuron mlp_proj mlp_out resid_post resid_final".split()
)
"""Kinds that, in the last block, reach only the logits of their own position."""


class Job(NamedTuple):
    """One cell on one prompt: where its suffix begins, which block it enters, and which prompt of the group it is."""

    cell: int
    row: int
    first: int
    layer: int


@dataclass(frozen=True)
class Plan:
    """What a sweep will cost, known before it runs.

    Attributes:
        patches: cell x prompt pairs in all; `run` of them are computed, `skipped` counts the others by reason.
        token_layers: positions x blocks computed; a plain loop would compute `plain_token_layers`.
        row_bytes: estimated activation memory of one position of one row.
        chunk_tokens: positions in flight at once.
        engine: what runs them.
    """

    patches: int
    run: int
    skipped: Mapping[str, int]
    token_layers: int
    plain_token_layers: int
    row_bytes: int
    chunk_tokens: int
    engine: Literal["wave", "plain"]

    @property
    def forwards(self) -> float:
        """Arithmetic in forward passes of an average prompt."""
        return self.patches * self.token_layers / max(self.plain_token_layers, 1)

    def __str__(self) -> str:
        saved = self.plain_token_layers / max(self.token_layers, 1)
        skipped = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items() if n) or "none"
        return (
            f"{self.patches} patches, {self.run} to run (skipped: {skipped}); {saved:.0f}x less arithmetic than one "
            f"forward each; about {self.row_bytes * self.chunk_tokens / 2**20:.0f} MiB in flight"
        )


@dataclass(frozen=True, eq=False)
class Group:
    """Prompts of one length: the base run to resume from, and the source's values at the swept sites."""

    members: list[int]
    base: Captured
    source: Mapping[Site, Tensor]
    scorer: Scorer


# --- planning ---


def jobs_of(group: Group, cells: Sequence[Cell], reasons: Tensor, n_layers: int, skip_zeros: bool) -> list[Job]:
    """What must be run for a group, in order of first position and layer; writes the reasons for what need not."""
    width = group.base.run.prompts.ids.shape[1]
    last = group.scorer.last_target.tolist()
    targets = [set(row) - {-1} for row in group.scorer.answers.positions.tolist()]
    same = {site: _equal(group, site) for site in group.source} if skip_zeros else {}
    jobs = []
    for number, cell in enumerate(cells):
        for row, prompt in enumerate(group.members):
            places: list[Sequence[int]] = [range(width) if p.positions is None else p.positions[prompt] for p in cell]
            if not any(map(len, places)):
                reasons[number, prompt] = ABSENT
                continue
            if skip_zeros:
                if not _seen(cell, places, last[row], targets[row], n_layers):
                    reasons[number, prompt] = NO_PATH
                    continue
                places = [_differing(part, row, where, same) for part, where in zip(cell, places, strict=True)]
                if not any(map(len, places)):
                    reasons[number, prompt] = NO_DIFFERENCE
                    continue
            first = min(min(where) for where in places if len(where))
            jobs.append(Job(number, row, first, min(_entry(p.site, n_layers) for p in cell)))
    return sorted(jobs, key=lambda job: (job.first, job.layer))


def _entry(site: Site, n_layers: int) -> int:
    """The block at whose input a row patched at `site` joins; n_layers is the final norm."""
    if site.kind == "embed":
        return 0
    if site.layer is None:
        return n_layers
    return site.layer + (site.kind == "resid_post")


def _equal(group: Group, site: Site) -> np.ndarray:
    """Where base and source agree exactly, with the position on axis 1: [row, pos, (head,) unit]."""
    same = (group.base.run[site] == group.source[site]).cpu().numpy()
    return same.swapaxes(1, 2) if site.kind == "pattern" else same


def _seen(cell: Cell, places: Sequence[Sequence[int]], last: int, targets: set[int], n_layers: int) -> bool:
    """Whether any place of the cell has a path to a target."""
    for part, positions in zip(cell, places, strict=True):
        if part.site.kind in _DEAD_ENDS and part.site.layer in (n_layers - 1, None):
            if targets & set(positions):
                return True
        elif any(p <= last for p in positions):
            return True
    return False


def _differing(part: Part, row: int, positions: Sequence[int], same: Mapping[Site, np.ndarray]) -> list[int]:
    """Those of the part's positions where base and source differ in what it covers."""
    if not len(positions):
        return []
    equal = same[part.site][row, list(positions)]
    if part.head is not None:
        equal = equal[:, part.head]
    if part.units is not None:
        equal = equal[..., part.units[0] : part.units[1]]
    unequal = ~equal.reshape(len(positions), -1).all(axis=1)
    return [positions[int(place)] for place in np.flatnonzero(unequal)]


def plan_of(
    model: HookedModel,
    base: Prompts,
    reasons: Tensor,
    jobs: Sequence[list[Job]],
    groups: Sequence[Group],
    memory: float,
    chunk_tokens: int,
    waving: bool,
) -> Plan:
    shape, longest = model.shape, int(base.lengths.max())
    per_token = 6 * shape.d_model + 3 * shape.d_ff + 4 * (shape.n_heads + 2 * shape.n_kv_heads) * shape.d_head
    item = groups[0].base.resid[0].element_size()
    row_bytes = item * (per_token + 2 * shape.n_heads * longest)
    tokens = 0
    for group, work in zip(groups, jobs, strict=True):
        width = group.base.run.prompts.ids.shape[1]
        if waving:
            tokens += sum((width - job.first) * (shape.n_layers - job.layer) for job in work)
        else:
            tokens += len(work) * width * shape.n_layers
    skipped = {REASONS[i]: int((reasons == i).sum()) for i in (NO_DIFFERENCE, NO_PATH, ABSENT)}
    plain = len(reasons) * int(base.lengths.sum()) * shape.n_layers
    fits = max(int(memory * 2**30 / row_bytes), longest)
    run = sum(map(len, jobs))
    used: Literal["wave", "plain"] = "wave" if waving else "plain"
    return Plan(reasons.numel(), run, skipped, tokens, plain, row_bytes, min(chunk_tokens, fits), used)


def chunks(jobs: list[Job], group: Group, chunk_tokens: int, waving: bool) -> Iterator[list[Job]]:
    """Jobs with one first position each, at most `chunk_tokens` positions at a time."""
    width = group.base.run.prompts.ids.shape[1]
    firsts = sorted({job.first for job in jobs}) if waving else [0]
    for first in firsts:
        work = [job for job in jobs if job.first == first] if waving else jobs
        size = max(chunk_tokens // (width - first), 1)
        for start in range(0, len(work), size):
            yield work[start : start + size]
