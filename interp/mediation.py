"""Causal mediation: how much of a behaviour goes through each candidate, and how much around it.

With x the clean and x* the corrupted prompt, m(x; c <- x*) the metric of a run on x in which the candidate c has its
value from x*:

    TE  = m(x) - m(x*)               total effect of the prompt
    NIE = m(x*; c <- x) - m(x*)      natural indirect effect: c alone is restored
    TIE = m(x) - m(x; c <- x*)       total indirect effect: c alone is taken away
    NDE = m(x; c <- x*) - m(x*)      natural direct effect: everything but c is as in x

so TE = NDE + TIE. NIE and TIE differ by what c does together with the rest: of two parts that are both needed (AND)
NIE = 0 and TIE = TE, of two that replace each other (OR) NIE = TE and TIE = 0. (TIE - NIE) / TE is +1 and -1 there.

A direct effect in the narrower sense, past all other heads, is `interp.path_patch` to the logits.

Sources: Pearl 2001; Vig et al. 2020 (arXiv 2004.12265).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from interp.candidate_nodes import Positions
from interp.circuit import Attribute, Circuit, NamedTensor
from interp.methods.patching import patch
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import Nodes
from interp.recovery import recovery
from interp.score_columns import mean
from interp.scoring import checked_metrics
from interp.sweep import Engine
from interp.tasks.base import Task


def mediate(
    model: HookedModel,
    task: Task,
    nodes: str | Sequence[str] | Nodes = "z",
    *,
    positions: Positions = "all",
    metrics: str | Metric | Sequence[str | Metric] = (),
    seed: int = 0,
    engine: Engine | None = None,
) -> Circuit:
    """Indirect and direct effects of every candidate as a mediator between prompt and metric.

    Args:
        nodes, positions, metrics, seed, engine: as in `interp.patch`.

    Returns:
        The circuit of `interp.patch` in both directions, where the score ``METRIC.denoising`` is the NIE and
        ``METRIC.noising`` the TIE; with the attributes ``METRIC.nde`` and ``METRIC.interaction`` ((TIE - NIE) / TE,
        ratio of means; NaN where TE is too small to divide by), and the tensors ``METRIC.nde`` [node, prompt] and
        ``METRIC.te`` [prompt].

    Raises:
        OptionError, TaskError, SiteError, MetricError: before anything runs.
    """
    found = patch(model, task, nodes, positions=positions, metrics=metrics, seed=seed, engine=engine)
    attributes, tensors = dict(found.attributes), dict(found.tensors)
    for one in checked_metrics(model, task, metrics):
        nie, tie = (found.tensors[f"{one.name}.{way}"].array for way in ("denoising", "noising"))
        te = found.tensors[f"clean.{one.name}"].array - found.tensors[f"corrupted.{one.name}"].array
        nde = te - tie
        tensors[f"{one.name}.te"] = NamedTensor(te, ("prompt",))
        tensors[f"{one.name}.nde"] = NamedTensor(nde, ("node", "prompt"))
        attributes[f"{one.name}.nde"] = Attribute("nodes", mean(nde), "natural direct effect: the metric past the node")
        attributes[f"{one.name}.interaction"] = Attribute(
            "nodes", _shares(tie - nie, te), "(TIE - NIE) / TE: +1 needed together with the rest, -1 replaceable"
        )
    return replace(found, attributes=attributes, tensors=tensors, provenance=found.provenance.after("mediate"))


def _shares(values: np.ndarray, te: np.ndarray) -> np.ndarray:
    """Ratio of the means over the prompts that have the node; NaN where undefined."""
    shares = np.full(len(values), np.nan)
    for row, one in enumerate(values):
        has = ~np.isnan(one)
        if has.any():
            gap = torch.from_numpy(te[has])
            shares[row] = float(recovery(torch.from_numpy(one[has])[None], gap, torch.zeros_like(gap)).value[0])
    return shares
