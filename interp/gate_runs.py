"""Running a model under head gates: every query head's output z times a number between 0 and 1.

A gate of 1 leaves a head as it is, a gate of 0 is zero ablation of its z (the output projection's bias stays). Gates
come one vector a row, so that prompts of many fits share a batch; only the scored positions reach the unembedding.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from interp.intervention import Edit
from interp.metrics import Metric
from interp.models.base import HookedModel, frozen
from interp.tasks.base import Task

CPU_TOKENS, GPU_TOKENS = 2048, 65536
"""Positions in one forward and backward, unless the memory given is less."""


@dataclass(frozen=True, eq=False)
class GatedTask:
    """A task to be run under gates.

    Args:
        metric: scored at the task's answers; its value, not a loss (higher = more of the behaviour).
        memory: GiB of activations that one backward pass may hold.
        recompute: keep only the blocks' inputs for the backward pass (gradient checkpointing).
    """

    model: HookedModel
    task: Task
    metric: Metric
    memory: float = 4.0
    recompute: bool = False

    @property
    def bytes_per_token(self) -> int:
        """What a forward pass keeps of one position for its backward pass; an estimate from above."""
        shape, longest = self.model.shape, int(self.task.clean.lengths.max())
        heads = shape.n_heads + 2 * shape.n_kv_heads
        a_layer = 7 * shape.d_model + 3 * heads * shape.d_head + 4 * shape.d_ff + 2 * shape.n_heads * longest
        item = next(iter(self.model.parameters())).element_size()
        targets = self.task.answers.present.sum(1) / self.task.clean.lengths
        kept = a_layer + shape.n_layers * shape.d_model if self.recompute else shape.n_layers * a_layer
        return item * kept + int(12 * shape.d_vocab * float(targets.max()))

    @property
    def tokens(self) -> int:
        """Positions in one forward pass: what suits the device and fits the memory, one prompt at least."""
        most = CPU_TOKENS if self.model.device.type == "cpu" else GPU_TOKENS
        fits = int(self.memory * 2**30 / self.bytes_per_token)
        return max(min(most, fits), int(self.task.clean.lengths.max()))

    def batches(self, prompts: Sequence[int]) -> Iterator[list[int]]:
        """Places in `prompts`, those of like length together, at most `tokens` positions at a time with padding."""
        lengths = self.task.clean.lengths.tolist()
        order = sorted(range(len(prompts)), key=lambda place: (-lengths[prompts[place]], place))
        while order:
            size = max(self.tokens // lengths[prompts[order[0]]], 1)
            yield order[:size]
            order = order[size:]

    def values(self, gates: Float[Tensor, "row layer head"], prompts: Sequence[int]) -> Float[Tensor, " row"]:
        """The metric of each prompt under its own gates; differentiable in the gates where gradients are on."""
        return self._measured(gates, prompts, [self.metric])[0]

    @torch.no_grad()
    def table(
        self, gates: Float[Tensor, "set layer head"], metrics: Sequence[Metric] = ()
    ) -> Float[Tensor, "metric set prompt"]:
        """Metrics (the task's own objective by default) of every prompt under every set of gates; on the CPU."""
        chosen = list(metrics) or [self.metric]
        n_sets, n_prompts = len(gates), len(self.task)
        pairs = [(s, p) for s in range(n_sets) for p in range(n_prompts)]
        found = torch.empty(len(chosen), n_sets, n_prompts, dtype=gates.dtype)
        for places in self.batches([p for _, p in pairs]):
            sets, prompts = ([pairs[place][i] for place in places] for i in (0, 1))
            found[:, sets, prompts] = torch.stack(self._measured(gates[sets], prompts, chosen)).to(found)
        return found

    def _measured(self, gates: Tensor, prompts: Sequence[int], metrics: Sequence[Metric]) -> list[Tensor]:
        rows, answers = list(prompts), self.task.answers[list(prompts)]
        edits = [
            Edit(site, function=partial(_scaled, gates[:, layer])) for layer, site in enumerate(self.model.sites("z"))
        ]
        again = self.model.recomputing() if self.recompute else nullcontext()
        with frozen(self.model.parameters()), again:
            run = self.model.run(
                self.task.clean[rows], edits, logits=answers.positions, differentiable=torch.is_grad_enabled()
            )
        assert run.logits is not None, "logits were asked for"
        logits, here = run.logits, answers.to(run.logits.device)
        return [one(logits, here) for one in metrics]

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits of the model's weights, the prompts and what is scored."""
        answers = self.task.answers
        weights = self.model.identity.fingerprint or [float(p.detach().double().sum()) for p in self.model.parameters()]
        said = [weights, repr(self.metric), self.task.clean.rows()]
        said += [x.tolist() for x in (answers.positions, answers.correct, answers.wrong)]
        return sha256(json.dumps(said).encode()).hexdigest()[:16]


def _scaled(gates: Float[Tensor, "row head"], z: Float[Tensor, "row pos head d_head"]) -> Tensor:
    return z * gates[:, None, :, None].to(z)


def ones(model: HookedModel, rows: int = 1) -> Float[Tensor, "row layer head"]:
    """Gates that leave the model as it is, in at least float32."""
    dtype = torch.promote_types(next(iter(model.parameters())).dtype, torch.float32)
    return torch.ones(rows, model.shape.n_layers, model.shape.n_heads, dtype=dtype, device=model.device)


def as_gates(model: HookedModel, values: Num[np.ndarray, "set node"]) -> Float[Tensor, "set layer head"]:
    """Gates given in the order of a circuit's heads, layer by layer, as the model takes them."""
    like = ones(model)
    return torch.tensor(values).to(like).reshape(-1, *like.shape[1:])


def gate_gradients(gated: GatedTask) -> Float[Tensor, "prompt layer head"]:
    """d metric / d gate of every prompt at gates of 1: the effect of removing a head, to the first order, with its sign
    turned (so positive helps).

    It is AtP of z with a zero baseline, and with a mean of absolute values over prompts the importance of Michel et
    al. 2019 (arXiv 1905.10650).
    """
    found = ones(gated.model, len(gated.task))
    for prompts in gated.batches(range(len(gated.task))):
        leaf = ones(gated.model, len(prompts)).requires_grad_()
        with torch.enable_grad():
            gated.values(leaf, prompts).sum().backward()
        assert leaf.grad is not None, "the metric depends on the gates"
        found[prompts] = leaf.grad
    return found.cpu()
