"""Choosing members: exact on hand-made graphs, equal to naive versions on random ones, pure."""

import heapq
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from circuits import EFFECT, OVER_EDGES, kept_names, scored, unchecked, wired
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.circuit import Attribute, Circuit, Score, ScoreHeader
from interp.circuit_ops import bar_nodes, grow, prune, require_nodes, threshold, top_n
from interp.edges import Edges, structural
from interp.errors import CircuitError, OptionError
from interp.nodes import Nodes

GATE = ScoreHeader("nodes", "gate", signed=False)


def heads(values: list[float], header: ScoreHeader = EFFECT) -> Circuit:
    """Heads of one layer with these scores, and no edges."""
    return scored([f"z[0] head {head}" for head in range(len(values))], values, header=header)


def random_heads(seed: int, n_layers: int = 2, n_heads: int = 2, missing: float = 0.3) -> Circuit:
    """A head graph with readers and structure, a random part of its edges, and scores with ties and NaN."""
    rng = np.random.default_rng(seed)
    names, edges = ["input", "logits"], {}
    sources = ["input"]
    for layer in range(n_layers):
        written = []
        for head in range(n_heads):
            for reader in "qkv":
                name = f"{reader}[{layer}] head {head}"
                edges |= {f"{source} > {name}": 0.0 for source in sources}
                edges[f"{name} > z[{layer}] head {head}"] = np.nan
            written.append(f"z[{layer}] head {head}")
        sources += written
        edges |= {f"{source} > mlp_out[{layer}]": 0.0 for source in sources}
        sources.append(f"mlp_out[{layer}]")
    edges |= {f"{source} > logits": 0.0 for source in sources}
    edges = {
        name: rng.integers(-4, 5) + (np.nan if rng.random() < 0.1 else 0.0) if score == 0 else score
        for name, score in edges.items()
        if score != 0 or rng.random() > missing
    }
    return wired(edges, names)


# Ranking


def test_signed_and_absolute_rankings_differ():
    circuit = heads([3.0, -5.0, 1.0, 2.0])
    assert np.flatnonzero(top_n(circuit, 2, "s", rank="signed").kept_nodes).tolist() == [0, 3]
    assert np.flatnonzero(top_n(circuit, 2, "s", rank="absolute").kept_nodes).tolist() == [0, 1]
    assert np.flatnonzero(threshold(circuit, 2.0, "s", rank="signed").kept_nodes).tolist() == [0, 3]
    assert np.flatnonzero(threshold(circuit, 2.0, "s", rank="absolute").kept_nodes).tolist() == [0, 1, 3]


@unchecked()
def test_the_ranking_rule_has_no_default_and_is_stored():
    circuit = heads([1.0, 2.0])
    with pytest.raises(TypeError, match="rank"):
        top_n(circuit, 1, "s")
    with pytest.raises(OptionError, match="rank is 'abs'; allowed: 'signed', 'absolute'; nearest: 'absolute'"):
        top_n(circuit, 1, "s", rank="abs")
    made = threshold(top_n(circuit, 1, "s", rank="absolute"), 1.5, "s", rank="signed")
    assert made.provenance.ranking == "signed"
    assert made.provenance.operations == (
        {"operation": "top_n", "n": 1, "by": "s", "rank": "absolute"},
        {"operation": "threshold", "at_least": 1.5, "by": "s", "rank": "signed"},
    )


def test_any_size_from_none_to_all_is_met_and_no_other():
    circuit = heads([0.5, np.nan, 0.25])
    assert [int(top_n(circuit, n, "s", rank="signed").kept_nodes.sum()) for n in (0, 1, 2)] == [0, 1, 2]
    for n in (3, -1):
        with pytest.raises(
            CircuitError, match=f"{n} asked for, and there are 2 nodes that 's' can rank; ask for 0 to 2"
        ):
            top_n(circuit, n, "s", rank="signed")


