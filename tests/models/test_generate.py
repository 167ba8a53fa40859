"""Generation with interventions: every step is a run of the whole text so far with the same change made.

The oracle is `run` on prompt and new tokens without cache or padding, with positions written as numbers.
"""

from dataclasses import replace

import pytest
import torch
from tiny import FAMILIES, G2, G2D, RAGGED, SLIDING, TK, WINDOW, build, clean, hooked, unchecked

from interp.errors import InterventionError, OptionError, SiteError
from interp.intervention import Add, Edit, Mean, Patch, Resample, Scale, Zero
from interp.models.hf import HookedHF
from interp.site import Site

STEPS = 4
RECORDED = ("resid_post[0]", "q[1]", "k[1]", "v[2]", "z[2]", "neuron[1]", "resid_final")


def _numbers(pos, prompt, total):
    """The word's positions in a text of `total` tokens of which `prompt` were given."""
    words = {
        "all": range(total), "prompt": range(prompt), "new tokens": range(prompt, total),
        "last prompt token": [prompt - 1], "end": [prompt - 1], None: range(total),
    }  # fmt: skip
    return list(words[pos]) if pos is None or isinstance(pos, str) else pos


def _changes(name):
    """An intervention for each word of position, each at another kind of site."""
    torch.manual_seed(3)
    model = hooked(name)
    d = model.shape.d_head
    return [
        Add("resid_post[0]", torch.randn(32) * 2, pos="all"),
        Add("z[1]", torch.randn(d) * 3, pos="prompt", head=1),
        Scale("v[0]", -2.0, pos="last prompt token", head=0),
        Add("mlp_out[1]", torch.randn(32) * 3, pos="new tokens"),
        Add("k[1]", torch.randn(d) * 2, pos="new tokens"),
        Scale("pattern[1]", 0.2, pos="prompt", head=2),
        Zero("pattern[1]", pos="all", unit=[1, 4]),
        Scale("v_of_query_head[1]", 3.0, pos=[0, 3], head=3),
        Edit("resid_pre[2]", lambda x: x.flip(-1), pos=[[5], [1, 4], [0]]),
    ]


def _expected(model, one, row, length, new):
    """Recorded sites and logits of one row's whole text, run at once with numbered positions."""
    text = RAGGED[row] + list(new[:-1])
    pos = one.pos[row] if isinstance(one.pos, list) and isinstance(one.pos[0], list) else one.pos
    numbered = replace(one, pos=_numbers(pos, length, len(text)))
    if not numbered.pos:
        return model.run([text], record=RECORDED, logits="all")
    return model.run([text], [numbered], RECORDED, logits="all")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_word_of_position_means_the_same_in_every_step_with_and_without_cache(name):
    model = hooked(name)
    changes = (
        _changes(name)
        if name in ("gpt2", "llama", "mistral", "gemma2")
        else _changes(name)[list(FAMILIES).index(name) % 2 :: 2]
    )
    texts = set()
    for one in changes:
        cached = model.generate(clean(), STEPS, [one], RECORDED, eos_token_id=None)
        plain = model.generate(clean(), STEPS, [one], use_cache=False, eos_token_id=None)
        assert cached.new_ids == plain.new_ids, str(one)
        texts.add(cached.new_ids)
        for row, ids in enumerate(RAGGED):
            n = len(ids)
            want = _expected(model, one, row, n, cached.new_ids[row])
            assert cached.new_ids[row] == tuple(want.logits[0, n - 1 :].argmax(-1).tolist()), str(one)
            for site in RECORDED:
                start = int(cached.pads[row])
                got = cached.cache[Site.parse(site)][row, start : start + n + STEPS - 1]
                gap = float((got - want[site][0]).abs().max())
                assert gap <= 2e-5 * max(1.0, float(want[site].abs().max())), f"{one} at {site}: {gap:.3g}"
    assert len(texts) > len(changes) / 2


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_is_the_models_own_with_and_without_cache_alone_and_in_a_batch(name):
    raw = build(name)
    model = HookedHF(raw, check=False)
    for row, ids in enumerate(RAGGED):
        own = raw.generate(
            torch.tensor([ids]), max_new_tokens=6, do_sample=False, attention_mask=torch.ones(1, len(ids))
        )
        alone = [model.generate([ids], 6, use_cache=cached).new_ids[0] for cached in (True, False)]
        batch = [model.generate(clean(), 6, use_cache=cached).new_ids[row] for cached in (True, False)]
        assert set(alone + batch) == {tuple(own[0, len(ids) :].tolist())}


@pytest.mark.parametrize("name", SLIDING)
def test_texts_longer_than_a_sliding_window_are_recorded_whole(name):
    model = hooked(name)
    sites, change = ["k[0]", "v[0]"], Add("k[0]", torch.ones(model.shape.d_head), pos="all")
    long = model.generate([RAGGED[1]], 2 * WINDOW, [change], sites, eos_token_id=None)
    run = model.run([[*RAGGED[1], *long.new_ids[0][:-1]]], [change], sites)
    for site in sites:
        assert torch.allclose(long.cache[Site.parse(site)], run[site], atol=2e-5)


