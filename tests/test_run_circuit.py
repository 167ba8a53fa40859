"""Running a circuit: brute force against hand-written hooks, and the laws of full, empty, wholes and parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from interp.candidate_nodes import candidates
from interp.circuit import Circuit, Score, ScoreHeader
from interp.edges import Edges
from interp.errors import CircuitError, InterpError, MetricError, OptionError, SiteError, TaskError
from interp.intervention import Patch
from interp.metrics import metric
from interp.models.base import HookedModel
from interp.models.families import SiteMap
from interp.models.hf import HookedHF
from interp.nodes import Node, Nodes
from interp.run_circuit import CircuitRuns, run_circuits
from interp.sources import ABLATIONS, donors
from interp.tasks.base import Task
from interp.tokens import Prompts, from_ids

G2 = tiny.hooked("gpt2")
LH = tiny.hooked("llama")
TASK = tiny.task()


def run(model: HookedModel, nodes: Nodes | Sequence[str], kept: Any, task: Task = TASK, **options: Any) -> CircuitRuns:
    universe = Circuit(nodes if isinstance(nodes, Nodes) else Nodes.of(nodes))
    return run_circuits(model, task, universe, np.atleast_2d(np.array(kept, dtype=bool)), **options)


def behaviour(model: HookedModel, task: Task, prompts: Prompts, patches: Any = ()) -> Tensor:
    return task.metric(model.run(prompts, patches, logits=task.answers.positions).logits, task.answers).double()


def close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected).double(), atol=3e-5, rtol=1e-4)


# --- brute force against raw torch hooks ---

SMALL = tiny.build("gpt2", n_layer=2, n_head=2)
PLACES = [("z", layer, head) for layer in range(2) for head in range(2)] + [
    ("mlp_out", layer, None) for layer in range(2)
]
PAIRS = [tiny.RAGGED[0], tiny.CHANGED[0], tiny.RAGGED[1], tiny.CHANGED[1]]


def even_task() -> Task:
    """Two prompts of each length; each one's counterpart is the other."""
    clean, corrupted = from_ids(PAIRS), from_ids([PAIRS[row] for row in (1, 0, 3, 2)])
    return Task("even", clean, tiny.answers(clean), metric("logit_diff"), corrupted)


def hooked_run(row: Sequence[int], change: Callable[[str, int, Tensor], Tensor]) -> Tensor:
    """Last logits of one prompt, `change` applied to the heads [pos, head, 16] and the MLP output of each block."""

    def heads(layer: int) -> Callable:
        return lambda _, args: (change("z", layer, args[0][0].unflatten(-1, (2, 16)).clone()).flatten(-2)[None],)

    def output(layer: int) -> Callable:
        return lambda _, __, out: change("mlp_out", layer, out[0].clone())[None]

    handles = []
    for layer, block in enumerate(SMALL.transformer.h):
        handles.append(block.attn.c_proj.register_forward_pre_hook(heads(layer)))
        handles.append(block.mlp.register_forward_hook(output(layer)))
    try:
        with torch.no_grad():
            return SMALL(torch.tensor([list(row)])).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()


def recorded(rows: Sequence[Sequence[int]]) -> list[dict[tuple[str, int], Tensor]]:
    """Each prompt's activations at the places."""
    found = []
    for row in rows:
        seen: dict[tuple[str, int], Tensor] = {}

        def keep(kind: str, layer: int, x: Tensor, seen: dict = seen) -> Tensor:
            seen[kind, layer] = x
            return x

        hooked_run(row, keep)
        found.append(seen)
    return found


def ablation_values(task: Task, ablation: str, row: int) -> Mapping[tuple[str, int], Tensor]:
    """What a hand-written ablation puts at each place of a prompt."""
    clean = recorded(task.clean.rows())
    if ablation == "counterfactual":
        return recorded(task.corrupted.rows())[row]
    if ablation == "resample":
        return clean[donors(task.clean, 5)[row]]
    if ablation == "zero":
        return {place: torch.zeros_like(x) for place, x in clean[row].items()}
    if ablation == "mean":
        return {place: torch.cat([one[place] for one in clean]).mean(0).expand_as(x) for place, x in clean[row].items()}
    return {
        place: torch.stack(
            [torch.stack([one[place][p] for one in clean if len(one[place]) > p]).mean(0) for p in range(len(x))]
        )
        for place, x in clean[row].items()
    }


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_subset_runs_as_with_hand_written_hooks(ablation: str) -> None:
    task = even_task()
    subsets = ((np.arange(64)[:, None] >> np.arange(6)) & 1).astype(bool)[:: 1 if ablation == "counterfactual" else 5]
    nodes = Nodes.of([Node(kind, layer, head=head) for kind, layer, head in PLACES])
    found = run(HookedHF(SMALL), nodes, subsets, task, ablation=ablation, seed=5).values[0]
    for row, prompt in enumerate(task.clean.rows()):
        values = ablation_values(task, ablation, row)
        for number, kept in enumerate(subsets):
            dropped = [place for place, keep in zip(PLACES, kept, strict=True) if not keep]

            def ablate(kind: str, layer: int, x: Tensor, dropped: Any = dropped, values: Any = values) -> Tensor:
                for one in dropped:
                    if one[:2] == (kind, layer):
                        where = slice(None) if one[2] is None else (slice(None), one[2])
                        x[where] = values[kind, layer][where]
                return x

            logits = hooked_run(prompt, ablate)
            assert float(found[number, row]) == pytest.approx(float(logits[10 + row] - logits[20 + row]), abs=3e-5)


