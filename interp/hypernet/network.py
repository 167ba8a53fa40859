"""The network of HyperDAS: an instruction attends to the source's and the base's states; its last token says where and
what to interchange.

    x = instruction tokens
    each block:  x += SelfAttention(x);  x += Attention(x, source states);  x += Attention(x, base states);  x += MLP(x)
    e = x at the instruction's last token
    scores of pairs of tokens from e and both sites' states
    reflections v = MLP(e), or MLP(e of the instruction alone), so that a concept has one subspace

States are keys and values of every token at every layer read: their position is the token's, their layer is an
embedding, so that neither padding nor the number of layers moves another's position.

Source: Sun et al. 2025 (arXiv 2503.10894), section 3 and the authors' code; width, positions and norms are ours.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from interp.hypernet.reflections import projected, reflected, triangle, unit
from interp.hypernet.selection import Scores, masked
from interp.hypernet.settings import HyperDasSettings
from interp.interchange.exchanges import TEMPERATURES, orthonormalised

ROTARY_BASE = 10_000.0


class Reading(NamedTuple):
    """States of one side of the examples.

    Attributes:
        states: at the layers that are read.
        site: at the site where the interchange takes place.
        real: which columns hold tokens of the prompt.
    """

    states: Float[Tensor, "example pos layer d"]
    site: Float[Tensor, "example pos d"]
    real: Bool[Tensor, "example pos"]


class Instructed(NamedTuple):
    """Instructions as vectors, padded on the right."""

    vectors: Float[Tensor, "example token d"]
    real: Bool[Tensor, "example token"]


def normed(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Root mean square 1, in float32."""
    return F.rms_norm(x.float(), x.shape[-1:], eps=1e-6)


