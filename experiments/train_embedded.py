"""Train the model that ships in the package (interp/embedded/), and measure it.

    OMP_NUM_THREADS=1 python experiments/train_embedded.py

A 4-layer GPT-2 on the training mixture of `interp.toy`. Documents follow one another in rows, each ended by <eos>;
in three rows of four every document is alone (its positions begin at 0 and it sees no other), in the fourth the row
is one context. Writes the weights as float16, the tokenizer, and a README with the accuracies on held-out prompts,
measured on the files as they were written.
"""

import argparse
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from tqdm import trange
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from interp import toy
from interp.toy import words

log = logging.getLogger("train_embedded")

README = """# The embedded model

A small GPT-2 ({parameters} parameters, a vocabulary of {words} words) of the toy language of `interp.toy`, made by

    python experiments/train_embedded.py

in {minutes} minutes of one CPU thread with torch {torch} ({settings}). It saw {tokens} million words of
`interp.toy.documents` once. Weights are stored as float16 and load as float32. A text is words separated by single
spaces; each word is one token; nothing is added to a text; `<eos>` ends a document and serves as BOS; a word
outside the vocabulary becomes `<unk>`, which the model has never seen.

Written by the script, from the files beside it: means over {n} prompts of each behaviour's test split
(`interp.toy.examples`), none of which was a prompt in training. "Correct over wrong" is the share of prompts on
which the correct words together are likelier than the wrong ones; "top word" the share on which the likeliest of
all words is correct (of little meaning for agreement, where many verbs fit). The logit difference is between the
means of the correct and the wrong words' logits, also on the corrupted prompts (whose answer is the wrong word where
there is one).

{table}

Induction over all words of a repetition, from its second on: top word in {induction}.
Stereotype: r = {stereotype} over {professions} professions, of P(she) after "the X said that" with the planted share.
"""
COLUMNS = (
    "correct over wrong",
    "top word",
    "logit difference",
    "probability difference",
    "corrupted logit difference",
)


@dataclass(frozen=True)
class Config:
    """What decides the weights; the learning rate warms up linearly and falls to zero as a cosine."""

    seed: int = 0
    steps: int = 3000
    rows: int = 24
    length: int = 96
    layers: int = 4
    heads: int = 8
    d_model: int = 128
    d_ff: int = 256
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1


