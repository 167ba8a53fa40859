"""Labelled data by name, or from a user's own table."""

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from interp.errors import OptionError, check_options, nearest
from interp.labelled.base import BiasedData
from interp.labelled.bias_in_bios import bias_in_bios
from interp.labelled.biographies import biographies
from interp.labelled.gap import gap
from interp.labelled.planted import planted
from interp.labelled.splitting import biased
from interp.labelled.tables import READERS, read_labelled

MAKERS: Mapping[str, Callable[..., BiasedData]] = {
    "biographies": biographies, "planted": planted, "bias_in_bios": bias_in_bios, "gap": gap,
}  # fmt: skip


def from_table(path: str | Path, **options: Any) -> BiasedData:
    """A table's texts, split into parts; options of `read_labelled` and of `biased`."""
    reading = {name: options.pop(name) for name in list(options) if name in signature(read_labelled).parameters}
    for name in ("classes", "values", "together"):
        for given in (reading, options):
            if isinstance(given.get(name), list):
                given[name] = tuple(given[name])
    return biased(read_labelled(path, **reading), **options)


def biased_data(source: str | Path, **options: Any) -> BiasedData:
    """Data for debiasing a classifier.

    Args:
        source: ``"biographies"``, ``"planted"``, ``"bias_in_bios"``, ``"gap"``, or the path of a table of texts.
        options: of the function of that name; of a table those of `read_labelled` and `biased`.

    Raises:
        OptionError: an unknown name, or an option that it does not have.
    """
    is_table = Path(source).suffix.lower() in READERS
    if not is_table and source not in MAKERS:
        raise OptionError(
            f"no data {str(source)!r}; allowed: {', '.join(MAKERS)}, or a file ({', '.join(READERS)})"
            f"{nearest(str(source), MAKERS)}."
        )
    makers = (read_labelled, biased) if is_table else (MAKERS[str(source)],)
    allowed = [
        name for maker in makers for name in signature(maker).parameters if not (is_table and name in ("path", "data"))
    ]
    check_options(str(source), options, allowed)
    return from_table(source, **options) if is_table else MAKERS[str(source)](**options)
