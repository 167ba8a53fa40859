"""Sparse feature circuits: which features of which sites carry a behaviour, and through which others they act.

    1  score every feature and error term of every site (estimated by IG or AtP, or exact), averaged over prompts
    2  keep the nodes with |score| at least T_N, or the n largest
    3  score the edges among kept nodes (`interp.feature_edges`), averaged over prompts; keep |weight| at least T_E

Nodes are chosen before edges are scored, from scores over the whole data set; so weak prompts count and no edge is lost
to a threshold on a single prompt. A positive score helps the behaviour. Error terms are nodes like any other, but each
is a whole vector: their number does not compare with that of features (`error_shares`).

Source: Marks et al. 2024 (arXiv 2403.19647), section 3.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from tqdm import tqdm

from interp.behaviour import behaviour
from interp.candidate_nodes import Positions
from interp.circuit import BASES, Circuit, Score, ScoreHeader, signed_score
from interp.circuit_ops import threshold, top_n
from interp.edges import Edges
from interp.errors import CircuitError, OptionError, check_choice
from interp.feature_edges import EdgeGradient, chosen, edge_weights
from interp.feature_effects import (
    FeatureMethod,
    FeatureSearch,
    Rule,
    exact_effects,
    feature_batches,
    feature_estimates,
)
from interp.feature_nodes import feature_sites
from interp.feature_values import ablated
from interp.featurizers.base import Featurizer, checked_featurizers
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import ERROR, Nodes, appended, joint_columns
from interp.origin import provenance_of
from interp.score_columns import UNITS, score_columns
from interp.scoring import checked_metrics, refuse_blind
from interp.sources import Direction, directions_of
from interp.table import Table
from interp.tasks.base import Task


def attribute_features(
    model: HookedModel,
    task: Task,
    featurizers: Sequence[Featurizer],
    *,
    positions: Positions = "all",
    method: FeatureMethod = "ig",
    rule: Rule = "midpoint",
    steps: int = 10,
    direction: Direction = "noising",
    ablation: str = "counterfactual",
    metric: str | Metric | None = None,
    seed: int = 0,
    batch: int = 16,
    progress: bool = True,
) -> Circuit:
    """Effects of ablating every feature and error term, as a `Circuit` whose nodes are the candidates.

    Args:
        featurizers: at most one a site; all features of each are candidates.
        positions: ``"all"`` jointly (effects summed; for prompts without a template), ``"each"``, or role names.
        method: ``"ig"``, ``"atp"``, or ``"exact"`` (one run for each feature that changes; for tests and few sites).
        rule, steps: of the integrated gradient; see `interp.feature_effects`.
        direction: which run is changed.
        ablation: ``"counterfactual"`` (the other prompt's features), ``"zero"`` (for prompts without a counterpart),
            ``"mean"``, ``"mean_by_position"`` or ``"resample"``.
        metric: a differentiable one; the task's own when None.
        seed: of donors.
        batch: rows in one pass.
        progress: show a bar where there is a terminal.

    Returns:
        one signed score ``metric.direction`` (mean over prompts, in the metric's unit; positive helps) with per-prompt
        values as a tensor; exactly 0 where a feature does not change.

    Raises:
        OptionError, TaskError, SiteError, MetricError: before anything runs.

    Example:
        circuit = interp.attribute_features(model, task, [interp.load_dictionary("sae/", "resid_post[3]")])
    """
    check_choice("method", method, get_args(FeatureMethod))
    search, nodes, used = _search(
        model, task, featurizers, positions, method, rule, steps, direction, ablation, metric, seed, batch
    )
    scores = np.full((len(nodes), len(task)), np.nan, dtype=np.float32)
    score_of = exact_effects if method == "exact" else feature_estimates
    total = len(task) * len(search.sites)
    with tqdm(total=total, disable=None if progress else True, desc="features", unit="site", leave=False) as bar:
        for one_batch in feature_batches(search):
            for one in search.sites:
                with torch.set_grad_enabled(method != "exact"):
                    found = score_of(one_batch, one)
                absent = ~one.sets[:, one_batch.rows].any(-1)
                found = found.cpu().masked_fill(absent[:, None], torch.nan)
                scores[one.rows, one_batch.rows] = signed_score(found.flatten(0, 1).numpy(), direction) + 0.0
                bar.update(len(one_batch.rows))
    quantity = "effect" if method == "exact" else "attribution"
    header = ScoreHeader(
        "nodes", quantity, True, direction, BASES[direction], ablation, "mean", UNITS.get(used.name), method, used.name
    )
    columns = score_columns(f"{used.name}.{direction}", header, scores, intervals=False)
    passes = len(task) * (1 + len(search.sites) * steps * (method == "ig"))
    provenance = provenance_of(
        model, task, f"features.{method}", metrics=[used], directions=[direction], ablation=ablation, seed=seed,
        parameters={
            "positions": positions if isinstance(positions, str) else list(positions),
            "rule": rule if method == "ig" else None, "steps": steps if method == "ig" else None,
        },
        forwards=float(passes), backwards=float(passes if method != "exact" else 0),
    )  # fmt: skip
    return Circuit(
        nodes, scores=columns.scores, tensors=columns.tensors, provenance=provenance,
        featurizers={one.key: described(one) for one in search.featurizers if one.key},
    )  # fmt: skip


def described(one: Featurizer) -> dict[str, Any]:
    """What a circuit's file says of a featurizer."""
    return {"site": str(one.site), "features": one.n_features, "skip": one.skip, **one.description}


def _search(
    model: HookedModel, task: Task, featurizers: Sequence[Featurizer], positions: Positions, method: FeatureMethod,
    rule: Rule, steps: int, direction: Direction, ablation: str, metric: str | Metric | None, seed: int, batch: int,
) -> tuple[FeatureSearch, Nodes, Metric]:  # fmt: skip
    """The search that these options ask for, its candidates and its metric, once all are known to fit."""
    check_choice("rule", rule, get_args(Rule))
    check_choice("direction", direction, BASES)
    if steps < 1 or batch < 1:
        raise OptionError(f"steps={steps}, batch={batch}; allowed: 1 and more.")
    directions_of(task, direction, ablation)
    (used,) = checked_metrics(model, task, metric or ())
    if direction == "noising" and method == "atp":
        refuse_blind([used], "method='ig'")
    given = checked_featurizers(model, featurizers)
    nodes, sites = feature_sites(model, task, given, positions)
    values = ablated(model, task, given, ablation, direction, seed)
    search = FeatureSearch(behaviour(model, task, used, direction), values, sites, method, rule, steps, batch)
    return search, nodes, used


def connect_features(
    model: HookedModel,
    task: Task,
    featurizers: Sequence[Featurizer],
    circuit: Circuit,
    *,
    at_least: float | None = None,
    n_edges: int | None = None,
    gradient: EdgeGradient = "clean",
    metric: Metric | None = None,
    batch: int = 16,
    progress: bool = True,
) -> Circuit:
    """The edges among a feature circuit's kept nodes, and from them to the logits.

    Args:
        circuit: what `attribute_features` returned for this task and these featurizers, cut to the nodes to connect.
        at_least: keep edges with |weight| at least that; or
        n_edges: the so many largest. With neither, all that are not 0.
        gradient: ``"clean"``: outgoing weights of a node, those to the logits included, sum to its AtP score;
            ``"node"``: the gradient that its nodes' scores use (the authors' code).
        metric: needed only where the circuit's metric is none of the library's.

    Returns:
        the circuit with the edges, a node ``logits`` and a signed score ``metric.direction.edges`` (mean over the
        prompts that have the source's position, in the metric's unit; positive helps). Edges below the bar are not
        stored.

    Raises:
        CircuitError: another circuit than that, or one with very many kept nodes.
        OptionError: both bars.
    """
    if at_least is not None and n_edges is not None:
        raise OptionError(f"at_least={at_least} and n_edges={n_edges}; give one of them, or neither.")
    check_choice("gradient", gradient, get_args(EdgeGradient))
    name, header, told = _told(circuit)
    way: Direction = "denoising" if header.direction == "denoising" else "noising"
    search, nodes, _ = _search(
        model, task, featurizers, told["positions"], "ig" if told["steps"] else "atp", told["rule"] or "midpoint",
        told["steps"] or 1, way, header.ablation or "", metric or header.metric,
        circuit.provenance.seed or 0, batch,
    )  # fmt: skip
    if list(nodes.names("featurizer")) != list(circuit.nodes.names("featurizer")) or not _same(nodes, circuit.nodes):
        raise CircuitError(
            "the circuit's nodes are not those of these featurizers on this task; give what it was made of."
        )
    own = [chosen(one, circuit.kept_nodes) for one in search.sites]
    sums: dict[tuple[int, int], np.ndarray] = {}
    with tqdm(total=len(task), disable=None if progress else True, desc="edges", unit="prompt", leave=False) as bar:
        for one_batch in feature_batches(search):
            for pair, weights in edge_weights(one_batch, own, gradient).items():
                summed = weights.detach().double().cpu().numpy()
                sums[pair] = sums[pair] + summed if pair in sums else summed
            bar.update(len(one_batch.rows))
    source, target, total = _columns(sums, [one.rows for one in own], len(nodes))
    having = np.concatenate([np.repeat(one.sets.any(-1).sum(-1).numpy(), one.shape[1]) for one in search.sites])
    signed = signed_score(total / having[source], way) + 0.0
    keep = _largest(np.abs(signed), at_least, n_edges)
    return _connected(circuit, name, header, source[keep], target[keep], signed[keep], gradient)


def feature_circuit(
    model: HookedModel,
    task: Task,
    featurizers: Sequence[Featurizer],
    *,
    at_least: float | None = None,
    n_nodes: int | None = None,
    edges_at_least: float | None = None,
    n_edges: int | None = None,
    gradient: EdgeGradient = "clean",
    **options: Any,
) -> Circuit:
    """A sparse feature circuit: nodes by `attribute_features`, cut, then edges by `connect_features`.

    Args:
        at_least: keep nodes with |score| at least that (the paper's T_N, such as 0.1 logits); or
        n_nodes: the so many largest.
        edges_at_least: the same for edges (T_E, T_N / 10 when nothing is given for edges); or
        n_edges: the so many largest.
        options: of `attribute_features`; ``batch``, ``metric`` and ``progress`` serve both.

    Raises:
        OptionError: both bars for nodes, or neither.
    """
    if (at_least is None) == (n_nodes is None):
        raise OptionError(f"at_least={at_least} and n_nodes={n_nodes}; give one of them.")
    scored = attribute_features(model, task, featurizers, **options)
    name = next(iter(scored.scores))
    if n_nodes is not None:
        cut = top_n(scored, n_nodes, name, rank="absolute")
    else:
        cut = threshold(scored, at_least, name, rank="absolute")  # type: ignore[arg-type]
        if edges_at_least is None and n_edges is None:
            edges_at_least = at_least / 10  # type: ignore[operator]
    shared = {key: options[key] for key in ("batch", "progress") if key in options}
    metric = options.get("metric")
    return connect_features(
        model, task, featurizers, cut, at_least=edges_at_least, n_edges=n_edges, gradient=gradient,
        metric=metric if isinstance(metric, Metric) else None, **shared,
    )  # fmt: skip


def error_shares(circuit: Circuit, by: str | None = None) -> Table:
    """How much of the scores lies in error terms: sum of |score| over error terms over that of all nodes, a site.

    Args:
        by: a node score; the first when None.

    Returns:
        one row a site, and last ``all``: site, error_share, nodes (kept ones), errors (kept error terms).
    """
    name = by or next(iter(circuit.scores))
    size = np.nan_to_num(np.abs(circuit.scores[name].values).astype(np.float64))
    is_error = circuit.nodes.unit == ERROR
    sites = np.array([str(node.site) if node.kind != "logits" else "" for node in circuit.nodes], dtype=object)
    groups = [(site, sites == site) for site in dict.fromkeys(sites) if site] + [("all", sites != "")]
    kept = circuit.kept_nodes
    return Table(
        {
            "site": np.array([site for site, _ in groups], dtype=object),
            "error_share": np.array(
                [size[rows & is_error].sum() / max(size[rows].sum(), 1e-300) for _, rows in groups]
            ),
            "nodes": np.array([int((kept & rows).sum()) for _, rows in groups]),
            "errors": np.array([int((kept & rows & is_error).sum()) for _, rows in groups]),
        }
    )


def _told(circuit: Circuit) -> tuple[str, ScoreHeader, dict[str, Any]]:
    """The circuit's node score and how it was made."""
    scores = [(name, one.header) for name, one in circuit.scores.items() if one.over == "nodes"]
    if not circuit.provenance.method.startswith("features.") or not scores:
        raise CircuitError(
            f"the circuit comes from {circuit.provenance.method or 'an unknown method'}; connect_features needs one of "
            "attribute_features."
        )
    return *scores[0], dict(circuit.provenance.parameters)


def _same(nodes: Nodes, others: Nodes) -> bool:
    """Whether two sets of nodes are equal row by row."""
    if len(nodes) != len(others):
        return False
    columns, *_ = joint_columns(nodes, others)
    return all(np.array_equal(column[: len(nodes)], column[len(nodes) :]) for column in columns)


def _columns(
    sums: dict[tuple[int, int], np.ndarray], rows: Sequence[np.ndarray], logits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All weights as columns (source row, destination row, weight), without zeros."""
    parts = []
    for (source, target), weights in sums.items():
        to, where = weights.nonzero()
        ends = np.full(len(to), logits) if target == -1 else rows[target][to]
        parts.append((rows[source][where], ends, weights[to, where]))
    if not parts:
        return np.zeros(0, int), np.zeros(0, int), np.zeros(0)
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))  # type: ignore[return-value]


def _largest(size: np.ndarray, at_least: float | None, n: int | None) -> np.ndarray:
    """Rows of the largest values, in their order."""
    if at_least is not None:
        return np.flatnonzero(size >= at_least)
    return np.sort(np.argsort(-size, kind="stable")[:n])


def _connected(
    circuit: Circuit, name: str, header: ScoreHeader, source: np.ndarray, target: np.ndarray, weights: np.ndarray,
    gradient: str,
) -> Circuit:  # fmt: skip
    """The circuit with edges and the node `logits`."""
    scores = {key: replace(one, values=np.append(one.values, np.nan)) for key, one in circuit.scores.items()}
    over_edges = replace(header, over="edges", quantity="attribution", method="feature_edges")
    scores[f"{name}.edges"] = Score(over_edges, weights)
    tensors = {
        key: replace(one, values=np.concatenate([one.array, np.full_like(one.array[:1], np.nan)]))
        for key, one in circuit.tensors.items()
    }
    told = circuit.provenance
    provenance = replace(told, parameters={**told.parameters, "edge_gradient": gradient})
    return replace(
        circuit, nodes=appended(circuit.nodes, Nodes.of(["logits"])), edges=Edges(source, target), scores=scores,
        tensors=tensors, kept_nodes=np.append(circuit.kept_nodes, True), kept_edges=np.ones(len(source), dtype=bool),
        provenance=provenance,
    )  # fmt: skip
