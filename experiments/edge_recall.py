"""How well EAP and its kin rank what exact edge patching finds, and what ACDC keeps: rank agreement, recall, time.

    OMP_NUM_THREADS=1 python experiments/edge_recall.py [--granularity sublayer] [--pairs 4] [--out experiments/results]

Truth is the mean effect over prompts of cutting each edge (`interp.patch_edges`). Rank agreement is Spearman's of the
magnitudes over edges with an effect; `same_sign` the share of the true top 100 whose sign the estimate has. On SmolLM2
the 1,891 edges between sublayers take half a minute a pair of one core; the 70,651 between heads (--granularity head
--pairs 1) half an hour; eap-ig-activations, left out by default, takes a backward pass for each sublayer and step. On a
GPU give --device cuda and more pairs.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import interp
from interp.recall import rank_agreement, ranked, recall
from interp.table import Table

SIZES = (20, 50, 100)


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    tasks: str = "ioi,greater_than,agreement"
    granularity: str = "sublayer"
    pairs: int = 4
    steps: int = 5
    methods: str = "eap,eap-ig-inputs,clean-corrupted,conductance,ifr"
    thresholds: str = "0.1,0.01"
    direction: str = "noising"
    device: str = "cpu"
    out: str = "experiments/results"


def compare(model: interp.HookedModel, name: str, options: Options) -> Table:
    """One row a method."""
    task = interp.task(name, model.tokenizer, n=options.pairs)
    column = f"{task.metric.name}.{options.direction}"
    given = {"granularity": options.granularity}
    start = time.perf_counter()
    exact = interp.patch_edges(model, task, direction=options.direction, **given)
    truth = exact.scores[column].values
    rows = [_row(name, "exact", time.perf_counter() - start, exact, truth, truth)]
    for method in options.methods.split(","):
        start = time.perf_counter()
        found = interp.attribute_edges(
            model, task, method=method, direction=options.direction, steps=options.steps, **given
        )
        (score,) = found.scores.values()
        rows.append(_row(name, method, time.perf_counter() - start, found, score.values, truth))
    for threshold in filter(None, options.thresholds.split(",")):
        start = time.perf_counter()
        found = interp.acdc(model, task, float(threshold), metric=task.metric, **given)
        costs = found.scores[f"{task.metric.name}.acdc"].values
        kept = f"acdc {threshold} ({int(found.kept_edges.sum())} edges)"
        rows.append(_row(name, kept, time.perf_counter() - start, found, costs, truth))
    return Table({key: np.array([row[key] for row in rows]) for key in rows[0]})


def _row(
    task: str, method: str, seconds: float, found: interp.Circuit, scores: np.ndarray, truth: np.ndarray
) -> dict[str, object]:
    """A method's row; the cost is in forward passes a prompt, a backward counted as two."""
    top = ranked(truth)[:100]
    signed = next(iter(found.scores.values())).header.signed
    cost = (found.provenance.forwards + 2 * found.provenance.backwards) / len(found.provenance.token_ids)
    return {
        "task": task,
        "method": method,
        "rank_agreement": round(rank_agreement(scores, np.where(truth == 0, np.nan, truth)), 3),
        **{f"recall@{k}": recall(scores, truth, k) for k in SIZES},
        "same_sign": round(float((np.sign(scores[top]) == np.sign(truth[top])).mean()), 2) if signed else np.nan,
        "cost": round(cost, 1),
        "seconds": round(seconds, 1),
    }


def main(options: Options) -> None:
    model = interp.load(options.model, device=options.device)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in options.tasks.split(","):
        table = compare(model, name, options)
        table.to_csv(out / f"edge_recall_{options.granularity}_{name}.csv")
        print(table, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    main(Options(**vars(parser.parse_args())))
