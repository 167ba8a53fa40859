"""Queries, keys, values and patterns are the model's own, in every family, and editing one does what it says."""

import oracle
import pytest
import torch
from tiny import FAMILIES, G2, LG, LH, SLIDING, WINDOW, answers, build, clean, corrupted, hooked
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from interp.cells import Part, Source
from interp.errors import ModelError
from interp.intervention import Edit, Patch, Scale, Zero
from interp.metrics import metric
from interp.models.hf import HookedHF
from interp.scoring import Scorer
from interp.site import Site
from interp.sweep import sweep


def _close(a, b, limit=1e-5):
    assert float((a - b).abs().max()) <= limit * max(1.0, float(b.detach().abs().max()))


def _attentions(raw, prompts):
    """The patterns that transformers itself reports."""
    with torch.no_grad():
        out = raw(
            prompts.ids, attention_mask=prompts.mask.long(), position_ids=prompts.position_ids, output_attentions=True
        )
    return out.attentions


def _rows(pattern, prompts):
    """The pattern's rows at real positions, one after another."""
    return pattern.transpose(1, 2)[prompts.mask]


@pytest.mark.parametrize("name", FAMILIES)
def test_patterns_are_those_that_the_model_reports_and_mix_values_into_z(name):
    model, prompts = hooked(name), clean()
    run = model.run(prompts, record=model.sites("pattern", "z", "k", "v", "k_of_query_head", "v_of_query_head"))
    reported = _attentions(build(name, attn_implementation="eager"), prompts)
    groups = model.shape.n_heads // model.shape.n_kv_heads
    for layer in range(3):
        pattern = run[f"pattern[{layer}]"]
        _close(_rows(pattern, prompts), _rows(reported[layer], prompts))
        assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-5)
        assert bool((pattern.triu(1) == 0).all())
        each = run[f"v_of_query_head[{layer}]"]
        assert torch.equal(each, run[f"v[{layer}]"].repeat_interleave(groups, 2))
        assert torch.equal(run[f"k_of_query_head[{layer}]"], run[f"k[{layer}]"].repeat_interleave(groups, 2))
        mixed = torch.einsum("bhij,bjhd->bihd", pattern, each)
        _close(mixed[prompts.mask], run[f"z[{layer}]"][prompts.mask])


@pytest.mark.parametrize("name", SLIDING)
def test_nothing_is_attended_to_beyond_a_sliding_window(name):
    model = hooked(name)
    pattern = model.run([clean().rows()[1]], record=["pattern[0]", "pattern[1]"])
    assert bool((pattern["pattern[0]"].tril(-WINDOW) == 0).all())
    assert bool((pattern["pattern[0]"].tril(1 - WINDOW).diagonal(1 - WINDOW, -2, -1) > 0).all())
    full = name != "mistral"
    assert bool((pattern["pattern[1]"].tril(-WINDOW) > 0).any()) == full


@pytest.mark.parametrize(
    "options",
    [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}, {"reorder_and_upcast_attn": True}],
    ids=str,
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gpt2s_unusual_attentions_are_followed(options, attention):
    raw = build("gpt2", attn_implementation=attention, **options)
    model = HookedHF(raw)
    run = model.run(clean(), record=["pattern[2]"], logits="all")
    assert torch.equal(run.logits, raw(clean().ids, attention_mask=clean().mask.long(), use_cache=False).logits)
    reported = _attentions(build("gpt2", attn_implementation="eager", **options), clean())
    _close(_rows(run["pattern[2]"], clean()), _rows(reported[2], clean()))
    _close(model.run(clean(), [Edit("pattern[2]", lambda p: p)], logits="all").logits, run.logits)


# --- grouped heads ---


@pytest.mark.parametrize(("make", "d_head"), [(LG, 4), (LH, 16)])
@pytest.mark.parametrize("kind", ["k", "v"])
def test_zeroing_a_key_or_value_head_changes_exactly_the_query_heads_of_its_group(make, d_head, kind):
    model = HookedHF(make())
    plain = model.run(clean(), record=["z[1]", f"{kind}[1]"])
    assert plain[f"{kind}[1]"].shape == (3, 9, 2, d_head)
    assert plain["z[1]"].shape == (3, 9, 8, d_head)
    for head in range(2):
        z = model.run(clean(), [Zero(Site(kind, 1), head=head)], ["z[1]"])["z[1]"]
        changed = [h for h in range(8) if not torch.equal(z[:, :, h], plain["z[1]"][:, :, h])]
        assert changed == list(range(4 * head, 4 * head + 4))


