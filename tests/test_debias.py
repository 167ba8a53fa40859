"""SHIFT: exact numbers on a model whose features are known, a planted word, controls, files, and wrong input."""

import warnings
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from dictionaries import random_dictionary
from labelled_examples import CONSTANT, S, T, four_groups, leaning_data, plain_model, random_texts, worded

from interp.circuit_files import load_circuit
from interp.classifier import TextClassifier
from interp.classifier_files import load_classifier
from interp.debias import ShiftCandidates, over_seeds, shift, shift_candidates, skyline_scores
from interp.debias_baselines import by_attribute, concept_vectors
from interp.debias_parts import (
    PooledTexts,
    ShiftSettings,
    accuracies,
    examples_of,
    leading_features,
    ranked_rows,
    scored_features,
    with_removed,
)
from interp.errors import FileError, InterpWarning, OptionError, SiteError, TaskError
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.linear import coordinates, orthonormal
from interp.featurizers.token_features import token_dictionary
from interp.judges import CallableJudge, RandomJudge, SkylineJudge, TokenSetJudge
from interp.labelled.base import BiasedData, Labelled
from interp.labelled.planted import planted
from interp.labelled.splitting import biased
from interp.models.load import load
from interp.probes import Probe, ProbeSettings
from interp.site import Site
from interp.table import Table
from interp.verdicts import Verdict, save_verdicts

FAST = ShiftSettings(n_features=12, examples=40, method="atp", probe=ProbeSettings(epochs=30))


# --- exact numbers: the probe is sign(t + 3 s) ---


def leaning() -> TextClassifier:
    model = plain_model()
    weight = torch.zeros(8)
    weight[T], weight[S] = 1.0, 3.0
    return TextClassifier(model, Site("resid_post", 0), Probe(weight, torch.tensor(0.0)), ("no", "yes"))


def both_signs() -> Dictionary:
    """Features +t, +s, ... of coordinates and their negatives, without error."""
    eye = torch.eye(8)
    both = torch.cat([eye, -eye], 1)
    return Dictionary("resid_post[0]", encoder=both, bias=torch.zeros(16), decoder=both.T.clone(),
                      decoder_bias=torch.zeros(8))  # fmt: skip


@pytest.mark.parametrize(
    ("features", "expected"),
    [((), (0.5, 1.0, 0.0)), ((S, 8 + S), (1.0, 0.5, 1.0)), ((CONSTANT,), (0.5, 1.0, 0.0))],
    ids=["original", "without the attribute", "without a third"],
)
def test_accuracies_of_a_leaning_probe_are_those_of_the_spec(features, expected) -> None:
    classifier, data = leaning(), leaning_data()
    changed = with_removed(
        classifier, [both_signs()], {Site("resid_post", 0): list(features)}, ShiftSettings(), data.train
    )
    found = accuracies(lambda part: changed.logits(part.texts), data)
    assert (found.label, found.attribute, found.worst[1]) == expected


def test_scores_of_features_are_what_they_add_to_the_margin() -> None:
    """On t = s = 1 the margin is 4: feature s gives 3 of it, t 1; zero ablation takes exactly that away."""
    classifier = leaning()
    data = Labelled(("w1 w3",), (1,))
    circuit = scored_features(classifier, data, [both_signs()], replace(FAST, ablation="zero"))
    values = next(iter(circuit.scores.values())).values[ranked_rows(circuit)]
    assert [unit for _, unit in leading_features(circuit, classifier.model, 9)] == [S, T]
    np.testing.assert_allclose(values, [3.0, 1.0], atol=1e-5)


def test_label_and_attribute_may_be_paired_either_way() -> None:
    """Attribute accuracy is agreement with what the attribute says in ambiguous data, whichever value goes with 1."""
    flipped = [replace(part, attributes=tuple(1 - a for a in part.attributes)) for part in
               (leaning_data().train, leaning_data().test, leaning_data().balanced)]  # fmt: skip
    data = BiasedData(flipped[0], flipped[1], flipped[2])
    assert data.aligned == 0
    found = accuracies(lambda part: leaning().logits(part.texts), data)
    assert (found.label, found.attribute, found.worst[1]) == (0.5, 1.0, 0.0)
    assert by_attribute(data.balanced, 0).labels == leaning_data().balanced.attributes


