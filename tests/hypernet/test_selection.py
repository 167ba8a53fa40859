"""From scores to weights: every mode by hand."""

import pytest
import torch
from circuits import unchecked

from interp.errors import OptionError
from interp.hypernet.selection import Scores, chosen, masked, sparsity, straight_through


def scores(pairs: list[list[float]], own: list[float]) -> Scores:
    """One example; rows are source tokens, columns base tokens."""
    return Scores(torch.tensor([pairs]), torch.tensor([own]))


def test_each_base_token_shares_one_unit_between_sources_and_itself() -> None:
    one = scores([[0.0, 2.0, -1.0], [1.0, 0.0, 3.0]], [0.5, 0.0, 0.0])
    by_hand = torch.tensor([[0.0, 2.0, -1.0], [1.0, 0.0, 3.0], [0.5, 0.0, 0.0]]).softmax(0)
    torch.testing.assert_close(one.weights()[0], by_hand[:2])


def test_without_an_interaction_weights_are_a_distribution_times_a_gate() -> None:
    a, c, own = torch.randn(4), torch.randn(5), torch.randn(4)
    weights = scores((c[:, None] + a).tolist(), own.tolist()).weights()[0]
    gate = torch.sigmoid(a + c.logsumexp(0) - own)
    torch.testing.assert_close(weights, c.softmax(0)[:, None] * gate, rtol=1e-5, atol=1e-6)


def test_without_an_interaction_at_most_one_bid_survives_with_it_a_diagonal_does() -> None:
    a, c = torch.tensor([3.0, 2.9, 0.0]), torch.tensor([1.0, 2.0])
    factored = scores((c[:, None] + a).tolist(), [-9.0, -9.0, -9.0])
    assert int((chosen(factored, "one_to_one") > 0).sum()) == 1
    diagonal = scores([[5.0, -5.0, -5.0], [-5.0, 5.0, -5.0]], [0.0, 0.0, 0.0])
    assert chosen(diagonal, "one_to_one")[0].nonzero().tolist() == [[0, 0], [1, 1]]


def test_the_modes_by_hand() -> None:
    # weights: column 0 prefers source 0, column 1 source 0 too (more), column 2 itself
    one = scores([[1.0, 4.0, 0.0], [0.0, 3.0, 0.0]], [0.0, 0.0, 5.0])
    assert chosen(one, "one_to_many")[0].tolist() == [[1, 1, 0], [0, 0, 0]]
    # both sources bid for column 1, which takes source 0; column 0 gets no bid
    assert chosen(one, "one_to_one")[0].tolist() == [[0, 1, 0], [0, 0, 0]]
    weights = one.weights()[0]
    best = weights.flatten().argmax().item()
    assert chosen(one, "single")[0].flatten().nonzero().tolist() == [[best]]
    torch.testing.assert_close(chosen(one, "soft"), one.weights())


def test_a_weak_bid_loses_to_the_floor_of_staying() -> None:
    # twelve sources with equal scores: each has less than the floor of 0.1 in its column, staying has nothing
    one = scores([[0.0]] * 12, [-20.0])
    assert chosen(one, "one_to_one").sum() == 0
    assert chosen(one, "one_to_many").sum() == 1


def test_forced_something_is_exchanged_in_any_case() -> None:
    stays = scores([[1.0, 2.0], [0.0, 3.0]], [20.0, 20.0])
    assert chosen(stays, "one_to_one").sum() == chosen(stays, "one_to_many").sum() == 0
    for mode in ("one_to_one", "one_to_many", "single"):
        assert chosen(stays, mode, forced=True)[0].tolist() == [[0, 0], [0, 1]]
    soft = chosen(stays, "soft", forced=True)[0]
    torch.testing.assert_close(soft, torch.tensor([[0.0, 0.0], [0.0, 0.0]]).index_fill(1, torch.tensor([1]), 1)
                               * torch.tensor([2.0, 3.0]).softmax(0)[:, None])  # fmt: skip
    assert torch.equal(chosen(stays, "single"), chosen(stays, "single", forced=True))
    goes = scores([[9.0, -9.0], [-9.0, 9.0]], [0.0, 0.0])
    assert torch.equal(chosen(goes, "one_to_one", forced=True), chosen(goes, "one_to_one"))


def test_padding_is_never_chosen() -> None:
    pairs, own = torch.full((2, 3, 3), 5.0), torch.full((2, 3), -5.0)
    source_real = torch.tensor([[True, True, False], [False, True, True]])
    base_real = torch.tensor([[True, False, False], [True, True, True]])
    one = masked(pairs, own, source_real, base_real)
    allowed = source_real[:, :, None] & base_real[:, None]
    for mode in ("soft", "one_to_many", "one_to_one", "single"):
        for forced in (False, True):
            used = chosen(one, mode, forced=forced)
            assert not used[~allowed].any() and torch.isfinite(used).all()


def test_sparsity_counts_what_is_beyond_one_and_jumps_as_published() -> None:
    weights = torch.tensor([[[0.9, 0.9], [0.05, 0.05]], [[0.5, 0.5], [0.5, 0.5]]])
    torch.testing.assert_close(sparsity(weights, as_published=False), torch.tensor([0.8, 0.0]))
    torch.testing.assert_close(sparsity(weights, as_published=True), torch.tensor([1.8, 0.0]))
    own = 1 - weights.sum(1)
    torch.testing.assert_close(weights.sum((1, 2)), (1 - own).sum(1))


def test_hard_choices_have_the_gradient_of_soft_ones() -> None:
    soft = torch.tensor([0.3, 0.7], requires_grad=True)
    hard = straight_through(torch.tensor([0.0, 1.0]), soft)
    (hard * torch.tensor([2.0, 5.0])).sum().backward()
    assert hard.tolist() == [0.0, 1.0] and soft.grad is not None and soft.grad.tolist() == [2.0, 5.0]


def test_an_unknown_mode_is_named() -> None:
    allowed = "one_to_two.*allowed: 'soft', 'one_to_many', 'one_to_one', 'single'"
    with unchecked(), pytest.raises(OptionError, match=allowed):
        chosen(scores([[0.0]], [0.0]), "one_to_two")  # type: ignore[arg-type]
