"""RAVEL with full vectors, DAS, MDAS and HyperDAS, over seeds, on entities and templates that training did not see.

    OMP_NUM_THREADS=1 python experiments/ravel.py PATH [--model smollm2-135m] [--layers 14] [--out FOLDER]

PATH is the folder of RAVEL's files (data.tgz, unpacked). First the model is asked what it knows (kept in known.json);
--entities names a JSON file with the entities to ask about (a list, or a mapping with them as keys). Then, at each of
--layers (resid_post; DAS and MDAS take the one that does best on validation, HyperDAS the first), each seed of: full
vector, random subspace, DAS (cause examples alone), MDAS, all at the entity's last token, HyperDAS in every mode, as
learned and forced, and its gain over MDAS with a paired interval, one-to-one and forced; for the seeds of --controls,
HyperDAS anew with one subspace for all, at a fixed position and on random weights. Writes table.csv (averages with
95 % intervals over entities) and, of each seed, the circuits, the HyperDAS and which tokens it pairs. What is there
already is not run again; training goes on from its last checkpoint. --what names what to do of all this.

The paper's settings, for a GPU (HyperDAS after 15 blocks, rank 128, 8 blocks, batch 16, five passes):

    python experiments/ravel.py PATH --model meta-llama/Meta-Llama-3-8B --device cuda --dtype bfloat16 --layers 14 \\
        --published 1 --rank 128 --templates 0 --tokens 0 --examples 6000 --steps 26000 --das_steps 13000 --rate 4e-5

To compare with (Llama-3-8B, Disentangle, Cause/Iso): City MDAS 55.8/77.9, HyperDAS 70.8/93.9; Nobel 56.0/93.5,
55.4/95.1; Occupation 50.7/88.1, 50.4/99.1; Physical object 85.0/97.9, 92.7/97.2; Verb 74.3/79.6, 93.0/98.9; mean
Disentangle 76.0 and 84.7 (published rows may mix soft and hard choices; ours say which).
"""

import argparse
import csv
import json
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

import interp
from interp.hypernet.readout import every_mode
from interp.interchange.circuits import score_subspaces
from interp.interchange.examples import rows_of
from interp.table import Table

