"""Online mirror ascent on the fractional allocations: dual step, projection, floor.

Source: inference delivery networks paper, Algorithm 1 lines 3-6 and Sec. IV-A.
"""

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.errors import InputError
from idn_torch.feasible import FeasibleSet
from idn_torch.projection import check_placement, project_euclidean, project_negentropy
from idn_torch.shapes import broadcast_shapes

__all__ = ["first_allocation", "lift", "mirror_ascent_step", "mirror_step_kernel", "slope_norm"]


@torch.no_grad()
def mirror_ascent_step(
    y: Tensor,
    grad: Tensor,
    lr: Tensor | float,
    sizes: Tensor,
    budgets: Tensor,
    fixed: Tensor | None = None,
    mirror_map: str = "negentropy",
) -> Tensor:
    """One step of mirror ascent: y' from `grad Phi(y') = grad Phi(y) + lr * g`, then the projection of y'.

    "negentropy" (Phi = sum s y log y): `y' = y * exp(lr * g / s)`, in the log domain. "euclidean": `y' = y + lr * g`.

    Args:
        y: in [0, 1], `(..., V, M)`.
        grad: a supergradient of the gain, `(..., V, M)`.
        lr: eta >= 0; a number, `(...)` for one per instance, or `(..., V, 1)` for one per node.
        sizes, budgets, fixed, mirror_map: as in `project`.

    Returns:
        `(..., V, M)`, feasible.

    Raises:
        InputError: as `project`; or lr is negative, NaN or infinite.

    Example:
        >>> y = torch.full((1, 2), 0.5)
        >>> mirror_ascent_step(y, torch.tensor([[1.0, 0.0]]), 1.0, torch.ones(1, 2), torch.ones(1))
        tensor([[0.7311, 0.2689]])
    """
    where = check_placement(y, sizes, budgets, fixed, mirror_map, grad=grad)
    eta = torch.as_tensor(lr, dtype=y.dtype, device=y.device)
    if not (eta.isfinite() & (eta >= 0)).all():
        raise InputError("lr must be >= 0 and finite")
    if not (y >= 0).all():
        raise InputError("y must be >= 0")
    batch = broadcast_shapes(y.shape, grad.shape)[:-2]
    per_instance = eta.ndim <= len(batch) and all(
        n in (1, m) for n, m in zip(eta.shape[::-1], batch[::-1], strict=False)
    )
    return mirror_step_kernel(y, grad, eta[..., None, None] if per_instance else eta, sizes, where, mirror_map)


def mirror_step_kernel(
    y: Tensor, grad: Tensor, eta: Tensor, sizes: Tensor, where: FeasibleSet, mirror_map: str, passes: int | None = None
) -> Tensor:
    """`mirror_ascent_step` without its checks; eta broadcasts against `(..., V, M)`."""
    if kernels.triton_for(y, row=y.shape[-1]):
        from idn_torch.kernels.triton import projection as gpu

        return gpu.mirror_step(y, grad, eta, sizes, where, mirror_map)
    if mirror_map == "euclidean":
        return project_euclidean(y + eta * grad, sizes, where, passes)
    # A zero would make its whole node NaN where nothing else is left; the log of nearly nothing does not.
    log_y = y.log().clamp_(min=torch.finfo(y.dtype).min / 4)
    return project_negentropy(log_y + eta * grad / sizes, sizes, where, passes)


def first_allocation(sizes: Tensor, where: FeasibleSet, mirror_map: str, passes: int | None = None) -> Tensor:
    """y_1 = argmin of the mirror map over the feasible set, `(..., V, M)`: equal fractions, or fractions like sizes."""
    if mirror_map == "euclidean":
        return project_euclidean(torch.zeros_like(sizes), sizes, where, passes)
    return project_negentropy(torch.zeros_like(sizes), sizes, where, passes)


def lift(y: Tensor, sizes: Tensor, where: FeasibleSet, delta: float) -> Tensor:
    """The floor `(1 - delta) * y + delta * b' / |s|_1` on free entries: no model dies at 0, budgets stay exact."""
    total = torch.where(where.free, sizes, 0.0).sum(-1)
    even = (where.budgets / torch.where(total > 0, total, 1.0))[..., None]
    return where.complete((1 - delta) * y + delta * even)


def slope_norm(grad: Tensor, sizes: Tensor, where: FeasibleSet, mirror_map: str) -> Tensor:
    """Each node's dual norm of a supergradient over its free models, `(..., V)`.

    `max_m |g| / s` for the entropy (dual to the s-weighted l1 norm), the l2 norm for Euclidean; 0 where a node holds
    everything.
    """
    slope = torch.where(where.choices, grad, 0.0)
    if mirror_map == "euclidean":
        return slope.square().sum(-1).sqrt()
    return (slope.abs() / sizes).amax(-1)
