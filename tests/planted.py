"""Models of known circuits with several prompts, and circuits over their heads and MLPs by name."""

import numpy as np

from interp.candidate_nodes import candidates
from interp.circuit import Circuit
from interp.known import KnownCircuit, known_circuit
from interp.metrics import Answers
from interp.nodes import Nodes
from interp.tasks.base import Task
from interp.tokens import from_ids

H0, H3, MLP, JUNK = "z[0] head 0", "z[0] head 3", "mlp_out[1]", "z[2] head 3"


def planted(name: str, n: int = 12) -> tuple[KnownCircuit, Task, Nodes]:
    """The known model, its task on `n` prompts that differ in tokens without meaning, and its heads and MLPs."""
    known = known_circuit(name)
    one = known.task
    first = [prompts.ids[0, 0].item() for prompts in (one.clean, one.require_corrupted())]
    rest = np.random.default_rng(0).choice([3, 4, 5, 6], size=(n, one.clean.ids.shape[1] - 1)).tolist()
    clean, corrupted = (from_ids([[token, *row] for row in rest]) for token in first)
    given = one.answers
    answers = Answers(*(x.expand(n, *x.shape[1:]).clone() for x in (given.positions, given.correct, given.wrong)))
    task = Task(one.name, clean, answers, one.metric, corrupted=corrupted)
    return known, task, candidates(known.model, task, ["z", "mlp_out"])


def keeping(nodes: Nodes, *names: str) -> Circuit:
    """The circuit of these nodes."""
    kept = np.isin(nodes.labels, names)
    assert kept.sum() == len(names), names
    return Circuit(nodes, kept_nodes=kept)
