"""Classifiers on disk: all that prediction needs but the model, as JSON and safetensors.

A folder holds ``classifier.safetensors`` (the probe, and of each featurizer the parameters of the features taken out)
and ``classifier.json``, which names the model with its fingerprint and has the settings.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from interp.atomic import one_error
from interp.classifier import Removal, TextClassifier, residual_site
from interp.errors import ModelError, OptionError
from interp.featurizers.base import Featurizer
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.linear import Basis, Coordinates
from interp.models.base import HookedModel
from interp.models.load import load
from interp.probes import Probe
from interp.site import Site
from interp.tensor_folder import Kind, read_folder, write_folder
from interp.tokens import tokenizer_fingerprint

KIND = Kind("classifier", "interp text classifier", 1, "save_classifier")
KINDS: Mapping[str, type[Featurizer]] = {"dictionary": Dictionary, "basis": Basis, "coordinates": Coordinates}


def save_classifier(classifier: TextClassifier, folder: str | Path) -> Path:
    """Write a classifier; an older one in the folder is replaced, other files in it stay.

    Returns:
        the folder.

    Raises:
        OptionError: features of a featurizer that files do not know.
    """
    folder = Path(folder)
    written = [_written(one) for one in classifier.removed]
    tensors = {"weight": classifier.probe.weight, "bias": classifier.probe.bias}
    for number, (_, own) in enumerate(written):
        tensors |= {f"removed.{number}.{name}": tensor for name, tensor in own.items()}
    model = classifier.model
    settings = {
        "model": {**vars(model.identity), "tokenizer": tokenizer_fingerprint(model.tokenizer)},
        "site": str(classifier.site), "classes": list(classifier.classes), "length": classifier.length,
        "removed": [one for one, _ in written],
    }  # fmt: skip
    write_folder(folder, KIND, settings, tensors)
    return folder


def load_classifier(folder: str | Path, model: HookedModel | None = None) -> TextClassifier:
    """Read a classifier that `save_classifier` wrote.

    Args:
        model: the model it was trained on; loaded by its name when None.

    Raises:
        FileError: nothing there, damaged, or of a schema that this version does not know.
        ModelError: another model, or another tokenizer, than the one it was trained on.
    """
    folder = Path(folder)
    with one_error(folder, "a classifier"):
        settings, tensors = read_folder(folder, KIND)
        told, site = settings["model"], Site.parse(settings["site"])
        removed = [_removal(one, number, tensors) for number, one in enumerate(settings["removed"])]
        first, second = settings["classes"]
        length = int(settings["length"])
        probe = Probe(tensors["weight"], tensors["bias"].reshape(()))
    used = load(told["name"]) if model is None else model
    own = {"weights": (told["fingerprint"], used.identity.fingerprint),
           "tokenizer": (told["tokenizer"], tokenizer_fingerprint(used.tokenizer))}  # fmt: skip
    other = [f"{what} {its}, this one {mine}" for what, (its, mine) in own.items() if its and mine and its != mine]
    if other:
        raise ModelError(
            f"{folder} was trained on {told['name']} ({'; '.join(other)}); give the model it was trained on."
        )
    placed = tuple(replace(one, featurizer=one.featurizer.to(used.device)) for one in removed)
    return TextClassifier(used, residual_site(used, site), probe, (first, second), placed, length)


def _written(one: Removal) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A removal as JSON values and tensors, with no feature that it can do without."""
    part, units = one.featurizer.part(one.units)
    kind = next((name for name, known in KINDS.items() if isinstance(part, known)), None)
    if kind is None:
        raise OptionError(f"{part} cannot be written; allowed: dictionaries, bases and coordinates.")
    settings = {"kind": kind, "site": str(part.site), "reads": str(part.reads), "key": part.key, "skip": part.skip,
                "nodes": list(one.nodes)}  # fmt: skip
    for name in ("select", "k", "width"):
        if hasattr(part, name):
            settings[name] = getattr(part, name)
    own = {f.name: value for f in fields(part) if isinstance(value := getattr(part, f.name), Tensor)}
    return settings, {**own, "units": units, "values": one.values}


def _removal(settings: dict[str, Any], number: int, tensors: Mapping[str, Tensor]) -> Removal:
    """A removal from what `_written` made."""
    start = f"removed.{number}."
    own: dict[str, Any] = {
        name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)
    }
    options = dict(settings)
    kind, nodes = KINDS[options.pop("kind")], tuple(map(str, options.pop("nodes")))
    units, values = own.pop("units"), own.pop("values")
    featurizer = kind(options.pop("site"), **options, **own)
    if units.ndim != 1 or values.shape != units.shape or (len(units) and int(units.max()) >= featurizer.n_features):
        raise ValueError(f"features taken out at {featurizer.site} do not fit their parameters")
    return Removal(featurizer, units, values, nodes)
