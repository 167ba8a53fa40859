"""The default backend: any transformers decoder, unmodified, through plain torch hooks.

Sites at module boundaries come from the family's table (`families`); queries, keys, values and patterns from the
registered attention function (`attention`). Hooks live in a ``with`` block and are gone after it, whatever is raised.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from interp.errors import InterventionError, ModelError, SiteError
from interp.intervention import Intervention
from interp.models.attention import ATTENTION_KINDS, AttentionTaps, causal, scaling_of, tapped
from interp.models.base import HookedModel, frozen
from interp.models.check import self_check
from interp.models.families import Point, SiteMap
from interp.models.hooks import (
    Pass,
    call_taps,
    check_sites,
    follow,
    joined,
    on_input,
    on_output,
    prefix,
    replaced,
    skipped,
    suffix_mask,
)
from interp.models.runs import AttentionRule, Captured, Identity, Shape, Tap, Taps, Targets, Wave
from interp.models.structure import drops, embedding_of, family_map, head_of, shape_of, submodule
from interp.models.truncation import LinearHead, truncated
from interp.regions import Layout
from interp.site import KINDS, Site
from interp.tokens import Prompts, from_ids


class HookedHF(HookedModel):
    """A `transformers` decoder (or a user's `nn.Module` with a site map) whose activations can be read and changed.

    Args:
        model: the model; it is used as it is and never changed.
        tokenizer: its tokenizer, or None when prompts come as token ids.
        site_map: where the sites are, for a model that is in no family of the table.
        shape: sizes, for a module without a transformers configuration.
        identity: where the model came from.
        check: run the self-check of `interp.models.check` (one small forward or two).

    Raises:
        ModelError: an unsupported family, a map that does not fit, or a failed self-check; with the cure.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        site_map: SiteMap | None = None,
        shape: Shape | None = None,
        identity: Identity | None = None,
        check: bool = True,
    ) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        self.identity = identity or Identity()
        config = getattr(model, "config", None)
        self.family = str(getattr(config, "model_type", type(model).__name__))
        self.map = site_map or family_map(model)
        self.shape = shape or shape_of(model)
        self._accepts = set(inspect.signature(model.forward).parameters)
        self._blocks = list(submodule(model, self.map.blocks, "blocks"))  # type: ignore[call-overload]
        if len(self._blocks) != self.shape.n_layers:
            raise ModelError(
                f"{self.map.blocks} holds {len(self._blocks)} blocks, the configuration says {self.shape.n_layers}."
            )
        self._norm = submodule(model, self.map.final_norm, "final_norm")
        self._head = head_of(model, self.map)
        self.longest = int(config.max_position_embeddings) if self.map.learned_positions and config else None
        self._softcap = getattr(config, "final_logit_softcapping", None)
        self._attentions: list[Any] = self._attention_modules()
        self._check_map()
        self._mask_cache: dict[Any, list[Tensor | None]] = {}
        self.unavailable = self._find_unavailable()
        self.resumes = self.has_sink = self._recomputes = False
        self._block_returns_tuple = False
        self_check(self, thorough=check)

    # --- where things are ---

    def _attention_modules(self) -> list[nn.Module]:
        if not self.map.attention:
            return []
        return [submodule(b, self.map.attention, f"attention of block {i}") for i, b in enumerate(self._blocks)]

    def _point(self, kind: str) -> Point | None:
        if kind in self.map.points:
            return self.map.points[kind]
        return {"resid_pre": Point("", "input"), "resid_post": Point("", "output")}.get(kind)

    def _check_map(self) -> None:
        """Resolve every point of every block, so that a wrong entry is named before anything runs."""
        for kind, point in self.map.points.items():
            if self.map.parallel and kind == "resid_mid":
                continue
            for number, block in enumerate(self._blocks):
                submodule(block, point.path, f"{kind} of block {number}")

    def _find_unavailable(self) -> dict[str, str]:
        reasons = {}
        for kind in KINDS:
            if kind == "resid_mid" and self.map.parallel:
                reasons[kind] = "attention and MLP run in parallel and read the same residual (resid_pre)."
            elif kind in ("embed", "resid_final") or self._point(kind) is not None:
                continue
            elif kind not in ATTENTION_KINDS:
                reasons[kind] = "the site map does not say where it is; add a Point for it."
            elif not self._attentions:
                reasons[kind] = "the model does not use transformers' attention interface; add a Point for it."
        return reasons

    def _locate(self, site: Site) -> tuple[nn.Module, str]:
        """Module and side to hook for a site that is no attention-function site."""
        if site.kind == "embed":
            return self._blocks[0], "input"
        if site.kind == "resid_final":
            return self._norm, "output"
        if site == Site("resid_post", self.shape.n_layers - 1):
            return self._norm, "input"  # so that rows resumed after the last block pass here too
        point = self._point(site.kind)
        assert point is not None and site.layer is not None, f"{site} has no point"
        block = self._blocks[site.layer]
        return (block.get_submodule(point.path) if point.path else block), point.side

    def with_head(
        self, layer: int, weight: Float[Tensor, "class d_model"], bias: Float[Tensor, " class"]
    ) -> "HookedHF":
        n_blocks = self.check_site(Site("resid_post", layer)).layer + 1  # type: ignore[operator]
        head = LinearHead(weight.to(self.device), bias.to(self.device))
        made = HookedHF(
            truncated(self.model, self.map, self._head, n_blocks, head), self.tokenizer, site_map=self.map,
            shape=replace(self.shape, n_layers=n_blocks, d_vocab=len(bias), known_ids=self.shape.n_ids),
            identity=self.identity, check=False,
        )  # fmt: skip
        made.has_sink = self.has_sink
        return made

    def module(self, name: Literal["embed", "final_norm", "unembed"]) -> nn.Module:
        if name == "embed":
            return embedding_of(self.model, self.map)
        return self._norm if name == "final_norm" else self._head

    def parameters(self) -> Any:
        return self.model.parameters()

    # --- one hooked pass ---

    @contextmanager
    def _hooked(self, taps: Taps, state: Pass, **attention: Any) -> Iterator[AttentionTaps | None]:
        """Hooks for `taps`, removed on leaving; yields the attention taps when the attention function is needed."""
        in_function = {s for s in taps if s.kind in ATTENTION_KINDS and self._point(s.kind) is None}
        with ExitStack() as stack:
            for site in taps:
                if site not in in_function:
                    stack.enter_context(self._hook(site, taps[site], state))
            active = None
            if in_function or attention:
                layers = {id(module): number for number, module in enumerate(self._attentions)}
                active = AttentionTaps(
                    layers, frozenset(in_function), lambda site, x: call_taps(site, taps[site], x, state), **attention
                )
                configs = {id(m.config): m.config for m in (self.model, *self._attentions) if hasattr(m, "config")}
                stack.enter_context(tapped(list(configs.values()), active))
            yield active

    @contextmanager
    def _hook(self, site: Site, taps: list[Tap], state: Pass) -> Iterator[None]:
        module, side = self._locate(site)
        change = partial(self._change, site, taps, state)
        if side == "input":
            handle = module.register_forward_pre_hook(partial(on_input, change), with_kwargs=True)
        else:
            handle = module.register_forward_hook(partial(on_output, change))
        try:
            yield
        finally:
            handle.remove()

    def _change(self, site: Site, taps: list[Tap], state: Pass, x: Tensor) -> Tensor | None:
        """The hooked tensor after the site's taps, or None when it stays as it is."""
        shaped = self._to_site(site, x, state)
        new = call_taps(site, taps, shaped, state)
        if new is None or (new is shaped and shaped is x):
            return None
        if site.kind == "resid_mid":
            # The skip connection holds this same tensor, so only an edit in place reaches both readers.
            x.copy_(new.reshape(x.shape))
            return None
        return new.reshape(x.shape)

    def _to_site(self, site: Site, x: Tensor, state: Pass) -> Tensor:
        """The hooked tensor in the site's axes: heads split; batch and position apart where a family flattens them."""
        if site.axes[-1] != "d_head" or x.ndim == 4:
            return x if x.ndim != 2 else x.view(-1, state.width, x.shape[-1])
        heads = self.shape.n_kv_heads if "kv_head" in site.axes else self.shape.n_heads
        return x.view(*x.shape[:-1], heads, -1)

    def _forward(self, prompts: Prompts, taps: Taps, targets: Targets) -> Tensor | None:
        self._refuse_dropout()
        state = Pass(Layout(torch.zeros_like(prompts.lengths), prompts.lengths), prompts.ids.shape[1])
        inputs = self._inputs(prompts.ids, prompts.position_ids, prompts.mask)
        with self._hooked(taps, state), self._kept_inputs(taps, state):
            if isinstance(targets, str) and targets == "all" or self._body is self.model:
                logits, hidden = _logits(self.model(**inputs)), None
            else:
                logits, hidden = None, _hidden(self._body(**inputs))
        check_sites(taps, state)
        if isinstance(targets, str) and targets == "none":
            return None
        if isinstance(targets, str) and targets == "all":
            return logits
        where = prompts.last[:, None] if isinstance(targets, str) else targets.to(prompts.ids.device)
        rows = torch.arange(len(prompts), device=where.device)[:, None]
        where = where.clamp(min=0)
        return logits[rows, where] if hidden is None else self.unembed(hidden[rows, where])  # type: ignore[index]

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        before, self._recomputes = self._recomputes, True
        try:
            yield
        finally:
            self._recomputes = before

    @contextmanager
    def _kept_inputs(self, taps: Taps, state: Pass) -> Iterator[None]:
        """Within `recomputing`, blocks keep their inputs only; the backward pass runs them again, with these taps."""
        if not (self._recomputes and torch.is_grad_enabled()):
            yield
            return
        running = True

        def checkpointed(forward: Any) -> Any:
            def again(*args: Any, **kwargs: Any) -> Any:
                if running:
                    return forward(*args, **kwargs)
                with frozen(self.parameters()), self._hooked(taps, Pass(state.layout, state.width)):
                    return forward(*args, **kwargs)

            return partial(checkpoint, again, use_reentrant=False)

        try:
            with replaced(self._blocks, checkpointed):
                yield
        finally:
            running = False

    @property
    def _body(self) -> nn.Module:
        """The model without its unembedding; the whole model where that cannot be told apart."""
        body = getattr(self.model, "base_model", None)
        return body if isinstance(body, nn.Module) else self.model

    def _inputs(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> dict[str, Any]:
        given = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, "use_cache": False}
        if mask is not None:
            given["attention_mask"] = mask.long()
        return {k: v for k, v in given.items() if v is not None and (k in self._accepts or k == "input_ids")}

    def _refuse_dropout(self) -> None:
        active = [name or type(m).__name__ for name, m in self.model.named_modules() if m.training and drops(m)]
        if active:
            raise ModelError(
                f"dropout is active in {len(active)} modules ({', '.join(active[:3])}, ...), so runs would differ "
                "at random; call model.eval() first."
            )

    # --- resuming ---

    def capture(
        self, prompts: Prompts, interventions: Sequence[Intervention] = (), record: Sequence[Site] = ()
    ) -> Captured:
        prompts = self.check_prompts(prompts)
        lengths = sorted(set(prompts.lengths.tolist()))
        if len(lengths) > 1:
            raise InterventionError(f"capture needs prompts of one length; got {lengths}; group them by length.")
        layers = range(self.shape.n_layers)
        residuals = [Site("resid_pre", layer) for layer in layers] + [Site("resid_post", layers[-1])]
        keys, values = ([Site(kind, layer) for layer in layers] for kind in "kv")
        run = self.run(prompts, interventions, [*residuals, *keys, *values, *record], logits="none")
        return Captured(
            run,
            [run[s] for s in residuals],
            [run[s].transpose(1, 2) for s in keys],
            [run[s].transpose(1, 2) for s in values],
            self._masks(prompts.ids[:1]),
        )

    def _masks(self, ids: Int[Tensor, "1 pos"]) -> list[Tensor | None]:
        """Each layer's attention mask [1, 1, pos, pos] for one unpadded prompt, None for plain causal."""
        width = ids.shape[1]
        key = (width, ids.device, *(m.config._attn_implementation for m in self._attentions[:1]))
        if key not in self._mask_cache:
            seen = self._attention_calls(from_ids(ids)).seen
            self._mask_cache = {key: [seen[layer] for layer in range(self.shape.n_layers)]}
        return self._mask_cache[key]

    def resume(self, wave: Wave, taps: Taps) -> Float[Tensor, "rows pos d_model"]:
        self._refuse_dropout()
        base, first = wave.base, wave.first
        ids = base.run.prompts.ids
        start, n_rows = wave.joins[0][0], wave.joins[0][1].shape[0]
        width = ids.shape[1] - first
        positions = torch.arange(first, ids.shape[1], device=ids.device)[None]
        state = Pass(Layout(positions[0, :1] * 0, positions[0, :1] * 0), width)
        masks = [suffix_mask(mask, first, ids.shape[1], ids.device) for mask in base.masks]
        outputs: list[Tensor] = []
        with ExitStack() as stack:
            stack.enter_context(skipped(self._blocks[:start], self._block_returns_tuple))
            for layer, rows in wave.joins:
                stack.enter_context(self._joining(layer, rows, replace=layer == start))
            stack.enter_context(self._hooked(taps, state, prefix=partial(prefix, wave), masks=masks))
            handle = self._norm.register_forward_hook(lambda _, __, output: outputs.append(output))
            stack.callback(handle.remove)
            self._body(**self._inputs(ids[:1, first:].expand(n_rows, -1), positions, None))
        check_sites(taps, state)
        return outputs[0]

    @contextmanager
    def _joining(self, layer: int, rows: Tensor, *, replace: bool) -> Iterator[None]:
        """Within, `rows` enter the running batch at the block's input (the final norm's, after the last block)."""
        module = self._blocks[layer] if layer < len(self._blocks) else self._norm
        join = partial(on_input, partial(joined, rows, replace))
        handle = module.register_forward_pre_hook(join, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def attention_rules(self, prompts: Prompts) -> list[AttentionRule]:
        if not self._attentions:
            raise SiteError(
                f"{self.identity.name} ({self.family}) does not use transformers' attention interface, so its scores "
                "cannot be computed from queries and keys; leave the QK fix out."
            )
        prompts = self.check_prompts(prompts)
        calls = self._attention_calls(prompts)
        return [self._rule(calls.seen[n], calls.options[n], prompts) for n in range(self.shape.n_layers)]

    def _attention_calls(self, prompts: Prompts) -> AttentionTaps:
        """What each attention function was given in a forward of these prompts."""
        state = Pass(Layout(torch.zeros_like(prompts.lengths), prompts.lengths), prompts.ids.shape[1])
        with torch.no_grad(), self._hooked({}, state, masks=None) as active:
            self._body(**self._inputs(prompts.ids, prompts.position_ids, prompts.mask))
        assert active is not None, "an attention option keeps the attention taps active"
        return active

    def _rule(self, mask: Tensor | None, options: Mapping[str, Any], prompts: Prompts) -> AttentionRule:
        n = prompts.ids.shape[1]
        visible = causal(n, n, prompts.ids.device)
        if mask is not None:
            visible = mask[..., :n] if mask.dtype == torch.bool else mask[..., :n] == 0
        visible = visible.expand(len(prompts), 1, n, n)
        return AttentionRule(visible, scaling_of(options, self.shape.d_head), options.get("softcap"))

    def block_alone(self, layer: int) -> AbstractContextManager[None]:
        return skipped([*self._blocks[:layer], *self._blocks[layer + 1 :]], self._block_returns_tuple)

    def project_heads(
        self, layer: int, z: Float[Tensor, "*batch head d_head"]
    ) -> Float[Tensor, "*batch piece d_model"]:
        before, after = self._point("z"), self._point("attn_proj")
        if before is None or after is None or before.path != after.path:
            raise SiteError(
                f"{self.identity.name} ({self.family}): the site map gives z and attn_proj at different modules, so no "
                "head can be projected alone; map both to the output projection."
            )
        projection = self._blocks[layer].get_submodule(before.path)
        n_heads, d_head = z.shape[-2:]
        rows = z.reshape(-1, n_heads, 1, d_head)
        alone = rows * torch.eye(n_heads, dtype=z.dtype, device=z.device)[:, :, None]  # [row, head, head, d_head]
        bias = projection(z.new_zeros(1, 1, n_heads * d_head))
        heads = projection(alone.flatten(2)) - bias
        return torch.cat([heads, bias.expand(len(heads), 1, -1)], 1).unflatten(0, z.shape[:-2])

    def unembed(self, resid: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        return self._cap(self._head(resid))

    def answer_logits(
        self, resid: Float[Tensor, "*batch d_model"], ids: Int[Tensor, "*batch choice"]
    ) -> Float[Tensor, "*batch choice"]:
        head = self._head
        hooked = head._forward_hooks or head._forward_pre_hooks
        if hooked or type(head) is not nn.Linear or head.weight.device != resid.device:  # quantised, or offloaded
            return self.unembed(resid).gather(-1, ids)
        logits = (head.weight[ids] @ resid.unsqueeze(-1)).squeeze(-1)
        return self._cap(logits if head.bias is None else logits + head.bias[ids])

    def _cap(self, logits: Tensor) -> Tensor:
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap

    # --- generation ---

    def _generate(
        self, prompts: Prompts, taps: Taps, max_new_tokens: int, use_cache: bool, options: dict[str, Any]
    ) -> tuple[list[list[int]], Int[Tensor, " batch"]]:
        self._refuse_dropout()
        if not hasattr(self.model, "generate"):
            raise ModelError(f"{type(self.model).__name__} has no generate(); only transformers models have.")
        width = prompts.ids.shape[1]
        pads = width - prompts.lengths
        columns = (torch.arange(width, device=pads.device) - pads[:, None]).clamp(min=0)
        mask = torch.arange(width, device=pads.device) >= pads[:, None]
        config = getattr(self.model, "generation_config", None)
        stop = options.get("eos_token_id", getattr(config, "eos_token_id", None))
        fill = getattr(config, "pad_token_id", None)
        stops = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
        fill = fill if fill is not None else (stops[0] if stops else 0)
        state = Pass(Layout(pads, prompts.lengths), width)
        with ExitStack() as stack:
            stack.enter_context(self._hooked(taps, state))
            handle = self.model.register_forward_pre_hook(partial(follow, state), with_kwargs=True)
            stack.callback(handle.remove)
            ids = prompts.ids.gather(1, columns).masked_fill(~mask, fill)
            out = self.model.generate(
                ids, attention_mask=mask.long(), max_new_tokens=max_new_tokens, use_cache=use_cache,
                **{"do_sample": False, "num_beams": 1, "pad_token_id": fill, **options},
            )  # fmt: skip
        return [_until_stop(row[width:].tolist(), stops) for row in out], pads


def _logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits if hasattr(output, "logits") else output[0]


def _hidden(output: Any) -> Tensor:
    return output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]


def _until_stop(ids: list[int], stops: list[int]) -> list[int]:
    """The ids up to and with the first stop token."""
    ends = [i for i, token in enumerate(ids) if token in stops]
    return ids[: ends[0] + 1] if ends else ids
