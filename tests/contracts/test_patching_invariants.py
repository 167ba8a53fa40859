"""Exact identities of activation patching, in true float64, on ragged prompts; each with a case where it must fail.

Denoising: the base is the corrupted prompt, the source the clean one. Numbers are those of specs/patching.md section 6.
"""

import pytest
import tiny
import torch
from tiny import CANCEL, F64, LIN, MAP, SAT, Decoder, hooked64
from torch import nn

from interp.cells import Part, Source
from interp.intervention import Patch
from interp.metrics import Answers, metric
from interp.models.hf import HookedHF
from interp.models.runs import Shape
from interp.scoring import Scorer
from interp.site import Site
from interp.sweep import sweep
from interp.sweep_plan import NO_DIFFERENCE
from interp.tokens import from_ids

NAMES = ("gpt2", "llama", "gpt_neox", "gptj", "gemma2", "olmo2")
"""Absolute positions; rotary with grouped heads and an own head size; parallel blocks, twice; post-norms, twice."""
LAST = 2
CLEAN, CORRUPTED = tiny.clean()[:2], tiny.corrupted()[:2]
MIDDLE, END = ((2,), (5,)), ((5,), (8,))
SUFFIX = ((2, 3, 4, 5), (5, 6, 7, 8))
TWO = ((2, 4), (3, 5))
ANSWERS = tiny.answers(CLEAN)


@pytest.fixture
def in_float64():
    with F64():
        yield


exact = pytest.mark.usefixtures("in_float64")


def family(test):
    """Runs a test on every family, in true float64."""
    return pytest.mark.parametrize("name", NAMES)(exact(test))


def _cell(*kinds, layer=1, at=None, head=None):
    return tuple(Part(Site(kind, layer), at, head) for kind in kinds)


def _values(model, cells, base=None, source=None, **options):
    """Metric under each cell, one row a cell, and of base and source themselves."""
    base, source = base or CORRUPTED, source or CLEAN
    score = Scorer(model, (metric("logit_diff"),), ANSWERS)
    result = sweep(model, base, Source(source), cells, score, progress=False, **options)
    own = metric("logit_diff")(model.run(source).logits, ANSWERS)
    return result.values[0], result.base[0], own


def _same(a, b, limit=1e-10):
    assert float((a - b).abs().max()) <= limit, f"differ by {float((a - b).abs().max()):.3g}"


def _differ(a, b, least=1e-3):
    assert float((a - b).abs().max()) >= least


def _mid(name):
    return ("resid_mid",) if "resid_mid" not in hooked64(name).unavailable else ()


# --- 1, 2: what carries everything restores everything ---


@family
def test_1_nothing_patched_is_the_base_and_everything_patched_is_the_source(name):
    model = hooked64(name)
    everything = tuple(Part(site) for site in model.sites())
    cells = [everything, _cell("resid_pre", layer=0), (Part(Site("embed")),), (Part(Site("resid_final")),)]
    for options in ({"skip_zeros": False}, {"engine": "plain"}):
        values, base, clean_value = _values(model, cells, **options)
        _same(values, clean_value.expand_as(values))
    _same(base, metric("logit_diff")(model.run(CORRUPTED).logits, ANSWERS))
    _differ(base, clean_value)


@family
def test_2_a_full_cut_restores_the_source_at_every_layer_and_so_does_the_end_of_the_last(name):
    model = hooked64(name)
    cells = [_cell("resid_post", layer=LAST, at=END)]
    cells += [_cell(kind, layer=layer) for layer in range(3) for kind in ("resid_pre", *_mid(name), "resid_post")]
    partial = [_cell("attn_out"), _cell("resid_post", at=END), _cell("resid_pre", at=MIDDLE)]
    values, _, clean_value = _values(model, cells + partial)
    _same(values[:-3], clean_value.expand(len(cells), -1))
    for row in values[-3:]:
        _differ(row, clean_value)


@family
def test_2_one_blocks_output_is_the_next_ones_input(name):
    places = (None, MIDDLE, END, TWO)
    posts, pres = ([_cell(k, layer=n, at=at) for at in places] for k, n in (("resid_post", 0), ("resid_pre", 1)))
    values, base, _ = _values(hooked64(name), posts + pres)
    _same(values[:4], values[4:])
    _differ(values[1], base)


# --- 4, 5: heads ---


