"""Tests with stated margins: sign flips against brute force, Holm's correction, equivalence, redundant members."""

from itertools import product

import numpy as np
import planted as p
import pytest
import torch

from interp.criteria import holm, localisation, minimality_test, preservation, sign_flip
from interp.evaluate import JudgedRuns, Members


def test_sign_flips_are_all_of_them_where_they_are_few() -> None:
    values = np.array([0.3, -0.1, 0.8, 0.2, 0.4])
    brute = np.mean([np.dot(signs, values) >= values.sum() - 1e-9 for signs in product([1, -1], repeat=5)])
    assert sign_flip(values, 0) == pytest.approx(brute)
    assert sign_flip(np.ones(5), 0) == pytest.approx(1 / 32) and sign_flip(-np.ones(5), 0) == 1
    many = np.random.default_rng(0).normal(0.1, 1, 40)
    assert sign_flip(many, 1) == pytest.approx(sign_flip(many, 2), abs=0.02), "a sample of them agrees with another"
    assert np.isnan(sign_flip(np.array([1.0, np.nan]), 0))


def test_under_no_effect_a_tenth_is_below_a_tenth() -> None:
    rng = np.random.default_rng(3)
    found = np.array([sign_flip(rng.normal(size=10), 0) for _ in range(400)])
    assert abs((found <= 0.1).mean() - 0.1) < 0.045


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, np.nan, 0.03]).tolist()[:2] == pytest.approx([0.03, 0.06])
    assert holm([0.01, 0.04, np.nan, 0.03])[3] == pytest.approx(0.06) and np.isnan(holm([0.01, 0.04, np.nan, 0.03])[2])
    assert holm([0.9, 0.8]).tolist() == [1, 1] and len(holm([])) == 0


def test_equality_is_shown_only_within_the_margin() -> None:
    full, empty = torch.ones(12).double(), torch.zeros(12).double()
    off = torch.tensor([0.0, 0.05, 0.3, -0.3]).double()
    runs = JudgedRuns(full, empty, full + off[:, None], ())
    assert (preservation(runs, 0.1, 0) < 0.05).tolist() == [True, True, False, False]
    assert (preservation(runs, 0.04, 0) < 0.05).tolist() == [True, False, False, False]
    noisy = runs._replace(values=full + torch.randn(1, 12, generator=torch.Generator().manual_seed(0)).double())
    assert preservation(noisy, 0.1, 0)[0] > 0.05, "a difference that is not shown is not equality"
    rest = runs._replace(values=torch.tensor([0.0, 0.5, 1.0]).double()[:, None].expand(3, 12))
    assert (localisation(rest, 0.9, 0) < 0.05).tolist() == [True, True, False]
    same = runs._replace(empty=full)
    assert np.isnan(preservation(same, 0.1, 0)).all()


def test_needed_members_are_told_from_redundant_ones() -> None:
    known, task, nodes = p.planted("redundant")
    members = Members(known.model, p.keeping(nodes, p.H0, p.MLP, p.JUNK))
    found = minimality_test(members, task, members.own, task.metric, ablation="counterfactual", at_least=0.9, seed=0)
    rows = {row["member"]: row for row in found.rows()}
    assert rows[p.H0]["needed"] and rows[p.MLP]["needed"] and not rows[p.JUNK]["needed"]
    assert rows[p.H0]["p"] < 0.01 and rows[p.MLP]["p"] < 0.01 and rows[p.JUNK]["p"] > 0.05
    whole = np.ones_like(members.own)
    found = minimality_test(members, task, whole, task.metric, ablation="counterfactual", at_least=0.9, seed=0)
    assert np.isnan(found["p"]).all(), "nothing can be added"