def test_a_selection_starts_from_the_universe_not_from_what_is_kept():
    circuit = heads([3.0, 2.0, 1.0])
    assert top_n(top_n(circuit, 1, "s", rank="signed"), 2, "s", rank="signed").kept_nodes.tolist() == [
        True,
        True,
        False,
    ]


def test_ties_go_to_the_earlier_row():
    assert top_n(heads([1.0, 2.0, 1.0, 1.0]), 2, "s", rank="signed").kept_nodes.tolist() == [True, True, False, False]


def test_what_was_not_run_is_never_chosen():
    circuit = heads([np.nan, -1.0, np.nan])
    assert threshold(circuit, -np.inf, "s", rank="signed").kept_nodes.tolist() == [False, True, False]


def test_magnitudes_stay_out_of_signed_rankings():
    circuit = heads([0.1, 0.9], GATE)
    with pytest.raises(CircuitError, match="score 's' is unsigned, a magnitude; rank it with rank='absolute'"):
        top_n(circuit, 1, "s", rank="signed")
    assert top_n(circuit, 1, "s", rank="absolute").kept_nodes.tolist() == [False, True]


def test_attributes_are_ranked_when_named_and_numeric():
    circuit = replace(
        heads([1.0, 2.0]),
        attributes={
            "share": Attribute("nodes", np.array([0.9, 0.1])),
            "class": Attribute("nodes", np.array(["a", "b"])),
        },
    )
    assert top_n(circuit, 1, "share", rank="signed").kept_nodes.tolist() == [True, False]
    with pytest.raises(CircuitError, match="attribute 'class' holds strings and has no order"):
        top_n(circuit, 1, "class", rank="signed")
    with pytest.raises(CircuitError, match=r"no score or attribute 'shares'; this circuit has .*nearest: 'share'"):
        top_n(circuit, 1, "shares", rank="signed")


def test_infinities_and_nan_thresholds_are_refused():
    with pytest.raises(CircuitError, match="'s' is infinite in rows 1; mend the score, or set NaN for 'not run'"):
        top_n(heads([1.0, np.inf]), 1, "s", rank="signed")
    with pytest.raises(CircuitError, match="the threshold is NaN"):
        threshold(heads([1.0]), np.nan, "s", rank="signed")


def test_operations_leave_their_circuit_alone_and_share_its_arrays():
    circuit = random_heads(1)
    before = [array.copy() for array in (circuit.kept_nodes, circuit.kept_edges, circuit.scores["s"].values)]
    made = prune(top_n(circuit, 5, "s", rank="absolute"))
    after = (circuit.kept_nodes, circuit.kept_edges, circuit.scores["s"].values)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
    assert circuit.provenance.operations == ()
    assert made.nodes is circuit.nodes
    assert made.edges is circuit.edges
    assert made.scores["s"].values is circuit.scores["s"].values


# Nodes and edges follow each other


def test_chosen_edges_keep_their_nodes_and_the_structure_between_them():
    circuit = wired(
        {
            "input > q[0] head 0": 1.0,
            "input > k[0] head 0": 0.1,
            "q[0] head 0 > z[0] head 0": np.nan,
            "k[0] head 0 > z[0] head 0": np.nan,
            "z[0] head 0 > logits": 2.0,
            "input > logits": 0.5,
        }
    )
    nodes, edges = kept_names(top_n(circuit, 2, "s", rank="signed"))
    assert nodes == {"input", "q[0] head 0", "z[0] head 0", "logits"}
    assert edges == {"input > q[0] head 0", "q[0] head 0 > z[0] head 0", "z[0] head 0 > logits"}
    assert kept_names(top_n(circuit, 0, "s", rank="signed")) == (set(), set())


