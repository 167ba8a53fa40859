"""Figures and pages: what they show, that texts stay texts, that a page needs nothing but itself."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from circuits import EFFECT, mask, scored, wired

from interp.circuit import Attribute, Circuit, Score, ScoreHeader
from interp.errors import CircuitError, MissingExtraError, OptionError
from interp.nodes import Nodes
from interp.provenance import Provenance
from interp.view import (
    attention,
    bars,
    curves,
    heads,
    heads_by_position,
    heatmap,
    heatmaps,
    positions,
    ranked,
    save,
    view,
)
from interp.view.figures import Grid
from interp.view.page import POLICY

EVIL = "<script>alert(1)</script>"
NAN = float("nan")


def cells(trace) -> list:
    """A heat map's values, None where the browser gets none."""
    return [[None if np.isnan(value) else round(float(value), 6) for value in row] for row in trace.z]


# --- figures ---


def test_signed_values_are_centred_on_zero_and_magnitudes_start_there():
    values = [[0.5, -2.0], [NAN, 1.0]]
    signed, unsigned = heatmap(values, "ab", "cd"), heatmap(np.abs(values), "ab", "cd", signed=False)
    axis = signed.layout.coloraxis
    assert (axis.cmin, axis.cmax) == (-2, 2) and axis.colorscale[4] == (0.5, "#ffffff")
    assert (unsigned.layout.coloraxis.cmin, unsigned.layout.coloraxis.cmax) == (0, 2)
    assert heatmap([[0.0, NAN]], "ab", "c").layout.coloraxis.cmax == 1
    assert heatmap(values, "ab", "cd", limit=5.0).layout.coloraxis.cmin == -5


def test_a_cell_without_a_value_is_grey_and_says_why():
    notes = np.array([["", "position absent"]], dtype=object)
    figure = heatmaps([Grid(np.array([[1.0, NAN]]), notes)], ["x", "y"], [7], x_title="head", y_title="layer")
    assert cells(figure.data[0]) == [[1.0, None]]
    assert figure.data[0].hovertext[0][1] == "layer 7, head y<br><b>no value</b><br>position absent"
    assert figure.layout.plot_bgcolor == "#b4b4b4" and figure.layout.title.subtitle.text == "grey: no value"
    assert not heatmap([[1.0]], "a", "b").layout.title.subtitle.text


def test_hovering_names_place_value_and_unit():
    figure = heatmap([[0.123456]], [" cat"], [3], x_title="token", y_title="layer", unit="logits")
    assert figure.data[0].hovertext[0][0] == "layer 3, token ·cat<br><b>0.1235 logits</b><br>"
    assert figure.layout.coloraxis.colorbar.title.text == "logits"


def test_equal_labels_stay_apart_and_the_first_row_is_on_top():
    figure = heatmap(np.zeros((2, 3)), ["the", "the", "the"], [0, 1])
    assert figure.layout.xaxis.tickvals == (0, 1, 2) and figure.layout.xaxis.ticktext == ("the",) * 3
    assert figure.layout.yaxis.range == (1.5, -0.5)


def test_tokens_are_shown_as_text_whatever_they_hold():
    tokens = [" <b>", "a\nb", "&lt;", "x" * 40]
    figure = heatmap(np.zeros((1, 4)), tokens, [EVIL], title=EVIL, unit=EVIL)
    assert figure.layout.xaxis.ticktext == ("·&lt;b&gt;", "a\\nb", "&amp;lt;", "x" * 17 + "…")
    assert "x" * 40 in figure.data[0].hovertext[0][3]
    assert "<script" not in figure.to_json() and "\\u003cscript" not in figure.to_json()


def test_labels_are_thinned_where_cells_are_small():
    figure = heatmap(np.zeros((80, 2)), range(2), range(80))
    assert figure.layout.yaxis.tickvals[:3] == (0, 2, 4)


def test_small_multiples_share_colours_and_only_outer_ones_are_labelled():
    grids = [Grid(np.full((3, 9), float(i)), name=f"role {i % 6}") for i in range(7)]
    figure = heatmaps(grids, range(9), range(3), x_title="head", y_title="layer")
    assert len(figure.data) == 7 and {trace.coloraxis for trace in figure.data} == {"coloraxis"}
    assert figure.layout.coloraxis.cmax == 6
    assert [a.text for a in figure.layout.annotations] == [grid.name for grid in grids]
    assert [figure.layout[f"yaxis{n}"].showticklabels for n in range(1, 8)] == [
        True,
        False,
        False,
        False,
        True,
        False,
        False,
    ]
    assert [figure.layout[f"xaxis{n}"].showticklabels for n in range(1, 8)] == [False] * 3 + [True] * 4


