"""Making feature cards: one pass of the model over the prompts, then one card a feature.

Of every batch all features are encoded (a top-k needs them), and the wanted ones' columns are kept. Padding and
positions that a featurizer skips never count.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from interp.card_parts import Namer, Seen, contexts, plain, statistics, top_tokens
from interp.cards import FeatureCard, TokenValue
from interp.circuit import Circuit
from interp.errors import CircuitError, ModelError, OptionError, PromptError, SiteError, nearest
from interp.featurizers.base import Affine, Featurizer, checked_featurizers, flat
from interp.models.base import HookedModel
from interp.nodes import Node
from interp.readouts.directions import direction_logits
from interp.tokens import Prompts, batches, gap_between, token_strings

LENS_ROWS = 64  # directions read through the unembedding at once


def feature_cards(
    model: HookedModel,
    units: Mapping[Featurizer, Sequence[int]],
    prompts: Any,
    *,
    effects: Mapping[str, float] | None = None,
    top: int = 10,
    window: int = 16,
    tokens: int = 10,
    at_least: int = 3,
    batch: int = 16,
    progress: bool = True,
) -> list[FeatureCard]:
    """Cards of chosen features, all from one pass over the prompts, in the order in which the features are given.

    Args:
        units: the features wanted of each featurizer, such as ``{dictionary: [17, 42]}``.
        prompts: texts or `Prompts`; pieces of running text show most (`interp.text.contexts`).
        effects: numbers for the cards by node text, such as scores; NaN means none.
        top: contexts a card, at most one a prompt; prompts in which the feature is 0 at its largest are left out.
        window: tokens shown on each side of a context's maximum.
        tokens: tokens in each of a card's lists.
        at_least: how often a token must occur to be among the top tokens.
        batch: prompts in one pass.
        progress: show a bar where there is a terminal.

    Raises:
        OptionError: units that a featurizer lacks, effects of other nodes, a size out of range; all of a kind together.
        PromptError: no token left to look at.
        ModelError: features that are not finite.
    """
    sizes = {"top": top, "tokens": tokens, "at_least": at_least, "batch": batch}
    if min(sizes.values()) < 1 or window < 0:
        raise OptionError(f"window={window}, {sizes}; allowed: window from 0, the others from 1.")
    wanted = _wanted(model, units)
    nodes = {one: [str(feature_node(model, one, unit)) for unit in own.tolist()] for one, own in wanted}
    strange = sorted({*(effects or {})}.difference(*nodes.values()))
    if strange:
        hint = nearest(strange[0], sum(nodes.values(), []), 1)
        raise OptionError(f"effects are given for {strange[:3]}, of which no card is made{hint}; leave them out.")
    checked = model.check_prompts(prompts)
    name = _namer(model.tokenizer)
    gap = gap_between(model.tokenizer, checked.rows()[0])

    def in_text(token: int) -> str:
        return gap + name(token)

    cards = []
    for (one, own), seen in zip(wanted, _watched(model, wanted, checked, batch, progress), strict=True):
        lenses = _lenses(model, one, own, tokens, name)
        for column, (unit, node, lens) in enumerate(zip(own.tolist(), nodes[one], lenses, strict=True)):
            effect = (effects or {}).get(node)
            cards.append(
                FeatureCard(
                    node,
                    str(one.site),
                    unit,
                    **statistics(seen.values[:, column]),
                    **lens,
                    contexts=contexts(seen, column, checked, top, window, in_text),
                    top_tokens=top_tokens(seen, column, tokens, at_least, name),
                    effect=None if effect is None or np.isnan(effect) else float(effect),
                )  # fmt: skip
            )
    return cards


def circuit_cards(
    model: HookedModel,
    circuit: Circuit,
    featurizers: Any,
    prompts: Any,
    *,
    score: str | None = None,
    **options: Any,
) -> list[FeatureCard]:
    """Cards of the features that a circuit keeps, with their scores as effects, the largest magnitude first.

    Nodes of one feature at several positions or roles share a card, and their scores are added (those that have one).
    Error terms and whole components have no card.

    Args:
        featurizers: those of the circuit's nodes, as a list or by key; where nodes are plain neurons or coordinates,
            the site's `coordinates`.
        score: over nodes; the circuit's first when None.
        options: as in `feature_cards`.

    Raises:
        CircuitError: no such score, no feature kept, or features whose featurizer is not given.
    """
    names = [name for name, one in circuit.scores.items() if one.over == "nodes"]
    if score is not None and score not in names:
        raise CircuitError(f"no score {score!r} over nodes; this circuit has {names}{nearest(score, names)}.")
    listed = checked_featurizers(model, featurizers)
    by_place = {(one.site, one.key or None): one for one in listed}
    column = circuit.scores[score or names[0]].values if names else np.full(len(circuit.nodes), np.nan)
    scores: dict[tuple[Featurizer, int], list[float]] = {}
    missing: dict[str, None] = {}
    for row in np.flatnonzero(circuit.kept_nodes & (circuit.nodes.unit >= 0) & (circuit.nodes.width == 1)):
        node = circuit.nodes[row]
        one = by_place.get((node.site, node.featurizer))
        if one is None:
            missing[f"{node.featurizer or 'coordinates'} at {node.site}"] = None
        else:
            unit = (node.unit or 0) + (node.head or 0) * model.shape.sizes(one.site)["d"]
            scores.setdefault((one, unit), []).append(float(column[row]))
    if missing or not scores:
        what = f"needs these featurizers too: {', '.join(missing)}" if missing else "keeps no feature"
        raise CircuitError(f"the circuit {what}; cards are made of kept features whose featurizer is given.")
    units: dict[Featurizer, list[int]] = {}
    for one, unit in scores:
        units.setdefault(one, []).append(unit)
    effects = {
        str(feature_node(model, *feature)): float("nan") if np.isnan(given).all() else float(np.nansum(given))
        for feature, given in scores.items()
    }
    cards = feature_cards(model, units, prompts, effects=effects, **options)
    return sorted(cards, key=lambda card: -abs(card.effect or 0.0))


def feature_node(model: HookedModel, one: Featurizer, unit: int) -> Node:
    """The node of a feature at all positions; a coordinate of a site with heads belongs to its head."""
    head = None
    if one.site.has_heads and not one.key:
        head, unit = divmod(unit, model.shape.sizes(one.site)["d"])
    return Node(one.site.kind, one.site.layer, head, featurizer=one.key or None, unit=unit)


def _wanted(
    model: HookedModel, units: Mapping[Featurizer, Sequence[int]]
) -> list[tuple[Featurizer, Int[Tensor, " _"]]]:
    """Every featurizer, on the model's device, with its units, once both are known to be there."""
    if not isinstance(units, Mapping):
        raise OptionError(f"units are a {type(units).__name__}; give a mapping, such as {{dictionary: [17, 42]}}.")
    moved = {one.site: one for one in checked_featurizers(model, list(units))}  # one a site
    wanted, faults = [], []
    for one, own in units.items():
        numbers = torch.as_tensor(own).cpu()
        if numbers.ndim != 1 or not len(numbers) or numbers.is_floating_point() or numbers.dtype == torch.bool:
            faults.append(f"{one}: units {own!r:.60} are no list of whole numbers")
            continue
        outside = numbers[(numbers < 0) | (numbers >= one.n_features)].tolist()
        faults += [f"{one}: units {outside[:10]} (it has 0 to {one.n_features - 1})"] if outside else []
        faults += [f"{one}: units given more than once"] if len(numbers.unique()) < len(numbers) else []
        wanted.append((moved[one.site], numbers.long()))
    if faults:
        raise OptionError(f"{'; '.join(faults)}; give each wanted unit once.")
    return wanted


