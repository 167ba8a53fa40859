"""Running circuits of features: running encodings, their own error terms, and laws of full, empty and complement."""

import numpy as np
import pytest
import torch
from dictionaries import dictionaries, random_dictionary, signed_basis
from tiny import F64, hooked, hooked64, task

import interp
from interp.circuit import Circuit
from interp.errors import CircuitError
from interp.featurizers.base import flat
from interp.intervention import Edit
from interp.methods.features import attribute_features, connect_features
from interp.nodes import ERROR, Nodes
from interp.run_circuit import run_circuits
from interp.sources import ABLATIONS

FAMILIES = ("gpt2", "llama", "gpt_neox", "gemma2")
KINDS = ("attn_out", "mlp_out", "resid_post")
NAME = "logit_diff.noising"


def values(model, given, circuit, masks, featurizers, **options):
    return run_circuits(model, given, circuit, np.atleast_2d(masks), featurizers=featurizers, **options).values[0]


def metric_of(model, given, prompts, edits=()):
    return given.metric(model.run(prompts, edits, logits=given.answers.positions).logits, given.answers).double()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_circuit_is_the_model_and_nothing_but_its_empty_one_is_ablated(family):
    model, given = hooked(family), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    for positions in ("all", "each"):
        nodes = attribute_features(model, given, ds, method="atp", positions=positions, progress=False)
        both = np.stack([np.ones(len(nodes.nodes), bool), np.zeros(len(nodes.nodes), bool)])
        full, empty = values(model, given, nodes, both, ds)
        assert torch.allclose(full, metric_of(model, given, given.clean), atol=1e-5)
        # every site of the cut has its counterpart's features and error term, so it is the counterpart's run
        assert torch.allclose(empty, metric_of(model, given, given.corrupted), atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_circuit_by_hand_takes_features_and_errors_from_the_running_activation(family):
    """x' = x - sum over ablated features f_i(x) v_i, at every site in turn; the error term stays that of the run."""
    with F64():
        model, given = hooked64(family), task(corrupted=None)
        ds = dictionaries(model, *KINDS)
        nodes = attribute_features(model, given, ds, method="atp", ablation="zero", progress=False)
        kept = np.random.default_rng(0).random(len(nodes.nodes)) < 0.5
        kept[nodes.nodes.where(unit=ERROR)] = True
        found = values(model, given, nodes, kept, ds, ablation="zero")[0]
        edits = []
        for number, one in enumerate(ds):
            off = torch.from_numpy(~kept[number * one.n_nodes : (number + 1) * one.n_nodes - 1])

            def change(x, one=one, off=off):
                return x - (one.encode(x) * off) @ one.decoder

            edits.append(Edit(one.site, function=change))
        assert torch.allclose(found, metric_of(model, given, given.clean, edits), atol=1e-10)
        without_errors = kept.copy()
        without_errors[nodes.nodes.where(unit=ERROR)] = False
        found = values(model, given, nodes, without_errors, ds, ablation="zero")[0]
        edits = []
        for number, one in enumerate(ds):
            on = torch.from_numpy(kept[number * one.n_nodes : (number + 1) * one.n_nodes - 1])
            edits.append(Edit(one.site, function=lambda x, one=one, on=on: one.decode(one.encode(x) * on)))
        assert torch.allclose(found, metric_of(model, given, given.clean, edits), atol=1e-10)


def test_means_are_of_features_over_real_tokens_by_position_or_over_all():
    with F64():
        model, given = hooked64("llama"), task()
        one = random_dictionary(model, "resid_post[0]")
        x = model.run(given.clean, record=["resid_post[0]"], logits="none")["resid_post[0]"]
        f = one.encode(x)
        error, mask = one.error(x, f), given.clean.mask[..., None]
        names = [f"resid_post[0] featurizer '{one.key}' {what}" for what in ("unit 3", "error")]
        nodes = Circuit(Nodes.of(names), featurizers={one.key: {}})
        for ablation in ("mean", "mean_by_position"):
            if ablation == "mean":
                means = [(part * mask).sum((0, 1)) / mask.sum() for part in (f, error)]
            else:
                means = [(part * mask).sum(0) / mask.sum(0) for part in (f, error)]
            there = x + (means[0] - f)[..., 3, None] * one.decoder[3] + means[1] - error
            run = [Edit("resid_post[0]", function=lambda _, there=there: there)]
            found = values(model, given, nodes, [False, False], [one], ablation=ablation)[0]
            assert torch.allclose(found, metric_of(model, given, given.clean, run), atol=1e-6)


def test_positions_and_skipped_ones():
    with F64():
        model, given = hooked64("llama"), task(corrupted=None)
        one = random_dictionary(model, "z[1]", skip=1)
        names = [f"z[1] featurizer '{one.key}' unit {unit} role changed" for unit in range(40)]
        nodes = Circuit(Nodes.of(names), featurizers={one.key: {}})
        found = values(model, given, nodes, np.zeros(40, bool), [one], ablation="zero")[0]
        at = torch.zeros_like(given.clean.mask)
        for row, where in enumerate(given.roles["changed"]):
            at[row, list(where)] = True

        def change(x):
            return x - ((one.encode(flat(x)) * at[..., None]) @ one.decoder).reshape(x.shape)

        assert torch.allclose(found, metric_of(model, given, given.clean, [Edit("z[1]", function=change)]), atol=1e-10)
        whole = attribute_features(model, given, [one], method="atp", ablation="zero", progress=False)
        some = Circuit(Nodes.of([f"z[1] featurizer '{one.key}' unit 3"]), featurizers={one.key: {}})
        for universe in (whole, some):  # neither covers all: position 0 and the other features run as they are
            none = np.zeros((1, len(universe.nodes)), bool)
            runs = run_circuits(model, given, universe, none, ablation="zero", featurizers=[one])
            assert "z[1] in part" in runs.outside
        found = values(model, given, whole, np.zeros(41, bool), [one], ablation="zero")[0]

        def all_but_first(x):
            x = x.clone()
            x[:, 1:] = one.decoder_bias.reshape(x.shape[2:])
            return x

        expected = metric_of(model, given, given.clean, [Edit("z[1]", function=all_but_first)])
        assert torch.allclose(found, expected, atol=1e-10)


def test_transcoders_are_ablated_by_what_they_read_in_the_run():
    with F64():
        model, given = hooked64("llama"), task(corrupted=None)
        first = random_dictionary(model, "resid_post[0]")
        second = random_dictionary(model, "mlp_out[1]", reads="mlp_in[1]", seed=1, key="t")
        nodes = attribute_features(model, given, [first, second], method="atp", ablation="zero", progress=False)
        kept = np.random.default_rng(1).random(len(nodes.nodes)) < 0.5
        kept[nodes.nodes.where(unit=ERROR)] = True
        found = values(model, given, nodes, kept, [second, first], ablation="zero")[0]
        off = [torch.from_numpy(~part[:-1]) for part in (kept[:41], kept[41:])]
        seen = {}

        def listen(x):
            seen["x"] = x
            return x

        edits = [
            Edit("resid_post[0]", function=lambda x: x - (first.encode(x) * off[0]) @ first.decoder),
            Edit("mlp_in[1]", function=listen),
            Edit("mlp_out[1]", function=lambda x: x - (second.encode(seen["x"]) * off[1]) @ second.decoder),
        ]
        assert torch.allclose(found, metric_of(model, given, given.clean, edits), atol=1e-10)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_a_prompts_result_is_its_own_and_signed_bases_equal_whole_sites(ablation):
    model = hooked("llama")
    given = task()
    if ablation == "resample":
        given = interp.Task("pairs", given.clean[[0, 0, 1, 1]], given.answers[[0, 0, 1, 1]], given.metric)
    ds = [signed_basis(model, f"resid_post[{layer}]", dtype=torch.float32) for layer in (0, 1)]
    universe = attribute_features(model, given, ds, method="atp", ablation=ablation, progress=False)
    none = np.zeros(len(universe.nodes), bool)
    found = values(model, given, universe, none, ds, ablation=ablation, rows=1)[0]
    whole = Circuit(Nodes.of(["resid_post[0]", "resid_post[1]"]))
    assert torch.allclose(found, values(model, given, whole, [False, False], [], ablation=ablation)[0], atol=2e-4)


def test_faithfulness_of_feature_circuits_with_and_without_edges_and_its_curve():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    nodes = attribute_features(model, given, ds, progress=False)
    cut = interp.top_n(nodes, 60, NAME, rank="absolute")
    edges = connect_features(model, given, ds, cut, progress=False)
    options = {"ablation": "mean_by_position", "featurizers": ds, "random": 2}
    plain, connected = (interp.faithfulness(model, given, one, **options) for one in (cut, edges))
    assert plain.value == connected.value and plain.size == connected.size == 60 and connected.over == "nodes"
    assert interp.faithfulness(model, given, nodes, **options).value == pytest.approx(1, abs=1e-5)
    rest = interp.faithfulness_of_complement(model, given, cut, **options)
    curve = interp.faithfulness_curve(model, given, nodes, [60, len(nodes.nodes)], NAME, rank="absolute", **options)
    assert curve["faithfulness"][0] == pytest.approx(plain.value, abs=1e-6)
    assert curve["faithfulness"][1] == pytest.approx(1, abs=1e-5)
    other = interp.faithfulness_curve(
        model, given, nodes, [60], NAME, rank="absolute", measure="faithfulness_of_complement", **options
    )
    assert other["faithfulness_of_complement"][0] == pytest.approx(rest.value, abs=1e-6)


def test_error_variants_and_the_layer_that_evaluation_starts_from():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    nodes = attribute_features(model, given, ds, progress=False)
    errors = set(nodes.nodes.where(unit=ERROR).tolist())
    barred = interp.top_n(interp.bar_errors(nodes), 300, NAME, rank="absolute")
    assert not errors & set(np.flatnonzero(barred.kept_nodes).tolist())
    spared = interp.bar_errors(nodes, keep="resid_post")
    left = set(np.flatnonzero(spared.kept_nodes).tolist()) & errors
    assert {str(nodes.nodes[row].site) for row in left} == {f"resid_post[{n}]" for n in range(3)}
    later = interp.from_layer(nodes, 1)
    assert later.nodes.layer.min() == 1 and len(later.nodes) == len(nodes.nodes) * 2 // 3
    found = run_circuits(model, given, later, np.zeros((1, len(later.nodes)), bool), featurizers=ds)
    assert {"attn_out[0]", "mlp_out[0]"} <= set(found.outside)
    with pytest.raises(CircuitError, match="no candidate stands at layer 7"):
        interp.from_layer(nodes, 7)


def test_missing_and_foreign_featurizers_are_named():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, "mlp_out", dtype=torch.float32)
    nodes = attribute_features(model, given, ds, method="atp", progress=False)
    with pytest.raises(CircuitError, match=r"features of 'dictionary.mlp_out\[2\]'; running it needs"):
        interp.faithfulness(model, given, nodes, featurizers=ds[:2])
    small = random_dictionary(model, "mlp_out[2]", n=9, dtype=torch.float32)
    with pytest.raises(CircuitError, match="has features 0 to 8, its nodes go to 39"):
        interp.faithfulness(model, given, nodes, featurizers=[*ds[:2], small])
