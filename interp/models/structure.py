"""Finding a model's parts: its family's map, its sizes, the modules a path names, active dropout."""

from typing import Any

from torch import nn

from interp.errors import ModelError, nearest
from interp.models.families import SiteMap, site_map
from interp.models.runs import Shape


def family_map(model: nn.Module) -> SiteMap:
    config = getattr(model, "config", None)
    if config is None:
        raise ModelError(
            f"{type(model).__name__} has no configuration, so its family is unknown; pass site_map=SiteMap(...) "
            "and shape=Shape(...)."
        )
    return site_map(config)


def shape_of(model: nn.Module) -> Shape:
    """Sizes from the configuration; d_head is not d_model / heads in many families."""
    config: Any = getattr(model, "config", None)
    if config is None:
        raise ModelError(f"{type(model).__name__} has no configuration; pass shape=Shape(n_layers=..., ...).")
    heads = config.num_attention_heads
    d_model = config.hidden_size
    return Shape(
        n_layers=config.num_hidden_layers,
        n_heads=heads,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        d_model=d_model,
        d_head=getattr(config, "head_dim", None) or d_model // heads,
        d_ff=_first(config, "intermediate_size", "ffn_dim", "n_inner") or 4 * d_model,
        d_vocab=config.vocab_size,
    )


def _first(config: Any, *names: str) -> int | None:
    return next((value for n in names if (value := getattr(config, n, None)) is not None), None)


def head_of(model: Any, where: SiteMap) -> nn.Module:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return head if head is not None else submodule(model, where.unembed, "unembed")


def embedding_of(model: Any, where: SiteMap) -> nn.Module:
    if hasattr(model, "get_input_embeddings"):
        return model.get_input_embeddings()
    if not where.embed:
        raise ModelError("the site map does not say where the token embedding is; give SiteMap(..., embed='...').")
    return submodule(model, where.embed, "embed")


def submodule(root: nn.Module, path: str, entry: str) -> nn.Module:
    """The module at `path`, or an error that names the map's entry and the nearest paths there are."""
    try:
        return root.get_submodule(path)
    except AttributeError:
        have = [name for name, _ in root.named_modules() if name]
        raise ModelError(
            f"site map entry {entry}: {type(root).__name__} has no module {path!r}{nearest(path, have)}; "
            f"it has {', '.join(have[:12])}{', ...' if len(have) > 12 else ''}."
        ) from None


def drops(module: nn.Module) -> bool:
    """Whether a module in training mode would drop anything."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if any(isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0 for child in module.children()):
        return True
    return any("dropout" in name and isinstance(p, float) and p > 0 for name, p in vars(module).items())
