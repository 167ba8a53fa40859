"""The sweep engine gives exactly the effects that one full forward per patch, hooked by hand, would give."""

import logging

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CHANGED, FAMILIES, RAGGED, TUP, answers, build, clean, corrupted, custom, hooked, task, unchecked

from interp.cells import Part, Source
from interp.errors import OptionError, PromptError, SiteError
from interp.intervention import Add, Patch, Zero
from interp.metrics import Answers, metric
from interp.models.hf import HookedHF
from interp.scoring import Scorer, clean_reference
from interp.site import Site
from interp.sweep import sweep
from interp.sweep_plan import ABSENT, NO_DIFFERENCE, NO_PATH
from interp.tokens import from_ids

FEW = ("gpt2", "llama", "gpt_neox", "gemma2")


def _scorer(model, *names, rows=(0, 1, 2)):
    return Scorer(model, tuple(map(metric, names or ["logit_diff"])), answers()[list(rows)])


def _swept(model, cells, score=None, **options):
    return sweep(model, clean(), Source(corrupted()), cells, score or _scorer(model), progress=False, **options)


def _close(a, b, limit=1e-5):
    assert float((a - b).abs().max()) <= limit * max(1.0, float(b.abs().max()))


def _cells(model):
    """Every kind of site in one layer and in the last one, whole, at chosen positions, per head, in blocks of units."""
    cells = []
    for site in model.sites():
        if site.layer in (None, 0):
            places = (None, ((2,), (5,), (2,)), ((5,), (8,), (6,)), ((0, 2, 4), (3, 5, 6), (2, 4, 5)))
        elif site.layer == 2:
            places = (None, ((3, 5), (5, 8), (3, 6)))
        else:
            continue
        for place in places:
            cells.append((Part(site, place),))
            if site.has_heads:
                cells += [(Part(site, place, 1),), (Part(site, place, 0, (0, 2)),)]
            cells.append((Part(site, place, None, (1, 4)),))
    return cells


def _windows(model):
    """Cells of several parts: windows of layers, mixed kinds, and two parts at one site."""
    two, four = ((2,), (3,), (2,)), ((4,), (5,), (4,))
    return [
        tuple(Part(Site("mlp_out", layer), two) for layer in range(3)),
        (Part(Site("resid_pre", 1), two), Part(Site("attn_out", 1), two), Part(Site("mlp_out", 1), two)),
        (Part(Site("k", 0), two, 1), Part(Site("v", 2)), Part(Site("z", 1), four, 2)),
        (Part(Site("resid_post", 0), two), Part(Site("resid_pre", 1), four), Part(Site("resid_final"), four)),
        (Part(Site("z", 1), two, 0), Part(Site("z", 1), four, 1), Part(Site("z", 1), four, 2, (0, 1))),
        (Part(Site("neuron", 0), two, None, (0, 5)), Part(Site("neuron", 0), four, None, (7, 9))),
        (Part(Site("embed"), two), Part(Site("pattern", 2), four, 0)),
        (Part(Site("k_of_query_head", 1), two, 1), Part(Site("q", 1), four, 1), Part(Site("pattern", 1), four, 0)),
    ]


# --- against hand-written hooks ---


@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_sites_are_what_hand_written_hooks_see(name):
    model, plain = hooked(name), build(name)
    plain.set_attn_implementation(oracle.NAME)
    sites = model.sites()
    keys = {s: (s.kind, -1 if s.layer is None else s.layer) for s in sites}
    run = model.run([RAGGED[1]], record=sites)
    found = oracle.activations(plain, name, RAGGED[1], list(keys.values()))
    for site in sites:
        assert found[keys[site]].shape == run[site].shape, str(site)
        _close(run[site], found[keys[site]])


