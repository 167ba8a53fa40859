"""From prompt pairs to a `Task` for the tokenizer at hand; all faults are told together, before any forward pass."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp import metrics
from interp.errors import OptionError, PromptError, TaskError, check_choice
from interp.tasks.base import Task
from interp.tasks.pair import CURES, Encoded, Fault, MultiToken, Pair, Row, read_pair
from interp.tokens import Prompts, from_ids, tokenizer_fingerprint

# Faults of one kind that a message shows: of pairs given to be used, and of pairs tried by the hundred.
SHOWN_GIVEN, SHOWN_TRIED = 10, 1


def make_task(
    name: str,
    pairs: Iterable[Pair],
    tokenizer: Any,
    *,
    metric: str | metrics.Metric | None = None,
    multi_token: MultiToken = "error",
    on_fault: Literal["raise", "drop"] = "raise",
    n: int | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Task:
    """A task from prompt pairs; repeated pairs are kept once.

    Args:
        name: of the behaviour.
        pairs: what to tokenise; read until `n` good ones are found when `n` is given.
        tokenizer: of the model that the task is for.
        metric: a name of `metrics.METRICS` or a `Metric`; by default the logit difference where every prompt has
            wrong answers, else the log-probability.
        multi_token: answers of several tokens are a fault ("error"), scored by their first token ("first"), or in
            full ("sequence": log-probability of the whole, prompts extended by the answer, wrong answers left out).
            An answer given as a token id is taken as it is; any other read-out is a `LogitDirection` metric.
        on_fault: raise for faulty pairs, or drop them and count them in ``parameters["dropped"]``.
        n: number of prompts wanted; None for all.
        parameters: how the pairs were made, to be kept with the task.

    Raises:
        PromptError: faulty pairs, all of them, by kind and with their tokens.
        TaskError: fewer good pairs than asked for, or pairs with different groups.
        OptionError: an option outside its values, or a metric that cannot score whole sequences.
    """
    check_choice("multi_token", multi_token, get_args(MultiToken))
    check_choice("on_fault", on_fault, ("raise", "drop"))
    measure = None if metric is None else metrics.metric(metric)
    if measure is not None and measure.needs_wrong and multi_token == "sequence":
        raise OptionError(f"metric {measure.name!r} compares single tokens; with multi_token='sequence' use 'logprob'.")
    needs_wrong = measure is not None and measure.needs_wrong
    rows, faulty, duplicates = _read(pairs, tokenizer, multi_token, needs_wrong=needs_wrong, n=n)
    if faulty and on_fault == "raise":
        raise PromptError(f"task {name!r}: {len(faulty)} pairs are faulty.\n{_report(faulty, SHOWN_GIVEN)}")
    if len(rows) < (n or 1):
        raise TaskError(
            f"task {name!r}: {len(rows)} good distinct pairs for the {n or 'at least 1'} asked for; ask for fewer, "
            f"or choose other words or another multi_token.\n{_report(faulty, SHOWN_TRIED)}"
        )
    kinds = Counter(kind for faults in faulty.values() for kind in {fault.kind for fault in faults})
    record = {"multi_token": multi_token, "duplicates": duplicates, "dropped": dict(kinds)}
    return _assemble(
        name, rows, tokenizer, measure or _default_metric(rows, multi_token), {**(parameters or {}), **record}
    )


def _read(
    pairs: Iterable[Pair], tokenizer: Any, multi_token: MultiToken, *, needs_wrong: bool, n: int | None
) -> tuple[list[Row], dict[int, list[Fault]], int]:
    """Good rows, the faults of the other pairs by their number, and how many pairs came again."""
    rows: list[Row] = []
    faulty: dict[int, list[Fault]] = {}
    seen: set[str] = set()
    duplicates = 0
    for number, pair in enumerate(pairs):
        key = repr((pair.clean, pair.corrupted, pair.answer, pair.wrong))
        duplicates += key in seen
        if key in seen:
            continue
        seen.add(key)
        row = read_pair(pair, tokenizer, multi_token)
        if isinstance(row, Row) and needs_wrong and not row.wrong[0]:
            row = [Fault("answers", "there is no wrong answer, which the metric needs")]
        if isinstance(row, Row):
            rows.append(row)
        else:
            faulty[number] = row
        # With a number to reach, a vocabulary that fits hardly any word must not be searched for ever.
        if n is not None and (len(rows) == n or len(faulty) > 20 * n + 200):
            break
    return rows, faulty, duplicates


def _report(faulty: Mapping[int, list[Fault]], shown: int) -> str:
    """One line a kind of fault: how many, the first of them with their tokens, and the cure."""
    lines = []
    for kind, cure in CURES.items():
        texts = [f"pair {number}: {f.text}" for number, faults in faulty.items() for f in faults if f.kind == kind]
        more = f"; and {len(texts) - shown} more" if len(texts) > shown else ""
        if texts:
            lines.append(f"{kind} ({len(texts)}): {'; '.join(texts[:shown])}{more}. Cure: {cure}.")
    return "\n".join(lines)


def _default_metric(rows: Sequence[Row], multi_token: MultiToken) -> metrics.Metric:
    compares = multi_token != "sequence" and all(row.wrong[0] for row in rows)
    return metrics.LogitDiff() if compares else metrics.LogProb()


def _assemble(
    name: str, rows: list[Row], tokenizer: Any, metric: metrics.Metric, parameters: Mapping[str, Any]
) -> Task:
    """Rows side by side: ids padded on the right, absent answers -1, roles and groups by name."""
    keys = rows[0].groups.keys()
    if uneven := [list(row.groups) for row in rows if row.groups.keys() != keys]:
        raise TaskError(f"task {name!r}: groups {list(keys)} and {uneven[0]} are mixed; give every pair the same ones.")
    corrupted = [row.corrupted for row in rows if row.corrupted is not None]
    if len(corrupted) not in (0, len(rows)):
        raise TaskError(f"task {name!r}: {len(corrupted)} of {len(rows)} pairs are corrupted; give all or none.")
    roles = dict.fromkeys(role for row in rows for role in row.roles)
    return Task(
        name,
        clean=_prompts([row.clean for row in rows], tokenizer),
        answers=metrics.Answers(
            pad_sequence([torch.tensor(row.positions) for row in rows], batch_first=True, padding_value=-1),
            _padded([row.correct for row in rows]),
            _padded([row.wrong for row in rows]),
        ),
        metric=metric,
        corrupted=_prompts(corrupted, tokenizer) if corrupted else None,
        roles={role: tuple(row.roles.get(role, ()) for row in rows) for role in roles},
        groups={key: tuple(row.groups[key] for row in rows) for key in keys},
        parameters=parameters,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
    )


def _prompts(encoded: Sequence[Encoded], tokenizer: Any) -> Prompts:
    made = from_ids([prompt.ids for prompt in encoded], tokenizer=tokenizer)
    return Prompts(made.ids, made.lengths, tuple(prompt.text for prompt in encoded), made.tokens)


def _padded(sets: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Token ids [row, target, id], -1 where absent."""
    targets, width = max(map(len, sets)), max(len(ids) for row in sets for ids in row)
    filled = [
        [[*ids, *[-1] * (width - len(ids))] for ids in row] + [[-1] * width] * (targets - len(row)) for row in sets
    ]
    return torch.tensor(filled, dtype=torch.long)
