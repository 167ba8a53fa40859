"""Causal head gating: a soft gate on every query head's output, fitted by gradient, says which role each head has.

    1. theta0 <- fit with no penalty, from gates drawn uniformly
    2. G+     <- fit from theta0 with lambda > 0, which pushes gates open      (retain)
       G-     <- fit from theta0 with lambda < 0, which pushes gates closed    (remove)
    3. facilitation G-, interference 1 - G+, irrelevance G+ (1 - G-), over several starts

A head at rest between the ends has a marginal benefit of at least 4 lambda / (number of heads) nats a target; below, it
follows the penalty. Removing a head is zero ablation of its z. Needs no corrupted prompts, only target tokens.

Source: Nam et al. 2025 (arXiv 2505.13737): equations, settings of the appendix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.candidate_nodes import candidates
from interp.circuit import Attribute, Circuit, NamedTensor, Score, ScoreHeader
from interp.errors import OptionError
from interp.gate_classes import gate_cells, gate_scores
from interp.gate_fit import Fitted, fit
from interp.gate_runs import GatedTask, gate_gradients, ones
from interp.gate_settings import ACCURACY, NLL, FitEngine, GateSettings, Likelihood, fit_rows, flat
from interp.models.base import HookedModel
from interp.origin import provenance_of
from interp.score_columns import mean
from interp.tasks.base import Task


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
    used, engine, fits = settings or GateSettings(), engine or FitEngine(), fit_rows(starts, seed)
    gated, scored = engine.gated(model, task), engine.gated(model, held_out or task)
    objective, identity = Likelihood(gated), gated.fingerprint
    initial = fit(
        objective, used.drawn(model, fits), fits, used.stage("initial", used.steps[0], used.first_lr), len(task),
        identity=identity, **engine.stage("initial"),
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
    gates = {name: flat(torch.sigmoid(one.theta)) for name, one in fits.items()}
    axes, found = ("start", "node"), gate_scores(gates["retain"], gates["remove"])
    tensors = {"grad_at_one": NamedTensor(gradients, ("node", "prompt"))}
    header = ScoreHeader("nodes", "attribution", True, "noising", "clean", "zero", "mean", "nats", "atp", NLL.name)
    scores, attributes = {"grad_at_one": Score(header, mean(gradients))}, _classes(gates, found)
    for name, one in fits.items():
        tensors[name], tensors[f"{name}.theta"] = NamedTensor(gates[name], axes), NamedTensor(flat(one.theta), axes)
        tensors[f"{name}.benefits"] = NamedTensor(one.benefits.numpy(), ("step", "start"))
        if name != "initial":
            header = ScoreHeader(
                "nodes", "gate", False, None, None, "zero", "mean over starts", "gate", "gate", NLL.name
            )
            scores[name] = Score(header, gates[name].mean(0))
            meaning = "|mean| / SD of the gate's gradient late in the fit, mean over starts"
            attributes[f"{name}.signal"] = Attribute("nodes", flat(one.signal).mean(0), meaning)
    for name, values in found.items():
        tensors[name] = NamedTensor(values, axes)
    for name, values in _performance(scored, {name: torch.sigmoid(one.theta) for name, one in fits.items()}).items():
        tensors[name] = NamedTensor(values, ("prompt",) if values.ndim == 1 else ("start", "prompt"))
    return Circuit(candidates(model, task, "z"), scores=scores, attributes=attributes, tensors=tensors)


def _classes(
    gates: Mapping[str, Float[np.ndarray, "start node"]], found: Mapping[str, Float[np.ndarray, "start node"]]
) -> dict[str, Attribute]:
    """Scores, classes and flags of the heads, over starts."""
    attributes: dict[str, Attribute] = {}

    def say(name: str, values: Any, meaning: str) -> None:
        attributes[name] = Attribute("nodes", values, meaning)

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