@torch.no_grad()
def _watched(
    model: HookedModel,
    wanted: Sequence[tuple[Featurizer, Int[Tensor, " _"]]],
    prompts: Prompts,
    batch: int,
    progress: bool,
) -> list[Seen]:
    """What each featurizer's units were, from one pass over the prompts."""
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in wanted]
    record = [one.reads for one, _ in wanted]
    bar = tqdm(total=len(prompts), disable=None if progress else True, desc="cards", unit="prompt", leave=False)
    with bar:
        for rows in batches(len(prompts), batch):
            run = model.run(prompts[rows], record=record, logits="none")
            for own, (one, units) in zip(parts, wanted, strict=True):
                real = run.prompts.mask.clone()
                real[:, : one.skip] = False
                features = one.encode(flat(run[one.reads]).to(real.device)[real])[:, units.to(real.device)]
                prompt, pos = real.nonzero(as_tuple=True)
                own.append((prompt.cpu() + rows[0], pos.cpu(), run.prompts.ids[real].cpu(), features.float().cpu()))
            bar.update(len(rows))
    seen = [Seen(*(torch.cat(pieces).numpy() for pieces in zip(*own, strict=True))) for own in parts]
    for (one, units), found in zip(wanted, seen, strict=True):
        if not len(found.pos):
            raise PromptError(f"{one} skips the first {one.skip} positions, and no prompt is longer; give longer ones.")
        broken = ~np.isfinite(found.values).all(0)
        if broken.any():
            raise ModelError(
                f"{one}: units {units.numpy()[broken][:10].tolist()} are not finite on these prompts; load the model "
                "in a wider dtype, or look at the dictionary."
            )
    return seen


def _lenses(
    model: HookedModel, one: Featurizer, units: Int[Tensor, " unit"], tokens: int, name: Namer
) -> list[dict[str, Any]]:
    """Per unit the tokens that its direction raises and lowers, or why there are none."""
    if not isinstance(one, Affine):
        return [{"promoted": (), "suppressed": (), "no_lens": "its decoder is not affine"} for _ in units]
    found: list[dict[str, Any]] = []
    for some in units.split(LENS_ROWS):
        try:
            logits = direction_logits(model, one.site, one.directions(some.to(model.device)).detach())
        except (SiteError, ModelError) as error:
            return [{"promoted": (), "suppressed": (), "no_lens": str(error)} for _ in units]
        for row in logits:
            no_lens = "" if row.any() else "its direction is zero"
            count = 0 if no_lens else min(tokens, len(row))
            ends = {"promoted": row.topk(count), "suppressed": row.topk(count, largest=False)}
            found.append({"no_lens": no_lens} | {word: _token_values(end, name) for word, end in ends.items()})
    return found


def _token_values(chosen: Any, name: Namer) -> tuple[TokenValue, ...]:
    """Tokens with their logits, as `topk` gives them."""
    pairs = zip(chosen.indices.tolist(), chosen.values.numpy(), strict=True)
    return tuple(TokenValue(name(token), plain(value)) for token, value in pairs)


def _namer(tokenizer: Any) -> Namer:
    """A token's text by its id; the id itself without a tokenizer."""

    @cache
    def name(token: int) -> str:
        return str(token) if tokenizer is None else token_strings(tokenizer, [token])[0]

    return name
