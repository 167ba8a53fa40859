"""Exact patching of every head at every position: the sweep engine against a plain loop, batched and not, and a peer.

One prompt pair of indirect object identification, one thread, everything in one process, the parts alternating so that
drift of the machine touches all alike. A plain loop is timed on a sample of the patches and scaled up; each part's
values are compared with the engine's. The floor is the arithmetic of the engine's rows at this machine's matmul speed.

    python experiments/bench/sweep.py [--model smollm2-135m] [--peer] [--repeats 2]

`--peer` adds TransformerLens's own patching functions, on a copy (its bridge rewrites the model that it is given).
"""

import argparse
import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import interp
from interp.cells import Cell, Part, Source
from interp.metrics import metric
from interp.scoring import Scorer
from interp.site import Site
from interp.sweep import sweep

PEER_LAYERS = 1
"""Layers that the peer patches (one full forward a patch, so every layer costs the same); scaled up."""

CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPTED = "When Mary and John went to the store, Mary gave a drink to"


@dataclass(frozen=True)
class Options:
    """The benchmark's settings; `sample` patches of every plain loop are run."""

    model: str = "smollm2-135m"
    peer: bool = False
    repeats: int = 2
    sample: int = 60
    batched_sample: int = 256
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Setting:
    """Model, pair and patches."""

    model: Any
    task: Any
    scorer: Scorer
    cells: list[Cell]

    @property
    def length(self) -> int:
        return int(self.task.clean.lengths[0])


def setting(options: Options) -> Setting:
    model = interp.load(options.model, device=options.device)
    pair = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": " Mary", "wrong": " John"}
    task = interp.make_task("ioi", [interp.Pair(**pair)], model.tokenizer)
    length = int(task.clean.lengths[0])
    shape = model.shape
    cells = [
        (Part(Site("z", layer), ((pos,),), head),)
        for layer in range(shape.n_layers)
        for head in range(shape.n_heads)
        for pos in range(length)
    ]
    return Setting(model, task, Scorer(model, (metric("logit_diff"),), task.answers), cells)


def engine(s: Setting, skip_zeros: bool) -> np.ndarray:
    found = sweep(
        s.model, s.task.require_corrupted(), Source(s.task.clean), s.cells, s.scorer,
        skip_zeros=skip_zeros, progress=False,
    )  # fmt: skip
    return found.values[0, :, 0].cpu().numpy()


def plain_loop(s: Setting, chosen: np.ndarray, batch: int, keep: int = 1) -> np.ndarray:
    """One full forward of transformers per patch, or per `batch` patches, with a hook on the output projection.

    `keep` positions get logits; 0 is what a user gets who just calls the model: all of them.
    """
    model, base = s.model.model, s.task.require_corrupted()
    n_heads, d_head = s.model.shape.n_heads, s.model.shape.d_head
    z = s.model.run(s.task.clean, record=s.model.sites("z"), logits="none")
    right, wrong = (int(ids[0, 0, 0]) for ids in (s.task.answers.correct, s.task.answers.wrong))
    ids = base.ids.to(s.model.device)
    values = []
    for start in range(0, len(chosen), batch):
        rows = [s.cells[c][0] for c in chosen[start : start + batch]]
        handles = []
        for layer in {part.site.layer for part in rows}:
            here = [(row, part) for row, part in enumerate(rows) if part.site.layer == layer]

            def hook(_: Any, args: tuple, here: list = here, layer: int = layer) -> tuple:
                x = args[0].clone().view(*args[0].shape[:2], n_heads, d_head)
                for row, part in here:
                    pos = part.positions[0][0]
                    x[row, pos, part.head] = z[Site("z", layer)][0, pos, part.head]
                return (x.flatten(2), *args[1:])

            point = s.model.map.points["z"].path
            handles.append(s.model._blocks[layer].get_submodule(point).register_forward_pre_hook(hook))
        try:
            with torch.no_grad():
                logits = model(ids.expand(len(rows), -1), logits_to_keep=keep).logits[:, -1]
        finally:
            for handle in handles:
                handle.remove()
        values += (logits[:, right] - logits[:, wrong]).tolist()
    return np.array(values)


