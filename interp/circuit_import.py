"""Circuits from the JSON graphs of EAP-IG (github.com/hannamw/EAP-IG) and of MIB's circuit track.

Both are one format: ``cfg`` (n_layers, n_heads, d_model, ...); ``nodes`` by name (``input``, ``a0.h3``, ``m0``,
``logits``), each a boolean, or a dict with ``in_graph`` and perhaps ``score``, ``neurons``, ``neurons_scores``; and
``edges`` by name (``a0.h3->a1.h2<q>``), each a dict with ``in_graph`` and perhaps ``score``.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from interp.circuit import Circuit, NamedTensor, Score, ScoreHeader
from interp.columns import some
from interp.edges import Edges, ends
from interp.errors import CircuitError, FileError, check_choice
from interp.nodes import Node, Nodes
from interp.provenance import Provenance

MAX_BYTES = 2**31  # the 1.6 million edges of Llama-3.1-8B take about 2**27
_NAME = re.compile(r"(?:(input|logits)|m(\d{1,5})|a(\d{1,5})\.h(\d{1,5})(?:<([qkv])>)?)")


def read_eap_json(
    path: str | Path,
    *,
    scores_of: Literal["loss", "metric"],
    grouped: bool = False,
    method: str = "EAP-IG",
    ablation: str = "counterfactual",
) -> Circuit:
    """Read an EAP-IG or MIB graph: `input`, `z` heads with their q, k and v readers, `mlp_out`, `logits`.

    The structural edges from a head's readers to its z are added. Scores are noising attributions by gradients at the
    clean prompt; the files say nothing of sign, method or ablation, so the arguments do. The coordinates of component
    outputs that the format calls neurons come as tensors, since a head's d_model coordinates are no site here.

    Args:
        scores_of: what was differentiated. A `loss` (what MIB's scripts do): its scores follow the sign law as they
            are. A `metric` (higher = more of the behaviour): they are negated. MIB's example `circuits/ioi-eap-ig.json`
            is of a metric, to judge by its name movers, which score below zero.
        grouped: the model shares key/value heads. Such graphs are made with ungrouped heads, so that k and v become
            each query head's own view of them (`k_of_query_head`, `v_of_query_head`).
        method, ablation: for the header and the provenance.

    Raises:
        FileError: no such file, too large, not JSON, or not a graph of this format; all faults named together.
    """
    check_choice("scores_of", scores_of, ("loss", "metric"))
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileError(f"{path} has {path.stat().st_size:,} bytes, the limit is {MAX_BYTES:,}; split the graph.")
        data = json.loads(path.read_bytes())
        return _circuit(data, -1.0 if scores_of == "metric" else 1.0, grouped, method, ablation)
    except OSError as error:
        raise FileError(f"cannot read a graph at {path}: {error}; check the path.") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise FileError(f"{path} is not an EAP-IG or MIB graph ({reason}); write it with EAP-IG's to_json.") from error


def _circuit(data: Any, sign: float, grouped: bool, method: str, ablation: str) -> Circuit:
    """The circuit of parsed JSON; errors of any kind where it is not of the format."""
    components = {
        name: entry if isinstance(entry, dict) else {"in_graph": entry} for name, entry in data["nodes"].items()
    }
    structure = [(f"{name}<{letter}>", name) for name in components if name.startswith("a") for letter in "qkv"]
    rows = {name: row for row, name in enumerate([*components, *(reader for reader, _ in structure)])}
    pairs = [name.partition("->")[::2] for name in data["edges"]]
    _check_names(components, pairs, rows, data["cfg"])
    edges = Edges(*(np.array([rows[pair[end]] for pair in (*pairs, *structure)], dtype=np.int64) for end in (0, 1)))
    added = len(structure)  # readers among the nodes, and structural edges, of which the file says nothing
    kept_edges = np.array([bool(entry["in_graph"]) for entry in data["edges"].values()] + [False] * added)
    kept_nodes = np.array([bool(entry["in_graph"]) for entry in components.values()] + [False] * added)
    kept_nodes |= ends(edges, kept_edges, len(rows))
    kept_edges[len(pairs) :] = (kept_nodes[edges.source] & kept_nodes[edges.destination])[len(pairs) :]
    entries = {"nodes": list(components.values()), "edges": list(data["edges"].values())}
    parameters = {"imported": "EAP-IG JSON", "cfg": data["cfg"], "grouped": grouped, "negated": sign < 0}
    return Circuit(
        Nodes.of(_node(name, grouped) for name in rows),
        edges,
        _scores(entries, added, sign, method, ablation),
        kept_nodes=kept_nodes,
        kept_edges=kept_edges,
        tensors=_neurons(components, len(rows), sign),
        provenance=Provenance(
            model=str(data["cfg"].get("model_name", "")),
            method=method,
            direction="noising",
            ablation=ablation,
            parameters=parameters,
        ),
    )


def _scores(
    entries: Mapping[Any, list[dict[str, Any]]], added: int, sign: float, method: str, ablation: str
) -> dict[str, Score]:
    """The scores of nodes and of edges, where the file has any; NaN for the rows added to the file's own."""
    scores = {}
    for over, listed in entries.items():
        given = [np.nan if entry.get("score") is None else entry["score"] for entry in listed]
        values = sign * np.array(given + [np.nan] * added, dtype=float)
        header = ScoreHeader(over, "attribution", True, "noising", "clean", ablation, method=method)
        if not np.isnan(values).all():
            scores[f"{over[:-1]}_score"] = Score(header, values)
    return scores


def _check_names(
    components: Mapping[str, Any], pairs: list[tuple[str, ...]], rows: Mapping[str, int], cfg: Mapping[str, Any]
) -> None:
    """Raise unless every name is one of the format, within the sizes of `cfg`, and every edge joins known nodes."""
    limits = {"layer": int(cfg["n_layers"]), "head": int(cfg["n_heads"])}
    strange = [name for name in components if not _NAME.fullmatch(name) or name.endswith(">")]
    writers = {name for name in components if name != "logits"}
    readers = {name for name in rows if name.endswith(">") or name.startswith(("m", "logits"))}
    loose = ["->".join(pair) for pair in pairs if pair[0] not in writers or pair[1] not in readers]
    beyond = [
        name
        for name in components
        if name not in strange
        and any((getattr(_node(name, False), size) or 0) >= limit for size, limit in limits.items())
    ]
    faults = {
        "unknown node names": strange,
        "nodes beyond cfg's sizes": beyond,
        "edges not from a writer to a reader": loose,
    }
    told = [f"{what} {some(np.array(names))}" for what, names in faults.items() if names]
    if told:
        raise CircuitError("; ".join(told))


def _node(name: str, grouped: bool) -> Node:
    """The node of a name such as ``input``, ``m3``, ``a3.h5`` or ``a3.h5<k>``."""
    end, mlp, layer, head, reader = _NAME.fullmatch(name).groups()  # type: ignore[union-attr]
    if end:
        return Node(end)
    if mlp:
        return Node("mlp_out", int(mlp))
    kind = f"{reader}_of_query_head" if grouped and reader in ("k", "v") else reader or "z"
    return Node(kind, int(layer), head=int(head))


def _neurons(components: Mapping[str, Any], n_nodes: int, sign: float) -> dict[str, NamedTensor]:
    """Membership and scores of the coordinates of component outputs, where the graph has them."""
    tensors = {}
    for key, dtype, filler in (("neurons", bool, False), ("neurons_scores", np.float32, np.nan)):
        rows = [row for row, entry in enumerate(components.values()) if key in entry]
        if rows and len(rows) < len(components) - 1:  # the logits have none
            raise CircuitError(f"{key} for {len(rows)} of {len(components)} nodes; give them for all but the logits")
        if rows:
            block = np.array([entry[key] for entry in components.values() if key in entry], dtype=dtype)
            values = np.full((n_nodes, block.shape[1]), filler, dtype=dtype)
            values[rows] = block if dtype is bool else sign * block
            tensors[key] = NamedTensor(values, ("node", "coordinate"))
    return tensors
