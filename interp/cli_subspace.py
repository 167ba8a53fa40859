"""The command line's word for subspaces: DAS and its kin, and HyperDAS, on counterfactual examples."""

import shutil
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli_parts import Model, Out, Seed, json_options
from interp.errors import OptionError, check_choice, check_options

METHODS = ("hyperdas", "mdas", "das", "boundless", "mask", "full_vector", "principal_components", "random")


def subspace_command(
    model: Model,
    data: Annotated[str, typer.Argument(help="ravel (with --path), toy_cities, or a task (see `interp tasks`).")],
    sites: Annotated[
        str, typer.Argument(help="Sites separated by commas, such as resid_post[14]; of several, the best.")
    ],
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}.")] = "mdas",
    rank: Annotated[int, typer.Option(help="Dimensions of a subspace.", min=1)] = 32,
    roles: Annotated[
        str,
        typer.Option(help="Positions of the exchange, separated by commas; of several, the best. Not for hyperdas."),
    ] = "last_entity",
    steps: Annotated[int, typer.Option(help="Updates.", min=1)] = 1000,
    batch: Annotated[int, typer.Option(help="Examples in an update.", min=1)] = 16,
    rate: Annotated[float | None, typer.Option(help="Learning rate; 1e-3, or 1e-4 for hyperdas.")] = None,
    n: Annotated[
        int, typer.Option(help="Training examples of each attribute and kind, or prompts of a task.", min=1)
    ] = 2000,
    path: Annotated[Path | None, typer.Option(help="Folder of RAVEL's files.")] = None,
    known: Annotated[Path | None, typer.Option(help="File that keeps which prompts the model knows.")] = None,
    options: Annotated[str, typer.Option(help='Options of the data as JSON: {"type": "verb"}.')] = "{}",
    network: Annotated[str, typer.Option(help='Settings of hyperdas as JSON: {"reflections": 16}.')] = "{}",
    seed: Seed = 0,
    out: Out = Path("interp-subspace"),
) -> None:
    """Find subspaces whose exchange between runs changes one concept and leaves the others."""
    config = {k: str(v) if isinstance(v, Path) else v for k, v in locals().items()}
    import interp
    from interp.run_folder import checkpoints, run_folder

    check_choice("method", method, METHODS)
    given, settings = json_options(options), json_options(network)
    if settings and method != "hyperdas":
        raise OptionError(f"--network goes with --method hyperdas, not with {method}.")
    with run_folder(out, {"command": "subspace", **config}) as folder:
        hooked = interp.load(model)
        places = sites.split(",")
        for place in places:
            hooked.check_site(place)
        examples = interp.counterfactuals(data, hooked, path=path, known=known, n=n, seed=seed, **given)
        for name, one in examples.items():
            typer.echo(f"{name}: {one}")
        training = interp.TrainSettings(
            steps=steps, batch=batch, rate=rate or (1e-4 if method == "hyperdas" else 1e-3), seed=seed, decay=True,
            evaluate_every=max(steps // 10, 1),
        )  # fmt: skip
        unfinished = checkpoints(out)
        keeping = interp.Keeping(unfinished / f"{method}.safetensors")
        if method == "hyperdas":
            circuit = _hyperdas(hooked, examples, places, rank, training, keeping, settings, folder)
        else:
            circuit = _das(hooked, examples, places, method, rank, roles.split(","), training, keeping)
        interp.save_circuit(circuit, folder / "circuit")
        table = circuit.frame()
        table.to_csv(folder / "nodes.csv")
    shutil.rmtree(unfinished, ignore_errors=True)
    shown = ("concept", "cause", "isolate", "disentangle", "low", "high")
    for row in table.rows():
        typer.echo(f"{row['node']}: " + ", ".join(_said(name, row[name]) for name in shown))
    typer.echo(f"Wrote {out}: nodes.csv, circuit/{', hyperdas/, selections.html' if method == 'hyperdas' else ''}.")


def _das(
    hooked: Any, examples: Any, places: list[str], method: str, rank: int, roles: list[str], training: Any,
    keeping: Any,
) -> Any:  # fmt: skip
    import interp

    what: Any = "subspace" if method in ("das", "mdas") else method
    return interp.das(
        hooked, examples, places, what=what, rank=rank, roles=roles, isolate=method != "das", settings=training,
        keeping=keeping,
    )  # fmt: skip


def _hyperdas(
    hooked: Any, examples: Any, places: list[str], rank: int, training: Any, keeping: Any, settings: dict[str, Any],
    folder: Path,
) -> Any:  # fmt: skip
    import interp
    from interp.view import save, selection

    if len(places) > 1:
        raise OptionError(f"hyperdas takes one site, got {len(places)}; run it once for each.")
    check_options("--network", settings, [field.name for field in fields(interp.HyperDasSettings)])
    made = interp.HyperDasSettings(**{"rank": rank, **settings})
    one, history, runs = interp.train_hyperdas(hooked, examples, places[0], made, training=training, keeping=keeping)
    interp.save_hyperdas(one, folder / "hyperdas")
    test = examples["test"]
    save(selection(interp.selections(runs, test[:1], one), 0), folder / "selections.html")
    return interp.hyperdas_circuit(one, runs, test, history, training)


def _said(name: str, value: Any) -> str:
    return f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
