"""Mirror step and projection of each node in one go: a program a row, the row in registers from load to store."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from idn_torch.feasible import FeasibleSet
from idn_torch.kernels import repeating_rows
from idn_torch.kernels.triton.nodes import divide, launch
from idn_torch.kernels.triton.operators import operator
from idn_torch.shapes import broadcast_shapes

__all__ = ["mirror_step", "project"]


def project(point: Tensor, sizes: Tensor, where: FeasibleSet, mirror_map: str) -> Tensor:
    """`projection.project_negentropy` from log y', or `project_euclidean` from y', `(..., V, M)`."""
    return _operator(point, None, None, sizes, *_columns(where), mirror_map == "euclidean")


def mirror_step(y: Tensor, grad: Tensor, eta: Tensor, sizes: Tensor, where: FeasibleSet, mirror_map: str) -> Tensor:
    """`mirror.mirror_step_kernel` without a temporary. A float32 fraction below 1e-38 counts as 0."""
    return _operator(y, grad, eta, sizes, *_columns(where), mirror_map == "euclidean")


def _columns(where: FeasibleSet) -> FeasibleSet:
    """With the values of a node as `(..., V, 1)`."""
    return where._replace(budgets=where.budgets.unsqueeze(-1), holds_all=where.holds_all.unsqueeze(-1))


def _fake(point, grad, eta, sizes, free, fixed, budgets, holds_all, euclidean):  # type: ignore[no-untyped-def]
    tables = [tensor for tensor in (point, grad, eta, sizes, free, fixed, budgets) if tensor is not None]
    return point.new_empty(broadcast_shapes(*(tensor.shape for tensor in tables)))


@operator("mirror_step", _fake)
def _operator(
    point: Tensor,
    grad: Tensor | None,
    eta: Tensor | None,
    sizes: Tensor,
    free: Tensor,
    fixed: Tensor,
    budgets: Tensor,
    holds_all: Tensor,
    euclidean: bool,
) -> Tensor:
    """Projection after a step along grad, or of the point as it is; `(..., V, M)` and what broadcasts against it."""
    step = grad is not None and eta is not None
    if grad is None or eta is None:
        grad = eta = point  # stand in for what is not read
    out = _fake(point, grad, eta, sizes, free, fixed, budgets, holds_all, euclidean)
    lead, models = out.shape[:-1], out.shape[-1]
    if out.numel():
        rows = [repeating_rows(tensor, lead, models) for tensor in (point, sizes, free, fixed, grad)]
        rows += [repeating_rows(tensor, lead, tensor.shape[-1]) for tensor in (budgets, holds_all, eta)]
        _project[(lead.numel(),)](
            *rows,
            out,
            *(len(table) for table in rows),
            models,
            STEP=step,
            EACH=eta.shape[-1] > 1,
            EUCLIDEAN=euclidean,
            LEAST=torch.finfo(point.dtype).min / 4,
            **launch(models),
        )
    return out


@triton.jit
def _any(flags):  # type: ignore[no-untyped-def]
    return tl.max(flags.to(tl.int32), 0)


@triton.jit
def _entropic(log_y, sizes, choose, left):  # type: ignore[no-untyped-def]
    """`min(1, c * y)` in double: in float32 the roundings of sizes that leave the budget would add up."""
    unclipped = choose
    y = tl.zeros_like(sizes)
    busy = _any(choose)
    while busy > 0:
        top = tl.max(tl.where(unclipped, log_y, float("-inf")), 0)
        weight = tl.where(unclipped, tl.exp(log_y - top), 0.0).to(tl.float64)
        y = weight * (tl.maximum(left, 0.0) / tl.sum(sizes * weight, 0))
        clipped = unclipped & (y >= 1)
        left -= tl.sum(tl.where(clipped, sizes, 0.0), 0)
        unclipped = unclipped & (y < 1)
        busy = _any(clipped) * _any(unclipped)
    return tl.where(unclipped, y, 1.0)


@triton.jit
def _tau(point, sizes, choose, target):  # type: ignore[no-untyped-def]
    """`sum s * clip(point - tau * s, 0, 1) = target`: Newton in a bracket, bisection every third time or outside."""
    low = tl.min(tl.where(choose, (point - 1) / sizes, float("inf")), 0)
    high = tl.max(tl.where(choose, point / sizes, float("-inf")), 0)
    weight = tl.where(choose, sizes, 0.0)
    tau = (tl.sum(weight * point, 0) - target) / tl.sum(weight * weight, 0)
    tau = tl.minimum(tl.maximum(tau, low), high)
    step = 1
    busy = _any(choose)
    while busy > 0:
        moved = point - tau * sizes
        inner = (moved > 0) & (moved < 1)
        excess = tl.sum(weight * tl.minimum(tl.maximum(moved, 0.0), 1.0), 0) - target
        steep = tl.sum(tl.where(inner, weight * weight, 0.0), 0)
        low = tl.where(excess > 0, tau, low)
        high = tl.where(excess > 0, high, tau)
        newton = tau + excess / tl.where(steep > 0, steep, 1.0)
        good = (steep > 0) & (step % 3 > 0) & (newton > low) & (newton < high)
        following = tl.where(good, newton, low + (high - low) / 2)
        done = (tl.abs(excess) <= 4e-16 * target) | (following == tau) | (step == 192)
        tau = tl.where(done, tau, following)
        step += 1
        busy = tl.where(done, 0, 1)
    return tau


@triton.jit
def _project(  # type: ignore[no-untyped-def]
    point, sizes, free, fixed, grad, budgets, holds_all, eta, out,
    point_rows, sizes_rows, free_rows, fixed_rows, grad_rows, budgets_rows, holds_rows, eta_rows,
    models,
    STEP: tl.constexpr, EACH: tl.constexpr, EUCLIDEAN: tl.constexpr, LEAST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    m = tl.arange(0, WIDTH)
    inside = m < models
    x = tl.load(point + (row % point_rows) * models + m, mask=inside, other=1)
    s = tl.load(sizes + (row % sizes_rows) * models + m, mask=inside, other=1)
    is_free = tl.load(free + (row % free_rows) * models + m, mask=inside, other=0) != 0
    is_fixed = tl.load(fixed + (row % fixed_rows) * models + m, mask=inside, other=0) != 0
    budget = tl.load(budgets + row % budgets_rows).to(tl.float64)
    fits = tl.load(holds_all + row % holds_rows) != 0
    if STEP:
        g = tl.load(grad + (row % grad_rows) * models + m, mask=inside, other=0)
        if EACH:  # an eta for each entry, not one a row
            move = tl.load(eta + (row % eta_rows) * models + m, mask=inside, other=0) * g
        else:
            move = tl.load(eta + row % eta_rows) * g
        if EUCLIDEAN:
            x += move
        else:
            # A zero would make its whole node NaN where nothing else is left; the log of nearly nothing does not.
            x = tl.maximum(tl.log(x), LEAST) + divide(move, s)
    wide = s.to(tl.float64)
    if EUCLIDEAN:
        # Twice: the second time works on numbers of the size of the answer, as the torch code does.
        p = x.to(tl.float64)
        p -= _tau(p, wide, is_free & ~fits, budget) * wide
        p -= _tau(p, wide, is_free & ~fits, budget) * wide
        y = tl.minimum(tl.maximum(p, 0.0), 1.0)
    else:
        y = _entropic(x, wide, is_free & ~fits, budget)
    y = tl.where(is_fixed | (is_free & fits), 1.0, tl.where(is_free, y, 0.0))
    tl.store(out + row * models + m, y.to(x.dtype), mask=inside)
