"""Feature cards as a page: read what a feature is about, judge it, and take the judgements away as a file.

One line a card, ``{"node": ..., "verdict": "irrelevant" | "relevant" | "unsure" | null, "note": ...}``.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

import numpy as np

from interp.cards import Context, FeatureCard, TokenValue
from interp.errors import OptionError
from interp.view.card_page import SCRIPT, STYLE
from interp.view.page import write_page
from interp.view.style import visible

VERDICTS = {"irrelevant": "will be removed", "unsure": "stays", "relevant": "stays"}
STRONGEST = 0.85  # opacity behind a card's largest activation; its text must stay readable
ORDERS = {
    "magnitude": "largest effect, either sign",
    "effect": "highest effect",
    "densest": "most often active",
    "rarest": "least often active",
    "given": "as given",
}
HOW = (
    'Is the feature about the task? <b class="out">irrelevant</b>: no, it will be removed. <b class="in">relevant</b>: '
    "yes, it stays. <b>unsure</b>: it stays too."
)
KEYS = (
    "Keys, once a card is clicked: <kbd>i</kbd> irrelevant, <kbd>r</kbd> relevant, <kbd>u</kbd> unsure, the same again "
    "takes it back; <kbd>n</kbd> note; <kbd>j</kbd> next card, <kbd>k</kbd> the one before."
)
HINT = (
    "Blue: activation above 0, red: below, deepest at the card's maximum; point at a token for the number, click a "
    "context to see all of it. Promoted and suppressed: logits of the direction through final norm and unembedding."
)


def view_cards(cards: Sequence[FeatureCard], path: str | Path, *, title: str = "Feature cards") -> Path:
    """Write cards as one page that opens offline: sort, filter, judge each card, download the judgements.

    Judgements survive a reload where the browser allows a page to store them, as long as the cards stay the same.

    Args:
        path: ends in ``.html``.

    Returns:
        the path.

    Raises:
        OptionError: another ending, no cards, or two of one node.
    """
    twice = [node for node, count in Counter(card.node for card in cards).items() if count > 1]
    if twice or not cards:
        what = f"nodes {twice[:5]} have several cards" if twice else "there are no cards"
        raise OptionError(f"{what}; give at least one card, and one a node.")
    content = json.dumps([asdict(card) for card in cards])
    key = f"interp cards {hashlib.sha256(content.encode()).hexdigest()[:16]}"
    inside = "\n".join(_card(card, number) for number, card in enumerate(cards))
    parts = [
        _bar(title, any(card.effect is not None for card in cards)),
        f'<p class="hint how">{HOW}</p><p class="hint">{KEYS}<br>{escape(HINT)}</p>',
        f'<main id="cards" data-key="{key}" data-file="{escape(Path(path).stem)}.jsonl">{inside}</main>',
    ]
    return write_page(path, title, parts, f"<style>{STYLE}</style><script>{SCRIPT}</script>")


def _bar(title: str, has_effects: bool) -> str:
    """What stands above the cards."""
    orders = {name: words for name, words in ORDERS.items() if has_effects or "effect" not in words}
    which = ("all", "unjudged", *VERDICTS)
    return (
        f'<div class="bar"><h1>{escape(title)}</h1>'
        '<input id="filter" type="search" placeholder="filter by any text" aria-label="filter">'
        f"<label>sort by {_select('order', orders.items())}</label>"
        f"<label>show {_select('which', ((name, name) for name in which))}</label>"
        '<button id="download" title="the judgements, one line a card">Download</button>'
        '<button id="load" title="judgements that were downloaded">Load</button>'
        '<input id="file" type="file" accept=".jsonl" hidden>'
        '<output id="shown"></output><output id="judged"></output><output id="warning"></output></div>'
    )


def _select(name: str, options: Iterable[tuple[str, str]]) -> str:
    inside = "".join(f'<option value="{value}">{words}</option>' for value, words in options)
    return f'<select id="{name}">{inside}</select>'


def _card(card: FeatureCard, number: int) -> str:
    """One card."""
    rows = "".join(_context(one, abs(card.max) or 1.0) for one in card.contexts)
    shown = rows or '<p class="why">0 in all of these prompts.</p>'
    effect = "" if card.effect is None else repr(card.effect)
    return (
        f'<article class="card" tabindex="0" data-node="{escape(card.node)}" data-effect="{effect}" '
        f'data-density="{card.density!r}">'
        f'<div class="top"><h2>{escape(card.node)}</h2>{_statistics(card)}{_judge(number)}</div>'
        f'<div class="body"><div class="contexts">{shown}</div><div class="side">{_side(card)}</div></div></article>'
    )


def _statistics(card: FeatureCard) -> str:
    """The card's numbers in words."""
    numbers = {}
    if card.effect is not None:
        numbers["effect"] = (
            f'<b class="{"up" if card.effect > 0 else "down" if card.effect < 0 else ""}">{card.effect:+.3g}</b>'
        )
    numbers["active at"] = f"<b>{card.density:.2%}</b> of {card.n_tokens:,} tokens"
    numbers["max"] = f"<b>{card.max:.3g}</b>"
    if card.density:
        numbers["mean when active"] = f"<b>{_short(card.mean / card.density, card.max)}</b>"
    return "".join(f'<span class="stat">{name} {value}</span>' for name, value in numbers.items())


