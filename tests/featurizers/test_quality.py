"""Quality cards: exact on dictionaries whose numbers are known, and on loops over single prompts."""

import json
from dataclasses import replace

import pytest
import tiny
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from interp.errors import OptionError, PromptError
from interp.featurizers.base import site_width
from interp.featurizers.dictionary import Dictionary
from interp.featurizers.files import load_dictionary, save_dictionary
from interp.featurizers.linear import coordinates, principal_components
from interp.featurizers.quality import QualityCard, dictionary_quality, with_quality
from interp.intervention import Patch
from interp.models.base import HookedModel
from interp.models.hf import HookedHF

SITE = "resid_post[1]"


def complete(model: HookedModel, site: str, keep: int | None = None, **options: object) -> Dictionary:
    """Both ways along each of `keep` orthonormal directions: relu(x q) q - relu(-x q) (-q) gives x back."""
    width = site_width(model, model.check_site(site))
    basis = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(3)))[0][:, :keep]
    both = torch.cat([basis, -basis], 1)
    zero = torch.zeros(both.shape[1])
    return Dictionary(site, encoder=both, bias=zero, decoder=both.T, decoder_bias=torch.zeros(width), **options)


def random(model: HookedModel, site: str, **options: object) -> Dictionary:
    """Features that explain little, half of which never turn on."""
    width, generator = site_width(model, model.check_site(site)), torch.Generator().manual_seed(4)
    encoder = torch.randn(width, 40, generator=generator) / width
    bias = torch.where(torch.arange(40) < 20, -1e3, 0.1)
    decoder_bias = torch.randn(width, generator=generator) / 10
    return Dictionary(site, encoder=encoder, bias=bias, decoder=encoder.T, decoder_bias=decoder_bias, **options)


def by_hand(model: HookedModel, one: Dictionary) -> dict[str, float]:
    """The numbers of a card, prompt by prompt and without padding."""
    xs, features, losses = [], [], {"clean": [], "dictionary": [], "zero": []}
    for row in tiny.RAGGED:
        clean = model.run([row], record=[one.site, one.reads], logits="all")
        x, f = clean[one.site].flatten(2)[:, one.skip :], one.encode(clean[one.reads].flatten(2)[:, one.skip :])
        xs.append(x[0])
        features.append(f[0])
        pos = list(range(one.skip, len(row)))
        shape = clean[one.site][:, one.skip :].shape
        for name, new in (("clean", x), ("dictionary", one.decode(f)), ("zero", torch.zeros_like(x))):
            logits = model.run([row], [Patch(one.site, new.view(shape), pos=pos)], logits="all").logits[0]
            ids = torch.tensor(row)
            losses[name] += cross_entropy(logits[one.skip : -1], ids[one.skip + 1 :], reduction="none").tolist()
    x, f = torch.cat(xs).double(), torch.cat(features).double()
    rebuilt, active = one.decode(f.float()).double(), (f != 0).double()
    return {
        "tokens": len(x), "predictions": len(losses["clean"]), "l0": float(active.sum(1).mean()),
        "explained_variance": 1 - float((x - rebuilt).pow(2).sum(1).mean() / (x - x.mean(0)).pow(2).sum(1).mean()),
        "relative_norm": float((rebuilt.norm(dim=1) / x.norm(dim=1)).mean()),
        "dead": float((active.sum(0) == 0).double().mean()), "median": float(active.mean(0).quantile(0.5)),
        **{f"ce_{name}": sum(values) / len(values) for name, values in losses.items()},
    }  # fmt: skip


def transcoder(model: HookedModel) -> Dictionary:
    return replace(random(model, "mlp_out[1]"), reads="mlp_in[1]", key="t")


MADE = {
    "dictionary": lambda model: random(model, SITE),
    "after a sink": lambda model: random(model, SITE, skip=1),
    "after two positions": lambda model: random(model, SITE, skip=2),
    "heads": lambda model: random(model, "z[1]", skip=1),
    "transcoder": transcoder,
}


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "gemma2"])
@pytest.mark.parametrize("made", MADE)
def test_a_card_is_what_single_prompts_give(name, made):
    model = tiny.hooked(name)
    one = MADE[made](model)
    (card,) = dictionary_quality(model, one, tiny.RAGGED, batch=2, progress=False)
    for key, wanted in by_hand(model, one).items():
        found = card.density["0.5"] if key == "median" else getattr(card, key)
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5), key
    assert card.dead >= 0.5 and (card.skip, card.features) == (one.skip, 40)
    recovered = (card.ce_zero - card.ce_dictionary) / (card.ce_zero - card.ce_clean)
    assert card.ce_recovered == pytest.approx(recovered)


@pytest.mark.parametrize("site", [SITE, "z[0]", "mlp_out[1]", "neuron[2]"])
def test_a_complete_dictionary_explains_everything(site):
    model = tiny.hooked("llama")
    (card,) = dictionary_quality(model, complete(model, site, skip=1), tiny.RAGGED, progress=False)
    assert card.explained_variance == pytest.approx(1, abs=1e-9) and card.relative_norm == pytest.approx(1, abs=1e-6)
    assert card.ce_recovered == pytest.approx(1, abs=1e-4)
    assert card.l0 == site_width(model, model.check_site(site)) and card.acceptable and card.faults == []