@pytest.mark.parametrize("name", FAMILIES)
def test_effects_at_every_kind_of_site_are_those_of_hand_written_hooks(name):
    model, plain = hooked(name), build(name)
    plain.set_attn_implementation(oracle.NAME)
    sites = [s for s in model.sites() if s.layer in (None, 1)]
    cells = [(Part(s, ((2,), (5,), (2,)), 1 if s.has_heads else None),) for s in sites]
    cells += [(Part(s, ((3, 4), (6, 8), (4, 5))),) for s in sites]
    result, row = _swept(model, cells, engine="wave", skip_zeros=False), 1
    source = oracle.activations(plain, name, CHANGED[row], [(s.kind, -1 if s.layer is None else 1) for s in sites])
    for number, ((site, positions, head, _),) in enumerate(cells):
        key = (site.kind, -1 if site.layer is None else 1)

        def change(x, key=key, positions=positions, head=head):
            where = (slice(None), list(positions[row]))
            if key[0] == "pattern":
                where = (slice(None), slice(None) if head is None else head, list(positions[row]))
            elif head is not None:
                where = (*where, head)
            x[where] = source[key][where]
            return x

        logits = oracle.logits(plain, name, RAGGED[row], {key: change})[-1]
        _close(result.values[0, number, row], logits[10 + row] - logits[20 + row])
    assert float(result.effects.abs().max()) > 0.05


# --- the two engines ---


@pytest.mark.parametrize("name", FAMILIES)
def test_both_engines_agree_for_every_kind_position_head_unit_and_window(name):
    model = hooked(name)
    cells = _windows(model) + _cells(model)[:: 3 if name in FEW else 9]
    score = _scorer(model, "logit_diff", "logprob")
    wave, plain = (_swept(model, cells, score, engine=e) for e in ("wave", "plain"))
    _close(wave.values, plain.values)
    _close(wave.base, plain.base)
    assert torch.equal(wave.reasons, plain.reasons)
    forced = _swept(model, cells[::4], score, engine="wave", skip_zeros=False)
    assert not bool((forced.reasons > 0).any())
    _close(forced.values, plain.values[:, ::4])
    assert wave.plan.token_layers < plain.plan.token_layers


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_chunks_memory_and_order_of_cells_and_prompts_do_not_matter(name):
    model = hooked(name)
    cells = _windows(model)[:4] + _cells(model)[::30]
    expected = _swept(model, cells)
    for options in ({"chunk_tokens": 25}, {"chunk_tokens": 40, "engine": "plain"}, {"chunk_tokens": 1}):
        _close(_swept(model, cells, **options).values, expected.values)
    assert _swept(model, cells[:2], memory=1e-9).plan.chunk_tokens == 9
    _close(_swept(model, cells[::-1]).values.flip(1), expected.values)
    rows = [2, 0, 1, 0]
    mixed = sweep(model, clean()[rows], Source(corrupted()[rows]), cells_of(cells, rows), _scorer(model, rows=rows))
    _close(mixed.values, expected.values[..., rows])


def cells_of(cells, rows):
    """The same cells for prompts in another order."""
    return [tuple(p if p.positions is None else p._replace(positions=tuple(p.positions[r] for r in rows)) for p in c)
            for c in cells]  # fmt: skip


