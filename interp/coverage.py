"""What nodes cover of their sites: masks over a batch's positions and each position's units."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from interp.candidate_nodes import positions_of
from interp.circuit import Circuit
from interp.errors import CircuitError
from interp.nodes import ERROR, Node
from interp.site import Site
from interp.tasks.base import Task

PARTS_OF = {"attn_out": "z", "mlp_out": "neuron"}
"""A whole and the kind at which its parts live; a whole whose parts are candidates is ablated through them."""


@dataclass(frozen=True, eq=False)
class Place:
    """Candidates of one site that stand at the same positions, unit by unit.

    Attributes:
        positions: per prompt of the task, or None for all.
        columns: for each covered unit, the candidate's row.
        units: the unit, counted through all inner axes (head by head).
    """

    positions: tuple[tuple[int, ...], ...] | None
    columns: Int[np.ndarray, " covered"]
    units: Int[np.ndarray, " covered"]

    def mark(
        self, mask: Bool[np.ndarray, "row pos unit"], members: Bool[np.ndarray, "row node"], prompts: Sequence[int]
    ) -> None:
        """Set the mask where members of each row cover something."""
        chosen = members[:, self.columns]
        for row, prompt in enumerate(prompts):
            units = self.units[chosen[row]]
            if self.positions is None:
                mask[row][:, units] = True
            elif self.positions[prompt]:
                mask[row][np.ix_(self.positions[prompt], units)] = True


@dataclass(frozen=True, eq=False)
class Cover:
    """The candidates of one site.

    Attributes:
        featurizer: key of what its units are features of; None for the site's own units.
        skip: positions at the start that no node covers.
    """

    site: Site
    featurizer: str | None
    places: Sequence[Place]
    skip: int = 0

    def mask(
        self, members: Bool[np.ndarray, "row node"], prompts: Sequence[int], width: int, n_units: int
    ) -> Bool[np.ndarray, "row pos unit"]:
        """What the members cover in each row, a prompt of the task."""
        mask = np.zeros((len(members), width, n_units), dtype=bool)
        for place in self.places:
            place.mark(mask, members, prompts)
        mask[:, : self.skip] = False
        return mask


def covers(
    universe: Circuit, task: Task, inner: Mapping[Site, tuple[int, ...]], features: Mapping[str, tuple[int, int]]
) -> list[Cover]:
    """For each site to ablate, in forward order, the candidates that cover something of it; `logits` is none.

    Args:
        inner: sizes of each site's axes after the position.
        features: number of features and skipped positions of each featurizer.

    Raises:
        CircuitError: coordinates of a whole beside its parts, or features of a site beside its own units.
    """
    sites = {node.site for node in universe.nodes if node.kind != "logits"}
    found: dict[tuple[Site, str | None], dict] = defaultdict(lambda: defaultdict(list))
    for column, node in enumerate(universe.nodes):
        if node.kind == "logits":
            continue
        site = _ablated_at(node, sites)
        units = _features(node, features) if node.featurizer else _units(node, inner[site])
        found[site, node.featurizer][positions_of(node, task)].append((column, units))
    kinds = defaultdict(set)
    for site, featurizer in found:
        kinds[site].add(featurizer)
    if mixed := [str(site) for site, keys in kinds.items() if len(keys) > 1]:
        raise CircuitError(f"{', '.join(mixed)}: candidates of several featurizers, or beside plain units; keep one.")
    made = [
        Cover(site, key, [_place(where, nodes) for where, nodes in groups.items()], features[key][1] if key else 0)
        for (site, key), groups in found.items()
    ]
    return sorted(made, key=lambda cover: cover.site.order)


def _ablated_at(node: Node, sites: set[Site]) -> Site:
    """The site through which a node is ablated."""
    part = Site(PARTS_OF[node.kind], node.layer) if node.kind in PARTS_OF and not node.featurizer else None
    if part not in sites:
        return node.site
    if node.unit is not None:
        raise CircuitError(f"'{node}' is a coordinate beside candidates at {part}; keep one of the two kinds.")
    return part


def _features(node: Node, features: Mapping[str, tuple[int, int]]) -> Int[np.ndarray, " covered"]:
    """What a node covers of its featurizer: features in order, then the error term."""
    n_features = features[node.featurizer][0]  # type: ignore[index]
    if node.unit is None:
        return np.arange(n_features + 1)
    return np.array([n_features]) if node.unit == ERROR else np.arange(node.unit, node.unit + node.width)


def _units(node: Node, inner: tuple[int, ...]) -> Int[np.ndarray, " covered"]:
    """What a node covers of its site's inner axes, counted through all of them."""
    own = slice(None) if node.unit is None else slice(node.unit, node.unit + node.width)
    index = (slice(None) if node.head is None else slice(node.head, node.head + 1), own) if len(inner) > 1 else (own,)
    return np.arange(np.prod(inner)).reshape(inner)[index].ravel()


def _place(positions: tuple | None, nodes: Sequence[tuple[int, np.ndarray]]) -> Place:
    columns = np.repeat([column for column, _ in nodes], [len(units) for _, units in nodes])
    return Place(positions, columns, np.concatenate([units for _, units in nodes]))