# --- full and empty ---


def universes(model: HookedModel) -> dict[str, Nodes]:
    return {
        "heads": candidates(model, TASK, "z"),
        "heads at each position": candidates(model, TASK, ["z", "mlp_out"], positions="each", layers=[0, 1]),
        "roles": candidates(model, TASK, ["z", "resid_post", "k"], positions=["changed", "late", "end"]),
        "blocks": candidates(model, TASK, ["neuron", "attn_out"], block=7, layers=[1]),
        "one head": Nodes.of([Node("z", 1, head=1, pos=3), Node("pattern", 2, head=0)]),
        "a coordinate of a head": Nodes.of([Node("z", 1, head=1, unit=2), Node("pattern", 0, pos=4, unit=2)]),
        "wholes and parts": candidates(model, TASK, ["attn_out", "z", "mlp_out", "neuron", "embed", "resid_final"]),
    }


@pytest.mark.parametrize("which", universes(G2))
@pytest.mark.parametrize("ablation", ["counterfactual", "zero"])
def test_the_full_universe_is_the_model_however_little_of_it_the_candidates_cover(which: str, ablation: str) -> None:
    nodes = universes(G2)[which]
    found = run(G2, nodes, [np.ones(len(nodes)), np.zeros(len(nodes))], ablation=ablation).values[0]
    close(found[0], behaviour(G2, TASK, TASK.clean))
    assert (found[1] - found[0]).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "gemma2"])
@pytest.mark.parametrize(
    "cut",
    [
        ["embed", "z", "mlp_out"],
        ["embed", "attn_out", "neuron"],
        ["input", "attn_out", "z", "mlp_out", "neuron"],
        ["resid_post[1]"],
    ],
    ids=str,
)
def test_the_empty_circuit_of_a_cut_is_the_corrupted_run(family: str, cut: list[str]) -> None:
    model = tiny.hooked(family)
    kinds = [kind for kind in cut if kind != "input" and "[" not in kind]
    ready = [Node.parse(text) for text in cut if text == "input" or "[" in text]
    nodes = Nodes.of([*ready, *(candidates(model, TASK, kinds) if kinds else [])])
    found = run(model, nodes, np.zeros(len(nodes))).values[0, 0]
    close(found, behaviour(model, TASK, TASK.corrupted))


# --- wholes and parts ---


