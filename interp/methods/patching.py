"""Activation patching: the exact effect of replacing each candidate's activation, by the sweep engine.

    denoising:  base = corrupted run, source = clean run;  score = + (metric(patched) - metric(base))
    noising:    base = clean run, source = corrupted run;  score = - (metric(patched) - metric(base))

so a positive score always means that the clean value of the component helps the behaviour. The two are not mirror
images (a component may be sufficient without being necessary), so both are run by default. Normalised by the gap
metric(clean) - metric(corrupted), a denoising score is a recovery and a noising score a disruption: 0 nothing, 1 all.

Sources: Zhang & Nanda 2024 (arXiv 2309.16042), Heimersheim & Nanda 2024 (2404.15255); windows and noise as in causal
tracing, Meng et al. 2022 (2202.05262).
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.candidates import Positions, candidates, cell_of, check_nodes, window_cells, window_sums
from interp.circuit import BASES, Attribute, Circuit, NamedTensor, Score, ScoreHeader, signed_score
from interp.errors import InterpWarning, OptionError, check_choice
from interp.intervention import Add
from interp.metrics import Metric
from interp.metrics import metric as metric_named
from interp.models.base import HookedModel
from interp.nodes import Nodes
from interp.provenance import Provenance
from interp.recovery import bootstrap, recovery
from interp.scoring import FINAL, Scorer, clean_reference
from interp.site import Site
from interp.sources import ABLATIONS, GaussianNoise, ablation_source
from interp.sweep import REASONS, Cell, Plan, Source, Sweep, sweep
from interp.tasks.base import Task
from interp.tokens import Prompts, tokenizer_fingerprint

log = logging.getLogger(__name__)

Direction = Literal["denoising", "noising"]

SMALLEST_HEADROOM = 1.5
"""Headroom P_corrupted / (2 SD - mean) below which a probability cannot show harmful components (Zhang & Nanda)."""

UNITS = {"logit_diff": "logits", "logit": "logits", "logit_direction": "logits", "kl": "nats", "logprob": "nats",
         "neg_nll": "nats", "prob": "probability", "prob_diff": "probability"}  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """How a sweep runs; the results do not depend on it beyond rounding.

    Args:
        kind: ``"wave"`` resumes rows at their own layer, ``"plain"`` runs full forwards, ``"auto"`` prefers the former.
        memory: GiB of activations in flight.
        chunk_tokens: positions in flight at once, at most.
        skip_zeros: leave out patches whose effect is certainly 0.
        progress: show a bar where there is a terminal.
    """

    kind: Literal["auto", "wave", "plain"] = "auto"
    memory: float = 1.0
    chunk_tokens: int = 2048
    skip_zeros: bool = True
    progress: bool = True


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
        return isinstance(self.ablation, GaussianNoise) or self.ablation == "counterfactual"


@dataclass(frozen=True, eq=False)
class _Measured:
    """Signed scores of the cells [metric, cell, prompt], why cells were not run [cell, prompt], and the cost."""

    scores: np.ndarray
    reasons: np.ndarray
    plan: Plan


def patch(
    model: HookedModel,
    task: Task,
    nodes: str | Sequence[str] | Nodes = "z",
    *,
    positions: Positions = "all",
    direction: Direction | Literal["both"] = "both",
    ablation: str | GaussianNoise = "counterfactual",
    metrics: Sequence[str | Metric] = (),
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
    setting = _Setting(model, task, _metrics(task, metrics), ablation, seed, engine or Engine())
    ways = _directions(direction, setting)
    if window < 1:
        raise OptionError(f"window={window}; allowed: 1 (single layers) and more.")
    chosen = nodes if isinstance(nodes, Nodes) else candidates(model, task, nodes, positions=positions)
    check_nodes(model, task, chosen)
    cells = [cell_of(node, task) for node in chosen]
    if window > 1:
        cells += window_cells(chosen, task, window, model.shape.n_layers)
    ends = _ends(setting)
    parts = _Parts({}, {}, {}, [])
    cost = 0.0
    for way in ways:
        found = _measure(setting, cells, way)
        cost += found.plan.forwards
        for number in range(len(setting.metrics)):
            _add(parts, setting, chosen, found, way, number, ends, window)
            parts.notes.extend(_cautions(setting, found, way, number, ends, len(chosen)))
    tensors = {
        f"{end}.{one.name}": NamedTensor(values[number].numpy(), ("prompt",))
        for end, values in ends.items()
        for number, one in enumerate(setting.metrics)
    }
    for note in parts.notes:
        warnings.warn(note, InterpWarning, stacklevel=2)
    return Circuit(
        chosen, scores=parts.scores, attributes=parts.attributes, tensors={**parts.tensors, **tensors},
        provenance=_provenance(setting, ways, window, parts.notes, cost),
    )  # fmt: skip


class _Parts(NamedTuple):
    """The circuit's columns, tensors and warnings while they are gathered."""

    scores: dict[str, Score]
    attributes: dict[str, Attribute]
    tensors: dict[str, NamedTensor]
    notes: list[str]


