"""Direct logit attribution: what every component adds to a logit difference by itself.

The last residual is a sum over everything that wrote into it, and with its scale frozen the final norm is affine, so

    logit difference = sum over components (component . direction) + final-norm bias + unembedding bias
    direction        = norm's linear part, transposed, applied to W_U[correct] - W_U[wrong]

holds exactly, before a final soft-cap. Where a norm stands between attention and residual (Gemma, OLMo-2), the heads'
parts go through that norm at the scale it used on their sum.

Weights are never read, so quantised and adapted models work: a head goes through the output projection alone, and the
unembedding's rows come as gradients.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import MetricError, ModelError, OptionError
from interp.frozen_norm import freeze, freeze_module, tolerance, wide
from interp.metrics import Answers, LogitDiff
from interp.models.base import HookedModel, frozen
from interp.readouts.lens import Unit, unit_of
from interp.site import Site
from interp.table import Table
from interp.tokens import Prompts
from interp.written import post_norm_of_probes

EMBED, FINAL = Site("embed"), Site("resid_final")


@dataclass(frozen=True, eq=False)
class DirectAttribution:
    """What each component adds to a logit difference, at the frozen scale of the final norm.

    Attributes:
        components: names of the rows: ``embed``, ``z[0] head 1``, ``attn_out[0] bias``, ``mlp_out[0]`` (with its
            bias), ``final_norm bias``, ``unembed bias``.
        layers, heads: per component, -1 where it has none.
        values: in `unit`, positive = towards the correct answers; the mean over a prompt's targets.
        total: the difference of the model's own logits.
        unit: ``"pre-cap logits"`` where the model soft-caps its logits afterwards.
    """

    components: tuple[str, ...]
    layers: Int[np.ndarray, " component"]
    heads: Int[np.ndarray, " component"]
    values: Float[Tensor, "component batch"]
    total: Float[Tensor, " batch"]
    unit: Unit

    @property
    def remainder(self) -> Float[Tensor, " batch"]:
        """`total` minus the sum of `values`: what rounding left over."""
        return self.total - self.values.sum(0)

    @property
    def by_head(self) -> Float[Tensor, "layer head batch"]:
        """The values of the heads."""
        return self.values[self.heads >= 0].unflatten(0, (int(self.layers.max()) + 1, -1))

    def table(self) -> Table:
        """One row a component: mean over prompts, and standard deviation between them (NaN for a single one)."""
        values = self.values.numpy()
        spread = values.std(1, ddof=1) if values.shape[1] > 1 else np.full(len(values), np.nan)
        names = np.array(self.components, dtype=object)
        columns = {"component": names, "layer": self.layers, "head": self.heads, "mean": values.mean(1), "std": spread}
        return Table(columns)


def direct_logit_attribution(
    model: HookedModel,
    prompts: Any,
    answers: Answers | Sequence[tuple[int, int]],
    *,
    batch_size: int = 32,
) -> DirectAttribution:
    """Split the difference between correct and wrong logits into what every component adds to it directly.

    The difference is that of the metric `logit_diff`, before any soft-cap: mean correct minus mean wrong logit (the
    correct logit alone where no wrong answer is given).

    Args:
        answers: `Answers`, or one (correct id, wrong id) a prompt, read at its last token.
        batch_size: prompts run at once.

    Raises:
        MetricError: answers that do not fit the prompts.
        ModelError: components that do not add up, a norm that is no LayerNorm or RMSNorm.
    """
    if batch_size < 1:
        raise OptionError(f"batch_size={batch_size}; allowed: 1 and more.")
    prompts = model.check_prompts(prompts)
    asked = _answers(answers, prompts, model.shape.d_vocab)
    chunks = [slice(start, start + batch_size) for start in range(0, len(prompts), batch_size)]
    values, totals, units = zip(*(_attribute(model, prompts[rows], asked[rows]) for rows in chunks), strict=True)
    n_layers, n_heads = model.shape.n_layers, model.shape.n_heads
    names = ["embed"]
    for layer in range(n_layers):
        names += [f"z[{layer}] head {head}" for head in range(n_heads)]
        names += [f"attn_out[{layer}] bias", f"mlp_out[{layer}]"]
    layers = np.repeat([-1, *range(n_layers), -1], [1, *[n_heads + 2] * n_layers, 2])
    heads = np.array([-1, *[*range(n_heads), -1, -1] * n_layers, -1, -1])
    names += ["final_norm bias", "unembed bias"]
    return DirectAttribution(tuple(names), layers, heads, torch.cat(values, 1), torch.cat(totals), units[0])


def _answers(answers: Any, prompts: Prompts, d_vocab: int) -> Answers:
    """The answers on the prompts' device, known to fit them."""
    if not isinstance(answers, Answers):
        pairs = torch.as_tensor(list(answers))
        if pairs.shape != (len(prompts), 2):
            raise MetricError(
                f"answers have shape {tuple(pairs.shape)}; one (correct id, wrong id) a prompt is needed."
            )
        answers = Answers(prompts.last.cpu()[:, None], pairs[:, None, :1], pairs[:, None, 1:])
    if len(answers) != len(prompts):
        raise MetricError(f"{len(answers)} answers for {len(prompts)} prompts; give one a prompt.")
    lengths = prompts.lengths.to(answers.positions.device)
    late = (answers.positions >= lengths[:, None]).any(1)
    ids = torch.cat([answers.correct, answers.wrong], -1)
    foreign = (ids >= d_vocab).flatten(1).any(1)
    faults = [f"prompts {late.nonzero()[:, 0].tolist()} are scored beyond their last token"] if late.any() else []
    faults += [f"prompts {foreign.nonzero()[:, 0].tolist()} have ids above {d_vocab - 1}"] if foreign.any() else []
    if faults:
        raise MetricError(f"{'; '.join(faults)}; build the answers with this model's tokenizer and these prompts.")
    return answers.to(prompts.ids.device)