@settings(max_examples=15)
@given(st.data())
def test_any_cell_of_any_parts_gives_the_same_in_both_engines(data):
    model = hooked(data.draw(st.sampled_from(FEW)))
    site = st.sampled_from(model.sites())
    lengths = [6, 9, 7]
    places = st.tuples(*(st.lists(st.integers(0, n - 1), max_size=3, unique=True).map(tuple) for n in lengths))

    def part(s):
        heads = model.shape.n_kv_heads if "kv_head" in s.axes else model.shape.n_heads
        head = st.none() | st.integers(0, heads - 1) if s.has_heads else st.none()
        return st.builds(Part, st.just(s), st.none() | places, head, st.sampled_from([None, (0, 2), (1, 4)]))

    cells = [
        tuple(data.draw(part(data.draw(site))) for _ in range(data.draw(st.integers(1, 3))))
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    wave, plain = (_swept(model, cells, engine=e, skip_zeros=s) for e, s in (("wave", True), ("plain", False)))
    both = wave.reasons != ABSENT
    assert torch.equal(both, plain.reasons != ABSENT)
    _close(wave.effects[0][both], plain.effects[0][both]) if bool(both.any()) else None


@pytest.mark.parametrize("name", FEW)
def test_prompts_of_one_length_share_a_batch_without_sharing_anything_else(name):
    model = hooked(name)
    rows = torch.randint(3, 97, (4, 7), generator=torch.Generator().manual_seed(5))
    other = rows.clone()
    other[range(4), [1, 3, 2, 4]] = torch.tensor([90, 91, 92, 93])
    base, source = from_ids(rows), from_ids(other)
    places = ((4,), (3, 5), (2,), (6,))
    cells = [(Part(site, places),) for site in model.sites() if site.layer in (None, 1)]
    cells += [(Part(Site("v", 0)),), (Part(Site("z", 2), None, 1), Part(Site("k", 0), places, 0))]

    def swept(chosen, engine):
        mine = cells_of(cells, chosen)
        score = Scorer(model, (metric("logit_diff"),), answers(base)[chosen])
        return sweep(model, base[chosen], Source(source[chosen]), mine, score, engine=engine, progress=False).values[0]

    together = swept([0, 1, 2, 3], "wave")
    _close(together, swept([0, 1, 2, 3], "plain"))
    for row in range(4):
        _close(together[:, [row]], swept([row], "wave"))


def test_a_block_that_returns_a_tuple_is_resumed_too():
    expected = _swept(hooked("gpt2"), _cells(hooked("gpt2"))[::7])
    for tupled in ((1,), (0, 1, 2)):
        model = HookedHF(TUP(tupled))
        _close(_swept(model, _cells(model)[::7], engine="wave").values, expected.values)


# --- metrics ---


def test_several_metrics_at_once_equal_each_alone_and_a_reference_is_the_clean_run():
    model = hooked("gpt2")
    cells = _cells(model)[::25]
    names = ["logit_diff", "prob", "logprob", "accuracy", "kl"]
    reference = clean_reference(model, [metric("kl")], task())
    together = _swept(model, cells, Scorer(model, tuple(map(metric, names)), answers(), reference))
    for number, name in enumerate(names):
        alone = Scorer(model, (metric(name),), answers(), reference)
        _close(_swept(model, cells, alone).values[0], together.values[number])
    _close(together.base[4], torch.zeros(3))
    assert clean_reference(model, [metric("prob")], task()) is None


def test_targets_before_and_after_a_patch_are_read_from_the_right_run():
    """With targets at two positions, only the later one can see a patch between them."""
    model = hooked("llama")
    positions = torch.tensor([[1, 5], [2, 8], [-1, 6]])
    ids = torch.tensor([[[11], [12]], [[13], [14]], [[15], [16]]])
    score = Scorer(model, (metric("logit_diff", reduction="sum"),), Answers(positions, ids, ids + 30))
    cells = [(Part(Site("resid_pre", 1), ((3,), (5,), (3,))),), (Part(Site("resid_pre", 2), ((0,), (1,), (0,))),)]
    wave, plain = (_swept(model, cells, score, engine=e) for e in ("wave", "plain"))
    _close(wave.values, plain.values)
    last = Scorer(model, (metric("logit_diff"),), Answers(positions[:, 1:], ids[:, 1:], ids[:, 1:] + 30))
    _close(wave.effects[:, 0], _swept(model, cells, last).effects[:, 0])


# --- what is not run ---


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "olmo2"])
def test_what_cannot_matter_is_skipped_with_its_reason_and_is_exactly_zero(name):
    model, last = hooked(name), 2
    before, middle, end = ((1,), (2,), (1,)), ((3,), (6,), (4,)), ((5,), (8,), (6,))
    dead = "q pattern z attn_proj attn_out mlp_in neuron mlp_proj mlp_out resid_post".split()
    cells = {f"{kind} before": (Part(Site(kind, 1), before),) for kind in ("resid_pre", "z", "v", "pattern", "neuron")}
    cells |= {f"{kind} dead end": (Part(Site(kind, last), middle),) for kind in dead}
    cells |= {"final dead end": (Part(Site("resid_final"), middle),)}
    cells |= {f"{kind} seen": (Part(Site(kind, last), middle),) for kind in ("k", "v", "resid_pre", "attn_in")}
    cells |= {f"{kind} at the end": (Part(Site(kind, last), end),) for kind in dead}
    result = _swept(model, list(cells.values()))
    for what, reasons, effects in zip(cells, result.reasons, result.effects[0], strict=True):
        expected = NO_DIFFERENCE if "before" in what else NO_PATH if "dead" in what else 0
        assert bool((reasons == expected).all()), what
        assert bool((effects == 0).all()) == (expected > 0), what
    assert result.plan.skipped == {
        "no difference": 15, "no path to the metric": 33, "position absent": 0,
    }  # fmt: skip
    assert result.plan.run == 3 * (4 + len(dead))
    _close(_swept(model, list(cells.values()), skip_zeros=False).effects, result.effects)


