"""How long circuits of the size of Llama-3.1-8B's head-level edge graph (1.6 million edges) take to handle.

Run: ``python experiments/bench/circuit_scale.py``; prints one line an operation. Random scores, one process, no model.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from interp import circuit_algebra, circuit_files, circuit_ops
from interp.circuit import Circuit, Score, ScoreHeader
from interp.edges import Edges
from interp.nodes import Nodes


def head_graph(n_layers: int, n_heads: int, seed: int = 0) -> Circuit:
    """Every edge from input, heads and MLPs into later heads' q, k, v, MLPs and logits, with random scores."""
    layers, heads = np.repeat(np.arange(n_layers), n_heads), np.tile(np.arange(n_heads), n_layers)
    whole = np.arange(n_layers)
    nodes = Nodes.from_columns(
        ["input", *["z"] * len(layers), *["mlp_out"] * n_layers, *np.repeat(["q", "k", "v"], len(layers)), "logits"],
        layer=np.concatenate([[-1], layers, whole, *[layers] * 3, [-1]]),
        head=np.concatenate([[-1], heads, np.full(n_layers, -1), *[heads] * 3, [-1]]),
    )
    z, mlp = nodes.where(kind="z"), nodes.where(kind="mlp_out")
    depth = np.concatenate([[-1], layers + 0.25, whole + 0.5])  # of sources, when written
    sources = np.concatenate([[0], z, mlp])
    readers = np.concatenate([*(nodes.where(kind=kind) for kind in "qkv"), mlp, nodes.where(kind="logits")])
    read_at = np.concatenate([*[layers] * 3, whole + 0.4, [n_layers]])
    source, reader = np.nonzero(depth[:, None] < read_at[None, :])
    structure = np.concatenate([nodes.where(kind=kind) for kind in "qkv"])
    edges = Edges(np.concatenate([sources[source], structure]), np.concatenate([readers[reader], np.tile(z, 3)]))
    values = np.random.default_rng(seed).normal(size=len(edges)).astype(np.float32)
    values[len(source) :] = np.nan
    header = ScoreHeader("edges", "attribution", signed=True, direction="noising", base="clean")
    return Circuit(nodes, edges, {"score": Score(header, values)})


def timed(name: str, run: Callable[[], Any]) -> Any:
    """Run once, print its time, give its value."""
    start = time.perf_counter()
    value = run()
    print(f"{name:<28}{time.perf_counter() - start:8.2f} s")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=32)
    options = parser.parse_args()
    whole = timed("build", lambda: head_graph(options.layers, options.heads))
    print(f"{len(whole.nodes):,} nodes, {len(whole.edges):,} edges")
    n = len(whole.edges) // 50
    other = head_graph(options.layers, options.heads, seed=1)
    top = timed(f"top {n:,}", lambda: circuit_ops.top_n(whole, n, "score", rank="absolute"))
    timed("threshold", lambda: circuit_ops.threshold(whole, 2.0, "score", rank="signed"))
    timed("prune", lambda: circuit_ops.prune(top))
    timed("prune, everything kept", lambda: circuit_ops.prune(whole))
    timed("grow 30,000 edges", lambda: circuit_ops.grow(whole, min(30_000, n), "score", rank="absolute"))
    second = circuit_ops.top_n(other, n, "score", rank="absolute")
    timed("union", lambda: circuit_algebra.union(top, second))
    timed("align", lambda: circuit_algebra.align(top, second))
    timed("coarsen", lambda: circuit_algebra.coarsen(top, ("layer",)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "circuit"
        timed("save", lambda: circuit_files.save_circuit(top, path))
        print(f"{sum(file.stat().st_size for file in path.iterdir()) / 1e6:.1f} MB on disk")
        loaded = timed("load", lambda: circuit_files.load_circuit(path))
        assert circuit_files.identical(top, loaded), "the loaded circuit differs"
    frame = timed("frame of edges", lambda: whole.frame("edges"))
    timed("sort the frame", lambda: frame.sort("score", descending=True))


if __name__ == "__main__":
    main()
