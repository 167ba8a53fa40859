"""What every method owes its users: the model as it was, one prompt's result its own, files that hold."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dictionaries import dictionaries
from tiny import build, hooked, state, task

import interp
from interp.models.hf import HookedHF

FAMILIES = ("gpt2", "llama", "gpt_neox", "gemma2")
QUIET = interp.Engine(progress=False)
FEW = interp.GateSettings(steps=(3, 3), batch=2)


def _dictionaries(model: HookedHF) -> list[interp.Dictionary]:
    return dictionaries(model, "mlp_out", "resid_post", dtype=torch.float32)


METHODS: dict[str, Callable[[HookedHF, interp.Task], interp.Circuit]] = {
    "patch": lambda m, t: interp.patch(m, t, ["z", "mlp_out"], positions="each", engine=QUIET),
    "atp": lambda m, t: interp.attribute(m, t, ["q", "k", "v", "z", "pattern", "neuron", "resid_post"]),
    "atp*": lambda m, t: interp.attribute(m, t, ["q", "k", "v", "z"], positions="each", method="atp*"),
    "integrated": lambda m, t: interp.attribute(m, t, "mlp_out", steps=3),
    "eap": lambda m, t: interp.attribute_edges(m, t),
    "eap-ig-inputs": lambda m, t: interp.attribute_edges(m, t, method="eap-ig-inputs", steps=2),
    "ifr": lambda m, t: interp.attribute_edges(m, t, method="ifr"),
    "patch_edges": lambda m, t: interp.patch_edges(m, t, granularity="sublayer", engine=QUIET),
    "acdc": lambda m, t: interp.acdc(m, t, 0.02, granularity="sublayer", progress=False),
    "mediate": lambda m, t: interp.mediate(m, t, ["z", "mlp_out"], engine=QUIET),
    "gate": lambda m, t: interp.gate(m, t, starts=2, settings=FEW, engine=interp.FitEngine(progress=False)),
    "features": lambda m, t: interp.feature_circuit(m, t, _dictionaries(m), n_nodes=40, steps=3, progress=False),
    "exact features": lambda m, t: interp.attribute_features(
        m, t, _dictionaries(m)[:1], method="exact", progress=False
    ),
    "path_patch": lambda m, t: interp.path_patch(m, t, "z", ["q[1] head 0", "v[2] head 1"], engine=QUIET),
}

family = pytest.mark.parametrize("name", FAMILIES)
method = pytest.mark.parametrize("call", METHODS.values(), ids=METHODS)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


@family
@method
def test_the_model_and_all_randomness_stay_as_they_were(name, call):
    raw = build(name)
    for p in list(raw.parameters())[::2]:
        p.requires_grad_(False)
    model, before = HookedHF(raw), state(raw)
    call(model, task())
    assert state(raw) == before


@family
@method
def test_whatever_is_raised_inside_the_model_is_left_as_it_was(name, call):
    raw = build(name)
    model, calls, stop = HookedHF(raw), [], [0]

    def hook(module: object, args: tuple, output: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) == stop[0]:
            raise KeyboardInterrupt

    raw.get_submodule(model.map.blocks)[1].register_forward_hook(hook)
    before = state(raw)
    call(model, task())
    total = len(calls)
    for at in sorted({1, 2, total // 2, total} & set(range(1, total + 1))):
        calls.clear()
        stop[0] = at
        with pytest.raises(KeyboardInterrupt):
            call(model, task())
        assert state(raw) == before, f"after the forward of block 1 number {at} of {total}"


@family
@method
def test_one_prompts_result_is_its_own_whatever_the_batch(name, call):
    if call in (METHODS["acdc"], METHODS["gate"]):
        pytest.skip("one circuit is found for all prompts together")
    model, whole = hooked(name), call(hooked(name), task())
    for row in range(3):
        alone = call(model, task()[[row]])
        rows = [whole.nodes.index(node) for node in alone.nodes]
        for key, tensor in alone.tensors.items():
            together = whole.tensors[key].array
            if tensor.axes[0] == "node":
                together = together[rows]
            assert np.allclose(together[..., row], tensor.array[..., 0], atol=5e-5, equal_nan=True), key


@method
def test_files_hold_what_was_found(call, tmp_path):
    found = call(hooked("llama"), task())
    interp.save_circuit(found, tmp_path / "circuit")
    again = interp.load_circuit(tmp_path / "circuit")
    assert list(again.nodes) == list(found.nodes) and again.provenance == found.provenance
    for name, score in found.scores.items():
        assert again.scores[name].header == score.header
        assert np.array_equal(again.scores[name].values, score.values, equal_nan=True)
    for name, tensor in found.tensors.items():
        assert np.array_equal(again.tensors[name].array, tensor.array, equal_nan=True)


@method
def test_half_precision_gives_finite_float32_scores(call):
    model = HookedHF(build("llama").to(torch.bfloat16), check=False)
    found = call(model, task())
    for name, score in found.scores.items():
        assert score.values.dtype == np.float32, name
        assert not np.isinf(score.values).any() and np.isfinite(score.values).any(), name
