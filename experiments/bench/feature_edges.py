"""Edges of a feature circuit: packed and batched backward passes against one plain backward pass a target.

    OMP_NUM_THREADS=1 python experiments/bench/feature_edges.py [--smollm2]

Both ways score the same edges among the same nodes with the same cut run; the loop takes, for every prompt, position
and target, one backward pass from a scalar (what the authors' code does, less its full-depth passes). Reports seconds,
their ratio and the largest difference. The tiny model is a random Llama of three layers; with --smollm2 the real one.
"""

import argparse
import time

import numpy as np
import torch

import interp
from interp.feature_edges import Chosen, chosen, edge_weights
from interp.feature_effects import FeatureBatch
from interp.feature_nodes import FeatureSite
from interp.feature_values import Split
from interp.featurizers.base import flat
from interp.segments import segments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--positions", default="each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, task, featurizers = _setting(given.smollm2, given.prompts)
    nodes = interp.attribute_features(model, task, featurizers, positions=given.positions, method="atp", progress=False)
    name = next(iter(nodes.scores))
    kept = interp.top_n(nodes, given.nodes, name, rank="absolute").kept_nodes
    batch, own = _batch(model, task, featurizers, given.positions, kept)
    times, found = [], {}
    for _ in range(3):
        start = time.process_time()
        found = edge_weights(batch, own)
        times.append(time.process_time() - start)
    start = time.process_time()
    looped = _looped(batch, own)
    loop = time.process_time() - start
    looped = {pair: weights for pair, weights in looped.items() if weights.numel()}
    gap = max(float((found[pair] - looped[pair]).abs().max()) for pair in looped)
    largest = max(float(weights.abs().max()) for weights in looped.values())
    print(f"{model.identity.name}: {int(kept.sum())} nodes, {len(task)} prompts, positions={given.positions}")
    print(f"packed and batched {min(times):.3f} s; loop {loop:.3f} s; ratio {loop / min(times):.1f}")
    print(f"largest weight {largest:.3g}, largest difference {gap:.2g}")


def _setting(real: bool, n_prompts: int) -> tuple:
    if real:
        model = interp.load("smollm2-135m")
        task = interp.task("agreement", model.tokenizer, n=n_prompts, seed=0)
        layers = (5, 10, 15)
    else:
        model, layers = interp.load("embedded"), (0, 1)
        task = interp.task("agreement", model.tokenizer, n=n_prompts, seed=0)
    sites = [f"{kind}[{layer}]" for layer in layers for kind in ("attn_out", "mlp_out", "resid_post")]
    return model, task, [_dictionary(model, site, number) for number, site in enumerate(sites)]


def _dictionary(model: interp.HookedModel, site: str, seed: int) -> interp.Dictionary:
    """Random weights: the edges' cost does not depend on what they are."""
    d, generator = model.shape.d_model, torch.Generator().manual_seed(seed)
    n = 4 * d
    encoder, decoder = (torch.randn(*shape, generator=generator) / d**0.5 for shape in ((d, n), (n, d)))
    return interp.Dictionary(
        site,
        skip=int(model.has_sink),
        encoder=encoder,
        bias=torch.zeros(n),
        decoder=decoder,
        decoder_bias=torch.zeros(d),
    )


def _batch(
    model: interp.HookedModel, task: interp.Task, featurizers: list, positions: str, kept: np.ndarray
) -> tuple[FeatureBatch, list[Chosen]]:
    from interp.behaviour import behaviour
    from interp.feature_effects import FeatureSearch, feature_batches
    from interp.feature_nodes import feature_sites
    from interp.feature_values import ablated

    _, sites = feature_sites(model, task, featurizers, positions)
    values = ablated(model, task, featurizers, "counterfactual", "noising", 0)
    search = FeatureSearch(behaviour(model, task, task.metric), values, sites, "atp", batch=len(task))
    return next(feature_batches(search)), [chosen(one, kept) for one in sites]


def _looped(batch: FeatureBatch, own: list[Chosen]) -> dict:
    """The same weights, one backward pass for every prompt, position and target."""
    search = batch.search
    cut = segments(search.behaviour, batch.rows, [one.site for one in search.featurizers])
    total: dict = {}
    for number, (one, nodes) in enumerate(zip(search.sites, own, strict=True)):
        if not number:
            continue
        x, g, f = cut.arrived[one.featurizer.site], batch.gradients[one.featurizer.site], one.featurizer
        leaves = [cut.leaves[other.featurizer.site] for other in search.sites[:number]]
        changes = [batch.change(other) for other in search.sites[:number]]
        features = f.encode(flat(x))
        error = flat(x) - f.decode(features)
        for row, (place, column) in enumerate(nodes.nodes.tolist()):
            for prompt, position in batch.places(one)[place].nonzero().tolist():
                here = g[prompt, position]
                if column == len(nodes.units):
                    scalar = (here * error[prompt, position]).sum()
                else:
                    unit = int(nodes.units[column])
                    scalar = (here @ f.directions()[unit]) * features[prompt, position, unit]
                pulled = torch.autograd.grad(scalar, leaves, retain_graph=True, allow_unused=True)
                for source, w in enumerate(pulled):
                    if w is not None:
                        _add(total, (source, number), row, search.sites[source], own, batch, changes[source], flat(w))
    return total


def _add(
    total: dict, pair: tuple, row: int, up: FeatureSite, own: list[Chosen], batch: FeatureBatch, change: Split,
    w: torch.Tensor,
) -> None:  # fmt: skip
    nodes = own[pair[0]]
    sums = total.setdefault(pair, torch.zeros(len(own[pair[1]].nodes), len(nodes.nodes)))
    each = (w @ up.featurizer.directions(nodes.units).T) * change.features[..., nodes.units]
    each = torch.cat([each, (w * change.error).sum(-1, keepdim=True)], -1)
    by_place = torch.einsum("bpu,sbp->su", each, batch.places(up).float())
    sums[row] += by_place[nodes.nodes[:, 0], nodes.nodes[:, 1]]


if __name__ == "__main__":
    main()
