"""From what a user names to a model: named models, folders, GGUF files, hub ids, and models already in memory.

1. Find the folder that holds the files: named models come from `registry`, hub ids from a snapshot of the hub.
2. Refuse what cannot work (unknown family, no weights, pickled weights) before any weight is read.
3. Read with transformers, silently, and check that every weight of the model came from the files.
"""

import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers.utils.logging import set_tqdm_hook

from interp.errors import InterpError, ModelError, OptionError, check_choice, nearest
from interp.models import registry
from interp.models.base import HookedModel
from interp.models.families import SiteMap, site_map
from interp.models.fingerprint import weight_fingerprint
from interp.models.runs import Identity, Shape

log = logging.getLogger(__name__)
DTYPES = ("float16", "bfloat16", "float32", "float64")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
_SMALL_FILES = ("*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model", "*.tiktoken")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# What transformers raises on files that contradict each other or the installed version.
_READ_FAULTS = (
    OSError, ValueError, TypeError, RuntimeError, LookupError, AttributeError, ArithmeticError, ImportError,
    SafetensorError, StrictDataclassError,
)  # fmt: skip


@dataclass(frozen=True)
class _Place:
    """Where the files of a model lie: a folder, or one GGUF file in it; `hub_id` when weights are still to come."""

    folder: Path
    name: str
    revision: str = ""
    gguf: str | None = None
    hub_id: str | None = None


def load(
    source: str | Path | nn.Module,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    site_map: SiteMap | None = None,
    shape: Shape | None = None,
    check: bool = True,
) -> HookedModel:
    """Load a decoder, ready to be read and changed.

    Args:
        source: a name (`interp.models.registry.models` lists them), a folder with config.json and safetensors, a
            .gguf file or a folder with one, a hub id ``"org/name"``, or a transformers model in memory. A name wins
            over a folder of that name (write ``"./name"``), a folder over a hub id.
        tokenizer: used instead of the source's own; a source without one gives a model that takes token ids.
        device: CPU unless given.
        dtype: the stored one unless given; float32 for GGUF files and the models made from them.
        revision: branch, tag or commit of a hub id.
        trust_remote_code: run Python code that comes with the model.
        site_map: where the sites are, for a family outside the table or a module of one's own.
        shape: sizes, for a module in memory without a transformers configuration.
        check: run the self-check that every site can be read and changed; off only for a model whose weights really
            are zero somewhere.

    Raises:
        ModelError: a source that does not exist, cannot be read, or is no supported decoder.
        OptionError: a device or dtype that does not exist here, or an option that does not go with the source.
    """
    from interp.models.hf import HookedHF

    model, tokenizer, identity = load_weights(
        source,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        any_family=site_map is not None,
    )
    return HookedHF(model, tokenizer, site_map=site_map, shape=shape, identity=identity, check=check)


def load_weights(
    source: str | Path | nn.Module,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    any_family: bool = False,
) -> tuple[nn.Module, Any, Identity]:
    """The transformers model (in eval mode), its tokenizer or None, and where they came from.

    Arguments and errors are those of `load`. A model in memory is handed back as it is, its mode included.

    Args:
        any_family: accept families outside the table.
    """
    if isinstance(source, nn.Module):
        return _in_memory(source, tokenizer, {"device": device, "dtype": dtype, "revision": revision})
    target, precision = _device(device), _dtype(dtype)
    with _quiet():
        place = _locate(source, revision, trust_remote_code)
        with _explained(place.name):
            model = _read_model(place, precision, trust_remote_code, any_family)
            tokenizer = _read_tokenizer(place, trust_remote_code) if tokenizer is None else tokenizer
    model.to(target)
    return model, tokenizer, Identity(place.name, place.revision, weight_fingerprint(model))


