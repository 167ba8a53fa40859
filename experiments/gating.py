"""Causal head gating of in-context tasks: fits, classes, and the controls that the paper lacks.

    OMP_NUM_THREADS=1 python experiments/gating.py PAIRS.json [--model smollm2-135m] [--out runs/gating]

PAIRS.json is a file of Function Vectors, such as abstractive/present-past.json. Fits `starts` starts at once and, with
--controls, as many more that share one set of first gates and differ in the order of their data alone: what they
disagree on is batch noise. Writes circuit/, table.csv, classes.csv and agreement.txt; an interrupted run goes on where
it was. The defaults fit an hour and a quarter of one core on SmolLM2 (8 starts, 3 shots, batch 4, 200 + 2 x 200
updates). The paper's own setting, for a GPU and a Llama-3-class model:

    python experiments/gating.py PAIRS.json --model meta-llama/Llama-3.2-3B-Instruct --device cuda --dtype bfloat16 \\
        --starts 10 --shots 10 --batch 64 --first_steps 500 --steps 500 --memory 40

To compare with (table 2 of the paper, other tasks, share of heads over 10 seeds): facilitating always 0.7 to 38 %, any
57 to 81 %; interfering always 0 to 1.3 %, any 14 to 59 %.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import interp
from interp.gate_classes import CLASSES
from interp.table import Table


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    form: str = "few_shot"
    shots: int = 3
    starts: int = 8
    controls: int = 0
    batch: int = 4
    first_steps: int = 200
    steps: int = 200
    penalty: float = 0.1
    low: float = 0.0
    memory: float = 4.0
    device: str = "cpu"
    dtype: str = "float32"
    out: str = "runs/gating"


def main(pairs: str, options: Options) -> None:
    model = interp.load(options.model, device=options.device, dtype=getattr(torch, options.dtype))
    task = interp.task("in_context", model.tokenizer, path=pairs, form=options.form, shots=options.shots)
    train, test = task.split(train=0.8, by=["entity"])
    settings = interp.GateSettings(
        steps=(options.first_steps, options.steps), batch=options.batch, penalty=options.penalty, low=options.low
    )
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    fits = [("", [(n, n) for n in range(options.starts)])]
    if options.controls:
        fits.append(("same_gates_", [(0, 100 + n) for n in range(options.controls)]))
    for prefix, starts in fits:
        found = interp.gate(
            model, train, test, starts=starts, settings=settings,
            engine=interp.FitEngine(memory=options.memory, checkpoint=out / f"{prefix}checkpoint"),
        )  # fmt: skip
        interp.save_circuit(found, out / f"{prefix}circuit")
        table = interp.gate_table(found)
        table.to_csv(out / f"{prefix}table.csv")
        shares = {name: np.array([found.attributes[name].values.mean()]) for name in CLASSES}
        Table(shares).to_csv(out / f"{prefix}classes.csv")
        agreement = str(interp.modularity(found))
        (out / f"{prefix}agreement.txt").write_text(agreement + "\n")
        print(prefix, table, Table(shares), agreement, sep="\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", help="a JSON list of objects with input and output")
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    given = vars(parser.parse_args())
    main(given.pop("pairs"), Options(**given))
