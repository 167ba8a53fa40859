"""The contract of a hooked model: run prompts with interventions, record sites, take gradients, resume, generate.

A backend supplies a handful of primitives (`_forward`, `capture`, `resume`, `_generate`); everything a method calls is
built on them here, once, so that all backends obey the same laws:

- a recorded activation is a copy, detached unless asked otherwise, taken after the interventions at its site;
- every intervention must fire, and every recorded site must be reached exactly once a forward;
- positions count from each prompt's first real token, and padding cannot reach a result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InterventionError, MetricError, ModelError, OptionError, PromptError, SiteError
from interp.intervention import Intervention
from interp.models.runs import (
    AttentionRule,
    Captured,
    Generation,
    Gradients,
    Identity,
    Run,
    Shape,
    Taps,
    Targets,
    Watched,
    Wave,
)
from interp.regions import Layout
from interp.site import KINDS, Site
from interp.tokens import Prompts, from_ids, token_strings, tokenize


class HookedModel(ABC):
    """A decoder whose activations can be read and changed. Backends: `interp.models.hf` and others."""

    shape: Shape
    tokenizer: Any
    identity: Identity
    family: str
    unavailable: Mapping[str, str]
    """site kind -> why this model does not offer it."""
    longest: int | None = None
    """most tokens a prompt can have, where positions are looked up in a learned table."""
    has_sink: bool
    """whether the residual at position 0 dwarfs the others (an attention sink), found on load."""
    resumes: bool
    """whether `capture` and `resume` work here (else the engine runs a plain loop)."""

    # --- primitives of a backend ---

    @abstractmethod
    def _forward(self, prompts: Prompts, taps: Taps, targets: Targets) -> Tensor | None:
        """Logits [batch, target, d_vocab] with `taps` called at their sites, under the caller's grad mode."""

    @abstractmethod
    def capture(
        self, prompts: Prompts, interventions: Sequence[Intervention] = (), record: Sequence[Site] = ()
    ) -> Captured:
        """Run prompts of one length and keep what is needed to resume from it."""

    @abstractmethod
    def resume(self, wave: Wave, taps: Taps) -> Float[Tensor, "rows pos d_model"]:
        """`resid_final` of the wave's rows; taps see the rows that have joined so far."""

    @abstractmethod
    def unembed(self, resid: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Logits of a `resid_final`."""

    @abstractmethod
    def answer_logits(
        self, resid: Float[Tensor, "*batch d_model"], ids: Int[Tensor, "*batch choice"]
    ) -> Float[Tensor, "*batch choice"]:
        """Logits of chosen tokens only; each position has choices of its own."""

    @abstractmethod
    def _generate(
        self, prompts: Prompts, taps: Taps, max_new_tokens: int, use_cache: bool, options: dict[str, Any]
    ) -> tuple[list[list[int]], Int[Tensor, " batch"]]:
        """New ids of each row, and each row's left padding; taps are called in every forward."""

    @abstractmethod
    def attention_rules(self, prompts: Prompts) -> Sequence[AttentionRule]:
        """How each layer turns queries and keys into attention probabilities on these prompts.

        Raises:
            SiteError: attention is not computed where that can be seen.
        """

    @abstractmethod
    def recomputing(self) -> AbstractContextManager[None]:
        """Within, differentiable runs keep the blocks' inputs only, and their backward pass runs each block again: the
        gradients are the same, in less memory and more time."""

    @abstractmethod
    def block_alone(self, layer: int) -> AbstractContextManager[None]:
        """Within, all other blocks hand their input on, so that `run` runs this one on the residual patched into it."""

    @abstractmethod
    def project_heads(
        self, layer: int, z: Float[Tensor, "*batch head d_head"]
    ) -> Float[Tensor, "*batch piece d_model"]:
        """The pieces that add up to `attn_proj`: each head's own and, last, the projection's bias.

        Raises:
            SiteError: the output projection is not known as one module.
        """

    @abstractmethod
    def with_head(
        self, layer: int, weight: Float[Tensor, "class d_model"], bias: Float[Tensor, " class"]
    ) -> "HookedModel":
        """The decoder of the blocks up to `layer` whose logits are weight resid_post[layer] + bias, one column a class.

        It shares its weights with this one, and has no final norm: `resid_final` is `resid_post[layer]`.
        """

    @abstractmethod
    def module(self, name: Literal["embed", "final_norm", "unembed"]) -> torch.nn.Module:
        """A named part of the model: token embedding, final norm, unembedding."""

    # --- what callers use ---

    @property
    def device(self) -> torch.device:
        """Device of the first parameter that is in memory; the CPU when all are offloaded."""
        return next((p.device for p in self.parameters() if not p.is_meta), torch.device("cpu"))

    @abstractmethod
    def parameters(self) -> Any:
        """The model's parameters."""

    def prompts(self, given: Any) -> Prompts:
        """`Prompts` from texts, chats, token ids, or a tokenizer's tensors ``input_ids`` and ``attention_mask``."""
        if isinstance(given, Prompts):
            return given
        if isinstance(given, Mapping):
            if not isinstance(given.get("input_ids"), Tensor):
                raise PromptError(
                    f"prompts are a mapping with {list(given)}; it needs the tensor 'input_ids' (return_tensors='pt')."
                )
            return from_ids(given["input_ids"], given.get("attention_mask"), self.tokenizer)
        if isinstance(given, Tensor):
            return from_ids(given, tokenizer=self.tokenizer)
        if not _holds_ids(given):
            return tokenize(self.tokenizer, given)
        rows = given if isinstance(given[0], Sized) else [given]
        return from_ids([list(map(int, row)) for row in rows], tokenizer=self.tokenizer)

    def sites(self, *kinds: str) -> list[Site]:
        """Every site this model offers, or all of the given kinds, in forward order.

        Raises:
            SiteError: a kind that does not exist, or that this model does not offer, with the reason.
        """
        chosen = kinds or [k for k in KINDS if k not in self.unavailable]
        sites = []
        for kind in chosen:
            layers: Sequence[int | None] = range(self.shape.n_layers) if _layered(kind) else [None]
            sites += [self.check_site(Site(kind, layer)) for layer in layers]
        return sorted(sites, key=lambda s: s.order)

    def check_site(self, site: Site | str) -> Site:
        """The site, once it is known to exist in this model."""
        site = Site.parse(site)
        if site.kind in self.unavailable:
            raise SiteError(f"{self.identity.name} ({self.family}) has no {site.kind}: {self.unavailable[site.kind]}")
        if site.layer is not None and site.layer >= self.shape.n_layers:
            raise SiteError(
                f"{site}: layer out of range; {self.identity.name} has layers 0 to {self.shape.n_layers - 1}."
            )
        return site

    def check_sites(self, given: Sequence[Site | str]) -> list[Site]:
        """The sites, each once, when all exist in this model; else one error that names every fault."""
        if isinstance(given, str | Site) or callable(given):
            what, cure = ("a function", "['z[0]']") if callable(given) else (f"one '{given}'", f"['{given}']")
            raise SiteError(f"sites are given as {what}; write a list, such as {cure}.")
        known: dict[Site, None] = {}
        faults = []
        for site in given:
            try:
                known[self.check_site(site)] = None
            except SiteError as error:
                faults.append(str(error).rstrip("."))
        if faults:
            raise SiteError("; ".join(faults) + ".")
        return list(known)

    def run(
        self,
        prompts: Any,
        interventions: Sequence[Intervention] = (),
        record: Sequence[Site | str] = (),
        *,
        logits: Targets = "last",
        differentiable: bool = False,
    ) -> Run:
        """One forward pass.

        Args:
            prompts: texts, messages, ids or `Prompts`.
            interventions: applied in this order.
            record: sites to keep, as they flow on after the interventions.
            logits: ``"last"`` (each prompt's last token), ``"all"``, ``"none"``, or positions [batch, target].
            differentiable: keep the autograd graph in logits and cache; else everything is detached.

        Raises:
            SiteError, InterventionError, PromptError, ModelError: before the forward, all faults of a kind together;
                InterventionError also after it, for an intervention that touched nothing.
        """
        prompts = self.check_prompts(prompts, logits)
        sites = self.check_sites(record)
        cache: dict[Site, Tensor] = {}
        taps, done = self._intervention_taps(interventions, prompts)
        for site in sites:
            taps.setdefault(site, []).append(partial(_record, site, cache, differentiable))
        fired = dict.fromkeys(taps, 0)
        for site in taps:
            taps[site].insert(0, partial(_count, site, fired))
        with torch.set_grad_enabled(differentiable):
            result = self._forward(prompts, _in_order(taps), logits)
        _check_fired(interventions, done)
        return Run(prompts, result, {s: cache[s] for s in sites}, dict(fired))

    def gradients(
        self,
        prompts: Any,
        metric: Callable[[Float[Tensor, "batch target d_vocab"]], Float[Tensor, " batch"]],
        sites: Sequence[Site | str],
        interventions: Sequence[Intervention] = (),
        *,
        logits: Targets = "last",
    ) -> Gradients:
        """Gradients at `sites` of the metric's sum over prompts, so each row holds its own prompt's gradient.

        The model's grad flags and `.grad` fields stay as they are. A site without a path to the metric gets zeros.
        """
        run = self.watch(prompts, metric, sites, interventions, logits=logits)
        grads = torch.autograd.grad(run.values.sum(), list(run.sites.values()), allow_unused=True)
        pairs = zip(run.sites.items(), grads, strict=True)
        return Gradients(
            run.values.detach(),
            {site: x.detach().clone() for site, x in run.sites.items()},
            {site: torch.zeros_like(x) if g is None else g for (site, x), g in pairs},
        )

    def watch(
        self,
        prompts: Any,
        metric: Callable[[Float[Tensor, "batch target d_vocab"]], Float[Tensor, " batch"]],
        sites: Sequence[Site | str],
        interventions: Sequence[Intervention] = (),
        *,
        logits: Targets = "last",
    ) -> Watched:
        """A forward whose metric and sites keep their autograd graph, for gradients between any two of them.

        Raises:
            SiteError: no sites, or sites that do not exist.
            MetricError: a metric without one differentiable value a prompt.
        """
        prompts = self.check_prompts(prompts, logits)
        wanted = self.check_sites(sites)
        if not wanted:
            raise SiteError("no sites were given; name at least one at which to take gradients.")
        watched: dict[Site, Tensor] = {}
        taps, done = self._intervention_taps(interventions, prompts)
        taps.setdefault(Site("embed") if "embed" not in self.unavailable else Site("resid_pre", 0), []).append(_as_leaf)
        for site in wanted:
            taps.setdefault(site, []).append(partial(_watch, site, watched))
        with torch.enable_grad(), frozen(self.parameters()):
            result = self._forward(prompts, _in_order(taps), logits)
            _check_fired(interventions, done)
            if result is None:
                raise OptionError("logits='none' leaves a metric nothing to read; allowed: 'last', 'all', positions.")
            values = metric(result)
        if values.shape != (len(prompts),):
            raise MetricError(f"the metric gave shape {tuple(values.shape)}; one value a prompt is needed.")
        if not values.requires_grad:
            raise MetricError(
                "the metric does not depend on the logits in a differentiable way (accuracy, say, moves in steps); "
                "use one that does, such as logit_diff."
            )
        return Watched(prompts, values, {site: watched[site] for site in wanted})

    def generate(
        self,
        prompts: Any,
        max_new_tokens: int = 20,
        interventions: Sequence[Intervention] = (),
        record: Sequence[Site | str] = (),
        *,
        use_cache: bool = True,
        **options: Any,
    ) -> Generation:
        """Continue prompts (greedily unless `options` for the model's own ``generate`` say otherwise).

        Interventions apply at absolute positions in every step, so the text does not depend on `use_cache`:
        ``pos="prompt"``, ``"last prompt token"``, ``"new tokens"``, ``"all"``, or numbers.

        Args:
            record: sites to keep over all steps (not `pattern`; needs ``use_cache=True``).
        """
        prompts = self.check_prompts(prompts, "last")
        sites = self.check_sites(record)
        if sites and (not use_cache or any(s.kind == "pattern" for s in sites)):
            raise OptionError("generate records sites only with use_cache=True, and never 'pattern'; run() does both.")
        if max_new_tokens < 1:
            raise OptionError(f"max_new_tokens={max_new_tokens}; at least 1 is needed.")
        self._check_longest(prompts, max_new_tokens - 1)
        if other := [f"{name}={options[name]}" for name, own in _OWN_ROWS.items() if options.get(name, own) != own]:
            raise OptionError(f"{', '.join(other)} gives rows that are not the prompts' own; leave it out.")
        pieces: dict[Site, list[Tensor]] = {s: [] for s in sites}
        taps, done = self._intervention_taps(interventions, prompts, generating=True)
        for site in sites:
            taps.setdefault(site, []).append(partial(_record_piece, pieces[site]))
        with torch.no_grad():
            new, pads = self._generate(prompts, _in_order(taps), max_new_tokens, use_cache, options)
        _check_fired(interventions, done)
        texts = tuple("".join(token_strings(self.tokenizer, row)) if self.tokenizer is not None else "" for row in new)
        cache = {s: torch.cat(parts, 1) for s, parts in pieces.items()}
        return Generation(prompts, tuple(map(tuple, new)), texts, cache, pads)

    # --- checks shared by the verbs ---

    def check_prompts(self, given: Any, logits: Targets = "last") -> Prompts:
        """Prompts on this model's device, once ids and target positions are known to fit."""
        prompts = self.prompts(given).to(self.device)
        if not len(prompts):
            raise PromptError("no prompts were given; pass at least one.")
        ids, mask = prompts.ids, prompts.mask
        outside = ids[mask & ((ids < 0) | (ids >= self.shape.n_ids))].tolist()
        if outside:
            raise ModelError(
                f"token ids {outside[:10]} are outside the vocabulary of {self.identity.name} "
                f"(0 to {self.shape.n_ids - 1}); the prompts were made with another tokenizer."
            )
        self._check_longest(prompts)
        _check_targets(prompts, logits)
        return replace(prompts, ids=ids.masked_fill(~mask, 0))

    def _check_longest(self, prompts: Prompts, more: int = 0) -> None:
        """Raise for prompts that, with `more` new tokens, outgrow the learned positions."""
        rows = [row for row, n in enumerate(prompts.lengths.tolist()) if self.longest and n + more > self.longest]
        if rows:
            new = f" and {more + 1} new ones" if more else ""
            raise PromptError(
                f"prompts {rows[:10]} have up to {int(prompts.lengths.max())} tokens{new}; {self.identity.name} "
                f"({self.family}) has learned {self.longest} positions; shorten them."
            )

    def _intervention_taps(
        self, interventions: Sequence[Intervention], prompts: Prompts, generating: bool = False
    ) -> tuple[Taps, dict[int, int]]:
        """Taps of the interventions, and a tally of how often each fired; every fault is raised here, together."""
        if isinstance(interventions, Intervention):
            raise InterventionError(f"interventions are given as one {type(interventions).__name__}; write a list.")
        lengths = prompts.lengths.tolist()
        faults = []
        for one in interventions:
            if not isinstance(one, Intervention):
                raise InterventionError(f"{one!r} is not an intervention; make one with Patch, Zero, Scale, Add, Edit.")
            self.check_site(one.site)
            faults += one.faults(self.shape.sizes(one.site), lengths)
            if generating:
                faults += one.generation_faults()
            if one.pos == "new tokens" and not generating:
                faults.append(f"{one}: there are no new tokens in run(); use generate()")
        if faults:
            raise InterventionError("; ".join(faults) + ".")
        done: dict[int, int] = dict.fromkeys(range(len(interventions)), 0)
        taps: Taps = {}
        for number, one in enumerate(interventions):
            taps.setdefault(one.site, []).append(partial(_apply, one, number, done))
        return taps, done


_OWN_ROWS = {"num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}
"""Options of transformers' ``generate`` with the values at which each row that runs, or returns, is one prompt's."""


class frozen:  # noqa: N801 - reads as a statement: with frozen(parameters)
    """Context in which no parameter asks for a gradient; the flags come back as they were."""

    def __init__(self, parameters: Any) -> None:
        self._parameters = parameters
        self._asked: list[torch.nn.Parameter] = []

    def __enter__(self) -> None:
        for parameter in self._parameters:
            if parameter.requires_grad:
                self._asked.append(parameter)
                parameter.requires_grad_(False)

    def __exit__(self, *_: object) -> None:
        for parameter in self._asked:
            parameter.requires_grad_(True)


def _holds_ids(given: Any) -> bool:
    """Whether these are token ids: numbers, or rows of numbers (an empty row among them), and no texts or messages."""
    first = given[0] if len(given) else ""
    if isinstance(first, Sized) and not isinstance(first, str | Mapping):
        first = first[0] if len(first) else 0  # type: ignore[index]
    return not isinstance(first, str | Mapping)


def _check_targets(prompts: Prompts, logits: Targets) -> None:
    """Raise unless `logits` is a known word or names positions that every prompt has (-1: absent)."""
    if isinstance(logits, str):
        if logits not in ("last", "all", "none"):
            raise OptionError(f"logits={logits!r}; allowed: 'last', 'all', 'none', or positions [batch, target].")
        return
    if logits.is_floating_point() or logits.ndim != 2 or len(logits) != len(prompts):
        raise OptionError(
            f"logits positions are {logits.dtype} {tuple(logits.shape)}; integers [{len(prompts)}, target] are needed."
        )
    lengths = prompts.lengths.to(logits.device)[:, None]
    outside = ((logits < -1) | (logits >= lengths)).nonzero().tolist()
    if outside:
        found = [f"position {int(logits[r, t])} of prompt {r} ({int(lengths[r])} tokens)" for r, t in outside]
        raise OptionError(f"logits asked at {', '.join(found)}; allowed from 0, or -1 where absent.")


def _layered(kind: str) -> bool:
    return Site("embed").kind != kind and (kind not in KINDS or KINDS[kind].layered)


def _in_order(taps: Taps) -> Taps:
    """Taps in forward order of their sites, so that several at one module fire in that order."""
    return {site: taps[site] for site in sorted(taps, key=lambda s: s.order)}


# Taps, once `partial` has given them all but their last two arguments.


def _apply(one: Intervention, number: int, done: dict[int, int], x: Tensor, layout: Layout) -> Tensor | None:
    new = one.apply(x, layout)
    done[number] += new is not None
    return new


def _count(site: Site, fired: dict[Site, int], x: Tensor, layout: Layout) -> None:
    fired[site] += 1


def _record(site: Site, cache: dict[Site, Tensor], differentiable: bool, x: Tensor, layout: Layout) -> None:
    cache[site] = x.clone() if differentiable else x.detach().clone()


def _record_piece(pieces: list[Tensor], x: Tensor, layout: Layout) -> None:
    seen = sum(p.shape[1] for p in pieces) - layout.first
    pieces.append(x[:, max(seen, 0) :].detach().clone())


def _watch(site: Site, watched: dict[Site, Tensor], x: Tensor, layout: Layout) -> Tensor:
    # A copy no other part of the model reads (some hand one tensor to two sublayers) or writes into.
    watched[site] = x.clone()
    return watched[site].clone()


def _as_leaf(x: Tensor, layout: Layout) -> Tensor:
    return x if x.requires_grad else x.detach().requires_grad_(True)


def _check_fired(interventions: Sequence[Intervention], done: dict[int, int]) -> None:
    silent = [str(one) for number, one in enumerate(interventions) if not done[number]]
    if silent:
        raise InterventionError(f"not applied (the site fired 0 times at these positions): {'; '.join(silent)}.")