def test_a_judge_of_the_attribute_debiases_and_retraining_stays_on_the_changed_model() -> None:
    model, data = plain_model(), leaning_data()
    settings = replace(FAST, probe=ProbeSettings(epochs=200))
    is_s = CallableJudge(lambda card: "irrelevant" if card.unit in (S, 8 + S) else "relevant")
    result = shift(model, data, [both_signs()], is_s, 0, settings, baselines=("oracle", "feature skyline"))
    rows = {row["method"]: row for row in result.table.rows()}
    assert rows["original"]["label"] < 1 or rows["original"]["worst"] == 0 or rows["original"]["attribute"] > 0.5
    for method in ("SHIFT", "SHIFT + retrain", "oracle"):
        assert (rows[method]["label"], rows[method]["attribute"], rows[method]["worst"]) == (1.0, 0.5, 1.0), method
    assert rows["SHIFT"]["removed"] == 2 and rows["SHIFT"]["judged"] == len(result.candidates.cards)
    assert rows["oracle"]["uses"] == "balanced texts" and not rows["SHIFT"]["uses"]
    assert result.classifier is result.retrained
    pooled = result.retrained.pooled(data.test.texts)
    assert float(pooled[:, S].abs().max()) < 1e-6  # the new probe reads the changed model


def test_coordinates_are_put_to_their_mean() -> None:
    classifier = leaning()
    texts = Labelled(("w1 w3", "w1 w3 w1 w4"), (1, 1))
    own = coordinates(classifier.model, "resid_post[0]")
    changed = with_removed(classifier, [own], {own.site: [S]}, ShiftSettings(ablation="mean"), texts)
    tokens_mean = (2 + 0 + 0 + 2 + 0 - 2) / 6  # over all six tokens
    assert changed.logits("w2 w4")[0] == pytest.approx(-1 + 3 * tokens_mean, abs=1e-5)


def test_an_early_basis_and_unequal_lengths_agree_with_single_texts() -> None:
    model, data = worded("llama"), random_texts(9)
    classifier = TextClassifier(model, Site("resid_post", 1), Probe(torch.ones(32), torch.tensor(0.0)), batch=4)
    basis = orthonormal("resid_post[0]", torch.linalg.qr(torch.randn(32, 4))[0], key="b")
    late = random_dictionary(model, "mlp_out[1]", dtype=torch.float32)
    units = {basis.site: [0, 2], late.site: [5, 7, 30]}
    changed = with_removed(classifier, [basis, late], units, ShiftSettings(), data)
    alone = torch.cat([changed.logits(text) for text in data.texts])
    torch.testing.assert_close(changed.logits(data.texts), alone, rtol=1e-4, atol=1e-5)
    assert (changed.logits(data.texts) - classifier.logits(data.texts)).abs().min() > 1e-4


def test_texts_are_pooled_once_whatever_parts_they_are_in() -> None:
    classifier, data = leaning(), leaning_data()
    pooled = PooledTexts(classifier, (data.train, data.train, None, data.test))
    assert torch.equal(pooled.of(data.test), classifier.pooled(data.test.texts))
    assert torch.equal(pooled.of(data.train[[3, 1]]), classifier.pooled(data.train.texts)[[3, 1]])


# --- a planted word in the embedded model ---


@pytest.fixture(scope="module")
def embedded():
    return load("embedded")


@pytest.fixture(scope="module")
def word_data() -> BiasedData:
    return planted(240)


@pytest.fixture(scope="module")
def found(embedded, word_data) -> ShiftCandidates:
    """The features that a classifier of layer 2 leans on, among one for each word."""
    return shift_candidates(embedded, word_data, [token_dictionary(embedded)], 2, FAST)


