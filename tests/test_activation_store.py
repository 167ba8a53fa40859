"""Stored activations are those of `run`; a harvest stops where it may, and leaves a whole store or none."""

import json
import shutil
from collections import namedtuple

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from interp.activation_store import ActivationStore, harvest
from interp.errors import FileError, OptionError, PromptError, SiteError
from interp.models.hf import HookedHF
from interp.models.runs import Identity
from interp.site import Site

SITES = ["resid_post[0]", "z[1]", "k[1]", "neuron[0]", "mlp_out[1]", "embed"]


def fresh(name: str = "llama") -> HookedHF:
    return HookedHF(tiny.build(name), identity=Identity("tiny", "main", "0123456789abcdef"))


def sunk(name: str = "llama") -> HookedHF:
    model = fresh(name)
    model.has_sink = True
    return model


def expected(model: HookedHF, site: str, skip: int) -> torch.Tensor:
    """The prompts one at a time, so that there is no padding at all."""
    runs = [model.run([row], record=[site], logits="none")[site][0] for row in tiny.RAGGED]
    return torch.cat([x[skip:].flatten(1) for x in runs])


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def overrides(model: nn.Module) -> int:
    return sum("forward" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "gemma2"])
@pytest.mark.parametrize("skip", [0, 1])
def test_what_is_stored_is_what_each_prompt_gives_alone(name, skip, tmp_path):
    model = (sunk if skip else fresh)(name)
    store = harvest(model, tiny.RAGGED, SITES, tmp_path / "store", batch=2, progress=False)
    assert store.n_tokens == 6 + 9 + 7 - 3 * skip and store.skip == skip
    for site in SITES:
        found = torch.from_numpy(np.array(store.site(site)))
        assert found.dtype == torch.float32
        assert torch.allclose(found, expected(model, site, skip), atol=1e-5), site


def test_it_opens_again_with_everything_that_tells_where_it_came_from(tmp_path):
    model = sunk()
    made = harvest(model, tiny.RAGGED, SITES, tmp_path / "a" / "store", text="made up", progress=False)
    store = ActivationStore.open(tmp_path / "a" / "store")
    assert (store.model, store.text, store.dtype) == (model.identity, "made up", "float32")
    assert list(store.widths) == sorted(map(Site.parse, SITES), key=lambda site: site.order)
    assert store.widths[Site("z", 1)] == 8 * 16 and store.widths[Site("k", 1)] == 2 * 16
    assert store.prompts().rows() == tiny.RAGGED
    for site in SITES:
        assert np.array_equal(store.site(site), made.site(site)) and not store.site(site).flags.writeable


def test_rows_lead_back_to_their_tokens(tmp_path):
    store = harvest(sunk(), [[4], *tiny.RAGGED], ["embed"], tmp_path, progress=False)
    places = store.places(range(store.n_tokens)).tolist()
    assert places == [[1 + i, p] for i, row in enumerate(tiny.RAGGED) for p in range(1, len(row))]
    embedded = sunk().model.get_input_embeddings().weight.detach()
    ids = [store.prompts().rows()[context][position] for context, position in places]
    assert torch.equal(torch.from_numpy(np.array(store.site("embed"))), embedded[ids])
    with pytest.raises(OptionError, match=r"rows \[19\] are not stored; allowed: 0 to 18"):
        store.places([3, 19])


