"""What an accelerator computes is what the CPU computes, a test for each part of the library; skipped without one."""

import warnings

import pytest
import torch

import interp

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here"),
]


@pytest.fixture(scope="module")
def both():
    """The embedded model on the CPU and on the accelerator."""
    return interp.load("embedded"), interp.load("embedded", device=DEVICE)


def scores(circuit):
    return {name: torch.tensor(one.values) for name, one in circuit.scores.items()}


def same(first, second, atol=2e-4):
    assert first.keys() == second.keys()
    for name, values in first.items():
        torch.testing.assert_close(second[name], values, atol=atol, rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize(
    "find",
    [
        lambda model, task: interp.patch(model, task, "z", positions=["S2", "end"]),
        lambda model, task: interp.attribute(model, task, ["z", "q", "k"], method="atp*"),
        lambda model, task: interp.attribute_edges(model, task),
        lambda model, task: interp.patch_edges(model, task, granularity="sublayer"),
        lambda model, task: interp.feature_circuit(
            model, task, [interp.coordinates(model, "mlp_out[1]"), interp.token_dictionary(model)], n_nodes=20, steps=3
        ),
    ],
    ids=["patch", "atp*", "edges", "exact edges", "features"],
)
def test_scores_are_those_of_the_cpu(find, both) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        first, second = (find(model, interp.task("ioi", model.tokenizer, n=4)) for model in both)
    same(scores(first), scores(second))


def test_judging_a_circuit_gives_the_cpus_numbers(both) -> None:
    found = []
    for model in both:
        task = interp.task("ioi", model.tokenizer, n=4)
        circuit = interp.top_n(interp.patch(model, task, "z"), 5, "logit_diff.noising", rank="signed")
        found.append(interp.faithfulness(model, task, circuit, random=0).value)
    assert found[1] == pytest.approx(found[0], abs=1e-3)


def test_a_debiased_classifier_is_that_of_the_cpu_and_moves_between_devices(both, tmp_path) -> None:
    data = interp.planted(80)
    settings = interp.ShiftSettings(method="atp", n_features=8, examples=20)
    results = [
        interp.shift(model, data, [interp.token_dictionary(model)], interp.TokenSetJudge(data.words), 1, settings)
        for model in both
    ]
    tables = [result.table for result in results]
    assert tables[0]["method"].tolist() == tables[1]["method"].tolist()
    for column in ("label", "attribute", "worst"):
        assert abs(tables[0][column] - tables[1][column]).max() <= 2 / 20  # a text near the border may change sides
    saved = results[1].save(tmp_path) / "classifier"
    texts = data.test.texts[:8]
    here, there = (interp.load_classifier(saved, model).logits(texts) for model in both)
    torch.testing.assert_close(here, there, atol=1e-3, rtol=1e-3)


def test_subspaces_and_hyperdas_are_those_of_the_cpu(both) -> None:
    settings, quiet = interp.TrainSettings(steps=3, batch=8, rate=1e-3), interp.Keeping(progress=False)
    network = interp.HyperDasSettings(rank=4, reflections=2, width=16, blocks=1, heads=2)
    found = []
    for model in both:
        data = interp.counterfactuals("toy_cities", model, n=20, most_templates=4, progress=False)
        data = {name: data[name] for name in ("train", "test")}
        circuits = [
            interp.das(model, data, "resid_post[0]", what=what, rank=4, settings=settings, keeping=quiet)
            for what in ("subspace", "boundless", "mask", "principal_components")
        ]
        circuits.append(interp.hyperdas(model, data, "resid_post[0]", network, training=settings, keeping=quiet))
        found.append([torch.tensor(t.array) for circuit in circuits for t in circuit.tensors.values()])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first @ first.T, second @ second.T, atol=1e-2, rtol=1e-2)
