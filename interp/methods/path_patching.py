"""Path patching: the exact effect of a sender through chosen receivers only.

    A  run the other prompt:                        the senders' values
    B  run the base prompt:                         every head's output, the receivers' values
    C  run the base prompt again, every head held at B, the sender set to A, MLPs and norms recomputed (or held too):
                                                    what the receivers would read, reached by no other head
    D  run the base prompt, the receivers set to C: the metric

With the logits as receiver, run C itself is read: the sender's direct effect. All senders run as rows of the sweep
engine. Holding every head cuts paths through other heads, so taking all heads as receivers is not the plain patch.

Source: Wang et al. 2023 (arXiv 2211.00593), section 3.1, with MLPs recomputed as in the authors' code.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from interp.candidate_nodes import Positions, cell_of, chosen_nodes
from interp.cells import Source
from interp.circuit import BASES, Circuit, ScoreHeader, signed_score
from interp.errors import InterpWarning, OptionError, SiteError
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.models.runs import Tap, Taps
from interp.nodes import Node, Nodes
from interp.origin import provenance_of
from interp.regions import Layout
from interp.score_columns import UNITS, joined, score_columns
from interp.scoring import Scorer, checked_metrics, clean_reference
from interp.site import Site
from interp.sources import Direction, base_and_source, directions_of
from interp.sweep import Engine, groups_of, run_rows, tokens_in_flight, writers
from interp.sweep_plan import Group, Job, chunks
from interp.tasks.base import Task
from interp.tokens import Prompts

SENDERS, RECEIVERS = ("z", "mlp_out"), ("q", "k", "v")


@dataclass(frozen=True, eq=False)
class _Setting:
    """What one call of `path_patch` holds fixed."""

    model: HookedModel
    senders: Nodes
    receivers: tuple[Node, ...]
    freeze_mlps: bool
    waving: bool

    @property
    def entry(self) -> int:
        """The first layer that has a receiver; the number of layers where the logits are it."""
        return min((node.layer for node in self.receivers if node.layer is not None), default=self.model.shape.n_layers)

    @property
    def last(self) -> int:
        """The last layer that has a receiver."""
        return max((node.layer for node in self.receivers if node.layer is not None), default=self.model.shape.n_layers)


def path_patch(
    model: HookedModel,
    task: Task,
    senders: str | Sequence[str] | Nodes = "z",
    receivers: str | Sequence[str | Node] = "logits",
    *,
    positions: Positions = "all",
    freeze_mlps: bool = False,
    direction: Direction | Literal["both"] = "noising",
    metrics: str | Metric | Sequence[str | Metric] = (),
    seed: int = 0,
    engine: Engine | None = None,
) -> Circuit:
    """Exact effects of senders through receivers, as a `Circuit` whose nodes are the senders.

    Args:
        senders: ``"z"`` and ``"mlp_out"``, or nodes of these kinds.
        receivers: ``"logits"``, or heads of q, k, v such as ``"k[9] head 6"``, patched together at all positions (key
            and value heads are the model's own, shared by the query heads of a group).
        positions: of the senders: ``"all"`` jointly, ``"each"``, or role names of the task.
        freeze_mlps: hold the MLPs too, so that only the residual stream connects sender and receivers.
        direction: which run is changed.
        metrics: names or metrics; the task's own when none is given.
        seed: of the bootstrap.
        engine: chunking and progress.

    Returns:
        For each metric and direction a signed score ``metric.direction`` with the attributes of `interp.patch`; exactly
        0 for senders that lie above every receiver, NaN where a prompt lacks the position.

    Raises:
        OptionError, TaskError, SiteError, MetricError: before anything runs.

    Example:
        circuit = interp.path_patch(model, task, "z", ["q[9] head 6", "q[9] head 9"], positions="each")
    """
    engine = engine or Engine()
    measured = checked_metrics(model, task, metrics)
    ways = directions_of(task, direction, "counterfactual")
    chosen = chosen_nodes(model, task, senders, positions)
    waving = model.resumes if engine.kind == "auto" else engine.kind == "wave"
    setting = _Setting(model, chosen, _receivers(model, receivers), freeze_mlps, waving)
    if strange := [str(node) for node in chosen if node.kind not in SENDERS or node.unit is not None]:
        raise SiteError(f"senders {', '.join(strange[:5])} write no whole output; allowed: heads of z, and mlp_out.")
    scorer = Scorer(model, measured, task.answers, clean_reference(model, measured, task))
    columns = []
    for way in ways:
        base, source = base_and_source(model, task, way, "counterfactual", [])
        effects = _effects(setting, task, base, source, scorer, engine)
        for one, found in zip(measured, effects, strict=True):
            header = ScoreHeader(
                "nodes", "effect", True, way, BASES[way], "counterfactual", "mean", UNITS.get(one.name), "path_patch",
                one.name,
            )  # fmt: skip
            columns.append(score_columns(f"{one.name}.{way}", header, signed_score(found, way) + 0.0, seed=seed))
    made = joined(columns)
    for note in made.notes:
        warnings.warn(note, InterpWarning, stacklevel=2)
    provenance = provenance_of(
        model, task, "path_patch", metrics=measured, directions=ways, ablation="counterfactual", seed=seed,
        parameters={"receivers": [str(node) for node in setting.receivers] or ["logits"], "freeze_mlps": freeze_mlps},
        forwards=float(len(ways) * len(task) * (2 + len(chosen) * (2 if setting.receivers else 1))),
    )  # fmt: skip
    return Circuit(chosen, scores=made.scores, attributes=made.attributes, tensors=made.tensors, provenance=provenance)


def _receivers(model: HookedModel, given: str | Sequence[str | Node]) -> tuple[Node, ...]:
    """The receivers; none for the logits."""
    listed = [Node.parse(one) for one in ([given] if isinstance(given, str | Node) else given)]
    if listed == [Node("logits")]:
        return ()
    wrong = [str(n) for n in listed if n.kind not in RECEIVERS or n.head is None or n != Node(n.kind, n.layer, n.head)]
    if wrong or not listed:
        raise OptionError(
            f"receivers {', '.join(wrong) or 'none'}: allowed are 'logits' alone, or heads such as 'q[3] head 5'."
        )
    faults = []
    for node in listed:
        site = model.check_site(node.site)
        heads = model.shape.sizes(site)["head" if node.kind == "q" else "kv_head"]
        if node.head is not None and node.head >= heads:
            faults.append(f"'{node}': {model.identity.name} has heads 0 to {heads - 1} there")
    if faults:
        raise SiteError("; ".join(faults) + ".")
    return tuple(dict.fromkeys(listed))


def _effects(
    setting: _Setting, task: Task, base: Prompts, source: Source, scorer: Scorer, engine: Engine
) -> Float[np.ndarray, "metric node prompt"]:
    """metric(D) - metric(B) of every sender and prompt."""
    model = setting.model
    kinds = ["z"] + ["mlp_out"] * setting.freeze_mlps
    sites = sorted({n.site for n in setting.senders} | {n.site for n in setting.receivers} | set(model.sites(*kinds)),
                   key=lambda s: s.order)  # fmt: skip
    cells = [cell_of(node, task) for node in setting.senders]
    effects = torch.full((len(scorer.metrics), len(cells), len(task)), torch.nan, dtype=torch.float64)
    limit = engine.chunk_tokens or tokens_in_flight(model)
    bar = tqdm(total=len(cells) * len(task), disable=None if engine.progress else True, desc="paths", leave=False)
    with torch.no_grad(), bar:
        for group in groups_of(model, base, source, sites, scorer):
            plain = group.scorer.of_run(group.base.run).double().cpu()
            jobs = _jobs(setting, cells, group)
            for job in jobs:
                effects[:, job.cell, group.members[job.row]] = 0.0
            able = [job for job in jobs if job.layer < setting.last]
            for chunk in chunks(able, group, limit, setting.waving):
                found = _chunk(setting, cells, group, chunk).double().cpu()
                rows = torch.tensor([job.row for job in chunk])
                cell = torch.tensor([job.cell for job in chunk])
                members = torch.tensor(group.members)[rows]
                effects[:, cell, members] = found - plain[:, rows]
            bar.update(len(cells) * len(group.members))
    return effects.numpy()


def _jobs(setting: _Setting, cells: Sequence, group: Group) -> list[Job]:
    """Every sender on every prompt that has its positions, by first position and layer."""
    jobs = []
    for number, (part,) in enumerate(cells):
        for row, prompt in enumerate(group.members):
            where = None if part.positions is None else part.positions[prompt]
            if where is None or len(where):
                jobs.append(Job(number, row, 0 if where is None else min(where), part.site.layer))
    return sorted(jobs, key=lambda job: (job.first, job.layer))


def _chunk(setting: _Setting, cells: Sequence, group: Group, chunk: Sequence[Job]) -> Float[Tensor, "metric job"]:
    """Runs C and D of some senders."""
    model = setting.model
    prompts = torch.tensor([job.row for job in chunk], device=group.base.resid[0].device)
    first = chunk[0].first if setting.waving else 0
    start = min(job.layer for job in chunk) if setting.waving else 0  # no row passes the blocks before
    held = [site for site in _held(setting) if site.layer is not None and site.layer >= start]
    taps: Taps = {site: [partial(_hold, group.base.run[site], prompts, first)] for site in held}
    for site, writes in writers(model, group, cells, chunk, first).items():
        taps.setdefault(site, []).extend(writes)
    seen: dict[Site, Tensor] = {}
    for site in {node.site for node in setting.receivers}:
        taps.setdefault(site, []).append(partial(_keep, seen, site))
    ordered = {site: taps[site] for site in sorted(taps, key=lambda s: s.order)}
    resid = run_rows(model, group, chunk, ordered, setting.waving)
    if setting.receivers:
        later = [job._replace(layer=setting.entry) for job in chunk]
        resid = run_rows(model, group, later, _receiver_taps(setting, seen), setting.waving)
    return group.scorer(resid, prompts, first, group.base.run[Site("resid_final")])


def _held(setting: _Setting) -> list[Site]:
    """What keeps the base run's values in run C."""
    return setting.model.sites("z", *["mlp_out"] * setting.freeze_mlps)


def _hold(values: Tensor, prompts: Int[Tensor, " row"], first: int, x: Tensor, layout: Layout) -> Tensor:
    return values[prompts[: len(x)], first:].to(x)


def _keep(seen: dict[Site, Tensor], site: Site, x: Tensor, layout: Layout) -> None:
    seen[site] = x.clone()


def _receiver_taps(setting: _Setting, seen: Mapping[Site, Tensor]) -> Taps:
    """Taps of run D: the receivers' heads as run C had them, in the rows that had joined by then."""
    taps: dict[Site, list[Tap]] = {}
    for node in sorted(setting.receivers, key=lambda n: n.site.order):
        taps.setdefault(node.site, []).append(partial(_set_head, seen[node.site], node.head))
    return taps


def _set_head(values: Tensor, head: int | None, x: Tensor, layout: Layout) -> Tensor:
    x = x.clone()
    x[: len(values), :, head] = values[:, :, head].to(x)
    return x
