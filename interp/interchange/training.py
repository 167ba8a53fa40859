"""Training of interchanges: one loop for subspaces at fixed positions and for networks that choose them.

    loss of an example = weight of its kind * cross-entropy of its answer, mean over the answer's tokens
                         + the interchange's penalty
    AdamW on the mean over the batch's examples, gradients clipped

Batches hold as many cause as isolate examples where there are both. What is drawn depends on the seed and on the number
of the update alone, so that an interrupted run goes on to the bit-equal result. With several processes
(`torch.distributed`), each takes its share of every batch and gradients are added up: the result is that of one.
"""

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from time import monotonic

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from interp.atomic import one_error, replacing
from interp.errors import FileError, OptionError
from interp.gate_stage import seed_of
from interp.interchange.examples import Batch, Counterfactuals, batch_of
from interp.interchange.placing import Interchange, Mode, interchanged
from interp.interchange.states import Resumption

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainSettings:
    """How an interchange is trained.

    Args:
        steps: updates.
        batch: examples in an update.
        rate: learning rate of what has no other.
        warm_up: share of the updates in which the rate rises from 0.
        decay: let the rate fall to 0 along a cosine after that.
        weight_decay: AdamW's, of what has no other.
        clip: greatest norm of the gradient; None for no limit.
        cause_weight, isolate_weight: of the two kinds of examples.
        evaluate_every: updates between validations; the best state so far is kept.
        patience: stop after so many validations worse than the best; None for never.
        seed: of the order of the data.
    """

    steps: int = 1000
    batch: int = 16
    rate: float = 1e-3
    warm_up: float = 0.0
    decay: bool = False
    weight_decay: float = 0.0
    clip: float | None = 1.0
    cause_weight: float = 1.0
    isolate_weight: float = 1.0
    evaluate_every: int = 250
    patience: int | None = 5
    seed: int = 0

    def __post_init__(self) -> None:
        low = [
            f"{name}={getattr(self, name)}" for name in ("steps", "batch", "evaluate_every") if getattr(self, name) < 1
        ]
        low += [f"rate={self.rate}"] if self.rate <= 0 else []
        low += [] if 0 <= self.warm_up < 1 else [f"warm_up={self.warm_up}"]
        if low:
            raise OptionError(f"training settings {', '.join(low)} are outside their range; see TrainSettings.")

    def factor(self, step: int) -> float:
        """What learning rates are multiplied by in an update."""
        rising = self.warm_up * self.steps
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (self.steps - rising))) if self.decay else 1.0


@dataclass(frozen=True)
class Keeping:
    """Where and how often a training run is saved, and whether it shows a bar.

    Args:
        checkpoint: file of its state; a run that finds one goes on from there.
        minutes: between savings; the last state is saved too.
        progress: show a bar where there is a terminal.
    """

    checkpoint: str | Path | None = None
    minutes: float = 5.0
    progress: bool = True


@dataclass
class History:
    """What happened in a training run.

    Attributes:
        losses: mean loss of every update's batch.
        scores: (update, validation score), oldest first.
        best: the update and score of the best validation; None without one.
    """

    losses: list[float] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)

    @property
    def best(self) -> tuple[int, float] | None:
        return max(self.scores, key=lambda one: (one[1], -one[0])) if self.scores else None

    def worse_since(self) -> int:
        """Validations since the best that were worse (not those as good: a score may rest at first)."""
        if self.best is None:
            return 0
        after = self.scores[self.scores.index(self.best) + 1 :]
        return sum(score < self.best[1] for _, score in after)


