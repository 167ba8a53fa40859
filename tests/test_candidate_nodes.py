"""Candidate nodes, the cells they become, and what cannot be a candidate."""

import numpy as np
import pytest
import tiny

from interp.candidate_nodes import candidates, cell_of, check_nodes, positions_of, window_cells, window_sums
from interp.cells import Part
from interp.errors import InterpError, OptionError, SiteError, TaskError
from interp.nodes import Node, Nodes
from interp.site import Site

G2 = tiny.hooked("gpt2")
LH = tiny.hooked("llama")
TASK = tiny.task()


def test_kinds_with_heads_give_one_node_a_head_of_their_own_tensor() -> None:
    nodes = candidates(LH, TASK, ["k", "z", "attn_out", "embed"])
    counts = {kind: len(nodes.where(kind=kind)) for kind in ("k", "z", "attn_out", "embed")}
    assert counts == {"k": 3 * 2, "z": 3 * 8, "attn_out": 3, "embed": 1}
    assert str(nodes[7]) == "z[0] head 1", "kinds come in the order given, then layers, then heads"
    assert [str(node) for node in candidates(LH, TASK, "z", heads="all", layers=[2])] == ["z[2]"]


def test_positions_are_all_or_each_or_roles() -> None:
    assert candidates(G2, TASK, "mlp_out").pos.tolist() == [-1] * 3
    assert candidates(G2, TASK, "mlp_out", positions="each", layers=[1]).pos.tolist() == list(range(9))
    roles = candidates(G2, TASK, "mlp_out", positions=["end", "late"], layers=[1])
    assert [str(node) for node in roles] == ["mlp_out[1] role end", "mlp_out[1] role late"]
    assert [str(node) for node in candidates(G2, TASK, "resid_final", positions="end")] == ["resid_final role end"]


def test_blocks_tile_the_last_axis_and_the_last_one_is_shorter() -> None:
    nodes = candidates(G2, TASK, "neuron", block=50, layers=[0])
    assert list(zip(nodes.unit.tolist(), nodes.width.tolist(), strict=True)) == [(0, 50), (50, 50), (100, 28)]
    assert candidates(G2, TASK, "attn_out", block=1, layers=[0]).unit.tolist() == list(range(32))
    assert candidates(G2, TASK, "attn_out", block=99, layers=[0]).width.tolist() == [32]


def test_a_node_becomes_a_part_with_its_positions_in_each_prompt() -> None:
    z = Site("z", 1)
    assert cell_of(Node("z", 1, head=2), TASK) == (Part(z, None, 2, None),)
    assert cell_of(Node("z", 1, head=2, pos=6), TASK) == (Part(z, ((), (6,), (6,)), 2, None),)
    assert cell_of(Node("z", 1, role="changed", pos=6), TASK) == (Part(z, ((2,), (3, 5), (2,)), None, None),)
    assert cell_of(Node("neuron", 1, unit=4, width=3), TASK) == (Part(Site("neuron", 1), None, None, (4, 7)),)
    assert cell_of(Node("input"), TASK) == (Part(Site("embed")),)


def test_a_weight_on_a_source_position_exists_only_in_prompts_that_have_it() -> None:
    assert positions_of(Node("pattern", 1, unit=6), TASK) == ((), tuple(range(9)), tuple(range(7)))
    assert positions_of(Node("pattern", 1, unit=5, width=3), TASK) == ((), tuple(range(9)), ())
    assert positions_of(Node("pattern", 1, unit=6, pos=6), TASK) == ((), (6,), (6,))
    assert positions_of(Node("pattern", 1, unit=6, role="changed"), TASK) == ((), (3, 5), (2,))
    assert positions_of(Node("neuron", 1, unit=6), TASK) is None


