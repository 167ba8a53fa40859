"""Attribution patching: the effect of every candidate estimated at once, from two forwards and one backward pass.

    estimate(n) = (n(other) - n(base)) . d metric(base) / dn

    AtP        the estimate as it stands
    QK fix     at q and k: the attention probabilities under the patch are exact, only what follows is linear
    GradDrop   mean over blocks l of |estimate with l dropped from the backward pass|: direct and indirect effects of
               opposite sign no longer cancel. A magnitude, so it stands in a column of its own.
    AtP*       both

An integrated gradient (`steps` above 1) averages gradients over embeddings between the other run's and the base's.
Noising takes gradients in the clean run, denoising in the corrupted one: two estimates, not negatives of each other.

Sources: Nanda 2023 (attribution patching); Kramár et al. 2024 (arXiv 2403.00745); integrated: Hanna et al. 2024
(2403.17806).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from interp.candidate_nodes import Positions, chosen_nodes
from interp.cells import Source
from interp.circuit import BASES, Circuit, NamedTensor, Score, ScoreHeader, signed_score
from interp.cotangents import needed_sites, walk
from interp.errors import InterpWarning, OptionError, check_choice
from interp.intervention import Edit, Patch
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.models.runs import AttentionRule, Watched
from interp.node_sums import SiteNodes, by_site
from interp.nodes import Nodes
from interp.origin import provenance_of
from interp.qk_fix import joint_key_effects, key_effects, per_kv_head, query_effects
from interp.score_columns import UNITS, Columns, end_columns, joined, mean, score_columns
from interp.scoring import FINAL, Scorer, checked_metrics, clean_reference, metric_of_logits, refuse_blind
from interp.site import Site
from interp.sources import Direction, base_and_source, directions_of
from interp.tasks.base import Task
from interp.tokens import Prompts, batches

Method = Literal["atp", "atp+qk", "atp+graddrop", "atp*"]
KEYS = ("k", "k_of_query_head")
FIXED = ("q", *KEYS)
OWN_ARITHMETIC = ("pattern", "k_of_query_head", "v_of_query_head")
EMBED = Site("embed")


@dataclass(frozen=True, eq=False)
class _Setting:
    """What one call of `attribute` holds fixed."""

    model: HookedModel
    task: Task
    nodes: Nodes
    groups: list[SiteNodes]
    metrics: tuple[Metric, ...]
    reference: Float[Tensor, "prompt target d_vocab"] | None
    method: Method
    ablation: str
    steps: int
    batch: int
    seed: int

    @property
    def drops(self) -> bool:
        """Whether blocks are dropped (GradDrop)."""
        return self.method in ("atp+graddrop", "atp*")

    @property
    def fixed(self) -> list[Site]:
        """Sites whose estimates get the QK fix."""
        wants = self.method in ("atp+qk", "atp*")
        return [group.site for group in self.groups if wants and group.site.kind in FIXED]


class _Found(NamedTuple):
    """Of one metric in one direction: per-prompt estimates and magnitudes, and the metric of base and other run."""

    effects: Float[Tensor, "node prompt"]
    magnitudes: Float[Tensor, "node prompt"] | None
    base: Float[Tensor, " prompt"]
    other: Float[Tensor, " prompt"]


def attribute(
    model: HookedModel,
    task: Task,
    nodes: str | Sequence[str] | Nodes = "z",
    *,
    positions: Positions = "all",
    method: Method = "atp",
    direction: Direction | Literal["both"] = "both",
    ablation: str = "counterfactual",
    metrics: str | Metric | Sequence[str | Metric] = (),
    steps: int = 1,
    seed: int = 0,
    batch: int = 16,
    progress: bool = True,
) -> Circuit:
    """Estimated effects of patching every candidate, as a `Circuit` whose nodes are the candidates.

    Args:
        nodes: site kinds (every layer and head of each), or `Nodes` made with `candidates`.
        positions: for site kinds: ``"all"`` jointly, ``"each"``, or role names of the task.
        method: ``"atp"``, ``"atp+qk"``, ``"atp+graddrop"`` or ``"atp*"``; see the module.
        direction: which run is changed; an ablation without a corrupted run knows only ``"noising"``.
        ablation: what the other value is; see `interp.patch`.
        metrics: differentiable ones, by name or value; the task's own when none is given.
        steps: points of an integrated gradient; 1 is the gradient in the base run.
        seed: of donors and bootstrap.
        batch: prompts differentiated at once.
        progress: show a bar where there is a terminal.

    Returns:
        For each metric and direction a signed score ``metric.direction`` (mean over prompts of the estimate, in the
        metric's unit; positive helps) with the attributes of `interp.patch`; the unsigned ``.mean_abs`` (mean of
        absolute estimates, the paper's c) and with GradDrop ``.graddrop``; per-prompt values of each as tensors.

    Raises:
        OptionError, TaskError, SiteError, MetricError: before anything runs.

    Example:
        circuit = interp.attribute(model, task, ["q", "k", "v", "z"], positions="each", method="atp*")
    """
    check_choice("method", method, get_args(Method))
    if steps < 1 or batch < 1:
        raise OptionError(f"steps={steps}, batch={batch}; allowed: 1 and more.")
    measured = checked_metrics(model, task, metrics)
    ways = directions_of(task, direction, ablation)
    chosen = chosen_nodes(model, task, nodes, positions)
    setting = _Setting(
        model, task, chosen, by_site(chosen, task), measured, clean_reference(model, measured, task),
        method, ablation, steps, batch, seed,
    )  # fmt: skip
    _check(setting, ways)
    total = len(ways) * len(measured) * steps * len(task)
    found: dict[tuple[Direction, int], _Found] = {}
    with tqdm(total=total, disable=None if progress else True, desc="gradients", unit="prompt", leave=False) as bar:
        for way in ways:
            base, source = base_and_source(model, task, way, ablation, [g.site for g in setting.groups], seed)
            for number in range(len(measured)):
                found[way, number] = _attributed(setting, base, source, number, bar.update)
    ends = _ends(found, ablation)
    columns = joined(
        [*(_columns(setting, *at, each, ends) for at, each in found.items()),
         end_columns([m.name for m in measured], ends)]
    )  # fmt: skip
    for note in columns.notes:
        warnings.warn(note, InterpWarning, stacklevel=2)
    forwards = total + len(ways) * len(measured) * len(task) * (1 + bool(setting.fixed))
    provenance = provenance_of(
        model, task, method, metrics=measured, directions=ways, ablation=ablation, notes=columns.notes, seed=seed,
        parameters={"steps": steps, "batch": batch}, forwards=float(forwards),
        backwards=total * ((model.shape.n_layers + 1) / 2 if setting.drops else 1.0),
    )  # fmt: skip
    return Circuit(
        chosen, scores=columns.scores, attributes=columns.attributes, tensors=columns.tensors, provenance=provenance
    )


def _check(setting: _Setting, ways: Sequence[str]) -> None:
    """Raise for what has no estimate."""
    if "noising" in ways and setting.steps == 1:
        refuse_blind(setting.metrics, "steps above 1")
    if setting.drops and setting.model.shape.n_layers < 2:
        raise OptionError(f"method {setting.method!r} needs 2 layers or more; {setting.model.identity.name} has 1.")
    if setting.steps > 1 and setting.ablation not in ("counterfactual", "resample"):
        raise OptionError(
            f"steps={setting.steps} with ablation {setting.ablation!r}: a path needs another prompt's embeddings; use "
            "'counterfactual' or 'resample'."
        )
    parts = [node for node in setting.nodes if node.site in setting.fixed and node.unit is not None]
    if parts:
        raise OptionError(
            f"the QK fix is for whole queries and keys, not for units of them such as '{parts[0]}'; use method='atp'."
        )


class _Batch(NamedTuple):
    """Some prompts of one direction: base activations, the other run's, and how attention works on them."""

    rows: list[int]
    base: Mapping[Site, Tensor]
    other: Mapping[Site, Tensor]
    rules: Sequence[AttentionRule]


def _attributed(
    setting: _Setting, prompts: Prompts, source: Source, number: int, tick: Callable[[int], object]
) -> _Found:
    """Estimates of one metric in one direction, over all prompts."""
    parts = [
        _attributed_rows(setting, prompts[rows], source, number, rows, tick)
        for rows in batches(len(prompts), setting.batch)
    ]
    effects, magnitudes, base, other = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    for group in setting.groups:
        absent = ~group.present
        effects[group.rows] = effects[group.rows].masked_fill(absent, torch.nan)
        magnitudes[group.rows] = magnitudes[group.rows].masked_fill(absent, torch.nan)
    return _Found(effects, magnitudes if setting.drops else None, base, other)


def _attributed_rows(
    setting: _Setting, prompts: Prompts, source: Source, number: int, rows: list[int], tick: Callable[[int], object]
) -> _Found:
    """Estimates for one batch of prompts; along the path of an integrated gradient they are averaged."""
    model, n_layers = setting.model, setting.model.shape.n_layers
    at_site = {group.site: group for group in setting.groups}
    sites = _sites(setting)
    shape = (len(setting.nodes), len(rows))
    effects, magnitudes = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(2))
    sums: dict[Site, Tensor] = {}
    run = _watched(setting, prompts, number, rows, sites)
    base = {site: x.detach() for site, x in run.sites.items()}
    other, other_values = _other_run(setting, source, number, rows, base)
    batch = _Batch(rows, base, other, model.attention_rules(prompts) if setting.fixed else ())
    values = run.values.detach().cpu()
    for step in range(setting.steps):
        if step:
            toward = torch.lerp(base[EMBED], other[EMBED], step / setting.steps)
            run = _watched(setting, prompts, number, rows, sites, [Patch(EMBED, toward)])
        patterns: dict[int | None, Tensor] = {}
        for site, stack in walk(run, sites, n_layers, drop=setting.drops):
            if site.kind == "pattern":
                patterns[site.layer] = stack.rows
            if site in at_site:
                group = at_site[site]
                found = _estimate(setting, group, batch, stack.rows, patterns) / setting.steps
                sums[site] = sums[site] + found if step else found
                if step == setting.steps - 1:
                    total = sums.pop(site)
                    effects[group.rows] = total[0].cpu()
                    magnitudes[group.rows] = stack.magnitude(total).cpu()
        tick(len(rows))
    return _Found(effects, magnitudes, values, other_values)


