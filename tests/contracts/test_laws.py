"""The laws that keep results from being silently wrong, over every family of decoder."""

import pytest
import torch
from tiny import (
    CHANGED,
    EAGER_ONLY,
    F64,
    FAMILIES,
    PARALLEL,
    RAGGED,
    answers,
    build,
    clean,
    corrupted,
    hooked,
    hooked64,
    state,
)

from interp.cells import Part, Source
from interp.errors import InterventionError, SiteError
from interp.intervention import Add, Edit, Patch, Zero
from interp.metrics import metric
from interp.models.hf import HookedHF
from interp.scoring import Scorer
from interp.site import KINDS, Site
from interp.sweep import sweep
from interp.sweep_plan import NO_DIFFERENCE
from interp.tokens import Prompts, from_ids

OWN_MATHS = ("pattern", "k_of_query_head", "v_of_query_head")
"""Kinds whose edit goes through the library's own attention arithmetic, so it may differ by rounding."""

family = pytest.mark.parametrize("name", FAMILIES)


def _raw(model, prompts):
    """What the model itself says, called as a user would."""
    mask, positions = prompts.mask.long(), prompts.position_ids
    with torch.no_grad():  # with a cache, keys lie in memory in another way and eager attention rounds differently
        return model(input_ids=prompts.ids, attention_mask=mask, position_ids=positions, use_cache=False).logits


def _sites(model, *without):
    return [s for s in model.sites() if s.kind not in without]


def _close(a, b, limit):
    gap = float((a - b).abs().max())
    assert gap <= limit * max(1.0, float(b.abs().max())), f"largest difference {gap:.3g}"


def _real(x, site, row, length, at=0):
    """The part of a recorded activation that belongs to one prompt's real tokens."""
    x = x[row].narrow(1 if site.kind == "pattern" else 0, at, length)
    return x.narrow(2, at, length) if site.kind == "pattern" else x


# --- law 1: looking changes nothing ---


@family
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_law_1_logits_are_bit_equal_without_hooks_with_no_op_edits_and_with_every_site_recorded(name, attention):
    if attention == "sdpa" and name in EAGER_ONLY:
        pytest.skip("this family has no sdpa attention")
    raw = hooked(name).model if attention != "eager" else build(name, attn_implementation="eager")
    model, prompts = HookedHF(raw, check=False), clean()
    expected = _raw(raw, prompts)
    assert raw.config._attn_implementation == attention or name in EAGER_ONLY
    assert torch.equal(model.run(prompts, logits="all").logits, expected)
    assert torch.equal(model.run(prompts, record=model.sites(), logits="all").logits, expected)
    edits = [Edit(site, lambda v: v) for site in _sites(model, *OWN_MATHS)]
    assert torch.equal(model.run(prompts, edits, logits="all").logits, expected)
    own = [Edit(site, lambda v: v) for site in model.sites(*OWN_MATHS)]
    _close(model.run(prompts, own, logits="all").logits, expected, 1e-5)
    _close(model.run(prompts, logits="last").logits[:, 0], expected[range(3), prompts.last], 1e-5)


@family
def test_law_1_a_no_op_at_any_one_site_and_a_self_patch_there_leave_a_row_bit_equal(name):
    model = hooked(name)
    sites = _sites(model, *OWN_MATHS)
    one = from_ids([RAGGED[2]])
    many = Prompts(one.ids.expand(len(sites), -1), one.lengths.expand(len(sites)))
    itself = model.run(many, record=sites, logits="all")
    no_ops = [Edit(site, lambda v: v, rows=row) for row, site in enumerate(sites)]
    patches = [Patch(site, itself, rows=row) for row, site in enumerate(sites)]
    for interventions in (no_ops, patches):
        logits = model.run(many, interventions, logits="all").logits
        differing = [str(s) for s, a, b in zip(sites, logits, itself.logits, strict=True) if not torch.equal(a, b)]
        assert not differing


@family
def test_law_1_in_true_float64_even_edited_patterns_leave_logits_within_1e_10(name):
    with F64():
        model = hooked64(name)
        expected = _raw(model.model, clean())
        own = [Edit(site, lambda v: v) for site in model.sites(*OWN_MATHS)]
        _close(model.run(clean(), own, logits="all").logits, expected, 1e-10)


