"""Checking a cheap score against exact effects, and bounding what it may have missed.

`verify` patches the k highest candidates exactly and stores both numbers. `bound_missed` then asks of the rest whether
any of them could have a large effect: random subsets of them are patched jointly, and for each node n the mean effect
of the subsets with it is compared with that of the subsets without it,

    D_n = mean(y | n in the subset) - mean(y | not),  SE_n^2 = s_in^2 / m_in + s_out^2 / m_out,

so that theta = max_n (|D_n| + t(nu_n, confidence) SE_n) exceeds the largest |D| with that confidence (every node's own
test must reject "as large as theta", so no correction for their number is needed). D_n is the effect of n beside the
other patched ones: it is n's own effect only as far as they do not interact.

Source: Kramár et al. 2024 (arXiv 2403.00745), section 3.3 and algorithm 1; the test is our reconstruction (Welch).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float, Int64

from interp.candidate_nodes import cell_of, check_nodes
from interp.cells import Source
from interp.circuit import Attribute, Circuit, NamedTensor, Score, ScoreHeader
from interp.circuit_ops import Rank, top_n
from interp.errors import CircuitError, OptionError
from interp.methods.patching import patch
from interp.metrics import Metric, metric
from interp.models.base import HookedModel
from interp.scoring import Scorer, checked_metrics, clean_reference
from interp.sources import ablation_source
from interp.sweep import Engine, sweep
from interp.tasks.base import Task


def verify(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    k: int,
    *,
    by: str,
    rank: Rank,
    engine: Engine | None = None,
    seed: int = 0,
) -> Circuit:
    """Patch the `k` highest nodes of a score exactly; the estimate and the exact effect then stand side by side.

    Args:
        by: a node score with a direction and an ablation in its header, such as ``"logit_diff.noising"``.
        rank: ``"signed"`` or ``"absolute"``.
        engine: memory, chunking, progress of the sweep.
        seed: of donors and bootstrap.

    Returns:
        The circuit with the score ``BY.exact`` (NaN for the nodes that were not patched), its attributes ``.low`` and
        ``.high``, and as a tensor of that name the per-prompt effects. Membership is left as it was.

    Raises:
        CircuitError: `by` is no such score, or fewer than `k` nodes can be ranked.
        SiteError, TaskError, MetricError: what `interp.patch` cannot run.
    """
    header = _header(circuit, by)
    rows = np.flatnonzero(top_n(circuit, k, by, rank=rank).kept_nodes)
    measured = _metric_of(task, header)
    exact = patch(
        model, task, circuit.nodes.take(rows), direction=header.direction, ablation=header.ablation,  # type: ignore[arg-type]
        metrics=measured, engine=engine, seed=seed,
    )  # fmt: skip
    name, n = f"{measured.name}.{header.direction}", len(circuit.nodes)

    def spread(values: np.ndarray) -> np.ndarray:
        full = np.full((n, *values.shape[1:]), np.nan)
        full[rows] = values
        return full

    score = Score(replace(header, quantity="effect", signed=True, method="patch"), spread(exact.scores[name].values))
    ends = {end: exact.attributes[f"{name}.{end}"] for end in ("low", "high")}
    bounds = {f"{by}.exact.{end}": Attribute("nodes", spread(one.values), one.meaning) for end, one in ends.items()}
    return replace(
        circuit,
        scores={**circuit.scores, f"{by}.exact": score},
        attributes={**circuit.attributes, **bounds},
        tensors={**circuit.tensors, f"{by}.exact": NamedTensor(spread(exact.tensors[name].array), ("node", "prompt"))},
        provenance=circuit.provenance.after("verify", by=by, rank=rank, k=k, seed=seed),
    )  # fmt: skip


def _header(circuit: Circuit, by: str) -> ScoreHeader:
    score = circuit.scores.get(by)
    if score is None or score.over != "nodes" or score.header.direction is None or score.header.ablation is None:
        known = [n for n, s in circuit.scores.items() if s.over == "nodes" and s.header.direction]
        raise CircuitError(
            f"{by!r} is no node score with a direction and an ablation; allowed: {', '.join(known) or 'none here'}."
        )
    return score.header


def _metric_of(task: Task, header: ScoreHeader) -> Metric:
    """The metric that a score names: the task's own where it has that name."""
    return task.metric if header.metric == task.metric.name else metric(header.metric or "")


@dataclass(frozen=True, eq=False)
class MissedBound:
    """What the nodes outside a verified list may have as their largest effect.

    Attributes:
        bounds: confidence -> theta, in the metric's unit.
        rows: the nodes it speaks of, as rows of the circuit.
        difference, error: D and its standard error, per node of `rows`.
        rounds, share: how many subsets were patched, and each node's probability to be in one.
    """

    bounds: Mapping[float, float]
    rows: Int64[np.ndarray, " node"]
    difference: Float[np.ndarray, " node"]
    error: Float[np.ndarray, " node"]
    rounds: int
    share: float

    def __str__(self) -> str:
        said = ", ".join(f"{theta:.3g} at {level:.0%}" for level, theta in self.bounds.items())
        return f"largest effect among {len(self.rows)} other nodes: below {said} ({self.rounds} random subsets)"


