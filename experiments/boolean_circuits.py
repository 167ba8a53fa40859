"""How many circuits explain a small network? Counts over sizes, gates, noise and losses, and the last layers of a digit
classifier: Méloux et al. 2025 (arXiv 2502.20914).

    OMP_NUM_THREADS=1 python experiments/boolean_circuits.py [--networks 100] [--digits 10] [--out FOLDER]

Each setting trains --networks networks (2 inputs, two hidden layers) and counts, for those that converge, the circuits
that do the task (the paper's conventions), those of them that contain no other (minimal) and those that can lose no
single edge. Five units a layer are too many to list: an even sample of --sample circuits estimates the count. Digits: 0
against 1 of scikit-learn's 8 x 8 images through 64-32-3-3-3-1; the circuits of the last three layers (3-3-3-1) on all
images' activations. Writes boolean_circuits.csv, one row a setting.

To compare with (XOR, three units, perfect circuits, mean): 53.5 over 90 networks of a fork of the authors' code, 54.7
and 55.0 of two own re-implementations; the paper's headline network has 85. Digits: the paper's MNIST network has 4,702
of 24,366 circuits.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import interp
from interp.table import Table

SIZES = {2: "list", 3: "list", 4: "list", 5: "sample"}
LOSSES = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    networks: int = 100
    digits: int = 10
    sample: int = 50_000
    out: str = "runs/boolean_circuits"


def main(options: Options) -> None:
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in settings(options):
        rows.append(row)
        print(row, flush=True)
    table = Table({name: np.array([row[name] for row in rows]) for name in rows[0]})
    table.to_csv(out / "boolean_circuits.csv")
    print(table)


def settings(options: Options) -> Iterator[dict[str, Any]]:
    """One row a setting; each varies one thing of XOR, three units, no noise, loss .01."""
    for size in SIZES:
        yield _counted("size", str(size), "xor", size, interp.MlpTraining(), options)
    for target in ("and", "or", "imp"):
        yield _counted("target", target, target, 3, interp.MlpTraining(), options)
    for noise in (0.05, 0.1):
        yield _counted("noise", str(noise), "xor", 3, interp.MlpTraining(noise=noise), options)
    for loss in LOSSES:
        yield _counted("loss", f"{loss:g}", "xor", 3, interp.MlpTraining(loss=loss), options)
    yield _digits(options)


def _counted(what: str, value: str, target: str, size: int, training: Any, options: Options) -> dict[str, Any]:
    inputs, labels = interp.truth_table(2), interp.gate_answers(target)
    trained = interp.train_boolean(target, (size, size), seeds=range(options.networks), training=training)
    networks = [one.network for one in trained if one.converged]
    if SIZES[size] == "sample":
        samples = [interp.sample_circuits(one, inputs, labels, options.sample, mode="paper") for one in networks]
        counts = np.array([[one.number, np.nan, np.nan] for one in samples])
    else:
        counts = np.array([_kinds(interp.enumerate_circuits(one, inputs, labels, mode="paper")) for one in networks])
    candidates = interp.count_candidates((2, size, size, 1), mode="paper")
    return _row(what, value, options.networks, candidates, counts.reshape(-1, 3))


def _kinds(found: Any) -> list[int]:
    return [len(found), len(found.minimal()), len(found.one_minimal())]


def _digits(options: Options) -> dict[str, Any]:
    from sklearn.datasets import load_digits

    images, digits = load_digits(n_class=2, return_X_y=True)
    x, y = images / 16.0, digits.astype(float)
    training = interp.MlpTraining(epochs=300)
    trained = interp.train_mlps(x, y[:, None], (32, 3, 3, 3), seeds=range(options.digits), training=training)
    counts = []
    for one in trained:
        if one.converged:
            network, values = one.network, x
            for weight, bias in zip(network.weights[:2], network.biases[:2], strict=True):
                values = network.act(values @ weight + bias)
            last = interp.SmallMlp(network.weights[2:], network.biases[2:], network.activation)
            counting = interp.Counting(full_mask=False, share=0.99)
            counts.append(_kinds(interp.enumerate_circuits(last, values, y, counting=counting)))
    candidates = interp.count_candidates((3, 3, 3, 1), mode="paper")
    return _row("digits 0/1", "3-3-3-1", options.digits, candidates, np.array(counts, float).reshape(-1, 3))


def _row(what: str, value: str, trained: int, candidates: int, counts: np.ndarray) -> dict[str, Any]:
    """Mean number with its 95 % interval (normal), median and range of the perfect circuits; means of the others."""
    row = {"varied": what, "value": value, "trained": trained, "converged": len(counts), "candidates": candidates}
    perfect, minimal, one_minimal = (counts if len(counts) else np.full((1, 3), np.nan)).astype(float).T
    mean = perfect.mean()
    half = 1.96 * perfect.std(ddof=1) / len(perfect) ** 0.5 if len(perfect) > 1 else np.nan
    numbers = {
        "mean": mean, "low": mean - half, "high": mean + half, "median": np.median(perfect), "least": perfect.min(),
        "most": perfect.max(), "minimal_mean": minimal.mean(), "one_minimal_mean": one_minimal.mean(),
    }  # fmt: skip
    return row | {name: round(float(number), 2) for name, number in numbers.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(Options):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    main(Options(**vars(parser.parse_args())))