def picks(data: Counterfactuals, batch: int, step: int, seed: int) -> list[int]:
    """The examples of an update: half cause and half isolate where both exist, each kind shuffled anew every pass."""
    kinds = [np.flatnonzero(kind) for kind in (data.causes, ~data.causes)]
    kinds = [kind for kind in kinds if len(kind)]
    shares = [batch] if len(kinds) == 1 else [batch - batch // 2, batch // 2]
    found: list[int] = []
    for number, (rows, share) in enumerate(zip(kinds, shares, strict=True)):
        for n in range(step * share, (step + 1) * share):
            order = np.random.default_rng(seed_of(seed, f"kind {number}", n // len(rows))).permutation(len(rows))
            found.append(int(rows[order[n % len(rows)]]))
    return found


def answer_losses(logits: Float[Tensor, "example target d_vocab"], batch: Batch) -> Float[Tensor, " example"]:
    """Cross-entropy of each example's answer, in nats, mean over its tokens."""
    logp = logits.float().log_softmax(-1).gather(-1, batch.ids.clamp(min=0)[..., None])[..., 0]
    present = batch.ids >= 0
    return -(logp * present).sum(1) / present.sum(1)


def train_interchange(
    resumption: Resumption,
    data: Counterfactuals,
    interchange: Interchange,
    settings: TrainSettings = TrainSettings(),
    *,
    mode: Callable[[float], Mode] | Mode = "soft",
    validate: Callable[[], float] | None = None,
    keeping: Keeping = Keeping(),
    identity: str = "",
) -> History:
    """Train an interchange in place; it ends as it was in the best validation (in the last update without one).

    Args:
        resumption: runs of the model with the interchange's site changed.
        mode: how learned choices of positions are made in training, or that by the share of updates done.
        validate: the score to stop early by, higher better; called in evaluation mode.
        identity: what else the result depends on; a checkpoint is gone on from with the same one alone.

    Raises:
        OptionError: no example.
        FileError: a checkpoint of another run, or a damaged one.
    """
    if not len(data):
        raise OptionError("there is no example to train on; give at least one.")
    parameters = [p for p in interchange.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        interchange.groups(settings.rate), lr=settings.rate, weight_decay=settings.weight_decay, foreach=False
    )
    rates = [group["lr"] for group in optimiser.param_groups]
    run = _Run(interchange, optimiser, keeping, _key(data, interchange, settings, resumption, identity))
    run.begin()
    was, saved = interchange.training, monotonic()
    bar = tqdm(total=settings.steps, initial=run.done, disable=None if keeping.progress else True, leave=False)
    try:
        for step in range(run.done, settings.steps):
            if settings.patience is not None and run.history.worse_since() >= settings.patience:
                log.info("stopped after %d updates: %d validations worse than the best", step, settings.patience)
                break
            done = step / settings.steps
            interchange.train()
            interchange.anneal(done)
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * settings.factor(step)
            chosen = mode if isinstance(mode, str) else mode(done)
            loss = _step(resumption, data, interchange, settings, optimiser, parameters, step, chosen)
            run.history.losses.append(loss)
            run.done = step + 1
            last = run.done == settings.steps
            if validate is not None and (run.done % settings.evaluate_every == 0 or last):
                interchange.eval()
                run.score(validate())
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}", score=f"{run.history.scores[-1][1]:.3f}" if run.history.scores else "")
            if last or monotonic() - saved > 60 * keeping.minutes:
                run.save()
                saved = monotonic()
    finally:
        bar.close()
        interchange.train(was)
    run.save()
    run.restore_best()
    return run.history


def _step(
    resumption: Resumption, data: Counterfactuals, interchange: Interchange, settings: TrainSettings,
    optimiser: torch.optim.Optimizer, parameters: Sequence[Tensor], step: int, mode: Mode,
) -> float:  # fmt: skip
    """One update; the batch's mean loss."""
    rows = picks(data, settings.batch, step, settings.seed)
    own = rows[_rank() :: _processes()]
    optimiser.zero_grad(set_to_none=True)
    total = torch.zeros(())
    if own:
        batch = batch_of(data, own, resumption.model.device)
        with torch.enable_grad():
            logits, penalties = interchanged(resumption, batch, interchange, mode)
            losses = answer_losses(logits, batch)
            causes = torch.from_numpy(batch.data.causes).to(losses.device)
            weighted = losses * torch.where(causes, settings.cause_weight, settings.isolate_weight)
            total = (weighted + penalties.to(weighted)).sum() / len(rows)
        total.backward()
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if _processes() > 1:
            dist.all_reduce(parameter.grad)
    value = total.detach().cpu()
    if _processes() > 1:
        dist.all_reduce(value)
    if not torch.isfinite(value):
        raise FloatingPointError(f"the loss is {float(value)} in update {step}; lower the rate ({settings.rate}).")
    if settings.clip is not None:
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip, foreach=False)
    optimiser.step()
    return float(value)


class _Run:
    """The state of a training run: what is done, and the best state so far, kept in a file."""

    def __init__(self, interchange: Interchange, optimiser: torch.optim.Optimizer, keeping: Keeping, key: str) -> None:
        self.interchange, self.optimiser, self.key = interchange, optimiser, key
        self.path = None if keeping.checkpoint is None else Path(keeping.checkpoint)
        self.done, self.history = 0, History()
        self.best: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Take the state from the checkpoint where there is one."""
        if self.path is None or not self.path.exists():
            return
        with one_error(self.path, "a checkpoint of an interchange"):
            with safe_open(self.path, "pt") as file:
                head = json.loads((file.metadata() or {})["run"])
            if head["key"] != self.key:
                raise FileError(
                    f"{self.path} is a checkpoint of another model, data, interchange or settings; delete it, or name "
                    "another file."
                )
            tensors = load_file(self.path)
            device = next(self.interchange.parameters()).device
            self.interchange.load_state_dict(_under(tensors, "now", device))
            self.best = _under(tensors, "best", device)
            state = self.optimiser.state_dict()
            state["state"] = {
                int(n): {name: tensors[f"adam.{n}.{name}"] for name in ("step", "exp_avg", "exp_avg_sq")}
                for n in head["moments"]
            }
            self.optimiser.load_state_dict(state)
            self.done = head["done"]
            self.history = History(head["losses"], [(int(step), score) for step, score in head["scores"]])

    def score(self, value: float) -> None:
        """Note a validation, and keep the state where it is the best so far."""
        self.history.scores.append((self.done, value))
        if self.history.best == self.history.scores[-1]:
            self.best = {name: x.detach().clone() for name, x in self.interchange.state_dict().items()}

    def restore_best(self) -> None:
        """Back to the best state, where there was a validation."""
        if self.best:
            self.interchange.load_state_dict(self.best)

    def save(self) -> None:
        """Write the state; by the first process alone."""
        if self.path is None or _rank():
            return
        moments = self.optimiser.state_dict()["state"]
        tensors = {f"now.{name}": x for name, x in self.interchange.state_dict().items()}
        tensors |= {f"best.{name}": x for name, x in self.best.items()}
        tensors |= {f"adam.{n}.{name}": x for n, one in moments.items() for name, x in one.items()}
        head = {
            "key": self.key, "done": self.done, "losses": self.history.losses, "scores": self.history.scores,
            "moments": list(moments),
        }  # fmt: skip
        with replacing(self.path) as temporary:
            plain = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
            save_file(plain, temporary, metadata={"run": json.dumps(head)})


def _under(tensors: dict[str, Tensor], prefix: str, device: torch.device) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: x.to(device) for name, x in tensors.items() if name.startswith(f"{prefix}.")}


def _key(
    data: Counterfactuals, interchange: Interchange, settings: TrainSettings, resumption: Resumption, identity: str
) -> str:
    """A hash of everything that decides where a run goes: model, data, first parameters, settings."""
    digest = sha256(json.dumps([
        resumption.model.identity.fingerprint, str(interchange.site), type(interchange).__name__, identity,
        asdict(settings), data.answers, data.concepts, data.queried, data.prompts.rows(),
    ]).encode())  # fmt: skip
    for column in (data.base, data.source):
        digest.update(np.ascontiguousarray(column).tobytes())
    for name, x in interchange.state_dict().items():
        digest.update(name.encode())
        digest.update(x.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()


def _processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
