"""Transformers decoders and modules of one's own, hooked: what they offer, what they refuse, what they leave alone."""

import gc
import weakref

import pytest
import torch
import transformers as tr
from tiny import (
    FAMILIES,
    G2,
    G2D,
    LH,
    MAP,
    POINTS,
    RAGGED,
    SH,
    SHAPE,
    TK,
    TUP,
    Decoder,
    answers,
    build,
    clean,
    corrupted,
    custom,
    hooked,
    int8,
    randomised,
    state,
    unchecked,
)

from interp.cells import Part, Source
from interp.errors import InterventionError, MetricError, ModelError, OptionError, PromptError, SiteError
from interp.intervention import Add, Edit, Patch, Scale, Zero
from interp.metrics import metric
from interp.models.families import REFUSED, Point, SiteMap, site_map
from interp.models.hf import HookedHF
from interp.models.runs import Shape
from interp.scoring import Scorer
from interp.site import Site
from interp.sweep import sweep
from interp.tokens import Prompts, from_ids

# --- what a run gives ---


def test_logits_come_at_the_last_token_everywhere_nowhere_or_where_asked():
    model = hooked("llama")
    every = model.run(clean(), logits="all").logits
    assert every.shape == (3, 9, 97)
    at = torch.tensor([[0, 5], [8, 2], [6, -1]])
    asked = model.run(clean(), logits=at).logits
    for row, positions in enumerate(at.tolist()):
        for column, p in enumerate(positions):
            assert p < 0 or torch.allclose(asked[row, column], every[row, p], atol=1e-5)
    assert torch.allclose(model.run(clean()).logits[:, 0], every[range(3), clean().last], atol=1e-5)
    assert model.run(clean(), logits="none").logits is None


def test_a_run_tells_how_often_each_read_or_changed_site_fired():
    model = hooked("gpt2")
    run = model.run(clean(), [Zero("z[1]", head=1), Scale("z[1]", 2.0)], ["k[0]", "k[0]", "embed"])
    assert run.fired == {Site("z", 1): 1, Site("k", 0): 1, Site("embed"): 1}
    assert list(run.cache) == [Site("k", 0), Site("embed")]


def test_a_site_is_recorded_as_it_flows_on_after_its_interventions_in_their_order():
    model = hooked("llama")
    run = model.run(clean(), [Zero("z[1]"), Add("z[1]", torch.ones(16)), Scale("z[1]", 3.0, head=2)], ["z[1]"])
    assert bool((run["z[1]"][:, :, 2] == 3).all())
    assert bool((run["z[1]"][:, :, [0, 1, 3]] == 1).all())


def test_a_recorded_dtype_is_the_models_own():
    run = HookedHF(G2().bfloat16()).run(clean(), record=["pattern[0]", "z[1]", "resid_post[2]"])
    assert {x.dtype for x in (*run.cache.values(), run.logits)} == {torch.bfloat16}


def test_a_differentiable_run_keeps_its_graph_and_any_other_none():
    model = hooked("gpt2")
    direction = torch.zeros(32, requires_grad=True)
    run = model.run(clean(), [Add("resid_pre[1]", direction)], ["resid_post[2]"], differentiable=True)
    assert float(torch.autograd.grad(run.logits.sum(), direction, retain_graph=True)[0].abs().sum()) > 0
    assert float(torch.autograd.grad(run["resid_post[2]"].sum(), direction)[0].abs().sum()) > 0
    assert model.run(clean(), [Add("resid_pre[1]", direction)]).logits.grad_fn is None


def test_texts_and_chats_run_through_the_models_own_tokenizer():
    model = HookedHF(G2(), TK())
    run = model.run(["when mary gave", "hi"])
    assert run.prompts.tokens == (("when", "mary", "gave"), ("hi",))
    assert torch.allclose(run.logits, model.run([[4, 5, 6], [19]]).logits)


# --- every family, and what belongs to none ---


