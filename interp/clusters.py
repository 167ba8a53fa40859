"""Groups of contexts whose vectors point the same way, and how good the groups are.

    spectral           normalised cuts of the graph with weights 1 - arccos(cos) / pi
    spherical_kmeans   centres of length 1 that maximise the sum of cosines to the own centre

Ordinary k-means on vectors of length 1 is another algorithm: a tight group's centre is longer and draws others in.

All cosines of mean vectors are sums, so quality costs one product of contexts and clusters, never one of all pairs:
with s_c the sum of a cluster's n unit vectors u, the mean cosine of u with it is u . s_c / n (its own pair left out),
and the silhouette of cosine distance follows. Clusters are numbered by coherence, the highest mean cosine within first.

Source: Marks et al. 2024 (arXiv 2403.19647), appendix on clusters; silhouette: Rousseeuw 1987.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from interp.errors import OptionError, check_choice, require
from interp.table import Table
from interp.vectors import ContextVectors

ClusterKind = Literal["spectral", "spherical_kmeans"]
MOST_SPECTRAL = 20_000  # contexts; the graph then takes 3.2 GB
STARTS = {"spectral": 30, "spherical_kmeans": 10}  # the paper's n_init; ours
ITERATIONS = 100  # of k-means, as the authors' code
DENSE = 0.1  # share of nonzero coordinates from which dense products are faster


@dataclass(frozen=True, eq=False)
class Clusters:
    """A grouping of contexts; cluster 0 is the most coherent.

    Attributes:
        labels: each context's cluster.
        centrality: each context's cosine with its cluster's mean direction.
        quality: one row a cluster: cluster, size, within (mean cosine of two members; NaN for one member), between
            (mean cosine of a member and another cluster's), silhouette (mean over members, of cosine distance; 0 for
            one member).
        silhouette: the mean over all contexts.
        kind, seed: how they were found.
    """

    labels: Int[np.ndarray, " context"]
    centrality: Float[np.ndarray, " context"]
    quality: Table
    silhouette: float
    kind: str
    seed: int

    def __len__(self) -> int:
        return len(self.quality)

    def members(self, cluster: int) -> Int[np.ndarray, " member"]:
        """A cluster's contexts, the most central first.

        Raises:
            OptionError: a cluster that there is not.
        """
        if not 0 <= cluster < len(self):
            raise OptionError(f"cluster {cluster} of {len(self)}; allowed: 0 to {len(self) - 1}.")
        rows = np.flatnonzero(self.labels == cluster)
        return rows[np.argsort(-self.centrality[rows], kind="stable")]


def cluster(vectors: Any, n_clusters: int, *, kind: ClusterKind = "spectral", seed: int = 0) -> Clusters:
    """Group contexts by the directions of their vectors.

    Args:
        vectors: of `context_vectors`, or any array [context, coordinate], dense or SciPy's sparse.
        n_clusters: how many groups, none of them empty.
        kind: ``"spectral"`` (memory 8 n^2 bytes for n contexts) or ``"spherical_kmeans"`` (for many contexts).
        seed: of the starts.

    Raises:
        OptionError: fewer than 2 clusters, not more contexts than clusters, fewer distinct vectors than clusters,
            vectors of zeros, NaN or infinities.
        MissingExtraError: scikit-learn is not installed.
    """
    check_choice("kind", kind, get_args(ClusterKind))
    unit = unit_rows(vectors)
    check_number(unit, n_clusters)
    return _judged(unit, _grouped(unit, n_clusters, kind, seed), kind, seed)


def choose_n_clusters(
    vectors: Any, among: Sequence[int], *, kind: ClusterKind = "spectral", seed: int = 0
) -> tuple[int, Table]:
    """The number of clusters that leaves most of them with several members, as in the paper.

    Args:
        among: the numbers to try.

    Returns:
        the number (the smallest of equals), and a table: n_clusters, several (clusters of more than one member),
        silhouette, within (mean over those clusters).

    Raises:
        OptionError: nothing to try, or as `cluster`.
    """
    check_choice("kind", kind, get_args(ClusterKind))
    unit = unit_rows(vectors)
    numbers = sorted({int(n) for n in among})
    for n in numbers or [0]:
        check_number(unit, n)
    found = [_judged(unit, _grouped(unit, n, kind, seed), kind, seed) for n in numbers]
    several = [one.quality["size"] > 1 for one in found]
    table = Table(
        {
            "n_clusters": np.array(numbers),
            "several": np.array([int(own.sum()) for own in several]),
            "silhouette": np.array([one.silhouette for one in found]),
            "within": np.array([one.quality["within"][own].mean() for one, own in zip(found, several, strict=True)]),
        }
    )
    return numbers[int(table["several"].argmax())], table


def cluster_stability(
    vectors: Any, n_clusters: int, *, kind: ClusterKind = "spectral", seeds: Sequence[int] = range(5)
) -> Float[np.ndarray, "seed seed"]:
    """Agreement of the groupings that several seeds give: adjusted Rand index, 1 for equal ones and 0 for chance.

    Raises:
        OptionError: fewer than two seeds, or as `cluster`.
    """
    check_choice("kind", kind, get_args(ClusterKind))
    unit = unit_rows(vectors)
    check_number(unit, n_clusters)
    if len(seeds) < 2:
        raise OptionError(f"seeds={list(seeds)}; give two or more, whose groupings are compared.")
    from sklearn.metrics import adjusted_rand_score

    found = [_grouped(unit, n_clusters, kind, seed) for seed in seeds]
    return np.array([[float(adjusted_rand_score(one, other)) for other in found] for one in found])


def unit_rows(vectors: Any) -> Any:
    """The vectors at length 1, in float64: sparse where few coordinates are not 0, else dense.

    Raises:
        OptionError: no matrix, NaN or infinities, vectors of zeros.
    """
    require("sklearn", "sae")
    from scipy import sparse  # type: ignore[import-untyped]

    values = vectors.values if isinstance(vectors, ContextVectors) else vectors
    if sparse.issparse(values):
        values = sparse.csr_array(values).astype(np.float64)
        if values.nnz > DENSE * np.prod(values.shape, dtype=float):
            values = values.toarray()
    else:
        values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not values.shape[0]:
        raise OptionError(f"vectors have shape {values.shape}; give [context, coordinate] with contexts.")
    numbers = values.data if sparse.issparse(values) else values
    if not np.isfinite(numbers).all():
        raise OptionError("vectors hold NaN or infinities; give finite numbers.")
    norms = _norms(values)
    if empty := np.flatnonzero(norms == 0).tolist():
        raise OptionError(
            f"{len(empty)} of {len(norms)} vectors are zero and have no direction (contexts {empty[:10]}); leave these "
            "contexts out, or use more positions, sites or dictionaries."
        )
    return _scaled(values, 1 / norms)


def check_number(unit: Any, n_clusters: int) -> None:
    """Raise unless so many clusters can be made of these vectors."""
    most = unit.shape[0] - 1
    if not 2 <= n_clusters <= most:
        raise OptionError(f"n_clusters={n_clusters} of {most + 1} contexts; allowed: 2 to {most}.")
    line = np.random.default_rng(0).standard_normal(unit.shape[1])  # on which different directions differ
    if (distinct := len(np.unique(np.round(unit @ line, 9)))) < n_clusters:
        raise OptionError(
            f"n_clusters={n_clusters}, but the vectors have {distinct} different directions; ask for no more clusters."
        )


def _norms(values: Any) -> np.ndarray:
    """The rows' lengths."""
    return np.sqrt(np.asarray((values * values).sum(1)).ravel())