def bound_missed(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    k: int,
    *,
    by: str,
    rank: Rank,
    rounds: int = 200,
    share: float = 0.1,
    confidence: Sequence[float] = (0.5, 0.9, 0.99),
    seed: int = 0,
    engine: Engine | None = None,
) -> MissedBound:
    """Bound the largest mean effect among the nodes below the `k` highest of a score, by random subsets.

    Effects are means over the task's prompts, so that effects of opposite sign on different prompts cancel: give one
    prompt to bound them there.

    Args:
        by: a node score with a direction and an ablation in its header.
        rank: ``"signed"`` or ``"absolute"``.
        rounds: subsets patched, one forward of each prompt at most.
        share: probability of a node to be in a subset.
        confidence: of the bounds, one-sided.
        seed: of the subsets and donors.

    Raises:
        CircuitError: `by` is no such score, or `k` nodes cannot be ranked or leave none.
        OptionError: a share or confidence outside (0, 1), too few rounds for it.
    """
    header = _header(circuit, by)
    if not 0 < share < 1 or not all(0 < level < 1 for level in confidence):
        raise OptionError(f"share={share}, confidence={list(confidence)}; allowed: between 0 and 1.")
    rows = np.flatnonzero(~top_n(circuit, k, by, rank=rank).kept_nodes)
    if not len(rows):
        raise CircuitError(f"k={k} leaves no node to bound; the circuit has {len(circuit.nodes)}.")
    members = np.random.default_rng(seed).random((rounds, len(rows))) < share
    if members.sum(0).min() < 2 or (~members).sum(0).min() < 2:
        raise OptionError(
            f"rounds={rounds} at share={share}: some node is in, or out, fewer than 2 times; raise rounds."
        )
    effects = _joint_effects(model, task, circuit, rows, members, header, engine or Engine(), seed)
    difference, error, freedom = welch(effects, members)
    bounds = {
        level: float(np.max(np.abs(difference) + student_t(level, freedom) * error)) for level in sorted(confidence)
    }
    return MissedBound(bounds, rows, difference, error, rounds, share)


def _joint_effects(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    rows: np.ndarray,
    members: Bool[np.ndarray, "round node"],
    header: ScoreHeader,
    engine: Engine,
    seed: int,
) -> Float[np.ndarray, " round"]:
    """Effect of patching each subset together, the mean over prompts."""
    chosen = circuit.nodes.take(rows)
    check_nodes(model, task, chosen)
    parts = [cell_of(node, task)[0] for node in chosen]
    cells = [tuple(parts[n] for n in np.flatnonzero(subset)) for subset in members]
    used = [number for number, cell in enumerate(cells) if cell]  # an empty subset changes nothing
    measured = checked_metrics(model, task, _metric_of(task, header))
    scorer = Scorer(model, measured, task.answers, clean_reference(model, measured, task))
    if header.direction == "denoising":
        base, source = task.require_corrupted(), Source(task.clean)
    else:
        sites = sorted({part.site for part in parts}, key=lambda s: s.order)
        base, source = task.clean, ablation_source(model, task, header.ablation or "", sites, seed)
    found = sweep(model, base, source, [cells[n] for n in used], scorer, **engine.options)
    effects = np.zeros(len(cells))
    effects[used] = found.effects[0].double().nanmean(1).numpy()
    return effects


def welch(
    effects: Float[np.ndarray, " round"], members: Bool[np.ndarray, "round node"]
) -> tuple[Float[np.ndarray, " node"], Float[np.ndarray, " node"], Float[np.ndarray, " node"]]:
    """Per node: mean effect with it less mean effect without it, the standard error, and the degrees of freedom."""
    means, errors, terms = [], [], []
    for mask in (members, ~members):
        count = mask.sum(0)
        mean = effects @ mask / count
        variance = ((effects[:, None] - mean) ** 2 * mask).sum(0) / (count - 1) / count
        means.append(mean)
        errors.append(variance)
        terms.append(variance**2 / (count - 1))
    total = errors[0] + errors[1]
    freedom = np.divide(total**2, terms[0] + terms[1], out=np.full(len(total), np.inf), where=total > 0)
    return means[0] - means[1], np.sqrt(total), freedom


def student_t(level: float, freedom: Float[np.ndarray, " node"]) -> Float[np.ndarray, " node"]:
    """Quantiles of Student's t (Abramowitz & Stegun 26.7.5; within 0.1 % from 8 degrees of freedom on)."""
    x = NormalDist().inv_cdf(level)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + np.sum([term / freedom ** (power + 1) for power, term in enumerate(terms)], axis=0)
