"""Tiny models and toys that the tests share: random weights, built from a config in milliseconds, no download.

`FAMILIES` holds one decoder of every supported family, with random norm weights and non-zero biases so that no site can
be mistaken for another; sliding windows are shorter than the prompts of `RAGGED`. `hooked(name)` is shared between
tests, which must leave it as it is; `build(name)` makes a fresh model.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import transformers as tr
from circuits import unchecked as unchecked
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from interp.metrics import Answers, metric
from interp.models.families import Point, SiteMap
from interp.models.hf import HookedHF
from interp.models.runs import Shape
from interp.tasks.base import Task
from interp.tokens import Prompts, from_ids

VOCAB = 97
WINDOW = 4

# --- transformers models of every family ---

_BASE = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": VOCAB, "intermediate_size": 48,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_GROUPED = _BASE | {"num_key_value_heads": 2}
_OWN_HEADS = _GROUPED | {"head_dim": 16}
_LH = _OWN_HEADS | {"num_attention_heads": 8}
_GEMMA = _OWN_HEADS | {
    "sliding_window": WINDOW, "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
_GPT2 = {
    "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": VOCAB, "n_positions": 64,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPTJ = _GPT2 | {"rotary_dim": 4}
_OPT = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": VOCAB, "ffn_dim": 48,
    "word_embed_proj_dim": 32, "max_position_embeddings": 64, "dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "gpt2": lambda **o: tr.GPT2LMHeadModel(tr.GPT2Config(**_GPT2 | o)),
    "gpt_neox": lambda **o: tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**_BASE | o)),
    "gpt_neox_serial": lambda **o: tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**_BASE, use_parallel_residual=False, **o)),
    "gptj": lambda **o: tr.GPTJForCausalLM(tr.GPTJConfig(**_GPTJ | o)),
    "opt": lambda **o: tr.OPTForCausalLM(tr.OPTConfig(**_OPT | o)),
    "llama": lambda **o: tr.LlamaForCausalLM(tr.LlamaConfig(**_LH | o)),
    "qwen2": lambda **o: tr.Qwen2ForCausalLM(tr.Qwen2Config(**_GROUPED | o)),
    "qwen3": lambda **o: tr.Qwen3ForCausalLM(tr.Qwen3Config(**_OWN_HEADS | o)),
    "mistral": lambda **o: tr.MistralForCausalLM(tr.MistralConfig(**_GROUPED | {"sliding_window": WINDOW} | o)),
    "gemma2": lambda **o: tr.Gemma2ForCausalLM(tr.Gemma2Config(**_GEMMA | {"attn_implementation": "eager"} | o)),
    "gemma3": lambda **o: tr.Gemma3ForCausalLM(tr.Gemma3TextConfig(**_GEMMA | o)),
    "phi3": lambda **o: tr.Phi3ForCausalLM(tr.Phi3Config(**_GROUPED | o)),
    "olmo2": lambda **o: tr.Olmo2ForCausalLM(tr.Olmo2Config(**_GROUPED | o)),
}
SLIDING = ("mistral", "gemma2", "gemma3")
PARALLEL = ("gpt_neox", "gptj")
EAGER_ONLY = ("gemma2",)


def build(name: str, **options: Any) -> nn.Module:
    """A fresh model of a family, in eval mode; `options` go to its config."""
    return randomised(FAMILIES[name](**options)).eval()


@cache
def hooked(name: str) -> HookedHF:
    """The family's model, hooked; shared, so a test must leave it as it is."""
    return HookedHF(build(name))


@cache
def hooked64(name: str) -> HookedHF:
    """The same weights in float64; use it inside ``with F64():``, without which most families compute in float32."""
    with F64():
        return HookedHF(build(name).double())


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights of a size that makes every part matter; norm weights random around their start, biases not zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(noise * 0.25 if p.ndim > 1 else p + noise * 0.3 if name.endswith("weight") else noise * 0.2)
    return model


