"""Counter-based uniform numbers: a function of (seed, node, model, slot) and of nothing else.

Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), in integer
tensor operations: the same numbers on every device, whatever the batch, the padding or the order of evaluation.
"""

import numpy as np
import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.shapes import broadcast_shapes

__all__ = ["philox4x32", "uniforms"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
# Rows of one call: ten rounds reread their operands, so they should stay in a core's cache.
_CHUNK = 1 << 16


def philox4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox on four counter words and two key words, int64 tensors holding 32 bits each."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # 32 x 32 bit products wrap around modulo 2^64 in int64; shifts and masks then read off both halves.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, p1 & _LOW, ((p0 >> 32) & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(
    seed: Tensor, nodes: int, models: int, slot: int | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Uniform numbers in [0, 1) for every node and model.

    Args:
        seed: `(...)` int64, one per instance.
        nodes: V.
        models: M. More models or nodes append numbers and change none.
        slot: slot number >= 0 for numbers of that slot only; None for numbers that no slot enters.
        dtype: float64 takes 53 random bits, float32 the leading 24 of the same.

    Returns:
        `(..., V, M)` on the seed's device.

    Example:
        >>> uniforms(torch.tensor(7), 1, 2)
        tensor([[0.0687, 0.2990]], dtype=torch.float64)
    """
    if kernels.compiled_for(seed, seed.numel() * nodes * models):
        return _compiled(seed, nodes, models, slot, dtype)
    pairs = (models + 1) // 2
    pair = torch.arange(pairs, device=seed.device)
    parts = [torch.empty(*seed.shape, 0, 2 * pairs, dtype=dtype, device=seed.device)]
    seed = seed[..., None, None]
    key = (seed & _LOW, (seed >> 32) & _LOW)
    step = max(1, _CHUNK // max(1, pairs * seed.numel()))
    for start in range(0, nodes, step):
        node = torch.arange(start, min(start + step, nodes), device=seed.device)[:, None]
        shape = broadcast_shapes(seed.shape, node.shape, pair.shape)
        # The last word tells numbers of slot 0 from numbers without a slot.
        words = (pair, node, torch.full_like(node, slot or 0), torch.full_like(node, 0 if slot is None else 1))
        bits = philox4x32(tuple(word.expand(shape) for word in words), key)
        lanes = [_unit(high, low, dtype) for high, low in (bits[:2], bits[2:])]
        parts.append(torch.stack(lanes, -1).flatten(-2))
    return torch.cat(parts, -2)[..., :models]


def _compiled(seed: Tensor, nodes: int, models: int, slot: int | None, dtype: torch.dtype) -> Tensor:
    from idn_torch.kernels import nodes as node_kernels

    out = torch.empty(*seed.shape, nodes, models, dtype=dtype)
    kernels.use_threads()
    words = seed.reshape(-1).numpy().view(np.uint64)
    node_kernels.philox(words, nodes, slot or 0, int(slot is not None), out.view(-1, models).numpy())
    return out


def _unit(high: Tensor, low: Tensor, dtype: torch.dtype) -> Tensor:
    """The leading 53 or 24 of 64 random bits as a number in [0, 1)."""
    if dtype == torch.float64:
        return ((high << 21) | (low >> 11)).double() * 2.0**-53
    return (high >> 8).to(dtype) * 2.0**-24
