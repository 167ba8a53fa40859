"""HyperDAS as an interchange: what it does equals its parts by hand, on every family, batch and padding."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from circuits import unchecked
from interchange_examples import examples, resumption, token_logits
from tiny import hooked

from interp.errors import OptionError
from interp.hypernet.interchange import HyperDas, read_sites
from interp.hypernet.network import Instructed, Reading
from interp.hypernet.selection import Scores, chosen
from interp.hypernet.settings import HyperDasSettings
from interp.interchange.examples import batch_of
from interp.interchange.exchanges import FullVector, Subspace
from interp.interchange.placing import MODES, AtRoles, interchanged
from interp.interchange.states import Resumption
from interp.site import Site

SITE = "resid_post[1]"
TOLD = {"A": [5, 6], "B": [7, 8, 9]}
FAMILIES = ("gpt2", "llama", "gemma2", "gpt_neox")


def made(family: str = "llama", **options: Any) -> tuple[HyperDas, Resumption, Any]:
    """An untrained HyperDAS on a tiny model, runs and examples."""
    model, data = hooked(family), examples()
    settings = HyperDasSettings(
        **{"rank": 6, "reflections": 2, "width": 16, "blocks": 2, "heads": 2, "up_to": "", **options}
    )
    one = HyperDas(model, SITE, settings, TOLD).eval()
    return one, resumption(model, data, SITE, *one.needs), data


def readings(one: HyperDas, runs: Resumption, data: Any, rows: Any) -> tuple[Any, Reading, Reading]:
    batch = batch_of(data, rows, runs.model.device)
    return batch, *one.readings(batch, runs.states)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_what_it_does_is_its_weights_and_subspace_by_hand(family: str, mode: Any) -> None:
    one, runs, data = made(family)
    batch, base, source = readings(one, runs, data, range(6))
    e, scores = one.judged(batch, base, source)
    weights, bases = chosen(scores, mode), one.network.basis(e)
    wanted = base.site.clone()
    for n in range(6):
        for j in range(wanted.shape[1]):
            mixed = sum(weights[n, i, j] * source.site[n, i] for i in range(source.site.shape[1]))
            mixed = mixed + (1 - weights[n, :, j].sum()) * base.site[n, j]
            wanted[n, j] += bases[n] @ (bases[n].T @ (mixed - base.site[n, j]))
    got, _ = one.placed(batch, runs.states, base.site, mode)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_an_example_does_not_depend_on_its_batch(family: str, mode: Any) -> None:
    one, runs, data = made(family)
    together, penalties = interchanged(runs, batch_of(data, range(6), runs.model.device), one, mode)
    for n in range(6):
        alone, penalty = interchanged(runs, batch_of(data, [n], runs.model.device), one, mode)
        torch.testing.assert_close(together[n, : alone.shape[1]], alone[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(penalties[n], penalty[0])


def test_leaving_every_token_alone_leaves_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    one, runs, data = made()
    rule = one.network.scores
    monkeypatch.setattr(
        one.network, "scores", lambda *a, **k: Scores(rule(*a, **k).pairs, torch.full_like(rule(*a, **k).self, 1e4))
    )
    logits, _ = interchanged(runs, batch_of(data, range(6), runs.model.device), one, "soft")
    for n in range(6):
        plain = token_logits(runs.model, data, n)
        torch.testing.assert_close(logits[n, : len(plain)], plain, rtol=1e-5, atol=1e-5)


def pairing(here: list[int], there: list[int], like: Scores) -> Scores:
    """Scores by which exactly one pair is taken in each example."""
    pairs, own = torch.full_like(like.pairs, -1e4), torch.full_like(like.self, 0.0)
    for n, (base, source) in enumerate(zip(here, there, strict=True)):
        pairs[n, source, base] = 1e4
    return Scores(pairs, own)


@pytest.mark.parametrize("mode", MODES)
def test_one_hard_pair_of_full_rank_is_activation_patching(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, runs, data = made(rank=32, reflections=3)
    ends = [data.lengths[row] - 1 for row in data.base]
    rule = one.network.scores
    monkeypatch.setattr(one.network, "scores", lambda *a, **k: pairing(ends, [2] * 6, rule(*a, **k)))
    batch = batch_of(data, range(6), runs.model.device)
    got, _ = interchanged(runs, batch, one, mode)
    wanted, _ = interchanged(runs, batch, AtRoles(SITE, FullVector(), "end", "last_entity"))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_fixed_pair_and_one_subspace_for_all_is_das(monkeypatch: pytest.MonkeyPatch) -> None:
    one, runs, data = made(reflections=0)
    rule = one.network.scores
    monkeypatch.setattr(one.network, "scores", lambda *a, **k: pairing([2] * 6, [2] * 6, rule(*a, **k)))
    batch = batch_of(data, range(6), runs.model.device)
    same = AtRoles(SITE, Subspace(32, 6, rotation=one.network.subspace), "last_entity")
    found = []
    for kind, parameter in ((one, one.network.subspace), (same, same.exchange.weight)):
        logits, _ = interchanged(runs, batch, kind, "soft")  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(logits.square().sum(), parameter)  # type: ignore[arg-type]
        found.append((logits.detach(), gradient))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_it_reads_only_layers_up_to_the_site_unless_told_otherwise() -> None:
    model = hooked("llama")
    assert [str(s) for s in read_sites(model, Site("resid_post", 1), HyperDasSettings(stride=1))] == [
        "embed", "resid_post[0]", "resid_post[1]",
    ]  # fmt: skip
    every = read_sites(model, Site("resid_post", 1), HyperDasSettings.as_published())
    assert [str(s) for s in every] == ["embed", "resid_post[0]", "resid_post[1]", "resid_post[2]"]
    sparse = read_sites(model, Site("resid_post", 2), HyperDasSettings(stride=2))
    assert [str(s) for s in sparse] == ["embed", "resid_post[0]", "resid_post[2]"]


def test_what_follows_the_site_cannot_reach_it() -> None:
    one, runs, data = made(stride=1)
    for site, values in runs.states.values.items():
        if site.layer is not None and site.order > Site.parse(SITE).order:
            values.fill_(torch.nan)
    batch, base, source = readings(one, runs, data, range(6))
    assert torch.isfinite(one.judged(batch, base, source)[0]).all()


def test_padding_and_an_answer_s_tokens_are_not_read() -> None:
    one, runs, data = made()
    batch, base, source = readings(one, runs, data, range(6))
    one.settings = replace(one.settings, aimed_by="example")
    e, scores = one.judged(batch, base, source)
    for reading in (base, source):
        reading.states[~reading.real], reading.site[~reading.real] = 7.0, -3.0
    other, changed = one.judged(batch, base, source)
    torch.testing.assert_close(e, other)
    torch.testing.assert_close(scores.weights(), changed.weights())
    assert not base.real[0, data.lengths[data.base[0]] :].any()


def test_what_follows_the_entity_is_neither_read_nor_paired() -> None:
    one, runs, data = made(up_to="entity", aimed_by="example")
    batch, base, source = readings(one, runs, data, range(6))
    assert base.real.sum(1).tolist() == source.real.sum(1).tolist() == [3] * 6  # the entity is tokens 1 and 2
    e, scores = one.judged(batch, base, source)
    assert not scores.weights()[:, 3:].any() and not scores.weights()[:, :, 3:].any()
    base.states[:, 3:], source.states[:, 3:] = 5.0, 6.0
    torch.testing.assert_close(e, one.judged(batch, base, source)[0])
    with pytest.raises(OptionError, match="no role 'entty'; allowed: entity"):
        one.settings = replace(one.settings, up_to="entty")
        one.readings(batch, runs.states)


def test_a_first_position_that_is_a_sink_is_no_token() -> None:
    one, runs, data = made()
    one.skip = 1
    batch, base, source = readings(one, runs, data, range(6))
    weights = one.judged(batch, base, source)[1].weights()
    assert not weights[:, 0].any() and not weights[:, :, 0].any() and weights.sum() > 0


def test_an_instruction_s_padding_is_not_read() -> None:
    one, runs, data = made()
    batch, base, source = readings(one, runs, data, [0, 1])
    told = one.told(batch.data, base.real.device)
    assert told.real.sum(1).tolist() == [2, 3]
    longer = Instructed(
        torch.nn.functional.pad(told.vectors, (0, 0, 0, 2), value=9.0), torch.nn.functional.pad(told.real, (0, 2))
    )
    torch.testing.assert_close(
        one.network.summary(told, base, source), one.network.summary(longer, base, source), rtol=1e-4, atol=1e-5
    )


def test_shared_weights_read_both_sides_alike_and_a_coin_swaps_them() -> None:
    for symmetry, alike in (("shared", True), ("none", False)):
        one, runs, data = made(symmetry=symmetry)
        batch, base, _ = readings(one, runs, data, range(6))
        e, scores = one.judged(batch, base, base)
        symmetric = torch.allclose(scores.pairs, scores.pairs.mT, atol=1e-5)
        assert symmetric == alike
    one, runs, data = made(symmetry="coin")
    batch, base, source = readings(one, runs, data, range(6))
    e, _ = one.judged(batch, base, source)
    plain, swapped = (one.network.scores(e, base, source, swapped=flip) for flip in (False, True))
    assert not torch.allclose(plain.pairs, swapped.pairs)
    coins = [one._coin(batch_of(data, [n], runs.model.device)) for n in range(6)]
    assert coins == [one._coin(batch_of(data, [n], runs.model.device)) for n in range(6)] and len(set(coins)) == 2


def test_the_instruction_can_name_the_entities() -> None:
    one, _, data = made(instructions="entities")
    one.instructions = {"A": "colour"}
    told = one.told_of(data)
    named = data.groups["entity"]
    assert told[0] == f"{named[data.base[0]]} ; {named[data.source[0]]} - colour"
    assert told[1].endswith(" - B")


def test_gates_choose_directions_of_the_shared_subspace() -> None:
    one, runs, data = made(gated=True)
    batch, base, source = readings(one, runs, data, range(6))
    e, _ = one.judged(batch, base, source)
    bases, step = one.network.basis(e), torch.randn(6, 3, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(one.network.project(e, step), step @ bases @ bases.mT, rtol=1e-4, atol=1e-5)
    open_ones = (bases.norm(dim=1) > 0.5).sum(1)
    assert (open_ones < 6).any()


def test_a_concept_has_one_subspace_unless_the_example_aims_it() -> None:
    for aimed_by, one_each in (("instruction", True), ("example", False)):
        one, runs, data = made(aimed_by=aimed_by)
        batch, base, source = readings(one, runs, data, range(6))
        bases = one.network.basis(one.judged(batch, base, source)[0])
        same = torch.isclose(bases[0], bases[2], rtol=1e-4, atol=1e-5).all()
        assert data.concepts[0] == data.concepts[2] and bool(same) == one_each
        assert not torch.allclose(bases[0], bases[1])


def test_penalties_come_late_and_are_those_of_the_weights() -> None:
    rising = {"sparsity": 1.5, "sparsity_from": 0.5}
    one, runs, data = made(**rising)
    batch, base, source = readings(one, runs, data, range(6))
    weights = one.judged(batch, base, source)[1].weights()
    by_hand = (weights.sum(2) - 1).clamp(min=0).sum(1)
    for done, share in ((0.0, 0.0), (0.5, 0.0), (0.75, 0.75), (1.0, 1.5)):
        one.anneal(done)
        torch.testing.assert_close(one.placed(batch, runs.states, base.site, "soft")[1], share * by_hand)
    published, runs, data = made(published_sparsity=True, **rising)
    published.anneal(1.0)
    penalty = published.placed(batch, runs.states, base.site, "soft")[1]
    assert (penalty >= 1.5 * by_hand - 1e-5).all() and penalty.sum() > 0


def test_the_whole_vector_turns_into_the_subspace_in_training_alone() -> None:
    one, runs, data = made(whole_until=0.4)
    batch, base, source = readings(one, runs, data, range(6))
    part, _ = one.placed(batch, runs.states, base.site, "soft")
    weights = one.judged(batch, base, source)[1].weights()
    whole = base.site + weights.mT @ source.site - weights.sum(1)[..., None] * base.site
    one.train()
    for done, share in ((0.0, 1.0), (0.1, 0.75), (0.4, 0.0), (1.0, 0.0)):
        one.anneal(done)
        got, _ = one.placed(batch, runs.states, base.site, "soft")
        torch.testing.assert_close(got, part + share * (whole - part), rtol=1e-4, atol=1e-5)
    one.anneal(0.0)
    torch.testing.assert_close(one.eval().placed(batch, runs.states, base.site, "soft")[0], part)


def test_first_parameters_come_from_the_seed_alone() -> None:
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    one, _, _ = made()
    other, _, _ = made()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    different = HyperDas(hooked("llama"), SITE, one.settings, TOLD, seed=1)
    assert not torch.equal(one.network.subspace, different.network.subspace)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_cannot_be_is_refused_by_name() -> None:
    model = hooked("llama")
    with pytest.raises(OptionError, match=r"HyperDAS at z\[1\]; .* use resid_post\[l\]"):
        HyperDas(model, "z[1]")
    with pytest.raises(OptionError, match=r"rank=64 at resid_post\[1\], which has 32 coordinates"):
        HyperDas(model, SITE, HyperDasSettings(rank=64))
    with pytest.raises(
        OptionError, match="rank=0 .at least 1., blocks=0 .at least 1., width=20 .a multiple of 2 x heads, 8"
    ):
        HyperDasSettings(rank=0, blocks=0, width=20)
    with unchecked(), pytest.raises(OptionError, match="selector.*'pear'.*nearest: 'pair'"):
        HyperDasSettings(selector="pear")  # type: ignore[arg-type]
