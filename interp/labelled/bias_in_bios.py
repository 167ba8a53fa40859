"""Bias in Bios (De-Arteaga et al. 2019): biographies without their first sentence, two professions, two genders.

As in Marks et al. 2024 (arXiv 2403.19647), section 4 and the authors' notebook:

- ambiguous: men of the first profession and women of the second, as many of either, the first ones in the data set;
- balanced: as many of each of the four groups as the smallest has, the first ones in the data set;
- both from the train split, so they share texts; the test is balanced, from the test split, where all four groups whole
  are held out for the worst group;
- all shuffled by Python's generator from the seed.

Unlike there, held-out texts that are among the training texts are left out, and so are empty ones.
"""

from collections.abc import Mapping
from importlib import import_module
from random import Random
from typing import Any

from interp.errors import FileError, OptionError, TaskError, check_choice, require
from interp.labelled.base import BiasedData, Labelled, Pair
from interp.labelled.gender import GENDER_WORDS

SOURCE = "LabHC/bias_in_bios"
PROFESSIONS = tuple(
    "accountant architect attorney chiropractor comedian composer dentist dietitian dj filmmaker interior_designer "
    "journalist model nurse painter paralegal pastor personal_trainer photographer physician poet professor "
    "psychologist rapper software_engineer surgeon teacher yoga_teacher".split()
)
"""Names of the professions, in the order of their numbers."""
KEYWORDS = tuple(
    "nurse healthcare hospital patient medical clinic triage medication emergency surgery professor academia research "
    "university tenure faculty dissertation sabbatical publication grant".split()
)
"""The paper's words for nurses and professors; for other classes the professions' names serve."""
COLUMNS = ("hard_text", "profession", "gender")
GENDERS = ("male", "female")
Groups = dict[int, list[str]]  # 2 label + attribute -> its texts, in the data set's order


def bias_in_bios(
    *, classes: Pair = ("professor", "nurse"), limit: int | None = None, seed: int = 42, dataset: Any = None
) -> BiasedData:
    """Biographies of two professions; in the ambiguous part the first one's are men, the second one's women.

    Args:
        classes: two of `PROFESSIONS`.
        limit: most texts of a group in any part; None for all.
        seed: of the order of the texts.
        dataset: splits "train" and "test" to use instead of the hub's, each of rows with `COLUMNS`.

    Raises:
        MissingExtraError: no data set given, and the package `datasets` is not installed.
        OptionError: an unknown profession, one twice, or a limit below 1.
        FileError: splits or columns that are not there.
        TaskError: a data set that cannot be loaded, or a group without texts.
    """
    for name in classes:
        check_choice("classes", name, PROFESSIONS)
    if classes[0] == classes[1] or (limit is not None and limit < 1):
        raise OptionError(f"got classes {classes} and limit {limit}; allowed: two professions, a limit from 1 or None.")
    splits = _checked(_from_hub() if dataset is None else dataset)
    train, held = (_groups(splits[split], classes, split) for split in ("train", "test"))
    ambiguous, balanced = _first({group: train[group] for group in (0, 3)}, limit), _first(train, limit)
    seen = {text for part in (ambiguous, balanced) for texts in part.values() for text in texts}
    held = {group: [text for text in texts if text not in seen][:limit] for group, texts in held.items()}
    _require_texts(held, classes, "test")
    return BiasedData(
        train=_mixed(ambiguous, classes, seed),
        test=_mixed(_first(held, limit), classes, seed),
        balanced=_mixed(balanced, classes, seed),
        held_out=_mixed(held, classes, seed),
        words=GENDER_WORDS,
        concepts=KEYWORDS if set(classes) == {"professor", "nurse"} else classes,
    )


def _from_hub() -> Any:
    require("datasets", "data")
    try:
        return import_module("datasets").load_dataset(SOURCE)
    except (OSError, ValueError) as error:  # no connection; no such data set
        raise TaskError(
            f"the data set {SOURCE!r} cannot be loaded from the hub ({type(error).__name__}: {error}); look at the "
            "connection, or pass dataset=."
        ) from error


def _checked(splits: Mapping[str, Any]) -> Mapping[str, Any]:
    """The splits, once each has the columns."""
    if lacking := [split for split in ("train", "test") if split not in splits]:
        raise FileError(f"the data set has no split {' and '.join(lacking)}; it has {', '.join(splits)}. Name them so.")
    faults = [
        f"{split} has no {column!r}"
        for split in ("train", "test")
        for column in COLUMNS
        if column not in splits[split].column_names
    ]
    if faults:
        raise FileError(f"the data set does not fit: {'; '.join(faults)}; each split needs {', '.join(COLUMNS)}.")
    return splits


def _groups(split: Any, classes: Pair, name: str) -> Groups:
    """The texts of each of the four groups of a split."""
    label = {PROFESSIONS.index(profession): number for number, profession in enumerate(classes)}
    groups: Groups = {group: [] for group in range(4)}
    texts, professions, genders = (split[column][:] for column in COLUMNS)
    if strange := sorted({str(gender) for gender in genders if gender not in (0, 1)}):
        raise FileError(
            f"{name} has the genders {', '.join(strange[:5])}; allowed: 0 (male) and 1 (female); recode them."
        )
    for text, profession, gender in zip(texts, professions, genders, strict=True):
        if profession in label and text.strip():
            groups[2 * label[profession] + gender].append(text)
    _require_texts(groups, classes, name)
    return groups


def _require_texts(groups: Groups, classes: Pair, name: str) -> None:
    counts = {f"{classes[group // 2]}/{GENDERS[group % 2]}": len(texts) for group, texts in groups.items()}
    if not all(counts.values()):
        raise TaskError(f"{name} has a group without texts: {counts}; each needs one: choose other classes= or rows.")


def _first(groups: Groups, limit: int | None) -> Groups:
    """As many of each group as the smallest has, the first ones."""
    few = min(map(len, groups.values()))
    return {group: texts[: few if limit is None else min(few, limit)] for group, texts in groups.items()}


def _mixed(groups: Groups, classes: Pair, seed: int) -> Labelled:
    rows = [(text, *divmod(group, 2)) for group, texts in groups.items() for text in texts]
    Random(seed).shuffle(rows)
    texts, labels, genders = zip(*rows, strict=True)
    return Labelled(texts, labels, genders, classes, GENDERS)
