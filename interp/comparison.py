"""Circuits of any methods, seeds or data beside one another: what they share, what of that is chance, what is core.

Circuits are compared at up to four levels, each a membership matrix over everything that any of them could have had:

    nodes      kept nodes, without input and logits, which are in every circuit
    edges      kept edges that carry a score (not those between a reader and its head), if every circuit has edges
    features   kept features, units and error terms, where there are any
    groups     named groups of nodes, such as roles; a circuit has a group if it has any of its nodes

Two circuits are set against chance over the members that both could have chosen. Circuits with edges are first pruned
to the paths from input to logits, so that an edge that leads nowhere makes no difference.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from interp import overlaps
from interp.circuit import Circuit
from interp.circuit_algebra import check_granularity, coarsen, joint_featurizers
from interp.circuit_ops import SOURCES, prune
from interp.columns import some
from interp.edges import structural
from interp.errors import CircuitError, InterpWarning, nearest
from interp.recall import rank_agreement
from interp.recovery import wilson
from interp.table import Table

PROPERTIES = ("layer", "head", "role", "pos", "featurizer", "unit")
FIXED = ("input", "logits")  # kinds of nodes that every circuit has


@dataclass(frozen=True, eq=False)
class Level:
    """The circuits' members of one kind.

    Attributes:
        names: of the members that any circuit could have.
        kept: which of them each circuit has.
        candidates: which each could have.
        scores: what each circuit was ranked by there, NaN where it has none.
    """

    names: np.ndarray
    kept: Bool[np.ndarray, "circuit member"]
    candidates: Bool[np.ndarray, "circuit member"]
    scores: Float[np.ndarray, "circuit member"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found.

    Attributes:
        labels: of the circuits.
        levels: level -> its members.
        pairs: one row a level and pair: level, first, second, first_size, second_size, shared, jaccard,
            overlap_of_smaller, candidates (that both could have), chance_p (of sharing so many of these by chance),
            chance_jaccard and chance_jaccard_high (mean and 95 % quantile by chance), rank_agreement (Spearman's
            correlation of the magnitudes of their scores there).
        summary: one row a level: level, circuits, distinct, effective_number, mean_jaccard, in_all, in_any.
        parts: one row a level and member that any circuit has: level, member, frequency, low, high, part (core: in at
            least 95 % of the circuits, else contested).
        substitutable: one row a level and two parts of which every circuit has exactly one: level, one, other.
        factors: one row a level and factor: level, factor, variance (share of the variance of membership), and the mean
            Jaccard index of pairs within a level of the factor and across; the row `rest` has what is left.
    """

    labels: tuple[str, ...]
    levels: Mapping[str, Level]
    pairs: Table
    summary: Table
    parts: Table
    substitutable: Table
    factors: Table

    def matrix(self, level: str, what: str = "jaccard") -> Float[np.ndarray, "circuit circuit"]:
        """A column of `pairs` as a symmetric matrix; 1 on the diagonal."""
        table = self.pairs.where(self.pairs["level"] == level)
        found = np.eye(len(self.labels))
        place = {label: n for n, label in enumerate(self.labels)}
        for one, other, value in zip(table["first"], table["second"], table[what], strict=True):
            found[place[one], place[other]] = found[place[other], place[one]] = value
        return found

    def __str__(self) -> str:
        lines = [f"{len(self.labels)} circuits: {', '.join(self.labels)}"]
        for row in self.summary.rows():
            part = self.parts.where((self.parts["level"] == row["level"]) & (self.parts["part"] == "core"))
            named = f", core: {some(part['member'], 6)}" if len(part) else ""
            lines.append(
                f"{row['level']}: {row['distinct']} distinct, mean Jaccard {row['mean_jaccard']:.2f}, {row['in_all']} "
                f"of {row['in_any']} in all{named}"
            )
        for row in self.substitutable.rows():
            lines.append(f"{row['level']}: every circuit has either {row['one']} or {row['other']}")
        return "\n".join(lines)