def test_attention_is_a_map_of_tokens_by_tokens():
    figure = attention(torch.eye(2, dtype=torch.bfloat16), ["a", " b"], title="z[0] head 1")
    assert cells(figure.data[0]) == [[1.0, 0.0], [0.0, 1.0]]
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)
    assert figure.data[0].hovertext[1][0].startswith("reading token (dest) ·b, read token (src) a<br><b>0 probability")


def test_a_curve_and_its_band_break_where_a_value_is_missing():
    y = np.array([0.0, 0.5, NAN, 0.8, 0.9])
    figure = curves([1, 2, 3, 4, 5], {"circuit": y}, bands={"circuit": (y - 0.1, y + 0.1)}, levels={"model": 1.0})
    *shades, line = figure.data
    assert [list(shade.x) for shade in shades] == [[1, 2, 2, 1], [4, 5, 5, 4]]
    np.testing.assert_allclose(shades[0].y, [0.1, 0.6, 0.4, -0.1])
    assert np.isnan(line.y[2]) and not line.connectgaps
    assert figure.layout.shapes[0].y0 == 1 and figure.layout.shapes[0].label.text == "model"


def test_bars_keep_their_order_and_colour_their_sign():
    figure = bars(["a", "a", "b"], [1.0, -2.0, NAN], low=[0.5, -2.5, NAN], high=[2.0, -1.0, NAN], unit="logits")
    bar = figure.data[0]
    assert list(bar.y) == [0, 1, 2] and figure.layout.yaxis.range == (2.5, -0.5)
    assert bar.marker.color[0] != bar.marker.color[1]
    np.testing.assert_allclose([bar.error_x.array[:2], bar.error_x.arrayminus[:2]], [[1, 1], [0.5, 0.5]])
    assert bar.hovertext[2] == "b<br><b>no value</b>"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: heatmap(np.zeros((2, 3)), "ab", "ab"), r"heat maps of shape \(2, 3\) for 2 row and 2 column labels"),
        (lambda: heatmaps([], "a", "b"), "give one map or more"),
        (lambda: curves([1, 2], {"a": [1, 2, 3]}), r"line 'a' has shape \(3,\); x has 2 values"),
        (lambda: curves([1, 2], {"a": [1, 2]}, bands={"b": ([1, 2], [1, 2])}), "band 'b' belongs to no line"),
        (lambda: curves([1], {"a": [1]}, bands={"a": ([1, 2], [1, 2])}), r"band 'a' has shape \(2, 2\)"),
        (lambda: bars(["a"], [1, 2]), r"bars of shapes \[\(2,\)\] for 1 labels"),
        (lambda: bars(["a"], [1], low=[0]), "give one value a label, and low and high together"),
    ],
)
def test_what_does_not_fit_is_refused(draw, message):
    with pytest.raises(OptionError, match=message):
        draw()


def test_the_sessions_plotly_defaults_are_neither_used_nor_changed(monkeypatch):
    import plotly.io

    plain = heatmap([[1.0]], "a", "b").to_json()
    monkeypatch.setattr(plotly.io.templates, "default", "plotly_dark")
    assert heatmap([[1.0]], "a", "b").to_json() == plain
    assert plotly.io.templates.default == "plotly_dark"


def test_without_plotly_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'plotly', .*: pip install 'interp\[view\]'"):
        heatmap([[1.0]], "a", "b")


# --- circuits ---


def by_role() -> Circuit:
    """2 layers x 2 heads x 2 roles; one head was not run, two nodes are kept."""
    nodes = Nodes.from_columns(
        "z", layer=[0, 0, 1, 1] * 2, head=[0, 1, 0, 1] * 2, role=["S2"] * 4 + ["end"] * 4
    )  # fmt: skip
    header = ScoreHeader("nodes", "effect", signed=True, direction="denoising", unit="logits")
    values = np.array([1.0, -2.0, NAN, 0.5, 0.0, 3.0, -1.0, 0.25])
    reason = np.array(["", "", "position absent", "", "no difference", "", "", ""], dtype=object)
    ends = {f"diff.{end}": Attribute("nodes", values + shift) for end, shift in (("low", -0.5), ("high", 0.5))}
    return Circuit(
        nodes,
        scores={"diff": Score(header, values)},
        attributes={"reason": Attribute("nodes", reason), **ends},
        kept_nodes=mask("01000100"),
        provenance=Provenance(model="tiny", task="ioi", method="patch", token_ids=((1, 2), (3, 4)), seed=0),
    )