def _metrics(task: Task, given: Sequence[str | Metric]) -> tuple[Metric, ...]:
    found = tuple(metric_named(m) for m in given) or (task.metric,)
    names = [m.name for m in found]
    if len(set(names)) < len(names):
        raise OptionError(f"metrics {names} are given more than once; their columns would clash.")
    return found


def _directions(direction: str, setting: _Setting) -> tuple[Direction, ...]:
    check_choice("direction", direction, ("denoising", "noising", "both"))
    if not isinstance(setting.ablation, GaussianNoise):
        check_choice("ablation", setting.ablation, ABLATIONS)
    if setting.ablation == "counterfactual":
        setting.task.require_corrupted()
    if setting.has_counterpart:
        return ("denoising", "noising") if direction == "both" else (direction,)  # type: ignore[return-value]
    if direction == "denoising":
        raise OptionError(f"ablation {setting.ablation!r} has no corrupted run to restore; use direction='noising'.")
    return ("noising",)


def _scorer(setting: _Setting) -> Scorer:
    reference = clean_reference(setting.model, setting.metrics, setting.task.clean, setting.task.answers)
    return Scorer(setting.model, setting.metrics, setting.task.answers, reference)


def _ends(setting: _Setting) -> dict[str, Float[Tensor, "metric prompt"]]:
    """The metrics of the clean run and, where there is one, of the corrupted run (averaged over draws of noise)."""
    model, task, scorer = setting.model, setting.task, _scorer(setting)

    def measured(prompts: Prompts, noise: Tensor | None = None) -> Tensor:
        added = [] if noise is None else [Add(Site("embed"), noise)]
        with torch.no_grad():
            return scorer.of_run(model.run(prompts, added, [FINAL], logits="none")).cpu().double()

    ends = {"clean": measured(task.clean)}
    if isinstance(setting.ablation, GaussianNoise):
        drawn = [measured(task.clean, noise) for noise in setting.ablation.sample(model, task)]
        ends["corrupted"] = torch.stack(drawn).mean(0)
    elif setting.has_counterpart:
        ends["corrupted"] = measured(task.require_corrupted())
    return ends


def _measure(setting: _Setting, cells: Sequence[Cell], way: Direction) -> _Measured:
    """Signed scores of the cells in one direction, averaged over draws of noise."""
    model, engine = setting.model, setting.engine
    scorer = _scorer(setting)
    sites = sorted({part.site for cell in cells for part in cell}, key=lambda s: s.order)
    found: list[Sweep] = []
    for base, source, noise in _runs(setting, sites, way):
        found.append(
            sweep(
                model, base, source, cells, scorer, noise=noise, engine=engine.kind, skip_zeros=engine.skip_zeros,
                memory=engine.memory, chunk_tokens=engine.chunk_tokens, progress=engine.progress,
            )
        )  # fmt: skip
        log.info("%s: %s", way, found[-1].plan)
    effects = torch.stack([one.effects for one in found]).double().mean(0).numpy()
    # A cell counts as not run only when no draw ran it.
    drawn = np.stack([one.reasons.numpy() for one in found])
    reasons = np.where((drawn == 0).any(0), 0, drawn[0])
    return _Measured(signed_score(effects, way) + 0.0, reasons, found[0].plan)


def _runs(setting: _Setting, sites: Sequence[Site], way: Direction) -> Iterator[tuple[Prompts, Source, Tensor | None]]:
    """Base prompts, source, and noise on the base: once, or once a draw."""
    task = setting.task
    if isinstance(setting.ablation, GaussianNoise):
        for noise in setting.ablation.sample(setting.model, task):
            denoising = way == "denoising"
            yield task.clean, Source(task.clean, None if denoising else noise), noise if denoising else None
    elif way == "denoising":
        yield task.require_corrupted(), Source(task.clean), None
    else:
        yield task.clean, ablation_source(setting.model, task, setting.ablation, sites, setting.seed), None


def _add(
    parts: _Parts,
    setting: _Setting,
    nodes: Nodes,
    found: _Measured,
    way: Direction,
    number: int,
    ends: Mapping[str, Tensor],
    window: int,
) -> None:
    """Add one metric's columns in one direction."""
    one = setting.metrics[number]
    name = f"{one.name}.{way}"
    scores = found.scores[number][-len(nodes) :]
    reasons = found.reasons[-len(nodes) :]
    present = ~np.isnan(scores)
    count = present.sum(1)
    mean = np.where(count > 0, np.where(present, scores, 0.0).sum(1) / np.maximum(count, 1), np.nan)
    ablation = setting.ablation if isinstance(setting.ablation, str) else "noise"
    header = ScoreHeader(
        "nodes", "effect", True, way, BASES[way], ablation, "mean", UNITS.get(one.name), "patch", one.name
    )
    parts.scores[name] = Score(header, mean)
    gap = (ends["clean"] - ends["corrupted"])[number] if "corrupted" in ends else None
    low, high, share = _over_prompts(scores, gap, setting.seed)
    extra: dict[str, tuple[np.ndarray, str]] = {
        "low": (low, "lower bound of the score's 95 % bootstrap interval over prompts"),
        "high": (high, "upper bound of that interval"),
        "n": (count, "prompts that have the node's position"),
        "reason": (_reasons(reasons), "why the node was run on no prompt"),
    }
    if gap is not None:
        extra["normalised"] = (share, "score / (clean - corrupted), ratio of means; 1 is the whole gap")
    if window > 1:
        singles = np.nanmean(found.scores[number][: len(nodes)], axis=1)
        summed = window_sums(nodes, singles, window, setting.model.shape.n_layers)
        extra["sum_of_singles"] = (summed, f"sum of the single-layer scores over the window of {window} layers")
    for key, (values, meaning) in extra.items():
        parts.attributes[f"{name}.{key}"] = Attribute("nodes", values, meaning)
    parts.tensors[name] = NamedTensor(scores, ("node", "prompt"))


