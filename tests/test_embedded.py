"""The model that ships in the package: its files, its tokenizer, and what it can do."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from interp.toy import EMBEDDED, documents, examples, vocabulary

SCRIPT = Path(__file__).parents[1] / "experiments" / "train_embedded.py"
MASTERED = [
    "ioi", "induction", "sva_simple", "sva_pp", "sva_within_rc", "sva_rc", "greater_than",
    "pronoun_name", "pronoun_noun", "pronoun_profession", "few_shot_plural", "few_shot_past",
    "instructed_opposite", "instructed_plural", "instructed_past",
    "fact_capital", "fact_country", "fact_continent", "fact_language",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(EMBEDDED).eval()


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_embedded", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def few_documents(monkeypatch):
    monkeypatch.setattr("interp.toy.documents", lambda n, seed: documents(300, seed))


def differences(model, tokenizer, behaviour, n=60):
    """Logit difference of correct and wrong words on the clean prompts, and on their corruptions."""
    found = []
    for example in examples(behaviour, n, seed=2):
        ids = torch.tensor(tokenizer([example.text, example.corrupted])["input_ids"])
        right, wrong = (tokenizer.convert_tokens_to_ids(list(each)) for each in (example.correct, example.wrong))
        with torch.no_grad():
            logits = model(ids).logits[:, -1]
        found.append(logits[:, right].logsumexp(-1) - logits[:, wrong].logsumexp(-1))
    return torch.stack(found).T


def test_the_folder_is_small_and_says_how_it_was_made():
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) < 1.5e6
    readme = (EMBEDDED / "README.md").read_text()
    assert "python experiments/train_embedded.py" in readme and "seed 0" in readme


def test_the_weights_load_as_finite_float32_and_fit_the_vocabulary(model, tokenizer):
    assert model.dtype == torch.float32
    assert all(weight.isfinite().all() for weight in model.parameters())
    assert model.config.vocab_size == len(tokenizer) == len(vocabulary())
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_every_word_is_its_own_token_and_nothing_is_added(tokenizer):
    words = vocabulary()
    assert tokenizer(" ".join(words))["input_ids"] == list(range(len(words)))
    assert [tokenizer(f" {word}")["input_ids"] for word in words[3:]] == [[i] for i in range(3, len(words))]
    assert tokenizer.pad_token_id not in (tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert tokenizer("Mary zzz")["input_ids"][1] == tokenizer.unk_token_id


def test_texts_survive_encoding_and_decoding(tokenizer):
    for text in documents(100, seed=5):
        assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("behaviour", MASTERED)
def test_it_prefers_the_right_answer_on_held_out_prompts(model, tokenizer, behaviour):
    clean, corrupted = differences(model, tokenizer, behaviour)
    assert (clean > 0).float().mean() >= 0.95
    assert corrupted.mean() < clean.mean() - 2
    if behaviour != "greater_than":  # an earlier start makes no later year wrong
        assert (corrupted < 0).float().mean() >= 0.95


def test_the_readme_tells_what_the_files_do(model, tokenizer):
    row = re.search(r"\| ioi \|([^\n]*)\|", (EMBEDDED / "README.md").read_text())[1].split("|")
    clean, corrupted = differences(model, tokenizer, "ioi")
    assert float(row[0]) == pytest.approx((clean > 0).float().mean().item(), abs=0.03)
    assert float(row[2]) == pytest.approx(clean.mean().item(), abs=0.5)
    assert float(row[4]) == pytest.approx(corrupted.mean().item(), abs=0.5)


def test_training_rows_hold_whole_contexts_and_documents_that_stand_alone(script, tokenizer, few_documents):
    ids, positions = next(script.batches(script.Config(rows=8, length=96), tokenizer))
    assert ids.shape == positions.shape == (8, 96)
    assert torch.equal(positions[::4], torch.arange(96).expand(2, -1))
    after = ids[1, :-1] == tokenizer.eos_token_id
    assert after.any() and (positions[1, 1:][after] == 0).all() and (positions[1, 1:][~after] > 0).all()


def test_a_document_alone_in_its_row_sees_no_other(script, tokenizer, model):
    first, second = (tokenizer(f"{name} said that <eos>")["input_ids"] for name in ("Mary", "John"))
    rows = torch.tensor([first + second]).expand(4, -1)
    with torch.no_grad():
        packed = model(rows, position_ids=script.positions(rows, tokenizer.eos_token_id), use_cache=False).logits
        alone = model(torch.tensor([second])).logits
    assert torch.allclose(packed[1, len(first) :], alone[0], atol=1e-4)
    assert not torch.allclose(packed[0, len(first) :], alone[0], atol=1e-1)


def test_the_script_writes_a_folder_that_loads_and_repeats_itself(script, tmp_path, few_documents):
    config = script.Config(steps=2, rows=2, length=32, layers=1, heads=2, d_model=16, d_ff=16)
    made = script.make_tokenizer(config.length)
    trained = [script.train(config, made) for _ in range(2)]
    script.write(trained[0], made, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float32 and AutoTokenizer.from_pretrained(tmp_path).get_vocab() == made.get_vocab()
    for name, weight in trained[0].state_dict().items():
        assert torch.equal(weight, trained[1].state_dict()[name])
        assert torch.equal(weight.half().float(), loaded.state_dict()[name])