def test_recording_works_alone_and_leaves_the_text_as_it_was():
    model = hooked("llama")
    plain = model.generate(clean(), STEPS)
    recorded = model.generate(clean(), STEPS, record=model.sites("z"))
    assert plain.new_ids == recorded.new_ids
    assert plain.cache == {}
    assert recorded.cache[Site("z", 2)].shape == (3, 9 + STEPS - 1, 8, 16)
    assert recorded.pads.tolist() == [3, 0, 2]


# --- where a row stops ---


def test_a_row_ends_at_its_stop_token_whoever_names_it():
    model = hooked("gpt2")
    free = model.generate(clean(), 6, eos_token_id=None).new_ids
    assert [len(row) for row in free] == [6, 6, 6]
    stop = free[1][3]
    expected = tuple(row[: row.index(stop) + 1] if stop in row else row for row in free)
    assert model.generate(clean(), 6, eos_token_id=stop).new_ids == expected
    assert len({len(row) for row in expected}) > 1
    raw = G2()
    raw.generation_config.eos_token_id = [stop, 96]
    assert HookedHF(raw).generate(clean(), 6).new_ids == expected


def test_new_tokens_come_as_text_too():
    made = HookedHF(G2(vocab_size=20), TK()).generate(["when mary gave", "hi"], 3, eos_token_id=None)
    assert [len(ids) for ids in made.new_ids] == [3, 3]
    assert all(isinstance(text, str) and text for text in made.texts)
    assert hooked("gpt2").generate(clean(), 2).texts == ("", "", "")


def test_sampling_follows_the_callers_seed():
    model = hooked("gpt2")
    first, second, other = (
        (torch.manual_seed(s), model.generate(clean(), 8, do_sample=True).new_ids)[1] for s in (1, 1, 2)
    )
    assert first == second != other


# --- what cannot be ---


def _source():
    return hooked("gpt2").run(clean(), record=["resid_post[1]", "pattern[1]"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.generate(clean(), 2, [Patch("resid_post[1]", _source())]), InterventionError,
         r"Patch at resid_post\[1\]: a run has no values at new tokens; say pos='prompt' or give numbers"),
        (lambda m: m.generate(clean(), 2, [Patch("resid_post[1]", _source(), pos="new tokens")]), InterventionError,
         "a run has no values at new tokens"),
        (lambda m: m.generate([RAGGED[0]] * 2, 2, [Resample("z[1]", m.run([RAGGED[0]] * 2, record=["z[1]"]))]),
         InterventionError, "a run has no values at new tokens"),
        (lambda m: m.generate(clean(), 2, [Mean("resid_post[1]", _source(), by_position=True)]), InterventionError,
         "a run has no values at new tokens"),
        (lambda m: m.generate(clean(), 2, [Patch("pattern[1]", _source(), pos="prompt")]), InterventionError,
         "a run's patterns do not fit those of a generation; use Zero, Scale or Edit"),
        (lambda m: m.generate(clean(), 2, record=["pattern[0]"]), OptionError, "never 'pattern'; run.. does both"),
        (lambda m: m.generate(clean(), 2, record=["z[0]"], use_cache=False), OptionError, "only with use_cache=True"),
        (lambda m: m.generate(clean(), 2, record=["z[9]"]), SiteError, r"z\[9\]: layer out of range"),
        (lambda m: m.generate(clean(), 1, [Zero("z[0]", pos="new tokens")]), InterventionError, r"fired 0 times at t"),
        (lambda m: m.generate(clean(), 2, num_beams=2), OptionError, "num_beams=2 gives rows that are not the prompt"),
        (lambda m: m.generate(clean(), 2, do_sample=True, num_return_sequences=3), OptionError, "num_return_sequence"),
        (lambda m: m.generate(clean(), 2, return_dict_in_generate=True), OptionError, "return_dict_in_generate=True"),
        (lambda m: m.generate(clean(), 2, flubber=1), ValueError, "flubber"),
        (lambda m: m.generate(clean(), 0), OptionError, "max_new_tokens=0; at least 1"),
    ],
)  # fmt: skip
def test_what_a_generation_cannot_do_is_refused_with_the_reason(call, error, message):
    with pytest.raises(error, match=message), unchecked():
        call(hooked("gpt2"))


def test_patches_from_a_run_serve_at_the_prompt():
    model, source = hooked("gpt2"), _source()
    by_word = model.generate(clean(), 3, [Patch("resid_post[1]", source, pos="prompt")])
    numbers = [list(range(len(ids))) for ids in RAGGED]
    assert by_word.new_ids == model.generate(clean(), 3, [Patch("resid_post[1]", source, pos=numbers)]).new_ids
    assert by_word.new_ids == model.generate(clean(), 3).new_ids
    other = model.generate(clean(), 3, [Patch("resid_post[1]", torch.randn(32) * 5, pos="prompt")])
    assert other.new_ids != by_word.new_ids


def test_a_mean_over_a_run_serves_everywhere():
    mean = Mean("resid_post[1]", _source(), skip=1)
    model = hooked("gpt2")
    assert model.generate(clean(), 3, [mean]).new_ids == model.generate(clean(), 3, [mean], use_cache=False).new_ids


def test_dropout_alone_changes_nothing_in_eval_mode():
    assert HookedHF(G2D()).generate(clean(), 3).new_ids == hooked("gpt2").generate(clean(), 3).new_ids
