"""The command line: each word is a function of the library, and each run writes one folder."""

import logging
import shutil
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from interp.cli_compare import compare_command
from interp.cli_features import features
from interp.cli_parts import (
    Ablation,
    Kinds,
    Metrics,
    Model,
    Out,
    Pairs,
    Seed,
    Steps,
    TaskName,
    TaskOptions,
    Way,
    Where,
    build_task,
    find_circuit,
    where,
)  # fmt: skip
from interp.cli_shift import shift_command
from interp.cli_subspace import subspace_command
from interp.errors import InterpError, ModelError, OptionError, check_choice

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Which parts of a transformer carry a behaviour: exact patching, circuits, and how good they are.",
)  # fmt: skip
app.add_typer(features, name="features")
app.command("shift")(shift_command)
app.command("compare")(compare_command)
app.command("subspace")(subspace_command)


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
    task: TaskName,
    nodes: Kinds = "z",
    positions: Where = "all",
    direction: Way = "both",
    ablation: Ablation = "counterfactual",
    metric: Metrics = "",
    window: Annotated[int, typer.Option(help="Layers patched together.")] = 1,
    n: Pairs = 16,
    seed: Seed = 0,
    options: TaskOptions = "{}",
    out: Out = Path("interp-patch"),
) -> None:
    """Exact activation patching of every candidate of a task."""
    import interp

    config = {k: v for k, v in locals().items() if isinstance(v, str | int)}

    def found(hooked: Any, built: Any) -> Any:
        return interp.patch(
            hooked, built, nodes.split(","), positions=where(positions), direction=direction, ablation=ablation,  # type: ignore[arg-type]
            metrics=metric.split(",") if metric else (), window=window, seed=seed,
        )  # fmt: skip

    find_circuit("patch", config, found, out)


@app.command("attribute")
def attribute_command(
    model: Model,
    task: TaskName,
    nodes: Kinds = "z",
    positions: Where = "all",
    method: Annotated[str, typer.Option(help="atp, atp+qk, atp+graddrop or atp*.")] = "atp",
    direction: Way = "both",
    ablation: Ablation = "counterfactual",
    metric: Metrics = "",
    steps: Steps = 1,
    verify: Annotated[int, typer.Option(help="So many of the highest are patched exactly too.", min=0)] = 0,
    n: Pairs = 16,
    seed: Seed = 0,
    options: TaskOptions = "{}",
    out: Out = Path("interp-attribute"),
) -> None:
    """Estimated effects of every candidate, by gradients (AtP and AtP*)."""
    import interp

    config = {k: v for k, v in locals().items() if isinstance(v, str | int)}

    def found(hooked: Any, built: Any) -> Any:
        circuit = interp.attribute(
            hooked, built, nodes.split(","), positions=where(positions), method=method, direction=direction,  # type: ignore[arg-type]
            ablation=ablation, metrics=metric.split(",") if metric else (), steps=steps, seed=seed,
        )  # fmt: skip
        for name in [name for name, score in circuit.scores.items() if verify and score.header.signed]:
            circuit = interp.verify(hooked, built, circuit, verify, by=name, rank="absolute", seed=seed)
        return circuit

    find_circuit("attribute", config, found, out)


@app.command("edges")
def edges_command(
    model: Model,
    task: TaskName,
    method: Annotated[
        str,
        typer.Option(help="eap, eap-ig-inputs, eap-ig-activations, clean-corrupted, conductance, ifr, exact or acdc."),
    ] = "eap-ig-inputs",
    granularity: Annotated[str, typer.Option(help="head, or sublayer: attention as one component.")] = "head",
    direction: Annotated[str, typer.Option(help="denoising or noising.")] = "noising",
    metric: Annotated[str, typer.Option(help="The metric; by default the task's own, for acdc kl.")] = "",
    steps: Steps = 5,
    threshold: Annotated[float, typer.Option(help="acdc: what the removal of an edge may cost.")] = 0.01,
    keep: Annotated[int, typer.Option(help="Edges to keep, grown greedily from the logits (not acdc).", min=1)] = 200,
    n: Pairs = 16,
    seed: Seed = 0,
    options: TaskOptions = "{}",
    out: Out = Path("interp-edges"),
) -> None:
    """Effects of every edge, estimated or exact, and the circuit of the strongest ones."""
    import interp
    from interp.methods.edges import EdgeMethod

    config = {k: v for k, v in locals().items() if isinstance(v, str | int | float)}
    check_choice("method", method, (*get_args(EdgeMethod), "exact", "acdc"))

    def found(hooked: Any, built: Any) -> Any:
        given: dict[str, Any] = {"granularity": granularity}
        if method == "acdc":
            return interp.acdc(hooked, built, threshold, metric=metric or "kl", seed=seed, **given)
        given |= {"direction": direction, "metrics": metric or ()}
        if method == "exact":
            circuit = interp.patch_edges(hooked, built, seed=seed, **given)
        else:
            circuit = interp.attribute_edges(hooked, built, method=method, steps=steps, **given)  # type: ignore[arg-type]
        return interp.grow(circuit, keep, next(iter(circuit.scores)), rank="absolute")

    find_circuit("edges", config, found, out)


