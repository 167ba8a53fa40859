"""Exact patching against hand-written loops of `run` and `Patch`, and the laws its scores obey."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from interp.candidate_nodes import candidates
from interp.cautions import _damage, _floor
from interp.circuit import Circuit
from interp.circuit_files import identical, load_circuit, save_circuit
from interp.errors import InterpError, InterpWarning, MetricError, OptionError, SiteError, TaskError
from interp.intervention import Add, Intervention, Mean, Patch, Zero
from interp.methods.patching import patch
from interp.metrics import Answers, LogitDiff, Metric, metric
from interp.models.base import HookedModel
from interp.models.hf import HookedHF
from interp.models.runs import Shape
from interp.nodes import Node, Nodes
from interp.site import KINDS, Site
from interp.sources import GaussianNoise, donors
from interp.sweep import Engine
from interp.tasks.base import Task
from interp.tokens import Prompts, from_ids

WAYS = ("denoising", "noising")
QUIET = Engine(progress=False)
G2 = tiny.hooked("gpt2")
LH = tiny.hooked("llama")


def values(model: HookedModel, task: Task, prompts: Prompts, interventions: Any = (), name: str = "") -> np.ndarray:
    """A metric of one run, one value a prompt."""
    where, one = task.answers.positions, metric(name) if name else task.metric
    reference = model.run(task.clean, logits=where).logits if one.needs_reference else None
    return one(model.run(prompts, interventions, logits=where).logits, task.answers, reference).double().numpy()


def places(task: Task, node: Node) -> list[tuple[int, ...]] | None:
    """Each prompt's positions of a node, None for all."""
    if node.role is not None:
        return list(task.roles[node.role])
    return None if node.pos is None else [(node.pos,) if node.pos < n else () for n in task.clean.lengths.tolist()]


def selection(task: Task, node: Node) -> dict[str, Any]:
    """What of a node's site an intervention should touch."""
    where = places(task, node)
    picked: dict[str, Any] = {"head": node.head}
    if node.unit is not None:
        picked["unit"] = list(range(node.unit, node.unit + node.width))
    if where is not None:
        rows = [row for row, positions in enumerate(where) if positions]
        picked |= {"rows": rows, "pos": [where[row] for row in rows]}
    return picked


def by_hand(model: HookedModel, task: Task, cells: Sequence[Sequence[Node]], way: str, name: str = "") -> np.ndarray:
    """Signed scores [cell, prompt] of patching each cell's nodes together; NaN where a prompt lacks their positions."""
    base, source = (task.corrupted, task.clean) if way == "denoising" else (task.clean, task.corrupted)
    donor = model.run(source, record=sorted({n.site for nodes in cells for n in nodes}, key=str), logits="none")
    before = values(model, task, base, name=name)
    scores = []
    for nodes in cells:
        patches = [Patch(node.site, donor, **selection(task, node)) for node in nodes]
        effect = values(model, task, base, patches, name) - before
        where = places(task, nodes[0]) or task.clean.rows()
        scores.append(np.where([len(w) > 0 for w in where], effect if way == "denoising" else -effect, np.nan))
    return np.array(scores)


def agree(circuit: Circuit, model: HookedModel, task: Task, name: str = "") -> None:
    """Every score of the circuit is that of the loop over its nodes, prompt by prompt."""
    for way in WAYS:
        expected = by_hand(model, task, [[node] for node in circuit.nodes], way, name)
        column = f"{name or task.metric.name}.{way}"
        np.testing.assert_allclose(circuit.tensors[column].array, expected, atol=2e-5)
        np.testing.assert_allclose(score(circuit, column), np.nanmean(expected, 1), atol=2e-5)
        np.testing.assert_array_equal(score(circuit, f"{column}.n"), (~np.isnan(expected)).sum(1))


def score(circuit: Circuit, column: str) -> np.ndarray:
    return circuit.columns[column].values


# --- scores are what a loop measures ---


@pytest.mark.parametrize("model", [G2, LH], ids=["gpt2", "llama"])
def test_scores_of_every_kind_equal_a_hand_written_loop(model: HookedModel) -> None:
    kinds = [kind for kind in KINDS if kind not in model.unavailable]
    task = tiny.task()
    chosen = [node for node in candidates(model, task, kinds) if node.head in (None, 1)]
    circuit = patch(model, task, Nodes.of(chosen), engine=QUIET)
    assert {node.kind for node in circuit.nodes} == set(KINDS)
    agree(circuit, model, task)


@pytest.mark.parametrize("skip_zeros", [True, False])
def test_scores_at_each_position_equal_the_loop_and_are_nan_where_a_prompt_is_shorter(skip_zeros: bool) -> None:
    task = tiny.task()
    nodes = candidates(G2, task, ["resid_pre", "k", "pattern", "mlp_out"], positions="each", layers=[1])
    nodes = Nodes.of([node for node in nodes if node.head in (None, 2)])
    circuit = patch(G2, task, nodes, engine=Engine(progress=False, skip_zeros=skip_zeros))
    agree(circuit, G2, task)
    last = circuit.nodes.index("mlp_out[1] pos 8")
    assert np.isnan(circuit.tensors["logit_diff.noising"].array[last]).tolist() == [True, False, True]
    assert score(circuit, "logit_diff.noising.n")[last] == 1
    assert score(circuit, "logit_diff.noising.reason")[last] == ""