def test_half_of_the_directions_explain_their_part_of_the_variance():
    model = tiny.hooked("llama")
    half = complete(model, SITE, keep=16)
    x = torch.cat([model.run([row], record=[SITE])[SITE][0] for row in tiny.RAGGED])
    left = (x - half.decode(half.encode(x))).square().sum() / (x - x.mean(0)).square().sum()
    (card,) = dictionary_quality(model, half, tiny.RAGGED, progress=False)
    assert card.explained_variance == pytest.approx(1 - float(left), abs=1e-5) and not card.acceptable
    assert card.faults[0].startswith("explained variance is 0.") and "needed 0.8 and more" in card.faults[0]


def test_several_dictionaries_share_the_clean_run_and_the_runs_with_zeros(monkeypatch):
    model, runs = tiny.hooked("llama"), []
    made = [random(model, SITE, key="a"), complete(model, SITE, key="b"), random(model, SITE, key="c", skip=1)]
    made += [random(model, "z[1]", key="d"), coordinates(model, "mlp_out[0]")]
    alone = [dictionary_quality(model, one, tiny.RAGGED, progress=False)[0] for one in made]
    whole = HookedHF.run
    monkeypatch.setattr(HookedHF, "run", lambda *a, **o: runs.append(1) or whole(*a, **o))
    together = dictionary_quality(model, made, tiny.RAGGED, progress=False)
    assert together == alone and [card.key for card in together] == ["a", "b", "c", "d", ""]
    assert len(runs) == 1 + 5 + 4


def test_other_featurizers_have_cards_too():
    model = tiny.hooked("llama")
    (card,) = dictionary_quality(model, principal_components(model, tiny.RAGGED, SITE, 5), tiny.RAGGED, progress=False)
    described = principal_components(model, tiny.RAGGED, SITE, 5).description
    assert card.explained_variance == pytest.approx(described["variance_explained"], abs=1e-5)


def card(**changes: object) -> QualityCard:
    return QualityCard(**{
        "key": "k", "site": SITE, "model": "m", "tokens": 200_000, "predictions": 9, "skip": 0, "features": 4,
        "l0": 2.0, "explained_variance": 0.8, "relative_norm": 1.0, "dead": 0.29, "density": {"0.5": 0.1},
        "ce_clean": 1.0, "ce_dictionary": 1.0625, "ce_zero": 2.0,
    } | changes)  # fmt: skip


def test_what_makes_a_dictionary_unfit_is_told():
    assert card().acceptable
    faults = card(explained_variance=0.79, ce_dictionary=1.25, dead=0.3).faults
    assert faults == [
        "explained variance is 0.790, needed 0.8 and more",
        "cross-entropy recovered is 0.750, needed 0.9 and more",
        "30.0% of features were active at none of 200,000 tokens, needed below 30%",
    ]
    assert "(below 100,000, where rare features seem dead too)" in card(dead=0.5, tokens=99_999).faults[0]
    nothing = card(ce_zero=1.0, ce_dictionary=1.0)
    assert nothing.ce_recovered != nothing.ce_recovered and nothing.faults == [
        "cross-entropy recovered is nan, needed 0.9 and more"
    ]
    assert not card(explained_variance=float("nan")).acceptable


def test_a_card_is_saved_with_its_dictionary(tmp_path):
    model = tiny.hooked("llama")
    one = random(model, SITE, description={"kind": "random"})
    (found,) = dictionary_quality(model, one, tiny.RAGGED, progress=False)
    carded = with_quality(one, found)
    assert one.description == {"kind": "random"} and carded.description["kind"] == "random"
    again = load_dictionary(save_dictionary(carded, tmp_path)).description["quality"]
    assert again == found.values() and again["ce_recovered"] == found.ce_recovered and again["faults"] == found.faults
    strict = json.dumps(replace(found, explained_variance=float("nan")).values(), allow_nan=False)
    assert json.loads(strict)["explained_variance"] is None
    with pytest.raises(OptionError, match=r"the card is of .* at resid_post\[1\], not of Dictionary 'other'"):
        with_quality(replace(one, key="other"), found)


def test_numbers_that_are_not_defined_are_nan():
    model = tiny.LIN()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    (card,) = dictionary_quality(model, random(model, SITE), [[5, 6, 7]], progress=False)
    assert card.explained_variance != card.explained_variance and card.relative_norm != card.relative_norm


def test_nothing_of_the_model_changes():
    model = tiny.hooked("llama")
    before, flags = model.run(tiny.RAGGED, logits="all").logits, [p.requires_grad for p in model.parameters()]
    dictionary_quality(model, [random(model, SITE), transcoder(model)], tiny.RAGGED, progress=False)
    assert torch.equal(model.run(tiny.RAGGED, logits="all").logits, before)
    assert [p.requires_grad for p in model.parameters()] == flags and torch.is_grad_enabled()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.model.modules())


def test_mistakes_are_named():
    model = tiny.hooked("llama")
    one = random(model, SITE, skip=3)
    with pytest.raises(PromptError, match="the longest prompt has 4 tokens; 5 are needed to predict one after skip=3"):
        dictionary_quality(model, one, [[3, 4], [4, 5, 6, 7]])
    with pytest.raises(OptionError, match="batch=0"):
        dictionary_quality(model, one, tiny.RAGGED, batch=0)
    with pytest.raises(OptionError, match="featurizers are an empty list"):
        dictionary_quality(model, [], tiny.RAGGED)
    narrow = Tensor(16, 4)
    wrong = Dictionary(SITE, encoder=narrow, bias=Tensor(4), decoder=narrow.T, decoder_bias=Tensor(16))
    with pytest.raises(OptionError, match=r"vectors of 16, resid_post\[1\] of .* has 32"):
        dictionary_quality(model, wrong, tiny.RAGGED)
