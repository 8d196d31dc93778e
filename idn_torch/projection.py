"""Projections onto the fractional allocations of each node: `sum s y = b'`, `0 <= y <= 1`, without a sort.

Source: inference delivery networks paper, eq. (17), Appendix D for the entropy; the Euclidean one is standard.
"""

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.errors import InputError
from idn_torch.feasible import FeasibleSet, feasible_set
from idn_torch.shapes import broadcast_shapes

__all__ = ["MIRROR_MAPS", "check_placement", "project", "project_euclidean", "project_negentropy"]

MIRROR_MAPS = ("negentropy", "euclidean")

# Passes between two looks at whether every node is done: a look makes the host wait for the device.
_PASSES_PER_LOOK = 4


@torch.no_grad()
def project(
    y: Tensor, sizes: Tensor, budgets: Tensor, fixed: Tensor | None = None, mirror_map: str = "negentropy"
) -> Tensor:
    """The allocation nearest to y in the mirror map's Bregman divergence, node by node.

    "negentropy" (Phi = sum s y log y): `min(1, c * y)` with one c per node. "euclidean" (Phi = |y|^2 / 2):
    `clip(y - tau * s, 0, 1)` with one tau per node. Models larger than the budget left get 0, nodes where all others
    fit get 1, fixed entries stay at 1.

    Args:
        y: `(..., V, M)`; >= 0 for negentropy, any finite values for Euclidean.
        sizes: s > 0, `(..., V, M)`.
        budgets: b >= 0, totals with the fixed entries included, `(..., V)`.
        fixed: entries held at 1, `(..., V, M)` bool.
        mirror_map: "negentropy" or "euclidean".

    Returns:
        `(..., V, M)` in [0, 1] with `sum s y = b` at every node that cannot hold everything.

    Raises:
        InputError: a shape, dtype or value is wrong (named with its node and model); the fixed entries exceed a
            budget; or, for negentropy, the models with y > 0 cannot fill a node's budget: a model at 0 stays at 0.

    Example:
        >>> project(torch.tensor([[4.0, 1.0, 1.0]]), torch.ones(1, 3), torch.tensor([2.0]))
        tensor([[1.0000, 0.5000, 0.5000]])
    """
    where = check_placement(y, sizes, budgets, fixed, mirror_map)
    y, sizes = torch.broadcast_tensors(y, sizes)
    if mirror_map == "euclidean":
        return project_euclidean(y, sizes, where)
    if not (y >= 0).all():
        *_, v, m = (~(y >= 0)).nonzero()[0].tolist()
        raise InputError(f"y: node {v}, model {m} is negative; the entropy needs y >= 0")
    reach = torch.where(where.free & (y > 0), sizes, 0.0).sum(-1)
    stuck = (reach < where.budgets * (1 - 1e-6)) & ~where.holds_all
    if stuck.any():
        *_, v = stuck.nonzero()[0].tolist()
        raise InputError(
            f"y: the models of node {v} with y > 0 fill less than its budget; the entropy cannot raise a model from 0: "
            "start from positive values"
        )
    return project_negentropy(y.log(), sizes, where)


def check_placement(
    y: Tensor, sizes: Tensor, budgets: Tensor, fixed: Tensor | None, mirror_map: str, **more: Tensor
) -> FeasibleSet:
    """Check the arguments of `project` and its kind, and return the feasible set they define."""
    if mirror_map not in MIRROR_MAPS:
        raise InputError(f"mirror_map is {mirror_map!r}; use one of {', '.join(MIRROR_MAPS)}")
    arguments = {"y": y, "sizes": sizes, "budgets": budgets, **more}
    for name, tensor in arguments.items():
        if not tensor.is_floating_point() or tensor.dtype != y.dtype or tensor.device != y.device:
            raise InputError(f"{name} is {tensor.dtype} on {tensor.device}; y is {y.dtype} on {y.device}: convert one")
    if fixed is not None and fixed.dtype != torch.bool:
        raise InputError(f"fixed is {fixed.dtype}; expected bool")
    try:
        broadcast_shapes(
            *(t.shape for n, t in arguments.items() if n != "budgets"),
            (*budgets.shape, 1),
            () if fixed is None else fixed.shape,
        )
    except ValueError:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in arguments.items())
        raise InputError(f"shapes do not fit (..., V, M) and budgets (..., V): {shapes}") from None
    for name, tensor in arguments.items():
        good = tensor.isfinite() & ((tensor > 0) if name == "sizes" else True)
        good &= (tensor >= 0) if name == "budgets" else True
        if not good.all():
            spot = tuple((~good).nonzero()[0].tolist())
            rule = {"sizes": "must be > 0 and finite", "budgets": "must be >= 0 and finite"}.get(name, "must be finite")
            raise InputError(f"{name}{list(spot)} is {tensor[spot].item():g}; {rule}")
    where = feasible_set(sizes, budgets, fixed)
    if not (where.budgets >= 0).all():
        *_, v = (where.budgets < 0).nonzero()[0].tolist()
        raise InputError(f"budgets: the fixed models of node {v} are larger than its budget; raise it or free some")
    return where