@family
def test_4_all_heads_together_are_the_attention_output_and_single_ones_do_not_add_up(name):
    model = hooked64(name)
    heads = range(model.shape.n_heads)
    cells = [_cell("z", head=h) for h in heads]
    for at in (TWO, None):
        joint = tuple(part for h in heads for part in _cell("z", at=at, head=h))
        cells += [joint, *(_cell(kind, at=at) for kind in ("z", "attn_proj", "attn_out"))]
    values, base, _ = _values(model, cells)
    for whole in (values[-8:-4], values[-4:]):
        _same(whole[1:], whole[:1].expand(3, -1))
    _differ((values[:-8] - base).sum(0), values[-1] - base)


@family
def test_4_last_layer_heads_add_up_once_everything_after_them_is_linear(name):
    """Read from the residual with the last MLP frozen; a post-norm after attention is not linear: there they do not."""
    model = hooked64(name)
    source = model.run(CLEAN, record=["z[2]"])
    base = model.run(CORRUPTED, record=["mlp_out[2]", "resid_post[2]"])
    ends = [[p] for (p,) in END]
    weights = torch.randn(32, dtype=torch.float64)

    def read(heads, frozen):
        changes = [Patch("z[2]", source, head=h, pos=ends) for h in heads]
        changes += [Patch("mlp_out[2]", base)] if frozen else []
        run = model.run(CORRUPTED, changes, ["resid_post[2]"]) if changes else base
        return (run["resid_post[2]"] - base["resid_post[2]"])[range(2), CORRUPTED.last] @ weights

    heads = range(model.shape.n_heads)
    gap = (sum(read([h], True) for h in heads) - read(heads, True)).abs().max()
    live = (sum(read([h], False) for h in heads) - read(heads, False)).abs().max()
    if name in ("gemma2", "olmo2"):
        assert float(gap) > 1e-3
    else:
        assert float(gap) < 1e-10
        assert (float(live) > 1e-3) == (name not in ("gpt_neox", "gptj"))


def _group(model, group):
    size = model.shape.n_heads // model.shape.n_kv_heads
    return range(group * size, (group + 1) * size)


@family
def test_5_queries_and_keys_of_a_group_are_its_patterns_and_with_values_its_outputs(name):
    model = hooked64(name)
    for group in range(2):
        queries = tuple(part for h in _group(model, group) for part in _cell("q", head=h))
        keys, values = _cell("k", head=group), _cell("v", head=group)
        patterns = tuple(part for h in _group(model, group) for part in _cell("pattern", head=h))
        outputs = tuple(part for h in _group(model, group) for part in _cell("z", head=h))
        got, base, _ = _values(model, [queries + keys, patterns, queries + keys + values, outputs])
        _same(got[0], got[1])
        _same(got[2], got[3])
        _differ(got[0], got[2])
        _differ(got[1], base)


@family
def test_5_a_row_of_a_pattern_is_its_query_with_all_keys_before_it(name):
    """At one position alone {q, k} is not the pattern's row; with all keys up to it, it is."""
    model, row = hooked64(name), 4
    prompts = CLEAN
    source = model.run(CORRUPTED, record=["q[1]", "k[1]", "pattern[1]"])
    heads, group = list(_group(model, 1)), 1
    upto = list(range(row + 1))

    def z(*changes):
        return model.run(prompts, list(changes), ["z[1]"])["z[1]"][:, row][:, heads]

    pattern = z(Patch("pattern[1]", source, head=heads, pos=row))
    query = Patch("q[1]", source, head=heads, pos=row)
    _same(z(query, Patch("k[1]", source, head=group, pos=upto)), pattern)
    _differ(z(query, Patch("k[1]", source, head=group, pos=row)), pattern)


@exact
def test_5_under_grouped_heads_one_query_and_its_groups_key_are_not_that_heads_pattern():
    model = hooked64("llama")
    cells = [_cell("q", head=5) + _cell("k", head=1), _cell("pattern", head=5)]
    cells += [_cell("q", head=5) + _cell("k_of_query_head", head=5)]
    values, _, _ = _values(model, cells)
    _differ(values[0], values[1])
    _same(values[2], values[1])


# --- 6: a block's parts ---


