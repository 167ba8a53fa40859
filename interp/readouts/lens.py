"""The logit lens (nostalgebraist 2020): the residual stream of every layer, read through the unembedding.

    own:     logits = unembed(norm(resid))                       the norm at this residual's own scale
    frozen:  logits = unembed(scale * gain * resid + bias)       the norm at the scale it has on the last residual

At the last layer both are the model's logits. Frozen is linear in the residual: two layers differ by what the layers
between them add, which `direct_logit_attribution` splits further.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import OptionError, check_choice
from interp.frozen_norm import freeze_module
from interp.models.base import HookedModel
from interp.site import Site
from interp.table import Table
from interp.tokens import Prompts, token_strings

RESIDUALS = ("embed", "resid_pre", "resid_mid", "resid_post")
Unit = Literal["logits", "pre-cap logits"]


@dataclass(frozen=True, eq=False)
class LogitLens:
    """Logits read off the residual stream at several depths.

    Attributes:
        sites: where, in forward order.
        positions: of each prompt, from its first real token; -1 where absent.
        logits: NaN at absent positions.
        norm: ``"own"`` or ``"frozen"``.
        unit: ``"pre-cap logits"`` where a soft-cap of the model was left out.
        tokens: each prompt's tokens as strings (their ids without a tokenizer).
        tokenizer: names the vocabulary, or None.
    """

    sites: tuple[Site, ...]
    positions: Int[Tensor, "batch target"]
    logits: Float[Tensor, "site batch target d_vocab"]
    norm: str
    unit: Unit
    tokens: tuple[tuple[str, ...], ...]
    tokenizer: Any = None

    def top(self, k: int = 5) -> Table:
        """The `k` highest logits at every site, prompt and position.

        Returns:
            columns site, prompt, position, `at` (the token there), rank (from 1), id, token, logit, prob (softmax).
        """
        rows, targets = (self.positions >= 0).nonzero(as_tuple=True)
        places = self.positions[rows, targets].tolist()
        logits = self.logits[:, rows, targets].float()
        best = logits.topk(k)
        ids = best.indices.flatten().tolist()
        names = [str(i) for i in ids] if self.tokenizer is None else token_strings(self.tokenizer, ids)
        at = [self.tokens[row][place] for row, place in zip(rows.tolist(), places, strict=True)]

        def spread(values: Any) -> np.ndarray:
            """One value a row of the lens, for every site and rank."""
            return np.tile(np.repeat(np.asarray(values), k), len(self.sites))

        return Table(
            {
                "site": np.repeat([str(site) for site in self.sites], len(at) * k),
                "prompt": spread(rows.cpu()),
                "position": spread(places),
                "at": spread(at),
                "rank": np.tile(np.arange(1, k + 1), len(self.sites) * len(at)),
                "id": np.array(ids),
                "token": np.array(names, dtype=object),
                "logit": best.values.flatten().cpu().numpy(),
                "prob": logits.softmax(-1).gather(-1, best.indices).flatten().cpu().numpy(),
            }
        )


def logit_lens(
    model: HookedModel,
    prompts: Any,
    positions: Literal["last", "all"] | Int[Tensor, "batch target"] = "last",
    *,
    norm: Literal["own", "frozen"] = "own",
    kinds: Sequence[str] = ("embed", "resid_post"),
    cap: Literal["post", "pre"] = "post",
) -> LogitLens:
    """Logits of every layer's residual stream, as if the model ended there.

    Args:
        positions: each prompt's ``"last"`` token, ``"all"``, or positions [batch, target] with -1 where absent.
        norm: the final norm at each residual's ``"own"`` scale (the classical lens), or ``"frozen"`` at the scale it
            has on the last residual.
        kinds: residuals to read, of every layer: `embed`, `resid_pre`, `resid_mid`, `resid_post`.
        cap: logits ``"post"`` or ``"pre"`` the final soft-cap, in families that have one; only pre-cap logits add up.

    Raises:
        OptionError: an unknown option, positions outside the prompts.
        SiteError: a kind that the model does not have.
        ModelError: ``"frozen"`` with a final norm that is no LayerNorm or RMSNorm.
    """
    check_choice("norm", norm, ("own", "frozen"))
    check_choice("cap", cap, ("post", "pre"))
    for kind in kinds:
        check_choice("residual kind", kind, RESIDUALS)
    prompts = model.check_prompts(prompts)
    where = _positions(prompts, positions)
    sites = tuple(model.sites(*kinds))
    last, final = Site("resid_post", model.shape.n_layers - 1), Site("resid_final")
    run = model.run(prompts, record=[*{*sites, last, final}], logits="none")
    rows, targets = (where >= 0).nonzero(as_tuple=True)
    at = {site: run[site][rows, where[rows, targets]] for site in run.cache}
    norm_at: Any = model.module("final_norm")
    if norm == "frozen":
        norm_at = freeze_module(norm_at, at[last], at[final], "final norm")
    unembed = model.unembed if cap == "post" else model.module("unembed")
    with torch.no_grad():
        read = torch.stack([unembed(norm_at(at[site].to(at[final])).to(at[final])) for site in sites])
    logits = read.new_full((len(sites), *where.shape, read.shape[-1]), torch.nan)
    logits[:, rows, targets] = read
    unit = unit_of(model, at[final]) if cap == "pre" else "logits"
    return LogitLens(sites, where, logits, norm, unit, token_labels(prompts), model.tokenizer)


def token_labels(prompts: Prompts) -> tuple[tuple[str, ...], ...]:
    """Each prompt's tokens as strings; their ids where no tokenizer was at hand."""
    return prompts.tokens or tuple(tuple(map(str, row)) for row in prompts.rows())


def unit_of(model: HookedModel, resid: Float[Tensor, "row d_model"]) -> Unit:
    """What the unembedding's own output is here: ``"pre-cap logits"`` when the model soft-caps it afterwards."""
    with torch.no_grad():
        capped = not torch.equal(model.unembed(resid[:1]), model.module("unembed")(resid[:1]))
    return "pre-cap logits" if capped else "logits"


def _positions(prompts: Prompts, positions: Any) -> Int[Tensor, "batch target"]:
    """Positions [batch, target], -1 where absent, known to lie inside the prompts."""
    if isinstance(positions, str):
        check_choice("positions", positions, ("last", "all"))
        return prompts.last[:, None] if positions == "last" else prompts.position_ids.masked_fill(~prompts.mask, -1)
    where = positions.to(prompts.ids.device)
    if where.ndim != 2 or len(where) != len(prompts):
        raise OptionError(f"positions have shape {tuple(where.shape)}; [{len(prompts)}, target] is needed.")
    outside = ((where >= prompts.lengths[:, None]) | (where < -1)).any(1).nonzero()[:, 0].tolist()
    if outside:
        shown = ", ".join(f"row {r}: {where[r].tolist()} of {int(prompts.lengths[r])} tokens" for r in outside[:5])
        raise OptionError(f"positions of {len(outside)} prompts lie outside them ({shown}); -1 means absent.")
    return where
