"""Coordinates, orthonormal directions and principal components."""

import pytest
import tiny
import torch

from interp.errors import OptionError, SiteError
from interp.featurizers.linear import coordinates, orthonormal, principal_components
from interp.models.hf import HookedHF


@pytest.fixture
def model():
    return tiny.hooked("gpt2")


def directions(d, n):
    return torch.linalg.qr(torch.randn(d, n, dtype=torch.float64)).Q


@pytest.mark.parametrize(("site", "width"), [("resid_post[1]", 32), ("z[0]", 32), ("neuron[2]", 128), ("k[1]", 32)])
def test_coordinates_are_the_activation_itself(model, site, width):
    one, x = coordinates(model, site), torch.randn(2, 3, width)
    assert one.n_features == one.n_nodes == width and not one.has_error and one.widths == (width, width)
    assert torch.equal(one.encode(x), x) and torch.equal(one.decode(x), x)
    assert not one.error(x, one.encode(x)).any()
    assert torch.equal(one.directions(), torch.eye(width)) and torch.equal(one.readers(), torch.eye(width))
    assert torch.equal(one.directions(torch.tensor([5, 2])), torch.eye(width)[[5, 2]])
    assert one.active(torch.zeros(width)).all()


def test_coordinates_count_all_heads_of_a_position_and_the_models_own_key_value_heads():
    grouped = tiny.hooked("llama")
    assert coordinates(grouped, "z[0]").n_features == 8 * 16 and coordinates(grouped, "k[0]").n_features == 2 * 16


def test_a_basis_and_its_error_add_up_and_are_orthogonal():
    rotation, x = directions(8, 3), torch.randn(4, 5, 8, dtype=torch.float64)
    one = orthonormal("resid_post[0]", rotation, key="plane")
    features = one.encode(x)
    assert one.n_features == 3 and one.n_nodes == 4 and one.widths == (8, 8)
    assert torch.allclose(features, x @ rotation) and torch.allclose(one.encode(one.decode(features)), features)
    assert torch.allclose(one.decode(features) + one.error(x, features), x, atol=1e-12)
    assert (one.error(x, features) @ rotation).abs().max() < 1e-12
    assert torch.equal(one.directions(torch.tensor([2])), rotation.T[[2]])
    by_autograd = torch.autograd.functional.jacobian(one.encode, x[0, 0])
    assert torch.allclose(by_autograd, one.readers() * one.active(features[0, 0])[:, None])


def test_a_full_basis_leaves_no_error():
    one, x = orthonormal("embed", directions(8, 8), key="rotation"), torch.randn(4, 8, dtype=torch.float64)
    assert one.error(x, one.encode(x)).abs().max() < 1e-12


def test_directions_that_are_not_orthonormal_are_refused_with_the_cure():
    long = directions(8, 3) * 1.1
    with pytest.raises(OptionError, match=r"not orthonormal .*by 2\.1e-01, allowed 1e-04\).*torch\.linalg\.qr"):
        orthonormal("embed", long, key="long")
    slanted = directions(8, 3)
    slanted[:, 1] = (slanted[:, 0] + slanted[:, 1]) / 2**0.5
    with pytest.raises(OptionError, match="not orthonormal"):
        orthonormal("embed", slanted, key="slanted")


def real_vectors(model, site, prompts, skip=0):
    """The site's vectors at the prompts' tokens, each prompt run alone, so without padding."""
    return torch.cat([model.run([p], record=[site])[site][0, skip:].flatten(1) for p in prompts]).double()


@pytest.mark.parametrize("site", ["resid_post[1]", "z[0]"])
def test_principal_components_are_those_of_the_tokens_without_padding(model, site):
    one, x = principal_components(model, tiny.RAGGED, site, 4), real_vectors(model, site, tiny.RAGGED)
    values, vectors = torch.linalg.eigh((x - x.mean(0)).T @ (x - x.mean(0)))
    top = vectors[:, -4:].flip(1)
    assert torch.allclose((one.rotation.double() * top).sum(0).abs(), torch.ones(4, dtype=torch.float64), atol=1e-4)
    assert torch.allclose(one.centre.double(), x.mean(0), atol=1e-5)
    assert one.description["tokens"] == len(x) == 22
    assert one.description["variance_explained"] == pytest.approx(float(values[-4:].sum() / values.sum()), abs=1e-5)
    error = one.error(x.float(), one.encode(x.float())).double()
    assert float(error.square().sum()) == pytest.approx(float(values[:-4].sum()), rel=1e-4)
    assert one.key == f"pca.{site}" and one.skip == 0


def test_an_attention_sink_stays_out_of_principal_components():
    model = HookedHF(tiny.build("gpt2"))
    model.has_sink = True
    one = principal_components(model, tiny.RAGGED, "resid_post[1]", 2, key="mine")
    x = real_vectors(model, "resid_post[1]", tiny.RAGGED, skip=1)
    assert one.skip == 1 and one.key == "mine" and one.description["tokens"] == 19
    assert torch.allclose(one.centre.double(), x.mean(0), atol=1e-5)
    assert coordinates(model, "resid_post[1]").skip == 1


def test_more_components_than_there_can_be_are_refused(model):
    with pytest.raises(OptionError, match=r"n=22 principal components of 22 vectors of 32; allowed: 1 to 21"):
        principal_components(model, tiny.RAGGED, "resid_post[1]", 22)
    with pytest.raises(OptionError, match=r"n=0 .*allowed: 1 to 21"):
        principal_components(model, tiny.RAGGED, "resid_post[1]", 0)
    with pytest.raises(SiteError, match="layer out of range"):
        coordinates(model, "resid_post[9]")