def test_scores_at_roles_equal_the_loop_and_a_role_of_no_prompt_is_nan_with_the_reason() -> None:
    task = tiny.task()
    circuit = patch(G2, task, ["z", "resid_post"], positions=["changed", "late", "end"], engine=QUIET)
    agree(circuit, G2, task)
    nowhere = patch(G2, task, "mlp_out", positions="nowhere", engine=QUIET)
    for way in WAYS:
        assert np.isnan(score(nowhere, f"logit_diff.{way}")).all()
        assert set(score(nowhere, f"logit_diff.{way}.reason")) == {"position absent"}
        assert not score(nowhere, f"logit_diff.{way}.n").any()


def test_scores_of_neuron_blocks_equal_the_loop() -> None:
    task = tiny.task()
    nodes = candidates(G2, task, "neuron", block=50, positions=["end"], layers=[1, 2])
    assert nodes.width.tolist() == [50, 50, 28] * 2
    agree(patch(G2, task, nodes, engine=QUIET), G2, task)


def test_scores_of_coordinates_of_heads_and_of_single_attention_weights_equal_the_loop() -> None:
    task = tiny.task()
    nodes = [Node("z", 0, head=3, unit=2, width=3), Node("pattern", 1, head=0, pos=5, unit=2), Node("v", 1, unit=4)]
    agree(patch(G2, task, Nodes.of(nodes), engine=QUIET), G2, task)


def test_an_attention_weight_on_a_token_that_a_prompt_lacks_is_absent_there() -> None:
    node = Nodes.of([Node("pattern", 1, head=0, unit=7)])
    for skip_zeros in (True, False):
        circuit = patch(G2, tiny.task(), node, engine=Engine(progress=False, skip_zeros=skip_zeros))
        assert np.isnan(circuit.tensors["logit_diff.noising"].array[0]).tolist() == [True, False, True]
    with pytest.raises(SiteError, match="source positions 0 to 8"):
        patch(G2, tiny.task(), Nodes.of([Node("pattern", 1, unit=9)]))


def test_scores_with_several_targets_and_metrics_equal_the_loop() -> None:
    positions = torch.tensor([[5, -1], [4, 8], [3, 6]])
    given = torch.tensor([[[3, 4], [-1, -1]], [[5, -1], [6, 7]], [[8, 9], [1, -1]]])
    task = tiny.task(answers=Answers(positions, given, given.where(given < 0, given + 40)))
    names = ["logit_diff", "prob", "logprob", "kl", "prob_diff"]
    circuit = patch(G2, task, ["attn_out", "mlp_out", "resid_pre"], metrics=names, engine=QUIET)
    for name in names:
        agree(circuit, G2, task, name)
    assert circuit.scores["kl.noising"].header.unit == "nats"
    for name in names:
        gap = (circuit.tensors[f"clean.{name}"].array - circuit.tensors[f"corrupted.{name}"].array).mean()
        shares = score(circuit, f"{name}.noising.normalised")
        np.testing.assert_allclose(shares, score(circuit, f"{name}.noising") / gap, rtol=1e-4)
    agree(
        patch(G2, task, "mlp_out", metrics=LogitDiff(against="max"), engine=QUIET),
        G2,
        replace(task, metric=LogitDiff(against="max")),
    )
    alone = patch(G2, task, ["attn_out", "mlp_out", "resid_pre"], metrics="prob", engine=QUIET)
    np.testing.assert_allclose(score(alone, "prob.noising"), score(circuit, "prob.noising"), atol=1e-6)


@pytest.mark.parametrize("window, spans", [(2, [[0], [0, 1], [1, 2]]), (3, [[0, 1], [0, 1, 2], [1, 2]])])
def test_windows_patch_their_layers_jointly_beside_the_sum_of_singles(window: int, spans: list[list[int]]) -> None:
    task = tiny.task()
    circuit = patch(G2, task, "mlp_out", positions=["end"], window=window, engine=QUIET)
    singles = patch(G2, task, "mlp_out", positions=["end"], engine=QUIET)
    for way in WAYS:
        cells = [[Node("mlp_out", layer, role="end") for layer in span] for span in spans]
        together = by_hand(G2, task, cells, way)
        np.testing.assert_allclose(circuit.tensors[f"logit_diff.{way}"].array, together, atol=2e-5)
        sums = [score(singles, f"logit_diff.{way}")[span].sum() for span in spans]
        np.testing.assert_allclose(score(circuit, f"logit_diff.{way}.sum_of_singles"), sums, atol=1e-6)
        assert np.abs(np.subtract(sums, score(circuit, f"logit_diff.{way}"))).max() > 1e-3
    assert circuit.provenance.parameters["window"] == window


