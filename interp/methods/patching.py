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
from collections import Counter
from collections.abc import Mapping, Sequence
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
from interp.models.base import HookedModel
from interp.nodes import Nodes
from interp.provenance import Provenance
from interp.recovery import SMALLEST_GAP, bootstrap, recovery
from interp.scoring import FINAL, Scorer, checked_metrics, clean_reference
from interp.site import Site
from interp.sources import ABLATIONS, GaussianNoise, ablation_source
from interp.sweep import REASONS, Cell, Source, Sweep, sweep
from interp.tasks.base import Task
from interp.tokens import Prompts, tokenizer_fingerprint

Direction = Literal["denoising", "noising"]
_Run = tuple[Prompts, Source, Tensor | None]  # base prompts, where values come from, noise on the base's embeddings

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
    ways = _directions(direction, setting)
    chosen = _chosen(setting, nodes, positions)
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
    parts = _Parts({}, {}, {}, [])
    for way, found in measured.items():
        for number in range(len(setting.metrics)):
            _add(parts, setting, chosen, found, way, number, ends, window)
            parts.notes.extend(_cautions(setting, found, way, number, ends, len(chosen)))
    for end, values in ends.items():
        for one, per_prompt in zip(setting.metrics, values, strict=True):
            parts.tensors[f"{end}.{one.name}"] = NamedTensor(per_prompt.numpy(), ("prompt",))
    notes = list(dict.fromkeys(parts.notes))
    for note in notes:
        warnings.warn(note, InterpWarning, stacklevel=2)
    cost = sum(found.cost for found in measured.values())
    return Circuit(
        chosen, scores=parts.scores, attributes=parts.attributes, tensors=parts.tensors,
        provenance=_provenance(setting, ways, window, notes, cost),
    )  # fmt: skip


class _Parts(NamedTuple):
    """The circuit's columns, tensors and warnings while they are gathered."""

    scores: dict[str, Score]
    attributes: dict[str, Attribute]
    tensors: dict[str, NamedTensor]
    notes: list[str]


def _chosen(setting: _Setting, nodes: str | Sequence[str] | Nodes, positions: Positions) -> Nodes:
    """The candidates, once each is known to exist."""
    model, task = setting.model, setting.task
    if not isinstance(nodes, Nodes):
        nodes = candidates(model, task, nodes, positions=positions)
    elif positions != "all":
        raise OptionError(f"positions={positions!r} beside ready nodes; give it to candidates() when making them.")
    check_nodes(model, task, nodes)
    return nodes


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
    if way == "denoising":
        return [(task.require_corrupted(), Source(task.clean), None)]
    sites = sorted({part.site for cell in cells for part in cell}, key=lambda s: s.order)
    return [(task.clean, ablation_source(model, task, setting.ablation_name, sites, setting.seed), None)]


def _measure(
    setting: _Setting, scorer: Scorer, cells: Sequence[Cell], runs: Sequence[_Run], way: Direction
) -> _Measured:
    """Signed scores of the cells in one direction, averaged over draws of noise."""
    engine = setting.engine
    found: list[Sweep] = []
    for base, source, noise in runs:
        found.append(
            sweep(
                setting.model, base, source, cells, scorer, noise=noise, engine=engine.kind, memory=engine.memory,
                skip_zeros=engine.skip_zeros, chunk_tokens=engine.chunk_tokens, progress=engine.progress,
            )
        )  # fmt: skip
    effects = torch.stack([one.effects for one in found]).double().mean(0).numpy()
    # A cell counts as not run only when no draw ran it.
    drawn = np.stack([one.reasons.numpy() for one in found])
    reasons = np.where((drawn == 0).any(0), 0, drawn[0])
    return _Measured(signed_score(effects, way) + 0.0, reasons, sum(one.plan.forwards for one in found))


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
    header = ScoreHeader(
        "nodes", "effect", True, way, BASES[way], setting.ablation_name, "mean", UNITS.get(one.name), "patch", one.name
    )
    parts.scores[name] = Score(header, _mean(scores))
    parts.tensors[name] = NamedTensor(scores, ("node", "prompt"))
    gap = (ends["clean"] - ends["corrupted"])[number] if "corrupted" in ends else None
    low, high, share, undefined = _over_prompts(scores, gap, setting.seed)
    extra: dict[str, tuple[np.ndarray, str]] = {
        "low": (low, "lower bound of the score's 95 % bootstrap interval over prompts"),
        "high": (high, "upper bound of that interval"),
        "n": ((~np.isnan(scores)).sum(1), "prompts that have the node's position"),
        "reason": (_reasons(found.reasons[-len(nodes) :]), "why the node was run on no prompt"),
    }
    if gap is not None:
        extra["normalised"] = (share, "score / (clean - corrupted), ratio of means; 1 is the whole gap")
        parts.notes.extend(f"{name}.normalised is undefined for {n} nodes: {why}." for why, n in undefined.items())
    if window > 1:
        singles = _mean(found.scores[number][: len(nodes)])
        summed = window_sums(nodes, singles, window, setting.model.shape.n_layers)
        extra["sum_of_singles"] = (summed, f"sum of the single-layer scores over the window of {window} layers")
    for key, (values, meaning) in extra.items():
        parts.attributes[f"{name}.{key}"] = Attribute("nodes", values, meaning)


