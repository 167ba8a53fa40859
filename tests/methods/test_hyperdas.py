"""HyperDAS on the model of known variables: it finds token and subspace; its controls do not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import interp
from interp.control_runs import crossed_concepts, subspace_controls
from interp.errors import FileError, OptionError, TaskError
from interp.hypernet.files import load_hyperdas, save_hyperdas
from interp.hypernet.interchange import HyperDas
from interp.hypernet.readout import every_mode, mean_projectors, selections, subspace_overlaps, top_directions
from interp.hypernet.settings import HyperDasSettings
from interp.interchange.examples import batch_of
from interp.interchange.exchanges import Subspace
from interp.interchange.known import CODE, KnownVariables, known_variables
from interp.interchange.placing import AtRoles, interchanged
from interp.interchange.training import Keeping, TrainSettings
from interp.methods.hyperdas import hyperdas, hyperdas_circuit, train_hyperdas
from interp.models.random_copy import random_copy

QUIET = Keeping(progress=False)
SMALL = HyperDasSettings(rank=CODE, reflections=CODE, width=32, blocks=1, heads=2, stride=1)
BRIEF = TrainSettings(steps=6, batch=8, rate=1e-3, evaluate_every=6)


@pytest.fixture(scope="module")
def known() -> KnownVariables:
    return known_variables(size=60)


@pytest.fixture(scope="module")
def trained(known: KnownVariables):
    return train_hyperdas(
        known.model, known.data, known.site, SMALL, training=BRIEF, instructions=known.instructions, keeping=QUIET
    )


@pytest.mark.slow
def test_it_finds_the_token_and_the_subspace() -> None:
    known = known_variables(size=2000)
    settings = replace(SMALL, width=64, blocks=2, subspace_rate=1e-2, single=1.0)
    training = TrainSettings(steps=3000, batch=32, rate=1e-3, warm_up=0.03, decay=True, evaluate_every=500)
    one, history, runs = train_hyperdas(
        known.model, known.data, known.site, settings, training=training, instructions=known.instructions, keeping=QUIET
    )
    test = known.data["test"]
    for (mode, forced), scores in every_mode(runs, test, one, progress=False).items():
        if mode != "soft":
            assert scores.disentangle() >= 0.95, (mode, forced)
    shares = selections(runs, test, one).shares()
    assert (shares["base"][0], shares["source"][0]) == ("last_entity", "last_entity") and shares["share"][0] >= 0.95
    circuit = hyperdas_circuit(one, runs, test, history, training, progress=False)
    for concept in known.subspaces:
        assert known.overlap(concept, interp.subspace_basis(circuit, concept).rotation) >= 0.95
    crossed = crossed_concepts(runs, test, one, progress=False)
    for n, concept in enumerate(known.subspaces):
        column = crossed[concept]
        assert column[n] >= 0.9 and np.delete(column, n).max() < 0.05


@pytest.mark.slow
def test_wrong_answers_and_a_random_target_teach_it_nothing(known: KnownVariables) -> None:
    training = TrainSettings(steps=300, batch=16, rate=1e-3, evaluate_every=300)
    rng = np.random.default_rng(0)
    train = known.data["train"]
    shuffled = replace(train, answers=tuple(train.answers[n] for n in rng.permutation(len(train))))
    one, _, runs = train_hyperdas(
        known.model, {**known.data, "train": shuffled}, known.site, SMALL, training=training,
        instructions=known.instructions, keeping=QUIET,
    )  # fmt: skip
    table = subspace_controls(
        one, runs, known.data, retrain=["random_target"], training=training, random_model=random_copy(known.model),
        progress=False,
    )  # fmt: skip
    cause = dict(zip(table["run"], table["cause"], strict=True))
    assert cause["HyperDAS, one_to_one, forced"] < 0.15 and cause["HyperDAS, random target"] < 0.15


def test_a_circuit_has_a_node_for_each_concept_with_every_mode_and_control(known: KnownVariables, trained) -> None:
    one, history, runs = trained
    circuit = hyperdas_circuit(one, runs, known.data["test"], history, BRIEF, progress=False)
    columns = circuit.attributes
    assert list(columns["concept"].values) == list(known.subspaces)
    modes = every_mode(runs, known.data["test"], one, progress=False)
    for n, concept in enumerate(known.subspaces):
        assert columns["disentangle"].values[n] == modes["one_to_one", True].disentangle(concept)
        assert columns["soft"].values[n] == modes["soft", False].disentangle(concept)
        gap = modes["soft", False].disentangle(concept) - modes["one_to_one", False].disentangle(concept)
        assert columns["gap"].values[n] == pytest.approx(gap)
        basis = interp.subspace_basis(circuit, concept).rotation
        wanted = one.network.basis(
            one.network.summary(one.told(known.data["test"].about(concept)[:1], torch.device("cpu")))
        )
        assert float((basis.T @ wanted[0].detach()).square().sum()) == pytest.approx(CODE, rel=1e-4)
        assert columns["agreement"].values[n] == pytest.approx(1.0, abs=1e-4)
    assert circuit.provenance.method == "hyperdas" and circuit.provenance.parameters["validation"] == [
        [6, history.best[1]]
    ]


def test_one_call_trains_and_tells(known: KnownVariables) -> None:
    circuit = hyperdas(
        known.model, known.data, known.site, SMALL, training=BRIEF, instructions=known.instructions, keeping=QUIET
    )
    again = hyperdas(
        known.model, known.data, known.site, SMALL, training=BRIEF, instructions=known.instructions, keeping=QUIET
    )
    assert all(np.array_equal(circuit.tensors[key].array, again.tensors[key].array) for key in circuit.tensors)


def test_on_disk_it_does_the_same_and_another_model_is_refused(known: KnownVariables, trained, tmp_path) -> None:
    one, _, runs = trained
    save_hyperdas(one, tmp_path / "h")
    again = load_hyperdas(tmp_path / "h", known.model)
    batch = batch_of(known.data["test"], range(8), runs.model.device)
    for mode in ("soft", "one_to_one"):
        found = [interchanged(runs, batch, each, mode)[0] for each in (one, again)]  # type: ignore[arg-type]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    weight = again.network.subspace.detach()
    assert float((weight.T @ weight - torch.eye(CODE)).abs().max()) < 1e-4
    with pytest.raises(FileError, match="was trained on a model with fingerprint"):
        load_hyperdas(tmp_path / "h", random_copy(known.model))
    (tmp_path / "h" / "hyperdas.safetensors").write_bytes(b"x")
    with pytest.raises(FileError, match="damaged .*does not match its checksum"):
        load_hyperdas(tmp_path / "h", known.model)
    with pytest.raises(FileError, match="holds no hyperdas.json"):
        load_hyperdas(tmp_path, known.model)


def test_controls_are_in_one_table(known: KnownVariables, trained) -> None:
    one, _, runs = trained
    data = {name: part[list(range(0, len(part), 5))] for name, part in known.data.items()}
    table = subspace_controls(
        one, runs, data, retrain=["static", "fixed_position", "random_target"], training=BRIEF,
        random_model=random_copy(known.model), progress=False,
    )  # fmt: skip
    rows = {row["run"]: row for row in table.rows()}
    assert len(rows) == 3 + 8 + 3
    assert rows["nothing changed"]["cause"] == 0.0 and rows["full vector at last_entity"]["cause"] == 1.0
    assert rows["random subspace at last_entity"]["cause"] < 0.2
    for control, missing in (({"retrain": ["statik"]}, "allowed: static"), ({"retrain": ["static"]}, "training=")):
        with pytest.raises(OptionError, match=missing):
            subspace_controls(one, runs, data, progress=False, **control)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="needs random_model="):
        subspace_controls(one, runs, data, retrain=["random_target"], training=BRIEF, progress=False)


def test_a_fixed_position_is_the_role_s(known: KnownVariables, trained) -> None:
    one, _, runs = trained
    fixed = HyperDas(known.model, known.site, replace(SMALL, fixed="last_entity"), dict(known.instructions)).eval()
    shares = selections(runs, known.data["test"], fixed).shares()
    assert len(shares) == 1 and (shares["base"][0], shares["source"][0]) == ("last_entity", "last_entity")
    test = known.data["test"].about("attribute 1")
    batch = batch_of(test, range(8), runs.model.device)
    basis = fixed.network.basis(fixed.network.summary(fixed.told(batch.data, torch.device("cpu"))))[0]
    plain = AtRoles(known.site, Subspace(len(basis), CODE, rotation=basis), "last_entity")
    for forced in (False, True):
        for mode in ("soft", "one_to_many", "one_to_one", "single"):
            got, _ = interchanged(runs, batch, fixed, mode, forced=forced)  # type: ignore[arg-type]
            torch.testing.assert_close(got, interchanged(runs, batch, plain)[0], rtol=1e-4, atol=1e-4)


def test_known_subspaces_cross_nothing(known: KnownVariables, trained) -> None:
    _, _, runs = trained
    given = {
        concept: AtRoles(known.site, Subspace(len(basis), CODE, rotation=basis), known.role)
        for concept, basis in known.subspaces.items()
    }
    table = crossed_concepts(runs, known.data["test"], given, progress=False)
    values = np.array([[row[name] for name in known.subspaces] for row in table.rows()])
    np.testing.assert_array_equal(values, np.eye(3))


def test_overlaps_are_shares_of_directions(known: KnownVariables, trained) -> None:
    one, _, runs = trained
    projectors = mean_projectors(runs, known.data["test"], one)
    table = subspace_overlaps(projectors, CODE)
    diagonal = [row["overlap"] for row in table.rows() if row["concept"] == row["other"]]
    assert diagonal == pytest.approx([1.0] * 3, abs=1e-3)
    basis, agreement = top_directions(projectors["attribute 0"], CODE)
    torch.testing.assert_close(basis @ basis.T, projectors["attribute 0"], rtol=0, atol=1e-3)
    assert agreement == pytest.approx(1.0, abs=1e-3)


def test_figures_show_tokens_and_concepts(known: KnownVariables, trained) -> None:
    pytest.importorskip("plotly")
    from interp.view import overlaps, selection

    one, _, runs = trained
    found = selections(runs, known.data["test"], one, mode="soft")
    figure = selection(found, 2)
    assert "attribute 0 into a prompt that asks for attribute 0 (cause)" in figure.layout.title.text
    assert figure.layout.xaxis.title.text == "base token" or figure.data
    with pytest.raises(OptionError, match="example=9999; allowed: 0 to"):
        selection(found, 9999)
    assert overlaps(subspace_overlaps(mean_projectors(runs, known.data["test"], one), CODE)).data


def test_a_random_copy_keeps_the_architecture_and_no_weight(known: KnownVariables) -> None:
    state = torch.random.get_rng_state()
    copy = random_copy(known.model, seed=1)
    assert copy.shape == known.model.shape and copy.identity.fingerprint != known.model.identity.fingerprint
    assert random_copy(known.model, seed=1).identity.fingerprint == copy.identity.fingerprint
    assert random_copy(known.model, seed=2).identity.fingerprint != copy.identity.fingerprint
    assert torch.equal(torch.random.get_rng_state(), state) and "random weights" in copy.identity.name


def test_sets_that_do_not_fit_are_refused(known: KnownVariables) -> None:
    with pytest.raises(TaskError, match="no train; there are: test"):
        hyperdas(known.model, {"test": known.data["test"]}, known.site, SMALL, keeping=QUIET)
