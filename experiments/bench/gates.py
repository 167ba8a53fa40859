"""Head gating: many fits as rows of one run against the same fits one at a time, the arithmetic, and the authors' code.

    OMP_NUM_THREADS=1 python experiments/bench/gates.py --pairs present-past.json [--peer CHECKOUT] [--repeats 2]

Three parts, one thread, the ways of each in alternation; the first two with the paper's settings of the stage with
penalty, the last with those of the authors' trainer. Seconds are the processor's.

- embedded model, IOI: ten starts of both signs, at each of `--batches`;
- `--model` on in-context pairs (`--pairs`, a file of Function Vectors; left out when either is empty): the same with
  fewer rows, against the arithmetic floor, and the peak of memory against the plan that sizes the batches;
- `--peer`, a checkout of github.com/andrewnam/causal_head_gating: its trainer and ours on a random Llama, the same
  prompts in each update, its masks as our rows.

The floor is 4 operations for each weight of the blocks and each token: forward and the gradient of activations, none of
weights, none of attention's scores and of the unembedding.
"""

import argparse
import copy
import ctypes
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import interp
from interp.gate_fit import draw_gates, fit, picks
from interp.gate_runs import GatedTask
from interp.gate_settings import NLL, Likelihood
from interp.gate_stage import FitRow, Stage
from interp.metrics import Answers, metric
from interp.table import Table
from interp.tokens import from_ids

LENGTH, TARGETS = 32, 3
"""Tokens of the random Llama's prompts; the last ones are the targets."""


@dataclass(frozen=True)
class Options:
    """The benchmark's settings; the last ones but `repeats` are of the peer's part."""

    model: str = "smollm2-135m"
    pairs: str = ""
    peer: str = ""
    starts: int = 10
    steps: int = 20
    batches: str = "1,2,4"
    batch: int = 4
    rows: int = 8
    model_steps: int = 2
    shots: int = 3
    masks: int = 8
    updates: int = 4
    peer_batch: int = 8
    vocab: int = 2000
    repeats: int = 2


class Line(NamedTuple):
    """One line of the table: seconds an update of all fits, and the largest difference of a gate from the first way."""

    part: str
    way: str
    seconds: float
    ratio: float
    gap: float


@dataclass(frozen=True, eq=False)
class Fits:
    """Fits of one model and task: the rows of a run, and the theta that they start from."""

    gated: GatedTask
    rows: list[FitRow]
    theta: Tensor
    stage: Stage

    @classmethod
    def make(cls, model: Any, task: Any, starts: int, steps: int, batch: int) -> "Fits":
        """So many starts, with both signs of the penalty each."""
        used = interp.GateSettings(batch=batch)
        rows = [FitRow(n, n, sign * used.penalty) for sign in (1, -1) for n in range(starts)]
        shape = (model.shape.n_layers, model.shape.n_heads)
        theta = draw_gates(rows, shape, dtype=torch.float32)
        return cls(GatedTask(model, task, NLL), rows, theta, used.stage("penalised", steps, used.lr))

    def run(self, rows: Sequence[int], stage: Stage | None = None) -> Tensor:
        """Gates of the rows, fitted in one run."""
        found = fit(
            Likelihood(self.gated), self.theta[rows], [self.rows[row] for row in rows], stage or self.stage,
            len(self.gated.task), progress=False,
        )  # fmt: skip
        return torch.sigmoid(found.theta)

    def together(self) -> Tensor:
        """All rows in one run."""
        return self.run(range(len(self.rows)))

    def one_by_one(self) -> Tensor:
        """Each row in a run of its own."""
        return torch.cat([self.run([row]) for row in range(len(self.rows))])

    def tokens(self) -> int:
        """Real tokens that one update of all rows passes through the model, on average."""
        lengths, steps = self.gated.task.clean.lengths, self.stage.steps
        seen = [picks(row, self.stage, len(lengths), step) for row in self.rows for step in range(steps)]
        return round(float(sum(lengths[prompts].sum() for prompts in seen)) / steps)

    def positions(self) -> int:
        """Positions, padding included, of the largest forward pass of the first update."""
        lengths = self.gated.task.clean.lengths
        prompts = [prompt for row in self.rows for prompt in picks(row, self.stage, len(lengths), 0)]
        return max(
            len(places) * int(max(lengths[prompts[place]] for place in places))
            for places in self.gated.batches(prompts)
        )