def judged(embedded, word_data, found, judge, **options):
    """Its report by method."""
    result = shift(embedded, word_data, [token_dictionary(embedded)], judge, candidates=found, **options)
    return result, {row["method"]: row for row in result.table.rows()}


def test_judging_by_words_brings_the_worst_group_to_the_oracles_and_every_baseline_is_reported(
    embedded, word_data, found
) -> None:
    result, rows = judged(embedded, word_data, found, TokenSetJudge(word_data.words))
    assert rows["original"]["worst"] < 0.4 < 0.7 < rows["original"]["attribute"]
    assert rows["SHIFT + retrain"]["worst"] >= rows["oracle"]["worst"] - 0.03
    assert rows["SHIFT"]["worst"] > rows["original"]["worst"] + 0.3
    assert rows["SHIFT"]["removed"] == 2 and rows["SHIFT"]["judged"] == 12
    assert abs(rows["random features"]["worst"] - rows["original"]["worst"]) < 0.05
    assert list(rows) == [
        "original", "SHIFT", "SHIFT + retrain", "concept bottleneck", "random features", "words deleted",
        "words deleted + retrain", "neuron skyline", "feature skyline", "oracle",
    ]  # fmt: skip
    assert {name for name, row in rows.items() if not row["uses"]} == {
        "original", "SHIFT", "SHIFT + retrain", "random features",
    }  # fmt: skip
    shown = {card.node: card for card in result.candidates.cards}
    out = {shown[one.node].top_tokens[0].token for one in result.verdicts if one.verdict == "irrelevant"}
    assert out == set(word_data.words)


def test_the_skyline_judge_does_as_well_and_the_random_one_leaves_the_worst_group(embedded, word_data, found) -> None:
    scores = skyline_scores(found, word_data, [token_dictionary(embedded)])
    _, rows = judged(embedded, word_data, found, SkylineJudge(scores, 2), baselines=("oracle",))
    assert rows["SHIFT + retrain"]["worst"] >= rows["oracle"]["worst"] - 0.03
    assert "upper bound" in rows["SHIFT"]["uses"]
    _, rows = judged(embedded, word_data, found, RandomJudge(2, seed=1), baselines=())
    assert rows["SHIFT + retrain"]["worst"] < rows["original"]["worst"] + 0.1
    assert "at random" in rows["SHIFT"]["uses"]


def test_the_same_seed_gives_the_same_report_and_another_seed_another(embedded, word_data) -> None:
    reports = []
    for seed in (0, 0, 1):
        settings = replace(FAST, seed=seed, examples=16, n_features=6)
        result = shift(embedded, word_data, [token_dictionary(embedded)], TokenSetJudge(word_data.words), 1, settings,
                       baselines=("random",))  # fmt: skip
        reports.append(result)
    first, again, other = (result.table.rows() for result in reports)
    assert first == again != other
    assert torch.equal(reports[0].retrained.probe.weight, reports[1].retrained.probe.weight)


def test_everything_is_saved_and_the_classifier_works_without_the_rest(embedded, word_data, found, tmp_path) -> None:
    result, _ = judged(embedded, word_data, found, TokenSetJudge(word_data.words), baselines=())
    result.save(tmp_path)
    loaded = load_classifier(tmp_path / "classifier")  # the model by its name
    texts = word_data.test.texts[:20]
    torch.testing.assert_close(loaded.logits(texts), result.classifier.logits(texts), rtol=1e-4, atol=1e-4)
    assert loaded.predict(texts) == result.classifier.predict(texts) and set(loaded.predict(texts)) <= set(
        loaded.classes
    )
    circuit = load_circuit(tmp_path / "circuit")
    said = circuit.scores["irrelevant"].values
    assert np.nansum(said) == 2 and np.isfinite(said).sum() == 12 and circuit.kept_nodes.sum() == 12
    again = ShiftCandidates.load(tmp_path, embedded)
    assert again.settings == found.settings and again.cards == found.cards
    verdicts = tmp_path / "verdicts.jsonl"
    repeated = shift(embedded, word_data, [token_dictionary(embedded)], verdicts, candidates=again, baselines=())
    assert repeated.verdicts == result.verdicts
    np.testing.assert_allclose(repeated.table["worst"], result.table["worst"])


