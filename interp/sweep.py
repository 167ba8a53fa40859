"""The sweep engine: the exact effect of very many patches, at a fraction of one forward pass each.

A `Cell` is a set of places patched together. For each cell and prompt, the base run is changed there to the source's
values and the metrics are read. Four facts save work, and none of them is an approximation:

1. a patch that changes nothing, or that no target can see, has effect 0 and is not run;
2. positions before a patch's first keep the base run's keys and values, so only the suffix is computed;
3. blocks before a patch's layer are those of the base run, so its row joins the running batch at its own layer, from
   the cached residual: one pass over the layers serves the patches of all layers, in large matrix products;
4. only the logits that the metrics read are computed.

A model that cannot resume runs the same cells in full forwards (`engine="plain"`), which is also the engine's test.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor
from tqdm import tqdm

from interp.errors import OptionError, PromptError, SiteError, check_choice
from interp.intervention import Add
from interp.models.base import HookedModel
from interp.models.runs import Captured, Tap, Taps, Wave
from interp.regions import Layout
from interp.scoring import FINAL, Scorer
from interp.site import Site
from interp.tokens import Prompts

log = logging.getLogger(__name__)

REASONS = ("", "no difference", "no path to the metric", "position absent")
"""Why a cell was not run for a prompt. The effect is then exactly 0; NaN where the prompt lacks the position."""
NO_DIFFERENCE, NO_PATH, ABSENT = 1, 2, 3

_DEAD_ENDS = frozenset(
    "q pattern z attn_proj attn_out resid_mid mlp_in neuron mlp_proj mlp_out resid_post resid_final".split()
)
"""Kinds that, in the last block, reach only the logits of their own position."""


CPU_TOKENS, GPU_TOKENS = 512, 16384
"""Positions in flight: on a CPU what its caches hold (SmolLM2: 50.8 s at 512, 55.9 s at 2048, measured)."""


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
class Sweep:
    """Measured metric values of a sweep.

    Attributes:
        values: metric under each patch; where skipped, the base run's value.
        base: metric of the unpatched base run.
        reasons: index into `REASONS`.
        plan: what was run.
    """

    values: Float[Tensor, "metric cell prompt"]
    base: Float[Tensor, "metric prompt"]
    reasons: Int8[Tensor, "cell prompt"]
    plan: Plan

    @property
    def effects(self) -> Float[Tensor, "metric cell prompt"]:
        """metric(patched) - metric(base); exactly 0 where it must be, NaN where a prompt lacks the position."""
        effects = (self.values - self.base[:, None]).masked_fill(self.reasons > 0, 0.0)
        return effects.masked_fill(self.reasons == ABSENT, torch.nan)


@dataclass(frozen=True, eq=False)
class _Group:
    """Prompts of one length: the base run to resume from, and the source's values at the swept sites."""

    members: list[int]
    base: Captured
    source: Mapping[Site, Tensor]
    scorer: Scorer


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


def sweep(
    model: HookedModel,
    base: Prompts,
    source: Source,
    cells: Sequence[Cell],
    scorer: Scorer,
    *,
    noise: Tensor | None = None,
    engine: Literal["auto", "wave", "plain"] = "auto",
    skip_zeros: bool = True,
    memory: float = 1.0,
    chunk_tokens: int | None = None,
    progress: bool = True,
) -> Sweep:
    """Metric values under every cell on every prompt.

    Args:
        base: the prompts whose runs are changed.
        source: where the new values come from.
        cells: what is patched together.
        scorer: metrics and answers, one row a prompt of `base`.
        noise: added to `embed` of the base run [prompt, pos, d_model], or None.
        engine: ``"wave"`` resumes rows at their layer, ``"plain"`` runs full forwards; ``"auto"`` prefers the former.
        skip_zeros: leave out patches whose effect is certainly 0.
        memory: GiB of activations in flight.
        chunk_tokens: at most so many positions in flight; None for what suits the device.

    Raises:
        OptionError: an unknown engine, or ``"wave"`` on a model that cannot resume.
        SiteError, PromptError: cells, source or answers that do not fit model and prompts, all named together.
    """
    check_choice("engine", engine, ("auto", "wave", "plain"))
    if engine == "wave" and not model.resumes:
        raise OptionError(f"{model.identity.name} ({model.family}) cannot resume at a layer; use engine='plain'.")
    _check_cells(model, cells, base.lengths.tolist())
    _check_prompts(base, source, cells, scorer)
    waving = model.resumes if engine == "auto" else engine == "wave"
    sites = sorted({part.site for cell in cells for part in cell}, key=lambda s: s.order)
    metrics = len(scorer.metrics)
    values = torch.full((metrics, len(cells), len(base)), torch.nan)
    base_values = torch.full((metrics, len(base)), torch.nan)
    reasons = torch.zeros(len(cells), len(base), dtype=torch.int8)
    groups = [_group(model, base, source, noise, sites, scorer, rows) for rows in _by_length(base)]
    jobs = [_jobs(group, cells, reasons, model.shape.n_layers, skip_zeros) for group in groups]
    most = chunk_tokens or (CPU_TOKENS if model.device.type == "cpu" else GPU_TOKENS)
    plan = _plan(model, base, reasons, jobs, groups, memory, most, waving)
    if engine == "auto" and not waving:
        who = f"{model.identity.name} ({model.family})"
        log.warning("%s cannot resume at a layer, so %d patches run as full forwards", who, plan.run)
    log.info("%s", plan)
    bar = tqdm(total=plan.run, disable=None if progress else True, desc="patches", unit="patch", leave=False)
    with torch.no_grad(), bar:
        for group, work in zip(groups, jobs, strict=True):
            plain = group.scorer.of_run(group.base.run)
            values = values.to(plain.dtype)
            base_values = base_values.to(plain.dtype)
            base_values[:, group.members] = plain.cpu()
            values[:, :, group.members] = plain.cpu()[:, None].expand(-1, len(cells), -1)
            for chunk in _chunks(work, group, plan.chunk_tokens, waving):
                found = _run_chunk(model, group, cells, chunk, waving)
                index = torch.tensor([(job.cell, group.members[job.row]) for job in chunk])
                values[:, index[:, 0], index[:, 1]] = found.to(values)
                bar.update(len(chunk))
    return Sweep(values, base_values, reasons, plan)


