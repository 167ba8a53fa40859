"""In-context tasks: both forms of one seed's questions, the pool, shuffled outputs, and files of word pairs."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from interp.errors import FileError, OptionError, TaskError
from interp.metrics import NegNLL
from interp.tasks import task as by_name
from interp.tasks.in_context import INSTRUCTIONS, in_context, read_examples

CAPITALS = "Rome Paris Berlin Madrid Oslo Cairo Tokyo Lima Athens Dublin Vienna Warsaw".split()
COUNTRIES = "Italy France Germany Spain Norway Egypt Japan Peru Greece Ireland Austria Poland".split()
EXAMPLES = list(zip(COUNTRIES, CAPITALS, strict=True))
PATTERN = 'The capital of "{input}" is "{output}".'


@pytest.fixture
def known(words: Any) -> Any:
    return words('Q A : The capital of is " . Ċ ĊĊ here ' + " ".join(CAPITALS + COUNTRIES))


def said(tokenizer: Any, task: Any, row: int) -> str:
    """What is scored as right, all of it."""
    return tokenizer.decode([ids[0] for ids in task.answers.correct[row].tolist() if ids[0] >= 0])


def test_few_shot_prompts_show_solved_pairs_and_score_the_answer(known: Any) -> None:
    task = in_context(known, examples=EXAMPLES, shots=3, pool=4)
    assert len(task) == 8 and isinstance(task.metric, NegNLL) and task.corrupted is None
    for row, text in enumerate(task.clean.texts or ()):
        *shown, asked = text.split("\n\n")
        assert len(shown) == 3 and all(f"Q: {a}\nA: {b}" in shown for a, b in read(shown))
        country = asked.removeprefix("Q: ").removesuffix("\nA:")
        assert said(known, task, row) == " " + dict(EXAMPLES)[country]
        assert task.groups["entity"][row] == country
        assert task.clean.tokens[row][int(task.answers.positions[row, 0])] == ":"


def read(shown: list[str]) -> list[tuple[str, str]]:
    """The pairs shown, each of which must be a known one."""
    pairs = [tuple(part.removeprefix("Q: ").split("\nA: ")) for part in shown]
    assert set(pairs) <= set(EXAMPLES)
    return pairs  # type: ignore[return-value]


def test_instructions_end_within_their_quotes(known: Any) -> None:
    task = in_context(
        known, examples=EXAMPLES, template=PATTERN, form="instruction", shots=1, pool=2, description="here"
    )
    for row, text in enumerate(task.clean.texts or ()):
        first, shown, asked = text.split("\n")
        country = asked.removeprefix('The capital of "').removesuffix('" is "')
        assert first == "here" and shown in [PATTERN.format(input=a, output=b) for a, b in EXAMPLES]
        assert said(known, task, row) == dict(EXAMPLES)[country] and task.clean.tokens[row][-1] == ' "'


def test_both_forms_of_a_seed_ask_for_the_same_pair_in_each_row(known: Any) -> None:
    few = in_context(known, examples=EXAMPLES, shots=4, pool=4, seed=5)
    one = in_context(known, examples=EXAMPLES, template=PATTERN, form="instruction", shots=1, pool=4, seed=5)
    other = in_context(known, examples=EXAMPLES, shots=4, pool=4, seed=6)
    assert few.groups["entity"] == one.groups["entity"] != other.groups["entity"]
    assert set(few.groups["entity"]) == set(other.groups["entity"])


def test_the_seed_alone_decides(known: Any) -> None:
    one, again = (in_context(known, examples=EXAMPLES, shots=2, pool=4, n=5) for _ in range(2))
    assert one.clean.texts == again.clean.texts and one.parameters == again.parameters and len(one) == 5
    longer = in_context(known, examples=EXAMPLES, shots=2, pool=4)
    assert (longer.clean.texts or ())[:5] == one.clean.texts


def test_the_shortest_pairs_are_shown_and_never_asked(known: Any) -> None:
    task = in_context(known, examples=EXAMPLES, shots=2, pool=3)
    short = sorted(EXAMPLES, key=lambda pair: len(pair[0] + pair[1]))[:3]
    assert not {a for a, _ in short} & set(task.groups["entity"])
    assert all(set(read(text.split("\n\n")[:-1])) <= set(short) for text in task.clean.texts or ())


def test_shuffled_outputs_leave_every_example_wrong_and_the_question_alone(known: Any) -> None:
    task = in_context(known, examples=EXAMPLES, shots=3, pool=4, shuffled=True)
    for clean, corrupted in zip(task.clean.texts or (), task.require_corrupted().texts or (), strict=True):
        (*shown, asked), (*turned, same) = clean.split("\n\n"), corrupted.split("\n\n")
        assert asked == same
        questions, outputs = zip(*(part.split("\nA: ") for part in turned), strict=True)
        assert questions == tuple(part.split("\nA: ")[0] for part in shown)
        assert sorted(outputs) == sorted(part.split("\nA: ")[1] for part in shown)
        assert not set(turned) & set(shown)


def test_answers_of_several_tokens_are_scored_in_full(bpe: Any) -> None:
    examples = [*EXAMPLES, ("Sri Lanka", "Sri Jayawardenepura")]
    task = in_context(bpe, examples=examples, shots=2, pool=4)
    row = task.groups["entity"].index("Sri Lanka")
    assert said(bpe, task, row) == " Sri Jayawardenepura" and int((task.answers.positions[row] >= 0).sum()) > 2


def test_pairs_outside_the_vocabulary_are_dropped_and_counted(known: Any) -> None:
    task = in_context(known, examples=[*EXAMPLES, ("Atlantis under the sea", "Poseidonis")], shots=2, pool=4)
    assert len(task) == 8 and task.parameters["dropped"] == {"unknown words": 1}


def test_public_word_pairs_read_in_both_forms(shared: Path, bpe: Any) -> None:
    folder = shared / "function-vectors" / "abstractive"
    if not folder.is_dir():
        pytest.skip("the word pairs of Function Vectors are not here")
    present = [name for name in INSTRUCTIONS if (folder / f"{name}.json").is_file()]
    assert present == list(INSTRUCTIONS)
    path = folder / "present-past.json"
    few = in_context(bpe, path=path, n=20)
    one = in_context(bpe, path=path, n=20, form="instruction", shots=1)
    assert few.groups["entity"] == one.groups["entity"] and few.parameters["source"] == "present-past"
    known = dict(read_examples(path))
    for row, text in enumerate(one.clean.texts or ()):
        asked = text.split("\n")[-1].removeprefix('The past tense of "').removesuffix('" is "')
        assert said(bpe, one, row) == known[asked] and said(bpe, few, row) == " " + known[asked]


@pytest.mark.parametrize("content", ["", "{}x", "[1]", json.dumps([{"input": "a"}])])
def test_a_file_without_word_pairs_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pairs.json"
    path.write_text(content)
    with pytest.raises(FileError, match="holds no word pairs .*; give a JSON list of objects with input and output"):
        read_examples(path)
    with pytest.raises(FileError, match="FileNotFoundError"):
        read_examples(tmp_path / "absent.json")


def test_a_file_is_read_and_its_name_finds_the_instruction(known: Any, tmp_path: Path) -> None:
    path = tmp_path / "country-capital.json"
    path.write_text(json.dumps([{"input": a, "output": b} for a, b in EXAMPLES]))
    assert read_examples(path) == EXAMPLES
    task = in_context(known, path=path, form="instruction", shots=1, pool=2)
    assert task.parameters["template"] == PATTERN and task.name == "in_context country-capital"
    with pytest.raises(OptionError, match="no instruction for 'mine'; allowed: present-past, .*; or give a template"):
        in_context(known, path=path.rename(tmp_path / "mine.json"), form="instruction")


def test_options_outside_their_values_are_told(known: Any) -> None:
    build = inspect.unwrap(in_context)
    with pytest.raises(
        OptionError, match="form is 'few_shots'; allowed: 'few_shot', 'instruction'; nearest: 'few_shot'"
    ):
        build(known, examples=EXAMPLES, form="few_shots")
    with pytest.raises(OptionError, match="from a path or from examples; give one of the two"):
        in_context(known)
    for template in ("{input}", "{output} {input}", "{input} {input} {output}"):
        with pytest.raises(OptionError, match=r"needs \{input\} once and then \{output\} once"):
            in_context(known, examples=EXAMPLES, template=template)
    for options in ({"shots": 5, "pool": 4}, {"shots": -1}, {"shots": 1, "shuffled": True}):
        with pytest.raises(OptionError, match="shots=.*allowed: 0 to pool, and 2 at least where they are shuffled"):
            in_context(known, examples=EXAMPLES, **options)
    with pytest.raises(TaskError, match="pairs: 12 pairs leave none to ask for beside a pool of 12; lower pool"):
        in_context(known, examples=EXAMPLES, pool=12)
    with pytest.raises(OptionError, match="no option 'shot'; .*nearest: 'shots'"):
        by_name("in_context", known, shot=1)
