"""Faithfulness: its formula, its ends, its guards, and the random circuits beside it."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from interp.circuit import Circuit
from interp.circuit_ops import top_n
from interp.curves import faithfulness_curve
from interp.edges import Edges
from interp.errors import CircuitError, MetricError, OptionError, TaskError
from interp.evaluate import (
    Faithfulness,
    completeness,
    faithfulness,
    faithfulness_of_complement,
    minimality,
    necessity,
    random_masks,
    sufficiency,
)
from interp.graph import component_graph
from interp.methods.edges import attribute_edges
from interp.methods.patching import patch
from interp.metrics import metric
from interp.models.hf import HookedHF
from interp.run_circuit import run_circuits
from interp.run_edges import run_edge_circuits
from interp.sweep import Engine
from interp.tasks.base import Task
from interp.tokens import from_ids

G2 = tiny.hooked("gpt2")
TASK = tiny.task()
BY = "logit_diff.noising"


@pytest.fixture(scope="module")
def found() -> Circuit:
    return patch(G2, TASK, ["z", "mlp_out"], positions=["changed", "end"], engine=Engine(progress=False))


def masked(circuit: Circuit, kept: np.ndarray) -> Circuit:
    return Circuit(circuit.nodes, kept_nodes=kept)


def test_the_whole_universe_is_1_and_nothing_is_0(found: Circuit) -> None:
    n = len(found.nodes)
    full = faithfulness(G2, TASK, masked(found, np.ones(n, bool)), random=3)
    assert (full.value, full.size, full.universe) == (pytest.approx(1.0, abs=1e-4), n, n)
    assert full.random == pytest.approx([1.0] * 3, abs=1e-4), "random circuits of the whole size are the whole"
    empty = faithfulness(G2, TASK, masked(found, np.zeros(n, bool)), random=3)
    assert (empty.value, empty.size) == (pytest.approx(0.0, abs=1e-4), 0)
    clean = TASK.metric(G2.run(TASK.clean, logits=TASK.answers.positions).logits, TASK.answers)
    torch.testing.assert_close(full.model, clean.double(), atol=1e-5, rtol=1e-5)


def test_it_is_the_quotient_of_means_with_its_bootstrap_interval(found: Circuit) -> None:
    ids = torch.randint(3, 97, (7, 6), generator=torch.Generator().manual_seed(1))
    clean, corrupted = from_ids(ids), from_ids(torch.cat([ids[:, :2], ids.roll(1, 0)[:, 2:3], ids[:, 3:]], 1))
    roles = {"changed": ((2,),) * 7, "end": ((5,),) * 7}
    task = Task("seven", clean, tiny.answers(clean), TASK.metric, corrupted, roles)
    small = top_n(found, 6, BY, rank="signed")
    judged = faithfulness(G2, task, small, random=0, seed=3)
    masks = np.stack([small.kept_nodes, np.ones(len(found.nodes), bool), np.zeros(len(found.nodes), bool)])
    circuit, model, empty = run_circuits(G2, task, small, masks).values[0]
    assert judged.value == pytest.approx(float((circuit - empty).mean() / (model - empty).mean()), abs=1e-4)
    drawn = torch.randint(7, (1000, 7), generator=torch.Generator().manual_seed(3))
    gaps = (model - empty)[drawn].mean(1)
    ratios = torch.where(gaps.abs() < 1e-4, torch.nan, (circuit - empty)[drawn].mean(1) / gaps)
    expected = ratios.quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    assert [judged.low, judged.high] == pytest.approx(expected, rel=1e-3)
    torch.testing.assert_close(judged.circuit, circuit, atol=1e-5, rtol=1e-5)
    assert (judged.metric, judged.ablation, judged.reason) == ("logit_diff", "counterfactual", "")
    assert judged.outside == tuple(f"{kind}[{layer}] in part" for layer in range(3) for kind in ("z", "mlp_out"))


def test_random_circuits_have_the_size_and_come_from_their_seed(found: Circuit) -> None:
    own = top_n(found, 6, BY, rank="signed").kept_nodes
    masks = random_masks(own, 20, seed=1)
    assert [int(mask.sum()) for mask in masks] == [6] * 20
    assert len({mask.tobytes() for mask in masks}) == 20
    assert np.array_equal(masks, random_masks(own, 20, seed=1))
    assert not np.array_equal(masks, random_masks(own, 20, seed=2))
    assert np.mean(masks, axis=0).max() < 0.8, "no node is favoured"
    small, state = top_n(found, 6, BY, rank="signed"), torch.get_rng_state()
    judged = faithfulness(G2, TASK, small, random=4, seed=1)
    values = run_circuits(G2, TASK, small, np.stack(masks[:4])).values[0]
    shares = (values.mean(1) - judged.empty.mean()) / (judged.model - judged.empty).mean()
    assert judged.random == pytest.approx(shares.tolist(), abs=1e-4)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_degenerate_denominator_is_nan_with_the_reason(found: Circuit) -> None:
    judged = faithfulness(G2, tiny.task(corrupted=tiny.clean()), found, random=2)
    assert np.isnan([judged.value, judged.low, judged.high, *judged.random]).all()
    assert judged.reason.startswith("full and empty run differ on average by 0, which is below 0.0001")
    assert str(judged) == f"faithfulness undefined: {judged.reason}"
    curve = faithfulness_curve(G2, tiny.task(corrupted=tiny.clean()), found, [2, 4], BY, rank="signed", random=2)
    assert np.isnan(curve["faithfulness"]).all() and curve["reason"].tolist() == [judged.reason] * 2


def test_one_prompt_has_no_interval_and_the_text_says_what_was_measured(found: Circuit) -> None:
    judged = faithfulness(
        G2, TASK[0], top_n(found, 6, BY, rank="signed"), random=5, ablation="zero", metric="prob_diff"
    )
    assert np.isnan([judged.low, judged.high]).all() and np.isfinite(judged.value)
    better = sum(judged.value > other for other in judged.random)
    expected = f"with 6 of 30 nodes; above {better} of 5 random circuits of its size (prob_diff, zero ablation)"
    assert str(judged) == f"faithfulness {judged.value:.2f} [nan, nan] {expected}"


@pytest.mark.parametrize("options", [{}, {"metric": "kl", "ablation": "mean", "random": 2}])
def test_the_rows_of_a_curve_are_single_calls(found: Circuit, options: dict) -> None:
    curve = faithfulness_curve(G2, TASK, found, [0, 3, 12], BY, rank="absolute", seed=2, **{"random": 3} | options)
    assert curve["size"].tolist() == [0, 3, 12] and curve["reason"].tolist() == [""] * 3
    for row, size in enumerate((0, 3, 12)):
        circuit = top_n(found, size, BY, rank="absolute")
        one = faithfulness(G2, TASK, circuit, seed=2, **{"random": 3} | options)
        expected = [one.value, one.low, one.high, np.mean(one.random), max(one.random)]
        columns = ("faithfulness", "low", "high", "random_mean", "random_max")
        assert [curve[column][row] for column in columns] == pytest.approx(expected, abs=2e-3)


def test_a_curve_without_random_circuits_has_none(found: Circuit) -> None:
    curve = faithfulness_curve(G2, TASK, found, [3], BY, rank="signed", random=0)
    assert np.isnan([curve["random_mean"][0], curve["random_max"][0]]).all()


def test_mistakes_are_named(found: Circuit) -> None:
    with pytest.raises(OptionError, match="random=-1; allowed: 0"):
        faithfulness(G2, TASK, found, random=-1)
    with pytest.raises(OptionError, match="random=-1; allowed: 0"):
        faithfulness_curve(G2, TASK, found, [3], BY, rank="signed", random=-1)
    with pytest.raises(OptionError, match="ablation is 'noise'; allowed: 'counterfactual'"):
        faithfulness(G2, TASK, found, ablation="noise")
    with pytest.raises(MetricError, match="no metric 'logits'; allowed: .*nearest: 'logit"):
        faithfulness(G2, TASK, found, metric="logits")
    with pytest.raises(CircuitError, match="31 asked for"):
        faithfulness_curve(G2, TASK, found, [31], BY, rank="signed")
    with pytest.raises(TaskError, match="has no corrupted prompts"):
        faithfulness(G2, tiny.task(corrupted=None), found)


def test_inputs_and_model_stay_as_they_were(found: Circuit) -> None:
    model, kept = HookedHF(tiny.build("gpt2")), found.kept_nodes.copy()
    before = [p.clone() for p in model.parameters()]
    judged = faithfulness(model, TASK, found, random=2, metric=metric("logit_diff"))
    assert isinstance(judged, Faithfulness) and np.array_equal(found.kept_nodes, kept)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.model.modules())


def test_the_runs_of_a_circuit_are_those_they_are_named_after(found: Circuit) -> None:
    small = top_n(found, 6, BY, rank="signed")
    own = small.kept_nodes
    everything, nothing = np.ones_like(own), np.zeros_like(own)
    full, empty, kept, cut = run_circuits(G2, TASK, small, np.stack([everything, nothing, own, ~own])).values[0]
    swapped = replace(TASK, clean=TASK.corrupted, corrupted=TASK.clean)
    masks = np.stack([~own, own, everything, nothing])
    restored, rest, none, all_of_it = run_circuits(G2, swapped, small, masks).values[0]

    def share(run, top, bottom):
        return pytest.approx(float((run - bottom).mean() / (top - bottom).mean()), abs=1e-4)

    assert faithfulness(G2, TASK, small, random=0).value == share(kept, full, empty)
    assert faithfulness_of_complement(G2, TASK, small, random=0).value == share(cut, full, empty)
    needed = necessity(G2, TASK, small, random=3)
    assert 1 - needed.value == share(cut, full, empty) and needed.low <= needed.value <= needed.high
    restored_share = sufficiency(G2, TASK, small, random=3)
    assert restored_share.value == share(restored, all_of_it, none)
    torch.testing.assert_close(restored_share.empty, none, atol=1e-5, rtol=1e-5)
    assert 1 - completeness(G2, TASK, small, random=0).value == share(rest, all_of_it, none)
    assert "necessity" in str(needed) and "sufficiency" in str(restored_share)
    assert (
        len({round(x, 3) for x in (needed.value, restored_share.value, float(share(kept, full, empty).expected))}) == 3
    )


@pytest.mark.parametrize("judge", [faithfulness, faithfulness_of_complement, necessity, sufficiency, completeness])
def test_of_a_whole_cut_and_of_nothing_they_are_0_or_1(judge) -> None:
    universe = attribute_edges(G2, TASK)
    nothing = replace(universe, kept_edges=np.zeros_like(universe.kept_edges))
    whole, empty = judge(G2, TASK, universe, random=0).value, judge(G2, TASK, nothing, random=0).value
    expected = (0.0, 1.0) if judge is faithfulness_of_complement else (1.0, 0.0)
    assert (whole, empty) == pytest.approx(expected, abs=2e-3)


def test_minimality_leaves_out_one_member_at_a_time(found: Circuit) -> None:
    small = top_n(found, 4, BY, rank="signed")
    table = minimality(G2, TASK, small)
    own = faithfulness(G2, TASK, small, random=0).value
    assert table["drop"].tolist() == sorted(table["drop"].tolist())
    for row in table.rows():
        kept = small.kept_nodes.copy()
        kept[small.nodes.index(row["member"])] = False
        without = faithfulness(G2, TASK, replace(small, kept_nodes=kept), random=0).value
        assert row["faithfulness_without"] == pytest.approx(without, abs=1e-4)
        assert row["drop"] == pytest.approx(own - without, abs=1e-4)
    with pytest.raises(CircuitError, match="keeps no nodes"):
        minimality(G2, TASK, masked(found, np.zeros(len(found.nodes), bool)))


def test_an_edge_circuit_is_run_by_its_own_edges_in_whatever_order_they_stand() -> None:
    universe = attribute_edges(G2, TASK)
    small = top_n(universe, 40, BY, rank="absolute")
    graph = component_graph(G2)
    kept = np.stack([np.ones(len(graph.edges), bool), np.zeros(len(graph.edges), bool), small.kept_edges])
    full, empty, own = run_edge_circuits(G2, TASK, graph, kept).values[0].mean(1)
    expected = float((own - empty) / (full - empty))
    order = np.random.default_rng(0).permutation(len(universe.edges))
    edges = Edges(universe.edges.source[order], universe.edges.destination[order])
    shuffled = Circuit(universe.nodes, edges, kept_nodes=small.kept_nodes, kept_edges=small.kept_edges[order])
    for circuit in (small, shuffled):
        judged = faithfulness(G2, TASK, circuit, random=2)
        assert judged.value == pytest.approx(expected, abs=1e-3) and (judged.size, judged.over) == (40, "edges")
    assert abs(expected - 1) > 0.05 and abs(expected - judged.random[0]) > 1e-3


def test_edges_of_another_model_are_named() -> None:
    foreign = attribute_edges(tiny.hooked("llama"), TASK)
    with pytest.raises(
        CircuitError, match="edges are not in this model's component graph, such as 'input' -> 'q.0. head 4'"
    ):
        faithfulness(G2, TASK, foreign)


def test_a_restored_circuit_is_compared_with_the_clean_run_whatever_the_metric(found: Circuit) -> None:
    """KL is a distance from the clean run in both directions: 0 when everything is restored."""
    judged = sufficiency(G2, TASK, top_n(found, 6, BY, rank="signed"), metric="kl", random=0)
    assert judged.model.abs().max() < 1e-6 and (judged.empty < -1e-3).all()
