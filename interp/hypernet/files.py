"""A HyperDAS on disk: its network, settings and instructions, as JSON and safetensors, without the model."""

from pathlib import Path

from interp.atomic import one_error
from interp.errors import FileError
from interp.hypernet.interchange import HyperDas
from interp.hypernet.settings import HyperDasSettings
from interp.interchange.exchanges import orthonormalised
from interp.models.base import HookedModel
from interp.tensor_folder import Kind, read_folder, write_folder

KIND = Kind("hyperdas", "interp hyperdas", 1, "save_hyperdas")


def save_hyperdas(one: HyperDas, folder: str | Path) -> Path:
    """Write a HyperDAS; its shared subspace is written orthonormal. Other files in the folder stay."""
    folder = Path(folder)
    tensors = dict(one.network.state_dict())
    tensors["subspace"] = orthonormalised(tensors["subspace"])
    write_folder(folder, KIND, one.description(), tensors)
    return folder


def load_hyperdas(folder: str | Path, model: HookedModel) -> HyperDas:
    """Read a HyperDAS that `save_hyperdas` wrote.

    Args:
        model: the model it was trained on.

    Raises:
        FileError: no such folder, damage, or another model.
    """
    folder = Path(folder)
    with one_error(folder, "a HyperDAS"):
        settings, tensors = read_folder(folder, KIND)
        if settings["model"] != model.identity.fingerprint:
            raise FileError(
                f"{folder} was trained on a model with fingerprint {settings['model']}, this one has "
                f"{model.identity.fingerprint}; load that model."
            )
        made = HyperDasSettings(**settings["settings"])
        one = HyperDas(model, settings["site"], made, settings["instructions"], settings["seed"])
        one.network.load_state_dict(tensors)
    return one.eval()
