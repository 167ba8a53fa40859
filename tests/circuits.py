"""Small circuits for tests, and the package without shape checks."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import numpy as np

from interp.circuit import Circuit, Score, ScoreHeader
from interp.edges import Edges
from interp.nodes import Nodes

EFFECT = ScoreHeader("nodes", "effect", signed=True)
OVER_EDGES = ScoreHeader("edges", "attribution", signed=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """The package as its users run it: no shape checks at calls, so that its own messages speak."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def mask(marks: str) -> np.ndarray:
    """``"101"`` as booleans."""
    return np.array([mark == "1" for mark in marks], dtype=bool)


def scored(nodes: list[str], scores: list[float], kept: str = "", header: ScoreHeader = EFFECT) -> Circuit:
    """Nodes with the score `s`, without edges; kept where the string has a 1."""
    score = Score(header, np.array(scores, dtype=float))
    return Circuit(Nodes.of(nodes), scores={"s": score}, kept_nodes=mask(kept or "1" * len(nodes)))


def wired(edges: dict[str, float], nodes: list[str] | None = None, kept: str = "") -> Circuit:
    """A circuit from ``{"source > destination": score}``, nodes in order of appearance, all kept.

    Edges are kept where the string has a 1.
    """
    pairs = [edge.split(" > ") for edge in edges]
    names = list(dict.fromkeys([*(nodes or []), *(name for pair in pairs for name in pair)]))
    ends = np.array([[names.index(name) for name in pair] for pair in pairs])
    score = Score(OVER_EDGES, np.array(list(edges.values()), dtype=float))
    return Circuit(
        Nodes.of(names), Edges(ends[:, 0], ends[:, 1]), {"s": score}, kept_edges=mask(kept or "1" * len(edges))
    )


def kept_names(circuit: Circuit) -> tuple[set[str], set[str]]:
    """Names of the kept nodes, and of the kept edges."""
    edges = circuit.frame("edges", kept_only=True)
    return (
        set(circuit.frame(kept_only=True)["node"]),
        {f"{a} > {b}" for a, b in zip(edges["source"], edges["destination"], strict=True)},
    )
