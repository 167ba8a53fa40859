"""The dictionary of tokens: each token's own feature, and no error where nothing else enters the embedding."""

import pytest
import torch
from tiny import RAGGED, hooked

from interp.featurizers.token_features import token_dictionary
from interp.models.load import load


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox", "olmo2"])
def test_the_feature_of_a_token_is_active_at_that_token_alone_and_explains_all_of_it(family: str) -> None:
    model = hooked(family)
    run = model.run(RAGGED, record=["embed"])
    one = token_dictionary(model)
    features = one.encode(run["embed"])
    mask = run.prompts.mask
    assert torch.equal(features.argmax(-1)[mask], run.prompts.ids[mask])
    assert int((features[mask] != 0).sum(-1).max()) == 1
    assert float(one.error(run["embed"], features)[mask].abs().max()) < 1e-5


def test_learned_positions_are_the_error_term() -> None:
    model = load("embedded")
    run = model.run(["yesterday Emma met the king in the store ."], record=["embed"])
    one = token_dictionary(model)
    features = one.encode(run["embed"])
    assert torch.equal(features.argmax(-1), run.prompts.ids)
    left = one.error(run["embed"], features)
    assert 0 < float(left.norm()) < float(run["embed"].norm())
