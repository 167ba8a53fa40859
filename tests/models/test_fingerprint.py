"""The fingerprint changes with any weight, and with nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from interp.errors import ModelError
from interp.models.fingerprint import weight_fingerprint

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8]


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 7), nn.LayerNorm(7))


@given(st.sampled_from(DTYPES), st.lists(st.integers(1, 5), max_size=3), st.data())
def test_changing_one_weight_of_any_shape_and_dtype_changes_it(dtype, shape, data):
    before = (torch.randn(shape) * 10).to(dtype)
    after = before.clone()
    place = data.draw(st.integers(0, before.numel() - 1))
    after.view(-1)[place] += 1
    assert weight_fingerprint({"w": before}) != weight_fingerprint({"w": after})


def test_the_smallest_change_of_a_weight_changes_it():
    model = _model()
    before = weight_fingerprint(model)
    weight = model[1].weight.data
    weight[2, 1] = torch.nextafter(weight[2, 1], torch.tensor(9.0))
    assert weight_fingerprint(model) != before


@pytest.mark.parametrize("axis", [0, 1])
def test_permuting_rows_or_columns_changes_it(axis):
    weight = torch.randn(4, 6)
    swapped = weight.index_select(axis, torch.tensor([2, 3, 0, 1, 4, 5][: weight.shape[axis]]))
    assert weight_fingerprint({"w": weight}) != weight_fingerprint({"w": swapped})


def test_names_shapes_and_dtypes_count():
    zeros = torch.zeros(4, 4)
    variants = [{"a": zeros}, {"b": zeros}, {"a": zeros.view(2, 8)}, {"a": zeros.to(torch.int32)}, {}]
    assert len({weight_fingerprint(weights) for weights in variants}) == len(variants)


def test_order_of_names_memory_layout_and_grad_flags_do_not_count():
    a, b = torch.randn(6, 4), torch.randn(3)
    expected = weight_fingerprint({"a": a, "b": b})
    padded = torch.randn(7, 4)
    padded[1:] = a
    column_major = a.t().contiguous().t()
    assert weight_fingerprint({"b": b, "a": a}) == expected
    assert weight_fingerprint({"a": padded[1:], "b": b}) == expected
    assert weight_fingerprint({"a": column_major, "b": b.requires_grad_()}) == expected


def test_a_slice_that_starts_off_an_eight_byte_border_counts_like_its_copy():
    part = torch.randn(33)[1:].view(4, 8)
    assert weight_fingerprint({"w": part}) == weight_fingerprint({"w": part.clone()})


def test_equal_models_agree_and_tied_weights_count_once():
    assert weight_fingerprint(_model()) == weight_fingerprint(_model()) != weight_fingerprint(_model(1))
    tied = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False)})
    expected = weight_fingerprint(tied)
    tied["b"] = nn.Linear(3, 3, bias=False)
    tied["b"].weight = tied["a"].weight
    assert weight_fingerprint(tied) == expected


def test_empty_and_scalar_weights_are_accepted():
    assert len(weight_fingerprint({"none": torch.zeros(0, 3), "one": torch.tensor(2.0)})) == 16


def test_weights_that_accelerate_has_offloaded_are_fetched_and_stay_offloaded():
    from accelerate import cpu_offload

    model = _model()
    expected = weight_fingerprint(model)
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert weight_fingerprint(model) == expected
    assert all(parameter.is_meta for parameter in model.parameters())


def test_weights_without_values_are_refused():
    with pytest.raises(ModelError, match=r"weight 0\.weight is on the meta device and holds no values; load the model"):
        weight_fingerprint(_model().to("meta"))
