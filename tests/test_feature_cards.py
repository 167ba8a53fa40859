"""Feature cards: every number against a slow count, and the file."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from circuits import EFFECT, mask, unchecked
from tiny import RAGGED, TK, build, hooked

from interp.card_making import circuit_cards, feature_cards
from interp.cards import FeatureCard, TokenValue, load_cards, save_cards
from interp.circuit import Circuit, Score
from interp.errors import CircuitError, FileError, ModelError, OptionError, PromptError
from interp.featurizers.base import Featurizer, flat
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.linear import coordinates, orthonormal
from interp.models.base import HookedModel
from interp.models.hf import HookedHF
from interp.nodes import Nodes
from interp.readouts.directions import direction_logits
from interp.site import Site

UNITS = [3, 0, 17]


def sparse(model: HookedModel, site: str, n: int = 24, seed: int = 0, **options) -> Dictionary:
    """A random dictionary of which about a third is active, and unit 5 never."""
    d = flat(model.run(RAGGED, record=[site])[site]).shape[-1]
    generator = torch.Generator().manual_seed(seed)
    encoder, decoder = (torch.randn(d, n, generator=generator) for _ in range(2))
    bias = torch.full((n,), -0.3)
    bias[5] = -1e6
    return Dictionary(
        site, encoder=encoder / d**0.5, bias=bias, decoder=decoder.T, decoder_bias=torch.zeros(d), **options
    )  # fmt: skip


def activations(model: HookedModel, one: Featurizer, unit: int, prompts=RAGGED) -> list[np.ndarray]:
    """A feature on each prompt run alone, from `skip` on."""
    runs = [model.run([row], record=[one.reads])[one.reads] for row in prompts]
    return [one.encode(flat(x))[0, one.skip :, unit].double().numpy() for x in runs]


def quiet(model, units, prompts=RAGGED, **options) -> list[FeatureCard]:
    return feature_cards(model, units, prompts, progress=False, **options)


# --- numbers ---


@pytest.mark.parametrize("skip", [0, 2])
def test_every_number_is_the_one_counted_by_hand(skip):
    model = hooked("gpt2")
    one = sparse(model, "mlp_out[1]", skip=skip)
    for card in quiet(model, {one: UNITS}, at_least=1, batch=2):
        rows = activations(model, one, card.unit)
        every = np.concatenate(rows)
        assert card.n_tokens == len(every) == sum(map(len, RAGGED)) - 3 * skip
        assert card.density == (every > 0).mean() and 0 < card.density < 1
        assert (card.max, card.mean) == pytest.approx((every.max(), every.mean()), abs=1e-5)
        assert sum(card.counts) == (every > 0).sum() and len(card.edges) == len(card.counts) + 1
        assert (card.edges[0], card.edges[-1]) == pytest.approx((every[every > 0].min(), every.max()), abs=1e-5)
        peaks = {row: values.max() for row, values in enumerate(rows) if values.max() > 0}
        assert [context.prompt for context in card.contexts] == sorted(peaks, key=lambda row: -peaks[row])
        for context in card.contexts:
            values = rows[context.prompt]
            assert context.position == values.argmax() + skip
            assert context.activations[context.peak] == pytest.approx(values.max(), abs=1e-5)


def test_a_coordinate_is_shown_as_it_is_in_the_run():
    model = hooked("llama")
    (card,) = quiet(model, {coordinates(model, "resid_post[1]"): [7]}, window=30)
    run = model.run(RAGGED, record=["resid_post[1]"])
    for context in card.contexts:
        own = run["resid_post[1]"][context.prompt, : len(RAGGED[context.prompt]), 7]
        assert context.start == 0 and context.position == int(own.argmax())
        assert list(context.activations) == pytest.approx(own.tolist(), abs=1e-5)
        assert context.tokens == tuple(f" {token}" for token in RAGGED[context.prompt])
    assert card.node == "resid_post[1] unit 7" and card.density == 1


def test_a_window_stands_around_the_maximum_and_skipped_tokens_are_shown_without_a_value():
    model = hooked("gpt2")
    one = replace(coordinates(model, "embed"), skip=2)
    for card in quiet(model, {one: list(range(8))}, window=2):
        for context in card.contexts:
            row = RAGGED[context.prompt]
            first, last = max(0, context.position - 2), min(len(row), context.position + 3)
            assert context.start == first and context.tokens == tuple(f" {token}" for token in row[first:last])
            assert [value is None for value in context.activations] == [pos < 2 for pos in range(first, last)]
            assert context.position >= 2


def test_top_contexts_are_at_most_so_many_and_none_where_the_feature_is_silent():
    model = hooked("gpt2")
    one = sparse(model, "mlp_out[1]")
    first, dead = quiet(model, {one: [3, 5]}, top=1)
    every = quiet(model, {one: [3]})[0]
    assert first.contexts == every.contexts[:1]
    assert dead.contexts == dead.top_tokens == dead.counts == dead.edges == ()
    assert (dead.density, dead.max, dead.mean) == (0, 0, 0)


def test_top_tokens_have_the_largest_mean_among_those_that_occur_often_enough():
    model = hooked("gpt2")
    prompts = [[5, 9, 5, 9, 7], [9, 5, 7, 7, 9], [5, 30]]
    one = coordinates(model, "resid_post[0]")
    (card,) = quiet(model, {one: [4]}, prompts, at_least=3, tokens=2)
    rows = activations(model, one, 4, prompts)
    means = {
        token: np.mean(
            [
                v
                for row, values in zip(prompts, rows, strict=True)
                for t, v in zip(row, values, strict=True)
                if t == token
            ]
        )
        for token in (5, 7, 9)
    }
    best = sorted(means, key=lambda token: -means[token])[:2]
    assert [(one.token, one.count) for one in card.top_tokens] == [(str(t), {5: 4, 7: 3, 9: 4}[t]) for t in best]
    assert [one.value for one in card.top_tokens] == pytest.approx([means[t] for t in best], abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_a_padded_batch_gives_the_cards_of_prompts_run_alone(name):
    model = hooked(name)
    one = sparse(model, "resid_post[1]", select="topk", k=4)
    together, alone = (quiet(model, {one: UNITS}, batch=batch) for batch in (3, 1))
    for a, b in zip(together, alone, strict=True):
        assert [(c.prompt, c.position) for c in a.contexts] == [(c.prompt, c.position) for c in b.contexts]
        assert a.density == b.density and sum(a.counts) == sum(b.counts)
        assert (a.max, a.mean) == pytest.approx((b.max, b.mean), rel=1e-4)


def test_several_featurizers_share_a_pass_and_cards_come_in_the_order_given(monkeypatch):
    model = hooked("gpt2")
    late, early = sparse(model, "resid_post[2]"), coordinates(model, "attn_out[0]")
    apart = [*quiet(model, {late: [3]}), *quiet(model, {early: [1, 0]})]
    runs = []
    inner = type(model).run
    monkeypatch.setattr(HookedHF, "run", lambda *args, **options: runs.append(1) or inner(*args, **options))
    monkeypatch.setattr("interp.card_making.direction_logits", lambda model, site, rows: torch.zeros(len(rows), 97))
    together = quiet(model, {late: [3], early: [1, 0]})
    assert len(runs) == 1
    assert [card.node for card in together] == [
        "resid_post[2] featurizer 'dictionary.resid_post[2]' unit 3", "attn_out[0] unit 1", "attn_out[0] unit 0",
    ]  # fmt: skip
    assert [card.contexts for card in together] == [card.contexts for card in apart]


def test_a_transcoder_is_read_where_it_reads_and_speaks_where_it_writes():
    model = hooked("gpt2")
    one = replace(sparse(model, "mlp_in[1]"), site="mlp_out[1]")
    (card,) = quiet(model, {one: [3]})
    assert card.site == "mlp_out[1]" and card.promoted
    assert card.max == pytest.approx(max(row.max() for row in activations(model, one, 3)), abs=1e-5)


def test_tokens_are_texts_where_there_is_a_tokenizer():
    model = HookedHF(build("gpt2"), TK())
    (card,) = quiet(model, {coordinates(model, "embed"): [0]}, ["when mary gave paris", "the book"], at_least=1)
    assert {context.tokens for context in card.contexts} == {
        (" when", " mary", " gave", " par", " ##is"), (" the", " book")  # its decoder puts spaces between tokens
    }  # fmt: skip
    assert {one.token for one in card.top_tokens} <= {*"when mary gave par ##is the book".split()}
    assert "mary" in [
        one.token for one in quiet(model, {coordinates(model, "embed"): [0]}, ["mary"], tokens=90)[0].promoted
    ]


# --- tokens of a direction ---


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "olmo2", "gpt_neox", "gptj"])
def test_a_direction_speaks_for_tokens_as_the_models_own_norm_and_unembedding_read_it(name):
    model = hooked(name)
    directions = torch.randn(5, 32)
    norm, unembed = model.module("final_norm"), model.module("unembed")
    for kind in ("resid_pre", "resid_post", "attn_out", "mlp_out"):
        logits = direction_logits(model, Site(kind, 1), directions)
        unit = directions / directions.square().mean(-1, keepdim=True).sqrt()
        with torch.no_grad():  # odd part of the norm: its bias is left out
            torch.testing.assert_close(
                logits, unembed((norm(unit) - norm(-unit)) / 2) - unembed(0 * unit), atol=1e-4, rtol=1e-4
            )
    longer = direction_logits(model, Site("mlp_out", 1), 100 * directions)
    torch.testing.assert_close(longer, logits, atol=1e-4, rtol=1e-4)
    after = direction_logits(model, Site("resid_final"), directions)
    with torch.no_grad():
        torch.testing.assert_close(after, unembed(unit) - unembed(0 * unit), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_a_direction_of_heads_goes_through_the_output_projection_and_the_norm_behind_it(name):
    model = hooked(name)
    direction = torch.randn(1, model.shape.n_heads * model.shape.d_head)
    block = model.model.transformer.h[1] if name == "gpt2" else model.model.model.layers[1]
    project = block.attn.c_proj if name == "gpt2" else block.self_attn.o_proj
    with torch.no_grad():
        written = project(direction) - project(0 * direction)
        if name == "gemma2":
            written = block.post_attention_layernorm(written)
    got = direction_logits(model, Site("z", 1), direction)
    torch.testing.assert_close(got, direction_logits(model, Site("attn_out", 1), written), atol=1e-3, rtol=1e-3)


def test_promoted_and_suppressed_are_the_ends_of_these_logits_or_there_is_a_reason():
    model = hooked("gpt2")
    one = sparse(model, "mlp_out[1]")
    one.decoder[4] = 0
    cards = quiet(model, {one: [3, 4], coordinates(model, "neuron[1]"): [0]}, tokens=3)
    logits = direction_logits(model, one.site, one.decoder[3:4])[0]
    order = logits.argsort(descending=True).tolist()
    assert [one.token for one in cards[0].promoted] == [str(i) for i in order[:3]]
    assert [one.token for one in cards[0].suppressed] == [str(i) for i in order[::-1][:3]]
    assert cards[0].promoted[0].value == pytest.approx(float(logits.max())) and cards[0].no_lens == ""
    assert cards[1].no_lens == "its direction is zero" and cards[1].promoted == ()
    assert "neuron[1] do not stand in the residual stream" in cards[2].no_lens and cards[2].suppressed == ()


# --- cards of a circuit ---


def test_a_circuits_kept_features_get_cards_with_their_scores():
    model = hooked("gpt2")
    one = sparse(model, "mlp_out[1]", key="sae")
    heads = coordinates(model, "z[0]")
    names = [
        "mlp_out[1] featurizer sae unit 3 pos 1", "mlp_out[1] featurizer sae unit 3 pos 2",
        "mlp_out[1] featurizer sae unit 7", "mlp_out[1] featurizer sae error", "mlp_out[1] featurizer sae unit 8",
        "z[0] head 2 unit 1", "z[0] head 1", "mlp_out[1] featurizer sae unit 3 pos 3",
    ]  # fmt: skip
    scores = np.array([1.0, 0.5, np.nan, 9.0, 5.0, -4.0, 8.0, np.nan])
    circuit = Circuit(
        Nodes.of(names), scores={"s": Score(EFFECT, scores)}, kept_nodes=mask("11110111"), featurizers={"sae": "random"}
    )  # fmt: skip
    cards = circuit_cards(model, circuit, [one, heads], RAGGED, progress=False)
    assert [(card.node, card.effect) for card in cards] == [
        ("z[0] head 2 unit 1", -4), ("mlp_out[1] featurizer sae unit 3", 1.5),
        ("mlp_out[1] featurizer sae unit 7", None),
    ]  # fmt: skip
    z = model.run(RAGGED, record=["z[0]"])["z[0]"]
    assert cards[0].max == pytest.approx(max(float(z[r, : len(row), 2, 1].max()) for r, row in enumerate(RAGGED)))
    with pytest.raises(CircuitError, match=r"needs these featurizers too: coordinates at z\[0\]"):
        circuit_cards(model, circuit, {"sae": one}, RAGGED)
    with pytest.raises(CircuitError, match="no score 't' over nodes; this circuit has"):
        circuit_cards(model, circuit, [one, heads], RAGGED, score="t")
    with pytest.raises(CircuitError, match="keeps no feature"):
        circuit_cards(model, Circuit(Nodes.of(["z[0] head 1"])), [one], RAGGED)


def test_given_effects_stand_on_their_cards():
    model = hooked("gpt2")
    one = coordinates(model, "mlp_out[1]")
    cards = quiet(model, {one: [0, 1, 2]}, effects={"mlp_out[1] unit 1": -0.5, "mlp_out[1] unit 2": float("nan")})
    assert [card.effect for card in cards] == [None, -0.5, None]


# --- mistakes ---


@pytest.mark.parametrize(
    ("units", "options", "message"),
    [
        ([1, 32, -1], {}, r"units \[32, -1\] \(it has 0 to 31\); give each wanted unit once"),
        ([1, 1], {}, "units given more than once"),
        ([], {}, r"units \[\] are no list of whole numbers"),
        ([0.5], {}, r"units \[0.5\] are no list of whole numbers"),
        ([0], {"top": 0}, "window=16, {'top': 0, .*allowed: window from 0, the others from 1"),
        (
            [0],
            {"effects": {"mlp_out[1] unit 3": 1.0}},
            r"effects are given for \['mlp_out\[1\] unit 3'\], of which no card",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_any_run(units, options, message):
    model = hooked("gpt2")
    with unchecked(), pytest.raises(OptionError, match=message):
        quiet(model, {coordinates(model, "mlp_out[1]"): units}, **options)


def test_units_without_their_featurizer_are_refused():
    with unchecked(), pytest.raises(OptionError, match=r"units are a list; give a mapping, such as \{dictionary:"):
        feature_cards(hooked("gpt2"), [1, 2], RAGGED)


def test_prompts_that_are_skipped_whole_and_features_that_are_not_finite_are_errors():
    model = hooked("gpt2")
    with pytest.raises(PromptError, match="skips the first 9 positions, and no prompt is longer"):
        quiet(model, {replace(coordinates(model, "mlp_out[1]"), skip=9): [0]})
    broken = sparse(model, "mlp_out[1]")
    broken.bias[3] = torch.inf
    with pytest.raises(ModelError, match=r"units \[3\] are not finite on these prompts"):
        quiet(model, {broken: [0, 3]})


# --- files ---


def made() -> list[FeatureCard]:
    model = hooked("gpt2")
    basis = orthonormal("resid_post[1]", torch.eye(32)[:, :4], key="four", skip=1)
    node = "neuron[0] unit 3"
    return quiet(model, {basis: [0, 2], coordinates(model, "neuron[0]"): [3]}, effects={node: 1.0}, at_least=1)


def test_cards_come_back_from_their_file_as_they_were(tmp_path):
    cards = made()
    odd = replace(cards[0], top_tokens=(TokenValue("é\n\u2028\udcff", 1.5, 2), TokenValue("<b>", 2.0)))
    path = save_cards([odd, *cards], tmp_path / "new" / "cards.json")
    assert load_cards(path) == [odd, *cards]
    assert save_cards([], path) == path and load_cards(path) == []


def test_numbers_that_json_lacks_are_not_written_and_the_older_file_stays(tmp_path):
    path = save_cards(made(), tmp_path / "cards.json")
    before = path.read_bytes()
    with pytest.raises(FileError, match="cannot be written .*; give finite numbers, or None for no effect"):
        save_cards([replace(made()[0], effect=float("nan"))], path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | {"schema": 2}, "has schema 2; this version reads 1"),
        (lambda d: d | {"schema": True}, "has schema True"),
        (lambda d: d | {"format": "a circuit"}, "holds no interp feature cards"),
        (lambda d: [d], "holds no interp feature cards"),
        (lambda d: d | {"cards": None}, "damaged .cards is None, not tuple"),
        (lambda d: d["cards"][0].update(max="x") or d, r"damaged .cards\[0\].max is 'x', not float"),
        (lambda d: d["cards"][0].update(unit=True) or d, r"damaged .cards\[0\].unit is True, not int"),
        (lambda d: d["cards"][0].pop("edges") and d, r"damaged .cards\[0\] has the entries \["),
        (
            lambda d: d["cards"][0]["contexts"][0].update(evil=1) or d,
            r"damaged .cards\[0\].contexts\[0\] has the entries",
        ),
        (lambda d: d["cards"][1].update(mean=float("inf")) or d, "damaged .Infinity is no number of a card"),
    ],
)
def test_a_damaged_file_is_one_clear_error(change, message, tmp_path):
    path = save_cards(made(), tmp_path / "cards.json")
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(FileError, match=message):
        load_cards(path)


def test_a_truncated_nested_missing_or_huge_file_is_one_clear_error(tmp_path, monkeypatch):
    path = save_cards(made(), tmp_path / "cards.json")
    whole = path.read_bytes()
    for broken in (whole[:-100], b"\xff\xfe" + whole, b"[" * 100_000, b""):
        path.write_bytes(broken)
        with pytest.raises(FileError, match="is damaged .*; restore it from a copy"):
            load_cards(path)
    with pytest.raises(FileError, match="cannot read feature cards at .*nothing.json"):
        load_cards(tmp_path / "nothing.json")
    monkeypatch.setattr("interp.cards.MAX_BYTES", 10)
    path.write_bytes(whole)
    with pytest.raises(FileError, match="feature cards take up to 10: make fewer at a time"):
        load_cards(path)
