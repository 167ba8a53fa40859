"""SHIFT on a text classifier, over seeds, with dictionaries and with neurons: Marks et al. 2024, table 2.

    OMP_NUM_THREADS=1 python experiments/shift.py DATA DICTIONARIES [--layer 8] [--judge words] [--out FOLDER]

DATA is biographies, gap, bias_in_bios, planted, or a table of texts, with --options as JSON (gap needs {"path": ...});
DICTIONARIES are folders, or release:id pairs of sae-lens, separated by commas. The judge is the data's own list of
words (a feature is irrelevant where more than half of its activation lies on them), a file of verdicts, or "skyline", a
control: half of the features shown, by their scores for the attribute on balanced training texts. Each seed
draws its own split, probe and examples. Beside features: "neurons", the same sites' coordinates, put to their mean, and
"tokens", a feature for each token at the embedding (`token_dictionary`). Writes a table a seed, table.csv (means with
95 % t-intervals over seeds) and, of the first seed, what `ShiftResult.save` does; seeds that are there
already are not run again.

The paper's settings, for a GPU (the judge there was a person; features are those with a score of at least 0.1 and 6):

    python experiments/shift.py bias_in_bios \\
        "$(for l in 0 1 2 3 4; do for k in res att mlp; do
           echo -n pythia-70m-deduped-$k-sm:blocks.$l.hook_${k/res/resid_post},; done; done | sed 's/,$//')" \\
        --model EleutherAI/pythia-70m-deduped --layer 4 --device cuda --published 0.1 --length 2048
    python experiments/shift.py bias_in_bios RELEASE:ID,... --model google/gemma-2-2b --layer 22 --device cuda \\
        --dtype bfloat16 --published 6 --length 8192

To compare with (balanced test: profession / gender / worst group): Pythia-70M original 61.9 / 87.4 / 24.4, concept
bottleneck 83.3 / 60.1 / 67.7, random 61.8 / 87.5 / 24.4, SHIFT 88.5 / 54.0 / 76.0, + retrain 93.1 / 52.0 / 89.0,
neuron skyline 75.5 / 73.2 / 41.5, feature skyline 88.5 / 54.3 / 62.9, oracle 93.0 / 49.4 / 91.9. Gemma-2-2B original
67.7 / 81.9 / 18.2, concept bottleneck 90.2 / 50.1 / 86.7, random 67.3 / 82.3 / 18.0, SHIFT 76.0 / 51.5 / 50.0, +
retrain 95.0 / 52.4 / 92.9, neuron skyline 65.1 / 84.3 / 5.6, feature skyline 80.8 / 53.7 / 56.7, oracle 95.0 / 50.6 /
93.1.
"""

import argparse
import csv
import json
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import interp
from interp.table import Table


@dataclass(frozen=True)
class Options:
    """Settings of one run; `published` above 0 takes the authors' settings with that smallest score."""

    model: str = "smollm2-135m"
    layer: int = 8
    judge: str = "words"
    seeds: int = 5
    features: int = 60
    examples: int = 100
    method: str = "atp"
    steps: int = 10
    length: int = 128
    what: str = "features,neurons,tokens"
    batch: int = 16
    published: float = 0.0
    options: str = "{}"
    device: str = "cpu"
    dtype: str = "float32"
    out: str = "runs/shift"


def main(data: str, dictionaries: str, options: Options) -> None:
    model = interp.load(options.model, device=options.device, dtype=getattr(torch, options.dtype))
    given = [_dictionary(one) for one in dictionaries.split(",")]
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    kinds = options.what.split(",")
    for seed in range(options.seeds):
        for what in kinds:
            file = out / f"{what}-{seed}.csv"
            if not file.exists():
                start = time.time()
                result = _one_seed(model, data, given, what, seed, options)
                if seed == 0:
                    result.save(out / what)
                    interp.view_cards(result.candidates.cards, out / what / "cards.html", title=f"{data} · {what}")
                result.table.to_csv(file)
                print(f"{what}, seed {seed}: {time.time() - start:.0f} s\n{result.table}", flush=True)
    tables = {what: [_read(out / f"{what}-{s}.csv") for s in range(options.seeds)] for what in kinds}
    rows = [row for what, own in tables.items() for row in _named(interp.over_seeds(own), what)]
    table = Table({key: np.array([row[key] for row in rows], dtype=object) for key in rows[0]})
    table.to_csv(out / "table.csv")
    print(table)


def _one_seed(
    model: interp.HookedModel, data: str, dictionaries: list, what: str, seed: int, options: Options
) -> interp.ShiftResult:
    """SHIFT with dictionaries and all baselines, or with neurons or tokens and none."""
    texts = interp.biased_data(data, seed=seed, **json.loads(options.options))
    print(f"{len(texts.train)} ambiguous texts, {len(texts.test)} for the test, held out {texts.all_held_out.counts()}")
    settings = interp.ShiftSettings(
        n_features=options.features, examples=options.examples, method=options.method, steps=options.steps,
        length=options.length, batch=options.batch, seed=seed,
    )  # fmt: skip
    if options.published:
        settings = replace(
            interp.ShiftSettings.as_published_code(options.published), length=options.length, seed=42 + seed
        )
    featurizers: list[Any] = dictionaries
    if what == "neurons":
        featurizers = [interp.coordinates(model, one.site) for one in dictionaries]
        settings = replace(settings, ablation="mean")
    elif what == "tokens":
        featurizers = [interp.token_dictionary(model)]
    start: Any = None
    judge: Any = options.judge
    if judge == "words":
        judge = interp.TokenSetJudge(texts.words)
    elif judge == "skyline":
        start = interp.shift_candidates(model, texts, featurizers, options.layer, settings)
        judge = interp.SkylineJudge(interp.skyline_scores(start, texts, featurizers), len(start.cards) // 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)  # of nothing judged irrelevant: the table says so
        return interp.shift(
            model, texts, featurizers, judge, options.layer, settings, candidates=start,
            baselines=interp.BASELINES if what == "features" else (),
        )  # fmt: skip


def _dictionary(word: str) -> interp.Dictionary:
    if Path(word).exists():
        return interp.load_dictionary(word)
    release, sae_id = word.split(":", 1)
    return interp.pretrained_dictionary(release, sae_id)


def _read(file: Path) -> Table:
    """One seed's report."""
    with open(file, newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    numbers = ("label", "attribute", "worst", "judged", "removed")
    return Table(
        {key: np.array([float(r[key]) if key in numbers else r[key] for r in rows], dtype=object) for key in rows[0]}
    )


def _named(table: Table, what: str) -> list[dict[str, Any]]:
    """Rows, those of neurons and tokens named as such; what does not depend on the features only once."""
    if what == "features":
        return table.rows()
    return [row | {"method": f"{row['method']}, {what}"} for row in table.rows() if row["method"] != "original"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a name, or a table of texts")
    parser.add_argument("dictionaries", help="folders, or release:id pairs, separated by commas")
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    given = vars(parser.parse_args())
    main(given.pop("data"), given.pop("dictionaries"), Options(**given))
