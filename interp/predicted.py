"""Contexts of one token each that the model predicts well: what clusters of behaviours are found among.

    1  tokens of the texts with loss -log p(token | all before it) below a bar
    2  the text before each, cut from the left to at most `length` tokens, is a context and the token its answer
    3  drop inductions: (last token, answer) occurs in the context already, so that copying would do
    4  where the cut took something away, measure the loss anew and drop what is no longer below the bar

Source: Marks et al. 2024 (arXiv 2403.19647), section 5, after Michaud et al. 2023 (arXiv 2303.13506). The authors keep
the loss of the whole text; a circuit runs on the cut one, so step 4 is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import OptionError, PromptError
from interp.metrics import Answers, LogProb
from interp.models.base import HookedModel
from interp.site import Site
from interp.tasks.base import Task
from interp.tokens import Prompts, batches, from_ids, gap_between, row_numbers, token_strings, tokenizer_fingerprint

CHUNK = 512  # positions whose logits are in memory at once


@dataclass(frozen=True, eq=False)
class Contexts:
    """Prompts with one answer each, which the model predicts.

    Attributes:
        prompts: the contexts.
        answers: the token that follows each.
        losses: -log p of the answer after the context, nats.
        origin: of each answer: number of its prompt among those given, and position there.
        answer_tokens: the answers as strings; empty when no tokenizer was at hand.
        gap: what stands between tokens in running text: nothing where they carry their own spaces.
        dropped: how many were left out, by reason.
        parameters: how they were chosen, as JSON values.
        tokenizer_fingerprint: as in `Task`.
    """

    prompts: Prompts
    answers: Int[Tensor, " context"]
    losses: Float[Tensor, " context"]
    origin: Int[Tensor, "context 2"]
    answer_tokens: tuple[str, ...] = ()
    gap: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, rows: int | slice | Sequence[int]) -> "Contexts":
        """The chosen contexts."""
        picked = row_numbers(rows, len(self))
        return replace(
            self, prompts=self.prompts[picked], answers=self.answers[picked], losses=self.losses[picked],
            origin=self.origin[picked],
            answer_tokens=tuple(self.answer_tokens[row] for row in picked if self.answer_tokens),
        )  # fmt: skip

    def task(self, name: str = "contexts") -> Task:
        """The contexts as a task without counterparts: log-probability of the answer at the role ``end``."""
        answers = self.answers[:, None, None]
        return Task(
            name, self.prompts, Answers(self.prompts.last[:, None], answers, answers[..., :0]), LogProb(),
            roles={"end": tuple((int(last),) for last in self.prompts.last)}, parameters=self.parameters,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
        )  # fmt: skip


Row = tuple[int, int]
"""A prompt's number and the answer's position in it."""


def predicted_contexts(
    model: HookedModel,
    prompts: Any,
    *,
    below: float = 0.3,
    length: int = 64,
    skip_induction: bool = True,
    one_a_text: bool = False,
    most: int | None = None,
    seed: int = 0,
    batch: int = 16,
) -> Contexts:
    """Contexts after which the model predicts the next token of the text.

    A context that is cut keeps a BOS token at its start, where the text began with one. Contexts end later than the
    attention sink, where the model has one; equal contexts with equal answers are kept once.

    Args:
        prompts: texts, ids or `Prompts` (`interp.contexts`), one a text or piece of text.
        below: the bar for the loss, nats.
        length: most tokens of a context.
        skip_induction: drop answers that already followed the context's last token earlier in the context.
        one_a_text: at most one context a prompt, drawn by the seed.
        most: stop at so many, drawn by the seed; all when None.
        batch: prompts in one pass.

    Returns:
        the contexts in the order of the prompts. ``dropped`` counts: ``induction``, ``repeated``, ``cut`` (above the
        bar once cut; with `most`, among those looked at) and ``not_drawn``.

    Raises:
        OptionError: a number outside its range.
        PromptError: nothing is left, with the counts; prompts that do not fit the model.

    Example:
        found = interp.predicted_contexts(model, interp.contexts(model.tokenizer, texts), most=1000)
    """
    shortest = 1 + model.has_sink
    if below <= 0 or length < shortest or batch < 1 or (most is not None and most < 1):
        raise OptionError(
            f"below={below}, length={length}, most={most}, batch={batch}; allowed: below above 0, length from "
            f"{shortest} (the sink's position is no context), most and batch from 1."
        )
    given = model.check_prompts(prompts)
    rows = given.rows()
    losses = _next_losses(model, given, batch)
    candidates = [
        (row, int(position) + 1) for row, each in enumerate(losses) for position in np.flatnonzero(each < below)
        if position + 1 >= shortest
    ]  # fmt: skip
    count = {"predicted": len(candidates)}
    bos = getattr(model.tokenizer, "bos_token_id", None)
    candidates, dropped = _sifted(rows, candidates, length, bos, skip_induction=skip_induction)
    wanted = _drawn(candidates, one_a_text=one_a_text, seed=seed)
    dropped["not_drawn"] = len(candidates) - len(wanted)
    kept, dropped["cut"], looked_at = _below_when_cut(model, rows, wanted, losses, below, length, bos, most, batch)
    dropped["not_drawn"] += len(wanted) - looked_at
    if not kept:
        raise PromptError(
            f"of {sum(map(len, losses))} tokens, {count['predicted']} have a loss below {below} and none is left; "
            f"dropped: {', '.join(f'{name} {n}' for name, n in dropped.items())}. Give more text, or a higher bar."
        )
    options = {"below": below, "length": length, "skip_induction": skip_induction, "one_a_text": one_a_text,
               "most": most, "seed": seed, **count, "dropped": dropped}  # fmt: skip
    return _contexts(model, rows, kept, length, bos, options)


def is_induction(context: Sequence[int], answer: int) -> bool:
    """Whether the answer already followed the context's last token within the context."""
    return any(pair == (context[-1], answer) for pair in zip(context, context[1:], strict=False))