def _sites(setting: _Setting) -> list[Site]:
    """Sites whose gradients are wanted; patterns before the queries and keys whose fix needs them."""
    patterns = [Site("pattern", site.layer) for site in setting.fixed]
    return list(dict.fromkeys([*patterns, *(group.site for group in setting.groups)]))


def _watched(
    setting: _Setting,
    prompts: Prompts,
    number: int,
    rows: list[int],
    sites: Sequence[Site],
    moved: Sequence[Patch] = (),
) -> Watched:
    """A differentiable run of the base prompts, at every site that the estimates touch."""
    answers = setting.task.answers[rows]
    one, model = setting.metrics[number], setting.model
    reference = None if setting.reference is None else setting.reference[rows]
    partners = [Site(kind, site.layer) for site in setting.fixed for kind in "qk"]
    watched = [*sites, *partners, *needed_sites(model.shape.n_layers), EMBED]
    metric = metric_of_logits(model, one, answers, reference)
    return model.watch(prompts, metric, list(dict.fromkeys(watched)), moved, logits=answers.positions)


def _other_run(
    setting: _Setting, source: Source, number: int, rows: list[int], base: Mapping[Site, Tensor]
) -> tuple[Mapping[Site, Tensor], Float[Tensor, " prompt"]]:
    """The other run's values at the base's sites, and its metric (NaN where the other values are constants)."""
    sites = list(dict.fromkeys([*_sites(setting), EMBED, FINAL]))
    if source.prompts is None:
        wanted = [group.site for group in setting.groups]
        return {s: source.constant(s, base[s], rows) for s in wanted}, torch.full((len(rows),), torch.nan)
    # The base run computes watched attention by our own arithmetic; so must this one, or equal prompts would differ.
    same = [Edit(site, torch.clone) for site in sites if site.kind in OWN_ARITHMETIC]
    run = setting.model.run(source.prompts[rows], same, sites, logits="none")
    one = setting.metrics[number]
    reference = None if setting.reference is None else setting.reference[rows]
    scorer = Scorer(setting.model, (one,), setting.task.answers[rows], reference)
    with torch.no_grad():
        return run.cache, scorer.of_run(run)[0].cpu()


