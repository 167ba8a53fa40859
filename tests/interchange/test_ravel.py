"""RAVEL: what its files hold, what a model knows of it, and that examples are what they are said to be."""

import json
from collections import Counter
from pathlib import Path

import pytest

import interp
from interp.errors import FileError, OptionError, TaskError
from interp.interchange.builder import CounterfactualBuilder
from interp.interchange.ravel import SETS, TYPES, RavelFiles, known_prompts, ravel, read_ravel
from interp.interchange.ravel_toy import toy_ravel

SHARED = Path(__file__).parents[3] / "shared" / "data" / "ravel"
needs_files = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not here")


@pytest.fixture(scope="module")
def model() -> interp.HookedModel:
    return interp.load("embedded")


@pytest.fixture(scope="module")
def known(model) -> dict[str, list[str]]:
    return known_prompts(model, toy_ravel(8), progress=False)


@needs_files
@pytest.mark.parametrize(("kind", "entities", "templates"), [
    ("city", 3552, 273), ("nobel_prize_winner", 928, 301), ("verb", 986, 359), ("physical_object", 563, 165),
    ("occupation", 799, 92),
])  # fmt: skip
def test_all_types_are_read(kind: str, entities: int, templates: int) -> None:
    files = read_ravel(SHARED, kind)
    assert len(files.values) == entities and len(files.template_split) == templates
    assert {*files.entity_split.values()} == {*files.template_split.values()} == {"train", "val", "test"}
    assert len(files.attributes) >= 3 and ("Gender Bias" in files.attributes) is False
    assert files.wikipedia
    for attribute in files.attributes:
        entity = next(iter(files.values))
        for template in files.templates[attribute]:
            one = files.prompt(attribute, template, entity)
            start, end = one.roles["entity"][0]
            assert one.text[start:end] == entity and one.answer.strip() == files.values[entity][attribute].strip()
    assert kind in TYPES


def test_an_answer_s_space_depends_on_what_stands_before_it() -> None:
    files = RavelFiles("city", {"Bonn": {"Country": "Germany"}}, {}, {}, {}, {})
    assert files.prompt("Country", '{"city": "%s", "country": "', "Bonn").answer == "Germany"
    assert files.prompt("Country", "%s is in", "Bonn").answer == " Germany"


def test_known_prompts_are_those_that_the_model_completes(model, known) -> None:
    files = toy_ravel(8)
    for template, entities in list(known.items())[:3]:
        attribute = next(a for a, listed in files.templates.items() if template in listed)
        for entity in files.values:
            one = files.prompt(attribute, template, entity)
            said = model.generate([one.text], 1).texts[0]
            assert (said.strip() == one.answer.strip()) == (entity in entities)


def test_what_is_known_is_kept_in_a_file_of_this_model_alone(model, known, tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    options = {"attributes": ["Country"], "entities": ["Paris", "Rome"], "file": file, "progress": False}
    first = known_prompts(model, toy_ravel(2), **options)
    assert known_prompts(model, toy_ravel(2), **options) == first
    with pytest.raises(FileError, match="known.json is of other entities; delete it"):
        known_prompts(model, toy_ravel(2), **{**options, "entities": ["Paris"]})
    file.write_text("{")
    with pytest.raises(FileError, match="known.json is damaged"):
        known_prompts(model, toy_ravel(2), **options)
    with pytest.raises(OptionError, match=r"entities \['Atlantis'\] are not in RAVEL's city"):
        known_prompts(model, toy_ravel(2), entities=["Atlantis"])


def test_examples_take_one_attribute_and_ask_for_one(model, known) -> None:
    files = toy_ravel(8)
    sets = ravel(model, files, known, sizes={"train": 60, "test": 30, "context": 10, "entity": 10})
    assert list(sets) == ["train", "test", "context", "entity"]
    for name, data in sets.items():
        entities, templates = SETS[name]
        counts = Counter(zip(data.concepts, data.causes.tolist(), strict=True))
        assert set(counts.values()) == {60 if name == "train" else 30 if name == "test" else 10}
        for n in range(len(data)):
            base, source = (data.groups["entity"][rows[n]] for rows in (data.base, data.source))
            concept, asked = data.concepts[n], data.queried[n]
            assert all(files.values[base][a] != files.values[source][a] for a in (concept, asked))
            said = model.tokenizer.decode(data.answers[n]).strip()
            assert said == files.values[source if concept == asked else base][asked]
            for rows in (data.base, data.source):
                row = int(rows[n])
                assert files.entity_split[data.groups["entity"][row]] == entities
                assert files.template_split[data.groups["template"][row]] == templates
                where = data.roles["entity"][row]
                assert "".join(data.prompts.tokens[row][p] for p in where).strip() == data.groups["entity"][row]
    assert len({id(data.prompts) for data in sets.values()}) == 1
    again = ravel(model, files, known, sizes={"train": 60, "test": 30, "context": 10, "entity": 10})
    assert again["test"].answers == sets["test"].answers and (again["test"].base == sets["test"].base).all()


def test_splits_of_one_s_own_divide_entities_and_templates(model, known) -> None:
    sets = ravel(model, toy_ravel(8), known, sizes=20, own_split=True, seed=3)
    for group in ("entity", "template"):
        used = {
            name: {sets[name].groups[group][r] for r in (*sets[name].base, *sets[name].source)}
            for name in ("train", "test")
        }
        assert used["train"] and used["test"] and not used["train"] & used["test"]


def test_prompts_from_wikipedia_can_be_sources(model, known) -> None:
    files = toy_ravel(8)
    text = "the king of %s said that"
    wiki = {text: {"split": "train", "entity": "Paris"}, "nobody knows %s": {"split": "train", "entity": None}}
    files = RavelFiles(files.type, files.values, files.templates, files.entity_split, files.template_split, wiki)
    sets = ravel(model, files, known, sizes=200, wikipedia=True)
    given = [sets["train"].groups["template"][row] for row in sets["train"].source]
    assert text in given and text not in [sets["train"].groups["template"][row] for row in sets["train"].base]


def test_badly_known_templates_and_entities_are_left_out(model, known) -> None:
    files = toy_ravel(8)
    good = next(iter(known))
    thin = {template: entities if template == good else entities[:3] for template, entities in known.items()}
    with pytest.raises(TaskError, match="no examples for train, test|no examples for test, train"):
        ravel(model, files, thin, sizes=10)


@needs_files
def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="type is 'town'; allowed: 'city'"):
        read_ravel(SHARED, "town")
    with pytest.raises(FileError, match="cannot read a file of RAVEL"):
        read_ravel(tmp_path, "city")
    for file in SHARED.glob("*city*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    prompts = tmp_path / "ravel_city_attribute_to_prompts.json"
    broken = json.loads(prompts.read_text())
    broken["Country"].append("no slot here")
    prompts.write_text(json.dumps(broken))
    with pytest.raises(FileError, match="'no slot here'.* have no split, or not one %s"):
        read_ravel(tmp_path, "city")


def test_all_faulty_prompts_are_told_together(model) -> None:
    builder = CounterfactualBuilder(model.tokenizer)
    files = toy_ravel(2)
    one = files.prompt("Country", files.templates["Country"][0], "Paris")
    builder.answer(one, " Atlantis")
    builder.answer(one, " Lemuria")
    with pytest.raises(interp.InterpError, match="2 faults, such as unknown words"):
        builder.build("faulty", {"train": []})
