"""Figures of a HyperDAS: which tokens it pairs, and how its subspaces lie to one another."""

import numpy as np

from interp.errors import OptionError
from interp.hypernet.readout import Selections
from interp.table import Table
from interp.view.figures import heatmap
from interp.view.style import Figure


def selection(found: Selections, example: int = 0) -> Figure:
    """The pairs of one example: base tokens across, source tokens down, darker where more goes over.

    Raises:
        OptionError: no such example.
    """
    if not 0 <= example < len(found.weights):
        raise OptionError(f"example={example}; allowed: 0 to {len(found.weights) - 1}.")
    data = found.data
    labels = [_tokens(found, int(rows[example])) for rows in (data.base, data.source)]
    kind = "cause" if data.causes[example] else "isolate"
    return heatmap(
        found.weights[example], labels[0], labels[1], title=f"{data.concepts[example]} into a prompt that asks for "
        f"{data.queried[example]} ({kind})", x_title="base token", y_title="source token", unit="weight", signed=False,
        limit=1.0,
    )  # fmt: skip


def overlaps(table: Table) -> Figure:
    """Overlaps of the concepts' subspaces, as `subspace_overlaps` gives them."""
    names = list(dict.fromkeys(table["concept"].tolist()))
    values = np.array(table["overlap"], dtype=float).reshape(len(names), len(names))
    return heatmap(
        values, names, names, title="Overlap of subspaces", x_title="concept", y_title="concept", unit="share",
        signed=False, limit=1.0,
    )  # fmt: skip


def _tokens(found: Selections, row: int) -> list[str]:
    prompts, length = found.data.prompts, found.data.lengths[row]
    if prompts.tokens:
        return list(prompts.tokens[row][:length])
    return [str(token) for token in prompts.ids[row, :length].tolist()]
