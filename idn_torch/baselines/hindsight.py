"""The best placement that stays put, found with hindsight, as a policy."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from idn_torch.baselines.static import StaticPolicy, batch_shape
from idn_torch.offline import OfflineResult, check_limits, offline
from idn_torch.problem import Problem
from idn_torch.shapes import broadcast_shapes

__all__ = ["Offline", "OfflineState"]


class OfflineState(NamedTuple):
    """State before a slot.

    Attributes:
        x: allocation in use, `(..., V, M)`, the same in every slot.
        found: how good it is, and how that is certified; batch dims of the requests and the cost tables.
    """

    x: Tensor
    found: OfflineResult


@dataclass(frozen=True, eq=False)
class Offline(StaticPolicy):
    """`idn_torch.offline` on requests known in advance, kept for all slots.

    It is optimal, up to its gap and its rounding, for the gain with `l = min(L, r)`; under contention it gains less.

    Attributes:
        requests: `(..., T, R)`: what it may look at; the problem's own when None.
        tol, max_iterations, max_seconds, roundings: as in `idn_torch.offline`.
        discipline: how requests contend, "fcfs" or "fair".
    """

    requests: Tensor | None = None
    tol: float = 1e-3
    max_iterations: int = 2000
    max_seconds: float | None = None
    roundings: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self.tol, self.max_iterations, self.max_seconds, self.roundings)

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> OfflineState:
        """Find the allocation. The seed only gives its batch dims.

        Raises:
            InputError: no requests, or a wrong count (the type is named).
        """
        found = offline(problem, self.requests, self.tol, self.max_iterations, self.max_seconds, self.roundings)
        shape = broadcast_shapes(batch_shape(problem, seed, batch), found.x.shape[:-2])
        return OfflineState(found.x.expand(*shape, *problem.shape).contiguous(), found)