def test_half_precision_is_rounded_and_what_it_cannot_hold_is_refused(tmp_path):
    model = fresh()
    store = harvest(model, tiny.RAGGED, ["resid_post[1]"], tmp_path / "half", dtype="float16", progress=False)
    found = store.site("resid_post[1]")
    assert found.dtype == np.float16 and (tmp_path / "half" / "resid_post.1.bin").stat().st_size == 22 * 32 * 2
    exact = expected(model, "resid_post[1]", 0).numpy()
    assert 0 < np.abs(found - exact).max() < 1e-3 * np.abs(exact).max()
    assert next(store.batches("resid_post[1]", 5)).dtype == torch.float32
    with torch.no_grad():
        model.model.get_input_embeddings().weight[88] *= 1e6
    with pytest.raises(OptionError, match=r"resid_post\[1\] reach \d\.\d*e\+05, which float16 cannot hold"):
        harvest(model, tiny.RAGGED, ["resid_post[1]"], tmp_path / "beyond", dtype="float16", progress=False)
    harvest(model, tiny.RAGGED, ["resid_post[1]"], tmp_path / "beyond", progress=False)


@pytest.mark.parametrize("site, last", [("resid_post[0]", 0), ("z[1]", 1), ("resid_pre[2]", 1), ("resid_final", 2)])
def test_a_forward_ends_at_the_last_site_wanted(site, last, tmp_path):
    model, called = fresh(), []
    for number, block in enumerate(model._blocks):
        block.mlp.register_forward_hook(lambda *_, number=number: called.append(number))
    before = hooks(model.model), overrides(model.model)
    harvest(model, tiny.RAGGED, ["embed", site], tmp_path, batch=3, progress=False)
    assert called == list(range(last if site == "z[1]" else last + 1))
    assert (hooks(model.model), overrides(model.model)) == before


def test_nothing_of_the_model_changes(tmp_path):
    model = fresh()
    before = model.run(tiny.RAGGED, logits="all").logits
    flags, state = [p.requires_grad for p in model.parameters()], torch.get_rng_state()
    numbers = hooks(model.model), overrides(model.model)
    harvest(model, tiny.RAGGED, SITES, tmp_path, progress=False)
    assert torch.equal(model.run(tiny.RAGGED, logits="all").logits, before)
    assert [p.requires_grad for p in model.parameters()] == flags and torch.equal(torch.get_rng_state(), state)
    assert (hooks(model.model), overrides(model.model)) == numbers and torch.is_grad_enabled()


def test_an_interrupted_harvest_leaves_no_store_and_no_files(tmp_path, monkeypatch):
    model, calls = fresh(), []
    whole = HookedHF.run

    def failing(self, *args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(self, *args, **options)

    monkeypatch.setattr(HookedHF, "run", failing)
    with pytest.raises(KeyboardInterrupt):
        harvest(model, tiny.RAGGED, SITES, tmp_path, batch=1, progress=False)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileError, match="no activation store can be read"):
        ActivationStore.open(tmp_path)
    monkeypatch.undo()
    (tmp_path / "resid_post.0.bin").write_bytes(b"left over from a killed process")
    store = harvest(model, tiny.RAGGED, SITES, tmp_path, batch=1, progress=False)
    assert torch.allclose(torch.from_numpy(np.array(store.site(SITES[0]))), expected(model, SITES[0], 0), atol=1e-5)


def test_a_store_is_never_overwritten(tmp_path):
    store = harvest(fresh(), tiny.RAGGED, ["embed"], tmp_path, progress=False)
    with pytest.raises(OptionError, match="holds an activation store"):
        harvest(fresh(), tiny.RAGGED, ["embed", "z[0]"], tmp_path, progress=False)
    assert len(ActivationStore.open(tmp_path).sites) == 1 and store.site("embed").shape == (22, 32)


def test_the_space_is_checked_before_anything_runs(tmp_path, monkeypatch):
    usage, model = namedtuple("usage", "total used free"), fresh()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 22 * 4 + 22 * 32 * 4 - 1))
    monkeypatch.setattr(HookedHF, "run", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(OptionError, match=r"22 tokens at 1 sites in float32 take 0.00 GiB; .* GiB free: give fewer"):
        harvest(model, tiny.RAGGED, ["embed"], tmp_path / "deep" / "er", progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "gone", "long", "json cut", "json", "width", "site", "dtype", "lengths"])
