"""Six methods, one behaviour: do they find the same parts of the model? Indirect object identification.

    OMP_NUM_THREADS=1 python experiments/agreement.py [--model smollm2-135m] [--seeds 2] [--out FOLDER]

Each seed draws its own prompts, and each method scores them: exact patching, AtP, AtP*, EAP-IG (a head's edges to what
reads it, summed by magnitude), causal head gating, and a feature circuit (of --dictionaries, folders or release:id of
sae-lens; without them of the coordinates of every attn_out and mlp_out, the paper's "neurons"). All effects are of
noising. Each method's circuit is the smallest that its own ranking leads to with a faithfulness of --at_least on the
seed's prompts; MLPs are no candidates and run as they are. The feature circuit names sublayers and no heads, so
circuits are compared twice: heads of the first five, and attention layers of all six (a layer is in if any of its
parts is). Held-out prompts judge the circuits of heads: identifiability report, and the lattice of the heads that most
methods agree on, in groups. Writes circuits/, heads.csv, layers.csv, parts.csv, report.csv, equivalence.csv,
shapley.csv, agreement.html, report.txt. What is there already is not run again.

The full size, for a GPU:

    python experiments/agreement.py --model openai-community/gpt2 --device cuda --pairs 100 --held_out 100 --seeds 5 \\
        --dictionaries $(for l in $(seq 0 11); do echo -n "gpt2-small-attn-out-v5-32k:blocks.$l.hook_attn_out,"; done)
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

import interp
from interp.circuit import Circuit, Score, ScoreHeader
from interp.view import agreement, save

METHODS = ("patching", "AtP", "AtP*", "EAP-IG", "gating", "features")


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    pairs: int = 12
    held_out: int = 16
    seeds: int = 2
    at_least: float = 0.8
    steps: int = 5
    gate_steps: int = 60
    starts: int = 2
    dictionaries: str = ""
    features: int = 400
    random: int = 4
    groups: int = 6
    methods: str = ",".join(METHODS)
    device: str = "cpu"
    out: str = "runs/agreement"


def main(options: Options) -> None:
    model = interp.load(options.model, device=options.device)
    out = Path(options.out)
    (out / "circuits").mkdir(parents=True, exist_ok=True)
    n = options.pairs * options.seeds + options.held_out
    whole = interp.task("ioi", model.tokenizer, n=n, seed=0)
    test = whole[options.pairs * options.seeds :]
    circuits: dict[str, Circuit] = {}
    for seed in range(options.seeds):
        train = whole[options.pairs * seed : options.pairs * (seed + 1)]
        for method in options.methods.split(","):
            folder, start = out / "circuits" / f"{method} {seed}", time.time()
            if not folder.exists():
                interp.save_circuit(found(model, train, method, seed, options), folder)
                print(f"{method}, seed {seed}: {time.time() - start:.0f} s", flush=True)
            circuits[f"{method} {seed}"] = interp.load_circuit(folder)
    judge(model, test, circuits, options, out)


def found(model: Any, train: Any, method: str, seed: int, options: Options) -> Circuit:
    """One method's circuit: of heads, or (features) of parts of sublayers."""
    scored = SCORED[method](model, train, seed, options)
    by = next(iter(scored.scores))
    if method == "features":
        return interp.top_n(scored, options.features, by, rank="absolute")
    return interp.smallest_circuit(model, train, scored, by, options.at_least, rank="absolute", seed=seed)


def _patching(model: Any, train: Any, seed: int, options: Options) -> Circuit:
    return interp.patch(model, train, "z", direction="noising", seed=seed)


def _atp(model: Any, train: Any, seed: int, options: Options) -> Circuit:
    return interp.attribute(model, train, "z", direction="noising", seed=seed)


def _atp_star(model: Any, train: Any, seed: int, options: Options) -> Circuit:
    return _heads(interp.attribute(model, train, ["q", "k", "z"], method="atp*", direction="noising", seed=seed))


def _edges(model: Any, train: Any, seed: int, options: Options) -> Circuit:
    return _heads(
        interp.attribute_edges(model, train, method="eap-ig-inputs", direction="noising", steps=options.steps)
    )


def _gating(model: Any, train: Any, seed: int, options: Options) -> Circuit:
    settings = interp.GateSettings(steps=(options.gate_steps, options.gate_steps), batch=4)
    gates = interp.gate(model, train, starts=options.starts, settings=settings, seed=seed)
    return _scored(gates.nodes, gates.attributes["facilitation"].values, "gate", "gating")


