"""How well AtP, its two fixes and AtP* rank what exact patching finds: rank agreement, recall, cost of full recall.

    OMP_NUM_THREADS=1 python experiments/atp_recall.py [--model smollm2-135m] [--pairs 8] [--out experiments/results]

Nodes are q, k, v and z of every head at every position; truth is the mean of absolute exact effects over prompts, as in
figure 4 of the AtP* paper (Kramár et al. 2024). Rank agreement leaves out candidates whose effect is exactly 0. Costs
are in forward passes a prompt, a backward counted as two. On SmolLM2 8 pairs of the three tasks take about a quarter of
an hour of one core; on a GPU give --device cuda, a larger --model and --pairs 256.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import interp
from interp.recall import rank_agreement, ranked, recall, recall_costs, summary_cost
from interp.table import Table

METHODS = ("atp", "atp+qk", "atp+graddrop", "atp*")
SIZES = (10, 20, 50)


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    tasks: str = "ioi,greater_than,agreement"
    nodes: str = "q,k,v,z"
    pairs: int = 8
    direction: str = "noising"
    device: str = "cpu"
    out: str = "experiments/results"


def compare(model: interp.HookedModel, name: str, options: Options) -> Table:
    """One row a method."""
    task = interp.task(name, model.tokenizer, n=options.pairs)
    start = time.perf_counter()
    exact = interp.patch(model, task, options.nodes.split(","), positions="each", direction=options.direction)
    seconds = time.perf_counter() - start
    column = f"{task.metric.name}.{options.direction}"
    truth = np.nanmean(np.abs(exact.tensors[column].array), 1)
    rng = np.random.default_rng(0)
    rows = [
        _row(name, "exact", seconds, truth, truth, 0.0),
        _row(name, "random", 0.0, rng.random(len(truth)), truth, 0.0),
    ]
    for method in METHODS:
        start = time.perf_counter()
        found = interp.attribute(
            model, task, options.nodes.split(","), positions="each", direction=options.direction, method=method
        )
        seconds = time.perf_counter() - start
        dropped = f"{column}.graddrop"
        estimate = found.scores[dropped if dropped in found.scores else f"{column}.mean_abs"].values
        passes = (found.provenance.forwards + 2 * found.provenance.backwards) / len(task)
        rows.append(_row(name, method, seconds, estimate, truth, passes))
    return Table({key: np.array([row[key] for row in rows]) for key in rows[0]})


def _row(task: str, method: str, seconds: float, estimate: np.ndarray, truth: np.ndarray, passes: float) -> dict:
    costs = recall_costs(ranked(estimate), truth, max(SIZES))
    return {
        "task": task,
        "method": method,
        "rank_agreement": round(rank_agreement(estimate, np.where(truth == 0, np.nan, truth)), 3),
        **{f"recall@{k}": recall(estimate, truth, k) for k in SIZES},
        **{f"patched_for@{k}": int(costs[k - 1]) for k in SIZES},
        "passes": round(passes, 1),
        "summary_cost": round(summary_cost(costs + passes), 1),
        "seconds": round(seconds, 1),
    }


def main(options: Options) -> None:
    model = interp.load(options.model, device=options.device)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in options.tasks.split(","):
        table = compare(model, name, options)
        table.to_csv(out / f"atp_recall_{name}.csv")
        print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    main(Options(**vars(parser.parse_args())))
