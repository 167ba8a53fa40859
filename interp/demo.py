"""The demonstration: the heads that carry indirect object identification in a real model, found exactly and judged.

1. Build prompt pairs "When Mary and John went to the store, John gave a drink to" / "... Mary gave a drink to".
2. Patch every head at every position, in both directions, exactly.
3. Keep the fewest (head, position) nodes that reach the faithfulness asked for on these prompts.
4. Judge them on held-out prompts, against random circuits of the same size.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from interp.circuit import Circuit, Score, ScoreHeader
from interp.circuit_ops import top_n
from interp.curves import faithfulness_curve
from interp.evaluate import Faithfulness, faithfulness
from interp.methods.patching import patch
from interp.metrics import metric
from interp.models.base import HookedModel
from interp.scoring import FINAL, Scorer
from interp.sweep import Engine
from interp.table import Table
from interp.tasks import Task, ioi

TEMPLATE = "When {first} and {second} went to the {place}, {S2} gave a {object} to"
TOY_TEMPLATE = "when {first} and {second} went to the {place} , {S2} gave a {object} to"
SIZES = (5, 10, 20, 30, 45, 60, 90, 120, 180)
BOTH = "logit_diff.both"


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demonstration found.

    Attributes:
        train, test: the prompts it searched and those it was judged on.
        circuit: the chosen nodes, in their universe.
        curve: faithfulness by size on `train`.
        judged: faithfulness on `test`, with random circuits.
        seconds: wall time of the sweep, and of everything.
    """

    model: HookedModel
    train: Task
    test: Task
    circuit: Circuit
    curve: Table
    judged: Faithfulness
    seconds: tuple[float, float]
    behaviour: tuple[float, float, float]

    def summary(self) -> str:
        """The result in a dozen lines."""
        shape, task = self.model.shape, self.train
        right, clean, corrupted = self.behaviour
        nodes = self.circuit.nodes
        lines = [
            f"{self.model.identity.name}: {shape.n_layers} layers x {shape.n_heads} heads; indirect object "
            f"identification, {len(task)} prompt pairs, for example",
            f"  clean:     {_text(task, 0)!r} -> {_answer(self.model, task, 0)!r}",
            f"  corrupted: {_text(task, 0, corrupted=True)!r}",
            f"It prefers the right name in {right:.0%} of the pairs; logit difference {clean:+.2f} clean, "
            f"{corrupted:+.2f} corrupted.",
            f"Patched every head at every position in both directions: {2 * len(nodes) * len(task):,} exact effects in "
            f"{self.seconds[0]:.0f} s.",
            "Nodes that carry most (share of the gap restored when its clean value is put back, lost when taken away):",
            *_leaders(self.circuit),
            f"Circuit: {self.judged}, on {len(self.test)} held-out pairs; {len(self.judged.outside)} other sublayers "
            "(the MLPs) ran as they are.",
            f"Random circuits of its size: {_range(self.judged.random)}. All in {self.seconds[1]:.0f} s.",
        ]
        return "\n".join(lines)


def demo(
    model: HookedModel, *, pairs: int = 8, target: float = 0.8, seed: int = 0, engine: Engine | None = None
) -> Demo:
    """Find and judge the circuit; see the module.

    Args:
        pairs: prompt pairs to search on; as many again are held out.
        target: faithfulness at which the circuit is large enough.
        seed: of prompts, random circuits and bootstrap.
    """
    start = time.perf_counter()
    train, test = _prompts(model, pairs, seed)
    behaviour = _behaviour(model, train)
    found = patch(model, train, "z", positions="each", direction="both", seed=seed, engine=engine)
    swept = time.perf_counter() - start
    found = _with_both(found)
    sizes = [n for n in SIZES if n < len(found.nodes)]
    curve = faithfulness_curve(model, train, found, sizes, BOTH, rank="signed", random=0, seed=seed)
    enough = np.flatnonzero(curve["faithfulness"] >= target)
    size = int(curve["size"][enough[0]]) if len(enough) else sizes[-1]
    circuit = top_n(found, size, BOTH, rank="signed")
    judged = faithfulness(model, test, circuit, random=20, seed=seed)
    return Demo(model, train, test, circuit, curve, judged, (swept, time.perf_counter() - start), behaviour)


def write(result: Demo, folder: Path) -> None:
    """Circuit, page, figures and table of a demonstration, into `folder`."""
    from interp.circuit_files import save_circuit
    from interp.view import curves, view
    from interp.view import save as save_figure

    save_circuit(result.circuit, folder / "circuit")
    tokens = result.train.clean.tokens[0]
    view(result.circuit, folder / "circuit.html", tokens=tokens)
    curve = result.curve
    figure = curves(
        curve["size"], {"top nodes": curve["faithfulness"]}, bands={"top nodes": (curve["low"], curve["high"])},
        title="Faithfulness by circuit size", x_title="nodes kept", y_title="faithfulness",
    )  # fmt: skip
    save_figure(figure, folder / "faithfulness.html")
    result.circuit.frame().sort(BOTH, descending=True).to_csv(folder / "nodes.csv")
    (folder / "summary.txt").write_text(result.summary() + "\n", encoding="utf-8")


def _prompts(model: HookedModel, pairs: int, seed: int) -> tuple[Task, Task]:
    """Pairs of one template, so that positions mean the same in all of them; the second half is held out."""
    standard = ioi(model.tokenizer, n=1, seed=seed).parameters["style"] == "standard"
    lists = {"templates": (TEMPLATE if standard else TOY_TEMPLATE,)}
    task = ioi(model.tokenizer, n=2 * pairs, seed=seed, lists=lists)
    return task[:pairs], task[pairs:]


def _behaviour(model: HookedModel, task: Task) -> tuple[float, float, float]:
    """Share of pairs with the right preference, and the mean logit difference of clean and corrupted runs."""
    scorer = Scorer(model, (metric("preference"), metric("logit_diff")), task.answers)
    with torch.no_grad():
        clean = scorer.of_run(model.run(task.clean, record=[FINAL], logits="none")).mean(1)
        corrupted = scorer.of_run(model.run(task.require_corrupted(), record=[FINAL], logits="none")).mean(1)
    return float(clean[0]), float(clean[1]), float(corrupted[1])


def _with_both(circuit: Circuit) -> Circuit:
    """The circuit with the mean of both directions' scores as a column of its own."""
    parts = [circuit.scores[f"logit_diff.{way}"].values for way in ("denoising", "noising")]
    header = ScoreHeader("nodes", "effect", True, reduction="mean", unit="logits", method="patch", metric="logit_diff")
    return replace(circuit, scores={**circuit.scores, BOTH: Score(header, np.mean(parts, axis=0))})


def _leaders(circuit: Circuit, count: int = 6) -> list[str]:
    table = circuit.frame().sort(BOTH, descending=True).head(count)
    return [
        f"  {row['node']:<24} {row['logit_diff.denoising.normalised']:+.0%} restored, "
        f"{row['logit_diff.noising.normalised']:+.0%} lost"
        for row in table.rows()
    ]


def _text(task: Task, row: int, *, corrupted: bool = False) -> str:
    prompts = task.require_corrupted() if corrupted else task.clean
    return "" if prompts.texts is None else prompts.texts[row]


def _answer(model: HookedModel, task: Task, row: int) -> str:
    return model.tokenizer.decode([int(task.answers.correct[row, 0, 0])])


def _range(values: tuple[float, ...]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "none"
