"""Reflections in O(d) against matrices, and what they can and cannot move."""

import pytest
import torch

from interp.hypernet.reflections import projected, reflected, triangle, unit
from interp.interchange.exchanges import orthonormalised


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(v: torch.Tensor) -> torch.Tensor:
    """H_1 H_2 ... H_r of one example."""
    q = torch.eye(v.shape[1], dtype=v.dtype)
    for one in v:
        q = q @ (torch.eye(len(one), dtype=v.dtype) - 2 * one[:, None] * one)
    return q


@pytest.mark.parametrize("r", [1, 2, 5])
def test_the_product_is_that_of_matrices(r: int) -> None:
    v, x = unit(drawn(3, r, 16)), drawn(3, 7, 16, seed=1)
    t = triangle(v)
    for k in range(3):
        q = dense(v[k])
        assert (reflected(x, v, t)[k] - x[k] @ q.T).abs().max() < 1e-12
        assert (reflected(x, v, t, back=True)[k] - x[k] @ q).abs().max() < 1e-12


def test_the_triangle_obeys_its_recurrence() -> None:
    v = unit(drawn(1, 5, 16))
    t, columns = triangle(v)[0], v[0].T
    assert torch.allclose(t.diagonal(), torch.full((5,), 2.0, dtype=t.dtype))
    assert torch.equal(t.tril(-1), torch.zeros_like(t))
    for j in range(1, 5):
        assert (t[:j, j] + 2 * t[:j, :j] @ (columns[:, :j].T @ columns[:, j])).abs().max() < 1e-12


@pytest.mark.parametrize("r", [1, 5])
def test_the_projection_is_that_of_the_dense_subspace(r: int) -> None:
    v, x, shared = unit(drawn(2, r, 16)), drawn(2, 4, 16, seed=1), orthonormalised(drawn(16, 6, seed=2))
    weights = drawn(2, 6, seed=3).sigmoid()
    for k in range(2):
        rotation = dense(v[k]) @ shared
        assert (projected(x, v, shared)[k] - x[k] @ rotation @ rotation.T).abs().max() < 1e-12
        gated = rotation @ torch.diag(weights[k]) @ rotation.T
        assert (projected(x, v, shared, weights)[k] - x[k] @ gated).abs().max() < 1e-12


@pytest.mark.parametrize(("r", "with_shared", "between"), [(1, 31, 30), (8, 24, 16)])
def test_few_reflections_leave_most_directions_where_they_are(r: int, with_shared: int, between: int) -> None:
    shared, v = orthonormalised(drawn(576, 32)), unit(drawn(2, r, 576, seed=1))
    rotations = reflected(shared.T.expand(2, -1, -1), v, triangle(v)).mT
    kept = torch.linalg.svdvals(rotations[0].T @ shared)
    assert int((kept > 1 - 1e-9).sum()) == with_shared
    assert int((torch.linalg.svdvals(rotations[0].T @ rotations[1]) > 1 - 1e-9).sum()) == between
    if r == 1:
        assert torch.allclose(kept.min(), (1 - 2 * (shared.T @ v[0, 0]).square().sum()).abs())


def test_gradients_reach_the_vectors() -> None:
    v, x, shared = drawn(1, 3, 6).requires_grad_(), drawn(1, 2, 6, seed=1), orthonormalised(drawn(6, 2, seed=2))
    assert torch.autograd.gradcheck(lambda one: projected(x, unit(one), shared), v)