@pytest.mark.parametrize("name", FAMILIES)
def test_residual_pieces_add_up_and_the_stream_has_one_name_at_a_border(name):
    model = hooked(name)
    run = model.run(clean(), record=model.sites(), logits="all")
    assert torch.equal(run["embed"], run["resid_pre[0]"])
    for layer in range(3):
        pieces = [run[f"{kind}[{layer}]"] for kind in ("resid_pre", "attn_out", "mlp_out")]
        post = run[f"resid_post[{layer}]"]
        assert float((sum(pieces) - post).abs().max()) <= 1e-6 * max(1.0, float(post.abs().max()))
        assert layer == 2 or torch.equal(post, run[f"resid_pre[{layer + 1}]"])
        if "resid_mid" not in model.unavailable:
            assert torch.allclose(pieces[0] + pieces[1], run[f"resid_mid[{layer}]"], atol=1e-6)
    assert torch.allclose(model.unembed(run["resid_final"]), run.logits, atol=1e-5)
    ids = torch.tensor([[[3, 7]], [[8, 1]], [[96, 0]]])
    at = run["resid_final"][:, :1]
    assert torch.allclose(model.answer_logits(at, ids), model.unembed(at).gather(-1, ids), atol=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo2"])
def test_a_post_norm_stands_between_what_a_sublayer_makes_and_what_it_adds(name):
    """Patching `mlp_out` equals a hook on the norm after the sublayer, and `mlp_proj` is something else."""
    model = hooked(name)
    run = model.run(clean(), record=["mlp_out[1]", "mlp_proj[1]", "attn_out[1]", "attn_proj[1]"])
    assert float((run["mlp_out[1]"] - run["mlp_proj[1]"]).abs().max()) > 0.5
    assert float((run["attn_out[1]"] - run["attn_proj[1]"]).abs().max()) > 0.5
    norm = model.model.model.layers[1].post_feedforward_layernorm
    handle = norm.register_forward_hook(lambda m, a, out: torch.zeros_like(out))
    by_hand = model.run(clean()).logits
    handle.remove()
    assert torch.equal(model.run(clean(), [Zero("mlp_out[1]")]).logits, by_hand)


def test_sizes_come_from_the_configuration_and_not_from_width_over_heads():
    assert hooked("llama").shape == Shape(3, 8, 2, 32, 16, 48, 97)
    assert hooked("gpt2").shape == Shape(3, 4, 4, 32, 8, 128, 97)
    assert hooked("opt").shape.d_ff == 48
    assert LH().model.layers[0].self_attn.o_proj.in_features == 128


@pytest.mark.parametrize("tupled", [(1,), (0, 1, 2)])
def test_blocks_may_return_a_tensor_or_a_tuple(tupled):
    plain, model = hooked("gpt2"), HookedHF(TUP(tupled))
    change = [Patch("resid_post[1]", plain.run(corrupted()[1], record=["resid_post[1]"]))]
    want = plain.run(clean()[1], change, plain.sites(), logits="all")
    got = model.run(clean()[1], change, model.sites(), logits="all")
    assert torch.equal(want.logits, got.logits)
    assert all(torch.equal(want[s], got[s]) for s in plain.sites())


def test_a_block_called_twice_is_refused_with_the_sites_and_counts():
    with pytest.raises(InterventionError, match=r"sites fired another number of times than once in this forward: .*"
                       r"'resid_pre\[0\]': 2.* called twice cannot be read or patched as one site"):  # fmt: skip
        HookedHF(SH())


def test_a_block_that_is_skipped_is_an_error_and_not_a_silent_no_op():
    model = HookedHF(G2())
    model.model.transformer.h[1].forward = lambda x, *_, **__: x
    with pytest.raises(InterventionError, match=r"'z\[1\]': 0.*a module that is skipped"):
        model.run(clean(), [Zero("z[1]")])
    with pytest.raises(InterventionError, match=r"'z\[1\]': 0"):
        model.run(clean(), record=["z[0]", "z[1]"])


def test_hooks_are_enough_for_a_model_without_float_weights():
    model = HookedHF(int8())
    run = model.run(clean(), [Zero("z[1]", head=1)], model.sites(), logits="all")
    assert run.logits.isfinite().all()
    slope = model.gradients(clean(), lambda x: x[:, 0, 3], ["z[1]", "resid_mid[0]"])
    assert float(slope.gradients[Site("resid_mid", 0)].abs().max()) > 0
    ids = torch.tensor([[[3, 7]]] * 3)
    at = model.run(clean(), record=["resid_final"])["resid_final"][:, :1]
    assert torch.allclose(model.answer_logits(at, ids), model.unembed(at).gather(-1, ids))


def test_a_module_of_ones_own_works_from_a_map_alone():
    model = custom()
    assert model.unavailable.keys() == {"k_of_query_head", "v_of_query_head"}
    run = model.run(clean(), record=model.sites(), logits="all")
    assert torch.equal(run.logits, model.model(clean().ids))
    assert run["q[0]"].shape == (3, 9, 4, 6)
    assert torch.allclose(run["pattern[1]"].sum(-1), torch.ones(3, 4, 9))
    alone = model.run([RAGGED[0]], record=model.sites())
    assert torch.allclose(alone.logits[0], model.run(clean()).logits[0], atol=1e-5)
    slope = model.gradients(clean(), lambda x: x[:, 0, 3], model.sites())
    assert all(float(g.abs().max()) > 0 for g in slope.gradients.values())
    with pytest.raises(SiteError, match="has no k_of_query_head: the model does not use transformers' attention"):
        model.run(clean(), record=["k_of_query_head[0]"])
    with pytest.raises(ModelError, match=r"Decoder has no generate\(\); only transformers models have"):
        model.generate(clean())


def test_the_named_parts_of_a_model_are_its_own_modules():
    raw = LH()
    model = HookedHF(raw)
    parts = [model.module(name) for name in ("embed", "final_norm", "unembed")]
    assert all(a is b for a, b in zip(parts, (raw.model.embed_tokens, raw.model.norm, raw.lm_head), strict=True))
    own = custom()
    parts = [own.module(name) for name in ("embed", "final_norm", "unembed")]
    assert all(a is b for a, b in zip(parts, (own.model.embed, own.model.norm, own.model.unembed), strict=True))
    bare = HookedHF(own.model, site_map=SiteMap("layers", "norm", "unembed", points=POINTS), shape=SHAPE)
    with pytest.raises(ModelError, match=r"does not say where the token embedding is; give SiteMap\(\.\.\., embed="):
        bare.module("embed")


def test_a_map_may_leave_sites_out_and_says_how_to_add_them():
    model = HookedHF(randomised(Decoder(SHAPE)).eval(), site_map=SiteMap("layers", "norm", "unembed"), shape=SHAPE)
    assert {s.kind for s in model.sites()} == {"embed", "resid_pre", "resid_post", "resid_final"}
    with pytest.raises(SiteError, match="has no z: the site map does not say where it is; add a Point for it"):
        model.sites("z")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": "layer"}, r"site map entry blocks: Decoder has no module 'layer'; nearest: 'layers'.*; it has em"),
        ({"final_norm": "nrom"}, r"site map entry final_norm: Decoder has no module 'nrom'; nearest: 'norm'"),
        ({"unembed": "lm_head"}, r"site map entry unembed: Decoder has no module 'lm_head'"),
        ({"points": {"z": Point("atn.out", "input")}},
         r"site map entry z of block 0: Block has no module 'atn.out'; nearest: 'attn.out'"),
    ],
)  # fmt: skip
def test_a_wrong_entry_of_a_map_is_named_with_the_nearest_modules(options, message):
    given = {"blocks": "layers", "final_norm": "norm", "unembed": "unembed", "points": POINTS, **options}
    with pytest.raises(ModelError, match=message):
        HookedHF(Decoder(SHAPE).eval(), site_map=SiteMap(**given), shape=SHAPE)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SiteMap("layers", "norm", points={"zz": Point("", "input"), "embed": Point("", "input")}), SiteError,
         "the site map names kinds that do not exist: 'zz'.*, 'embed'"),
        (lambda: HookedHF(Decoder(SHAPE).eval()), ModelError,
         r"Decoder has no configuration, so its family is unknown; "
         r"pass site_map=SiteMap\(\.\.\.\) and shape=Shape\(\.\.\.\)"),
        (lambda: HookedHF(Decoder(SHAPE).eval(), site_map=MAP), ModelError, r"Decoder has no configuration; pass sha"),
        (lambda: HookedHF(Decoder(SHAPE).eval(), site_map=MAP, shape=Shape(3, 4, 4, 16, 6, 20, 97)), ModelError,
         "layers holds 2 blocks, the configuration says 3"),
        (lambda: HookedHF(build("opt", do_layer_norm_before=False)), ModelError,
         r"this OPT \(like opt-350m\) normalises after each sublayer, so its residual stream is no sum"),
        (lambda: HookedHF(build("opt", word_embed_proj_dim=16)), ModelError, "this OPT projects its embeddings"),
        (lambda: HookedHF(build("gpt2", add_cross_attention=True)), ModelError, "cross-attention is not supported"),
        (lambda: HookedHF(G2D().train()), ModelError, r"dropout is active in \d+ modules \(transformer, .*call model"),
    ],
)  # fmt: skip
def test_what_cannot_be_supported_is_refused_with_the_reason(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("kind", ["t5", "bert", "mamba", "mixtral"])
def test_other_kinds_of_model_are_refused_by_name(kind):
    config = tr.AutoConfig.for_model(kind)
    with pytest.raises(ModelError, match=f"{kind} is {REFUSED[kind]}; only decoders with dense blocks are supported"):
        site_map(config)


def test_an_unknown_family_is_told_to_give_a_map():
    config = tr.AutoConfig.for_model("granite")
    with pytest.raises(ModelError, match=r"family 'granite' is not in the table \(known: gpt2, .*\); pass site_map="):
        site_map(config)


# --- dropout ---


def test_a_model_that_would_drop_at_random_is_refused_even_where_one_block_does():
    raw = G2D()
    model = HookedHF(raw)
    calls = {
        "run": lambda: model.run(clean()),
        "gradients": lambda: model.gradients(clean(), lambda x: x[:, 0, 0], ["z[0]"]),
        "generate": lambda: model.generate(clean(), 2),
        "capture": lambda: model.capture(clean()[[0]]),
    }
    captured = model.capture(clean()[[0]])
    assert captured.run.logits is None
    for part in (raw, raw.transformer.h[0], raw.transformer.h[0].attn):
        part.train()
        for call in calls.values():
            with pytest.raises(ModelError, match=r"dropout is active in \d+ modules .*; call model\.eval\(\) first"):
                call()
        assert part.training
        raw.eval()
    assert model.run(clean()).logits.isfinite().all()


def test_train_mode_without_any_dropout_is_allowed_and_kept():
    raw = G2().train()
    model = HookedHF(raw)
    assert torch.equal(model.run(clean()).logits, hooked("gpt2").run(clean()).logits)
    assert raw.training


# --- the user's own hooks ---


def test_the_users_own_hooks_fire_and_survive_every_verb():
    raw = G2()
    model = HookedHF(raw)
    calls = []
    target = raw.transformer.h[1].attn.c_proj
    target.register_forward_hook(lambda m, args, out: calls.append("after"))
    target.register_forward_pre_hook(lambda m, args: calls.append("before"))
    target.register_full_backward_hook(lambda m, grad_in, grad_out: calls.append("backward"))
    before = state(raw)
    model.run(clean(), [Zero("z[1]")], ["attn_proj[1]"])
    assert calls == ["before", "after"]
    model.gradients(clean(), lambda x: x[:, 0, 0], ["resid_post[0]", "z[1]"])
    assert calls == ["before", "after", "before", "after", "backward"]
    model.generate(clean(), 2, [Zero("z[1]")])
    assert calls[5:] == ["before", "after"] * 2
    assert state(raw) == before


def test_a_users_hook_that_changes_the_model_is_part_of_the_model_everywhere():
    raw = build("llama")
    model = HookedHF(raw)
    raw.model.layers[1].register_forward_hook(lambda m, args, out: out * 1.5)
    raw.lm_head.register_forward_hook(lambda m, args, out: out.flip(-1))
    score = Scorer(model, (metric("logit_diff"),), answers())
    cells = [(Part(Site("z", layer), ((2,), (5,), (2,)), 1),) for layer in range(3)]
    wave, plain = (
        sweep(model, clean(), Source(corrupted()), cells, score, engine=e, progress=False) for e in ("wave", "plain")
    )
    assert torch.allclose(wave.values, plain.values, atol=1e-5)
    with torch.no_grad():
        logits = raw(clean().ids, attention_mask=clean().mask.long()).logits[range(3), clean().last]
    assert torch.allclose(metric("logit_diff")(logits[:, None], answers()), wave.base[0], atol=1e-5)


def test_calls_may_be_nested_in_a_metric_and_in_one_another():
    model = hooked("llama")
    alone = model.run(clean(), [Zero("z[0]")], ["z[2]"])

    def read(logits):
        inner = model.run(clean(), [Zero("z[0]")], ["z[2]"])
        assert torch.equal(inner.logits, alone.logits)
        assert torch.equal(inner["z[2]"], alone["z[2]"])
        model.gradients(clean(), lambda x: x[:, 0, 1], ["pattern[0]"])
        return logits[:, 0, 0]

    nested = model.gradients(clean(), read, ["q[1]", "resid_post[2]"])
    plain = model.gradients(clean(), lambda x: x[:, 0, 0], ["q[1]", "resid_post[2]"])
    assert all(torch.equal(nested.gradients[s], plain.gradients[s]) for s in plain.gradients)


def test_parametrised_weights_are_used_and_kept():
    raw = G2()
    torch.nn.utils.parametrizations.weight_norm(raw.lm_head)
    model = HookedHF(raw)
    run = model.run([RAGGED[1]], record=["resid_final"], logits="all")
    assert torch.allclose(run.logits, raw(torch.tensor([RAGGED[1]])).logits, atol=1e-5)
    ids = torch.tensor([[[3, 7]]])
    at = run["resid_final"][:, :1]
    assert torch.allclose(model.answer_logits(at, ids), model.unembed(at).gather(-1, ids))


def test_offloaded_weights_stay_where_they_are_and_give_the_same_everywhere():
    from accelerate import cpu_offload

    raw = G2()
    cpu_offload(raw, execution_device=torch.device("cpu"))
    model, plain = HookedHF(raw), hooked("gpt2")
    before = state(raw)
    assert before["forward"]
    assert torch.equal(model.run(clean(), record=model.sites()).logits, plain.run(clean()).logits)
    cells = [(Part(Site("z", layer), None, 1),) for layer in range(3)] + [(Part(Site("resid_post", 2)),)]
    swept = [
        sweep(m, clean(), Source(corrupted()), cells, Scorer(m, (metric("logit_diff"),), answers()), progress=False)
        for m in (model, plain)
    ]
    assert swept[0].plan.engine == "wave"
    assert torch.allclose(swept[0].values, swept[1].values, atol=1e-5)
    slopes = [m.gradients(clean(), _row, ["z[1]"]).gradients[Site("z", 1)] for m in (model, plain)]
    assert torch.equal(*slopes)
    assert model.generate(clean(), 2).new_ids == plain.generate(clean(), 2).new_ids
    assert all(p.is_meta for p in raw.parameters())
    assert state(raw)["forward"] == before["forward"]


# --- errors of a call ---


def _row(logits):
    return logits[:, 0, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.run(clean(), record=["z[0]", "z[7]", "q[3]"]), SiteError,
         r"z\[7\]: layer out of range; in-memory has layers 0 to 2; q\[3\]: layer out of range; in-memory has layers"),
        (lambda m: m.run(clean(), record="z[0]"), SiteError, r"one 'z\[0\]'; write a list, such as \['z\[0\]'\]"),
        (lambda m: m.run(clean(), record=Site("z", 0)), SiteError, r"sites are given as one 'z\[0\]'; write a list"),
        (lambda m: m.run(clean(), record=lambda name: True), SiteError, r"sites are given as a function; write a list"),
        (lambda m: m.run(clean(), Zero("z[0]")), InterventionError, r"interventions are given as one Zero; write a l"),
        (lambda m: m.run(clean(), ["z[0]"]), InterventionError, r"'z\[0\]' is not an intervention; make one with Pat"),
        (lambda m: m.run(clean(), logits="first"), OptionError, r"logits='first'; allowed: 'last', 'all', 'none', or"),
        (lambda m: m.run(clean(), logits=torch.tensor([1, 2, 3])), OptionError, r"int64 \(3,\); integers \[3, target"),
        (lambda m: m.run(clean(), logits=torch.tensor([[1], [9], [7]])), OptionError,
         r"logits asked at position 9 of prompt 1 \(9 tokens\), position 7 of prompt 2 \(7 tokens\); allowed from 0,"),
        (lambda m: m.run(clean(), logits=torch.tensor([[1.0], [1.0], [1.0]])), OptionError, r"are torch.float32 \(3,"),
        (lambda m: m.run([[1, 97, 3], [2, -4]]), ModelError,
         r"token ids \[97, -4\] are outside the vocabulary of in-memory \(0 to 96\); the prompts were made with anot"),
        (lambda m: m.run(clean(), recrod=["z[0]"]), TypeError, "recrod"),
        (lambda m: m.run(clean())["z[0]"], SiteError, r"z\[0\] was not recorded in this run \(recorded: none\); add"),
        (lambda m: m.gradients(clean(), lambda x: x.sum(), ["z[0]"]), MetricError, r"gave shape \(\); one value a pr"),
        (lambda m: m.gradients(clean(), lambda x: torch.ones(3), ["z[0]"]), MetricError,
         "the metric does not depend on the logits in a differentiable way"),
        (lambda m: m.gradients(clean(), _row, ["z[0]"], logits="none"), OptionError, "logits='none' leaves a metric"),
        (lambda m: m.gradients(clean(), _row, []), SiteError, "no sites were given; name at least one"),
        (lambda m: m.capture(clean()), InterventionError, r"capture needs prompts of one length; got \[6, 7, 9\]; gr"),
        (lambda m: m.run([]), PromptError, "no prompts were given; pass at least one text"),
        (lambda m: m.run({"ids": 1}), PromptError, r"prompts are a mapping with \['ids'\]; it needs the tensor 'inpu"),
        (lambda m: m.sites("zz"), SiteError, "no site kind 'zz'"),
    ],
)  # fmt: skip
def test_a_mistaken_call_is_told_what_was_wrong_and_what_is_allowed(call, error, message):
    with pytest.raises(error, match=message), unchecked():
        call(hooked("gpt2"))


