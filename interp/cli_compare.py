"""The command line's word for several circuits: what they share, and how unique they are."""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli_parts import Ablation, Out, Pairs, Seed, TaskOptions, build_task, json_options
from interp.errors import OptionError


def compare_command(
    circuits: Annotated[list[Path], typer.Argument(help="Circuits' folders or files, two or more.")],
    to: Annotated[
        str,
        typer.Option(help="Bring all to one granularity: what is kept apart of layer,head,role,pos,featurizer,unit."),
    ] = "",
    kinds: Annotated[str, typer.Option(help='Kinds to rename first, as JSON: {"q": "z", "k": "z", "v": "z"}.')] = "{}",
    top: Annotated[int, typer.Option(help="Cut each to so many of its highest first; 0: as they are.", min=0)] = 0,
    model: Annotated[str, typer.Option(help="With --task: run the circuits too, and judge how unique they are.")] = "",
    task: Annotated[str, typer.Option(help="Held-out prompts: a behaviour, or a JSONL/CSV file.")] = "",
    at_least: Annotated[float, typer.Option(help="Faithfulness that counts as faithful.")] = 0.9,
    metric: Annotated[str, typer.Option(help="The metric; the task's own by default.")] = "",
    ablation: Ablation = "counterfactual",
    n: Pairs = 16,
    seed: Seed = 0,
    options: TaskOptions = "{}",
    out: Out = Path("interp-compare"),
) -> None:
    """What circuits share, beyond chance; with a model and a task, how many different ones are faithful."""
    config = {k: [str(one) for one in v] if k == "circuits" else str(v) for k, v in locals().items()}
    import interp
    from interp.comparison import coarsened
    from interp.run_folder import run_folder
    from interp.view import agreement, membership, save

    if bool(model) != bool(task):
        raise OptionError(f"--model {model!r} and --task {task!r} go together: give both, or neither.")
    renamed = json_options(kinds)
    kept = [part for part in to.split(",") if part] if to else None
    with run_folder(out, {"command": "compare", **config}) as folder:
        given = {label: interp.load_circuit(path) for label, path in _labels(circuits).items()}
        given = coarsened(given, kept, renamed)
        if top:
            given = {label: _cut(one, label, top) for label, one in given.items()}
        found = interp.compare(given)
        for name in ("pairs", "summary", "parts", "substitutable"):
            getattr(found, name).to_csv(folder / f"{name}.csv")
        save(agreement(found), folder / "agreement.html")
        save(membership(found), folder / "members.html")
        typer.echo(str(found))
        if model:
            hooked = interp.load(model)
            prompts = build_task(task, hooked.tokenizer, n, seed, options)
            report = interp.identifiability_report(
                hooked, prompts, given, bars=interp.Bars(at_least=at_least), metric=metric or None,
                ablations=(ablation,), seed=seed,
            )  # fmt: skip
            _write(report, folder)
            typer.echo(str(report))
    typer.echo(f"Wrote {out}: agreement.html, members.html, pairs.csv, parts.csv{', report.txt' if model else ''}.")


def _labels(paths: list[Path]) -> dict[str, Path]:
    """A short name for each circuit: its folder's, or that of the run it lies in; longer ones where two are equal."""
    for depth in range(1, 10):
        names = ["/".join(path.resolve().with_suffix("").parts[-depth:]).removesuffix("/circuit") for path in paths]
        if len(set(names)) == len(names) and "circuit" not in names:
            return dict(zip(names, paths, strict=True))
    raise OptionError(f"{', '.join(map(str, paths))}: a circuit is given twice; name each once.")


def _cut(circuit: Any, label: str, n: int) -> Any:
    import interp
    from interp.comparison import main_score

    by = main_score(circuit)
    if not by:
        raise OptionError(f"{label} has no scores to cut it by; leave out --top.")
    over = circuit.scores[by].over
    return (interp.grow if over == "edges" else interp.top_n)(circuit, n, by, rank="absolute")


def _write(report: Any, folder: Path) -> None:
    for name in ("circuits", "counts", "equivalence", "members", "controls"):
        getattr(report, name).to_csv(folder / f"report_{name}.csv")
    (folder / "report.txt").write_text(f"{report}\n", encoding="utf-8")
