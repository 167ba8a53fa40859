"""Sites parse, print and sort in the order in which a forward pass makes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import SiteError
from interp.site import HEAD_KINDS, KINDS, Site

LAYERED = [name for name, kind in KINDS.items() if kind.layered]
BARE = [name for name, kind in KINDS.items() if not kind.layered]
SITES = st.one_of(
    st.builds(Site, st.sampled_from(LAYERED), st.integers(0, 200)), st.builds(Site, st.sampled_from(BARE))
)


@given(SITES)
def test_a_printed_site_reads_back_as_itself(site):
    assert Site.parse(str(site)) == site
    assert Site.parse(site) is site
    assert hash(Site.parse(f"  {site} ")) == hash(site)
    if site.layer is not None:
        assert Site.parse(f"{site.kind}.{site.layer}") == Site.parse(f"{site.kind}[ {site.layer} ]") == site


@given(st.text(max_size=12))
def test_any_other_text_is_refused_with_a_site_error(text):
    try:
        site = Site.parse(text)
    except SiteError:
        return
    assert site.kind in KINDS


def test_sites_sort_in_the_order_of_a_forward_pass():
    sites = [Site("embed"), *(Site(k, layer) for layer in range(2) for k in LAYERED), Site("resid_final")]
    assert sorted({*sites}, key=lambda s: s.order) == sites
    kinds = "resid_pre attn_in q k v pattern z attn_proj attn_out resid_mid mlp_in neuron mlp_proj mlp_out resid_post"
    ranks = [Site(kind, 0).order for kind in kinds.split()]
    assert ranks == sorted(ranks)


def test_axes_begin_with_the_batch_and_name_the_heads():
    assert all(kind.axes[0] == "batch" for kind in KINDS.values())
    assert set(HEAD_KINDS) == {"q", "k", "v", "k_of_query_head", "v_of_query_head", "pattern", "z"}
    assert Site("k", 0).axes[2] == Site("v", 0).axes[2] == "kv_head"
    assert Site("k_of_query_head", 0).axes == Site("q", 0).axes == ("batch", "pos", "head", "d_head")
    assert Site("pattern", 0).axes == ("batch", "head", "dest", "src")
    assert Site("z", 3).has_heads
    assert not Site("embed").has_heads


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attn_ouT[0]", r"no site kind 'attn_ouT'; allowed: embed, .*resid_final; nearest: 'attn_out'"),
        (
            "blocks.0.attn.hok_z",
            r"'blocks.0.attn.hok_z' is not a site; write kind\[layer\], such as 'z\[3\]', or 'embed'",
        ),
        ("z", r"site kind 'z' needs a layer; write z\[0\]"),
        ("embed[0]", r"site kind 'embed' has no layer \(got 0\); write 'embed'"),
        ("z[-1]", r"layer -1 of 'z' must be an integer from 0; negative is not allowed"),
        ("z[1][2]", r"'z\[1\]\[2\]' is not a site"),
        ("", r"'' is not a site"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(text, message):
    with pytest.raises(SiteError, match=message):
        Site.parse(text)