@pytest.mark.parametrize("kind", ["k_of_query_head", "v_of_query_head", "q", "pattern"])
def test_one_query_heads_own_view_changes_that_head_alone(kind):
    model = hooked("llama")
    plain = model.run(clean(), record=["z[1]"])
    z = model.run(clean(), [Scale(Site(kind, 1), 0.3, head=5)], ["z[1]"])["z[1]"]
    gaps = (z - plain["z[1]"]).abs().amax((0, 1, 3))
    assert float(gaps[5]) > 1e-2
    assert float(gaps[[0, 1, 2, 3, 4, 6, 7]].max()) < 1e-5


def test_the_views_of_a_group_changed_together_equal_its_key_head_changed():
    model = hooked("llama")
    whole = model.run(clean(), [Scale("k[1]", 0.3, head=1)], logits="all").logits
    views = model.run(clean(), [Scale("k_of_query_head[1]", 0.3, head=[4, 5, 6, 7])], logits="all").logits
    _close(views, whole)


# --- editing patterns ---


@pytest.mark.parametrize("name", FAMILIES)
def test_an_edited_pattern_row_rewrites_that_row_of_z_and_no_other(name):
    model, prompts = hooked(name), clean()[[1]]
    plain = model.run(prompts, record=["z[1]", "v_of_query_head[1]", "pattern[1]"])
    row = torch.zeros(1, 1, 1, 9)
    row[..., 2] = 1.0
    run = model.run(prompts, [Patch("pattern[1]", row, head=1, pos=6)], ["z[1]", "pattern[1]"])
    _close(run["z[1]"][0, 6, 1], plain["v_of_query_head[1]"][0, 2, 1])
    rest = torch.ones(9, model.shape.n_heads, dtype=torch.bool)
    rest[6, 1] = False
    _close(run["z[1]"][0][rest], plain["z[1]"][0][rest])
    assert torch.equal(run["pattern[1]"][0, 1, 6], row[0, 0, 0])


def test_a_patterns_unit_is_a_source_position():
    run = hooked("llama").run(clean(), [Zero("pattern[0]", head=2, pos=4, unit=[1, 3])], ["pattern[0]"])
    plain = hooked("llama").run(clean(), record=["pattern[0]"])
    expected = plain["pattern[0]"].clone()
    expected[:, 2, 4, [1, 3]] = 0
    assert torch.equal(run["pattern[0]"], expected)


# --- the switch ---


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_attention_implementation_is_the_users_during_and_after(attention):
    raw = G2()
    raw.set_attn_implementation(attention)
    model = HookedHF(raw)
    run = model.run(clean(), [Zero("pattern[0]", head=1)], model.sites())
    assert raw.config._attn_implementation == attention
    other = HookedHF(G2()).run(clean(), [Zero("pattern[0]", head=1)], model.sites())
    assert all(_close(run[s], other[s]) is None for s in model.sites())


def test_switching_the_implementation_after_loading_is_followed():
    raw = build("mistral")
    model = HookedHF(raw)
    score = Scorer(model, (metric("logit_diff"),), answers())

    def swept():
        return sweep(model, clean(), Source(corrupted()), [(Part(Site("v", 1)),)], score, progress=False).values

    first = swept()
    raw.set_attn_implementation("eager")
    _close(swept(), first)


def test_an_implementation_that_hides_its_inside_is_refused_with_the_cure_also_after_loading():
    raw = G2()
    model = HookedHF(raw)
    raw.set_attn_implementation(oracle.NAME)
    with pytest.raises(
        ModelError, match="attention implementation oracle hides queries, keys and patterns; load the m"
    ):
        model.run(clean(), record=["q[0]"])
    assert raw.config._attn_implementation == oracle.NAME
    raw.set_attn_implementation("sdpa")
    assert model.run(clean(), record=["q[0]"])["q[0]"].shape == (3, 9, 4, 8)


def test_sdpa_with_a_soft_cap_is_refused_since_it_would_leave_it_out():
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ModelError, match="soft-caps its scores, which sdpa.*attn_implementation='eager'"):
        ALL_ATTENTION_FUNCTIONS["interp_sdpa"](hooked("llama")._attentions[0], q, q, q, None, softcap=50.0)
