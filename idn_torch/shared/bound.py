"""The certified bound that every policy is compared with, whatever it did: from requests and capacities alone."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.batching import with_row_axis
from idn_torch.bounds import Cuts
from idn_torch.checks import check_counts, check_tensors
from idn_torch.errors import InputError
from idn_torch.mirror import first_allocation
from idn_torch.problem import Problem
from idn_torch.shared.gain import Duals, shared_gain_kernel
from idn_torch.shared.policy import ascend

__all__ = ["SharedBound", "shared_upper_bound"]


class SharedBound(NamedTuple):
    """Cuts of the shared-capacity gain along a mirror ascent of its own: `none`, `add` every slot, `bound`.

    No request sequence lets a static allocation gain more in the mean, in whatever order and by whatever discipline
    requests are served. An adaptive policy may exceed it.

    Attributes:
        y: where the next cut is taken, `(..., V, M)`.
        slope_squares: of the step size, `(..., V)`.
        duals: warm start.
        started: whether they are one.
        cuts: of the slots so far.
    """

    y: Tensor
    slope_squares: Tensor
    duals: Duals
    started: bool
    cuts: Cuts

    @classmethod
    def none(cls, problem: Problem, batch: tuple[int, ...] = ()) -> "SharedBound":
        """Before the first slot, for a batch of instances."""
        y = first_allocation(problem.sizes, problem.feasible, "negentropy").expand(*batch, *problem.shape)
        squares = y.new_zeros(*batch, problem.shape[0])
        return cls(y, squares, Duals.zero(problem, batch), False, Cuts.none(problem, batch))

    def again(self, problem: Problem) -> "SharedBound":
        """Without its cuts, from where it stands: a second time through the slots bounds more tightly."""
        return self._replace(cuts=Cuts.none(problem, tuple(self.cuts.offset.shape)))

    def add(self, problem: Problem, r: Tensor, iterations: int = 5, rounds: int | None = None) -> "SharedBound":
        """With one more slot's requests, `(..., R)`. Checks nothing, waits for nothing."""
        cut = shared_gain_kernel(problem, r, self.y, iterations if self.started else 50, self.duals)
        cuts = self.cuts.add(cut.bound, cut.supergradient, self.y)
        y, squares = ascend(problem, self.y, cut.supergradient, self.slope_squares, rounds=rounds)
        return SharedBound(y, squares, cut.state, True, cuts)

    def bound(self, problem: Problem) -> Tensor:
        """On the mean gain of every static allocation over the slots so far, `(...)` float64."""
        return self.cuts.bound(problem)


@torch.no_grad()
def shared_upper_bound(problem: Problem, requests: Tensor, passes: int = 2, iterations: int = 5) -> Tensor:
    """A bound on the best static allocation's mean realised gain over T slots.

    Args:
        problem: the network.
        requests: `(..., T, R)`.
        passes: over the slots, >= 1; later ones start nearer the optimum, and the tightest counts.
        iterations: of the duals a slot, >= 0.

    Returns:
        `(...)`, requests times latency units a slot.

    Raises:
        InputError: passes < 1, no slots, or requests that are not counts.

    Example:
        >>> run(problem, policy).gain.mean(-1) / shared_upper_bound(problem, problem.requests)  # doctest: +SKIP
    """
    if passes < 1 or iterations < 0:
        raise InputError(f"passes is {passes} and iterations {iterations}; they must be at least 1 and 0")
    if requests.shape[-2] == 0:
        raise InputError("there are no requests to bound the gain of: give requests (..., T, R) with at least one slot")
    check_tensors(with_row_axis(problem), r=requests)
    check_counts(problem, requests)
    tracker = SharedBound.none(problem, tuple(requests.shape[:-2]))
    best = torch.full(requests.shape[:-2], torch.inf, dtype=torch.float64, device=requests.device)
    for _ in range(passes):
        tracker = tracker.again(problem)
        for r in requests.unbind(-2):
            tracker = tracker.add(problem, r, iterations)
        best = torch.minimum(best, tracker.bound(problem))
    return best.to(requests.dtype)
