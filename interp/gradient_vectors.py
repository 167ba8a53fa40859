"""Gradients of contexts with respect to a model's weights, projected to few dimensions.

    vector = R g,    g = d log p(answer) / d weights,    R sparse, E[R^T R] = 1

Each weight lies in `nonzeros` random cells of the vector, each time with a random sign and the factor nonzeros^-1/2;
so inner products are kept in expectation, with a standard deviation of about |g| |h| / width^1/2. R is never held:
blocks of 2^20 weights draw theirs from the seed, on the CPU, again for each group of contexts.

Weights are the matrices of the blocks: embeddings, unembedding, norms and biases are left out. The cost is a forward
and a backward pass a context, `nonzeros` additions a weight and context, `nonzeros` draws a weight and group; the
memory is that of a group's gradients, so groups should be small where models are large.

Source: Marks et al. 2024 (arXiv 2403.19647), appendix on clusters: 30,000 dimensions; their matrix has 32 entries a
weight, which changes the spread of inner products little and takes 8 times as long.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from interp.errors import ModelError, OptionError
from interp.gate_stage import seed_of
from interp.intervention import Edit
from interp.models.base import HookedModel, frozen
from interp.site import Site
from interp.tasks.base import Task
from interp.tokens import batches

BLOCK = 2**20


@dataclass(frozen=True)
class Projection:
    """A random projection of the weights' gradients.

    Args:
        width: dimensions of a vector.
        nonzeros: cells that each weight is added to.
        seed: of the draw.

    Raises:
        OptionError: a width or number of cells below 1.
    """

    width: int = 30_000
    nonzeros: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.nonzeros < 1:
            raise OptionError(f"{self}: allowed: width and nonzeros from 1.")

    def blocks(
        self, size: int, name: int
    ) -> Iterator[tuple[slice, Int[Tensor, "nonzero n"], Float[Tensor, "nonzero n"]]]:
        """For one weight of `size` entries, piece by piece: which entries, their cells, and their signs."""
        for start in range(0, size, BLOCK):
            piece = slice(start, min(start + BLOCK, size))
            shape = (self.nonzeros, piece.stop - start)
            generator = torch.Generator().manual_seed(seed_of(self.seed, f"projection {name}", start) % 2**63)
            cells = torch.randint(self.width, shape, generator=generator)
            signs = torch.randint(2, shape, generator=generator) * 2.0 - 1.0
            yield piece, cells, signs


def projected(
    gradients: Sequence[Float[Tensor, "context _"]], projection: Projection
) -> Float[Tensor, "context width"]:
    """R g for several contexts; one gradient a weight, in the order that R was drawn in."""
    found = torch.zeros(len(gradients[0]), projection.width, device=gradients[0].device)
    for name, gradient in enumerate(gradients):
        for piece, cells, signs in projection.blocks(gradient.shape[1], name):
            for where, sign in zip(cells.to(found.device), signs.to(found.device), strict=True):
                found.index_add_(1, where, gradient[:, piece].float() * sign)
    return found / projection.nonzeros**0.5


def block_weights(model: HookedModel) -> list[torch.nn.Parameter]:
    """The parameters that gradients are taken of: matrices that are neither embedding nor unembedding.

    A table of positions is among them; its gradient is cut off, and so it counts for nothing.

    Raises:
        ModelError: there are none.
    """
    outside = {id(p) for name in ("embed", "unembed", "final_norm") for p in model.module(name).parameters()}
    found = [p for p in model.parameters() if p.ndim > 1 and p.is_floating_point() and id(p) not in outside]
    if not found or any(p.is_meta for p in found):
        what = "some weights are offloaded" if found else "there are no weight matrices besides the embeddings"
        raise ModelError(f"{model.identity.name}: {what}, so their gradients cannot be taken; use kind='effects'.")
    return found


def gradient_vectors(
    model: HookedModel, task: Task, projection: Projection, *, batch: int = 16, progress: bool = True
) -> Float[np.ndarray, "context width"]:
    """Each prompt's projected gradient of its metric. The model's grad flags and `.grad` fields stay as they are.

    Args:
        batch: contexts of one group, whose gradients are in memory together.
    """
    weights = block_weights(model)
    start = Edit(Site("resid_pre", 0), function=lambda x: x.detach())
    found = np.zeros((len(task), projection.width), dtype=np.float32)
    with tqdm(
        total=len(task), disable=None if progress else True, desc="gradients", unit="context", leave=False
    ) as bar:
        for rows in batches(len(task), batch):
            each = []
            with asking(model, weights):
                for row in rows:
                    one = task[row]
                    run = model.run(one.clean, [start], logits=one.answers.positions, differentiable=True)
                    assert run.logits is not None, "a run with logits has logits"
                    value = task.metric(run.logits, one.answers.to(run.logits.device)).sum()
                    gradient = torch.autograd.grad(value, weights, allow_unused=True)
                    each.append(
                        [torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradient, strict=True)]
                    )
                    bar.update()
            together = [torch.stack(one).flatten(1) for one in zip(*each, strict=True)]
            found[rows] = projected(together, projection).cpu().numpy()
    return found


@contextmanager
def asking(model: HookedModel, weights: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Within, these parameters ask for a gradient and no other does; the flags come back as they were."""
    with frozen(list(model.parameters())):
        try:
            for weight in weights:
                weight.requires_grad_(True)
            yield
        finally:
            for weight in weights:
                weight.requires_grad_(False)