def test_keeping_a_whole_keeps_its_parts_and_a_part_of_a_dropped_whole_is_kept() -> None:
    heads = [f"z[1] head {h}" for h in range(4)]
    mixed = run(G2, ["attn_out[1]", *heads], [[1, 0, 0, 0, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    alone = run(G2, heads, [[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    close(mixed.values[0, 0], behaviour(G2, TASK, TASK.clean))
    close(mixed.values[0, 1:], alone.values[0])
    dropped = behaviour(G2, TASK, TASK.clean, [Patch("attn_out[1]", G2.run(TASK.corrupted, record=["attn_out[1]"]))])
    close(mixed.values[0, 3], dropped)
    neurons = run(G2, ["mlp_out[0]", "neuron[0] units 0:64", "neuron[0] units 64:128"], [[0, 1, 0], [1, 0, 0]])
    close(neurons.values[0, 0], run(G2, ["neuron[0] units 0:64", "neuron[0] units 64:128"], [1, 0]).values[0, 0])
    close(neurons.values[0, 1], behaviour(G2, TASK, TASK.clean))


def test_a_dropped_whole_takes_the_parts_that_are_no_candidates_with_it() -> None:
    donor = G2.run(TASK.corrupted, record=["z[1]"])
    found = run(G2, ["attn_out[1]", "z[1] head 2"], [[0, 1], [1, 0]]).values[0]
    close(found[0], behaviour(G2, TASK, TASK.clean, [Patch("z[1]", donor, head=[0, 1, 3])]))
    close(found[1], behaviour(G2, TASK, TASK.clean))


def test_a_kept_node_at_one_position_keeps_a_whole_there_only() -> None:
    donor = G2.run(TASK.corrupted, record=["z[0]"])
    found = run(G2, ["attn_out[0] role changed", "z[0]"], [[1, 0]]).values[0, 0]
    elsewhere = [[p for p in range(n) if p not in at] for n, at in zip((6, 9, 7), TASK.roles["changed"], strict=True)]
    close(found, behaviour(G2, TASK, TASK.clean, [Patch("z[0]", donor, pos=elsewhere)]))


# --- positions, roles, units, heads of every kind ---


def expected(model: HookedModel, nodes: Nodes, kept: np.ndarray) -> Tensor:
    """Patches of what dropped nodes cover and kept ones do not, entry by entry."""
    shape = model.shape

    def entries(node: Node) -> set[tuple]:
        sizes = shape.sizes(node.site)
        heads = range(sizes["kv_head" if "kv_head" in node.site.axes else "head"]) if node.site.has_heads else [None]
        found = set()
        for row, n in enumerate(TASK.clean.lengths.tolist()):
            places = TASK.roles[node.role][row] if node.role else range(n) if node.pos is None else [node.pos]
            units = range(sizes["d"] or n) if node.unit is None else range(node.unit, node.unit + node.width)
            found |= {
                (node.site, row, p, h, u)
                for p in places if p < n
                for h in (heads if node.head is None else [node.head])
                for u in units
            }  # fmt: skip
        return found

    def union(rows: np.ndarray) -> set[tuple]:
        return set().union(*(entries(nodes[int(row)]) for row in rows))

    ablated = union(np.arange(len(nodes))) - union(np.flatnonzero(kept))
    grouped: dict[tuple, list[int]] = {}
    for site, row, p, h, u in sorted(ablated, key=str):
        grouped.setdefault((site, row, p, h), []).append(u)
    donor = model.run(TASK.corrupted, record=sorted({node.site for node in nodes}, key=str))
    patches = [
        Patch(site, donor, head=h, pos=[[p]], rows=[row], unit=units) for (site, row, p, h), units in grouped.items()
    ]
    return behaviour(model, TASK, TASK.clean, patches)


@pytest.mark.parametrize(
    "kinds, options",
    [
        (["z", "mlp_out"], {"positions": ["changed", "late", "end"]}),
        (["k", "v"], {"positions": ["changed", "end"], "layers": [0, 2]}),
        (["resid_pre"], {"positions": "each", "layers": [1]}),
        (["neuron"], {"positions": ["end", "changed"], "block": 20, "layers": [2]}),
        (["pattern", "q"], {"positions": ["end"], "layers": [1, 2]}),
    ],
    ids=str,
)
def test_positions_heads_and_blocks_are_ablated_entry_by_entry(kinds: list[str], options: dict) -> None:
    nodes = candidates(LH, TASK, kinds, **options)
    kept = np.random.default_rng(0).random((3, len(nodes))) < 0.5
    found = run(LH, nodes, kept).values[0]
    for number in range(3):
        close(found[number], expected(LH, nodes, kept[number]))


def test_coordinates_of_heads_and_single_weights_are_ablated_by_themselves() -> None:
    nodes = Nodes.of(
        [Node("z", 1, head=0, unit=3, width=4), Node("z", 1, head=0, unit=9), Node("pattern", 1, pos=5, unit=2)]
    )
    for kept in ([0, 0, 0], [1, 0, 0], [0, 1, 1]):
        close(run(LH, nodes, kept).values[0, 0], expected(LH, nodes, np.array(kept)))


# --- what is returned ---


def test_values_do_not_depend_on_how_rows_are_batched_and_come_for_every_metric() -> None:
    nodes = candidates(G2, TASK, "z")
    kept = np.random.default_rng(1).random((5, len(nodes))) < 0.5
    usual = run(G2, nodes, kept, metrics=["logit_diff", "kl", metric("prob")])
    assert usual.values.shape == (3, 5, 3) and usual.values.dtype == torch.float64
    for rows in (1, 4):
        close(run(G2, nodes, kept, metrics=["logit_diff", "kl", "prob"], rows=rows).values, usual.values)
    for row in range(3):
        close(run(G2, nodes, kept, TASK[row], metrics="kl").values[0, :, 0], usual.values[1, :, row])
    full = run(G2, nodes, np.ones(len(nodes)), metrics="kl").values
    close(full, torch.zeros(1, 1, 3))


def test_what_ran_as_it_is_is_named() -> None:
    mlps = ("mlp_out[0]", "mlp_out[1]", "mlp_out[2]")

    def outside(nodes: Any) -> tuple[str, ...]:
        nodes = nodes if isinstance(nodes, Nodes) else Nodes.of(nodes)
        return run(G2, nodes, np.ones(len(nodes))).outside

    assert outside(candidates(G2, TASK, "z")) == mlps
    assert outside(candidates(G2, TASK, "z", positions="each")) == mlps
    assert outside(candidates(G2, TASK, ["attn_out", "neuron"])) == ()
    assert outside(candidates(G2, TASK, ["z", "mlp_out"], layers=[1])) == (
        "attn_out[0]",
        "mlp_out[0]",
        "attn_out[2]",
        mlps[2],
    )
    assert outside(["q[0]", "v[1]", "attn_proj[2]", *mlps]) == ()
    assert outside(["z[0]", "z[1] role end", "z[2] head 1", *mlps]) == ("z[1] in part", "z[2] in part")
    assert outside(["attn_out[0]", "attn_out[1]", "attn_out[2]", "z[2] head 1", *mlps]) == ()


def test_a_model_whose_map_lacks_the_sublayers_outputs_still_runs() -> None:
    points = {kind: point for kind, point in tiny.POINTS.items() if kind in ("z", "neuron")}
    model = HookedHF(
        tiny.randomised(tiny.Decoder(tiny.SHAPE)).eval(),
        site_map=SiteMap("layers", "norm", "unembed", points=points),
        shape=tiny.SHAPE,
    )
    nodes = candidates(model, TASK, "z")
    found = run(model, nodes, np.ones(len(nodes)))
    close(found.values[0, 0], behaviour(model, TASK, TASK.clean))
    assert found.outside == ()


def test_model_masks_and_global_randomness_stay_as_they_were() -> None:
    model = HookedHF(tiny.build("gpt2"))
    weights = {name: p.clone() for name, p in model.model.named_parameters()}
    nodes, state = candidates(model, TASK, ["z", "q"]), torch.get_rng_state()
    kept = np.random.default_rng(0).random((2, len(nodes))) < 0.5
    before = kept.copy()
    run(model, nodes, kept)
    with pytest.raises(SiteError):
        run(model, ["z[9]"], [1])
    assert np.array_equal(kept, before) and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, weights[name]) for name, p in model.model.named_parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.model.modules())
    assert model.model.config._attn_implementation == "sdpa"


# --- mistakes ---


@pytest.mark.parametrize(
    "nodes, kept, options, error, message",
    [
        (["z[0]"], [[1, 1]], {}, CircuitError, r"masks have shape \(1, 2\); \[circuit, 1\] is needed"),
        (["z[0]"], np.zeros((0, 1)), {}, CircuitError, "masks have shape"),
        (["z[0] head 7", "z[5]"], [1, 1], {}, SiteError, r"'z\[0\] head 7': .*; 'z\[5\]'"),
        (["z[0] role S2"], [1], {}, TaskError, "has no role 'S2'"),
        (["z[0]"], [1], {"ablation": "men"}, OptionError, "ablation is 'men'; allowed"),
        (["pattern[0]"], [1], {"ablation": "mean"}, OptionError, "so no mean"),
        (["z[0]"], [1], {"ablation": "resample"}, TaskError, "the only ones of their length"),
        (["z[0]"], [1], {"rows": 0}, OptionError, "rows=0; allowed: 1"),
        (["z[0]"], [1], {"metrics": "logitdiff"}, MetricError, "no metric 'logitdiff'"),
        (
            ["attn_out[0] unit 3", "z[0] head 1"],
            [1, 1],
            {},
            CircuitError,
            r"is a coordinate beside candidates at z\[0\]",
        ),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    nodes: list[str], kept: Any, options: dict, error: type[InterpError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HookedHF(tiny.build("gpt2"), check=False)
    monkeypatch.setattr(model.model, "forward", lambda *_, **__: pytest.fail("a forward was run"))
    with pytest.raises(error, match=message):
        run(model, nodes, kept, **options)


def test_a_circuit_of_edges_and_a_task_without_counterparts_are_refused() -> None:
    score = Score(ScoreHeader("edges", "attribution", True), np.array([1.0]))
    edges = Circuit(Nodes.of(["z[0]", "z[1]"]), Edges(np.array([0]), np.array([1])), scores={"eap": score})
    with pytest.raises(CircuitError, match="members are edges; running it needs edge patching"):
        run_circuits(G2, TASK, edges, np.ones((1, 2), bool))
    with pytest.raises(TaskError, match="has no corrupted prompts"):
        run(G2, ["z[0]"], [0], tiny.task(corrupted=None))
    features = Circuit(Nodes.of(["mlp_out[0] featurizer sae unit 3"]), featurizers={"sae": {}})
    with pytest.raises(CircuitError, match=r"features of 'sae'; running it needs these; .*\(given: none\)"):
        run_circuits(G2, TASK, features, np.ones((1, 1), bool))