def _over_prompts(scores: np.ndarray, gap: Tensor | None, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bootstrap bounds and share of the gap of each node, over the prompts that have it (NaN elsewhere)."""
    low, high, share = (np.full(len(scores), np.nan) for _ in range(3))
    masks, which = np.unique(~np.isnan(scores), axis=0, return_inverse=True)
    for number, mask in enumerate(masks):
        rows = np.flatnonzero(which.ravel() == number)
        if not mask.any():
            continue
        values = torch.from_numpy(scores[rows][:, mask])
        low[rows], high[rows] = (bound.numpy() for bound in bootstrap(values, seed=seed))
        if gap is not None:
            share[rows] = recovery(values, gap[torch.from_numpy(mask)], torch.zeros(int(mask.sum()))).value.numpy()
    return low, high, share


def _reasons(reasons: np.ndarray) -> np.ndarray:
    """Per node, the reason when no prompt ran it, else ''; the commonest where prompts differ."""
    texts = []
    for row in reasons:
        texts.append("" if (row == 0).any() else REASONS[int(np.bincount(row).argmax())])
    return np.array(texts, dtype=object)


def _cautions(
    setting: _Setting, found: _Measured, way: Direction, number: int, ends: Mapping[str, Tensor], n_nodes: int
) -> list[str]:
    """What a reader of these scores should be told, in words."""
    one, notes = setting.metrics[number], []
    if one.discrete:
        notes.append(f"{one.name} moves in steps, so small effects do not show; measure logit_diff beside it.")
    scores = np.nanmean(found.scores[number][-n_nodes:], axis=1) if n_nodes else np.zeros(0)
    if one.name == "prob" and way == "denoising":
        floor, mean, deviation = float(ends["corrupted"][number].mean()), scores.mean(), scores.std()
        room = 2 * deviation - mean
        if room > 0 and floor / room < SMALLEST_HEADROOM:
            notes.append(
                f"the corrupted run's probability is {floor:.2g}, so no effect can be below -{floor:.2g}, while "
                f"effects spread by {deviation:.2g}: components that hurt the behaviour cannot show; use logit_diff."
            )
    names = [m.name for m in setting.metrics]
    if one.name == "logit_diff" and way == "denoising" and "logit" in names:
        notes += _damage(scores, np.nanmean(found.scores[names.index("logit")][-n_nodes:], axis=1))
    return notes


def _damage(differences: np.ndarray, logits: np.ndarray) -> list[str]:
    """A logit difference that recovers while the answer's own logit falls may be mere damage to the wrong answer."""
    top = np.argsort(-differences)[:10]
    fooled = [int(i) for i in top if differences[i] > 0 and logits[i] < 0]
    if not fooled:
        return []
    return [
        f"{len(fooled)} of the 10 highest logit_diff scores raise the difference while the answer's own logit falls "
        f"(node rows {fooled}): the patch may just damage the run; look at the column 'logit.denoising'."
    ]


def _provenance(
    setting: _Setting, ways: Sequence[Direction], window: int, notes: Sequence[str], cost: float
) -> Provenance:
    model, task = setting.model, setting.task
    noise = asdict(setting.ablation) if isinstance(setting.ablation, GaussianNoise) else None
    return Provenance(
        model=model.identity.name,
        revision=model.identity.revision or None,
        weights=model.identity.fingerprint,
        tokenizer=tokenizer_fingerprint(model.tokenizer),
        task=task.name,
        task_parameters=task.parameters,
        token_ids=tuple(map(tuple, task.clean.rows())),
        corrupted_token_ids=() if task.corrupted is None else tuple(map(tuple, task.corrupted.rows())),
        metric=setting.metrics[0].name,
        direction=ways[0] if len(ways) == 1 else None,
        ablation="noise" if noise else str(setting.ablation),
        method="patch",
        parameters={
            "metrics": [m.name for m in setting.metrics], "directions": ways, "window": window, "noise": noise,
            "engine": asdict(setting.engine), "family": model.family, "warnings": notes,
        },
        seed=setting.seed,
        forwards=cost,
    )  # fmt: skip
