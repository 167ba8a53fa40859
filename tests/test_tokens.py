"""Prompts carry their own lengths; padding side, padding width and padding values cannot be seen in them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TK, custom, hooked, unchecked
from tiny import task as tiny_task

from interp.errors import PromptError
from interp.tokens import from_ids, tokenize, tokenizer_fingerprint

ROWS = st.lists(st.lists(st.integers(1, 96), min_size=1, max_size=7), min_size=1, max_size=5)


def _padded(rows, side, extra=0, fill=0):
    """A padded tensor of the rows, and its mask."""
    width = max(map(len, rows)) + extra
    full = [(width - len(row), row) for row in rows]
    left = side == "left"
    ids = [[fill] * n + row if left else row + [fill] * n for n, row in full]
    mask = [[0] * n + [1] * len(row) if left else [1] * len(row) + [0] * n for n, row in full]
    return torch.tensor(ids), torch.tensor(mask)


@given(ROWS, st.sampled_from(["left", "right"]), st.integers(0, 3), st.integers(0, 96))
def test_lists_and_tensors_padded_on_either_side_give_the_same_prompts(rows, side, extra, fill):
    ids, mask = _padded(rows, side, extra, fill)
    for prompts in (from_ids(rows), from_ids(ids, mask), from_ids(ids, mask.bool())):
        assert prompts.rows() == rows
        assert prompts.lengths.tolist() == [len(row) for row in rows]
        assert torch.equal(prompts.ids, _padded(rows, "right")[0])
        assert torch.equal(prompts.mask, _padded(rows, "right")[1].bool())
        assert prompts.position_ids.tolist() == [list(range(prompts.ids.shape[1]))] * len(rows)
        assert prompts.last.tolist() == [len(row) - 1 for row in rows]


@given(ROWS, st.data())
def test_chosen_rows_are_prompts_of_their_own_cut_to_their_longest(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4))
    prompts = from_ids(rows)
    assert prompts[chosen].rows() == [rows[r] for r in chosen]
    assert prompts[chosen].ids.shape[1] == max(len(rows[r]) for r in chosen)
    assert prompts[chosen[0]].rows() == [rows[chosen[0]]]
    assert prompts[1:].rows() == rows[1:]
    assert [one.rows()[0] for one in prompts] == rows


def test_a_mask_of_rows_is_refused_since_it_would_pass_for_rows_0_and_1():
    mask = [True, False]
    for rows in (mask, torch.tensor(mask), torch.tensor(mask).numpy()):
        with pytest.raises(PromptError, match="rows are given as true and false; give their numbers"), unchecked():
            from_ids([[1], [2, 3]])[rows]


def test_answers_and_tasks_refuse_a_mask_too_and_take_numpy_numbers():
    task = tiny_task()
    for holder in (task, task.answers, task.clean):
        with pytest.raises(PromptError, match="rows are given as true and false"), unchecked():
            holder[torch.tensor([True, False, False])]
        with unchecked():
            assert len(holder[np.int64(1)]) == 1 and len(holder[np.array([2, 0])]) == 2


@pytest.mark.parametrize("auto_bos", [False, True])
def test_a_string_becomes_exactly_what_the_tokenizer_makes_of_it(auto_bos):
    tokenizer = TK(auto_bos=auto_bos)
    texts = ["When Mary gave", "When Paris gave the book"]
    prompts = tokenize(tokenizer, texts)
    assert prompts.rows() == [tokenizer(text)["input_ids"] for text in texts]
    assert prompts.texts == tuple(texts)
    assert prompts.tokens[1][auto_bos:] == ("when", "par", "##is", "gave", "the", "book")
    assert tokenize(tokenizer, texts[1]).rows() == prompts.rows()[1:]
    assert prompts[[1]].tokens == prompts.tokens[1:]
    assert (prompts[[1]].texts, prompts[:1].texts) == ((texts[1],), (texts[0],))


def test_neither_padding_settings_nor_the_pad_token_change_prompts_and_both_stay_as_they_were():
    texts = ["hi", "when mary gave john the book"]
    expected = tokenize(TK(), texts)
    for options in ({"side": "left"}, {"pad": "</s>"}):
        tokenizer = TK(**options)
        before = (tokenizer.padding_side, tokenizer.pad_token, tokenizer.backend_tokenizer.padding)
        assert torch.equal(tokenize(tokenizer, texts).ids, expected.ids)
        assert (tokenizer.padding_side, tokenizer.pad_token, tokenizer.backend_tokenizer.padding) == before


def test_chat_messages_go_through_the_template_with_one_bos():
    for tokenizer in (TK(), TK(auto_bos=True)):
        one = tokenize(tokenizer, [[{"role": "user", "content": "hi mary"}]])
        assert one.texts == ("<s> user : hi mary assistant :",)
        assert one.rows() == [[1, 16, 18, 19, 5, 17, 18]]
        assert tokenize(tokenizer, [{"role": "user", "content": "hi mary"}]).rows() == one.rows()


def test_every_doubled_bos_is_reported_with_its_ids():
    with pytest.raises(PromptError) as caught:
        tokenize(TK(auto_bos=True), ["<s> hi", "hi", "<s> the book"])
    assert str(caught.value) == (
        "prompt 0 '<s> hi' begins with two BOS tokens (ids [1, 1, 19]...): the tokenizer adds one; prompt 2 "
        "'<s> the book' begins with two BOS tokens (ids [1, 1, 10, 13]...): the tokenizer adds one. Remove the BOS "
        "from the text, or pass ids."
    )
    assert tokenize(TK(), ["<s> hi"]).rows() == [[1, 19]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_ids([[1], []]), r"prompts without a token: rows \[1\]; each needs at least one"),
        (lambda: from_ids([]), r"prompts without a token: rows none given"),
        (lambda: from_ids([[1]], torch.ones(1, 1)), "an attention mask goes with a padded tensor; lists of ids carry"),
        (
            lambda: from_ids(torch.ones(2, 3), None),
            r"token ids must be integers \[batch, pos\]; got torch.float32 \(2, 3\)",
        ),
        (
            lambda: from_ids(torch.ones(2, 3).long(), torch.ones(3, 2)),
            r"mask is \(3, 2\), token ids are \(2, 3\); they",
        ),
        (
            lambda: from_ids(torch.ones(3, 4).long(), torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]])),
            r"attention mask of rows \[0, 2\] has holes; only padding at an end is allowed",
        ),
        (lambda: from_ids(torch.ones(2, 2).long(), torch.tensor([[1, 1], [0, 0]])), r"without a token: rows \[1\]"),
        (
            lambda: tokenize(None, ["hi"]),
            "a prompt given as text needs a tokenizer; this model has none: pass token ids",
        ),
        (lambda: tokenize(TK(), []), "no prompts were given; pass at least one text"),
        (lambda: tokenize(TK(), ["hi", ""]), r"prompt 1 '' has no token\. "),
        (lambda: hooked("gpt2").prompts([[]]), r"prompts without a token: rows \[0\]"),
        (lambda: custom().prompts("hi"), "a prompt given as text needs a tokenizer"),
    ],
)
def test_prompts_that_cannot_be_are_refused_with_the_reason(make, message):
    with pytest.raises(PromptError, match=message):
        make()


def test_one_row_of_ids_with_its_mask_is_one_prompt():
    assert from_ids(torch.tensor([0, 5, 6]), torch.tensor([0, 1, 1])).rows() == [[5, 6]]
    assert from_ids([5, 6]).rows() == from_ids(torch.tensor([5, 6])).rows() == [[5, 6]]


def test_a_model_takes_ids_in_every_usual_form():
    model, rows = hooked("gpt2"), [[5, 6, 7], [8, 9, 10]]
    forms = [rows, [tuple(r) for r in rows], torch.tensor(rows), [torch.tensor(r) for r in rows], from_ids(rows)]
    assert all(model.prompts(form).rows() == rows for form in forms)
    ids, mask = _padded([[5, 6, 7], [8]], "left", fill=4)
    assert model.prompts({"input_ids": ids, "attention_mask": mask}).rows() == [[5, 6, 7], [8]]


def test_what_the_tokenizer_returns_is_taken_with_its_mask():
    tokenizer = TK(side="left")
    encoded = tokenizer(["hi", "hi mary gave"], padding=True, return_tensors="pt")
    assert hooked("gpt2").prompts(encoded).rows() == [[19], [19, 5, 6]]


def test_the_fingerprint_follows_vocabulary_and_special_tokens():
    assert tokenizer_fingerprint(None) == ""
    same = {
        tokenizer_fingerprint(TK()),
        tokenizer_fingerprint(TK(side="left")),
        tokenizer_fingerprint(TK(auto_bos=True)),
    }
    assert len(same) == 1
    assert tokenizer_fingerprint(TK(pad="</s>")) not in same
