"""Edge attribution against node attribution, against edges that are really cut, and on a linear network."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from tiny import CHANGED, F64, FAMILIES, LIN, RAGGED, answers, build, hooked, hooked64, task, unchecked

import interp
from interp.errors import MetricError, OptionError, TaskError
from interp.graph import component_graph
from interp.intervention import Patch
from interp.methods.attribution import attribute
from interp.methods.edges import attribute_edges
from interp.metrics import metric
from interp.models.hf import HookedHF
from interp.run_edges import run_edge_circuits
from interp.site import Site
from interp.tokens import from_ids
from interp.written import written, written_sites

POST_NORM = ("gemma2", "gemma3", "olmo2")
INTEGRATED = ("eap-ig-inputs", "eap-ig-activations", "clean-corrupted", "conductance")
NAME = "logit_diff.noising"


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


def per_prompt(circuit, name=NAME) -> np.ndarray:
    return circuit.tensors[name].array


@pytest.mark.parametrize("family", FAMILIES)
def test_the_edges_out_of_a_node_sum_to_the_nodes_own_estimate(family):
    with F64():
        model, given = hooked64(family), task()
        found = attribute_edges(model, given, direction="both")
        graph = component_graph(model)
        kinds = ["embed", "attn_out" if family in POST_NORM else "z", "mlp_out"]
        nodes = attribute(model, given, kinds)
        for way in ("noising", "denoising"):
            sums = dict.fromkeys(graph.writers.tolist(), 0.0)
            for source, values in zip(graph.edges.source, per_prompt(found, f"logit_diff.{way}"), strict=True):
                if not np.isnan(values).any():
                    sums[source] = sums[source] + values
            for number, node in enumerate(nodes.nodes):
                if node.kind == "attn_out":
                    total = sum(sums[row] for row in graph.nodes.where(kind="z", layer=node.layer).tolist())
                else:
                    total = sums[graph.nodes.index(node._replace(kind="input") if node.kind == "embed" else node)]
                assert np.allclose(total, per_prompt(nodes, f"logit_diff.{way}")[number], atol=1e-6), node


@pytest.mark.parametrize("family", FAMILIES)
def test_writers_add_up_to_the_residual_stream_but_for_biases(family):
    model = hooked(family)
    last = Site("resid_post", 2)
    for prompts in (RAGGED, CHANGED):
        run = model.run(prompts, record=[*written_sites(model), last])
        rest = run[last] - written(model, run.cache).sum(0)
        assert (rest - rest[:1, :1]).abs().max() < 2e-4


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_single_edges_have_the_estimated_effect_where_the_corruption_is_small(family):
    """The tokens that change get embeddings close to those they replace, so the first order is all there is."""
    with F64():
        model, given = HookedHF(build(family).double()), task()
        weight = model.module("embed").weight.data
        for before, after in zip(itertools.chain(*RAGGED), itertools.chain(*CHANGED), strict=True):
            weight[after] = weight[before] + 1e-4 * (weight[after] - weight[before])
        graph = component_graph(model)
        chosen = np.random.default_rng(0).choice(graph.n_scored, 60, replace=False)
        kept = np.ones((61, len(graph.edges)), dtype=bool)
        kept[np.arange(60), chosen] = False
        values = run_edge_circuits(model, given, graph, kept).values[0].numpy()
        exact, estimate = values[60:] - values[:60], per_prompt(attribute_edges(model, given))[chosen]
        assert np.allclose(exact, estimate, rtol=5e-3, atol=2e-8)
        assert abs(exact).max() > 1e-6


@pytest.mark.parametrize("method", ["eap", *INTEGRATED])
def test_on_a_linear_network_every_method_gives_the_exact_effect_of_each_edge(method):
    model, given = LIN(), task()
    graph = component_graph(model)
    found = attribute_edges(model, given, method=method, steps=3)
    kept = np.ones((1 + graph.n_scored, len(graph.edges)), dtype=bool)
    kept[np.arange(graph.n_scored), np.arange(graph.n_scored)] = False
    values = run_edge_circuits(model, given, graph, kept).values[0].numpy()
    assert np.allclose(per_prompt(found)[: graph.n_scored], -(values[:-1] - values[-1:]), atol=2e-4)
    assert np.isnan(per_prompt(found)[graph.n_scored :]).all() and abs(values[:-1] - values[-1:]).max() > 0.1


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_clean_corrupted_is_the_mean_of_both_directions(family):
    model, given = hooked(family), task()
    plain = attribute_edges(model, given, direction="both")
    both = attribute_edges(model, given, method="clean-corrupted")
    middle = (per_prompt(plain) + per_prompt(plain, "logit_diff.denoising")) / 2
    assert np.allclose(per_prompt(both), middle, atol=1e-5, equal_nan=True)


def test_integrated_inputs_of_the_input_are_the_nodes_and_one_step_is_plain():
    model, given = hooked("llama"), task()
    graph = component_graph(model)
    found = attribute_edges(model, given, method="eap-ig-inputs", steps=4)
    node = attribute(model, given, "embed", steps=4, direction="noising")
    from_input = per_prompt(found)[graph.edges.source == graph.writers[0]]
    assert np.allclose(np.nansum(from_input, 0), per_prompt(node)[0], atol=1e-5)
    for method in ("eap-ig-inputs", "eap-ig-activations"):
        once = attribute_edges(model, given, method=method, steps=1)
        assert np.allclose(per_prompt(once), per_prompt(attribute_edges(model, given)), atol=1e-5, equal_nan=True)


def test_conductance_into_the_logits_comes_to_explain_the_whole_gap():
    model, given = hooked("gpt2"), task()
    graph = component_graph(model)
    into = graph.edges.destination == graph.readers[-1]
    scorer = interp.metric("logit_diff")
    gap = [scorer(model.run(ids).logits, answers()).numpy() for ids in (RAGGED, CHANGED)]
    errors = []
    for steps in (8, 64):
        found = attribute_edges(model, given, method="conductance", steps=steps)
        errors.append(abs(per_prompt(found)[into].sum(0) - (gap[0] - gap[1])).max())
    assert errors[1] < errors[0] / 5 and errors[1] < 0.05


def test_activations_of_the_last_mlp_are_integrated_along_its_own_output():
    model, given, steps = hooked("gpt2"), task(), 3
    graph = component_graph(model)
    found = attribute_edges(model, given, method="eap-ig-activations", steps=steps)
    site, top = Site("mlp_out", 2), Site("resid_post", 2)
    here, there = (model.run(ids, record=[site])[site] for ids in (RAGGED, CHANGED))
    expected = 0.0
    for step in range(steps):
        moved = Patch(site, torch.lerp(here, there, step / steps))
        gradient = model.gradients(RAGGED, lambda x: metric("logit_diff")(x, answers()), [top], [moved]).gradients[top]
        expected = expected - ((there - here) * gradient).sum((1, 2)).numpy() / steps
    last = (graph.edges.source == graph.nodes.index("mlp_out[2]")) & (graph.edges.destination == graph.readers[-1])
    assert np.allclose(per_prompt(found)[last][0], expected, atol=1e-5)


@pytest.mark.parametrize("method", ["eap", *INTEGRATED])
def test_scores_do_not_depend_on_the_batch_and_equal_prompts_score_zero(method):
    model, given = hooked("llama"), task()
    together, alone = (attribute_edges(model, given, method=method, steps=2, batch=b) for b in (8, 1))
    assert np.allclose(per_prompt(together), per_prompt(alone), atol=2e-5, equal_nan=True)
    assert np.nanmax(abs(per_prompt(together))) > 0.01
    same = attribute_edges(model, task(corrupted=from_ids(RAGGED)), method=method, steps=2)
    assert np.nanmax(abs(same.scores[NAME].values)) == 0.0


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_information_flow_is_the_share_of_what_is_read(family):
    model, given = hooked(family), task()
    graph = component_graph(model)
    found = attribute_edges(model, given, method="ifr")
    values = found.tensors["flow"].array
    for reader in graph.readers[::7].tolist():
        mine = (graph.edges.destination == reader) & (np.arange(len(graph.edges)) < graph.n_scored)
        assert np.allclose(values[mine].sum(0), 1.0, atol=1e-5) and (values[mine] >= 0).all()
    row, n = 1, len(RAGGED[1])
    run = model.run([RAGGED[row]], record=[*written_sites(model), "resid_pre[1]"])
    writers, stream = written(model, run.cache)[:, 0], run["resid_pre[1]"][0]
    before = graph.seen_by_attention(1)
    shares = torch.zeros(before, n)
    for u, p in itertools.product(range(before), range(n)):
        shares[u, p] = (stream[p].abs().sum() - (stream[p] - writers[u, p]).abs().sum()).clamp(min=0)
    shares = (shares / shares.sum(0)).mean(1)
    mine = np.flatnonzero(graph.edges.destination == graph.nodes.index("k[1] head 0"))
    assert np.allclose(values[mine, row], shares.numpy(), atol=1e-5)
    assert not found.scores["flow"].header.signed


def test_what_has_no_estimate_is_refused():
    model, given = hooked("gpt2"), task()
    with pytest.raises(MetricError, match="zero gradient there"):
        attribute_edges(model, given, metrics="kl")
    with pytest.raises(TaskError, match="corrupted"):
        attribute_edges(model, task(corrupted=None))
    with pytest.raises(OptionError, match="steps=0, batch=8"):
        attribute_edges(model, given, steps=0)
    with pytest.raises(OptionError, match="'eap-ig'.*nearest"), unchecked():
        attribute_edges(model, given, method="eap-ig")