def _in_memory(model: nn.Module, tokenizer: Any, options: Mapping[str, object]) -> tuple[nn.Module, Any, Identity]:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise OptionError(
            f"{', '.join(given)} cannot be set for a model in memory, which is used as it is; "
            "change the model before, for example model.to('cuda')."
        )
    if hasattr(model, "_orig_mod"):
        raise ModelError("a model from torch.compile cannot be hooked; pass the model that was compiled.")
    config = getattr(model, "config", None)
    name = getattr(config, "_name_or_path", "") or type(model).__name__
    revision = getattr(config, "_commit_hash", None) or ""
    return model, tokenizer, Identity(name, revision, weight_fingerprint(model))


# --- finding ---


def _locate(source: str | Path, revision: str | None, trust_remote_code: bool) -> _Place:
    """The place of a source; named models are made, and a hub model's small files fetched, on the way."""
    name = str(source)
    named = registry.find(name) if isinstance(source, str) else None
    path = Path(name).expanduser()
    is_hub = named is None and bool(_HUB_ID.fullmatch(name)) and isinstance(source, str) and not path.exists()
    if revision is not None and not is_hub:
        raise OptionError(f"revision {revision!r} goes with a hub id 'org/name' only; {name!r} is none: leave it out.")
    if named is not None:
        requirement = named.wheel.requirement if named.wheel else ""
        return _Place(registry.local_folder(named, _convert), named.name, requirement)
    if is_hub:
        files = [*_SMALL_FILES, "*.py"] if trust_remote_code else list(_SMALL_FILES)
        folder = _snapshot(name, revision, files)
        return _Place(folder, name, revision=folder.name, hub_id=name)
    if name.strip() and path.is_dir():
        return _Place(path, name, gguf=_only_gguf(path))
    if path.is_file() and path.suffix == ".gguf":
        return _Place(path.parent, name, gguf=path.name)
    raise ModelError(
        f"no model, folder or .gguf file {name!r}{nearest(name, registry.names())}. Allowed: a name "
        f"({', '.join(registry.names())}), the path of a folder with config.json and *.safetensors, or of a .gguf "
        "file, a hub id 'org/name' (such as 'openai-community/gpt2'), or a transformers model in memory."
    )


def _snapshot(hub_id: str, revision: str | None, patterns: list[str]) -> Path:
    """Folder of the hub's files that match; its name is the commit."""
    offline = huggingface_hub.constants.HF_HUB_OFFLINE  # some releases ask the hub all the same when given a commit
    options: dict[str, Any] = {"allow_patterns": patterns, "ignore_patterns": ["*/*"], "local_files_only": offline}
    try:
        with _bars_on_a_terminal_only():
            folder = huggingface_hub.snapshot_download(hub_id, revision=revision, **options)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{hub_id!r} is no folder here and could not be had from the hub ({_first_sentence(error)[:-1]}); check "
            "its spelling, revision and the connection, or pass a local folder or 'embedded', which need no network."
        ) from error
    return Path(folder)


def _only_gguf(folder: Path) -> str | None:
    """Name of the folder's GGUF file when it holds the only weights."""
    files = sorted(file.name for file in folder.glob("*.gguf"))
    if not files or any(folder.glob("*.safetensors")):
        return None
    if len(files) > 1:
        raise ModelError(f"{folder} holds {len(files)} GGUF files ({', '.join(files)}); pass the path of one of them.")
    return files[0]


# --- reading ---


def _read_model(place: _Place, dtype: torch.dtype | None, trust_remote_code: bool, any_family: bool) -> Any:
    options = _options(place, trust_remote_code)
    if not place.gguf:
        _check_config(place)
    with _bars_on_a_terminal_only():
        config = transformers.AutoConfig.from_pretrained(place.folder, **options)
        if not any_family:
            site_map(config)
        if not place.gguf:
            _require_weights(place)
        elif hasattr(transformers, "GgufConfig"):  # else some architectures stay packed where no hook can read them
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            place.folder,
            config=config,
            dtype=dtype or (torch.float32 if place.gguf else "auto"),
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # _check_complete reports them, by name
            output_loading_info=True,
            **options,
        )
    _check_complete(place, report)
    return model.eval()


