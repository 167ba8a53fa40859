"""ACDC against its literal loop, one full run an edge, and at both ends of the threshold."""

import numpy as np
import pytest
from tiny import F64, hooked, hooked64, task

import interp
from interp.errors import OptionError
from interp.graph import component_graph
from interp.known import known_circuit
from interp.run_edges import run_edge_circuits

NAME = "logit_diff.noising"


def literal(model, given, graph, threshold, metric, kept) -> np.ndarray:
    """The algorithm's box, word for word."""
    scored = np.arange(len(graph.edges)) < graph.n_scored

    def value(mask) -> float:
        return float(run_edge_circuits(model, given, graph, mask[None], metrics=[metric]).values.mean())

    now = value(kept)
    for reader in reversed(graph.readers.tolist()):
        heads = set(graph.edges.destination[(graph.edges.source == reader) & ~scored].tolist())
        own = heads or {reader}
        into = np.flatnonzero((graph.edges.destination == reader) & scored)
        out = kept & scored & np.isin(graph.edges.source, list(own))
        if graph.nodes[reader].kind != "logits" and not out.any():
            kept[into] = False
            continue
        for edge in into[::-1]:
            if not kept[edge]:
                continue
            without = kept.copy()
            without[edge] = False
            then = value(without)
            if now - then < threshold:
                kept, now = without, then
    return kept


@pytest.mark.parametrize(("metric", "threshold"), [("kl", 0.002), ("logit_diff", 0.02)])
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_it_is_the_literal_loop(family, metric, threshold):
    with F64():
        model, given = hooked64(family), task()[[0, 2]]
        graph = component_graph(model, "sublayer")
        found = interp.acdc(model, given, threshold, metric=metric, granularity="sublayer", progress=False)
        expected = literal(model, given, graph, threshold, metric, np.ones(len(graph.edges), dtype=bool))
        own = interp.prune(interp.Circuit(graph.nodes, graph.edges, kept_edges=expected))
        assert np.array_equal(found.kept_edges, own.kept_edges)
        assert 0 < found.kept_edges.sum() < graph.n_scored


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_between_heads_and_from_another_circuit_it_is_the_literal_loop_too(family):
    with F64():
        model, given = hooked64(family), task()[[0]]
        start = interp.grow(interp.attribute_edges(model, given), 24, NAME, rank="absolute")
        found = interp.acdc(model, given, 0.02, metric="logit_diff", start=start, progress=False)
        graph, kept = component_graph(model), start.kept_edges.copy()
        kept[graph.n_scored :] = True
        expected = literal(model, given, graph, 0.02, "logit_diff", kept)
        own = interp.prune(interp.Circuit(graph.nodes, graph.edges, kept_edges=expected))
        assert np.array_equal(found.kept_edges, own.kept_edges)
        assert 0 < found.kept_edges[: graph.n_scored].sum() < 24
        reasons = found.attributes["logit_diff.acdc.reason"].values
        assert np.isin(reasons, ("", "no outgoing edge")).sum() == start.kept_edges[: graph.n_scored].sum()


@pytest.mark.parametrize("rows", [1, 6, 1000])
def test_how_many_are_tried_at_once_changes_nothing(rows):
    with F64():
        model, given = hooked64("llama"), task()
        whole = interp.acdc(model, given, 0.05, granularity="sublayer", progress=False)
        other = interp.acdc(model, given, 0.05, granularity="sublayer", rows=rows, progress=False)
        assert np.array_equal(whole.kept_edges, other.kept_edges)
        assert np.allclose(whole.tensors["kl.acdc"].array, other.tensors["kl.acdc"].array, atol=1e-6, equal_nan=True)


def test_pruning_to_paths_leaves_the_run_as_it_was_and_costs_add_up():
    known = known_circuit("chain")
    model, given = known.model, known.task
    found = interp.acdc(model, given, 0.1, metric="logit_diff", progress=False)
    costs = found.scores["logit_diff.acdc"].values
    removed = ~np.isnan(costs) & (costs < 0.1)
    masks = np.stack([np.ones(len(costs), bool), ~removed & ~np.isnan(costs), found.kept_edges])
    runs = run_edge_circuits(model, given, component_graph(model), masks)
    full, unpruned, pruned = runs.values[0].mean(1).tolist()
    assert np.isclose(unpruned, pruned, atol=1e-6)
    assert np.isclose(full - unpruned, np.nansum(costs[removed].astype(np.float64)), atol=1e-5)


def test_a_threshold_above_everything_leaves_nothing_and_one_of_almost_zero_all_that_matters():
    model, given = hooked("gpt2"), task()
    nothing = interp.acdc(model, given, 1e6, granularity="sublayer", progress=False)
    assert not nothing.kept_edges.any()
    known = known_circuit("chain")
    found = interp.acdc(known.model, known.task, 0.1, metric="logit_diff", progress=False)
    on_path = {str(found.nodes[row]) for row in np.flatnonzero(found.kept_nodes)} - {"input", "logits"}
    assert set(known.nodes.take(known.truth).labels) <= on_path
    with pytest.raises(OptionError, match="threshold=0"):
        interp.acdc(model, given, 0.0)
