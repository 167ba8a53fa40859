"""Greater-than: "The war lasted from the year 1732 to the year 17" -> a year above 32.

What is scored depends on how the tokenizer writes years; the first convention that fits is used and recorded:

- `year`, where 1732 is [17][32]: the two-digit numbers above YY against those up to YY;
- `tens`, where every digit is a token: its tens digit: those above YY's against those below;
- `ones`, where 1732 is [173][2]: the prompt goes on to "173", digits above YY's last against those up to it.

Corruption: YY becomes 01 (`ones`: its last digit becomes 1), after which nearly every year is greater.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from interp.errors import TaskError
from interp.tasks.base import Task
from interp.tasks.pair import Pair, single_ids
from interp.tasks.template import Lexicon, Lists, choose, drawn_task, fill, filled_pair
from interp.tokens import token_strings
from interp.toy import prompts, words


class Convention(NamedTuple):
    """How the end year is scored.

    Args:
        name: as in the module.
        given: digits of YY that the prompt goes on to give.
        labels: what the next token may be.
        inclusive: whether YY's own label is wrong.
    """

    name: str
    given: int
    labels: tuple[str, ...]
    inclusive: bool

    def label(self, year: str) -> int:
        """Index of the label that a two-digit year shows next."""
        return int(year[self.given :][: len(self.labels[0])])


DIGITS = tuple("0123456789")
CONVENTIONS = (
    Convention("year", 0, words.NUMBERS, inclusive=True),
    Convention("tens", 0, DIGITS, inclusive=False),
    Convention("ones", 1, DIGITS, inclusive=True),
)
CENTURIES = "11 12 13 14 15 16 17"
STANDARD = Lexicon(
    "standard",
    "The war lasted from the year 17 to the year 17",
    {
        "templates": (
            "The {event} lasted from the year {XX}{YY} to the year {XX}",
            "The {event} began in the year {XX}{YY} and ended in the year {XX}",
            "The {event} that started in {XX}{YY} went on until the year {XX}",
        ),
        "events": "war siege reign voyage trial famine drought strike festival treaty alliance marriage tour "
        "rebellion expedition truce project dispute occupation plague boom journey campaign crisis",
        "centuries": CENTURIES,
    },
)
TOY = Lexicon(
    "toy",
    "the war lasted from the year 17 32 to 17",
    {"templates": prompts.GREATER_THAN_TEMPLATES, "events": words.EVENTS, "centuries": CENTURIES},
    prompts.is_test,
)


@dataclass(frozen=True)
class Years:
    """How one tokenizer's years are scored: a convention and the token ids of its labels."""

    tokenizer: Any
    convention: Convention
    ids: tuple[int, ...]

    def pair(self, template: str, event: str, century: str, year: str) -> Pair | None:
        """The prompt of a span that starts in century + year.

        None where no label is greater or none smaller, and where the tokenizer cuts this very year otherwise (GPT-2
        has 1800 in one token).
        """
        own, given = self.convention.label(year), year[: self.convention.given]
        correct, wrong = self.ids[own + 1 :], self.ids[: own + self.convention.inclusive]
        known = _label_id(self.tokenizer, template, event, century + given, self.convention.labels[own])
        if not correct or not wrong or known != self.ids[own]:
            return None
        return filled_pair(
            template + ("{given}" if given else ""),
            {"event": event, "XX": century, "YY": year, "given": given},
            {"YY": given + "01"[len(given) :]},
            correct,
            wrong,
            {"template": template, "entity": event, "year": century + year},
        )


def find_years(tokenizer: Any, template: str, event: str) -> Years:
    """The first convention whose every label is one token after some century.

    Raises:
        TaskError: when there is none, showing the tokens of a year.
    """
    for convention in CONVENTIONS:
        ids: list[int] = []
        for label in convention.labels:
            starts = (century + "3"[: convention.given] for century in CENTURIES.split())
            found = (_label_id(tokenizer, template, event, start, label) for start in starts)
            known = next((each for each in found if each is not None), None)
            if known is None:
                break
            ids.append(known)
        else:
            return Years(tokenizer, convention, tuple(ids))
    shown = token_strings(tokenizer, tokenizer(" 1732")["input_ids"])
    raise TaskError(
        f"greater_than: this tokenizer writes ' 1732' as {shown}, which fits no convention; allowed: a token for the "
        "last two digits, or for each digit. Use another task."
    )


def _label_id(tokenizer: Any, template: str, event: str, start: str, label: str) -> int | None:
    """Token id of `label` where it follows the first digits of the start year, if it is one token there."""
    before = template[: template.index("{YY}")]
    space = before[len(before.rstrip()) :]
    text, _ = fill(before.rstrip(), {"event": event, "XX": start})
    ids = single_ids(tokenizer, text, [space + label])
    return ids[0] if ids else None


def greater_than(
    tokenizer: Any, *, n: int = 100, seed: int = 0, style: str = "auto", lists: Lists | None = None
) -> Task:
    """Greater-than: the end year of a span is above its start year; measured in probability.

    Args:
        n: number of prompts.
        seed: of the draws.
        style: "standard", "toy", or "auto" for what the tokenizer's vocabulary suits.
        lists: templates (slots event, XX, YY; ending in XX), events or centuries to use instead.

    Raises:
        TaskError: a tokenizer whose years fit no convention, or fewer prompts than were asked for.
    """
    lexicon = choose(tokenizer, style, lists, STANDARD, TOY)
    years = find_years(tokenizer, lexicon["templates"][0], lexicon["events"][0])
    choices = {
        "template": lexicon["templates"],
        "event": lexicon["events"],
        "century": lexicon["centuries"],
        "year": words.NUMBERS[2:99],
    }
    record = {"convention": years.convention.name}
    return drawn_task("greater_than", choices, years.pair, lexicon, tokenizer, n, seed, record, metric="prob_diff")
