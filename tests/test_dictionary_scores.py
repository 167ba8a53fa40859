"""SCR and TPP: ablations of pooled features against real runs, planted concepts, notes and errors."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from dictionaries import random_dictionary
from labelled_examples import Words, four_groups, plain_model, random_texts, worded
from tiny import VOCAB, state

from interp import dictionary_scores
from interp.classifier import text_prompts
from interp.dictionary_scores import PROBE, SIZES, Pooled, Reading, pooled, scr, tpp
from interp.errors import OptionError, PromptError, SiteError, TaskError
from interp.feature_values import FeatureEdit, Split
from interp.featurizers.base import Featurizer, flat
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.linear import coordinates, orthonormal
from interp.labelled.base import Labelled
from interp.models.base import HookedModel
from interp.models.blank import blank_gpt2
from interp.models.hf import HookedHF
from interp.probes import Probe, ProbeSettings, pool
from interp.table import Table

FAST = ProbeSettings(learning_rate=0.05, epochs=40, batch=16, l1=1e-3)
SITE = "resid_post[0]"
TEXTS = random_texts(11)
FOUR = four_groups(range(1, 8))


def leaning(label: float = 1.0, attribute: float = 3.0) -> HookedHF:
    """The mean over a text is (+-label, +-attribute, 1, 1, 1, 1, 1, 1)."""
    model = plain_model()
    rows = model.model.transformer.wte.weight
    rows[:, 2:] = 1.0
    rows[1:3, 0] *= label
    rows[3:5, 1] *= attribute
    return model


def unit_basis() -> Featurizer:
    return orthonormal(SITE, torch.eye(8), key="units")


def scored(model: HookedModel, data: Labelled = FOUR, **options: Any) -> Table:
    given: dict[str, Any] = {"n_features": (1,), "test": 0.4, "settings": FAST} | options
    return scr(model, given.pop("dictionary", unit_basis()), data, **given)


def same(one: Table, other: Table) -> bool:
    """Bit-equal, where NaN equals NaN."""
    return str(one.rows()) == str(other.rows())


# --- one forward for all ablations ---


def featurizers_of(model: HookedModel) -> list[Featurizer]:
    d = model.shape.d_model
    basis = torch.linalg.qr(torch.randn(d, 7))[0]
    return [
        random_dictionary(model, "resid_post[1]"),
        random_dictionary(model, "resid_post[1]", skip=2),
        random_dictionary(model, "resid_post[1]", select="topk", dtype=torch.float32),
        random_dictionary(model, "mlp_out[1]", reads="mlp_in[1]"),
        random_dictionary(model, "z[1]"),
        replace(orthonormal("resid_post[1]", basis, key="some"), centre=torch.randn(d)),
        coordinates(model, "resid_post[1]"),
    ]


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_an_ablation_of_pooled_features_is_that_of_a_real_run(family: str, sink: bool) -> None:
    model = worded(family)
    model.has_sink = sink
    prompts = text_prompts(model, TEXTS.texts, 8)
    for one in featurizers_of(model):
        means = pooled(model, one, prompts, batch=3)
        probe = Probe(torch.randn(one.widths[1]), torch.tensor(0.2))
        units = torch.randperm(one.n_features)[:5]
        rows = torch.tensor([7, 0, 3, 10])
        reading = Reading(
            torch.zeros(4, dtype=torch.long), probe(means.activations[rows]), means.features, rows,
            (one.directions().float() @ probe.weight),
        )  # fmt: skip
        replaced = torch.zeros(1, prompts.ids.shape[1], one.n_features + 1, dtype=torch.bool)
        replaced[:, one.skip :, units] = True
        zeros = Split(torch.zeros(1, 1, one.n_features), torch.zeros(1, 1, one.widths[1]))
        edits = FeatureEdit(one, replaced, zeros).edits()
        real = probe(pool(model, prompts, one.site, edits, batch=len(prompts)))[rows]
        scale = float(reading.logits.abs().max())
        torch.testing.assert_close(reading.without(units), real, atol=1e-5 * max(scale, 1), rtol=0, msg=str(one))
        assert not torch.allclose(real, reading.logits, atol=1e-3)


@pytest.mark.parametrize("sink", [False, True])
def test_pooled_features_are_means_over_the_tokens_that_a_probe_counts(sink: bool) -> None:
    model = worded("llama")
    model.has_sink = sink
    one = random_dictionary(model, "resid_post[1]", skip=2)
    prompts = model.prompts(TEXTS.texts)
    means = pooled(model, one, prompts, batch=4)
    torch.testing.assert_close(means.activations, pool(model, prompts, one.site, batch=4))
    for row, text in enumerate(TEXTS.texts):
        features = one.encode(flat(model.run([text], record=[one.site])[one.site]))[0]
        by_hand = features[2:].sum(0) / (len(features) - sink)  # skipped positions have no features, but count
        torch.testing.assert_close(means.features[row], by_hand.float(), atol=1e-4, rtol=1e-5)


def test_texts_are_cut_to_the_length_asked_for() -> None:
    model, long = worded("gpt2"), random_texts(40, longest=12)
    cut = replace(long, texts=tuple(" ".join(text.split()[:4]) for text in long.texts))
    one, options = random_dictionary(model, "resid_post[1]"), {"n_features": (5,), "settings": FAST, "test": 0.4}
    assert same(scr(model, one, long, length=4, **options), scr(model, one, cut, **options))
    assert not same(scr(model, one, long, length=4, **options), scr(model, one, long, **options))


# --- spurious correlation removal ---


@pytest.mark.parametrize("label, attribute, judged", [(1.0, 3.0, "label"), (3.0, 1.0, "attribute")])
def test_ablating_the_one_feature_that_a_probe_wrongly_leans_on_scores_one(
    label: float, attribute: float, judged: str
) -> None:
    table = scored(leaning(label, attribute))
    assert table["pairing"].tolist() == ["0/0 + 1/1", "0/1 + 1/0"]
    for row in table.rows():
        assert row["judged"] == judged
        assert (row["biased"], row["clean"], row["after"], row["scr"]) == (0.5, 1.0, 1.0, 1.0)
        assert row["random"] <= 0.3 and row["note"] == ""


def test_a_dictionary_that_cannot_see_the_spurious_concept_regains_nothing() -> None:
    without = unit_basis().rotation[:, [0, 2, 3, 4, 5, 6, 7]]  # type: ignore[attr-defined]
    blind = scored(leaning(), dictionary=orthonormal(SITE, without, key="blind"))
    assert np.abs(blind["scr"]).max() == 0


def test_features_rank_by_what_they_add_to_the_probe_and_not_by_their_size() -> None:
    big = Dictionary(  # both features read the attribute; the first is a hundred times as large and writes little
        SITE, encoder=torch.eye(8)[:, [1, 1]] * torch.tensor([100.0, 1.0]), bias=torch.zeros(2),
        decoder=torch.eye(8)[[1, 1]] * torch.tensor([[1e-4], [1.0]]), decoder_bias=torch.zeros(8), select="abstopk",
        k=2,
    )  # fmt: skip
    assert scored(leaning(), dictionary=big)["scr"].tolist() == [1.0, 1.0]


def test_a_feature_that_writes_against_the_probe_counts_as_much() -> None:
    against = Dictionary(  # both features read the attribute; the second writes it with the other sign, and more
        SITE, encoder=torch.eye(8)[:, [1, 1]], bias=torch.zeros(2), decoder=torch.eye(8)[[1, 1]] * torch.tensor([[1.0],
        [-2.0]]), decoder_bias=torch.zeros(8), select="abstopk", k=2,
    )  # fmt: skip
    table = scored(leaning(), dictionary=against, n_features=(1, 2))
    assert table["ablated"].tolist() == [1, 2, 1, 2] and table["scr"].tolist() == [0.0] * 4


def test_a_score_is_the_regained_share_and_nan_with_a_reason_where_there_is_nothing_to_regain() -> None:
    table = scored(leaning(1.0, 0.0))
    assert np.isnan(table["scr"]).all() and np.isnan(table["random"]).all()
    assert all(note.startswith("undefined: the clean probe's 0.500 is not above") for note in table["note"])
    model = worded("gpt2")
    rows = scr(model, random_dictionary(model, "resid_post[1]"), random_texts(60), n_features=(3, 9), settings=FAST)
    for row in rows.rows():
        if row["clean"] - row["biased"] >= 1e-3:
            by_hand = (row["after"] - row["biased"]) / (row["clean"] - row["biased"])
            assert row["scr"] == pytest.approx(by_hand)
        else:
            assert np.isnan(row["scr"]) and row["note"]


def test_features_without_an_effect_are_not_ablated_and_the_note_says_so() -> None:
    one = orthonormal(SITE, torch.eye(8)[:, [1, 2]], key="attribute and constant")
    table = scored(leaning(), dictionary=one, n_features=(2,))
    assert table["ablated"].tolist() == [1, 1] and set(table["note"]) == {"features with an effect: 1"}


def test_a_biased_probe_learns_from_twice_the_rarest_group_where_there_are_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, int]] = []

    def spy(activations: torch.Tensor, labels: list[int], *rest: Any, **named: Any) -> Probe:
        seen.append((len(labels), sum(labels)))
        return original(activations, labels, *rest, **named)

    original = dictionary_scores.train_probe
    monkeypatch.setattr(dictionary_scores, "train_probe", spy)
    rare = [row for row in range(len(FOUR)) if FOUR.groups[row] != 1 or row < 20]  # group 1 has 5, the others 7
    scored(leaning(), FOUR[rare], test=0.6)
    assert seen == [(8, 4), (8, 4), (8, 4), (4, 2)]  # label, attribute, 0/0 + 1/1, 0/1 + 1/0


def test_held_out_texts_are_in_no_training_part() -> None:
    used, train, held = dictionary_scores._split(FOUR.groups, list("abcd"), 0.4, 3, times=2)
    assert [len(part) for part in held] == [3] * 4 and [len(part) for part in train] == [4] * 4
    every = torch.cat([*train, *held]).tolist()
    assert sorted(every) == list(range(len(used))) and len(set(used.tolist())) == len(used)
    for group in range(4):
        assert set(FOUR.groups[used[torch.cat([train[group], held[group]])]]) == {group}


# --- targeted probe perturbation ---


def three_classes() -> tuple[HookedHF, Dictionary, list[str], list[str]]:
    """A text of class i is 1 along i and -1 along the others; feature i is 2 in it, and 0 in others."""
    model = blank_gpt2(n_layers=1, n_heads=2, d_model=8, d_vocab=VOCAB, n_positions=16)
    rows = model.transformer.wte.weight
    rows[:, :3] = -1.0
    rows[1:4, :3] += 2 * torch.eye(3)
    rows[:, 3:] = 1.0
    shift = torch.tensor([-1.0] * 3 + [0.0] * 5)
    units = Dictionary(
        SITE, encoder=torch.eye(8), bias=torch.zeros(8), decoder=torch.eye(8), decoder_bias=shift, shift=shift
    )
    texts = [" ".join([f"w{kind}"] * n) for n in range(1, 11) for kind in (1, 2, 3)]
    return HookedHF(model, Words(), check=False), units, texts, ["red", "green", "blue"] * 10


def test_a_feature_of_one_class_each_spoils_its_probe_and_no_other() -> None:
    model, units, texts, labels = three_classes()
    sparse = replace(FAST, epochs=120, l1=0.05)  # so that a probe reads its own class alone
    table = tpp(model, units, texts, labels, n_features=(1, 8), settings=sparse)
    for row in table.rows():
        assert (row["ablated"], row["clean"]) == (1.0, 1.0)
        assert (row["intended"], row["unintended"], row["tpp"]) == (0.5, 0.0, 0.5)
        assert abs(row["random"]) < 0.25
    assert table["note"].tolist() == ["", "features with an effect: blue 1, green 1, red 1"]


def test_numbers_do_as_labels_and_two_classes_do() -> None:
    model, units, texts, labels = three_classes()
    two = [row for row in range(30) if labels[row] != "blue"]
    table = tpp(model, units, [texts[row] for row in two], [int(labels[row] == "red") for row in two],
                n_features=(1, 2), settings=FAST)  # fmt: skip
    assert len(table) == 2 and np.isfinite(table["tpp"]).all()


def test_others_are_as_many_as_a_class_and_evenly_drawn() -> None:
    parts = [torch.arange(start, start + 7) for start in (0, 10, 20, 30)]
    for number, seed in product(range(4), range(5)):
        rows = dictionary_scores._against_others(parts, number, seed)
        assert rows[:7].tolist() == parts[number].tolist() and len(set(rows.tolist())) == 14
        counts = np.delete(np.bincount(rows[7:].numpy() // 10, minlength=4), number)
        assert counts.sum() == 7 and counts.min() >= 1 and counts.max() <= 3


def test_drops_are_each_probe_s_own() -> None:
    features = torch.eye(2)

    def reading(*logits: float, along: tuple[float, float]) -> Reading:
        return Reading(torch.tensor([1, 1]), torch.tensor(logits), features, torch.arange(2), torch.tensor(along))

    right, half = reading(1.0, 1.0, along=(2.0, 0.0)), reading(1.0, -1.0, along=(0.0, -2.0))  # 1 right, then 1/2
    units = [torch.tensor([0]), torch.tensor([1])]
    clean = np.array([right.accuracy(), half.accuracy()])
    assert clean.tolist() == [1.0, 0.5]
    assert dictionary_scores._drops([right, half], units, clean) == (0.0, 0.0)  # own: 1 - 1/2 and 1/2 - 1; others: 0


# --- both ---


def both_scores(model: HookedModel, one: Featurizer, seed: int) -> tuple[Table, Table]:
    options: dict[str, Any] = {"n_features": (2, 6), "settings": FAST, "seed": seed, "test": 0.4}
    data = random_texts(48)
    return scr(model, one, data, **options), tpp(model, one, data.texts, data.groups.tolist(), **options)


def test_a_seed_fixes_everything_and_another_one_changes_something_and_the_model_stays_as_it_was() -> None:
    model = worded("gpt2")
    one = random_dictionary(model, "resid_post[1]")
    before = state(model.model)
    first, again, other = (both_scores(model, one, seed) for seed in (0, 0, 1))
    assert state(model.model) == before
    assert all(map(same, first, again)) and not any(map(same, first, other))


def bench(seed: int) -> dictionary_scores._Bench:
    means = Pooled(torch.randn(12, 32), torch.rand(12, 40) * (torch.arange(40) % 2))
    return dictionary_scores._Bench(random_dictionary(worded("gpt2"), "resid_post[1]"), means, FAST, seed)


def test_controls_are_of_active_features_and_another_draw_for_each_class_and_seed() -> None:
    one = bench(0)
    sets = [sorted(units.tolist()) for units in one.random(6, 1)]
    assert len(sets) == 10 and all(len(set(units)) == 6 and all(unit % 2 for unit in units) for units in sets)
    assert sets != [sorted(units.tolist()) for units in one.random(6, 2)]
    assert sets != [sorted(units.tolist()) for units in replace(one, seed=1).random(6, 1)]
    assert sets == [sorted(units.tolist()) for units in one.random(6, 1)]


def test_a_seed_is_that_of_the_probes_and_of_the_split() -> None:
    one, rows = bench(0), torch.arange(12)
    logits = [replace(one, seed=seed).reading(rows % 2, rows, rows).logits for seed in (0, 0, 1)]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])
    splits = [dictionary_scores._split(FOUR.groups, list("abcd"), 0.4, seed, times=2)[0].tolist() for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_the_control_of_one_size_does_not_depend_on_the_other_sizes() -> None:
    model = worded("gpt2")
    one, data = random_dictionary(model, "resid_post[1]"), random_texts(48)
    alone, among = (scr(model, one, data, n_features=sizes, settings=FAST) for sizes in ((6,), (2, 6)))
    assert same(alone, among.where(among["n_features"] == 6))


def test_settings_are_those_of_saebench() -> None:
    assert ProbeSettings(learning_rate=1e-3, epochs=20, batch=16, weight_decay=0.01, l1=1e-3) == PROBE
    assert SIZES == (2, 5, 10, 20, 50, 100, 500)


def test_numbers_outside_their_range_are_named_together() -> None:
    model = worded("gpt2")
    one = random_dictionary(model, "resid_post[1]")
    wrong: dict[str, Any] = {"n_features": (0, 5, 41), "test": 1.0, "length": 0, "batch": 0, "seed": -1}
    with pytest.raises(OptionError) as found:
        scr(model, one, TEXTS, **wrong)
    for part in ("[0, 41]; allowed: 1 to the 40 of", "test=1.0", "length=0", "batch=0", "seed=-1"):
        assert part in str(found.value)
    with pytest.raises(OptionError, match=r"\[50, 100, 500\]; allowed: 1 to the 40"):
        tpp(model, one, TEXTS.texts, TEXTS.labels)
    with pytest.raises(OptionError, match="n_features is empty"):
        tpp(model, one, TEXTS.texts, TEXTS.labels, n_features=())


def test_a_missing_group_or_attribute_is_named() -> None:
    model = worded("gpt2")
    one, named = random_dictionary(model, "resid_post[1]"), replace(TEXTS, classes=("nurse", "surgeon"))
    three = named[[row for row in range(len(named)) if named.groups[row] != 3]]
    with pytest.raises(TaskError, match=r"has 0 texts to be judged on and 0 to train on .*surgeon/1 0\); each needs"):
        scr(model, one, three, n_features=(2,))
    with pytest.raises(TaskError, match="no attributes"):
        scr(model, one, replace(TEXTS, attributes=None), n_features=(2,))


def test_labels_that_do_not_fit_are_named_together() -> None:
    model = worded("gpt2")
    one = random_dictionary(model, "resid_post[1]")
    with pytest.raises(TaskError, match=r"3 labels for 2 texts.*classes \['a'\]; two.*texts \[1\] are empty"):
        tpp(model, one, ["w3", " "], ["a", "a", "a"], n_features=(2,))
    with pytest.raises(TaskError, match=r"rarest group or class has 0 texts .*\(a 4, b 1\)"):
        tpp(model, one, ["w3"] * 5, ["a"] * 4 + ["b"], n_features=(2,))


def test_a_dictionary_of_another_model_and_texts_of_a_sink_alone_are_refused() -> None:
    model = worded("gpt2")
    wide = random_dictionary(plain_model(), SITE)
    with pytest.raises(OptionError, match="reads vectors of 8"):
        scr(model, wide, TEXTS, n_features=(2,))
    with pytest.raises(SiteError):
        scr(model, random_dictionary(worded("gpt2"), "resid_post[2]").__class__("resid_post[9]", **wide.tensors), TEXTS)
    model.has_sink = True
    short = replace(random_texts(20), texts=("w3",) * 20)
    with pytest.raises(PromptError, match=r"texts \['w3'.*only 1 token, an attention sink"):
        scr(model, random_dictionary(model, "resid_post[1]"), short, n_features=(2,), test=0.5)
