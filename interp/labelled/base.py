"""Texts with a label, and with an attribute that the label must not rest on.

Labels and attributes are 0 or 1. A *group* is a label together with an attribute: 0/0, 0/1, 1/0, 1/1. In *ambiguous*
data only two of them occur, so label and attribute say the same; in *balanced* data all four are as frequent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from interp.errors import TaskError
from interp.tokens import row_numbers

Pair = tuple[str, str]


@dataclass(frozen=True)
class Labelled:
    """Labelled texts, one row a text.

    Args:
        texts: what is classified.
        labels: 0 or 1.
        attributes: 0 or 1, or None where unknown; used for reports and controls alone.
        classes: names of the labels 0 and 1.
        values: names of the attributes 0 and 1.

    Raises:
        TaskError: no text, an empty one, numbers of rows that differ, labels or attributes other than 0 and 1; all
            named together.
    """

    texts: tuple[str, ...]
    labels: tuple[int, ...]
    attributes: tuple[int, ...] | None = None
    classes: Pair = ("0", "1")
    values: Pair = ("0", "1")

    def __post_init__(self) -> None:
        faults = [] if self.texts else ["there is no text"]
        for what, column in (("labels", self.labels), ("attributes", self.attributes)):
            if column is not None and len(column) != len(self.texts):
                faults.append(f"{len(column)} {what} for {len(self.texts)} texts")
            if column is not None and (strange := sorted({str(one) for one in column if one not in (0, 1)})):
                faults.append(f"{what} {', '.join(strange[:5])}; allowed: 0 and 1")
        empty = [row for row, text in enumerate(self.texts) if not (isinstance(text, str) and text.strip())]
        faults += [f"texts {empty[:10]} are empty"] if empty else []
        if faults:
            raise TaskError(f"labelled texts do not fit together: {'; '.join(faults)}.")

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: int | slice | Sequence[int]) -> "Labelled":
        """The chosen rows; an integer gives one row."""
        picked = row_numbers(rows, len(self))
        return replace(
            self, texts=tuple(self.texts[row] for row in picked), labels=tuple(self.labels[row] for row in picked),
            attributes=None if self.attributes is None else tuple(self.attributes[row] for row in picked),
        )  # fmt: skip

    def about_attributes(self) -> "Labelled":
        """The same texts with the attribute as their label.

        Raises:
            TaskError: attributes are unknown.
        """
        attributes = self.require_attributes()
        return replace(self, labels=attributes, attributes=self.labels, classes=self.values, values=self.classes)

    def require_attributes(self) -> tuple[int, ...]:
        """The attributes.

        Raises:
            TaskError: when they are unknown.
        """
        if self.attributes is None:
            raise TaskError("these texts have no attributes, which a report by group needs; give one a text.")
        return self.attributes

    @property
    def groups(self) -> np.ndarray:
        """The group of each row, as 2 label + attribute [row]."""
        return 2 * np.array(self.labels) + np.array(self.require_attributes())

    def group_name(self, group: int) -> str:
        """A group in words, such as ``nurse/male``."""
        return f"{self.classes[group // 2]}/{self.values[group % 2]}"

    def counts(self) -> dict[str, int]:
        """How many texts each of the four groups has."""
        return {self.group_name(group): int((self.groups == group).sum()) for group in range(4)}


@dataclass(frozen=True)
class BiasedData:
    """What debiasing a classifier works with; no text is both for training and held out.

    Args:
        train: ambiguous: label and attribute go together. The only part that a classifier and SHIFT learn from.
        test: held out, all four groups as frequent; without attributes only the label's accuracy is reported.
        balanced: the same for training: for the oracle and the skylines, which see what SHIFT does not. None: these are
            left out.
        held_out: all that is held out of the four groups, however frequent, for the worst group; `test` when None.
        words: words that give the attribute away, in whatever case, for the baseline that deletes them and for
            `TokenSetJudge`.
        concepts: words of the task itself, for the concept-bottleneck baseline.

    Raises:
        TaskError: a part of one class only, training data that are not ambiguous, an empty group, texts in both
            training and test; all named together.
    """

    train: Labelled
    test: Labelled
    balanced: Labelled | None = None
    held_out: Labelled | None = None
    words: frozenset[str] = field(default_factory=frozenset)
    concepts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if faults := _misfits(self):
            raise TaskError(f"the data for debiasing do not fit together: {'; '.join(faults)}.")

    @property
    def aligned(self) -> int:
        """The attribute that goes with label 1 in ambiguous data; 1 where training attributes are unknown."""
        if self.train.attributes is None:
            return 1
        return self.train.attributes[self.train.labels.index(1)]

    @property
    def all_held_out(self) -> Labelled:
        """What the worst group is measured on."""
        return self.test if self.held_out is None else self.held_out


def _misfits(data: BiasedData) -> list[str]:
    faults = []
    parts = {"train": data.train, "test": data.test, "balanced": data.balanced, "held_out": data.held_out}
    for name, part in parts.items():
        if part is None:
            continue
        if len(set(part.labels)) < 2:
            faults.append(f"{name} has the class {part.classes[part.labels[0]]!r} only; both are needed")
        if name == "train" or (name == "test" and part.attributes is None):
            continue
        if part.attributes is None or len(set(part.groups.tolist())) < 4:
            have = "no attributes" if part.attributes is None else str(part.counts())
            faults.append(f"{name} lacks a group ({have}); each of the four needs at least one text")
    seen = set(data.train.texts) | set(() if data.balanced is None else data.balanced.texts)
    for name, part in (("test", data.test), ("held_out", data.held_out)):
        if part is not None and (shared := sum(text in seen for text in part.texts)):
            faults.append(f"{shared} texts of {name} are training texts too; take them out of one of the two")
    if data.train.attributes is not None and len(set(data.train.groups.tolist())) > 2:
        faults.append(
            f"train has more than two groups ({data.train.counts()}), so label and attribute do not go together in it; "
            "leave two groups, or drop its attributes if that is meant"
        )
    return faults