def test_positions_after_the_last_target_have_no_path_and_those_before_it_do():
    model = hooked("gpt2")
    early = Scorer(model, (metric("logit_diff"),), Answers(torch.tensor([[3], [6], [4]]), *_ids()))
    cells = [(Part(Site("resid_pre", 1), ((4,), (7,), (5,))),), (Part(Site("resid_pre", 1), ((3,), (6,), (4,))),)]
    result = _swept(model, cells, early)
    assert result.reasons.tolist() == [[NO_PATH] * 3, [0] * 3]
    assert bool((result.effects[0, 1] != 0).all())


def _ids():
    return answers().correct, answers().wrong


def test_a_position_that_a_prompt_lacks_gives_nan_never_zero():
    model = hooked("gpt2")
    for options in ({}, {"skip_zeros": False}, {"engine": "plain"}):
        result = _swept(model, [(Part(Site("z", 0), ((), (5,), (2,))),)], **options)
        assert bool(result.effects[0, 0, 0].isnan())
        assert bool(result.effects[0, 0, 1:].isfinite().all())
        assert result.reasons[0, 0] == ABSENT
        assert result.plan.skipped["position absent"] == 1


def test_no_cells_give_an_empty_result():
    result = _swept(hooked("gpt2"), [])
    assert result.values.shape == (1, 0, 3)
    assert result.base.shape == (1, 3)
    assert result.plan.run == 0


# --- sources ---


@pytest.mark.parametrize("engine", ["wave", "plain"])
def test_constant_values_and_noise_are_sources_too(engine):
    model, site = hooked("llama"), Site("z", 1)
    cells = [(Part(site, ((2,), (5,), (2,)), 1),), (Part(Site("embed"), ((2,), (5,), (2,))),)]
    zeros = Source(values={site: torch.zeros(1, 1, 8, 16), Site("embed"): torch.zeros(3, 9, 32)})
    given = sweep(model, clean(), zeros, cells, _scorer(model), engine=engine, progress=False)
    for number, one in enumerate((Zero(site, pos=[[2], [5], [2]], head=1), Zero("embed", pos=[[2], [5], [2]]))):
        logits = model.run(clean(), [one]).logits
        _close(given.values[0, number], metric("logit_diff")(logits, answers()))

    noise = torch.zeros(3, 9, 32)
    noise[0, 2], noise[1, 5], noise[2, 2] = torch.randn(3, 32)
    noisy = sweep(model, clean(), Source(clean(), noise=noise), cells, _scorer(model), engine=engine, progress=False)
    restored = sweep(model, clean(), Source(clean()), cells, _scorer(model), noise=noise, engine=engine, progress=False)
    changed = metric("logit_diff")(model.run(clean(), [Add("embed", noise)]).logits, answers())
    _close(noisy.values[0, 1], changed)
    _close(restored.base[0], changed)
    head = Patch(site, model.run(clean(), record=[site]), pos=[[2], [5], [2]], head=1)
    both = model.run(clean(), [Add("embed", noise), head]).logits
    _close(restored.values[0, 0], metric("logit_diff")(both, answers()))
    _close(restored.values[0, 1], noisy.base[0])
    nothing = sweep(model, clean(), Source(clean(), noise=noise * 0), cells, _scorer(model), progress=False)
    assert bool((nothing.reasons == NO_DIFFERENCE).all())
    elsewhere = noise.clone()
    elsewhere[:, 2:] = 0
    away = sweep(model, clean(), Source(clean(), noise=elsewhere), cells, _scorer(model), progress=False)
    assert bool((away.effects == 0).all())


def test_nothing_that_was_given_is_changed():
    model = hooked("gpt2")
    base, other, score = clean(), corrupted(), _scorer(hooked("gpt2"))
    cells = _cells(model)[::13]
    kept = [base.ids.clone(), other.ids.clone(), score.answers.positions.clone(), list(cells)]
    _swept(model, cells, score)
    assert all(torch.equal(a, b) for a, b in zip(kept, [base.ids, other.ids, score.answers.positions], strict=False))
    assert kept[3] == cells


# --- models that cannot resume ---


