"""Path patching against its definition in separate runs, one sender and one prompt at a time."""

import warnings

import numpy as np
import pytest
from tiny import CHANGED, F64, PARALLEL, RAGGED, answers, custom, hooked, hooked64, task, unchecked

import interp
from interp.candidate_nodes import candidates
from interp.errors import OptionError, SiteError
from interp.intervention import Patch
from interp.methods.patching import patch
from interp.methods.path_patching import path_patch
from interp.metrics import metric

NAME = "logit_diff.noising"
CASES = [("q[1] head 2",), ("k[2] head 1", "k[1] head 0"), ("v[2] head 0", "q[1] head 1", "q[2] head 3"), ("logits",)]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", interp.InterpWarning)
        yield


def three_runs(model, node, receivers, row, freeze_mlps, base=RAGGED, other=CHANGED) -> float:
    """metric(D) - metric(B) of one sender on one prompt, by the definition."""
    ids, there = [base[row]], [other[row]]
    held = model.sites("z", *["mlp_out"] * freeze_mlps)
    clean = model.run(ids, record=held)
    source = model.run(there, record=[node.site])
    hold = [Patch(site, clean) for site in held if site != node.site]
    rest = [Patch(node.site, clean, head=h) for h in range(model.shape.n_heads) if node.kind == "z" and h != node.head]
    sender = Patch(node.site, source, head=node.head, pos=None if node.pos is None else [node.pos])
    keep = [] if node.pos is None or node.kind != "z" else [Patch(node.site, clean, head=node.head)]
    sites = [] if receivers == ("logits",) else sorted({interp.Node.parse(r).site for r in receivers}, key=str)
    reached = model.run(ids, [*hold, *rest, *keep, sender], record=sites)
    if sites:
        heads = [interp.Node.parse(r) for r in receivers]
        reached = model.run(ids, [Patch(r.site, reached, head=r.head) for r in heads])
    one = answers()[[row]]
    return float(metric("logit_diff")(reached.logits, one) - metric("logit_diff")(clean.logits, one))


@pytest.mark.parametrize("receivers", CASES)
@pytest.mark.parametrize("freeze_mlps", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_it_equals_three_separate_runs(family, freeze_mlps, receivers):
    with F64():
        model, given = hooked64(family), task()
        nodes = candidates(model, given, ["z", "mlp_out"], positions="each")
        chosen = np.random.default_rng(3).choice(len(nodes), 6, replace=False)
        found = path_patch(model, given, nodes.take(chosen), receivers, freeze_mlps=freeze_mlps, direction="both")
        for number, node in enumerate(found.nodes):
            for row, ids in enumerate(RAGGED):
                score = found.tensors[NAME].array[number, row]
                if node.pos >= len(ids):
                    assert np.isnan(score)
                    continue
                expected = three_runs(model, node, receivers, row, freeze_mlps)
                assert score == pytest.approx(-expected, abs=1e-6), (node, row)
                back = three_runs(model, node, receivers, row, freeze_mlps, CHANGED, RAGGED)
                assert found.tensors["logit_diff.denoising"].array[number, row] == pytest.approx(back, abs=1e-6)
        assert np.nanmax(abs(found.tensors[NAME].array)) > 1e-3


def test_the_engines_agree_and_chunks_do_not_matter():
    model, given = hooked("llama"), task()
    options = {"positions": "each", "direction": "noising"}
    receivers = ["q[1] head 2", "v[2] head 1"]
    wave, plain, small = (
        path_patch(model, given, ["z", "mlp_out"], receivers, engine=engine, **options).tensors[NAME].array
        for engine in (interp.Engine(), interp.Engine("plain"), interp.Engine(chunk_tokens=11))
    )
    assert np.allclose(wave, plain, atol=1e-5, equal_nan=True) and np.allclose(wave, small, atol=1e-5, equal_nan=True)


def test_a_decoder_of_ones_own_runs_it_too():
    model, given = custom(), task()
    found = path_patch(model, given, "z", "logits", positions="each")
    node = found.nodes[found.nodes.index("z[0] head 2 pos 3")]
    expected = [-three_runs(model, node, ("logits",), row, False) for row in range(3)]
    assert np.allclose(found.tensors[NAME].array[found.nodes.index(node)], expected, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", *PARALLEL])
def test_the_direct_effect_of_a_last_layer_head_is_its_patch_unless_mlps_are_frozen(family):
    model, given = hooked(family), task()
    nodes = candidates(model, given, "z", layers=[2])
    whole = patch(model, given, nodes, direction="noising").tensors[NAME].array
    assert np.allclose(path_patch(model, given, nodes).tensors[NAME].array, whole, atol=2e-5)
    frozen = path_patch(model, given, nodes, freeze_mlps=True).tensors[NAME].array
    assert np.allclose(frozen, whole, atol=2e-5) == (family in PARALLEL)


def test_taking_every_head_as_receiver_is_not_the_plain_patch():
    model, given = hooked("gpt2"), task()
    nodes = candidates(model, given, "z", layers=[0])
    every = [f"{kind}[{layer}] head {head}" for kind in "qkv" for layer in (1, 2) for head in range(4)]
    through, whole = path_patch(model, given, nodes, every), patch(model, given, nodes, direction="noising")
    assert abs(through.tensors[NAME].array - whole.tensors[NAME].array).max() > 0.05


def test_senders_above_every_receiver_have_exactly_no_effect():
    found = path_patch(hooked("gpt2"), task(), ["z", "mlp_out"], "q[1] head 0")
    above = found.nodes.layer >= 1
    assert (found.tensors[NAME].array[above] == 0).all() and (found.tensors[NAME].array[~above] != 0).all()


def test_what_is_no_sender_or_receiver_is_named():
    model, given = hooked("llama"), task()
    with pytest.raises(OptionError, match="receivers z.1. head 0: allowed are 'logits' alone, or heads such as"):
        path_patch(model, given, "z", "z[1] head 0")
    with pytest.raises(OptionError, match="receivers q.1.: allowed"):
        path_patch(model, given, "z", ["q[1]"])
    with pytest.raises(OptionError, match="receivers logits: allowed are 'logits' alone"):
        path_patch(model, given, "z", ["logits", "q[1] head 0"])
    with pytest.raises(SiteError, match="'k.1. head 7'.*has heads 0 to 1 there"):
        path_patch(model, given, "z", "k[1] head 7")
    with pytest.raises(SiteError, match="senders q.0. head 0.*write no whole output"):
        path_patch(model, given, "q")
    with pytest.raises(OptionError, match="direction"), unchecked():
        path_patch(model, given, direction="nosing")
