"""Read-outs: exact sums, agreement with the weights themselves and with transformers, errors by their message."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from circuits import unchecked
from tiny import (
    F64,
    FAMILIES,
    MAP,
    RAGGED,
    SHAPE,
    Decoder,
    build,
    clean,
    custom,
    hooked,
    hooked64,
    int8,
    randomised,
)
from torch import nn

from interp.errors import MetricError, ModelError, OptionError, SiteError
from interp.metrics import Answers, LogitDiff
from interp.models.families import Point
from interp.models.hf import HookedHF
from interp.readouts import attention_patterns, direct_logit_attribution, logit_lens
from interp.site import Site

PAIRS = [(3, 40), (96, 0), (51, 7)]
ROWS = torch.arange(3)


def last(model: HookedHF, site: str) -> torch.Tensor:
    """The site's activation at each prompt's last token."""
    prompts = model.prompts(RAGGED)
    return model.run(prompts, record=[site], logits="none")[site][ROWS, prompts.last]


def difference(logits: torch.Tensor) -> torch.Tensor:
    """Correct minus wrong logit of each prompt, from [prompt, vocab]."""
    return torch.stack([logits[i, correct] - logits[i, wrong] for i, (correct, wrong) in enumerate(PAIRS)])


# --- direct logit attribution ---


@pytest.mark.parametrize("name", FAMILIES)
def test_components_add_up_to_the_logit_difference(name):
    model = hooked(name)
    found = direct_logit_attribution(model, RAGGED, PAIRS)
    assert found.remainder.abs().max() < 1e-5
    before_cap = difference(model.module("unembed")(last(model, "resid_final"))).detach()
    torch.testing.assert_close(found.total.float(), before_cap)
    if name == "gemma2":
        assert found.unit == "pre-cap logits"
    else:
        assert found.unit == "logits"
        torch.testing.assert_close(found.total.float(), difference(model.run(RAGGED).logits[:, 0]))


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "gemma2", "olmo2"])
def test_components_add_up_to_ten_digits_in_float64(name):
    with F64():
        assert direct_logit_attribution(hooked64(name), RAGGED, PAIRS).remainder.abs().max() < 1e-10


@pytest.mark.parametrize("make", [custom, lambda: HookedHF(int8())])
def test_models_without_a_family_or_without_float_weights_are_split_too(make):
    assert direct_logit_attribution(make(), RAGGED, PAIRS).remainder.abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_leaves_a_remainder_of_its_own_rounding(dtype):
    found = direct_logit_attribution(HookedHF(build("llama").to(dtype), check=False), RAGGED, PAIRS)
    assert found.remainder.abs().max() < 20 * torch.finfo(dtype).eps * found.values.abs().sum(0).max()


def by_weights(name: str, layer: int, head: int) -> torch.Tensor:
    """A head's direct contribution, written out with the family's weights."""
    model = hooked(name)
    body = model.model.transformer if name == "gpt2" else model.model.model
    z = last(model, f"z[{layer}]")[:, head]
    rows = slice(head * z.shape[-1], (head + 1) * z.shape[-1])
    resid = last(model, f"resid_post[{model.shape.n_layers - 1}]")
    unembedding = model.module("unembed").weight
    readers = torch.stack([unembedding[correct] - unembedding[wrong] for correct, wrong in PAIRS])
    if name == "gpt2":
        piece = z @ body.h[layer].attn.c_proj.weight[rows]
        piece = piece - piece.mean(-1, keepdim=True)
        normed = piece * body.ln_f.weight / (resid.var(-1, correction=0, keepdim=True) + body.ln_f.eps).sqrt()
        return (normed * readers).sum(-1).detach()
    piece = z @ body.layers[layer].self_attn.o_proj.weight[:, rows].T
    offset, eps = 1.0 if name == "gemma2" else 0.0, model.model.config.rms_norm_eps
    if name != "llama":
        post = body.layers[layer].post_attention_layernorm
        size = last(model, f"attn_proj[{layer}]").square().mean(-1, keepdim=True)
        piece = piece * (offset + post.weight) / (size + eps).sqrt()
    normed = piece * (offset + body.norm.weight) / (resid.square().mean(-1, keepdim=True) + eps).sqrt()
    return (normed * readers).sum(-1).detach()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "olmo2"])
def test_a_head_contributes_what_the_weights_say(name):
    found = direct_logit_attribution(hooked(name), RAGGED, PAIRS)
    for layer, head in [(0, 1), (2, 3)]:
        torch.testing.assert_close(found.by_head[layer, head].float(), by_weights(name, layer, head))


def test_rows_are_labelled_in_forward_order():
    found = direct_logit_attribution(hooked("gpt2"), RAGGED, PAIRS)
    assert found.components[:7] == (
        "embed", "z[0] head 0", "z[0] head 1", "z[0] head 2", "z[0] head 3", "attn_out[0] bias", "mlp_out[0]",
    )  # fmt: skip
    assert found.components[-2:] == ("final_norm bias", "unembed bias")
    assert found.layers.tolist() == [-1, *[0] * 6, *[1] * 6, *[2] * 6, -1, -1]
    assert found.heads.tolist() == [-1, *[0, 1, 2, 3, -1, -1] * 3, -1, -1]
    table = found.table()
    assert table.columns == ("component", "layer", "head", "mean", "std")
    np.testing.assert_allclose(table["mean"].sum(), found.total.mean(), atol=1e-5)
    assert np.isnan(direct_logit_attribution(hooked("gpt2"), RAGGED[:1], PAIRS[:1]).table()["std"]).all()


def test_biases_are_rows_of_their_own():
    for name, has_biases in [("gpt2", True), ("llama", False)]:
        found = direct_logit_attribution(hooked(name), RAGGED, PAIRS)
        values = dict(zip(found.components, found.values, strict=True))
        assert values["attn_out[0] bias"].any() == values["final_norm bias"].any() == has_biases


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_a_prompt_is_split_alike_alone_in_a_batch_and_in_chunks(name):
    whole = direct_logit_attribution(hooked(name), RAGGED, PAIRS).values
    chunked = direct_logit_attribution(hooked(name), RAGGED, PAIRS, batch_size=2).values
    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=0)
    alone = direct_logit_attribution(hooked(name), RAGGED[2:], PAIRS[2:]).values
    torch.testing.assert_close(alone[:, 0], whole[:, 2], atol=1e-5, rtol=0)


def test_several_targets_and_answer_sets_are_the_metric_logit_diff():
    model = hooked("qwen2")
    answers = Answers(
        torch.tensor([[2, 5], [8, -1], [0, 6]]),
        torch.tensor([[[1, 2], [3, -1]], [[4, -1], [-1, -1]], [[5, 6], [7, 8]]]),
        torch.tensor([[[9], [10]], [[11], [-1]], [[12], [13]]]),
    )
    found = direct_logit_attribution(model, RAGGED, answers)
    logits = model.run(RAGGED, logits=answers.positions).logits
    torch.testing.assert_close(found.total.float(), LogitDiff()(logits, answers))
    assert found.remainder.abs().max() < 1e-5


def test_without_wrong_answers_the_correct_logit_itself_is_split():
    model, ids = hooked("opt"), torch.tensor([[[3]], [[96]], [[51]]])
    answers = Answers(clean().last[:, None], ids, torch.zeros(3, 1, 0, dtype=torch.long))
    found = direct_logit_attribution(model, RAGGED, answers)
    torch.testing.assert_close(found.total.float(), model.run(RAGGED).logits[ROWS, 0, ids[:, 0, 0]])
    assert found.remainder.abs().max() < 1e-5


def test_the_model_stays_as_it_was():
    model = hooked("gemma2")
    before = model.run(RAGGED, logits="all").logits
    direct_logit_attribution(model, RAGGED, PAIRS)
    logit_lens(model, RAGGED, norm="frozen")
    attention_patterns(model, RAGGED)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.model.modules())
    assert torch.equal(model.run(RAGGED, logits="all").logits, before)


def at(positions: list[list[int]]) -> Answers:
    """Token 1 against token 1, at these positions."""
    ids = torch.ones(len(positions), 1, 1, dtype=torch.long)
    return Answers(torch.tensor(positions), ids, ids)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([(1, 2)], r"answers have shape \(1, 2\); one \(correct id, wrong id\) a prompt is needed"),
        ([(1, 2), (3, 97), (4, 5)], r"prompts \[1\] have ids above 96; build the answers with this model's tokenizer"),
        (at([[5], [9], [7]]), r"prompts \[1, 2\] are scored beyond their last token; build the answers"),
        (at([[5]]), "1 answers for 3 prompts; give one a prompt"),
    ],
)  # fmt: skip
def test_answers_that_do_not_fit_are_refused(answers, message):
    with pytest.raises(MetricError, match=message):
        direct_logit_attribution(hooked("gpt2"), RAGGED, answers)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(OptionError, match="batch_size=0; allowed: 1 and more"):
        direct_logit_attribution(hooked("gpt2"), RAGGED, PAIRS, batch_size=0)


class Halved(nn.Module):
    """A block that scales the residual stream, so that what was written into it does not arrive whole."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.attn, self.ln_2, self.up, self.down, self.block = block.attn, block.ln_2, block.up, block.down, block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * self.block(x)


