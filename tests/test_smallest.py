"""The smallest circuit of a ranking, and others that do as well."""

import numpy as np
import planted as p
import pytest
import tiny

from interp.circuit import Circuit
from interp.circuit_ops import bar_nodes, top_n
from interp.errors import CircuitError, OptionError
from interp.evaluate import faithfulness, minimality
from interp.methods.edges import attribute_edges
from interp.methods.patching import patch
from interp.smallest import find_alternatives, smallest_circuit
from interp.sweep import Engine

G2, TASK = tiny.hooked("gpt2"), tiny.task()
BY = "logit_diff.denoising"


def scored(name: str) -> tuple:
    known, task, _ = p.planted(name)
    found = patch(known.model, task, ["z", "mlp_out"], direction="denoising", engine=Engine(progress=False))
    return known.model, task, found


def names(circuit: Circuit) -> set[str]:
    return set(circuit.nodes.labels[circuit.kept_nodes])


def test_a_known_circuit_is_cut_to_what_it_needs() -> None:
    model, task, found = scored("redundant")
    one = smallest_circuit(model, task, found, BY)
    assert names(one) in ({p.H0, p.MLP}, {p.H3, p.MLP})
    assert faithfulness(model, task, one, random=0).value == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("at_least", [0.5, 0.9])
def test_it_reaches_the_bar_and_spares_no_member(at_least: float) -> None:
    found = patch(G2, TASK, ["z", "mlp_out"], direction="noising", engine=Engine(progress=False))
    one = smallest_circuit(G2, TASK, found, "logit_diff.noising", at_least)
    assert faithfulness(G2, TASK, one, random=0).value >= at_least
    table = minimality(G2, TASK, one)
    assert (table["faithfulness_without"] < at_least).all(), "no single member can go"
    assert one.provenance.operations[-1]["operation"] == "smallest_circuit"


def test_edges_are_grown_and_cut_too() -> None:
    edges = attribute_edges(G2, TASK)
    by = next(iter(edges.scores))
    one = smallest_circuit(G2, TASK, edges, by, 0.8)
    assert faithfulness(G2, TASK, one, random=0).value >= 0.8
    assert 0 < one.kept_edges.sum() < edges.kept_edges.sum()


def test_a_bar_out_of_reach_says_what_was_reached() -> None:
    model, task, found = scored("conjunction")
    barred = top_n(found, 3, BY, rank="absolute")
    with pytest.raises(CircuitError, match=r"reach a faithfulness of -?0\.0\d\d, not 0\.9"):
        smallest_circuit(model, task, bar_nodes(barred, [p.H0]), BY)
    with pytest.raises(OptionError, match=r"at_least=1\.5"):
        smallest_circuit(model, task, found, BY, 1.5)


def test_the_backup_is_found_as_an_alternative() -> None:
    model, task, found = scored("redundant")
    one = smallest_circuit(model, task, found, BY)
    others = find_alternatives(model, task, one, BY, 3)
    kept = [names(circuit) for circuit in others.circuits]
    assert {frozenset(k) for k in kept} == {frozenset({p.H0, p.MLP}), frozenset({p.H3, p.MLP})}
    assert len(kept) == 2, "no third one, so the search ends"
    assert others.table["node_jaccard"].tolist() == [1, pytest.approx(1 / 3)]
    assert (others.table["faithfulness"] >= 0.9).all() and others.table["in_all"].tolist() == [1, 1]
    assert all(np.array_equal(c.nodes.labels, found.nodes.labels) for c in others.circuits)
    assert all(list(c.scores) == list(found.scores) for c in others.circuits), "the penalised score stays inside"


def test_with_its_core_barred_there_is_none() -> None:
    model, task, found = scored("redundant")
    one = smallest_circuit(model, task, found, BY)
    with pytest.raises(CircuitError, match="reach a faithfulness of"):
        find_alternatives(model, task, one, BY, 1, barred=[p.MLP])
    with pytest.raises(OptionError, match=r"overlap_penalty=2\.0"):
        find_alternatives(model, task, one, BY, 1, overlap_penalty=2.0)
    with pytest.raises(CircuitError, match="no score 'nothing'"):
        find_alternatives(model, task, one, "nothing", 1)
