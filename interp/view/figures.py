"""The figures everything is drawn with: heat maps, attention patterns, curves and bars. Each returns a plotly Figure.

A notebook shows a Figure by itself; `interp.view.save` writes it to a file. Every text is escaped, so a token such as
``<b>`` appears as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from interp.errors import OptionError
from interp.view.style import (
    ABSENT,
    CHARACTER,
    DIVERGING,
    LINES,
    MARK,
    NEGATIVE,
    POSITIVE,
    SEQUENTIAL,
    TEXT,
    Figure,
    axis_title,
    category_axis,
    figure_of,
    is_tilted,
    label_width,
    number_axis,
    short,
    visible,
)

GAP = 26  # pixels between small multiples
WIDEST = 960  # pixels of a row of small multiples
BAR = 22.0  # pixels of a bar and the space beside it
BAR_LABEL = 44  # characters of a label beside a bar


class Grid(NamedTuple):
    """The cells of one heat map.

    Attributes:
        values: NaN where there is none.
        notes: a text a cell, '' for none; at a NaN the reason for it.
        marked: cells with a box around them.
        name: stands above it where there are several.
    """

    values: Float[np.ndarray, "y x"]
    notes: Shaped[np.ndarray, "y x"] | None = None
    marked: Bool[np.ndarray, "y x"] | None = None
    name: str = ""


class Axes(NamedTuple):
    """Labels and titles of a heat map's two axes."""

    x: Sequence[object]
    y: Sequence[object]
    x_title: str
    y_title: str


def heatmap(values: Any, x: Iterable[object], y: Iterable[object], **options: Any) -> Figure:
    """One heat map of `values` [y, x] (an array or tensor). Options as in `heatmaps`.

    >>> heatmap([[0.5, -1.0]], ["the", " cat"], [0], title="Effect", x_title="token").layout.title.text
    'Effect'
    """
    return heatmaps([Grid(_array(values))], x, y, **options)


