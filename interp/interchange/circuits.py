"""What an interchange does, as a `Circuit`: a node for each concept's subspace at a site and role, with its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuit import Attribute, Circuit, NamedTensor
from interp.errors import CircuitError, nearest
from interp.featurizers.linear import Basis, orthonormal
from interp.interchange.examples import Counterfactuals, rows_of
from interp.interchange.exchanges import Subspace
from interp.interchange.placing import AtRoles
from interp.interchange.scores import InterchangeScores, joined_scores, score_interchange
from interp.interchange.states import Resumption, States, states_of
from interp.models.base import HookedModel
from interp.nodes import Node, Nodes
from interp.provenance import Provenance
from interp.site import Site
from interp.tokens import tokenizer_fingerprint

MEANINGS = {
    "cause": "share of held-out cause examples answered with the source's value",
    "isolate": "share of held-out isolate examples answered with the base's own value",
    "disentangle": "mean of cause and isolate",
    "low": "lower end of the 95 % interval of disentangle, over entities",
    "high": "upper end of it",
}


@dataclass(frozen=True, eq=False)
class Placed:
    """One concept's part of a circuit.

    Args:
        concept: which.
        site, role: where; no role ("") for all positions.
        basis: directions that are exchanged, None where it is no subspace.
        scores: on held-out examples.
        described: JSON values that say how it was found.
        more: further attributes of the node, by name.
    """

    concept: str
    site: Site
    role: str
    basis: Float[Tensor, "d rank"] | None
    scores: InterchangeScores
    described: Mapping[str, Any]
    more: Mapping[str, float] = field(default_factory=dict)


def interchange_circuit(
    model: HookedModel, data: Counterfactuals, found: Sequence[Placed], method: str, *,
    parameters: Mapping[str, Any], seed: int, forwards: float = 0.0, backwards: float = 0.0,
) -> Circuit:  # fmt: skip
    """The circuit of subspaces, one node a concept.

    Args:
        data: the examples that scores are of.
        found: what each concept has.
        method: its name, in keys of featurizers too (``method.concept``).
    """
    keys = [f"{method}.{one.concept}" for one in found]
    named = list(zip(found, keys, strict=True))
    nodes = Nodes.of([
        Node(one.site.kind, one.site.layer, role=one.role or None, featurizer=key) for one, key in named
    ])  # fmt: skip
    columns = [_row(one) for one in found]
    attributes: dict[str, Attribute] = {
        "concept": Attribute("nodes", np.array([o.concept for o in found], dtype=object))
    }
    for name in dict.fromkeys(name for row in columns for name in row):
        values = np.array([row.get(name, np.nan) for row in columns])
        attributes[name] = Attribute("nodes", values, MEANINGS.get(name, ""))
    tensors = {
        f"{key}.basis": NamedTensor(one.basis.detach().cpu().numpy(), ("d", "direction"))
        for one, key in named
        if one.basis is not None
    }
    provenance = Provenance(
        model=model.identity.name, revision=model.identity.revision or None, weights=model.identity.fingerprint,
        tokenizer=tokenizer_fingerprint(model.tokenizer), task=data.name, task_parameters=data.parameters,
        token_ids=tuple(map(tuple, data.prompts.rows())), metric="disentangle", method=method,
        parameters={**parameters, "family": model.family}, seed=seed, forwards=forwards, backwards=backwards,
    )  # fmt: skip
    featurizers = {
        key: {**one.described, "site": str(one.site), "skip": 0, "features": _rank(one)} for one, key in named
    }
    return Circuit(nodes, attributes=attributes, tensors=tensors, featurizers=featurizers, provenance=provenance)


def _rank(one: Placed) -> int:
    return 0 if one.basis is None else one.basis.shape[1]


def _row(one: Placed) -> dict[str, float]:
    low, high = one.scores.interval(one.concept)
    return {
        "cause": one.scores.cause(one.concept), "isolate": one.scores.isolate(one.concept),
        "disentangle": one.scores.disentangle(one.concept), "low": low, "high": high,
        "rank": np.nan if one.basis is None else float(one.basis.shape[1]), **one.more,
    }  # fmt: skip


def subspace_basis(circuit: Circuit, concept: str) -> Basis:
    """A concept's subspace as a featurizer, ready for interventions, attribution and circuits of features.

    Raises:
        CircuitError: no subspace of that concept in the circuit.
    """
    suffix = ".basis"
    keys = {key.split(".", 1)[1]: key for key in circuit.featurizers if f"{key}{suffix}" in circuit.tensors}
    if concept not in keys:
        raise CircuitError(
            f"no subspace of {concept!r}; there are: {', '.join(keys) or 'none'}{nearest(concept, keys)}."
        )
    key = keys[concept]
    directions = torch.tensor(circuit.tensors[f"{key}{suffix}"].array)
    return orthonormal(Site.parse(circuit.featurizers[key]["site"]), directions, key=key)


def score_subspaces(
    model: HookedModel, circuit: Circuit, data: Counterfactuals, *, states: States | None = None, progress: bool = True
) -> InterchangeScores:
    """Run examples with each concept's subspace of a circuit exchanged at its site and role.

    Args:
        circuit: from `interp.das` (a HyperDAS chooses positions anew in each example, which a circuit cannot hold).
        states: activations of the prompts at the sites, where they are at hand.

    Raises:
        CircuitError: a concept without a subspace, or without a role.
    """
    parts = []
    for concept in data.concept_names:
        basis = subspace_basis(circuit, concept)
        row = list(circuit.nodes.names("featurizer")).index(basis.key)
        role = list(circuit.nodes.names("role"))[row]
        if not role:
            raise CircuitError(f"the subspace of {concept!r} has no role; score the network that it comes from.")
        d, rank = basis.rotation.shape
        one = AtRoles(basis.site, Subspace(d, rank, rotation=basis.rotation), role).to(model.device)
        rows = [n for n, name in enumerate(data.concepts) if name == concept]
        here = states or states_of(model, data.prompts, one.needs, rows=rows_of([data]), progress=progress)
        scores = score_interchange(Resumption(model, basis.site, here), data[rows], one, progress=progress)
        parts.append((rows, scores))
    return joined_scores(parts, data)
