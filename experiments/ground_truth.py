"""AUROC of each method on models whose circuits are known by construction (`interp.known`), and the coverage of the
bound on what a ranking missed.

    python experiments/ground_truth.py [--out experiments/results] [--seeds 100]

Nodes: candidates are the heads of q, k, v and z and the MLPs. Edges: all edges between components. A method ranks them
by the magnitude of its score (GradDrop's own where it has one; ACDC by the cost of each removal, what it dropped
unseen last). 1 finds the circuit before everything else, 0.5 is chance.

Coverage: of the bounds of `interp.bound_missed` below the top 1 of AtP, over seeds of the subsets, the share that
exceed the largest exact effect that AtP left there, and the largest effect beside other patched nodes, which is what
the bound speaks of: in a chain every link hides the others' effect. One minute in all.
"""

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import interp
from interp.known import KNOWN, KnownCircuit, known_circuit
from interp.recall import auroc
from interp.table import Table

WAYS = ("noising", "denoising")
NODE_METHODS = ("patch", "atp", "atp+qk", "atp+graddrop", "atp*")
EDGE_METHODS = (
    "exact", "eap", "eap-ig-inputs", "eap-ig-activations", "clean-corrupted", "conductance", "ifr", "acdc"
)  # fmt: skip
QUIET = interp.Engine(progress=False)


def node_area(known: KnownCircuit, method: str, direction: str) -> float:
    """AUROC of one node method in one direction."""
    if method == "patch":
        found = interp.patch(known.model, known.task, known.nodes, direction=direction, engine=QUIET)
    else:
        found = interp.attribute(known.model, known.task, known.nodes, direction=direction, method=method)
    name = f"logit_diff.{direction}"
    return auroc(found.scores.get(f"{name}.graddrop", found.scores[name]).values, known.truth)


def edge_area(known: KnownCircuit, method: str, direction: str) -> float:
    """AUROC of one edge method; those without a direction have it in noising only."""
    options = {"direction": direction}
    if method == "exact":
        found = interp.patch_edges(known.model, known.task, engine=QUIET, **options)
    elif method in ("acdc", "ifr") and direction == "denoising":
        return float("nan")
    elif method == "acdc":
        found = interp.acdc(known.model, known.task, 0.05, metric="logit_diff", progress=False)
    else:
        options = {} if method == "ifr" else options
        found = interp.attribute_edges(known.model, known.task, method=method, progress=False, **options)
    (score,) = found.scores.values()
    return auroc(score.values[: known.graph.n_scored], known.edge_truth)


def table(methods: tuple[str, ...], area: Callable[[KnownCircuit, str, str], float]) -> Table:
    """One row a method and direction, one column a known circuit."""
    rows = [(method, way) for method in methods for way in WAYS]
    columns = {"method": np.array([m for m, _ in rows]), "direction": np.array([w for _, w in rows])}
    for name in KNOWN:
        columns[name] = np.array([round(area(known_circuit(name), method, way), 3) for method, way in rows])
    return Table(columns)


def coverage(name: str, seeds: int, levels: tuple[float, ...] = (0.5, 0.9, 0.99)) -> dict[str, float]:
    """The largest effects below AtP's top 1, and the share of seeds whose bound exceeds them."""
    known, by = known_circuit(name), "logit_diff.noising"
    cheap = interp.attribute(known.model, known.task, known.nodes, direction="noising")
    exact = interp.patch(known.model, known.task, known.nodes, direction="noising", engine=QUIET)
    bound = partial(interp.bound_missed, known.model, known.task, cheap, 1, by=by, rank="absolute", engine=QUIET)
    found = [bound(seed=seed, confidence=levels) for seed in range(seeds)]
    largest = {
        "alone": float(abs(exact.scores[by].values[found[0].rows]).max()),
        "beside others": float(abs(np.mean([one.difference for one in found], 0)).max()),
    }
    held = {}
    for what, effect in largest.items():
        held[f"largest effect {what}"] = effect
        for level in levels:
            held[f"{level:.0%} {what}"] = float(np.mean([one.bounds[level] >= effect for one in found]))
    return held


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("experiments/results"))
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        nodes, edges = table(NODE_METHODS, node_area), table(EDGE_METHODS, edge_area)
        bounds = {name: coverage(name, options.seeds) for name in KNOWN}
    first = next(iter(bounds.values()))
    covered = Table(
        {"circuit": np.array(list(bounds))} | {key: np.array([one[key] for one in bounds.values()]) for key in first}
    )
    for name, made in (("ground_truth", nodes), ("ground_truth_edges", edges), ("bound_coverage", covered)):
        made.to_csv(options.out / f"{name}.csv")
        print(made)
