"""Edge circuits: the full graph is the model, the empty one the ablation, and all edges of a node are that node."""

import numpy as np
import pytest
import torch
from tiny import F64, FAMILIES, answers, hooked, hooked64, task

from interp.cells import Part, Source
from interp.errors import CircuitError, OptionError
from interp.graph import component_graph
from interp.metrics import metric
from interp.run_edges import run_edge_circuits
from interp.scoring import Scorer
from interp.site import Site
from interp.sources import donors
from interp.sweep import sweep
from interp.tokens import from_ids

POST_NORM = ("gemma2", "gemma3", "olmo2")


def plain(model, prompts, given=None) -> torch.Tensor:
    """The metric of each prompt, run as it is."""
    run = model.run(prompts, record=["resid_final"], logits="none")
    return Scorer(model, (metric("logit_diff"),), given or answers()).of_run(run)[0]


@pytest.mark.parametrize("granularity", ["head", "sublayer"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_graph_is_the_clean_run_and_the_empty_one_the_corrupted(family, granularity):
    model, given = hooked(family), task()
    graph = component_graph(model, granularity)
    kept = np.zeros((3, len(graph.edges)), dtype=bool)
    kept[0] = True
    kept[2, graph.n_scored :] = True  # structural edges alone keep nothing
    found = run_edge_circuits(model, given, graph, kept).values[0]
    assert torch.allclose(found[0], plain(model, given.clean).double(), rtol=0, atol=1e-5)
    for empty in (found[1], found[2]):
        assert torch.allclose(empty, plain(model, given.corrupted).double(), rtol=0, atol=1e-5)
    assert (found[0] - found[1]).abs().max() > 0.05


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in POST_NORM])
def test_removing_all_edges_out_of_a_head_or_mlp_is_patching_its_output(family):
    with F64():
        model, given = hooked64(family), task()
        graph = component_graph(model)
        wanted = ["z[0] head 1", "mlp_out[1]", "z[2] head 3", "mlp_out[0]"]
        rows = [graph.nodes.index(name) for name in wanted]
        kept = np.stack([graph.edges.source != row for row in rows])
        found = run_edge_circuits(model, given, graph, kept).values[0]
        cells = [(Part(graph.nodes[row].site, None, graph.nodes[row].head),) for row in rows]
        scorer = Scorer(model, (metric("logit_diff"),), given.answers)
        expected = sweep(
            model, given.clean, Source(given.corrupted), cells, scorer, engine="plain", progress=False
        ).values[0]
        assert torch.allclose(found, expected.double(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_removing_all_edges_into_a_query_key_or_value_head_is_patching_it(family):
    model, given = hooked(family), task()
    graph = component_graph(model)
    wanted = ["q[1] head 2", "k[2] head 1", "v[0] head 0"]
    rows = [graph.nodes.index(name) for name in wanted]
    found = run_edge_circuits(model, given, graph, np.stack([graph.edges.destination != r for r in rows])).values[0]
    cells = [(Part(graph.nodes[row].site, None, graph.nodes[row].head),) for row in rows]
    scorer = Scorer(model, (metric("logit_diff"),), given.answers)
    expected = sweep(model, given.clean, Source(given.corrupted), cells, scorer, progress=False).values[0]
    assert torch.allclose(found, expected.double(), atol=5e-5)


def test_circuits_do_not_depend_on_how_many_run_at_once():
    model, given = hooked("llama"), task()
    graph = component_graph(model)
    kept = np.random.default_rng(0).random((5, len(graph.edges))) < 0.7
    together = run_edge_circuits(model, given, graph, kept, rows=64).values
    apart = run_edge_circuits(model, given, graph, kept, rows=1).values
    assert torch.allclose(together, apart, atol=1e-4)
    assert (together[0, 0] - together[0, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("ablation", ["zero", "mean", "mean_by_position", "resample"])
def test_the_empty_graph_of_other_ablations_sees_their_values_only(ablation):
    model = hooked("llama")
    prompts = from_ids([[5, 17, 3, 88, 41, 9], [71, 2, 64, 30, 11, 95], [13, 60, 7, 44, 29, 81]])
    given = task(clean=prompts, corrupted=None, roles={}, answers=answers(prompts))
    graph = component_graph(model)
    kept = np.stack([np.ones(len(graph.edges), bool), np.zeros(len(graph.edges), bool)])
    found = run_edge_circuits(model, given, graph, kept, ablation=ablation, seed=1).values[0]
    assert torch.allclose(found[0], plain(model, given.clean).double(), atol=2e-4)
    if ablation == "resample":
        expected = plain(model, given.clean[donors(given.clean, 1)], given.answers)
        assert torch.allclose(found[1], expected.double(), atol=2e-4)
    else:
        differences = [metric_of_final(model, given, ablation, row) for row in range(3)]
        assert torch.allclose(found[1], torch.stack(differences).double(), atol=2e-4)


def metric_of_final(model, given, ablation, row):
    """The metric of the final norm of the sum of all writers' ablated values: what an empty graph's logits read."""
    run = model.run(given.clean, record=["resid_post[2]"], logits="none")[Site("resid_post", 2)]
    by_position = run.mean(0)
    skip = int(model.has_sink)
    values = {
        "zero": torch.zeros_like(by_position),
        "mean_by_position": by_position,
        "mean": torch.cat([by_position[:skip], by_position[skip:].mean(0, keepdim=True).expand(6 - skip, -1)]),
    }[ablation]
    final = model.module("final_norm")(values)
    scorer = Scorer(model, (metric("logit_diff"),), given.answers[[row]])
    return scorer(final[None].detach(), torch.tensor([0]))[0, 0].detach()


def test_masks_and_options_that_do_not_fit_are_named():
    model, given = hooked("gpt2"), task()
    graph = component_graph(model)
    with pytest.raises(CircuitError, match=r"masks have shape \(1, 3\)"):
        run_edge_circuits(model, given, graph, np.ones((1, 3), bool))
    with pytest.raises(OptionError, match="ablation is 'men'"):
        run_edge_circuits(model, given, graph, np.ones((1, len(graph.edges)), bool), ablation="men")
