"""Dictionaries against their formulas: what they encode, decode, leave over, and how they are differentiated."""

import pytest
import torch
from circuits import unchecked

from interp.errors import OptionError, SiteError
from interp.featurizers.dictionary import Dictionary

D, N = 6, 15


def dictionary(site="resid_post[1]", d_read=D, d=D, **changes):
    """Random tensors in float64; `changes` replace or add parts."""
    parts = {
        "encoder": torch.randn(d_read, N, dtype=torch.float64), "bias": torch.randn(N, dtype=torch.float64),
        "decoder": torch.randn(N, d, dtype=torch.float64), "decoder_bias": torch.randn(d, dtype=torch.float64),
    }  # fmt: skip
    return Dictionary(site, **(parts | changes))


def vector(*shape):
    return torch.randn(*shape, dtype=torch.float64)


KINDS = {
    "relu": dict,
    "shifted": lambda: {"shift": vector(D)},
    "gated": lambda: {"shift": vector(D), "gate_bias": vector(N)},
    "topk": lambda: {"select": "topk", "k": 4},
    "abstopk": lambda: {"select": "abstopk", "k": 4, "shift": vector(D)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_error_add_up_to_the_activation(kind):
    one, x = dictionary(**KINDS[kind]()), vector(3, 5, D)
    features = one.encode(x)
    assert features.shape == (3, 5, N)
    assert torch.allclose(one.decode(features) + one.error(x, features), x, atol=1e-12)
    written = (features[..., None] * one.directions()).sum(-2) + one.decode(torch.zeros(N, dtype=torch.float64))
    assert torch.allclose(one.decode(features), written, atol=1e-12)
    assert one.n_nodes == N + 1 and one.has_error and one.widths == (D, D)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_where_active_are_the_gradient_of_the_features(kind):
    one, x = dictionary(**KINDS[kind]()), vector(D)
    features = one.encode(x)
    by_autograd = torch.autograd.functional.jacobian(one.encode, x)  # [feature, d_read]
    assert torch.allclose(by_autograd, one.readers() * one.active(features)[:, None], atol=1e-12)
    units = torch.tensor([7, 2])
    assert torch.equal(one.readers(units), one.readers()[units])
    assert torch.equal(one.directions(units), one.directions()[units])


def test_a_gate_lets_through_what_its_own_bias_says():
    one, x = dictionary(shift=vector(D), gate_bias=vector(N)), vector(40, D)
    pre = (x - one.shift) @ one.encoder
    by_hand = torch.where((pre + one.gate_bias > 0) & (pre + one.bias > 0), pre + one.bias, 0.0)
    assert torch.equal(one.encode(x), by_hand)
    closed = (pre + one.bias > 0) & (pre + one.gate_bias <= 0)
    assert closed.any() and not one.encode(x)[closed].any()


def test_a_threshold_is_a_gate_and_what_equals_it_stays_closed():
    eye, zero = torch.eye(4), torch.zeros(4)
    jump = Dictionary("embed", encoder=eye, bias=zero, decoder=eye, decoder_bias=zero, gate_bias=torch.full((4,), -1.0))
    assert jump.encode(torch.tensor([0.5, 1.0, 1.5, -2.0])).tolist() == [0, 0, 1.5, 0]
    assert jump.active(jump.encode(torch.tensor([0.5, 1.0, 1.5, -2.0]))).tolist() == [0, 0, 1, 0]


def test_top_k_keeps_k_a_token_whatever_ties_there_are_and_never_a_negative_one():
    eye, zero = torch.eye(5), torch.zeros(5)
    parts = {"encoder": eye, "bias": zero, "decoder": eye, "decoder_bias": zero, "k": 2}
    top, largest = (Dictionary("embed", select=select, **parts) for select in ("topk", "abstopk"))
    tied = torch.ones(3, 5)
    assert (top.encode(tied).sum(-1) == 2).all() and (largest.encode(-tied).sum(-1) == -2).all()
    assert torch.equal(top.encode(tied), top.encode(tied))
    one = torch.tensor([3.0, -4.0, 1.0, 2.0, -0.5])
    assert top.encode(one).tolist() == [3, 0, 0, 2, 0] and largest.encode(one).tolist() == [3, -4, 0, 0, 0]
    few = torch.tensor([-1.0, -2.0, 3.0, -4.0, -5.0])
    assert top.encode(few).tolist() == [0, 0, 3, 0, 0] and top.active(top.encode(few)).sum() == 1


def test_top_k_chooses_for_each_token_alone():
    one, x = dictionary(select="topk", k=3), vector(2, 4, D)
    assert torch.allclose(one.encode(x)[1, 2], one.encode(x[1, 2]))
    assert ((one.encode(x) != 0).sum(-1) <= 3).all()


def test_what_a_skip_transcoder_adds_past_its_features_counts_as_error():
    one = dictionary("mlp_out[1]", d_read=4, reads="mlp_in[1]", skip_weights=vector(4, D))
    x, features = vector(3, D), one.encode(vector(3, 4))
    assert torch.equal(one.error(x, features), x - one.decode(features))
    assert one.widths == (4, D) and str(one.reads) == "mlp_in[1]"


def test_sizes_that_do_not_fit_are_named_all_together():
    with pytest.raises(OptionError, match=r"bias has shape \(3,\), needed \(15,\); decoder_bias has shape \(2,\)"):
        dictionary(bias=torch.zeros(3), decoder_bias=torch.zeros(2))
    with pytest.raises(OptionError, match=r"gate_bias has shape \(6,\), needed \(15,\)"):
        dictionary(gate_bias=vector(D))
    with pytest.raises(OptionError, match=r"reads vectors of 4 and writes 6 at one site; a transcoder needs reads="):
        dictionary(d_read=4)
    for k in (0, N + 1):
        with pytest.raises(OptionError, match=rf"select='topk' with k={k}; allowed: 1 to {N}"):
            dictionary(select="topk", k=k)
    with unchecked(), pytest.raises(OptionError, match=r"select is 'top'; allowed.*nearest: 'topk'"):
        dictionary(select="top")
    with pytest.raises(OptionError, match=r"skip=-1; allowed: 0 and more"):
        dictionary(skip=-1)
    with pytest.raises(SiteError, match="'pattern' holds attention weights"):
        dictionary("pattern[0]")


def test_a_copy_in_another_precision_has_every_tensor_in_it():
    one = dictionary(shift=vector(D), gate_bias=vector(N), key="mine", skip=1)
    single = one.to(torch.device("cpu"), torch.float32)
    assert {tensor.dtype for tensor in single.tensors.values()} == {torch.float32} and len(single.tensors) == 6
    assert {tensor.dtype for tensor in one.tensors.values()} == {torch.float64}
    assert single.settings == one.settings
    x = vector(3, D)
    assert torch.allclose(single.encode(x).double(), one.encode(x), atol=1e-5)
    assert single.error(x, single.encode(x)).dtype == torch.float64


def test_a_dictionary_without_a_key_is_named_after_its_site():
    assert dictionary("z[2]").key == "dictionary.z[2]" and dictionary(key="sae").key == "sae"
    assert dictionary("z[2]").settings["reads"] == "z[2]"