def test_a_file_with_a_few_verdicts_is_gone_on_from(embedded, word_data, found, tmp_path) -> None:
    nodes = [card.node for card in found.cards]
    save_verdicts([Verdict(nodes[0], "irrelevant", "a place"), Verdict(nodes[1], None)], tmp_path / "v.jsonl")
    with pytest.warns(InterpWarning, match="11 of 12 features have no verdict and stay in"):
        result, rows = judged(embedded, word_data, found, tmp_path / "v.jsonl", baselines=(), retrain=False)
    assert rows["SHIFT"]["removed"] == 1 and result.retrained is None and result.classifier is result.debiased


def test_examples_are_as_many_of_each_class_so_that_a_constant_feature_scores_nothing() -> None:
    data = four_groups(range(1, 5))
    uneven = data[[row for row in range(len(data)) if data.labels[row] or row % 3]]
    chosen = examples_of(uneven, replace(FAST, examples=7))
    assert chosen.labels == (0, 1) * 3 and len(set(chosen.texts)) == 6
    circuit = scored_features(leaning(), chosen, [both_signs()], FAST)
    constant = next(row for row, node in enumerate(circuit.nodes) if node.unit == CONSTANT)
    assert abs(next(iter(circuit.scores.values())).values[constant]) < 1e-6


def test_cosines_with_concepts_are_of_their_last_tokens_less_their_mean() -> None:
    classifier = leaning()
    found = concept_vectors(classifier, ["w1", "w2", "w3"])
    x = torch.stack([classifier.model.run([word], record=["resid_post[0]"])["resid_post[0]"][0, -1]
                     for word in ("w1", "w2", "w3")])  # fmt: skip
    torch.testing.assert_close(found, torch.nn.functional.normalize(x - x.mean(0), dim=-1))


def test_reports_of_seeds_are_averaged_with_t_intervals() -> None:
    tables = [Table({"method": np.array(["a", "b"], dtype=object), "label": np.array([v, 1.0]),
                     "attribute": np.array([0.5, 0.5]), "worst": np.array([0.0, v]), "removed": np.array([0, 4])})
              for v in (0.2, 0.4, 0.9)]  # fmt: skip
    first, second = over_seeds(tables).rows()
    half = 4.302653 * np.std([0.2, 0.4, 0.9], ddof=1) / 3**0.5
    assert (first["label"], first["label_high"]) == (pytest.approx(0.5), pytest.approx(0.5 + half, abs=1e-6))
    assert second["worst_low"] == pytest.approx(0.5 - half, abs=1e-6) and second["removed"] == 4
    assert np.isnan(over_seeds(tables[:1]).rows()[0]["label_low"])


def hooks_of(model) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.model.modules()
    )


def test_the_model_stays_as_it_was_also_when_a_judge_raises(embedded, word_data) -> None:
    prompts = word_data.test.texts[:4]
    before, state = embedded.run(prompts, logits="all").logits, torch.get_rng_state()
    weights = [p.requires_grad for p in embedded.parameters()]

    def fails(card):
        raise KeyError(card.node)

    settings = replace(FAST, examples=4, n_features=2)
    for judge in (fails, lambda card: "irrelevant"):
        with suppress(KeyError), warnings.catch_warnings():
            warnings.simplefilter("ignore", InterpWarning)
            shift(embedded, word_data, [token_dictionary(embedded)], judge, 1, settings, baselines=("neuron skyline",))
    assert hooks_of(embedded) == 0 and torch.equal(torch.get_rng_state(), state)
    assert torch.equal(embedded.run(prompts, logits="all").logits, before)
    assert [p.requires_grad for p in embedded.parameters()] == weights


