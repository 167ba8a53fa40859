"""Candidate nodes of featurizers: every feature and the error term of each site, jointly or position by position.

Rows of a featurizer lie together, place by place (a position, a role, or all), features in order and the error term
last; so scores of a site are a block [place, feature + 1].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from interp.candidate_nodes import Positions, position_columns
from interp.errors import TaskError
from interp.featurizers.base import Featurizer
from interp.models.base import HookedModel
from interp.nodes import ERROR, Nodes, appended
from interp.tasks.base import Task


@dataclass(frozen=True, eq=False)
class FeatureSite:
    """The candidates of one featurizer.

    Attributes:
        first: row of its first node.
        sets: the positions of each place, padding and skipped positions left out.
    """

    featurizer: Featurizer
    first: int
    sets: Bool[Tensor, "place prompt pos"]

    @property
    def shape(self) -> tuple[int, int]:
        """Places, and nodes a place."""
        return len(self.sets), self.featurizer.n_nodes

    @property
    def rows(self) -> slice:
        """Its rows among all candidates."""
        return slice(self.first, self.first + self.shape[0] * self.shape[1])


def feature_sites(
    model: HookedModel, task: Task, featurizers: Sequence[Featurizer], positions: Positions = "all"
) -> tuple[Nodes, list[FeatureSite]]:
    """Every feature and error term as nodes, and where they are.

    Args:
        featurizers: checked ones, in forward order.
        positions: ``"all"`` jointly, ``"each"`` position of the longest prompt, or role names of the task.

    Raises:
        TaskError: an unknown role, or no position that a featurizer describes.
    """
    places = position_columns(task, positions)
    sets = torch.stack([_members(task, place) for place in places])
    sites: list[FeatureSite] = []
    made: list[Nodes] = []
    for one in featurizers:
        own = sets.clone()
        own[..., : one.skip] = False
        has_any = own.flatten(1).any(1)
        if not has_any.any():
            raise TaskError(f"{one} skips the first {one.skip} positions, and no other is asked for; name later ones.")
        chosen = [place for place, there in zip(places, has_any.tolist(), strict=True) if there]
        sites.append(FeatureSite(one, sum(len(nodes) for nodes in made), own[has_any]))
        made.append(_nodes_of(model, one, chosen))
    return reduce(appended, made), sites


def _members(task: Task, place: dict) -> Bool[Tensor, "prompt pos"]:
    """The real tokens at one place."""
    mask = task.clean.mask.cpu()
    if "pos" in place:
        return mask & (torch.arange(mask.shape[1]) == place["pos"])
    if "role" not in place:
        return mask
    chosen = torch.zeros_like(mask)
    for row, where in enumerate(task.roles[place["role"]]):
        chosen[row, list(where)] = True
    return chosen


def _nodes_of(model: HookedModel, one: Featurizer, places: Sequence[dict]) -> Nodes:
    units = np.arange(one.n_features)
    heads = np.full(one.n_nodes, -1)
    if not one.key and one.site.has_heads:  # coordinates of heads are named as such
        width = model.shape.sizes(one.site)["d"]
        heads, units = units // width, units % width
    if one.has_error:
        units = np.append(units, ERROR)
    columns = {
        name: np.repeat([place.get(name, absent) for place in places], one.n_nodes)
        for name, absent in (("pos", -1), ("role", ""))
    }
    layer = -1 if one.site.layer is None else one.site.layer
    return Nodes.from_columns(
        one.site.kind, layer=layer, head=np.tile(heads, len(places)), unit=np.tile(units, len(places)),
        featurizer=one.key or None, pos=columns["pos"], role=columns["role"],
    )  # fmt: skip
