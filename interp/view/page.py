"""Self-contained HTML pages: one file with everything inside, which opens offline and makes no request.

A content-security policy in the page forbids the browser to load anything from anywhere. Every text is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np

from interp.atomic import replacing
from interp.circuit import ROWS, Circuit
from interp.errors import OptionError, require
from interp.provenance import Provenance
from interp.view.circuits import figures, row_names
from interp.view.style import Figure, visible

MOST_MEMBERS, MOST_PROMPTS = 500, 20  # rows of the page's tables; the circuit's file has all
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --rule: #ccc; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #16181b; --rule: #444; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 24px; }
h1 { font-size: 22px; } h2 { font-size: 18px; margin-top: 32px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: 3px 14px 3px 0; text-align: left; vertical-align: top; }
td.number { text-align: right; }
.wide { overflow-x: auto; } .long { overflow-wrap: anywhere; max-width: 60em; }
.main-svg text { fill: var(--text) !important; } .hoverlayer text { fill: #222 !important; }
"""


def save(figure: Figure, path: str | Path) -> Path:
    """Write one figure as a page of its own, whole or not at all.

    Args:
        path: ends in ``.html``.

    Returns:
        the path.

    Raises:
        OptionError: another ending.
    """
    title = unescape(figure.layout.title.text or "Figure")
    return _write(path, title, [_drawn(figure, 1)])


def view(circuit: Circuit, path: str | Path, *, tokens: Sequence[str] = ()) -> Path:
    """Write a circuit's page: the figures that apply to it, where it came from, and its members ranked.

    Args:
        path: ends in ``.html``.
        tokens: names for positions 0, 1, ...; numbers when not given.

    Returns:
        the path.

    Raises:
        OptionError: another ending.
        MissingExtraError: plotly is not installed.
    """
    source = circuit.provenance
    title = " · ".join(filter(None, ("Circuit", source.task, source.model, source.method)))
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(repr(circuit))}</p>"]
    number = 0
    for name, drawn in figures(circuit, tokens=tokens).items():
        parts.append(f"<h2>{escape(name)}</h2>")
        for figure in drawn:
            number += 1
            parts.append(_drawn(figure, number))
    parts += [_members(circuit, over) for over in ROWS if circuit.count(over)]
    parts += ["<h2>Provenance</h2>", _origin(source)]
    return _write(path, title, parts)


def _members(circuit: Circuit, over: str) -> str:
    """The kept nodes or edges with their scores and attributes, ranked by the first score."""
    columns = {name: one.values for name, one in circuit.columns.items() if one.over == over}
    rows = np.flatnonzero(circuit.kept(over))
    by = next((name for name, one in circuit.scores.items() if one.over == over), None)
    if by is not None:
        rows = rows[np.argsort(-np.abs(columns[by][rows]), kind="stable")]  # NaN comes last
    shown = rows[:MOST_MEMBERS]
    names = row_names(circuit, over, shown)
    body = [[name, *(columns[c][row] for c in columns)] for name, row in zip(names, shown, strict=True)]
    order = f", largest magnitude of {by} first" if by else ""
    more = f" The first {len(shown):,} are shown; the circuit's file has all." if len(shown) < len(rows) else ""
    head = f"<h2>Kept {over}</h2><p>{len(rows):,} of {circuit.count(over):,}{escape(order)}.{more}</p>"
    return head + _table([over[:-1], *columns], body)


def _origin(source: Provenance) -> str:
    """Where the circuit came from, one line a property; what is empty is left out."""
    rows = []
    for one in fields(source):
        value = getattr(source, one.name)
        if value in (None, "", {}, ()):
            continue
        if one.name.endswith("token_ids"):
            lines = [" ".join(map(str, ids)) for ids in value[:MOST_PROMPTS]]
            more = [f"and {len(value) - MOST_PROMPTS:,} more"] if len(value) > MOST_PROMPTS else []
            value = [f"{len(value):,} prompts", *lines, *more]
        rows.append([one.name.replace("_", " "), value])
    return _table(["property", "value"], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """An HTML table; numbers stand on the right, mappings and lists one entry a line."""
    top = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    """A value as a table cell."""
    if isinstance(value, float | np.floating):
        return f'<td class="number">{value:.4g}</td>'
    if isinstance(value, Mapping):
        value = [f"{key}: {item}" for key, item in value.items()]
    lines = value if isinstance(value, list | tuple) else [value]
    return f'<td class="long">{"<br>".join(escape(visible(str(line))) for line in lines)}</td>'


def write_page(path: str | Path, title: str, parts: Sequence[str], head: str = "") -> Path:
    """A whole page around `parts`, which are HTML, with `head` (more HTML) after the common style; written atomically.

    Raises:
        OptionError: a path that does not end in ``.html``.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise OptionError(
            f"{path} does not end in .html, the one format there is; name it {path.with_suffix('.html')}."
        )
    start = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    )
    body = "\n".join(parts)
    with replacing(path) as temporary:
        temporary.write_text(f"{start}{head}</head>\n<body>{body}</body></html>\n", "utf-8")
    return path


def _write(path: str | Path, title: str, parts: Sequence[str]) -> Path:
    """A whole page that draws figures."""
    require("plotly", "view")
    from plotly.offline import get_plotlyjs

    return write_page(path, title, parts, f"<script>{get_plotlyjs()}</script>")


def _drawn(figure: Figure, number: int) -> str:
    """A figure as HTML that needs plotly.js on its page."""
    config = {"displaylogo": False, "responsive": False}
    inner = figure.to_html(config, include_plotlyjs=False, full_html=False, div_id=f"figure-{number}")
    return f'<div class="wide">{inner}</div>'
