"""Sums of a tensor over what each candidate node covers: its positions, its head and its units, prompt by prompt."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.candidate_nodes import positions_of
from interp.nodes import Nodes
from interp.site import Site
from interp.tasks.base import Task


@dataclass(frozen=True, eq=False)
class SiteNodes:
    """The candidates at one site.

    Attributes:
        rows: their rows among the candidates.
        sets: the distinct sets of positions they cover.
        which: the set of each.
        head: the head of each, -1 for all.
        units: (start, stop) of each on the last axis, (0, -1) for the whole.
    """

    site: Site
    rows: list[int]
    sets: Bool[Tensor, "set prompt pos"]
    which: Int[Tensor, " node"]
    head: Int[Tensor, " node"]
    units: Int[Tensor, "node 2"]

    def pooled(self, values: Float[Tensor, "..."], prompts: Sequence[int]) -> Float[Tensor, "..."]:
        """Sums over each set of positions [*stack, set, batch, ...]; at `pattern` over destinations."""
        if self.site.kind == "pattern":
            values = values.transpose(-3, -2)
        inner = len(self.site.axes) - 2
        flat = values.flatten(-inner) if inner > 1 else values
        sets = self.sets[:, list(prompts), : flat.shape[-2]].to(flat)
        return torch.einsum("spt,...ptu->...spu", sets, flat).unflatten(-1, values.shape[-inner:])

    def picked(self, pooled: Float[Tensor, "..."]) -> Float[Tensor, "*stack node batch"]:
        """Of sums over positions, those of each node's set, head and units; in float64."""
        pooled = pooled.double()
        if self.site.has_heads:
            pooled = torch.cat([pooled, pooled.sum(-2, keepdim=True)], -2)  # head -1: all of them
        below = torch.cat([torch.zeros_like(pooled[..., :1]), pooled.cumsum(-1)], -1)
        start, stop = self.units.to(pooled.device).T
        at = (self.which, self.head) if self.site.has_heads else (self.which,)
        below = below.movedim(-1 - len(at), -1)  # the batch last, so that set, head and unit are indexed together
        return below[(..., *at, stop, slice(None))] - below[(..., *at, start, slice(None))]

    @property
    def present(self) -> Bool[Tensor, "node prompt"]:
        """Which prompts have any of a node's positions."""
        return self.sets.any(-1)[self.which]

    def sums(self, values: Float[Tensor, "..."], prompts: Sequence[int]) -> Tensor:
        """Sums over what each node covers [*stack, node, batch]."""
        return self.picked(self.pooled(values, prompts))


def by_site(nodes: Nodes, task: Task) -> list[SiteNodes]:
    """The candidates grouped by site, in forward order of the sites."""
    groups: dict[Site, list[int]] = defaultdict(list)
    for row, node in enumerate(nodes):
        groups[node.site].append(row)
    return [_at_site(site, groups[site], nodes, task) for site in sorted(groups, key=lambda s: s.order)]


def _at_site(site: Site, rows: list[int], nodes: Nodes, task: Task) -> SiteNodes:
    lengths = task.clean.lengths.tolist()
    everywhere = tuple(tuple(range(n)) for n in lengths)
    numbers: dict[tuple, int] = {}
    which, heads, units = [], [], []
    for row in rows:
        node = nodes[row]
        where = positions_of(node, task)
        which.append(numbers.setdefault(everywhere if where is None else where, len(numbers)))
        heads.append(-1 if node.head is None else node.head)
        units.append((0, -1) if node.unit is None else (node.unit, node.unit + node.width))
    sets = torch.zeros(len(numbers), *task.clean.ids.shape, dtype=torch.bool)
    for where, number in numbers.items():
        for prompt, positions in enumerate(where):
            sets[number, prompt, list(positions)] = True
    return SiteNodes(site, rows, sets, torch.tensor(which), torch.tensor(heads), torch.tensor(units))