@pytest.mark.parametrize(
    "width, spans",
    [
        (2, [[0], [0, 1], [1, 2], [2, 3], [3, 4]]),
        (3, [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4]]),
        (4, [[0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4]]),
        (10, [[0, 1, 2, 3, 4]] * 5),
    ],
)
def test_windows_span_the_layers_that_rome_patches(width: int, spans: list[list[int]]) -> None:
    nodes = Nodes.from_columns("mlp_out", layer=range(5), role="end")
    cells = window_cells(nodes, TASK, width, n_layers=5)
    assert [[part.site.layer for part in cell] for cell in cells] == spans
    assert {part.positions for cell in cells for part in cell} == {TASK.roles["end"]}
    singles = np.array([[1.0, 2.0, 4.0, 8.0, 16.0]])
    assert window_sums(nodes, singles, width, 5).tolist() == [[singles[0, span].sum() for span in spans]]


def test_the_sum_over_a_window_is_nan_where_a_layer_is_no_candidate() -> None:
    nodes = Nodes.of(["mlp_out[0]", "mlp_out[1]", "mlp_out[1] role end", "mlp_out[3]"])
    sums = window_sums(nodes, np.array([1.0, 2.0, 4.0, 8.0]), 2, 4)
    assert np.array_equal(sums, [1.0, 3.0, np.nan, np.nan], equal_nan=True)


def test_nodes_that_cannot_be_are_named_together() -> None:
    strange = ["z[0] head 9", "z[7]", "logits", "k[0] head 2", "neuron[1] unit 128", "mlp_out[0] pos 9", "resid_mid[0]"]
    with pytest.raises(SiteError) as caught:
        check_nodes(tiny.hooked("gpt_neox"), TASK, Nodes.of(strange))
    text = str(caught.value)
    assert "'z[0] head 9': in-memory has heads 0 to 3 there; 'z[7]': z[7]: layer out of range" in text
    assert "'logits': no activation that can be patched as it is" in text
    assert "'neuron[1] unit 128': neuron[1] has units 0 to 47" in text
    assert "'mlp_out[0] pos 9': the longest prompt has 9 tokens" in text
    assert "'resid_mid[0]'" in text and "in parallel" in text
    assert "k[0] head 2" not in text, "this model has four key/value heads"
    with pytest.raises(SiteError, match=r"'k\[0\] head 2': in-memory has heads 0 to 1 there"):
        check_nodes(LH, TASK, Nodes.of(["k[0] head 2"]))
    with pytest.raises(SiteError, match="; and 2 more"):
        check_nodes(G2, TASK, Nodes.from_columns("z", layer=0, head=range(4, 14)))
    with pytest.raises(OptionError, match="there are no nodes"):
        check_nodes(G2, TASK, Nodes.of([]))


@pytest.mark.parametrize(
    "kinds, options, error, message",
    [
        ("zz", {}, SiteError, "no site kind 'zz'"),
        ([], {}, OptionError, "no candidates of kinds="),
        ("z", {"layers": []}, OptionError, "no candidates of .*layers="),
        ("z", {"layers": [0, 3]}, SiteError, r"layers \[3\] are not in in-memory; allowed: 0 to 2"),
        ("z", {"layers": [-1]}, SiteError, r"layers \[-1\]"),
        ("neuron", {"block": 0}, OptionError, "block=0"),
        ("z", {"block": 4}, OptionError, r"block=4 at z\[0\]: blocks of units are for kinds without heads"),
        ("z", {"heads": "every"}, OptionError, "heads is 'every'; allowed: 'each', 'all'"),
        ("z", {"positions": ["ende"]}, TaskError, r"no roles \['ende'\]; it has changed, .*nearest: 'end'"),
        ("z", {"positions": []}, TaskError, "has no roles"),
        (["z", "z"], {}, InterpError, "given more than once"),
    ],
)
def test_mistakes_are_named(kinds: str | list[str], options: dict, error: type[InterpError], message: str) -> None:
    with tiny.unchecked(), pytest.raises(error, match=message):
        candidates(G2, TASK, kinds, **options)


def test_a_node_of_a_role_that_the_task_lacks_and_a_window_without_layers_are_refused() -> None:
    with pytest.raises(TaskError, match="node 'z.0. role S2': task 'tiny' has no role 'S2'; it has changed, end"):
        positions_of(Node("z", 0, role="S2"), TASK)
    with pytest.raises(OptionError, match="'input' has no layer, so it has no window; use window=1"):
        window_cells(Nodes.of(["input"]), TASK, 2, 3)