def test_a_residual_stream_that_is_no_sum_is_refused():
    model = randomised(Decoder(SHAPE)).eval()
    model.layers[1] = Halved(model.layers[1])
    scaled = HookedHF(model, site_map=MAP, shape=SHAPE, check=False)
    with pytest.raises(
        ModelError, match="do not add up to its last residual: off by .* allowed 1.0e-04; check the site"
    ):
        direct_logit_attribution(scaled, RAGGED, PAIRS)


class Squash(nn.Module):
    """A final "norm" that is not affine at any scale."""

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


@pytest.mark.parametrize(
    "read", [lambda m: direct_logit_attribution(m, RAGGED, PAIRS), lambda m: logit_lens(m, RAGGED, norm="frozen")]
)
def test_a_norm_that_cannot_be_frozen_is_refused(read):
    model = randomised(Decoder(SHAPE)).eval()
    model.norm = Squash(SHAPE.d_model)
    squashed = HookedHF(model, site_map=MAP, shape=SHAPE, check=False)
    with pytest.raises(ModelError, match="final norm: .* only LayerNorm and RMSNorm"):
        read(squashed)


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm, nn.RMSNorm, lambda d: nn.LayerNorm(d, elementwise_affine=False), nn.Identity]
)
def test_every_usual_norm_is_frozen_at_odd_widths_too(norm):
    shape = replace(SHAPE, d_model=15)
    model = HookedHF(randomised(Decoder(shape, norm=lambda d: norm(d))).eval(), site_map=MAP, shape=shape, check=False)
    assert direct_logit_attribution(model, RAGGED, PAIRS).remainder.abs().max() < 1e-5