def test_heads_are_mapped_by_layer_once_for_each_role():
    figure = heads(by_role(), "diff")
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    assert [a.text for a in figure.layout.annotations] == ["S2", "end"]
    assert [cells(one) for one in maps] == [[[1.0, -2.0], [None, 0.5]], [[0.0, 3.0], [-1.0, 0.25]]]
    assert "position absent" in maps[0].hovertext[1][0] and "no difference" in maps[1].hovertext[0][0]
    boxes = [trace for trace in figure.data if trace.type == "scatter"]
    assert [(list(one.x), list(one.y)) for one in boxes] == [([1], [0]), ([1], [0])]
    assert figure.layout.coloraxis.colorbar.title.text == "effect (logits)"
    assert figure.layout.title.subtitle.text == "grey: no value; boxed: kept"


def test_a_role_named_like_a_position_has_a_map_of_its_own():
    figure = heads(scored(["z[0] head 0 role 3", "z[0] head 0 pos 3"], [1.0, 2.0]), "s")
    assert [cells(one) for one in figure.data] == [[[1.0]], [[2.0]]]


def test_heads_without_positions_are_one_map():
    figure = heads(scored(["z[0] head 1", "z[1] head 0"], [1.0, 2.0]), "s")
    (only,) = figure.data
    assert cells(only) == [[None, 1.0], [2.0, None]]
    assert "not a candidate" in only.hovertext[0][0]


def test_the_largest_heads_are_mapped_by_position():
    figure = heads_by_position(by_role(), "diff", top=2)
    assert figure.layout.yaxis.ticktext == ("0.0", "0.1") and figure.layout.xaxis.ticktext == ("S2", "end")
    assert cells(figure.data[0]) == [[1.0, 0.0], [-2.0, 3.0]]


def test_whole_activations_are_mapped_by_layer_and_position():
    nodes = [f"{kind}[{layer}] pos {pos}" for kind in ("mlp_out", "attn_out") for layer in (0, 1) for pos in (0, 2)]
    figure = positions(
        scored([*nodes, "z[0] head 0 pos 0", "embed pos 0"], list(range(10))), "s", tokens=["a", " b", " c"]
    )
    assert [a.text for a in figure.layout.annotations] == ["attn_out", "mlp_out"]
    assert [cells(one) for one in figure.data] == [[[4.0, 5.0], [6.0, 7.0]], [[0.0, 1.0], [2.0, 3.0]]]
    assert figure.layout.xaxis.ticktext == ("0 a", "2 ·c")


def test_without_positions_layers_are_mapped_by_kind():
    figure = positions(scored(["mlp_out[0]", "attn_out[0]", "mlp_out[1]"], [1.0, 2.0, 3.0]), "s")
    assert figure.layout.xaxis.ticktext == ("attn_out", "mlp_out")
    assert cells(figure.data[0]) == [[2.0, 1.0], [None, 3.0]]


def test_the_largest_kept_members_come_first_with_their_intervals():
    bar = ranked(by_role(), "diff").data[0]
    assert list(bar.x) == [3.0, -2.0] and list(bar.error_x.array) == [0.5, 0.5]
    assert bar.hovertext[0].startswith("z[0] head 1 role end")
    edges = ranked(wired({"input > mlp_out[0]": 1.0, "mlp_out[0] > logits": -4.0}), "s").data[0]
    assert [text.split("<br>")[0] for text in edges.hovertext] == ["mlp_out[0] → logits", "input → mlp_out[0]"]


def test_only_so_many_maps_are_drawn_and_the_title_says_so():
    nodes = [f"z[0] head 0 pos {pos}" for pos in range(40)]
    figure = heads(scored(nodes, [float(pos) for pos in range(40)]), "s")
    assert len(figure.data) == 24 and figure.layout.annotations[0].text == "16"
    assert "(the 24 largest of 40 maps)" in figure.layout.title.text


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda c: heads(c, "dif"), r"no number 'dif' over nodes; this circuit has .*; nearest: 'diff'"),
        (lambda c: heads(c, "reason"), "no number 'reason'"),
        (lambda c: heads(c, "diff", kind="v"), "nothing to draw: this circuit has no v nodes with a head"),
        (lambda c: heads(c, "diff", kind="zz"), "no node kind 'zz'"),
        (lambda c: positions(c, "diff"), "this circuit has no nodes of a layer without heads"),
        (lambda c: ranked(scored(["mlp_out[0]"], [1.0], kept="0"), "s"), "no kept nodes with a value of 's'"),
    ],
)
def test_what_a_circuit_cannot_show_is_refused(draw, message):
    with pytest.raises(CircuitError, match=message):
        draw(by_role())


