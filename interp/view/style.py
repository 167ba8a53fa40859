"""How figures look: colours, labels and sizes. Readable on light and dark pages; no default of plotly is changed.

Backgrounds are transparent and text is a middle grey. Signed values are blue where positive, red where negative and
white at exactly 0; a cell without a value is grey.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from interp.errors import require

# ColorBrewer's RdBu and Blues.
DIVERGING = ("#b2182b", "#d6604d", "#f4a582", "#fddbc7", "#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac")
SEQUENTIAL = ("#ffffff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")
NEGATIVE, POSITIVE = "#d6604d", "#4393c3"
LINES = ("#2171b5", "#e6550d", "#31a354", "#756bb1", "#c51b8a", "#8c6d31")
TEXT, RULE, ABSENT, MARK, CLEAR = "#777777", "rgba(128,128,128,0.3)", "#b4b4b4", "#111111", "rgba(0,0,0,0)"
LONGEST = 18  # characters of a label on an axis
CHARACTER, LINE = 7, 14  # pixels of the 12-pixel font

BUTTONS = ["zoom", "pan", "select", "lasso", "zoomIn", "zoomOut", "autoScale"]  # taken off; drag to zoom

Figure = Any  # a plotly.graph_objects.Figure; plotly is optional and imported when a figure is drawn


def visible(value: object) -> str:
    """A label or token on one line: its leading spaces as dots, line breaks and the like as Python writes them."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
    spaces = len(shown) - len(shown.lstrip(" "))
    return "·" * spaces + shown[spaces:]


def short(value: object, longest: int = LONGEST) -> str:
    """As `visible`, cut to what fits beside an axis and escaped, as plotly reads markup."""
    whole = visible(value)
    return escape(whole if len(whole) <= longest else whole[: longest - 1] + "…")


def label_width(labels: Sequence[object], longest: int = LONGEST) -> int:
    """Pixels of the longest label, as it is drawn."""
    return CHARACTER * max((min(len(visible(label)), longest) for label in labels), default=1)


def is_tilted(labels: Sequence[object], cell: float) -> bool:
    """Whether labels under cells of so many pixels are tilted, because they are wider."""
    return label_width(labels) + CHARACTER > cell


def category_axis(
    labels: Sequence[object], cell: float, *, across: bool, longest: int = LONGEST, **options: Any
) -> dict[str, Any]:
    """An axis of one cell a label, numbered from 0 so that equal labels stay apart; thinned where cells are small.

    Args:
        cell: pixels of one cell along this axis.
        across: it is the horizontal one, from left to right; else from top to bottom.
        longest: characters of a label.
        options: further properties of a plotly axis.
    """
    shown = range(0, len(labels), int(np.ceil(LINE / cell)))
    return {
        "tickvals": list(shown),
        "ticktext": [short(labels[i], longest) for i in shown],
        "tickangle": -45 if across and is_tilted(labels, cell) else 0,
        "range": [-0.5, len(labels) - 0.5] if across else [len(labels) - 0.5, -0.5],
        "ticks": "",
        "showgrid": False,
        "zeroline": False,
        **options,
    }


def number_axis(title: str, **options: Any) -> dict[str, Any]:
    """An axis of numbers."""
    return {"title": axis_title(title), "gridcolor": RULE, "zerolinecolor": TEXT, **options}


def axis_title(title: str) -> dict[str, Any]:
    """An axis title, close to the labels."""
    return {"text": escape(title), "standoff": 8}


def figure_of(
    traces: Sequence[dict[str, Any]], width: float, height: float, title: str, under: str = "", **layout: Any
) -> Figure:
    """A figure with the common look, a title with a smaller line under it, and a size in pixels.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    require("plotly", "view")
    import plotly.graph_objects as go

    head = {
        "text": escape(title), "subtitle": {"text": escape(under), "font": {"size": 12, "color": TEXT}},
        "font": {"size": 16}, "x": 0, "xref": "container", "xanchor": "left",
        "yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 12, "l": 16},
    }  # fmt: skip
    look = {
        "template": go.layout.Template(),  # an empty one, whatever the session's default
        "title": head,
        "width": round(max(width, 9 * len(title) + 120)),  # room for the title and the buttons
        "height": round(height),
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"size": 12, "color": TEXT, "family": "system-ui, sans-serif"},
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"color": "#222222", "size": 13}, "align": "left"},
        "modebar": {"bgcolor": CLEAR, "color": RULE, "activecolor": TEXT, "remove": BUTTONS},
    }
    return go.Figure(traces, {**look, **layout})
