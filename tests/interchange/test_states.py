"""Resumed runs with a site changed are whole runs with it patched, whatever the family, site, length and batch."""

import pytest
import torch
from interchange_examples import examples, resumption, token_logits
from tiny import FAMILIES, build, hooked

from interp.errors import OptionError, SiteError
from interp.interchange.examples import batch_of
from interp.interchange.exchanges import FullVector
from interp.interchange.placing import AtRoles, interchanged
from interp.interchange.states import Resumption, states_of
from interp.intervention import Patch
from interp.models.hf import HookedHF
from interp.site import Site

SITES = ("resid_post[1]", "resid_pre[1]", "z[1]", "mlp_out[1]", "attn_out[0]", "neuron[2]", "resid_post[2]")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("site", SITES)
def test_a_full_vector_at_a_position_is_activation_patching(family: str, site: str) -> None:
    model, data = hooked(family), examples()
    runs = resumption(model, data, site)
    batch = batch_of(data, range(len(data)), model.device)
    logits, _ = interchanged(runs, batch, AtRoles(site, FullVector(), "end", "last_entity"))
    for n in range(len(data)):
        source = model.run(data.prompts[[int(data.source[n])]], record=[site])
        here = data.lengths[data.base[n]] - 1
        plain = token_logits(model, data, n, [Patch(site, pos=here, source=source, source_pos=2)])
        torch.testing.assert_close(logits[n, : len(plain)], plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_change_the_model_answers_as_it_is(family: str) -> None:
    model, data = hooked(family), examples()
    logits, penalties = interchanged(
        resumption(model, data, "resid_post[0]"), batch_of(data, [0, 3], model.device), None
    )
    for row, n in enumerate((0, 3)):
        plain = token_logits(model, data, n)
        torch.testing.assert_close(logits[row, : len(plain)], plain, rtol=1e-4, atol=1e-5)
    assert penalties.tolist() == [0, 0]


@pytest.mark.parametrize("site", ["resid_post[1]", "z[1]"])
def test_a_model_that_cannot_resume_gives_the_same_with_its_gradient(site: str) -> None:
    data = examples()
    plain = HookedHF(build("llama"))
    plain.resumes = False
    found = []
    for model in (hooked("llama"), plain):
        runs, batch = resumption(model, data, site), batch_of(data, range(6), model.device)
        change = torch.zeros(1, requires_grad=True)
        logits = runs.logits(batch, lambda x, change=change: x + change)
        (gradient,) = torch.autograd.grad(logits.square().sum(), change)
        found.append((logits.detach(), gradient))
    assert plain.resumes is False and hooked("llama").resumes
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_its_batch() -> None:
    model, data = hooked("gemma2"), examples()
    runs, one = resumption(model, data, "resid_post[0]"), AtRoles("resid_post[0]", FullVector(), "entity")
    together, _ = interchanged(runs, batch_of(data, range(6), model.device), one)
    for n in range(6):
        alone, _ = interchanged(runs, batch_of(data, [n], model.device), one)
        torch.testing.assert_close(together[n, : alone.shape[1]], alone[0], rtol=1e-4, atol=1e-5)


def test_states_are_those_of_each_row_alone_and_zeros_elsewhere() -> None:
    model, data = hooked("llama"), examples()
    site = Site("z", 1)
    states = states_of(model, data.prompts, [site], rows=[0, 2], progress=False)
    for row in (0, 2):
        length = int(data.prompts.lengths[row])
        alone = model.run(data.prompts[[row]], record=[site])[site].flatten(2)[0]
        torch.testing.assert_close(states[site][row, :length], alone, rtol=1e-4, atol=1e-5)
        assert not states[site][row, length:].any()
    assert not states[site][1].any()


def test_what_does_not_fit_is_refused_by_name() -> None:
    model, data = hooked("llama"), examples()
    with pytest.raises(SiteError, match="embed: an interchange takes place at a site of a layer"):
        Resumption(model, Site("embed"), states_of(model, data.prompts, [Site("embed")], progress=False))
    with pytest.raises(OptionError, match=r"states lack resid_pre\[1\]"):
        Resumption(model, Site("z", 1), states_of(model, data.prompts, [Site("z", 1)], progress=False))
    runs = resumption(model, data, "resid_post[0]")
    with pytest.raises(SiteError, match=r"made \(1, 1\) of"):
        runs.logits(batch_of(data, [0], model.device), lambda x: x[:, 0, :1])
    uneven = AtRoles("resid_post[0]", FullVector(), "entity", "end")
    with pytest.raises(OptionError, match="6 examples have another number of base than of source positions"):
        interchanged(runs, batch_of(data, range(6), model.device), uneven)
    with pytest.raises(OptionError, match="no role 'entty'; allowed: entity.*nearest: 'entity'"):
        interchanged(runs, batch_of(data, [0], model.device), AtRoles("resid_post[0]", FullVector(), "entty"))
