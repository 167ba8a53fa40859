"""The check on load finds a map that does not fit, an attention that is never called, and a device that makes noise."""

from dataclasses import replace

import pytest
import torch
from tiny import G2, GM, LH, MAP, NX, POINTS, SHAPE, Decoder, build, clean, corrupted, hooked, randomised

from interp.errors import ModelError, SiteError
from interp.models.families import FAMILIES, Point, SiteMap
from interp.models.hf import HookedHF
from interp.site import Site

LLAMA = FAMILIES["llama"]


class TwoNorms(Decoder):
    """Has a second norm of the final residual that leads nowhere."""

    def __init__(self, shape):
        super().__init__(shape)
        self.other = torch.nn.LayerNorm(shape.d_model, bias=False)
        torch.nn.init.constant_(self.other.weight, 2.0)
        self.norm.register_forward_pre_hook(lambda module, args: (self.other(*args), None)[1])


def _custom(**points):
    return HookedHF(
        randomised(Decoder(SHAPE)).eval(),
        site_map=SiteMap("layers", "norm", "unembed", points=POINTS | points),
        shape=SHAPE,
    )


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: HookedHF(GM(), site_map=LLAMA),
         r"self-check of in-memory \(family gemma2\): the residual stream is not the sum of its parts: "
         r"layer 0: resid_pre \+ attn_out \+ mlp_out differs from resid_post by .*; layer 1: .* "
         r"Cure: correct attn_out and mlp_out in the site map"),
        (lambda: _custom(mlp_out=Point("up", "output")), r"shapes do not fit: mlp_out\[0\] has shape \(1, 3, 20\), the "
         r"configuration says \(1, 3, 16\) \(batch x pos x d_model\)"),
        (lambda: _custom(attn_out=Point("ln_1", "output")), r"sum of its parts: layer 0"),
        (lambda: HookedHF(Decoder(SHAPE).eval(), site_map=MAP, shape=replace(SHAPE, d_head=5)), "do not fit"),
        (lambda: HookedHF(TwoNorms(SHAPE).eval(), site_map=replace(MAP, final_norm="other"), shape=SHAPE),
         "unembedding resid_final does not give the logits: differs by .* Cure: name the true final_norm and unembed"),
    ],
)  # fmt: skip
def test_a_map_that_does_not_fit_is_refused_with_what_was_found_and_the_cure(load, message):
    with pytest.raises(ModelError, match=message):
        load()


def test_a_site_whose_change_goes_nowhere_is_named_and_can_be_allowed():
    raw = LH()
    torch.nn.init.zeros_(raw.model.layers[1].mlp.down_proj.weight)
    with pytest.raises(ModelError) as caught:
        HookedHF(raw)
    assert str(caught.value) == (
        "self-check of in-memory (family llama): a change did not reach the next block: mlp_in[1]; neuron[1]. Cure: "
        "correct the site map; for a model whose weights really are zero there, load with check=False."
    )
    assert HookedHF(raw, check=False).run(clean(), record=["neuron[1]"])["neuron[1]"].shape == (3, 9, 48)


def test_a_module_that_answers_with_noise_is_caught():
    raw = G2()
    raw.transformer.h[1].mlp.act.forward = lambda x: torch.relu(x) + torch.rand(()) * 1e-3
    with pytest.raises(ModelError, match=r"recording changed the logits: largest difference .*"):
        HookedHF(raw)


def test_a_registered_attention_that_is_never_called_takes_its_sites_away_with_the_reason():
    raw = G2()
    for block in raw.transformer.h:
        attn = block.attn

        def forward(x, *_, attn=attn, **__):
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in attn.c_attn(x).split(32, -1))
            z = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return attn.c_proj(z.transpose(1, 2).flatten(2)), None

        attn.forward = forward
    model = HookedHF(raw)
    reason = (
        r"has no {}: gpt2 in transformers [\d.]+ accepts a registered attention function but never calls it; a newer"
    )
    for kind in ("q", "pattern", "v_of_query_head"):
        with pytest.raises(SiteError, match=reason.format(kind)):
            model.run(clean(), record=[Site(kind, 0)])
    assert not model.resumes
    assert torch.allclose(model.run(clean()).logits, hooked("gpt2").run(clean()).logits, atol=1e-5)


def test_an_attention_that_cannot_be_tapped_takes_its_sites_away_with_the_reason():
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    AttentionInterface.register("house_brand", ALL_ATTENTION_FUNCTIONS["sdpa"])
    AttentionMaskInterface.register("house_brand", sdpa_mask)
    raw = NX()
    raw.set_attn_implementation("house_brand")
    model = HookedHF(raw)
    with pytest.raises(
        SiteError, match="has no k: attention implementation house_brand hides queries, keys and patterns"
    ):
        model.run(clean(), record=["k[0]"])
    assert not model.resumes
    assert model.run(clean(), record=["z[1]"])["z[1]"].shape == (3, 9, 4, 8)


def test_a_parallel_block_has_no_residual_between_its_sublayers():
    assert "resid_mid" in hooked("gpt_neox").unavailable
    assert "resid_mid" in hooked("gptj").unavailable
    serial = hooked("gpt_neox_serial")
    assert "resid_mid" not in serial.unavailable
    run = serial.run(clean(), record=["resid_mid[1]", "resid_pre[1]", "attn_out[1]"])
    assert torch.allclose(run["resid_pre[1]"] + run["attn_out[1]"], run["resid_mid[1]"], atol=1e-6)


def test_a_sink_is_found_where_the_first_position_dwarfs_the_others():
    assert not hooked("gpt2").has_sink
    raw = build("gpt2")
    raw.transformer.wpe.weight.data[0] *= 1000
    assert HookedHF(raw).has_sink


def test_a_half_precision_model_passes():
    for name in ("gpt2", "llama", "gemma2"):
        assert HookedHF(build(name).bfloat16()).run(corrupted()).logits.dtype == torch.bfloat16
