"""Small models whose circuits are known, because their weights were set by hand; built in milliseconds.

Each is a GPT-2 of four layers without norms, on which methods run as on any other, with a task and the names of the
components that carry it. All other components write to one coordinate that the logits read faintly. They hold the
cases in which methods are known to fail: a saturated softmax, direct and indirect effects that cancel, a redundant
pair, a pair of which both are needed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from interp.candidate_nodes import candidates
from interp.errors import check_choice
from interp.graph import Graph, component_graph
from interp.metrics import Answers, metric
from interp.models.base import HookedModel
from interp.models.blank import blank_gpt2
from interp.models.load import load
from interp.nodes import Nodes
from interp.tasks.base import Task
from interp.tokens import from_ids

TOKENS, POSITIONS, N_LAYERS = 8, 4, 4
OUT, OTHER, JUNK = 12, 13, 14  # coordinates after those of tokens (0 to 7) and positions (8 to 11)
D_MODEL, N_HEADS, D_HEAD = 16, 4, 4
FAINT = 1e-3
"""Weight with which the logits read what is no part of a circuit."""
SHARP = 60.0
"""Scores at which a softmax over four positions is saturated: the others get e^-60."""


@dataclass(frozen=True, eq=False)
class KnownCircuit:
    """A model, a task and the truth.

    Attributes:
        nodes: the candidates: heads of q, k, v and z, and MLPs, over all positions.
        truth: which of them carry the task.
        graph: all edges between components.
        edge_truth: which of its scored edges carry the task.
    """

    name: str
    model: HookedModel
    task: Task
    nodes: Nodes
    truth: Bool[np.ndarray, " node"]
    graph: Graph
    edge_truth: Bool[np.ndarray, " edge"]


def known_circuit(name: str) -> KnownCircuit:
    """One of ``"chain"``, ``"saturated"``, ``"cancelling"``, ``"redundant"``, ``"conjunction"``.

    Raises:
        OptionError: an unknown name.
    """
    check_choice("known circuit", name, KNOWN)
    return KNOWN[name]()


def _network() -> Any:
    """A GPT-2 of zeros without norms: one-hot tokens and positions; the logit of token 0 reads OUT."""
    model = blank_gpt2(
        n_layers=N_LAYERS, n_heads=N_HEADS, d_model=D_MODEL, d_vocab=TOKENS, n_positions=POSITIONS
    )  # fmt: skip
    body = model.transformer
    body.wte.weight[:, :TOKENS] = torch.eye(TOKENS)
    body.wpe.weight[:, TOKENS : TOKENS + POSITIONS] = torch.eye(POSITIONS)
    model.lm_head.weight[0, OUT], model.lm_head.weight[0, JUNK] = 1.0, FAINT
    for layer in range(N_LAYERS):
        for head in range(N_HEADS):
            _head(model, layer, head, reads={token: float(token) for token in range(TOKENS)}, writes=JUNK)
        _mlp(model, layer, D_MODEL - 1, {token: float(token) for token in range(TOKENS)}, 0.0, JUNK, 1.0)
    return model


def _head(
    model: Any,
    layer: int,
    head: int,
    *,
    reads: Mapping[int, float],
    writes: int,
    queries: Mapping[int, int] | None = None,
    keys: Mapping[int, int] | None = None,
) -> None:
    """Set one head: it attends where query and key channels meet (evenly without any), and moves what it reads.

    Args:
        reads: coordinate -> factor of the value.
        writes: coordinate of the output.
        queries, keys: coordinate -> channel, scored with `SHARP` where both are there.
    """
    attn, at = model.transformer.h[layer].attn, head * D_HEAD
    width = N_HEADS * D_HEAD
    attn.c_attn.weight[:, [at + c + part for part in (0, width, 2 * width) for c in range(D_HEAD)]] = 0.0
    attn.c_proj.weight[at : at + D_HEAD] = 0.0
    for coordinate, channel in (queries or {}).items():
        attn.c_attn.weight[coordinate, at + channel] = SHARP * D_HEAD**0.5
    for coordinate, channel in (keys or {}).items():
        attn.c_attn.weight[coordinate, width + at + channel] = 1.0
    for coordinate, factor in reads.items():
        attn.c_attn.weight[coordinate, 2 * width + at] = factor
    attn.c_proj.weight[at, writes] = 1.0


def _mlp(
    model: Any, layer: int, unit: int, reads: Mapping[int, float], bias: float, writes: int, factor: float
) -> None:
    """Set one neuron: relu(reads + bias) times the factor goes to a coordinate."""
    mlp = model.transformer.h[layer].mlp
    for coordinate, weight in reads.items():
        mlp.c_fc.weight[coordinate, unit] = weight
    mlp.c_fc.bias[unit] = bias
    mlp.c_proj.weight[unit] = 0.0
    mlp.c_proj.weight[unit, writes] = factor


def _known(name: str, model: Any, clean: list[int], corrupted: list[int], edges: str) -> KnownCircuit:
    """The model with its task (logit 0 against a logit that is always 0) and the edges that carry it, as text."""
    hooked, last = load(model, check=False), len(clean) - 1
    given = Answers(torch.tensor([[last]]), torch.tensor([[[0]]]), torch.tensor([[[TOKENS - 1]]]))
    task = Task(name, from_ids([clean]), given, metric("logit_diff"), corrupted=from_ids([corrupted]))
    graph = component_graph(hooked)
    pairs = [tuple(edge.split(" -> ")) for edge in edges.split(", ")]
    ends = np.array([[graph.nodes.index(end) for end in pair] for pair in pairs])
    found = (graph.edges.source == ends[:, :1]) & (graph.edges.destination == ends[:, 1:])
    assert found.any(1).all(), f"the truth of {name} names edges that the model does not have"
    nodes = candidates(hooked, task, ["q", "k", "v", "z", "mlp_out"])
    carriers = {end for pair in pairs for end in pair}
    truth = np.array([str(node) in carriers for node in nodes])
    return KnownCircuit(name, hooked, task, nodes, truth, graph, found.any(0)[: graph.n_scored])


def _chain() -> KnownCircuit:
    """Head 0 moves whether token 1 stands first to position 1, head 1 of the next layer on to the last."""
    model = _network()
    p = TOKENS
    _head(model, 0, 0, reads={1: 1.0}, writes=OTHER, queries={p + 1: 0}, keys={p: 0})
    _head(model, 1, 1, reads={OTHER: 1.0}, writes=OUT, queries={p + 2: 0}, keys={p + 1: 0})
    edges = "input -> v[0] head 0, z[0] head 0 -> v[1] head 1, z[1] head 1 -> logits"
    return _known("chain", model, [1, 3, 4], [2, 3, 4], edges)


def _saturated() -> KnownCircuit:
    """Head 2 looks at token 0 when the last token is 2 and at token 1 when it is 3; its value is 1 at token 0."""
    model = _network()
    _head(model, 0, 2, reads={0: 1.0}, writes=OUT, queries={2: 0, 3: 1}, keys={0: 0, 1: 1})
    return _known("saturated", model, [0, 1, 2], [0, 1, 3], "input -> q[0] head 2, z[0] head 2 -> logits")


def _cancelling() -> KnownCircuit:
    """MLP 0 adds what head 1 brings, MLP 1 reads that and takes it away; MLP 2 adds it again."""
    model = _network()
    _head(model, 0, 1, reads={1: 3.0}, writes=OTHER)
    _mlp(model, 0, 0, {OTHER: 1.0}, 0.0, OUT, 1.0)
    _mlp(model, 1, 0, {OUT: 1.0}, 0.0, OUT, -1.0)
    _mlp(model, 2, 0, {OTHER: 1.0}, 0.0, OUT, 1.0)
    edges = (
        "input -> v[0] head 1, z[0] head 1 -> mlp_out[0], z[0] head 1 -> mlp_out[2], mlp_out[0] -> mlp_out[1], "
        "mlp_out[0] -> logits, mlp_out[1] -> logits, mlp_out[2] -> logits"
    )
    return _known("cancelling", model, [3, 1, 4], [3, 2, 4], edges)


PAIR_EDGES = (
    "input -> v[0] head 0, input -> v[0] head 3, z[0] head 0 -> mlp_out[1], z[0] head 3 -> mlp_out[1], "
    "mlp_out[1] -> logits"
)


def _pair() -> Any:
    """Heads 0 and 3 of the first layer both write to OTHER whether token 1 stands first."""
    model = _network()
    for head in (0, 3):
        _head(model, 0, head, reads={1: 1.0}, writes=OTHER, queries={TOKENS + 2: 0}, keys={TOKENS: 0})
    return model


def _redundant() -> KnownCircuit:
    """Heads 0 and 3 bring the same signal; the MLP passes on at most one of the two."""
    model = _pair()
    _mlp(model, 1, 0, {OTHER: 1.0}, 0.5, OUT, 1.0)
    _mlp(model, 1, 1, {OTHER: 1.0}, -0.5, OUT, -1.0)
    return _known("redundant", model, [1, 3, 4], [2, 3, 4], PAIR_EDGES)


def _conjunction() -> KnownCircuit:
    """Heads 0 and 3 bring the same signal; the MLP passes it on only when both do."""
    model = _pair()
    _mlp(model, 1, 0, {OTHER: 1.0}, -1.5, OUT, 2.0)
    return _known("conjunction", model, [1, 3, 4], [2, 3, 4], PAIR_EDGES)


KNOWN: dict[str, Callable[[], KnownCircuit]] = {
    "chain": _chain, "saturated": _saturated, "cancelling": _cancelling, "redundant": _redundant,
    "conjunction": _conjunction,
}  # fmt: skip