def compare(
    circuits: Mapping[str, Circuit] | Sequence[Circuit],
    *,
    by: str | Mapping[str, str] | None = None,
    to: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[Any]] | None = None,
    factors: Mapping[str, Sequence[str]] | None = None,
) -> Comparison:
    """Compare circuits; see the module for what is compared.

    Args:
        circuits: label -> circuit, or circuits, which are then called 1, 2, ...
        by: the score whose ranks are compared, or label -> score; by default each circuit's first signed one, or its
            first.
        to, kinds: bring all circuits to one granularity first, as `coarsen` does (the larger of unsigned scores).
        groups: name -> its nodes, as nodes or texts.
        factors: name -> one level a circuit, such as ``{"method": [...], "seed": [...]}``.

    Warns:
        InterpWarning: circuits that keep all their candidates.

    Raises:
        CircuitError: fewer than two circuits, granularities that differ, a featurizer key with two meanings, nodes of
            groups that no circuit could have, a score that a circuit does not have.
        OptionError: a factor without one level a circuit.
    """
    named = named_circuits(circuits)
    named = coarsened(named, to, kinds)
    first = next(iter(named.values()))
    for one in named.values():
        check_granularity(first, one)
        joint_featurizers(first, one)
    named = {label: canonical(one) for label, one in named.items()}
    if uncut := [label for label, one in named.items() if one.kept_nodes.all() and one.kept_edges.all()]:
        warnings.warn(
            f"{', '.join(uncut)}: nothing has been left out of {'it' if len(uncut) == 1 else 'them'} yet; cut circuits "
            "to size first, with top_n, grow or smallest_circuit.", InterpWarning, stacklevel=2,
        )  # fmt: skip
    ranked = _ranked_by(named, by)
    levels = _levels(named, ranked)
    if groups:
        levels["groups"] = _grouped(levels["nodes"], groups)
    labels = tuple(named)
    pairs = [{"level": name, **row} for name, level in levels.items() for row in _pairs(level, labels)]
    return Comparison(
        labels, levels, rows_table(pairs), rows_table([_summary(name, level) for name, level in levels.items()]),
        _rows_of(levels, _parts, "level member frequency part"), _rows_of(levels, _substitutable, "level one other"),
        _rows_of(levels, partial(_factors, factors=factors or {}), "level factor"),
    )  # fmt: skip


def _rows_of(levels: Mapping[str, Level], rows: Callable[[str, Level], list[dict[str, Any]]], empty: str) -> Table:
    return rows_table([row for name, level in levels.items() for row in rows(name, level)], empty)


def coarsened(
    named: Mapping[str, Circuit], to: Sequence[str] | None, kinds: Mapping[str, str] | None
) -> dict[str, Circuit]:
    """The circuits at one granularity, as they are where nothing is asked for; kinds alone keep all properties."""
    if to is None and not kinds:
        return dict(named)
    to = PROPERTIES if to is None else to
    return {label: coarsen(one, to, kinds=kinds, magnitudes="max") for label, one in named.items()}


def main_score(circuit: Circuit) -> str:
    """A circuit's first signed score, or its first; '' where it has none."""
    signed = [name for name, score in circuit.scores.items() if score.header.signed]
    return next(iter(signed or circuit.scores), "")


def canonical(circuit: Circuit) -> Circuit:
    """The circuit without what lies on no path from an input to the logits; as it is where its universe has no edges,
    no inputs or no logits."""
    kinds = set(circuit.nodes.names("kind"))
    return prune(circuit) if len(circuit.edges) and "logits" in kinds and kinds & set(SOURCES) else circuit


def named_circuits(circuits: Mapping[str, Circuit] | Sequence[Circuit]) -> dict[str, Circuit]:
    """Label -> circuit; a sequence is numbered from 1.

    Raises:
        CircuitError: fewer than two.
    """
    named = (
        {str(label): one for label, one in circuits.items()}
        if isinstance(circuits, Mapping)
        else {str(n): one for n, one in enumerate(circuits, 1)}
    )
    if len(named) < 2:
        raise CircuitError(f"{len(named)} circuit to compare; give two or more.")
    return named


def _ranked_by(named: Mapping[str, Circuit], by: str | Mapping[str, str] | None) -> dict[str, str]:
    """The score of each circuit, '' where it has none."""
    given = dict.fromkeys(named, by) if isinstance(by, str) else dict(by or {})
    unknown = [
        f"{score!r} of {label!r}{nearest(score, named[label].scores) if label in named else ' (no such circuit)'}"
        for label, score in given.items()
        if label not in named or score not in named[label].scores
    ]
    if unknown:
        raise CircuitError(f"no score {' and '.join(unknown)}; allowed: a score of that circuit, such as its first.")
    return {label: given.get(label, main_score(one)) for label, one in named.items()}


def _levels(named: Mapping[str, Circuit], ranked: Mapping[str, str]) -> dict[str, Level]:
    nodes, edges, features = [], [], []
    for label, one in named.items():
        counted = ~np.isin(one.nodes.names("kind"), FIXED)
        nodes.append(_members(one, "nodes", np.flatnonzero(counted), ranked[label]))
        inner = np.flatnonzero((one.nodes.featurizer >= 0) | (one.nodes.unit >= 0))
        features.append(_members(one, "nodes", inner, ranked[label]))
        edges.append(_members(one, "edges", np.flatnonzero(~structural(one.nodes, one.edges)), ranked[label]))
    found = {"nodes": _level(nodes)}
    if all(edges):
        found["edges"] = _level(edges)
    if any(features):
        found["features"] = _level(features)
    return found


Member = tuple[bool, float]