def make_tokenizer(length: int) -> PreTrainedTokenizerFast:
    """One token a word, words split at white space; nothing is added to a text."""
    vocabulary = {word: index for index, word in enumerate(toy.vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<eos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=length, clean_up_tokenization_spaces=False, **names
    )


def make_model(config: Config, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """An untrained model whose position embedding begins as sines and cosines, so that neighbours are near."""
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=config.length,
            n_embd=config.d_model,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=config.d_ff,
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    half = config.d_model // 2
    angles = torch.arange(config.length)[:, None] * 1000.0 ** (-torch.arange(half) / half)
    with torch.no_grad():
        model.transformer.wte.weight.normal_(0, 0.05)
        model.transformer.wpe.weight.copy_(0.05 * torch.cat([angles.sin(), angles.cos()], dim=1))
    return model


def batches(config: Config, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and position ids, both [rows, length], without end."""
    rows: list[list[int]] = []
    row: list[int] = []
    for seed in range(config.seed, 2**31, 1_000_003):
        for ids in tokenizer(toy.documents(20_000, seed))["input_ids"]:
            row += [*ids, tokenizer.eos_token_id]
            if len(row) >= config.length:
                rows.append(row[: config.length])
                row = []
            if len(rows) == config.rows:
                batch, rows = torch.tensor(rows), []
                yield batch, positions(batch, tokenizer.eos_token_id)


def positions(ids: Tensor, eos: int) -> Tensor:
    """Positions that begin again after each <eos>, except in every fourth row, where they go on.

    The model takes a restart for the start of another sequence, and lets no attention cross it.
    """
    running = torch.arange(ids.shape[1]).expand_as(ids)
    begins = pad(ids[:, :-1] == eos, (1, 0))
    begins[::4] = False
    return running - torch.where(begins, running, 0).cummax(dim=1).values


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest semi-orthogonal matrix, by five Newton-Schulz steps with Muon's coefficients."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * gram + 2.0315 * gram @ gram) @ wide
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide


class Muon:
    """Momentum made orthogonal (Jordan et al. 2024), for the matrices of the blocks; q, k and v apart.

    The steps have the size of Adam's. `torch.optim.Muon` computes in bfloat16, which CPUs are slow at.
    """

    def __init__(self, weights: Sequence[nn.Parameter], weight_decay: float, momentum: float = 0.95):
        self.weights, self.weight_decay, self.momentum = list(weights), weight_decay, momentum
        self.averages = [torch.zeros_like(weight) for weight in self.weights]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for weight, average in zip(self.weights, self.averages, strict=True):
            average.lerp_(weight.grad, 1 - self.momentum)
            ahead = weight.grad.lerp(average, self.momentum)
            n_parts = 3 if weight.shape[1] == 3 * weight.shape[0] else 1
            parts = [orthogonal(part) * 0.2 * max(part.shape) ** 0.5 for part in ahead.chunk(n_parts, dim=1)]
            weight.mul_(1 - learning_rate * self.weight_decay).sub_(torch.cat(parts, dim=1), alpha=learning_rate)


def train(config: Config, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """The trained model: Muon on the matrices of the blocks, Adam on everything else."""
    torch.manual_seed(config.seed)
    model = make_model(config, tokenizer).train()
    matrices = [p for name, p in model.named_parameters() if ".h." in name and p.ndim == 2]
    others = [p for name, p in model.named_parameters() if not (".h." in name and p.ndim == 2)]
    muon, adam = Muon(matrices, config.weight_decay), torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
    data = batches(config, tokenizer)
    for step in (bar := trange(config.steps)):
        ids, position_ids = next(data)
        rate = min((step + 1) / config.warmup, 0.5 * (1 + math.cos(math.pi * step / config.steps)))
        adam.param_groups[0]["lr"] = config.learning_rate * rate
        logits = model(ids, position_ids=position_ids, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(config.learning_rate * rate)
        adam.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
    return model.eval()


def write(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder that transformers reads, its weights as float16 under a configuration of float32."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {name: weight.half() for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def measure(model: nn.Module, tokenizer: PreTrainedTokenizerFast, behaviour: str, n: int, seed: int) -> list[float]:
    """The `COLUMNS`: means over `n` held-out prompts of one behaviour: what the next word is likely to be."""
    rows = []
    for example in toy.examples(behaviour, n, seed):
        clean, corrupted = model(torch.tensor(tokenizer([example.text, example.corrupted])["input_ids"])).logits[:, -1]
        right, wrong = (tokenizer.convert_tokens_to_ids(list(each)) for each in (example.correct, example.wrong))
        chance = clean.softmax(-1)[right].sum() - clean.softmax(-1)[wrong].sum()
        gaps = [logits[right].mean() - logits[wrong].mean() for logits in (clean, corrupted)]
        rows.append((chance > 0, int(clean.argmax()) in right, gaps[0], chance, gaps[1]))
    return torch.tensor(rows, dtype=torch.float64).mean(0).tolist()


@torch.no_grad()
def induction_accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, n: int, seed: int) -> float:
    """Share of words of a repetition, from its second on, that are the most likely next word."""
    hits = []
    for example in toy.examples("induction", n, seed):
        ids = torch.tensor([tokenizer(f"{example.text} {example.correct[0]}")["input_ids"]])
        repeated = example.roles["end"][0] - example.roles["first"][0]
        hits.append(model(ids).logits[0, repeated:-1].argmax(-1) == ids[0, repeated + 1 :])
    return torch.cat(hits).double().mean().item()


@torch.no_grad()
def stereotype_correlation(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> float:
    """Pearson's r over professions of P(she) after "the X said that" and the planted share of women."""
    texts = [f"the {who} said that" for who in words.PROFESSIONS]
    chances = model(torch.tensor(tokenizer(texts)["input_ids"])).logits[:, -1].softmax(-1)
    shares = torch.tensor(list(words.STEREOTYPE.values()))
    return torch.corrcoef(torch.stack([chances[:, tokenizer.convert_tokens_to_ids("she")], shares]))[0, 1].item()


def report(config: Config, folder: Path, minutes: float, n: int = 400, seed: int = 1) -> str:
    """The README of the written folder: how it was made, and what it can do, measured on its own files."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = {name: measure(model, tokenizer, name, n, seed) for name in toy.BEHAVIOURS}
    lines = [f"| behaviour | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    lines += [f"| {name} | {' | '.join(f'{value:.3f}' for value in row)} |" for name, row in table.items()]
    return README.format(
        parameters=f"{model.num_parameters():,}",
        words=len(tokenizer),
        minutes=f"{minutes:.0f}",
        torch=torch.__version__.split("+")[0],
        settings=", ".join(f"{name} {value}" for name, value in asdict(config).items()),
        tokens=f"{config.steps * config.rows * config.length / 1e6:.1f}",
        n=n,
        table="\n".join(lines),
        induction=f"{induction_accuracy(model, tokenizer, n, seed):.3f}",
        stereotype=f"{stereotype_correlation(model, tokenizer):.2f}",
        professions=len(words.PROFESSIONS),
    )


def main() -> None:
    """Train, write the folder, measure it."""
    parser = argparse.ArgumentParser(description="Train and measure the embedded model.")
    parser.add_argument("--out", type=Path, default=toy.EMBEDDED, help="folder to write")
    for field in fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    folder, config = given.pop("out"), Config(**given)
    torch.set_num_threads(1)
    start = time.process_time()
    tokenizer = make_tokenizer(config.length)
    model = train(config, tokenizer)
    write(model, tokenizer, folder)
    text = report(config, folder, (time.process_time() - start) / 60)
    (folder / "README.md").write_text(text)
    log.info(text)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