@family
def test_6_a_blocks_input_and_outputs_are_its_output_on_position_sets_closed_upward_only(name):
    wholes = [(("resid_pre", "attn_out", "mlp_out"), "resid_post")]
    wholes += [(("resid_pre", "attn_out"), mid) for mid in _mid(name)]
    cases = [(at, parts, whole) for at in (None, SUFFIX, END, MIDDLE, TWO) for parts, whole in wholes]
    cells = [cell for at, parts, whole in cases for cell in (_cell(*parts, at=at), _cell(whole, at=at))]
    values, _, _ = _values(hooked64(name), cells)
    for (at, _, _), by_parts, by_whole in zip(cases, values[::2], values[1::2], strict=True):
        if at in (MIDDLE, TWO):
            _differ(by_parts, by_whole)
        else:
            _same(by_parts, by_whole)


# --- 8, 9: directions and mediation ---


@family
def test_8_noising_is_denoising_with_the_roles_swapped_and_not_its_mirror_image(name):
    model = hooked64(name)
    cell = _cell("resid_pre", at=TWO)
    noised, m_clean, m_corrupted = _values(model, [cell], CLEAN, CORRUPTED)
    source = model.run(CORRUPTED, record=["resid_pre[1]"])
    by_run = model.run(CLEAN, [Patch("resid_pre[1]", source, pos=[list(p) for p in TWO])]).logits
    _same(noised[0], metric("logit_diff")(by_run, ANSWERS))
    denoised, _, _ = _values(model, [cell])
    disruption = (m_clean - noised[0]) / (m_clean - m_corrupted)
    recovery = (denoised[0] - m_corrupted) / (m_clean - m_corrupted)
    _differ(disruption, recovery, 1e-2)


def test_8_without_interactions_disruption_equals_recovery():
    model = LIN()
    cells = [(Part(site, TWO),) for site in model.sites() if site.kind not in ("pattern", "q", "k")]
    noised, m_clean, m_corrupted = _values(model, cells, CLEAN, CORRUPTED)
    denoised, _, _ = _values(model, cells)
    _same(m_clean - noised, denoised - m_corrupted, 1e-5)


@family
def test_9_a_full_cut_leaves_no_direct_effect_and_what_is_off_every_path_has_only_one(name):
    """TE = NDE + TIE from two runs: denoised with the roles of the other, and noised."""
    model = hooked64(name)
    cuts = [_cell("resid_pre", layer=layer) for layer in range(3)]
    off = [_cell("z", layer=LAST, at=MIDDLE), _cell("resid_post", layer=LAST, at=MIDDLE)]
    for base, source in ((CLEAN, CORRUPTED), (CORRUPTED, CLEAN)):
        values, own, other = _values(model, cuts + off, base, source, skip_zeros=False)
        _same(values[:3], other.expand(3, -1))  # the whole effect is indirect, and NDE = 0
        _same(values[3:], own.expand(2, -1))  # no part of it is


def _gate(kind):
    """Tokens 0 and 3 carry no bit and both bits; MLP 0 writes the two bits, MLP 1 joins them into logit 0."""
    shape = Shape(n_layers=2, n_heads=1, n_kv_heads=1, d_model=7, d_head=1, d_ff=2, d_vocab=4)
    model = Decoder(shape, norm=nn.Identity, act=nn.ReLU()).double().eval().requires_grad_(False)
    for p in model.parameters():
        p.zero_()
    model.embed.weight[:, :4] = torch.eye(4)
    first, second = model.layers
    first.up.weight[:, 3] = 1.0
    first.down.weight[4, 0] = first.down.weight[5, 1] = 1.0
    second.up.weight[:, 4:6] = 1.0
    second.up.bias[1] = -1.0
    second.down.weight[6] = torch.tensor([1.0, -1.0] if kind == "or" else [0.0, 1.0])
    model.unembed.weight[0, 6] = 1.0
    return HookedHF(model, site_map=MAP, shape=shape, check=False)


@pytest.mark.parametrize(("kind", "nie", "tie", "nde"), [("and", 0, 1, 0), ("or", 1, 0, 1)])
def test_9_gates_have_the_effects_that_logic_gives_them(kind, nie, tie, nde):
    model = _gate(kind)
    full, empty = from_ids([[0, 3]]), from_ids([[0, 0]])
    one = Answers(torch.tensor([[1]]), torch.tensor([[[0]]]), torch.tensor([[[1]]]))
    score = Scorer(model, (metric("logit_diff"),), one)
    cell = [(Part(Site("neuron", 0), None, None, (0, 1)),)]
    denoised = sweep(model, empty, Source(full), cell, score, progress=False)
    noised = sweep(model, full, Source(empty), cell, score, progress=False)
    assert float(noised.base) - float(denoised.base) == 1.0
    assert float(denoised.effects) == nie
    assert -float(noised.effects) == tie
    assert float(noised.values) - float(denoised.base) == nde