def test_the_float64_mode_is_effective():
    """Without it, a Llama in double computes its norms in float32; within it, no float32 number is made."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made.update(x.dtype for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
            return out

    for name in FAMILIES:
        model = hooked64(name)
        made = set()
        with F64(), Made():
            model.run(clean(), record=model.sites(), logits="all")
        assert torch.float64 in made
        assert torch.float32 not in made, name
    with Made():
        hooked64("llama").run(clean())
    assert torch.float32 in made


# --- law 2: a result belongs to its prompt alone ---


@family
def test_law_2_activations_logits_and_gradients_do_not_depend_on_batch_padding_side_or_width(name):
    model = hooked(name)
    prompts, sites = clean(), model.sites()
    wide = torch.nn.functional.pad(prompts.ids, (0, 3), value=50)
    left = torch.stack([row.roll(9 - int(n)) for row, n in zip(prompts.ids, prompts.lengths, strict=True)])
    mask = torch.arange(9) >= 9 - prompts.lengths[:, None]
    batches = [prompts, Prompts(wide, prompts.lengths), from_ids(left, mask)]
    read = lambda logits: logits[:, 0, 10] - logits[:, 0, 20]  # noqa: E731
    runs = [model.run(b, record=sites, logits="all") for b in batches]
    grads = [model.gradients(b, read, sites) for b in batches]
    for row, ids in enumerate(RAGGED):
        alone, slope, n = model.run([ids], record=sites, logits="all"), model.gradients([ids], read, sites), len(ids)
        for run, grad in zip(runs, grads, strict=True):
            _close(run.logits[row, :n], alone.logits[0], 1e-5)
            _close(grad.values[row], slope.values[0], 1e-5)
            for site in sites:
                _close(_real(run[site], site, row, n), alone[site][0], 1e-5)
                _close(_real(grad.gradients[site], site, row, n), slope.gradients[site][0], 1e-5)


@family
def test_law_2_a_sweep_does_not_depend_on_batch_or_order(name):
    model = hooked(name)
    parts = [Part(s) for s in model.sites() if s.layer in (None, 1)] + [Part(Site("z", 2), None, 1)]
    cells = [(part,) for part in parts]

    def swept(rows):
        score = Scorer(model, (metric("logit_diff"),), answers()[rows])
        return sweep(model, clean()[rows], Source(corrupted()[rows]), cells, score, progress=False).effects[0]

    together = swept([0, 1, 2])
    _close(swept([2, 0])[:, [1, 0]], together[:, [0, 2]], 1e-5)
    _close(swept([1])[:, 0], together[:, 1], 1e-5)
    assert float(together.abs().max()) > 0.05


# --- gradients ---


@family
def test_gradients_at_every_site_agree_with_finite_differences(name):
    """One row a site and direction, all in one batch: (m(x + e d) - m(x - e d)) / 2e = gradient . d."""
    step = 1e-5
    with F64():
        model = hooked64(name)
        sites = [s for s in model.sites() if s.layer in (None, 1)]
        one = from_ids([RAGGED[2]])
        many = Prompts(one.ids.expand(len(sites), -1), one.lengths.expand(len(sites)))
        read = lambda logits: logits[:, :, 10].sum(1) - logits[:, :, 20].sum(1)  # noqa: E731
        slope = model.gradients(one, read, sites, logits="all")
        directions = [torch.randn(slope.gradients[s].shape, dtype=torch.float64) for s in sites]
        assert all(g.dtype == torch.float64 for g in slope.gradients.values())

        def moved(size):
            adds = [Add(s, d, size, rows=r) for r, (s, d) in enumerate(zip(sites, directions, strict=True))]
            return read(model.run(many, adds, logits="all").logits)

        measured = (moved(step) - moved(-step)) / (2 * step)
        expected = torch.stack([(slope.gradients[s] * d).sum() for s, d in zip(sites, directions, strict=True)])
        wrong = {str(s): (float(m), float(e)) for s, m, e in zip(sites, measured, expected, strict=True)
                 if abs(m - e) > 1e-5 * max(1.0, abs(e))}  # fmt: skip
        assert not wrong
        assert float(expected.abs().min()) > 1e-3


@family
def test_gradients_of_neighbouring_interventions_pass_through_them(name):
    """With a site zeroed upstream, gradients are those of the changed run; values match a run with the same change."""
    with F64():
        model = hooked64(name)
        zero = Zero("attn_out[0]", pos=1)
        read = lambda logits: logits[:, 0, 10]  # noqa: E731
        slope = model.gradients(clean(), read, ["resid_post[1]", "attn_out[0]"], [zero])
        run = model.run(clean(), [zero], ["resid_post[1]", "attn_out[0]"])
        _close(slope.values, run.logits[:, 0, 10], 1e-10)
        _close(slope.activations[Site("resid_post", 1)], run["resid_post[1]"], 1e-10)
        assert bool((slope.activations[Site("attn_out", 0)][:, 1] == 0).all())
        direction = torch.randn(32, dtype=torch.float64)
        up, down = (
            model.run(clean(), [zero, Add("attn_out[0]", direction, e, pos=1)]).logits[:, 0, 10] for e in (1e-5, -1e-5)
        )
        _close((up - down) / 2e-5, slope.gradients[Site("attn_out", 0)][:, 1] @ direction, 1e-5)


# --- law 3: no difference, no effect ---


@family
def test_law_3_a_self_patch_is_not_run_and_the_same_patch_forced_agrees(name):
    model = hooked(name)
    cells = [(Part(s),) for s in model.sites() if s.layer in (None, 1)] + [(Part(Site("z", 1), ((2,), (6,)), 1),)]
    prompts = clean()[[0, 2]]
    score = Scorer(model, (metric("logit_diff"),), answers(prompts))
    result = sweep(model, prompts, Source(prompts), cells, score, progress=False)
    assert bool((result.effects == 0).all())
    assert bool((result.reasons == NO_DIFFERENCE).all())
    assert result.plan.run == 0
    for engine in ("wave", "plain"):
        forced = sweep(model, prompts, Source(prompts), cells, score, engine=engine, skip_zeros=False, progress=False)
        assert forced.plan.run == forced.plan.patches
        _close(forced.effects, torch.zeros(1), 1e-5)


# --- law 4: what cannot be is said ---


@family
def test_law_4_sites_layers_and_indices_that_match_nothing_are_refused(name):
    model = hooked(name)
    last = model.shape.n_layers - 1
    with pytest.raises(SiteError, match=rf"z\[{last + 1}\]: layer out of range; in-memory has layers 0 to {last}\."):
        model.run(clean(), record=[f"z[{last + 1}]"])
    for kind, heads in (("z", model.shape.n_heads), ("k", model.shape.n_kv_heads)):
        with pytest.raises(InterventionError, match=rf"head \[{heads}\] out of range; allowed 0 to {heads - 1}\."):
            model.run(clean(), [Zero(Site(kind, 0), head=heads)])
    if name in PARALLEL:
        with pytest.raises(SiteError, match="has no resid_mid: attention and MLP run in parallel and read the same"):
            model.sites("resid_mid")
    else:
        assert len(model.sites("resid_mid")) == last + 1


# --- law 5: nothing is left behind ---


class BoomError(Exception):
    pass


def _boom(error):
    def fail(values):
        raise error

    return fail


def _ways_to_fail(model, error):
    """Calls that raise `error` inside: at a first, middle and last site, in a metric, in backward, in generation."""
    prompts, sites = clean(), model.sites()
    middle = "resid_mid[1]" if "resid_mid" not in model.unavailable else "attn_out[1]"
    places = ["embed", "q[0]", "pattern[1]", middle, "v_of_query_head[1]", "neuron[2]", "resid_post[2]", "resid_final"]
    for place in places:
        yield f"run at {place}", lambda p=place: model.run(prompts, [Edit(p, _boom(error))], record=sites)
    yield "gradients", lambda: model.gradients(prompts, lambda x: x[:, 0, 0], sites, [Edit("k[1]", _boom(error))])
    yield "metric", lambda: model.gradients(prompts, _boom(error), sites)
    yield "backward", lambda: model.gradients(prompts, lambda x: _Failing.apply(x[:, 0, 0], error), sites)
    yield "generate", lambda: model.generate(prompts, 3, [Edit("z[1]", _boom(error), pos="new tokens")])
    score = Scorer(model, (metric("logit_diff"),), answers())
    handle = model._norm.register_forward_hook(_third(error))
    try:
        yield (
            "sweep",
            lambda: sweep(model, prompts, Source(corrupted()), [(Part(Site("z", 1)),)], score, progress=False),
        )
    finally:
        handle.remove()


def _third(error):
    """A user's hook that raises at its third call: after base and source of a sweep, in the resumed run."""
    calls = []

    def hook(module, args, output):
        calls.append(1)
        if len(calls) == 3:
            raise error

    return hook