def test_a_window_has_a_path_where_one_of_its_layers_has() -> None:
    alone, windows = (patch(G2, tiny.task(), "mlp_out", positions=["changed"], window=n, engine=QUIET) for n in (1, 2))
    assert score(alone, "logit_diff.noising.reason").tolist() == ["", "", "no path to the metric"]
    assert score(windows, "logit_diff.noising.reason").tolist() == ["", "", ""]
    assert score(windows, "logit_diff.noising")[2] == pytest.approx(score(alone, "logit_diff.noising")[1], abs=1e-5)


def test_a_window_over_layers_that_are_no_candidates_has_no_sum_of_singles() -> None:
    nodes = candidates(G2, tiny.task(), "mlp_out", layers=[0, 2])
    circuit = patch(G2, tiny.task(), nodes, window=2, engine=QUIET)
    assert np.isnan(score(circuit, "logit_diff.noising.sum_of_singles")).tolist() == [False, True]
    assert np.isfinite(score(circuit, "logit_diff.noising")).all()


@pytest.mark.parametrize("engine", [Engine("plain"), Engine("wave", chunk_tokens=20), Engine("wave", skip_zeros=False)])
def test_the_engine_changes_nothing_but_rounding(engine: Engine) -> None:
    task = tiny.task()
    usual = patch(G2, task, ["z", "q"], positions=["changed", "end"], engine=QUIET)
    other = patch(G2, task, ["z", "q"], positions=["changed", "end"], engine=replace(engine, progress=False))
    for name, tensor in usual.tensors.items():
        np.testing.assert_allclose(other.tensors[name].array, tensor.array, atol=2e-5)


def test_a_prompt_scores_the_same_alone_and_in_a_batch() -> None:
    task = tiny.task()
    both = patch(LH, task, ["z", "k"], positions=["changed", "end"], engine=QUIET)
    for row in range(3):
        alone = patch(LH, task[row], ["z", "k"], positions=["changed", "end"], engine=QUIET)
        for name, tensor in alone.tensors.items():
            np.testing.assert_allclose(tensor.array[..., 0], both.tensors[name].array[..., row], atol=2e-5)


# --- laws of sign, zeros and gaps ---


def test_noising_is_minus_denoising_with_the_roles_swapped_run_for_run() -> None:
    task = tiny.task()
    swapped = replace(task, clean=task.corrupted, corrupted=task.clean)
    here = patch(G2, task, ["z", "resid_mid"], positions="each", engine=QUIET)
    there = patch(G2, swapped, ["z", "resid_mid"], positions="each", engine=QUIET)
    for way, other in (WAYS, WAYS[::-1]):
        np.testing.assert_array_equal(
            here.tensors[f"logit_diff.{way}"].array, -there.tensors[f"logit_diff.{other}"].array
        )


def test_scores_are_normalised_by_the_gap_and_the_residual_stream_carries_all_of_it() -> None:
    task = tiny.task()
    circuit = patch(G2, task, ["resid_pre", "z"], engine=QUIET)
    gap = values(G2, task, task.clean) - values(G2, task, task.corrupted)
    np.testing.assert_allclose(circuit.tensors["clean.logit_diff"].array, values(G2, task, task.clean), atol=1e-5)
    np.testing.assert_allclose(
        circuit.tensors["corrupted.logit_diff"].array, values(G2, task, task.corrupted), atol=1e-5
    )
    for way in WAYS:
        shares = score(circuit, f"logit_diff.{way}.normalised")
        np.testing.assert_allclose(shares, score(circuit, f"logit_diff.{way}") / gap.mean(), rtol=1e-4)
        np.testing.assert_allclose(shares[circuit.nodes.where(kind="resid_pre")], 1.0, atol=1e-5)


def test_identical_prompts_score_exactly_zero_with_the_reason_and_an_undefined_share() -> None:
    task = tiny.task(corrupted=tiny.clean())
    with pytest.warns(InterpWarning, match=r"normalised is undefined for 15 nodes: full and empty run differ on av"):
        circuit = patch(G2, task, ["z", "resid_pre"], engine=QUIET)
    for way in WAYS:
        assert not score(circuit, f"logit_diff.{way}").any()
        assert not np.signbit(circuit.tensors[f"logit_diff.{way}"].array).any()
        assert set(score(circuit, f"logit_diff.{way}.reason")) == {"no difference"}
        assert np.isnan(score(circuit, f"logit_diff.{way}.normalised")).all()
    assert "undefined" in circuit.provenance.parameters["warnings"][0]


def test_positions_before_the_first_difference_are_exactly_zero() -> None:
    circuit = patch(G2, tiny.task(), ["z", "resid_mid"], positions="each", engine=QUIET)
    early = circuit.nodes.where(pos=[0, 1])
    for way in WAYS:
        assert not score(circuit, f"logit_diff.{way}")[early].any()
        assert set(score(circuit, f"logit_diff.{way}.reason")[early]) <= {"no difference", "no path to the metric"}
        assert score(circuit, f"logit_diff.{way}.normalised")[early].tolist() == [0.0] * len(early)