def test_what_stands_in_for_padding_never_matters():
    model = hooked("gpt2")
    padded = clean().ids.masked_fill(~clean().mask, -100)
    assert torch.equal(model.run(Prompts(padded, clean().lengths)).logits, model.run(clean()).logits)


def test_a_site_without_a_path_to_the_metric_has_zero_gradients():
    slope = hooked("gpt2").gradients(clean(), _row, ["resid_final"], logits=torch.zeros(3, 1, dtype=torch.long))
    assert bool((slope.gradients[Site("resid_final")][:, 1:] == 0).all())
    assert bool((slope.gradients[Site("resid_final")][:, 0] != 0).any())


# --- memory ---


def _tensors():
    gc.collect()
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def test_memory_is_flat_over_many_runs_and_nothing_keeps_a_model_alive():
    raw = G2()
    model = HookedHF(raw)

    def work(model):
        model.run(clean(), [Edit("z[1]", lambda v: v * 2)], ["pattern[0]", "k[1]", "resid_mid[2]"], logits="all")
        model.gradients(clean(), _row, ["z[1]", "pattern[0]"])
        model.capture(clean()[[0]])

    for _ in range(3):
        work(model)
    before = _tensors()
    for _ in range(50):
        work(model)
    assert _tensors() == before
    dead = [weakref.ref(raw), weakref.ref(model)]
    del raw, model
    gc.collect()
    assert all(ref() is None for ref in dead)


