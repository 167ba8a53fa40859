"""What fitted gates say of heads: facilitating, interfering, irrelevant or unstable; and how far the starts agree.

With G- the gates fitted under pressure to remove and G+ under pressure to retain (Nam et al. 2025, table 1):

    facilitation  F = G-                 stays open although pushed to close
    interference  N = 1 - G+             closes although pushed to open
    irrelevance   I = G+ (1 - G-)        follows the push

The scores are no partition: F + N + I = 1 + G- (1 - G+), and what exceeds 1 is the anomalous case, low G+ and high G-,
called unstable. Two rules make classes of them, and they are never mixed:

    "score"  F, N, I each at least 0.5, independently    always/any shares, overlap; F includes the unstable
    "cell"   G+ and G- each against 0.5                  class frequencies, which sum to 1
"""

from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import numpy as np
from jaxtyping import Bool, Float

from interp.circuit import Circuit
from interp.errors import CircuitError, OptionError
from interp.table import Table

CLASSES = ("facilitating", "interfering", "irrelevant", "unstable")
SCORES = ("facilitation", "interference", "irrelevance")
Gates = Float[np.ndarray, "start head"]


def gate_scores(retain: Gates, remove: Gates) -> dict[str, Gates]:
    """F, N and I of each head in each start."""
    return {"facilitation": remove, "interference": 1 - retain, "irrelevance": retain * (1 - remove)}


def gate_cells(retain: Gates, remove: Gates, threshold: float = 0.5) -> dict[str, Bool[np.ndarray, "start head"]]:
    """The class of each head in each start (rule "cell")."""
    up, down = retain >= threshold, remove >= threshold
    cells = (up & down, ~up & ~down, up & ~down, ~up & down)
    return dict(zip(CLASSES, cells, strict=True))


@dataclass(frozen=True)
class Modularity:
    """How much the starts agree on which heads facilitate (rule "score": F at least 0.5).

    Attributes:
        always, any: share of heads that are in every start, and in some start; by score.
        spread: mean over heads of the standard deviation of F over starts.
        overlap: mean Jaccard index of {F >= 0.5} over pairs of starts; NaN for one start.
        chance: the same of random sets of these sizes.
        substitutes: the pairs of heads whose membership correlates most negatively over starts.
    """

    always: dict[str, float]
    any: dict[str, float]
    spread: float
    overlap: float
    chance: float
    substitutes: Table

    def __str__(self) -> str:
        said = "; ".join(f"{name} always {self.always[name]:.1%}, any {self.any[name]:.1%}" for name in self.always)
        return f"{said}; overlap of starts {self.overlap:.2f} (chance {self.chance:.2f})"


def modularity(circuit: Circuit, pairs: int = 10) -> Modularity:
    """Agreement of a gated circuit's starts.

    Args:
        pairs: how many substitutes to list.

    Raises:
        CircuitError: a circuit without gates.
    """
    scores = {name: start_values(circuit, name) for name in SCORES[:2]}
    members = {name: values >= 0.5 for name, values in scores.items()}
    facilitating = members["facilitation"]
    jaccards, chances = [], []
    for one, other in combinations(facilitating, 2):
        either = (one | other).sum()
        jaccards.append((one & other).sum() / either if either else 1.0)
        chances.append(chance_overlap(len(one), int(one.sum()), int(other.sum())))
    return Modularity(
        always={name: float(found.all(0).mean()) for name, found in members.items()},
        any={name: float(found.any(0).mean()) for name, found in members.items()},
        spread=float(scores["facilitation"].std(0).mean()),
        overlap=float(np.mean(jaccards)) if jaccards else float("nan"),
        chance=float(np.mean(chances)) if chances else float("nan"),
        substitutes=_substitutes(circuit, facilitating, pairs),
    )


