"""Training dictionaries on stored activations, through sae-lens's own trainer.

    y = c x, with c so that the mean of |y|^2 is the width      what is trained on
    loss = mean of |y - decode(encode(y))|^2 + the kind's own terms for sparsity and for features that died

c is folded into the result, and so are the norms of the decoder's rows: a feature has the activation's units.

Settings are those of short runs on little data: the learning rate warms up over the first 5 % of the updates and falls
to 0 over the last 20 %, decoder rows begin with norm 0.1, the encoder as their transpose, the decoder bias at the mean.

Kinds: batchtopk (Bussmann et al. 2024, arXiv 2412.06410; it becomes a JumpReLU dictionary), topk (Gao et al. 2024,
2406.04093), jumprelu (Rajamanoharan et al. 2024, 2407.14435, drawn to k features a token by 2/k (L0 - k)^2, as Gemma
Scope 2), and, with an L1 penalty, standard and gated (Rajamanoharan et al. 2024, 2404.16014).
"""

import importlib
import logging
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import isfinite, sqrt
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from tqdm import tqdm

from interp.activation_store import ActivationStore
from interp.errors import InterpWarning, OptionError, check_choice, require
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.foreign import from_sae_lens
from interp.site import Site

log = logging.getLogger(__name__)

Kind = Literal["batchtopk", "topk", "jumprelu", "standard", "gated"]
_STEMS = {"batchtopk": "BatchTopK", "topk": "TopK", "jumprelu": "JumpReLU", "standard": "Standard", "gated": "Gated"}
_CHUNK = 2**16
"""Tokens read at once for the mean."""


