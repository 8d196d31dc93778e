"""DepRound of each node: a program a row, its tree over the models in registers, halved from round to round."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from idn_torch.kernels import repeating_rows
from idn_torch.kernels.triton.nodes import divide, launch
from idn_torch.kernels.triton.operators import operator

__all__ = ["depround"]


def _fake(y, sizes, uniforms):  # type: ignore[no-untyped-def]
    x = torch.empty_like(y, memory_format=torch.contiguous_format)
    return x, torch.empty(y.shape[:-1], dtype=torch.int64, device=y.device)


@operator("depround", _fake)
def depround(y: Tensor, sizes: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """`rounding.depround_kernel`, to the last bit.

    Args:
        y: `(..., V, M)`, expanded to the full shape; sizes, uniforms: broadcast against it.

    Returns:
        x `(..., V, M)` of 0 and 1, and the model drawn by itself `(..., V)` int64, -1 for none.
    """
    lead, models = y.shape[:-1], y.shape[-1]
    x, residual = _fake(y, sizes, uniforms)
    if x.numel():
        tables = [repeating_rows(tensor, lead, models) for tensor in (y, sizes, uniforms)]
        rounds = (models - 1).bit_length()
        _depround[(lead.numel(),)](
            *tables, x, residual, *(len(table) for table in tables), models, ROUNDS=rounds, **launch(models)
        )
    return x, residual


@triton.jit
def _halves(entries):  # type: ignore[no-untyped-def]
    """The entries at even places and those at odd ones."""
    return tl.split(tl.reshape(entries, [entries.shape[0] // 2, 2]))


@triton.jit
def _depround(  # type: ignore[no-untyped-def]
    y, sizes, uniforms, x, residual, y_rows, sizes_rows, uniforms_rows, models,
    ROUNDS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, WIDTH)
    inside = index < models
    # A missing leaf is whole: it meets its match without using its uniform.
    value = tl.load(y + (row % y_rows) * models + index, mask=inside, other=0)
    size = tl.load(sizes + (row % sizes_rows) * models + index, mask=inside, other=1)
    uniforms += (row % uniforms_rows) * models
    x += row * models
    for turn in tl.static_range(ROUNDS):
        yi, yj = _halves(value)
        si, sj = _halves(size)
        ki, kj = _halves(index)
        right = (2 * tl.arange(0, WIDTH >> (turn + 1)) + 1) << turn
        uniform = tl.load(uniforms + right, mask=right < models, other=0)
        rise_j, rise_i = divide(sj, si), divide(si, sj)
        to_one, from_j = 1 - yi, rise_j * yj  # up: how far i can rise, and how far j can make it rise
        to_zero, from_i = yi, rise_j * (1 - yj)  # down: how far i can fall, and how far j can take it up
        a, b = tl.minimum(to_one, from_j), tl.minimum(to_zero, from_i)
        up = uniform < divide(b, a + b)  # 0 / 0 only where both are whole: not used there
        i_stops = tl.where(up, to_one <= from_j, to_zero <= from_i)
        stop_i = up.to(value.dtype)
        rest_j = tl.where(up, tl.maximum(yj - rise_i * to_one, 0.0), tl.minimum(yj + rise_i * yi, 1.0))
        rest_i = tl.where(up, tl.minimum(yi + from_j, 1.0), tl.maximum(yi - from_i, 0.0))
        i_whole = (yi <= 0) | (yi >= 1)
        j_whole = (yj <= 0) | (yj >= 1)
        i_done = i_whole | ((yj > 0) & (yj < 1) & i_stops)
        settled = tl.where(i_whole, yi, tl.where(j_whole, yj, tl.where(i_stops, stop_i, 1 - stop_i)))
        at = tl.where(i_done, ki, kj)
        tl.store(x + at, settled, mask=at < models)
        value = tl.where(i_whole, yj, tl.where(j_whole, yi, tl.where(i_stops, rest_j, rest_i)))
        size = tl.where(i_done, sj, si)
        index = tl.where(i_done, kj, ki)
    fraction = (value > 0) & (value < 1)
    drawn = (tl.load(uniforms) < value).to(value.dtype)
    tl.store(x + index, tl.where(fraction, drawn, value), mask=index < models)
    tl.store(residual + row + tl.arange(0, 1), tl.where(fraction, index, -1).to(tl.int64))
