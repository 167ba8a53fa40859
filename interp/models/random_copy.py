"""A model of the same architecture with random weights: what a method finds there says nothing about training."""

import copy
from typing import Any

import torch

from interp.errors import ModelError
from interp.models.base import HookedModel
from interp.models.fingerprint import weight_fingerprint
from interp.models.hf import HookedHF
from interp.models.runs import Identity


def random_copy(model: HookedModel, seed: int = 0) -> HookedModel:
    """The model's architecture with the weights that its own library gives it before training, drawn from `seed`.

    Raises:
        ModelError: a model that is not one of transformers'.
    """
    inner: Any = getattr(model, "model", None)
    config = getattr(inner, "config", None)
    if config is None or not hasattr(inner, "base_model"):
        raise ModelError(f"{model.identity.name} is no transformers model, so it cannot be made anew from its config.")
    first = next(inner.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = type(inner)(copy.deepcopy(config)).to(first.device, first.dtype).eval()
    identity = Identity(f"{model.identity.name} (random weights)", "", weight_fingerprint(made))
    return HookedHF(made, model.tokenizer, identity=identity)
