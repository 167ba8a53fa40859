"""The command line's word for SHIFT: find what a classifier leans on, have it judged, and take it out."""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli_features import Dictionaries, featurizers_named
from interp.cli_parts import Model, Out, Seed, Steps, json_options
from interp.errors import OptionError

JUDGES = ("page", "serve", "words")


def shift_command(
    model: Model,
    data: Annotated[str, typer.Argument(help="biographies, planted, gap, bias_in_bios, or a table of texts.")],
    dictionaries: Dictionaries,
    layer: Annotated[int, typer.Option(help="Layer whose residual, averaged over tokens, the classifier reads.")],
    judge: Annotated[
        str,
        typer.Option(
            help="page: write cards to judge and stop; serve: judge in a browser, then go on after Ctrl-C; words: "
            "judge by the data's own words; or a file of verdicts."
        ),
    ] = "page",
    candidates: Annotated[
        Path | None, typer.Option(help="Folder of an earlier run, whose features and cards are used again.")
    ] = None,
    n_features: Annotated[int, typer.Option(help="Features to judge, at most.", min=1)] = 50,
    at_least: Annotated[float | None, typer.Option(help="Judge features with at least that score instead.")] = None,
    examples: Annotated[int, typer.Option(help="Training texts that features are scored on.", min=1)] = 100,
    method: Annotated[str, typer.Option(help="ig, atp or exact.")] = "ig",
    steps: Steps = 10,
    ablation: Annotated[str, typer.Option(help="zero, or mean (for coordinates).")] = "zero",
    length: Annotated[int, typer.Option(help="Tokens of a text that are read.", min=2)] = 256,
    baselines: Annotated[str, typer.Option(help="all, none, or names separated by commas.")] = "all",
    seed: Seed = 0,
    options: Annotated[
        str,
        typer.Option(
            help='Options of the data as JSON: {"n": 800}, or of a table its columns: {"text": "bio", "label": "job", '
            '"attribute": "gender"}.'
        ),
    ] = "{}",
    out: Out = Path("interp-shift"),
) -> None:
    """Debias a text classifier: judge the features that it leans on, take out what is irrelevant, report by group."""
    config = {k: str(v) if isinstance(v, Path) else v for k, v in locals().items()}
    import interp
    from interp.run_folder import run_folder

    _check_judge(judge)
    with run_folder(out, {"command": "shift", **config}) as folder:
        hooked = interp.load(model)
        texts = interp.biased_data(data, **json_options(options))
        given = featurizers_named(hooked, dictionaries)
        if candidates is None:
            settings = interp.ShiftSettings(
                n_features=None if at_least is not None else n_features, at_least=at_least, examples=examples,
                method=method,  # type: ignore[arg-type]
                steps=steps, ablation=ablation, length=length, seed=seed,
            )  # fmt: skip
            start = interp.shift_candidates(hooked, texts, given, layer, settings)
        else:
            start = interp.ShiftCandidates.load(candidates, hooked)
        start.save(folder)
        title = f"{data} · {hooked.identity.name}"
        interp.view_cards(start.cards, folder / "cards.html", title=title)
        if judge != "page":
            result = interp.shift(
                hooked, texts, given, _judge(judge, texts, start, out, title), candidates=start,
                baselines=_baselines(baselines),
            )  # fmt: skip
            result.save(folder)
            typer.echo(str(result.table))
    if judge == "page":
        typer.echo(
            f"Wrote {out}: cards.html with {len(start.cards)} features. Open it, judge them, download the judgements, "
            f"and give the file to the same command: --candidates {out} --judge FILE"
        )
    else:
        typer.echo(f"Wrote {out}: table.csv, groups.csv, verdicts.jsonl, cards.html, circuit/, classifier/.")


def _check_judge(judge: str) -> None:
    if judge not in JUDGES and not Path(judge).is_file():
        raise OptionError(f"--judge {judge!r} is no file of verdicts; allowed: a file, or one of {', '.join(JUDGES)}.")


def _judge(word: str, texts: Any, start: Any, out: Path, title: str) -> Any:
    """The judge that a word names; what is judged in a browser is kept beside the run's folder, whatever happens."""
    import interp

    if word == "words":
        if not texts.words:
            raise OptionError("--judge words: these data name no words; give judgements in a file, or --judge page.")
        return interp.TokenSetJudge(texts.words)
    if word == "serve":
        kept = out.with_name(f"{out.name}-verdicts.jsonl")
        told = interp.serve_cards(start.cards, kept, title=title, tell=_tell)
        if not kept.exists():  # nothing was judged
            interp.save_verdicts(told, kept)
        return kept
    return word


def _tell(url: str) -> None:
    typer.echo(f"Judge the features at {url} and go on with Ctrl-C.")


def _baselines(words: str) -> tuple[str, ...]:
    import interp

    if words in ("all", "none"):
        return interp.BASELINES if words == "all" else ()
    return tuple(word.strip() for word in words.split(",") if word.strip())
