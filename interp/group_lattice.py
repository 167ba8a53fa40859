"""Every subset of a few groups of components, run exactly: which sets carry a behaviour, and how groups combine.

With m groups there are 2^m runs, each with the other groups ablated in the clean run. All of a value function is then
known, so what follows is exact: the smallest sets that suffice, the largest that do not, groups that stand in for each
other, Shapley values and interactions.

    Shapley value      phi_i  = sum_S  |S|! (m-|S|-1)! / m!      (v(S+i) - v(S))                 S without i
    interaction        I_ij   = sum_S  |S|! (m-|S|-2)! / (m-1)!  (v(S+ij) - v(S+i) - v(S+j) + v(S))

with v a set's faithfulness; the values sum to 1. I < 0 where two groups do the same (either suffices), I > 0 where each
needs the other.

Source: Shapley 1953; interaction index: Grabisch and Roubens 1999.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.circuit import Circuit
from interp.errors import CircuitError, OptionError, nearest
from interp.featurizers.base import Featurizer
from interp.joint_effects import joint_effects
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.nodes import Nodes
from interp.overlaps import minimal
from interp.recovery import bootstrap, recovery
from interp.run_circuit import SUBLAYERS, run_circuits
from interp.scoring import checked_metrics
from interp.sweep import Engine
from interp.table import Table
from interp.tasks.base import Task

MOST_GROUPS = 12


@dataclass(frozen=True, eq=False)
class Lattice:
    """The metric of every subset of some groups.

    Attributes:
        names: of the groups.
        subsets: row n keeps the groups whose bits the number n has; row 0 none, the last all.
        values: the metric of each run.
        metric, ablation: what was measured, and what replaced the other groups.
    """

    names: tuple[str, ...]
    subsets: Bool[np.ndarray, "subset group"]
    values: Float[Tensor, "subset prompt"]
    metric: str
    ablation: str

    @property
    def faithfulness(self) -> Float[np.ndarray, " subset"]:
        """Recovery of each subset: 0 for none, 1 for all.

        Raises:
            CircuitError: all and none of the groups give the same, so that nothing can be shared out.
        """
        found = recovery(self.values, self.values[-1], self.values[0])
        if found.reason:
            raise CircuitError(f"faithfulness is undefined: {found.reason}; choose other groups, prompts or ablation.")
        return found.value.numpy()

    def table(self) -> Table:
        """One row a subset, the most faithful first: groups, size, faithfulness and its 95 % interval over prompts."""
        low, high = self._interval(self.values - self.values[0])
        return Table({
            "groups": np.array([self._said(row) for row in self.subsets], dtype=object),
            "size": self.subsets.sum(1), "faithfulness": self.faithfulness, "low": low, "high": high,
        }).sort("faithfulness", descending=True)  # fmt: skip

    def minimal_sets(self, at_least: float = 0.9) -> list[tuple[str, ...]]:
        """Faithful sets that contain no other faithful one."""
        sets = self.subsets[self.faithfulness >= at_least]
        return [self._named(row) for row in sets[minimal(sets)]]

    def maximal_sets(self, below: float = 0.9) -> list[tuple[str, ...]]:
        """Sets that are not faithful and that no other such set contains: all that can be had without the behaviour."""
        sets = self.subsets[self.faithfulness < below]
        return [self._named(row) for row in sets[minimal(~sets)]]

    def substitutes(self, at_least: float = 0.9) -> list[tuple[str, str]]:
        """Pairs of groups of which either can go but not both, with all others there: backups of each other."""
        enough, last = self.faithfulness >= at_least, len(self.subsets) - 1
        return [
            (self.names[i], self.names[j])
            for i, j in combinations(range(len(self.names)), 2)
            if enough[last ^ (1 << i)] and enough[last ^ (1 << j)] and not enough[last ^ (1 << i) ^ (1 << j)]
        ]

    def shapley(self) -> Table:
        """One row a group: group, shapley and its 95 % interval over prompts, alone (faithfulness of the group alone)
        and without (of all others)."""
        m, all_of_it = len(self.names), len(self.subsets) - 1
        weights = np.array([self._shares([i], m) for i in range(m)])
        value, low, high = self._of_weights(weights)
        single = self.faithfulness[[1 << i for i in range(m)]]
        others = self.faithfulness[[all_of_it ^ (1 << i) for i in range(m)]]
        names = np.array(self.names, dtype=object)
        return Table({"group": names, "shapley": value, "low": low, "high": high, "alone": single, "without": others})

    def interactions(self) -> Table:
        """One row a pair of groups, the strongest first: first, second, interaction and its 95 % interval."""
        m = len(self.names)
        pairs = list(combinations(range(m), 2))
        value, low, high = self._of_weights(np.array([self._shares(pair, m - 1) for pair in pairs]))
        first, second = (np.array([self.names[pair[n]] for pair in pairs], dtype=object) for n in (0, 1))
        table = Table({"first": first, "second": second, "interaction": value, "low": low, "high": high})
        return table.take(np.argsort(-np.abs(value), kind="stable"))

    def _shares(self, groups: Sequence[int], total: int) -> Float[np.ndarray, " subset"]:
        """Weight of each subset in the value of a group, or in the interaction of two."""
        inside = self.subsets[:, list(groups)].sum(1)
        rest = self.subsets.sum(1) - inside
        weight = np.array([factorial(r) * factorial(total - 1 - r) / factorial(total) for r in rest.tolist()])
        return weight * (-1.0) ** (len(groups) - inside)

    def _of_weights(self, weights: Float[np.ndarray, "row subset"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.faithfulness  # noqa: B018 - raises where nothing can be shared out
        combined = torch.from_numpy(weights) @ self.values
        value = combined.mean(1) / (self.values[-1] - self.values[0]).mean()
        return (value.numpy(), *self._interval(combined))

    def _interval(self, values: Float[Tensor, "row prompt"]) -> tuple[np.ndarray, np.ndarray]:
        low, high = bootstrap(values, over=self.values[-1] - self.values[0])
        return low.numpy(), high.numpy()

    def _named(self, row: Bool[np.ndarray, " group"]) -> tuple[str, ...]:
        return tuple(name for name, there in zip(self.names, row, strict=True) if there)

    def _said(self, row: Bool[np.ndarray, " group"]) -> str:
        return " + ".join(self._named(row)) or "none"


def lattice(
    model: HookedModel,
    task: Task,
    groups: Mapping[str, Sequence[Any]],
    *,
    circuit: Circuit | None = None,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    most: int = MOST_GROUPS,
    seed: int = 0,
    engine: Engine | None = None,
) -> Lattice:
    """Run every subset of the groups.

    Args:
        groups: name -> its nodes, as nodes or texts, such as the roles of heads; no node in two groups.
        circuit: where given, its other candidates are ablated in every run; without it, what is in no group runs as it
            is.
        metric: its name, or the metric; the task's own when None.
        ablation: what replaces a group; see `run_circuits`.
        featurizers: those that nodes name.
        most: the largest number of groups; each more doubles the time.
        seed: of the donors of ``"resample"``.
        engine: of the sweep; components are patched by it, features and nodes inside one another run in full.

    Raises:
        OptionError: too many groups, or fewer than two.
        CircuitError: an empty group, a node in two groups, or one that the circuit does not have.
        SiteError, TaskError, MetricError: what cannot be run.
    """
    if not 2 <= len(groups) <= most:
        raise OptionError(f"{len(groups)} groups mean 2^{len(groups)} runs; give 2 to {most}, or raise most.")
    nodes, kept = _kept(groups, circuit)
    universe = Circuit(nodes, featurizers={} if circuit is None else circuit.featurizers)
    (used,) = checked_metrics(model, task, metric or ())
    if (nodes.featurizer >= 0).any() or _nested(nodes):
        values = run_circuits(
            model, task, universe, kept, metrics=used, ablation=ablation, featurizers=featurizers, seed=seed
        ).values[0]  # fmt: skip
    else:
        everything = run_circuits(model, task, universe, kept[-1:] | True, metrics=used, ablation=ablation, seed=seed)
        effects = joint_effects(
            model, task, nodes, ~kept, metric=used, direction="noising", ablation=ablation, seed=seed, engine=engine
        )  # fmt: skip
        values = everything.values[0][0] + torch.from_numpy(np.nan_to_num(effects))  # NaN: nothing there to change
    return Lattice(tuple(groups), _subsets(len(groups)), values, used.name, ablation)


def _subsets(m: int) -> Bool[np.ndarray, "subset group"]:
    return (np.arange(1 << m)[:, None] >> np.arange(m)) % 2 == 1


def _kept(
    groups: Mapping[str, Sequence[Any]], circuit: Circuit | None
) -> tuple[Nodes, Bool[np.ndarray, "subset node"]]:
    """The nodes of all runs, and which of them each subset keeps."""
    texts = {
        name: [str(node) for node in ([members] if isinstance(members, str) else members)]
        for name, members in groups.items()
    }
    listed = [text for members in texts.values() for text in members]
    faults = [f"group {name!r} is empty" for name, members in texts.items() if not members]
    faults += [f"{text} is in more than one place" for text in dict.fromkeys(listed) if listed.count(text) > 1]
    if circuit is not None:
        known = circuit.nodes.labels.tolist()
        faults += [f"{text} is not in the circuit{nearest(text, known)}" for text in listed if text not in set(known)]
    if faults:
        raise CircuitError(f"groups of a lattice: {'; '.join(faults)}.")
    if circuit is None:
        nodes = Nodes.of(listed)
    else:
        nodes = circuit.nodes.take(np.flatnonzero(circuit.nodes.names("kind") != "logits"))
    place = {text: n for n, text in enumerate(nodes.labels.tolist())}
    member = np.zeros((len(texts), len(nodes)), bool)
    for row, members in enumerate(texts.values()):
        member[row, [place[text] for text in members]] = True
    return nodes, np.any(_subsets(len(texts))[:, :, None] & member, axis=1)


def _nested(nodes: Nodes) -> bool:
    """Whether one sublayer has nodes of different kinds, so that one may lie inside the other."""
    kinds = nodes.names("kind")
    for inner in SUBLAYERS.values():
        inside = np.isin(kinds, inner)
        for layer in np.unique(nodes.layer[inside]):
            if len(set(kinds[inside & (nodes.layer == layer)])) > 1:
                return True
    return False
