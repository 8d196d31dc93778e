"""Run a policy over slots: the same loop and the same figures for every policy."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from idn_torch.bounds import Cuts
from idn_torch.checks import check_counts, check_tensors
from idn_torch.errors import InputError
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.infida import Slot
from idn_torch.problem import Problem
from idn_torch.serving import Served
from idn_torch.shapes import broadcast_shapes

__all__ = ["Policy", "Result", "RunState", "advance", "begin", "run"]


class Policy(Protocol):
    """What the loop needs of a policy. Its state is a NamedTuple with an allocation `x`."""

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> Any:
        """State before the first slot."""

    def step(
        self, problem: Problem, state: Any, r: Tensor, order: Tensor | None = None, rounds: int | None = None
    ) -> tuple[Any, Slot]:
        """State before the next slot, and what this one showed."""


class RunState(NamedTuple):
    """Everything a run carries from slot to slot.

    Attributes:
        policy: the policy's own state.
        previous: allocation of the slot before, `(..., V, M)`.
        cuts: cuts of the gain under the observed capacities l_t; none for policies without a fractional state.
        common: cuts of the gain under `l = min(L, r)`, which no policy influences; likewise.
    """

    policy: Any
    previous: Tensor
    cuts: Cuts
    common: Cuts


class Result(NamedTuple):
    """A finished run.

    Attributes:
        state: state after the last slot.
        requests, gain, gain_fractional, cost, model_updates: of every slot, `(..., T)`. gain_fractional is NaN-free
            and zero for policies without a fractional state.
    """

    state: RunState
    requests: Tensor
    gain: Tensor
    gain_fractional: Tensor
    cost: Tensor
    model_updates: Tensor

    def ntag(self) -> Tensor:
        """Normalised time-averaged gain: mean over slots with requests of gain per request, `(...)`."""
        some = self.requests > 0
        per_request = torch.where(some, self.gain / torch.where(some, self.requests, 1.0), 0.0)
        return per_request.sum(-1) / some.sum(-1).clamp(min=1)

    def mean_updates(self) -> Tensor:
        """Mean size newly loaded a slot, from the second slot on, `(...)`."""
        return self.model_updates[..., 1:].sum(-1) / max(1, self.model_updates.shape[-1] - 1)


def begin(problem: Problem, policy: Policy, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> RunState:
    """State of a run before its first slot."""
    state = policy.init(problem, seed, batch)
    shape = tuple(state.x.shape[:-2])
    return RunState(state, state.x, Cuts.none(problem, shape), Cuts.none(problem, shape))


def advance(
    problem: Problem,
    policy: Policy,
    state: RunState,
    r: Tensor,
    order: Tensor | None = None,
    common_bound: bool = True,
) -> tuple[RunState, dict[str, Tensor], Served]:
    """One slot: the state after it, its figures, each `(...)`, and who was served. Checks nothing, waits for nothing.

    Args:
        common_bound: also cut the gain under `l = min(L, r)`: one more pass over the tables.
    """
    x = state.policy.x
    policy_state, slot = policy.step(problem, state.policy, r, order)
    served = slot.served
    updates = (problem.sizes * (x - state.previous).relu()).sum((-2, -1))
    cuts, common = state.cuts, state.common
    fractional = torch.zeros_like(served.gain)
    if slot.slope is not None and slot.gain_fractional is not None and slot.y is not None:
        fractional = slot.gain_fractional
        cuts = cuts.add(fractional, slot.slope, slot.y)
        if common_bound:
            lam = potential_capacity_kernel(problem, r)
            common = common.add(*gain_and_subgradient_kernel(problem, r, lam, slot.y), slot.y)
    row = {
        "requests": r.sum(-1).expand(served.gain.shape),
        "gain": served.gain,
        "gain_fractional": fractional,
        "cost": served.cost,
        "model_updates": updates,
    }
    return RunState(policy_state, x, cuts, common), row, served


@torch.no_grad()
def run(
    problem: Problem,
    policy: Policy,
    requests: Tensor | None = None,
    seed: Tensor | int = 0,
    batch: tuple[int, ...] = (),
    order: Callable[[int], Tensor] | None = None,
    common_bound: bool = True,
) -> Result:
    """Run a policy over a sequence of requests.

    Any leading batch of instances runs in one program: seeds `(...)`, step sizes `Infida(c=tensor)`, cost tables or
    alphas (`problem.with_cost`, `problem.with_alpha`), request sequences.

    Args:
        problem: the network.
        policy: such as `Infida()`.
        requests: `(..., T, R)`; the problem's own when None.
        seed: `(...)` int64 or a number.
        batch: batch dims beyond those of everything else.
        order: the order of arrival `(..., R)` of a slot, given its number; index order when None.
        common_bound: also collect the cuts for the bound that policies are compared against.

    Returns:
        `Result` with figures `(..., T)`.

    Raises:
        InputError: no requests, or a count that is negative, fractional or too large (the type is named).

    Example:
        >>> result = run(problem, Infida())
        >>> result.gain.mean(-1) / result.state.cuts.bound(problem)  # 1 would be optimal  # doctest: +SKIP
    """
    requests = problem.requests if requests is None else requests
    if requests is None or requests.shape[-2] == 0:
        raise InputError("there are no requests to run: give requests (..., T, R) with at least one slot")
    check_tensors(problem, r=requests[..., 0, :])
    check_counts(problem, requests)
    batch = tuple(broadcast_shapes(batch, requests.shape[:-2]))
    state = begin(problem, policy, seed, batch)
    rows: list[dict[str, Tensor]] = []
    for t in range(requests.shape[-2]):
        state, row, _ = advance(
            problem, policy, state, requests[..., t, :], None if order is None else order(t), common_bound
        )
        rows.append(row)
    return Result(state, **{key: torch.stack([row[key] for row in rows], -1) for key in rows[0]})
