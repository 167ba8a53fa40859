"""A feature circuit for each cluster of contexts.

Each circuit is `feature_circuit` on up to `most` contexts of a cluster: effects on log p(answer), so that positive
helps the prediction; features ablated to zero, as there are no counterparts; positions together, as there is no
template.

With a folder, each finished circuit is saved there, and a search that was interrupted goes on: what is there is read,
the rest is made. A hash of everything that decides the result keeps different searches out of one folder.

Source: Marks et al. 2024 (arXiv 2403.19647), section 5.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from interp.atomic import replacing
from interp.circuit import Circuit
from interp.circuit_files import load_circuit, save_circuit
from interp.clusters import Clusters
from interp.errors import FileError, OptionError
from interp.featurizers.base import Featurizer, checked_featurizers
from interp.methods.features import described, feature_circuit
from interp.models.base import HookedModel
from interp.models.fingerprint import weight_fingerprint
from interp.predicted import Contexts

SETTINGS = "settings.json"
FIXED = ("ablation", "positions", "metric", "direction")
WITHOUT_EFFECT = ("progress", "batch")  # on the result, rounding apart


@dataclass(frozen=True, eq=False)
class ClusterCircuit:
    """A cluster's circuit.

    Attributes:
        cluster: its number.
        contexts: those that the circuit was made from.
        circuit: kept nodes and edges among all candidates; without the candidates' values prompt by prompt, which would
            be most of its file.
    """

    cluster: int
    contexts: tuple[int, ...]
    circuit: Circuit

    @property
    def nodes(self) -> frozenset[str]:
        """The kept nodes, the logits apart."""
        kept = self.circuit.nodes.take(np.flatnonzero(self.circuit.kept_nodes))
        return frozenset(str(node) for node in kept if node.kind != "logits")


def cluster_circuits(
    model: HookedModel,
    contexts: Contexts,
    clusters: Clusters,
    featurizers: Sequence[Featurizer],
    *,
    folder: str | Path | None = None,
    most: int = 100,
    smallest: int = 2,
    seed: int = 0,
    **options: Any,
) -> list[ClusterCircuit]:
    """A feature circuit for each cluster, the most coherent cluster first.

    Args:
        contexts: those that were clustered.
        featurizers: at most one a site.
        folder: where finished circuits are kept, to go on from: ``cluster-0``, ``cluster-1``, ...
        most: contexts of a cluster that are used, drawn by the seed.
        smallest: clusters of fewer contexts are left out.
        options: of `feature_circuit`: `at_least` or `n_nodes`, bars for edges, method, steps, batch, progress.

    Raises:
        OptionError: options that are fixed here, numbers outside their range, clusters of other contexts.
        FileError: a folder with another search's circuits, or a damaged one.

    Example:
        found = interp.cluster_circuits(model, contexts, interp.cluster(vectors, 8), dictionaries, n_nodes=50)
    """
    if taken := [name for name in FIXED if name in options]:
        raise OptionError(f"{', '.join(taken)}: fixed for clusters (zero, all, logprob, noising); leave it out.")
    if most < 1 or smallest < 1:
        raise OptionError(f"most={most}, smallest={smallest}; allowed: 1 and more.")
    if len(clusters.labels) != len(contexts):
        raise OptionError(f"{len(clusters.labels)} contexts were clustered, {len(contexts)} are given; give the same.")
    wanted = [int(number) for number in np.flatnonzero(clusters.quality["size"] >= smallest)]
    if not wanted:
        raise OptionError(
            f"no cluster has smallest={smallest} contexts; the largest has {clusters.quality['size'].max()}."
        )
    given = checked_featurizers(model, featurizers)
    rows = {number: _drawn(clusters, number, most, seed) for number in wanted}
    place = None if folder is None else Path(folder)
    if place is not None:
        _claim(place, _settings(model, contexts, rows, given, options))
    found = []
    with tqdm(
        rows.items(), disable=None if options.get("progress", True) else True, desc="clusters", leave=False
    ) as bar:
        for number, chosen in bar:
            kept = None if place is None else place / f"cluster-{number}"
            if kept is not None and (kept / "circuit.json").exists():
                circuit = load_circuit(kept)
            else:
                task = contexts[chosen].task(f"cluster {number}")
                made = feature_circuit(
                    model, task, given, ablation="zero", positions="all", metric="logprob", **options
                )
                circuit = replace(made, tensors={})
                if kept is not None:
                    save_circuit(circuit, kept)
            found.append(ClusterCircuit(number, tuple(chosen), circuit))
    return found


def circuit_overlap(circuits: Sequence[ClusterCircuit]) -> Float[np.ndarray, "circuit circuit"]:
    """Jaccard index of the kept nodes of every two circuits: 1 for the same ones, 0 for none in common; NaN where
    neither keeps any."""
    nodes = [one.nodes for one in circuits]
    return np.array([[_jaccard(one, other) for other in nodes] for one in nodes]).reshape(len(nodes), len(nodes))


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else float("nan")


def _drawn(clusters: Clusters, number: int, most: int, seed: int) -> list[int]:
    """Up to `most` of a cluster's contexts, in their order."""
    rows = np.flatnonzero(clusters.labels == number)
    chosen = np.random.default_rng([seed, number]).permutation(len(rows))[:most]
    return [int(row) for row in np.sort(rows[chosen])]


def _settings(
    model: HookedModel,
    contexts: Contexts,
    rows: Mapping[int, Sequence[int]],
    featurizers: Sequence[Featurizer],
    options: Mapping[str, Any],
) -> str:
    """A hash of everything that decides the circuits."""
    return sha256(
        json.dumps(
            [
                model.identity.name,
                weight_fingerprint({str(number): p for number, p in enumerate(model.parameters())}),
                [contexts.prompts.rows(), contexts.answers.tolist(), {str(key): one for key, one in rows.items()}],
                [[str(one), described(one), _weights(one)] for one in featurizers],
                {name: value for name, value in options.items() if name not in WITHOUT_EFFECT},
            ],
            sort_keys=True,
            default=repr,
        ).encode()
    ).hexdigest()


def _weights(one: Featurizer) -> str:
    """A fingerprint of a featurizer's tensors."""
    values = {each.name: getattr(one, each.name) for each in fields(one)}
    return weight_fingerprint({name: value for name, value in values.items() if isinstance(value, Tensor)})


def _claim(folder: Path, settings: str) -> None:
    """Make the folder this search's own.

    Raises:
        FileError: it is another's.
    """
    path = folder / SETTINGS
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["settings"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{path} is damaged ({error}); delete the folder to begin anew.") from error
        if found != settings:
            raise FileError(
                f"{folder} holds circuits of another model, other contexts, clusters, featurizers or options; delete "
                "it, or name another folder."
            )
    elif folder.exists() and any(not one.name.startswith(".") for one in folder.iterdir()):
        raise FileError(f"{folder} is not empty and holds no cluster circuits; name another folder.")
    else:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")
