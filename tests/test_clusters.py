"""Clusters: planted groups come back, quality by definition and by scikit-learn, the seed decides."""

from functools import cache

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score, silhouette_samples
from tiny import unchecked

import interp
from interp import clusters as module
from interp.clusters import choose_n_clusters, cluster, cluster_stability, unit_rows
from interp.errors import MissingExtraError, OptionError
from interp.models.base import HookedModel
from interp.predicted import Contexts, predicted_contexts
from interp.toy import documents
from interp.vectors import ContextVectors, context_vectors

KINDS = ("spectral", "spherical_kmeans")


def planted(sizes: list[int], *, noise: float = 0.25, width: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors near one direction a group, of very different lengths, and the groups; in mixed order."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.standard_normal((width, len(sizes))))[0].T
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    vectors = centres[labels] + noise * rng.standard_normal((len(labels), width)) / width**0.5
    return vectors * np.exp(rng.normal(0, 2, (len(labels), 1))), labels


def cosines(vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "form", [np.asarray, sparse.csr_array, lambda x: ContextVectors(sparse.csr_array(x), "effects")]
)
def test_planted_groups_are_found_whatever_the_vectors_lengths(kind, form):
    vectors, labels = planted([30, 20, 12, 5])
    found = cluster(form(vectors), 4, kind=kind)
    assert adjusted_rand_score(labels, found.labels) == 1.0
    assert sorted(found.quality["size"].tolist()) == [5, 12, 20, 30] and len(found) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_and_dense_vectors_give_the_same(kind):
    vectors, _ = planted([30, 20, 12], noise=1.5, width=300)
    vectors[np.abs(vectors) < np.quantile(np.abs(vectors), 0.93, axis=1, keepdims=True)] = 0
    assert sparse.issparse(unit_rows(sparse.csr_array(vectors))) and not sparse.issparse(unit_rows(vectors))
    thin, thick = (cluster(form(vectors), 5, kind=kind, seed=2) for form in (sparse.csr_array, np.asarray))
    assert np.array_equal(thin.labels, thick.labels)
    np.testing.assert_allclose(thin.centrality, thick.centrality, atol=1e-9)
    assert not sparse.issparse(unit_rows(sparse.csr_array(planted([5, 5])[0])))


@pytest.mark.parametrize("kind", KINDS)
def test_quality_is_what_its_names_say(kind):
    vectors, _ = planted([25, 14, 8, 6], noise=2.0)
    found = cluster(vectors, 6, kind=kind)
    near, labels = cosines(vectors), found.labels
    for number, size, within, between, silhouette in zip(*found.quality.data.values(), strict=True):
        inside = labels == number
        pairs = near[np.ix_(inside, inside)][~np.eye(inside.sum(), dtype=bool)]
        assert size == inside.sum()
        np.testing.assert_allclose([within, between], [pairs.mean(), near[np.ix_(inside, ~inside)].mean()], atol=1e-9)
        np.testing.assert_allclose(silhouette, silhouette_samples(vectors, labels, metric="cosine")[inside].mean())
    np.testing.assert_allclose(found.silhouette, silhouette_samples(vectors, labels, metric="cosine").mean())
    within = found.quality["within"]
    assert (np.diff(within) <= 0).all()


def test_a_cluster_of_one_comes_last_without_a_cosine_within():
    vectors, labels = planted([9, 1, 6], noise=0.1)
    found = cluster(vectors, 3)
    assert found.quality["size"].tolist()[-1] == 1 and found.labels[labels == 1] == 2
    assert np.isnan(found.quality["within"][-1]) and found.quality["silhouette"][-1] == 0
    assert found.members(2).tolist() == np.flatnonzero(labels == 1).tolist()


def test_members_come_by_their_cosine_with_the_mean_direction():
    vectors, _ = planted([20, 15], noise=1.0)
    found = cluster(vectors, 2)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for number in range(2):
        mean = unit[found.labels == number].mean(0)
        near = unit[found.members(number)] @ mean / np.linalg.norm(mean)
        assert (np.diff(near) <= 0).all() and len(near) == found.quality["size"][number]
        np.testing.assert_allclose(found.centrality[found.members(number)], near)


def test_spherical_kmeans_ends_where_no_context_and_no_centre_wants_to_move():
    vectors, _ = planted([15, 15, 15], noise=3.0)
    labels = cluster(vectors, 5, kind="spherical_kmeans").labels
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = np.stack([unit[labels == c].sum(0) for c in range(5)])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    assert np.array_equal((unit @ centres.T).argmax(1), labels)


def test_centres_of_length_1_part_a_tight_and_a_loose_group_at_equal_angles():
    angles = np.radians(
        [0.0, 0.0, 0.0, 0.0, 44.0, 90 - 40.0, 90 + 40.0]
    )  # the tight group's centre is 0, the other's 90
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1)
    start = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert module._settled(vectors, start, 2)[1].tolist() == [0, 0, 0, 0, 0, 1, 1]
    value, labels = module._settled(vectors, start, 2)
    sums = np.stack([vectors[labels == c].sum(0) for c in range(2)])
    np.testing.assert_allclose(value, np.linalg.norm(sums, axis=1).sum())


