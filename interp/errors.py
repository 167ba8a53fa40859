"""The error tree: every fault of the caller ends in one of these, with what, value, allowed and cure.

Each class is also the built-in error a Python user would expect, so ``except ValueError`` works.
"""

import difflib
from collections.abc import Iterable


class InterpError(Exception):
    """Any error that `interp` raises on purpose."""


class InterpWarning(UserWarning):
    """Something about a result that its reader should know."""


class SiteError(InterpError, ValueError):
    """A site, layer, head, position or unit that the model does not have."""


class InterventionError(InterpError, ValueError):
    """An intervention that cannot be applied, or that never fired."""


class PromptError(InterpError, ValueError):
    """Prompts, answers or positions that do not fit the tokenizer or each other."""


class TaskError(InterpError, ValueError):
    """A task that cannot be built, or lacks what a method needs."""


class MetricError(InterpError, ValueError):
    """A metric that is unknown, undefined or degenerate on these runs."""


class ModelError(InterpError, ValueError):
    """A model that cannot be loaded, is not supported, or fails its self-check."""


class CircuitError(InterpError, ValueError):
    """A circuit whose parts contradict each other, or an operation it does not allow."""


class FileError(InterpError, ValueError):
    """A file that is damaged, of an unknown version, or not what it claims to be."""


class OptionError(InterpError, ValueError):
    """An option outside its allowed values."""


class MissingExtraError(InterpError, ImportError):
    """An optional dependency is not installed."""


def nearest(name: str, allowed: Iterable[str], count: int = 3) -> str:
    """Return a clause such as ``; nearest: 'z', 'q'`` or an empty string when nothing is near."""
    close = difflib.get_close_matches(name, list(allowed), n=count, cutoff=0.5)
    return "; nearest: " + ", ".join(repr(c) for c in close) if close else ""


def check_choice(what: str, value: object, allowed: Iterable[str]) -> None:
    """Raise `OptionError` unless `value` is one of `allowed`, naming the nearest."""
    allowed = list(allowed)
    if value not in allowed:
        hint = nearest(str(value), allowed)
        raise OptionError(f"{what} is {value!r}; allowed: {', '.join(map(repr, allowed))}{hint}.")


def check_options(what: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise `OptionError` unless all names of options are allowed, naming all that are not and the nearest."""
    allowed = list(allowed)
    if unknown := [name for name in given if name not in allowed]:
        raise OptionError(
            f"{what} has no option {', '.join(map(repr, unknown))}; allowed: {', '.join(allowed)}"
            f"{nearest(unknown[0], allowed)}."
        )


def require(module: str, extra: str) -> None:
    """Raise `MissingExtraError`, with the pip command, when `module` is not installed."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(
            f"This needs the package {module!r}, which is not installed: pip install 'interp[{extra}]'."
        )
