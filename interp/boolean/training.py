"""Training many small networks at once, one a seed, each as if alone.

The paper's protocol: 4,000 inputs drawn from the truth table, mean squared error, AdamW at 1e-3, batches of 100, at
most 1,000 epochs; a network stops when its validation loss is under .01 or has not fallen for three epochs, and does
not count when under 99 % of the validation inputs are right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.boolean.network import SmallMlp, gate_answers, truth_table
from interp.errors import OptionError, TaskError

Layers = list[tuple[Tensor, Tensor]]  # [seed, below, units], [seed, 1, units]


@dataclass(frozen=True)
class MlpTraining:
    """How small networks are trained.

    Args:
        rate, batch, epochs: of AdamW.
        loss: validation loss at which a network stops.
        patience: epochs without a lower validation loss after which it stops.
        accuracy: share of validation inputs that must be right, by rounding, for it to count.
        samples: training inputs drawn.
        noise: standard deviation of what is added to every training and validation input.
        shares: how often each row of the truth table is drawn; equally by default.
        weight_decay: of AdamW.
    """

    rate: float = 1e-3
    batch: int = 100
    epochs: int = 1000
    loss: float = 0.01
    patience: int = 3
    accuracy: float = 0.99
    samples: int = 4000
    noise: float = 0.0
    shares: tuple[float, ...] = ()
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        least = {"rate": self.rate, "batch": self.batch, "epochs": self.epochs, "loss": self.loss,
                 "patience": self.patience, "samples": self.samples}  # fmt: skip
        if wrong := {name: value for name, value in least.items() if value <= 0}:
            raise OptionError(f"{', '.join(f'{n}={v}' for n, v in wrong.items())}; allowed: numbers above 0.")


@dataclass(frozen=True, eq=False)
class TrainedMlp:
    """A network of one seed, and how its training ended.

    Args:
        seed, epochs: its seed, and when it stopped.
        loss: on the validation inputs.
        accuracy: share of them that it gets right.
        converged: whether that is enough for it to count.
    """

    network: SmallMlp
    seed: int
    epochs: int
    loss: float
    accuracy: float
    converged: bool


def train_boolean(
    target: str | Sequence[str],
    sizes: Sequence[int] = (3, 3),
    *,
    seeds: Sequence[int] = (0,),
    activation: str = "leaky_relu",
    training: MlpTraining | None = None,
) -> list[TrainedMlp]:
    """Train networks of two inputs on one gate, or on several with an output each; one network a seed.

    Args:
        target: xor, and, or, imp, nand, nor, xnor; or some of them.
        sizes: units a hidden layer.
        seeds: each gives a network its first weights, its data and their order; none depends on the others.
        activation: as in `SmallMlp`.
        training: how; the paper's protocol by default.
    """
    targets = [target] if isinstance(target, str) else list(target)
    inputs = truth_table(2)
    labels = np.stack([gate_answers(name) for name in targets], 1)
    return train_mlps(inputs, labels, sizes, seeds=seeds, activation=activation, training=training)


def train_mlps(
    inputs: Float[np.ndarray, "row input"],
    labels: Float[np.ndarray, "row output"],
    sizes: Sequence[int],
    *,
    seeds: Sequence[int],
    activation: str = "leaky_relu",
    training: MlpTraining | None = None,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
) -> list[TrainedMlp]:
    """Train networks on rows of any data, one network a seed; see `train_boolean`.

    Args:
        inputs, labels: rows to draw training inputs from.
        validation: rows to stop by; those of training when None, with noise where training has it.
    """
    training = training or MlpTraining()
    if training.shares and len(training.shares) != len(inputs):
        raise TaskError(f"shares has {len(training.shares)} numbers for {len(inputs)} rows; give one a row.")
    shape = (inputs.shape[1], *sizes, labels.shape[1])
    seeds = list(seeds)
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    layers = _first_weights(shape, generators)
    drawn = [_draw(inputs, labels, training, generator) for generator in generators]
    data, wanted = torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])
    if validation is not None:
        tests = [tuple(torch.from_numpy(np.asarray(part)).float() for part in validation)] * len(seeds)
    elif training.noise:
        tests = [_draw(inputs, labels, training, generator) for generator in generators]
    else:
        tests = [(torch.from_numpy(inputs).float(), torch.from_numpy(labels).float())] * len(seeds)
    check, answers = torch.stack([x for x, _ in tests]), torch.stack([y for _, y in tests])
    return _Run(layers, seeds, generators, activation, training).train(data, wanted, check, answers)


class _Run:
    """Networks in training: those that have stopped leave the stack, and with them their state of the optimizer."""

    def __init__(
        self,
        layers: Layers,
        seeds: list[int],
        generators: list[torch.Generator],
        activation: str,
        training: MlpTraining,
    ) -> None:
        self.layers, self.seeds, self.generators = layers, seeds, generators
        self.activation, self.training = activation, training
        self.done: dict[int, TrainedMlp] = {}
        self.best = torch.full((len(seeds),), torch.inf)
        self.bad = torch.zeros(len(seeds), dtype=torch.long)

    def train(self, data: Tensor, wanted: Tensor, check: Tensor, answers: Tensor) -> list[TrainedMlp]:
        parameters = [part.requires_grad_() for layer in self.layers for part in layer]
        optimizer = torch.optim.AdamW(parameters, lr=self.training.rate, weight_decay=self.training.weight_decay)
        order = list(self.seeds)
        for epoch in range(1, self.training.epochs + 1):
            self._epoch(optimizer, data, wanted)
            losses, right = self._validate(check, answers)
            better = losses < self.best
            self.best = torch.minimum(self.best, losses)
            self.bad = torch.where(better, 0, self.bad + 1)
            stops = (losses < self.training.loss) | (self.bad >= self.training.patience)
            if epoch == self.training.epochs:
                stops[:] = True
            if stops.any():
                self._store(stops, epoch, losses, right)
                left = ~stops
                data, wanted, check, answers = (part[left] for part in (data, wanted, check, answers))
                self._leave(left, optimizer)
            if not self.seeds:
                break
        return [self.done[seed] for seed in order]

    def _epoch(self, optimizer: torch.optim.Optimizer, data: Tensor, wanted: Tensor) -> None:
        order = torch.stack([torch.randperm(data.shape[1], generator=generator) for generator in self.generators])
        for rows in order.split(self.training.batch, dim=1):
            taken = rows[:, :, None]
            x = data.gather(1, taken.expand(-1, -1, data.shape[2]))
            y = wanted.gather(1, taken.expand(-1, -1, wanted.shape[2]))
            loss = (forward(self.layers, x, self.activation) - y).square().mean((1, 2)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def _validate(self, check: Tensor, answers: Tensor) -> tuple[Float[Tensor, " seed"], Float[Tensor, " seed"]]:
        said = forward(self.layers, check, self.activation)
        right = ((said - answers).abs() < 0.5).all(2).float().mean(1)
        return (said - answers).square().mean((1, 2)), right

    def _store(self, stops: Tensor, epoch: int, losses: Tensor, right: Tensor) -> None:
        for n in stops.nonzero()[:, 0].tolist():
            network = SmallMlp(
                tuple(weight[n].detach().double().numpy() for weight, _ in self.layers),
                tuple(bias[n, 0].detach().double().numpy() for _, bias in self.layers), self.activation,
            )  # fmt: skip
            accuracy = float(right[n])
            enough = accuracy >= self.training.accuracy
            self.done[self.seeds[n]] = TrainedMlp(network, self.seeds[n], epoch, float(losses[n]), accuracy, enough)

    def _leave(self, left: Tensor, optimizer: torch.optim.Optimizer) -> None:
        kept = left.nonzero()[:, 0].tolist()
        self.seeds, self.generators = [self.seeds[n] for n in kept], [self.generators[n] for n in kept]
        self.best, self.bad = self.best[left], self.bad[left]
        for parameter in (part for layer in self.layers for part in layer):
            parameter.grad = None
            parameter.data = parameter.data[left]
            state = optimizer.state[parameter]
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name][left]


def forward(layers: Layers, x: Float[Tensor, "seed row input"], activation: str) -> Float[Tensor, "seed row output"]:
    """The same pass as `SmallMlp.outputs`, one network a seed, for training."""
    for n, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weight)
        if n < len(layers) - 1:
            x = _ACTIVATIONS[activation](x)
    return x


_ACTIVATIONS = {
    "leaky_relu": torch.nn.functional.leaky_relu,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


def _first_weights(shape: tuple[int, ...], generators: list[torch.Generator]) -> Layers:
    """As `torch.nn.Linear` starts: uniform within 1 / sqrt(units below)."""
    layers = []
    for below, units in zip(shape, shape[1:], strict=False):
        bound = below**-0.5
        drawn = torch.stack([torch.rand(below + 1, units, generator=one) for one in generators])
        layer = (drawn * 2 - 1) * bound
        layers.append((layer[:, :below].clone(), layer[:, below:].clone()))
    return layers


def _draw(
    inputs: np.ndarray, labels: np.ndarray, training: MlpTraining, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    shares = torch.tensor(training.shares or [1.0] * len(inputs), dtype=torch.float64)
    rows = torch.multinomial(shares, training.samples, replacement=True, generator=generator)
    x, y = torch.from_numpy(inputs)[rows].float(), torch.from_numpy(labels)[rows].float()
    return x + training.noise * torch.randn(x.shape, generator=generator), y
