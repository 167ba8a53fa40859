"""Do the gates mean what they say? Ablation along a score's ranking, agreement with exact effects, and baselines.

Targeted ablation starts from a start's retaining gates, walks down a ranking and compares the log-probability of the
targets with those gates at 0 and at 1; a facilitating head makes the difference negative, an interfering one positive,
an irrelevant one leaves it at 0. Rankings are compared with random orders.

Baselines find heads by other means, and all are scored alike: as many heads as asked for stay open, the others are at
0, on prompts that they were not chosen on.

Source: Nam et al. 2025 (arXiv 2505.13737), section 4; baselines from Michel et al. 2019, Voita et al. 2019, Cao et al.
2021.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int64

from interp.circuit import Circuit
from interp.errors import OptionError, check_choice
from interp.gate_classes import start_values
from interp.gate_fit import fit
from interp.gate_runs import GatedTask, as_gates, gate_gradients
from interp.gate_settings import ACCURACY, NLL, GateSettings, Likelihood
from interp.gate_stage import FitRow, HardConcrete, Relaxation, Stage
from interp.methods.patching import patch
from interp.models.base import HookedModel
from interp.recall import auroc
from interp.sweep import Engine
from interp.table import Table
from interp.tasks.base import Task
from interp.welch import welch


def ablation_curve(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    by: str,
    *,
    ranks: Sequence[int] = (),
    mode: Literal["cumulative", "single"] = "cumulative",
    random: int = 1,
    seed: int = 0,
    memory: float = 4.0,
) -> Table:
    """What closing heads does against opening them, down a ranking of each start's own scores.

    Args:
        task: held-out prompts.
        circuit: from `interp.gate`.
        by: ``"facilitation"``, ``"interference"`` or ``"irrelevance"``.
        ranks: how far down to go, as numbers of heads; about twelve of them by default.
        mode: ``"cumulative"`` closes (opens) all heads down to a rank together, ``"single"`` the one at it alone.
        random: random orders of each start, as a control.
        seed: of these.
        memory: GiB of activations in one pass.

    Returns:
        One row a rank: rank, difference (log-probability closed - opened, nats a target, the mean over starts and
        prompts), low and high (the lowest and highest start), random (mean of the random orders), random_low,
        random_high.

    Raises:
        OptionError: ranks outside the heads, no such score or mode.
        CircuitError: a circuit without gates.
    """
    check_choice("mode", mode, ("cumulative", "single"))
    scores, gates = start_values(circuit, by), start_values(circuit, "retain")
    n_heads = scores.shape[1]
    chosen = sorted(set(ranks or np.linspace(1, n_heads, min(12, n_heads)).round().astype(int).tolist()))
    if not 1 <= chosen[0] <= chosen[-1] <= n_heads or random < 0:
        raise OptionError(f"ranks={list(ranks)}, random={random}; allowed: ranks 1 to {n_heads}, random from 0.")
    rng = np.random.default_rng(seed)
    own = [np.argsort(-one, kind="stable")[None] for one in scores]
    control = [
        np.array([rng.permutation(n_heads) for _ in range(random)], int).reshape(random, n_heads) for _ in scores
    ]
    gated = GatedTask(model, task, NLL, memory)
    found = [_differences(gated, g, order, chosen, mode) for g, order in zip(gates, own, strict=True)]
    others = [_differences(gated, g, order, chosen, mode) for g, order in zip(gates, control, strict=True)]
    values, chance = np.concatenate(found), np.concatenate(others)
    none = np.full(len(chosen), np.nan)
    return Table(
        {
            "rank": np.array(chosen),
            "difference": values.mean(0),
            "low": values.min(0),
            "high": values.max(0),
            "random": chance.mean(0) if random else none,
            "random_low": chance.min(0) if random else none,
            "random_high": chance.max(0) if random else none,
        }
    )


def _differences(
    gated: GatedTask, gates: Float[np.ndarray, " head"], orders: Int64[np.ndarray, "order head"], ranks: list[int],
    mode: str,
) -> Float[np.ndarray, "order rank"]:  # fmt: skip
    """Mean log-probability with the ranked heads at 0, less that with them at 1."""
    sets = np.tile(gates, (len(orders), len(ranks), 2, 1))
    for order, heads in enumerate(orders):
        for place, rank in enumerate(ranks):
            moved = heads[:rank] if mode == "cumulative" else heads[rank - 1 : rank]
            sets[order, place, 0, moved], sets[order, place, 1, moved] = 0.0, 1.0
    if not sets.size:
        return np.zeros((0, len(ranks)))
    values = gated.table(as_gates(gated.model, sets.reshape(-1, sets.shape[-1])))[0].mean(1)
    closed, opened = values.reshape(-1, 2).T.numpy()
    return (closed - opened).reshape(len(orders), len(ranks))


def mediation_agreement(circuit: Circuit, effects: Float[np.ndarray, " node"], deviations: float = 3.0) -> Table:
    """Whether heads with a large causal effect are those that gates call facilitating.

    Args:
        circuit: from `interp.gate`.
        effects: of each head, such as the mean noising score of `interp.patch`, in the order of the nodes.
        deviations: mediators are the heads whose effect exceeds the mean by so many standard deviations.

    Returns:
        One row for the maximum and one for the mean of facilitation over starts: mediators, their value, the others'
        value, t and its degrees of freedom (Welch), auroc of the value for being a mediator (NaN without mediators).
        The claim is one-sided: mediation is precise, gating complete.
    """
    values = start_values(circuit, "facilitation")
    if effects.shape != values.shape[1:]:
        raise OptionError(f"effects have shape {effects.shape}; one for each of {values.shape[1]} heads is needed.")
    mediators = effects > effects.mean() + deviations * effects.std()
    rows = []
    for name, one in (("maximum", values.max(0)), ("mean", values.mean(0))):
        inside, outside = one[mediators], one[~mediators]
        if len(inside) and len(outside):
            known = (inside.mean(), outside.mean(), *_t(one, mediators), auroc(one, mediators))
        else:
            known = (np.nan,) * 5
        rows.append((name, int(mediators.sum()), *map(float, known)))
    names = ("over_starts", "mediators", "of_mediators", "of_others", "t", "freedom", "auroc")
    return Table(dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True)))


def _t(values: Float[np.ndarray, " node"], members: Bool[np.ndarray, " node"]) -> tuple[float, float]:
    """t and degrees of freedom of members against the others; NaN where one side has a single head."""
    if min(members.sum(), (~members).sum()) < 2:
        return float("nan"), float("nan")
    difference, error, freedom = welch(values, members[:, None])
    return float(difference[0] / error[0]), float(freedom[0])


@dataclass(frozen=True)
class Baselines:
    """What the baselines need.

    Args:
        starts: fits of the learned ones.
        stage: of their fits.
        penalty: pull on P(gate > 0), as a mean over heads.
    """

    starts: int = 4
    stage: Stage = Stage("baseline", 500, (0.1, 0.1), 64)
    penalty: float = 1.0


def head_rankings(
    model: HookedModel,
    task: Task,
    baselines: Baselines | None = None,
    *,
    circuit: Circuit | None = None,
    memory: float = 4.0,
    seed: int = 0,
    progress: bool = True,
) -> Mapping[str, Float[np.ndarray, "start node"]]:
    """Scores of every head by each method; the highest should stay.

    Returns:
        ``zero ablation`` and ``mean ablation`` (exact effect of each alone), ``first order`` (signed), ``importance``
        (mean of absolute gradients), ``hard concrete`` and ``subnetwork probing`` (theta of each start), ``gating``
        (theta under removal pressure, where a `circuit` of `interp.gate` is given), and ``random``.
    """
    used = baselines or Baselines()
    gated = GatedTask(model, task, NLL, memory)
    gradients = gate_gradients(gated).flatten(1).float().numpy()
    found = {"first order": gradients.mean(0)[None], "importance": np.abs(gradients).mean(0)[None]}
    for ablation in ("zero", "mean"):
        exact = patch(
            model, task, "z", direction="noising", ablation=ablation, metrics=NLL, engine=Engine(progress=progress)
        )
        found[f"{ablation} ablation"] = exact.scores["neg_nll.noising"].values[None]
    rows = [FitRow(seed + n, seed + n, -used.penalty) for n in range(used.starts)]
    kinds: dict[str, Relaxation] = {"hard concrete": HardConcrete(0.33), "subnetwork probing": HardConcrete(2 / 3)}
    start = GateSettings(low=0.9, high=0.9).drawn(model, rows)
    for name, relaxation in kinds.items():
        done = fit(Likelihood(gated), start, rows, used.stage, len(task), relaxation=relaxation, progress=progress)
        found[name] = done.theta.flatten(1).float().cpu().numpy()
    if circuit is not None:
        found["gating"] = start_values(circuit, "remove.theta")
    rng = np.random.default_rng(seed)
    found["random"] = np.stack([rng.permutation(gradients.shape[1]) for _ in range(used.starts)]).astype(float)
    return found


def compare_rankings(
    model: HookedModel,
    task: Task,
    rankings: Mapping[str, Float[np.ndarray, "start node"]],
    sizes: Sequence[int],
    *,
    truth: Bool[np.ndarray, " node"] | None = None,
    memory: float = 4.0,
) -> Table:
    """Rankings of heads at equal sizes: what the model does when all but the highest heads are at 0.

    Args:
        task: held-out prompts.
        sizes: numbers of heads to keep.
        truth: planted heads, where they are known.

    Returns:
        One row a method and size: method, heads, neg_nll, accuracy (means over starts and prompts), overlap (mean
        Jaccard index of the kept heads over pairs of starts; NaN for one), auroc of the truth (NaN without one).

    Raises:
        OptionError: a size outside the heads.
    """
    n_heads = next(iter(rankings.values())).shape[1]
    if wrong := [size for size in sizes if not 0 <= size <= n_heads]:
        raise OptionError(f"sizes {wrong}; allowed: 0 to {n_heads}.")
    gated, rows = GatedTask(model, task, NLL, memory), []
    for name, scores in rankings.items():
        order = np.argsort(-scores, axis=1, kind="stable")
        known = np.nan if truth is None else np.mean([_above(one, truth) for one in scores])
        for size in sizes:
            kept = np.zeros(scores.shape, dtype=bool)
            np.put_along_axis(kept, order[:, :size], True, axis=1)
            gates = as_gates(model, kept.astype(np.float32))
            values, right = gated.table(gates, (NLL, ACCURACY)).mean((1, 2)).tolist()
            rows.append((name, size, values, right, _overlap(kept), float(known)))
    names = ("method", "heads", "neg_nll", "accuracy", "overlap", "auroc")
    return Table(dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True)))


def _above(scores: Float[np.ndarray, " node"], truth: Bool[np.ndarray, " node"]) -> float:
    """AUROC of signed scores: the share of pairs in which the planted head is ranked above the other."""
    inside, outside = scores[truth][:, None], scores[~truth]
    return float(((inside > outside) + (inside == outside) / 2).mean())


def _overlap(kept: Bool[np.ndarray, "start node"]) -> float:
    pairs = [(a & b).sum() / max((a | b).sum(), 1) for a, b in combinations(kept, 2)]
    return float(np.mean(pairs)) if pairs else float("nan")