def _estimate(
    setting: _Setting,
    group: SiteNodes,
    batch: _Batch,
    gradient: Float[Tensor, "stack batch ..."],
    patterns: Mapping[int | None, Tensor],
) -> Float[Tensor, "stack node batch"]:
    """Estimated effects at one site, metric(patched) - metric(base), under each row of the gradient's stack."""
    site = group.site
    if site not in setting.fixed:
        return group.sums((batch.other[site] - batch.base[site]) * gradient, batch.rows)
    rule, weights = batch.rules[site.layer], patterns[site.layer]  # type: ignore[index]
    q, k = (batch.base[Site(kind, site.layer)] for kind in "qk")
    if site.kind == "q":
        return group.sums(query_effects(rule, q, k, batch.other[site], weights)[..., None], batch.rows)
    n_keys = batch.base[site].shape[2]
    args = rule, q, batch.base[site], batch.other[site], weights
    sets = group.sets[:, batch.rows, : q.shape[1]].to(q.device)
    pooled = group.pooled(per_kv_head(key_effects(*args), n_keys)[..., None], batch.rows)
    for number in (sets.sum(-1) > 1).any(-1).nonzero()[:, 0].tolist():
        pooled[:, number] = per_kv_head(joint_key_effects(*args, sets[number]), n_keys)[..., None]
    return group.picked(pooled)