def _short(value: float, scale: float) -> str:
    """A number as it looks beside one of size `scale`: what rounding leaves of a 0 is 0."""
    return f"{0.0 if abs(value) < 1e-5 * abs(scale) else value:.3g}"


def _judge(number: int) -> str:
    """The three verdicts and a note."""
    radios = "".join(
        f'<label title="{effect} (key {verdict[0]})"><input type="radio" name="verdict-{number}" value="{verdict}">'
        f"{verdict}</label>"
        for verdict, effect in VERDICTS.items()
    )
    note = '<textarea rows="1" placeholder="note" aria-label="note"></textarea>'
    return f'<div class="judge">{note}<fieldset>{radios}</fieldset></div>'


def _context(context: Context, largest: float) -> str:
    """One line of text with its maximum in a fixed place; the value of the maximum at the end."""
    spans = [
        _token(token, value, largest, is_peak=place == context.peak)
        for place, (token, value) in enumerate(zip(context.tokens, context.activations, strict=True))
    ]
    left, right = "".join(spans[: context.peak]), "".join(spans[context.peak :])
    where = f"prompt {context.prompt}, position {context.position}"
    peak = context.activations[context.peak]
    return (
        f'<div class="context"><span class="left"><span>{left}</span></span><span class="right">{right}</span>'
        f'<span class="value" title="{where}">{"" if peak is None else f"{peak:.3g}"}</span></div>'
    )


def _token(token: str, value: float | None, largest: float, *, is_peak: bool) -> str:
    """A token of running text on its activation's colour."""
    bare = token.lstrip(" ")
    text = escape(" " * (len(token) - len(bare)) + visible(bare))
    if value is None:
        return f'<span class="off" title="not looked at">{text}</span>'
    colour = "p" if value > 0 else "n" if value < 0 else ""
    names = " ".join(filter(None, (colour, "peak" if is_peak else "")))
    look = f' class="{names}"' if names else ""
    depth = f' style="--a:{STRONGEST * min(1, abs(value) / largest):.2f}"' if colour else ""
    return f'<span{look}{depth} title="{value:.4g}">{text}</span>'


def _side(card: FeatureCard) -> str:
    """Histogram and lists of tokens."""
    lens = [("promoted", card.promoted), ("suppressed", card.suppressed)]
    lists = "".join(_list(name, values) for name, values in lens)
    if card.no_lens:
        lists = f'<div class="why"><h3>promoted, suppressed</h3>none: {escape(card.no_lens)}</div>'
    return f"<div>{_histogram(card)}</div>{_list('top tokens', card.top_tokens)}{lists}"


def _list(name: str, values: Sequence[TokenValue]) -> str:
    """Tokens with their numbers."""
    rows = "".join(
        f"<li><span>{escape(visible(one.token))}</span><i{_times(one.count)}>{one.value:.3g}</i></li>" for one in values
    )
    return f"<div><h3>{name}</h3><ol>{rows}</ol></div>"


def _times(count: int | None) -> str:
    return "" if count is None else f' title="occurs {count:,} times"'


def _histogram(card: FeatureCard) -> str:
    """Bars of the card's histogram, their heights on a log scale: large activations are rare and matter most."""
    if not card.counts:
        return "<h3>no activation</h3>"
    heights = np.log1p(card.counts) / np.log1p(max(card.counts))
    width = 100 / len(heights)
    bars = "".join(
        f'<rect x="{place * width:.2f}" y="{100 * (1 - height):.2f}" width="{0.88 * width:.2f}" '
        f'height="{100 * height:.2f}"{" class=neg" if high <= 0 else ""}>'
        f"<title>{low:.3g} to {high:.3g}: {count:,} tokens</title></rect>"
        for place, (height, low, high, count) in enumerate(
            zip(heights, card.edges, card.edges[1:], card.counts, strict=False)
        )
    )
    ends = f'<div class="ends"><span>{card.edges[0]:.3g}</span><span>{card.edges[-1]:.3g}</span></div>'
    return f'<h3>activations (log)</h3><svg viewBox="0 0 100 100" preserveAspectRatio="none">{bars}</svg>{ends}'