G2 = partial(build, "gpt2")
LG = partial(build, "llama", head_dim=4)
LH = partial(build, "llama")
NX = partial(build, "gpt_neox")
NX_SERIAL = partial(build, "gpt_neox_serial")
GM = partial(build, "gemma2")
G2D = partial(build, "gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
"""G2 with every dropout at 0.5; it is returned in eval mode."""


def TUP(tupled: Sequence[int] = (1,)) -> nn.Module:
    """G2 whose given blocks return ``(hidden,)``, as all blocks did in older releases."""
    model = G2()
    for number in tupled:
        inner = model.transformer.h[number].forward
        model.transformer.h[number].forward = lambda *args, inner=inner, **kwargs: (inner(*args, **kwargs),)
    model.transformer.forward = partial(_tuple_tolerant, model.transformer)
    return model


def _tuple_tolerant(body: Any, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Any:
    x = body.wte(input_ids) + body.wpe(position_ids)
    for block in body.h:
        out = block(x, None, None)
        x = out[0] if isinstance(out, tuple) else out
    return tr.modeling_outputs.BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=body.ln_f(x))


# --- a decoder of one's own, and toys made of it ---


class Attention(nn.Module):
    """Causal attention with every intermediate at a module's border."""

    def __init__(self, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.heads = n_heads
        self.q, self.k, self.v = (nn.Linear(d_model, n_heads * d_head) for _ in range(3))
        self.softmax = nn.Softmax(-1)
        self.out = nn.Linear(n_heads * d_head, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        z = self.softmax(scores.masked_fill(later, torch.finfo(x.dtype).min)) @ v
        return self.out(z.transpose(1, 2).flatten(2))


class Fixed(nn.Module):
    """Stands in for a softmax: attends uniformly to everything before, whatever the scores."""

    def forward(self, scores: Tensor) -> Tensor:
        ones = torch.ones_like(scores).tril()
        return ones / ones.sum(-1, keepdim=True)


class Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_head: int, d_ff: int, norm: Callable, act: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = norm(d_model), norm(d_model)
        self.attn = Attention(d_model, n_heads, d_head)
        self.up, self.act, self.down = nn.Linear(d_model, d_ff), act, nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.down(self.act(self.up(self.ln_2(x))))


class Decoder(nn.Module):
    """A decoder that is no transformers model: ids in, logits out."""

    def __init__(self, shape: Shape, norm: Callable = nn.LayerNorm, act: nn.Module | None = None) -> None:
        super().__init__()
        self.embed, self.pos = nn.Embedding(shape.d_vocab, shape.d_model), nn.Embedding(32, shape.d_model)
        sizes = (shape.d_model, shape.n_heads, shape.d_head, shape.d_ff)
        self.layers = nn.ModuleList(Block(*sizes, norm, act or nn.GELU()) for _ in range(shape.n_layers))
        self.norm, self.unembed = norm(shape.d_model), nn.Linear(shape.d_model, shape.d_vocab, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids) + self.pos(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.unembed(self.norm(x))


POINTS = {
    "attn_in": Point("attn", "input"), "q": Point("attn.q", "output"), "k": Point("attn.k", "output"),
    "v": Point("attn.v", "output"), "pattern": Point("attn.softmax", "output"), "z": Point("attn.out", "input"),
    "attn_proj": Point("attn.out", "output"), "attn_out": Point("attn", "output"), "resid_mid": Point("ln_2", "input"),
    "mlp_in": Point("up", "input"), "neuron": Point("down", "input"), "mlp_proj": Point("down", "output"),
    "mlp_out": Point("down", "output"),
}  # fmt: skip
MAP = SiteMap("layers", "norm", "unembed", points=POINTS, embed="embed")
SHAPE = Shape(n_layers=2, n_heads=4, n_kv_heads=4, d_model=16, d_head=6, d_ff=20, d_vocab=VOCAB)


def custom() -> HookedHF:
    """The decoder above through its site map."""
    return HookedHF(randomised(Decoder(SHAPE)).eval(), site_map=MAP, shape=SHAPE)


def LIN() -> HookedHF:
    """Linear in every activation: no norm, no activation function, uniform attention; so gradient x change is exact."""
    model = randomised(Decoder(SHAPE, norm=nn.Identity, act=nn.Identity()))
    for layer in model.layers:
        layer.attn.softmax = Fixed()
    return HookedHF(model.eval(), site_map=MAP, shape=SHAPE, check=False)


def SH() -> nn.Module:
    """G2 whose blocks 0 and 1 are one module, called twice."""
    model = G2()
    model.transformer.h[1] = model.transformer.h[0]
    return model


def SAT() -> HookedHF:
    """One head with a saturated softmax, on prompts [0, 1, 2] (asks for token 0) or [0, 1, 3] (asks for token 1).

    Logit 0 at the end is 1 when the head attends to token 0, else 0. The gradient at q is exactly 0.
    """
    shape = Shape(n_layers=1, n_heads=1, n_kv_heads=1, d_model=5, d_head=1, d_ff=1, d_vocab=4)
    model = _empty(shape)
    attn = model.layers[0].attn
    attn.q.weight[0, 2:4] = torch.tensor([1e4, -1e4])
    attn.k.weight[0, :2] = torch.tensor([1.0, -1.0])
    attn.v.weight[0, 0] = 1.0
    attn.out.weight[4, 0] = 1.0
    model.unembed.weight[0, 4] = 1.0
    return HookedHF(model, site_map=MAP, shape=shape, check=False)


def CANCEL() -> HookedHF:
    """MLP 0 writes the current token (0 or 1) to logit 0, MLP 1 reads that and takes it away again."""
    shape = Shape(n_layers=2, n_heads=1, n_kv_heads=1, d_model=5, d_head=1, d_ff=1, d_vocab=4)
    model = _empty(shape)
    first, second = model.layers
    first.up.weight[0, 1] = first.down.weight[4, 0] = 1.0
    second.up.weight[0, 4], second.down.weight[4, 0] = 1.0, -1.0
    model.unembed.weight[0, 4] = 1.0
    return HookedHF(model, site_map=MAP, shape=shape, check=False)


def SCALAR(*factors: float) -> HookedHF:
    """x <- x + a x in each block, with x = 1 for token 1 and 0 for the others; logit 0 is the final x."""
    shape = Shape(n_layers=len(factors), n_heads=1, n_kv_heads=1, d_model=5, d_head=1, d_ff=1, d_vocab=4)
    model = _empty(shape)
    model.embed.weight.zero_()
    model.embed.weight[1, 4] = 1.0
    for layer, factor in zip(model.layers, factors, strict=True):
        layer.up.weight[0, 4], layer.down.weight[4, 0] = factor, 1.0
    model.unembed.weight[0, 4] = 1.0
    return HookedHF(model, site_map=MAP, shape=shape, check=False)


def SATURATED() -> HookedHF:
    """SAT as a GPT-2 without norms: logit 0 at the end is 1 when the head attends to token 0.

    The head attends to token 0 when the last token is 2, to token 1 when it is 3, with a saturated softmax.
    """
    model = build("gpt2", n_embd=8, n_layer=1, n_head=1, vocab_size=8).requires_grad_(False)
    body, attn = model.transformer, model.transformer.h[0].attn
    for p in model.parameters():
        p.zero_()
    body.h[0].ln_1, body.h[0].ln_2, body.ln_f = nn.Identity(), nn.Identity(), nn.Identity()
    model.lm_head.weight = nn.Parameter(torch.zeros(8, 8), requires_grad=False)
    body.wte.weight.copy_(torch.eye(8))
    attn.c_attn.weight[2, 0] = attn.c_attn.weight[3, 1] = 400.0  # q
    attn.c_attn.weight[0, 8] = attn.c_attn.weight[1, 9] = 1.0  # k
    attn.c_attn.weight[0, 16] = attn.c_proj.weight[0, 4] = model.lm_head.weight[0, 4] = 1.0
    return HookedHF(model, check=False)


def logit_zero(clean: Sequence[Sequence[int]], corrupted: Sequence[Sequence[int]]) -> Task:
    """A task whose metric is logit 0, less logit 3 (which the toys leave at 0), at the last token."""
    prompts = from_ids([list(row) for row in clean])
    ids = torch.zeros(len(prompts), 1, 1, dtype=torch.long)
    given = Answers(prompts.last[:, None], ids, ids + 3)
    return Task("logit 0", prompts, given, metric("logit_diff"), corrupted=from_ids([list(row) for row in corrupted]))


def _empty(shape: Shape) -> Any:
    """A decoder without norms and activation functions; token t is embedded as unit vector t, all else is zero."""
    model = Decoder(shape, norm=nn.Identity, act=nn.Identity()).eval().requires_grad_(False)
    for p in model.parameters():
        p.zero_()
    model.embed.weight[:, : shape.d_vocab] = torch.eye(shape.d_vocab)
    return model


class Int8Linear(nn.Module):
    """A linear layer that holds int8 weights and a scale, and no float `weight`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax() / 127
        self.register_buffer("scale", scale)
        self.register_buffer("packed", (linear.weight.detach() / scale).round().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.packed.to(x.dtype) * self.scale).T


def int8() -> nn.Module:
    """LH with every linear layer replaced by an `Int8Linear`."""
    model = LH()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, Int8Linear(child))
    return model


# --- honest float64 ---


class F64(TorchFunctionMode):
    """Within, whatever a model casts to float32 becomes float64; `model.double()` alone is not float64 on most."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        swap = {torch.float32: torch.float64}
        args = [swap.get(a, a) if isinstance(a, torch.dtype) else a for a in args]
        kwargs = {k: swap.get(v, v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        return func(*args, **kwargs)


# --- prompts ---

RAGGED = [[5, 17, 3, 88, 41, 9], [71, 2, 64, 30, 11, 95, 23, 8, 52], [13, 60, 7, 44, 29, 81, 6]]
"""Three prompts of 6, 9 and 7 tokens."""
CHANGED = [[5, 17, 66, 88, 41, 9], [71, 2, 64, 54, 11, 20, 23, 8, 52], [13, 60, 35, 44, 29, 81, 6]]
"""Their counterparts: other tokens at positions 2, {3, 5} and 2."""


def clean() -> Prompts:
    return from_ids(RAGGED)


def corrupted() -> Prompts:
    return from_ids(CHANGED)


def answers(prompts: Prompts | None = None) -> Answers:
    """Token 10 + row against 20 + row, after each prompt's last token."""
    prompts = prompts or clean()
    rows = torch.arange(len(prompts))[:, None, None]
    return Answers(prompts.last[:, None], 10 + rows, 20 + rows)


def task(**changes: Any) -> Task:
    """The ragged prompts with their counterparts and answers; `changes` replace parts."""
    roles = {
        "changed": ((2,), (3, 5), (2,)), "end": ((5,), (8,), (6,)), "late": ((), (7, 8), ()), "nowhere": ((), (), ()),
    }  # fmt: skip
    parts = {"clean": clean(), "corrupted": corrupted(), "answers": answers(), "roles": roles}
    return Task(**{"name": "tiny", "metric": metric("logit_diff"), **parts, **changes})


# --- a tokenizer ---

_WORDS = "<pad> <s> </s> [UNK] when mary gave john par ##is the to a book and , user assistant : hi".split()


def TK(*, auto_bos: bool = False, side: str = "right", pad: str = "<pad>") -> Any:
    """A WordPiece tokenizer of 20 words; "paris" takes two tokens. `pad="</s>"` makes padding and end the same."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    core = Tokenizer(models.WordPiece({word: i for i, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.WordPiece()
    if auto_bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = tr.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="[UNK]", pad_token=pad, padding_side=side
    )
    made.chat_template = (
        "{{ bos_token }}{% for m in messages %} {{ m.role }} : {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %} assistant :{% endif %}"
    )
    return made


# --- what a call must leave as it was ---


def state(model: nn.Module) -> dict[str, Any]:
    """All that a caller could notice of a model: hooks, modes, flags, weights, attention; and global randomness."""
    config = getattr(model, "config", None)
    return {
        "hooks": {
            (name, kind): list(hooks)
            for name, module in model.named_modules()
            for kind, hooks in vars(module).items()
            if kind.startswith("_") and "hook" in kind and isinstance(hooks, dict) and hooks
        },
        "forward": {name: vars(m).get("forward") for name, m in model.named_modules() if "forward" in vars(m)},
        "training": [m.training for m in model.modules()],
        "flags": [p.requires_grad for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.clone().tolist() for p in model.parameters()],
        "weights": [(p.data_ptr(), p._version) for p in model.parameters()],
        "attention": getattr(config, "_attn_implementation", None),
        "random": torch.get_rng_state().tolist(),
    }
