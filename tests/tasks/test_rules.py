"""Rule induction: the words, the two rules, and the corrupted prompt under the other one."""

import inspect
from typing import Any

import pytest

from interp.errors import OptionError, TaskError
from interp.metrics import LogitDiff
from interp.tasks import task as by_name
from interp.tasks.rules import rules


def read(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.replace("^", "").split() for line in text.split("\n")]


def test_every_line_follows_the_rule_and_the_answer_is_the_querys_word(bpe: Any) -> None:
    task = rules(bpe, n=30)
    for row, (text, pattern) in enumerate(zip(task.clean.texts or (), task.groups["pattern"], strict=True)):
        *lines, query = read(text)
        assert len(lines) == 4 and all("^" not in line.split()[2] for line in text.split("\n")[:-1])
        assert all(third == (a if pattern == "ABA" else b) for a, b, third in lines)
        ids = [int(task.answers.correct[row, 0, 0]), int(task.answers.wrong[row, 0, 0])]
        assert bpe.decode(ids) == "".join(f" {word}" for word in (query if pattern == "ABA" else query[::-1]))
        assert task.groups["entity"][row] == "|".join(query)
        assert len({word for line in read(text) for word in line}) == 10
    assert sorted(set(task.groups["pattern"])) == ["ABA", "ABB"] and isinstance(task.metric, LogitDiff)


def test_the_corrupted_prompt_has_the_same_words_under_the_other_rule(bpe: Any) -> None:
    task = rules(bpe, n=12, lines=2)
    for clean, corrupted, pattern in zip(
        task.clean.texts or (), task.require_corrupted().texts or (), task.groups["pattern"], strict=True
    ):
        assert [line[:2] for line in read(clean)] == [line[:2] for line in read(corrupted)]
        where = 1 if pattern == "ABA" else 0
        assert all(line[2] == line[where] for line in read(corrupted)[:-1])


def test_prompts_are_equally_long_and_roles_are_their_words(bpe: Any) -> None:
    task = rules(bpe, n=10)
    assert set(task.clean.lengths.tolist()) == {4 * 6 + 4}
    assert set(task.roles) == {f"{part}{i}" for part in "abc" for i in range(1, 5)} | {"query_a", "query_b", "end"}
    for row, (text, tokens) in enumerate(zip(task.clean.texts or (), task.clean.tokens, strict=True)):
        lines = dict(zip("1234", read(text), strict=False))
        said = {role: [tokens[p].strip() for p in where[row]] for role, where in task.roles.items()}
        assert all(said["abc"[part] + i] == [line[part]] for i, line in lines.items() for part in range(3))
        assert [said["query_a"], said["query_b"]] == [[word] for word in read(text)[-1]]
        assert tokens[task.roles["end"][row][0]] == "^"


def test_one_pattern_and_no_corrupted_prompt(bpe: Any) -> None:
    task = rules(bpe, n=6, pattern="ABB", corrupted=False)
    assert set(task.groups["pattern"]) == {"ABB"} and task.corrupted is None and task.answers.wrong.shape[-1] == 1


def test_the_seed_alone_decides(bpe: Any) -> None:
    one, again, other = (rules(bpe, n=8, seed=seed).clean.texts for seed in (3, 3, 4))
    assert one == again and not set(one or ()) & set(other or ())


def test_the_vocabulary_is_read_until_enough_words_are_found(words: Any) -> None:
    letters = "bcdfghklm"
    known = " ".join(a + b + c for a in letters for b in letters for c in letters)
    task = rules(words(known + " ^ Ċ"), n=4)
    assert task.parameters["words"] == 200
    small = words("red blue green black one two a ^ Ċ Red b42 wonderfully")
    assert rules(small, n=4, lines=2).parameters["words"] == 6
    with pytest.raises(
        TaskError, match="6 words of 2 to 8 lowercase letters are one token .*, 8 are needed; use fewer"
    ):
        rules(small, lines=3)


def test_words_of_a_tokenizer_with_a_bos_that_marks_starts(pieces: Any) -> None:
    task = rules(pieces, n=5, lines=1)
    assert len(set(task.clean.lengths.tolist())) == 1 and task.clean.tokens[0][0] == "<s>"


def test_too_few_prompts_are_told(words: Any) -> None:
    small = words("red blue green black ^ Ċ")
    with pytest.raises(TaskError, match="48 good distinct pairs for the 60 asked for"):
        rules(small, n=60, lines=1)


def test_options_outside_their_values_are_told(bpe: Any) -> None:
    with pytest.raises(OptionError, match="pattern is 'ABAB'; allowed: 'both', 'ABA', 'ABB'; nearest: 'ABB', 'ABA'"):
        inspect.unwrap(rules)(bpe, pattern="ABAB")
    with pytest.raises(OptionError, match="lines=0; allowed: at least 1"):
        rules(bpe, lines=0)
    with pytest.raises(TaskError, match="got None; pass the model's"):
        rules(None)
    with pytest.raises(OptionError, match="task 'rules' has no option 'patern'; .*nearest: 'pattern'"):
        by_name("rules", bpe, patern="ABA")
