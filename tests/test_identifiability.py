"""The report on planted models: every verdict, its invariances, controls, classes, and held-out prompts."""

from dataclasses import replace

import numpy as np
import planted as p
import pytest
import torch

from interp.circuit import Circuit
from interp.circuit_ops import top_n
from interp.errors import CircuitError, OptionError
from interp.identifiability import IdentifiabilityReport, identifiability_report
from interp.identifiability_parts import Bars
from interp.methods.patching import patch
from interp.sweep import Engine

QUICK = {"ablations": ("counterfactual",), "random": 3, "n_boot": 20}


def report(name: str, circuits: dict[str, tuple[str, ...]], **options) -> IdentifiabilityReport:
    known, task, nodes = p.planted(name)
    given = {label: p.keeping(nodes, *members) for label, members in circuits.items()}
    return identifiability_report(known.model, task, given, **{**QUICK, **options})


def test_one_circuit_and_its_supersets_are_unique() -> None:
    truth = (p.H0, p.H3, p.MLP)
    found = report("conjunction", {"it": truth, "more": (*truth, p.JUNK), "again": truth, "part": (p.H0, p.MLP)})
    assert found.verdict == "unique" and found.verdict_share == 1
    assert (found.faithful, found.minimal, found.one_minimal) == (2, 1, 1)
    rows = {row["circuit"]: row for row in found.circuits.rows()}
    assert [rows[label]["minimal"] for label in ("it", "more", "again", "part")] == [True, False, True, False]
    assert rows["again"]["same_members_as"] == "it" and rows["again"]["minimal_share"] == 1
    assert rows["it"]["independence"] == pytest.approx(1, abs=0.01)
    assert rows["it"]["necessity"] == pytest.approx(1, abs=0.01), "without it nothing is left"
    assert rows["it"]["preserved_p"] < 0.05 and rows["it"]["localised_p"] < 0.05 and rows["it"]["minimal_share"] == 1
    assert rows["part"]["functional_class"] == -1 and rows["it"]["functional_class"] == 0


def test_a_duplicated_path_is_many_equivalent_and_the_pair_is_named() -> None:
    found = report("redundant", {"one": (p.H0, p.MLP), "other": (p.H3, p.MLP), "both": (p.H0, p.H3, p.MLP)})
    assert found.verdict == "many equivalent"
    assert found.substitutable == ((p.H0, p.H3),)
    assert f"either {p.H0} or {p.H3}" in str(found)
    assert (found.faithful, found.minimal) == (3, 2) and found.minimal_range == (2, 2)
    assert (found.equivalence["same_answers"] == 1).all() and (found.equivalence["kl"] < 1e-6).all()
    assert found.equivalence["kl_intervened"].max() > 1e-3, "alike on the prompts, not under every intervention"
    completeness = dict(zip(found.circuits["circuit"], found.circuits["completeness"], strict=True))
    assert completeness["one"] == pytest.approx(0, abs=0.02), "its complement brings the behaviour back"
    assert completeness["both"] == pytest.approx(1, abs=0.02)


def test_with_much_in_common_it_is_a_core_with_variants() -> None:
    circuits = {"one": (p.H0, p.MLP), "other": (p.H3, p.MLP)}
    found = report("redundant", circuits, bars=Bars(core_share=0.4))
    assert found.verdict == "core + variants"


def test_noise_has_no_faithful_circuit() -> None:
    known, task, nodes = p.planted("conjunction")
    others = [n for n in nodes.labels if n not in (p.H0, p.H3, p.MLP)]
    rng = np.random.default_rng(0)
    given = {str(n): p.keeping(nodes, *rng.choice(others, 4, replace=False)) for n in range(5)}
    found = identifiability_report(known.model, task, given, **QUICK)
    assert found.verdict == "no faithful circuit" and (found.faithful, found.minimal) == (0, 0)
    assert not len(found.members) and not len(found.equivalence)
    assert dict(zip(found.controls["control"], found.controls["faithful"], strict=True))["random circuits"] == 0