def chance_overlap(n: int, first: int, second: int) -> float:
    """Expected Jaccard index of two random subsets of these sizes, of n elements."""
    if not first and not second:
        return 1.0
    shared = range(max(first + second - n, 0), min(first, second) + 1)
    ways = comb(n, second)
    return sum(comb(first, k) * comb(n - first, second - k) / ways * k / (first + second - k) for k in shared)


def _substitutes(circuit: Circuit, members: Bool[np.ndarray, "start head"], pairs: int) -> Table:
    """Pairs of heads by ascending correlation over starts, of those that are in some starts only."""
    varying = np.flatnonzero(members.any(0) & ~members.all(0))
    correlation = np.atleast_2d(np.corrcoef(members[:, varying].T)) if len(varying) > 1 else np.zeros((0, 0))
    above = np.triu_indices(len(correlation), 1)
    order = np.argsort(correlation[above], kind="stable")[:pairs]
    names = circuit.nodes.labels[varying]
    return Table(
        {
            "first": names[above[0][order]],
            "second": names[above[1][order]],
            "correlation": correlation[above][order],
        }
    )


def start_values(circuit: Circuit, name: str) -> Gates:
    """Per-start values of a gated circuit, such as ``"facilitation"``.

    Raises:
        CircuitError: the circuit has none of that name.
    """
    tensor = circuit.tensors.get(name)
    if tensor is None or tensor.axes != ("start", "node"):
        known = [key for key, one in circuit.tensors.items() if one.axes == ("start", "node")]
        raise CircuitError(
            f"no values per start called {name!r}; allowed: {', '.join(known) or 'none in this circuit'}."
        )
    return tensor.array


def hard_gates(circuit: Circuit, threshold: float = 0.5, gates: str = "remove") -> Bool[np.ndarray, "start head"]:
    """Which heads each start leaves open.

    Raises:
        OptionError: a threshold outside (0, 1).
    """
    if not 0 < threshold < 1:
        raise OptionError(f"threshold={threshold}; allowed: between 0 and 1.")
    return start_values(circuit, gates) >= threshold


def hard_circuit(circuit: Circuit, start: int = 0, threshold: float = 0.5) -> Circuit:
    """The circuit of the heads that one start leaves open under removal pressure; the others are for zero ablation.

    Raises:
        OptionError: no such start, or a threshold outside (0, 1).
        CircuitError: a circuit without gates.
    """
    masks = hard_gates(circuit, threshold)
    if not 0 <= start < len(masks):
        raise OptionError(f"start={start}; allowed: 0 to {len(masks) - 1}.")
    provenance = circuit.provenance.after("hard_circuit", start=start, threshold=threshold)
    return replace(circuit, kept_nodes=masks[start], provenance=provenance)


def gate_table(circuit: Circuit) -> Table:
    """How well the model does under each set of gates: one row a set.

    Returns:
        gates, heads_open (mean number of gates at 0.5 and more), neg_nll and its standard deviation over starts (nats a
        target, at most 0), accuracy (share of targets), all on the prompts that the circuit was scored on.

    Raises:
        CircuitError: a circuit without gates.
    """
    rows = []
    for name in ("ungated", "initial", "retain", "remove", "hard"):
        if f"{name}.neg_nll" not in circuit.tensors:
            raise CircuitError(f"this circuit has no tensor '{name}.neg_nll'; it does not come from interp.gate.")
        scores, accuracy = (circuit.tensors[f"{name}.{what}"].array for what in ("neg_nll", "accuracy"))
        counted = "remove" if name == "hard" else name
        n_open = len(circuit.nodes) if name == "ungated" else hard_gates(circuit, gates=counted).sum(1).mean()
        each = scores.mean(-1)
        rows.append((name, float(n_open), float(each.mean()), float(np.std(each)), float(accuracy.mean())))
    columns = zip(*rows, strict=True)
    return Table(dict(zip(("gates", "heads_open", "neg_nll", "sd", "accuracy"), map(np.array, columns), strict=True)))
