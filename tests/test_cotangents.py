"""One downward walk against as many backward passes, each through a model with one block's write detached."""

from collections.abc import Callable

import pytest
import torch
from tiny import F64, FAMILIES, answers, build, clean, hooked, hooked64
from torch import Tensor

from interp.cotangents import needed_sites, walk
from interp.metrics import metric
from interp.models.hf import HookedHF
from interp.site import Site

KINDS = (
    "embed",
    "resid_pre",
    "q",
    "k",
    "v",
    "pattern",
    "z",
    "attn_out",
    "resid_mid",
    "neuron",
    "mlp_out",
    "resid_post",
)


def logit_diff(logits: Tensor) -> Tensor:
    return metric("logit_diff")(logits, answers())


def sites(model: HookedHF) -> list[Site]:
    kinds = [kind for kind in KINDS if kind not in model.unavailable]
    return [*model.sites(*kinds), Site("resid_final")]


def stacks(model: HookedHF, *, drop: bool) -> dict:
    wanted = sites(model)
    watched = list(dict.fromkeys([*wanted, *needed_sites(model.shape.n_layers)]))
    return dict(walk(model.watch(clean(), logit_diff, watched), wanted, model.shape.n_layers, drop=drop))


@pytest.mark.parametrize("family", FAMILIES)
def test_without_drops_it_is_the_gradient(family):
    model = hooked(family)
    found = stacks(model, drop=False)
    expected = model.gradients(clean(), logit_diff, sites(model)).gradients
    assert set(found) == set(expected)
    for site, one in expected.items():
        assert found[site].rows.shape[0] == 1
        assert torch.allclose(found[site].rows[0], one, rtol=1e-4, atol=1e-6), site


def detached(block: Callable) -> Callable:
    """A hook that keeps a block's output and lets gradient pass by it only."""

    def hook(_: object, args: tuple, output: Tensor) -> Tensor:
        return args[0] + (output - args[0]).detach()

    return hook


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "gemma2", "olmo2"])
def test_each_row_of_the_stack_is_the_gradient_with_one_block_detached(family):
    with F64():
        model = hooked64(family)
        last = model.shape.n_layers - 1
        found = stacks(model, drop=True)
        for dropped in range(last + 1):
            handle = model._blocks[dropped].register_forward_hook(detached(model._blocks[dropped]))
            try:
                expected = model.gradients(clean(), logit_diff, sites(model)).gradients
            finally:
                handle.remove()
            for site, one in expected.items():
                rows = found[site].rows
                above = last - dropped  # the walk appends rows from the last block down
                within = site.layer == dropped and site.kind not in ("resid_pre", "resid_post")
                if within:
                    assert one.abs().max() == 0, site
                elif 1 + above < len(rows):
                    assert torch.allclose(rows[1 + above], one, rtol=0, atol=1e-9), (site, dropped)
                else:
                    assert torch.allclose(rows[0], one, rtol=0, atol=1e-9), (site, dropped)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rows_repeats_and_survivors_add_up(family):
    n_layers = hooked(family).shape.n_layers
    for site, stack in stacks(hooked(family), drop=True).items():
        inside = site.layer is not None and not site.kind.startswith("resid_p")
        assert stack.survivors == (n_layers - 1 if inside else n_layers), site
        assert stack.repeats + len(stack.rows) - 1 == stack.survivors, site


def test_the_magnitude_is_the_mean_over_drops_of_absolute_effects():
    stack = stacks(hooked("gpt2"), drop=True)[Site("z", 1)]
    effects = torch.tensor([[2.0, -1.0], [-6.0, 0.0]])
    assert stack.magnitude(effects).tolist() == [(2 + 6) / 2, 0.5]


def test_a_walk_in_eager_attention_equals_one_in_sdpa():
    eager = HookedHF(build("gpt2", attn_implementation="eager"))
    for site, stack in stacks(eager, drop=True).items():
        assert torch.allclose(stack.rows, stacks(hooked("gpt2"), drop=True)[site].rows, atol=1e-5), site