def test_scores_that_other_prompts_would_order_otherwise_are_unstable() -> None:
    known, task, _ = p.planted("redundant")
    found = patch(known.model, task, ["z", "mlp_out"], direction="denoising", engine=Engine(progress=False))
    name = "logit_diff.denoising"
    cut = top_n(found, 3, name, rank="absolute")
    steady = identifiability_report(known.model, task, [cut, cut], **QUICK)
    assert steady.verdict == "unique" and steady.circuits["stability"][0] == pytest.approx(1)
    values = np.random.default_rng(0).normal(size=cut.tensors[name].array.shape)
    noisy = replace(cut, tensors={**cut.tensors, name: replace(cut.tensors[name], values=values)})
    shaken = identifiability_report(known.model, task, [noisy, noisy], **QUICK)
    assert shaken.verdict == "unstable" and shaken.circuits["stability"][0] < 0.5


def test_order_names_and_seeds() -> None:
    circuits = {"one": (p.H0, p.MLP), "other": (p.H3, p.MLP), "both": (p.H0, p.H3, p.MLP), "no": (p.JUNK,)}
    there = report("redundant", circuits)
    again = report("redundant", circuits)
    assert str(there) == str(again)
    back = report("redundant", {f"new {label}": circuits[label] for label in reversed(circuits)})
    assert (back.verdict, back.faithful, back.minimal, back.substitutable) == (
        there.verdict, there.faithful, there.minimal, there.substitutable,
    )  # fmt: skip
    for column in ("faithfulness.counterfactual", "faithfulness.counterfactual.low", "sufficiency", "minimal_share"):
        np.testing.assert_allclose(back.circuits[column][::-1], there.circuits[column], atol=1e-6)


def test_a_bar_counts_what_reaches_it() -> None:
    found = report("redundant", {"one": (p.H0, p.MLP), "other": (p.H3, p.MLP), "no": (p.JUNK,)})
    counts = {row["at_least"]: (row["faithful"], row["minimal"]) for row in found.counts.rows()}
    assert counts[0.9] == (2, 2) and counts[0.5] == (2, 2)
    assert (np.diff(found.counts["faithful"]) <= 0).all()


def test_the_search_is_run_again_for_controls() -> None:
    known, task, nodes = p.planted("redundant")
    seen = []

    def discover(model, given) -> Circuit:
        seen.append((model.identity.name, given))
        return p.keeping(nodes, p.JUNK)

    found = identifiability_report(
        known.model, task, [p.keeping(nodes, p.H0, p.MLP), p.keeping(nodes, p.H3, p.MLP)], discover=discover, **QUICK
    )
    assert found.controls["control"].tolist() == ["random circuits", "shuffled answers", "random weights"]
    assert "12 of 12 prompts kept their answers" in found.controls["note"][1], "all have the same here, and it is said"
    assert "random weights" in seen[1][0] and torch.equal(seen[1][1].clean.ids, task.clean.ids)
    assert found.controls["circuits"].tolist()[1:] == [1, 1]


def test_what_cannot_be_judged_is_refused() -> None:
    known, task, nodes = p.planted("redundant")
    two = [p.keeping(nodes, p.H0, p.MLP), p.keeping(nodes, p.H3, p.MLP)]
    with pytest.raises(CircuitError, match="12 of 12 held-out prompts"):
        identifiability_report(known.model, task, two, found_on=task, **QUICK)
    with pytest.raises(OptionError, match="ablations"):
        identifiability_report(known.model, task, two, ablations=())
    with pytest.raises(OptionError, match="at_least"):
        Bars(at_least=0.0)
    same = replace(task, corrupted=task.clean)
    with pytest.raises(CircuitError, match="faithfulness is undefined"):
        identifiability_report(known.model, same, two, **QUICK)
    with pytest.raises(CircuitError, match="give two or more"):
        identifiability_report(known.model, task, two[:1], **QUICK)


def test_members_are_knocked_out_of_all_circuits_alike() -> None:
    truth = (p.H0, p.H3, p.MLP)
    found = report("conjunction", {"it": truth, "more": (*truth, p.JUNK)}, interventions=12)
    assert (found.equivalence["kl_intervened"] < 1e-3).all() and found.equivalence["same_answers_intervened"][0] == 1
