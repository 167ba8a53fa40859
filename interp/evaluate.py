"""Is a circuit any good? Faithfulness: how much of the behaviour is left when everything else is ablated.

    faithfulness = (m(circuit) - m(empty)) / (m(model) - m(empty))

where m(circuit) is the clean run with the complement ablated and m(empty) the run with the whole universe ablated (the
quotient of the means over prompts, so 1 is the model and 0 the empty circuit; it may leave [0, 1]). A denominator too
small to divide by gives NaN with the reason. Random circuits of the same size are the control to be beaten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from interp.circuit import Circuit
from interp.circuit_ops import Rank, top_n
from interp.errors import OptionError
from interp.metrics import Metric
from interp.models.base import HookedModel
from interp.recovery import bootstrap, recovery
from interp.run_circuit import run_circuits
from interp.scoring import checked_metrics
from interp.table import Table
from interp.tasks.base import Task


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """A circuit's faithfulness, with what it was computed from.

    Attributes:
        value: faithfulness; NaN where undefined, and then `reason` says why.
        low, high: 95 % bootstrap interval over prompts.
        random: faithfulness of random circuits with as many nodes.
        size: nodes kept, of `universe` candidates.
        circuit, model, empty: the metric per prompt of the three runs.
        outside: sites without candidates, which ran as they are.
        metric, ablation: what was measured, and what replaced the rest.
    """

    value: float
    low: float
    high: float
    reason: str
    random: tuple[float, ...]
    size: int
    universe: int
    circuit: Float[Tensor, " prompt"]
    model: Float[Tensor, " prompt"]
    empty: Float[Tensor, " prompt"]
    outside: tuple[str, ...]
    metric: str
    ablation: str

    def __str__(self) -> str:
        if self.reason:
            return f"faithfulness undefined: {self.reason}"
        better = sum(self.value > other for other in self.random)
        versus = f"; above {better} of {len(self.random)} random circuits of its size" if self.random else ""
        return (
            f"faithfulness {self.value:.2f} [{self.low:.2f}, {self.high:.2f}] with {self.size} of {self.universe} nodes"
            f"{versus} ({self.metric}, {self.ablation} ablation)"
        )


def faithfulness(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    random: int = 20,
    seed: int = 0,
) -> Faithfulness:
    """Faithfulness of the circuit's kept nodes, beside random circuits of its size.

    Args:
        metric: its name, or the metric; the task's own when None.
        ablation: what replaces everything else; see `run_circuits`.
        random: how many random circuits; drawn among the universe's nodes without the circuit's own scores.
        seed: of the draw, the donors and the bootstrap.

    Raises:
        CircuitError, SiteError, TaskError, MetricError, OptionError: what `run_circuits` cannot run.
    """
    (used,) = checked_metrics(model, task, metric or ())
    own = circuit.kept_nodes
    masks = np.stack([own, np.ones_like(own), np.zeros_like(own), *random_masks(own, random, seed)])
    runs = run_circuits(model, task, circuit, masks, metrics=[used], ablation=ablation, seed=seed)
    values = runs.values[0]
    full, empty = values[1], values[2]
    shares = recovery(values, full, empty)
    low, high = bootstrap(values[:1] - empty, seed=seed, over=full - empty)
    return Faithfulness(
        float(shares.value[0]), float(low[0]), float(high[0]), shares.reason, tuple(shares.value[3:].tolist()),
        int(own.sum()), len(own), values[0], full, empty, runs.outside, used.name, ablation,
    )  # fmt: skip


def random_masks(kept: Bool[np.ndarray, " node"], count: int, seed: int) -> list[Bool[np.ndarray, " node"]]:
    """Random circuits with as many nodes as `kept`.

    Raises:
        OptionError: a negative count.
    """
    if count < 0:
        raise OptionError(f"random={count}; allowed: 0 and more.")
    generator = np.random.default_rng(seed)
    return [generator.permutation(kept) for _ in range(count)]


def faithfulness_curve(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    sizes: Sequence[int],
    by: str,
    *,
    rank: Rank,
    metric: str | Metric | None = None,
    ablation: str = "counterfactual",
    random: int = 5,
    seed: int = 0,
) -> Table:
    """Faithfulness of the top-n circuits by a score, for each n, beside random circuits.

    Returns:
        One row a size: size, faithfulness, low, high, random_mean, random_max (NaN without random circuits), and
        the reason where faithfulness is undefined; each row is what `faithfulness` gives for the top-n circuit.
    """
    tops = [top_n(circuit, n, by, rank=rank).kept_nodes for n in sizes]
    draws = [mask for kept in tops for mask in random_masks(kept, random, seed)]
    masks = np.stack([np.ones_like(circuit.kept_nodes), np.zeros_like(circuit.kept_nodes), *tops, *draws])
    values = run_circuits(model, task, circuit, masks, metrics=metric or (), ablation=ablation, seed=seed).values[0]
    full, empty = values[0], values[1]
    recovered = recovery(values[2:], full, empty)
    shares = recovered.value.numpy()
    low, high = bootstrap(values[2 : 2 + len(tops)] - empty, seed=seed, over=full - empty)
    controls = shares[len(tops) :].reshape(len(tops), random)
    none = np.full(len(tops), np.nan)
    return Table(
        {
            "size": np.array(list(sizes)),
            "faithfulness": shares[: len(tops)],
            "low": low.numpy(),
            "high": high.numpy(),
            "random_mean": controls.mean(1) if random else none,
            "random_max": controls.max(1) if random else none,
            "reason": np.full(len(tops), recovered.reason, dtype=object),
        }
    )