def test_a_damaged_store_is_one_clear_error(damage, tmp_path):
    harvest(fresh(), tiny.RAGGED, ["resid_post[0]", "embed"], tmp_path, progress=False)
    data, index = tmp_path / "resid_post.0.bin", tmp_path / "store.json"
    document = json.loads(index.read_text())
    changed = {
        "width": {"widths": {"embed": 31, "resid_post[0]": 32}}, "site": {"widths": {"../../etc/passwd": 32}},
        "dtype": {"dtype": "object"}, "lengths": {"lengths": [6, 9, "many"]},
    }  # fmt: skip
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:-1])
    elif damage == "gone":
        data.unlink()
    elif damage == "long":
        data.write_bytes(data.read_bytes() + b"0000")
    elif damage == "json cut":
        index.write_text(index.read_text()[:50])
    elif damage == "json":
        index.write_text("[1, 2]")
    else:
        index.write_text(json.dumps(document | changed[damage]))
    with pytest.raises(FileError, match="harvest"):
        ActivationStore.open(tmp_path)


def test_another_schema_is_named(tmp_path):
    harvest(fresh(), tiny.RAGGED, ["embed"], tmp_path, progress=False)
    index = tmp_path / "store.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"schema": 7}))
    with pytest.raises(FileError, match="schema 7; this version reads 'interp activations', schema 1"):
        ActivationStore.open(tmp_path)


def test_batches_pass_over_all_tokens_in_a_new_order_each_time(tmp_path):
    store = harvest(fresh(), tiny.RAGGED, ["embed"], tmp_path, progress=False)
    data = torch.from_numpy(np.array(store.site("embed")))
    batches = store.batches("embed", 8, seed=3)
    drawn = torch.cat([next(batches) for _ in range(11)])  # four passes over 22 tokens
    order = (drawn[:, None] == data).all(2).float().argmax(1)
    assert torch.equal(data[order], drawn)
    passes = order.reshape(4, 22)
    first = {tuple(row.tolist()): i for i, row in reversed(list(enumerate(data)))}  # tokens that occur twice are one
    for one in passes:
        assert torch.equal(
            torch.sort(one).values, torch.sort(torch.tensor([first[tuple(r.tolist())] for r in data])).values
        )
    assert len({tuple(one.tolist()) for one in passes}) == 4
    assert not all(torch.equal(b.sort().values, b) for b in order.reshape(11, 8))  # nor sorted within a batch
    again, other = store.batches("embed", 8, seed=3), store.batches("embed", 8, seed=4)
    assert torch.equal(torch.cat([next(again) for _ in range(11)]), drawn)
    assert not torch.equal(next(other), drawn[:8])


def test_mistakes_are_named(tmp_path):
    model = fresh()
    store = harvest(model, tiny.RAGGED, ["embed", "z[1]"], tmp_path / "store", progress=False)
    with pytest.raises(SiteError, match=r"z\[2\] is not stored in .*; allowed: embed, z\[1\]; nearest: 'z\[1\]'"):
        store.site("z[2]")
    for size in (0, 23):
        with pytest.raises(OptionError, match=f"batches of {size} tokens from a store of 22; allowed: 1 to 22"):
            store.batches("embed", size)
    target = tmp_path / "other"
    for sites in ([], ["pattern[0]"]):
        with pytest.raises(SiteError, match="give one at least, and none of kind 'pattern'"):
            harvest(model, tiny.RAGGED, sites, target)
    with tiny.unchecked(), pytest.raises(OptionError, match="dtype is 'bfloat16'"):
        harvest(model, tiny.RAGGED, ["embed"], target, dtype="bfloat16")
    with pytest.raises(OptionError, match="batch=0"):
        harvest(model, tiny.RAGGED, ["embed"], target, batch=0)
    with pytest.raises(PromptError, match="no prompt has more than 1 token"):
        harvest(sunk(), [[3], [4]], ["embed"], target)
    assert not target.exists()
