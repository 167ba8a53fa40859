"""Counterfactual examples over token ids, for the tiny models."""

import random
from collections.abc import Sequence

import numpy as np
import torch
from tiny import VOCAB

from interp.interchange.examples import Counterfactuals
from interp.interchange.exchanges import FullVector
from interp.interchange.placing import AtRoles
from interp.interchange.states import Resumption, states_of
from interp.models.base import HookedModel
from interp.site import Site
from interp.tokens import from_ids


def examples(n: int = 6, *, seed: int = 0, answers: Sequence[int] = (1, 2, 3)) -> Counterfactuals:
    """`n` examples over random prompts of unequal lengths, answers of one to three tokens, concepts A and B."""
    rng = random.Random(seed)

    def draw(length: int) -> list[int]:
        return [rng.randrange(3, VOCAB) for _ in range(length)]

    prompts = [draw(rng.randrange(4, 9)) for _ in range(n + 2)]
    given = [tuple(draw(rng.choice(answers))) for _ in range(n)]
    rows = [*prompts, *(prompts[k] + list(given[k][:-1]) for k in range(n))]
    lengths = [len(one) for one in prompts] + [len(prompts[k]) for k in range(n)]
    return Counterfactuals(
        "random",
        from_ids(rows),
        tuple(lengths),
        base=np.array([len(prompts) + k for k in range(n)]),
        source=np.array([(k + 1 + rng.randrange(n)) % len(prompts) for k in range(n)]),
        answers=tuple(given),
        concepts=tuple("AB"[k % 2] for k in range(n)),
        queried=tuple("AB"[(k // 2) % 2] for k in range(n)),
        roles={"entity": tuple((1, 2) for _ in rows), "last_entity": tuple((2,) for _ in rows),
               "end": tuple((length - 1,) for length in lengths)},
        groups={"entity": tuple(str(k % 4) for k in range(len(rows)))},
    )  # fmt: skip


def resumption(model: HookedModel, data: Counterfactuals, site: str, *more: Site) -> Resumption:
    """Runs of the model with the site changed, over all rows of the data."""
    needed = AtRoles(site, FullVector(), "end").needs
    return Resumption(model, Site.parse(site), states_of(model, data.prompts, [*needed, *more], progress=False))


def token_logits(model: HookedModel, data: Counterfactuals, n: int, interventions: Sequence = ()) -> torch.Tensor:
    """Logits that give one example's answer, in a plain run of its base row alone."""
    row = int(data.base[n])
    at = torch.tensor([[data.lengths[row] - 1 + k for k in range(len(data.answers[n]))]])
    logits = model.run(data.prompts[[row]], interventions, logits=at).logits
    assert logits is not None
    return logits[0]