def test_one_prompt_of_ids_and_rows_of_ids_are_told_apart():
    model = hooked("gpt2")
    assert model.run([5, 6, 7]).logits.shape == (1, 1, 97)
    assert torch.equal(model.run([5, 6, 7]).logits, model.run(from_ids([[5, 6, 7]])).logits)


def test_gradients_are_those_of_the_site_itself_when_the_model_goes_on_to_write_into_it():
    class InPlace(torch.nn.LayerNorm):
        """Scales its output in place, after a hook on its inner norm has seen it."""

        def __init__(self, width):
            super().__init__(width)
            self.inner = torch.nn.LayerNorm(width)

        def forward(self, x):
            return self.inner(x).mul_(3.0)

    points = POINTS | {"attn_in": Point("ln_1.inner", "output")}
    where = SiteMap("layers", "norm", "unembed", points=points)
    model = HookedHF(randomised(Decoder(SHAPE, norm=InPlace)).double().eval(), site_map=where, shape=SHAPE)
    slope = model.gradients(clean(), _row, ["attn_in[1]"])
    direction = torch.randn(16, dtype=torch.float64)
    up, down = (_row(model.run(clean(), [Add("attn_in[1]", direction, e)]).logits) for e in (1e-5, -1e-5))
    expected = (slope.gradients[Site("attn_in", 1)] @ direction).sum(1)
    assert torch.allclose((up - down) / 2e-5, expected, atol=1e-7)
