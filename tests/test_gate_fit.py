"""The fit of gates against what can be computed by hand, and rows against fits of their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from interp.errors import FileError, OptionError
from interp.gate_fit import draw_gates, fit, picks
from interp.gate_stage import FitRow, HardConcrete, Stage

PENALISED = Stage("penalised", 500, (0.5, 0.1), 1)
HEADS = (28, 24)
LEVEL = 0.1 / (28 * 24)  # the penalty on each head's theta


def constant(benefit):
    """A benefit of so much for each unit of a gate."""

    def objective(gates, chosen):
        gates.grad += benefit
        return (gates.detach() * benefit).sum((1, 2))

    return objective


def fitted(objective, theta, penalty, stage=PENALISED, rows=1, n_prompts=10, **options):
    fits = [FitRow(n, n, penalty) for n in range(rows)]
    start = theta if isinstance(theta, torch.Tensor) else torch.full((rows, *HEADS), theta, dtype=torch.float64)
    return fit(objective, start, fits, stage, n_prompts, progress=False, **options)


@pytest.mark.parametrize(("ratio", "gate"), [(6, 0.78868), (12, 0.90825)])
def test_a_head_with_a_constant_benefit_comes_to_rest_where_the_penalty_balances_it(ratio, gate):
    found = torch.sigmoid(fitted(constant(ratio * LEVEL), 0.0, -0.1).theta)
    assert torch.allclose(found, torch.full_like(found, gate), atol=1e-4)
    assert gate == pytest.approx((1 + np.sqrt(1 - 4 / ratio)) / 2, abs=1e-5)


def test_the_same_head_closes_when_it_starts_below_the_lower_root_or_has_too_little_benefit():
    closed = torch.sigmoid(fitted(constant(6 * LEVEL), -2.0, -0.1).theta)
    assert closed.max() < 0.0185  # the penalty ends at theta = -4
    assert torch.sigmoid(fitted(constant(3.9 * LEVEL), 0.0, -0.1).theta).max() < 0.05


@pytest.mark.parametrize("sign", [1, -1])
def test_the_penalty_alone_drives_gates_its_way_and_beyond_the_clip(sign):
    for one_sided in (True, False):
        stage = replace(PENALISED, one_sided=one_sided)
        theta = fitted(constant(0.0), 0.0, sign * 0.1, stage).theta
        assert torch.allclose(theta, torch.full_like(theta, sign * 9.075), atol=5e-3)


def test_a_gate_that_starts_behind_the_clip_feels_the_penalty_with_the_one_sided_clip_only():
    two_sided = replace(PENALISED, one_sided=False)
    assert torch.equal(fitted(constant(0.0), 4.5, -0.1, two_sided).theta, torch.full((1, *HEADS), 4.5).double())
    assert fitted(constant(0.0), 4.5, -0.1).theta.max() < -9


@pytest.mark.parametrize(("start", "share"), [(4.5, 0.45), (6.0, 0.70), (8.0, 0.88)])
def test_the_dead_zone_of_the_two_sided_clip_keeps_open_what_noise_alone_moves(start, share):
    generator = torch.Generator().manual_seed(0)

    def noise(gates, chosen):
        gates.grad += 1e-3 * torch.randn(gates.shape, generator=generator, dtype=torch.float64)
        return torch.zeros(len(gates))

    found = fitted(noise, start, -0.1, replace(PENALISED, one_sided=False)).theta
    assert float((found > 0).double().mean()) == pytest.approx(share, abs=0.07)
    assert float((fitted(noise, start, -0.1).theta > 0).double().mean()) < 0.02


def quadratic(gates, chosen):
    """A benefit that depends on the fit's own prompts."""
    x = gates.detach()
    wanted = torch.tensor([np.mean(prompts) for prompts in chosen])[:, None, None] / 10
    gates.grad += -2 * (x - wanted)
    return -((x - wanted) ** 2).sum((1, 2))


