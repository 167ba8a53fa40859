"""Do fitted gates mean what they say? Ablation curves, exact effects and other rankings, on held-out prompts.

    OMP_NUM_THREADS=1 python experiments/gate_validation.py RUN/circuit PAIRS.json [--items 8] [--out FOLDER]

RUN is the folder of a run of `experiments/gating.py` on the same pairs; prompts that it was not fitted on are used.
Writes the ablation curves (figure 2 of Nam et al. 2025: closing less opening heads in the order of a score;
facilitating below 0, interfering above, irrelevant at 0), other rankings at as many heads, and the comparison with
exact effects (figure 4). About a quarter of an hour of one core on SmolLM2.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import interp
from interp.gate_classes import SCORES, hard_gates, start_values
from interp.gate_runs import GatedTask, gate_gradients
from interp.gate_settings import NLL
from interp.table import Table


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    form: str = "few_shot"
    shots: int = 3
    items: int = 8
    ranks: str = "5,20,60,120,200,270"
    device: str = "cpu"
    out: str = "experiments/results"


def main(circuit: str, pairs: str, options: Options) -> None:
    model, found = interp.load(options.model, device=options.device), interp.load_circuit(circuit)
    given = {"path": pairs, "form": options.form, "shots": options.shots}
    task = interp.task("in_context", model.tokenizer, **given)
    fitted = set(found.provenance.token_ids)
    is_held = np.array([tuple(ids) not in fitted for ids in task.clean.rows()])
    train, test = task[np.flatnonzero(~is_held).tolist()], task[np.flatnonzero(is_held).tolist()]
    held, name = test[: options.items], Path(pairs).stem
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    ranks = [int(rank) for rank in options.ranks.split(",")]
    curves = [interp.ablation_curve(model, held, found, by, ranks=ranks) for by in SCORES]
    columns = {key: np.concatenate([curve[key] for curve in curves]) for key in curves[0].columns}
    by = np.repeat(np.array(SCORES, dtype=object), len(ranks))
    _write(Table({"by": by, **columns}), out / f"gating_ablation_{name}.csv")
    # Rankings that take no fit of their own; as many heads as the gates leave open.
    gradients = gate_gradients(GatedTask(model, train[: 4 * options.items], NLL)).flatten(1).numpy()
    exact = interp.patch(model, train[: options.items], "z", direction="noising", ablation="zero", metrics=NLL)
    effects = exact.scores["neg_nll.noising"].values
    rankings = {
        "gating": start_values(found, "remove.theta"),
        "first order": gradients.mean(0)[None],
        "importance": np.abs(gradients).mean(0)[None],
        "zero ablation": effects[None],
        "random": np.stack([np.random.default_rng(n).permutation(len(effects)) for n in range(4)]).astype(float),
    }
    size = int(hard_gates(found).sum(1).mean())
    _write(interp.compare_rankings(model, test, rankings, [size // 2, size]), out / f"gating_matched_{name}.csv")
    _write(interp.mediation_agreement(found, effects), out / f"gating_mediation_{name}.csv")


def _write(table: Table, path: Path) -> None:
    table.to_csv(path)
    print(path.name, table, sep="\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("circuit", help="the circuit of a run of experiments/gating.py")
    parser.add_argument("pairs", help="a JSON list of objects with input and output")
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    given = vars(parser.parse_args())
    main(given.pop("circuit"), given.pop("pairs"), Options(**given))
