"""Train dictionaries on text at some sites of a model, each with its quality card.

    OMP_NUM_THREADS=1 python experiments/feature_dictionaries.py TEXT... [--model smollm2-135m] [--out FOLDER]

TEXT are files (.txt, .json, .jsonl, .csv, .tsv, .zip). Activations are harvested once for all sites, from the deepest
one down only; the last --quality tokens are held out (other pieces of the same texts). The defaults: one million
tokens, six sites of three layers, 4 x width features. A store or dictionary that is there already is used as it is, so
an interrupted run goes on. Gemma Scope and the authors' dictionaries need no training: see feature_circuit.py.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import interp
from interp.table import Table
from interp.text_files import read_texts

SITES = "resid_post[5],attn_out[10],mlp_out[10],resid_post[10],mlp_out[15],resid_post[15]"


@dataclass(frozen=True)
class Options:
    """Settings of one run."""

    model: str = "smollm2-135m"
    sites: str = SITES
    tokens: int = 1_000_000
    quality: int = 100_000
    ce_tokens: int = 10_000
    length: int = 128
    kind: str = "batchtopk"
    times: int = 4
    epochs: int = 1
    device: str = "cpu"
    dtype: str = "float16"
    seed: int = 0
    out: str = "runs/dictionaries"


def main(texts: list[str], options: Options) -> None:
    torch.manual_seed(options.seed)
    model, out = interp.load(options.model, device=options.device), Path(options.out)
    sites = options.sites.split(",")
    whole = interp.contexts(
        model.tokenizer, read_texts(texts), length=options.length, tokens=options.tokens + options.quality,
        seed=options.seed,
    )  # fmt: skip
    n_train = min(options.tokens, whole.ids.numel() - options.quality) // options.length
    if n_train < 1:
        raise SystemExit(f"the texts have {whole.ids.numel():,} tokens; give more than --quality {options.quality:,}.")
    start = time.time()
    if (out / "store" / "store.json").exists():
        store = interp.ActivationStore.open(out / "store")
    else:
        store = interp.harvest(model, whole[:n_train], sites, out / "store", dtype=options.dtype, text=", ".join(texts))
    print(f"store: {store.n_tokens:,} tokens, {time.time() - start:.0f} s", flush=True)
    made = []
    for site in sites:
        folder = out / site.replace("[", ".").rstrip("]")
        if not (folder / "dictionary.json").exists():
            start = time.time()
            width = store.widths[interp.Site.parse(site)]
            one = interp.train_dictionary(
                store, site, features=options.times * width, kind=options.kind, tokens=options.epochs * store.n_tokens,
                seed=options.seed,
            )  # fmt: skip
            print(f"{site}: trained in {time.time() - start:.0f} s", flush=True)
            interp.save_dictionary(one, folder)
        made.append(interp.load_dictionary(folder))
    held_out = whole[n_train:]
    few = max(options.ce_tokens // options.length, 1)
    cards = interp.dictionary_quality(model, made, held_out[:few])
    for one, card in zip(made, cards, strict=True):
        interp.save_dictionary(interp.with_quality(one, card), out / str(one.site).replace("[", ".").rstrip("]"))
    rows = [card.values() for card in cards]
    columns = [key for key, value in rows[0].items() if isinstance(value, str | int | float)]
    table = Table({key: np.array([row[key] for row in rows]) for key in columns})
    table.to_csv(out / "quality.csv")
    print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", help="files of text")
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    given = vars(parser.parse_args())
    main(given.pop("texts"), Options(**given))
