"""Circuits of clusters: each is the feature circuit of its contexts; a search that was interrupted goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from context_examples import ragged_contexts
from dictionaries import random_dictionary
from tiny import build, hooked, unchecked

import interp.cluster_search as module
from interp.cluster_search import ClusterCircuit, circuit_overlap, cluster_circuits
from interp.clusters import Clusters, cluster
from interp.errors import FileError, OptionError
from interp.methods.features import feature_circuit
from interp.models.hf import HookedHF
from interp.predicted import Contexts

ROWS = torch.randint(3, 97, (14, 6), generator=torch.Generator().manual_seed(1)).tolist()
OPTIONS = {"n_nodes": 12, "method": "atp", "progress": False}


def contexts() -> Contexts:
    return ragged_contexts([row[: 4 + number % 3] for number, row in enumerate(ROWS)])


def groups(sizes: tuple[int, ...] = (6, 5, 2, 1)) -> Clusters:
    """Clusters of these sizes, whose members stand far apart among the contexts."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = np.random.default_rng(1).standard_normal((len(labels), len(sizes)))
    found = cluster(np.eye(len(sizes))[labels] + 0.02 * noise, len(sizes), kind="spherical_kmeans")
    assert sorted(found.quality["size"].tolist()) == sorted(sizes)
    return found


def featurizers(model=None, seed=0):
    model = model or hooked("gpt2")
    sites = ("mlp_out[0]", "resid_post[1]", "attn_out[2]")
    return [random_dictionary(model, site, dtype=torch.float32, seed=seed + n) for n, site in enumerate(sites)]


def content(one: ClusterCircuit):
    """All that a cluster's circuit holds, to be compared."""
    circuit = one.circuit
    return (
        one.cluster, one.contexts, list(map(str, circuit.nodes)), circuit.kept_nodes.tolist(),
        circuit.edges.source.tolist(), circuit.edges.destination.tolist(), replace(circuit.provenance, versions={}),
        {name: (score.header, score.values.tobytes()) for name, score in circuit.scores.items()}, circuit.featurizers,
    )  # fmt: skip


def test_each_is_the_feature_circuit_of_its_clusters_contexts():
    model, given, clusters = hooked("gpt2"), contexts(), groups()
    found = cluster_circuits(model, given, clusters, featurizers(), **OPTIONS)
    sizes = clusters.quality["size"]
    assert (
        [one.cluster for one in found] == [n for n in range(4) if sizes[n] > 1] == sorted(one.cluster for one in found)
    )
    for one in found:
        rows = np.flatnonzero(clusters.labels == one.cluster).tolist()
        assert list(one.contexts) == rows
        wanted = feature_circuit(
            model, given[rows].task(), featurizers(), ablation="zero", positions="all", metric="logprob", **OPTIONS
        )
        circuit = one.circuit
        assert circuit.kept_nodes.tolist() == wanted.kept_nodes.tolist() and len(one.nodes) == 12
        assert len(circuit.edges) == len(wanted.edges) > 0 and not circuit.tensors
        for name, score in wanted.scores.items():
            assert score.header.signed and np.array_equal(circuit.scores[name].values, score.values, equal_nan=True)
        assert circuit.provenance.ablation == "zero" and circuit.provenance.task == f"cluster {one.cluster}"


def test_most_contexts_are_drawn_by_the_seed_and_small_clusters_left_out():
    model, given, clusters = hooked("gpt2"), contexts(), groups()
    draws = [
        cluster_circuits(model, given, clusters, featurizers(), most=3, smallest=5, seed=seed, **OPTIONS)
        for seed in (0, 0, 1)
    ]
    chosen = [[one.contexts for one in draw] for draw in draws]
    assert chosen[0] == chosen[1] != chosen[2] and [len(rows) for rows in chosen[0]] == [3, 3]
    for one in draws[0]:
        assert set(one.contexts) <= set(np.flatnonzero(clusters.labels == one.cluster).tolist())
    assert len(cluster_circuits(model, given, clusters, featurizers(), smallest=1, **OPTIONS)) == 4


