"""Nodes in columns, and `Node` as the light view of one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import CircuitError, OptionError
from interp.nodes import COLUMNS, ERROR, NODE_KINDS, Node, Nodes, rows_in
from interp.site import HEAD_KINDS, KINDS, Site

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=8
).filter(str.isprintable)
NUMBERS = st.integers(0, 2**31 - 2)


@st.composite
def one_node(draw) -> Node:
    kind = draw(st.sampled_from(NODE_KINDS))
    featurizer = draw(st.none() | NAMES)
    unit = draw(st.none() | NUMBERS | (st.just(ERROR) if featurizer else st.nothing()))
    return Node(
        kind,
        draw(NUMBERS) if kind in KINDS and KINDS[kind].layered else None,
        draw(st.none() | NUMBERS) if kind in HEAD_KINDS else None,
        draw(st.none() | NAMES),
        draw(st.none() | NUMBERS),
        featurizer,
        unit,
        draw(st.integers(1, 1000)) if unit is not None and unit >= 0 else 1,
    )


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Node("z", 3, head=5, pos=7), "z[3] head 5 pos 7"),
        (Node("mlp_out", 2, role="S2"), "mlp_out[2] role S2"),
        (Node("logits"), "logits"),
        (Node("embed", role="last name"), "embed role 'last name'"),
        (Node("resid_post", 4, featurizer="sae.4", unit=17), "resid_post[4] featurizer sae.4 unit 17"),
        (Node("resid_post", 4, featurizer="sae.4", unit=ERROR), "resid_post[4] featurizer sae.4 error"),
        (Node("resid_post", 4, featurizer="rotation"), "resid_post[4] featurizer rotation"),
        (Node("neuron", 0, unit=64, width=32), "neuron[0] units 64:96"),
    ],
)
def test_a_node_prints_as_text_and_is_read_back(node, text):
    assert str(node) == text
    assert Node.parse(text) == node
    assert Node.parse(node) is node


@settings(max_examples=50, deadline=None)
@given(one_node())
def test_every_node_survives_text_and_columns(node):
    assert Node.parse(str(node)) == node
    assert Nodes.of([node])[0] == node


@settings(max_examples=50, deadline=None)
@given(st.lists(one_node(), unique=True, max_size=8))
def test_nodes_keep_order_and_each_is_found_again(nodes):
    made = Nodes.of(nodes)
    assert list(made) == nodes
    assert [made.index(node) for node in nodes] == list(range(len(nodes)))
    assert list(made.take(np.arange(len(nodes))[::-1])) == nodes[::-1]


@settings(max_examples=50, deadline=None)
@given(st.lists(one_node(), unique=True, max_size=6), st.lists(one_node(), unique=True, max_size=6))
def test_rows_in_compares_nodes_whatever_their_codes(first, second):
    second = [*second, *first[1:3]]
    second = list(dict.fromkeys(second))
    found = rows_in(Nodes.of(first), Nodes.of(second))
    assert found.tolist() == [first.index(node) if node in first else -1 for node in second]


def test_columns_broadcast_and_take_names_or_nothing():
    nodes = Nodes.from_columns("z", layer=[0, 0, 1], head=[0, 1, 0], role=["S2", None, ""], pos=7)
    assert list(nodes)[:2] == [Node("z", 0, 0, "S2", 7), Node("z", 0, 1, None, 7)]
    assert nodes.roles == ("S2",)
    assert nodes.names("role").tolist() == ["S2", "", ""]
    assert nodes.names("kind").tolist() == ["z"] * 3
    assert Nodes.from_columns("logits")[0] == Node("logits")
    assert len(Nodes.of([])) == 0
    assert nodes.kind.dtype == np.int8
    assert all(getattr(nodes, name).dtype == np.int32 for name in COLUMNS if name != "kind")


def test_where_asks_for_one_several_or_no_value():
    nodes = Nodes.of(["input", "z[0] head 0", "z[1] head 1 role S2", "z[2] head 1 pos 3", "mlp_out[1]"])
    assert nodes.where(kind="z").tolist() == [1, 2, 3]
    assert nodes.where(kind=["input", "mlp_out"]).tolist() == [0, 4]
    assert nodes.where(kind="z", layer=[1, 2], head=1).tolist() == [2, 3]
    assert nodes.where(role=None, pos=None).tolist() == [0, 1, 4]
    assert nodes.where(role="S2").tolist() == [2]
    assert nodes.where(layer=99).tolist() == []
    assert len(nodes.where()) == 5


def test_nodes_are_read_only_and_apart_from_the_callers_arrays():
    layer = np.array([0, 1])
    nodes = Nodes.from_columns("mlp_out", layer=layer)
    layer[0] = 5
    assert nodes.layer.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        nodes.layer[0] = 3


def test_a_node_says_which_site_holds_it():
    assert Node("k_of_query_head", 2, head=5).site == Site("k_of_query_head", 2)
    assert Node("input").site == Site("embed")
    with pytest.raises(CircuitError, match="'logits' has no site"):
        _ = Node("logits").site


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zz[3] head 5", r"'zz\[3\] head 5' is not a node: no kind 'zz\[3\]', allowed: embed, .*write kind\[layer\]"),
        ("mpl_out[3]", "nearest: 'mlp_out"),
        ("z[3] heads 5", "cannot read 'heads'"),
        ("z[3] head", "cannot read 'head'"),
        ("z[3] head five", "invalid literal"),
        ("neuron[3] units 5", "not enough values"),
        ("embed role 'open", "No closing quotation"),
        ("", "not enough values"),
        (7, "7 is not a node"),
    ],
)
def test_text_that_is_no_node_says_how_to_write_one(text, message):
    with pytest.raises(CircuitError, match=message):
        Node.parse(text)


def test_faults_of_one_kind_come_together():
    columns = {"layer": [0, -1, 0, 3], "head": [0, 0, 2, -1]}
    with pytest.raises(CircuitError) as raised:
        Nodes.from_columns(["z", "z", "mlp_out", "logits"], **columns)
    message = str(raised.value)
    assert "rows 1 (z head 0) need a layer" in message
    assert "rows 3 (logits[3]) are of a kind without layers" in message
    assert "rows 2 (mlp_out[0] head 2) are of a kind without heads" in message


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"kind": "neuron", "layer": 0, "unit": [-3, 0]}, r"unit -3 of rows 0; allowed: -2 to"),
        ({"kind": "neuron", "layer": 0, "unit": 1, "width": [0]}, "width 0 of rows 0; allowed: 1 to"),
        ({"kind": "neuron", "layer": 0, "unit": [-2]}, "name an error term without a featurizer"),
        ({"kind": "neuron", "layer": 0, "width": [2]}, "are a block .width above 1. without a first unit"),
        ({"kind": "z", "layer": 0, "head": [1, 2, 1]}, r"rows 2 \(z\[0\] head 1\) given more than once"),
        (
            {"kind": "z", "layer": [0, 1], "head": [1, 2, 3]},
            "node columns have shapes .*give one value a node, or one",
        ),
        ({"kind": "z", "layer": [0.5]}, "node column 'layer' is float64"),
        ({"kind": "z", "layer": [2**40]}, "node column 'layer' reaches from 1099511627776"),
        ({"kind": ["zed"], "layer": 0}, r"no node kinds \['zed'\]; allowed: .*embed"),
        ({"kind": "embed", "role": ["a\nb"]}, r"role name 'a\\nb'; allowed: non-empty printable strings"),
    ],
)
def test_impossible_columns_are_refused(columns, message):
    with pytest.raises(CircuitError, match=message):
        Nodes.from_columns(**columns)


def test_what_is_not_there_is_named_with_what_is():
    nodes = Nodes.from_columns("z", layer=np.repeat([0, 1], 2), head=[0, 1, 0, 1], role="S2")
    with pytest.raises(
        CircuitError, match=r"no node 'z\[0\] head 9 role S2' among these 4; of kind 'z': layer 0 to 1, head 0 to 1"
    ):
        nodes.index("z[0] head 9 role S2")
    with pytest.raises(CircuitError, match="no role 'S3' in these nodes; known: S2; nearest: 'S2'"):
        nodes.where(role="S3")
    with pytest.raises(CircuitError, match="no kind 'mpl_out' in these nodes; .*nearest: 'mlp_out'"):
        nodes.where(kind="mpl_out")
    with pytest.raises(OptionError, match="node column is 'heads'; allowed: .*nearest: 'head'"):
        nodes.where(heads=1)
