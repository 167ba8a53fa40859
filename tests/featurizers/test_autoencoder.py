"""Autoencoders given as functions: equal to a dictionary of the same functions, and the same laws where nothing is
affine."""

import warnings

import numpy as np
import pytest
import torch
from dictionaries import random_dictionary
from tiny import F64, hooked64, task

import interp
from interp.classifier import Removal
from interp.dictionary_scores import scr
from interp.errors import OptionError
from interp.featurizers.autoencoder import Autoencoder
from interp.featurizers.dictionary import Dictionary
from interp.intervention import Edit
from interp.methods.features import attribute_features, connect_features
from interp.run_circuit import run_circuits

NAME = "logit_diff.noising"
SITES = ("mlp_out[0]", "resid_post[0]", "attn_out[1]", "resid_post[1]")
FAMILIES = ("gpt2", "llama", "gemma2")


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


def as_functions(one: Dictionary) -> Autoencoder:
    """A dictionary as two functions that say nothing of themselves."""
    sizes = (one.widths[0], one.n_features, one.widths[1])
    return Autoencoder(
        one.site, key=one.key, reads=one.reads, skip=one.skip, encoder=one.encode, decoder=one.decode, sizes=sizes
    )


def bent(model, site: str, *, reads: str | None = None, seed: int = 0) -> Autoencoder:
    """Nothing of it is affine: a softplus encoder, a decoder with products of features and a tanh."""
    one = random_dictionary(model, site, reads=reads, n=12, seed=seed)

    def encode(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(x @ one.encoder + one.bias)

    def decode(features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(features * features.roll(1, -1)) @ one.decoder + features.square() @ one.decoder * 0.1

    sizes = (one.widths[0], 12, one.widths[1])
    return Autoencoder(site, key=f"bent.{site}", reads=reads, encoder=encode, decoder=decode, sizes=sizes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dictionary_and_its_functions_give_the_same_scores_edges_and_runs(family):
    with F64():
        model, given = hooked64(family), task()
        known = [random_dictionary(model, site, n=10, seed=n) for n, site in enumerate(SITES)]
        known[2] = random_dictionary(model, "attn_out[1]", reads="attn_in[1]", n=10, seed=9)
        unknown = [as_functions(one) for one in known]
        for method, ablation in (("atp", "counterfactual"), ("ig", "mean"), ("exact", "zero")):
            options = {"method": method, "ablation": ablation, "steps": 3, "positions": "each"}
            first, second = (attribute_features(model, given, each, **options) for each in (known, unknown))
            np.testing.assert_allclose(
                second.scores[NAME].values, first.scores[NAME].values, atol=2e-6, err_msg=f"{method} {ablation}"
            )
        first, second = (attribute_features(model, given, each, method="atp") for each in (known, unknown))
        edges = [connect_features(model, given, each, one) for each, one in ((known, first), (unknown, second))]
        tables = [
            dict(zip(map(tuple, np.stack([one.edges.source, one.edges.destination], 1).tolist()),
                     one.scores[f"{NAME}.edges"].values.tolist(), strict=True))
            for one in edges
        ]  # fmt: skip
        assert all(abs(tables[0].get(key, 0) - tables[1].get(key, 0)) < 2e-6 for key in {*tables[0], *tables[1]})
        kept = np.random.default_rng(0).random((3, len(first.nodes))) < 0.5
        runs = [
            run_circuits(model, given, one, kept, ablation="mean", featurizers=each)
            for each, one in ((known, first), (unknown, second))
        ]
        torch.testing.assert_close(runs[1].values, runs[0].values, atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_edges_out_of_a_node_sum_to_its_score_whatever_the_functions(family):
    with F64():
        model, given = hooked64(family), task()
        featurizers = [bent(model, site, seed=n) for n, site in enumerate(SITES)]
        featurizers[0] = bent(model, "mlp_out[0]", reads="mlp_in[0]", seed=7)
        scored = attribute_features(model, given, featurizers, method="atp", ablation="counterfactual")
        circuit = connect_features(model, given, featurizers, scored)
        sums = np.zeros(len(circuit.nodes))
        np.add.at(sums, circuit.edges.source, circuit.scores[f"{NAME}.edges"].values.astype(float))
        score = circuit.scores[NAME].values[:-1].astype(float)
        assert np.abs(score).max() > 0.01
        np.testing.assert_allclose(sums[:-1], score, atol=2e-6)


def test_ig_scores_sum_to_the_effect_of_the_whole_site_a_hundred_times_closer_with_ten_times_the_steps():
    with F64():
        model, given = hooked64("llama"), task()
        one = bent(model, "resid_post[0]")
        clean, other = (
            model.run(prompts, record=["resid_post[0]"], logits=given.answers.positions)
            for prompts in (given.clean, given.corrupted)
        )
        edited = model.run(
            given.clean, [Edit("resid_post[0]", function=lambda x: other["resid_post[0]"])],
            logits=given.answers.positions,
        )  # fmt: skip
        truth = given.metric(clean.logits, given.answers) - given.metric(edited.logits, given.answers)
        gaps = []
        for steps in (100, 1000):
            scored = attribute_features(model, given, [one], method="ig", steps=steps)
            gaps.append(np.abs(scored.tensors[NAME].array.astype(float).sum(0) - truth.numpy()).max())
        assert gaps[0] < 0.1 and (gaps[1] < 1e-5 or 60 < gaps[0] / gaps[1] < 140)  # scores are stored as float32


def test_removing_features_changes_what_the_decoder_makes_of_the_rest():
    with F64():
        model = hooked64("gpt2")
        one = bent(model, "resid_post[1]")
        x = model.run([[5, 9, 3]], record=["resid_post[1]"])["resid_post[1]"]
        removal = Removal(one, torch.tensor([2, 7]), torch.zeros(2, dtype=torch.float64))
        after = model.run([[5, 9, 3]], removal.edits(), record=["resid_post[1]"])["resid_post[1]"]
        features = one.encode(x)
        without = features.clone()
        without[..., [2, 7]] = 0
        torch.testing.assert_close(after, x + one.decode(without) - one.decode(features))


def test_what_needs_directions_is_refused_with_the_reason():
    with F64():
        model, given = hooked64("gpt2"), task()
        one = bent(model, "resid_post[1]")
        with pytest.raises(OptionError, match="no affine decoder"):
            scr(model, one, interp.Labelled(("a", "b"), (0, 1), (0, 1)))
        scored = attribute_features(model, given, [bent(model, "mlp_out[0]"), one], steps=2)
        with pytest.raises(OptionError, match="use gradient='clean'"):
            connect_features(model, given, [bent(model, "mlp_out[0]"), one], scored, gradient="node")
        (card,) = interp.feature_cards(model, {one: [1]}, given.clean)
        assert card.no_lens == "its decoder is not affine" and not card.promoted and card.contexts
    with pytest.raises(OptionError, match="needs a key"):
        Autoencoder("mlp_out[0]", encoder=torch.relu, decoder=torch.relu, sizes=(4, 4, 4))
