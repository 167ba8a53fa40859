"""DAS and MDAS find the known subspaces, at the known place; what is missing or misfit is named."""

import numpy as np
import pytest
import torch

from interp.circuit_files import load_circuit, save_circuit
from interp.errors import CircuitError, OptionError, TaskError
from interp.interchange.circuits import score_subspaces, subspace_basis
from interp.interchange.examples import Counterfactuals
from interp.interchange.known import CODE, KnownVariables, known_variables
from interp.interchange.training import Keeping, TrainSettings
from interp.methods.das import das

QUIET = Keeping(progress=False)
SETTINGS = TrainSettings(steps=500, batch=32, rate=3e-2, decay=True, evaluate_every=500)
ONE = "attribute 1"


@pytest.fixture(scope="module")
def known() -> KnownVariables:
    return known_variables()


def about_one(known: KnownVariables, *names: str) -> dict[str, Counterfactuals]:
    """One concept's examples of some sets."""
    return {name: known.data[name].about(ONE) for name in names or ("train", "test")}


def test_mdas_finds_the_subspace_and_moves_nothing_else(known: KnownVariables) -> None:
    circuit = das(known.model, about_one(known), known.site, rank=CODE, settings=SETTINGS, keeping=QUIET)
    columns = {name: float(one.values[0]) for name, one in circuit.attributes.items() if name != "concept"}
    assert columns["disentangle"] >= 0.95 and columns["rank"] == CODE and columns["updates"] == 500
    assert columns["low"] <= columns["disentangle"] <= columns["high"]
    basis = subspace_basis(circuit, ONE)
    assert str(basis.site) == "resid_post[1]" and known.overlap(ONE, basis.rotation) >= 0.95


def test_das_alone_takes_more_than_the_concept(known: KnownVariables) -> None:
    whole = das(known.model, known.data, known.site, what="full_vector", keeping=QUIET)
    assert (whole.attributes["cause"].values == 1).all() and (whole.attributes["isolate"].values < 0.1).all()


def test_das_trains_on_cause_examples_alone(known: KnownVariables) -> None:
    settings, data = TrainSettings(steps=5, batch=8), about_one(known)
    causes = {**data, "train": data["train"][np.flatnonzero(data["train"].causes).tolist()]}
    bases = [
        das(known.model, sets, known.site, rank=4, isolate=isolate, settings=settings, keeping=QUIET).tensors
        for sets, isolate in ((data, False), (causes, True), (data, True))
    ]
    one, same, other = (tensors[f"das.{ONE}.basis"].array for tensors in bases)
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_the_search_finds_layer_and_position(known: KnownVariables) -> None:
    settings = TrainSettings(steps=40, batch=32, rate=2e-2, evaluate_every=40)
    circuit = das(
        known.model, about_one(known, "train", "test", "val"), ["resid_post[0]", "resid_post[1]", "resid_post[2]"],
        rank=3 * CODE, roles=["after_entity", "last_entity"], settings=settings, keeping=QUIET,
    )  # fmt: skip
    assert [str(node) for node in circuit.nodes] == [f"resid_post[1] role last_entity featurizer 'das.{ONE}'"]
    searched = circuit.featurizers[f"das.{ONE}"]["searched"]
    assert len(searched) == 6 and max(searched, key=lambda one: one["validation"])["role"] == "last_entity"


@pytest.mark.parametrize("what", ["mask", "boundless", "principal_components", "random"])
def test_other_exchanges_run_and_say_what_they_are(known: KnownVariables, what: str) -> None:
    settings = TrainSettings(steps=3, batch=8, evaluate_every=3)
    circuit = das(known.model, about_one(known), known.site, what=what, rank=CODE, settings=settings, keeping=QUIET)  # type: ignore[arg-type]
    assert circuit.featurizers["das.attribute 1"]["kind"] == what
    rank = circuit.attributes["rank"].values
    basis = circuit.tensors["das.attribute 1.basis"].array
    assert basis.shape == (known.model.shape.d_model, rank[0])
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-4)