def test_a_centre_that_nothing_is_near_takes_a_context():
    vectors, _ = planted([8, 8], noise=0.5)
    unit = unit_rows(vectors)
    start = np.concatenate([unit[:1], -unit[:1] * 1.0, -unit[:1]])
    assert set(module._settled(unit, start, 3)[1]) == {0, 1, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_and_global_randomness_is_neither_used_nor_moved(kind):
    vectors, _ = planted([20, 20], noise=4.0)
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    first = cluster(vectors, 7, kind=kind, seed=3)
    assert np.random.get_state()[1].tolist() == before
    np.random.seed(6)
    assert np.array_equal(first.labels, cluster(vectors, 7, kind=kind, seed=3).labels)
    assert not all(np.array_equal(first.labels, cluster(vectors, 7, kind=kind, seed=s).labels) for s in range(6))


def test_stability_is_the_adjusted_rand_index_between_seeds():
    vectors, _ = planted([20, 20], noise=4.0)
    found = cluster_stability(vectors, 5, kind="spherical_kmeans", seeds=[0, 4, 9])
    labels = [cluster(vectors, 5, kind="spherical_kmeans", seed=seed).labels for seed in (0, 4, 9)]
    np.testing.assert_allclose(found, [[adjusted_rand_score(a, b) for b in labels] for a in labels])
    assert found.min() < 0.9 and np.diag(found).tolist() == [1, 1, 1]
    np.testing.assert_allclose(cluster_stability(planted([20, 20])[0], 2), np.ones((5, 5)))


def test_the_number_of_clusters_is_the_smallest_with_most_groups_of_several():
    vectors, _ = planted([10, 10, 10], noise=0.1, width=90)
    several = {n: int((cluster(vectors, n).quality["size"] > 1).sum()) for n in (2, 3, 4, 12, 20)}
    number, table = choose_n_clusters(vectors, [20, 2, 3, 12, 4, 4])
    assert table["n_clusters"].tolist() == [2, 3, 4, 12, 20] and table["several"].tolist() == list(several.values())
    assert number == min(n for n in several if several[n] == max(several.values()))
    assert table["silhouette"].argmax() == 1
    found = cluster(vectors, 3)
    np.testing.assert_allclose(
        [table["within"][1], table["silhouette"][1]], [found.quality["within"].mean(), found.silhouette]
    )


PAIRS = [("in", "the"), ("was", "in"), ("at", "night"), ("color", "of")]


@cache
def planted_contexts() -> tuple[HookedModel, Contexts, list[int]]:
    """Contexts of a trained model that end in four ways, and which way each."""
    model = interp.load("embedded")
    found = predicted_contexts(model, documents(200, 7))
    pairs = [(tokens[-1], answer) for tokens, answer in zip(found.prompts.tokens, found.answer_tokens, strict=True)]
    rows = [row for pair in PAIRS for row in [n for n, own in enumerate(pairs) if own == pair][:12]]
    return model, found[rows], [PAIRS.index(pairs[row]) for row in rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["effects", "activations"])
def test_what_a_trained_model_predicts_for_one_reason_comes_back_as_one_cluster(kind, what):
    model, contexts, labels = planted_contexts()
    assert np.bincount(labels).tolist() == [12] * 4
    neurons = [interp.coordinates(model, site) for site in model.sites("neuron")]
    vectors = context_vectors(model, contexts, neurons, what, last=1)
    assert adjusted_rand_score(labels, cluster(vectors, 4, kind=kind).labels) > 0.95


def test_what_cannot_be_is_said(monkeypatch):
    vectors, _ = planted([5, 5])
    with unchecked():
        for n in (1, 10):
            with pytest.raises(OptionError, match=f"n_clusters={n} of 10 contexts; allowed: 2 to 9"):
                cluster(vectors, n)
        with pytest.raises(OptionError, match="kind is 'kmeans'; allowed: 'spectral', 'spherical_kmeans'"):
            cluster(vectors, 2, kind="kmeans")
        with pytest.raises(OptionError, match=r"vectors have shape \(10,\); give \[context, coordinate\]"):
            cluster(vectors[:, 0], 2)
        with pytest.raises(OptionError, match="NaN or infinities"):
            cluster(np.where(vectors == vectors.max(), np.nan, vectors), 2)
        silent = np.concatenate([vectors, np.zeros((2, 40))])
        for form in (np.asarray, sparse.csr_array):
            with pytest.raises(OptionError, match=r"2 of 12 vectors are zero .*contexts \[10, 11\]"):
                cluster(form(silent), 2)
        twice = np.concatenate([vectors[:3]] * 4) * np.arange(1, 13)[:, None]
        for kind in KINDS:
            with pytest.raises(OptionError, match="n_clusters=4, but the vectors have 3 different directions"):
                cluster(twice, 4, kind=kind)
        with pytest.raises(OptionError, match="n_clusters=0 of 10"):
            choose_n_clusters(vectors, [])
        with pytest.raises(OptionError, match="give two or more"):
            cluster_stability(vectors, 2, seeds=[1])
        with pytest.raises(OptionError, match="cluster 2 of 2; allowed: 0 to 1"):
            cluster(vectors, 2).members(2)
        monkeypatch.setattr(module, "MOST_SPECTRAL", 9)
        with pytest.raises(OptionError, match="10 contexts, allowed for kind='spectral': 9"):
            cluster(vectors, 2)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"'sklearn'.*interp\[sae\]"):
            cluster(vectors, 2)
