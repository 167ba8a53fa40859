"""The hooks of one pass: calling taps, editing inputs and outputs, rows that join or skip blocks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import InterventionError
from interp.models.runs import Tap, Taps, Wave
from interp.regions import Layout
from interp.site import Site


@dataclass(eq=False)
class Pass:
    """State of one hooked pass: the layout of the columns now running, and how often each site fired."""

    layout: Layout
    width: int
    fired: Counter = field(default_factory=Counter)


def on_input(change: Callable, _: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """A pre-hook that changes a module's first argument, or its `hidden_states` where it has none."""
    new = change(args[0] if args else kwargs["hidden_states"])
    if new is None:
        return None
    return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})


def on_output(change: Callable, _: nn.Module, args: tuple, output: Any) -> Any:
    """A hook that changes a module's output, or the first item of a tuple."""
    new = change(output[0] if isinstance(output, tuple) else output)
    if new is None:
        return None
    return (new, *output[1:]) if isinstance(output, tuple) else new


def joined(rows: Tensor, replace: bool, running: Tensor) -> Tensor:
    """The running batch with `rows` after it, or `rows` alone."""
    rows = rows.to(running.device)
    return rows if replace else torch.cat([running, rows])


def call_taps(site: Site, taps: Sequence[Tap], x: Tensor, state: Pass) -> Tensor | None:
    """Run a site's taps one after another; the last tensor returned, or None when none was."""
    state.fired[site] += 1
    layout, new, current = state.layout, None, x
    if site.kind in ("k", "v", "k_of_query_head", "v_of_query_head"):
        # Keys and values come with everything the cache holds, so their first column lies further back.
        layout = layout._replace(first=layout.first + state.width - x.shape[1])
    for tap in taps:
        try:
            new = tap(current, layout)
        except BaseException as error:
            error.add_note(f"raised in an intervention or recorder at {site}")
            raise
        current = current if new is None else new
    return None if current is x and new is None else current


def follow(state: Pass, _: nn.Module, args: tuple, kwargs: dict) -> None:
    """A model pre-hook that moves the state's layout to the columns of each forward of a generation."""
    cache = kwargs.get("cache") if kwargs.get("cache") is not None else kwargs.get("past_key_values")
    ids = kwargs.get("input_ids", args[0] if args else None)
    state.width = ids.shape[1]  # type: ignore[union-attr]
    state.layout = state.layout._replace(first=0 if cache is None else int(cache.get_seq_length()))


def check_sites(taps: Taps, state: Pass) -> None:
    """Every tapped site must have fired exactly once in a forward."""
    wrong = {str(site): state.fired[site] for site in taps if state.fired[site] != 1}
    if wrong:
        raise InterventionError(
            f"sites fired another number of times than once in this forward: {wrong}; a module that is skipped "
            "or called twice cannot be read or patched as one site."
        )


@contextmanager
def replaced(blocks: Sequence[Any], make: Callable[[Callable], Callable]) -> Iterator[None]:
    """Within, each block's `forward` is what `make` makes of its own. An instance's own one (accelerate sets one) is
    put back."""
    before = [block.__dict__.get("forward") for block in blocks]
    try:
        for block in blocks:
            block.forward = make(block.forward)
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                block.__dict__.pop("forward", None)
            else:
                block.forward = forward


def skipped(blocks: Sequence[Any], returns_tuple: bool) -> AbstractContextManager[None]:
    """Within, the blocks hand their input on."""

    def pass_on(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states,) if returns_tuple else hidden_states

    return replaced(blocks, lambda forward: pass_on)


def prefix(wave: Wave, layer: int, rows: int) -> tuple[Tensor, Tensor]:
    """Keys and values before the wave's first position, expanded (not copied) when one prompt gives them all."""
    keys, values = wave.base.keys[layer], wave.base.values[layer]
    if keys.shape[0] == 1:
        return tuple(x[:, :, : wave.first].expand(rows, -1, -1, -1) for x in (keys, values))  # type: ignore
    donors = wave.donors[:rows].to(keys.device)
    return tuple(x[:, :, : wave.first].index_select(0, donors) for x in (keys, values))  # type: ignore


def suffix_mask(mask: Tensor | None, first: int, width: int, device: torch.device) -> Tensor | None:
    """Rows `first` and later of a full mask; None (plain causal) stays None only when nothing comes before."""
    if mask is not None:
        return mask[:, :, first:]
    if first == 0:
        return None
    return torch.ones(width, width, dtype=torch.bool, device=device).tril()[None, None, first:]