class Attention(nn.Module):
    """Attention with rotary positions; queries from `x`, keys and values from `given`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(
        self, x: Float[Tensor, "b t w"], given: Float[Tensor, "b s w"] | None, visible: Bool[Tensor, "b t s"],
        positions: Float[Tensor, " s"],
    ) -> Float[Tensor, "b t w"]:  # fmt: skip
        """What is added to `x`.

        Args:
            given: normalised already; `x` itself when None.
            positions: of the keys.
        """
        x = self.norm(x)
        source = x if given is None else given
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q(x), self.k(source), self.v(source))
        )
        own = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        mixed = F.scaled_dot_product_attention(rotated(q, own), rotated(k, positions), v, attn_mask=visible[:, None])
        return self.o(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One block: itself, the source, the base, an MLP."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.itself, self.source, self.base = (Attention(width, heads) for _ in range(3))
        self.norm = nn.RMSNorm(width)
        self.up, self.gate = (nn.Linear(width, hidden * width, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden * width, width, bias=False)

    def mlp(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b t w"]:
        """What the MLP adds."""
        x = self.norm(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))


class HyperNetwork(nn.Module):
    """From an instruction and two readings to scores of pairs and a subspace.

    Args:
        settings: its sizes.
        d: width of the site and of the states.
        d_instruction: width of an instruction's vectors.
        n_read: layers that are read.
        seed: of its first parameters.
    """

    def __init__(self, settings: HyperDasSettings, d: int, d_instruction: int, n_read: int, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings
        w = settings.width
        roles = 1 if settings.symmetry == "shared" else 2
        self.tell = nn.Linear(d_instruction, w)
        self.read = nn.Linear(d, w, bias=False)
        self.layer = nn.Parameter(torch.empty(n_read, w))
        self.role = nn.Parameter(torch.empty(roles, w))
        self.read_norm, self.norm = nn.RMSNorm(w), nn.RMSNorm(w)
        self.blocks = nn.ModuleList(Block(w, settings.heads, settings.hidden) for _ in range(settings.blocks))
        self.ask, self.ask_self = nn.Linear(w, w), nn.Linear(w, w)
        self.keys = nn.ModuleList(nn.Linear(d, w, bias=False) for _ in range(roles))
        self.self_key = nn.Linear(d, w, bias=False)
        self.meet = nn.ModuleList(nn.Linear(d, settings.interaction, bias=False) for _ in range(roles))
        self.subspace = nn.Parameter(torch.empty(d, settings.rank))
        n_out = settings.rank if settings.gated else settings.reflections * d
        self.aim = nn.Sequential(nn.Linear(w, w), nn.SiLU(), nn.Linear(w, n_out)) if n_out else None
        self.temperature = TEMPERATURES[0]
        self._draw(seed)

    def _draw(self, seed: int) -> None:
        """First parameters from a generator of their own: matrices N(0, 1 / inputs), those that write to the stream
        smaller by the number of writers, an orthonormal subspace."""
        generator = torch.Generator().manual_seed(seed)
        writers = (4 * len(self.blocks)) ** -0.5
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.ndim < 2:
                    p.fill_(1.0 if "norm" in name else 0.0)
                    continue
                p.copy_(torch.randn(p.shape, generator=generator) * p.shape[1] ** -0.5)
                if name.endswith(("o.weight", "down.weight")):
                    p.mul_(writers)
            self.subspace.copy_(orthonormalised(torch.randn(self.subspace.shape, generator=generator)))

    def summary(
        self, told: Instructed, base: Reading | None = None, source: Reading | None = None
    ) -> Float[Tensor, "example width"]:
        """e: the instruction's last token, once it has read both runs (or the instruction alone)."""
        x = self.tell(normed(told.vectors))
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril() & told.real[:, None]
        causal = causal | torch.eye(length, dtype=torch.bool, device=x.device)  # padding sees itself: no empty softmax
        own = torch.arange(length, device=x.device, dtype=torch.float32)
        sides = [None if reading is None else self._cells(reading, role) for role, reading in enumerate((base, source))]
        for block in self.blocks:
            assert isinstance(block, Block), "blocks are blocks"
            x = x + block.itself(x, None, causal, own)
            for attention, side in ((block.source, sides[1]), (block.base, sides[0])):
                if side is not None:
                    cells, real, positions = side
                    x = x + attention(x, cells, real[:, None].expand(-1, length, -1), positions)
            x = x + block.mlp(x)
        last = told.real.sum(1) - 1
        return self.norm(x[torch.arange(len(x), device=x.device), last])

    def _cells(self, reading: Reading, role: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of every token at every layer read, which of them are real, and their positions."""
        n_read = reading.states.shape[2]
        cells = self.read(normed(reading.states)) + self.layer + self.role[min(role, len(self.role) - 1)]
        real = reading.real[:, :, None].expand(-1, -1, n_read)
        positions = torch.arange(cells.shape[1], device=cells.device, dtype=torch.float32)[:, None].expand(-1, n_read)
        return self.read_norm(cells.flatten(1, 2)), real.flatten(1), positions.flatten()

    def scores(
        self, e: Float[Tensor, "example width"], base: Reading, source: Reading, *, swapped: bool = False
    ) -> Scores:
        """Logits of pairs of tokens and of leaving a base token alone.

        Args:
            swapped: read each side with the other's weights (the symmetric variant's coin).
        """
        b, s = normed(base.site), normed(source.site)
        asked, scale = self.ask(e)[:, :, None], self.settings.width**-0.5
        first, second = (1, 0) if swapped else (0, 1)
        first, second = (min(one, len(self.keys) - 1) for one in (first, second))
        of_base, of_source = (self.keys[first](b) @ asked)[..., 0], (self.keys[second](s) @ asked)[..., 0]
        pairs = (of_source[:, :, None] + of_base[:, None]) * scale
        if self.settings.selector == "pair":
            pairs = pairs + self.meet[second](s) @ self.meet[first](b).mT * self.settings.interaction**-0.5
        own = (self.self_key(b) @ self.ask_self(e)[:, :, None])[..., 0] * scale
        return masked(pairs, own, source.real, base.real)

    def project(
        self, e: Float[Tensor, "example width"], step: Float[Tensor, "example base d"]
    ) -> Float[Tensor, "example base d"]:
        """R R^T step, with the R that each summary aims at."""
        shared = orthonormalised(self.subspace)
        step = step.float()
        if self.aim is None:
            return (step @ shared) @ shared.T
        out = self.aim(e)
        if self.settings.gated:
            gates = torch.sigmoid(out / self.temperature) if self.training else (out > 0).to(step)
            return ((step @ shared) * gates[:, None]) @ shared.T
        return projected(step, unit(out.unflatten(1, (self.settings.reflections, -1))), shared)

    def basis(self, e: Float[Tensor, "example width"]) -> Float[Tensor, "example d rank"]:
        """R that each summary aims at; where directions are gated, those that are shut are zeros."""
        shared = orthonormalised(self.subspace)
        if self.aim is None:
            return shared.expand(len(e), -1, -1)
        out = self.aim(e)
        if self.settings.gated:
            return shared * (out > 0).to(shared)[:, None]
        v = unit(out.unflatten(1, (self.settings.reflections, -1)))
        rows = shared.T.expand(len(e), -1, -1)
        return reflected(rows, v, triangle(v)).mT


def rotated(x: Float[Tensor, "b h t e"], positions: Float[Tensor, " t"]) -> Float[Tensor, "b h t e"]:
    """Rotary position embedding."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * ROTARY_BASE ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
