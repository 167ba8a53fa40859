"""A model that holds variables at a known layer, position and subspace, because its weights were set by hand.

    BOS  fillers  (another entity)  e1 e2  filler filler  Q_a   ->   the entity's value of attribute a

An entity is a pair of tokens; it has a value of each attribute, drawn at random. Block 1 looks the pair up and writes
the values into `resid_post[1]` at one token, each attribute into a subspace of eight dimensions of its own; beside them
stands what says which entity it is and is never read. Block 2 fetches attribute a for the query Q_a from that token,
which it finds by its distance. So `resid_post[1]` there is the one place where exchanging a subspace of an entity
changes one attribute alone.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import check_choice
from interp.interchange.examples import Counterfactuals
from interp.models.base import HookedModel
from interp.models.blank import blank_gpt2
from interp.models.load import load
from interp.site import Site
from interp.tokens import from_ids

Where = Literal["last", "after"]
PARTS, ATTRIBUTES, VALUES, FILLERS, POSITIONS = 24, 3, 16, 4, 14
# (With 16 parts subspaces also lean on what tells the few training entities apart: overlap .96 in place of .98.)
SECOND = PARTS  # token ids: first parts of entities, second parts, values, queries, fillers, BOS
VALUE = SECOND + PARTS
QUERY = VALUE + ATTRIBUTES * VALUES
FILLER = QUERY + ATTRIBUTES
BOS = FILLER + FILLERS
TOKENS = BOS + 1
CODE, STORE = VALUES // 2, 32  # dimensions of a value's code (+ or - one of them), and of what a block stores
PLACE = TOKENS  # coordinates: tokens, positions, copies of an entity's parts, the store, what is said
COPY = PLACE + POSITIONS
KEPT = COPY + 2 * PARTS
SAID = KEPT + STORE
WIDTH, HEADS = 240, 4
SHARP = 60.0
"""Scores at which a softmax is saturated."""
LOUD = 8.0
"""Logit of the right value; the others have 0 or less. (Louder, and the loss is flat before a subspace is whole.)"""
SITE = Site("resid_post", 1)
BETWEEN = 2  # fillers between entity and query
LOWER = {"last": (1, 0), "after": (2, 1)}  # how far before the token with the variables the two parts stand


@dataclass(frozen=True, eq=False)
class KnownVariables:
    """The model, examples, and where its variables are.

    Attributes:
        model: a GPT-2 of four layers without a tokenizer.
        data: examples by set: train, val, test, each with entities and patterns of fillers of its own.
        site, role: where the variables are.
        subspaces: concept -> the eight directions that hold it.
        instructions: concept -> what stands for it, as token ids (the attribute's query).
    """

    model: HookedModel
    data: Mapping[str, Counterfactuals]
    site: Site
    role: str
    subspaces: Mapping[str, Float[Tensor, "d code"]]
    instructions: Mapping[str, Sequence[int]]

    def overlap(self, concept: str, basis: Float[Tensor, "d rank"]) -> float:
        """Share of the concept's subspace that lies in another: ||S^T R||^2 / 8, 1 where it is in it; a random one has
        rank / d."""
        return float((self.subspaces[concept].to(basis).T @ basis).square().sum() / CODE)


def known_variables(
    where: Where = "last", *, distractor: bool = False, size: int = 1000, seed: int = 0
) -> KnownVariables:
    """The model and examples.

    Args:
        where: the variables stand at the entity's last token, or at the token after it.
        distractor: another entity stands before the entity that is asked about.
        size: examples of each attribute and kind in the training set; a third as many in the others.
        seed: of values, subspaces and examples.
    """
    check_choice("where", where, get_args(Where))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(VALUES, (PARTS, PARTS, ATTRIBUTES), generator=generator)
    basis = torch.linalg.qr(torch.randn(STORE, STORE, generator=generator)).Q
    model = load(_network(where, values, basis, generator), check=False)
    subspaces = {}
    for a in range(ATTRIBUTES):
        inside = torch.zeros(WIDTH, CODE)
        inside[KEPT : KEPT + STORE] = basis[:, CODE * a : CODE * (a + 1)]
        subspaces[_name(a)] = inside
    role = "last_entity" if where == "last" else "after_entity"
    instructions = {_name(a): [QUERY + a] for a in range(ATTRIBUTES)}
    return KnownVariables(model, _data(values.tolist(), distractor, size, seed), SITE, role, subspaces, instructions)


def _name(attribute: int) -> str:
    return f"attribute {attribute}"


def code(value: int) -> Float[Tensor, " code"]:
    """A value's direction: + or - one of the dimensions, so that the value's own has the largest product."""
    made = torch.zeros(CODE)
    made[value % CODE] = 1.0 if value < CODE else -1.0
    return made


def _network(where: Where, values: Tensor, basis: Tensor, generator: torch.Generator) -> Any:
    model = blank_gpt2(
        n_layers=4, n_heads=HEADS, d_model=WIDTH, d_vocab=TOKENS, n_positions=POSITIONS, d_ff=PARTS * PARTS
    )
    body = model.transformer
    body.wte.weight[:, :TOKENS] = torch.eye(TOKENS)
    body.wpe.weight[:, PLACE : PLACE + POSITIONS] = torch.eye(POSITIONS)
    for part, distance in enumerate(LOWER[where]):
        _copy_from(model, part, distance)
    _look_up(body.h[1].mlp, values, basis, generator)
    for attribute in range(ATTRIBUTES):
        _fetch(model, attribute, BETWEEN + 1 - LOWER[where][1], basis[:, CODE * attribute : CODE * (attribute + 1)])
        for value in range(VALUES):
            said = slice(SAID + CODE * attribute, SAID + CODE * (attribute + 1))
            model.lm_head.weight[VALUE + VALUES * attribute + value, said] = LOUD * code(value)
    return model


def _copy_from(model: Any, part: int, distance: int) -> None:
    """Head `part` of block 0 copies that part of an entity from `distance` tokens before."""
    q, k, v, out = _head(model, 0, part)
    for position in range(distance, POSITIONS):
        q[PLACE + position, position] = SHARP * q.shape[1] ** 0.5
        k[PLACE + position - distance, position] = 1.0
    first = SECOND * part
    for number in range(PARTS):
        v[first + number, number] = 1.0
        out[number, COPY + PARTS * part + number] = 1.0


def _look_up(mlp: Any, values: Tensor, basis: Tensor, generator: torch.Generator) -> None:
    """A neuron for each entity: it writes the codes of the values, and which entity it is beside them."""
    for one in range(PARTS):
        for other in range(PARTS):
            neuron = PARTS * one + other
            mlp.c_fc.weight[COPY + one, neuron] = mlp.c_fc.weight[COPY + PARTS + other, neuron] = 2.0
            mlp.c_fc.bias[neuron] = -3.0
            own = torch.randn(STORE - ATTRIBUTES * CODE, generator=generator)
            stored = torch.cat([*(code(int(value)) for value in values[one, other]), own])
            mlp.c_proj.weight[neuron, KEPT : KEPT + STORE] = basis @ stored


def _fetch(model: Any, attribute: int, distance: int, subspace: Tensor) -> None:
    """Head `attribute` of block 2: from its query to the token `distance` before, from anything else to BOS, as from a
    query that finds no such token."""
    q, k, v, out = _head(model, 2, attribute)
    loud = SHARP * q.shape[1] ** 0.5
    for position in range(distance, POSITIONS):
        q[PLACE + position, position - distance] = loud
    for position in range(POSITIONS):
        k[PLACE + position, position] = 1.0
    for token in range(TOKENS):
        q[token, POSITIONS] = loud / 2 if token == QUERY + attribute else 2 * loud
    k[BOS, POSITIONS] = 1.0
    v[KEPT : KEPT + STORE, :CODE] = subspace
    for number in range(CODE):
        out[number, SAID + CODE * attribute + number] = 1.0


def _head(model: Any, layer: int, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of a head's weights: query, key, value [d, d_head], output [d_head, d]."""
    attention, size = model.transformer.h[layer].attn, WIDTH // HEADS
    own = [
        attention.c_attn.weight[:, WIDTH * part + size * head : WIDTH * part + size * (head + 1)] for part in range(3)
    ]
    return own[0], own[1], own[2], attention.c_proj.weight[size * head : size * (head + 1)]


class _Row(NamedTuple):
    """A prompt: its entity, what it asks for, its token ids, and where the entity begins."""

    entity: tuple[int, int]
    asked: int
    ids: tuple[int, ...]
    start: int


def _data(values: Any, distractor: bool, size: int, seed: int) -> dict[str, Counterfactuals]:
    """Sets of examples over shared prompts; entities, and patterns of fillers, are dealt to the sets."""
    rng = random.Random(seed)
    entities = [(one, other) for one in range(PARTS) for other in range(PARTS)]
    rng.shuffle(entities)
    quarter = len(entities) // 4
    dealt = {"train": entities[2 * quarter :], "val": entities[:quarter], "test": entities[quarter : 2 * quarter]}
    patterns = [(before, number) for before in range(5) for number in range(FILLERS)]
    rng.shuffle(patterns)
    third = len(patterns) // 3
    shapes = {"train": patterns[:third], "val": patterns[third : 2 * third], "test": patterns[2 * third :]}
    rows: dict[_Row, int] = {}
    columns = {
        name: _examples(
            values, dealt[name], shapes[name], distractor, size if name == "train" else size // 3, rng, rows
        )
        for name in dealt
    }
    listed = list(rows)
    lengths = tuple(len(row.ids) for row in listed)
    shared: dict[str, Any] = {
        "prompts": from_ids([list(row.ids) for row in listed]), "lengths": lengths,
        "roles": {
            "entity": tuple((row.start, row.start + 1) for row in listed),
            "last_entity": tuple((row.start + 1,) for row in listed),
            "after_entity": tuple((row.start + 2,) for row in listed),
            "end": tuple((length - 1,) for length in lengths),
        },
        "groups": {"entity": tuple(f"{row.entity[0]}.{row.entity[1]}" for row in listed)},
    }  # fmt: skip
    return {name: Counterfactuals("known variables", **shared, **one) for name, one in columns.items()}


def _examples(
    values: Any, entities: Sequence[tuple[int, int]], shapes: Sequence[tuple[int, int]], distractor: bool, size: int,
    rng: random.Random, rows: dict[_Row, int],
) -> dict[str, Any]:  # fmt: skip
    """Columns of `size` examples of each attribute and kind; new prompts get a number in `rows`."""
    found: list[tuple[int, int, int, str, str]] = []

    def prompt(entity: tuple[int, int], asked: int) -> int:
        before, number = rng.choice(shapes)
        other = rng.choice(entities)
        ids = [BOS, *(FILLER + (number + n) % FILLERS for n in range(before))]
        ids += [other[0], SECOND + other[1], FILLER + number] if distractor else []
        after = (FILLER + (number + n) % FILLERS for n in range(BETWEEN))
        row = _Row(entity, asked, (*ids, entity[0], SECOND + entity[1], *after, QUERY + asked), len(ids))
        return rows.setdefault(row, len(rows))

    for concept in range(ATTRIBUTES):
        for cause in (True, False):
            count = 0
            while count < size:
                base, source = rng.sample(list(entities), 2)
                asked = concept if cause else rng.choice([a for a in range(ATTRIBUTES) if a != concept])
                mine, theirs = values[base[0]][base[1]], values[source[0]][source[1]]
                if mine[asked] == theirs[asked] or mine[concept] == theirs[concept]:
                    continue
                answer = VALUE + VALUES * asked + (theirs if cause else mine)[asked]
                rows_of = prompt(base, asked), prompt(source, rng.randrange(ATTRIBUTES))
                found.append((*rows_of, answer, _name(concept), _name(asked)))
                count += 1
    base, source, answers, concepts, queried = zip(*found, strict=True)
    return {
        "base": np.array(base), "source": np.array(source), "answers": tuple((one,) for one in answers),
        "concepts": concepts, "queried": queried,
    }  # fmt: skip