def test_what_the_last_layer_does_elsewhere_than_at_the_end_is_exactly_zero_but_not_what_feeds_the_end() -> None:
    task = tiny.task()[0]
    ends = ["q", "z", "attn_out", "resid_mid", "mlp_in", "neuron", "mlp_out", "resid_post", "pattern"]
    circuit = patch(G2, task, [*ends, "resid_pre", "k", "v"], positions="each", engine=QUIET)
    before = set(circuit.nodes.where(layer=2, pos=[3, 4]))
    dead = sorted(before & set(circuit.nodes.where(kind=ends)))
    alive = sorted(before - set(dead))
    for way in WAYS:
        assert set(score(circuit, f"logit_diff.{way}.reason")[dead]) == {"no path to the metric"}
        assert not score(circuit, f"logit_diff.{way}")[dead].any()
        assert score(circuit, f"logit_diff.{way}")[alive].all()


def gate(kind: str) -> HookedHF:
    """Prompts [a, b, 4]: head 0 brings to the end whether a is token 0, head 1 whether b is 2; logit 0 is the gate."""
    shape = Shape(n_layers=1, n_heads=2, n_kv_heads=2, d_model=9, d_head=1, d_ff=2, d_vocab=6)
    model = tiny.Decoder(shape, norm=nn.Identity, act=nn.ReLU()).eval().requires_grad_(False)
    for p in model.parameters():
        p.zero_()
    block = model.layers[0]
    model.embed.weight[:, :6] = torch.eye(6)
    block.attn.v.weight[0, 0] = block.attn.v.weight[1, 2] = 3.0  # attention is uniform over three tokens
    block.attn.out.weight[6, 0] = block.attn.out.weight[7, 1] = 1.0
    block.up.weight[:, 6:8] = 1.0
    block.up.bias[0] = -1.0
    block.down.weight[8] = torch.tensor([1.0, 0.0] if kind == "and" else [-1.0, 1.0])
    model.unembed.weight[0, 8] = 1.0
    return HookedHF(model, site_map=tiny.MAP, shape=shape, check=False)


@pytest.mark.parametrize("kind, expected", [("and", (0, 1, 0)), ("or", (1, 0, 1))])
def test_gates_tell_sufficient_inputs_from_necessary_ones(kind: str, expected: tuple[int, int, int]) -> None:
    on, off = from_ids([[0, 2, 4]]), from_ids([[1, 3, 4]])
    answers = Answers(torch.tensor([[2]]), torch.tensor([[[0]]]), torch.tensor([[[5]]]))
    task = Task("gate", on, answers, metric("logit_diff"), off)
    model = gate(kind)
    circuit = patch(model, task, "z", engine=QUIET)
    sufficient, necessary = (score(circuit, f"logit_diff.{way}") for way in WAYS)
    for head in range(2):
        donor = model.run(off, record=["z[0]"])
        direct = values(model, task, on, [Patch("z[0]", donor, head=head)]) - values(model, task, off)
        assert (sufficient[head], necessary[head], direct[0]) == pytest.approx(expected, abs=1e-6)


def test_total_effect_is_direct_plus_indirect_and_a_full_cut_leaves_nothing_direct() -> None:
    task = tiny.task()
    nodes = Nodes.of([*candidates(G2, task, "resid_pre"), Node("z", 1, head=2), Node("mlp_out", 0)])
    circuit = patch(G2, task, nodes, engine=QUIET)
    corrupted = values(G2, task, task.corrupted)
    total = values(G2, task, task.clean) - corrupted
    for row, node in enumerate(nodes):
        donor = G2.run(task.corrupted, record=[node.site], logits="none")
        direct = values(G2, task, task.clean, [Patch(node.site, donor, **selection(task, node))]) - corrupted
        indirect = circuit.tensors["logit_diff.noising"].array[row]
        np.testing.assert_allclose(direct + indirect, total, atol=2e-5)
        if node.kind == "resid_pre":
            np.testing.assert_allclose(direct, 0.0, atol=2e-5)
            np.testing.assert_allclose(circuit.tensors["logit_diff.denoising"].array[row], indirect, atol=2e-5)
        else:
            assert np.abs(direct).max() > 1e-2


# --- noise ---


def noisy(model: HookedModel, task: Task, noise: Tensor, node: Node, way: str) -> np.ndarray:
    """The loop of `by_hand` for one draw of noise."""
    added = [Add(Site("embed"), noise)]
    base, source = (added, []) if way == "denoising" else ([], added)
    donor = model.run(task.clean, source, record=[node.site], logits="none")
    patched = values(model, task, task.clean, [*base, Patch(node.site, donor, **selection(task, node))])
    effect = patched - values(model, task, task.clean, base)
    return effect if way == "denoising" else -effect