def _ends(found: Mapping[tuple[Direction, int], _Found], ablation: str) -> dict[str, Float[Tensor, "metric prompt"]]:
    """The metrics of the clean and, where there is one, of the corrupted run."""
    ends: dict[str, dict[int, Tensor]] = {}
    for (way, number), one in found.items():
        here, there = ("clean", "corrupted") if way == "noising" else ("corrupted", "clean")
        ends.setdefault(here, {})[number] = one.base
        if ablation == "counterfactual":
            ends.setdefault(there, {}).setdefault(number, one.other)
    return {end: torch.stack([values[n] for n in sorted(values)]).double() for end, values in ends.items()}


def _columns(setting: _Setting, way: Direction, number: int, found: _Found, ends: Mapping[str, Tensor]) -> Columns:
    """The columns of one metric in one direction."""
    one, name = setting.metrics[number], f"{setting.metrics[number].name}.{way}"

    def header(signed: bool, reduction: str) -> ScoreHeader:
        return ScoreHeader(
            "nodes", "attribution", signed, way, BASES[way], setting.ablation, reduction, UNITS.get(one.name),
            setting.method, one.name,
        )  # fmt: skip

    scores = signed_score(found.effects.numpy(), way) + 0.0
    gap = (ends["clean"] - ends["corrupted"])[number] if "corrupted" in ends else None
    made = [
        score_columns(name, header(True, "mean"), scores, gap=gap, seed=setting.seed),
        Columns({f"{name}.mean_abs": Score(header(False, "mean_abs"), mean(np.abs(scores)))}),
    ]
    if found.magnitudes is not None:
        values = found.magnitudes.numpy()
        made.append(
            Columns(
                {f"{name}.graddrop": Score(header(False, "mean over prompts and dropped blocks"), mean(values))},
                tensors={f"{name}.graddrop": NamedTensor(values, ("node", "prompt"))},
            )
        )
    return joined(made)
