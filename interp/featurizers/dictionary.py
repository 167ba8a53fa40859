"""Dictionaries: sparse autoencoders and transcoders, as plain tensors.

    pre = (x - shift) W_enc,    f = relu(pre + bias) . 1[pre + gate_bias > 0],    decode(f) = f W_dec + b_dec

`gate_bias` makes JumpReLU (bias - threshold) and gated autoencoders of it; top-k keeps the k largest of a token
instead. Encoder and decoder are those that act: a gated magnitude exp(r_mag), or a rescaling by decoder norms, is
already in them. Selection (gate, threshold, top k) is held fixed when features are differentiated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import OptionError, check_choice
from interp.featurizers.base import Affine, Featurizer

Select = Literal["gate", "topk", "abstopk"]


@dataclass(frozen=True, eq=False)
class Dictionary(Affine):
    """A learned sparse featurizer.

    Args:
        encoder: W_enc [d_read, feature].
        bias: of the encoder [feature].
        decoder: W_dec [feature, d].
        decoder_bias: b_dec [d].
        shift: taken off what is read [d_read], or None.
        gate_bias: see the module; `bias` when None.
        select: ``"gate"`` as in the module; ``"topk"`` the k largest of relu(pre + bias); ``"abstopk"`` the k largest
            of |pre + bias|, with their sign.
        k: features a token in a top-k.
        skip_weights: a linear path [d_read, d] past the features (skip transcoders); what it adds is not the features'
            work, so it counts as error term.

    Raises:
        OptionError: tensors whose sizes do not fit, a top-k without k; all together.
    """

    encoder: Tensor = None  # type: ignore[assignment]
    bias: Tensor = None  # type: ignore[assignment]
    decoder: Tensor = None  # type: ignore[assignment]
    decoder_bias: Tensor = None  # type: ignore[assignment]
    shift: Tensor | None = None
    gate_bias: Tensor | None = None
    select: Select = "gate"
    k: int = 0
    skip_weights: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("select", self.select, ("gate", "topk", "abstopk"))
        if not self.key:
            object.__setattr__(self, "key", f"dictionary.{self.site}")
        needed = ("encoder", "bias", "decoder", "decoder_bias")
        missing = [name for name in needed if not isinstance(getattr(self, name), Tensor)]
        if missing or self.encoder.ndim != 2 or self.decoder.ndim != 2:
            raise OptionError(
                f"{self} needs {', '.join(missing) or 'matrices'}: encoder [d_read, feature], bias [feature], decoder "
                "[feature, d], decoder_bias [d]."
            )
        (d_read, n), d = self.encoder.shape, self.decoder.shape[-1]
        wanted = {"bias": (n,), "decoder": (n, d), "decoder_bias": (d,), "shift": (d_read,), "gate_bias": (n,),
                  "skip_weights": (d_read, d)}  # fmt: skip
        faults = [
            f"{name} has shape {tuple(given.shape)}, needed {shape}"
            for name, shape in wanted.items()
            if (given := getattr(self, name)) is not None and tuple(given.shape) != shape
        ]
        if self.select != "gate" and not 1 <= self.k <= n:
            faults.append(f"select={self.select!r} with k={self.k}; allowed: 1 to {n}")
        if self.reads == self.site and d_read != d:
            faults.append(f"it reads vectors of {d_read} and writes {d} at one site; a transcoder needs reads=")
        if faults:
            raise OptionError(f"{self} does not fit together: {'; '.join(faults)}.")

    @property
    def n_features(self) -> int:
        return self.encoder.shape[1]

    @property
    def widths(self) -> tuple[int, int]:
        return self.encoder.shape[0], self.decoder.shape[1]

    def encode(self, x: Float[Tensor, "*batch d_read"]) -> Float[Tensor, "*batch feature"]:
        x = x.to(self.encoder.dtype)
        pre = (x if self.shift is None else x - self.shift) @ self.encoder
        if self.select == "gate":
            features = torch.relu(pre + self.bias)
            return features if self.gate_bias is None else features * (pre + self.gate_bias > 0)
        strength = pre + self.bias
        strength = strength if self.select == "abstopk" else torch.relu(strength)
        chosen = strength.abs().topk(self.k, -1).indices
        return torch.zeros_like(strength).scatter(-1, chosen, strength.gather(-1, chosen))

    def decode(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch d"]:
        return features.to(self.decoder.dtype) @ self.decoder + self.decoder_bias

    def directions(self, units: Int[Tensor, " unit"] | None = None) -> Float[Tensor, "unit d"]:
        return self.decoder if units is None else self.decoder[units]

    def readers(self, units: Int[Tensor, " unit"] | None = None) -> Float[Tensor, "unit d_read"]:
        return self.encoder.T if units is None else self.encoder.T[units]

    def active(self, features: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch feature"]:
        return (features != 0).to(features.dtype)

    def part(self, units: Int[Tensor, " unit"]) -> "tuple[Featurizer, Int[Tensor, ' unit']]":
        if self.select != "gate":  # which features are the largest depends on all of them
            return self, units
        gate_bias = None if self.gate_bias is None else self.gate_bias[units]
        made = replace(
            self, encoder=self.encoder[:, units], bias=self.bias[units], gate_bias=gate_bias,
            decoder=self.decoder[units],
        )  # fmt: skip
        return made, torch.arange(len(units))

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "Dictionary":
        moved: dict[str, Any] = {name: tensor.to(device, dtype) for name, tensor in self.tensors.items()}
        return replace(self, **moved)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Its parameters by name, those that are there."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    @property
    def settings(self) -> dict[str, Any]:
        """What a file must hold beside the tensors, as JSON values."""
        return {
            "site": str(self.site), "reads": str(self.reads), "key": self.key, "skip": self.skip, "select": self.select,
            "k": self.k, "description": dict(self.description),
        }  # fmt: skip
