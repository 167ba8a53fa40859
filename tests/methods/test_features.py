"""Feature circuits: conservation, outgoing sums, exact effects, and two ways to the same edges."""

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from dictionaries import dictionaries, random_dictionary, signed_basis
from tiny import F64, FAMILIES, LIN, PARALLEL, hooked, hooked64, logit_zero, task, unchecked

import interp
from interp.behaviour import behaviour
from interp.errors import CircuitError, MetricError, OptionError, SiteError, TaskError
from interp.feature_edges import chosen, edge_weights
from interp.feature_effects import FeatureSearch, feature_batches, feature_gradient, moved
from interp.feature_nodes import feature_sites
from interp.feature_values import ablated
from interp.featurizers.base import flat
from interp.featurizers.linear import Basis, coordinates
from interp.intervention import Patch
from interp.methods.features import attribute_features, connect_features, error_shares, feature_circuit
from interp.nodes import ERROR
from interp.segments import is_local, segments
from interp.site import Site

NAME = "logit_diff.noising"
KINDS = ("attn_out", "mlp_out", "resid_post")
ABLATIONS = ("counterfactual", "zero", "mean", "mean_by_position")
FEW = ("gpt2", "llama", "gpt_neox", "gemma2")


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


def search_of(
    model, given, featurizers, *, method="atp", steps=10, rule="midpoint", ablation="counterfactual", **options
):
    """A search and its one batch."""
    _, sites = feature_sites(model, given, featurizers, options.pop("positions", "all"))
    values = ablated(model, given, featurizers, ablation, "noising", 0)
    search = FeatureSearch(behaviour(model, given, given.metric), values, sites, method, rule, steps, 300)
    (batch,) = feature_batches(search)
    return search, batch


def per_prompt(circuit, name=NAME):
    return circuit.tensors[name].array


def outgoing(circuit, over="logit_diff.noising.edges"):
    sums = np.zeros(len(circuit.nodes))
    np.add.at(sums, circuit.edges.source, circuit.scores[over].values.astype(float))
    return sums


# --- conservation at nodes ---


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_the_atp_scores_of_a_site_sum_to_gradient_times_change(family, ablation):
    with F64():
        model, given = hooked64(family), task()
        search, batch = search_of(model, given, dictionaries(model, *KINDS, "z"), ablation=ablation)
        for one in search.sites:
            sums = batch.sums(one, feature_gradient(batch, one)).sum((0, 1))
            x, site = batch.base[one.featurizer.site], one.featurizer.site
            real = given.clean.mask[..., None]
            if ablation == "counterfactual":
                there = flat(model.run(given.corrupted, record=[site], logits="none")[site])
            elif ablation == "zero":
                there = one.featurizer.decode(torch.zeros(one.featurizer.n_features, dtype=torch.float64))
            else:
                there = flat(x) + moved(one.featurizer, batch.features(one), batch.change(one))
            expected = ((there - flat(x)) * batch.gradients[site] * real).sum((1, 2))
            assert torch.allclose(sums, expected, atol=1e-10), one.featurizer


@pytest.mark.parametrize("family", FEW)
def test_integrated_gradients_reach_the_effect_of_the_whole_site_a_hundred_times_closer_with_ten_times_the_steps(
    family,
):
    with F64():
        model, given = hooked64(family), task()
        featurizers = dictionaries(model, *KINDS)[1:4]
        for ablation in ("counterfactual", "zero"):
            gaps = []
            for steps in (100, 1000):  # with fewer, steep activations are not yet in the limit
                search, batch = search_of(model, given, featurizers, method="ig", steps=steps, ablation=ablation)
                one = search.sites[1]
                sums = batch.sums(one, feature_gradient(batch, one)).sum((0, 1))
                there = batch.base[one.featurizer.site] + moved(one.featurizer, batch.features(one), batch.change(one))
                edited = model.run(
                    given.clean, [Patch(one.featurizer.site, there)], logits=given.answers.positions
                ).logits
                gaps.append(float((sums - (given.metric(edited, given.answers) - batch.values)).abs().max()))
            assert gaps[0] < 0.1 and 95 < gaps[0] / gaps[1] < 105, (ablation, gaps)


def test_a_last_pass_of_shorter_prompts_alone_adds_up_with_the_others():
    with F64():
        model, given = hooked64("llama"), task()[[1, 0, 2]]  # the longest first: the 17th and 18th points have none
        one = dictionaries(model, "mlp_out")[0]
        search, batch = search_of(model, given, [one], method="ig", steps=6)
        small = replace(batch, search=replace(search, batch=16))
        assert torch.allclose(
            feature_gradient(small, search.sites[0]), feature_gradient(batch, search.sites[0]), atol=1e-12
        )


