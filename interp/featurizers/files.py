"""Dictionaries on disk: our own folder, and what other libraries save; tensors and JSON only, no pickled code.

Our folder holds ``dictionary.safetensors`` and ``dictionary.json``, which has the settings and the tensors' checksum
and is renamed into place last. What lies at a path is told by its content, not by its name:

    dictionary.json, dictionary.safetensors     ours
    cfg.json, sae_weights.safetensors           sae-lens
    config.json, ae.pt                          dictionary_learning (read as tensors only)
    one .safetensors file                       plain tensors: W_enc, b_enc, W_dec, b_dec ... or encoder.weight ...
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from interp.atomic import one_error
from interp.errors import FileError, InterpWarning, OptionError, require
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.foreign import Stored, from_dictionary_learning, from_sae_lens, from_tensors, shape_faults
from interp.models.base import HookedModel
from interp.site import Site
from interp.tensor_folder import Kind, read_folder, write_folder

OWN = Kind("dictionary", "interp dictionary", 1, "save_dictionary")
_NEEDED = ("encoder", "bias", "decoder", "decoder_bias")
_AXES = {
    "encoder": ("d_read", "feature"), "decoder": ("feature", "d"), "bias": ("feature",), "decoder_bias": ("d",),
    "shift": ("d_read",), "gate_bias": ("feature",), "skip_weights": ("d_read", "d"),
}  # fmt: skip
_ALIASES = {"gpt2small": "gpt2"}  # TransformerLens's name of a model -> the hub's


def save_dictionary(dictionary: Dictionary, folder: str | Path) -> Path:
    """Write a dictionary; an older one in the folder is replaced, other files in it stay.

    Returns:
        the folder.

    Raises:
        OptionError: no `Dictionary`, or a description that JSON cannot hold.

    >>> import tempfile
    >>> eye, zero = torch.eye(2), torch.zeros(2)
    >>> made = Dictionary("mlp_out[0]", encoder=eye, bias=zero, decoder=eye, decoder_bias=zero)
    >>> load_dictionary(save_dictionary(made, tempfile.mkdtemp())).key
    'dictionary.mlp_out[0]'
    """
    if not isinstance(dictionary, Dictionary):
        raise OptionError(f"{dictionary} is no Dictionary; allowed: what load_dictionary or training made.")
    folder = Path(folder)
    try:
        write_folder(folder, OWN, dictionary.settings, dictionary.tensors)
    except TypeError as error:
        raise OptionError(
            f"{dictionary}: its description holds what JSON cannot ({error}); give plain values."
        ) from error
    return folder


def load_dictionary(
    path: str | Path, site: Site | str | None = None, *, key: str = "", reads: Site | str | None = None,
    skip: int | None = None,
) -> Dictionary:  # fmt: skip
    """Read a dictionary, on the CPU: our own, of sae-lens or of dictionary_learning; what it is, its content says.

    Args:
        path: the folder (or a file in it), or one ``.safetensors`` file of a ReLU, JumpReLU or gated dictionary.
        site: whose activation it explains; what the file says when None.
        key: its name in circuits; the file's, or ``dictionary.<site>``, when empty.
        reads: the site that a transcoder reads; what the file says when None.
        skip: first positions that it does not explain; what the file says, or 0, when None.

    Raises:
        FileError: nothing readable there; damaged; a kind, setting or tensor that cannot be used; no site known.
    """
    path = Path(path)
    root = path.parent if path.name in {name for pair in _READERS for name in pair} else path
    with one_error(root, "a dictionary"):
        stored = _read(root)
    return _placed(stored, str(root), site, reads, key, skip)


def pretrained_dictionary(
    release: str, sae_id: str, site: Site | str | None = None, *, device: str = "cpu", key: str = "",
    reads: Site | str | None = None, skip: int | None = None,
) -> Dictionary:  # fmt: skip
    """Download a dictionary that sae-lens knows (``pip install 'interp[sae]'``); other arguments as `load_dictionary`.

    Args:
        release: the release in sae-lens's list, or a hub repository.
        sae_id: the dictionary within it.
        device: where it goes.

    Raises:
        MissingExtraError: sae-lens is not installed.
        OptionError: sae-lens has no such dictionary, or cannot fetch it.
        FileError: as `load_dictionary`.
    """
    require("sae_lens", "sae")
    where = f"{release}/{sae_id}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its import, and of settings that are judged below
        from sae_lens import SAE

        try:
            sae = SAE.from_pretrained(release, sae_id, device="cpu")
        except (OSError, ValueError, KeyError) as error:
            raise OptionError(f"sae-lens does not load {where}: {error}; check both names in its list.") from error
    stored = from_sae_lens(sae.cfg.to_dict(), sae.state_dict(), {"release": release, "id": sae_id})
    return _placed(stored, where, site, reads, key, skip).to(torch.device(device))


def check_origin(model: HookedModel, dictionary: Dictionary) -> None:
    """Warn when a dictionary says that it was trained on a model of another name or with other weights."""
    trained, given = dictionary.description.get("model"), model.identity.name
    weights, own = dictionary.description.get("weights"), model.identity.fingerprint
    if weights and own and weights == own:
        return
    if isinstance(trained, str) and given != "in-memory" and (_plain(trained) != _plain(given) or (weights and own)):
        warnings.warn(
            f"{dictionary} was trained on {trained}, the model is {given}; its features mean little there unless one "
            "is a copy of the other.",
            InterpWarning,
            stacklevel=2,
        )


def _plain(model: str) -> str:
    """A model's name without its owner, its file's ending, case and punctuation."""
    last = model.rstrip("/").split("/")[-1].lower().removesuffix(".gguf")
    plain = "".join(letter for letter in last if letter.isalnum())
    return _ALIASES.get(plain, plain)


def _placed(
    stored: Stored, where: str, site: Site | str | None, reads: Site | str | None, key: str, skip: int | None
) -> Dictionary:
    """The dictionary at the sites given, else at those the file names."""
    at, reading = _sites(stored, where, site, reads)
    if stored.note:
        warnings.warn(f"{where}: {stored.note}.", InterpWarning, stacklevel=3)
    key = key or (stored.key if at == stored.site else "")
    skip = stored.skip if skip is None else skip
    try:
        return Dictionary(at, key=key, reads=reading, skip=skip, description=stored.description, **stored.parts)
    except OptionError as error:
        raise FileError(f"{where}: {error}") from error


def _sites(
    stored: Stored, where: str, site: Site | str | None, reads: Site | str | None
) -> tuple[Site | None, Site | None]:
    """The site that a dictionary explains and, for a transcoder, the one it reads; with a warning where they differ."""
    given = [None if one is None else Site.parse(one) for one in (site, reads)]
    named = [stored.site, stored.reads]
    rows = list(zip(("site", "reads"), given, named, strict=True))[: 1 + stored.transcoder]
    words = ", ".join(repr(hook) for name in ("hook", "hook_out") if (hook := stored.description.get(name)))
    if unknown := [f"{name}=, such as {name}='resid_post[2]'" for name, mine, its in rows if mine is its is None]:
        raise FileError(
            f"{where} names no site that is known here (it was trained at: {words or 'not said'}); give "
            f"{' and '.join(unknown)}."
        )
    for name, mine, its in rows:
        if mine is not None and its is not None and mine != its:
            warnings.warn(
                f"{where} has {name} {its}{words and f' ({words})'}, you give {mine}; its features mean little there.",
                InterpWarning,
                stacklevel=4,
            )
    return given[0] or named[0], given[1] or named[1]


def _read(root: Path) -> Stored:
    """Whatever lies at a path."""
    if root.is_file() and root.suffix == ".safetensors":
        return from_tensors(load_file(root), {"path": str(root)})
    found = {file.name for file in root.iterdir()} if root.is_dir() else set()
    for pair, reader in _READERS.items():
        if found.issuperset(pair):
            return reader(*(root / name for name in pair))
    kinds = ", ".join(" with ".join(pair) for pair in _READERS)
    known = sorted(found.intersection(name for pair in _READERS for name in pair))
    what = f"has only {', '.join(known)} of them" if known else "has none" if found else "does not exist or is empty"
    raise FileError(
        f"{root} holds no dictionary; readable: a folder with {kinds}, or one .safetensors file; it {what}. "
        "What sae-lens can download, pretrained_dictionary loads."
    )


def _read_own(settings_file: Path, tensors_file: Path) -> Stored:
    settings, tensors = read_folder(settings_file.parent, OWN)
    faults = [f"{name} is missing" for name in _NEEDED if name not in tensors]
    faults += [f"{name} is unknown" for name in tensors if name not in _AXES] + shape_faults(tensors, _AXES)
    if faults:
        raise ValueError("; ".join(faults))
    site, reads = Site.parse(settings["site"]), Site.parse(settings["reads"])
    return Stored(
        {**tensors, "select": settings["select"], "k": int(settings["k"])}, dict(settings["description"]),
        site, None if site == reads else reads, site != reads, str(settings["key"]), int(settings["skip"]),
    )  # fmt: skip


def _read_sae_lens(config_file: Path, tensors_file: Path) -> Stored:
    return from_sae_lens(_json(config_file), load_file(tensors_file), {"path": str(tensors_file.parent)})


def _read_dictionary_learning(config_file: Path, tensors_file: Path) -> Stored:
    tensors = torch.load(tensors_file, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError(f"{tensors_file.name} holds something else than tensors by name")
    return from_dictionary_learning(_json(config_file), tensors, {"path": str(tensors_file.parent)})


_READERS: dict[tuple[str, str], Callable[[Path, Path], Stored]] = {
    ("dictionary.json", "dictionary.safetensors"): _read_own,
    ("cfg.json", "sae_weights.safetensors"): _read_sae_lens,
    ("config.json", "ae.pt"): _read_dictionary_learning,
}


def _json(file: Path) -> dict[str, Any]:
    document = json.loads(file.read_bytes())
    if not isinstance(document, dict):
        raise ValueError(f"{file.name} holds no JSON object")
    return document
