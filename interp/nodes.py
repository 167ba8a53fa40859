"""Nodes of a circuit, in columns: one array a property, not one object a node.

`Node` is a light view of one row, to write by hand, print and parse. A node says where it is (kind, layer, head), when
(a role of the task, or a position) and what (a unit, a block of units, a feature, a subspace, an error term).
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from interp.columns import find, name_faults, repeats, row_keys, some, whole_numbers
from interp.errors import CircuitError, check_choice, nearest
from interp.site import HEAD_KINDS, KINDS, Site

NODE_KINDS = (*KINDS, "input", "logits")  # the `kind` column counts into this; files store the names
COLUMNS = ("kind", "layer", "head", "role", "pos", "featurizer", "unit", "width")
ERROR = -2  # `unit` of a featurizer's error term
_HEAD_WORD = re.compile(r"([A-Za-z_]+)(?:\[(\d+)\])?")


class Node(NamedTuple):
    """One node; None where a property is absent.

    Args:
        kind: a site kind, or `input` (at run time the embedding) or `logits`.
        layer: block index, for kinds that have one.
        head: index into the tensor's own head axis (key/value heads at `k`, `v`); None for all heads jointly.
        role: name of a position set of the task; wins over `pos`.
        pos: position from the first real token; without role and pos, all positions jointly.
        featurizer: key into the circuit's featurizers.
        unit: a feature of the featurizer, `ERROR` for its error term, None for its whole subspace; without a
            featurizer a neuron or coordinate.
        width: how many units from `unit` on form this node (a block of neurons), usually 1.

    >>> str(Node("z", 3, head=5, pos=7)), str(Node("neuron", 0, unit=64, width=32))
    ('z[3] head 5 pos 7', 'neuron[0] units 64:96')
    >>> Node.parse("mlp_out[2] role S2") == Node("mlp_out", 2, role="S2")
    True
    """

    kind: str
    layer: int | None = None
    head: int | None = None
    role: str | None = None
    pos: int | None = None
    featurizer: str | None = None
    unit: int | None = None
    width: int = 1

    def __str__(self) -> str:
        words = [self.kind if self.layer is None else f"{self.kind}[{self.layer}]"]
        words += [] if self.head is None else [f"head {self.head}"]
        words += [] if self.role is None else [f"role {shlex.quote(self.role)}"]
        words += [] if self.pos is None else [f"pos {self.pos}"]
        words += [] if self.featurizer is None else [f"featurizer {shlex.quote(self.featurizer)}"]
        if self.unit == ERROR:
            words.append("error")
        elif self.unit is not None:
            words.append(f"unit {self.unit}" if self.width == 1 else f"units {self.unit}:{self.unit + self.width}")
        return " ".join(words)

    @property
    def site(self) -> Site:
        """The site that holds this node's activation; `input` lives at `embed`.

        Raises:
            CircuitError: for `logits`, which is no site.
        """
        if self.kind == "logits":
            raise CircuitError(
                "the node 'logits' has no site: it is the model's output; leave it out of interventions."
            )
        return Site("embed" if self.kind == "input" else self.kind, self.layer)

    @classmethod
    def parse(cls, text: "str | Node") -> "Node":
        """Read what `str(node)` writes; a `Node` passes through.

        Raises:
            CircuitError: when the text is no node.
        """
        if isinstance(text, Node):
            return text
        try:
            head, *words = shlex.split(str(text))
            return cls(*_read_head(head), **_read_words(words))
        except ValueError as error:
            raise CircuitError(
                f"{text!r} is not a node: {error}; write kind[layer] and then any of: head N, role NAME, pos N, "
                "featurizer KEY, unit N, units N:M, error; such as 'z[3] head 5 pos 7'."
            ) from error


def _read_head(word: str) -> tuple[str, int | None]:
    """Kind and layer from ``z[3]`` or ``logits``; ValueError on anything else."""
    match = _HEAD_WORD.fullmatch(word)
    if match is None or match[1] not in NODE_KINDS:
        raise ValueError(f"no kind {word!r}, allowed: {', '.join(NODE_KINDS)}{nearest(word, NODE_KINDS)}")
    return match[1], None if match[2] is None else int(match[2])


def _read_words(words: Sequence[str]) -> dict[str, Any]:
    """The words after kind and layer as fields of a `Node`; ValueError on anything else."""
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "error":
            values["unit"] = ERROR
        elif word in ("role", "featurizer") and rest:
            values[word] = rest.pop(0)
        elif word in ("head", "pos", "unit") and rest:
            values[word] = int(rest.pop(0))
        elif word == "units" and rest:
            start, stop = map(int, rest.pop(0).split(":"))
            values |= {"unit": start, "width": stop - start}
        else:
            raise ValueError(f"cannot read {word!r}")
    return values


@dataclass(frozen=True, eq=False, repr=False)
class Nodes:
    """Nodes as columns, -1 where a property is absent; all rows differ. Made by `of` or `from_columns`.

    Args:
        kind: codes into `NODE_KINDS`; kept as int8, the other columns as int32.
        layer, head, pos: as in `Node`.
        role, featurizer: codes into `roles` and `featurizers`.
        unit: unit or feature; `ERROR` (-2) for an error term, -1 for the whole.
        width: units covered from `unit` on; 1 except for blocks of neurons.
        roles, featurizers: the names that the codes stand for.

    Raises:
        CircuitError: columns that do not fit each other or the kinds, equal rows; all faults of a kind together.
    """

    kind: Int[np.ndarray, " node"]
    layer: Int[np.ndarray, " node"]
    head: Int[np.ndarray, " node"]
    role: Int[np.ndarray, " node"]
    pos: Int[np.ndarray, " node"]
    featurizer: Int[np.ndarray, " node"]
    unit: Int[np.ndarray, " node"]
    width: Int[np.ndarray, " node"]
    roles: tuple[str, ...] = ()
    featurizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        lengths = {name: len(getattr(self, name)) for name in COLUMNS}
        if len(set(lengths.values())) > 1:
            raise CircuitError(f"node columns have lengths {lengths}; give one value a node in each.")
        object.__setattr__(self, "roles", tuple(self.roles))
        object.__setattr__(self, "featurizers", tuple(self.featurizers))
        faults = name_faults("role", self.roles) + name_faults("featurizer", self.featurizers) + self._code_faults()
        faults = faults or self._meaning_faults() or self._duplicates()
        if faults:
            raise CircuitError("these nodes cannot be:\n- " + "\n- ".join(faults))

    @property
    def _tables(self) -> dict[str, tuple[str, ...]]:
        """The names behind each coded column."""
        return {"kind": NODE_KINDS, "role": self.roles, "featurizer": self.featurizers}

    def _code_faults(self) -> list[str]:
        """Codes that stand for nothing."""
        tables, lowest, faults = self._tables, {"kind": 0, "unit": ERROR, "width": 1}, []
        for name in COLUMNS:
            column, low = getattr(self, name), lowest.get(name, -1)
            high = len(tables[name]) - 1 if name in tables else np.iinfo(np.int32).max
            wrong = np.flatnonzero((column < low) | (column > high))
            if len(wrong):
                faults.append(f"{name} {some(column[wrong])} of rows {some(wrong)}; allowed: {low} to {high}")
        return faults

    def _meaning_faults(self) -> list[str]:
        """Properties that contradict the kind or each other."""
        layered = np.array([name in KINDS and KINDS[name].layered for name in NODE_KINDS])[self.kind]
        headed = np.array([name in HEAD_KINDS for name in NODE_KINDS])[self.kind]
        checks = {
            "need a layer (0, 1, ...)": layered & (self.layer < 0),
            "are of a kind without layers; drop the layer": ~layered & (self.layer >= 0),
            "are of a kind without heads; drop the head": ~headed & (self.head >= 0),
            "name an error term without a featurizer; give its key": (self.unit == ERROR) & (self.featurizer < 0),
            "are a block (width above 1) without a first unit": (self.width > 1) & (self.unit < 0),
        }
        return [f"{self._shown(mask)} {fault}" for fault, mask in checks.items() if mask.any()]

    def _duplicates(self) -> list[str]:
        repeated = repeats(row_keys([getattr(self, name) for name in COLUMNS]))
        return [f"{self._shown(repeated)} given more than once; keep one of each"] if repeated.any() else []

    def _shown(self, mask: np.ndarray) -> str:
        """The masked nodes' rows and names, the first few."""
        rows = np.flatnonzero(mask)
        return f"rows {some(rows)} ({', '.join(str(self[row]) for row in rows[:3])})"

    @classmethod
    def of(cls, nodes: Iterable[Node | str]) -> "Nodes":
        """From single nodes, in their order; a text is parsed.

        >>> len(Nodes.of([Node("z", 0, head=1), "mlp_out[0]", Node("logits")]))
        3
        """
        columns = list(zip(*map(Node.parse, nodes), strict=True)) or [()] * len(COLUMNS)
        values = dict(zip(COLUMNS, columns, strict=True))
        numbers = {
            name: np.array([-1 if value is None else value for value in column], dtype=np.int64)
            for name, column in values.items()
            if name not in ("kind", "role", "featurizer")
        }
        return cls.from_columns(kind=values["kind"], role=values["role"], featurizer=values["featurizer"], **numbers)

    @classmethod
    def from_columns(
        cls,
        kind: str | Iterable[str],
        *,
        layer: Any = -1,
        head: Any = -1,
        role: Any = None,
        pos: Any = -1,
        featurizer: Any = None,
        unit: Any = -1,
        width: Any = 1,
    ) -> "Nodes":
        """From whole columns; a single value stands for every row.

        Args:
            kind: names, not codes.
            role, featurizer: names, None or '' where absent.
            layer, head, pos, unit, width: integers, -1 where absent.

        >>> heads = Nodes.from_columns("z", layer=np.repeat([0, 1], 4), head=np.tile(range(4), 2))
        >>> str(heads[5])
        'z[1] head 1'
        """
        kinds, kind_names = _codes(kind)
        unknown = [name for name in kind_names if name not in NODE_KINDS]
        if unknown:
            hints = "".join(nearest(str(name), NODE_KINDS) for name in unknown)
            raise CircuitError(f"no node kinds {unknown}; allowed: {', '.join(NODE_KINDS)}{hints}.")
        table = np.array([NODE_KINDS.index(name) for name in kind_names], dtype=np.int64)
        roles, role_names = _codes(role)
        featurizers, featurizer_names = _codes(featurizer)
        columns = (table[kinds], layer, head, roles, pos, featurizers, unit, width)
        try:
            spread = np.broadcast_arrays(*map(np.asarray, columns))
        except ValueError as error:
            lengths = {name: np.shape(column) for name, column in zip(COLUMNS, columns, strict=True)}
            raise CircuitError(f"node columns have shapes {lengths}; give one value a node, or one for all.") from error
        filled: dict[str, Any] = {
            name: _whole(name, np.atleast_1d(column)) for name, column in zip(COLUMNS, spread, strict=True)
        }
        return cls(**filled, roles=role_names, featurizers=featurizer_names)

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, row: int | np.integer) -> Node:
        return self._view(*(int(getattr(self, name)[row]) for name in COLUMNS))

    def __iter__(self) -> Iterator[Node]:
        return map(self._view, *(getattr(self, name).tolist() for name in COLUMNS))

    def _view(
        self, kind: int, layer: int, head: int, role: int, pos: int, featurizer: int, unit: int, width: int
    ) -> Node:
        return Node(
            NODE_KINDS[kind],
            None if layer < 0 else layer,
            None if head < 0 else head,
            None if role < 0 else self.roles[role],
            None if pos < 0 else pos,
            None if featurizer < 0 else self.featurizers[featurizer],
            None if unit == -1 else unit,
            width,
        )

    def __repr__(self) -> str:
        shown = ", ".join(str(self[row]) for row in range(min(3, len(self))))
        return f"Nodes({len(self):,}: {shown}{', ...' if len(self) > 3 else ''})"

    @property
    def labels(self) -> np.ndarray:
        """Each node's text, as an array of strings."""
        return np.array([str(node) for node in self], dtype=object)

    def names(self, column: str) -> np.ndarray:
        """A coded column (kind, role, featurizer) as names, '' where absent."""
        check_choice("coded node column", column, self._tables)
        return np.array([*self._tables[column], ""], dtype=object)[getattr(self, column)]

    def take(self, rows: Sequence[int] | np.ndarray) -> "Nodes":
        """The chosen rows as nodes of their own."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def where(self, **conditions: Any) -> Int64[np.ndarray, " found"]:
        """Rows whose columns have the wanted values: ``where(kind="z", layer=[0, 1], role=None)``.

        A list asks for any of its values; None asks for absence.

        Raises:
            CircuitError: a kind, role or featurizer that these nodes do not know.
        """
        mask = np.ones(len(self), dtype=bool)
        for name, wanted in conditions.items():
            check_choice("node column", name, COLUMNS)
            single = wanted is None or isinstance(wanted, str | int | np.integer)
            mask &= np.isin(getattr(self, name), [self._code(name, one) for one in ([wanted] if single else wanted)])
        return np.flatnonzero(mask)

    def _code(self, name: str, wanted: Any) -> int:
        if wanted is None:
            return -1
        if name not in self._tables:
            return int(wanted)
        known = self._tables[name]
        if wanted not in known:
            hint = nearest(str(wanted), known)
            raise CircuitError(f"no {name} {wanted!r} in these nodes; known: {', '.join(known) or 'none'}{hint}.")
        return known.index(wanted)

    def index(self, node: Node | str) -> int:
        """The row of `node`.

        Raises:
            CircuitError: it is not among these nodes.
        """
        node = Node.parse(node)
        found = self.where(**node._asdict())
        if not len(found):
            raise CircuitError(
                f"no node '{node}' among these {len(self):,}; of kind {node.kind!r}: {self._reach(node.kind)}."
            )
        return int(found[0])

    def _reach(self, kind: str) -> str:
        """The range of each numbered property of the nodes of one kind."""
        rows = self.where(kind=kind)
        columns = {name: getattr(self, name)[rows] for name in ("layer", "head", "pos", "unit")}
        spans = [f"{name} {column.min()} to {column.max()}" for name, column in columns.items() if (column >= 0).any()]
        return ", ".join(spans) or f"{len(rows)} nodes"


def joint_columns(first: Nodes, second: Nodes) -> tuple[list[np.ndarray], tuple[str, ...], tuple[str, ...]]:
    """Both nodes' columns one after the other, coded by common names; and these names (roles, featurizers)."""
    roles = tuple(dict.fromkeys(first.roles + second.roles))
    featurizers = tuple(dict.fromkeys(first.featurizers + second.featurizers))
    recode = {
        "role": np.array([*map(roles.index, second.roles), -1]),
        "featurizer": np.array([*map(featurizers.index, second.featurizers), -1]),
    }
    columns = []
    for name in COLUMNS:
        added = getattr(second, name)
        columns.append(np.concatenate([getattr(first, name), recode[name][added] if name in recode else added]))
    return columns, roles, featurizers


def appended(first: Nodes, second: Nodes) -> Nodes:
    """The nodes of both, the second's after the first's."""
    columns, roles, featurizers = joint_columns(first, second)
    return Nodes(**dict(zip(COLUMNS, columns, strict=True)), roles=roles, featurizers=featurizers)


def rows_in(nodes: Nodes, wanted: Nodes) -> Int64[np.ndarray, " wanted"]:
    """For each node of `wanted` its row in `nodes`, -1 where it has none."""
    keys = row_keys(joint_columns(nodes, wanted)[0])
    return find(keys[: len(nodes)], keys[len(nodes) :])


def _whole(name: str, values: Any) -> np.ndarray:
    return whole_numbers(f"node column {name!r}", values, np.int8 if name == "kind" else np.int32)


def _codes(names: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Names (one, several, None) as codes of first appearance, -1 for None and ''; and the names."""
    if names is None or isinstance(names, str):
        return np.asarray(0 if names else -1), (names,) if names else ()
    listed = names.tolist() if isinstance(names, np.ndarray) else list(names)
    table = {name: code for code, name in enumerate(dict.fromkeys(name for name in listed if name not in (None, "")))}
    return np.array([table.get(name, -1) for name in listed], dtype=np.int64), tuple(table)
