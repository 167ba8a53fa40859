"""HyperDAS: a network is told a concept, reads both runs, and finds the tokens and the subspace that hold it.

    e <- network(instruction, states of source and base up to the site)
    G <- softmax over source tokens and [SELF] of scores(e, base token, source token)
    R <- H(v_1(e)) ... H(v_r(e)) R_0                        reflections of a shared subspace
    b'_j = b_j + R R^T (sum_i G_ij s_i - (1 - self_j) b_j)  and the blocks after the site run
    loss = cross-entropy of the answers + lambda * sum_i relu(sum_j G_ij - 1)

At test time the choice is hard: see `interp.hypernet.selection`. What can be earned by not intervening is told apart by
forcing an interchange in every example.

Source: Sun et al. 2025 (arXiv 2503.10894).
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from interp.circuit import Circuit
from interp.hypernet.interchange import HyperDas
from interp.hypernet.readout import every_mode, mean_projectors, selections, top_directions
from interp.hypernet.settings import HyperDasSettings
from interp.interchange.circuits import Placed, interchange_circuit
from interp.interchange.examples import Counterfactuals, checked_sets, rows_of
from interp.interchange.placing import Mode
from interp.interchange.scores import score_interchange
from interp.interchange.states import Resumption, States, states_of
from interp.interchange.training import History, Keeping, TrainSettings, train_interchange
from interp.models.base import HookedModel
from interp.site import Site

HARD: Mode = "one_to_one"
TRAINING = TrainSettings(
    steps=5000, batch=16, rate=1e-4, warm_up=0.03, decay=True, weight_decay=0.01, clip=1.0, evaluate_every=500
)


def train_hyperdas(
    model: HookedModel,
    data: Mapping[str, Counterfactuals],
    site: Site | str,
    settings: HyperDasSettings = HyperDasSettings(),  # noqa: B008 - frozen
    *,
    training: TrainSettings = TRAINING,
    instructions: Mapping[str, Any] | None = None,
    states: States | None = None,
    keeping: Keeping = Keeping(),  # noqa: B008 - frozen
) -> tuple[HyperDas, History, Resumption]:
    """Train a HyperDAS; with a set ``val`` the state that does best there, with hard one-to-one choices, is kept.

    Args:
        data: ``train``, ``test`` and perhaps ``val``, over the same prompts.
        site: ``resid_post[l]``.
        settings: of the network.
        training: of its fit.
        instructions: concept -> what the network is told, as text or token ids; its name where missing.
        states: activations of the prompts (`HyperDas.needs` says where), where they are at hand.
        keeping: where training is saved, and whether it is shown.

    Returns:
        the network, what happened in training, and the runs it was trained in.

    Raises:
        OptionError, SiteError, TaskError: before anything runs.
    """
    train, test = checked_sets(data)
    one = HyperDas(model, site, settings, dict(instructions or {}), seed=training.seed)
    used = [part for name in ("train", "val", "test") if (part := data.get(name)) is not None]
    states = states or states_of(model, test.prompts, one.needs, rows=rows_of(used), progress=keeping.progress)
    runs = Resumption(model, one.site, states)
    val = data.get("val")

    def validate() -> float:
        assert val is not None, "called with validation examples only"
        return score_interchange(runs, val, one, mode=HARD, progress=False).disentangle()

    def mode(done: float) -> Mode:
        return HARD if done >= settings.straight_from else "soft"

    history = train_interchange(
        runs, train, one, training, mode=mode, validate=None if val is None else validate, keeping=keeping,
        identity=repr((asdict(settings), sorted((instructions or {}).items()))),
    )  # fmt: skip
    return one.eval(), history, runs


def hyperdas(
    model: HookedModel, data: Mapping[str, Counterfactuals], site: Site | str, *given: HyperDasSettings,
    training: TrainSettings = TRAINING, keeping: Keeping = Keeping(), **options: Any,  # noqa: B008 - frozen
) -> Circuit:  # fmt: skip
    """Train a HyperDAS and tell what it found, as a circuit with one node a concept; arguments as `train_hyperdas`.

    Returns:
        see `hyperdas_circuit`.

    Example:
        circuit = interp.hyperdas(model, data, "resid_post[14]", interp.HyperDasSettings(rank=32))
    """
    one, history, runs = train_hyperdas(model, data, site, *given, training=training, keeping=keeping, **options)
    return hyperdas_circuit(one, runs, data["test"], history, training, progress=keeping.progress)


def hyperdas_circuit(
    one: HyperDas, runs: Resumption, test: Counterfactuals, history: History | None = None,
    training: TrainSettings = TRAINING, *, progress: bool = True,
) -> Circuit:  # fmt: skip
    """What a trained HyperDAS does on held-out examples.

    Returns:
        a node for each concept at the site and the role that most of its weight goes to; attributes cause, isolate,
        disentangle and its interval with forced one-to-one choices, and ``MODE``, ``MODE.forced`` (disentangle in each
        mode), ``gap`` (soft less one-to-one), ``pairs`` (mean number an example), ``role_share`` and ``agreement`` (how
        far its examples' subspaces are one: 1 where they are). The tensor ``hyperdas.concept.basis`` has the leading
        directions of their mean projector; where agreement is well below 1 no one subspace stands for them.
    """
    modes = every_mode(runs, test, one, progress=progress)
    picked = selections(runs, test, one)
    projectors = mean_projectors(runs, test, one)
    found = []
    for concept in test.concept_names:
        basis, agreement = top_directions(projectors[concept], one.settings.rank)
        shares = picked.shares(concept)
        role = str(shares["base"][0]) if len(shares) else ""
        of = {key: scores.disentangle(concept) for key, scores in modes.items()}
        more = {f"{mode}{'.forced' if forced else ''}": value for (mode, forced), value in of.items()}
        more |= {
            "gap": of["soft", False] - of[HARD, False], "pairs": _pairs(picked, concept), "agreement": agreement,
            "role_share": float(shares["share"][0]) if len(shares) else float("nan"),
        }  # fmt: skip
        found.append(Placed(
            concept, one.site, role if role in test.roles else "", basis, modes[HARD, True], one.description(), more
        ))  # fmt: skip
    updates = 0 if history is None else len(history.losses)
    return interchange_circuit(
        runs.model, test, found, "hyperdas", seed=training.seed, forwards=float(updates * training.batch),
        backwards=float(updates * training.batch),
        parameters={
            "settings": asdict(one.settings), "training": asdict(training), "site": str(one.site), "test": len(test),
            "validation": [] if history is None else history.scores,
        },
    )  # fmt: skip


def _pairs(picked: Any, concept: str) -> float:
    counts = [w.sum() for w, of in zip(picked.weights, picked.data.concepts, strict=True) if of == concept]
    return float(np.mean(counts))