@app.command("gate")
def gate_command(
    model: Model,
    task: TaskName,
    starts: Annotated[int, typer.Option(help="Fits from different gates and data orders.", min=1)] = 8,
    first_steps: Annotated[int, typer.Option(help="Updates without penalty.", min=0)] = 200,
    steps: Annotated[int, typer.Option(help="Updates with either penalty.", min=0)] = 200,
    batch: Annotated[int, typer.Option(help="Prompts of each fit in an update.", min=1)] = 8,
    penalty: Annotated[float, typer.Option(help="lambda, a mean over heads.")] = 0.1,
    held_out: Annotated[int, typer.Option(help="Prompts that the gates are scored on alone.", min=0)] = 8,
    memory: Annotated[float, typer.Option(help="GiB of activations in one backward pass.")] = 4.0,
    n: Pairs = 48,
    seed: Seed = 0,
    options: TaskOptions = "{}",
    out: Out = Path("interp-gate"),
) -> None:
    """Causal head gating: which heads facilitate, interfere with, or are irrelevant to a task.

    An interrupted run goes on where it was when it is started again with the same words.
    """
    import interp
    from interp.run_folder import checkpoints

    config = {k: v for k, v in locals().items() if isinstance(v, str | int | float)}
    kept = checkpoints(out)

    def found(hooked: Any, built: Any) -> Any:
        if not held_out < len(built):
            raise OptionError(f"--held-out {held_out} leaves none of {len(built)} prompts to fit on; raise --n.")
        size = len(built) - held_out
        circuit = interp.gate(
            hooked, built[:size], built[size:] if held_out else None, starts=starts, seed=seed,
            settings=interp.GateSettings(steps=(first_steps, steps), batch=batch, penalty=penalty),
            engine=interp.FitEngine(memory=memory, checkpoint=kept),
        )  # fmt: skip
        typer.echo(str(interp.gate_table(circuit)))
        typer.echo(str(interp.modularity(circuit)))
        return circuit

    find_circuit("gate", config, found, out)
    shutil.rmtree(kept, ignore_errors=True)


@app.command("evaluate")
def evaluate_command(
    circuit: Annotated[Path, typer.Argument(help="A circuit's folder or file.")],
    model: Model,
    task: TaskName,
    metric: Annotated[str, typer.Option(help="The metric; the task's own by default.")] = "",
    ablation: Ablation = "counterfactual",
    random: Annotated[int, typer.Option(help="Random circuits of the same size to compare with.", min=0)] = 20,
    n: Pairs = 16,
    seed: Seed = 0,
    options: TaskOptions = "{}",
) -> None:
    """How much of a behaviour a circuit keeps (faithfulness), and how much is lost without it (necessity)."""
    import interp

    loaded = interp.load_circuit(circuit)
    hooked = interp.load(model)
    built = build_task(task, hooked.tokenizer, n, seed, options)
    for judge in (interp.faithfulness, interp.necessity):
        judged = judge(hooked, built, loaded, metric=metric or None, ablation=ablation, random=random, seed=seed)
        typer.echo(str(judged))
        if judged.outside:
            typer.echo(f"  ran as it is: {', '.join(judged.outside[:4])}{' ...' if len(judged.outside) > 4 else ''}")


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
