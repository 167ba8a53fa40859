"""The circuit: every candidate of one search with its scores, and which of them are kept.

Every method returns one. Its rows are the universe the method chose from (nodes, and edges between them) and
`kept_nodes`, `kept_edges` say which rows form the circuit; a circuit nobody has cut yet keeps them all.

Sign law: a signed score is positive where the clean value of a component helps the behaviour (`signed_score`).
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Bool, Real, Shaped

from interp.columns import frozen, name_faults, some
from interp.edges import NO_EDGES, Edges
from interp.errors import CircuitError, check_choice
from interp.nodes import COLUMNS, Nodes
from interp.provenance import Provenance, plain
from interp.table import Table

Rows = Literal["nodes", "edges"]
ROWS = ("nodes", "edges")
QUANTITIES = ("effect", "attribution", "gate", "selection")
BASES = {"noising": "clean", "denoising": "corrupted"}  # direction -> the run that is changed
RESERVED = ("node", *COLUMNS, "source", "destination", "kept")  # columns of `Circuit.frame`


def signed_score(effect: Any, direction: str) -> Any:
    """The signed score of a measured or estimated effect, metric(intervened) - metric(base).

    Args:
        effect: any array or number, in the metric's unit.
        direction: `denoising` (the clean value is restored: + effect) or `noising` (it is taken away: - effect).

    Returns:
        positive where the clean value helps the behaviour.

    >>> signed_score(-2.0, "noising"), signed_score(1.5, "denoising")
    (2.0, 1.5)
    """
    check_choice("direction", direction, BASES)
    return effect if direction == "denoising" else -effect


@dataclass(frozen=True)
class ScoreHeader:
    """What the numbers of one score column mean.

    Args:
        over: `nodes` or `edges`.
        quantity: `effect` (measured), `attribution` (estimated), `gate` or `selection`.
        signed: follows the sign law; False for magnitudes, which never enter a signed ranking.
        direction: `noising` or `denoising`, if either; `base` is then the run changed (`clean`, `corrupted`).
        ablation: what replaced the activation.
        reduction: how prompts were reduced, such as `mean` or `mean_abs` (absolute value inside the mean).
        unit: such as `logits`.
        method, metric: their names.

    Raises:
        CircuitError: an unknown quantity, direction or base, or a base that contradicts the direction.
    """

    over: Rows
    quantity: str
    signed: bool
    direction: str | None = None
    base: str | None = None
    ablation: str | None = None
    reduction: str | None = None
    unit: str | None = None
    method: str = ""
    metric: str | None = None

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[object, ...]] = {
            "over": ROWS,
            "quantity": QUANTITIES,
            "signed": (True, False),
            "direction": (*BASES, None),
            "base": (*BASES.values(), None),
        }
        faults = [
            f"{name} is {getattr(self, name)!r}; allowed: {', '.join(map(repr, values))}"
            for name, values in allowed.items()
            if getattr(self, name) not in values
        ]
        if not faults and self.direction and self.base not in (None, BASES[self.direction]):
            faults = [f"base is {self.base!r} in {self.direction}; allowed: {BASES[self.direction]!r} or None"]
        if faults:
            raise CircuitError("a score's header: " + "; ".join(faults) + ".")


@dataclass(frozen=True, eq=False)
class Score:
    """One column of scores, one a row, NaN where not run; stored as float32."""

    header: ScoreHeader
    values: Real[np.ndarray, " row"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _row_values(_float32(self.values)))

    @property
    def over(self) -> Rows:
        """Which rows it scores."""
        return self.header.over


@dataclass(frozen=True, eq=False)
class Attribute:
    """One column that follows another law than scores (class frequencies, labels); ranked only when named.

    Args:
        over: `nodes` or `edges`.
        values: numbers or strings, one a row.
        meaning: a line of prose.
    """

    over: Rows
    values: Shaped[np.ndarray, " row"]
    meaning: str = ""

    def __post_init__(self) -> None:
        check_choice("over", self.over, ROWS)
        values = np.asarray(self.values)
        if values.dtype.kind in "OU":
            values = np.asarray(self.values, dtype=object)
            strange = [value for value in values.ravel() if not isinstance(value, str)]
            if strange:
                raise CircuitError(
                    f"attribute values {strange[:3]} are no strings; give numbers only, or strings only."
                )
        elif values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
            raise CircuitError(f"attribute values are {values.dtype}; allowed: booleans, integers, floats, strings.")
        object.__setattr__(self, "values", _row_values(frozen(values, values.dtype.newbyteorder("="))))


class Unread(Protocol):
    """An array still in a file: what it is, and a call that reads it."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __call__(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class NamedTensor:
    """An array with named axes; floats are stored as float32. Axes `node` and `edge` run over the circuit's rows.

    Args:
        values: the array, or an `Unread` one; `array` reads it at first use.
        axes: a name for each axis.

    Raises:
        CircuitError: values that are no numbers, or axis names that do not fit.
    """

    values: Any
    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        values = self.values if callable(self.values) else np.asarray(self.values)
        kind, shape = values.dtype.kind, tuple(values.shape)
        faults = name_faults("axis", self.axes)
        if kind not in "biuf":
            faults.append(f"values are {values.dtype}; allowed: floats, integers, booleans")
        if len(shape) != len(self.axes):
            faults.append(f"{len(self.axes)} axis names {self.axes} for shape {shape}; name each axis once")
        if faults:
            raise CircuitError("a named tensor: " + "; ".join(faults) + ".")
        if not callable(values):
            values = _float32(values) if kind == "f" else frozen(values, values.dtype.newbyteorder("="))
        object.__setattr__(self, "values", values)

    @functools.cached_property
    def array(self) -> Shaped[np.ndarray, "..."]:
        """The values, read-only; read from the file when first asked for."""
        return self.values() if callable(self.values) else self.values


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """A scored universe of nodes and edges, and the members kept.

    Args:
        nodes: every candidate node.
        edges: every candidate edge, between rows of `nodes`.
        scores: name -> `Score`.
        attributes: name -> `Attribute`.
        kept_nodes, kept_edges: membership, one boolean a row; all kept when not given.
        tensors: name -> `NamedTensor`, such as per-prompt scores.
        featurizers: key -> JSON description of what a node's `featurizer` names.
        provenance: where it came from.

    Raises:
        CircuitError: parts that contradict each other, all named together.

    >>> circuit = Circuit(Nodes.of(["input", "mlp_out[0]", "logits"]), Edges(np.array([0, 1]), np.array([1, 2])))
    >>> circuit
    Circuit(nodes: 3 of 3 kept, edges: 2 of 2 kept)
    """

    nodes: Nodes
    edges: Edges = NO_EDGES
    scores: Mapping[str, Score] = field(default_factory=dict)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    kept_nodes: Bool[np.ndarray, " node"] = None  # type: ignore[assignment]
    kept_edges: Bool[np.ndarray, " edge"] = None  # type: ignore[assignment]
    tensors: Mapping[str, NamedTensor] = field(default_factory=dict)
    featurizers: Mapping[str, Any] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)

    def __post_init__(self) -> None:
        faults: list[str] = []
        object.__setattr__(self, "featurizers", plain(self.featurizers, "featurizers", faults))
        for rows in ROWS:
            kept = getattr(self, f"kept_{rows}")
            kept = np.ones(self.count(rows), dtype=bool) if kept is None else kept
            object.__setattr__(self, f"kept_{rows}", frozen(kept))
        for name in ("scores", "attributes", "tensors"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        faults += self._length_faults() + self._axis_faults() + self._name_faults()
        faults = faults or self._edge_faults()
        if faults:
            raise CircuitError("the parts of this circuit do not fit:\n- " + "\n- ".join(faults))

    @property
    def columns(self) -> dict[str, Score | Attribute]:
        """Scores and attributes together, by name."""
        return {**self.scores, **self.attributes}

    def count(self, over: str) -> int:
        """How many nodes or edges the universe has."""
        return len(self.nodes) if over == "nodes" else len(self.edges)

    def kept(self, over: str) -> Bool[np.ndarray, " row"]:
        """Membership of the nodes or of the edges."""
        return self.kept_nodes if over == "nodes" else self.kept_edges

    def _length_faults(self) -> list[str]:
        """Columns that have not one value a row."""
        columns = [(f"kept_{rows}", rows, self.kept(rows)) for rows in ROWS]
        columns += [(f"column {name!r}", one.over, one.values) for name, one in self.columns.items()]
        faults = [
            f"{name} has shape {values.shape} over {self.count(over)} {over}; give one value a row"
            for name, over, values in columns
            if values.shape != (self.count(over),)
        ]
        return faults + [
            f"kept_{rows} is {self.kept(rows).dtype}; give booleans" for rows in ROWS if self.kept(rows).dtype != bool
        ]

    def _axis_faults(self) -> list[str]:
        """Axes `node` and `edge` of tensors that are not as long as the rows."""
        lengths = {"node": len(self.nodes), "edge": len(self.edges)}
        return [
            f"tensor {name!r}: axis {axis!r} has length {size} over {lengths[axis]} rows; give one entry a row"
            for name, tensor in self.tensors.items()
            for axis, size in zip(tensor.axes, tensor.values.shape, strict=True)
            if lengths.get(axis, size) != size
        ]

    def _name_faults(self) -> list[str]:
        """Names of columns, tensors and featurizers that are strange, taken or missing."""
        columns = [*self.scores, *self.attributes]
        faults = name_faults("column", columns) + name_faults("tensor", self.tensors)
        faults += [
            f"column name {name!r} is taken by the table; choose another" for name in columns if name in RESERVED
        ]
        missing = [key for key in self.nodes.featurizers if key not in self.featurizers]
        return faults + ([f"featurizers {missing} have no description; add them to featurizers"] if missing else [])

    def _edge_faults(self) -> list[str]:
        """Edges that lead outside the nodes, or are kept without their nodes."""
        ends = self.edges.source, self.edges.destination
        outside = np.flatnonzero(np.maximum(*ends) >= len(self.nodes))
        if len(outside):
            return [f"edges {some(outside)} join rows beyond the {len(self.nodes)} nodes"]
        loose = np.flatnonzero(self.kept_edges & ~(self.kept_nodes[ends[0]] & self.kept_nodes[ends[1]]))
        return [f"edges {some(loose)} are kept without both their nodes; keep these too"] if len(loose) else []

    def frame(self, over: Rows = "nodes", *, kept_only: bool = False) -> Table:
        """The tidy table of nodes or edges: what each row is, whether it is kept, its scores and attributes.

        Raises:
            OptionError: `over` is neither.
        """
        check_choice("over", over, ROWS)
        labels = self.nodes.labels
        if over == "nodes":
            columns = {"node": labels} | {name: getattr(self.nodes, name) for name in COLUMNS}
            columns |= {name: self.nodes.names(name) for name in ("kind", "role", "featurizer")}
        else:
            columns = {"source": labels[self.edges.source], "destination": labels[self.edges.destination]}
        columns["kept"] = self.kept(over)
        columns |= {name: one.values for name, one in self.columns.items() if one.over == over}
        table = Table(columns)
        return table.where(self.kept(over)) if kept_only else table

    def __repr__(self) -> str:
        parts = [f"{rows}: {int(self.kept(rows).sum()):,} of {self.count(rows):,} kept" for rows in ROWS]
        for name, score in self.scores.items():
            law = "signed" if score.header.signed else "unsigned"
            parts.append(f"{name}: {law} {score.header.quantity} over {score.over}")
        return f"Circuit({', '.join(parts if len(self.edges) else [parts[0], *parts[2:]])})"


def _float32(values: Any) -> np.ndarray:
    """`values` as read-only float32; CircuitError where that turns a finite value into an infinity."""
    given = np.asarray(values)
    with np.errstate(over="ignore"):
        array = frozen(given, np.float32)
    beyond = np.isinf(array) & np.isfinite(given)
    if beyond.any():
        raise CircuitError(f"values {some(given[beyond])} are beyond float32 (3.4e38); rescale them.")
    return array


def _row_values(column: np.ndarray) -> np.ndarray:
    if column.ndim != 1:
        raise CircuitError(f"a column has shape {column.shape}; give one value a row.")
    return column
