"""Attribution against exact patching where they must agree, against one another, and on the papers' failure cases."""

import warnings

import numpy as np
import pytest
import torch
from tiny import (
    CANCEL,
    CHANGED,
    F64,
    FAMILIES,
    LIN,
    RAGGED,
    SATURATED,
    SCALAR,
    answers,
    hooked,
    hooked64,
    logit_zero,
    task,
    unchecked,
)

import interp
from interp.candidate_nodes import candidates
from interp.errors import MetricError, OptionError, TaskError
from interp.methods.attribution import attribute
from interp.methods.patching import patch
from interp.metrics import metric
from interp.site import Site
from interp.tokens import from_ids

LINEAR_KINDS = ["embed", "resid_pre", "v", "z", "attn_proj", "attn_out", "resid_mid", "neuron", "mlp_proj", "mlp_out",
                "resid_post", "resid_final"]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


def values(circuit: interp.Circuit, name: str) -> np.ndarray:
    return circuit.scores[name].values


def per_prompt(circuit: interp.Circuit, name: str) -> np.ndarray:
    return circuit.tensors[name].array


@pytest.mark.parametrize("positions", ["all", "each", ("changed", "late", "end")])
def test_on_a_linear_network_the_estimate_is_the_exact_effect(positions):
    model, given = LIN(), task()
    found = attribute(model, given, LINEAR_KINDS, positions=positions)
    exact = patch(model, given, LINEAR_KINDS, positions=positions, engine=interp.Engine("plain", progress=False))
    for name in ("logit_diff.noising", "logit_diff.denoising"):
        assert np.allclose(values(found, name), values(exact, name), atol=2e-4, equal_nan=True)
        assert np.allclose(per_prompt(found, name), per_prompt(exact, name), atol=2e-4, equal_nan=True)
        assert np.nanmax(abs(values(exact, name))) > 0.1
        share = f"{name}.normalised"
        assert np.allclose(found.attributes[share].values, exact.attributes[share].values, atol=1e-4, equal_nan=True)
    for end in ("clean.logit_diff", "corrupted.logit_diff"):
        assert np.allclose(per_prompt(found, end), per_prompt(exact, end), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["noising", "denoising"])
def test_each_estimate_is_change_times_gradient_summed_over_what_the_node_covers(family, way):
    model, given = hooked(family), task()
    kinds = ["q", "k", "v", "pattern", "z", "attn_out", "neuron", "mlp_out", "resid_post"]
    found = attribute(model, given, kinds, positions="each", direction=way, batch=2)
    base, other = (RAGGED, CHANGED) if way == "noising" else (CHANGED, RAGGED)
    sites = model.sites(*kinds)
    sign = -1 if way == "noising" else 1
    for row in range(3):  # one prompt at a time, without padding
        one = answers()[[row]]
        run = model.gradients([base[row]], lambda x, a=one: metric("logit_diff")(x, a), sites)
        there = model.run([other[row]], record=sites)
        for number, node in enumerate(found.nodes):
            score = per_prompt(found, f"logit_diff.{way}")[number, row]
            if node.pos >= len(base[row]):
                assert np.isnan(score)
                continue
            product = (there[node.site] - run.activations[node.site]) * run.gradients[node.site]
            product = product.transpose(1, 2) if node.kind == "pattern" else product
            expected = product[0, node.pos] if node.head is None else product[0, node.pos, node.head]
            assert score == pytest.approx(sign * float(expected.sum()), abs=2e-5), node