def test_positions_that_a_featurizer_skips_stay_as_they_are_on_the_way():
    with F64():
        model, given = hooked64("llama"), task()
        one = replace(dictionaries(model, "resid_post")[0], skip=1)
        search, batch = search_of(model, given, [one], method="ig", steps=2000, ablation="zero")
        sums = batch.sums(search.sites[0], feature_gradient(batch, search.sites[0])).sum((0, 1))
        there = one.decode(torch.zeros(1, one.n_features, dtype=torch.float64)).expand_as(batch.base[one.site]).clone()
        there[:, 0] = batch.base[one.site][:, 0]
        edited = model.run(given.clean, [Patch(one.site, there)], logits=given.answers.positions).logits
        assert (sums - (given.metric(edited, given.answers) - batch.values)).abs().max() < 1e-4


def test_the_rules_of_the_papers_text_and_code_mirror_each_other_and_err_ten_times_less_with_ten_times_the_steps():
    with F64():
        model, given = hooked64("llama"), task()
        featurizers = dictionaries(model, "mlp_out")[:1]
        gaps = {}
        for rule, steps in itertools.product(("code", "paper", "midpoint"), (20, 200)):
            search, batch = search_of(model, given, featurizers, method="ig", rule=rule, steps=steps)
            sums = batch.sums(search.sites[0], feature_gradient(batch, search.sites[0])).sum((0, 1))
            gaps[rule, steps] = sums
        true = gaps["midpoint", 200]
        for rule in ("code", "paper"):
            ratio = (gaps[rule, 20] - true) / (gaps[rule, 200] - true)
            assert ((ratio > 9) & (ratio < 11)).all()
        for steps in (20, 200):
            both = (gaps["code", steps] - true) + (gaps["paper", steps] - true)
            assert (both.abs() < 0.1 * (gaps["code", steps] - true).abs()).all()


def test_one_step_of_the_code_rule_is_atp():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, "mlp_out", dtype=torch.float32)
    atp = attribute_features(model, given, ds, method="atp", progress=False)
    code = attribute_features(model, given, ds, method="ig", rule="code", steps=1, progress=False)
    assert np.allclose(per_prompt(atp), per_prompt(code), atol=1e-5)


# --- exact effects ---


def test_on_a_linear_network_with_a_linear_metric_atp_ig_and_exact_agree_at_every_site():
    model, given = LIN(), logit_zero([[1, 2, 3], [4, 5, 6, 7]], [[1, 9, 3], [4, 5, 8, 7]])
    ds = dictionaries(model, "resid_post", "mlp_out", dtype=torch.float32)
    found = [
        attribute_features(model, given, ds, method=way, positions="each", progress=False)
        for way in ("atp", "ig", "exact")
    ]
    scores = [next(iter(one.scores.values())).values for one in found]
    assert np.nanmax(np.abs(scores[2])) > 0.01
    for other in scores[:2]:
        assert np.allclose(other, scores[2], atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("family", FEW)
def test_exact_effects_are_those_of_hand_written_patches(family):
    model, given = hooked(family), task()
    one = random_dictionary(model, "mlp_out[1]", dtype=torch.float32)
    found = attribute_features(model, given, [one], method="exact", progress=False)
    base, other = (
        model.run(p, record=["mlp_out[1]"], logits="none")["mlp_out[1]"] for p in (given.clean, given.corrupted)
    )
    f, g = one.encode(base), one.encode(other)
    clean = given.metric(model.run(given.clean, logits=given.answers.positions).logits, given.answers)
    for unit in (0, 7, 23, ERROR):
        if unit == ERROR:
            there = base + one.error(other, g) - one.error(base, f)
        else:
            there = base + (g - f)[..., unit, None] * one.decoder[unit]
        run = model.run(given.clean, [Patch("mlp_out[1]", there)], logits=given.answers.positions)
        expected = clean - given.metric(run.logits, given.answers)
        row = found.nodes.where(unit=unit)[0]
        assert np.allclose(per_prompt(found)[row], expected, atol=3e-5), unit


def test_coordinates_as_features_give_neuron_atp():
    model, given = hooked("llama"), task()
    ours = attribute_features(
        model, given, [coordinates(model, "mlp_out[1]")], method="atp", positions="each", progress=False
    )
    nodes = interp.candidates(model, given, "mlp_out", positions="each", layers=[1], block=1)
    theirs = interp.attribute(model, given, nodes, direction="noising", progress=False)
    rows = [theirs.nodes.index(node) for node in ours.nodes]
    assert np.allclose(per_prompt(ours), per_prompt(theirs)[rows], atol=1e-5, equal_nan=True)
    heads = attribute_features(model, given, [coordinates(model, "z[1]")], method="atp", progress=False)
    whole = interp.attribute(model, given, "z", direction="noising", progress=False)
    for head in range(model.shape.n_heads):
        rows = heads.nodes.where(head=head)
        assert len(rows) == model.shape.d_head
        expected = per_prompt(whole)[whole.nodes.index(f"z[1] head {head}")]
        assert np.allclose(per_prompt(heads)[rows].sum(0), expected, atol=1e-5)


def test_positions_add_up_and_features_that_do_not_change_score_exactly_zero():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, "resid_post", dtype=torch.float32)
    summed = attribute_features(model, given, ds, progress=False)
    each = attribute_features(model, given, ds, positions="each", progress=False)
    n = ds[0].n_nodes
    values = np.nan_to_num(per_prompt(each)).reshape(len(ds), -1, n, 3).sum(1).reshape(-1, 3)
    assert np.allclose(values, per_prompt(summed), atol=1e-5)
    before = each.nodes.where(pos=[0, 1])
    assert (per_prompt(each)[before] == 0).all()  # no token differs before position 2
    assert np.isnan(per_prompt(each)[each.nodes.where(pos=7)][:, 0]).all()  # the first prompt has 6 tokens