def test_a_fit_does_not_depend_on_its_company():
    rows = [FitRow(3, 3, 0.1), FitRow(3, 3, -0.1), FitRow(4, 7, -0.1), FitRow(5, 5, 0.0)]
    stage = Stage("penalised", 40, (0.5, 0.1), 4)
    start = draw_gates(rows, HEADS, dtype=torch.float64)
    together = fit(quadratic, start, rows, stage, 10, progress=False)
    for number, row in enumerate(rows):
        alone = fit(quadratic, start[[number]], [row], stage, 10, progress=False)
        assert torch.equal(alone.theta[0], together.theta[number])
        assert torch.equal(alone.benefits[:, 0], together.benefits[:, number])
        assert torch.equal(alone.signal[0], together.signal[number])
    shared = fit(quadratic, start, rows, replace(stage, shared_clip=True), 10, progress=False)
    assert torch.equal(shared.theta[0], together.theta[0]) and not torch.equal(shared.theta[1], together.theta[1])


def test_each_pass_sees_every_prompt_once_in_an_order_of_its_own():
    stage = Stage("initial", 10, (0.1, 0.1), 4)
    row = FitRow(0, 5)
    seen = [prompt for step in range(10) for prompt in picks(row, stage, 8, step)]
    for epoch in range(5):
        assert sorted(seen[8 * epoch : 8 * epoch + 8]) == list(range(8))
    assert seen[:8] != seen[8:16]
    assert picks(FitRow(9, 5), stage, 8, 3) == picks(row, stage, 8, 3) != picks(FitRow(0, 6), stage, 8, 3)
    assert len(picks(row, replace(stage, batch=20), 8, 1)) == 20


def test_gates_are_drawn_in_their_range_without_the_global_seed():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    drawn = torch.sigmoid(draw_gates([FitRow(1, 0), FitRow(2, 0), FitRow(1, 9)], HEADS, dtype=torch.float64))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    assert 0 < drawn.min() < 0.05 and 0.95 < drawn.max() < 1
    high = torch.sigmoid(draw_gates([FitRow(1, 0)], HEADS, low=0.9, high=1.0, dtype=torch.float64))
    assert high.min() >= 0.9
    assert draw_gates([FitRow(1, 0)], HEADS, low=1.0, high=1.0, dtype=torch.float64).isfinite().all()


def test_the_gradient_of_a_fit_is_clipped_to_norm_1_and_theta_to_its_bound():
    """Adam does not feel the scale of gradients, but does feel one large gradient among small ones."""
    sizes = iter([1.0, 1e3, 1.0, 1.0])

    def jumping(gates, chosen):
        gates.grad += next(sizes)
        return torch.zeros(len(gates))

    stage = Stage("s", 4, (0.1, 0.1), 1)
    clipped = fitted(jumping, 0.0, 0.0, stage).theta
    sizes = iter([1.0, 1e3, 1.0, 1.0])
    free = fitted(jumping, 0.0, 0.0, replace(stage, grad_norm=None)).theta
    assert torch.allclose(clipped, torch.full_like(clipped, 0.4), atol=1e-3) and free.max() < 0.35
    assert fitted(constant(0.0), 0.0, 0.1, replace(PENALISED, bound=6.0)).theta.max() == 6.0


def test_a_penalty_per_head_is_that_of_the_mean_times_their_number():
    per_head = replace(PENALISED, per_head=True, steps=30)
    mean = replace(PENALISED, steps=30)
    one, other = (fitted(constant(6 * LEVEL), 0.0, p, s).theta for p, s in ((-LEVEL, per_head), (-0.1, mean)))
    assert torch.allclose(one, other, atol=1e-9)


