"""Facts: pairs of one relation, equal length and different answers; the public fact files."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from interp import toy
from interp.errors import FileError, OptionError
from interp.tasks.facts import STANDARD, TOY, facts, read_facts

RELATIONS = ("capital", "language", "continent")


@pytest.mark.parametrize("kind", ["bpe", "toy_tokenizer"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_right_and_wrong_are_the_answers_of_the_two_subjects(kind: str, relation: str, request: Any) -> None:
    tokenizer = request.getfixturevalue(kind)
    task = facts(tokenizer, relation=relation, n=15)
    known = dict((TOY if kind == "toy_tokenizer" else STANDARD)[relation])
    for ids, prompts in ((task.answers.correct, task.clean), (task.answers.wrong, task.require_corrupted())):
        for row, tokens in enumerate(prompts.tokens):
            subject = "".join(tokens[p] for p in task.roles["subject"][row]).strip()
            assert tokenizer.decode([int(ids[row, 0, 0])]).strip() == known[subject]
    assert task.roles["last_subject"] == tuple(where[-1:] for where in task.roles["subject"])


def test_toy_facts_are_told_as_the_model_was_not_trained_on(toy_tokenizer: Any) -> None:
    task = facts(toy_tokenizer, n=30)
    assert all(toy.is_test(text) for text in task.clean.texts or ())
    assert len({text.split()[0] for text in task.clean.texts or ()}) > 10


def test_every_fact_with_a_partner_is_one_prompt(bpe: Any) -> None:
    task = facts(bpe, relation="language")
    assert (
        len(task) == len(set(task.groups["entity"])) == len(STANDARD["language"]) and task.parameters["dropped"] == {}
    )


def test_a_partner_has_as_many_tokens_and_another_answer(bpe: Any) -> None:
    entries = [
        ("France", "Paris"),
        ("Italy", "Rome"),
        ("old France", "Berlin"),
        ("old Italy", "Madrid"),
        ("Spain", "Rome"),
    ]
    for seed in range(5):
        task = facts(bpe, seed=seed, lists={"capital": [*entries, ("very old Spain", "Oslo")]})
        assert sorted(task.groups["entity"]) == ["France", "Italy", "Spain", "old France", "old Italy"]
        assert task.parameters["dropped"] == {}


def test_examples_stand_before_the_prompt_with_their_answers(bpe: Any) -> None:
    known = dict(STANDARD["capital"])
    task = facts(bpe, shots=3, n=5)
    for text, entity in zip(task.clean.texts or (), task.groups["entity"], strict=True):
        *shown, last = text.split("\n")
        assert len(shown) == 3 and f"of {entity} is" in last and not any(entity in line for line in shown)
        assert all(line.split(" of ")[2] == known[line.split(" of ")[1].removesuffix(" is the city")] for line in shown)


def test_answers_of_several_tokens_are_left_out_and_counted(bpe: Any) -> None:
    lists = {"capital": [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madridville")]}
    task = facts(bpe, lists=lists)
    assert set(task.groups["entity"]) == {"France", "Italy"} and task.parameters["several_tokens"] == 1
    assert len(facts(bpe, lists=lists, multi_token="first")) == 3


def test_known_facts_and_relations_are_read(shared: Path, pieces: Any) -> None:
    known = read_facts(shared / "known-facts" / "known_1000.json")
    assert len(known) == 1209 and known[0].text == "Vinson Massif is located in the continent of"
    path = shared / "relations-lre" / "factual" / "country_capital_city.json"
    task = facts(pieces, path=path, multi_token="sequence")
    assert task.parameters["source"] == path.name and task.clean.texts[0].startswith("The capital city of ")
    assert set(task.groups["relation"]) == {"country capital city"}


@pytest.mark.parametrize("content", ["", "[1]", json.dumps({"name": "x"}), json.dumps([{"subject": "a"}])])
def test_a_file_without_facts_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(content)
    with pytest.raises(FileError, match="holds no facts that can be read .*; allowed: a list of objects with"):
        read_facts(path)
    with pytest.raises(FileError, match="FileNotFoundError"):
        read_facts(tmp_path / "absent.json")


def test_an_unknown_relation_is_told(bpe: Any) -> None:
    with pytest.raises(OptionError, match="relation is 'capitals'; allowed: 'capital', .*; nearest: 'capital'"):
        inspect.unwrap(facts)(bpe, relation="capitals")