# --- pages ---


class Page(HTMLParser):
    """A page's tags with their attributes, and its scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append(data)


def hostile() -> Circuit:
    """A circuit with markup wherever text can stand."""
    nodes = Nodes.from_columns("z", layer=0, head=[0, 1], role=[EVIL, "end"])
    return Circuit(
        nodes,
        scores={EVIL: Score(EFFECT, np.array([1.0, NAN]))},
        attributes={"reason": Attribute("nodes", np.array(["", EVIL], dtype=object))},
        provenance=Provenance(model=EVIL, task=EVIL, task_parameters={EVIL: EVIL}, token_ids=((5, 6),)),
    )


@pytest.mark.parametrize("circuit", [by_role, hostile])
def test_a_page_holds_everything_and_asks_for_nothing(circuit, tmp_path):
    page = Page(view(circuit(), tmp_path / "circuit.html"))
    asking = [
        (tag, attrs) for tag, attrs in page.tags if {"src", "href", "data", "action"} & attrs.keys() or tag == "link"
    ]
    assert not asking
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}) in page.tags
    assert POLICY.startswith("default-src 'none'") and "http" not in POLICY
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1
    assert not any("alert(1)</script" in script for script in page.scripts)


def test_markup_in_a_circuit_stays_text(tmp_path):
    page = view(hostile(), tmp_path / "page.html").read_text(encoding="utf-8")
    assert EVIL not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_page_tells_members_and_provenance(tmp_path):
    page = view(by_role(), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>Circuit · ioi · tiny · patch</h1>" in page
    assert "2 of 8, largest magnitude of diff first." in page
    assert page.index("z[0] head 1 role end</td>") < page.index("z[0] head 1 role S2</td>")
    assert "2 prompts<br>1 2<br>3 4" in page and "<td" in page.split("seed")[-1]


def test_a_long_list_of_members_is_cut_and_says_so(tmp_path):
    nodes = Nodes.from_columns("neuron", layer=0, unit=np.arange(700))
    circuit = Circuit(nodes, scores={"s": Score(EFFECT, np.arange(700.0))})
    page = view(circuit, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The first 500 are shown; the circuit's file has all." in page
    assert "neuron[0] unit 200<" in page and "neuron[0] unit 199<" not in page


def test_a_circuit_without_scores_or_nodes_has_a_page_too(tmp_path):
    for circuit in (Circuit(Nodes.of(["z[0] head 0"])), Circuit(Nodes.of([]))):
        assert "<h1>Circuit</h1>" in view(circuit, tmp_path / "page.html").read_text(encoding="utf-8")


def test_equal_circuits_give_equal_pages(tmp_path):
    first, second = (view(by_role(), tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_a_figure_is_saved_whole_or_refused(tmp_path):
    figure = heatmap([[1.0]], "a", "b", title="Effect of <x>")
    page = save(figure, tmp_path / "new" / "figure.html").read_text(encoding="utf-8")
    assert "<title>Effect of &lt;x&gt;</title>" in page
    with pytest.raises(OptionError, match=r"figure.png does not end in .html, the one format there is; name it"):
        save(figure, tmp_path / "figure.png")


def test_a_title_of_someone_elses_figure_cannot_break_out_of_the_page(tmp_path):
    import plotly.graph_objects as go

    page = save(go.Figure(layout={"title": "</title>" + EVIL}), tmp_path / "page.html").read_text(encoding="utf-8")
    assert EVIL not in page and "<title>&lt;/title&gt;&lt;script&gt;" in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the chromium browser")
def test_a_browser_draws_every_figure_and_runs_no_foreign_script(tmp_path):
    page = view(hostile(), tmp_path / "page.html")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    done = subprocess.run(
        ["chromium", *flags.split(), "--virtual-time-budget=5000", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path}/profile", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.count('class="main-svg"') >= 2 * page.read_text(encoding="utf-8").count("Plotly.newPlot(")
    assert "CONSOLE" not in done.stderr, done.stderr
