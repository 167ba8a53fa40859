"""Cause, Iso and Disentangle by hand, in both conventions; intervals; comparisons on the same examples."""

from dataclasses import replace

import numpy as np
import pytest
from circuits import unchecked
from interchange_examples import examples, resumption
from tiny import hooked

from interp.errors import OptionError
from interp.interchange.examples import Counterfactuals
from interp.interchange.exchanges import FullVector
from interp.interchange.placing import AtRoles
from interp.interchange.scores import InterchangeScores, score_interchange


def asked(pairs: list[tuple[str, str]]) -> Counterfactuals:
    """Examples with these concepts and queries."""
    data = examples(len(pairs))
    return replace(data, concepts=tuple(a for a, _ in pairs), queried=tuple(b for _, b in pairs))


PAIRS = [("A", "A"), ("A", "A"), ("A", "A"), ("B", "B"), ("A", "B"), ("A", "C"), ("A", "C"), ("B", "A")]
RIGHT = np.array([1, 0, 1, 0, 1, 0, 1, 1], dtype=bool)


def test_the_two_conventions_by_hand() -> None:
    scores = InterchangeScores(asked(PAIRS), RIGHT, np.ones(8, dtype=bool))
    assert scores.cause("A") == pytest.approx(2 / 3) and scores.cause("B") == 0
    assert scores.isolate("A") == pytest.approx((1 + 0.5) / 2) and scores.isolate("B") == 1
    assert scores.disentangle("A") == pytest.approx((2 / 3 + 0.75) / 2)
    assert scores.cause() == pytest.approx(1 / 3) and scores.isolate() == pytest.approx((0.75 + 1) / 2)
    assert scores.cause(convention="micro") == pytest.approx(2 / 4)
    assert scores.isolate(convention="micro") == pytest.approx(3 / 4)
    assert scores.isolate("A", convention="micro") == pytest.approx(2 / 3)
    assert scores.disentangle(answer="first") == 1


def test_a_kind_without_examples_is_undefined() -> None:
    scores = InterchangeScores(asked([("A", "A"), ("A", "A")]), np.array([True, False]), np.array([True, True]))
    assert scores.cause() == 0.5 and np.isnan(scores.isolate()) and np.isnan(scores.disentangle("A"))


def test_intervals_resample_entities_and_hold_the_score() -> None:
    scores = InterchangeScores(asked(PAIRS), RIGHT, RIGHT)
    low, high = scores.interval()
    assert 0 <= low <= scores.disentangle() <= high <= 1 and low < high
    assert scores.interval() == (low, high)
    sure = InterchangeScores(asked(PAIRS), np.ones(8, dtype=bool), RIGHT)
    assert sure.interval() == (1.0, 1.0)
    one_entity = replace(asked(PAIRS), groups={"entity": tuple("x" for _ in asked(PAIRS).lengths)})
    low, high = InterchangeScores(one_entity, RIGHT, RIGHT).interval()
    assert low == high == pytest.approx(scores.disentangle())


def test_gains_are_paired() -> None:
    data = asked(PAIRS)
    one, other = InterchangeScores(data, RIGHT, RIGHT), InterchangeScores(data, ~RIGHT, RIGHT)
    gain, low, high = one.gain_over(other)
    assert gain == pytest.approx(one.disentangle() - other.disentangle()) and low <= gain <= high
    assert one.gain_over(one) == (0.0, 0.0, 0.0)
    with pytest.raises(OptionError, match="scores are of different examples"):
        one.gain_over(InterchangeScores(asked(PAIRS[:4]), RIGHT[:4], RIGHT[:4]))


def test_the_table_has_every_concept_and_all() -> None:
    table = InterchangeScores(asked(PAIRS), RIGHT, RIGHT).table()
    assert table["concept"].tolist() == ["A", "B", "all"]
    assert table["disentangle"][2] == InterchangeScores(asked(PAIRS), RIGHT, RIGHT).disentangle()


def test_unknown_words_are_named() -> None:
    scores = InterchangeScores(asked(PAIRS), RIGHT, RIGHT)
    with unchecked(), pytest.raises(OptionError, match="convention is 'makro'.*nearest: 'macro'"):
        scores.cause(convention="makro")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no concept 'D'; allowed: A, B"):
        scores.cause("D")


def test_an_answer_counts_where_greedy_decoding_gives_it() -> None:
    model = hooked("llama")
    data = examples(12)
    said = []
    for n in range(12):
        row = int(data.base[n])
        prompt = data.prompts.rows()[row][: data.lengths[row]]
        said.append(model.generate([prompt], len(data.answers[n]), min_new_tokens=len(data.answers[n])).new_ids[0])
    half = [said[n] if n % 2 else data.answers[n] for n in range(12)]
    rows = [
        data.prompts.rows()[int(data.base[n])][: data.lengths[int(data.base[n])]] + list(half[n][:-1])
        for n in range(12)
    ]
    prompts = data.prompts.rows()
    for n in range(12):
        prompts[int(data.base[n])] = rows[n]
    from interp.tokens import from_ids

    data = replace(data, prompts=from_ids(prompts), answers=tuple(map(tuple, half)))
    scores = score_interchange(resumption(model, data, "resid_post[1]"), data, None, progress=False)
    assert scores.full.tolist() == [tuple(said[n]) == tuple(half[n]) for n in range(12)]
    assert scores.full[1::2].all() and (scores.first | ~scores.full).all()


def test_scores_do_not_depend_on_batches_and_modes_stay() -> None:
    model, data = hooked("gemma2"), examples(12)
    runs, one = resumption(model, data, "resid_post[0]"), AtRoles("resid_post[0]", FullVector(), "end").train()
    found = [score_interchange(runs, data, one, batch=size, progress=False).full.tolist() for size in (1, 5, 64)]
    assert found[0] == found[1] == found[2] and one.training


def test_what_does_not_belong_together_is_refused() -> None:
    model, data = hooked("llama"), examples()
    runs = resumption(model, data, "resid_post[0]")
    with pytest.raises(OptionError, match=r"interchange is at resid_post\[1\], the runs change resid_post\[0\]"):
        score_interchange(runs, data, AtRoles("resid_post[1]", FullVector(), "end"))
    with pytest.raises(OptionError, match="states are of other prompts"):
        score_interchange(runs, examples(), None)
