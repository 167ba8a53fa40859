"""Exact edges against circuits that lack one edge, against node patches, and against estimates of the first order."""

import numpy as np
import pytest
from tiny import F64, FAMILIES, LIN, answers, hooked, hooked64, task, unchecked

import interp
from interp.circuit_algebra import coarsen
from interp.errors import CircuitError, OptionError
from interp.graph import component_graph
from interp.run_edges import run_edge_circuits
from interp.tokens import from_ids

QUIET = interp.Engine(progress=False)
NAME = "logit_diff.noising"


def cut_one_by_one(model, given, graph, rows, **options) -> np.ndarray:
    """Effects of cutting each edge alone, from circuits that keep all others."""
    kept = np.ones((len(rows) + 1, len(graph.edges)), dtype=bool)
    kept[np.arange(len(rows)), rows] = False
    values = run_edge_circuits(model, given, graph, kept, **options).values[0].numpy()
    return values[:-1] - values[-1]


def some_edges(graph, count: int = 30) -> interp.Circuit:
    """A circuit that keeps a random choice of edges."""
    kept = np.zeros(len(graph.edges), dtype=bool)
    kept[np.random.default_rng(0).choice(graph.n_scored, min(count, graph.n_scored), replace=False)] = True
    return interp.Circuit(graph.nodes, graph.edges, kept_edges=kept)


@pytest.mark.parametrize(
    ("family", "granularity"), [(f, "sublayer") for f in FAMILIES] + [(f, "head") for f in ("gpt2", "llama", "gemma2")]
)
def test_every_edge_is_what_a_circuit_without_it_loses(family, granularity):
    with F64():
        model, given = hooked64(family), task()
        graph = component_graph(model, granularity)
        chosen = some_edges(graph)
        rows = np.flatnonzero(chosen.kept_edges)
        found = interp.patch_edges(model, given, chosen, direction="both", engine=QUIET)
        for way, sign in (("noising", -1), ("denoising", 1)):
            expected = sign * cut_one_by_one(model, given, graph, rows, direction=way)
            assert np.allclose(found.tensors[f"logit_diff.{way}"].array[rows], expected, atol=2e-6)
            assert abs(expected).max() > 1e-3


@pytest.mark.parametrize("ablation", ["zero", "mean", "mean_by_position", "resample"])
def test_other_ablations_are_those_of_circuits_without_the_edge(ablation):
    model, prompts = (
        hooked("llama"),
        from_ids([[5, 17, 3, 88, 41, 9], [71, 2, 64, 30, 11, 95], [13, 60, 7, 44, 29, 81]]),
    )
    given = task(clean=prompts, corrupted=None, roles={}, answers=answers(prompts))
    graph = component_graph(model)
    found = interp.patch_edges(model, given, ablation=ablation, seed=1, engine=QUIET)
    rows = np.random.default_rng(0).choice(graph.n_scored, 30, replace=False)
    expected = -cut_one_by_one(model, given, graph, rows, ablation=ablation, seed=1)
    assert np.allclose(found.tensors[NAME].array[rows], expected, atol=1e-4) and abs(expected).max() > 1e-2


def test_both_engines_agree_and_equal_prompts_score_exactly_zero():
    model, given = hooked("llama"), task()
    chosen, plain = some_edges(component_graph(model)), interp.Engine("plain", progress=False)
    wave, plain = (interp.patch_edges(model, given, chosen, engine=e).tensors[NAME].array for e in (QUIET, plain))
    assert np.allclose(wave, plain, atol=1e-5, equal_nan=True) and np.nanmax(abs(wave)) > 0.1
    same = interp.patch_edges(model, task(corrupted=given.clean), chosen, engine=QUIET)
    scored = same.scores[NAME].values[~np.isnan(same.scores[NAME].values)]
    assert (scored == 0).all() and len(scored) == 30


