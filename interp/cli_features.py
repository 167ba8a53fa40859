"""The command line's words for features: train dictionaries, find circuits of features, look at them, cluster."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli_parts import (
    Ablation,
    Metrics,
    Model,
    Out,
    Pairs,
    Seed,
    Steps,
    TaskName,
    TaskOptions,
    Where,
    find_circuit,
    where,
)  # fmt: skip
from interp.errors import OptionError

features = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None,
    help="Dictionaries of features: train, attribute, circuit, cards, cluster.",
)  # fmt: skip

Texts = Annotated[list[Path], typer.Argument(help="Files of text: .txt, .json, .jsonl, .csv, .tsv or .zip.")]
Dictionaries = Annotated[
    str,
    typer.Option(
        help="Folders of dictionaries, sites whose own coordinates serve, or the word tokens, separated by commas."
    ),
]
Method = Annotated[str, typer.Option(help="ig, atp or exact.")]
Length = Annotated[int, typer.Option(help="Tokens of a context.", min=2)]


@features.command("train")
def train_command(
    model: Model,
    texts: Texts,
    sites: Annotated[str, typer.Option(help="Sites separated by commas, such as resid_post[3],mlp_out[3].")],
    tokens: Annotated[int, typer.Option(help="Tokens to train on.", min=1)] = 200_000,
    held_out: Annotated[int, typer.Option(help="Tokens for the quality card.", min=1)] = 10_000,
    kind: Annotated[str, typer.Option(help="batchtopk, topk, jumprelu, standard or gated.")] = "batchtopk",
    times: Annotated[int, typer.Option(help="Features, as a multiple of the site's width.", min=1)] = 4,
    length: Length = 128,
    seed: Seed = 0,
    out: Out = Path("interp-dictionaries"),
) -> None:
    """Train a dictionary at each site, through sae-lens, and write them with their quality cards."""
    config = {k: str(v) if isinstance(v, Path | list) else v for k, v in locals().items()}
    import interp
    from interp.run_folder import run_folder
    from interp.text_files import read_texts

    with run_folder(out, {"command": "features train", **config}) as folder:
        hooked = interp.load(model)
        prompts = interp.contexts(
            hooked.tokenizer, read_texts(list(texts)), length=length, tokens=tokens + held_out, seed=seed
        )
        cut = max(len(prompts) - max(held_out // length, 1), 1)
        if cut == len(prompts):
            raise OptionError(f"the texts give {len(prompts)} context of {length} tokens; give more, or less --length.")
        wanted = _split(sites)
        store = interp.harvest(hooked, prompts[:cut], wanted, folder / "store", text=", ".join(map(str, texts)))
        made = [
            interp.train_dictionary(
                store, site, kind=kind, features=times * store.widths[interp.Site.parse(site)], seed=seed  # type: ignore[arg-type]
            )
            for site in wanted
        ]  # fmt: skip
        for one, card in zip(made, interp.dictionary_quality(hooked, made, prompts[cut:]), strict=True):
            interp.save_dictionary(interp.with_quality(one, card), folder / _name(one.site))
            typer.echo(str(card))
    typer.echo(f"Wrote {out}: {', '.join(_name(one.site) for one in made)}, store/.")


@features.command("attribute")
def attribute_command(
    model: Model,
    task: TaskName,
    dictionaries: Dictionaries,
    positions: Where = "all",
    method: Method = "ig",
    steps: Steps = 10,
    ablation: Ablation = "counterfactual",
    metric: Metrics = "",
    n: Pairs = 16,
    seed: Seed = 0,
    options: TaskOptions = "{}",
    out: Out = Path("interp-features"),
) -> None:
    """Estimated effects of every feature and error term."""
    import interp

    config = {k: v for k, v in locals().items() if isinstance(v, str | int | float)}

    def found(hooked: Any, built: Any) -> Any:
        scored = interp.attribute_features(
            hooked, built, featurizers_named(hooked, dictionaries), positions=where(positions), method=method,  # type: ignore[arg-type]
            steps=steps, ablation=ablation, metric=metric or None, seed=seed,
        )  # fmt: skip
        typer.echo(str(interp.error_shares(scored)))
        return scored

    find_circuit("features attribute", config, found, out)


@features.command("circuit")
def circuit_command(
    model: Model,
    task: TaskName,
    dictionaries: Dictionaries,
    at_least: Annotated[float | None, typer.Option(help="Keep nodes with |score| at least that.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Keep so many nodes.", min=1)] = None,
    edges: Annotated[int | None, typer.Option(help="Keep so many edges.", min=1)] = None,
    positions: Where = "all",
    method: Method = "ig",
    steps: Steps = 10,
    ablation: Ablation = "counterfactual",
    metric: Metrics = "",
    n: Pairs = 16,
    seed: Seed = 0,
    options: TaskOptions = "{}",
    out: Out = Path("interp-feature-circuit"),
) -> None:
    """A sparse feature circuit: the nodes that matter, the edges among them, and how faithful the nodes are."""
    import interp

    config = {k: v for k, v in locals().items() if isinstance(v, str | int | float)}

    def found(hooked: Any, built: Any) -> Any:
        given = featurizers_named(hooked, dictionaries)
        made = interp.feature_circuit(
            hooked, built, given, at_least=at_least, n_nodes=nodes, n_edges=edges, positions=where(positions),
            method=method, steps=steps, ablation=ablation, metric=metric or None, seed=seed,
        )  # fmt: skip
        typer.echo(str(interp.error_shares(made)))
        typer.echo(str(interp.faithfulness(hooked, built, made, ablation=ablation, featurizers=given, random=0)))
        return made

    find_circuit("features circuit", config, found, out)


@features.command("cards")
def cards_command(
    circuit: Annotated[Path, typer.Argument(help="A feature circuit's folder or file.")],
    model: Model,
    dictionaries: Dictionaries,
    texts: Texts,
    contexts: Annotated[int, typer.Option(help="Contexts to look for the strongest activations in.", min=1)] = 400,
    length: Length = 64,
    seed: Seed = 0,
    out: Out = Path("interp-cards"),
) -> None:
    """Cards of a circuit's features: where they are active, what they promote, and a place to judge them."""
    config = {k: str(v) if isinstance(v, Path | list) else v for k, v in locals().items()}
    import interp
    from interp.run_folder import run_folder
    from interp.text_files import read_texts

    with run_folder(out, {"command": "features cards", **config}) as folder:
        hooked = interp.load(model)
        prompts = interp.contexts(hooked.tokenizer, read_texts(list(texts)), length=length, shortest=2, seed=seed)
        cards = interp.circuit_cards(
            hooked, interp.load_circuit(circuit), featurizers_named(hooked, dictionaries), prompts[:contexts]
        )
        interp.save_cards(cards, folder / "cards.json")
        interp.view_cards(cards, folder / "cards.html", title=f"{circuit} · {hooked.identity.name}")
    typer.echo(f"Wrote {out}: cards.html (open it), cards.json; {len(cards)} features.")