def peer(s: Setting, options: Options) -> Callable[[int], np.ndarray]:
    """TransformerLens's head-output patching by position, on a copy of the model; takes a number of layers."""
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(
        s.model.identity.name, hf_model=copy.deepcopy(s.model.model), tokenizer=s.model.tokenizer
    )
    _, cache = bridge.run_with_cache(s.task.clean.ids)
    right, wrong = (int(ids[0, 0, 0]) for ids in (s.task.answers.correct, s.task.answers.wrong))

    def logit_diff(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1, right] - logits[0, -1, wrong]

    def some(layers: int) -> np.ndarray:
        import pandas as pd

        rows = itertools.product(range(layers), range(s.length), range(s.model.shape.n_heads))
        index = pd.DataFrame(list(rows), columns=["layer", "pos", "head"])
        return patching.generic_activation_patch(
            bridge, s.task.require_corrupted().ids, cache, logit_diff, patching.layer_pos_head_vector_patch_setter,
            "z", index_df=index,
        ).numpy()  # fmt: skip

    return some


def floor(s: Setting, speed: float) -> float:
    """Seconds of arithmetic: each row's suffix through the blocks from its own layer on."""
    blocks = sum(p.numel() for block in s.model._blocks[:1] for p in block.parameters() if p.ndim == 2)
    rows = sum((s.length - c[0].positions[0][0]) * (s.model.shape.n_layers - c[0].site.layer) for c in s.cells)
    return 2 * blocks * rows / speed


def matmul_speed(device: str) -> float:
    """Operations a second of a large float32 product."""
    a = torch.randn(2048, 2048, device=device)
    return max(2 * 2048**3 / timed(lambda: a @ a)[0] for _ in range(8))


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, value


def main(options: Options) -> None:
    torch.set_num_threads(1)
    s = setting(options)
    generator = np.random.default_rng(0)
    total = len(s.cells)
    sample, many = (generator.choice(total, n, replace=False) for n in (options.sample, options.batched_sample))
    times: dict[str, list[float]] = {}
    gaps: dict[str, float] = {}
    speed = matmul_speed(options.device)
    some = peer(s, options) if options.peer else None
    for _ in range(options.repeats):
        seconds, exact = timed(lambda: engine(s, False))
        times.setdefault("engine, every patch run", []).append(seconds)
        seconds, skipping = timed(lambda: engine(s, True))
        times.setdefault("engine, certain zeros skipped", []).append(seconds)
        gaps["engine, certain zeros skipped"] = float(abs(exact - skipping).max())
        for name, chosen, batch, keep in (
            ("plain loop", sample, 1, 0),
            ("plain loop, last logits only", sample, 1, 1),
            ("plain loop, batches of 64", many, 64, 1),
        ):
            seconds, values = timed(lambda c=chosen, b=batch, k=keep: plain_loop(s, c, b, k))
            times.setdefault(name, []).append(seconds * total / len(chosen))
            gaps[name] = float(abs(values - exact[chosen]).max())
        if some is not None:
            seconds, values = timed(lambda: some(PEER_LAYERS))
            times.setdefault("TransformerLens patching", []).append(seconds * s.model.shape.n_layers / PEER_LAYERS)
            ours = exact.reshape(-1, s.model.shape.n_heads, s.length)[:PEER_LAYERS].transpose(0, 2, 1)
            gaps["TransformerLens patching"] = float(abs(values.reshape(ours.shape) - ours).max())
        speed = max(speed, matmul_speed(options.device))
    report(s, times, gaps, floor(s, speed), speed)


def report(s: Setting, times: dict[str, list[float]], gaps: dict[str, float], least: float, speed: float) -> None:
    every, skipped = (min(times[f"engine, {name}"]) for name in ("every patch run", "certain zeros skipped"))
    print(f"{len(s.cells)} patches (every head x {s.length} positions) of {s.model.identity.name}, one thread")
    print(f"{'':32}{'seconds':>10}{'x engine':>10}{'x skipping':>12}{'largest gap':>13}")
    for name, seconds in times.items():
        best = min(seconds)
        print(f"{name:32}{best:10.1f}{best / every:10.1f}{best / skipped:12.1f}{gaps.get(name, 0.0):13.1e}")
    print(f"{'arithmetic floor':32}{least:10.1f}{least / every:10.2f}   at {speed / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=Options.model)
    parser.add_argument("--device", default=Options.device)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--repeats", type=int, default=Options.repeats)
    main(Options(**vars(parser.parse_args())))