def test_identical_prompts_score_exactly_zero():
    model, given = hooked("gpt2"), task(corrupted=task().clean)
    for method in ("ig", "atp", "exact"):
        found = attribute_features(
            model, given, dictionaries(model, *KINDS, dtype=torch.float32), method=method, progress=False
        )
        assert (per_prompt(found) == 0).all()


def test_the_sink_is_no_feature():
    model, given = hooked("llama"), task(corrupted=None)
    one = random_dictionary(model, "resid_post[1]", dtype=torch.float32, skip=1)
    whole = random_dictionary(model, "resid_post[1]", dtype=torch.float32)
    skipped = attribute_features(model, given, [one], method="atp", ablation="zero", positions="each", progress=False)
    every = attribute_features(model, given, [whole], method="atp", ablation="zero", positions="each", progress=False)
    assert not len(skipped.nodes.where(pos=0))
    assert np.allclose(
        per_prompt(skipped), per_prompt(every)[len(every.nodes.where(pos=0)) :], atol=1e-6, equal_nan=True
    )


def test_a_signed_basis_leaves_nothing_to_the_error_term():
    with F64():
        model, given = hooked64("llama"), task()
        found = attribute_features(model, given, [signed_basis(model, "resid_post[1]")], progress=False)
        shares = error_shares(found)
        assert list(shares["site"]) == ["resid_post[1]", "all"]
        assert shares["error_share"].max() < 1e-12


# --- edges ---


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ablation", ["counterfactual", "zero"])
def test_the_edges_out_of_every_node_sum_to_its_atp_score(family, ablation):
    with F64():
        model, given = hooked64(family), task()
        search, batch = search_of(model, given, dictionaries(model, *KINDS), ablation=ablation)
        own = [chosen(one, np.ones(10**6, bool)[: one.rows.stop]) for one in search.sites]
        sums = [torch.zeros(len(nodes.nodes), dtype=torch.float64) for nodes in own]
        for (source, _), weights in edge_weights(batch, own).items():
            sums[source] += weights.sum(0)
        for one, found in zip(search.sites, sums, strict=True):
            expected = batch.sums(one, batch.gradients[one.featurizer.site]).sum(-1).flatten()
            assert (found - expected).abs().max() < 1e-12, one.featurizer
            assert expected.abs().max() > 1e-4 or one.featurizer.site.layer == 2


