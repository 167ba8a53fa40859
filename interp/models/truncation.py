"""A decoder's first blocks under another head: modules are shared with the original, which stays as it is.

Only the modules on the way to what is replaced are copied (shallowly, without their weights), so a change of a shared
weight is seen by both.
"""

import copy
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from interp.models.families import SiteMap


class LinearHead(nn.Module):
    """Logits = weight x + bias, in the weight's own precision whatever the model's is."""

    def __init__(self, weight: Float[Tensor, "class d_model"], bias: Float[Tensor, " class"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self.bias = nn.Parameter(bias.clone(), requires_grad=False)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch class"]:
        return nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias)


def truncated(model: nn.Module, where: SiteMap, head: nn.Module, n_blocks: int, new_head: nn.Module) -> nn.Module:
    """The model with its first `n_blocks` blocks, no final norm, and `new_head` in place of `head`."""
    blocks: Any = model.get_submodule(where.blocks)
    head_path = next(name for name, module in model.named_modules() if module is head)
    parts = {where.blocks: nn.ModuleList(blocks[:n_blocks]), where.final_norm: nn.Identity(), head_path: new_head}
    config = getattr(model, "config", None)
    return _with_parts(model, parts, None if config is None else _shorter(config, n_blocks))


def _shorter(config: Any, n_blocks: int) -> Any:
    """The configuration of the first blocks alone."""
    config = copy.deepcopy(config)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:n_blocks]
    config.num_hidden_layers = n_blocks
    if hasattr(config, "final_logit_softcapping"):
        config.final_logit_softcapping = None
    return config


def _with_parts(module: nn.Module, parts: Mapping[str, nn.Module], config: Any) -> nn.Module:
    """A shallow copy of the module in which the submodules at these paths are others."""
    made = copy.copy(module)
    made.__dict__.pop("forward", None)  # an instance's own (set where weights are dispatched) runs the original
    for name, value in vars(module).items():
        if name == "_modules" or (name.startswith("_") and name.endswith("_hooks")):
            made.__dict__[name] = type(value)(value if name == "_modules" else ())
    if "config" in vars(module):
        made.__dict__["config"] = config
    below: dict[str, dict[str, nn.Module]] = {}
    for path, part in parts.items():
        first, _, rest = path.partition(".")
        below.setdefault(first, {})[rest] = part
    for name, inner in below.items():
        child = module.get_submodule(name)
        made._modules[name] = inner[""] if "" in inner else _with_parts(child, inner, config)
    return made
