"""Circuits for other programs: networkx graphs and GraphML files."""

import re
from pathlib import Path
from typing import Any

from interp.atomic import replacing
from interp.circuit import Circuit
from interp.errors import require

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2


def to_networkx(circuit: Circuit, *, kept_only: bool = True) -> Any:
    """A `networkx.DiGraph`: nodes by their text, with the columns of `Circuit.frame` as attributes.

    Args:
        kept_only: the circuit alone; False for its whole universe, where `kept` tells members apart.

    Raises:
        MissingExtraError: networkx is not installed.
    """
    require("networkx", "view")
    import networkx

    source = circuit.provenance
    graph = networkx.DiGraph(model=source.model, task=source.task, method=source.method)
    for row in circuit.frame("nodes", kept_only=kept_only).rows():
        graph.add_node(row.pop("node"), **row)
    for row in circuit.frame("edges", kept_only=kept_only).rows():
        graph.add_edge(row.pop("source"), row.pop("destination"), **row)
    return graph


def to_graphml(circuit: Circuit, path: str | Path, *, kept_only: bool = True) -> None:
    """Write what `to_networkx` gives as GraphML, whole or not at all; characters that XML forbids become U+FFFD.

    Raises:
        MissingExtraError: networkx is not installed.
    """
    graph = to_networkx(circuit, kept_only=kept_only)
    import networkx

    entries = [graph.graph, *graph.nodes.values(), *graph.edges.values()]
    for entry in entries:
        entry.update({key: _NOT_XML.sub("\ufffd", text) for key, text in entry.items() if isinstance(text, str)})
    with replacing(path) as temporary, open(temporary, "wb") as file:
        networkx.write_graphml(graph, file)