def project_negentropy(log_y: Tensor, sizes: Tensor, where: FeasibleSet, passes: int | None = None) -> Tensor:
    """`project` for the weighted negative entropy, from log y', without checks.

    Each pass solves for c with the models clipped so far, A, and clips those that c * y' lifts to 1. A only grows
    towards the solution's own clipped set, so the first pass that adds nothing has solved the problem: 4 passes
    typical, M at worst.

    Args:
        log_y: log of the point to project, `(..., V, M)`; finite on free entries of nodes that choose.
        passes: None runs until no node clips any more, looking every few passes; a number runs just that many and
            never waits for the device. A Triton kernel never waits anyhow and always runs to the end.
    """
    if kernels.triton_for(log_y, row=log_y.shape[-1]):
        from idn_torch.kernels.triton import projection as gpu

        return gpu.project(log_y, sizes, where, "negentropy")
    if passes is None and kernels.compiled_for(log_y, log_y.numel()):
        return where.complete(_compiled("negentropy", log_y, sizes, where))
    least = torch.finfo(log_y.dtype).min
    choose = where.choices
    unclipped = choose.expand(broadcast_shapes(choose.shape, log_y.shape))
    y = torch.zeros_like(log_y)
    limit = log_y.shape[-1] if passes is None else passes
    for done in range(1, limit + 1):
        left = where.budgets - torch.where(choose & ~unclipped, sizes, 0.0).sum(-1)
        left = left.clamp_(min=0)[..., None]  # rounding only: A never exceeds the budget
        # Shifted by the largest unclipped entry, at least one weight is 1: neither overflow nor an empty sum.
        shift = torch.where(unclipped, log_y, least).amax(-1, keepdim=True)
        weight = torch.where(unclipped, (log_y - shift).exp(), 0.0)
        total = (sizes * weight).sum(-1, keepdim=True)
        y = weight * (left / torch.where(total > 0, total, 1.0))
        clipped = unclipped & (y >= 1)
        unclipped = unclipped & ~clipped
        if passes is None and done % look_period(y) == 0 and not clipped.any():
            break
    return where.complete(torch.where(unclipped, y, 1.0))


def _compiled(mirror_map: str, point: Tensor, sizes: Tensor, where: FeasibleSet) -> Tensor:
    from idn_torch.kernels import nodes as node_kernels

    kernel = node_kernels.project_euclidean if mirror_map == "euclidean" else node_kernels.project_negentropy
    lead, models = point.shape[:-1], point.shape[-1]
    budgets = torch.where(where.holds_all, -1.0, where.budgets)[..., None]
    tables = ((sizes, models), (where.free, models), (budgets, 1))
    out = torch.zeros_like(point, memory_format=torch.contiguous_format)
    kernels.use_threads()
    kernel(
        point.reshape(-1, models).numpy(),
        *(kernels.repeating_rows(table, lead, width).numpy() for table, width in tables),
        out.view(-1, models).numpy(),
    )
    return out


def project_euclidean(y: Tensor, sizes: Tensor, where: FeasibleSet, passes: int | None = None) -> Tensor:
    """`project` for the squared Euclidean norm, without checks.

    Solved twice: for y, and again for what is left of y after subtracting tau * s. The second time works on numbers
    of the size of the answer, so that a long gradient step does not cost the budget its last digits.

    Args:
        passes: as in `project_negentropy`, for each of the two times.
    """
    if kernels.triton_for(y, row=y.shape[-1]):
        from idn_torch.kernels.triton import projection as gpu

        return gpu.project(y, sizes, where, "euclidean")
    if passes is None and kernels.compiled_for(y, y.numel()):
        return where.complete(_compiled("euclidean", y, sizes, where))
    choose = where.choices
    y = y - _euclidean_shift(y, sizes, choose, where.budgets, passes) * sizes
    y = y - _euclidean_shift(y, sizes, choose, where.budgets, passes) * sizes
    return where.complete(y.clamp(0, 1))


def _euclidean_shift(y: Tensor, sizes: Tensor, choose: Tensor, budgets: Tensor, passes: int | None) -> Tensor:
    """tau with `sum s * clip(y - tau * s, 0, 1) = b'`, `(..., V, 1)`; 0 where nothing is to choose.

    The sum falls piecewise linearly in tau but is neither convex nor concave. Newton steps, which are exact once
    they start from the right piece, inside a bracket that every pass narrows; bisection where a step would leave it
    and every third pass, so that the bracket shrinks at least that fast.
    """
    target = budgets[..., None]
    weight = torch.where(choose, sizes, 0.0)
    anything = choose.any(-1, keepdim=True) & (target > 0)
    low = torch.where(choose, (y - 1) / sizes, torch.inf).amin(-1, keepdim=True).where(anything, 0.0)
    high = torch.where(choose, y / sizes, -torch.inf).amax(-1, keepdim=True).where(anything, 0.0)
    spread = (weight * weight).sum(-1, keepdim=True)
    start = ((weight * y).sum(-1, keepdim=True) - target) / torch.where(anything, spread, 1.0)
    tau = start.clamp(low, high)
    done = ~anything
    tolerance = 2 * torch.finfo(y.dtype).eps * target
    # Enough to bisect away every bit of a double, three passes a bisection.
    limit = 3 * 64 if passes is None else passes
    for step in range(1, limit + 1):
        moved = y - tau * sizes
        excess = (weight * moved.clamp(0, 1)).sum(-1, keepdim=True) - target
        done = done | (excess.abs() <= tolerance)
        low = torch.where(excess > 0, tau, low)
        high = torch.where(excess < 0, tau, high)
        steep = torch.where((moved > 0) & (moved < 1), weight * weight, 0.0).sum(-1, keepdim=True)
        newton = tau + excess / torch.where(steep > 0, steep, 1.0)
        good = (steep > 0) & (newton > low) & (newton < high)
        if step % 3 == 0:
            good = torch.zeros_like(good)
        following = torch.where(good, newton, low + (high - low) / 2)
        done = done | ((following == tau) & ~good)  # no number left between the ends
        tau = torch.where(done, tau, following)
        if passes is None and step % look_period(y) == 0 and done.all():
            break
    return tau.where(anything, 0.0)


def look_period(tensor: Tensor) -> int:
    """Passes between two looks: on a CPU a look costs nothing, elsewhere it makes the host wait."""
    return 1 if tensor.device.type == "cpu" else _PASSES_PER_LOOK
