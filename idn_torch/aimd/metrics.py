"""Numbers to report about a run."""

import torch
from torch import Tensor

from idn_torch.aimd.result import Simulation
from idn_torch.errors import InputError

__all__ = ["jain_index", "settling_event"]


@torch.no_grad()
def jain_index(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Jain's fairness index `(sum x)^2 / (n sum x^2)`, `(...)`: 1 if all are equal, 1/n if one has everything.

    Args:
        x: >= 0, `(..., n)`; mean admission rates, or rates over wanted shares for weighted fairness.
        mask: True for units that exist, `(..., n)`.

    Returns:
        In [1/n, 1]; 1 where all x are 0 or no unit exists.

    Example:
        >>> jain_index(torch.tensor([1.0, 1.0, 0.0, 0.0]))
        tensor(0.5000)

    Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984.
    """
    if mask is not None:
        x = torch.where(mask, x, 0.0)
    count = torch.full_like(x[..., 0], x.shape[-1]) if mask is None else mask.expand(x.shape).sum(-1).to(x.dtype)
    # Scaled first: squares of small rates underflow.
    top = x.amax(-1, keepdim=True)
    x = x / torch.where(top > 0, top, 1.0)
    squares = count * (x * x).sum(-1)
    return torch.where(squares > 0, x.sum(-1) ** 2 / torch.where(squares > 0, squares, 1.0), 1.0)


@torch.no_grad()
def settling_event(simulation: Simulation, period: Tensor, rtol: float = 1e-3) -> Tensor:
    """First recorded event from which on the cycle length stays within `rtol` of a target, int64 `(...)`.

    Args:
        simulation: with recorded events.
        period: target T*, `(...)`, seconds; from `fixed_point`.
        rtol: > 0.

    Returns:
        Event index; -1 where the last recorded event is still (or again) off.
    """
    if not rtol > 0:
        raise InputError(f"rtol is {rtol}; must be > 0")
    close = (simulation.period - period[..., None]).abs() <= rtol * period[..., None]
    trailing = close.flip(-1).to(torch.int64).cumprod(-1).sum(-1)
    kept = simulation.events
    if len(kept) == 0:
        return torch.full_like(trailing, -1)
    first = (len(kept) - trailing).clamp(max=len(kept) - 1)
    return torch.where(trailing > 0, kept[first], -1)
