"""Mediation against runs made by hand, at full cuts, and on gates whose effects are known."""

import numpy as np
import pytest
from tiny import F64, hooked64, task

import interp
from interp.intervention import Patch
from interp.known import FAINT, known_circuit

QUIET = interp.Engine(progress=False)


def values(circuit, name) -> np.ndarray:
    return circuit.tensors[f"logit_diff.{name}"].array


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_the_effects_are_those_of_runs_made_by_hand_and_direct_and_indirect_make_the_total(family):
    with F64():
        model, given = hooked64(family), task()
        found = interp.mediate(model, given, ["z", "mlp_out"], engine=QUIET)

        def measured(base, other=None, node=None):
            patches = []
            if node is not None:
                source = model.run(other, record=[node.site])[node.site]
                source = source if node.head is None else source[:, :, node.head : node.head + 1]
                patches = [Patch(node.site, head=node.head, source=source)]
            logits = model.run(base, patches, logits=given.answers.positions).logits
            return given.metric(logits, given.answers).numpy()

        clean, corrupted = measured(given.clean), measured(given.corrupted)
        for row in (0, 5, len(found.nodes) - 1):
            node = found.nodes[row]
            without = measured(given.clean, given.corrupted, node)
            restored = measured(given.corrupted, given.clean, node)
            direct, indirect = without - corrupted, values(found, "noising")[row]
            assert np.allclose(values(found, "nde")[row], direct, atol=1e-6)
            assert np.allclose(values(found, "denoising")[row], restored - corrupted, atol=1e-6)
            assert np.allclose(direct + indirect, clean - corrupted, atol=1e-6)
            assert np.allclose(values(found, "te"), clean - corrupted, atol=1e-6)
        assert abs(values(found, "nde")).max() > 0.1


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_nothing_goes_around_a_full_cut_and_everything_around_a_node_off_all_paths(family):
    with F64():
        found = interp.mediate(hooked64(family), task(), "resid_pre", engine=QUIET)
        te = values(found, "te")
        assert np.allclose(values(found, "nde"), 0, atol=1e-6) and abs(te).max() > 0.1
        assert np.allclose(values(found, "denoising"), te, atol=1e-6)
        assert np.allclose(values(found, "noising"), te, atol=1e-6)
        assert np.allclose(found.attributes["logit_diff.interaction"].values, 0, atol=1e-5)
        dead = interp.mediate(hooked64(family), task(), "mlp_out", positions=["changed"], engine=QUIET)
        last = dead.nodes.index("mlp_out[2] role changed")
        assert (values(dead, "noising")[last] == 0).any(), "no answer is read where the token changed"
        assert np.allclose(values(dead, "nde") + values(dead, "noising"), values(dead, "te"), equal_nan=True)


@pytest.mark.parametrize(("gate", "expected"), [("conjunction", (0, 1, 0, 1)), ("redundant", (1, 0, 1, -1))])
def test_gates_have_the_effects_of_the_book(gate, expected):
    known = known_circuit(gate)
    found = interp.mediate(known.model, known.task, known.nodes, engine=QUIET)
    te = values(found, "te")[0]
    for name in ("z[0] head 0", "z[0] head 3"):
        row = found.nodes.index(name)
        shares = [values(found, which)[row, 0] / te for which in ("denoising", "noising", "nde")]
        shares.append(found.attributes["logit_diff.interaction"].values[row])
        assert shares == pytest.approx(expected, abs=20 * FAINT)


def test_an_interaction_without_a_total_effect_is_undefined():
    given = task()
    with pytest.warns(interp.InterpWarning, match="undefined"):
        found = interp.mediate(hooked64("gpt2"), task(corrupted=given.clean), engine=QUIET)
    assert np.isnan(found.attributes["logit_diff.interaction"].values).all()
    assert (found.scores["logit_diff.noising"].values == 0).all()