def test_chosen_nodes_keep_the_edges_among_them_and_through_what_is_no_candidate():
    circuit = wired(
        {
            "input > q[0] head 0": 0,
            "q[0] head 0 > z[0] head 0": 0,
            "input > q[0] head 1": 0,
            "q[0] head 1 > z[0] head 1": 0,
            "z[0] head 0 > mlp_out[0]": 0,
            "z[0] head 1 > mlp_out[0]": 0,
            "mlp_out[0] > logits": 0,
            "z[0] head 1 > logits": 0,
        }
    )
    effect = np.full(len(circuit.nodes), np.nan)
    effect[circuit.nodes.where(kind=["z", "mlp_out"])] = [3.0, 1.0, 2.0]
    circuit = replace(circuit, scores={"effect": Score(EFFECT, effect)})
    nodes, edges = kept_names(prune(top_n(circuit, 2, "effect", rank="signed")))
    assert nodes == {"input", "q[0] head 0", "z[0] head 0", "mlp_out[0]", "logits"}
    assert edges == {
        "input > q[0] head 0", "q[0] head 0 > z[0] head 0", "z[0] head 0 > mlp_out[0]", "mlp_out[0] > logits",
    }  # fmt: skip


# Pruning


def test_pruning_drops_a_childless_mlp_and_what_led_to_it():
    circuit = wired({"input > mlp_out[0]": 1, "mlp_out[0] > mlp_out[1]": 1, "input > logits": 1})
    assert kept_names(prune(circuit)) == ({"input", "logits"}, {"input > logits"})


def test_pruning_leaves_circuits_without_edges_as_they_are():
    circuit = top_n(heads([1.0, 2.0]), 1, "s", rank="signed")
    assert prune(circuit) is circuit


def test_pruning_needs_sources_and_targets_and_takes_others():
    circuit = wired({"resid_post[0] > mlp_out[1]": 1, "mlp_out[1] > resid_post[1]": 1, "mlp_out[0] > mlp_out[1]": 1})
    with pytest.raises(
        CircuitError, match=r"no \['sources', 'targets'\] \(input or embed; logits\) to prune to; name some"
    ):
        prune(circuit)
    nodes, _ = kept_names(prune(circuit, sources="resid_post[0]", targets=["resid_post[1]"]))
    assert nodes == {"resid_post[0]", "mlp_out[1]", "resid_post[1]"}


def on_some_path(circuit: Circuit) -> set[int]:
    """Nodes on an input-to-output path of kept edges, by walking every path."""
    following: dict[int, list[int]] = {}
    edges = circuit.kept_edges
    for a, b in zip(circuit.edges.source[edges].tolist(), circuit.edges.destination[edges].tolist(), strict=True):
        following.setdefault(a, []).append(b)
    found: set[int] = set()
    end = circuit.nodes.index("logits")

    def walk(path: list[int]) -> None:
        if path[-1] == end:
            found.update(path)
        for ahead in following.get(path[-1], ()):
            walk([*path, ahead])

    if circuit.kept_nodes[circuit.nodes.index("input")] and circuit.kept_nodes[end]:
        walk([circuit.nodes.index("input")])
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 1))
def test_after_pruning_every_kept_node_is_on_a_path_and_no_path_is_lost(seed, share):
    circuit = random_heads(seed)
    cut = top_n(circuit, int(share * np.isfinite(circuit.scores["s"].values).sum()), "s", rank="absolute")
    pruned = prune(cut)
    assert set(np.flatnonzero(pruned.kept_nodes).tolist()) == on_some_path(cut) == on_some_path(pruned)
    assert (pruned.kept_edges <= cut.kept_edges).all()
    again = prune(pruned)
    assert np.array_equal(again.kept_edges, pruned.kept_edges)


# Growing


