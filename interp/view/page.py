"""Self-contained HTML pages: one file with everything inside, which opens offline and makes no request.

A content-security policy in the page forbids the browser to load anything from anywhere. Every text is escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from interp.atomic import replacing
from interp.circuit import Circuit
from interp.errors import OptionError, require

from interp.view.style import Figure

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --rule: #ccc; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #16181b; --rule: #444; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 24px; }
h1 { font-size: 22px; } h2 { font-size: 18px; margin-top: 32px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: 3px 14px 3px 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; }
.wide { overflow-x: auto; } .long { overflow-wrap: anywhere; max-width: 900px; }
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
    title = figure.layout.title.text or "Figure"
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
    drawn = figures(circuit, tokens=tokens).values()
    parts += [_drawn(figure, number) for number, figure in enumerate(drawn, 1)]
    return _write(path, escape(title), parts)


def _write(path: str | Path, title: str, parts: Sequence[str]) -> Path:
    """A whole page around `parts`, which are HTML, as is `title`."""
    path = Path(path)
    if path.suffix != ".html":
        raise OptionError(
            f"{path} does not end in .html, the one format there is; name it {path.with_suffix('.html')}."
        )
    from plotly.offline import get_plotlyjs

    head = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    )
    body = "\n".join(parts)
    with replacing(path) as temporary:
        temporary.write_text(f"{head}<script>{get_plotlyjs()}</script></head>\n<body>{body}</body></html>\n", "utf-8")
    return path


def _drawn(figure: Figure, number: int) -> str:
    """A figure as HTML that needs plotly.js on its page."""
    config = {"displaylogo": False, "responsive": False}
    inner = figure.to_html(config, include_plotlyjs=False, full_html=False, div_id=f"figure-{number}")
    return f'<div class="wide">{inner}</div>'
