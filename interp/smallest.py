"""The smallest circuit of a ranking that keeps a behaviour, and other circuits that keep it too.

`smallest_circuit`:
    for sizes k = 1, 2, 4, ... of the ranking: stop at the first whose faithfulness reaches the bar
    between that and the size before: the smallest tried that reaches it
    drop what the circuit does without, harmful members first, then from the weakest up, whole blocks before halves;
    again, until no single member can go (1-minimal)

`find_alternatives`: the same again n times, with each member's score times (1 - penalty * share of the circuits so far
that have it). With penalty 1 a member of all of them comes last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from interp import overlaps
from interp.circuit import ROWS, Circuit, Score
from interp.circuit_ops import Rank, bar_nodes, keep_rows, rankable
from interp.curves import faithfulness_curve, selected
from interp.errors import CircuitError, OptionError
from interp.evaluate import Members, judged_runs
from interp.featurizers.base import Featurizer
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.recovery import bootstrap, recovery
from interp.scoring import checked_metrics
from interp.table import Table
from interp.tasks.base import Task

TRIED = 8  # sizes tried at once between two


def smallest_circuit(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    by: str,
    at_least: float = 0.9,
    *,
    rank: Rank = "absolute",
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    seed: int = 0,
) -> Circuit:
    """The smallest circuit found that keeps `at_least` of the behaviour.

    It is 1-minimal: without any one member it is below the bar. There may be smaller circuits that the ranking does not
    lead to. Judge it on other prompts than these.

    Args:
        circuit: the scored universe; nodes are taken best first, edges grown from the logits.
        by: the score; barred nodes are left out, required ones kept.
        at_least: faithfulness to reach.
        rank: ``"absolute"`` or ``"signed"``.
        metric, ablation, featurizers, seed: as in `faithfulness`.

    Raises:
        CircuitError: even all that can be ranked do not reach it; further as `faithfulness`.
        OptionError: a bar outside (0, 1].
    """
    if not 0 < at_least <= 1:
        raise OptionError(f"at_least={at_least}; allowed: above 0, at most 1.")
    given: dict[str, Any] = {
        "metric": metric, "ablation": ablation, "featurizers": featurizers, "seed": seed
    }  # fmt: skip
    size = _enough(model, task, circuit, by, at_least, rank, given)
    found = selected(circuit, size, by, rank, _select(circuit, by))
    return _without_spare(model, task, found, by, at_least, given)


def _select(circuit: Circuit, by: str) -> Any:
    return "grow" if by in circuit.scores and circuit.scores[by].over == "edges" else "top_n"


def _enough(
    model: HookedModel, task: Task, circuit: Circuit, by: str, at_least: float, rank: Rank, given: dict[str, Any]
) -> int:
    """The smallest size tried at which the ranking's circuit is faithful."""
    select = _select(circuit, by)
    most = rankable(circuit, by, rank=rank, reachable=select == "grow")
    lower, best = 0, float("nan")
    sizes: list[int] = [2**n for n in range(most.bit_length()) if 2**n < most] + [most] * (most > 0)
    for size in sizes:
        found = _shares(model, task, circuit, [size], by, rank, select, given)
        best = np.fmax(best, found[0])
        if found[0] >= at_least:
            break
        lower = size
    else:
        raise CircuitError(
            f"even all {most} members that {by!r} can rank reach a faithfulness of {best:.3f}, not {at_least}; lower "
            "at_least, or search among more candidates."
        )
    while size - lower > 1:
        step = max((size - lower) // TRIED, 1)
        between = list(range(lower + step, size, step))
        enough = np.flatnonzero(_shares(model, task, circuit, between, by, rank, select, given) >= at_least)
        first = int(enough[0]) if len(enough) else len(between)
        lower, size = between[first - 1] if first else lower, between[first] if first < len(between) else size
    return size


def _shares(
    model: HookedModel, task: Task, circuit: Circuit, sizes: Sequence[int], by: str, rank: Rank, select: Any,
    given: dict[str, Any],
) -> np.ndarray:  # fmt: skip
    return faithfulness_curve(model, task, circuit, sizes, by, rank=rank, select=select, random=0, **given)[
        "faithfulness"
    ]


def _without_spare(
    model: HookedModel, task: Task, circuit: Circuit, by: str, at_least: float, given: dict[str, Any]
) -> Circuit:
    """The circuit less what it stays faithful without."""
    members = Members(model, circuit, given["featurizers"])
    (used,) = checked_metrics(model, task, given["metric"] or ())

    def is_enough(kept: Bool[np.ndarray, " member"]) -> bool:
        runs = judged_runs(
            members, task, kept[None], "faithfulness", used, ablation=given["ablation"], seed=given["seed"]
        )  # fmt: skip
        return bool(recovery(runs.values, runs.full, runs.empty).value[0] >= at_least)

    def drop(kept: Bool[np.ndarray, " member"], block: Int[np.ndarray, " tried"]) -> Bool[np.ndarray, " member"]:
        less = kept.copy()
        less[block] = False
        if len(block) < kept.sum() and is_enough(less):
            return less
        if len(block) == 1:
            return kept
        middle = len(block) // 2
        return drop(drop(kept, block[:middle]), block[middle:])

    kept, order = members.own, _least_wanted_first(members, circuit, by)
    while len(order):
        less = drop(kept.copy(), order)
        if less.sum() == kept.sum():
            break
        kept, order = less, order[less[order]]
    rows = np.zeros(circuit.count(members.over), bool)
    rows[members.rows[kept]] = True
    return keep_rows(circuit, members.over, rows, {"operation": "smallest_circuit", "by": by, "at_least": at_least})


def _least_wanted_first(members: Members, circuit: Circuit, by: str) -> Int[np.ndarray, " kept"]:
    """The circuit's members, harmful ones first where scores have a sign, then from the weakest up."""
    column, own = circuit.columns.get(by), np.flatnonzero(members.own)
    if column is None or column.over != members.over:
        return own
    values = np.nan_to_num(column.values[members.rows[own]].astype(float))
    signed = by in circuit.scores and circuit.scores[by].header.signed
    return own[np.argsort(values if signed else np.abs(values), kind="stable")]


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Circuits of one universe that keep one behaviour.

    Attributes:
        circuits: the one given, then those found, in order.
        table: one row a circuit: circuit, size, faithfulness and its 95 % interval on the prompts of the search, the
            Jaccard index of its nodes and (NaN without) of its edges with the one given, and in_all: members that it
            shares with all.
    """

    circuits: tuple[Circuit, ...]
    table: Table

    def __str__(self) -> str:
        return str(self.table)


def find_alternatives(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    by: str,
    n: int = 3,
    *,
    overlap_penalty: float = 1.0,
    barred: Any = (),
    at_least: float = 0.9,
    rank: Rank = "absolute",
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    featurizers: Sequence[Featurizer] = (),
    seed: int = 0,
) -> Alternatives:
    """Other circuits that keep the behaviour too, as unlike the given one as the ranking allows.

    Args:
        circuit: scored, with members kept: what the alternatives are to differ from.
        n: how many to look for; fewer come where the ranking leads back to a circuit that is there.
        overlap_penalty: in [0, 1]: how much of its score a member loses that every circuit so far has.
        barred: nodes that no alternative may have, such as the core of the given circuit.
        at_least, rank, metric, ablation, featurizers, seed: as in `smallest_circuit`.

    Raises:
        CircuitError: without the barred nodes nothing is faithful; further as `smallest_circuit`.
        OptionError: a penalty outside [0, 1], or n below 1.
    """
    if not 0 <= overlap_penalty <= 1 or n < 1:
        raise OptionError(f"overlap_penalty={overlap_penalty}, n={n}; allowed: a penalty from 0 to 1, and n from 1.")
    given: dict[str, Any] = {
        "metric": metric, "ablation": ablation, "featurizers": featurizers, "seed": seed
    }  # fmt: skip
    found = [circuit]
    allowed = bar_nodes(circuit, barred) if len(barred) else circuit
    for _ in range(n):
        universe, name = _penalised(allowed, by, found, overlap_penalty, rank)
        one = smallest_circuit(model, task, universe, name, at_least, rank=rank, **given)
        if any(_same_members(one, other) for other in found):
            break
        scores = {key: score for key, score in one.scores.items() if key != name}
        found.append(replace(one, scores=scores))
    return Alternatives(tuple(found), _judged(model, task, found, given))


def _same_members(one: Circuit, other: Circuit) -> bool:
    return all(np.array_equal(one.kept(over), other.kept(over)) for over in ROWS)


def _penalised(circuit: Circuit, by: str, found: Sequence[Circuit], penalty: float, rank: Rank) -> tuple[Circuit, str]:
    """The circuit with one more score, lower where the circuits so far have a member."""
    if by not in circuit.scores:
        raise CircuitError(f"no score {by!r}; this circuit has {sorted(circuit.scores)}.")
    score = circuit.scores[by]
    share = np.mean([one.kept(score.over) for one in found], axis=0)
    name = f"{by}.penalised"
    harmful = (score.values < 0) & (rank == "signed")  # stays where it is, at the end
    values = np.where(harmful, score.values, score.values * (1 - penalty * share))
    return replace(circuit, scores={**circuit.scores, name: Score(score.header, values)}), name


def _judged(model: HookedModel, task: Task, found: Sequence[Circuit], given: dict[str, Any]) -> Table:
    members = Members(model, found[0], given["featurizers"])
    masks = np.stack([members.of(one) for one in found])
    (used,) = checked_metrics(model, task, given["metric"] or ())
    runs = judged_runs(members, task, masks, "faithfulness", used, ablation=given["ablation"], seed=given["seed"])
    low, high = bootstrap(runs.values - runs.empty, over=runs.full - runs.empty, seed=given["seed"])
    nodes, edges = (overlaps.jaccard(np.stack([one.kept(over) for one in found]))[0] for over in ("nodes", "edges"))
    return Table({
        "circuit": np.array(["given", *map(str, range(1, len(found)))], dtype=object), "size": masks.sum(1),
        "faithfulness": recovery(runs.values, runs.full, runs.empty).value.numpy(), "low": low.numpy(),
        "high": high.numpy(), "node_jaccard": nodes, "edge_jaccard": edges,
        "in_all": np.full(len(found), int(masks.all(0).sum())),
    })  # fmt: skip
