"""The model of known variables: it answers rightly, and its variables are where they are said to be, and only there."""

import numpy as np
import pytest
import torch

from interp.interchange.exchanges import Exchange, FullVector, Subspace, random_subspace
from interp.interchange.known import CODE, WIDTH, KnownVariables, known_variables
from interp.interchange.placing import AtRoles
from interp.interchange.scores import InterchangeScores, score_interchange
from interp.interchange.states import Resumption, entry, states_of
from interp.site import Site

VARIANTS = [("last", False), ("after", False), ("last", True)]


def scored(known: KnownVariables, exchange: Exchange | None, role: str, site: Site | None = None) -> InterchangeScores:
    site, data = site or known.site, known.data["test"]
    states = states_of(known.model, data.prompts, list({entry(site), site}), progress=False)
    runs = Resumption(known.model, site, states)
    one = None if exchange is None else AtRoles(site, exchange, role)
    return score_interchange(runs, data, one, progress=False)


@pytest.mark.parametrize(("where", "distractor"), VARIANTS)
def test_it_answers_and_a_concept_s_subspace_moves_that_concept_alone(where: str, distractor: bool) -> None:
    known = known_variables(where, distractor=distractor, size=60)  # type: ignore[arg-type]
    plain = scored(known, None, known.role)
    assert plain.isolate() == 1.0 and plain.cause() == 0.0
    for concept, subspace in known.subspaces.items():
        one = scored(known, Subspace(WIDTH, CODE, rotation=subspace), known.role)
        assert one.cause(concept) == one.isolate(concept) == one.disentangle(concept) == 1.0
        other = next(name for name in known.subspaces if name != concept)
        assert one.cause(other) == 0.0
        assert known.overlap(concept, subspace) == pytest.approx(1.0)


@pytest.mark.parametrize(("where", "distractor"), VARIANTS)
def test_nothing_moves_elsewhere(where: str, distractor: bool) -> None:
    known = known_variables(where, distractor=distractor, size=60)  # type: ignore[arg-type]
    other = "after_entity" if where == "last" else "last_entity"
    assert scored(known, FullVector(), other).cause() == 0.0
    assert scored(known, FullVector(), "end").cause() == 0.0
    assert scored(known, FullVector(), known.role, Site("resid_post", 2)).cause() == 0.0
    together = Subspace(WIDTH, 3 * CODE, rotation=torch.cat(list(known.subspaces.values()), 1))
    all_three = scored(known, together, known.role)
    assert all_three.cause() == 1.0 and all_three.isolate() < 0.05
    assert scored(known, FullVector(), known.role).cause() >= (0.5 if distractor else 1.0)  # it takes the place along
    assert scored(known, random_subspace(WIDTH, CODE), known.role).cause() < 0.1


def test_subspaces_are_apart_and_sets_share_neither_entities_nor_patterns() -> None:
    known = known_variables(size=60)
    everything = torch.cat(list(known.subspaces.values()), 1)
    torch.testing.assert_close(everything.T @ everything, torch.eye(3 * CODE), rtol=0, atol=1e-5)
    names = known.data["train"].groups["entity"]
    used = {name: {names[r] for r in (*one.base, *one.source)} for name, one in known.data.items()}
    assert not used["train"] & used["test"] and not used["train"] & used["val"] and not used["val"] & used["test"]
    rows = {name: {int(r) for r in (*one.base, *one.source)} for name, one in known.data.items()}
    assert not rows["train"] & rows["test"]
    assert all(one.prompts is known.data["train"].prompts for one in known.data.values())
    assert np.array_equal(known_variables(size=60).data["test"].base, known.data["test"].base)
