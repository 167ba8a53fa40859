"""What is exchanged: every kind is a projection by hand, from nothing to the whole."""

import pytest
import torch
from interchange_examples import examples, resumption
from tiny import hooked

from interp.errors import OptionError
from interp.featurizers.linear import coordinates, orthonormal
from interp.interchange.examples import batch_of
from interp.interchange.exchanges import (
    BoundlessSubspace,
    Exchange,
    Features,
    FullVector,
    Mask,
    Subspace,
    orthonormalised,
    random_subspace,
)
from interp.interchange.placing import AtRoles, interchanged
from interp.site import Site

D = 12
SITE = Site("resid_post", 0)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(5, D, generator=generator), torch.randn(5, D, generator=generator)


def basis(rank: int = 4) -> torch.Tensor:
    return orthonormalised(torch.randn(D, rank, generator=torch.Generator().manual_seed(1)))


def near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_subspace_takes_what_lies_in_it_and_nothing_else() -> None:
    base, source = pair()
    one = Subspace(D, 4, seed=2)
    new, r = base + one.change(base, source), one.rotation()
    near(r.T @ r, torch.eye(4))
    near(new @ r, source @ r)
    rest = torch.eye(D) - r @ r.T
    near(new @ rest, base @ rest)


@pytest.mark.parametrize("whole", [FullVector(), Subspace(D, D), Features(orthonormal(SITE, basis(D), key="all"))])
def test_the_whole_space_is_the_full_vector(whole: Exchange) -> None:
    base, source = pair()
    near(base + whole.change(base, source), source)


def test_features_of_a_basis_are_its_directions() -> None:
    base, source = pair()
    r = basis()
    near(Features(orthonormal(SITE, r, key="r")).change(base, source), (source - base) @ r @ r.T)
    near(
        Features(orthonormal(SITE, r, key="r"), [1, 3]).change(base, source),
        (source - base) @ r[:, [1, 3]] @ r[:, [1, 3]].T,
    )
    with pytest.raises(OptionError, match=r"features \[4, -1\]; allowed: 0 to 3"):
        Features(orthonormal(SITE, r, key="r"), [0, 4, -1])


def test_a_mask_is_soft_in_training_and_hard_outside() -> None:
    base, source = pair()
    model = hooked("llama")
    one = Mask(coordinates(model, SITE))
    assert one.theta.shape == (model.shape.d_model,)
    one = Mask(orthonormal(SITE, torch.eye(D), key="eye"))
    with torch.no_grad():
        one.theta.copy_(torch.linspace(-2, 2, D))
    one.train().anneal(1.0)
    near(one.change(base, source), torch.sigmoid(one.theta / 0.1) * (source - base))
    one.anneal(0.5)
    assert one.temperature == pytest.approx(25.05)
    near(one.eval().change(base, source), (torch.arange(D) >= D / 2) * (source - base))


def test_a_boundless_subspace_is_the_first_directions_of_its_rotation() -> None:
    base, source = pair()
    one = BoundlessSubspace(D, seed=4).eval()
    r = orthonormalised(one.weight)[:, :6]
    near(one.change(base, source), (source - base) @ r @ r.T)
    near(one.basis(), r)
    with torch.no_grad():
        one.boundary.fill_(7.0)
    near(base + one.change(base, source), source)
    i = torch.arange(D)
    with torch.no_grad():
        one.boundary.fill_(0.25)
    one.train().anneal(0.0)
    near(one.mask(), torch.sigmoid(i / 50) * torch.sigmoid((3 - i) / 50))
    assert [group["lr"] for group in one.groups(1e-3)] == [1e-3, 1e-2]


def test_columns_stay_orthonormal_and_the_gradient_is_that_of_finite_differences() -> None:
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(orthonormalised, weight)
    q = orthonormalised(weight)
    near(q.T @ q, torch.eye(3, dtype=torch.float64))
    near(orthonormalised(q), q)


def test_ranks_out_of_range_and_controls() -> None:
    with pytest.raises(OptionError, match="rank=13 of a site of width 12; allowed: 1 to 12"):
        Subspace(D, 13)
    one, same, other = random_subspace(D, 4, 1), random_subspace(D, 4, 1), random_subspace(D, 4, 2)
    assert not any(p.requires_grad for p in one.parameters())
    assert torch.equal(one.rotation(), same.rotation()) and not torch.equal(one.rotation(), other.rotation())


def test_a_dictionary_s_unexplained_part_stays_the_base_s() -> None:
    model, data = hooked("llama"), examples()
    runs, batch = resumption(model, data, "resid_post[1]"), batch_of(data, range(6), model.device)
    r = orthonormalised(torch.randn(model.shape.d_model, 5, generator=torch.Generator().manual_seed(5)))
    some = AtRoles("resid_post[1]", Features(orthonormal("resid_post[1]", r, key="r")), "entity")
    same = AtRoles("resid_post[1]", Subspace(model.shape.d_model, 5, rotation=r), "entity")
    one, _ = interchanged(runs, batch, some)
    other, _ = interchanged(runs, batch, same)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
