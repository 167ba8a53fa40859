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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor
from tqdm import tqdm

from interp.cells import Cell, Source, check_cells, check_prompts
from interp.errors import OptionError, check_choice
from interp.intervention import Add
from interp.models.base import HookedModel
from interp.models.runs import Captured, Tap, Taps, Wave
from interp.regions import Layout
from interp.scoring import FINAL, Scorer
from interp.site import Site
from interp.sweep_plan import ABSENT, Group, Job, Plan, chunks, jobs_of, plan_of
from interp.tokens import Prompts, by_length

log = logging.getLogger(__name__)

CPU_TOKENS, GPU_TOKENS = 512, 16384
"""Positions in flight: on a CPU what its caches hold (SmolLM2: 50.8 s at 512, 55.9 s at 2048, measured)."""


@dataclass(frozen=True)
class Engine:
    """How a sweep runs; the results do not depend on it beyond rounding.

    Args:
        kind: ``"wave"`` resumes rows at their own layer, ``"plain"`` runs full forwards, ``"auto"`` prefers the former.
        memory: GiB of activations in flight.
        chunk_tokens: positions in flight at once, at most; None for what suits the device.
        skip_zeros: leave out patches whose effect is certainly 0.
        progress: show a bar where there is a terminal.
    """

    kind: Literal["auto", "wave", "plain"] = "auto"
    memory: float = 1.0
    chunk_tokens: int | None = None
    skip_zeros: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        check_choice("engine", self.kind, ("auto", "wave", "plain"))

    @property
    def options(self) -> dict[str, Any]:
        """The same as keyword arguments of `sweep`."""
        return {"engine" if name == "kind" else name: value for name, value in asdict(self).items()}


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
    check_cells(model, cells, base.lengths.tolist())
    check_prompts(base, source, cells, scorer)
    waving = model.resumes if engine == "auto" else engine == "wave"
    sites = sorted({part.site for cell in cells for part in cell}, key=lambda s: s.order)
    metrics = len(scorer.metrics)
    values = torch.full((metrics, len(cells), len(base)), torch.nan)
    base_values = torch.full((metrics, len(base)), torch.nan)
    reasons = torch.zeros(len(cells), len(base), dtype=torch.int8)
    groups = groups_of(model, base, source, sites, scorer, noise)
    jobs = [jobs_of(group, cells, reasons, model.shape.n_layers, skip_zeros) for group in groups]
    most = chunk_tokens or tokens_in_flight(model)
    plan = plan_of(model, base, reasons, jobs, groups, memory, most, waving)
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
            for chunk in chunks(work, group, plan.chunk_tokens, waving):
                found = _run_chunk(model, group, cells, chunk, waving)
                index = torch.tensor([(job.cell, group.members[job.row]) for job in chunk])
                values[:, index[:, 0], index[:, 1]] = found.to(values)
                bar.update(len(chunk))
    return Sweep(values, base_values, reasons, plan)


def tokens_in_flight(model: HookedModel) -> int:
    """Positions to compute at once on the model's device."""
    return CPU_TOKENS if model.device.type == "cpu" else GPU_TOKENS


def groups_of(
    model: HookedModel,
    base: Prompts,
    source: Source,
    sites: Sequence[Site],
    scorer: Scorer,
    noise: Tensor | None = None,
) -> list[Group]:
    """The prompts by length, each group with its base run and the source's values at the sites."""
    return [_group(model, base, source, noise, sites, scorer, rows) for rows in by_length(base)]


def _group(
    model: HookedModel,
    base: Prompts,
    source: Source,
    noise: Tensor | None,
    sites: Sequence[Site],
    scorer: Scorer,
    rows: list[int],
) -> Group:
    """Run base and source of the prompts of one length."""

    def noised(given: Tensor | None) -> list[Add]:
        return [] if given is None else [Add(Site("embed"), given[rows][:, : int(base.lengths[rows[0]])])]

    captured = _captured(model, base[rows], noised(noise), [*sites, FINAL])
    if source.prompts is None:
        found = {s: source.constant(s, captured.run[s], rows) for s in sites}
    else:
        found = dict(model.run(source.prompts[rows], noised(source.noise), sites, logits="none").cache)
    return Group(rows, captured, found, scorer.take(rows))


def _captured(model: HookedModel, prompts: Prompts, noise: Sequence[Add], record: Sequence[Site]) -> Captured:
    """The base run; where the model cannot resume, only what full forwards need."""
    if model.resumes:
        return model.capture(prompts, noise, record)
    start = Site("resid_pre", 0)
    run = model.run(prompts, noise, [start, *record], logits="none")
    return Captured(run, [run[start]], (), (), ())


class _Place(NamedTuple):
    """One part of one job: its row in the running batch, and where it is."""

    row: int
    prompt: int
    positions: tuple[int, ...]
    head: int | None
    units: tuple[int, int] | None


def _run_chunk(
    model: HookedModel, group: Group, cells: Sequence[Cell], chunk: Sequence[Job], waving: bool
) -> Float[Tensor, "metric job"]:
    prompts = torch.tensor([job.row for job in chunk], device=group.base.resid[0].device)
    first = chunk[0].first if waving else 0
    resid = run_rows(model, group, chunk, writers(model, group, cells, chunk, first), waving)
    return group.scorer(resid, prompts, first, group.base.run[FINAL])


def run_rows(
    model: HookedModel, group: Group, chunk: Sequence[Job], taps: Taps, waving: bool
) -> Float[Tensor, "row pos d_model"]:
    """`resid_final` of one row a job, from its own layer and (all the same) first position on, with `taps`."""
    prompts = torch.tensor([job.row for job in chunk], device=group.base.resid[0].device)
    if not waving:
        return _full_forward(model, group, prompts, taps)
    first = chunk[0].first
    return model.resume(Wave(group.base, first, _joins(group, chunk, first), prompts), taps)


def _joins(group: Group, chunk: Sequence[Job], first: int) -> list[tuple[int, Tensor]]:
    """Per layer in ascending order, the cached residuals of the rows that join there."""
    rows: dict[int, list[int]] = defaultdict(list)
    for job in chunk:
        rows[job.layer].append(job.row)
    return [(layer, group.base.resid[layer][members, first:]) for layer, members in sorted(rows.items())]


def writers(model: HookedModel, group: Group, cells: Sequence[Cell], chunk: Sequence[Job], first: int) -> Taps:
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


def _full_forward(model: HookedModel, group: Group, prompts: Int[Tensor, " row"], writers: Taps) -> Tensor:
    """`resid_final` of full forwards, one row a job, from the base run's embeddings."""
    embedded, final = group.base.resid[0], []
    rows = prompts.tolist()
    taps: Taps = {site: list(taps) for site, taps in writers.items()}
    taps[Site("embed")] = [lambda x, layout: embedded[rows].to(x.device), *taps.get(Site("embed"), [])]
    taps[FINAL] = [*taps.get(FINAL, []), lambda x, layout: final.append(x)]
    ordered = {site: taps[site] for site in sorted(taps, key=lambda s: s.order)}
    model._forward(group.base.run.prompts[rows], ordered, "none")
    return final[0]
