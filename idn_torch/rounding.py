"""DepRound: from a fractional allocation to a random 0/1 one with the same expectation and total size.

Source: inference delivery networks paper, Sec. IV-C; the pairing along a binary tree is this project's.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.errors import InputError
from idn_torch.shapes import broadcast_shapes

__all__ = ["Rounded", "depround", "depround_kernel"]

# Elements rounded at a time, so that a tree stays in a core's cache.
_CHUNK = 1 << 18


class Rounded(NamedTuple):
    """A rounded allocation.

    Attributes:
        x: 0 or 1, `(..., V, M)`.
        residual: the model whose fraction was left and drawn by itself, `(..., V)` int64; -1 where none was left.
    """

    x: Tensor
    residual: Tensor


@torch.no_grad()
def depround(
    y: Tensor, sizes: Tensor, generator: torch.Generator | None = None, uniforms: Tensor | None = None
) -> Tensor:
    """Round every node's fractions dependently: marginals are kept exactly, and so is the total size but for one model.

    Two fractions of a node trade size until one of them is 0 or 1, along a binary tree over the models, in
    ceil(log2 M) rounds. The last fraction left is drawn by itself, so a node exceeds `sum s y` by less than the size
    of one model. The match whose right half starts at model j uses uniform j, the last draw uniform 0.

    Args:
        y: in [0, 1], `(..., V, M)`.
        sizes: s > 0, `(..., V, M)`.
        generator: source of the uniforms; torch's default when neither it nor uniforms is given.
        uniforms: numbers in [0, 1), `(..., V, M)`.

    Returns:
        `(..., V, M)` of 0 and 1 in the dtype of y.

    Raises:
        InputError: y outside [0, 1] or NaN, sizes not positive, shapes that do not fit, or both sources given.

    Example:
        >>> depround(torch.tensor([[0.5, 0.5]]), torch.ones(1, 2), uniforms=torch.tensor([[0.0, 0.2]]))
        tensor([[1., 0.]])
    """
    if generator is not None and uniforms is not None:
        raise InputError("give a generator or uniforms, not both")
    named = {"y": y, "sizes": sizes} if uniforms is None else {"y": y, "sizes": sizes, "uniforms": uniforms}
    for name, tensor in named.items():
        if tensor.dtype != y.dtype or tensor.device != y.device or not tensor.is_floating_point():
            raise InputError(f"{name} is {tensor.dtype} on {tensor.device}; y is {y.dtype} on {y.device}: convert one")
        good = {"y": (tensor >= 0) & (tensor <= 1), "uniforms": (tensor >= 0) & (tensor < 1)}.get(
            name, (tensor > 0) & (tensor < torch.inf)
        )
        if not good.all():
            spot = tuple((~good).nonzero()[0].tolist())
            rule = {"y": "must be in [0, 1]", "uniforms": "must be in [0, 1)"}.get(name, "must be > 0 and finite")
            raise InputError(f"{name}{list(spot)} is {tensor[spot].item():g}; {rule}")
    try:
        shape = broadcast_shapes(*(tensor.shape for tensor in named.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
        raise InputError(f"shapes do not broadcast to (..., V, M): {shapes}") from None
    if uniforms is None:
        uniforms = torch.rand(shape, generator=generator, dtype=y.dtype, device=y.device)
    return depround_kernel(y, sizes, uniforms).x


def depround_kernel(y: Tensor, sizes: Tensor, uniforms: Tensor) -> Rounded:
    """`depround` without its checks, and the residual model of each node."""
    shape = broadcast_shapes(y.shape, sizes.shape, uniforms.shape)
    models = shape[-1]
    width = 1 << max(0, models - 1).bit_length()
    rows = shape[:-1].numel()
    if kernels.triton_for(y, row=models):
        from idn_torch.kernels.triton import rounding as gpu

        return Rounded(*gpu.depround(y.expand(shape), sizes, uniforms))
    if kernels.compiled_for(y, shape.numel()):
        return _compiled(y.expand(shape), sizes, uniforms)
    y, sizes, uniforms = (tensor.expand(shape).reshape(rows, models) for tensor in (y, sizes, uniforms))
    step = max(1, _CHUNK // width)
    chunks = [slice(start, start + step) for start in range(0, rows, step)]
    parts = [_tree(y[chunk], sizes[chunk], uniforms[chunk], width) for chunk in chunks]
    x, residual = (torch.cat(part) for part in zip(*parts, strict=True))
    return Rounded(x.reshape(shape), residual.reshape(shape[:-1]))


def _compiled(y: Tensor, sizes: Tensor, uniforms: Tensor) -> Rounded:
    from idn_torch.kernels import nodes as node_kernels

    lead, models = y.shape[:-1], y.shape[-1]
    x = torch.empty_like(y, memory_format=torch.contiguous_format)
    residual = torch.empty(lead, dtype=torch.int64)
    kernels.use_threads()
    node_kernels.depround(
        y.reshape(-1, models).numpy(),
        kernels.repeating_rows(sizes, lead, models).numpy(),
        kernels.repeating_rows(uniforms, lead, models).numpy(),
        x.view(-1, models).numpy(),
        residual.view(-1).numpy(),
    )
    return Rounded(x, residual)


def _tree(y: Tensor, sizes: Tensor, uniforms: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Round `(rows, M)`. Each subtree carries up its one fraction: value, size and model index."""
    rows, models = y.shape
    # A missing leaf is an integral entry: it meets its match without using its uniform.
    pad = (0, width - models)
    value = torch.nn.functional.pad(y, pad)
    size = torch.nn.functional.pad(sizes, pad, value=1.0)
    uniforms = torch.nn.functional.pad(uniforms, pad)
    index = torch.arange(width, device=y.device).expand(rows, width)
    x = torch.empty_like(value)
    half = 1
    while half < width:
        yi, yj = value[:, 0::2], value[:, 1::2]
        si, sj = size[:, 0::2], size[:, 1::2]
        ki, kj = index[:, 0::2], index[:, 1::2]
        rise_j, rise_i = sj / si, si / sj
        to_one, from_j = 1 - yi, rise_j * yj  # up: how far i can rise, and how far j can make it rise
        to_zero, from_i = yi, rise_j * (1 - yj)  # down: how far i can fall, and how far j can take it up
        a, b = torch.minimum(to_one, from_j), torch.minimum(to_zero, from_i)
        up = uniforms[:, half :: 2 * half] < b / (a + b)  # 0 / 0 only where both are whole: not used there
        i_stops = torch.where(up, to_one <= from_j, to_zero <= from_i)
        # The entry that limits the step takes its 0 or 1 exactly; the other absorbs the rounding.
        stop_i = up.to(y.dtype)
        rest_j = torch.where(up, (yj - rise_i * to_one).clamp(min=0), (yj + rise_i * yi).clamp(max=1))
        rest_i = torch.where(up, (yi + from_j).clamp(max=1), (yi - from_i).clamp(min=0))
        i_whole = (yi <= 0) | (yi >= 1)
        j_whole = (yj <= 0) | (yj >= 1)
        i_done = i_whole | (~j_whole & i_stops)
        settled = torch.where(i_whole, yi, torch.where(j_whole, yj, torch.where(i_stops, stop_i, 1 - stop_i)))
        carried = torch.where(i_whole, yj, torch.where(j_whole, yi, torch.where(i_stops, rest_j, rest_i)))
        x.scatter_(1, torch.where(i_done, ki, kj), settled)
        value = carried
        size = torch.where(i_done, sj, si)
        index = torch.where(i_done, kj, ki)
        half *= 2
    fraction = (value > 0) & (value < 1)
    x.scatter_(1, index, torch.where(fraction, (uniforms[:, :1] < value).to(y.dtype), value))
    return x[:, :models], torch.where(fraction, index, -1)[:, 0]
