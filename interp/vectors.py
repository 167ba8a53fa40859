"""A vector for each context, in which contexts that a model treats alike point the same way.

    kind          a context's vector
    activations   features of the given featurizers
    effects       attributed effects of features and error terms on log p(answer), zero baseline; positive helps
    gradients     of log p(answer) with respect to the weights, projected (`interp.gradient_vectors`)

Features are summed over positions, or stand side by side for each of the last positions. Vectors are sparse arrays of
SciPy where features may be; only one batch of prompts is ever held with all its features.

Source: Marks et al. 2024 (arXiv 2403.19647), section 5 and the appendix on clusters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from interp.behaviour import behaviour
from interp.errors import OptionError, check_choice, require
from interp.feature_effects import FeatureSearch, feature_batches, feature_estimates
from interp.feature_nodes import FeatureSite, feature_sites
from interp.feature_values import ablated
from interp.featurizers.base import Featurizer, checked_featurizers, flat
from interp.gradient_vectors import Projection, gradient_vectors
from interp.models.base import HookedModel
from interp.predicted import Contexts
from interp.tasks.base import Task
from interp.tokens import batches

Kind = Literal["activations", "effects", "gradients"]


@dataclass(frozen=True, eq=False)
class ContextVectors:
    """One vector a context.

    Attributes:
        values: float32 [context, coordinate]: a sparse array (CSR) of activations or effects, an array of gradients.
        kind: what they are.
        parameters: how they were made, as JSON values.
    """

    values: Any
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.values.shape[0]


def context_vectors(
    model: HookedModel,
    contexts: Contexts,
    featurizers: Sequence[Featurizer] = (),
    kind: Kind = "effects",
    *,
    last: int | None = None,
    steps: int = 0,
    projection: Projection | None = None,
    batch: int = 16,
    progress: bool = True,
) -> ContextVectors:
    """Vectors of contexts, to be grouped by `cluster`.

    Args:
        featurizers: at most one a site; none for gradients.
        last: features at each of the so many last positions, side by side (0 where a context is shorter); summed over
            all positions when None.
        steps: of integrated gradients, for effects; 0 takes the gradient at the context itself (AtP).
        projection: of gradients; 30,000 dimensions when None.
        batch: contexts in one pass; of gradients, how many are in memory.
        progress: show a bar where there is a terminal.

    Returns:
        for `last` = n, coordinates by site, then position from the last backward, then feature (and, for effects,
        error term); featurizers' skipped positions count for nothing.

    Raises:
        OptionError: a number outside its range, featurizers that the kind needs or does not take.
        MissingExtraError: SciPy, which comes with scikit-learn, is not installed.

    Example:
        vectors = interp.context_vectors(model, found, dictionaries, "effects")
    """
    check_choice("kind", kind, get_args(Kind))
    longest = int(contexts.prompts.lengths.max())
    if steps < 0 or batch < 1 or (last is not None and not 1 <= last <= longest):
        raise OptionError(
            f"last={last}, steps={steps}, batch={batch}; allowed: last from 1 to the longest context's {longest} "
            "tokens, or None; steps from 0; batch from 1."
        )
    if (kind == "gradients") == bool(featurizers):
        what = "none: gradients are the weights'" if featurizers else f"at least one: {kind} are those of features"
        raise OptionError(f"kind={kind!r} with {len(featurizers)} featurizers; allowed is {what}.")
    task = contexts.task()
    if kind == "gradients":
        projection = projection or Projection()
        values = gradient_vectors(model, task, projection, batch=batch, progress=progress)
        told: dict[str, Any] = {"width": projection.width, "nonzeros": projection.nonzeros, "seed": projection.seed}
        return ContextVectors(values, kind, told)
    given = checked_featurizers(model, featurizers)
    task, places = _with_last(task, last)
    _, sites = feature_sites(model, task, given, places)
    parts = _effects(model, task, sites, steps, batch) if kind == "effects" else _activations(model, task, sites, batch)
    with tqdm(total=len(task), disable=None if progress else True, desc=kind, unit="context", leave=False) as bar:
        rows = _sparse_rows(parts, bar.update)
    told = {"last": last, "steps": steps if kind == "effects" else None, "sites": [str(one.site) for one in given]}
    return ContextVectors(rows, kind, told)


def _with_last(task: Task, last: int | None) -> tuple[Task, Any]:
    """The task with its last positions as roles, and which places features are wanted at."""
    if last is None:
        return task, "all"
    lengths = task.clean.lengths.tolist()
    roles = {f"last {k}": tuple((n - k,) if n >= k else () for n in lengths) for k in range(1, last + 1)}
    return replace(task, roles={**task.roles, **roles}), list(roles)


def _effects(
    model: HookedModel, task: Task, sites: Sequence[FeatureSite], steps: int, batch: int
) -> Iterator[list[Float[Tensor, "context _"]]]:
    """Batch by batch, each site's signed scores, as `attribute_features` gives them."""
    given = [one.featurizer for one in sites]
    values = ablated(model, task, given, "zero", "noising", 0)
    measured = behaviour(model, task, task.metric)
    search = FeatureSearch(measured, values, sites, "ig" if steps else "atp", steps=max(steps, 1), batch=batch)
    for one_batch in feature_batches(search):
        yield [-feature_estimates(one_batch, one).flatten(0, 1).T for one in sites]


@torch.no_grad()
def _activations(
    model: HookedModel, task: Task, sites: Sequence[FeatureSite], batch: int
) -> Iterator[list[Float[Tensor, "context _"]]]:
    """Batch by batch, each site's features."""
    wanted = list(dict.fromkeys(one.featurizer.reads for one in sites))
    for rows in batches(len(task), batch):
        run = model.run(task.clean[rows], record=wanted, logits="none")
        parts = []
        for one in sites:
            features = one.featurizer.encode(flat(run[one.featurizer.reads]))
            where = one.sets[:, rows, : features.shape[1]].to(features)
            real = where.any(0)[..., None].to(torch.bool)  # columns past a prompt's length mean nothing
            parts.append(torch.einsum("bpu,sbp->bsu", features.masked_fill(~real, 0), where).flatten(1))
        yield parts


def _sparse_rows(parts: Iterator[list[Tensor]], done: Callable[[int], Any]) -> Any:
    """All batches' blocks as one sparse array."""
    require("scipy", "sae")
    from scipy import sparse  # type: ignore[import-untyped]

    rows = []
    for blocks in parts:
        rows.append(sparse.csr_array(torch.cat(blocks, 1).float().cpu().numpy()))
        done(len(blocks[0]))
    return sparse.vstack(rows, format="csr")
