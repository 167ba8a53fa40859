"""Fitting head gates by gradient, many fits as rows of one run.

Each fit has gates G = sigmoid(theta) of its own, its own order of the data, penalty, gradient clipping and optimiser
state; the rows share nothing but the forward passes they ride in, so that a fit does not depend on its company. A step
of every fit:

    benefit = the objective's value on its next batch            (CHG: mean over prompts of mean over targets of log p)
    penalty = lambda * mean over heads of clip(theta)            (lambda > 0 pushes gates to 1, lambda < 0 to 0)
    theta  <- Adam on -(benefit + penalty), its gradient clipped to norm 1

The clip ends the penalty's pull at 4 in its own direction only: the two-sided clip of the authors' code has no gradient
beyond either end, so a gate that begins there never feels the penalty.

Source: Nam et al. 2025 (arXiv 2505.13737), section 3 and the appendix's settings; clipping as in the authors' code.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from interp.atomic import replacing
from interp.errors import FileError, OptionError
from interp.gate_stage import EDGE, SOFT, FitRow, Relaxation, Stage, seed_of

log = logging.getLogger(__name__)

Objective = Callable[[Tensor, Sequence[Sequence[int]]], Tensor]
"""Adds d(sum of the fits' benefits) / d gates to ``gates.grad`` for a leaf [row, layer, head] and each fit's prompts;
returns the benefits [row]."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a stage found.

    Attributes:
        theta: of every fit.
        benefits: of every fit's batch, before each update.
        signal: |mean| / SD over the second half of the updates of each gate's gradient without the penalty's: what is
            well below 1 was moved by noise or by the penalty alone; NaN where nothing varied.
    """

    theta: Float[Tensor, "row layer head"]
    benefits: Float[Tensor, "step row"]
    signal: Float[Tensor, "row layer head"]

    def take(self, rows: slice) -> "Fitted":
        """Some of the fits."""
        return Fitted(self.theta[rows], self.benefits[:, rows], self.signal[rows])


def draw_gates(
    rows: Sequence[FitRow], shape: Sequence[int], *, low: float = 0.0, high: float = 1.0, dtype: torch.dtype
) -> Float[Tensor, "row layer head"]:
    """theta of gates drawn uniformly, each fit's from a generator of its own; the global seed is not used."""
    drawn = []
    for row in rows:
        generator = torch.Generator().manual_seed(row.init)
        drawn.append(torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low)
    gates = torch.stack(drawn).clamp(EDGE, 1 - EDGE)
    return torch.logit(gates).to(dtype)


def picks(row: FitRow, stage: Stage, n_prompts: int, step: int) -> list[int]:
    """The prompts of a fit's update: the data are shuffled anew for each pass, and passes follow one another."""
    first = step * stage.batch
    found: list[int] = []
    for epoch in range(first // n_prompts, (first + stage.batch - 1) // n_prompts + 1):
        order = np.random.default_rng(seed_of(row.data, stage.name, epoch)).permutation(n_prompts)
        start = epoch * n_prompts
        found += order[max(first - start, 0) : first + stage.batch - start].tolist()
    return found


class _State(NamedTuple):
    """What an interrupted stage needs to go on, all tensors over rows."""

    theta: Tensor
    mean: Tensor
    square: Tensor
    benefits: Tensor
    total: Tensor
    squares: Tensor


def fit(
    objective: Objective,
    theta: Float[Tensor, "row layer head"],
    rows: Sequence[FitRow],
    stage: Stage,
    n_prompts: int,
    *,
    relaxation: Relaxation = SOFT,
    identity: str = "",
    checkpoint: str | Path | None = None,
    minutes: float = 5.0,
    progress: bool = True,
) -> Fitted:
    """Fit the gates of every row.

    Args:
        objective: the benefit of gates on prompts, with its gradient.
        theta: where the rows start.
        n_prompts: that the objective knows.
        relaxation: how gates follow from theta.
        identity: of the objective (its model, its data): a checkpoint is gone on from with the same one alone.
        checkpoint: file that the state is saved to, and taken from where it exists; going on from it gives the
            bit-equal result on the CPU.
        minutes: between savings; the last state is saved too.
        progress: show a bar where there is a terminal.

    Raises:
        OptionError: rows and theta that do not match.
        FileError: a checkpoint of other settings, or a damaged one.
    """
    if len(theta) != len(rows) or not len(rows):
        raise OptionError(f"theta has {len(theta)} rows, there are {len(rows)} fits; give one row each, one at least.")
    path = None if checkpoint is None else Path(checkpoint)
    key = _key(theta, [asdict(stage), rows, n_prompts, repr(relaxation), identity])
    done, state = _begun(path, key, theta, stage.steps)
    theta, adam = _resumed(state, done)
    benefits, total, squares = state.benefits, state.total, state.squares
    began = saved = monotonic()
    bar = tqdm(total=stage.steps, initial=done, disable=None if progress else True, desc=stage.name, leave=False)
    with bar:
        for step in range(done, stage.steps):
            chosen = [picks(row, stage, n_prompts, step) for row in rows]
            with torch.enable_grad():
                gates = relaxation.drawn(theta, rows, step)
            gradient, benefits[step] = _gradient(objective, gates, chosen)
            if step >= stage.steps // 2:
                total += gradient
                squares += gradient.double() ** 2
            with torch.enable_grad():
                gain = (gates * gradient).sum() + _penalty(relaxation.pulled(theta, rows, stage), rows, stage)
                (ascent,) = torch.autograd.grad(gain, theta)
            _update(theta, ascent, rows, stage, adam, step)
            opened, benefit = float((theta > 0).float().mean()), float(benefits[step].mean())
            bar.update()
            bar.set_postfix(benefit=f"{benefit:.3f}", open=f"{opened:.2f}")
            if step == done + 9:
                left = (monotonic() - began) / 10 * (stage.steps - step - 1) / 60
                log.info("%s: %d fits, benefit %.3f, %.0f %% open after %d of %d updates; about %.0f min to go",
                         stage.name, len(rows), benefit, 100 * opened, step + 1, stage.steps, left)  # fmt: skip
            if path is not None and (monotonic() - saved > 60 * minutes or step + 1 == stage.steps):
                moments = adam.state[theta]
                now = _State(theta.detach(), moments["exp_avg"], moments["exp_avg_sq"], benefits, total, squares)
                _save(path, key, step + 1, now)
                saved = monotonic()
    return Fitted(theta.detach(), benefits, _signal(total, squares, stage.steps - stage.steps // 2).to(theta).cpu())


def _begun(path: Path | None, key: str, theta: Tensor, steps: int) -> tuple[int, _State]:
    """How many updates are done, and the state then: that of the checkpoint, or the start."""
    if path is not None and path.exists():
        done, saved = _loaded(path, key)
        moved = {name: x.to(theta.device) for name, x in saved._asdict().items() if name != "benefits"}
        return done, saved._replace(**moved)
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)
    total, squares = (torch.zeros_like(theta, dtype=torch.float64) for _ in range(2))
    benefits = torch.zeros(steps, len(theta), dtype=theta.dtype)
    return 0, _State(theta.detach(), mean, square, benefits, total, squares)


def _resumed(state: _State, done: int) -> tuple[Tensor, torch.optim.Adam]:
    """theta as a leaf of its own, with an optimiser that has made so many updates."""
    theta = state.theta.clone().requires_grad_()
    adam = torch.optim.Adam([theta], lr=1.0, foreach=False)
    if done:
        adam.state[theta] = {"step": torch.tensor(float(done)), "exp_avg": state.mean, "exp_avg_sq": state.square}
    return theta, adam


def _signal(total: Tensor, squares: Tensor, count: int) -> Tensor:
    """|mean| / SD from sums and sums of squares; 0 where all are 0, NaN where they do not vary."""
    mean = total / max(count, 1)
    spread = (squares / max(count, 1) - mean**2).clamp(min=0).sqrt()
    rounding = 1e-6 * mean.abs()  # of sums of squares, in units of the mean
    return torch.where(total == 0, 0.0, torch.where(spread > rounding, mean.abs() / spread, torch.nan))


def _gradient(
    objective: Objective, gates: Float[Tensor, "row layer head"], chosen: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, "row layer head"], Float[Tensor, " row"]]:
    """d benefit / d gate of every fit, and the benefits."""
    leaf = gates.detach().requires_grad_()
    leaf.grad = torch.zeros_like(leaf)
    values = objective(leaf, chosen)
    return leaf.grad, values.detach().cpu()


def _penalty(pulled: Float[Tensor, "row layer head"], rows: Sequence[FitRow], stage: Stage) -> Float[Tensor, ""]:
    """The sum over fits of lambda * mean over heads."""
    weight = torch.tensor([row.penalty for row in rows]).to(pulled)
    return (weight * (pulled.sum((1, 2)) if stage.per_head else pulled.mean((1, 2)))).sum()


def _update(
    theta: Tensor, ascent: Tensor, rows: Sequence[FitRow], stage: Stage, adam: torch.optim.Adam, step: int
) -> None:
    """One update of every fit."""
    theta.grad = -ascent
    if stage.grad_norm is not None:
        norms = theta.grad.flatten(1).norm(dim=1)
        if stage.shared_clip:
            penalties = torch.tensor([row.penalty for row in rows], device=norms.device)
            same = (penalties[:, None] == penalties).to(norms)
            norms = (same @ norms**2).sqrt() / same.sum(1)
        theta.grad *= (stage.grad_norm / (norms + 1e-6)).clamp(max=1.0)[:, None, None]  # as torch's clip_grad_norm_
    adam.param_groups[0]["lr"] = stage.rate(step)
    adam.step()
    if stage.bound is not None:
        with torch.no_grad():
            theta.clamp_(-stage.bound, stage.bound)


def _key(theta: Tensor, settings: list[Any]) -> str:
    """A hash of where the fits start and of everything else that decides where they go."""
    start = sha256(theta.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
    return sha256(json.dumps([*settings, list(theta.shape), start]).encode()).hexdigest()


def _save(path: Path, key: str, step: int, state: _State) -> None:
    tensors = {name: x.detach().cpu().contiguous() for name, x in state._asdict().items()}
    with replacing(path) as temporary:
        save_file(tensors | {"step": torch.tensor(step)}, temporary, metadata={"settings": key})


def _loaded(path: Path, key: str) -> tuple[int, _State]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            settings = (file.metadata() or {}).get("settings")
        tensors = load_file(path)
        state = _State(**{name: tensors[name] for name in _State._fields})
        step = int(tensors["step"])
    except (OSError, SafetensorError, KeyError) as error:
        raise FileError(f"{path} is no checkpoint of gates ({error}); delete it to begin anew.") from error
    if settings != key:
        raise FileError(f"{path} is a checkpoint of other settings, fits or data; delete it, or name another file.")
    return step, state