def _scaled(values: Any, by: np.ndarray) -> Any:
    """Rows times numbers."""
    scaled = values * by[:, None]
    return scaled.tocsr() if hasattr(scaled, "tocsr") else scaled


def _products(unit: Any, others: Any) -> np.ndarray:
    """All inner products of two sets of vectors."""
    found = unit @ others.T
    return found.toarray() if hasattr(found, "toarray") else found


def _sums(unit: Any, labels: np.ndarray, n: int) -> Any:
    """The sum of each cluster's vectors."""
    from scipy import sparse

    member = sparse.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=(n, len(labels)))
    return member @ unit


def _grouped(unit: Any, n: int, kind: str, seed: int) -> Int[np.ndarray, " context"]:
    """Each context's group, numbered in any order; none is empty."""
    find: Callable[[Any, int, int], np.ndarray] = _spectral if kind == "spectral" else _spherical
    labels = np.unique(find(unit, n, seed), return_inverse=True)[1].astype(np.int64)
    if (found := int(labels.max()) + 1) < n:
        raise OptionError(f"n_clusters={n}, but the search found {found} groups; ask for that many at most.")
    return labels


def _spectral(unit: Any, n: int, seed: int) -> np.ndarray:
    from sklearn.cluster import SpectralClustering

    if unit.shape[0] > MOST_SPECTRAL:
        raise OptionError(
            f"{unit.shape[0]:,} contexts, allowed for kind='spectral': {MOST_SPECTRAL:,} (memory grows with their "
            "square); use kind='spherical_kmeans'."
        )
    near = 1 - np.arccos(np.clip(_products(unit, unit), -1, 1)) / np.pi
    np.fill_diagonal(near, 1)
    model = SpectralClustering(n, affinity="precomputed", n_init=STARTS["spectral"], random_state=seed)
    return model.fit_predict((near + near.T) / 2)