def test_an_interrupted_search_goes_on_to_the_equal_result(tmp_path, monkeypatch):
    model, given, clusters = hooked("gpt2"), contexts(), groups()
    straight = cluster_circuits(model, given, clusters, featurizers(), **OPTIONS)
    calls = []

    def counted(model, task, *rest, **options):
        calls.append(task.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return feature_circuit(model, task, *rest, **options)

    monkeypatch.setattr(module, "feature_circuit", counted)
    with pytest.raises(KeyboardInterrupt):
        cluster_circuits(model, given, clusters, featurizers(), folder=tmp_path / "new" / "one", **OPTIONS)
    kept = sorted(path.name for path in (tmp_path / "new" / "one").iterdir())
    assert kept == [*sorted(calls[n].replace(" ", "-") for n in (0, 1)), "settings.json"]
    again = cluster_circuits(model, given, clusters, featurizers(), folder=tmp_path / "new" / "one", **OPTIONS)
    assert len(calls) == 4 and calls[3] == calls[2]
    assert [content(one) for one in again] == [content(one) for one in straight]
    other = {**OPTIONS, "batch": 3, "progress": True}
    third = cluster_circuits(model, given, clusters, featurizers(), folder=tmp_path / "new" / "one", **other)
    assert len(calls) == 4 and [content(one) for one in third] == [content(one) for one in straight]


def test_a_folder_is_one_searchs_own(tmp_path):
    given, clusters = contexts(), groups()
    model = HookedHF(build("gpt2"))
    base = {"clusters": clusters, "featurizers": featurizers(model), "folder": tmp_path / "a", **OPTIONS}
    cluster_circuits(model, given, **base)
    changed = replace(given, answers=given.answers + 1)
    others = [
        (model, changed, {}), (model, given, {"clusters": groups((7, 4, 2, 1))}), (model, given, {"n_nodes": 11}),
        (model, given, {"featurizers": featurizers(model, seed=9)}), (model, given, {"most": 3}),
        (model, given, {"featurizers": featurizers(model)[:2]}),
    ]  # fmt: skip
    for other, prompts, change in others:
        with pytest.raises(FileError, match="holds circuits of another model, other contexts, clusters, featurizers"):
            cluster_circuits(other, prompts, **{**base, **change})
    with torch.no_grad():
        model.model.transformer.h[1].mlp.c_fc.weight[3, 4] += 1e-3
    with pytest.raises(FileError, match="holds circuits of another model"):
        cluster_circuits(model, given, **base)


def test_a_foreign_or_damaged_folder_is_refused(tmp_path):
    model, given, clusters = hooked("gpt2"), contexts(), groups()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("mine")
    with pytest.raises(FileError, match="is not empty and holds no cluster circuits"):
        cluster_circuits(model, given, clusters, featurizers(), folder=tmp_path / "a", **OPTIONS)
    for text in ("{", "[]", '{"other": 1}'):
        (tmp_path / "a" / "settings.json").write_text(text)
        with pytest.raises(FileError, match=r"settings.json is damaged .*; delete the folder to begin anew"):
            cluster_circuits(model, given, clusters, featurizers(), folder=tmp_path / "a", **OPTIONS)
    cluster_circuits(model, given, clusters, featurizers(), folder=tmp_path / "b", **OPTIONS)
    (path,) = (tmp_path / "b" / "cluster-0").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileError):
        cluster_circuits(model, given, clusters, featurizers(), folder=tmp_path / "b", **OPTIONS)
    assert json.loads((tmp_path / "b" / "settings.json").read_text()).keys() == {"settings"}


def test_overlap_is_the_jaccard_index_of_kept_nodes():
    found = cluster_circuits(hooked("gpt2"), contexts(), groups(), featurizers(), **OPTIONS)
    overlap = circuit_overlap(found)
    for a, one in enumerate(found):
        for b, other in enumerate(found):
            kept = [{str(x) for x in each.circuit.frame(kept_only=True)["node"]} - {"logits"} for each in (one, other)]
            assert overlap[a, b] == len(kept[0] & kept[1]) / len(kept[0] | kept[1])
    assert np.diag(overlap).tolist() == [1] * 3 and 0 < overlap[0, 1] < 1
    none = [replace(one, circuit=replace(one.circuit, kept_nodes=one.circuit.kept_nodes & False,
            kept_edges=one.circuit.kept_edges & False)) for one in found]  # fmt: skip
    assert np.isnan(circuit_overlap(none)).all() and circuit_overlap([]).shape == (0, 0)
    assert circuit_overlap([found[0], none[0]]).tolist()[0] == [1, 0]


def test_the_model_stays_as_it_was():
    raw = build("gpt2")
    next(raw.parameters()).requires_grad_(False)
    model = HookedHF(raw)
    before = {name: p.detach().clone() for name, p in raw.named_parameters()}
    flags = [p.requires_grad for p in raw.parameters()]
    cluster_circuits(model, contexts(), groups(), featurizers(model), **OPTIONS)
    assert [p.requires_grad for p in raw.parameters()] == flags and all(p.grad is None for p in raw.parameters())
    assert all(torch.equal(p, before[name]) for name, p in raw.named_parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in raw.modules())


def test_what_cannot_be_is_said():
    model, given, clusters = hooked("gpt2"), contexts(), groups()
    with unchecked():
        for name, value in {"ablation": "mean", "positions": "each", "metric": "prob", "direction": "noising"}.items():
            with pytest.raises(OptionError, match=f"{name}: fixed for clusters"):
                cluster_circuits(model, given, clusters, featurizers(), **{name: value}, **OPTIONS)
        for wrong in ({"most": 0}, {"smallest": 0}):
            with pytest.raises(OptionError, match="allowed: 1 and more"):
                cluster_circuits(model, given, clusters, featurizers(), **wrong, **OPTIONS)
        with pytest.raises(OptionError, match="14 contexts were clustered, 3 are given; give the same"):
            cluster_circuits(model, given[:3], clusters, featurizers(), **OPTIONS)
        with pytest.raises(OptionError, match="no cluster has smallest=7 contexts; the largest has 6"):
            cluster_circuits(model, given, clusters, featurizers(), smallest=7, **OPTIONS)
        with pytest.raises(OptionError, match="at_least=None and n_nodes=None; give one of them"):
            cluster_circuits(model, given, clusters, featurizers(), progress=False)
