"""Contexts for tests: random ones for the tiny models, and prompts of known behaviours of the embedded model."""

import torch
from tiny import RAGGED

import interp
from interp.models.base import HookedModel
from interp.predicted import Contexts
from interp.tokens import from_ids
from interp.toy import examples


def ragged_contexts(rows: list[list[int]] = RAGGED) -> Contexts:
    """The tiny models' prompts with answers 10, 11, ...; the losses are not theirs."""
    prompts, answers = from_ids([list(row) for row in rows]), torch.arange(10, 10 + len(rows))
    origin = torch.stack([torch.arange(len(rows)), prompts.lengths], 1)
    return Contexts(prompts, answers, torch.full((len(rows),), 0.25), origin)


def behaviour_contexts(model: HookedModel, n: int, *behaviours: str) -> tuple[Contexts, list[int]]:
    """`n` prompts of each behaviour with their answers, and which behaviour each is of."""
    chosen = [(place, one) for place, name in enumerate(behaviours) for one in examples(name, n, seed=3)]
    prompts = model.prompts([one.text for _, one in chosen])
    answers = torch.tensor([model.tokenizer(one.correct[0])["input_ids"][-1] for _, one in chosen])
    metric = interp.metric("logprob")
    found = Contexts(
        prompts, answers, torch.zeros(len(chosen)), torch.stack([torch.arange(len(chosen)), prompts.lengths], 1),
        tuple(one.correct[0] for _, one in chosen),
    )  # fmt: skip
    task = found.task()
    run = model.run(prompts)
    losses = -metric(run.logits, task.answers)
    return Contexts(**{**vars(found), "losses": losses}), [place for place, _ in chosen]
