"""Which circuits contain no other, and what is left of one when what does nothing is dropped."""

import numpy as np
from jaxtyping import Int

from interp.boolean.network import SmallMlp, run_circuits

PIECE = 1 << 14  # circuits run at once


def inclusion_minimal(codes: Int[np.ndarray, " circuit"]) -> Int[np.ndarray, " minimal"]:
    """Those sets of bits that contain no other of them, ascending."""
    left = np.unique(np.asarray(codes, dtype=np.int64))
    sizes = np.bitwise_count(left)
    found: list[np.ndarray] = []
    while len(left):
        smallest = left[sizes == sizes.min()]
        found.append(smallest)
        kept = np.ones(len(left), bool)
        for code in smallest:
            kept &= (left & code) != code
        left, sizes = left[kept], sizes[kept]
    return np.sort(np.concatenate(found)) if found else left


def one_minimal(codes: Int[np.ndarray, " circuit"]) -> Int[np.ndarray, " minimal"]:
    """Those sets of bits of which no other is the same but for one bit less, ascending."""
    codes = np.unique(np.asarray(codes, dtype=np.int64))
    kept = np.ones(len(codes), bool)
    for bit in np.int64(1) << np.arange(62, dtype=np.int64):
        with_bit = (codes & bit) != 0
        kept[with_bit] &= ~np.isin(codes[with_bit] ^ bit, codes)
    return codes[kept]


def canonical(network: SmallMlp, codes: Int[np.ndarray, " circuit"], inputs: np.ndarray) -> Int[np.ndarray, " circuit"]:
    """What is left of each circuit without edges of weight 0, out of units that are 0 on all inputs, and into units
    that lead nowhere. The result says the same on these inputs; a unit that is left without incoming edges still adds
    its constant."""
    pieces = [_canonical(network, codes[n : n + PIECE], inputs) for n in range(0, len(codes), PIECE)]
    return np.concatenate(pieces) if pieces else np.asarray(codes, dtype=np.int64)


def _canonical(network: SmallMlp, codes: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    wiring = network.wiring
    masks = [mask & (weight != 0) for mask, weight in zip(wiring.masks(codes), network.weights, strict=True)]
    values = run_circuits(network, wiring.codes(masks), inputs)
    for layer, said in enumerate(values[:-1], 1):
        masks[layer] &= (said != 0).any(1)[:, :, None]
    for layer in range(len(masks) - 1, 0, -1):
        masks[layer - 1] &= masks[layer].any(2)[:, None, :]
    return wiring.codes(masks)