@features.command("cluster")
def cluster_command(
    model: Model,
    texts: Texts,
    dictionaries: Dictionaries,
    clusters: Annotated[int, typer.Option(help="How many clusters.", min=2)] = 16,
    contexts: Annotated[int, typer.Option(help="Contexts to cluster, at most.", min=3)] = 400,
    tokens: Annotated[int, typer.Option(help="Tokens of text that they are looked for in.", min=1)] = 20_000,
    below: Annotated[float, typer.Option(help="Nats that the next token's loss must be below.")] = 0.3,
    vectors: Annotated[str, typer.Option(help="effects, activations or gradients.")] = "effects",
    kind: Annotated[str, typer.Option(help="spectral or spherical_kmeans.")] = "spectral",
    nodes: Annotated[int, typer.Option(help="Nodes that a cluster's circuit keeps.", min=1)] = 50,
    edges: Annotated[int, typer.Option(help="Edges that it keeps.", min=1)] = 100,
    method: Method = "ig",
    steps: Steps = 10,
    length: Length = 64,
    seed: Seed = 0,
    out: Out = Path("interp-clusters"),
) -> None:
    """Cluster contexts that the model predicts well, and find a circuit for each cluster.

    An interrupted run goes on where it was when it is started again with the same words.
    """
    config = {k: str(v) if isinstance(v, Path | list) else v for k, v in locals().items()}
    import interp
    from interp.run_folder import checkpoints, run_folder
    from interp.text_files import read_texts
    from interp.view import view

    kept = checkpoints(out)
    with run_folder(out, {"command": "features cluster", **config}) as folder:
        hooked = interp.load(model)
        given = featurizers_named(hooked, dictionaries)
        pieces = interp.contexts(
            hooked.tokenizer, read_texts(list(texts)), length=length, shortest=4, tokens=tokens, seed=seed
        )
        found = interp.predicted_contexts(hooked, pieces, below=below, length=length, most=contexts, seed=seed)
        groups = interp.cluster(
            interp.context_vectors(hooked, found, () if vectors == "gradients" else given, vectors),  # type: ignore[arg-type]
            clusters, kind=kind, seed=seed,  # type: ignore[arg-type]
        )  # fmt: skip
        made = interp.cluster_circuits(
            hooked,
            found,
            groups,
            given,
            folder=kept,
            n_nodes=nodes,
            n_edges=edges,
            method=method,
            steps=steps,
            seed=seed,
        )
        pages = {}
        for one in made:
            interp.save_circuit(one.circuit, folder / f"cluster-{one.cluster}")
            pages[one.cluster] = f"cluster-{one.cluster}.html"
            view(one.circuit, folder / pages[one.cluster])
        interp.view_clusters(found, groups, folder / "clusters.html", circuits=made, pages=pages)
        groups.quality.to_csv(folder / "clusters.csv")
    shutil.rmtree(kept, ignore_errors=True)
    typer.echo(str(groups.quality))
    typer.echo(f"Wrote {out}: clusters.html (open it), clusters.csv, and a circuit of {len(made)} clusters.")


def _split(words: str) -> list[str]:
    found = [word.strip() for word in words.split(",") if word.strip()]
    if not found:
        raise OptionError("an empty list was given; separate sites or folders by commas.")
    return found


def _name(site: Any) -> str:
    """A site as the name of a folder."""
    return str(site).replace("[", ".").rstrip("]")


def featurizers_named(hooked: Any, words: str) -> list[Any]:
    """Dictionaries from folders, coordinates of sites, and the dictionary of tokens."""
    import interp
    from interp.featurizers.files import check_origin

    found: list[Any] = []
    for word in _split(words):
        if Path(word).exists():
            found.append(interp.load_dictionary(word))
            check_origin(hooked, found[-1])
        elif word == "tokens":
            found.append(interp.token_dictionary(hooked))
        else:
            found.append(interp.coordinates(hooked, word))
    return found