def _check_cells(model: HookedModel, cells: Sequence[Cell], lengths: list[int]) -> None:
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


def _check_prompts(base: Prompts, source: Source, cells: Sequence[Cell], scorer: Scorer) -> None:
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


def _by_length(prompts: Prompts) -> list[list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for row, length in enumerate(prompts.lengths.tolist()):
        groups[length].append(row)
    return list(groups.values())


def _group(
    model: HookedModel,
    base: Prompts,
    source: Source,
    noise: Tensor | None,
    sites: Sequence[Site],
    scorer: Scorer,
    rows: list[int],
) -> _Group:
    """Run base and source of the prompts of one length."""

    def noised(given: Tensor | None) -> list[Add]:
        return [] if given is None else [Add(Site("embed"), given[rows][:, : int(base.lengths[rows[0]])])]

    captured = _captured(model, base[rows], noised(noise), [*sites, FINAL])
    if source.prompts is None:
        found = {s: source.values[s].to(captured.run[s]) for s in sites}
        found = {s: _fit(x, captured.run[s], rows) for s, x in found.items()}
    else:
        found = dict(model.run(source.prompts[rows], noised(source.noise), sites, logits="none").cache)
    answers = scorer.answers[rows]
    reference = None if scorer.reference is None else scorer.reference[rows]
    return _Group(rows, captured, found, Scorer(model, scorer.metrics, answers, reference))


def _captured(model: HookedModel, prompts: Prompts, noise: Sequence[Add], record: Sequence[Site]) -> Captured:
    """The base run; where the model cannot resume, only what full forwards need."""
    if model.resumes:
        return model.capture(prompts, noise, record)
    start = Site("resid_pre", 0)
    run = model.run(prompts, noise, [start, *record], logits="none")
    return Captured(run, [run[start]], (), (), ())


def _fit(x: Tensor, like: Tensor, rows: list[int]) -> Tensor:
    """Constant source values brought to the group's rows and positions."""
    x = x if x.shape[0] == 1 else x[rows]
    if x.shape[1] != 1 and x.shape[1] != like.shape[1]:
        x = x[:, : like.shape[1]]
    return x.expand(like.shape)


# --- planning ---


def _jobs(group: _Group, cells: Sequence[Cell], reasons: Tensor, n_layers: int, skip_zeros: bool) -> list[Job]:
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


def _equal(group: _Group, site: Site) -> np.ndarray:
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


def _plan(
    model: HookedModel,
    base: Prompts,
    reasons: Tensor,
    jobs: Sequence[list[Job]],
    groups: Sequence[_Group],
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


def _chunks(jobs: list[Job], group: _Group, chunk_tokens: int, waving: bool) -> Iterator[list[Job]]:
    """Jobs with one first position each, at most `chunk_tokens` positions at a time."""
    width = group.base.run.prompts.ids.shape[1]
    firsts = sorted({job.first for job in jobs}) if waving else [0]
    for first in firsts:
        work = [job for job in jobs if job.first == first] if waving else jobs
        size = max(chunk_tokens // (width - first), 1)
        for start in range(0, len(work), size):
            yield work[start : start + size]


# --- running ---


class _Place(NamedTuple):
    """One part of one job: its row in the running batch, and where it is."""

    row: int
    prompt: int
    positions: tuple[int, ...]
    head: int | None
    units: tuple[int, int] | None


def _run_chunk(
    model: HookedModel, group: _Group, cells: Sequence[Cell], chunk: Sequence[Job], waving: bool
) -> Float[Tensor, "metric job"]:
    prompts = torch.tensor([job.row for job in chunk], device=group.base.resid[0].device)
    first = chunk[0].first if waving else 0
    writers = _writers(model, group, cells, chunk, first)
    if waving:
        resid = model.resume(Wave(group.base, first, _joins(group, chunk, first), prompts), writers)
    else:
        resid = _full_forward(model, group, prompts, writers)
    return group.scorer(resid, prompts, first, group.base.run[FINAL])


def _joins(group: _Group, chunk: Sequence[Job], first: int) -> list[tuple[int, Tensor]]:
    """Per layer in ascending order, the cached residuals of the rows that join there."""
    rows: dict[int, list[int]] = defaultdict(list)
    for job in chunk:
        rows[job.layer].append(job.row)
    return [(layer, group.base.resid[layer][members, first:]) for layer, members in sorted(rows.items())]


def _writers(model: HookedModel, group: _Group, cells: Sequence[Cell], chunk: Sequence[Job], first: int) -> Taps:
    """Taps that write the source's values into the chunk's rows, in forward order."""
    width = group.base.run.prompts.ids.shape[1]
    places: dict[tuple[Site, bool, int, int], list[_Place]] = defaultdict(list)
    for row, job in enumerate(chunk):
        for part in cells[job.cell]:
            given = part.positions
            where = tuple(range(width)) if given is None else given[group.members[job.row]]
            where = tuple(p for p in where if p >= job.first)  # earlier ones do not differ
            if not where:
                continue
            span = 0 if part.units is None else part.units[1] - part.units[0]
            signature = (part.site, part.head is None, span, len(where))
            places[signature].append(_Place(row, job.row, where, part.head, part.units))
    taps: Taps = defaultdict(list)
    for (site, *_), members in sorted(places.items(), key=lambda item: item[0][0].order):
        at = site
        if site.kind == "resid_post" and site.layer is not None and site.layer + 1 < model.shape.n_layers:
            at = Site("resid_pre", site.layer + 1)
        taps[at].append(_writer(site, group.source[site], members, first))
    return dict(taps)


def _writer(site: Site, source: Tensor, places: Sequence[_Place], first: int) -> Tap:
    """A tap that replaces the places' values, all of one shape, by the source's."""
    device = source.device
    positions = torch.tensor([p.positions for p in places], device=device)
    rows = torch.tensor([p.row for p in places], device=device)
    prompts = torch.tensor([p.prompt for p in places], device=device)
    # Views of all keys and values start at position 0; every other tensor starts at the first position computed.
    columns = positions if site.kind.endswith("_of_query_head") else positions - first
    values = source[_index(site, prompts, positions, places)]
    return partial(_write, _index(site, rows, columns, places), values)


def _write(index: tuple[Tensor | slice, ...], values: Tensor, x: Tensor, layout: Layout) -> Tensor:
    x = x.clone()
    x[tuple(i.to(x.device) if isinstance(i, Tensor) else i for i in index)] = values.to(x.device)
    return x


def _index(
    site: Site, rows: Int[Tensor, " place"], columns: Int[Tensor, "place pos"], places: Sequence[_Place]
) -> tuple[Tensor | slice, ...]:
    """Index of the places in the site's axes; axes that are taken whole are slices."""
    has_units = places[0].units is not None
    tail = (None,) if has_units else ()
    index: list[Tensor | slice] = [slice(None)] * len(site.axes)
    index[0] = rows[(slice(None), None, *tail)]
    index[2 if site.kind == "pattern" else 1] = columns[(slice(None), slice(None), *tail)]
    if places[0].head is not None:
        heads = torch.tensor([p.head for p in places], device=rows.device)
        index[1 if site.kind == "pattern" else 2] = heads[(slice(None), None, *tail)]
    if has_units:
        spans = [range(*p.units) for p in places if p.units is not None]
        index[-1] = torch.tensor([list(s) for s in spans], device=rows.device)[:, None, :]
    return tuple(index)


def _full_forward(model: HookedModel, group: _Group, prompts: Int[Tensor, " row"], writers: Taps) -> Tensor:
    """`resid_final` of full forwards, one row a job, from the base run's embeddings."""
    embedded, final = group.base.resid[0], []
    rows = prompts.tolist()
    taps: Taps = {site: list(taps) for site, taps in writers.items()}
    taps[Site("embed")] = [lambda x, layout: embedded[rows].to(x.device), *taps.get(Site("embed"), [])]
    taps[FINAL] = [*taps.get(FINAL, []), lambda x, layout: final.append(x)]
    ordered = {site: taps[site] for site in sorted(taps, key=lambda s: s.order)}
    model._forward(group.base.run.prompts[rows], ordered, "none")
    return final[0]