@pytest.mark.parametrize("select", ["gate", "topk", "abstopk"])
@pytest.mark.parametrize(
    "sites", ["resid_post[0] mlp_out[2]", "z[0] attn_out[1] mlp_out[1] resid_post[2]", "embed resid_post[0] z[2]"]
)
def test_outgoing_sums_hold_for_any_choice_of_sites(select, sites):
    with F64():
        model, given = hooked64("llama"), task()
        ds = [random_dictionary(model, site, seed=n, select=select) for n, site in enumerate(sites.split())]
        for positions in ("all", "each", ("changed", "end")):
            nodes = attribute_features(model, given, ds, method="atp", positions=positions, progress=False)
            found = connect_features(model, given, ds, nodes, progress=False)
            scores = nodes.scores[NAME].values
            if isinstance(positions, tuple):  # other positions' features are no targets, so sums fall short
                assert np.isfinite(outgoing(found)).all() and len(found.edges)
                continue
            assert np.allclose(outgoing(found)[:-1], scores, atol=2e-6, equal_nan=True)


def test_transcoders_read_one_site_and_write_another():
    with F64():
        model, given = hooked64("llama"), task()
        ds = [
            random_dictionary(model, "resid_post[0]"),
            random_dictionary(model, "mlp_out[1]", reads="mlp_in[1]", seed=1, key="transcoder"),
            random_dictionary(model, "resid_post[2]", seed=2),
        ]
        nodes = attribute_features(model, given, ds, method="atp", progress=False)
        found = connect_features(model, given, ds, nodes, progress=False)
        assert np.allclose(outgoing(found)[:-1], nodes.scores[NAME].values, atol=1e-6)


@pytest.mark.parametrize("family", FEW)
def test_edges_between_neighbours_have_their_closed_form(family):
    """mlp_out -> resid_post is the identity: weight = g.v_i 1[active] (W_enc_i . v_j) (f~_j - f_j), summed."""
    with F64():
        model, given = hooked64(family), task()
        ds = dictionaries(model, *KINDS)
        search, batch = search_of(model, given, ds)
        own = [chosen(one, np.ones(one.rows.stop, bool)) for one in search.sites]
        weights = edge_weights(batch, own)
        for source, target in ((1, 2), (0, 2), (2, 5)):  # mlp and attention of block 0, and block 0 into block 1
            up, down = search.sites[source], search.sites[target]
            change, g = batch.change(up), batch.gradients[down.featurizer.site]
            x = batch.base[down.featurizer.site]
            active = (down.featurizer.encode(x) != 0).double()
            targets = (g @ down.featurizer.decoder.T) * active
            through = down.featurizer.encoder.T @ up.featurizer.decoder.T
            expected = through * torch.einsum("bpi,bpj->ij", targets, change.features)
            n = up.featurizer.n_features
            assert (weights[source, target][:n, :n] - expected).abs().max() < 1e-12
            error = torch.einsum("bpi,bp d,di->i".replace(" ", ""), targets, change.error, down.featurizer.encoder)
            assert (weights[source, target][:n, n] - error).abs().max() < 1e-12


@pytest.mark.parametrize("family", FEW)
def test_packed_and_batched_passes_equal_one_plain_backward_pass_an_edge_target(family):
    """Each target alone, as a scalar of an autograd graph in which all sites between are cut by hand."""
    with F64():
        model, given = hooked64(family), task()
        ds = dictionaries(model, *KINDS)
        search, batch = search_of(model, given, ds, positions="each")
        own = [chosen(one, np.ones(one.rows.stop, bool)) for one in search.sites]
        weights = edge_weights(batch, own)
        cuts = [one.site for one in ds]
        for target in (3, 4, 5):
            one = search.sites[target]
            for number in (0, 5 * one.shape[1] + 17, 6 * one.shape[1] - 1):
                place, column = own[target].nodes[number].tolist()
                cut = segments(search.behaviour, batch.rows, cuts)
                x = cut.arrived[one.featurizer.site]
                g, mask = batch.gradients[one.featurizer.site], batch.places(one)[place]
                f = one.featurizer.encode(x)
                if column == one.featurizer.n_features:
                    scalar = ((g * (x - one.featurizer.decode(f))).sum(-1) * mask).sum()
                else:
                    scalar = ((g @ one.featurizer.decoder[column]) * f[..., column] * mask).sum()
                for source in range(target):
                    up = search.sites[source]
                    (w,) = torch.autograd.grad(
                        scalar, cut.leaves[up.featurizer.site], retain_graph=True, allow_unused=True
                    )
                    if w is None:
                        assert (source, target) not in weights or (weights[source, target][number] == 0).all()
                        continue
                    expected = batch.sums(up, w).sum(-1).flatten()
                    assert (weights[source, target][number] - expected).abs().max() < 1e-12, (source, target, number)