def alternated(part: str, steps: int, ways: dict[str, Callable[[], Tensor]], repeats: int) -> list[Line]:
    """Each way's best time, ratio to the first one's, and largest difference of its gates."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Tensor] = {}
    for _ in range(repeats):
        for name, way in ways.items():
            taken, found[name] = timed(way)
            seconds[name].append(taken / steps)
    first = next(iter(ways))
    return [
        Line(part, name, min(times), min(times) / min(seconds[first]), float((found[name] - found[first]).abs().max()))
        for name, times in seconds.items()
    ]


def embedded(options: Options) -> list[Line]:
    model = interp.load("embedded")
    task, lines = interp.task("ioi", model.tokenizer, n=32), []
    for batch in map(int, options.batches.split(",")):
        fits = Fits.make(model, task, options.starts, options.steps, batch)
        part = f"embedded, {len(fits.rows)} fits, batch {batch}"
        lines += alternated(part, options.steps, both(fits), options.repeats)
    return lines


def in_context(options: Options) -> tuple[list[Line], list[str]]:
    """The lines, and what is to be said of the floor and of memory."""
    model: Any = interp.load(options.model)
    task = interp.task("in_context", model.tokenizer, path=options.pairs, shots=options.shots)
    fits = Fits.make(model, task, options.rows // 2, options.model_steps, options.batch)
    said = memory(fits)
    speeds = [gemm_speed(fits)]
    part = f"{options.model}, {len(fits.rows)} fits"
    lines = alternated(part, options.model_steps, both(fits), options.repeats)
    speeds.append(gemm_speed(fits))
    blocks = sum(p.numel() for block in model._blocks for p in block.parameters() if p.ndim == 2)
    least = 4 * blocks * fits.tokens() / max(speeds)
    lines.append(Line(part, "arithmetic floor", least, least / lines[0].seconds, np.nan))
    said.append(
        f"floor: 4 x {blocks / 1e6:.1f} M weights x {fits.tokens()} tokens an update at "
        f"{max(speeds) / 1e9:.0f} GFLOP/s (before {speeds[0] / 1e9:.0f}, after {speeds[1] / 1e9:.0f})"
    )
    return lines, said


def both(fits: Fits) -> dict[str, Callable[[], Tensor]]:
    return {"rows of one run": fits.together, "one at a time": fits.one_by_one}


def memory(fits: Fits) -> list[str]:
    """Peak of memory of one update above the model at rest, against the plan; empty where the system does not say."""
    one = replace(fits.stage, steps=1)
    fits.run([0], one)  # what is allocated once
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what is free already is no part of what the update takes
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten (Linux)
        before = resident("VmRSS")
    except (OSError, AttributeError):
        return []
    fits.run(range(len(fits.rows)), one)
    used = resident("VmHWM") - before
    positions, each = fits.positions(), fits.gated.bytes_per_token
    planned = positions * each / 2**20
    return [
        f"memory: {used:.0f} MiB above the model at the peak; planned {planned:.0f} MiB ({positions} positions x "
        f"{each} bytes), ratio {used / planned:.2f}; a full pass has {fits.gated.tokens} positions"
    ]


def resident(name: str) -> float:
    """A line of the process's status, in MiB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, f"no {name} in the status of a process"
    return int(found[1]) / 1024


def gemm_speed(fits: Fits) -> float:
    """Operations a second of the largest products of a forward pass: into an MLP and out of it."""
    shape = fits.gated.model.shape
    x, up = torch.randn(fits.positions(), shape.d_model), torch.randn(shape.d_ff, shape.d_model)
    down, linear = torch.randn(shape.d_model, shape.d_ff), torch.nn.functional.linear
    work = 4 * len(x) * shape.d_model * shape.d_ff
    return max(work / timed(lambda: linear(linear(x, up), down))[0] for _ in range(20))


