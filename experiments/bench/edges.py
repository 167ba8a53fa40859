"""Edge attribution on a random GPT-2 of the small configuration: time and memory, beside EAP-IG's own code.

    python experiments/bench/edges.py [--peer CHECKOUT] [--pairs 8] [--tokens 16] [--steps 5]

`--peer` names a checkout of github.com/hannamw/EAP-IG; its `cuda` literals are read as `cpu`, its tokenizer is replaced
by given ids, and the same weights run in TransformerLens. Each part runs in a process of its own, one thread, so that
peak memory is its own; scores are compared edge by edge.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

VOCAB = 1000


@dataclass(frozen=True)
class Options:
    """Settings; `part` is what a process of its own runs."""

    peer: str = ""
    pairs: int = 8
    tokens: int = 16
    steps: int = 5
    part: str = ""


def weights() -> Any:
    """A GPT-2 of the small configuration with a small vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=64, bos_token_id=1, eos_token_id=2)).eval()


def prompts(options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """Clean ids, and corrupted ones that differ in one token."""
    clean = torch.randint(3, VOCAB, (options.pairs, options.tokens), generator=torch.Generator().manual_seed(1))
    corrupted = clean.clone()
    corrupted[:, options.tokens // 2] = (clean[:, options.tokens // 2] + 7) % (VOCAB - 3) + 3
    return clean, corrupted


def ours(options: Options) -> dict[str, Any]:
    import interp
    from interp.metrics import Answers, metric
    from interp.tokens import from_ids

    model = interp.load(weights())
    clean, corrupted = (from_ids(ids.tolist()) for ids in prompts(options))
    ids = torch.arange(options.pairs)[:, None, None]
    answers = Answers(clean.last[:, None], 10 + ids, 20 + ids)
    task = interp.Task("pairs", clean, answers, metric("logit_diff"), corrupted)
    before = peak()
    found: dict[str, Any] = {}
    # EAP-IG's own points begin at the corrupted end, as ours do in denoising; the scores are the same but for rounding.
    for method, direction in (("eap", "noising"), ("eap-ig-inputs", "denoising")):
        start = time.perf_counter()
        circuit = interp.attribute_edges(
            model, task, method=method, direction=direction, steps=options.steps, progress=False
        )  # fmt: skip
        seconds, scores = time.perf_counter() - start, circuit.scores[f"logit_diff.{direction}"].values
        found[method] = {"seconds": seconds, "scores": scores[~np.isnan(scores)].tolist()}
    return found | {"memory": peak() - before}


def theirs(options: Options) -> dict[str, Any]:
    attribute, graph_class = peer_code(Path(options.peer))
    model = lens(weights())
    clean, corrupted = prompts(options)
    rows = torch.arange(options.pairs)

    def metric(logits: torch.Tensor, *_: Any) -> torch.Tensor:
        return -(logits[rows, -1, 10 + rows] - logits[rows, -1, 20 + rows]).sum()

    data = [(clean, corrupted, rows)]
    graph = graph_class.from_model(model)
    before = peak()
    found: dict[str, Any] = {}
    for name, method in (("eap", "EAP"), ("eap-ig-inputs", "EAP-IG-inputs")):
        start = time.perf_counter()
        attribute(model, graph, data, metric, method, ig_steps=options.steps, quiet=True)
        found[name] = {"seconds": time.perf_counter() - start, "scores": in_order(graph).tolist()}
    return found | {"memory": peak() - before}


def peer_code(checkout: Path) -> tuple[Any, Any]:
    """EAP-IG's `attribute` and `Graph`, read with the changes that this machine needs."""
    folder = Path(tempfile.mkdtemp())
    package = folder / "eap"
    package.mkdir()
    for file in (checkout / "src" / "eap").glob("*.py"):
        (package / file.name).write_text(file.read_text().replace("device='cuda'", "device='cpu'"))
    sys.path.insert(0, str(folder))
    from eap import attribute as module  # type: ignore[import-not-found]
    from eap.graph import Graph  # type: ignore[import-not-found]

    def given_ids(_: Any, ids: torch.Tensor, *__: Any) -> tuple:
        return ids, torch.ones_like(ids), torch.full((len(ids),), ids.shape[1]), ids.shape[1]

    module.tokenize_plus = given_ids
    return module.attribute, Graph


def lens(hf: Any) -> Any:
    """The weights in TransformerLens, unprocessed."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    c = hf.config
    cfg = HookedTransformerConfig(
        n_layers=c.n_layer, d_model=c.n_embd, n_ctx=c.n_positions, d_head=c.n_embd // c.n_head, n_heads=c.n_head,
        d_mlp=4 * c.n_embd, d_vocab=c.vocab_size, act_fn="gelu_new", normalization_type="LN", device="cpu",
        original_architecture="GPT2LMHeadModel",
    )  # fmt: skip
    model = HookedTransformer(cfg)
    model.load_state_dict(convert_gpt2_weights(hf, cfg), strict=False)
    model.cfg.use_attn_result = model.cfg.use_split_qkv_input = model.cfg.use_hook_mlp_in = True
    model.setup()
    return model


def in_order(graph: Any) -> np.ndarray:
    """The peer's scores in our order: a reader at a time, from the first writer on."""
    n_heads, layers = graph.cfg["n_heads"], graph.cfg["n_layers"]
    blocks, column = [], 0
    for layer in range(layers):
        before = 1 + layer * (n_heads + 1)
        for seen in [before] * (3 * n_heads) + [before + n_heads]:
            blocks.append(graph.scores[:seen, column])
            column += 1
    return torch.cat([*blocks, graph.scores[:, column]]).numpy()


def peak() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(options: Options) -> None:
    torch.set_num_threads(1)
    if options.part:
        print(json.dumps((ours if options.part == "ours" else theirs)(options)))
        return
    found = {}
    for part in ["ours", *["theirs"] * bool(options.peer)]:
        words = [f"--{k}={v}" for k, v in vars(options).items() if k != "part"]
        done = subprocess.run(
            [sys.executable, __file__, *words, f"--part={part}"], capture_output=True, text=True, check=False
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stderr)
        found[part] = json.loads(done.stdout.splitlines()[-1])
    print(f"random GPT-2 small, {options.pairs} pairs of {options.tokens} tokens, {options.steps} steps, one thread")
    for part, result in found.items():
        seconds = ", ".join(f"{m} {r['seconds']:.2f} s" for m, r in result.items() if m != "memory")
        print(f"{part:8} {seconds}; {result['memory']:.0f} MiB above the model")
    if options.peer:
        for method in ("eap", "eap-ig-inputs"):
            a, b = (np.array(found[part][method]["scores"]) for part in ("ours", "theirs"))
            gap = abs(a - b).max() / abs(b).max()
            print(
                f"{method}: {len(a)} edges, correlation {np.corrcoef(a, b)[0, 1]:.6f}, largest gap {gap:.1e} of the top"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    main(Options(**vars(parser.parse_args())))
