"""RAVEL: entities with several attributes each, so that taking one attribute from another entity can be told apart from
taking the entity.

    Cause:    "Paris is in the country of"     <- Country of "Tokyo is ..."   -> Japan
    Isolate:  "People in Paris usually speak"  <- Country of "Tokyo is ..."   -> French

Five types of entities come in its files: city, nobel_prize_winner, occupation, physical_object, verb. Only prompts that
the model completes with the whole answer are used.

Source: Huang et al. 2024 (arXiv 2402.17700); pairs and filter as in Sun et al. 2025 (HyperDAS, arXiv 2503.10894).
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from interp.atomic import one_error, replacing
from interp.errors import FileError, OptionError, TaskError, check_choice
from interp.interchange.builder import CounterfactualBuilder, Example, Prompt
from interp.interchange.examples import Counterfactuals
from interp.models.base import HookedModel
from interp.tokens import batches

TYPES = ("city", "nobel_prize_winner", "occupation", "physical_object", "verb")
SETS = {
    "train": ("train", "train"), "val": ("val", "val"), "test": ("test", "test"),
    "context": ("train", "test"), "entity": ("test", "train"),
}  # fmt: skip
"""Name of a set -> which entities and which templates it has."""
LONGEST = 3
"""Tokens of an answer that count, as in RAVEL's and the HyperDAS authors' code."""
_WHOLE = 2**63 - 1  # all tokens of an answer
_BATCH = 64
Known = Mapping[str, Sequence[str]]
"""Template -> entities for which the model completes it."""


@dataclass(frozen=True)
class RavelFiles:
    """One type of entities, as in the files.

    Args:
        type: of `TYPES`.
        values: entity -> attribute -> value.
        templates: attribute -> prompts with ``%s`` for the entity.
        entity_split, template_split: -> "train", "val" or "test".
        wikipedia: prompts about nothing in particular -> their entity ("" where ``%s`` is free), split apart by name.
    """

    type: str
    values: Mapping[str, Mapping[str, str]]
    templates: Mapping[str, Sequence[str]]
    entity_split: Mapping[str, str]
    template_split: Mapping[str, str]
    wikipedia: Mapping[str, Mapping[str, Any]]

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that have templates and, in every entity, a value."""
        return tuple(a for a in self.templates if all(a in known for known in self.values.values()))

    def check(self, attributes: Sequence[str]) -> tuple[str, ...]:
        """The attributes, all of them when none are given, once they are known to exist."""
        chosen = tuple(attributes) or self.attributes
        for one in chosen:
            check_choice(f"attribute of {self.type}", one, self.attributes)
        return chosen

    def prompt(self, attribute: str, template: str, entity: str) -> Prompt:
        """A template filled with an entity; its answer begins with a space unless an opening mark stands before it."""
        start = template.index("%s")
        text = template.replace("%s", entity, 1)
        answer = self.values[entity][attribute]
        spaced = answer if text[-1] in "\"'`([{/ " else f" {answer}"
        groups = {"entity": entity, "template": template}
        return Prompt(text, spaced, attribute, {"entity": [(start, start + len(entity))]}, groups)


