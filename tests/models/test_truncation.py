"""A decoder's first blocks under another head: the same activations, other logits, the original untouched."""

import pytest
import torch
from tiny import FAMILIES, RAGGED, build, hooked

from interp.models.hf import HookedHF
from interp.site import Site


def head(d_model: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(classes, d_model, generator=generator), torch.randn(classes, generator=generator)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_head_at_the_layer_whatever_the_family(family: str) -> None:
    model = hooked(family)
    weight, bias = head(model.shape.d_model)
    short = model.with_head(1, weight, bias)
    site = Site("resid_post", 1)
    whole = model.run(RAGGED, record=[site, "mlp_out[0]", "z[1]"], logits="none")
    run = short.run(RAGGED, record=[site, "mlp_out[0]", "z[1]", "resid_final"], logits="all")
    for name in (site, "mlp_out[0]", "z[1]"):
        assert torch.equal(run[name], whole[name]), name
    assert torch.equal(run["resid_final"], run[site])
    assert run.logits is not None
    torch.testing.assert_close(run.logits, whole[site] @ weight.T + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_original_stays_as_it_is(family: str) -> None:
    model = HookedHF(build(family))
    before = model.run(RAGGED, logits="all").logits
    modules = [id(module) for module in model.model.modules()]
    config = model.model.config.to_dict()
    short = model.with_head(0, *head(model.shape.d_model))
    short.run(RAGGED, record=["z[0]"], logits="all")
    assert [id(module) for module in model.model.modules()] == modules
    assert model.model.config.to_dict() == config
    assert torch.equal(model.run(RAGGED, logits="all").logits, before)


def test_hooks_on_one_are_not_hooks_on_the_other() -> None:
    model = HookedHF(build("llama"))
    seen: list[str] = []
    handle = model.model.register_forward_hook(lambda *_: seen.append("whole"))
    short = model.with_head(1, *head(model.shape.d_model))
    short.model.register_forward_hook(lambda *_: seen.append("short"))
    short.run(RAGGED, logits="all")
    assert "whole" not in seen
    handle.remove()


def test_rows_resume_in_it_and_gradients_flow() -> None:
    model = hooked("gemma2")
    short = model.with_head(1, *head(model.shape.d_model))
    assert short.resumes == model.resumes and short.shape.n_layers == 2 and short.shape.n_ids == model.shape.n_ids
    found = short.gradients(RAGGED, lambda logits: logits.square().sum((1, 2)), ["resid_post[0]"], logits="last")
    assert found.gradients[Site("resid_post", 0)].abs().sum() > 0


def test_positions_of_a_sink_are_left_out_of_both() -> None:
    model = HookedHF(build("llama"))
    head_of_it = head(model.shape.d_model)
    assert model.with_head(1, *head_of_it).has_sink is False
    model.has_sink = True
    assert model.with_head(1, *head_of_it).has_sink is True
