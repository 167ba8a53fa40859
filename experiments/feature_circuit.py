"""A sparse feature circuit of subject-verb agreement, judged beside neurons: Marks et al. 2024, figure 3 and table.

    OMP_NUM_THREADS=1 python experiments/feature_circuit.py DICTIONARIES [--construction simple] [--out FOLDER]

DICTIONARIES are folders of dictionaries, or release:id pairs of sae-lens, separated by commas. Node scores (IG,
positions apart) come from --pairs training pairs; faithfulness and the complement's (the paper's completeness) from
--held_out pairs that share no noun with them, mean ablation by position, for circuits of growing size: features with
error terms, without any, with those of the residual stream only, and the same sites' coordinates ("neurons"). Writes
circuit/, curves.csv, errors.csv, curves.html. Sites below --start_layer run as they are (the paper leaves out the first
third of the layers).

The authors' Pythia-70M dictionaries and Gemma Scope, for a GPU (the paper's setting: 100 and 40 pairs):

    python experiments/feature_circuit.py \\
        "$(for l in 0 1 2 3 4 5; do for k in res att mlp; do
           echo -n pythia-70m-deduped-$k-sm:blocks.$l.hook_${k/res/resid_post},; done; done | sed 's/,$//')" \\
        --model EleutherAI/pythia-70m-deduped --device cuda --pairs 100 --held_out 40 --start_layer 2
    python experiments/feature_circuit.py RELEASE:ID,... --model google/gemma-2-2b --device cuda --start_layer 8

To compare with (mean over four constructions, nodes -> faithfulness): Pythia features with errors 32 -> .23, 109 ->
.63, 373 -> .85, 1279 -> .95; no errors 1276 -> .25; residual errors only 373 -> .62; neurons 1226 -> .39, 5954 -> 1.03;
the complement of 17 -> .13, 59 -> .02. Gemma features with errors 741 -> .55, 6613 -> .82; no errors about 0.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import torch

import interp
from interp.table import Table

SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
MEASURES = ("faithfulness", "faithfulness_of_complement")


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    construction: str = "simple"
    pairs: int = 32
    held_out: int = 16
    steps: int = 10
    nodes: int = 100
    start_layer: int = 0
    batch: int = 16
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    out: str = "runs/feature_circuit"


def main(dictionaries: str, options: Options) -> None:
    model = interp.load(options.model, device=options.device, dtype=getattr(torch, options.dtype))
    given = [_dictionary(one) for one in dictionaries.split(",")]
    neurons = [interp.coordinates(model, one.site) for one in given]
    train, test = _pairs(model, options)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    curves = []
    for name, featurizers in (("features", given), ("neurons", neurons)):
        scored = interp.attribute_features(
            model, train, featurizers, positions="each", steps=options.steps, batch=options.batch, seed=options.seed
        )
        by = next(iter(scored.scores))
        if name == "features":
            interp.error_shares(scored).to_csv(out / "errors.csv")
            print(interp.error_shares(scored), flush=True)
            cut = interp.top_n(scored, options.nodes, by, rank="absolute")
            circuit = interp.connect_features(model, train, given, cut, n_edges=4 * options.nodes, batch=options.batch)
            interp.save_circuit(circuit, out / "circuit")
        later = interp.from_layer(scored, options.start_layer) if options.start_layer else scored
        curves.append((name, later, featurizers))
        if name == "features":
            curves.append(("features, no errors", interp.bar_errors(later), featurizers))
            curves.append(("features, residual errors", interp.bar_errors(later, keep="resid_post"), featurizers))
    rows = [row for one in curves for row in _curve(model, test, *one, options)]
    table = Table({key: np.array([row[key] for row in rows]) for key in rows[0]})
    table.to_csv(out / "curves.csv")
    _figure(table).write_html(out / "curves.html")
    print(table)


def _dictionary(word: str) -> interp.Dictionary:
    if Path(word).exists():
        return interp.load_dictionary(word)
    release, sae_id = word.split(":", 1)
    return interp.pretrained_dictionary(release, sae_id)


def _pairs(model: interp.HookedModel, options: Options) -> tuple[interp.Task, interp.Task]:
    """Training and held-out pairs of one length each, without a common noun."""
    whole = interp.task(
        "agreement", model.tokenizer, n=4 * (options.pairs + options.held_out), seed=options.seed,
        construction=options.construction,
    )  # fmt: skip
    lengths = whole.clean.lengths
    same = whole[(lengths == lengths.mode().values).nonzero()[:, 0].tolist()]
    train, test = same.split(train=0.7, by=["entity"], seed=options.seed)
    print(f"{len(train)} training and {len(test)} held-out pairs of {int(lengths.mode().values)} tokens")
    return train[: options.pairs], test[: options.held_out]


def _curve(
    model: interp.HookedModel, task: interp.Task, name: str, circuit: interp.Circuit, featurizers: list,
    options: Options,
) -> list[dict]:  # fmt: skip
    """Both measures at every size."""
    by = next(iter(circuit.scores))
    scores = circuit.scores[by].values
    sizes = [n for n in SIZES if n <= int((np.nan_to_num(scores) != 0).sum())]
    rows = []
    for measure in MEASURES:
        found = interp.faithfulness_curve(
            model, task, circuit, sizes, by, rank="absolute", measure=measure, ablation="mean_by_position",
            featurizers=featurizers, random=0, seed=options.seed,
        )  # fmt: skip
        rows += [
            {"nodes": name, "measure": measure, "size": int(row["size"]), "value": float(row[measure]),
             "low": float(row["low"]), "high": float(row["high"])}
            for row in found.rows()
        ]  # fmt: skip
    return rows


def _figure(table: Table) -> go.Figure:
    figure = go.Figure()
    for name in dict.fromkeys(table["nodes"]):
        for measure in MEASURES:
            here = table.where((table["nodes"] == name) & (table["measure"] == measure))
            figure.add_scatter(
                x=here["size"], y=here["value"], name=f"{name}: {measure.replace('_', ' ')}",
                line={"dash": "solid" if measure == "faithfulness" else "dot"},
            )  # fmt: skip
    figure.update_layout(xaxis={"type": "log", "title": "nodes kept"}, yaxis={"title": "recovery"})
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dictionaries", help="folders, or release:id pairs, separated by commas")
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    given = vars(parser.parse_args())
    main(given.pop("dictionaries"), Options(**given))
