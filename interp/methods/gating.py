"""Causal head gating: a soft gate on every query head's output, fitted by gradient, says which role each head has.

    1. theta0 <- fit with no penalty, from gates drawn uniformly
    2. G+     <- fit from theta0 with lambda > 0, which pushes gates open      (retain)
       G-     <- fit from theta0 with lambda < 0, which pushes gates closed    (remove)
    3. facilitation G-, interference 1 - G+, irrelevance G+ (1 - G-), over several starts

A head at rest between the ends has a marginal benefit of at least 4 lambda / (number of heads) nats a target; below, it
follows the penalty. Removing a head is zero ablation of its z. Needs no corrupted prompts, only target tokens.

Contrastive gating fits one mask that keeps one formulation of the items and unlearns another:

    benefit = log p(retain) - max(log p(forget) - stopgrad log p(retain), -5),   lambda > 0

so that a closed gate means: needed by what is to be forgotten, dispensable for what is to be kept.

Source: Nam et al. 2025 (arXiv 2505.13737): equations, settings of the appendix; per-pair clamp as in the authors' code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.candidate_nodes import candidates
from interp.circuit import Attribute, Circuit, NamedTensor, Score, ScoreHeader
from interp.errors import OptionError, TaskError
from interp.gate_classes import gate_cells, gate_scores
from interp.gate_fit import FitRow, Fitted, Stage, draw_gates, fit
from interp.gate_runs import GatedTask, gate_gradients, ones
from interp.metrics import Accuracy, NegNLL
from interp.models.base import HookedModel
from interp.origin import provenance_of
from interp.score_columns import mean
from interp.scoring import checked_metrics
from interp.tasks.base import Task

NLL, ACCURACY = NegNLL(), Accuracy()


@dataclass(frozen=True)
class GateSettings:
    """How gates are fitted; the defaults are the paper's.

    Args:
        steps: updates without penalty, and updates of each fit with one.
        batch: prompts of each fit in an update.
        penalty: lambda; both signs are fitted.
        first_lr, lr: learning rates without and with penalty: at the first and at the last update.
        low, high: gates are drawn uniformly between.
        clip, one_sided, per_head, grad_norm, bound, shared_clip: see `interp.gate_fit.Stage`.
    """

    steps: tuple[int, int] = (500, 500)
    batch: int = 64
    penalty: float = 0.1
    first_lr: tuple[float, float] = (0.1, 0.01)
    lr: tuple[float, float] = (0.5, 0.1)
    low: float = 0.0
    high: float = 1.0
    clip: float = 4.0
    one_sided: bool = True
    per_head: bool = False
    grad_norm: float | None = 1.0
    bound: float | None = None
    shared_clip: bool = False

    @classmethod
    def as_published_code(cls) -> "GateSettings":
        """What the authors' trainer does where it differs from the paper: constant rates of 1, a two-sided clip, one
        gradient norm for all fits of a sign. Its fits also share one order of the data: ``starts=[(0, 0), (1, 0)]``."""
        return cls(batch=32, first_lr=(1.0, 1.0), lr=(1.0, 1.0), one_sided=False, shared_clip=True)

    def stage(self, name: str, steps: int, lr: tuple[float, float]) -> Stage:
        """One stage with these settings."""
        shared = {"clip", "one_sided", "per_head", "grad_norm", "bound", "shared_clip", "batch"}
        return Stage(name, steps, lr, **{key: getattr(self, key) for key in shared})


@dataclass(frozen=True)
class FitEngine:
    """How fits run; the gates do not depend on it beyond rounding.

    Args:
        memory: GiB of activations that one backward pass may hold.
        recompute: keep only the blocks' inputs for the backward pass (gradient checkpointing), which saves memory and
            takes a forward pass more an update.
        checkpoint: folder for the state of the fits; an interrupted run goes on from there, to the bit-equal result on
            the CPU.
        minutes: between savings.
        progress: show a bar where there is a terminal.
    """

    memory: float = 4.0
    recompute: bool = False
    checkpoint: str | Path | None = None
    minutes: float = 5.0
    progress: bool = True

    def gated(self, model: HookedModel, task: Task) -> GatedTask:
        """The task to be run under gates, once it is known that it can be scored.

        Raises:
            TaskError, MetricError: when it cannot.
        """
        checked_metrics(model, task, (NLL, ACCURACY))
        return GatedTask(model, task, NLL, self.memory, self.recompute)

    def stage(self, name: str) -> dict[str, Any]:
        """What `interp.gate_fit.fit` takes for one stage."""
        path = None if self.checkpoint is None else Path(self.checkpoint) / f"{name}.safetensors"
        return {"checkpoint": path, "minutes": self.minutes, "progress": self.progress}


def gate(
    model: HookedModel,
    task: Task,
    held_out: Task | None = None,
    *,
    starts: int | Sequence[tuple[int, int]] = 10,
    settings: GateSettings | None = None,
    seed: int = 0,
    engine: FitEngine | None = None,
) -> Circuit:
    """Fit gates on every head in all starts at once, and class the heads by them.

    Args:
        task: prompts with target tokens; its own metric is not used, the objective is the mean log-probability of the
            targets.
        held_out: prompts on which the gates are scored; the task's own when None.
        starts: how many, or for each the seeds of its gates and of its order of the data.
        settings: of the fits.
        seed: of the first start, where a number of them is given.
        engine: memory, checkpoints, progress.

    Returns:
        One node a query head (z). Scores: ``grad_at_one`` (the signed first-order effect of removing the head, nats a
        target), ``retain`` and ``remove`` (mean gates). Attributes, which are no signed scores: ``facilitation``,
        ``interference``, ``irrelevance`` (means over starts; ``.sd``, ``.min``, ``.max``), the frequencies
        ``facilitating``, ``interfering``, ``irrelevant``, ``unstable`` (rule "cell", they sum to 1), ``always_F``,
        ``any_F``, ``always_N``, ``any_N`` (rule "score"), ``retain.signal`` and ``remove.signal`` (|mean| / SD of the
        gate's gradient). Tensors per start and node: gates and scores; per prompt: ``ungated``, ``initial``,
        ``retain``, ``remove`` and ``hard`` (remove at 0.5) with ``.neg_nll`` and ``.accuracy``. All heads are kept;
        `interp.hard_circuit` keeps those that one start leaves open.

    Raises:
        OptionError, TaskError, MetricError, SiteError, FileError: what cannot be run.

    Example:
        found = interp.gate(model, train, test, starts=4, settings=interp.GateSettings(steps=(100, 100), batch=8))
    """
    used = settings or GateSettings()
    options: dict[str, Any] = {"starts": starts, "settings": used, "seed": seed, "engine": engine}
    return gate_strengths(model, task, held_out, penalties=[used.penalty], **options)[used.penalty]


def gate_strengths(
    model: HookedModel,
    task: Task,
    held_out: Task | None = None,
    *,
    penalties: Sequence[float],
    starts: int | Sequence[tuple[int, int]] = 10,
    settings: GateSettings | None = None,
    seed: int = 0,
    engine: FitEngine | None = None,
) -> dict[float, Circuit]:
    """The circuits of `gate` at several strengths of the penalty, from the same first fits, all as rows of one run.

    Args:
        penalties: lambdas, above 0; that of the settings is not used.
        held_out, starts, settings, seed, engine: as in `gate`.

    Raises:
        OptionError: no penalties, repeated ones, or one that is not above 0; further as `gate`.
    """
    if not penalties or min(penalties) <= 0 or len(set(penalties)) < len(penalties):
        raise OptionError(f"penalties={list(penalties)}; allowed: one or more different numbers above 0.")
    used, engine, fits = settings or GateSettings(), engine or FitEngine(), _starts(starts, seed)
    gated, scored = engine.gated(model, task), engine.gated(model, held_out or task)
    like = ones(model)
    drawn = draw_gates(fits, like.shape[1:], low=used.low, high=used.high, dtype=like.dtype).to(like.device)
    objective, identity = Likelihood(gated), gated.fingerprint
    initial = fit(
        objective, drawn, fits, used.stage("initial", used.steps[0], used.first_lr), len(task), identity=identity,
        **engine.stage("initial"),
    )  # fmt: skip
    signed = [row._replace(penalty=sign * size) for size in penalties for sign in (1, -1) for row in fits]
    penalised = fit(
        objective, initial.theta.repeat(2 * len(penalties), 1, 1), signed,
        used.stage("penalised", used.steps[1], used.lr), len(task), identity=identity, **engine.stage("penalised"),
    )  # fmt: skip
    gradients, found = _attribution(gated), {}
    for number, penalty in enumerate(penalties):
        first = 2 * number * len(fits)
        retain, remove = (slice(first + n * len(fits), first + (n + 1) * len(fits)) for n in (0, 1))
        trio = {"initial": initial, "retain": penalised.take(retain), "remove": penalised.take(remove)}
        circuit = _described(model, task, trio, gradients, scored)
        passes = len(fits) * used.batch * (used.steps[0] + 2 * used.steps[1]) + len(task)  # with those of grad_at_one
        provenance = provenance_of(
            model, task, "gate", metrics=[NLL], directions=[], ablation="zero", seed=seed,
            parameters={
                "settings": asdict(replace(used, penalty=penalty)), "starts": [[row.init, row.data] for row in fits],
                "penalty_per_head": penalty / (1 if used.per_head else len(circuit.nodes)),
                "scored_on": "the task itself" if held_out is None else f"held-out prompts of {held_out.name}",
                "ungated": "MLPs, norms and embeddings",
            },
            forwards=float(passes + (1 + 4 * len(fits)) * len(scored.task)), backwards=float(passes),
        )  # fmt: skip
        found[penalty] = replace(circuit, provenance=provenance)
    return found


def gate_contrastive(
    model: HookedModel,
    retain: Task,
    forget: Task,
    *,
    starts: int | Sequence[tuple[int, int]] = 10,
    settings: GateSettings | None = None,
    floor: float = 5.0,
    seed: int = 0,
    engine: FitEngine | None = None,
) -> Circuit:
    """Fit gates that keep one formulation of the items and unlearn another.

    Args:
        retain, forget: the two formulations; row i of both is about the same item (`same_items` brings them there).
        floor: nats a target below the retained formulation at which the forgotten one is left alone.
        settings: of the fit; only the first number of `steps` and `first_lr` are used, and lambda is positive.
        starts, seed, engine: as in `gate`.

    Returns:
        One node a query head. The score ``forget_specific`` is 1 - gate, the mean over starts; tensors per start hold
        ``gates``, ``gates.theta`` and ``forget_specific``, and per fit the benefits of its batches.

    Raises:
        TaskError: tasks of different length, or whose items differ.
        OptionError, MetricError, SiteError, FileError: what cannot be run.
    """
    used = settings or GateSettings()
    if floor <= 0:
        raise OptionError(f"floor={floor}; allowed: above 0 nats.")
    _check_items(retain, forget)
    engine = engine or FitEngine()
    objective = _Contrast(engine.gated(model, retain), engine.gated(model, forget), floor)
    fits = [row._replace(penalty=used.penalty) for row in _starts(starts, seed)]
    like = ones(model)
    drawn = draw_gates(fits, like.shape[1:], low=used.low, high=used.high, dtype=like.dtype).to(like.device)
    found = fit(
        objective, drawn, fits, used.stage("contrast", used.steps[0], used.first_lr), len(retain),
        identity=f"{objective.retain.fingerprint} {objective.forget.fingerprint} {floor}", **engine.stage("contrast"),
    )  # fmt: skip
    gates = _flat(torch.sigmoid(found.theta))
    header = ScoreHeader("nodes", "gate", False, None, None, "zero", "mean over starts", "gate", "gate", NLL.name)
    provenance = provenance_of(
        model, retain, "gate_contrastive", metrics=[NLL], directions=[], ablation="zero", seed=seed,
        parameters={
            "settings": asdict(used), "starts": [[row.init, row.data] for row in fits], "floor": floor,
            "retain": retain.name, "forget": forget.name, "forget_parameters": dict(forget.parameters),
        },
        forwards=2.0 * len(fits) * used.batch * used.steps[0], backwards=2.0 * len(fits) * used.batch * used.steps[0],
    )  # fmt: skip
    axes = ("start", "node")
    return Circuit(
        candidates(model, retain, "z"),
        scores={"forget_specific": Score(header, (1 - gates).mean(0))},
        tensors={
            "gates": NamedTensor(gates, axes), "gates.theta": NamedTensor(_flat(found.theta), axes),
            "forget_specific": NamedTensor(1 - gates, axes),
            "contrast.benefits": NamedTensor(found.benefits.numpy(), ("step", "start")),
        },
        provenance=provenance,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The benefit of plain gating: mean over a fit's prompts of the mean log-probability of the targets."""

    gated: GatedTask

    def __call__(self, gates: Tensor, chosen: Sequence[Sequence[int]]) -> Float[Tensor, " row"]:
        values = _driven(self.gated, gates, chosen, lambda x, rows: x.sum() / len(chosen[0]))
        return values.unflatten(0, (len(chosen), -1)).mean(1)


@dataclass(frozen=True, eq=False)
class _Contrast:
    """The benefit of contrastive gating."""

    retain: GatedTask
    forget: GatedTask
    floor: float

    def __call__(self, gates: Tensor, chosen: Sequence[Sequence[int]]) -> Float[Tensor, " row"]:
        size = len(chosen[0])
        kept = _driven(self.retain, gates, chosen, lambda x, rows: x.sum() / size)

        def unlearned(x: Tensor, rows: list[int]) -> Tensor:
            return -(x - kept[rows]).clamp(min=-self.floor).sum() / size

        lost = _driven(self.forget, gates, chosen, unlearned)
        benefit = kept - (lost - kept).clamp(min=-self.floor)
        return benefit.unflatten(0, (len(chosen), -1)).mean(1)


def _driven(
    gated: GatedTask, gates: Tensor, chosen: Sequence[Sequence[int]], benefit: Callable[[Tensor, list[int]], Tensor]
) -> Float[Tensor, " pair"]:
    """Log-probability of every fit's prompts, fit by fit; adds the gradient of `benefit` to the gates."""
    pairs = [(fit, prompt) for fit, prompts in enumerate(chosen) for prompt in prompts]
    found = torch.empty(len(pairs), dtype=gates.dtype, device=gates.device)
    for places in gated.batches([prompt for _, prompt in pairs]):
        fits, prompts = ([pairs[place][i] for place in places] for i in (0, 1))
        with torch.enable_grad():
            values = gated.values(gates[fits], prompts)
            benefit(values, places).backward()
        found[places] = values.detach().to(found)
    return found


def same_items(first: Task, second: Task, by: str = "entity") -> tuple[Task, Task]:
    """The prompts of two tasks about the same items, in one order.

    Args:
        by: the group that names the item.

    Raises:
        TaskError: a task without that group, or no common item.
    """
    names = []
    for task in (first, second):
        if by not in task.groups:
            raise TaskError(f"task {task.name!r} has no group {by!r}; it has {', '.join(task.groups) or 'none'}.")
        names.append({item: row for row, item in enumerate(task.groups[by])})
    common = [item for item in names[0] if item in names[1]]
    if not common:
        raise TaskError(f"tasks {first.name!r} and {second.name!r} have no item ({by}) in common.")
    return first[[names[0][item] for item in common]], second[[names[1][item] for item in common]]


def _check_items(retain: Task, forget: Task) -> None:
    """Raise unless the rows of the tasks are about the same items."""
    pairs = [task.groups.get("entity", ()) for task in (retain, forget)]
    if len(retain) != len(forget) or pairs[0] != pairs[1]:
        raise TaskError(
            f"retain has {len(retain)} prompts, forget {len(forget)}, and row i of both must be about the same item; "
            "bring them together with interp.same_items(retain, forget)."
        )


def _starts(starts: int | Sequence[tuple[int, int]], seed: int) -> list[FitRow]:
    if isinstance(starts, int):
        starts = [(seed + number, seed + number) for number in range(starts)]
    if not starts:
        raise OptionError("starts: there are none; give a number from 1, or pairs of seeds (gates, data).")
    return [FitRow(init, data) for init, data in starts]


def _flat(values: Float[Tensor, "start layer head"]) -> Float[np.ndarray, "start node"]:
    return values.flatten(1).float().cpu().numpy()


def _attribution(gated: GatedTask) -> Float[np.ndarray, "node prompt"]:
    return gate_gradients(gated).flatten(1).float().numpy().T


def _described(
    model: HookedModel,
    task: Task,
    fits: Mapping[str, Fitted],
    gradients: Float[np.ndarray, "node prompt"],
    scored: GatedTask,
) -> Circuit:
    """The circuit with everything that the three fits say of the heads."""
    gates = {name: _flat(torch.sigmoid(one.theta)) for name, one in fits.items()}
    axes = ("start", "node")
    tensors = {"grad_at_one": NamedTensor(gradients, ("node", "prompt"))}
    header = ScoreHeader("nodes", "attribution", True, "noising", "clean", "zero", "mean", "nats", "atp", NLL.name)
    scores, attributes = {"grad_at_one": Score(header, mean(gradients))}, _classes(gates)
    for name, one in fits.items():
        tensors[name], tensors[f"{name}.theta"] = NamedTensor(gates[name], axes), NamedTensor(_flat(one.theta), axes)
        tensors[f"{name}.benefits"] = NamedTensor(one.benefits.numpy(), ("step", "start"))
        if name != "initial":
            header = ScoreHeader(
                "nodes", "gate", False, None, None, "zero", "mean over starts", "gate", "gate", NLL.name
            )
            scores[name] = Score(header, gates[name].mean(0))
            meaning = "|mean| / SD of the gate's gradient late in the fit, mean over starts"
            attributes[f"{name}.signal"] = Attribute("nodes", _flat(one.signal).mean(0), meaning)
    for name, values in gate_scores(gates["retain"], gates["remove"]).items():
        tensors[name] = NamedTensor(values, axes)
    for name, values in _performance(scored, {name: torch.sigmoid(one.theta) for name, one in fits.items()}).items():
        tensors[name] = NamedTensor(values, ("prompt",) if values.ndim == 1 else ("start", "prompt"))
    return Circuit(candidates(model, task, "z"), scores=scores, attributes=attributes, tensors=tensors)


def _classes(gates: Mapping[str, Float[np.ndarray, "start node"]]) -> dict[str, Attribute]:
    """Scores, classes and flags of the heads, over starts."""
    attributes: dict[str, Attribute] = {}

    def say(name: str, values: Any, meaning: str) -> None:
        attributes[name] = Attribute("nodes", values, meaning)

    found = gate_scores(gates["retain"], gates["remove"])
    for name, values in found.items():
        say(name, values.mean(0), f"mean {name} over starts")
        for key, reduced in (("sd", values.std(0)), ("min", values.min(0)), ("max", values.max(0))):
            say(f"{name}.{key}", reduced, f"{key} of {name} over starts")
    for name, cells in gate_cells(gates["retain"], gates["remove"]).items():
        say(name, cells.mean(0), f"share of starts in which the head is {name} (rule 'cell'; the four sum to 1)")
    for letter, name in (("F", "facilitation"), ("N", "interference")):
        members = found[name] >= 0.5
        say(f"always_{letter}", np.all(members, axis=0), f"{name} >= 0.5 in every start (rule 'score')")
        say(f"any_{letter}", np.any(members, axis=0), f"{name} >= 0.5 in some start (rule 'score')")
    return attributes


def _performance(scored: GatedTask, gates: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Log-probability and accuracy of each prompt under each set of gates."""
    sets = {"ungated": ones(scored.model), **gates, "hard": (gates["remove"] >= 0.5).to(gates["remove"])}
    found = {}
    for name, values in sets.items():
        for one, table in zip((NLL, ACCURACY), scored.table(values, (NLL, ACCURACY)).numpy(), strict=True):
            found[f"{name}.{one.name}"] = table[0] if name == "ungated" else table
    return found