def test_noise_scores_are_the_loop_averaged_over_the_same_draws_in_every_cell() -> None:
    task = tiny.task(corrupted=None)
    noise = GaussianNoise("changed", scale=1.0, draws=2, seed=5)
    circuit = patch(G2, task, ["mlp_out", "resid_pre"], ablation=noise, engine=QUIET)
    draws = noise.sample(G2, task)
    for way in WAYS:
        expected = [np.mean([noisy(G2, task, one, node, way) for one in draws], axis=0) for node in circuit.nodes]
        np.testing.assert_allclose(circuit.tensors[f"logit_diff.{way}"].array, expected, atol=5e-5)
    corrupted = np.mean([values(G2, task, task.clean, [Add(Site("embed"), one)]) for one in draws], axis=0)
    np.testing.assert_allclose(circuit.tensors["corrupted.logit_diff"].array, corrupted, atol=2e-5)
    header = circuit.scores["logit_diff.denoising"].header
    assert (header.ablation, header.base, circuit.provenance.ablation) == ("noise", "corrupted", "noise")
    assert circuit.provenance.parameters["noise"] == {"role": "changed", "scale": 1.0, "draws": 2, "seed": 5}


def test_one_seed_gives_the_same_cells_and_another_seed_others() -> None:
    task = tiny.task(corrupted=None)

    def cells(seed: int) -> np.ndarray:
        noise = GaussianNoise("changed", draws=2, seed=seed)
        circuit = patch(G2, task, "mlp_out", ablation=noise, direction="denoising", engine=QUIET)
        return circuit.tensors["logit_diff.denoising"].array

    assert np.array_equal(cells(1), cells(1))
    assert not np.allclose(cells(1), cells(2))


def test_noise_of_scale_zero_is_the_clean_run_everywhere() -> None:
    task = tiny.task(corrupted=None)
    with pytest.warns(InterpWarning, match="undefined"):
        circuit = patch(G2, task, "z", ablation=GaussianNoise("changed", scale=0.0, draws=2), engine=QUIET)
    np.testing.assert_array_equal(
        circuit.tensors["clean.logit_diff"].array, circuit.tensors["corrupted.logit_diff"].array
    )
    assert set(score(circuit, "logit_diff.denoising.reason")) == {"no difference"}


# --- ablations ---


def evenly() -> Task:
    """Five prompts of two lengths, so that each has a donor."""
    rows = [tiny.RAGGED[0], tiny.CHANGED[0], tiny.RAGGED[1], tiny.CHANGED[1], [4, 5, 6, 7, 8, 9]]
    prompts = from_ids(rows)
    return Task("even", prompts, tiny.answers(prompts), metric("logit_diff"))


def mean_by_hand(model: HookedModel, task: Task, site: Site, first: int = 0) -> Tensor:
    """Mean over all real tokens from position `first` on, from runs of each prompt alone."""
    rows = [model.run([row], record=[site])[site][0, first:] for row in task.clean.rows()]
    return torch.cat(rows).mean(0)


@pytest.mark.parametrize("ablation", ["zero", "mean", "mean_by_position", "resample"])
def test_ablation_scores_equal_hand_written_ones(ablation: str) -> None:
    task = evenly()
    nodes = candidates(G2, task, ["z", "mlp_out", "k"], layers=[1])
    circuit = patch(G2, task, nodes, ablation=ablation, seed=3, engine=QUIET)
    assert list(circuit.scores) == ["logit_diff.noising"]
    assert circuit.scores["logit_diff.noising"].header.ablation == ablation
    assert "logit_diff.noising.normalised" not in circuit.attributes
    donor = G2.run(task.clean[donors(task.clean, 3)], record=["z[1]", "mlp_out[1]", "k[1]"], logits="none")
    itself = G2.run(task.clean, record=["z[1]", "mlp_out[1]", "k[1]"], logits="none")

    def one(node: Node) -> Intervention:
        if ablation == "zero":
            return Zero(node.site, head=node.head)
        if ablation == "mean":
            mean = mean_by_hand(G2, task, node.site)
            return Patch(node.site, mean if node.head is None else mean[node.head], head=node.head)
        if ablation == "mean_by_position":
            return Mean(node.site, itself, by_position=True, head=node.head)
        return Patch(node.site, donor, head=node.head)

    clean = values(G2, task, task.clean)
    expected = [clean - values(G2, task, task.clean, [one(node)]) for node in nodes]
    np.testing.assert_allclose(circuit.tensors["logit_diff.noising"].array, expected, atol=2e-5)