def test_positions_before_the_first_difference_are_not_run():
    model = hooked("llama")
    clean = from_ids([[5, 17, 3, 88, 41, 9]])
    late = task(clean=clean, corrupted=from_ids([[5, 17, 3, 88, 41, 10]]), roles={}, answers=task().answers[[0]])
    early = task(clean=clean, corrupted=from_ids([[6, 17, 3, 88, 41, 9]]), roles={}, answers=task().answers[[0]])
    chosen = some_edges(component_graph(model))
    costs = [interp.patch_edges(model, given, chosen, engine=QUIET).provenance.forwards for given in (late, early)]
    assert costs[0] < costs[1] / 4


def test_only_the_edges_that_a_circuit_keeps_are_measured():
    model, given = hooked("llama"), task()
    whole = interp.patch_edges(model, given, granularity="sublayer", engine=QUIET)
    best = interp.top_n(interp.attribute_edges(model, given, granularity="sublayer"), 12, NAME, rank="absolute")
    some = interp.patch_edges(model, given, best, engine=QUIET)
    known = ~np.isnan(some.scores[NAME].values)
    assert known.sum() == 12 and np.isnan(whole.scores[NAME].values).sum() == 0
    assert np.allclose(some.scores[NAME].values[known], whole.scores[NAME].values[known], atol=1e-5)
    other = interp.attribute_edges(hooked("gpt2"), given)
    with pytest.raises(CircuitError, match="not in this model's component graph"):
        interp.patch_edges(hooked("llama"), given, other, engine=QUIET)


@pytest.mark.parametrize("method", ["eap", "eap-ig-inputs", "eap-ig-activations", "clean-corrupted", "conductance"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_estimates_between_sublayers_are_sums_of_those_between_heads(family, method):
    """Cutting an edge into the whole attention cuts it into each head's query, key and value, to the first order."""
    with F64():
        model, given = hooked64(family), task()
        coarse = interp.attribute_edges(model, given, method=method, granularity="sublayer", steps=2)
        fine = interp.attribute_edges(model, given, method=method, steps=2)
        kinds = dict.fromkeys(("q", "k", "v", "z"), "attn_out")
        merged = coarsen(fine, ("layer",), kinds=kinds)
        table = {
            (str(merged.nodes[s]), str(merged.nodes[d])): value
            for s, d, value in zip(
                merged.edges.source, merged.edges.destination, merged.scores[NAME].values, strict=True
            )
        }
        for s, d, value in zip(coarse.edges.source, coarse.edges.destination, coarse.scores[NAME].values, strict=True):
            assert np.isclose(table[str(coarse.nodes[s]), str(coarse.nodes[d])], value, atol=1e-5)


def test_on_a_linear_network_estimates_between_sublayers_are_exact():
    model, given = LIN(), task()
    exact = interp.patch_edges(model, given, granularity="sublayer", engine=QUIET)
    estimate = interp.attribute_edges(model, given, granularity="sublayer")
    assert np.allclose(exact.tensors[NAME].array, estimate.tensors[NAME].array, atol=2e-4)


def test_a_relative_metric_compares_with_the_clean_run_in_both_directions():
    model, given = hooked("llama"), task()
    found = interp.patch_edges(model, given, direction="denoising", granularity="sublayer", metrics="kl", engine=QUIET)
    graph = component_graph(model, "sublayer")
    every = np.stack([np.ones(len(graph.edges), bool), np.zeros(len(graph.edges), bool)])
    full, empty = run_edge_circuits(model, given, graph, every, metrics="kl", direction="denoising").values[0].numpy()
    assert (full < -1e-3).all() and np.allclose(
        empty, 0, atol=1e-6
    )  # all cut: the clean run, at no distance from itself
    assert found.scores["kl.denoising"].values.max() > 0


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(OptionError, match="no corrupted run to restore"):
        interp.patch_edges(hooked("gpt2"), task(), direction="denoising", ablation="zero")
    with pytest.raises(OptionError, match="'heads'.*nearest: 'head'"), unchecked():
        interp.patch_edges(hooked("gpt2"), task(), granularity="heads")