def _spherical(unit: Any, n: int, seed: int) -> np.ndarray:
    """The best of several starts by k-means++."""
    from sklearn.cluster import kmeans_plusplus

    found = []
    for start in range(STARTS["spherical_kmeans"]):
        centres, _ = kmeans_plusplus(unit, n, random_state=seed * STARTS["spherical_kmeans"] + start)
        found.append(_settled(unit, centres, n))
    return max(found, key=lambda one: one[0])[1]


def _settled(unit: Any, centres: Any, n: int) -> tuple[float, np.ndarray]:
    """Contexts move to the nearest centre, centres to the direction of their sum, until nothing moves; the sum of
    cosines and the groups."""
    labels = np.full(unit.shape[0], -1)
    for _ in range(ITERATIONS):
        near = _products(unit, centres)
        before, labels = labels, near.argmax(1)
        for empty in np.setdiff1d(np.arange(n), labels):  # takes the context that fits its own centre worst
            fit = np.where(np.bincount(labels, minlength=n)[labels] > 1, near[np.arange(len(near)), labels], np.inf)
            labels[fit.argmin()] = empty
        if np.array_equal(before, labels):
            break
        sums = _sums(unit, labels, n)
        centres = _scaled(sums, 1 / np.maximum(_norms(sums), 1e-12))
    near = _products(unit, centres)
    return float(near[np.arange(len(near)), labels].sum()), labels


def _judged(unit: Any, labels: np.ndarray, kind: str, seed: int) -> Clusters:
    """The groups with their quality, the most coherent first."""
    n, rows = int(labels.max()) + 1, np.arange(len(labels))
    sizes, sums = np.bincount(labels), _sums(unit, labels, n)
    near = _products(unit, sums)  # context's cosines with all of a cluster, added up
    own, size = near[rows, labels], sizes[labels]
    with np.errstate(invalid="ignore", divide="ignore"):
        mine = np.where(size > 1, (own - 1) / (size - 1), np.nan)
    others = near / sizes
    others[rows, labels] = -np.inf
    apart, nearest = 1 - mine, 1 - others.max(1)
    longer = np.maximum(apart, nearest)
    fits = np.where((size > 1) & (longer > 1e-12), (nearest - apart) / np.where(longer > 1e-12, longer, 1), 0.0)
    outside = (near.sum(1) - own) / (len(labels) - size)
    members = [np.flatnonzero(labels == c) for c in range(n)]
    within, between, silhouettes = ([float(x[m].mean()) for m in members] for x in (mine, outside, fits))
    order = np.lexsort(([m[0] for m in members], -sizes, -np.nan_to_num(within, nan=-2)))
    place = np.argsort(order)
    columns = {"size": sizes, "within": within, "between": between, "silhouette": silhouettes}
    quality = Table({"cluster": np.arange(n)} | {name: np.asarray(x)[order] for name, x in columns.items()})
    centrality = own / np.maximum(_norms(sums)[labels], 1e-12)
    return Clusters(place[labels], centrality, quality, float(fits.mean()), kind, seed)
