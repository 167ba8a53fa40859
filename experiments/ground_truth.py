"""AUROC of each method on models whose circuits are known by construction (`interp.known`).

    python experiments/ground_truth.py [--out experiments/results]

Candidates are the heads of q, k, v and z and the MLPs; a method ranks them by the magnitude of its score (GradDrop's
own where it has one). 1 finds the circuit before everything else, 0.5 is chance. Runs in seconds.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np

import interp
from interp.known import KNOWN, KnownCircuit, known_circuit
from interp.recall import auroc
from interp.table import Table

METHODS = ("patch", "atp", "atp+qk", "atp+graddrop", "atp*")


def scored(known: KnownCircuit, method: str, direction: str) -> float:
    """AUROC of one method in one direction."""
    if method == "patch":
        found = interp.patch(known.model, known.task, known.nodes, direction=direction)
    else:
        found = interp.attribute(known.model, known.task, known.nodes, direction=direction, method=method)
    name = f"logit_diff.{direction}"
    column = found.scores.get(f"{name}.graddrop", found.scores[name])
    return auroc(column.values, known.truth)


def table() -> Table:
    """One row a method and direction, one column a known circuit."""
    rows = [(method, way) for method in METHODS for way in ("noising", "denoising")]
    columns = {"method": np.array([m for m, _ in rows]), "direction": np.array([w for _, w in rows])}
    for name in KNOWN:
        known = known_circuit(name)
        columns[name] = np.array([round(scored(known, method, way), 3) for method, way in rows])
    return Table(columns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("experiments/results"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        made = table()
    made.to_csv(out / "ground_truth.csv")
    print(made)