# --- 10, 12 and the toys ---


@family
def test_10_both_engines_agree_to_rounding_in_float64(name):
    model = hooked64(name)
    cells = [(Part(site, at),) for site in model.sites() for at in (TWO,) if site.layer in (None, 1)]
    cells += [
        tuple(part for layer in range(3) for part in _cell(k, layer=layer, at=TWO)) for k in ("mlp_out", "v", "z")
    ]
    wave, plain = (_values(model, cells, engine=engine, skip_zeros=False)[0] for engine in ("wave", "plain"))
    _same(wave, plain)


@exact
def test_12_setting_a_zero_activation_to_zero_is_no_patch():
    model = hooked64("opt")
    neurons = model.run(CLEAN, record=["neuron[1]"])["neuron[1]"]
    zero = int((neurons[:, 3] == 0).all(0).nonzero()[0, 0])
    live = int((neurons[:, 3] != 0).all(0).nonzero()[0, 0])
    at = ((3,), (3,))
    cells = [(Part(Site("neuron", 1), at, None, (u, u + 1)),) for u in (zero, live)]
    score = Scorer(model, (metric("logit_diff"),), ANSWERS)
    source = Source(values={Site("neuron", 1): torch.zeros(1, 1, 48)})
    result = sweep(model, CLEAN, source, cells, score, progress=False)
    assert result.reasons.tolist() == [[NO_DIFFERENCE] * 2, [0] * 2]
    assert bool((result.effects[0, 0] == 0).all())
    assert bool((result.effects[0, 1] != 0).all())


def test_in_a_linear_network_gradient_times_change_is_the_exact_effect():
    model = LIN()
    kinds = [s for s in model.sites() if s.kind not in ("q", "k", "pattern")]
    cells = [(Part(site, TWO),) for site in kinds]
    values, base, _ = _values(model, cells)
    read = lambda logits: metric("logit_diff")(logits, ANSWERS)  # noqa: E731
    slope = model.gradients(CORRUPTED, read, kinds)
    source = model.run(CLEAN, record=kinds)
    for number, site in enumerate(kinds):
        change = (source[site] - slope.activations[site]) * slope.gradients[site]
        estimate = torch.stack([change[row][list(at)].sum() for row, at in enumerate(TWO)])
        _same(estimate, values[number] - base, 1e-4)


def test_a_saturated_head_has_an_exact_effect_of_one_and_a_gradient_of_zero():
    model = SAT()
    asks, other = from_ids([[0, 1, 2]]), from_ids([[0, 1, 3]])
    one = Answers(torch.tensor([[2]]), torch.tensor([[[0]]]), torch.tensor([[[1]]]))
    score = Scorer(model, (metric("logit_diff"),), one)
    cells = [_cell("q", layer=0), _cell("pattern", layer=0), _cell("z", layer=0), _cell("v", layer=0)]
    result = sweep(model, other, Source(asks), cells, score, progress=False)
    assert result.effects[0, :, 0].tolist() == [1.0, 1.0, 1.0, 0.0]
    slope = model.gradients(other, lambda x: x[:, 0, 0] - x[:, 0, 1], ["q[0]", "z[0]"])
    assert bool((slope.gradients[Site("q", 0)] == 0).all())
    assert bool((slope.gradients[Site("z", 0)] != 0).any())


def test_cancelling_paths_give_no_effect_and_one_once_the_indirect_path_is_frozen():
    model = CANCEL()
    with_bit, without = from_ids([[0, 1]]), from_ids([[0, 0]])
    one = Answers(torch.tensor([[1]]), torch.tensor([[[0]]]), torch.tensor([[[1]]]))
    score = Scorer(model, (metric("logit_diff"),), one)
    result = sweep(model, without, Source(with_bit), [_cell("mlp_out", layer=0)], score, progress=False)
    assert float(result.effects) == 0.0
    source = model.run(with_bit, record=["mlp_out[0]"])
    frozen = Patch("mlp_out[1]", model.run(without, record=["mlp_out[1]"]))
    logits = model.run(without, [Patch("mlp_out[0]", source), frozen]).logits[0, 0]
    plain = model.run(without).logits[0, 0]
    assert float((logits - plain)[0]) == 1.0
    slope = model.gradients(without, lambda x: x[:, 0, 0] - x[:, 0, 2], ["mlp_out[0]"])
    assert bool((slope.gradients[Site("mlp_out", 0)][0, 1, 4] == 0).all())