NAMES = {"city": "city", "nobel_prize_winner": "laureate", "occupation": "occupation", "physical_object": "object",
         "verb": "verb"}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Settings of one run; 0 templates or tokens means all."""

    model: str = "smollm2-135m"
    type: str = "city"
    attributes: str = "Country,Continent,Language"
    entities: str = ""
    templates: int = 12
    tokens: int = 26
    layers: str = "17"
    rank: int = 32
    reflections: int = 16
    seeds: int = 3
    examples: int = 4000
    validation: int = 60
    test: int = 300
    steps: int = 750
    das_steps: int = 400
    rate: float = 5e-4
    das_rate: float = 3e-3
    batch: int = 16
    what: str = "full_vector,random,das,mdas,hyperdas,gain,controls"
    controls: str = "0"
    published: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    out: str = "runs/ravel"


def main(path: str, options: Options) -> None:
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    model = interp.load(options.model, device=options.device, dtype=getattr(torch, options.dtype))
    data = _data(model, path, options, out)
    layers = [f"resid_post[{layer}]" for layer in options.layers.split(",")]
    states = None
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for what in options.what.split(","):
            file = out / f"{what}-{seed}.json"
            if not file.exists():
                states = states or _states(model, data, layers, options)
                start = time.time()
                found = _run(model, data, what, layers, states, seed, options, out)
                file.write_text(json.dumps([{"seed": seed, **row} for row in found], indent=1) + "\n")
                print(f"{what}, seed {seed}: {time.time() - start:.0f} s", flush=True)
            rows += json.loads(file.read_text())
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table({name: [row.get(name, float("nan")) for row in rows] for name in names})
    table.to_csv(out / "table.csv")
    print(table)


def _data(model: Any, path: str, options: Options, out: Path) -> Any:
    files = interp.read_ravel(path, options.type)
    attributes = options.attributes.split(",") if options.attributes else files.attributes
    entities = list(json.loads(Path(options.entities).read_text())) if options.entities else None
    known = interp.known_prompts(
        model, files, attributes=attributes, entities=entities, most_templates=options.templates or None,
        most_tokens=options.tokens or None, file=out / "known.json",
    )  # fmt: skip
    sizes = {"train": options.examples, "val": options.validation, "test": options.test}
    data = interp.ravel(model, files, known, attributes=attributes, sizes=sizes)
    for name, one in data.items():
        print(f"{name}: {one}", flush=True)
    return data


def _states(model: Any, data: Any, layers: list[str], options: Options) -> Any:
    """Activations at every layer that anything reads."""
    sites = [site for layer in layers for site in interp.HyperDas(model, layer, _settings(options)).needs]
    return interp.states_of(model, data["test"].prompts, list(dict.fromkeys(sites)), rows=rows_of(list(data.values())))


def _settings(options: Options) -> Any:
    if options.published:
        return interp.HyperDasSettings.as_published(rank=options.rank)
    return interp.HyperDasSettings(rank=options.rank, reflections=options.reflections)


def _run(
    model: Any, data: Any, what: str, layers: list[str], states: Any, seed: int, options: Options, out: Path
) -> list[dict[str, Any]]:
    """Rows of the table: a method, or each mode of one, on every concept and all."""
    if what == "hyperdas":
        return _hyperdas(model, data, layers[0], states, seed, options, out)
    if what in ("gain", "controls"):
        one = interp.load_hyperdas(out / f"hyperdas-{seed}" / "hyperdas", model)
        runs = interp.Resumption(model, one.site, states)
        if what == "gain":
            return _gain(model, data["test"], one, runs, out / f"mdas-{seed}")
        if str(seed) not in options.controls.split(","):
            return []
        table = interp.subspace_controls(
            one, runs, data, retrain=["static", "fixed_position", "random_target"], training=_training(seed, options),
            random_model=interp.random_copy(model),
        )  # fmt: skip
        return [{"concept": "all", **{name: _plain(value) for name, value in row.items()}} for row in table.rows()]
    training = interp.TrainSettings(
        steps=options.das_steps, batch=options.batch, rate=options.das_rate, decay=True, seed=seed,
        evaluate_every=options.das_steps,
    )  # fmt: skip
    circuit = interp.das(
        model, data if len(layers) > 1 else {name: data[name] for name in ("train", "test")}, layers,
        what="subspace" if what in ("das", "mdas") else what, rank=options.rank, isolate=what != "das",
        settings=training, states=states, keeping=_keeping(what, seed, out),
    )  # fmt: skip
    interp.save_circuit(circuit, out / f"{what}-{seed}")
    wanted = ("concept", "cause", "isolate", "disentangle", "low", "high")
    return [{"run": what, **{name: _plain(row[name]) for name in wanted}} for row in circuit.frame().rows()]


def _hyperdas(
    model: Any, data: Any, layer: str, states: Any, seed: int, options: Options, out: Path
) -> list[dict[str, Any]]:
    training = _training(seed, options)
    told = {concept: f"the {concept.lower()} of a {NAMES[options.type]}" for concept in data["test"].concept_names}
    one, history, runs = interp.train_hyperdas(
        model, data, layer, _settings(options), training=training, instructions=told, states=states,
        keeping=_keeping("hyperdas", seed, out),
    )  # fmt: skip
    folder = out / f"hyperdas-{seed}"
    interp.save_hyperdas(one, folder / "hyperdas")
    interp.save_circuit(interp.hyperdas_circuit(one, runs, data["test"], history, training), folder / "circuit")
    with open(out / f"selections-{seed}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["concept", "base", "source", "share"])
        picked = interp.selections(runs, data["test"], one)
        for concept in data["test"].concept_names:
            writer.writerows([concept, *row.values()] for row in picked.shares(concept).rows())
    rows = []
    for (mode, forced), scores in every_mode(runs, data["test"], one).items():
        for convention in ("macro", "micro"):
            for row in scores.table(convention=convention).rows():
                name = f"HyperDAS {mode}{' forced' if forced else ''}, {convention}"
                rows.append({"run": name, **{key: _plain(value) for key, value in row.items()}})
    return rows


def _gain(model: Any, test: Any, one: Any, runs: Any, mdas: Path) -> list[dict[str, Any]]:
    fixed = score_subspaces(model, interp.load_circuit(mdas), test, states=runs.states)
    chosen = interp.score_interchange(runs, test, one, mode="one_to_one", forced=True)
    rows = []
    for concept in (*test.concept_names, None):
        gain, low, high = chosen.gain_over(fixed, concept)
        name = "gain of HyperDAS one_to_one forced over MDAS"
        rows.append({"run": name, "concept": concept or "all", "disentangle": gain, "low": low, "high": high})
    return rows


def _training(seed: int, options: Options) -> Any:
    return interp.TrainSettings(
        steps=options.steps, batch=options.batch, rate=options.rate, warm_up=0.03, decay=True, weight_decay=0.01,
        evaluate_every=max(options.steps // 5, 1), patience=None, seed=seed,
    )  # fmt: skip


def _keeping(what: str, seed: int, out: Path) -> Any:
    return interp.Keeping(out / f"training-{what}-{seed}.safetensors")


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else float(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    for one in fields(Options):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    given = vars(parser.parse_args())
    main(given.pop("path"), Options(**given))