class PostNormed(nn.Module):
    """A block whose attention is normalised, with a bias and a mean taken away, before it is added."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn, self.up, self.act, self.down = block.children()
        self.post = nn.LayerNorm(SHAPE.d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.post(self.attn(self.ln_1(x)))
        return x + self.down(self.act(self.up(self.ln_2(x))))


def test_a_layer_norm_after_attention_is_split_with_its_bias():
    model = Decoder(SHAPE)
    model.layers = nn.ModuleList(map(PostNormed, model.layers))
    post = replace(MAP, points={**MAP.points, "attn_out": Point("post", "output")})
    found = direct_logit_attribution(HookedHF(randomised(model).eval(), site_map=post, shape=SHAPE), RAGGED, PAIRS)
    assert found.remainder.abs().max() < 1e-5


# --- logit lens ---


@pytest.mark.parametrize("name", FAMILIES)
def test_the_classical_lens_is_the_unembedding_of_the_normed_residual(name):
    model = hooked(name)
    lens = logit_lens(model, RAGGED, "all", cap="pre")
    assert lens.sites == (Site("embed"), *(Site("resid_post", layer) for layer in range(model.shape.n_layers)))
    run = model.run(RAGGED, record=lens.sites, logits="none")
    real = run.prompts.mask
    for site, logits in zip(lens.sites, lens.logits, strict=True):
        by_hand = model.module("unembed")(model.module("final_norm")(run[site]))
        torch.testing.assert_close(logits[real], by_hand[real].detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", ["own", "frozen"])
@pytest.mark.parametrize("name", FAMILIES)
def test_both_lenses_end_at_the_models_own_logits(name, norm):
    model = hooked(name)
    lens = logit_lens(model, RAGGED, norm=norm)
    torch.testing.assert_close(lens.logits[-1], model.run(RAGGED).logits, atol=1e-5, rtol=0)
    assert (lens.norm, lens.unit) == (norm, "logits")


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gptj"])
def test_layers_of_the_frozen_lens_differ_by_what_they_add(name):
    model = hooked(name)
    lens = logit_lens(model, RAGGED, norm="frozen", cap="pre")
    assert lens.unit == ("pre-cap logits" if name == "gemma2" else "logits")
    found = direct_logit_attribution(model, RAGGED, PAIRS)
    read = torch.stack([difference(logits[:, 0]) for logits in lens.logits])
    for layer in range(model.shape.n_layers):
        added = found.values[found.layers == layer].sum(0).float()
        torch.testing.assert_close(read[layer + 1] - read[layer], added, atol=1e-5, rtol=0)


def test_the_lens_reads_the_positions_and_residuals_asked_for():
    model = hooked("llama")
    where = torch.tensor([[0, -1], [8, 3], [6, 6]])
    lens = logit_lens(model, RAGGED, where, kinds=("resid_pre", "resid_mid", "resid_post"))
    kinds = [str(site) for site in lens.sites[:4]]
    assert kinds == ["resid_pre[0]", "resid_mid[0]", "resid_post[0]", "resid_pre[1]"]
    everywhere = logit_lens(model, RAGGED, "all").logits[-1]
    assert lens.logits[:, 0, 1].isnan().all() and not lens.logits[:, 0, 0].isnan().any()
    torch.testing.assert_close(lens.logits[-1][1], everywhere[1, [8, 3]])
    assert torch.equal(lens.logits[:, 2, 0], lens.logits[:, 2, 1])


def test_top_tokens_come_as_a_table():
    model = hooked("llama")
    top = logit_lens(model, RAGGED, "all").top(3)
    assert len(top) == 4 * (6 + 9 + 7) * 3
    final = top.where((top["site"] == "resid_post[2]") & (top["prompt"] == 1) & (top["position"] == 4))
    logits = model.run(RAGGED, logits="all").logits[1, 4]
    assert final["id"].tolist() == logits.topk(3).indices.tolist() and final["rank"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(final["prob"], logits.softmax(-1).topk(3).values, rtol=1e-5)
    assert set(final["at"]) == {str(RAGGED[1][4])} and final["token"].tolist() == list(map(str, final["id"]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"norm": "final"}, OptionError, "norm is 'final'; allowed: 'own', 'frozen'"),
        ({"cap": "none"}, OptionError, "cap is 'none'; allowed: 'post', 'pre'"),
        ({"kinds": ("mlp_out",)}, OptionError, "residual kind is 'mlp_out'; allowed: 'embed'"),
        ({"kinds": ("resid_mid",)}, SiteError, "has no resid_mid: attention and MLP run in parallel"),
        ({"positions": "end"}, OptionError, "positions is 'end'; allowed: 'last', 'all'"),
        ({"positions": torch.tensor([[0], [9], [-2]])}, OptionError, r"2 prompts .* \(row 1: \[9\] of 9 tokens"),
        ({"positions": torch.tensor([[0]])}, OptionError, r"positions have shape \(1, 1\); \[3, target\] is needed"),
    ],
)  # fmt: skip
def test_a_lens_that_cannot_be_is_refused(options, error, message):
    with unchecked(), pytest.raises(error, match=message):
        logit_lens(hooked("gpt_neox"), RAGGED, **options)


# --- attention patterns ---


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "gptj", "llama", "mistral", "gemma2", "gemma3"])
def test_patterns_are_those_of_eager_transformers(name):
    model = hooked(name)
    eager = build(name)
    eager.set_attn_implementation("eager")
    found = attention_patterns(model, RAGGED)
    for row, ids in enumerate(RAGGED):
        with torch.no_grad():
            theirs = eager(torch.tensor([ids]), output_attentions=True).attentions
        for layer in range(model.shape.n_layers):
            ours = torch.stack([found.of(layer, head, row) for head in found.heads])
            torch.testing.assert_close(ours, theirs[layer][0], atol=1e-5, rtol=0)


def test_chosen_heads_keep_their_numbers_and_tokens():
    found, whole = attention_patterns(hooked("llama"), RAGGED, [2, 0], 3), attention_patterns(hooked("llama"), RAGGED)
    assert (found.layers, found.heads, found.values.shape) == ((2, 0), (3,), (2, 3, 1, 9, 9))
    assert found.tokens[0] == tuple(map(str, RAGGED[0]))
    pattern = found.of(2, 3, prompt=2)
    assert pattern.shape == (7, 7) and torch.equal(pattern, pattern.tril())
    assert torch.equal(pattern, whole.of(2, 3, prompt=2)) and not torch.equal(pattern, whole.of(2, 0, prompt=2))
    torch.testing.assert_close(pattern.sum(-1), torch.ones(7))
    assert found.values[:, 0, :, 6:].isnan().all() and found.values[:, 0, :, :, 6:].isnan().all()


def test_heads_that_are_not_there_are_refused():
    model = hooked("gpt2")
    with pytest.raises(SiteError, match=r"heads \[4\] of layers None: give some, heads from 0 to 3"):
        attention_patterns(model, RAGGED, heads=4)
    with pytest.raises(SiteError, match="layer out of range; .* has layers 0 to 2"):
        attention_patterns(model, RAGGED, layers=3)
    found = attention_patterns(model, RAGGED, layers=1)
    with pytest.raises(SiteError, match=r"do not have layer 0 \(has \[1\]\), prompt 5 \(has \[0, 1, 2\]\)"):
        found.of(0, 0, prompt=5)
