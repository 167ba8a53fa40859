"""A training step of HyperDAS as it is here, against the authors' formulation, in one run.

    OMP_NUM_THREADS=1 python experiments/bench/hyperdas.py [--model smollm2-135m] [--layer 14] [--batch 8] [--tokens 24]

The authors' step (github.com/jiudingsun01/HyperDAS, written anew here from its description): the target runs on base
and source to read them, on the source again for the interchange, and on the base with the interchange made; a score of
each pair from the concatenation of both states [batch, source, base, 2 d]; a mixture [batch, source, base, d]; and a
d x d reflection for each example. Ours: states computed once for all steps, blocks after the site alone, no tensor with
two positions and a width, reflections in O(d). Both have one reflection, no interaction (so that scores are the same
numbers), the same network and the same loss, which is compared.

Seconds are the processor's, the two in alternation; memory is the peak of each in a process of its own above what the
process holds before its second step. The arithmetic is 4 operations for each weight of the blocks after the site and
each token: forward, and the gradient of activations.
"""

import argparse
import ctypes
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import interp
from interp.hypernet.network import Reading, normed
from interp.hypernet.selection import chosen, masked
from interp.interchange.examples import Batch, batch_of
from interp.interchange.training import answer_losses
from interp.table import Table
from interp.tokens import from_ids


@dataclass(frozen=True)
class Options:
    """The benchmark's settings."""

    model: str = "smollm2-135m"
    layer: int = 14
    batch: int = 8
    tokens: int = 24
    rank: int = 32
    stride: int = 3
    repeats: int = 3
    only: str = ""


def main(options: Options) -> None:
    steps = _steps(options)
    if options.only:
        print(_taken(steps[options.only]))
        return
    losses = {name: step() for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats):
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(time.process_time() - start)
    best = {name: min(each) for name, each in seconds.items()}
    peaks = {name: _peak(name, options) for name in steps}
    print(Table({
        "step": list(steps), "seconds": list(best.values()), "against ours": [s / best["ours"] for s in best.values()],
        "peak MiB": [peaks[name] / 1024 for name in steps],
    }))  # fmt: skip
    blocks = [p.numel() for block in _blocks_after(options) for p in block.parameters()]
    floor = 4 * sum(blocks) * options.batch * options.tokens
    print(f"losses: {losses}; arithmetic of the blocks after the site: {floor / 1e9:.0f} GFLOP")


def _blocks_after(options: Options) -> list[torch.nn.Module]:
    model = interp.load(options.model)
    return list(model.model.get_submodule(model.map.blocks))[options.layer + 1 :]


def _taken(step: Callable[[], float]) -> int:
    """KiB of memory at a step's peak, above what was resident before (Linux)."""
    step()  # what is made once
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    step()
    return _resident("VmHWM") - before


def _resident(what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None, f"this system tells no {what}"
    return int(found[1])


def _peak(name: str, options: Options) -> int:
    """KiB that a step needs beyond what was there before, in a process of its own."""
    words = [f"--{one.name}={getattr(options, one.name)}" for one in fields(options) if one.name != "only"]
    done = subprocess.run(
        [sys.executable, __file__, *words, f"--only={name}"], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def _steps(options: Options) -> dict[str, Any]:
    """Both steps, ready to run; each returns its loss."""
    model = interp.load(options.model)
    data = _examples(model, options)
    settings = interp.HyperDasSettings(
        rank=options.rank, reflections=1, aimed_by="example", selector="factored", stride=options.stride, up_to=""
    )
    one = interp.HyperDas(model, f"resid_post[{options.layer}]", settings, {"concept": [5, 6, 7]}).train()
    runs = interp.Resumption(model, one.site, interp.states_of(model, data.prompts, one.needs, progress=False))
    batch = batch_of(data, range(options.batch), model.device)

    def stepped(logits: Tensor) -> float:
        one.zero_grad()
        loss = answer_losses(logits, batch).mean()
        loss.backward()
        return float(loss.detach())

    def ours() -> float:
        with torch.enable_grad():
            return stepped(runs.logits(batch, lambda x: one.placed(batch, runs.states, x, "soft")[0]))

    def authors() -> float:
        with torch.enable_grad():
            return stepped(_authors_logits(model, one, data, batch))

    return {"ours": ours, "authors' formulation": authors}


def _examples(model: Any, options: Options) -> Any:
    """Random prompts with answers of one token."""
    generator = torch.Generator().manual_seed(0)
    n = options.batch
    rows = torch.randint(10, model.shape.n_ids, (2 * n, options.tokens), generator=generator)
    answers = torch.randint(10, model.shape.n_ids, (n,), generator=generator)
    return interp.Counterfactuals(
        "random", from_ids(rows.tolist()), (options.tokens,) * (2 * n), np.arange(n), np.arange(n, 2 * n),
        tuple((int(a),) for a in answers), ("concept",) * n, ("concept",) * n,
    )  # fmt: skip


def _authors_logits(model: Any, one: Any, data: Any, batch: Batch) -> Tensor:
    """Logits of a step in the authors' formulation: four passes, pairs and mixtures in full, dense reflections."""
    base, source = data.prompts[batch.base.tolist()], data.prompts[batch.source.tolist()]
    read = [model.run(prompts, record=one.reads, logits="none") for prompts in (base, source)]
    again = model.run(source, record=[one.site], logits="none")[one.site]
    here, there = (
        Reading(torch.stack([run[site].float() for site in one.reads], 2), run[one.site], _seen(one, real))
        for run, real in zip(read, (batch.base_real, batch.source_real), strict=True)
    )
    e = one.network.summary(one.told(batch.data, here.real.device), here, there)
    weights = chosen(_pair_scores(one.network, e, here, there), "soft")
    vector = torch.nn.functional.normalize(one.network.aim(e), dim=-1)
    reflection = torch.eye(vector.shape[1]) - 2 * vector[:, :, None] * vector[:, None]  # [batch, d, d]
    rotation = reflection @ one.network.subspace

    def change(x: Tensor) -> Tensor:
        mixed = (weights[..., None] * again[:, :, None]).sum(1)  # [batch, source, base, d] before the sum
        mixed = mixed + (1 - weights.sum(1))[..., None] * x
        return x + torch.einsum("bjd,bdk,bek->bje", mixed - x, rotation, rotation)

    edit = interp.Edit(one.site, function=change)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.run(base, [edit], logits=batch.at, differentiable=True).logits


def _seen(one: Any, real: Tensor) -> Tensor:
    seen = real.clone()
    seen[:, : one.skip] = False
    return seen


def _pair_scores(network: Any, e: Tensor, base: Reading, source: Reading) -> Any:
    """A score of each pair from both states side by side: W [b ; s] with W of both our keys."""
    b, s = normed(base.site), normed(source.site)
    both = torch.cat([  # [batch, source, base, 2 d]
        b[:, None].expand(-1, s.shape[1], -1, -1), s[:, :, None].expand(-1, -1, b.shape[1], -1),
    ], -1)  # fmt: skip
    keys = both @ torch.cat([network.keys[0].weight, network.keys[1].weight], 1).T
    scale = network.settings.width**-0.5
    pairs = torch.einsum("bijw,bw->bij", keys, network.ask(e)) * scale
    own = (network.self_key(b) @ network.ask_self(e)[:, :, None])[..., 0] * scale
    return masked(pairs, own, source.real, base.real)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(Options):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    main(Options(**vars(parser.parse_args())))