def test_mlp_edges_stay_at_their_position_and_attention_edges_look_back():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    nodes = attribute_features(model, given, ds, positions="each", method="atp", progress=False)
    found = connect_features(model, given, ds, nodes, progress=False)
    up, down = found.edges.source, found.edges.destination
    kinds, pos = found.nodes.names("kind"), found.nodes.pos
    inner = kinds[down] != "logits"
    attention = inner & (kinds[down] == "attn_out")
    assert (pos[up] == pos[down])[inner & ~attention].all()
    assert (pos[up] <= pos[down])[attention].all() and (pos[up] < pos[down])[attention].any()
    layers = found.nodes.layer
    assert (layers[down] - layers[up])[inner].max() <= 1  # the stream at every block's end carries all


def test_parallel_blocks_have_no_edge_from_attention_to_their_mlp():
    for family in FEW:
        model, given = hooked(family), task()
        ds = dictionaries(model, *KINDS, dtype=torch.float32)
        nodes = attribute_features(model, given, ds, method="atp", progress=False)
        found = connect_features(model, given, ds, nodes, progress=False)
        kinds, layers = found.nodes.names("kind"), found.nodes.layer
        up, down = found.edges.source, found.edges.destination
        within = (kinds[up] == "attn_out") & (kinds[down] == "mlp_out") & (layers[up] == layers[down])
        assert within.any() == (family not in PARALLEL)


def test_what_reads_position_by_position():
    cuts = [Site.parse(s) for s in "resid_post[0] attn_out[1] mlp_out[1] resid_post[1]".split()]
    local = {str(site): is_local(site, cuts, 3) for site in cuts}
    assert local == {"resid_post[0]": False, "attn_out[1]": False, "mlp_out[1]": True, "resid_post[1]": True}
    assert is_local(Site("mlp_in", 1), cuts, 3) and not is_local(Site("mlp_out", 2), cuts, 3)
    assert is_local(Site("attn_in", 2), cuts, 3) and not is_local(Site("resid_final"), cuts, 3)


def test_choosing_fewer_nodes_leaves_the_weights_between_them_as_they_are():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    nodes = attribute_features(model, given, ds, progress=False)
    whole = connect_features(model, given, ds, nodes, progress=False)
    few = connect_features(model, given, ds, interp.top_n(nodes, 40, NAME, rank="absolute"), progress=False)
    edges = {
        (int(a), int(b)): v
        for a, b, v in zip(
            whole.edges.source, whole.edges.destination, whole.scores[f"{NAME}.edges"].values, strict=True
        )
    }
    assert 20 < len(few.edges) < len(edges) / 50
    for a, b, v in zip(few.edges.source, few.edges.destination, few.scores[f"{NAME}.edges"].values, strict=True):
        assert few.kept_nodes[[a, b]].all()
        assert abs(edges[int(a), int(b)] - v) < 1e-5


def test_batches_and_padding_do_not_matter():
    model, given = hooked("gemma2"), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    together = feature_circuit(model, given, ds, n_nodes=60, progress=False)
    nodes = attribute_features(model, given, ds, batch=1, progress=False)
    cut = interp.top_n(nodes, 60, NAME, rank="absolute")
    one_by_one = connect_features(model, given, ds, cut, batch=1, progress=False)
    assert np.array_equal(together.kept_nodes, one_by_one.kept_nodes)
    assert len(together.edges) == len(one_by_one.edges)
    ours, theirs = (one.scores[f"{NAME}.edges"].values for one in (together, one_by_one))
    assert np.allclose(ours, theirs, atol=2e-5)


def test_the_gradient_of_the_nodes_scores_can_weigh_edges_too():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    nodes = attribute_features(model, given, ds, progress=False)
    clean, node = (connect_features(model, given, ds, nodes, gradient=way, progress=False) for way in ("clean", "node"))
    assert np.abs(outgoing(clean) - outgoing(node)).max() > 1e-3
    last = clean.edges.destination == len(nodes.nodes)  # edges to the logits take no gradient at a target
    other = node.edges.destination == len(nodes.nodes)
    edges = f"{NAME}.edges"
    assert np.allclose(clean.scores[edges].values[last], node.scores[edges].values[other], atol=1e-6)


# --- the verb ---


