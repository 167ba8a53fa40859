"""Rankings against the truth: agreement, recall, what full recall costs, and the area under the ROC curve."""

import numpy as np
import pytest

from interp.errors import OptionError
from interp.rankings import Ranking, by_estimate
from interp.recall import auroc, rank_agreement, ranked, recall, roc_curve, summary_cost

TRUTH = np.array([5.0, -4.0, 3.0, 0.5, 0.0, np.nan])


def test_rankings_go_by_magnitude_with_ties_in_order_and_nan_last():
    assert ranked(np.array([1.0, -3.0, np.nan, 1.0, 2.0])).tolist() == [1, 4, 0, 3, 2]


def test_rank_agreement_is_spearmans_of_the_magnitudes():
    assert rank_agreement(TRUTH, TRUTH) == pytest.approx(1)
    assert rank_agreement(-(TRUTH**3), TRUTH) == pytest.approx(1)
    values, other = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, 4.0, 3.0])
    assert rank_agreement(values, other) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert np.isnan(rank_agreement(np.ones(4), values))
    tied = np.array([1.0, 1.0, 2.0])
    assert rank_agreement(tied, np.array([1.0, 2.0, 3.0])) == pytest.approx(np.corrcoef([1.5, 1.5, 3], [1, 2, 3])[0, 1])


def test_recall_is_the_share_of_the_true_top_found():
    estimate = np.array([9.0, 0.0, 8.0, 7.0, 1.0, 2.0])
    assert [recall(estimate, TRUTH, k) for k in (1, 2, 3)] == [1.0, 0.5, pytest.approx(2 / 3)]
    with pytest.raises(OptionError, match="k=5; allowed: 1 to 4"):
        recall(estimate, TRUTH, 5)


def test_the_cost_of_full_recall_is_the_place_of_the_last_one_found():
    assert by_estimate(TRUTH, 2.5).costs(TRUTH, 4).tolist() == [3.5, 4.5, 5.5, 6.5]
    order = Ranking(np.array([4, 1, 0, 5, 2, 3]), np.arange(1.0, 7.0))
    assert order.costs(TRUTH, 4).tolist() == [3, 3, 5, 6]
    assert order.summary(TRUTH, 4) == summary_cost(np.array([3, 3, 5, 6]))
    assert summary_cost(np.array([7, 7, 7])) == pytest.approx(7)
    assert summary_cost(np.array([1, 4])) == pytest.approx(np.exp(0.5 * np.log(4) / 1.5))


def test_auroc_is_the_chance_to_rank_a_member_above_another():
    truth = np.array([True, False, True, False, False])
    assert auroc(np.array([5.0, 1.0, -4.0, 2.0, 0.0]), truth) == 1.0
    assert auroc(np.array([1.0, 5.0, 0.0, 4.0, 3.0]), truth) == 0.0
    assert auroc(np.zeros(5), truth) == 0.5
    scores = np.array([3.0, 3.0, 1.0, 2.0, np.nan])
    pairs = [(s > o) + (s == o) / 2 for s in (3, 1) for o in (3, 2, -1)]
    assert auroc(scores, truth) == pytest.approx(np.mean(pairs))
    with pytest.raises(OptionError, match="holds 5 of 5"):
        auroc(scores, np.ones(5, bool))


def test_the_area_below_the_roc_curve_is_the_auroc():
    truth = np.array([True, False, True, False, False])
    for scores in ([5.0, 1.0, -4.0, 2.0, 0.0], [1.0, 5.0, 0.0, 4.0, 3.0], [0.0] * 5, [3.0, 3.0, 1.0, 2.0, np.nan]):
        false, true = roc_curve(np.array(scores), truth)
        assert np.trapezoid(true, false) == pytest.approx(auroc(np.array(scores), truth))
        assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1) and (np.diff(false) >= 0).all()
    assert [x.tolist() for x in roc_curve(np.array([2.0, 2.0, 1.0]), np.array([True, False, False]))] == [
        [0, 0.5, 1],
        [0, 1, 1],
    ]
    with pytest.raises(OptionError, match="holds 0 of 3"):
        roc_curve(np.zeros(3), np.zeros(3, bool))