def test_blocks_of_units_and_joint_nodes_add_up():
    model, given = hooked("llama"), task()
    each = attribute(model, given, candidates(model, given, "neuron", positions="each", block=1))
    blocks = attribute(model, given, candidates(model, given, "neuron", positions="each", block=5))
    whole = attribute(model, given, "neuron")
    name = "logit_diff.noising"
    table = per_prompt(each, name).reshape(3, 9, 48, 3)
    by_block = np.stack([table[:, :, i : i + 5].sum(2) for i in range(0, 48, 5)], 2)
    assert np.allclose(per_prompt(blocks, name).reshape(3, 9, 10, 3), by_block, atol=1e-6, equal_nan=True)
    assert np.allclose(per_prompt(whole, name), np.nansum(table, (1, 2)), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_neurons_and_heads_sum_to_the_projections_before_any_post_norm(family):
    with F64():
        model, given = hooked64(family), task()
        found = attribute(model, given, ["z", "attn_proj", "neuron", "mlp_proj", "attn_out", "mlp_out"])
        for name in ("logit_diff.noising", "logit_diff.denoising"):
            by_kind = {
                kind: values(found, name)[found.nodes.where(kind=kind)].reshape(model.shape.n_layers, -1).sum(1)
                for kind in ("z", "attn_proj", "neuron", "mlp_proj", "attn_out", "mlp_out")
            }
            assert np.allclose(by_kind["z"], by_kind["attn_proj"], atol=1e-6)
            assert np.allclose(by_kind["neuron"], by_kind["mlp_proj"], atol=1e-6)
            has_post = family in ("gemma2", "gemma3", "olmo2")
            assert has_post != np.allclose(by_kind["neuron"], by_kind["mlp_out"], atol=1e-3)


@pytest.mark.parametrize("method", ["atp", "atp+qk", "atp+graddrop", "atp*"])
def test_identical_prompts_score_exactly_zero(method):
    given = task(corrupted=from_ids(RAGGED))
    found = attribute(hooked("llama"), given, ["q", "k", "v", "z", "mlp_out"], positions="each", method=method)
    for name, score in found.scores.items():
        assert np.nanmax(abs(score.values)) == 0.0, name


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gpt_neox"])
def test_scores_do_not_depend_on_the_batch(family):
    model, given = hooked(family), task()
    together = attribute(model, given, ["q", "k", "z"], positions="each", method="atp*")
    alone = attribute(model, given, ["q", "k", "z"], positions="each", method="atp*", batch=1)
    for name, tensor in together.tensors.items():
        assert np.allclose(tensor.array, per_prompt(alone, name), atol=1e-5, equal_nan=True), name


# --- the QK fix ---


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rule_of_each_layer_gives_the_models_own_probabilities(family):
    model = hooked(family)
    prompts = model.prompts(RAGGED)
    sites = model.sites("q", "k", "pattern")
    run = model.run(prompts, record=sites)
    for layer, rule in enumerate(model.attention_rules(prompts)):
        q, k, pattern = (run[Site(kind, layer)] for kind in ("q", "k", "pattern"))
        found = rule.scores(q, k.repeat_interleave(q.shape[2] // k.shape[2], 2)).softmax(-1)
        for row, n in enumerate(prompts.lengths.tolist()):
            assert torch.allclose(found[row, :, :n, :n], pattern[row, :, :n, :n], atol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "mistral"])
def test_fixed_queries_and_keys_equal_the_exact_change_of_the_pattern_times_its_gradient(family):
    model, given = hooked(family), task()
    for positions in ("each", "all", ("changed",)):
        found = attribute(model, given, ["q", "k"], positions=positions, method="atp+qk", direction="noising")
        scores = per_prompt(found, "logit_diff.noising")
        for number, node in list(enumerate(found.nodes))[::5]:
            pattern = Site("pattern", node.layer)
            for row, ids in enumerate(RAGGED):
                places = None if node.pos is None else [node.pos]
                places = list(given.roles[node.role][row]) if node.role else places
                if positions == "each" and node.pos >= len(ids):
                    assert np.isnan(scores[number, row])
                    continue
                source = model.run([CHANGED[row]], record=[node.site])
                one = interp.Patch(node.site, source, head=node.head, pos=places)
                patched = model.run([ids], [one], [pattern])[pattern]
                a = answers()[[row]]
                run = model.gradients([ids], lambda x, a=a: metric("logit_diff")(x, a), [pattern])
                expected = ((patched - run.activations[pattern]) * run.gradients[pattern]).sum()
                assert scores[number, row] == pytest.approx(-float(expected), abs=3e-5), (node, row)


def test_the_fix_changes_queries_and_keys_only():
    model, given = hooked("llama"), task()
    plain = attribute(model, given, ["q", "k", "v", "z"])
    fixed = attribute(model, given, ["q", "k", "v", "z"], method="atp+qk")
    change = abs(values(plain, "logit_diff.noising") - values(fixed, "logit_diff.noising"))
    kinds = plain.nodes.names("kind")
    assert np.median(change[np.isin(kinds, ["q", "k"])]) > 1e-2 and change[np.isin(kinds, ["v", "z"])].max() < 1e-5


def test_atp_misses_a_saturated_query_and_the_fix_finds_it():
    model, given = SATURATED(), logit_zero([[0, 1, 2]], [[0, 1, 3]])
    exact = values(patch(model, given, "q", positions="each"), "logit_diff.noising")
    assert exact.tolist() == pytest.approx([0, 0, 1], abs=1e-6)
    missed = attribute(model, given, "q", positions="each")
    assert abs(values(missed, "logit_diff.noising")).max() < 1e-6
    found = attribute(model, given, "q", positions="each", method="atp+qk")
    assert values(found, "logit_diff.noising").tolist() == pytest.approx([0, 0, 1], abs=1e-6)


# --- GradDrop ---


@pytest.mark.parametrize(
    ("factors", "block", "plain", "dropped"), [((0, 1, -0.5, 2), 1, 1.5, 5 / 3), ((1, -1, 1), 0, 0.0, 1.0)]
)
def test_graddrop_on_a_scalar_residual(factors, block, plain, dropped):
    given = logit_zero([[1]], [[0]])
    found = attribute(SCALAR(*factors), given, "mlp_out", method="atp+graddrop", direction="denoising")
    assert values(found, "logit_diff.denoising")[block] == pytest.approx(plain, abs=1e-6)
    assert values(found, "logit_diff.denoising.graddrop")[block] == pytest.approx(dropped, abs=1e-6)


def test_atp_misses_cancelling_paths_and_graddrop_finds_them():
    given = logit_zero([[1]], [[0]])
    found = attribute(CANCEL(), given, "mlp_out", method="atp+graddrop", direction="noising")
    assert values(found, "logit_diff.noising")[0] == pytest.approx(0, abs=1e-7)
    assert values(found, "logit_diff.noising.graddrop")[0] == pytest.approx(1.0)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_a_node_with_direct_effect_only_keeps_its_estimate_under_graddrop(family):
    model, given = hooked(family), task()
    found = attribute(model, given, ["mlp_out", "resid_post"], method="atp+graddrop")
    for way in ("noising", "denoising"):
        last = [found.nodes.index(f"{kind}[2]") for kind in ("mlp_out", "resid_post")]
        signed, dropped = (per_prompt(found, f"logit_diff.{way}{suffix}")[last] for suffix in ("", ".graddrop"))
        assert np.allclose(dropped, abs(signed), rtol=1e-5)


# --- integrated gradients, ablations, options ---


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_integrated_gradients_at_the_embedding_come_to_explain_the_whole_gap(family):
    errors, middle = [], []
    for steps in (8, 64):
        found = attribute(hooked(family), task(), "embed", steps=steps)
        gap = per_prompt(found, "clean.logit_diff") - per_prompt(found, "corrupted.logit_diff")
        ways = [per_prompt(found, f"logit_diff.{way}")[0] for way in ("noising", "denoising")]
        errors.append(max(abs(one - gap).max() for one in ways))
        middle.append(abs(sum(ways) / 2 - gap).max())
    # Both directions are one-sided sums over one path: their error falls with 1 / steps, that of their mean faster.
    assert errors[1] < errors[0] / 5 and middle[1] < 2e-3 < middle[0]


@pytest.mark.parametrize("ablation", ["zero", "mean", "mean_by_position", "resample"])
def test_on_a_linear_network_estimates_are_exact_for_every_ablation(ablation):
    model = LIN()
    prompts = from_ids([*RAGGED, [4, 8, 15, 16, 23, 42], [9] * 9, [1] * 7])
    given = task(clean=prompts, corrupted=None, roles={}, answers=answers(prompts))
    kinds = ["z", "neuron", "mlp_out", "attn_out"]
    found = attribute(model, given, kinds, ablation=ablation, seed=3)
    exact = patch(model, given, kinds, ablation=ablation, seed=3, engine=interp.Engine("plain", progress=False))
    assert list(found.scores) == ["logit_diff.noising", "logit_diff.noising.mean_abs"]
    assert np.allclose(values(found, "logit_diff.noising"), values(exact, "logit_diff.noising"), atol=2e-4)


def test_headers_say_what_each_column_is():
    found = attribute(hooked("gpt2"), task(), "z", method="atp+graddrop", metrics=["logit_diff", "logprob"])
    laws = {name: (s.header.quantity, s.header.signed, s.header.reduction) for name, s in found.scores.items()}
    assert laws["logprob.noising"] == ("attribution", True, "mean")
    assert laws["logit_diff.denoising.mean_abs"] == ("attribution", False, "mean_abs")
    assert laws["logit_diff.denoising.graddrop"][:2] == ("attribution", False)
    expected = abs(per_prompt(found, "logprob.noising")).mean(1)
    assert np.allclose(values(found, "logprob.noising.mean_abs"), expected)
    assert (found.provenance.method, found.provenance.backwards) == ("atp+graddrop", 2 * 2 * 3 * 2.0)


def test_what_has_no_estimate_is_refused():
    model, given = hooked("gpt2"), task()
    with pytest.raises(MetricError, match="zero gradient there.*use logit_diff"):
        attribute(model, given, metrics="kl")
    with pytest.raises(MetricError, match="differentiable"):
        attribute(model, given, metrics="accuracy")
    with pytest.raises(OptionError, match="whole queries and keys.*'q.0. unit 0'"):
        attribute(model, given, interp.Nodes.of(["q[0] unit 0"]), method="atp+qk")
    with pytest.raises(OptionError, match="no corrupted run to restore"):
        attribute(model, given, ablation="zero", direction="denoising")
    with pytest.raises(OptionError, match="needs another prompt's embeddings"):
        attribute(model, given, ablation="zero", steps=3)
    with pytest.raises(TaskError, match="corrupted"):
        attribute(model, task(corrupted=None))
    with pytest.raises(OptionError, match="'atp-star'.*atp"), unchecked():
        attribute(model, given, method="atp-star")
    with pytest.raises(OptionError, match="needs 2 layers"):
        attribute(SATURATED(), logit_zero([[0, 1, 2]], [[0, 1, 3]]), method="atp*")


def test_kl_has_denoising_estimates():
    found = attribute(hooked("gpt2"), task(), metrics="kl", direction="denoising")
    assert abs(values(found, "kl.denoising")).max() > 0