def cut_from_left(ids: Sequence[int], length: int, bos: int | None) -> list[int]:
    """The last `length` ids; a BOS at the start stays, as one of them."""
    if len(ids) <= length:
        return list(ids)
    if ids[0] == bos:
        return [ids[0], *ids[len(ids) - length + 1 :]]
    return list(ids[len(ids) - length :])


@torch.no_grad()
def _next_losses(model: HookedModel, prompts: Prompts, batch: int) -> list[np.ndarray]:
    """For each prompt, the loss of its tokens from the second on."""
    final, found = Site("resid_final"), []
    for chosen in batches(len(prompts), batch):
        run = model.run(prompts[chosen], record=[final], logits="none")
        real = run.prompts.mask[:, 1:]
        resid, wanted = run[final][:, :-1][real], run.prompts.ids[:, 1:][real]
        each = [
            torch.nn.functional.cross_entropy(wide_logits(model, x), ids, reduction="none").cpu()
            for x, ids in zip(resid.split(CHUNK), wanted.split(CHUNK), strict=True)
        ]
        found += torch.cat(each).split((run.prompts.lengths - 1).tolist())
    return [one.numpy() for one in found]


def wide_logits(model: HookedModel, resid: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
    """Logits in at least float32, as metrics take them."""
    logits = model.unembed(resid)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _sifted(
    rows: Sequence[Sequence[int]], candidates: Sequence[Row], length: int, bos: int | None, *, skip_induction: bool
) -> tuple[list[Row], dict[str, int]]:
    """Candidates without inductions and repetitions, and how many of these there were."""
    kept, seen = [], set()
    dropped = {"induction": 0, "repeated": 0}
    for row, position in candidates:
        context, answer = cut_from_left(rows[row][:position], length, bos), rows[row][position]
        key = (*context, answer)
        if skip_induction and is_induction(context, answer):
            dropped["induction"] += 1
        elif key in seen:
            dropped["repeated"] += 1
        else:
            seen.add(key)
            kept.append((row, position))
    return kept, dropped


def _drawn(candidates: Sequence[Row], *, one_a_text: bool, seed: int) -> list[Row]:
    """Candidates in random order, or the first of each prompt in it."""
    order = [candidates[place] for place in np.random.default_rng(seed).permutation(len(candidates))]
    return list({row: (row, position) for row, position in reversed(order)}.values())[::-1] if one_a_text else order


def _below_when_cut(
    model: HookedModel, rows: Sequence[Sequence[int]], wanted: Sequence[Row], losses: Sequence[np.ndarray],
    below: float, length: int, bos: int | None, most: int | None, batch: int,
) -> tuple[dict[Row, float], int, int]:  # fmt: skip
    """The first `most` whose context, once cut, has a loss below the bar, with that loss; how many had not; and how
    many were looked at."""
    kept: dict[Row, float] = {}
    n_cut = looked_at = 0
    for chosen in batches(len(wanted), batch):
        if most is not None and len(kept) >= most:
            break
        some = [wanted[place] for place in chosen]
        found = {(row, position): float(losses[row][position - 1]) for row, position in some}
        shortened = [one for one in some if one[1] > length]
        found |= dict(zip(shortened, _losses_when_cut(model, rows, shortened, length, bos), strict=True))
        for one in some:
            if most is not None and len(kept) >= most:
                break
            looked_at += 1
            if found[one] < below:
                kept[one] = found[one]
            else:
                n_cut += 1
    return dict(sorted(kept.items())), n_cut, looked_at


@torch.no_grad()
def _losses_when_cut(
    model: HookedModel, rows: Sequence[Sequence[int]], some: Sequence[Row], length: int, bos: int | None
) -> list[float]:
    """The answers' losses after the cut contexts."""
    if not some:
        return []
    run = model.run(from_ids([cut_from_left(rows[row][:end], length, bos) for row, end in some]))
    assert run.logits is not None, "a run with logits has logits"
    logits = run.logits[:, 0].to(torch.promote_types(run.logits.dtype, torch.float32))
    answers = torch.tensor([rows[row][end] for row, end in some], device=logits.device)
    return torch.nn.functional.cross_entropy(logits, answers, reduction="none").tolist()


def _contexts(
    model: HookedModel, rows: Sequence[Sequence[int]], kept: Mapping[Row, float], length: int, bos: int | None,
    options: Mapping[str, Any],
) -> Contexts:  # fmt: skip
    """What was kept, as contexts."""
    answers = [rows[row][end] for row, end in kept]
    prompts = from_ids([cut_from_left(rows[row][:end], length, bos) for row, end in kept], tokenizer=model.tokenizer)
    return Contexts(
        prompts,
        torch.tensor(answers),
        torch.tensor(list(kept.values()), dtype=torch.float32),
        torch.tensor(list(kept)),
        tuple(token_strings(model.tokenizer, answers)) if model.tokenizer is not None else (),
        gap_between(model.tokenizer, max(prompts.rows(), key=len)),
        options["dropped"],
        options,
        tokenizer_fingerprint(model.tokenizer),
    )
