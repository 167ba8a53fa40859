"""Text classifiers: their logits by hand, as a task, with features taken out, and on disk."""

import json
from dataclasses import replace

import pytest
import torch
from dictionaries import random_dictionary
from labelled_examples import random_texts, worded

from interp.behaviour import behaviour
from interp.classifier import Removal, TextClassifier, classifier_task, text_prompts, train_classifier, without_words
from interp.classifier_files import load_classifier, save_classifier
from interp.errors import FileError, ModelError, SiteError, TaskError
from interp.featurizers.linear import coordinates, orthonormal
from interp.intervention import Edit
from interp.models.runs import Identity
from interp.probes import Probe, ProbeSettings, pool, train_probe

FAMILIES = ["gpt2", "gpt_neox", "llama", "gemma2"]
TEXTS = random_texts(7)


def classifier_of(family: str, layer: int = 1, **options: object) -> TextClassifier:
    model = worded(family)
    generator = torch.Generator().manual_seed(1)
    probe = Probe(torch.randn(model.shape.d_model, generator=generator), torch.tensor(0.3))
    made = TextClassifier(model, model.check_site(f"resid_post[{layer}]"), probe, ("no", "yes"), batch=3)
    return replace(made, **options)


# --- reading ---


@pytest.mark.parametrize("family", FAMILIES)
def test_a_logit_is_the_probe_on_the_mean_over_real_tokens_of_a_text_alone(family: str) -> None:
    classifier = classifier_of(family)
    for text, logit in zip(TEXTS.texts, classifier.logits(TEXTS.texts), strict=True):
        x = classifier.model.run([text], record=["resid_post[1]"])["resid_post[1]"][0]
        by_hand = x.mean(0) @ classifier.probe.weight + classifier.probe.bias
        assert float(logit) == pytest.approx(float(by_hand), abs=1e-5)


def test_a_sink_stays_out_of_the_mean() -> None:
    model = worded("llama")
    model.has_sink = True
    prompts = model.prompts(TEXTS.texts[:1])
    x = model.run(prompts, record=["resid_post[0]"])["resid_post[0]"][0]
    torch.testing.assert_close(pool(model, prompts, "resid_post[0]")[0], x[1:].mean(0))


def test_long_texts_are_cut_and_others_not() -> None:
    model = worded("gpt2")
    prompts = text_prompts(model, ["w3 w4 w5 w6", "w7 w8"], 3)
    assert prompts.rows() == [[3, 4, 5], [7, 8]] and prompts.tokens[0] == (" w3", " w4", " w5")
    assert text_prompts(model, [" ".join(["w3"] * 80)], 1000).lengths.tolist() == [64]  # all that it has positions for


def test_predictions_are_names_of_classes() -> None:
    classifier = classifier_of("gpt2")
    assert classifier.predict(TEXTS.texts) == ["yes" if z > 0 else "no" for z in classifier.logits(TEXTS.texts)]
    assert classifier.predict(TEXTS.texts[0]) == classifier.predict(TEXTS.texts)[:1]
    torch.testing.assert_close(classifier.probabilities("w5 w6"), classifier.logits("w5 w6").sigmoid())


# --- training ---