def test_an_interrupted_fit_goes_on_to_the_bit_equal_result(tmp_path):
    rows = [FitRow(3, 3, 0.1), FitRow(4, 4, -0.1)]
    stage, path = Stage("penalised", 20, (0.5, 0.1), 4), tmp_path / "state.safetensors"
    start = draw_gates(rows, HEADS, dtype=torch.float32)
    calls = []

    def stopping(gates, chosen):
        calls.append(1)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return quadratic(gates, chosen)

    whole = fit(quadratic, start, rows, stage, 10, progress=False)
    with pytest.raises(KeyboardInterrupt):
        fit(stopping, start, rows, stage, 10, checkpoint=path, minutes=0.0, progress=False)
    calls.clear()

    def counting(gates, chosen):
        calls.append(1)
        return quadratic(gates, chosen)

    again = fit(counting, start, rows, stage, 10, checkpoint=path, progress=False)
    assert len(calls) == 8
    for name in ("theta", "benefits", "signal"):
        assert torch.equal(getattr(again, name), getattr(whole, name)), name
    done = fit(counting, start, rows, stage, 10, checkpoint=path, progress=False)
    assert len(calls) == 8 and torch.equal(done.theta, whole.theta)
    others = [
        ((start, rows, replace(stage, batch=5), 10), {}),
        ((start + 1, rows, stage, 10), {}),
        ((start, rows, stage, 11), {}),
        ((start, [rows[0], FitRow(4, 5, -0.1)], stage, 10), {}),
        ((start, rows, stage, 10), {"identity": "another model or task"}),
        ((start, rows, stage, 10), {"relaxation": HardConcrete()}),
    ]
    for given, options in others:
        with pytest.raises(FileError, match="other settings"):
            fit(quadratic, *given, checkpoint=path, progress=False, **options)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileError, match="no checkpoint of gates"):
        fit(quadratic, start, rows, stage, 10, checkpoint=path, progress=False)


def test_settings_outside_their_range_are_named():
    with pytest.raises(OptionError, match="batch=0"):
        Stage("s", 1, (0.1, 0.1), 0)
    with pytest.raises(OptionError, match="theta has 2 rows, there are 1 fits"):
        fit(quadratic, torch.zeros(2, 3, 3), [FitRow(0, 0)], PENALISED, 10)


def test_a_shared_clip_is_that_of_the_mean_gradient_of_the_fits_of_one_penalty():
    """Which is what one optimiser over a mean of losses clips; each sign has an optimiser of its own."""
    sizes = torch.tensor([3.0, 40.0, 5.0, 0.1])[:, None, None]
    rows = [FitRow(0, 0, 0.1), FitRow(1, 1, 0.1), FitRow(0, 0, -0.1), FitRow(1, 1, -0.1)]
    seen = []

    def steep(gates, chosen):
        gates.grad += sizes.to(gates)
        return torch.zeros(len(gates))

    class Kept(torch.optim.Adam):
        def step(self, closure=None):
            seen.append(self.param_groups[0]["params"][0].grad.clone())
            return super().step(closure)

    original, torch.optim.Adam = torch.optim.Adam, Kept
    try:
        start = torch.zeros(4, 2, 3, dtype=torch.float64)
        fit(steep, start, rows, Stage("s", 1, (0.1, 0.1), 1, shared_clip=True), 5, progress=False)
    finally:
        torch.optim.Adam = original
    for pair in ((0, 1), (2, 3)):
        theta = torch.zeros(2, 2, 3, dtype=torch.float64, requires_grad=True)
        weight = torch.tensor([rows[pair[0]].penalty] * 2)[:, None, None]
        benefit = (torch.sigmoid(theta) * sizes[list(pair)]).sum((1, 2)) + (weight * theta).mean((1, 2))
        (-benefit.mean()).backward()
        torch.nn.utils.clip_grad_norm_([theta], 1.0)
        assert torch.allclose(seen[0][list(pair)], 2 * theta.grad, atol=1e-6)


def test_the_signal_is_the_mean_over_the_spread_and_undefined_without_a_spread():
    values = iter([9.0, 9.0, 1.0, 2.0, 3.0, 4.0])

    def varying(gates, chosen):
        gates.grad[:, 0] += next(values)
        gates.grad[:, 1] += 3.0
        return torch.zeros(len(gates))

    found = fitted(varying, 0.0, 0.0, Stage("s", 6, (0.1, 0.1), 1)).signal[0]
    assert torch.allclose(found[0], torch.full((24,), 3.0 / np.std([2.0, 3.0, 4.0])).double())
    assert found[1].isnan().all() and (found[2] == 0).all()