def test_principal_components_are_of_what_is_exchanged(known: KnownVariables) -> None:
    data = about_one(known)
    circuit = das(known.model, data, known.site, what="principal_components", rank=10, keeping=QUIET)
    rows = sorted({*data["train"].base.tolist(), *data["train"].source.tolist()})
    x = known.model.run(data["train"].prompts[rows], record=[known.site])[known.site]
    x = torch.stack([x[n, data["train"].roles["last_entity"][row][0]] for n, row in enumerate(rows)])
    x = x - x.mean(0)
    most = torch.linalg.svdvals(x)[:10].square().sum()
    torch.testing.assert_close((x @ subspace_basis(circuit, ONE).rotation).square().sum(), most, rtol=1e-4, atol=0)


def test_random_subspaces_are_near_chance(known: KnownVariables) -> None:
    circuit = das(known.model, known.data, known.site, what="random", rank=CODE, keeping=QUIET)
    assert (circuit.attributes["cause"].values < 0.1).all() and (circuit.attributes["isolate"].values > 0.9).all()


def test_a_circuit_of_subspaces_is_saved_and_read(known: KnownVariables, tmp_path) -> None:
    circuit = das(known.model, about_one(known), known.site, what="random", rank=3, keeping=QUIET)
    save_circuit(circuit, tmp_path / "c")
    again = load_circuit(tmp_path / "c")
    assert torch.equal(subspace_basis(again, ONE).rotation, subspace_basis(circuit, ONE).rotation)
    assert again.provenance.parameters["what"] == "random"


def test_a_circuit_s_subspaces_score_as_they_did(known: KnownVariables) -> None:
    settings = TrainSettings(steps=20, batch=16, rate=3e-2)
    circuit = das(known.model, known.data, known.site, rank=CODE, settings=settings, keeping=QUIET)
    scores = score_subspaces(known.model, circuit, known.data["test"], progress=False)
    for n, concept in enumerate(known.subspaces):
        assert scores.cause(concept) == pytest.approx(circuit.attributes["cause"].values[n], rel=1e-12)
        assert scores.isolate(concept) == pytest.approx(circuit.attributes["isolate"].values[n], rel=1e-12)
    with pytest.raises(CircuitError, match="no subspace of 'attribute 0'; there are: none"):
        whole = das(known.model, known.data, known.site, what="full_vector", keeping=QUIET)
        score_subspaces(known.model, whole, known.data["test"], progress=False)


def test_the_model_and_the_global_seed_stay_as_they_are(known: KnownVariables) -> None:
    before = {name: p.clone() for name, p in known.model.model.named_parameters()}  # type: ignore[attr-defined]
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    das(known.model, known.data, known.site, rank=2, settings=TrainSettings(steps=2), keeping=QUIET)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, p in known.model.model.named_parameters():  # type: ignore[attr-defined]
        assert torch.equal(p, before[name]) and p.grad is None


def test_one_seed_one_result(known: KnownVariables) -> None:
    settings = TrainSettings(steps=5, batch=8)
    made = [das(known.model, about_one(known), known.site, rank=4, settings=settings, keeping=QUIET) for _ in range(2)]
    assert all(np.array_equal(made[0].tensors[key].array, made[1].tensors[key].array) for key in made[0].tensors)


def test_what_does_not_fit_is_refused_by_name(known: KnownVariables) -> None:
    run = {"keeping": QUIET}
    with pytest.raises(OptionError, match=r"rank=241 at resid_post\[1\], which has 240 coordinates; allowed: 1 to 240"):
        das(known.model, known.data, known.site, rank=241, **run)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="no test; there are: train"):
        das(known.model, {"train": known.data["train"]}, known.site, **run)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="no val; there are: train, test"):
        sets = {name: known.data[name] for name in ("train", "test")}
        das(known.model, sets, ["resid_post[0]", "resid_post[1]"], **run)  # type: ignore[arg-type]
    other = known_variables(size=20, seed=1).data
    with pytest.raises(TaskError, match="sets train are over other prompts than the test set"):
        das(known.model, {"train": other["train"], "test": known.data["test"]}, known.site, **run)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no role 'lst_entity'; allowed: .*nearest: 'last_entity'"):
        das(known.model, known.data, known.site, what="random", rank=2, roles="lst_entity", **run)  # type: ignore[arg-type]