def test_without_attributes_the_labels_accuracy_is_all_that_is_reported(embedded, word_data) -> None:
    known = word_data.train
    plain = biased(Labelled(known.texts, known.labels, None, known.classes), test=0.25)
    assert (len(plain.train), len(plain.test)) == (180, 60) and not set(plain.train.texts) & set(plain.test.texts)
    settings = replace(FAST, examples=8, n_features=2)
    with pytest.warns(InterpWarning, match="none of 2"):
        result = shift(embedded, plain, [token_dictionary(embedded)], lambda card: "unsure", 1, settings, baselines=())
    assert result.table["label"][0] > 0.9 and np.isnan(result.table["attribute"]).all()
    assert np.isnan(result.table["worst"]).all() and result.groups.columns == ("method",)


# --- wrong input ---


def test_a_judge_that_removes_everything_or_nothing_is_warned_of(embedded, word_data, found) -> None:
    for word, match in (("irrelevant", "all 12 features shown are judged irrelevant"), ("relevant", "none of 12")):
        with pytest.warns(InterpWarning, match=match):
            judged(embedded, word_data, found, lambda card, word=word: word, baselines=(), retrain=False)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"layer": 5}, SiteError, "layers 0 to 3"),
        ({"layer": 0, "late": True}, SiteError, "come after resid_post.0."),
        ({"layer": None}, OptionError, "give the layer"),
        ({"judge": 3}, OptionError, "give a Judge"),
        ({"judge": "missing.jsonl"}, FileError, "no verdicts at missing.jsonl"),
        ({"baselines": ("oracel",)}, OptionError, "oracel.*allowed: concept bottleneck"),
        ({"settings": {"n_features": None, "at_least": 1e9}}, OptionError, "no feature has a score of at least"),
    ],
)
def test_wrong_arguments_are_one_clear_error(change, error, match, embedded, word_data) -> None:
    given = [token_dictionary(embedded)]
    if change.pop("late", False):
        given.append(coordinates(embedded, "resid_post[1]"))
    settings = replace(FAST, examples=4, n_features=2)
    settings = replace(settings, **change.pop("settings", {}))
    options = {"layer": 1, "judge": lambda card: "relevant", "settings": settings, "baselines": ()} | change
    with pytest.raises(error, match=match), warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpWarning)
        shift(embedded, word_data, given, options.pop("judge"), options.pop("layer"), **options)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="set the other one to None"):
        ShiftSettings(at_least=0.1)
    with pytest.raises(OptionError, match="examples=0, steps=0"):
        ShiftSettings(examples=0, steps=0)
    with pytest.raises(OptionError, match="ablation is 'resample'"):
        ShiftSettings(ablation="resample")


def test_candidates_of_other_texts_or_featurizers_are_refused(embedded, word_data, found) -> None:
    with pytest.raises(TaskError, match="found on other texts"):
        shift(embedded, planted(40, seed=3), [token_dictionary(embedded)], lambda card: "relevant", candidates=found)
    with pytest.raises(OptionError, match="tokens, which are not given"):
        shift(embedded, word_data, [coordinates(embedded, "embed")], lambda card: "relevant", candidates=found)


def test_faults_of_data_are_told_together() -> None:
    good = leaning_data()
    one_class = good.train[[row for row in range(len(good.train)) if good.train.labels[row]]]
    three_groups = good.test[[row for row in range(len(good.test)) if good.test.groups[row] != 1]]
    with pytest.raises(
        TaskError, match="train has the class '1' only.*test lacks a group.*held_out are training texts"
    ):
        BiasedData(one_class, three_groups, held_out=good.train)
    with pytest.raises(TaskError, match="train has more than two groups"):
        BiasedData(good.balanced, good.test)
    with pytest.raises(TaskError, match="2 labels for 1 texts; labels 2; allowed: 0 and 1; texts .0. are empty"):
        Labelled((" ",), (0, 2))