def test_a_mean_leaves_the_attention_sink_alone_and_says_so() -> None:
    model = HookedHF(tiny.build("gpt2"))
    model.has_sink = True
    task = evenly()
    circuit = patch(model, task, "mlp_out", ablation="mean", engine=QUIET)
    clean = values(model, task, task.clean)
    for layer in range(3):
        site = Site("mlp_out", layer)
        at_first = torch.stack([model.run([row], record=[site])[site][0, 0] for row in task.clean.rows()]).mean(0)
        rest = mean_by_hand(model, task, site, first=1)
        patches = [Patch(site, at_first, pos=0)]
        patches += [Patch(site, rest, pos=[list(range(1, n)) for n in task.clean.lengths.tolist()])]
        expected = clean - values(model, task, task.clean, patches)
        np.testing.assert_allclose(circuit.tensors["logit_diff.noising"].array[layer], expected, atol=2e-5)
    assert circuit.provenance.parameters["mean"] == {"reference": "the task's clean prompts", "sink_apart": True}


def test_zero_ablating_what_is_zero_is_no_difference() -> None:
    model = tiny.build("gpt2")
    with torch.no_grad():
        attn = model.transformer.h[1].attn.c_attn
        attn.weight[:, 64:72] = 0.0
        attn.bias[64:72] = 0.0
    circuit = patch(HookedHF(model), evenly(), "z", ablation="zero", engine=QUIET)
    silent = circuit.nodes.index("z[1] head 0")
    reasons = score(circuit, "logit_diff.noising.reason")
    assert [row for row, reason in enumerate(reasons) if reason == "no difference"] == [silent]
    assert score(circuit, "logit_diff.noising")[silent] == 0.0


# --- intervals, randomness, state ---


def test_intervals_are_the_percentiles_of_resampled_means() -> None:
    task = evenly()
    task = replace(task, corrupted=from_ids([[3, *row[1:]] for row in task.clean.rows()]))
    circuit = patch(G2, task, "z", engine=QUIET, seed=7)
    again = patch(G2, task, "z", engine=QUIET, seed=7)
    other = patch(G2, task, "z", engine=QUIET, seed=8)
    for way in WAYS:
        column = f"logit_diff.{way}"
        per_prompt = circuit.tensors[column].array.astype(np.float64)
        drawn = torch.randint(5, (1000, 5), generator=torch.Generator().manual_seed(7)).numpy()
        low, high = np.quantile(per_prompt[:, drawn].mean(-1), [0.025, 0.975], axis=1)
        np.testing.assert_allclose(score(circuit, f"{column}.low"), low, atol=1e-6)
        np.testing.assert_allclose(score(circuit, f"{column}.high"), high, atol=1e-6)
        assert np.array_equal(score(circuit, f"{column}.low"), score(again, f"{column}.low"))
        assert not np.array_equal(score(circuit, f"{column}.low"), score(other, f"{column}.low"))
        assert (low <= score(circuit, column) + 1e-6).all() and (score(circuit, column) <= high + 1e-6).all()


def test_intervals_use_only_the_prompts_that_have_the_position() -> None:
    circuit = patch(G2, tiny.task(), "mlp_out", positions="each", engine=QUIET)
    two, one = (circuit.nodes.index(f"mlp_out[1] pos {p}") for p in (6, 8))
    assert np.isfinite(score(circuit, "logit_diff.noising.low")[two])
    assert np.isnan(score(circuit, "logit_diff.noising.low")[one])
    assert np.isfinite(score(circuit, "logit_diff.noising")[one])


def state(model: HookedHF) -> list[Any]:
    """Everything of a model and of the global generators that a call must leave as it was.

    Python's own generator is left out: the type checks of the tests draw from it.
    """
    modules = list(model.model.modules())
    hooks = [sum(map(len, (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks))) for m in modules]
    flags = [(m.training, "forward" in vars(m)) for m in modules]
    parameters = [(p.requires_grad, p.grad is None, p.detach().clone().numpy().tobytes()) for p in model.parameters()]
    generators = [torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes()]
    return [hooks, flags, parameters, generators, repr(model.model.config), model.model.config._attn_implementation]


class Breaking(Metric):
    """Works on the clean and corrupted prompts, breaks inside the sweep."""

    name = "breaking"

    def score(self, logits: Tensor, answers: Answers, reference: Tensor | None) -> Tensor:
        if len(logits) > 3:
            raise RuntimeError("broken on purpose")
        return logits[..., 0]


def test_a_call_leaves_model_and_global_randomness_as_they_were_also_when_it_raises() -> None:
    model, task = HookedHF(tiny.build("llama")), tiny.task()
    before = state(model)
    patch(model, task, ["k", "pattern", "resid_mid"], positions=["changed"], engine=QUIET)
    patch(model, task, "mlp_out", ablation=GaussianNoise("changed", draws=2), metrics=["kl"], engine=QUIET)
    patch(model, evenly(), "mlp_out", ablation="resample", engine=QUIET)
    assert state(model) == before
    with pytest.raises(RuntimeError, match="broken on purpose"):
        patch(model, task, ["z", "pattern"], metrics=[Breaking()], engine=QUIET)
    assert state(model) == before


# --- warnings ---


@pytest.mark.parametrize("corrupted, warns", [(0.03, True), (5e-4, True), (0.042, False)])
def test_the_floor_of_a_probability_is_told_by_the_headroom_of_the_paper(corrupted: float, warns: bool) -> None:
    scores = np.array([0.003 - 0.015, 0.003 + 0.015, np.nan])
    assert bool(_floor(scores, corrupted)) == warns
    assert not _floor(np.array([0.03, 0.031]), 1e-3), "the spread does not reach below the mean"


