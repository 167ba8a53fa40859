"""Counterfactual examples by name: RAVEL, its cities in the toy language, or any task with corrupted prompts."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from interp.errors import OptionError, TaskError, check_options, nearest
from interp.interchange.examples import Counterfactuals
from interp.interchange.from_task import task_counterfactuals
from interp.interchange.ravel import known_prompts, ravel, read_ravel
from interp.interchange.ravel_toy import toy_ravel
from interp.models.base import HookedModel
from interp.tasks import TASKS, task

RAVEL, TOY = "ravel", "toy_cities"
ASKING = ("entities", "most_templates", "most_tokens")  # options of `known_prompts`


def counterfactuals(
    name: str,
    model: HookedModel,
    *,
    path: str | Path | None = None,
    type: str = "city",
    attributes: Sequence[str] = (),
    known: str | Path | None = None,
    n: int = 2000,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> dict[str, Counterfactuals]:
    """Training, validation and test examples for a model, in which it gives the right answers itself.

    Args:
        name: ``"ravel"`` (with `path`), ``"toy_cities"`` (RAVEL's cities in the embedded model's language), or the name
            of a task, whose answer is then the one concept.
        path: folder of RAVEL's files.
        type: of RAVEL's entities.
        attributes: of them; all when empty.
        known: JSON file that keeps which prompts the model knows (asking takes minutes).
        n: training examples of each attribute and kind (a fifth as many of each other set); prompts of a task.
        seed: of draws and splits.
        progress: show bars where there is a terminal.
        options: of `known_prompts` (``entities``, ``most_templates``, ``most_tokens``), of `ravel`, or of the task.

    Raises:
        TaskError: an unknown name.
        OptionError: RAVEL without a path, or options that do not exist.

    Example:
        data = interp.counterfactuals("toy_cities", interp.load("embedded"))
    """
    if name not in (RAVEL, TOY, *TASKS):
        known_names = (RAVEL, TOY, *TASKS)
        raise TaskError(f"no data {name!r}; allowed: {', '.join(known_names)}{nearest(name, known_names)}.")
    if name in TASKS:
        by = options.pop("by", ("entity",))
        return task_counterfactuals(task(name, model.tokenizer, n=n, seed=seed, **options), by=by, seed=seed)
    if name == RAVEL and path is None:
        raise OptionError("'ravel' needs path=, the folder of RAVEL's files (its data.tgz, unpacked).")
    files = toy_ravel() if name == TOY else read_ravel(path or "", type)
    drawing = [key for key in signature(ravel).parameters if key not in ("model", "files", "known", "sizes")]
    check_options(f"data {name!r}", options, (*ASKING, *drawing))
    asking = {key: options.pop(key) for key in ASKING if key in options}
    prompts = known_prompts(model, files, attributes=attributes, file=known, progress=progress, **asking)
    sizes = {"train": n} | dict.fromkeys(("val", "test", "context", "entity"), max(n // 5, 1))
    return ravel(model, files, prompts, attributes=attributes, sizes=sizes, seed=seed, **options)
