"""make_task: what becomes of good pairs, and every fault told with its tokens."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from interp.errors import OptionError, PromptError, TaskError
from interp.metrics import LogitDiff, LogProb
from interp.tasks.build import make_task
from interp.tasks.pair import Pair
from interp.tokens import tokenizer_fingerprint

WORDS = "When Mary John Anna went to the store , gave a drink and Lind say . 's"
CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPTED = "When Mary and John went to the store, Mary gave a drink to"
GOOD = Pair(CLEAN, " Mary", " John", CORRUPTED, {"IO": "Mary", "S2": [(38, 42)]}, groups={"entity": "Mary|John"})


@pytest.fixture(params=["", "<s>"], ids=["no BOS", "BOS"])
def tokenizer(request: pytest.FixtureRequest, words: Callable[..., Any]) -> Any:
    return words(WORDS, request.param)


def test_a_pair_becomes_ids_positions_and_answers(tokenizer: Any) -> None:
    task = make_task("ioi", [GOOD], tokenizer)
    shift = int(tokenizer.bos_token is not None)
    assert task.clean.rows() == [tokenizer(CLEAN)["input_ids"]]
    assert task.require_corrupted().rows() == [tokenizer(CORRUPTED)["input_ids"]]
    end = len(task.clean.rows()[0]) - 1
    assert task.roles == {"IO": ((1 + shift,),), "S2": ((9 + shift,),), "end": ((end,),)}
    assert task.answers.positions.tolist() == [[end]]
    vocabulary = tokenizer.get_vocab()
    assert task.answers.correct.tolist() == [[[vocabulary["ĠMary"]]]]
    assert task.answers.wrong.tolist() == [[[vocabulary["ĠJohn"]]]]
    assert task.groups == {"entity": ("Mary|John",)} and task.metric == LogitDiff()
    assert task.tokenizer_fingerprint == tokenizer_fingerprint(tokenizer)


def test_without_wrong_answers_the_metric_is_the_log_probability(tokenizer: Any) -> None:
    task = make_task("plain", [Pair(CLEAN, [" Mary", " Anna"])], tokenizer)
    assert task.metric == LogProb() and task.corrupted is None
    assert task.answers.correct.shape == (1, 1, 2) and task.answers.wrong.shape == (1, 1, 0)


def test_answers_may_be_token_ids(tokenizer: Any) -> None:
    task = make_task("ids", [Pair(CLEAN, 3, [4, 5])], tokenizer)
    assert task.answers.correct.tolist() == [[[3]]] and task.answers.wrong.tolist() == [[[4, 5]]]


def test_prompts_of_unequal_length_are_padded_and_sets_filled_with_minus_one(tokenizer: Any) -> None:
    task = make_task(
        "two", [GOOD, Pair("Mary went to", [" Mary", " Anna"], " John", "John went to", groups=GOOD.groups)], tokenizer
    )
    assert task.answers.correct[0, 0, 1] == -1 and task.answers.correct[1, 0, 1] >= 0
    assert task.clean.lengths.tolist()[0] > task.clean.lengths.tolist()[1]
    assert task.roles["IO"][1] == ()


def test_repeated_pairs_are_kept_once(tokenizer: Any) -> None:
    task = make_task("ioi", [GOOD, GOOD], tokenizer)
    assert len(task) == 1 and task.parameters["duplicates"] == 1


FAULTS = {
    "unequal lengths": (
        Pair(CLEAN, " Mary", " John", "When Mary went to"),
        r"pair 0: clean 1[45] \[.*'When', ' Mary', ' and'.*\], corrupted [45] \[.*'When', ' Mary', ' went', ' to'\]",
    ),
    "identical prompts": (Pair(CLEAN, " Mary", " John", CLEAN), "clean and corrupted are both 'When Mary and John"),
    "several tokens": (Pair(CLEAN, " Lind.", " John"), r"answer ' Lind\.' is \[' Lind', '\.'\].*multi_token='first'"),
    "merging answer": (Pair(CLEAN, "day", " John"), r"'day' after \.\.\.\[.*' to'\] gives \.\.\.\[.*"),
    "same answer": (Pair(CLEAN, " Mary", [" John", " Mary"]), r"\[' Mary'\] is both correct and wrong"),
    "unknown words": (Pair("When Zoe went to", " Mary", " John"), "clean prompt 'When Zoe went to' is .*'<unk>'"),
    "unknown answer": (Pair(CLEAN, " Zoe", " John"), "answer ' Zoe' is"),
    "answers": (Pair(CLEAN, [], " John"), "there is no correct answer. Cure: give at least one correct answer"),
    "no token": (Pair(CLEAN, "", " John"), "answer '' has no token"),
    "id": (Pair(CLEAN, 999, " John"), "token id 999 is outside the vocabulary, 0 to"),
    "prompt": (Pair("", " Mary", " John"), "clean prompt: prompt 0 '' has no token"),
    "closed prompt": (Pair(CLEAN + "<eos>", " Mary", " John"), "ends with the token '<eos>'"),
    "role twice": (Pair(CLEAN, " Mary", " John", roles={"S": "John"}), "'S': 'John' occurs 2 times in"),
    "role nowhere": (Pair(CLEAN, " Mary", " John", roles={"S": "Anna"}), "'S': 'Anna' occurs 0 times in"),
    "role outside": (
        Pair(CLEAN, " Mary", " John", roles={"S": [(90, 94)]}),
        r"at characters \[\(90, 94\)\] covers no",
    ),
    "misaligned roles": (
        Pair(CLEAN, " Mary", " John", CORRUPTED, {"S": [(0, 4)]}, {"S": [(5, 9)]}),
        r"'S' at \([01],\) and \([12],\) of clean 1[45] \[",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_with_its_tokens(fault: str, words: Callable[..., Any]) -> None:
    tokenizer = words(WORDS, "" if fault == "prompt" else "<s>")
    pair, message = FAULTS[fault]
    with pytest.raises(PromptError, match=message):
        make_task("faulty", [pair], tokenizer)


def test_a_doubled_bos_is_told(words: Callable[..., Any]) -> None:
    with pytest.raises(PromptError, match="clean prompt: .* begins with two BOS tokens .* the tokenizer adds one"):
        make_task("doubled", [Pair("<s>" + CLEAN, " Mary")], words(WORDS, "<s>"))


def test_all_faults_of_all_pairs_are_told_together(tokenizer: Any) -> None:
    faulty = [FAULTS[name][0] for name in ("unequal lengths", "several tokens", "same answer", "role twice")]
    with pytest.raises(PromptError) as caught:
        make_task("faulty", [GOOD, *faulty], tokenizer)
    message = str(caught.value)
    assert message.startswith("task 'faulty': 4 pairs are faulty.")
    for kind, number in (("unequal lengths", 1), ("several tokens", 2), ("same answer", 3), ("role", 4)):
        assert f"{kind} (1): pair {number}:" in message


def test_a_long_list_of_faults_is_cut_but_counted(tokenizer: Any) -> None:
    pairs = [Pair(f"{'Mary ' * i}Zoe", " Mary") for i in range(25)]
    with pytest.raises(
        PromptError, match=r"unknown words \(25\): .*; and 15 more\. Cure: use words of this tokenizer's"
    ):
        make_task("long", pairs, tokenizer)


def test_faulty_pairs_are_dropped_and_counted_when_asked(tokenizer: Any) -> None:
    pairs = [FAULTS["several tokens"][0], GOOD, FAULTS["same answer"][0]]
    task = make_task("some", pairs, tokenizer, on_fault="drop")
    assert len(task) == 1 and task.parameters["dropped"] == {"several tokens": 1, "same answer": 1}


def test_too_few_good_pairs_are_told_with_an_example_of_each_fault(tokenizer: Any) -> None:
    with pytest.raises(
        TaskError, match=r"1 good distinct pairs for the 2 asked for; ask for fewer(.|\n)*several tokens \(1\)"
    ):
        make_task("few", [GOOD, FAULTS["several tokens"][0]], tokenizer, on_fault="drop", n=2)
    with pytest.raises(TaskError, match="0 good distinct pairs for the at least 1 asked for"):
        make_task("none", [], tokenizer)


def test_reading_stops_at_the_number_wanted(tokenizer: Any) -> None:
    def endless() -> Iterator[Pair]:
        yield GOOD
        raise AssertionError("read further than needed")

    assert len(make_task("one", endless(), tokenizer, n=1)) == 1


def test_a_search_that_finds_nothing_ends(tokenizer: Any) -> None:
    endless = (Pair(f"Mary went to{' to' * i}", " Zoe") for i in itertools.count())
    with pytest.raises(TaskError, match=r"0 good distinct pairs for the 1 asked for(.|\n)*unknown words \(221\)"):
        make_task("none", endless, tokenizer, on_fault="drop", n=1)


def test_the_first_piece_of_an_answer_can_be_scored(tokenizer: Any) -> None:
    task = make_task("first", [Pair(CLEAN, " Lind.", " John")], tokenizer, multi_token="first")
    assert task.answers.correct.tolist() == [[[tokenizer.get_vocab()["ĠLind"]]]] and task.metric == LogitDiff()


def test_a_whole_answer_is_scored_at_every_piece_with_the_prompts_extended(tokenizer: Any) -> None:
    pair = Pair(CLEAN, " Lind say.", " John", CORRUPTED)
    task = make_task("sequence", [pair, Pair(CORRUPTED, " Mary", " John", CLEAN)], tokenizer, multi_token="sequence")
    whole = tokenizer(CLEAN + " Lind say.")["input_ids"]
    end = len(tokenizer(CLEAN)["input_ids"]) - 1
    assert task.clean.rows()[0] == whole[:-1]
    assert task.require_corrupted().rows()[0] == tokenizer(CORRUPTED + " Lind say.")["input_ids"][:-1]
    assert task.answers.positions.tolist() == [[end, end + 1, end + 2], [end, -1, -1]]
    assert task.answers.correct[0, :, 0].tolist() == whole[end + 1 :]
    assert task.answers.wrong.shape[-1] == 0 and task.roles["end"][0] == (end,)
    assert task.metric == LogProb()


def test_a_sequence_has_one_right_answer_and_no_comparison(tokenizer: Any) -> None:
    with pytest.raises(PromptError, match="2 correct answers; a whole sequence is scored for one alone"):
        make_task("two", [Pair(CLEAN, [" Mary", " Anna"])], tokenizer, multi_token="sequence")
    with pytest.raises(
        OptionError, match="metric 'logit_diff' compares single tokens; with multi_token='sequence' use"
    ):
        make_task("two", [GOOD], tokenizer, metric="logit_diff", multi_token="sequence")


def test_a_metric_that_compares_asks_for_wrong_answers(tokenizer: Any) -> None:
    with pytest.raises(PromptError, match="pair 0: there is no wrong answer, which the metric needs"):
        make_task("lone", [Pair(CLEAN, " Mary")], tokenizer, metric="prob_diff")


def test_pairs_must_agree_in_groups_and_in_having_a_corrupted_prompt(tokenizer: Any) -> None:
    with pytest.raises(TaskError, match=r"groups \['entity'\] and \[\] are mixed; give every pair the same ones"):
        make_task("mixed", [GOOD, Pair("Mary went to", " Mary", " John", "John went to")], tokenizer)
    with pytest.raises(TaskError, match="1 of 2 pairs are corrupted; give all or none"):
        make_task("mixed", [GOOD, Pair("Mary went to", " Mary", " John", groups=GOOD.groups)], tokenizer)


@pytest.mark.parametrize("option", ["multi_token", "on_fault"])
def test_unknown_options_name_the_allowed(tokenizer: Any, option: str) -> None:
    with pytest.raises(OptionError, match=f"{option} is 'frist'; allowed: "):
        inspect.unwrap(make_task)("x", [GOOD], tokenizer, **{option: "frist"})


def test_a_chat_prompt_goes_through_the_template_and_no_bos_is_doubled(words: Callable[..., Any]) -> None:
    tokenizer = words(WORDS, "<s>")
    tokenizer.chat_template = "<s>{% for m in messages %} {{ m['content'] }}{% endfor %}"
    pair = Pair(
        [{"role": "user", "content": "Mary went to"}],
        " Mary",
        " John",
        [{"role": "user", "content": "John went to"}],
        {"who": "Mary"},
    )
    task = make_task("chat", [pair], tokenizer)
    assert task.clean.texts == ("<s> Mary went to",)
    assert task.clean.tokens == (("<s>", " Mary", " went", " to"),)
    assert task.roles["who"] == ((1,),)


def test_the_tokenizers_padding_side_does_not_matter(tokenizer: Any) -> None:
    pairs = [GOOD, Pair("Mary went to", " Mary", " John", "John went to", groups=GOOD.groups)]
    right = make_task("right", pairs, tokenizer)
    tokenizer.padding_side = "left"
    left = make_task("left", pairs, tokenizer)
    assert torch.equal(left.clean.ids, right.clean.ids) and tokenizer.padding_side == "left"