def test_a_probability_near_zero_warns_of_its_floor_in_denoising_only() -> None:
    task = tiny.task()
    clean, corrupted = (LH.run(prompts).logits.softmax(-1) for prompts in (task.clean, task.corrupted))
    restored = (clean - 5 * corrupted).argmax(-1)[:, :, None]  # likely in the clean run alone
    task = replace(task, answers=replace(task.answers, correct=restored))
    nodes = ["z", "resid_pre"]
    with pytest.warns(InterpWarning, match=r"probability is .* no effect can be below .* use logit_diff") as caught:
        circuit = patch(LH, task, nodes, metrics=["prob"], positions=["end", "nowhere"], engine=QUIET)
    assert len(caught) == len(circuit.provenance.parameters["warnings"]) == 1
    patch(LH, task, nodes, metrics=["prob"], positions=["end"], direction="noising", engine=QUIET)


def test_a_discrete_metric_warns_once() -> None:
    task = tiny.task(answers=Answers(torch.tensor([[5], [8], [6]]), *torch.tensor([[[[9]]] * 3, [[[8]]] * 3])))
    task = replace(task, corrupted=from_ids([[50, *row[1:]] for row in task.clean.rows()]))
    with pytest.warns(InterpWarning) as caught:
        patch(G2, task, "z", metrics=["preference"], engine=QUIET)
    steps = [str(one.message) for one in caught if "moves in steps" in str(one.message)]
    assert steps == ["preference moves in steps, so small effects do not show; measure logit_diff beside it."]


def test_damage_is_a_difference_that_recovers_while_the_answers_own_logit_falls() -> None:
    assert "(node rows [1])" in _damage(np.array([0.5, 0.4, 0.2, np.nan]), np.array([0.1, -0.3, 0.0, np.nan]))[0]
    assert _damage(np.array([0.5, -0.4]), np.array([0.1, -0.3])) == []
    assert _damage(np.array([1e-6, 0.5]), np.array([-1e-6, 0.5])) == [], "rounding is no damage"


def test_a_damaged_destination_warns() -> None:
    names = ["logit_diff", "logit"]
    with pytest.warns(InterpWarning, match="the patch may just damage the run; look at the column 'logit.denoising'"):
        circuit = patch(G2, tiny.task(), "v", metrics=names, engine=QUIET)
    differences, logits = (score(circuit, f"{name}.denoising") for name in names)
    assert ((differences > 0) & (logits < 0)).any(), "the fixture shows the case"


# --- errors ---

