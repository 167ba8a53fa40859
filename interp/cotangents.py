"""Gradients of a metric at every site, block by block downwards; for GradDrop, a stack of them with one block dropped.

Dropping block l from the backward pass means: the cotangent at resid_post[l] goes on to resid_pre[l] whole, and none of
it into what the block writes. Above block l that changes nothing, so one walk serves all l. It carries a stack of
cotangents of the residual stream: row 0 is the true gradient, and below block l there is one more row, "l dropped",
which starts as the true cotangent at resid_post[l]. In all L (L+1) / 2 blocks are differentiated: (L+1) / 2 passes.

Source: Kramár et al. 2024 (arXiv 2403.00745), section 3.1.2; the shared walk is our derivation.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.runs import Watched
from interp.site import Site


class Stack(NamedTuple):
    """Gradients at one site.

    Attributes:
        rows: [stack, batch, ...]; row 0 is the true gradient, the others have one block dropped each.
        repeats: how many dropped blocks leave the true gradient as it is here.
        survivors: over how many dropped blocks a node here is not dropped itself.
    """

    rows: Float[Tensor, "stack batch ..."]
    repeats: int
    survivors: int

    def magnitude(self, effects: Float[Tensor, "stack ..."]) -> Float[Tensor, "..."]:
        """Mean over dropped blocks of the absolute effects, given the effects under each row of the stack."""
        return (self.repeats * effects[0].abs() + effects[1:].abs().sum(0)) / self.survivors


def needed_sites(n_layers: int) -> list[Site]:
    """Sites to watch for the walk beside those of interest."""
    return [Site("resid_pre", layer) for layer in range(n_layers)] + [Site("resid_post", n_layers - 1)]


def walk(run: Watched, wanted: Sequence[Site], n_layers: int, *, drop: bool) -> Iterator[tuple[Site, Stack]]:
    """The gradients of the sum of `run.values` at the wanted sites, in order from the logits to the embedding.

    Args:
        run: watched the wanted sites and `needed_sites`.
        drop: one more row for each block above a site, in which that block is dropped.
    """
    top, last = Site("resid_final"), n_layers - 1
    ends = [site for site in (top, Site("resid_post", last)) if site in run.sites]
    found = _pull(run.values.sum(), None, [run.sites[site] for site in ends])
    stack = found[-1]
    if top in wanted:
        yield top, Stack(found[0], n_layers, n_layers)
    for layer in range(last, -1, -1):
        post, pre = Site("resid_post", layer), Site("resid_pre", layer)
        if post in wanted:
            yield post, Stack(stack, layer + 1, n_layers)
        inside = [s for s in wanted if s.layer == layer and s.kind not in ("resid_pre", "resid_post")]
        output = run.sites[post if post in run.sites else Site("resid_pre", layer + 1)]
        *gradients, through = _pull(output, stack, [run.sites[s] for s in (*inside, pre)])
        for site, rows in zip(inside, gradients, strict=True):
            yield site, Stack(rows, layer, n_layers - 1)
        stack = torch.cat([through, stack[:1]]) if drop else through
        if pre in wanted:
            yield pre, Stack(stack, layer, n_layers)
    if Site("embed") in wanted:
        yield Site("embed"), Stack(stack, 0, n_layers)


def _pull(output: Tensor, stack: Tensor | None, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Vector-Jacobian products of each row of the stack [stack, *output]; zeros where there is no path."""
    if stack is None or len(stack) == 1:
        cotangent = None if stack is None else stack[0]
        found = torch.autograd.grad(output, inputs, cotangent, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(x)[None] if g is None else g[None] for x, g in zip(inputs, found, strict=True)]
    found = torch.autograd.grad(output, inputs, stack, retain_graph=True, allow_unused=True, is_grads_batched=True)
    return [x.new_zeros(len(stack), *x.shape) if g is None else g for x, g in zip(inputs, found, strict=True)]