def test_a_feature_circuit_is_cut_described_and_survives_a_file(tmp_path):
    model, given = hooked("llama"), task()
    ds = dictionaries(model, *KINDS, dtype=torch.float32)
    found = feature_circuit(model, given, ds, at_least=0.05, progress=False)
    scores, edges = found.scores[NAME].values[:-1], found.scores[f"{NAME}.edges"].values
    assert np.array_equal(found.kept_nodes[:-1], np.abs(scores) >= np.float32(0.05)) and found.kept_nodes[-1]
    assert len(edges) and (np.abs(edges) >= 0.005 - 1e-7).all()
    assert found.provenance.parameters["positions"] == "all" and found.provenance.ablation == "counterfactual"
    interp.save_circuit(found, tmp_path / "c")
    again = interp.load_circuit(tmp_path / "c")
    assert list(again.nodes) == list(found.nodes) and np.array_equal(again.edges.source, found.edges.source)
    assert np.array_equal(again.scores[f"{NAME}.edges"].values, edges)
    assert again.featurizers == found.featurizers and len(again.featurizers) == len(ds)
    top = feature_circuit(model, given, ds, n_nodes=20, n_edges=30, progress=False)
    assert int(top.kept_nodes.sum()) == 21 and len(top.edges) <= 30


def test_denoising_and_noising_are_two_estimates_of_one_sign():
    model, given = hooked("llama"), task()
    ds = dictionaries(model, "resid_post", dtype=torch.float32)[-1:]
    ways = [
        attribute_features(model, given, ds, direction=way, steps=50, progress=False).scores[f"logit_diff.{way}"].values
        for way in ("noising", "denoising")
    ]
    assert np.corrcoef(*ways)[0, 1] > 0.99
    assert abs(ways[0].sum() - ways[1].sum()) < 1e-3  # both are the whole gap, between the same two runs


def test_mistakes_are_named_before_anything_runs():
    model, given = hooked("llama"), task()
    one = random_dictionary(model, "resid_post[1]", dtype=torch.float32)
    narrow = random_dictionary(hooked("gpt2"), "resid_post[1]", dtype=torch.float32)
    beyond = replace(one, site=Site("resid_post", 7), reads=None)
    cases = [
        (lambda: attribute_features(model, given, []), OptionError, "an empty list"),
        (lambda: attribute_features(model, given, [one, one]), OptionError, r"site resid_post\[1\] has 2 featurizers"),
        (lambda: attribute_features(model, given, [beyond]), SiteError, "layer out of range"),
        (lambda: attribute_features(model, given, [one], rule="left"), OptionError, "midpoint"),
        (lambda: attribute_features(model, given, [one], steps=0), OptionError, "steps=0"),
        (lambda: attribute_features(model, given, [one], metric="kl", method="atp"), MetricError, "zero gradient"),
        (lambda: attribute_features(model, given, [one], positions=["subject"]), TaskError, "no roles"),
        (lambda: attribute_features(model, task(corrupted=None), [one]), TaskError, "no corrupted prompts"),
        (lambda: feature_circuit(model, given, [one]), OptionError, "give one of them"),
        (lambda: feature_circuit(model, given, [one], at_least=1, n_nodes=2), OptionError, "give one of them"),
    ]
    if narrow.widths != one.widths:
        cases.append((lambda: attribute_features(model, given, [narrow]), OptionError, "reads vectors of"))
    for call, error, said in cases:
        with unchecked(), pytest.raises(error, match=said):
            call()
    heads = interp.attribute(model, given, "z", progress=False)
    with pytest.raises(CircuitError, match="connect_features needs one of attribute_features"):
        connect_features(model, given, [one], heads)
    nodes = attribute_features(model, given, [one], progress=False)
    with pytest.raises(CircuitError, match="not those of these featurizers"):
        connect_features(model, given, [random_dictionary(model, "resid_post[1]", n=30, dtype=torch.float32)], nodes)
    with pytest.raises(OptionError, match="give one of them, or neither"):
        connect_features(model, given, [one], nodes, at_least=0.1, n_edges=3)


def test_a_basis_of_some_directions_leaves_the_rest_to_the_error_term():
    with F64():
        model, given = hooked64("llama"), task()
        d = model.shape.d_model
        rotation = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0][:, :3]
        basis = Basis("resid_post[1]", key="plane", rotation=rotation)
        whole = attribute_features(model, given, [basis], method="atp", progress=False)
        assert len(whole.nodes) == 4
        x = interp.attribute(model, given, "resid_post", direction="noising", progress=False)
        expected = per_prompt(x)[x.nodes.index("resid_post[1]")]
        assert np.allclose(per_prompt(whole).sum(0), expected, atol=1e-6)
