"""An intervention changes exactly the places it names, to exactly the values it promises, or says why it cannot."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import RAGGED, clean, hooked

from interp.errors import InterventionError, OptionError, SiteError
from interp.intervention import Add, Edit, Mean, Patch, Resample, Scale, Zero
from interp.models.runs import Run
from interp.regions import WORDS, Layout
from interp.site import Site
from interp.tokens import from_ids

SHAPES = {"resid_pre": (), "z": (3,), "k": (2,), "pattern": (3,)}
"""Kinds of site with the number of heads of the tensors used here."""


def _tensor(kind: str, width: int, columns: int = 0) -> torch.Tensor:
    """Three rows of non-zero values; a pattern has `width` destinations and `columns` sources."""
    shape = (3, 3, width, columns) if kind == "pattern" else (3, width, *SHAPES[kind], 4)
    return torch.rand(shape) + 1


def _positions(pos, row, rows, length, width):
    """Positions that `pos` means for one row, at most `width`; written out word by word."""
    if pos in (None, "all"):
        return list(range(width))
    if pos == "prompt":
        return list(range(length))
    if pos == "new tokens":
        return list(range(length, width))
    if pos in ("end", "last prompt token"):
        return [length - 1]
    if isinstance(pos, int):
        return [pos]
    return pos[rows.index(row)] if isinstance(pos[0], list) else pos


@settings(max_examples=150)
@given(st.data())
def test_exactly_the_named_places_change(data):
    kind = data.draw(st.sampled_from(sorted(SHAPES)))
    lengths, start = data.draw(st.sampled_from([([4, 6, 5], [2, 0, 1]), ([4, 6, 5], [0, 0, 0])]))
    first, width = data.draw(st.sampled_from([(0, 6), (0, 8), (6, 1)]))
    x = _tensor(kind, width, first + width)
    some = lambda top: st.lists(st.integers(0, top - 1), min_size=1, max_size=3, unique=True)  # noqa: E731
    rows = data.draw(st.none() | some(3))
    chosen = rows or [0, 1, 2]
    per_row = st.tuples(*(some(lengths[r]).map(sorted) for r in chosen)).map(list)
    pos = data.draw(st.sampled_from([None, *WORDS]) | st.integers(0, 3) | some(4) | per_row)
    head = data.draw(st.none() | some(SHAPES[kind][0])) if SHAPES[kind] else None
    unit = data.draw(st.none() | some(4))

    expected = x.clone()
    for row in chosen:
        for p in _positions(pos, row, chosen, lengths[row], first + width - start[row]):
            column = p + start[row] - first
            if not 0 <= column < width:
                continue
            for h in head or range(SHAPES[kind][0] if SHAPES[kind] else 1):
                for u in unit or range(-start[row] if kind == "pattern" else 0, x.shape[-1]):
                    if kind == "pattern":
                        if 0 <= u + start[row] < x.shape[-1]:
                            expected[row, h, column, u + start[row]] = 0
                    elif SHAPES[kind]:
                        expected[row, column, h, u] = 0
                    else:
                        expected[row, column, u] = 0
    before = x.clone()
    one = Zero(Site(kind, 0), head=head, pos=pos, unit=unit, rows=rows)
    new = one.apply(x, Layout(torch.tensor(start), torch.tensor(lengths), first))
    assert torch.equal(x, before)
    assert torch.equal(x if new is None else new, expected)
    assert (new is None) <= torch.equal(expected, before)


# --- values ---


def _run(rows, width=4, seed=0, site="resid_pre[0]", heads=()):
    prompts = from_ids(rows)
    shape = (*prompts.ids.shape, *heads, width)
    return Run(prompts, None, {Site.parse(site): torch.rand(shape, generator=torch.Generator().manual_seed(seed))})


def _layout(lengths):
    return Layout(torch.zeros(len(lengths), dtype=torch.long), torch.tensor(lengths))


def _apply(one, x, lengths):
    faults = one.faults({"head": 3, "kv_head": 2, "d": 4}, lengths)
    assert not faults
    return one.apply(x, _layout(lengths))


def test_a_patch_takes_each_rows_own_values_position_by_position():
    source, x = _run([[1, 2, 3], [4, 5, 6]]), torch.zeros(2, 3, 4)
    values = source["resid_pre[0]"]
    assert torch.equal(_apply(Patch("resid_pre[0]", source), x, [3, 3]), values)
    there = _apply(Patch("resid_pre[0]", source, pos=[[0], [2]]), x, [3, 3])
    assert torch.equal(there[0, 0], values[0, 0])
    assert torch.equal(there[1, 2], values[1, 2])
    assert int((there != 0).any(-1).sum()) == 2


def test_a_patch_can_take_from_other_positions_also_when_rows_have_different_numbers_of_them():
    source, x = _run([[1, 2, 3], [4, 5, 6, 7]]), torch.zeros(2, 4, 4)
    values = source["resid_pre[0]"]
    new = _apply(Patch("resid_pre[0]", source, pos=[[2], [0, 3]], source_pos=[[0], [3, 1]]), x, [3, 4])
    assert torch.equal(new[0, 2], values[0, 0])
    assert torch.equal(new[1, 0], values[1, 3])
    assert torch.equal(new[1, 3], values[1, 1])
    assert int((new != 0).any(-1).sum()) == 3
    longer = _apply(Patch("resid_pre[0]", source, pos=1, source_pos=2), x, [2, 2])
    assert torch.equal(longer[:, 1], values[:, 2])


def test_one_source_row_serves_every_row_and_chosen_rows_take_their_own():
    one, x = _run([[1, 2, 3]]), torch.zeros(2, 3, 4)
    assert torch.equal(_apply(Patch("resid_pre[0]", one), x, [3, 3]), one["resid_pre[0]"].expand(2, -1, -1))
    two = _run([[1, 2, 3], [4, 5, 6]])
    new = _apply(Patch("resid_pre[0]", two, rows=[1], unit=[3]), x, [3, 3])
    assert torch.equal(new[1, :, 3], two["resid_pre[0]"][1, :, 3])
    assert int((new != 0).sum()) == 3


def test_a_pattern_is_patched_row_by_row_also_from_a_shorter_prompt():
    site = Site("pattern", 0)
    source = Run(from_ids([[1, 2, 3]]), None, {site: torch.rand(1, 3, 3, 3)})
    new = _apply(Patch(site, source, pos=2, rows=0), torch.ones(2, 3, 5, 5), [5, 4])
    assert torch.equal(new[0, :, 2, :3], source[site][0, :, 2])
    assert torch.equal(new[0, :, 2, 3:], torch.zeros(3, 2))
    assert bool((new[1] == 1).all())
    assert bool((new[0, :, [0, 1, 3, 4]] == 1).all())


def test_a_mean_leaves_out_padding_and_the_skipped_positions():
    run = _run([[1, 2], [3, 4, 5]])
    values = run["resid_pre[0]"]
    run.cache[Site.parse("resid_pre[0]")][0, 2] = 1e6  # padding
    real = torch.stack([values[0, 0], values[0, 1], values[1, 0], values[1, 1], values[1, 2]])
    x = torch.zeros(1, 3, 4)
    assert torch.allclose(_apply(Mean("resid_pre[0]", run), x, [3]), real.mean(0).expand(1, 3, 4))
    skipped = torch.stack([values[0, 1], values[1, 1], values[1, 2]]).mean(0)
    assert torch.allclose(_apply(Mean("resid_pre[0]", run, skip=1), x, [3])[0, 0], skipped)
    each = _apply(Mean("resid_pre[0]", run, by_position=True), x, [3])[0]
    assert torch.allclose(each, torch.stack([values[:, 0].mean(0), values[:, 1].mean(0), values[1, 2]]))
    heads = _run([[1, 2], [3, 4, 5]], site="z[0]", heads=(3,))
    one = _apply(Mean("z[0]", heads, head=1, pos=[1], by_position=True), torch.zeros(1, 3, 3, 4), [3])
    assert torch.allclose(one[0, 1, 1], heads["z[0]"][:, 1, 1].mean(0))
    assert int((one != 0).sum()) == 4


def test_a_half_precision_mean_is_summed_in_float32():
    site = Site("resid_pre", 0)
    run = Run(from_ids([[1] * 3000]), None, {site: torch.full((1, 3000, 4), 3.0, dtype=torch.bfloat16)})
    assert torch.equal(_apply(Mean(site, run), torch.zeros(1, 1, 4), [1]), torch.full((1, 1, 4), 3.0))


@given(st.integers(0, 50), st.integers(2, 5))
def test_a_resampled_row_never_gets_its_own_value_and_the_seed_decides(seed, count):
    source = _run([[1, 2, 3]] * count)
    values = source["resid_pre[0]"]
    one = Resample("resid_pre[0]", source, seed=seed)
    new = _apply(one, torch.zeros(count, 3, 4), [3] * count)
    donors = [[torch.equal(row, value) for value in values].index(True) for row in new]
    assert all(donor != row for row, donor in enumerate(donors))
    assert torch.equal(new, _apply(one, torch.zeros(count, 3, 4), [3] * count))


def test_scale_add_and_edit_do_what_they_say():
    x = torch.rand(2, 3, 3, 4)
    gates = torch.tensor([0.0, 0.5]).view(2, 1, 1, 1)
    assert torch.equal(_apply(Scale("z[0]", gates), x, [3, 3]), x * gates)
    assert torch.equal(_apply(Scale("z[0]", 2.0, head=1), x, [3, 3])[:, :, 1], x[:, :, 1] * 2)
    direction = torch.rand(4)
    assert torch.equal(_apply(Add("z[0]", direction, 3.0, head=0), x, [3, 3])[:, :, 0], x[:, :, 0] + 3 * direction)
    before = x.clone()
    assert torch.equal(_apply(Edit("z[0]", lambda v: v.zero_()), x, [3, 3]), torch.zeros_like(x))
    assert torch.equal(x, before)


# --- mistakes ---


def _mistakes():
    """What is given, and what must be said about it; the model has 3 layers, 4 heads and 32 coordinates."""
    model = hooked("gpt2")
    run = model.run(clean(), record=["z[0]", "pattern[0]"])
    short = model.run([RAGGED[0]], record=["z[0]"])
    two = model.run([RAGGED[0], RAGGED[0]], record=["z[0]"])
    other = hooked("llama").run(clean(), record=["z[0]"])
    return {
        "head 9": (Zero("z[0]", head=9), r"Zero at z\[0\] \(head=9\): head \[9\] out of range; allowed 0 to 3"),
        "head -1": (Zero("z[0]", head=-1), r"head \[-1\] out of range; allowed 0 to 3"),
        "unit": (Zero("resid_pre[0]", unit=[3, 32]), r"unit \[32\] out of range; allowed 0 to 31"),
        "source position": (Zero("pattern[0]", unit=9), r"unit \[9\] out of range; allowed 0 to 8"),
        "rows": (Zero("z[0]", rows=[0, 3]), r"rows \[3\] out of range; allowed 0 to 2"),
        "position": (Zero("z[0]", pos=6), r"position 6 of row 0 out of range; its prompt has positions 0 to 5"),
        "position -1": (Zero("z[0]", pos=-1), r"position -1 of row 0 out of range; .*position -1 of row 2 out of ran"),
        "lists": (Zero("z[0]", pos=[[1], [2]]), r"one list of positions a row is needed for 3 rows; got 2"),
        "no place": (Zero("z[0]", pos=[[], [], []]), r"not applied \(the site fired 0 times at these positions\): Ze"),
        "new tokens": (Zero("z[0]", pos="new tokens"), r"there are no new tokens in run\(\); use generate\(\)"),
        "patch shape": (Patch("z[0]", torch.ones(2, 9, 4, 8)), r"the new value has shape \(2, 9, 4, 8\); it must "
                        r"broadcast to \(3, 9, 4, 8\) \(batch x pos x head x d_head of the selected part\)"),
        "edit": (Edit("z[0]", lambda v: None), r"Edit at z\[0\]: the new value is NoneType; a tensor is needed"),
        "no function": (Edit("z[0]"), r"Edit at z\[0\] has no function; pass one that takes and returns a tensor"),
        "no direction": (Add("z[0]"), r"Add at z\[0\] has no direction; pass a tensor of the site's width"),
        "rows of source": (Patch("z[0]", two), r"the source run has 2 rows, this run 3; they must agree \(or be 1\)"),
        "lengths": (Patch("z[0]", short), r"source and base have unequal lengths \(row 1: 6 against 9 tokens, row 2: 6 "
                    r"against 7 tokens\); give the positions"),
        "source positions": (Patch("z[0]", short, pos=[[1], [7], [2]]), r"source's row 1 has 6 tokens; positions \[7"),
        "counts": (Patch("z[0]", run, pos=[1, 2], source_pos=[1]), r"row 0 has 2 positions but 1 source positions"),
        "source_pos alone": (Patch("z[0]", run, source_pos=[1]), r"source_pos needs pos; give the positions of both"),
        "source_pos word": (Patch("z[0]", run, pos=1, source_pos="end"), r"source_pos='end' is a word; give numbers"),
        "source_pos rows": (Patch("z[0]", run, pos=1, source_pos=[[1], [2]]), r"source_pos has 2 lists for 3 rows"),
        "not recorded": (Patch("z[1]", run), r"z\[1\] was not recorded in this run \(recorded: z\[0\], pattern\[0\]"),
        "other model": (Patch("z[0]", other), r"the source run's z\[0\] is \(3, 9, 8, 16\), this model's part is \(3"),
        "mean of patterns": (Mean("pattern[0]", run), r"a mean of attention patterns is not defined across positions"),
        "mean too short": (Mean("z[0]", short, by_position=True), r"a prompt has 9 tokens, the reference only 6; no"),
        "skip": (Mean("z[0]", run, skip=9), r"skip=9 leaves no token of the reference"),
        "one donor": (Resample("z[0]", short, pos=1), r"the source run has 1 row; at least 2 are needed"),
        "ragged donors": (Resample("z[0]", run), r"prompts of unequal length \(6 to 9 tokens\); give the positions"),
        "ragged ends": (Resample("z[0]", run, pos="end"), r"prompts of unequal length \(6 to 9 tokens\); give the po"),
        "donor too short": (Resample("z[0]", run, pos=[[1], [6], [2]]), r"position 6 is asked of donors as short as"),
    }  # fmt: skip


def test_every_mistake_is_refused_with_the_place_the_value_and_the_range():
    missed = []
    for name, (one, message) in _mistakes().items():
        try:
            hooked("gpt2").run(clean(), [one])
            missed.append(f"{name}: nothing raised")
        except (InterventionError, SiteError) as error:
            if not re.search(message, str(error)):
                missed.append(f"{name}: {error}")
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("one", [Add("z[0]", direction=torch.ones(5)), Scale("z[0]", factor=torch.ones(5))])
def test_a_direction_or_factor_that_does_not_fit_names_both_shapes_and_the_site(one):
    with pytest.raises(InterventionError, match=r"shape \(5,\); it must broadcast to \(3, 9, 4, 8\)") as caught:
        hooked("gpt2").run(clean(), [one])
    assert caught.value.__notes__ == ["raised in an intervention or recorder at z[0]"]


def test_all_index_faults_of_a_run_are_reported_together():
    with pytest.raises(InterventionError) as caught:
        hooked("gpt2").run(clean(), [Zero("z[0]", head=9), Zero("z[1]"), Zero("k[2]", head=4, rows=7)])
    assert str(caught.value) == (
        "Zero at z[0] (head=9): head [9] out of range; allowed 0 to 3; Zero at k[2] (head=4, rows=7): head [4] out of "
        "range; allowed 0 to 3; Zero at k[2] (head=4, rows=7): rows [7] out of range; allowed 0 to 2."
    )


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Zero("z[0]", pos="endd"),
            OptionError,
            "position 'endd' is not known; allowed words: 'all', 'end', 'last",
        ),
        (
            lambda: Zero("z[0]", head=[], pos=[]),
            InterventionError,
            r"z\[0\]: head, pos given as an empty list; leave out",
        ),
        (lambda: Zero("resid_pre[0]", head=1), InterventionError, r"resid_pre\[0\] has no heads, but head=1 was given"),
        (lambda: Zero("zz[0]"), SiteError, "no site kind 'zz'"),
        (lambda: Patch("z[0]"), InterventionError, r"Patch at z\[0\] has no source; pass a Run that recorded the site"),
        (
            lambda: Mean("z[0]"),
            InterventionError,
            r"Mean at z\[0\] has no reference; pass a Run that recorded the site",
        ),
        (
            lambda: Resample("z[0]"),
            InterventionError,
            r"Resample at z\[0\] has no source; pass a Run that recorded the",
        ),
    ],
)
def test_a_mistake_in_making_one_is_raised_when_it_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_intervention_prints_its_place():
    assert str(Zero("z[3]", head=2, pos="end")) == "Zero at z[3] (head=2, pos=end)"
    assert str(Scale("embed", 0.5)) == "Scale at embed"
