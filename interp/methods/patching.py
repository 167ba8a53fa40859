"""Activation patching: the exact effect of replacing each candidate's activation, by the sweep engine.

    denoising:  base = corrupted run, source = clean run;  score = + (metric(patched) - metric(base))
    noising:    base = clean run, source = corrupted run;  score = - (metric(patched) - metric(base))

so a positive score always means that the clean value of the component helps the behaviour. The two are not mirror
images (a component may be sufficient without being necessary), so both are run by default. Normalised by the gap
metric(clean) - metric(corrupted), a denoising score is a recovery and a noising score a disruption: 0 nothing, 1 all.

Sources: Zhang & Nanda 2024 (arXiv 2309.16042), Heimersheim & Nanda 2024 (2404.15255); windows and noise as in causal
tracing, Meng et al. 2022 (2202.05262).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.candidate_nodes import Positions, cell_of, chosen_nodes, window_cells, window_sums
from interp.cautions import cautions
from interp.cells import Cell, Source
from interp.circuit import BASES, Circuit, ScoreHeader, signed_score
from interp.errors import InterpWarning, OptionError
from interp.intervention import Add
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import Nodes
from interp.origin import provenance_of
from interp.score_columns import UNITS, Columns, end_columns, joined, mean, score_columns
from interp.scoring import FINAL, Scorer, checked_metrics, clean_reference
from interp.site import Site
from interp.sources import Direction, GaussianNoise, base_and_source, directions_of
from interp.sweep import Engine, sweep
from interp.sweep_plan import REASONS
from interp.tasks.base import Task
from interp.tokens import Prompts

_Run = tuple[Prompts, Source, Tensor | None]  # base prompts, where values come from, noise on the base's embeddings


@dataclass(frozen=True, eq=False)
class _Setting:
    """What one call of `patch` holds fixed."""

    model: HookedModel
    task: Task
    metrics: tuple[Metric, ...]
    ablation: str | GaussianNoise
    seed: int
    engine: Engine

    @property
    def has_counterpart(self) -> bool:
        """Whether a corrupted run exists."""
        return self.ablation_name in ("noise", "counterfactual")

    @property
    def ablation_name(self) -> str:
        return self.ablation if isinstance(self.ablation, str) else "noise"


@dataclass(frozen=True, eq=False)
class _Measured:
    """Signed scores of the cells [metric, cell, prompt], why cells were not run [cell, prompt], and the forwards."""

    scores: np.ndarray
    reasons: np.ndarray
    cost: float


def patch(
    model: HookedModel,
    task: Task,
    nodes: str | Sequence[str] | Nodes = "z",
    *,
    positions: Positions = "all",
    direction: Direction | Literal["both"] = "both",
    ablation: str | GaussianNoise = "counterfactual",
    metrics: str | Metric | Sequence[str | Metric] = (),
    window: int = 1,
    seed: int = 0,
    engine: Engine | None = None,
) -> Circuit:
    """Exact effects of patching every candidate, as a `Circuit` whose nodes are the candidates.

    Args:
        nodes: site kinds (every layer and head of each), or `Nodes` made with `candidates`.
        positions: for site kinds: ``"all"`` jointly, ``"each"``, or role names of the task.
        direction: which run is changed; an ablation without a corrupted run knows only ``"noising"``, and ``"both"``
            means it.
        ablation: ``"counterfactual"`` (the corrupted prompt), a `GaussianNoise`, ``"zero"``, ``"mean"``,
            ``"mean_by_position"`` or ``"resample"`` (another clean prompt of the same length).
        metrics: names or metrics to measure; the task's own when none is given.
        window: layers patched together around each node's own; the sum of the single effects stands beside it.
        seed: of donors and bootstrap.
        engine: memory, chunking, progress.

    Returns:
        For each metric and direction a signed score ``metric.direction`` (mean over prompts, in the metric's unit);
        attributes ``.normalised`` (share of the gap between clean and corrupted), ``.low`` and ``.high`` (95 %
        bootstrap interval of the score), ``.n`` (prompts that have the position), ``.reason`` (why nothing was run),
        and with a window ``.sum_of_singles``; tensors of the same names with per-prompt scores, and the metric of the
        clean and the corrupted runs. A score is exactly 0 with the reason ``no difference`` or ``no path to the
        metric``, NaN with ``position absent``.

    Raises:
        OptionError, TaskError, SiteError, MetricError: before anything runs.
    """
    setting = _Setting(model, task, checked_metrics(model, task, metrics), ablation, seed, engine or Engine())
    ways = directions_of(task, direction, ablation)
    chosen = chosen_nodes(model, task, nodes, positions)
    cells = [cell_of(node, task) for node in chosen]
    if window > 1:
        cells += window_cells(chosen, task, window, model.shape.n_layers)
    elif window < 1:
        raise OptionError(f"window={window}; allowed: 1 (single layers) and more.")
    draws = ablation.sample(model, task) if isinstance(ablation, GaussianNoise) else []
    runs = {way: _runs(setting, cells, way, draws) for way in ways}
    scorer = Scorer(model, setting.metrics, task.answers, clean_reference(model, setting.metrics, task))
    measured = {way: _measure(setting, scorer, cells, runs[way], way) for way in ways}
    ends = _ends(setting, scorer, draws)
    numbers = range(len(setting.metrics))
    columns = [
        _columns(setting, chosen, found, way, n, ends, window) for way, found in measured.items() for n in numbers
    ]
    found_columns = joined([*columns, end_columns([m.name for m in setting.metrics], ends)])
    for note in found_columns.notes:
        warnings.warn(note, InterpWarning, stacklevel=2)
    noise = asdict(ablation) if isinstance(ablation, GaussianNoise) else None
    provenance = provenance_of(
        model, task, "patch", metrics=setting.metrics, directions=ways, ablation=setting.ablation_name,
        parameters={"window": window, "noise": noise, "engine": asdict(setting.engine)}, notes=found_columns.notes,
        seed=seed, forwards=sum(found.cost for found in measured.values()),
    )  # fmt: skip
    return Circuit(
        chosen, scores=found_columns.scores, attributes=found_columns.attributes, tensors=found_columns.tensors,
        provenance=provenance,
    )  # fmt: skip


def _ends(setting: _Setting, scorer: Scorer, draws: Sequence[Tensor]) -> dict[str, Float[Tensor, "metric prompt"]]:
    """The metrics of the clean run and, where there is one, of the corrupted run (averaged over draws of noise)."""
    task = setting.task

    def measured(prompts: Prompts, noise: Sequence[Tensor] = ()) -> Tensor:
        added = [Add(Site("embed"), one) for one in noise]
        with torch.no_grad():
            return scorer.of_run(setting.model.run(prompts, added, [FINAL], logits="none")).cpu().double()

    ends = {"clean": measured(task.clean)}
    if draws:
        ends["corrupted"] = torch.stack([measured(task.clean, [noise]) for noise in draws]).mean(0)
    elif setting.has_counterpart:
        ends["corrupted"] = measured(task.require_corrupted())
    return ends


def _runs(setting: _Setting, cells: Sequence[Cell], way: Direction, draws: Sequence[Tensor]) -> list[_Run]:
    """What to sweep: once, or once a draw of noise."""
    model, task = setting.model, setting.task
    if draws and way == "denoising":
        return [(task.clean, Source(task.clean), noise) for noise in draws]
    if draws:
        return [(task.clean, Source(task.clean, noise), None) for noise in draws]
    sites = sorted({part.site for cell in cells for part in cell}, key=lambda s: s.order)
    return [(*base_and_source(model, task, way, setting.ablation_name, sites, setting.seed), None)]


def _measure(
    setting: _Setting, scorer: Scorer, cells: Sequence[Cell], runs: Sequence[_Run], way: Direction
) -> _Measured:
    """Signed scores of the cells in one direction, averaged over draws of noise."""
    options = setting.engine.options
    found = [sweep(setting.model, base, source, cells, scorer, noise=noise, **options) for base, source, noise in runs]
    effects = torch.stack([one.effects for one in found]).double().mean(0).numpy()
    # A cell counts as not run only when no draw ran it.
    drawn = np.stack([one.reasons.numpy() for one in found])
    reasons = np.where((drawn == 0).any(0), 0, drawn[0])
    return _Measured(signed_score(effects, way) + 0.0, reasons, sum(one.plan.forwards for one in found))


def _columns(
    setting: _Setting,
    nodes: Nodes,
    found: _Measured,
    way: Direction,
    number: int,
    ends: Mapping[str, Tensor],
    window: int,
) -> Columns:
    """One metric's columns in one direction."""
    one, own = setting.metrics[number], slice(-len(nodes), None)
    header = ScoreHeader(
        "nodes", "effect", True, way, BASES[way], setting.ablation_name, "mean", UNITS.get(one.name), "patch", one.name
    )
    extra = {"reason": (_reasons(found.reasons[own]), "why the node was run on no prompt")}
    if window > 1:
        singles = mean(found.scores[number][: len(nodes)])
        summed = window_sums(nodes, singles, window, setting.model.shape.n_layers)
        extra["sum_of_singles"] = (summed, f"sum of the single-layer scores over the window of {window} layers")
    gap = (ends["clean"] - ends["corrupted"])[number] if "corrupted" in ends else None
    scores = found.scores[:, own]
    made = score_columns(f"{one.name}.{way}", header, scores[number], gap=gap, seed=setting.seed, attributes=extra)
    corrupted = float(ends["corrupted"][number].mean()) if "corrupted" in ends else None
    return joined([made, Columns(notes=cautions(setting.metrics, number, mean(scores), way, corrupted))])


def _reasons(reasons: np.ndarray) -> np.ndarray:
    """Per node, the reason when no prompt ran it, else ''; the commonest where prompts differ."""
    texts = []
    for row in reasons:
        texts.append("" if (row == 0).any() else REASONS[int(np.bincount(row).argmax())])
    return np.array(texts, dtype=object)
