"""Clusters of contexts as a page: what each predicts, after which texts, and through which features."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

import numpy as np

from interp.cluster_search import ClusterCircuit, circuit_overlap
from interp.clusters import Clusters
from interp.errors import OptionError
from interp.predicted import Contexts
from interp.view.card_page import STYLE as CARD_STYLE
from interp.view.circuits import row_names
from interp.view.page import write_page
from interp.view.style import visible

LAST_TOKENS = 30  # of a context that are shown
LISTED = 15  # answers, and features, of a cluster that are listed
HINT = (
    "The most coherent cluster first; its most typical contexts first, each with the token that the model predicts "
    "after it and that token's probability. Within and between: mean cosine of two members, and of a member and "
    "another cluster's. Features: effect on the answer's log-probability, in nats; positive helps. Click a context to "
    "see all of it that is here."
)
STYLE = """
.context .left { flex-basis: 78%; }
.answer { font-weight: 600; background: rgba(67, 147, 195, .35); border-radius: 2px; }
.card a { color: #4393c3; } .side li i.down { color: #d6604d; }
"""
SCRIPT = """
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const at = id => document.getElementById(id);
  const cards = [...document.querySelectorAll(".card")];
  const texts = new Map(cards.map(card => [card, card.textContent.toLowerCase()]));

  function show() {
    const wanted = at("filter").value.toLowerCase();
    for (const card of cards) card.hidden = !texts.get(card).includes(wanted);
    at("shown").textContent = `${cards.filter(card => !card.hidden).length} of ${cards.length} shown`;
  }

  function sort() {
    const by = at("order").value;
    at("clusters").append(...[...cards].sort((a, b) => Number(b.dataset[by]) - Number(a.dataset[by])));
  }

  at("filter").addEventListener("input", show);
  at("order").addEventListener("change", sort);
  at("clusters").addEventListener("click", event => event.target.closest(".context")?.classList.toggle("whole"));
  show();
});
"""


def view_clusters(
    contexts: Contexts,
    clusters: Clusters,
    path: str | Path,
    *,
    circuits: Sequence[ClusterCircuit] = (),
    pages: Mapping[int, str | Path] | None = None,
    most: int = 12,
    title: str = "Clusters of contexts",
) -> Path:
    """Write clusters as one page that opens offline.

    Args:
        contexts: those that were clustered.
        path: ends in ``.html``.
        circuits: of `cluster_circuits`; their largest features are listed.
        pages: a cluster's number -> its circuit's page (`view`), to be linked to.
        most: contexts shown of a cluster.

    Returns:
        the path.

    Raises:
        OptionError: another ending, clusters of other contexts, circuits or pages of clusters that there are not.
    """
    path, pages = Path(path), dict(pages or {})
    foreign = sorted(
        {number for number in (*pages, *(one.cluster for one in circuits)) if not 0 <= number < len(clusters)}
    )
    if len(clusters.labels) != len(contexts) or foreign or most < 1:
        what = f"clusters {foreign} of {len(clusters)}" if foreign else f"{len(contexts)} contexts, most={most}"
        raise OptionError(
            f"{what}; allowed: the {len(clusters.labels)} contexts that were clustered, clusters 0 to "
            f"{len(clusters) - 1}, most from 1."
        )
    own = {one.cluster: one for one in circuits}
    nearest = _nearest(circuits)
    cards = [
        _card(
            contexts, clusters, number, own.get(number), nearest.get(number, ""), _link(pages.get(number), path), most
        )
        for number in range(len(clusters))
    ]
    told = (
        f"{len(contexts):,} contexts in {len(clusters)} clusters ({clusters.kind}, seed {clusters.seed}); "
        f"silhouette {clusters.silhouette:.3f}."
    )
    inside = "\n".join(cards)
    parts = [
        _bar(title), f'<p class="hint">{escape(told)} {escape(HINT)}</p>', f'<main id="clusters">{inside}</main>'
    ]  # fmt: skip
    return write_page(path, title, parts, f"<style>{CARD_STYLE}{STYLE}</style><script>{SCRIPT}</script>")


def _bar(title: str) -> str:
    """What stands above the clusters."""
    orders = {"within": "most coherent", "size": "largest", "silhouette": "best set apart"}
    options = "".join(f'<option value="{name}">{words}</option>' for name, words in orders.items())
    return (
        f'<div class="bar"><h1>{escape(title)}</h1>'
        '<input id="filter" type="search" placeholder="filter by any text" aria-label="filter">'
        f'<label>sort by <select id="order">{options}</select></label><output id="shown"></output></div>'
    )


def _card(
    contexts: Contexts, clusters: Clusters, number: int, circuit: ClusterCircuit | None, nearest: str, link: str,
    most: int,
) -> str:  # fmt: skip
    """One cluster."""
    row = {name: clusters.quality[name][number] for name in ("size", "within", "between", "silhouette")}
    data = "".join(f' data-{name}="{-2.0 if np.isnan(value) else float(value)!r}"' for name, value in row.items())
    stats = "".join(
        f'<span class="stat">{name} <b>{"–" if np.isnan(value) else f"{value:.3g}"}</b></span>'
        for name, value in row.items()
    )
    members = clusters.members(number)
    lines = "".join(_context(contexts, int(member)) for member in members[:most])
    more = f'<p class="why">and {len(members) - most:,} more</p>' if len(members) > most else ""
    return (
        f'<article class="card" id="cluster-{number}"{data}>'
        f'<div class="top"><h2>cluster {number}</h2>{stats}{link}</div>'
        f'<div class="body"><div class="contexts">{lines}{more}</div>'
        f'<div class="side">{_answers(contexts, members)}{_features(circuit, nearest)}</div></div></article>'
    )


def _context(contexts: Contexts, row: int) -> str:
    """One line: the end of the context, the answer in a fixed place, and its probability."""
    before = contexts.prompts.tokens[row] if contexts.prompts.tokens else contexts.prompts.rows()[row]
    shown = "".join(_spaced(contexts.gap + str(token)) for token in before[-LAST_TOKENS:])
    shown = "… " + shown if len(before) > LAST_TOKENS else shown
    loss = float(contexts.losses[row])
    prompt, position = contexts.origin[row].tolist()
    where = f"prompt {prompt}, position {position}, loss {loss:.3g} nats"
    return (
        f'<div class="context"><span class="left"><span>{shown}</span></span>'
        f'<span class="right"><span class="answer">{_spaced(contexts.gap + _answer(contexts, row))}</span></span>'
        f'<span class="value" title="{where}">{np.exp(-loss):.2f}</span></div>'
    )


def _answer(contexts: Contexts, row: int) -> str:
    """The answer as text; its id where there is no tokenizer."""
    return contexts.answer_tokens[row] if contexts.answer_tokens else str(int(contexts.answers[row]))


def _spaced(token: str) -> str:
    """A token of running text, on one line and escaped."""
    bare = token.lstrip(" ")
    return escape(" " * (len(token) - len(bare)) + visible(bare))


def _answers(contexts: Contexts, members: np.ndarray) -> str:
    """The commonest answers."""
    counts = Counter(_answer(contexts, int(row)) for row in members).most_common(LISTED)
    return _list("answers", [(visible(token), f"{count:,}", "") for token, count in counts])


def _features(circuit: ClusterCircuit | None, nearest: str) -> str:
    """The circuit's largest nodes."""
    if circuit is None:
        return ""
    one = circuit.circuit
    score = next(column for column in one.scores.values() if column.over == "nodes").values
    rows = np.flatnonzero(one.kept_nodes & np.isfinite(score))
    rows = rows[np.argsort(-np.abs(score[rows]), kind="stable")]
    shown = [
        (name, f"{score[row]:+.3g}", "down" if score[row] < 0 else "")
        for name, row in zip(row_names(one, "nodes", rows[:LISTED]), rows[:LISTED], strict=True)
    ]
    kept, edges = len(circuit.nodes), int(one.kept_edges.sum())
    told = f'<p class="why">{kept:,} nodes, {edges:,} edges, from {len(circuit.contexts):,} contexts.{nearest}</p>'
    return f"<div>{_list('features', shown)}{told}</div>"


def _list(name: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """Names with a number and its class each."""
    inside = "".join(
        f'<li><span title="{escape(label)}">{escape(label)}</span><i{f" class={look}" if look else ""}>{value}</i></li>'
        for label, value, look in rows
    )
    return f"<div><h3>{name}</h3><ol>{inside}</ol></div>"


def _nearest(circuits: Sequence[ClusterCircuit]) -> dict[int, str]:
    """For each cluster, which other's circuit has most of its nodes in common with it."""
    overlap = np.nan_to_num(circuit_overlap(circuits))
    found = {}
    for place, one in enumerate(circuits if len(circuits) > 1 else ()):
        shares = np.where(np.arange(len(circuits)) == place, -1, overlap[place])
        other = circuits[int(shares.argmax())].cluster
        found[one.cluster] = f' Most in common with <a href="#cluster-{other}">cluster {other}</a>: {shares.max():.2f}.'
    return found


def _link(page: str | Path | None, path: Path) -> str:
    """A link to a circuit's page, relative to this one's folder."""
    if page is None:
        return ""
    target = Path(os.path.relpath(page, path.parent)).as_posix()
    return f'<a href="{escape(quote(target))}">circuit</a>'