def test_a_module_of_ones_own_is_swept_by_full_forwards_and_says_so(caplog):
    model = custom()
    assert not model.resumes
    cells = [(Part(s, ((2,), (5,), (2,))),) for s in model.sites()]
    with caplog.at_level(logging.WARNING, "interp"):
        result = _swept(model, cells)
    said = f"in-memory (Decoder) cannot resume at a layer, so {result.plan.run} patches run as full forwards"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert result.plan.engine == "plain"
    assert float(result.effects.abs().max()) > 0.01
    with pytest.raises(OptionError, match=r"in-memory \(Decoder\) cannot resume at a layer; use engine='plain'"):
        _swept(model, cells, engine="wave")


# --- mistakes ---


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"engine": "fast"}, OptionError, "engine is 'fast'; allowed: 'auto', 'wave', 'plain'"),
        ({"cells": [(Part(Site("z", 9)),)]}, SiteError, r"z\[9\]: layer out of range; in-memory has layers 0 to 2"),
        ({"cells": [(Part(Site("z", 0), None, 4),)]}, SiteError, r"z\[0\]: head 4 out of range; allowed 0 to 3"),
        ({"cells": [(Part(Site("z", 0), None, -1),)]}, SiteError, r"z\[0\]: head -1 out of range; allowed 0 to 3"),
        ({"cells": [(Part(Site("embed"), None, 1),)]}, SiteError, r"embed: head 1 out of range; it has no heads"),
        ({"cells": [(Part(Site("neuron", 0), None, None, (0, 129)),)]}, SiteError,
         r"neuron\[0\]: units \(0, 129\) out of range; allowed 0 to 128"),
        ({"cells": [(Part(Site("z", 0), None, None, (3, 3)),)]}, SiteError, r"units \(3, 3\) out of range; allowed 0"),
        ({"cells": [(Part(Site("z", 0), ((-1,), (1,), (9,))),)]}, SiteError,
         r"z\[0\]: position -1 of prompt 0 out of range; it has 6 tokens; z\[0\]: position 9 of prompt 2 .* 7 tokens"),
        ({"cells": [(Part(Site("z", 0), ((1,),)),)]}, SiteError, r"z\[0\]: positions for 1 prompts, there are 3"),
        ({"source": Source(corrupted()[[1, 0, 2]])}, PromptError,
         r"base and source differ in length: prompt 0 has 6 and 9 tokens, prompt 1 has 9 and 6 tokens"),
        ({"source": Source(corrupted()[:2])}, PromptError, r"source for 2 prompts, there are 3; patches go row by row"),
        ({"source": Source()}, PromptError, r"the source has neither prompts nor values for z\[0\]"),
        ({"scorer": Scorer(hooked("gpt2"), (metric("logit_diff"),), answers()[:2])}, PromptError,
         "answers for 2 prompts, there are 3"),
        ({"scorer": Scorer(hooked("gpt2"), (metric("logit_diff"),), Answers(torch.tensor([[6], [8], [6]]), *_ids()))},
         PromptError, r"prompt 0 has 6 tokens, its answer is read at position 6"),
    ],
)  # fmt: skip
def test_a_sweep_that_cannot_be_is_refused_before_it_runs(change, error, message):
    model = hooked("gpt2")
    given = {"base": clean(), "source": Source(corrupted()), "cells": [(Part(Site("z", 0)),)], "scorer": _scorer(model)}
    with pytest.raises(error, match=message), unchecked():
        sweep(model, **{**given, **change}, progress=False)


def test_a_padded_source_row_is_not_read_past_its_end():
    base, source = from_ids([[1, 2, 3, 4], [5, 6, 7, 8]]), from_ids([[1, 2, 3, 9], [5, 6, 7]])
    score = Scorer(hooked("gpt2"), (metric("logit_diff"),), answers(base))
    with pytest.raises(PromptError, match="prompt 1 has 4 and 3 tokens"):
        sweep(hooked("gpt2"), base, Source(source), [(Part(Site("z", 0)),)], score, progress=False)


def test_the_plan_says_what_is_saved():
    result = _swept(hooked("gpt2"), _cells(hooked("gpt2")))
    assert "patches" in str(result.plan)
    assert "no path to the metric" in str(result.plan)
    assert result.plan.patches == result.reasons.numel()
    assert result.plan.run + sum(result.plan.skipped.values()) == result.plan.patches