def _members(circuit: Circuit, over: str, rows: np.ndarray, by: str) -> dict[str, Member]:
    """Name -> whether it is kept, and its score, of some candidates."""
    labels = circuit.nodes.labels
    names = labels if over == "nodes" else labels[circuit.edges.source] + " -> " + labels[circuit.edges.destination]
    scored = by and circuit.scores[by].over == over
    scores = circuit.scores[by].values if scored else np.full(circuit.count(over), np.nan)
    kept = circuit.kept(over)
    return {names[row]: (bool(kept[row]), float(scores[row])) for row in rows.tolist()}


def _level(circuits: Sequence[Mapping[str, Member]]) -> Level:
    names = list(dict.fromkeys(name for one in circuits for name in one))
    none = (False, np.nan)
    values = [[one.get(name, none) for name in names] for one in circuits]
    return Level(
        np.array(names, dtype=object),
        np.array([[kept for kept, _ in row] for row in values], bool),
        np.array([[name in one for name in names] for one in circuits], bool),
        np.array([[score for _, score in row] for row in values], float),
    )


def _grouped(nodes: Level, groups: Mapping[str, Sequence[Any]]) -> Level:
    place = {name: n for n, name in enumerate(nodes.names)}
    unknown = [f"{one} ({name})" for name, members in groups.items() for one in members if str(one) not in place]
    if unknown:
        raise CircuitError(f"groups name nodes that no circuit could have: {', '.join(unknown)}.")
    masks = np.zeros((len(groups), len(place)), bool)
    for row, members in enumerate(groups.values()):
        masks[row, [place[str(m)] for m in members]] = True
    kept, could = (np.any(one[:, None] & masks[None], axis=2) for one in (nodes.kept, nodes.candidates))
    return Level(np.array(list(groups), dtype=object), kept, could, np.full(kept.shape, np.nan))


def _pairs(level: Level, labels: Sequence[str]) -> list[dict[str, Any]]:
    index, inside, both = (f(level.kept) for f in (overlaps.jaccard, overlaps.overlap_of_smaller, overlaps.shared))
    rows = []
    for i, j in combinations(range(len(labels)), 2):
        common = level.candidates[i] & level.candidates[j]
        one, other = level.kept[i] & common, level.kept[j] & common
        null = overlaps.chance(int((one & other).sum()), int(one.sum()), int(other.sum()), int(common.sum()))
        rows.append({
            "first": labels[i], "second": labels[j], "first_size": int(both[i, i]), "second_size": int(both[j, j]),
            "shared": int(both[i, j]), "jaccard": float(index[i, j]), "overlap_of_smaller": float(inside[i, j]),
            "candidates": int(common.sum()), "chance_p": null.p, "chance_jaccard": null.jaccard,
            "chance_jaccard_high": null.jaccard_high,
            "rank_agreement": rank_agreement(level.scores[i], level.scores[j]),
        })  # fmt: skip
    return rows


def _summary(name: str, level: Level) -> dict[str, Any]:
    return {
        "level": name, "circuits": len(level.kept), "distinct": len(overlaps.distinct(level.kept)[0]),
        "effective_number": overlaps.effective_number(level.kept),
        "mean_jaccard": overlaps.mean_of_pairs(overlaps.jaccard(level.kept)),
        "in_all": int(level.kept.all(0).sum()), "in_any": int(level.kept.any(0).sum()),
    }  # fmt: skip


def _parts(name: str, level: Level) -> list[dict[str, Any]]:
    counts = level.kept.sum(0)
    low, high = wilson(counts, len(level.kept))
    order = np.argsort(-counts, kind="stable")
    return [
        {
            "level": name, "member": level.names[n], "frequency": counts[n] / len(level.kept), "low": float(low[n]),
            "high": float(high[n]), "part": "core" if counts[n] >= overlaps.CORE * len(level.kept) else "contested",
        }
        for n in order.tolist() if counts[n]
    ]  # fmt: skip


def _substitutable(name: str, level: Level) -> list[dict[str, Any]]:
    parts = overlaps.substitutes(level.kept)
    return [
        {"level": name, "one": " + ".join(level.names[one]), "other": " + ".join(level.names[other])}
        for one, other in parts
    ]


def _factors(name: str, level: Level, factors: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    if not factors:
        return []
    index = overlaps.jaccard(level.kept)
    rows = []
    for factor, variance in overlaps.variance_split(level.kept, factors).items():
        row = {"level": name, "factor": factor, "variance": variance, "within": np.nan, "across": np.nan}
        if factor in factors:
            same = np.equal.outer(np.array(factors[factor]), np.array(factors[factor]))
            row["within"] = overlaps.mean_of_pairs(np.where(same, index, np.nan))
            row["across"] = overlaps.mean_of_pairs(np.where(same, np.nan, index))
        rows.append(row)
    return rows


def rows_table(rows: Sequence[Mapping[str, Any]], empty: str = "") -> Table:
    """Rows as a table, with these columns where there are none."""
    names = list(rows[0]) if rows else empty.split()
    texts = {name for name in names if not rows or isinstance(rows[0][name], str)}
    return Table({n: np.array([row[n] for row in rows], dtype=object if n in texts else None) for n in names})
