"""A fingerprint of weights: cheap enough to take at every load, and changed by any change of a single weight.

Each parameter is read as integers of 64 bits (narrower where its rows are not a multiple of 8 bytes) and summed along
its rows and along its columns. Integer sums do not depend on the order of addition, so CPU, GPU and any number of
threads agree. The sums are hashed with the names, shapes and dtypes. A changed weight changes its row's sum; a
permutation of rows or of columns changes the order of the sums.
"""

import hashlib
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Integer
from torch import Tensor, nn

from interp.errors import ModelError

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def weight_fingerprint(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Sixteen hex digits that stand for these weights.

    SmolLM2-135M in float32 (538 MB) takes 0.1 s on one CPU thread, a third of a SHA-256 of its bytes.

    Args:
        weights: a model (tied weights count once, under their first name), or named tensors.

    Raises:
        ModelError: a weight on the meta device that is not offloaded anywhere.

    >>> layer = nn.Linear(2, 2)
    >>> before = weight_fingerprint(layer)
    >>> layer.weight.data[0, 1] += 1
    >>> len(before), weight_fingerprint(layer) == before
    (16, False)
    """
    digest = hashlib.sha256()
    named = _named_weights(weights) if isinstance(weights, nn.Module) else weights.items()
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.numel():
            words = _words(tensor)
            for axis in (0, 1):
                digest.update(words.sum(axis).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _words(tensor: Tensor) -> Integer[Tensor, "row word"]:
    """The tensor's memory as integers, one row for each index of its first axis."""
    rows = tensor.shape[0] if tensor.ndim else 1
    whole = tensor.detach().contiguous()
    if whole.storage_offset():  # a view with a wider dtype needs an aligned start
        whole = whole.clone()
    octets = whole.reshape(rows, -1).view(torch.uint8)
    return octets.view(next(word for word in _WORDS if octets.shape[1] % word.itemsize == 0))


def _named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters of a model, each once; those that accelerate has offloaded are fetched."""
    for name, parameter in model.named_parameters():
        yield name, _fetched(model, name) if parameter.is_meta else parameter


def _fetched(model: nn.Module, name: str) -> Tensor:
    from accelerate.utils import align_module_device  # type: ignore[import-untyped]

    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    with align_module_device(module):
        tensor = getattr(module, leaf)
        if tensor.is_meta:
            raise ModelError(f"weight {name} is on the meta device and holds no values; load the model before use.")
        return tensor.detach().clone()
