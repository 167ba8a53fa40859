"""A small immutable table: named columns of equal length, to read, sort, print and save.

It stands between a circuit and whatever shows it, so that the core needs no pandas.
"""

import csv
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interp.atomic import replacing
from interp.columns import frozen
from interp.errors import OptionError, nearest, require

SHOWN = 20  # rows printed before "... more"


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Named columns of equal length.

    Args:
        data: column name -> its values, one a row; kept as read-only arrays.

    Raises:
        OptionError: columns of unequal length, or not one-dimensional.

    >>> table = Table({"node": ["z[0] head 1", "mlp_out[0]"], "score": [0.5, 2.0]})
    >>> table.sort("score", descending=True)["node"].tolist()
    ['mlp_out[0]', 'z[0] head 1']
    """

    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        data = {name: frozen(values) for name, values in self.data.items()}
        shapes = {name: column.shape for name, column in data.items()}
        if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
            raise OptionError(f"table columns have shapes {shapes}; give one-dimensional columns of equal length.")
        object.__setattr__(self, "data", data)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.data)

    def __len__(self) -> int:
        return len(next(iter(self.data.values()))) if self.data else 0

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.data:
            raise OptionError(
                f"no column {column!r}; allowed: {', '.join(self.data)}{nearest(str(column), self.data)}."
            )
        return self.data[column]

    def rows(self) -> list[dict[str, Any]]:
        """Each row as a dict of plain Python values."""
        return [
            dict(zip(self.data, row, strict=True))
            for row in zip(*(column.tolist() for column in self.data.values()), strict=True)
        ]

    def take(self, rows: Sequence[int] | np.ndarray | slice) -> "Table":
        """The chosen rows, in the order given."""
        return Table({name: column[rows] for name, column in self.data.items()})

    def where(self, mask: np.ndarray | Sequence[bool]) -> "Table":
        """The rows where `mask`, one boolean a row, is true.

        Raises:
            OptionError: a mask of another length or type.
        """
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != (len(self),):
            raise OptionError(f"the mask is {mask.dtype} {mask.shape}; give {len(self)} booleans, one a row.")
        return self.take(np.flatnonzero(mask))

    def sort(self, by: str, *, descending: bool = False) -> "Table":
        """Sorted by one column; equal values keep their order and NaN comes last either way."""
        values = self[by]
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(self), bool)
        present = np.flatnonzero(~missing)
        if descending:  # a stable ascending sort of the reversed rows, read backwards
            present = present[::-1]
        order = np.argsort(values[present], kind="stable")
        ordered = present[order[::-1] if descending else order]
        return self.take(np.concatenate([ordered, np.flatnonzero(missing)]))

    def head(self, n: int = 10) -> "Table":
        """The first `n` rows."""
        return self.take(slice(0, max(n, 0)))

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file with a header line, whole or not at all."""
        columns = [column.astype(str).tolist() for column in self.data.values()]  # float32 prints as short as it can
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(zip(*columns, strict=True))

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the same columns.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", "view")
        import pandas

        return pandas.DataFrame({name: column.copy() for name, column in self.data.items()})

    def _shown(self) -> list[list[str]]:
        """The first rows as short texts."""
        return [[_cell(value) for value in row.values()] for row in self.head(SHOWN).rows()]

    def __repr__(self) -> str:
        lines = [list(self.columns), *self._shown()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*text, f"({_count(self)})"]).lstrip()

    def _repr_html_(self) -> str:
        header = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self._shown()
        )
        return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table><p>{_count(self)}</p>"


def _count(table: Table) -> str:
    hidden = len(table) - SHOWN
    return f"{len(table):,} rows" + (f", {hidden:,} of them not shown" if hidden > 0 else "")


def _cell(value: object) -> str:
    """A value as one line of text: floats with four digits, line breaks in strings escaped."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return repr(value)[1:-1] if isinstance(value, str) else str(value)
