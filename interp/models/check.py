"""The self-check on load: sites resolve, shapes fit, no-ops change nothing, changes change something.

A failure names the family, the site, what was found, and the cure, so that an upgrade of a library, or a wrong map,
cannot make later results silently wrong.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interp.errors import InterventionError, ModelError
from interp.models.attention import ATTENTION_KINDS
from interp.models.runs import Run, Tap, Taps
from interp.regions import Layout
from interp.site import KINDS, Site
from interp.tokens import Prompts, from_ids

TOLERANCE = 1e-4
"""Relative to the residual's largest entry: float32 sums of up to a few thousand terms stay well below."""


def self_check(model: Any, *, thorough: bool) -> None:
    """Check `model` and set what only running can tell (whether attention functions fire, whether blocks resume).

    Args:
        model: a `HookedHF` under construction.
        thorough: also run the no-op and change tests at every site.

    Raises:
        ModelError: the first kind of fault found, with all sites that show it.
    """
    prompts = _probe_prompts(model)
    _find_attention(model, prompts)
    clean = model.run(prompts, record=model.sites(), logits="all")
    _check_shapes(model, clean)
    model.has_sink = _finds_sink(model, clean)
    if thorough:
        _check_noop(model, prompts, clean)
        _check_residual(model, clean)
        _check_unembedding(model, clean)
        _check_changes(model, clean)


SINK_RATIO = 10.0
"""A first position whose residual norm is so many times that of the others is a sink (SmolLM2: 140 times)."""


def _finds_sink(model: Any, clean: Run) -> bool:
    """Whether in some layer the first position's residual dwarfs the others'."""
    norms = [clean[s][0].float().norm(dim=-1) for s in model.sites("resid_post")]
    return any(float(n[0]) > SINK_RATIO * float(n[1:].median()) for n in norms)


def _probe_prompts(model: Any) -> Prompts:
    ids = torch.randint(0, model.shape.n_ids, (1, 3), generator=torch.Generator().manual_seed(0))
    return from_ids(ids.tolist())


def _find_attention(model: Any, prompts: Prompts) -> None:
    """Attention sites are offered only if the registered function really fires in every layer."""
    kinds = [k for k in ATTENTION_KINDS if k not in model.unavailable and k not in model.map.points]
    if not kinds:
        return
    try:
        model.run(prompts, record=model.sites("q"), logits="none")
    except InterventionError:
        import transformers

        reason = (
            f"{model.family} in transformers {transformers.__version__} accepts a registered attention function but "
            "never calls it; a newer release does."
        )
        model.unavailable = {**model.unavailable, **dict.fromkeys(kinds, reason)}
        return
    except ModelError as error:
        model.unavailable = {**model.unavailable, **dict.fromkeys(kinds, str(error))}
        return
    blocks = model._blocks
    returned: list[object] = []
    handle = blocks[0].register_forward_hook(lambda _, __, output: returned.append(output))
    try:
        model.run(prompts, logits="none")
    finally:
        handle.remove()
    model._block_returns_tuple = isinstance(returned[0], tuple)
    model.resumes = model._body is not model.model and "position_ids" in model._accepts


def _check_shapes(model: Any, clean: Run) -> None:
    shape, n = model.shape, int(clean.prompts.ids.shape[1])
    sizes = {
        "batch": 1, "pos": n, "dest": n, "src": n, "head": shape.n_heads, "kv_head": shape.n_kv_heads,
        "d_head": shape.d_head, "d_model": shape.d_model, "d_ff": shape.d_ff,
    }  # fmt: skip
    wrong = [
        f"{site} has shape {tuple(x.shape)}, the configuration says {tuple(sizes[a] for a in site.axes)} "
        f"({' x '.join(site.axes)})"
        for site, x in clean.cache.items()
        if x.shape != tuple(sizes[a] for a in site.axes)
    ]
    _fail(model, "shapes do not fit", wrong, "correct the site map or the Shape given.")


def _check_noop(model: Any, prompts: Prompts, clean: Run) -> None:
    """A pass-through at every site leaves the logits bit-equal to the bare model's."""
    plain = model.run(prompts, logits="all").logits
    assert plain is not None and clean.logits is not None, "all logits were asked for"
    if not torch.equal(plain, clean.logits):
        gap = float((plain - clean.logits).abs().max())
        _fail(
            model, "recording changed the logits", [f"largest difference {gap:.2g}"], "report the family and versions."
        )


