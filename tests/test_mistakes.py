"""Ten usual mistakes: each gives one clear error that says what was wrong, what is allowed, and the cure."""

import numpy as np
import pytest
import tiny
import torch

import interp
from interp.errors import (
    FileError,
    InterventionError,
    MissingExtraError,
    ModelError,
    PromptError,
    SiteError,
    require,
)
from interp.models.hf import HookedHF


@pytest.fixture
def model() -> HookedHF:
    return tiny.hooked("llama")


def test_a_mistyped_site_names_the_nearest(model) -> None:
    with pytest.raises(SiteError, match="no site kind 'resid_pst'.*nearest: 'resid_post'"):
        model.run(tiny.RAGGED, record=["resid_pst[0]"])


def test_layer_99_names_the_layers_there_are(model) -> None:
    with pytest.raises(SiteError, match=r"z\[99\]: layer out of range.*layers 0 to 2"):
        model.run(tiny.RAGGED, record=["z[99]"])


def test_head_minus_one_names_the_heads_there_are(model) -> None:
    with pytest.raises(InterventionError, match=r"head \[-1\] out of range; allowed 0 to 7"):
        model.run(tiny.RAGGED, [interp.Zero("z[0]", head=-1)])


def test_numpy_numbers_index_as_python_ones_do(model) -> None:
    number, listed = np.int64(1), np.array([1, 3])
    with tiny.unchecked():
        run = model.run(tiny.RAGGED, [interp.Zero("z[0]", head=number, pos=listed)], ["z[0]"])
    again = model.run(tiny.RAGGED, [interp.Zero("z[0]", head=1, pos=[1, 3])], ["z[0]"])
    assert torch.equal(run["z[0]"], again["z[0]"])


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_a_prompt_beyond_the_learned_positions_is_named(family) -> None:
    model = tiny.hooked(family)
    with pytest.raises(PromptError, match=r"prompts \[1\] have up to 65 tokens; .* has learned 64 positions"):
        model.run([[5, 6], [7] * 65])
    assert model.run([[7] * 64]).logits is not None
    model.generate([[7] * 62], max_new_tokens=3)
    with pytest.raises(PromptError, match="62 tokens and 4 new ones; .* has learned 64 positions"):
        model.generate([[7] * 62], max_new_tokens=4)


def test_an_unknown_keyword_is_named(model) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'recrod'"):
        model.run(tiny.RAGGED, recrod=["z[0]"])


def test_unequal_lengths_show_both_token_lists() -> None:
    tokenizer = tiny.TK()
    pair = interp.Pair("when mary gave", corrupted="when paris gave", answer=" john", wrong=" mary")
    with pytest.raises(PromptError, match=r"unequal lengths.*\['when', .*'mary', .*'gave'\].*\['when', .*'par'"):
        interp.make_task("t", [pair], tokenizer)


def test_an_answer_of_two_tokens_shows_its_pieces() -> None:
    pair = interp.Pair("when mary gave", corrupted="when john gave", answer=" paris", wrong=" mary")
    with pytest.raises(PromptError, match=r"several tokens.*' paris'.*par.*choose multi_token='first'"):
        interp.make_task("t", [pair], tiny.TK())


def test_a_doubled_bos_shows_the_ids() -> None:
    model = HookedHF(tiny.build("llama"), tiny.TK(auto_bos=True))
    with pytest.raises(PromptError, match=r"two BOS tokens \(ids \[1, 1,.*Remove the BOS"):
        model.run(["<s> when mary gave"])


def test_active_dropout_names_the_modules_and_the_cure() -> None:
    model = tiny.G2D()
    hooked = HookedHF(model)
    model.transformer.h[0].train()
    with pytest.raises(ModelError, match=r"dropout is active.*transformer\.h\.0.*call model\.eval\(\)"):
        hooked.run(tiny.RAGGED)


def test_a_missing_extra_is_one_sentence_with_the_command() -> None:
    with pytest.raises(MissingExtraError, match=r"package 'no_such_plots'.*pip install 'interp\[view\]'"):
        require("no_such_plots", "view")


def test_a_damaged_circuit_file_is_one_error(model, tmp_path) -> None:
    task = interp.Task("t", tiny.clean(), tiny.answers(), interp.metric("logit_diff"), corrupted=tiny.corrupted())
    interp.save_circuit(interp.patch(model, task, "attn_out"), tmp_path / "circuit")
    for file in (tmp_path / "circuit").iterdir():
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(FileError, match="circuit"):
        interp.load_circuit(tmp_path / "circuit")


def test_a_mistake_leaves_the_model_as_it_was(model) -> None:
    before = model.run(tiny.RAGGED, logits="all").logits
    with pytest.raises(InterventionError):
        model.run(tiny.RAGGED, [interp.Zero("z[0]", head=99)])
    assert torch.equal(model.run(tiny.RAGGED, logits="all").logits, before)
