"""How a HyperDAS network is built, and what is asked of it."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from interp.errors import OptionError, check_choice

Selector = Literal["pair", "factored"]
Symmetry = Literal["none", "shared", "coin"]
Reads = Literal["up_to_site", "all"]
Instructions = Literal["concept", "entities"]
Aims = Literal["instruction", "example"]


@dataclass(frozen=True)
class HyperDasSettings:
    """The network of HyperDAS.

    Args:
        rank: of the subspace.
        reflections: how many each example's subspace is moved by (1 in the paper; with fewer than rank / 2, two
            subspaces always share directions); 0 for one subspace for all.
        aimed_by: what the subspace depends on: the ``"instruction"`` alone, so that a concept has one subspace; or the
            whole ``"example"``, both runs included (the paper): then a network can read the values from the runs and
            aim where they need be, which says little of the model.
        gated: weight the shared subspace's directions by the instruction, instead of reflecting it.
        fixed: role at which, in source and base, the interchange takes place, instead of chosen tokens: a control.
        selector: ``"pair"``: a score of each pair of tokens with an interaction; ``"factored"``: a distribution over
            source tokens and a gate for each base token, which soft weights without an interaction are anyway.
        interaction: rank of the pair selector's interaction.
        symmetry: ``"shared"``: base and source are read with the same weights; ``"coin"``: which weights read which
            side of a pair is drawn for each batch (the paper's symmetric variant); ``"none"``.
        reads: layers whose states it attends to: those up to the site, or all of them (the paper), which lets it see
            what the change has not yet made.
        stride: every so many of these layers.
        up_to: role of the prompts up to whose last token they are read and paired; "" for whole prompts. What follows
            the entity often says what is asked, and a network that sees it can leave alone what it should isolate.
        width, blocks, heads, hidden: of the network; hidden size of an MLP, in widths.
        subspace_rate: learning rate of the shared subspace.
        instructions: what it is told: the concept, or the two entities and the concept (as the authors' data do).
        sparsity: weight of the penalty on source tokens that are used more than once, at the end of training; it rises
            from `sparsity_from` of the updates on. Late, it may find the network settled on pairing every base token
            with one source token, which soft weights make harmless.
        published_sparsity: the penalty with its jump, as published.
        single: weight of a penalty on changing more than one base token, which rises likewise: sum_j (1 - self_j) above
            1. Without it a network may well move a value by several changes that each do nothing alone.
        whole_until: share of the updates over which the exchange turns from the whole vector into the subspace, so that
            tokens are found before a subspace is (a random one hardly changes anything, wherever it is exchanged).
        straight_from: share of the updates after which training uses one-to-one choices, with the soft ones' gradient.
    """

    rank: int = 32
    reflections: int = 8
    aimed_by: Aims = "instruction"
    gated: bool = False
    fixed: str = ""
    selector: Selector = "pair"
    interaction: int = 32
    symmetry: Symmetry = "none"
    reads: Reads = "up_to_site"
    stride: int = 3
    up_to: str = "last_entity"
    width: int = 256
    blocks: int = 4
    heads: int = 4
    hidden: int = 2
    subspace_rate: float = 3e-3
    instructions: Instructions = "concept"
    sparsity: float = 1.0
    sparsity_from: float = 0.0
    published_sparsity: bool = False
    single: float = 0.0
    whole_until: float = 0.2
    straight_from: float = 0.8

    def __post_init__(self) -> None:
        for name, allowed in (
            ("selector", Selector), ("symmetry", Symmetry), ("reads", Reads), ("instructions", Instructions),
            ("aimed_by", Aims),
        ):  # fmt: skip
            check_choice(name, getattr(self, name), get_args(allowed))
        least = {"rank": 1, "reflections": 0, "interaction": 1, "stride": 1, "blocks": 1, "heads": 1, "hidden": 1}
        low = [f"{name}={getattr(self, name)} (at least {n})" for name, n in least.items() if getattr(self, name) < n]
        if self.width % (2 * self.heads):
            low.append(f"width={self.width} (a multiple of 2 x heads, {2 * self.heads})")
        if low:
            raise OptionError(f"HyperDAS settings out of range: {', '.join(low)}.")

    @classmethod
    def as_published(cls, **other: Any) -> "HyperDasSettings":
        """The paper's choices where ours differ: rank 128, one reflection, which depends on the runs too, 8 blocks, all
        layers read, the penalty with its jump, both entities named in the instruction, no training on whole vectors or
        hard choices. (The paper's blocks are copies of the target's, of its width; ours start from scratch.)"""
        published: dict[str, Any] = {
            "rank": 128, "reflections": 1, "aimed_by": "example", "blocks": 8, "reads": "all", "stride": 1,
            "instructions": "entities", "published_sparsity": True, "sparsity": 1.5, "sparsity_from": 0.5,
            "subspace_rate": 1e-3, "whole_until": 0.0, "straight_from": 1.0,
        }  # fmt: skip
        return cls(**{**published, **other})
