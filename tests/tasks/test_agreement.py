"""Subject-verb agreement: the verb follows its own subject, and the corrupted prompt changes that noun's number."""

import inspect
from typing import Any

import pytest

from interp.errors import OptionError
from interp.tasks.agreement import STANDARD, TOY, agreement

CONSTRUCTIONS = ("simple", "across_pp", "within_rc", "across_rc")


@pytest.mark.parametrize("kind", ["bpe", "toy_tokenizer"])
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_the_verb_agrees_with_its_subject(kind: str, construction: str, request: Any) -> None:
    tokenizer = request.getfixturevalue(kind)
    task = agreement(tokenizer, construction=construction, n=40)
    lexicon = TOY if kind == "toy_tokenizer" else STANDARD
    forms = {form: number for noun in lexicon["people"] for number, form in enumerate(noun[:2])}
    verbs = {form: number for verb in [*lexicon["verbs"], *lexicon["inner"]] for number, form in enumerate(verb)}
    for row in range(len(task)):
        (place,) = task.roles["subject"][row]
        subject, other = (prompts.tokens[row][place].strip() for prompts in (task.clean, task.require_corrupted()))
        right, wrong = (
            tokenizer.decode([int(ids[row, 0, 0])]).strip() for ids in (task.answers.correct, task.answers.wrong)
        )
        assert forms[subject] == verbs[right] == 1 - verbs[wrong] == 1 - forms[other]
        changed = [
            p
            for p, (a, b) in enumerate(
                zip(*(each.rows()[row] for each in (task.clean, task.require_corrupted())), strict=True)
            )
            if a != b
        ]
        assert changed == [place]
    assert len(set(task.groups["case"])) == (2 if construction == "simple" else 4)


@pytest.mark.parametrize(("construction", "order"), [("across_pp", -1), ("across_rc", -1), ("within_rc", 1)])
def test_the_attractor_stands_between_unless_the_verb_is_the_clauses_own(
    bpe: Any, construction: str, order: int
) -> None:
    task = agreement(bpe, construction=construction, n=20)
    for subject, attractor in zip(task.roles["subject"], task.roles["attractor"], strict=True):
        assert (subject[0] - attractor[0]) * order > 0


def test_the_inner_verb_agrees_with_the_attractor(bpe: Any) -> None:
    inner = {form: number for verb in STANDARD["inner"] for number, form in enumerate(verb)}
    task = agreement(bpe, construction="across_rc", n=20)
    for case, tokens, (place,) in zip(task.groups["case"], task.clean.tokens, task.roles["inner"], strict=True):
        assert inner[tokens[place].strip()] == case.endswith("plural")


def test_a_split_by_noun_leaks_neither_its_singular_nor_its_plural(bpe: Any) -> None:
    train, test = agreement(bpe, n=200).split()
    stems = [
        {
            tokens[where[0]].strip().rstrip("s")
            for tokens, where in zip(side.clean.tokens, side.roles["subject"], strict=True)
        }
        for side in (train, test)
    ]
    assert not stems[0] & stems[1] and test.leakage(train)["prompt"] == 0


def test_an_unknown_construction_names_the_nearest(bpe: Any) -> None:
    with pytest.raises(OptionError, match="construction is 'across_rl'; allowed: .*; nearest: 'across_rc'"):
        inspect.unwrap(agreement)(bpe, construction="across_rl")
