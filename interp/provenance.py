"""Where a result came from: everything needed to make it again, as plain JSON values."""

import functools
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from interp.errors import CircuitError

_RECORDED = ("interp", "torch", "transformers", "numpy", "safetensors")


@functools.cache
def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on; '' where one is not installed."""
    versions = {"python": platform.python_version()}
    for package in _RECORDED:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = ""
    return versions


@dataclass(frozen=True)
class Provenance:
    """How a circuit was made. Mappings hold JSON values; tuples and arrays in them become lists.

    Args:
        model: id by which the model loads; `revision` and `weights` (a fingerprint) say which one exactly.
        tokenizer: the tokenizer's fingerprint.
        task: the task's name; `task_parameters` what it was built with.
        token_ids: the ids run, one row a prompt, without padding; `corrupted_token_ids` their counterparts.
        metric: the metric's name.
        direction: `noising` or `denoising`; None where neither applies.
        ablation: what replaced an activation: `zero`, `mean`, `mean_by_position`, `resample`, `counterfactual`.
        method: the method's name; `parameters` its options (a mean names its reference set here).
        ranking: `signed` or `absolute`, the rule by which members were last chosen.
        seed: seed of everything random.
        versions: package -> version; filled in.
        forwards, backwards: cost, in passes of one prompt.
        operations: what was done to the circuit since, oldest first.

    Raises:
        CircuitError: values that JSON cannot hold, all named together.

    >>> Provenance(method="eap", parameters={"steps": (1, 5)}).parameters
    {'steps': [1, 5]}
    """

    model: str = ""
    revision: str | None = None
    weights: str = ""
    tokenizer: str = ""
    task: str = ""
    task_parameters: Mapping[str, Any] = field(default_factory=dict)
    token_ids: Sequence[Sequence[int]] = ()
    corrupted_token_ids: Sequence[Sequence[int]] = ()
    metric: str = ""
    direction: str | None = None
    ablation: str | None = None
    method: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ranking: str | None = None
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=installed_versions)
    forwards: float = 0.0
    backwards: float = 0.0
    operations: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        faults: list[str] = []
        for one in fields(self):
            value = plain(getattr(self, one.name), f"provenance.{one.name}", faults)
            if one.name in ("token_ids", "corrupted_token_ids"):
                value = tuple(map(tuple, value))
            object.__setattr__(self, one.name, tuple(value) if one.name == "operations" else value)
        if faults:
            raise CircuitError("; ".join(faults) + ". Give strings, numbers, booleans, None, lists and dicts of these.")

    def after(self, operation: str, **details: Any) -> "Provenance":
        """The same provenance with one more operation recorded."""
        return replace(self, operations=(*self.operations, {"operation": operation, **details}))


def plain(value: Any, name: str, faults: list[str]) -> Any:
    """A copy of `value` in JSON's own types; what has none is added to `faults`.

    Arrays and tuples become lists, keys become strings.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{name}.{key}", faults) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{index}]", faults) for index, item in enumerate(value)]
    faults.append(f"{name} is a {type(value).__name__} ({value!r:.60}), which JSON cannot hold")
    return None