@dataclass(frozen=True)
class _Plan:
    """What one training does.

    Attributes:
        k: features a token, for the kinds that have it.
        sparsity: factor of the L1 penalty, for the kinds that have it.
        tokens: trained on in all, those of several passes counted each time.
    """

    kind: str
    features: int
    k: int | None
    sparsity: float | None
    tokens: int
    batch: int
    lr: float
    seed: int

    @property
    def steps(self) -> int:
        return self.tokens // self.batch

    @property
    def warm_up(self) -> int:
        return max(self.steps // 20, 1)

    def own(self) -> dict[str, Any]:
        """The kind's own settings, in sae-lens's words."""
        if self.kind == "batchtopk":  # its threshold is a running mean from 0 on, which must arrive in a short run too
            return {"k": float(self.k or 0), "topk_threshold_lr": min(max(0.01, 20 / self.steps), 1.0)}
        if self.kind == "topk":
            return {"k": self.k}
        if self.kind == "jumprelu":
            return {"jumprelu_sparsity_loss_mode": "quadratic", "target_l0": self.k, "l0_warm_up_steps": self.warm_up}
        return {"l1_coefficient": self.sparsity, "l1_warm_up_steps": self.warm_up}

    def schedule(self) -> dict[str, Any]:
        """The trainer's settings, in sae-lens's words."""
        return {
            "total_training_samples": self.steps * self.batch, "train_batch_size_samples": self.batch,
            "lr": self.lr, "lr_end": self.lr / 10, "lr_scheduler_name": "constant",
            "lr_warm_up_steps": self.warm_up, "lr_decay_steps": self.steps // 5,
            "dead_feature_window": min(100, max(self.steps // 10, 1)),
        }  # fmt: skip


def train_dictionary(
    store: ActivationStore,
    site: Site | str,
    *,
    features: int | None = None,
    kind: Kind = "batchtopk",
    k: int | None = None,
    sparsity: float | None = None,
    tokens: int | None = None,
    batch: int = 1024,
    lr: float | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> Dictionary:
    """A dictionary of a stored site that acts on its activations as they are. One seed gives one dictionary.

    Args:
        features: four times the width when None.
        k: features active at a token, on average but for topk; 32 at residual sites and 16 at others when None. Not for
            standard and gated.
        sparsity: factor of the L1 penalty of standard and gated; 1 when None. More makes fewer features active.
        tokens: to train on, the store being passed over as often as that takes; one pass when None.
        batch: tokens in an update.
        lr: 1e-3 up to a width of 128 and 3e-4 above when None.
        seed: of the first weights and of the order of the tokens.
        device: to train on.
        progress: show a bar where there is a terminal.

    Returns:
        the dictionary, with the store's skip; its description says how it was trained, and the mean of each loss over
        the last tenth of the updates (in units of y).

    Raises:
        SiteError: a site that is not stored.
        OptionError: options outside their range, activations that are all 0.
        MissingExtraError: sae-lens is not installed.

    Warns (InterpWarning) when a jumprelu ends with less than half or more than twice of k.
    """
    site, data = Site.parse(site), store.site(site)
    check_choice("kind", kind, get_args(Kind))
    width = data.shape[1]
    has_k = kind not in ("standard", "gated")
    plan = _Plan(
        kind,
        4 * width if features is None else features,
        (32 if site.kind.startswith("resid") or site.kind == "embed" else 16) if has_k and k is None else k,
        1.0 if not has_k and sparsity is None else sparsity,
        len(data) if tokens is None else tokens,
        batch,
        (1e-3 if width <= 128 else 3e-4) if lr is None else lr,
        seed,
    )
    _check(plan, has_k)
    batches = store.batches(site, batch, seed)
    mean, scale = _moments(data, site)
    with _apart(seed), torch.enable_grad():
        lens = _sae_lens()
        own = {"d_in": width, "d_sae": plan.features, "decoder_init_norm": 0.1, **plan.own()}
        sae = getattr(lens, f"{_STEMS[kind]}TrainingSAE")(getattr(lens, f"{_STEMS[kind]}TrainingSAEConfig")(**own))
        sae.b_dec.data.copy_(mean * scale)
        sae = sae.to(device)
        trainer = lens.SAETrainer(lens.config.SAETrainerConfig(device=str(device), **plan.schedule()), sae, None)
        losses = _trained(trainer, (x * scale for x in batches), plan, f"{kind} of {site}", progress)
        sae.fold_activation_norm_scaling_factor(scale)
        sae.fold_W_dec_norm()
        parts = _parts(sae.to("cpu"), str(site))
    if kind == "jumprelu" and not plan.k / 2 <= losses["l0"] <= 2 * plan.k:  # type: ignore[operator]
        warnings.warn(_far_from_k(plan, site, losses["l0"]), InterpWarning, stacklevel=2)
    described = {
        "text": store.text, "model": store.model.name, "weights": store.model.fingerprint, **asdict(plan),
        "scale": scale, "losses": losses, "sae_lens": lens.__version__,
    }  # fmt: skip
    return Dictionary(site, skip=store.skip, description=described, **parts)


def _check(plan: _Plan, has_k: bool) -> None:
    """Raise for every option outside its range, all together."""
    faults = [
        f"{name}={getattr(plan, name)}, allowed: 1 and more"
        for name in ("features", "batch")
        if getattr(plan, name) < 1
    ]
    if not faults and plan.tokens < plan.batch:
        faults.append(f"tokens={plan.tokens}, allowed: a batch ({plan.batch}) and more")
    if has_k and not 1 <= (plan.k or 0) <= plan.features:
        faults.append(f"k={plan.k}, allowed: 1 to {plan.features} features")
    if not has_k and plan.k is not None:
        faults.append(f"k={plan.k} with kind={plan.kind!r}, which has sparsity= in its place")
    if has_k and plan.sparsity is not None:
        faults.append(f"sparsity={plan.sparsity} with kind={plan.kind!r}, which has k= in its place")
    faults += [
        f"{name}={value}, allowed: above 0"
        for name, value in (("lr", plan.lr), ("sparsity", plan.sparsity))
        if value is not None and not (isfinite(value) and value > 0)
    ]
    if faults:
        raise OptionError("; ".join(faults) + ".")


def _far_from_k(plan: _Plan, site: Site, l0: float) -> str:
    return (
        f"the jumprelu dictionary of {site} has {l0:.0f} features active at a token, k={plan.k} was asked for: "
        f"{plan.steps} updates did not move its thresholds there; give more tokens, a larger lr, or kind='batchtopk'."
    )


def _moments(data: np.memmap, site: Site) -> tuple[Float64[Tensor, " width"], float]:
    """Mean of the stored activations, and the factor that gives them a mean square of 1 a coordinate."""
    total, squares = np.zeros(data.shape[1]), 0.0
    for start in range(0, len(data), _CHUNK):
        x = data[start : start + _CHUNK].astype(np.float64)
        total += x.sum(0)
        squares += float(np.square(x).sum())
    if not squares:
        raise OptionError(f"all activations stored of {site} are 0; there is nothing to learn from them.")
    return torch.from_numpy(total / len(data)), sqrt(data.size / squares)


@contextmanager
def _apart(seed: int) -> Iterator[None]:
    """Within, global randomness comes from `seed` and other libraries' warnings are not shown; all is put back."""
    numbers, ours = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        np.random.set_state(numbers)
        random.setstate(ours)


def _sae_lens() -> Any:
    require("sae_lens", "sae")
    return importlib.import_module("sae_lens")


def _trained(trainer: Any, batches: Iterator[Tensor], plan: _Plan, title: str, progress: bool) -> dict[str, float]:
    """Make all updates; means of the losses, and of the features active at a token, over the last tenth of them."""
    last = max(plan.steps // 10, 1)
    sums: dict[str, float] = {}
    bar = tqdm(total=plan.tokens, desc=title, unit="token", leave=False, disable=None if progress else True)
    with bar:
        for step in range(plan.steps):
            done = trainer.step(next(batches))
            trainer.n_training_steps += 1  # the trainer leaves this to whoever calls its step
            bar.update(plan.batch)
            if step >= plan.steps - last:
                active = (done.feature_acts != 0).sum() / plan.batch
                for name, value in {**done.losses, "l0": active}.items():
                    sums[name] = sums.get(name, 0.0) + float(value) / last
    log.info("%s: %d features after %d tokens, %s", title, plan.features, plan.steps * plan.batch, sums)
    return sums


def _parts(sae: Any, name: str) -> Mapping[str, Any]:
    """The trained dictionary's tensors, as it is to be used: a batchtopk becomes a jumprelu."""
    weights = sae.state_dict()
    sae.process_state_dict_for_saving_inference(weights)
    return from_sae_lens(sae.cfg.get_inference_sae_cfg_dict(), weights, {"trained": name}).parts