def _check_residual(model: Any, clean: Run) -> None:
    """resid_pre + attn_out + mlp_out = resid_post, so sublayer outputs are what is really added."""
    if {"resid_pre", "attn_out", "mlp_out", "resid_post"} & set(model.unavailable):
        return
    wrong = []
    for layer in range(model.shape.n_layers):
        parts = [clean[Site(kind, layer)] for kind in ("resid_pre", "attn_out", "mlp_out")]
        post = clean[Site("resid_post", layer)]
        gap = float((sum(parts[1:], parts[0]) - post).abs().max())
        if gap > _tolerance(post):
            wrong.append(f"layer {layer}: resid_pre + attn_out + mlp_out differs from resid_post by {gap:.3g}")
    _fail(
        model,
        "the residual stream is not the sum of its parts",
        wrong,
        "correct attn_out and mlp_out in the site map.",
    )


def _check_unembedding(model: Any, clean: Run) -> None:
    if "resid_final" in model.unavailable or clean.logits is None:
        return
    with torch.no_grad():
        gap = float((model.unembed(clean["resid_final"]) - clean.logits).abs().max())
    wrong = [f"differs by {gap:.3g}"] if gap > _tolerance(clean.logits) else []
    _fail(model, "unembedding resid_final does not give the logits", wrong, "name the true final_norm and unembed.")


def _check_changes(model: Any, clean: Run) -> None:
    """A change at each site must reach the next block's input (the final norm's output, after the last block).

    One row a kind of site is changed there in every block at once; at each block's input all rows are set back to the
    clean run, so one small forward tests every site by itself.
    """
    kinds = [k for k in KINDS if k not in model.unavailable and k != "resid_final"]
    layers = range(model.shape.n_layers)
    arrived: dict[int, Tensor] = {}

    def note(layer: int) -> Tap:
        return lambda x, _: arrived.__setitem__(layer, x.detach().clone())

    def restore(layer: int) -> Tap:
        return lambda x, _: clean[Site("resid_pre", layer)].expand(x.shape).clone()

    taps: Taps = {Site("resid_final"): [note(len(layers))]}
    for layer in layers:
        taps[Site("resid_pre", layer)] = [note(layer), restore(layer)] if layer else []
    for row, kind in enumerate(kinds):
        for site in model.sites(kind):
            taps.setdefault(site, []).append(partial(_disturb, row))
    prompts = clean.prompts
    many = Prompts(prompts.ids.expand(len(kinds) + 1, -1), prompts.lengths.expand(len(kinds) + 1))
    with torch.no_grad():
        model._forward(many, {s: taps[s] for s in sorted(taps, key=lambda s: s.order)}, "none")
    still = [
        str(Site(kind, layer if KINDS[kind].layered else None))
        for row, kind in enumerate(kinds)
        for layer in (layers if KINDS[kind].layered else [0])
        if torch.equal(arrived[layer + 1][row], arrived[layer + 1][-1])
    ]
    _fail(
        model, "a change did not reach the next block", still,
        "correct the site map; for a model whose weights really are zero there, load with check=False.",
    )  # fmt: skip


def _disturb(row: int, x: Tensor, _: Layout) -> Tensor:
    x = x.clone()
    x[row] = _disturbed(x[row])
    return x


def _disturbed(x: Tensor) -> Tensor:
    """Values that differ from x everywhere, by about its own size."""
    if x.shape[-1] == x.shape[-2] and bool((x.sum(-1) - 1).abs().max() < 1e-3):
        return 0.5 * x.flip(-1)
    wave = torch.cos(torch.arange(x.numel(), device=x.device, dtype=torch.float32)).view(x.shape).to(x.dtype)
    return x + (x.abs().mean() + 1e-3) * (1 + wave)


def _tolerance(x: Tensor) -> float:
    coarse = 1.0 if x.dtype in (torch.float32, torch.float64) else 300.0
    return TOLERANCE * coarse * max(float(x.abs().max()), 1.0)


def _fail(model: Any, what: str, found: Sequence[str], cure: str) -> None:
    if found:
        shown = "; ".join(found[:6]) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")
        raise ModelError(f"self-check of {model.identity.name} (family {model.family}): {what}: {shown}. Cure: {cure}")
