"""The one equation behind every cycle and every fixed point: the time by which admissions catch up with arrivals."""

import torch
from torch import Tensor

__all__ = ["catch_up_time", "two_branch_root"]


def two_branch_root(a1: Tensor, a2: Tensor, a3: Tensor) -> Tensor:
    """The larger root of `a1 T^2 + a2 T + a3 = 0` for a1 >= 0, without cancellation on either branch.

    a1 = 0 is allowed where a2 > 0. A negative discriminant can only come from rounding and counts as zero.
    """
    disc = (a2 * a2 - 4 * a1 * a3).clamp(min=0).sqrt()
    return torch.where(a2 > 0, -2 * a3 / (a2 + disc), (disc - a2) / (2 * a1))


def catch_up_time(
    base: Tensor,
    slope: Tensor,
    cap: Tensor,
    lost: Tensor,
    reached: Tensor,
    rate: Tensor,
    head: Tensor | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """The T at which the units have admitted `head + rate T`, when each saturates at its own time.

    A unit has admitted `base T + slope T^2` by T if it is not saturated, `cap T - lost` if it is (T > reached). With S
    the saturated units, T is the larger root of `A1 T^2 + A2 T + A3 = 0`,
    `A1 = sum_{not S} slope, A2 = sum_{not S} base + sum_S cap - rate, A3 = -sum_S lost - head`.

    S comes from one sort by `reached` and prefix sums: the batch queue is still positive at a unit's saturation time
    exactly if the unit saturates within the cycle. That costs the same for every input; growing S from the unsaturated
    root can take as many rounds as there are units, and an inner loop cannot ask the device whether it is done.

    Args:
        base, slope, cap, lost, reached: `(B, n)`; cap, lost and reached may be inf where a unit never saturates.
        rate: `(B,)`.
        head: arrivals of earlier segments less `rate * start`, `(B,)`; None is 0.
        start: time before which the root cannot lie, `(B,)`; None is 0.

    Returns:
        T `(B,)`. Meaningless where `sum cap <= rate`: the caller has to freeze those systems.

    Source: Eq. (15) of the AIMD paper with saturating units and a rate that varies in time.
    """
    head = torch.zeros_like(rate) if head is None else head
    start = torch.zeros_like(rate) if start is None else start
    finite = reached.isfinite()
    cap, lost = torch.where(finite, cap, 0.0), torch.where(finite, lost, 0.0)

    def root(saturated: Tensor) -> Tensor:
        # Products with exact zeros and ones: torch.where is several times slower on CPUs.
        chosen = saturated.to(rate.dtype)
        a1 = (slope * (1 - chosen)).sum(-1)
        a2 = torch.lerp(base, cap, chosen).sum(-1) - rate
        a3 = -(lost * chosen).sum(-1) - head
        return two_branch_root(a1, a2, a3)

    tau, order = reached.sort(-1)

    def before(value: Tensor) -> Tensor:
        ranked = value.gather(-1, order)
        return ranked.cumsum(-1) - ranked

    level = base.sum(-1, keepdim=True) - before(base) + before(cap)
    bend = slope.sum(-1, keepdim=True) - before(slope)
    queue = head[:, None] + before(lost) + tau * (rate[:, None] - level - bend * tau)
    # tau = inf gives NaN here, and NaN > 0 is False, which is the right answer.
    saturates = tau.isfinite() & ((queue > 0) | (tau <= start[:, None]))
    last = torch.where(saturates, tau, -1.0).amax(-1, keepdim=True)
    period = root(reached <= last)
    # Prefix sums round differently from the sums in `root`: let T itself decide the units next to the border.
    for _ in range(2):
        period = root(reached < period[:, None])
    return torch.maximum(period, start)
