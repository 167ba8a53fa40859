"""Curves and their areas, on the numbers of the track they come from, and on edge circuits that are run."""

import warnings

import numpy as np
import pytest
import torch
from tiny import hooked, task

import interp
from interp import curves
from interp.curves import FRACTIONS, circuit_areas, faithfulness_curve
from interp.errors import OptionError
from interp.evaluate import faithfulness
from interp.methods.edges import attribute_edges

NAME = "logit_diff.noising"


@pytest.fixture(scope="module")
def edges() -> interp.Circuit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        return attribute_edges(hooked("llama"), task())


def areas(monkeypatch, edges: interp.Circuit, shares: list[float]) -> curves.Areas:
    """Areas where the circuits' runs keep these shares of the behaviour on each of two prompts."""
    full, empty = torch.tensor([3.0, 5.0]).double(), torch.tensor([-1.0, 0.0]).double()
    runs = [empty + share * (full - empty) for share in shares]
    monkeypatch.setattr(curves, "curve_values", lambda *_, **__: torch.stack([full, empty, *runs]))
    return circuit_areas(hooked("llama"), task(), edges, NAME, rank="absolute")


@pytest.mark.parametrize(
    ("shares", "cpr", "cmd"),
    [([1.0] * 10, 0.999, 0.0), ([0.0] * 9 + [1.0], 0.25, 0.749), (list(FRACTIONS), 0.4999995, 0.4990005)],
)
def test_areas_of_known_curves(monkeypatch, edges, shares, cpr, cmd):
    found = areas(monkeypatch, edges, shares)
    assert found.cpr[0] == pytest.approx(cpr, abs=1e-9) and found.cmd[0] == pytest.approx(cmd, abs=1e-9)
    assert found.cpr[1:] == pytest.approx((cpr, cpr), abs=1e-6), "the prompts agree, so resampling changes nothing"


def test_on_the_logarithmic_scale_every_decade_counts_alike(monkeypatch, edges):
    assert areas(monkeypatch, edges, [1.0] * 10).log_cpr[0] == pytest.approx(1.0)
    late = areas(monkeypatch, edges, [0.0] * 9 + [1.0])
    assert late.log_cpr[0] == pytest.approx(np.log(2) / np.log(1000) / 2)
    assert late.log_cmd[0] == pytest.approx(1 - np.log(2) / np.log(1000) / 2)


def test_the_curve_holds_what_each_circuit_gets_by_itself(edges):
    model, given, sizes = hooked("llama"), task(), [0, 5, 60, 442]
    for select in ("top_n", "grow"):
        table = faithfulness_curve(model, given, edges, sizes, NAME, rank="absolute", select=select, random=2, seed=4)
        for row, size in enumerate(sizes):
            choose = interp.top_n if select == "top_n" else interp.grow
            one = faithfulness(model, given, choose(edges, size, NAME, rank="absolute"), random=2, seed=4)
            assert table["faithfulness"][row] == pytest.approx(one.value, abs=2e-3)
            assert (one.size, one.universe, one.over) == (size, 442, "edges")
            if 0 < size < 442:
                assert table["random_max"][row] == pytest.approx(max(one.random), abs=2e-3)
        assert table["faithfulness"][0] == pytest.approx(0, abs=1e-3)
        assert table["faithfulness"][-1] == pytest.approx(1, abs=1e-3)


def test_areas_come_from_runs_and_say_how_members_were_chosen(edges):
    found = circuit_areas(hooked("llama"), task(), edges, NAME, rank="signed")
    assert found.curve["size"].tolist() == [int(fraction * 442) for fraction in FRACTIONS]
    f = found.curve["faithfulness"]
    expected = sum((b - a) * (x + y) / 2 for a, b, x, y in zip(FRACTIONS, FRACTIONS[1:], f, f[1:], strict=False))
    assert found.cpr[0] == pytest.approx(expected) and found.cpr[1] <= found.cpr[0] <= found.cpr[2]
    assert f[-1] == pytest.approx(1, abs=1e-3) and "signed ranking, top_n" in str(found)


def test_fractions_that_do_not_ascend_are_refused(edges):
    for wrong in ([0.5], [0.0, 1.0], [0.5, 0.2], [0.5, 1.5]):
        with pytest.raises(OptionError, match="ascending, above 0 and up to 1"):
            circuit_areas(hooked("llama"), task(), edges, NAME, rank="signed", fractions=wrong)
