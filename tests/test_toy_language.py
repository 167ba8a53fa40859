"""The toy language: its words are tokens, its prompts have one right answer, its corruptions change it."""

import re
from collections import Counter

import pytest

from interp.errors import OptionError
from interp.toy import BEHAVIOURS, biographies, documents, examples, is_test, vocabulary, word_task, words

VOCABULARY = set(vocabulary())
SINGULAR = {noun.singular for noun in words.NOUNS}
THIRD = {verb.third for verb in (*words.VERBS, words.BE)}


@pytest.fixture(params=BEHAVIOURS)
def drawn(request):
    return examples(request.param, 60, seed=3, split="all")


def test_the_vocabulary_has_each_word_once_and_every_list_is_in_it():
    assert len(vocabulary()) == len(VOCABULARY) < 1000
    assert vocabulary()[:3] == ["<pad>", "<unk>", "<eos>"]
    assert set(words.OPEN_WORDS) | set(words.NUMBERS) <= VOCABULARY
    assert not [word for word in VOCABULARY if re.search(r"\s", word)]


def test_no_word_belongs_to_two_parts_of_speech():
    lists = [words.NAMES, words.PLACES, words.ADJECTIVES, words.COLORS, words.EVENTS, words.NUMBERS, words.WOMEN]
    lists += [words.MEN, words.PREPOSITIONS, [country.name for country in words.COUNTRIES]]
    lists += [[form for noun in words.NOUNS for form in noun], [form for verb in words.VERBS for form in verb]]
    counts = Counter(word for each in lists for word in each)
    assert [word for word, count in counts.items() if count > 1] == []


def test_a_prompt_and_its_corruption_have_the_same_number_of_known_words_and_differ(drawn):
    for example in drawn:
        clean, corrupted = example.text.split(" "), example.corrupted.split(" ")
        assert len(clean) == len(corrupted)
        assert clean != corrupted
        assert {*clean, *corrupted, *example.correct, *example.wrong} <= VOCABULARY


def test_correct_and_wrong_words_never_overlap_and_roles_lie_in_the_prompt(drawn):
    for example in drawn:
        assert example.correct and example.wrong and not set(example.correct) & set(example.wrong)
        length = len(example.text.split())
        assert example.roles["end"] == (length - 1,)
        assert all(0 <= place < length for places in example.roles.values() for place in places)


def test_prompts_of_one_template_share_their_roles(drawn):
    for example in drawn:
        alike = [other for other in drawn if other.template == example.template]
        assert all(other.roles == example.roles for other in alike)


def test_draws_are_distinct_and_decided_by_the_seed(drawn):
    behaviour = drawn[0].behaviour
    assert drawn == examples(behaviour, 60, seed=3, split="all") != examples(behaviour, 60, seed=4, split="all")
    assert len({(example.text, example.correct) for example in drawn}) == 60


def test_the_splits_share_no_prompt():
    train, test = (examples("ioi", 300, seed=0, split=split) for split in ("train", "test"))
    assert not {example.text for example in train} & {example.text for example in test}
    assert all(is_test(example.text) for example in test)


def test_ioi_names_stand_at_their_roles_and_the_corruption_swaps_only_s2():
    for example in examples("ioi", 50, seed=0):
        tokens, corrupted = example.text.split(), example.corrupted.split()
        (indirect,), (subject,), (again,) = (example.roles[role] for role in ("IO", "S1", "S2"))
        assert (tokens[indirect],) == example.correct
        assert (tokens[subject],) == (tokens[again],) == example.wrong
        assert [i for i, pair in enumerate(zip(tokens, corrupted, strict=True)) if pair[0] != pair[1]] == [again]
        assert (indirect < subject) == example.template.startswith("ABBA")


@pytest.mark.parametrize("construction", ["sva_simple", "sva_pp", "sva_within_rc", "sva_rc"])
def test_the_right_verb_has_the_number_of_the_subject(construction):
    for example in examples(construction, 60, seed=0):
        subject = example.text.split()[example.roles["subject"][0]]
        assert (example.correct[0] in THIRD) == (subject in SINGULAR)
        assert (example.wrong[0] in THIRD) != (subject in SINGULAR)


def test_every_later_year_is_correct_and_every_other_wrong():
    for example in examples("greater_than", 60, seed=0):
        start = int(example.text.split()[example.roles["YY"][0]])
        assert 2 <= start <= 98
        assert sorted(map(int, example.correct)) == list(range(start + 1, 100))
        assert sorted(map(int, example.wrong)) == list(range(start + 1))


