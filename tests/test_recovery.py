"""Recovery and bootstrap intervals: exact cases, guards, and reproducibility."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import MetricError, OptionError
from interp.recovery import bootstrap, recovery

FULL, EMPTY = torch.tensor([3.0, 5.0, 4.0]), torch.tensor([1.0, -1.0, 0.0])


@pytest.mark.parametrize("average", ["ratio_of_means", "mean_of_ratios"])
def test_the_full_run_recovers_one_and_the_empty_run_nothing(average: str) -> None:
    found = recovery(torch.stack([FULL, EMPTY]), FULL, EMPTY, average=average)
    assert found.value.tolist() == [1.0, 0.0] and found.reason == "" and not found.flagged.any()


def test_ratio_of_means_differs_from_mean_of_ratios_as_by_hand() -> None:
    run = torch.tensor([2.0, -1.0, 4.0])
    assert recovery(run, FULL, EMPTY).value.item() == pytest.approx((1 + 0 + 4) / (2 + 6 + 4))
    assert recovery(run, FULL, EMPTY, average="mean_of_ratios").value.item() == pytest.approx((0.5 + 0 + 1) / 3)


def test_disruption_is_one_minus_recovery_within_one_run() -> None:
    run = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    disruption = recovery(run, EMPTY, FULL).value
    torch.testing.assert_close(disruption, 1 - recovery(run, FULL, EMPTY).value)


def test_prompts_without_a_gap_are_flagged_and_left_out_of_the_mean_of_ratios() -> None:
    full, empty = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.0, 0.0, 0.5])
    found = recovery(torch.tensor([0.5, 1.0, 7.0]), full, empty, average="mean_of_ratios")
    assert found.flagged.tolist() == [False, False, True] and found.value.item() == 0.5


@pytest.mark.parametrize("average", ["ratio_of_means", "mean_of_ratios"])
def test_a_degenerate_denominator_gives_nan_with_its_reason(average: str) -> None:
    found = recovery(torch.ones(2, 3), FULL, FULL + 1e-6, average=average)
    assert found.value.shape == (2,) and found.value.isnan().all()
    assert "full and empty run differ" in found.reason and "below 0.0001" in found.reason


@settings(max_examples=50, deadline=None)
@given(gap=st.floats(-1e-3, 1e-3), average=st.sampled_from(["ratio_of_means", "mean_of_ratios"]))
def test_recovery_is_never_infinite(gap: float, average: str) -> None:
    found = recovery(torch.tensor([1.0, 2.0]), torch.full((2,), gap), torch.zeros(2), average=average)
    assert not found.value.isinf() and bool(found.reason) == bool(found.value.isnan())


def test_an_unknown_average_is_refused() -> None:
    with pytest.raises(OptionError, match="average is 'mean'; allowed: 'ratio_of_means', 'mean_of_ratios'"):
        inspect.unwrap(recovery)(FULL, FULL, EMPTY, average="mean")


def test_the_interval_holds_the_mean_and_shrinks_to_a_constant() -> None:
    values = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).double()
    low, high = bootstrap(values)
    assert (low < values.mean(-1)).all() and (values.mean(-1) < high).all()
    low, high = bootstrap(torch.full((40,), 0.3).double())
    assert low.item() == pytest.approx(0.3) and high.item() == pytest.approx(0.3)


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    values = torch.randn(400, 50, generator=torch.Generator().manual_seed(2))
    low, high = bootstrap(values, level=0.9)
    assert 0.84 < ((low < 0) & (high > 0)).double().mean() < 0.95


def test_leading_axes_are_bootstrapped_as_each_alone() -> None:
    values = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(3))
    low, high = bootstrap(values, n=200)
    assert low.shape == high.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = bootstrap(values[i, j], n=200)
            torch.testing.assert_close(torch.stack(alone), torch.stack([low[i, j], high[i, j]]))


def test_the_interval_is_reproducible_and_leaves_the_global_generator_alone() -> None:
    values = torch.arange(10.0)
    before = torch.get_rng_state()
    first, again, other = bootstrap(values, seed=4), bootstrap(values, seed=4), bootstrap(values, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.stack(first), torch.stack(again)) and not torch.equal(
        torch.stack(first), torch.stack(other)
    )


def test_a_recovery_is_bootstrapped_with_its_denominator() -> None:
    gap = torch.tensor([1.0, 2.0, 3.0, 4.0])
    low, high = bootstrap(0.25 * gap, over=gap)
    assert low.item() == pytest.approx(0.25) and high.item() == pytest.approx(0.25)
    assert bootstrap(gap, over=torch.full((4,), 1e-6))[0].isnan()


def test_what_has_no_interval_is_nan() -> None:
    assert torch.stack(bootstrap(torch.tensor([[1.0], [2.0]]))).isnan().all()
    low, _ = bootstrap(torch.tensor([[1.0, torch.nan], [1.0, 2.0]]))
    assert low.isnan().tolist() == [True, False]


@pytest.mark.parametrize("options", [{"n": 0}, {"level": 1.0}])
def test_bootstrap_refuses_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(MetricError, match="n must be at least 1 and level between 0 and 1"):
        bootstrap(FULL, **options)  # type: ignore[arg-type]
