"""What a HyperDAS must be compared with before its scores mean anything.

- nothing changed, the full vector, a random subspace of its rank: at a fixed role
- each mode as learned and forced, so that nothing is earned by leaving runs as they are; soft against hard
- entity names taken out of the instructions
- retrained: one subspace for all concepts, a fixed position, a model with random weights
- crossed concepts: the subspace of one concept on what another's prompts ask

Sources: the criticisms of HyperDAS's reviewers (OpenReview 6fDjUoEQvm); random models as in Sutter et al. 2025
(arXiv 2507.08802).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from interp.errors import OptionError
from interp.featurizers.base import site_width
from interp.hypernet.interchange import HyperDas
from interp.hypernet.readout import every_mode
from interp.interchange.examples import Counterfactuals
from interp.interchange.exchanges import FullVector, random_subspace
from interp.interchange.placing import AtRoles, Interchange, Mode
from interp.interchange.scores import InterchangeScores, score_interchange
from interp.interchange.states import Resumption
from interp.interchange.training import Keeping, TrainSettings
from interp.methods.hyperdas import train_hyperdas
from interp.models.base import HookedModel
from interp.table import Table

RETRAINED = ("static", "fixed_position", "random_target")


def subspace_controls(
    one: HyperDas,
    runs: Resumption,
    data: Mapping[str, Counterfactuals],
    *,
    role: str = "last_entity",
    retrain: Sequence[str] = (),
    training: TrainSettings | None = None,
    random_model: HookedModel | None = None,
    progress: bool = True,
) -> Table:
    """Scores of a HyperDAS beside those of its controls, on the test set.

    Args:
        one, runs: as `train_hyperdas` gave them.
        data: the sets it was trained with.
        role: of the controls at a fixed position.
        retrain: of `RETRAINED`: ``"static"`` (no reflections), ``"fixed_position"`` (at `role`), ``"random_target"``.
        training: settings of these.
        random_model: the same architecture with random weights (`interp.random_copy`), for ``"random_target"``.
        progress: show bars where there is a terminal.

    Returns:
        a row each: cause, isolate, disentangle, its 95 % interval.

    Raises:
        OptionError: an unknown control, or one that lacks its settings or model.
    """
    _check(retrain, training, random_model)
    test = data["test"]
    d = site_width(runs.model, runs.site)
    found: dict[str, InterchangeScores] = {}
    random = random_subspace(d, one.settings.rank).to(runs.model.device)
    at_role: dict[str, Interchange | None] = {
        "nothing changed": None, f"full vector at {role}": AtRoles(runs.site, FullVector(), role),
        f"random subspace at {role}": AtRoles(runs.site, random, role),
    }  # fmt: skip
    for name, control in at_role.items():
        found[name] = score_interchange(runs, test, control, progress=progress)
    for (mode, forced), scores in every_mode(runs, test, one, progress=progress).items():
        found[f"HyperDAS, {mode}{', forced' if forced else ''}"] = scores
    if one.settings.instructions == "entities":
        found["HyperDAS, no entity names"] = _unnamed(one, runs, test, progress)
    for name in retrain:
        assert training is not None, "checked above"
        found[f"HyperDAS, {name.replace('_', ' ')}"] = _retrained(name, one, runs, data, role, training, random_model)
    rows = [(name, *_row(scores)) for name, scores in found.items()]
    return Table(
        dict(zip(("run", "cause", "isolate", "disentangle", "low", "high"), zip(*rows, strict=True), strict=True))
    )


def _check(retrain: Sequence[str], training: TrainSettings | None, random_model: HookedModel | None) -> None:
    unknown = [name for name in retrain if name not in RETRAINED]
    if unknown:
        raise OptionError(f"retrain={unknown}; allowed: {', '.join(RETRAINED)}.")
    if retrain and training is None:
        raise OptionError("controls are retrained only with training=; give its settings.")
    if "random_target" in retrain and random_model is None:
        raise OptionError("'random_target' needs random_model=, such as interp.random_copy(model).")


def _row(scores: InterchangeScores) -> tuple[float, float, float, float, float]:
    return scores.cause(), scores.isolate(), scores.disentangle(), *scores.interval()


def _unnamed(one: HyperDas, runs: Resumption, test: Counterfactuals, progress: bool) -> InterchangeScores:
    """The same network told the concept alone."""
    kept, one.settings = one.settings, replace(one.settings, instructions="concept")
    try:
        return score_interchange(runs, test, one, progress=progress)
    finally:
        one.settings = kept


def _retrained(
    name: str, one: HyperDas, runs: Resumption, data: Mapping[str, Counterfactuals], role: str, training: TrainSettings,
    random_model: HookedModel | None,
) -> InterchangeScores:  # fmt: skip
    """A HyperDAS trained anew under one restriction."""
    changed: dict[str, dict[str, Any]] = {
        "static": {"reflections": 0, "gated": False},
        "fixed_position": {"fixed": role},
    }
    settings = replace(one.settings, **changed.get(name, {}))
    model, states = (random_model, None) if name == "random_target" else (runs.model, runs.states)
    assert model is not None, "checked before"
    other, _, its_runs = train_hyperdas(
        model, data, one.site, settings, training=training, instructions=one.instructions, states=states,
        keeping=Keeping(progress=False),
    )  # fmt: skip
    return score_interchange(its_runs, data["test"], other, forced=True, progress=False)


def crossed_concepts(
    runs: Resumption, test: Counterfactuals, given: HyperDas | Mapping[str, Interchange], *, mode: Mode = "one_to_one",
    progress: bool = True,
) -> Table:  # fmt: skip
    """How often one concept's interchange carries another concept's value: rows are what is exchanged, columns what the
    base prompt asks, entries the share of cause examples answered with the source's value of what is asked. The
    diagonal is Cause; beside it values near 0 are wanted.

    Args:
        given: a HyperDAS (forced to exchange), or an interchange for each concept.
    """
    names = test.concept_names
    columns: dict[str, list[Any]] = {"concept": list(names)}
    for asked in names:
        causes = test.about(asked)
        causes = causes[np.flatnonzero(causes.causes).tolist()]
        column = []
        for concept in names:
            one = given if isinstance(given, HyperDas) else given[concept]
            told = replace(causes, concepts=(concept,) * len(causes))
            scores = score_interchange(runs, told, one, mode=mode, forced=True, progress=progress)
            column.append(float(scores.full.mean()) if len(causes) else float("nan"))
        columns[asked] = column
    return Table(columns)