def test_a_probe_separates_what_can_be_separated_and_is_the_same_for_a_seed() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator)
    labels = [int(row[0] > 0.2) for row in x]
    long = ProbeSettings(epochs=100)
    first, again, other = (train_probe(x, labels, long, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.weight, again.weight) and not torch.equal(first.weight, other.weight)
    assert ((first(x) > 0).int() == torch.tensor(labels)).float().mean() > 0.97
    sparse = train_probe(x, labels, ProbeSettings(l1=0.3, epochs=100))
    assert sparse.weight[1:].abs().sum() < 0.2 * first.weight[1:].abs().sum()


def test_a_classifier_is_trained_on_its_own_activations_and_one_class_is_refused() -> None:
    model = worded("llama")
    made = train_classifier(model, TEXTS, 1, seed=3)
    pooled = pool(model, made.prompts(TEXTS.texts), "resid_post[1]")
    assert torch.equal(made.probe.weight, train_probe(pooled, TEXTS.labels, seed=3).weight)
    with pytest.raises(TaskError, match="both classes"):
        train_classifier(model, TEXTS[[0, 2, 4]], 1)
    with pytest.raises(SiteError, match="resid_post"):
        train_classifier(model, TEXTS, "mlp_out[1]")


# --- as a model and a task ---


@pytest.mark.parametrize("family", FAMILIES)
def test_the_task_of_a_classifier_measures_the_margin_of_the_right_class(family: str) -> None:
    classifier = classifier_of(family)
    model, task = classifier_task(classifier, TEXTS)
    measured = behaviour(model, task, task.metric).measure(range(len(task)))
    signs = torch.tensor([1.0 if label else -1.0 for label in TEXTS.labels])
    torch.testing.assert_close(measured, signs * classifier.logits(TEXTS.texts), rtol=1e-4, atol=1e-4)


def test_a_classifier_without_some_features_is_no_task() -> None:
    classifier = classifier_of("gpt2")
    removal = Removal(coordinates(classifier.model, "mlp_out[0]"), torch.tensor([1]), torch.zeros(1))
    with pytest.raises(TaskError, match="1 features taken out"):
        classifier_task(replace(classifier, removed=(removal,)), TEXTS)


# --- features taken out ---


@pytest.mark.parametrize("family", FAMILIES)
def test_taking_features_out_at_the_probes_site_moves_the_logit_by_what_they_write(family: str) -> None:
    """The spec's exact number: -w . mean over tokens of sum f_i v_i."""
    classifier = classifier_of(family)
    dictionary = random_dictionary(classifier.model, "resid_post[1]", dtype=torch.float32)
    units = torch.tensor([0, 3, 17, 30])
    changed = replace(classifier, removed=(Removal(dictionary, units, torch.zeros(4)),))
    for text in TEXTS.texts:
        x = classifier.model.run([text], record=["resid_post[1]"])["resid_post[1]"][0]
        written = dictionary.encode(x)[:, units] @ dictionary.decoder[units]
        expected = classifier.logits(text) - written.mean(0) @ classifier.probe.weight
        torch.testing.assert_close(changed.logits(text), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        changed.logits(TEXTS.texts), torch.cat([changed.logits(text) for text in TEXTS.texts]), rtol=1e-4, atol=1e-5
    )


def test_an_earlier_site_is_edited_in_the_running_activation_and_later_ones_see_it() -> None:
    classifier = classifier_of("llama")
    model = classifier.model
    early = random_dictionary(model, "mlp_out[0]", dtype=torch.float32)
    late = random_dictionary(model, "resid_post[1]", seed=5, dtype=torch.float32)
    units = torch.tensor([1, 8])
    removed = (Removal(early, units, torch.zeros(2)), Removal(late, units, torch.tensor([0.5, -1.0])))
    text = TEXTS.texts[0]

    def without(dictionary, values):
        def edit(x):
            return x + (values - dictionary.encode(x)[..., units]) @ dictionary.decoder[units]

        return edit

    edits = [Edit("mlp_out[0]", function=without(early, torch.zeros(2))),
             Edit("resid_post[1]", function=without(late, torch.tensor([0.5, -1.0])))]  # fmt: skip
    x = model.run([text], edits, record=["resid_post[1]"])["resid_post[1]"][0]
    expected = x.mean(0) @ classifier.probe.weight + classifier.probe.bias
    found = replace(classifier, removed=removed).logits(text)
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


def test_a_transcoder_listens_where_it_reads_and_the_sink_keeps_its_value() -> None:
    classifier = classifier_of("gpt2")
    transcoder = random_dictionary(classifier.model, "mlp_out[1]", reads="mlp_in[1]", dtype=torch.float32, skip=1)
    units = torch.arange(40)
    changed = replace(classifier, removed=(Removal(transcoder, units, torch.zeros(40)),))
    run = classifier.model.run(["w5 w6 w7"], record=["mlp_in[1]", "resid_post[1]"])
    written = transcoder.encode(run["mlp_in[1]"][0]) @ transcoder.decoder
    written[0] = 0
    expected = (run["resid_post[1]"][0] - written).mean(0) @ classifier.probe.weight + classifier.probe.bias
    torch.testing.assert_close(changed.logits("w5 w6 w7")[0], expected, rtol=1e-4, atol=1e-4)


# --- files ---


def removals(model) -> tuple[Removal, ...]:
    """One of every kind of featurizer."""
    gated = random_dictionary(model, "mlp_out[0]", dtype=torch.float32, key="gated")
    ranked = random_dictionary(model, "resid_post[0]", select="topk", dtype=torch.float32, key="ranked")
    basis = orthonormal("attn_out[1]", torch.linalg.qr(torch.randn(model.shape.d_model, 5))[0], key="basis")
    own = coordinates(model, "resid_post[1]")
    return tuple(
        Removal(one, torch.tensor([1, 4]), torch.tensor([0.0, 0.5]), ("a", "b"))
        for one in (gated, ranked, basis, own)
    )  # fmt: skip


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_saved_classifier_predicts_the_same_with_the_removed_features_alone(family: str, tmp_path) -> None:
    classifier = classifier_of(family)
    classifier = replace(classifier, removed=removals(classifier.model), length=7)
    loaded = load_classifier(save_classifier(classifier, tmp_path), classifier.model)
    torch.testing.assert_close(loaded.logits(TEXTS.texts), classifier.logits(TEXTS.texts), rtol=1e-5, atol=1e-5)
    assert loaded.classes == ("no", "yes") and loaded.length == 7 and loaded.n_removed == 8
    assert [one.nodes for one in loaded.removed] == [("a", "b")] * 4
    sizes = [one.featurizer.n_features for one in loaded.removed]
    assert sizes == [2, 40, 2, classifier.model.shape.d_model]  # a top-k needs all of its features to choose from


def test_another_model_or_tokenizer_is_refused(tmp_path) -> None:
    classifier = classifier_of("gpt2")
    classifier.model.identity = Identity("mine", "", "0123456789abcdef")
    save_classifier(classifier, tmp_path)
    other = worded("gpt2")
    other.identity = Identity("another", "", "f" * 16)
    with pytest.raises(ModelError, match="trained on mine .*weights 0123456789abcdef"):
        load_classifier(tmp_path, other)


@pytest.mark.parametrize("fault", ["missing", "cut", "other tensors", "schema", "format", "site", "kind"])
def test_a_damaged_classifier_is_one_error(fault: str, tmp_path) -> None:
    classifier = classifier_of("gpt2")
    save_classifier(replace(classifier, removed=removals(classifier.model)[:1]), tmp_path)
    head, body = tmp_path / "classifier.json", tmp_path / "classifier.safetensors"
    document = json.loads(head.read_text())
    if fault == "missing":
        head.unlink()
    elif fault == "cut":
        head.write_text(head.read_text()[:100])
    elif fault == "other tensors":
        body.write_bytes(body.read_bytes()[:-1] + b"x")
    elif fault in ("schema", "format"):
        head.write_text(json.dumps(document | {fault: "strange"}))
    else:
        document["settings"]["removed"][0][fault] = "strange"
        head.write_text(json.dumps(document))
    with pytest.raises(FileError, match=str(tmp_path)):
        load_classifier(tmp_path, classifier.model)


# --- words ---


def test_whole_words_are_deleted_in_any_case_and_nothing_else() -> None:
    texts = ["Her mother, SHE said, gathers heather there.", "No such word."]
    assert without_words(texts, {"her", "she", "mother"}) == [", said, gathers heather there.", "No such word."]
    assert without_words(texts, ()) == texts
    with pytest.raises(TaskError, match=r"texts \[1\]"):
        without_words(["she left", "She she"], ["she"])