def _mean(scores: Float[np.ndarray, "node prompt"]) -> Float[np.ndarray, " node"]:
    """Mean over the prompts that have the node; NaN where none has."""
    count = (~np.isnan(scores)).sum(-1)
    return np.where(count > 0, np.nansum(scores, -1) / np.maximum(count, 1), np.nan)


def _over_prompts(
    scores: np.ndarray, gap: Tensor | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Counter[str]]:
    """Bootstrap bounds and share of the gap of each node, over the prompts that have it (NaN elsewhere).

    Returns:
        low, high, share; and for how many nodes the share is undefined, by reason.
    """
    low, high, share = (np.full(len(scores), np.nan) for _ in range(3))
    undefined: Counter[str] = Counter()
    masks, which = np.unique(~np.isnan(scores), axis=0, return_inverse=True)
    for number, mask in enumerate(masks):
        rows = np.flatnonzero(which.ravel() == number)
        if not mask.any():
            continue
        values = torch.from_numpy(scores[rows][:, mask])
        low[rows], high[rows] = (bound.numpy() for bound in bootstrap(values, seed=seed))
        if gap is not None:
            shares = recovery(values, gap[torch.from_numpy(mask)], torch.zeros(int(mask.sum())))
            share[rows] = shares.value.numpy()
            undefined.update({shares.reason: len(rows)} if shares.reason else {})
    return low, high, share, undefined


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
    scores = _mean(found.scores[number][-n_nodes:])
    if one.name == "prob" and way == "denoising":
        notes += _floor(scores, float(ends["corrupted"][number].mean()))
    names = [m.name for m in setting.metrics]
    if one.name == "logit_diff" and way == "denoising" and "logit" in names:
        notes += _damage(scores, _mean(found.scores[names.index("logit")][-n_nodes:]))
    return notes


def _floor(scores: np.ndarray, floor: float) -> list[str]:
    """A probability cannot fall below 0, so where the corrupted run's is small no harmful effect can show."""
    known = scores[~np.isnan(scores)]
    if not known.size:
        return []
    room = 2 * known.std() - known.mean()
    if room <= 0 or floor / room >= SMALLEST_HEADROOM:
        return []
    return [
        f"the corrupted run's probability is {floor:.2g}, so no effect can be below -{floor:.2g}, while effects "
        f"spread by {known.std():.2g}: components that hurt the behaviour cannot show; use logit_diff."
    ]


def _damage(differences: np.ndarray, logits: np.ndarray) -> list[str]:
    """A logit difference that recovers while the answer's own logit falls may be mere damage to the wrong answer."""
    top = np.argsort(-differences)[:10]
    fooled = [int(i) for i in top if differences[i] > SMALLEST_GAP and logits[i] < -SMALLEST_GAP]
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
    mean = {"reference": "the task's clean prompts", "sink_apart": model.has_sink}
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
        ablation=setting.ablation_name,
        method="patch",
        parameters={
            "metrics": [repr(m) for m in setting.metrics], "directions": ways, "window": window, "noise": noise,
            "mean": mean if setting.ablation_name.startswith("mean") else None,
            "engine": asdict(setting.engine), "family": model.family, "warnings": notes,
        },
        seed=setting.seed,
        forwards=cost,
    )  # fmt: skip