def grown_naively(circuit: Circuit, n_edges: int, absolute: bool) -> set[int]:
    """Greedy growth by looking at every edge each time."""
    score = circuit.scores["s"].values.astype(float)
    score = np.abs(score) if absolute else score
    source, destination = circuit.edges.source, circuit.edges.destination
    free = structural(circuit.nodes, circuit.edges)
    reached = {circuit.nodes.index("logits")}
    taken: set[int] = set()
    while len(taken) < n_edges:
        while True:
            readers = {int(source[e]) for e in np.flatnonzero(free) if int(destination[e]) in reached} - reached
            if not readers:
                break
            reached |= readers
        open_edges = [
            e for e in range(len(score)) if e not in taken and int(destination[e]) in reached and not np.isnan(score[e])
        ]
        if not open_edges:
            break
        best = max(open_edges, key=lambda e: (score[e], -e))
        taken.add(best)
        reached.add(int(source[best]))
    return taken


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 25), st.sampled_from(["signed", "absolute"]))
def test_growth_equals_the_naive_version(seed, n_edges, rank):
    circuit = random_heads(seed)
    expected = grown_naively(circuit, n_edges, rank == "absolute")
    if len(expected) < n_edges:
        with pytest.raises(CircuitError, match=f"{n_edges} asked for, and there are"):
            grow(circuit, n_edges, "s", rank=rank)
        return
    made = grow(circuit, n_edges, "s", rank=rank)
    scored = ~structural(circuit.nodes, circuit.edges)
    assert set(np.flatnonzero(made.kept_edges & scored).tolist()) == expected


def test_growth_takes_a_connected_edge_before_a_better_loose_one():
    circuit = wired({"input > mlp_out[0]": 9.0, "mlp_out[0] > logits": 0.1, "input > logits": 1.0})
    assert kept_names(grow(circuit, 1, "s", rank="signed"))[1] == {"input > logits"}
    assert kept_names(grow(circuit, 2, "s", rank="signed"))[1] == {"input > logits", "mlp_out[0] > logits"}


def test_growth_needs_edge_scores_and_edges_within_reach():
    with pytest.raises(CircuitError, match="'s' scores nodes; growing follows edges: choose an edge score"):
        grow(heads([1.0]), 1, "s", rank="signed")
    circuit = wired({"input > mlp_out[0]": 1.0, "input > logits": 1.0})
    with pytest.raises(CircuitError, match="2 asked for, and there are 1 edges that can be reached from the logits"):
        grow(circuit, 2, "s", rank="signed")
    with pytest.raises(CircuitError, match="3 asked for, and there are 2 edges that 's' can rank"):
        grow(circuit, 3, "s", rank="signed")


# Barring and requiring


def test_barred_nodes_leave_and_are_not_chosen_again():
    circuit = bar_nodes(heads([3.0, 2.0, 1.0]), ["z[0] head 0"])
    assert circuit.kept_nodes.tolist() == [False, True, True]
    assert top_n(circuit, 2, "s", rank="signed").kept_nodes.tolist() == [False, True, True]
    assert threshold(circuit, 0.0, "s", rank="signed").kept_nodes.tolist() == [False, True, True]
    with pytest.raises(CircuitError, match="3 asked for, and there are 2 nodes"):
        top_n(circuit, 3, "s", rank="signed")
    assert bar_nodes(circuit, 1).attributes["barred"].values.tolist() == [True, True, False]


def test_barring_a_node_takes_its_edges():
    circuit = wired({"input > mlp_out[0]": 5, "mlp_out[0] > logits": 5, "input > logits": 1})
    barred = bar_nodes(circuit, "mlp_out[0]")
    assert kept_names(barred) == ({"input", "logits"}, {"input > logits"})
    assert kept_names(grow(barred, 1, "s", rank="signed"))[1] == {"input > logits"}
    with pytest.raises(CircuitError, match="2 asked for, and there are 1 edges"):
        top_n(barred, 2, "s", rank="signed")


def test_required_nodes_are_kept_besides_the_chosen():
    circuit = require_nodes(heads([3.0, np.nan, 1.0]), [1])
    assert top_n(circuit, 0, "s", rank="signed").kept_nodes.tolist() == [False, True, False]
    assert top_n(circuit, 1, "s", rank="signed").kept_nodes.tolist() == [True, True, False]
    made = require_nodes(top_n(heads([3.0, 2.0]), 0, "s", rank="signed"), "z[0] head 1")
    assert made.kept_nodes.tolist() == [False, True]