def _read_tokenizer(place: _Place, trust_remote_code: bool) -> Any:
    """The tokenizer, or None: without a vocabulary file transformers makes an empty one, without a word."""
    if not place.gguf and not any(file for pattern in _VOCABULARIES for file in place.folder.glob(pattern)):
        return None
    return transformers.AutoTokenizer.from_pretrained(place.folder, **_options(place, trust_remote_code))


def _options(place: _Place, trust_remote_code: bool) -> dict[str, Any]:
    return {"trust_remote_code": trust_remote_code} | ({"gguf_file": place.gguf} if place.gguf else {})


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file into `folder`, in float32."""
    place = _Place(gguf.parent, gguf.name, gguf=gguf.name)
    with _explained(gguf.name):
        model = _read_model(place, torch.float32, trust_remote_code=False, any_family=False)
        tokenizer = _read_tokenizer(place, trust_remote_code=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _check_config(place: _Place) -> None:
    if not (place.folder / "config.json").is_file():
        found = ", ".join(sorted(file.name for file in place.folder.glob("*"))[:8]) or "nothing"
        raise ModelError(
            f"{place.name} has no config.json (found: {found}); a model folder holds config.json and *.safetensors, "
            "or one .gguf file, as model.save_pretrained(folder) writes it."
        )


def _require_weights(place: _Place) -> None:
    """Fetch a hub model's weights; raise where there are no safetensors."""
    if place.hub_id:
        _snapshot(place.hub_id, place.revision, ["model*.safetensors"])
    if any(place.folder.glob("*.safetensors")):
        return
    pickles = sorted(file.name for pattern in _PICKLES for file in place.folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{place.name} holds its weights only as pickles ({', '.join(pickles)}), which can run code when read; "
            "where you trust them, convert them once: AutoModelForCausalLM.from_pretrained(folder, "
            "use_safetensors=False).save_pretrained(new_folder)."
        )
    raise ModelError(
        f"{place.name} has a config.json but no weights; allowed: *.safetensors beside config.json (pickles are not "
        "fetched from the hub: take a revision that has safetensors, or convert them)."
    )


def _check_complete(place: _Place, report: Mapping[str, Any]) -> None:
    """Raise where the model holds weights that the files did not give: they would be random."""
    faults = [f"{name} is absent" for name in sorted(report["missing_keys"])]
    faults += [f"{name} is {tuple(has)}, not {tuple(needs)}" for name, has, needs in sorted(report["mismatched_keys"])]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ModelError(
            f"the weights of {place.name} do not fit its config.json: {'; '.join(faults[:5])}{more}. "
            "Take both from the same model."
        )
    unused = sorted(report["unexpected_keys"])
    if unused:
        log.warning("%d weights of %s are not part of the model: %s", len(unused), place.name, ", ".join(unused[:5]))


# --- options and messages ---


def _device(device: str | torch.device | None) -> torch.device:
    try:
        return torch.empty(0, device=device or "cpu").device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise OptionError(
            f"device is {device!r}: {_first_sentence(error)} Allowed: 'cpu', or an accelerator that torch sees here."
        ) from error


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    check_choice("dtype", name, DTYPES)
    return getattr(torch, name)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what reading raises into one `ModelError`."""
    try:
        yield
    except InterpError:
        raise
    except _READ_FAULTS as error:
        raise ModelError(
            f"{name} cannot be loaded: {_first_sentence(error)} A damaged file must be taken again; a missing package "
            "or a newer transformers installed; code that comes with a model needs trust_remote_code=True."
        ) from error


def _first_sentence(error: BaseException) -> str:
    """The error's kind and first sentence."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0].split('. ')[0].rstrip('.')}."


def _bars_on_a_terminal_only() -> AbstractContextManager[Any]:
    """Context for progress bars that have no switch of their own: those of downloads and of unpacking GGUF files."""
    return nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and no progress bars of transformers inside; everything as it was afterwards."""
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    hook = set_tqdm_hook(lambda factory, args, options: factory(*args, **{**options, "disable": True}))
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_tqdm_hook(hook)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