def read_ravel(folder: str | Path, type: str = "city") -> RavelFiles:
    """RAVEL's files of one type of entities.

    Raises:
        OptionError: an unknown type.
        FileError: files that are missing, damaged, or do not fit together.
    """
    check_choice("type", type, TYPES)
    folder = Path(folder)

    def read(name: str) -> dict[str, Any]:
        with one_error(folder / name, "a file of RAVEL"):
            found = json.loads((folder / name).read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("it holds no JSON object")
            return found

    values, templates = read(f"ravel_{type}_entity_attributes.json"), read(f"ravel_{type}_attribute_to_prompts.json")
    entity_split, template_split = (
        read(f"ravel_{type}_entity_to_split.json"),
        read(f"ravel_{type}_prompt_to_split.json"),
    )
    strange = [t for listed in templates.values() for t in listed if t.count("%s") != 1 or t not in template_split]
    strange += [entity for entity in values if entity not in entity_split]
    if strange:
        raise FileError(f"{folder}: {strange[:3]} have no split, or not one %s; unpack RAVEL's data.tgz anew.")
    return RavelFiles(
        type, values, templates, entity_split, template_split, read(f"wikipedia_{type}_entity_prompts.json")
    )


def known_prompts(
    model: HookedModel,
    files: RavelFiles,
    *,
    attributes: Sequence[str] = (),
    entities: Iterable[str] | None = None,
    most_templates: int | None = None,
    most_tokens: int | None = None,
    file: str | Path | None = None,
    progress: bool = True,
) -> dict[str, list[str]]:
    """For every template, the entities whose value the model gives in full (greedily, token by token).

    Args:
        attributes: those to ask for; all when empty.
        entities: those to ask about; all when None.
        most_templates: of an attribute and split, the shortest first; all when None.
        most_tokens: leave out templates that are longer (counted with the first entity).
        file: JSON file to keep the result in; where it exists it is read, and must be of this model and type.
        progress: show a bar where there is a terminal.

    Raises:
        FileError: a file of another model, type or choice.
    """
    chosen = files.check(attributes)
    asked = sorted({*(files.values if entities is None else entities)})
    if unknown := [one for one in asked if one not in files.values]:
        raise OptionError(f"entities {unknown[:5]} are not in RAVEL's {files.type}; leave them out.")
    templates = _templates(model, files, chosen, asked, most_templates, most_tokens)
    head = {
        "model": model.identity.fingerprint, "type": files.type, "entities": len(asked),
        "templates": [template for _, template in templates],
    }  # fmt: skip
    if file is not None and Path(file).exists():
        return _read_known(Path(file), head)
    known: dict[str, list[str]] = {}
    for attribute, template in tqdm(templates, disable=None if progress else True, desc="templates", leave=False):
        right = _right(model, [files.prompt(attribute, template, entity) for entity in asked])
        known[template] = [entity for entity, one in zip(asked, right, strict=True) if one]
    if file is not None:
        with replacing(file) as temporary:
            temporary.write_text(json.dumps({**head, "known": known}, indent=1) + "\n", encoding="ascii")
    return known


def _templates(
    model: HookedModel, files: RavelFiles, attributes: Sequence[str], entities: Sequence[str],
    most: int | None, most_tokens: int | None,
) -> list[tuple[str, str]]:  # fmt: skip
    """(attribute, template) of those to ask, the shortest first."""
    found = []
    for attribute in attributes:
        lengths = {t: int(model.prompts([t.replace("%s", entities[0])]).lengths) for t in files.templates[attribute]}
        taken: Counter[str] = Counter()
        for template in sorted(lengths, key=lambda t: (lengths[t], t)):
            split = files.template_split[template]
            taken[split] += 1
            if (most is None or taken[split] <= most) and lengths[template] <= (most_tokens or lengths[template]):
                found.append((attribute, template))
    return found


def _right(model: HookedModel, asked: Sequence[Prompt]) -> list[bool]:
    """Whether the model gives the whole answer to each prompt; False too where it merges with the prompt."""
    builder = CounterfactualBuilder(model.tokenizer, longest=_WHOLE)
    answers = [builder.answer(one, one.answer) for one in asked]
    whole = [n for n, ids in enumerate(answers) if ids]
    rows = [builder.row(asked[n], answers[n][:-1]) for n in whole]
    right = [False] * len(asked)
    if not rows:
        return right
    prompts = builder.prompts()
    for some in batches(len(whole), _BATCH):
        ids = [answers[whole[n]] for n in some]
        picked = prompts[[rows[n] for n in some]]
        most = max(map(len, ids))
        at = torch.full((len(some), most), -1)
        for number, one in enumerate(ids):
            at[number, : len(one)] = torch.arange(len(one)) + int(picked.lengths[number]) - len(one)
        logits = model.run(picked, logits=at).logits
        assert logits is not None, "positions were asked for"
        best = logits.argmax(-1).tolist()
        for n, one, said in zip(some, ids, best, strict=True):
            right[whole[n]] = said[: len(one)] == list(one)
    return right


def _read_known(file: Path, head: Mapping[str, Any]) -> dict[str, list[str]]:
    with one_error(file, "what a model knows"):
        found = json.loads(file.read_text(encoding="ascii"))
        other = [name for name, value in head.items() if found[name] != value]
        if other:
            raise FileError(f"{file} is of other {', '.join(other)}; delete it, or name another file.")
        return {template: list(entities) for template, entities in found["known"].items()}


def ravel(
    model: HookedModel,
    files: RavelFiles,
    known: Known,
    *,
    attributes: Sequence[str] = (),
    sizes: Mapping[str, int] | int = 2000,
    least_yield: float = 0.5,
    least_templates: int = 2,
    own_split: bool = False,
    wikipedia: bool = False,
    seed: int = 0,
) -> dict[str, Counterfactuals]:
    """Cause and isolate examples of every attribute, by set of held-out entities and templates.

    An example takes attribute A of the source's entity into a prompt about the base's. Both entities differ in A and in
    what the base prompt asks for, so that neither kind is right by doing nothing (cause) or anything (isolate); the
    model knows the base's answer to the base prompt and, for cause, would know the source's there. Source prompts are
    any known prompt of the set about the source's entity, whatever it asks for.

    Args:
        known: as `known_prompts` found.
        attributes: those to take and ask for; all when empty.
        sizes: examples of each attribute and kind, by set or for all; fewer where there are not as many.
        least_yield: templates that the model completes for fewer of the asked entities are left out.
        least_templates: entities that fewer templates of each of two attributes know are left out.
        own_split: divide entities and templates anew by `seed` (half, quarter, quarter), where too few of RAVEL's own
            splits are known.
        wikipedia: also source prompts from Wikipedia.
        seed: of the draw.

    Returns:
        set name -> examples; all share their prompts. Sets: train, val, test (new entities and templates), context
        (new templates), entity (new entities); those without an example are left out.

    Raises:
        TaskError: no example in the training or the test set.
    """
    chosen = files.check(attributes)
    if len(chosen) < 2:
        raise OptionError(f"attributes={list(chosen)}: isolate examples need at least two.")
    pool = _pool(files, known, chosen, least_yield, least_templates)
    entity_split, template_split = files.entity_split, files.template_split
    if own_split:
        entity_split = _dealt({entity for _, _, entity in pool}, seed)
        template_split = {}
        for attribute in chosen:
            template_split |= _dealt({t for a, t, _ in pool if a == attribute}, seed)
    builder = CounterfactualBuilder(model.tokenizer, longest=LONGEST)
    sets: dict[str, list[Example]] = {}
    for name, (entities, templates) in SETS.items():
        rows = [(a, t, e) for a, t, e in pool if entity_split[e] == entities and template_split[t] == templates]
        size = sizes if isinstance(sizes, int) else sizes.get(name, 0)
        rng = random.Random(f"{seed} {name}")
        others = _wikipedia(files, entity_split, entities) if wikipedia else {}
        examples = [
            x for a in chosen for cause in (True, False) for x in _draw(files, rows, a, cause, others, rng, size)
        ]
        if examples:
            sets[name] = examples
    if missing := {"train", "test"} - sets.keys():
        raise TaskError(
            f"RAVEL's {files.type}: no examples for {', '.join(sorted(missing))} among {len(pool)} known prompts; ask "
            "for other attributes, lower least_yield, or use own_split=True."
        )
    return builder.build(
        f"ravel.{files.type}", sets, type=files.type, attributes=list(chosen), least_yield=least_yield,
        least_templates=least_templates, own_split=own_split, wikipedia=wikipedia, seed=seed,
        entities=len({e for _, _, e in pool}), templates=len({t for _, t, _ in pool}),
    )  # fmt: skip


Row = tuple[str, str, str]  # attribute, template, entity


def _pool(
    files: RavelFiles, known: Known, attributes: Sequence[str], least_yield: float, least_templates: int
) -> list[Row]:
    """Known prompts of good templates about entities that are known well, in a fixed order."""
    asked = len({entity for entities in known.values() for entity in entities})
    good = [
        (attribute, template, entity)
        for attribute in attributes
        for template in files.templates[attribute]
        if len(known.get(template, ())) >= least_yield * asked
        for entity in known[template]
    ]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for attribute, _, entity in good:
        counts[entity][attribute] += 1
    kept = {e for e, by in counts.items() if sum(count >= least_templates for count in by.values()) >= 2}
    return [row for row in good if row[2] in kept]


def _dealt(names: Iterable[str], seed: int) -> dict[str, str]:
    """Half of the names to train, a quarter each to val and test."""
    listed = sorted(names)
    random.Random(seed).shuffle(listed)
    half, quarter = (len(listed) + 1) // 2, len(listed) // 4
    ends = {
        "train": listed[:half],
        "test": listed[half : half + max(quarter, 1)],
        "val": listed[half + max(quarter, 1) :],
    }
    return {name: split for split, some in ends.items() for name in some}


def _wikipedia(files: RavelFiles, split: Mapping[str, str], wanted: str) -> dict[str, list[Prompt]]:
    """Prompts from Wikipedia about each entity of a split."""
    found: dict[str, list[Prompt]] = defaultdict(list)
    for text, about in files.wikipedia.items():
        entity = about.get("entity")
        if entity and split.get(entity) == wanted and text.count("%s") == 1:
            start = text.index("%s")
            roles = {"entity": [(start, start + len(entity))]}
            groups = {"entity": entity, "template": text}
            found[entity].append(Prompt(text.replace("%s", entity), "", "", roles, groups))
    return found


def _draw(
    files: RavelFiles, rows: Sequence[Row], concept: str, cause: bool, others: Mapping[str, Sequence[Prompt]],
    rng: random.Random, size: int,
) -> Iterator[Example]:  # fmt: skip
    """Up to `size` different examples, base prompts drawn evenly over what they ask for and over their answers."""
    about: dict[str, list[Prompt]] = defaultdict(list)
    completed: dict[str, set[str]] = defaultdict(set)
    for attribute, template, entity in rows:
        about[entity].append(files.prompt(attribute, template, entity))
        completed[template].add(entity)
    bases: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if (row[0] == concept) == cause:
            bases[row[0], files.values[row[2]][row[0]]].append(row)
    entities = sorted(about)
    answers: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key in sorted(bases):
        answers[key[0]].append(key)
    seen: set[tuple[str, str]] = set()
    for _ in range(20 * size if bases else 0):
        asked = rng.choice(list(answers))
        attribute, template, entity = rng.choice(bases[rng.choice(answers[asked])])
        source = rng.choice(entities)
        if not _differ(files, entity, source, {concept, asked}) or (cause and source not in completed[template]):
            continue
        base = files.prompt(attribute, template, entity)
        given = rng.choice([*about[source], *others.get(source, ())])
        if (base.text, given.text) in seen:
            continue
        seen.add((base.text, given.text))
        answer = files.prompt(attribute, template, source).answer if cause else base.answer
        yield Example(base, given, concept, answer)
        if len(seen) == size:
            return


def _differ(files: RavelFiles, one: str, other: str, attributes: Iterable[str]) -> bool:
    return all(files.values[one][a] != files.values[other][a] for a in attributes)