class _Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


@pytest.mark.parametrize(
    ("name", "error"), [(name, KeyboardInterrupt()) for name in FAMILIES] + [("llama", BoomError("here"))]
)
def test_law_5_whatever_is_raised_inside_the_model_is_left_as_it_was(name, error):
    raw = build(name)
    for p in list(raw.parameters())[::2]:
        p.requires_grad_(False)
    last = list(raw.parameters())[1]
    last.grad = torch.ones_like(last)
    raw.register_forward_hook(lambda *_: None)
    model = HookedHF(raw, check=False)
    before, logits = state(raw), model.run(clean(), logits="all").logits
    for what, call in _ways_to_fail(model, error):
        if what == "sweep":
            before_sweep = state(raw)
        with pytest.raises(type(error)):
            call()
        assert state(raw) == (before_sweep if what == "sweep" else before), what
    assert state(raw) == before
    assert torch.equal(model.run(clean(), logits="all").logits, logits)


@family
def test_law_5_every_verb_leaves_model_and_randomness_as_they_were(name):
    raw = build(name)
    for p in list(raw.parameters())[::2]:
        p.requires_grad_(False)
    before = state(raw)
    model = HookedHF(raw)
    assert state(raw) == before, "loading"
    prompts, sites = clean(), model.sites()
    score = Scorer(model, (metric("logit_diff"),), answers())
    verbs = {
        "run": lambda: model.run(prompts, [Zero("z[1]", head=1)], sites, logits="all"),
        "gradients": lambda: model.gradients(prompts, lambda x: x[:, 0, 0], sites),
        "generate": lambda: model.generate(prompts, 3, [Zero("z[1]")], ["v[2]"]),
        "wave": lambda: sweep(model, prompts, Source(corrupted()), [(Part(Site("z", 1)),)], score, progress=False),
        "plain": lambda: sweep(model, prompts, Source(corrupted()), [(Part(Site("z", 1)),)], score, engine="plain"),
    }
    for what, verb in verbs.items():
        verb()
        assert state(raw) == before, what


@family
def test_law_5_recorded_activations_are_copies_without_a_graph(name):
    model = hooked(name)
    everything = [Edit(s, lambda v: v.mul_(0.0)) for s in model.sites()]
    clean_run = model.run(clean(), record=model.sites(), logits="all")
    kept = {site: x.clone() for site, x in clean_run.cache.items()}
    model.run(clean(), everything, record=model.sites())
    model.gradients(clean(), lambda x: x[:, 0, 0], model.sites())
    assert all(torch.equal(clean_run[site], x) for site, x in kept.items())
    assert all(x.grad_fn is None and not x.requires_grad for x in (*clean_run.cache.values(), clean_run.logits))
    owners = [x.untyped_storage().data_ptr() for x in clean_run.cache.values()]
    assert len(set(owners)) == len(owners)
    slope = model.gradients(clean(), lambda x: x[:, 0, 0], model.sites())
    assert all(x.grad_fn is None for part in (slope.gradients, slope.activations) for x in part.values())


def test_prompts_that_differ_do_differ():
    assert all(len(a) == len(b) and a != b for a, b in zip(RAGGED, CHANGED, strict=True))
    assert set(KINDS) == {s.kind for s in hooked("gpt2").sites()}