def test_an_induction_prompt_repeats_what_came_before_its_target():
    for example in examples("induction", 60, seed=0):
        tokens = example.text.split()
        (first,), (target,), (end,) = (example.roles[role] for role in ("first", "target", "end"))
        assert tokens[first] == tokens[end] and (tokens[target],) == example.correct
        assert example.corrupted.split()[target] == example.wrong[0]


def test_a_word_task_has_the_same_query_in_both_forms():
    pairs = [("big", "small"), ("hot", "cold"), ("tall", "short")]
    shown = word_task("opposite", pairs, instructed=False)
    said = word_task("opposite", pairs[-1:], instructed=True)
    assert shown.text == "big -> small ; hot -> cold ; tall ->"
    assert shown.corrupted == "big -> big ; hot -> hot ; tall ->"
    assert said.text == "say the opposite : tall ->"
    assert said.corrupted == "say the same : tall ->"
    assert shown.correct == said.correct == ("short",) and shown.wrong == ("tall",)
    assert [shown.text.split()[i] for i in shown.roles["outputs"]] == ["small", "cold"]
    assert said.text.split()[said.roles["task"][0]] == "opposite"


@pytest.mark.parametrize(("spurious", "attribute"), [("gender", "gender"), ("word", "cue"), ("order", "order")])
def test_only_the_planted_attribute_goes_with_the_label(spurious, attribute):
    texts = biographies(400, seed=0, correlation=1.0, spurious=spurious)
    agreement = {name: sum(getattr(t, name) == t.label for t in texts) / 400 for name in ("gender", "cue", "order")}
    assert agreement.pop(attribute) == 1.0
    assert all(0.4 < share < 0.6 for share in agreement.values())
    assert all(t.group == (t.label, getattr(t, attribute)) for t in texts)


def test_a_biography_shows_its_domain_gender_and_cue():
    for biography in biographies(100, seed=1, correlation=0.5, domains=("farm", "sea")):
        said, topic = set(biography.text.split()), words.TOPICS[biography.domain]
        assert said & set(topic.places) | said & {form for noun in topic.objects for form in noun}
        assert bool(said & {"she", "her"}) == bool(said & set(words.NAMES_FEMALE)) == bool(biography.gender)
        assert ("always" in said) == bool(biography.cue)
    assert {word for text in biographies(50, 0, 1.0) for word in text.text.split()} <= VOCABULARY


def test_balanced_biographies_have_four_groups_of_about_equal_size():
    sizes = Counter(biography.group for biography in biographies(800, seed=0, correlation=0.5))
    assert sorted(sizes) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(150 < size < 250 for size in sizes.values())


def test_documents_are_known_words_decided_by_the_seed_and_hold_no_test_prompt():
    texts = documents(1500, seed=0)
    assert texts == documents(1500, seed=0) != documents(1500, seed=1)
    assert {word for text in texts for word in text.split(" ")} <= VOCABULARY - {"<pad>", "<unk>", "<eos>"}
    gifts = [text.rsplit(" ", 2)[0] for text in texts if re.search(r" (gave|handed|lent|showed) .* to \w+ \.$", text)]
    same_giver = [text for text in gifts if max(Counter(text.split())[name] for name in words.NAMES) == 2]
    assert len(same_giver) > 50 and not any(map(is_test, same_giver))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: examples("iio", 3, 0), "behaviour is 'iio'; allowed: .*nearest: 'ioi'"),
        (lambda: word_task("opposite", [("tall", "short")], instructed=False), "has only the query; .* add pairs"),
        (lambda: biographies(4, 0, 1.5), r"correlation=1.5.*allowed:.*correlation 0 to 1"),
        (lambda: biographies(4, 0, 1.0, domains=("sea", "sea")), "two different domains"),
        (lambda: biographies(4, 0, 1.0, domains=("sea", "moon")), "domains is 'moon'; allowed"),
    ],
)
def test_a_wrong_argument_says_what_is_allowed(call, message):
    with pytest.raises(OptionError, match=message):
        call()


def test_asking_for_more_prompts_than_there_are_says_how_many_there_are(monkeypatch):
    only = examples("ioi", 2, seed=0)
    monkeypatch.setitem(BEHAVIOURS, "ioi", lambda rng: rng.choice(only))
    with pytest.raises(OptionError, match="ioi gave 2 distinct test prompts of n=3 asked for; ask for fewer"):
        examples("ioi", 3, seed=0)
