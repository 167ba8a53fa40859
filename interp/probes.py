"""Linear probes: one logit from the mean of an activation over a text's tokens.

    z = w . mean over tokens of x + b,    P(label 1) = sigmoid(z)

Padding, and the first position of a model with an attention sink, stay out of the mean.

Source: Marks et al. 2024 (arXiv 2403.19647), section 4 and the authors' notebook.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from tqdm import tqdm

from interp.errors import OptionError, PromptError, TaskError
from interp.featurizers.base import flat
from interp.intervention import Intervention
from interp.models.base import HookedModel
from interp.run_until import run_until
from interp.site import Site
from interp.tokens import Prompts, batches


@dataclass(frozen=True)
class ProbeSettings:
    """How a probe is trained: AdamW on the mean logistic loss of batches.

    Args:
        learning_rate: of AdamW.
        epochs: passes over the texts.
        batch: texts a step.
        weight_decay: AdamW's own.
        l1: times the sum of the weights' magnitudes, added to the loss.
    """

    learning_rate: float = 1e-2
    epochs: int = 20
    batch: int = 32
    weight_decay: float = 0.01
    l1: float = 0.0

    def __post_init__(self) -> None:
        low = [
            f"{name}={value}"
            for name, value in vars(self).items()
            if value < (0 if name in ("weight_decay", "l1") else 1 if name in ("epochs", "batch") else 1e-12)
        ]
        if low:
            raise OptionError(f"{', '.join(low)}; rates are positive, epochs and batch at least 1, the others from 0.")

    @classmethod
    def as_published_code(cls) -> "ProbeSettings":
        """The authors' settings for Pythia-70M: one epoch of batches of 128."""
        return cls(epochs=1, batch=128)


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear read-out.

    Args:
        weight: w [d].
        bias: b, a scalar tensor.
    """

    weight: Float[Tensor, " d"]
    bias: Float[Tensor, ""]

    def __call__(self, pooled: Float[Tensor, "text d"]) -> Float[Tensor, " text"]:
        """Logits of label 1."""
        return pooled.to(self.weight.dtype) @ self.weight + self.bias


def train_probe(
    pooled: Float[Tensor, "text d"], labels: Sequence[int], settings: ProbeSettings | None = None, *, seed: int = 0
) -> Probe:
    """A probe from pooled activations; the same seed gives the same first weights and the same order of texts.

    Raises:
        TaskError: one class only, or as many labels as texts are not given.
    """
    settings = settings or ProbeSettings()
    if len(labels) != len(pooled) or len(set(labels)) < 2:
        raise TaskError(
            f"a probe needs a label for each of {len(pooled)} texts and both classes; got {len(labels)} labels of "
            f"classes {sorted(set(labels))}."
        )
    generator = torch.Generator().manual_seed(seed)
    d = pooled.shape[1]
    x, y = pooled.detach().float(), torch.tensor(labels, dtype=torch.float32, device=pooled.device)
    parameters = [((torch.rand(n, generator=generator) * 2 - 1) / d**0.5).to(x.device) for n in (d, 1)]
    weight, bias = (one.requires_grad_(True) for one in parameters)
    optimiser = torch.optim.AdamW([weight, bias], lr=settings.learning_rate, weight_decay=settings.weight_decay)
    with torch.enable_grad():
        for _ in range(settings.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(settings.batch):
                rows = rows.to(x.device)
                z = x[rows] @ weight + bias
                loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y[rows])
                if settings.l1:
                    loss = loss + settings.l1 * weight.abs().sum()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return Probe(weight.detach(), bias.detach()[0])


Sums = Callable[[Mapping[Site, Tensor], Bool[Tensor, "row pos"]], Sequence[Float[Tensor, "row unit"]]]
"""From a run's activations and the tokens that count to sums over each row's tokens."""


def pool(
    model: HookedModel,
    prompts: Prompts,
    site: Site | str,
    interventions: Sequence[Intervention] = (),
    *,
    batch: int = 32,
) -> Float[Tensor, "text d"]:
    """The mean of a site over each prompt's tokens, in float32 on the CPU; nothing after the site is run.

    Raises:
        PromptError: prompts without a token besides the attention sink.
    """
    site = model.check_site(site)
    (means,) = token_means(
        model, prompts, [site], lambda seen, counted: [row_sums(flat(seen[site]), counted)], interventions, batch=batch
    )
    return means


@torch.no_grad()
def token_means(
    model: HookedModel,
    prompts: Prompts,
    sites: Sequence[Site],
    sums: Sums,
    interventions: Sequence[Intervention] = (),
    *,
    batch: int = 32,
) -> list[Float[Tensor, "text unit"]]:
    """Means over each prompt's tokens, padding and an attention sink left out, of whatever `sums` makes of some sites.

    Prompts run in the order of their lengths, so that little is padded; nothing after the last site is run.

    Raises:
        PromptError: prompts without a token besides the attention sink.
    """
    skip, prompts = int(model.has_sink), model.check_prompts(prompts)
    if short := (prompts.lengths <= skip).nonzero()[:, 0].tolist():
        shown = [prompts.texts[row] for row in short[:10]] if prompts.texts else short[:10]
        raise PromptError(f"texts {shown} have only {skip} token, an attention sink; leave them out.")
    order = prompts.lengths.argsort(stable=True).tolist()
    parts: list[list[Tensor]] = []
    with tqdm(total=len(prompts), disable=None, desc="pooling", unit="text", leave=False) as bar:
        for chosen in batches(len(prompts), batch):
            some = prompts[[order[place] for place in chosen]]
            seen = run_until(model, some, sites, interventions)
            counted = some.mask.clone()
            counted[:, :skip] = False
            count = counted.sum(1, keepdim=True)
            parts.append([(one / count).cpu() for one in sums(seen, counted)])
            bar.update(len(chosen))
    back = torch.empty(len(prompts), dtype=torch.long)
    back[order] = torch.arange(len(prompts))
    return [torch.cat(pieces)[back] for pieces in zip(*parts, strict=True)]


def row_sums(
    x: Float[Tensor, "row pos d"], where: Bool[Tensor, "row pos"], of: Callable[[Tensor], Tensor] = lambda x: x
) -> Float[Tensor, "row unit"]:
    """Sums over each row's chosen positions of a function of the vectors there, which is not computed elsewhere."""
    values = of(x[where]).float()
    return values.new_zeros(len(x), values.shape[1]).index_add_(0, where.nonzero()[:, 0], values)
