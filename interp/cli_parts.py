"""What the commands share: their arguments, how a task is built, and the folder that a run writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from interp.errors import OptionError

Out = Annotated[Path, typer.Option("--out", help="Folder for the run; replaced if an earlier run made it.")]
Model = Annotated[str, typer.Argument(help="A name (see `interp models`), a folder, a .gguf file, or a hub id.")]
Seed = Annotated[int, typer.Option(help="Seed of prompts and draws.")]

TaskName = Annotated[str, typer.Argument(help="A behaviour (see `interp tasks`), or a JSONL/CSV file of prompts.")]
Kinds = Annotated[str, typer.Option(help="Site kinds, separated by commas.")]
Where = Annotated[str, typer.Option(help="all, each, or role names separated by commas.")]
Way = Annotated[str, typer.Option(help="denoising, noising or both.")]
Ablation = Annotated[str, typer.Option(help="counterfactual, zero, mean, mean_by_position or resample.")]
Metrics = Annotated[str, typer.Option(help="Metrics separated by commas; the task's own by default.")]
Pairs = Annotated[int, typer.Option(help="Prompt pairs.", min=1)]
TaskOptions = Annotated[str, typer.Option(help='Options of the task as JSON, such as {"corruption": "abc"}.')]
Steps = Annotated[int, typer.Option(help="Points of an integrated gradient.", min=1)]


def where(positions: str) -> Any:
    """Positions as the functions take them."""
    return positions if positions in ("all", "each") else positions.split(",")


def find_circuit(command: str, config: dict[str, Any], find: Callable[[Any, Any], Any], out: Path) -> None:
    """Load model and task, run a method, and write its circuit, page and table into a folder."""
    import interp
    from interp.run_folder import run_folder
    from interp.view import view

    with run_folder(out, {"command": command, **config}) as folder:
        hooked = interp.load(config["model"])
        built = build_task(config["task"], hooked.tokenizer, config["n"], config["seed"], config["options"])
        circuit = find(hooked, built)
        scored = sorted({score.over for score in circuit.scores.values()})
        interp.save_circuit(circuit, folder / "circuit")
        for over in scored:
            circuit.frame(over).to_csv(folder / f"{over}.csv")
        view(circuit, folder / "circuit.html", tokens=built.clean.tokens[0] if built.clean.tokens else ())
    echo_leaders(circuit)
    typer.echo(f"Wrote {out}: circuit.html, {''.join(f'{over}.csv, ' for over in scored)}circuit/.")


def build_task(name: str, tokenizer: Any, n: int, seed: int, options: str) -> Any:
    """A behaviour by name, or from a file of prompts."""
    from interp.tasks import from_file, task

    given = json_options(options)
    if Path(name).suffix in (".jsonl", ".csv", ".json"):
        return from_file(name, tokenizer, **given)[:n]
    return task(name, tokenizer, n=n, seed=seed, **given)


def json_options(options: str) -> dict[str, Any]:
    """Options given as a JSON object."""
    try:
        given = json.loads(options)
    except ValueError as error:
        raise OptionError(
            f'--options {options!r} is no JSON ({error}); write for example {{"corruption": "abc"}}.'
        ) from error
    if not isinstance(given, dict):
        raise OptionError(f'--options {options!r} is no JSON object; write for example {{"corruption": "abc"}}.')
    return given


def echo_leaders(circuit: Any, count: int = 8) -> None:
    """Say the highest rows of each score."""
    for name, score in circuit.scores.items():
        typer.echo(f"{name} ({score.header.unit or 'metric units'}), highest:")
        over = score.over
        table = circuit.frame(over).where(~np.isnan(score.values))
        for row in table.sort(name, descending=True).head(count).rows():
            member = row["node"] if over == "nodes" else f"{row['source']} -> {row['destination']}"
            typer.echo(f"  {member:<40} {row[name]:+.4g}")
