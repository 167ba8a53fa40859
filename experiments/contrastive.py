"""Contrastive gating: keep one formulation of in-context tasks, unlearn the other; each task left out once.

    OMP_NUM_THREADS=1 python experiments/contrastive.py FOLDER [--tasks present-past,singular-plural] [--out FOLDER]

FOLDER holds files of Function Vectors (abstractive/). Formulations: few-shot ("Q: walk\\nA: walked") and an instruction
to complete ('The past tense of "walk" is "'). Gates are fitted on all tasks but one, in both ways, and scored on every
item of the one left out. The defaults take about a quarter of an hour of one core on SmolLM2; the paper's setting
(figure 5: the forgotten formulation falls to about 0, the retained one mostly stays), for a GPU:

    python experiments/contrastive.py FOLDER --model meta-llama/Llama-3.2-3B-Instruct --device cuda --dtype bfloat16 \\
        --tasks antonym,capitalize,country-capital,present-past,singular-plural --shots 10 --batch 64 --steps 500
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

import interp


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    tasks: str = "present-past,singular-plural"
    shots: int = 3
    starts: int = 1
    batch: int = 8
    steps: int = 150
    items: int = 64
    memory: float = 4.0
    device: str = "cpu"
    dtype: str = "float32"
    out: str = "experiments/results"


def main(folder: str, options: Options) -> None:
    model = interp.load(options.model, device=options.device, dtype=getattr(torch, options.dtype))
    forms = {
        form: {
            name: interp.task(
                "in_context", model.tokenizer, path=Path(folder) / f"{name}.json", form=form,
                shots=options.shots if form == "few_shot" else 1, n=options.items,
            )
            for name in options.tasks.split(",")
        }
        for form in ("few_shot", "instruction")
    }  # fmt: skip
    table = interp.leave_one_out(
        model, forms["few_shot"], forms["instruction"], names=("few_shot", "instruction"), starts=options.starts,
        settings=interp.GateSettings(steps=(options.steps, 0), batch=options.batch),
        engine=interp.FitEngine(memory=options.memory),
    )  # fmt: skip
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "contrastive.csv")
    print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the files of word pairs are")
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    given = vars(parser.parse_args())
    main(given.pop("folder"), Options(**given))
