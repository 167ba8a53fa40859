"""The command line: each word is a function of the library, and each run writes one folder."""

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.errors import InterpError, ModelError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Which parts of a transformer carry a behaviour: exact patching, circuits, and how good they are.",
)  # fmt: skip

Out = Annotated[Path, typer.Option("--out", help="Folder for the run; replaced if an earlier run made it.")]
Model = Annotated[str, typer.Argument(help="A name (see `interp models`), a folder, a .gguf file, or a hub id.")]
Seed = Annotated[int, typer.Option(help="Seed of prompts and draws.")]


def main() -> None:
    """The command line of this process; plans and warnings are shown as they come."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("interp").addHandler(shown)
    logging.getLogger("interp").setLevel(logging.INFO)
    warnings.showwarning = lambda message, *_: typer.echo(f"Note: {message}", err=True)
    run(sys.argv[1:])


def run(words: list[str]) -> None:
    """Run one command line, to the end or to one clear line about the caller's mistake; raises `SystemExit`."""
    try:
        app(words)
    except InterpError as error:
        typer.echo(f"interp: {error}", err=True)
        sys.exit(2)


@app.command("demo")
def demo_command(
    out: Out = Path("interp-demo"),
    model: Annotated[str, typer.Option(help="Model to explain.")] = "smollm2-135m",
    pairs: Annotated[int, typer.Option(help="Prompt pairs to search on; as many are held out.", min=2)] = 8,
    seed: Seed = 0,
) -> None:
    """Find the heads that carry indirect object identification in a real model, and judge them."""
    from interp.demo import demo, write
    from interp.run_folder import run_folder

    with run_folder(out, {"command": "demo", "model": model, "pairs": pairs, "seed": seed}) as folder:
        result = demo(_model_or_embedded(model), pairs=pairs, seed=seed)
        write(result, folder)
    typer.echo(result.summary())
    typer.echo(f"Wrote {out}: circuit.html (open it), faithfulness.html, nodes.csv, circuit/, summary.txt.")


def _model_or_embedded(name: str) -> Any:
    """The model, or the embedded one with a sentence where a named model cannot be fetched."""
    import interp
    from interp.models.registry import find

    try:
        return interp.load(name)
    except ModelError as error:
        if find(name) is None:
            raise
        typer.echo(f"{error}\nRunning on the small model that comes with the package instead.", err=True)
        return interp.load("embedded")


@app.command("patch")
def patch_command(
    model: Model,
    task: Annotated[str, typer.Argument(help="A behaviour (see `interp tasks`), or a JSONL/CSV file of prompts.")],
    nodes: Annotated[str, typer.Option(help="Site kinds, separated by commas.")] = "z",
    positions: Annotated[str, typer.Option(help="all, each, or role names separated by commas.")] = "all",
    direction: Annotated[str, typer.Option(help="denoising, noising or both.")] = "both",
    ablation: Annotated[
        str, typer.Option(help="counterfactual, zero, mean, mean_by_position or resample.")
    ] = "counterfactual",
    metric: Annotated[str, typer.Option(help="Metrics separated by commas; the task's own by default.")] = "",
    window: Annotated[int, typer.Option(help="Layers patched together.")] = 1,
    n: Annotated[int, typer.Option(help="Prompt pairs.", min=1)] = 16,
    seed: Seed = 0,
    options: Annotated[str, typer.Option(help='Options of the task as JSON, such as {"corruption": "abc"}.')] = "{}",
    out: Out = Path("interp-patch"),
) -> None:
    """Exact activation patching of every candidate of a task."""
    import interp
    from interp.run_folder import run_folder
    from interp.view import view

    config = {k: v for k, v in locals().items() if isinstance(v, str | int)}
    with run_folder(out, {"command": "patch", **config}) as folder:
        hooked = interp.load(model)
        built = _task(task, hooked.tokenizer, n, seed, options)
        where = positions if positions in ("all", "each") else positions.split(",")
        circuit = interp.patch(
            hooked, built, nodes.split(","), positions=where, direction=direction, ablation=ablation,  # type: ignore[arg-type]
            metrics=metric.split(",") if metric else (), window=window, seed=seed,
        )  # fmt: skip
        interp.save_circuit(circuit, folder / "circuit")
        circuit.frame().to_csv(folder / "nodes.csv")
        view(circuit, folder / "circuit.html", tokens=built.clean.tokens[0] if built.clean.tokens else ())
    _echo_leaders(circuit)
    typer.echo(f"Wrote {out}: circuit.html, nodes.csv, circuit/.")


def _task(name: str, tokenizer: Any, n: int, seed: int, options: str) -> Any:
    from interp.errors import OptionError
    from interp.tasks import from_file, task

    try:
        given = json.loads(options)
    except ValueError as error:
        raise OptionError(
            f'--options {options!r} is no JSON ({error}); write for example {{"corruption": "abc"}}.'
        ) from error
    if Path(name).suffix in (".jsonl", ".csv", ".json"):
        return from_file(name, tokenizer, **given)[:n]
    return task(name, tokenizer, n=n, seed=seed, **given)


def _echo_leaders(circuit: Any, count: int = 8) -> None:
    for name, score in circuit.scores.items():
        typer.echo(f"{name} ({score.header.unit or 'metric units'}), highest:")
        for row in circuit.frame().sort(name, descending=True).head(count).rows():
            typer.echo(f"  {row['node']:<28} {row[name]:+.4g}")


@app.command("models")
def models_command() -> None:
    """Models that load by name."""
    from interp.models.registry import models

    typer.echo(str(models()))


@app.command("tasks")
def tasks_command() -> None:
    """Behaviours that build by name."""
    from interp.tasks import describe_tasks

    for name, line in describe_tasks().items():
        typer.echo(f"{name:<18} {line}")


@app.command("check")
def check_command(model: Model) -> None:
    """Load a model with its self-check and say what it offers."""
    import interp
    from interp.site import KINDS

    hooked = interp.load(model)
    shape = hooked.shape
    typer.echo(
        f"{hooked.identity.name} ({hooked.family}): {shape.n_layers} layers, {shape.n_heads} heads "
        f"({shape.n_kv_heads} key/value), d_model {shape.d_model}, d_head {shape.d_head}, d_ff {shape.d_ff}, "
        f"vocabulary {shape.d_vocab}."
    )
    typer.echo("Self-check passed: every site resolves, fits, leaves a no-op bit-equal and passes a change on.")
    typer.echo(f"Sites: {', '.join(k for k in KINDS if k not in hooked.unavailable)}.")
    for kind, reason in hooked.unavailable.items():
        typer.echo(f"  not {kind}: {reason}")
    typer.echo(f"Engine: {'rows resume at their own layer' if hooked.resumes else 'plain loop of full forwards'}.")
    typer.echo(f"Attention sink at position 0: {'yes' if hooked.has_sink else 'no'}.")


@app.command("view")
def view_command(
    circuit: Annotated[Path, typer.Argument(help="A circuit's folder or file.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page; beside the circuit by default.")] = None,
) -> None:
    """Write a circuit's page: figures, provenance, ranked members."""
    import interp
    from interp.view import view

    target = out or circuit.with_suffix(".html")
    view(interp.load_circuit(circuit), target)
    typer.echo(f"Wrote {target}.")


if __name__ == "__main__":
    main()
