"""In-context tasks: word pairs shown as examples, in one formulation or another (Todd et al. 2024, arXiv 2310.15213).

An example is a template with {input} and {output}; the last one is cut before its output, which is the answer. So the
same pairs make a few-shot prompt ("Q: walk\\nA: walked", several of them) and an instruction to complete ('The past
tense of "walk" is "walked".'). Row i asks for the same pair in every formulation of one seed, unless a pair does not
fit the tokenizer in one of them; `entity` says which pair it is.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from interp.errors import FileError, OptionError, TaskError, check_choice
from interp.tasks.base import Task
from interp.tasks.build import make_task
from interp.tasks.pair import MultiToken, Pair

FEW_SHOT = "Q: {input}\nA: {output}"
INSTRUCTIONS = {
    "present-past": 'The past tense of "{input}" is "{output}".',
    "singular-plural": 'The plural of "{input}" is "{output}".',
    "antonym": 'The opposite of "{input}" is "{output}".',
    "synonym": 'Another word for "{input}" is "{output}".',
    "capitalize": 'The word "{input}" in capital letters is "{output}".',
    "country-capital": 'The capital of "{input}" is "{output}".',
    "country-currency": 'The currency of "{input}" is "{output}".',
    "landmark-country": 'The landmark "{input}" is in "{output}".',
    "person-occupation": 'The occupation of "{input}" is "{output}".',
    "product-company": 'The product "{input}" is made by "{output}".',
}
"""Instructions by the name of the public file whose pairs they fit."""

Example = tuple[str, str]


def in_context(
    tokenizer: Any,
    *,
    path: str | Path | None = None,
    examples: Sequence[Example] | None = None,
    form: Literal["few_shot", "instruction"] = "few_shot",
    template: str | None = None,
    separator: str | None = None,
    description: str = "",
    shots: int = 10,
    pool: int = 10,
    n: int | None = None,
    seed: int = 0,
    shuffled: bool = False,
    multi_token: MultiToken = "sequence",
) -> Task:
    """An in-context task on word pairs: mean log-probability of the answer's tokens.

    Args:
        path: a JSON list of objects with input and output, such as the files of Function Vectors.
        examples: the (input, output) pairs themselves, instead of a file.
        form: ``"few_shot"``, or ``"instruction"`` with the template that `INSTRUCTIONS` has for the file's name.
        template: with {input} and {output}, instead of the form's own.
        separator: between examples; by default a blank line (few_shot) or a newline.
        description: a first line.
        shots: examples shown before the one to answer.
        pool: shown examples are drawn from that many of the shortest pairs, which are never asked for.
        n: number of prompts; None for every pair that fits.
        seed: of the order of the pairs and of the examples shown.
        shuffled: give each prompt a corrupted one, whose examples have each other's outputs (needs two shots).
        multi_token: see `make_task`; several tokens are scored as their mean.

    Raises:
        OptionError: an option outside its values, a template without its slots, no instruction of that name.
        FileError: a file of another format.
        TaskError: fewer prompts fit the tokenizer than were asked for.
    """
    check_choice("form", form, ("few_shot", "instruction"))
    if (path is None) == (examples is None):
        raise OptionError("in_context takes its pairs from a path or from examples; give one of the two.")
    name = "pairs" if path is None else Path(path).stem
    known = list(dict.fromkeys(examples if examples is not None else read_examples(path)))  # type: ignore[arg-type]
    used = template or (FEW_SHOT if form == "few_shot" else _instruction(name))
    if used.count("{input}") != 1 or used.count("{output}") != 1 or used.index("{input}") > used.index("{output}"):
        raise OptionError(f"template {used!r} needs {{input}} once and then {{output}} once.")
    if not 0 <= shots <= pool or (shuffled and shots < 2):
        raise OptionError(f"shots={shots}, pool={pool}; allowed: 0 to pool, and 2 at least where they are shuffled.")
    between = separator if separator is not None else "\n\n" if form == "few_shot" else "\n"
    shortest = sorted(known, key=lambda each: len(each[0]) + len(each[1]))[:pool]
    asked = [each for each in known if each not in shortest]
    if not asked:
        raise TaskError(f"{name}: {len(known)} pairs leave none to ask for beside a pool of {pool}; lower pool.")
    pairs = _pairs(asked, shortest, used, between, description, shots, seed, shuffled)
    record = {"source": name, "form": form, "template": used, "separator": between, "description": description,
              "shots": shots, "pool": pool, "seed": seed, "shuffled": shuffled}  # fmt: skip
    return make_task(
        f"in_context {name}", pairs, tokenizer, metric="neg_nll", multi_token=multi_token, on_fault="drop", n=n,
        parameters=record,
    )  # fmt: skip


def _instruction(name: str) -> str:
    if name not in INSTRUCTIONS:
        raise OptionError(f"no instruction for {name!r}; allowed: {', '.join(INSTRUCTIONS)}; or give a template.")
    return INSTRUCTIONS[name]


def _pairs(
    asked: Sequence[Example],
    pool: Sequence[Example],
    template: str,
    separator: str,
    description: str,
    shots: int,
    seed: int,
    shuffled: bool,
) -> Iterator[Pair]:
    """Every asked pair once, in an order that depends on the seed alone, after examples of the pool."""
    order = random.Random(seed).sample(list(asked), len(asked))
    for number, (question, answer) in enumerate(order):
        rng = random.Random(f"{seed} {number}")
        shown = rng.sample(list(pool), shots)
        question_text = template[: template.index("{output}")].replace("{input}", question)
        stem = question_text.rstrip(" ")
        lead = description + "\n" if description else ""

        def prompt(outputs: Sequence[str], shown=shown, stem=stem, lead=lead) -> str:  # type: ignore[no-untyped-def]
            filled = [
                template.replace("{input}", given).replace("{output}", output)
                for (given, _), output in zip(shown, outputs, strict=True)
            ]
            return lead + separator.join([*filled, stem])

        outputs = [output for _, output in shown]
        turned = outputs[1:] + outputs[:1]
        yield Pair(
            prompt(outputs),
            question_text[len(stem) :] + answer,
            corrupted=prompt(turned) if shuffled else None,
            groups={"entity": question.replace("|", "/")},
        )


def read_examples(path: str | Path) -> list[Example]:
    """The pairs of a JSON list of objects with input and output.

    Raises:
        FileError: a file that cannot be read, or of another format.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        rows: list[Mapping[str, Any]] = list(content)
        return [(str(row["input"]), str(row["output"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{path} holds no word pairs ({type(error).__name__}: {error}); give a JSON list of objects with input and "
            "output."
        ) from error