def _attribute(
    model: HookedModel, prompts: Prompts, answers: Answers
) -> tuple[Float[Tensor, "component batch"], Float[Tensor, " batch"], Unit]:
    """Values, total and unit of one batch."""
    last = Site("resid_post", model.shape.n_layers - 1)
    added = model.sites("z", "attn_proj", "attn_out", "mlp_out")
    run = model.run(prompts, record=[EMBED, *added, last, FINAL], logits="none")
    rows, targets = answers.present.nonzero(as_tuple=True)
    at = {site: run[site][rows, answers.positions[rows, targets]] for site in run.cache}
    correct, wrong = (ids[rows, targets][:, None] for ids in (answers.correct, answers.wrong))
    reader, bias, total = _logit_reader(model, at[FINAL], correct, wrong)
    norm = freeze_module(model.module("final_norm"), at[last], at[FINAL], "final norm")
    values = _read(model, at, norm.read_before(reader), wide(at[last]))
    values = torch.cat([values, (reader @ norm.bias)[None], bias[None], total[None]])
    counts = answers.present.sum(1).cpu()
    means = torch.zeros(len(values), len(counts)).double().index_add(1, rows.cpu(), values) / counts
    return means[:-1], means[-1], unit_of(model, at[FINAL])


def _read(
    model: HookedModel,
    at: Mapping[Site, Tensor],
    direction: Float[Tensor, "row d_model"],
    resid: Float[Tensor, "row d_model"],
) -> Float[Tensor, "component row"]:
    """Every component's dot product with `direction`, once their sum is known to be the last residual `resid`."""
    values, summed, largest = [], torch.zeros_like(resid), 0.0
    for pieces in _written(model, at):
        values.append(torch.einsum("rpd,rd->pr", pieces, direction))
        summed += pieces.sum(1)
        largest = max(largest, float(pieces.norm(dim=-1).max()))
    error, allowed = float((summed - resid).norm(dim=-1).max()) / largest, tolerance(at[FINAL])
    if error > allowed:
        raise ModelError(
            f"the components of {model.identity.name} ({model.family}) do not add up to its last residual: off by "
            f"{error:.1e} of the largest, allowed {allowed:.1e}; check the site map, or a scaled residual stream."
        )
    return torch.cat(values)


def _written(model: HookedModel, at: Mapping[Site, Tensor]) -> Iterator[Float[Tensor, "row piece d_model"]]:
    """What is added to the residual: the embedding, then layer by layer the heads, the attention's bias, the MLP."""
    layers = range(model.shape.n_layers)
    yield wide(at[EMBED])[:, None]
    probed = post_norm_of_probes(model, at[Site("attn_proj", 0)])
    for layer in layers:
        before, after = at[Site("attn_proj", layer)], at[Site("attn_out", layer)]
        norm = freeze(probed[layer], before, after, f"the norm after attention in layer {layer}")
        pieces = norm.linear(wide(model.project_heads(layer, at[Site("z", layer)])))
        pieces[:, -1] += norm.bias
        yield torch.cat([pieces, wide(at[Site("mlp_out", layer)])[:, None]], 1)


def _logit_reader(
    model: HookedModel,
    resid: Float[Tensor, "row d_model"],
    correct: Int[Tensor, "row 1 n_correct"],
    wrong: Int[Tensor, "row 1 n_wrong"],
) -> tuple[Float[Tensor, "row d_model"], Float[Tensor, " row"], Float[Tensor, " row"]]:
    """The pre-cap logit difference, affine in `resid_final`: its gradient, its value at 0, its value at `resid`."""
    answers = Answers(torch.zeros_like(correct[..., 0]), correct, wrong)

    def difference(x: Tensor) -> Tensor:
        logits = model.module("unembed")(x)[:, None]
        return LogitDiff().score(logits.to(torch.promote_types(logits.dtype, torch.float32)), answers, None)[:, 0]

    with torch.enable_grad(), frozen(model.parameters()):
        zero = torch.zeros_like(resid, requires_grad=True)
        bias = difference(zero)
        (gradient,) = torch.autograd.grad(bias.sum(), zero)
    with torch.no_grad():
        return wide(gradient), wide(bias), wide(difference(resid))