MISTAKES: dict[str, tuple[dict[str, Any], type[InterpError], str]] = {
    "kind": ({"nodes": "zz"}, SiteError, "no site kind 'zz'"),
    "role": ({"positions": ["ends"]}, TaskError, r"no roles \['ends'\]; it has changed, end, .*nearest: 'end'"),
    "direction": ({"direction": "denoise"}, OptionError, "direction is 'denoise'; allowed: 'denoising'"),
    "ablation": ({"ablation": "men"}, OptionError, "ablation is 'men'; allowed: .*nearest: 'mean'"),
    "window": ({"window": 0}, OptionError, "window=0; allowed: 1"),
    "metric": ({"metrics": ["logit_dif"]}, MetricError, "no metric 'logit_dif'.*nearest: 'logit_diff'"),
    "metrics": ({"metrics": ["kl", "kl"]}, OptionError, "more than once"),
    "denoising an ablation": (
        {"ablation": "zero", "direction": "denoising"}, OptionError, "no corrupted run to restore; use direction='noi",
    ),
    "no donor": ({"ablation": "resample"}, TaskError, r"prompts \[0, 1, 2\] are the only ones of their length"),
    "mean pattern": ({"ablation": "mean", "nodes": "pattern"}, OptionError, "so no mean; use 'zero'"),
    "noise role": ({"ablation": GaussianNoise("subject")}, TaskError, "noise on role 'subject': task 'tiny' has chan"),
    "noise nowhere": ({"ablation": GaussianNoise("nowhere")}, TaskError, "role 'nowhere': it has no token"),
    "noise draws": ({"ablation": GaussianNoise("end", draws=0)}, OptionError, "draws=0; allowed: scale from 0"),
    "noise scale": ({"ablation": GaussianNoise("end", scale=-1.0)}, OptionError, "scale=-1.0"),
    "head": ({"nodes": Nodes.of([Node("z", 0, head=4)])}, SiteError, "'z.0. head 4': .* has heads 0 to 3"),
    "unit": ({"nodes": Nodes.of([Node("neuron", 0, unit=128)])}, SiteError, "has units 0 to 127"),
    "position": ({"nodes": Nodes.of([Node("z", 0, pos=9)])}, SiteError, "the longest prompt has 9 tokens"),
    "layers": ({"nodes": Nodes.of(["z[3]", "q[7] head 9"])}, SiteError, r"'z\[3\]': .*layers 0 to 2; 'q\[7\] he"),
    "logits": ({"nodes": Nodes.of(["logits"])}, SiteError, "'logits': no activation"),
    "no nodes": ({"nodes": Nodes.of([])}, OptionError, "no nodes"),
    "positions of nodes": (
        {"nodes": Nodes.of(["z[0]"]), "positions": "each"}, OptionError, "positions='each' beside ready nodes",
    ),
    "no layer, no window": ({"nodes": "resid_final", "window": 2}, OptionError, "has no layer, so it has no window"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_anything_runs(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, error, message = MISTAKES[mistake]
    model = HookedHF(tiny.build("gpt2"), check=False)
    monkeypatch.setattr(model.model, "forward", lambda *_, **__: pytest.fail("a forward was run"))
    with tiny.unchecked(), pytest.raises(error, match=message):
        patch(model, tiny.task(), engine=QUIET, **options)


def test_an_engine_of_another_kind_is_refused() -> None:
    message = "engine is 'wav'; allowed: 'auto', 'wave', 'plain'; nearest: 'wave'"
    with tiny.unchecked(), pytest.raises(OptionError, match=message):
        Engine("wav")


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"corrupted": None}, TaskError, "has no corrupted prompts"),
        ({"answers": Answers(torch.tensor([[5], [8], [6]]), torch.ones(3, 1, 1).long(), torch.ones(3, 1, 0).long())},
         MetricError, "prompts 0, 1, 2 have no wrong answer, which logit_diff needs"),
        ({"answers": Answers(torch.tensor([[5], [8], [6]]), *torch.tensor([[[[97]]] * 3, [[[8]]] * 3]))},
         MetricError, "answer id 97 is outside"),
    ],
)  # fmt: skip
def test_a_task_that_lacks_what_is_needed_is_refused_before_anything_runs(
    changes: dict[str, Any], error: type[InterpError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HookedHF(tiny.build("gpt2"), check=False)
    monkeypatch.setattr(model.model, "forward", lambda *_, **__: pytest.fail("a forward was run"))
    with pytest.raises(error, match=message):
        patch(model, tiny.task(**changes), engine=QUIET)


def test_a_task_of_another_tokenizer_is_refused() -> None:
    model = HookedHF(tiny.build("gpt2"), tiny.TK(), check=False)
    task = tiny.task(tokenizer_fingerprint="0123456789abcdef")
    with pytest.raises(TaskError, match="was built with another tokenizer"):
        patch(model, task, engine=QUIET)


def test_a_model_that_cannot_resume_says_so_when_asked_to() -> None:
    with pytest.raises(OptionError, match="cannot resume at a layer; use engine='plain'"):
        patch(tiny.custom(), tiny.task(), engine=Engine("wave", progress=False))
    agree(patch(tiny.custom(), tiny.task(), "z", engine=QUIET), tiny.custom(), tiny.task())


# --- what the circuit carries ---


def test_the_circuit_says_where_it_came_from_and_saves_and_loads(tmp_path: Any) -> None:
    task = tiny.task(parameters={"n": 3})
    circuit = patch(
        G2, task, "z", positions=["end", "late"], metrics=[LogitDiff(against="max"), "kl"], seed=4, engine=QUIET
    )
    made = circuit.provenance
    assert (made.model, made.task, made.task_parameters, made.method) == ("in-memory", "tiny", {"n": 3}, "patch")
    assert (made.metric, made.direction, made.ablation, made.seed) == ("logit_diff", None, "counterfactual", 4)
    assert [list(row) for row in made.token_ids] == tiny.RAGGED
    assert [list(row) for row in made.corrupted_token_ids] == tiny.CHANGED
    assert made.parameters["metrics"] == ["LogitDiff(reduction='mean', against='max')", "KL(reduction='mean')"]
    assert made.parameters["directions"] == ["denoising", "noising"]
    assert made.versions["torch"] and made.forwards > 0
    json.dumps({name: getattr(made, name) for name in made.__dataclass_fields__})
    save_circuit(circuit, tmp_path / "circuit")
    assert identical(load_circuit(tmp_path / "circuit"), circuit)
    assert len(circuit.frame()) == len(circuit.nodes)


def test_the_cost_counts_every_draw() -> None:
    def cost(draws: int) -> float:
        noise = GaussianNoise("end", draws=draws)
        return patch(G2, tiny.task(), "resid_mid", ablation=noise, engine=QUIET).provenance.forwards

    assert cost(3) == pytest.approx(3 * cost(1))
    assert patch(G2, tiny.task(), "resid_post", engine=Engine("plain", skip_zeros=False)).provenance.forwards == 18


def test_one_run_needs_no_progress_bar_and_prints_nothing(capfd: pytest.CaptureFixture) -> None:
    patch(G2, tiny.task(), "mlp_out")
    assert capfd.readouterr() == ("", "")