def peer(options: Options) -> tuple[list[Line], list[str]]:
    """The authors' trainer beside ours; first, that both have the same likelihood and gradients for given gates.

    The fitted gates then differ by 1e-4, as the authors' mean over masks makes gradients smaller beside Adam's eps.
    """
    hf = llama(options.vocab)
    trainer_class = peer_code(Path(options.peer))
    ids = torch.randint(3, options.vocab, (options.peer_batch, LENGTH), generator=torch.Generator().manual_seed(1))
    scored = torch.zeros_like(ids)
    scored[:, -TARGETS:] = 1
    theirs = copy.deepcopy(hf).requires_grad_(False)
    fits = peer_fits(interp.load(hf), ids, options)

    def trainer() -> Any:
        """Their trainer with our first gates and all prompts in every update."""
        batch = {"input_ids": ids, "loss_masks": scored}
        data = SimpleNamespace(to_iterator=lambda batch_size, shuffle: cycle([batch]))
        made = trainer_class(theirs, data, num_masks=options.masks, batch_size=options.peer_batch)
        with torch.no_grad():
            made.mask_logits_neg.copy_(fits.theta)
        return made

    def their_fit() -> Tensor:
        made = trainer()
        for _ in made.fit_mask("negative", options.updates, show_pbar=False):
            pass
        return torch.sigmoid(made.mask_logits_neg.detach())

    said = agreement(trainer().masked_model, fits, ids, scored)
    ways = {"rows of one run": fits.together, "authors' trainer": their_fit}
    return alternated(f"random Llama, {options.masks} fits", options.updates, ways, options.repeats), said


def peer_fits(model: Any, ids: Tensor, options: Options) -> Fits:
    """Fits with what the authors' trainer does: one set of prompts for all masks."""
    positions = torch.arange(LENGTH - 1 - TARGETS, LENGTH - 1).expand(len(ids), -1)
    correct = ids.gather(1, positions + 1)[..., None]
    task = interp.Task(
        "random", from_ids(ids[:, :-1].tolist()), Answers(positions, correct, correct[..., :0]), metric("neg_nll")
    )
    used = replace(interp.GateSettings.as_published_code(), batch=options.peer_batch)
    fits = Fits.make(model, task, options.masks, options.updates, options.peer_batch)
    rows = [FitRow(n, 0, -used.penalty) for n in range(options.masks)]
    return replace(
        fits, rows=rows, theta=fits.theta[: options.masks], stage=used.stage("penalised", options.updates, used.lr)
    )


def agreement(their_model: Any, fits: Fits, ids: Tensor, scored: Tensor) -> list[str]:
    """Log-likelihood and gradient of the gates, theirs against ours."""
    gates = torch.sigmoid(fits.theta)
    leaf = gates.clone().requires_grad_()
    leaf.grad = torch.zeros_like(leaf)
    ours = Likelihood(fits.gated)(leaf, [list(range(len(ids)))] * len(gates))
    other = gates.clone().requires_grad_()
    theirs = their_model.get_logp(other, ids, scored, agg="mean").mean(0)
    theirs.sum().backward()
    assert leaf.grad is not None and other.grad is not None, "both have gradients"
    loss = float((ours - theirs.detach()).abs().max())
    gradient = float((leaf.grad - other.grad).abs().max())
    assert max(loss, gradient) < 1e-5, f"the authors' code differs: likelihood by {loss:.1e}, gradient {gradient:.1e}"
    return [
        f"same gates: log-likelihoods differ by {loss:.1e} of {float(ours.abs().max()):.2f} nats, gradients by "
        f"{gradient:.1e} of {float(leaf.grad.abs().max()):.1e}"
    ]


def llama(vocab: int) -> Any:
    """A random Llama with grouped keys; its weights are large enough for the gates to matter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=64, initializer_range=0.1,
        )
    ).eval()  # fmt: skip


def peer_code(checkout: Path) -> Any:
    """The authors' trainer; without CUDA its autocast and loss scaling switch themselves off, with warnings."""
    sys.path.insert(0, str(checkout / "src"))
    warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
    from chg.chg_trainer import CHGTrainer  # type: ignore[import-not-found]

    return CHGTrainer


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor that a call takes on its one thread, which other work on the machine adds little to."""
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


def main(options: Options) -> None:
    torch.set_num_threads(1)
    lines, said = embedded(options), []
    parts = ([in_context] if options.model and options.pairs else []) + ([peer] if options.peer else [])
    for part in parts:
        more, words = part(options)
        lines += more
        said += words
    columns = zip(*lines, strict=True)
    names = ("part", "way", "seconds an update", "x one run", "largest gap of a gate")
    print(Table({name: np.array(column) for name, column in zip(names, columns, strict=True)}))
    print(*said, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, default in vars(Options()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default)
    main(Options(**vars(parser.parse_args())))
