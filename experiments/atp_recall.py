"""How well AtP, its two fixes and AtP* rank what exact patching finds: rank agreement, recall, cost of full recall.

    OMP_NUM_THREADS=1 python experiments/atp_recall.py [--model smollm2-135m] [--pairs 8] [--out experiments/results]

Nodes are q, k, v and z of every head at every position; truth is the mean of absolute exact effects over prompts, as in
figure 4 of the AtP* paper (Kramár et al. 2024). Rank agreement leaves out candidates whose effect is exactly 0. Costs
are in forward passes a prompt, a backward counted as two. On SmolLM2 8 pairs of the three tasks take about a quarter of
an hour of one core; on a GPU give --device cuda, a larger --model and --pairs 256.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import interp
from interp.joint_effects import joint_effects
from interp.rankings import Ranking, at_random, by_blocks, by_estimate, by_subsets, by_tree
from interp.recall import rank_agreement, recall
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
    rounds: int = 1000
    device: str = "cpu"
    out: str = "experiments/results"


def compare(model: interp.HookedModel, name: str, options: Options) -> Table:
    """One row a method."""
    task = interp.task(name, model.tokenizer, n=options.pairs)
    kinds = options.nodes.split(",")
    start = time.perf_counter()
    exact = interp.patch(model, task, kinds, positions="each", direction=options.direction)
    column = f"{task.metric.name}.{options.direction}"
    truth = np.nanmean(np.abs(exact.tensors[column].array), 1)
    n = len(truth)
    rows = [_row(name, "exact", time.perf_counter() - start, truth, by_estimate(truth), truth)]

    def joint(members: np.ndarray) -> np.ndarray:
        effects = joint_effects(
            model, task, exact.nodes, members, metric=task.metric, direction=options.direction
        )  # fmt: skip
        return np.nanmean(np.abs(effects), 1)

    searches: dict[str, Callable[[], Ranking]] = {
        "random": lambda: at_random(n),
        "subsets": lambda: by_subsets(joint, n, rounds=options.rounds, share=0.05),
        "blocks of 16": lambda: by_blocks(joint, n, 16),
        "tree of 8": lambda: by_tree(joint, n, 8),
    }
    for search, rank in searches.items():
        start = time.perf_counter()
        ranking = rank()
        rows.append(_row(name, search, time.perf_counter() - start, None, ranking, truth))
    for method in METHODS:
        start = time.perf_counter()
        found = interp.attribute(model, task, kinds, positions="each", direction=options.direction, method=method)
        seconds = time.perf_counter() - start
        estimate = found.scores.get(f"{column}.graddrop", found.scores[f"{column}.mean_abs"]).values
        passes = (found.provenance.forwards + 2 * found.provenance.backwards) / len(task)
        rows.append(_row(name, method, seconds, estimate, by_estimate(estimate, passes), truth))
    return Table({key: np.array([row[key] for row in rows]) for key in rows[0]})


def _row(
    task: str, method: str, seconds: float, estimate: np.ndarray | None, ranking: Ranking, truth: np.ndarray
) -> dict:
    """A method's row; its costs are in forward passes a prompt, estimates included."""
    costs = ranking.costs(truth, max(SIZES))
    effective = np.where(truth == 0, np.nan, truth)
    return {
        "task": task,
        "method": method,
        "rank_agreement": np.nan if estimate is None else round(rank_agreement(estimate, effective), 3),
        **{f"recall@{k}": np.nan if estimate is None else recall(estimate, truth, k) for k in SIZES},
        **{f"cost@{k}": round(float(costs[k - 1]), 1) for k in SIZES},
        "summary_cost": round(ranking.summary(truth, max(SIZES)), 1),
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