def heatmaps(
    grids: Sequence[Grid],
    x: Iterable[object],
    y: Iterable[object],
    *,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    unit: str = "",
    signed: bool = True,
    limit: float | None = None,
) -> Figure:
    """Heat maps of equal axes, with one colour scale and their first rows on top.

    Args:
        grids: the maps; cells without a value are grey and say why when pointed at.
        x, y: a label for each column and row; equal labels stay apart.
        unit: what the values are in, beside the colours.
        signed: colours centred on 0; False for magnitudes, from 0 up.
        limit: value of the strongest colour; by default the largest magnitude.

    Raises:
        OptionError: no grid, or cells that do not fit the labels.
    """
    x, y = list(x), list(y)
    shape = (len(y), len(x))
    wrong = [str(grid.values.shape) for grid in grids if grid.values.shape != shape]
    if wrong or not grids or 0 in shape:
        raise OptionError(
            f"heat maps of shape {', '.join(wrong)} for {shape[0]} row and {shape[1]} column labels; give one map or "
            "more of cells [row, column], and a label for each."
        )
    cell = _cell_size(shape, several := len(grids) > 1)
    across = int(np.clip((WIDEST + GAP) // (cell[0] * len(x) + GAP), 1, len(grids)))
    axes = Axes(x, y, x_title, y_title)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    size = _arrange(layout, [grid.name for grid in grids], axes, cell, across)
    for number, grid in enumerate(grids, 1):
        traces += _cells(grid, axes, unit, min(cell), {"xaxis": f"x{number}", "yaxis": f"y{number}"})
    under = _legend(grids)
    below = label_width(x) * 0.75 if is_tilted(x, cell[0]) else 12
    margin = {
        "l": label_width(y) + 44,
        "r": max(90, CHARACTER * len(unit) + 30),
        "t": 50 + 20 * several + 16 * bool(under),
        "b": below + 40,
    }
    layout["coloraxis"] = _colours(grids, signed, limit, unit, size[1])
    width, height = size[0] + margin["l"] + margin["r"], size[1] + margin["t"] + margin["b"]
    return figure_of(
        traces, width, height, title, under, margin=margin, plot_bgcolor=ABSENT, showlegend=False, **layout
    )


def _arrange(
    layout: dict[str, Any], names: list[str], axes: Axes, cell: tuple[float, float], across: int
) -> tuple[float, float]:
    """Put panels of equal size side by side into `layout`, named, labelled at the outer ones; returns their size."""
    wide, high = cell[0] * len(axes.x), cell[1] * len(axes.y)
    down = -(-len(names) // across)
    full = across * (wide + GAP) - GAP, down * (high + GAP) - GAP
    layout["annotations"] = []
    for index, name in enumerate(names):
        row, column = divmod(index, across)
        left, top = column * (wide + GAP) / full[0], 1 - row * (high + GAP) / full[1]
        right, bottom = left + wide / full[0], max(top - high / full[1], 0)
        lowest, leftmost, number = index + across >= len(names), column == 0, index + 1
        layout[f"xaxis{number}"] = category_axis(
            axes.x, cell[0], across=True, domain=[left, min(right, 1)], anchor=f"y{number}", showticklabels=lowest,
            title=axis_title(axes.x_title if lowest else ""),
        )  # fmt: skip
        layout[f"yaxis{number}"] = category_axis(
            axes.y, cell[1], across=False, domain=[bottom, top], anchor=f"x{number}", showticklabels=leftmost,
            title=axis_title(axes.y_title if leftmost else ""),
        )  # fmt: skip
        place = {"x": (left + right) / 2, "y": top, "xref": "paper", "yref": "paper"}
        anchors = {"xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 13}}
        layout["annotations"].append({"text": short(name), **place, **anchors})
    return full


def _cells(grid: Grid, axes: Axes, unit: str, size: float, place: dict[str, str]) -> list[dict[str, Any]]:
    """The traces of one panel: its cells, and boxes around the marked ones."""
    cells = {"type": "heatmap", "z": grid.values, "coloraxis": "coloraxis", "xgap": 1, "ygap": 1}
    traces: list[dict[str, Any]] = [{**place, **cells, "hovertext": _hover(grid, axes, unit), "hoverinfo": "text"}]
    if grid.marked is not None:
        rows, columns = np.nonzero(grid.marked)
        box = {"symbol": "square-open", "size": size - 3, "color": MARK, "line": {"width": 1.5}}
        points = {"type": "scatter", "x": columns, "y": rows, "mode": "markers", "marker": box, "hoverinfo": "skip"}
        traces.append({**place, **points})
    return traces


def _array(values: Any) -> Float[np.ndarray, "..."]:
    """Numbers, an array or a tensor of any dtype and device as an array of floats."""
    return np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values, dtype=float)


def _cell_size(shape: tuple[int, int], several: bool) -> tuple[float, float]:
    """Width and height of one cell in pixels."""
    room = (216, 330) if several else (760, 600)
    return float(np.clip(room[0] / shape[1], 9, 42)), float(np.clip(room[1] / shape[0], 9, 28))


def _colours(grids: Sequence[Grid], signed: bool, limit: float | None, unit: str, height: float) -> dict[str, Any]:
    """The colour axis: symmetric around 0 for signed values, from 0 for magnitudes."""
    magnitudes = np.concatenate([np.abs(grid.values[np.isfinite(grid.values)]) for grid in grids])
    top = limit or float(magnitudes.max(initial=0.0)) or 1.0
    scale = DIVERGING if signed else SEQUENTIAL
    bar = {"title": {"text": escape(unit), "side": "top"}, "thickness": 14, "outlinewidth": 0, "x": 1, "xpad": 16}
    return {
        "colorscale": [[i / (len(scale) - 1), colour] for i, colour in enumerate(scale)],
        "cmin": -top if signed else 0.0,
        "cmax": top,
        "colorbar": bar | {"lenmode": "pixels", "len": max(120, min(320, height)), "y": 1, "yanchor": "top", "ypad": 0},
    }


def _hover(grid: Grid, axes: Axes, unit: str) -> list[list[str]]:
    """What each cell says when pointed at: where it is, its value with the unit, and its note."""
    notes = np.full(grid.values.shape, "") if grid.notes is None else grid.notes
    columns = [escape(f"{axes.x_title} {visible(label)}") for label in axes.x]
    rows = [escape(f"{axes.y_title} {visible(label)}") for label in axes.y]
    return [
        [
            f"{row}, {column}<br><b>{_number(value, unit)}</b><br>{escape(str(note))}"
            for column, value, note in zip(columns, *cells, strict=True)
        ]
        for row, *cells in zip(rows, grid.values, notes, strict=True)
    ]


def _number(value: float, unit: str) -> str:
    return "no value" if np.isnan(value) else escape(f"{value:.4g} {unit}")


def _legend(grids: Sequence[Grid]) -> str:
    """What grey and boxes mean, where there are any."""
    words = ["grey: no value"] if not all(np.isfinite(grid.values).all() for grid in grids) else []
    words += ["boxed: kept"] if any(grid.marked is not None and grid.marked.any() for grid in grids) else []
    return "; ".join(words)


def attention(pattern: Any, tokens: Sequence[str], *, title: str = "Attention pattern") -> Figure:
    """The attention pattern of one head: from each token (rows) to the tokens it reads (columns).

    Args:
        pattern: probabilities [dest, src], as `AttentionPatterns.of` gives them.
        tokens: the prompt's tokens.
    """
    return heatmap(
        pattern, tokens, tokens, title=title, x_title="read token (src)", y_title="reading token (dest)",
        unit="probability", signed=False, limit=1.0,
    )  # fmt: skip


def curves(
    x: Any,
    lines: Mapping[str, Any],
    *,
    bands: Mapping[str, tuple[Any, Any]] | None = None,
    levels: Mapping[str, float] | None = None,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
) -> Figure:
    """Curves over common x, with uncertainty bands; nothing is drawn, or bridged, where a value is NaN.

    Args:
        lines: name -> one value an x.
        bands: name of a line -> (low, high), one value an x each.
        levels: name -> height of a dashed line, such as the full model's.

    Raises:
        OptionError: lines or bands that do not fit x, or bands without a line.
    """
    steps = _array(x)
    drawn = {name: _array(values) for name, values in lines.items()}
    edges = {name: np.stack([_array(end) for end in band]) for name, band in (bands or {}).items()}
    faults = [f"line {name!r} has shape {v.shape}" for name, v in drawn.items() if v.shape != steps.shape]
    faults += [f"band {name!r} has shape {v.shape}" for name, v in edges.items() if v.shape != (2, len(steps))]
    faults += [f"band {name!r} belongs to no line" for name in edges if name not in drawn]
    if faults:
        raise OptionError(f"{'; '.join(faults)}; x has {len(steps)} values: give one an x, and bands as (low, high).")
    traces = []
    for number, (name, values) in enumerate(drawn.items()):
        colour = LINES[number % len(LINES)]
        traces += [_shade(band, colour) | {"legendgroup": name} for band in _unbroken(steps, edges.get(name))]
        line = {"type": "scatter", "mode": "lines+markers", "line": {"color": colour, "width": 2}}
        traces.append(line | {"x": steps, "y": values, "name": escape(name), "legendgroup": name})
    return figure_of(
        traces, 760.0, 440.0, title, margin={"l": 70, "r": 30, "t": 52, "b": 60}, showlegend=len(drawn) > 1,
        xaxis=number_axis(x_title, type="log" if log_x else "linear"), yaxis=number_axis(y_title),
        shapes=[_level(name, height) for name, height in (levels or {}).items()],
    )  # fmt: skip


def _level(name: str, height: float) -> dict[str, Any]:
    """A dashed line across the figure, with its name at the right end."""
    line = {"dash": "dash", "color": TEXT, "width": 1}
    label = {"text": escape(name), "textposition": "end", "yanchor": "bottom", "font": {"color": TEXT}}
    return {"xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line, "label": label}


def _shade(band: tuple[np.ndarray, np.ndarray, np.ndarray], colour: str) -> dict[str, Any]:
    """The area between the low and high values of a band at its x."""
    low, high, x = band
    outline = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([high, low[::-1]])}
    look = {"fill": "toself", "mode": "none", "fillcolor": colour, "opacity": 0.2}
    return {"type": "scatter", "hoverinfo": "skip", "showlegend": False, **outline, **look}


def _unbroken(x: np.ndarray, band: np.ndarray | None) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Low, high and x of every run of positions where a band has both its edges."""
    if band is None:
        return []
    present = np.flatnonzero(np.isfinite(band).all(0))
    runs = np.split(present, np.flatnonzero(np.diff(present) > 1) + 1)
    return [(band[0, run], band[1, run], x[run]) for run in runs if len(run)]


def bars(
    labels: Iterable[object],
    values: Any,
    *,
    low: Any = None,
    high: Any = None,
    title: str = "",
    unit: str = "",
) -> Figure:
    """Horizontal bars in the given order, the first on top; blue where positive, red where negative.

    Args:
        values: one a label; NaN draws no bar.
        low, high: ends of the error bars, one a label.

    Raises:
        OptionError: values or ends that do not fit the labels.
    """
    labels = list(labels)
    columns = [_array(c) for c in (values, low, high) if c is not None]
    if (low is None) != (high is None) or any(c.shape != (len(labels),) for c in columns):
        raise OptionError(
            f"bars of shapes {[c.shape for c in columns]} for {len(labels)} labels; give one value a label, and low "
            "and high together."
        )
    lengths, errors = columns[0], {}
    if low is not None:
        errors = {"array": columns[2] - lengths, "arrayminus": lengths - columns[1], "color": TEXT, "thickness": 1}
    hover = [f"{escape(visible(n))}<br><b>{_number(v, unit)}</b>" for n, v in zip(labels, lengths, strict=True)]
    bar = {
        "type": "bar", "orientation": "h", "x": lengths, "y": np.arange(len(labels)), "error_x": errors,
        "marker": {"color": np.where(lengths < 0, NEGATIVE, POSITIVE)}, "hovertext": hover, "hoverinfo": "text",
    }  # fmt: skip
    margin = {"l": label_width(labels, BAR_LABEL) + 20, "r": 30, "t": 52, "b": 50}
    return figure_of(
        [bar], 500.0 + margin["l"], BAR * len(labels) + 102, title, margin=margin, showlegend=False, bargap=0.25,
        xaxis=number_axis(unit), yaxis=category_axis(labels, BAR, across=False, longest=BAR_LABEL),
    )  # fmt: skip