def _features(model: Any, train: Any, seed: int, options: Options) -> Circuit:
    if options.dictionaries:
        given = [_dictionary(one) for one in options.dictionaries.strip(",").split(",")]
    else:
        given = [interp.coordinates(model, site) for site in model.sites("attn_out", "mlp_out")]
    return interp.attribute_features(model, train, given, positions="all", steps=options.steps, batch=4, seed=seed)


SCORED: dict[str, Callable[..., Circuit]] = dict(
    zip(METHODS, (_patching, _atp, _atp_star, _edges, _gating, _features), strict=True)
)


def _dictionary(name: str) -> Any:
    return interp.load_dictionary(name) if Path(name).exists() else interp.pretrained_dictionary(*name.split(":", 1))


def _heads(circuit: Circuit) -> Circuit:
    """Heads with the magnitudes of everything about them: of a head's q, k and z, or of the edges out of it."""
    name, score = next(iter(circuit.scores.items()))
    heads = circuit.nodes.take(circuit.nodes.where(kind="z"))
    place = {(layer, head): n for n, (layer, head) in enumerate(zip(heads.layer, heads.head, strict=True))}
    rows = circuit.edges.source if score.over == "edges" else np.arange(len(circuit.nodes))
    total = np.zeros(len(heads))
    kinds = circuit.nodes.names("kind")[rows]
    for row, kind, value in zip(rows, kinds, np.abs(score.values), strict=True):
        if kind in ("q", "k", "z") and not np.isnan(value):
            total[place[circuit.nodes.layer[row], circuit.nodes.head[row]]] += value
    return _scored(heads, total, "attribution", name)


def _scored(nodes: Any, values: np.ndarray, quantity: str, method: str) -> Circuit:
    return Circuit(nodes, scores={"score": Score(ScoreHeader("nodes", quantity, False, method=method), values)})


def judge(model: Any, test: Any, circuits: dict[str, Circuit], options: Options, out: Path) -> None:
    """Compare and judge; write tables and figures."""
    heads = {label: one for label, one in circuits.items() if not label.startswith("features")}
    by_head = interp.compare(heads, factors=_factors(heads))
    layers = {label: _layers(one) for label, one in circuits.items()}
    by_layer = interp.compare(layers, factors=_factors(layers))
    report = interp.identifiability_report(
        model, test, heads, bars=interp.Bars(at_least=options.at_least), ablations=("counterfactual", "mean"),
        random=options.random,
    )  # fmt: skip
    groups = _groups(by_head, options.groups)
    shares = interp.lattice(model, test, groups, circuit=next(iter(heads.values())))
    by_head.pairs.to_csv(out / "heads.csv")
    by_layer.pairs.to_csv(out / "layers.csv")
    by_head.parts.to_csv(out / "parts.csv")
    report.circuits.to_csv(out / "report.csv")
    report.equivalence.to_csv(out / "equivalence.csv")
    shares.shapley().to_csv(out / "shapley.csv")
    save(agreement(by_head), out / "agreement.html")
    save(agreement(by_layer), out / "agreement_layers.html")
    said = [
        "heads", str(by_head), str(by_head.factors), "", "attention layers", str(by_layer), str(by_layer.factors), "",
        "report on held-out prompts", str(report), "",
        *[f"{name}: {', '.join(nodes)}" for name, nodes in groups.items()],
        str(shares.shapley()), f"minimal sets: {shares.minimal_sets(options.at_least)}",
        f"substitutes: {shares.substitutes(options.at_least)}",
    ]  # fmt: skip
    (out / "report.txt").write_text("\n".join(said) + "\n")
    print("\n".join(said))


def _factors(circuits: dict[str, Circuit]) -> dict[str, list[str]]:
    return {name: [label.rsplit(" ", 1)[n] for label in circuits] for n, name in enumerate(("method", "seed"))}


def _layers(circuit: Circuit) -> Circuit:
    """The attention layers that a circuit has any part of."""
    nodes = circuit.nodes.where(kind=["z", "attn_out"])
    cut = Circuit(
        circuit.nodes.take(nodes), kept_nodes=circuit.kept_nodes[nodes], featurizers=circuit.featurizers,
        scores={name: Score(one.header, one.values[nodes]) for name, one in circuit.scores.items()},
    )  # fmt: skip
    return interp.coarsen(cut, ("layer",), kinds={"z": "attn_out"}, magnitudes="sum")


def _groups(by_head: Any, most: int) -> dict[str, list[str]]:
    """The heads that most circuits have, one a group, and the rest of those that any has."""
    table = by_head.parts.where(by_head.parts["level"] == "nodes")
    names = table["member"].tolist()
    found = {name.replace("[", "").replace("] head ", "."): [name] for name in names[:most]}
    return {**found, "rest": names[most:]} if len(names) > most else found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(Options):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    torch.manual_seed(0)
    main(Options(**vars(parser.parse_args())))