def test_contradictory_or_unknown_nodes_are_named():
    circuit = heads([1.0, 2.0])
    with pytest.raises(CircuitError, match=r"nodes z\[0\] head 1 are required; they cannot be barred too"):
        bar_nodes(require_nodes(circuit, 1), [0, 1])
    with pytest.raises(CircuitError, match=r"no node 'z\[0\] head 7' among these 2"):
        bar_nodes(circuit, "z[0] head 7")
    with pytest.raises(CircuitError, match=r"node rows \[2\] are not in this circuit; allowed: 0 to 1"):
        require_nodes(circuit, [2])
    dead = wired({"input > mlp_out[0]": 1, "input > logits": 1})
    with pytest.raises(CircuitError, match=r"required nodes mlp_out\[0\] lie on no path; keep edges through them"):
        prune(require_nodes(dead, "mlp_out[0]"))


# Scale: exact at 200,000 edges


def big_circuit(n_edges: int = 200_000, width: int = 100, depth: int = 40) -> Circuit:
    """Random forward edges among neurons of 40 layers, from 100 embedding coordinates to the logits."""
    rng = np.random.default_rng(0)
    nodes = Nodes.from_columns(
        [*["embed"] * width, *["neuron"] * (width * depth), "logits"],
        layer=np.concatenate([np.full(width, -1), np.repeat(np.arange(depth), width), [-1]]),
        unit=np.concatenate([np.tile(np.arange(width), depth + 1), [-1]]),
    )
    pairs = np.sort(rng.integers(0, len(nodes), (int(n_edges * 1.2), 2)), axis=1)
    pairs = np.unique(pairs[pairs[:, 0] // width < pairs[:, 1] // width], axis=0)
    pairs = pairs[np.sort(rng.permutation(len(pairs))[:n_edges])]
    return Circuit(nodes, Edges(*pairs.T), {"s": Score(OVER_EDGES, rng.normal(size=len(pairs)))})


def walked(edges: list[tuple[int, int]], start: list[int]) -> set[int]:
    following: dict[int, list[int]] = {}
    for a, b in edges:
        following.setdefault(a, []).append(b)
    seen, queue = set(start), deque(start)
    while queue:
        for ahead in following.get(queue.popleft(), ()):
            if ahead not in seen:
                seen.add(ahead)
                queue.append(ahead)
    return seen


def test_selection_and_pruning_are_exact_at_200_000_edges():
    circuit = big_circuit()
    assert len(circuit.edges) > 190_000
    score = circuit.scores["s"].values
    cut = top_n(circuit, 5_000, "s", rank="absolute")
    assert set(np.flatnonzero(cut.kept_edges).tolist()) == set(
        sorted(range(len(score)), key=lambda e: -abs(score[e]))[:5_000]
    )
    edges = [(int(circuit.edges.source[e]), int(circuit.edges.destination[e])) for e in np.flatnonzero(cut.kept_edges)]
    touched = {node for edge in edges for node in edge}
    forward = walked(edges, [row for row in range(100) if row in touched])
    backward = walked([(b, a) for a, b in edges], [len(circuit.nodes) - 1])
    pruned = prune(cut)
    assert set(np.flatnonzero(pruned.kept_nodes).tolist()) == forward & backward
    assert int(pruned.kept_edges.sum()) == sum(a in forward & backward and b in forward & backward for a, b in edges)


def test_growth_is_exact_at_200_000_edges():
    circuit = big_circuit()
    score, source = circuit.scores["s"].values.tolist(), circuit.edges.source.tolist()
    incoming: dict[int, list[int]] = {}
    for edge, node in enumerate(circuit.edges.destination.tolist()):
        incoming.setdefault(node, []).append(edge)
    reached, taken, heap = set(), set(), []
    new = [len(circuit.nodes) - 1]
    while len(taken) < 5_000:
        for node in new:
            reached.add(node)
            for edge in incoming.get(node, ()):
                heapq.heappush(heap, (-score[edge], edge))
        edge = heapq.heappop(heap)[1]
        taken.add(edge)
        new = [source[edge]] if source[edge] not in reached else []
    assert set(np.flatnonzero(grow(circuit, 5_000, "s", rank="signed").kept_edges).tolist()) == taken
