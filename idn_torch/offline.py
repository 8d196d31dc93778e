"""INFIDA_OFFLINE: the best static allocation for known requests, with a certified distance to the optimum.

Source: inference delivery networks paper, eq. (14) and Sec. V; the damped prices and adaptive steps are this project's.
"""

import time
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.averaged import Rows, fill_rows, mean_gain, merge_rows
from idn_torch.errors import InputError
from idn_torch.infida import drop_overshoot
from idn_torch.mirror import first_allocation, lift, mirror_step_kernel, slope_norm
from idn_torch.philox import uniforms
from idn_torch.prices import Response, price_bound, respond
from idn_torch.problem import Problem
from idn_torch.rounding import depround_kernel

__all__ = ["OfflineResult", "OfflineStatus", "check_limits", "offline"]

# Length of the price steps relative to the allocation's: from 0.02 to 0.2 all do, on backbones, trees, random networks.
_BALANCE = 0.05
_FIRST_STEP, _LEAST_STEP, _LARGEST_STEP = 0.3, 1e-3, 1e3
# The certificate sorts every node's models, which costs about as much as an iteration.
_ITERATIONS_PER_LOOK = 5
# Roundings whose budgets are filled.
_FILLED = 16
# Elements of rounded allocations held at a time.
_CHUNK = 1 << 21


class OfflineStatus(IntEnum):
    """Why an instance stopped."""

    #: The gap is at most `tol`.
    GAP_MET = 0
    #: `max_iterations` came first: raise it, or `tol`; float32 cannot certify much below 1e-5.
    ITERATION_LIMIT = 1
    #: `max_seconds` came first.
    TIME_LIMIT = 2


class OfflineResult(NamedTuple):
    """The best found within the limits. Gains are means over the slots, in requests times latency units.

    Attributes:
        x: the best integral allocation, within every budget, `(..., V, M)`.
        y: the best fractional one, `(..., V, M)`.
        gain: mean gain of x, `(...)` float64.
        gain_fractional: mean gain of y, likewise.
        upper_bound: no static allocation, fractional or not, gains more; likewise.
        gap: `(upper_bound - gain_fractional) / upper_bound`, `(...)`; 0 where nothing can be gained.
        slope: worth of a unit of each model under the prices that gave the bound, `(..., V, M)`: for `shadow_prices`.
        iterations: until the gap was met or a limit reached, `(...)` int64.
        status: `OfflineStatus`, `(...)` int64.
    """

    x: Tensor
    y: Tensor
    gain: Tensor
    gain_fractional: Tensor
    upper_bound: Tensor
    gap: Tensor
    slope: Tensor
    iterations: Tensor
    status: Tensor


@torch.no_grad()
def offline(
    problem: Problem,
    requests: Tensor | None = None,
    tol: float = 1e-3,
    max_iterations: int = 2000,
    max_seconds: float | None = None,
    roundings: int = 64,
    seed: int = 0,
) -> OfflineResult:
    """The allocation that, kept for all slots, gains the most: `max_x mean_t G(r_t, min(L, r_t), x)`, eq. (14).

    Mirror ascent on the fractional allocation in the entropy of the online algorithm, with prices of requests
    (`idn_torch.prices`) that follow by proximal steps instead of jumping to the worst rank needed:

        nu' = argmin_nu  L(y, nu) + |nu - nu_k|^2 / (2 step w),    w = 0.05
        y'  = mirror step along 2 g(nu') - g(nu_k), of length step / (w max_m g_1/s) at each node

    The step adapts to how strongly the two moves oppose each other. The value of the newest y and the bound of the
    newest prices certify the gap; averages of earlier ones, tried on many networks, never did so sooner. Then y is
    rounded many times, always within budget, what is left is filled by exact mean marginal gain, and the best is kept.

    Args:
        problem: the network.
        requests: `(..., T, R)`; the problem's own when None. Slots with the same requests are merged.
        tol: stop at this gap, > 0. At the order of 1e-5 float32 runs out of digits.
        max_iterations: >= 0.
        max_seconds: None for no limit; looked at every few iterations. Rounding comes on top.
        roundings: >= 1. Each has the law of DepRound; together they are spread evenly.
        seed: of the roundings.

    Returns:
        `OfflineResult`; the best so far, with the status that says so, where a limit came first.

    Raises:
        InputError: an argument out of its range, no requests, or a wrong count (the type is named).

    Example:
        >>> best = offline(problem)  # doctest: +SKIP
        >>> float(best.gain / best.upper_bound)  # 1 would be optimal  # doctest: +SKIP
        0.987
    """
    check_limits(tol, max_iterations, max_seconds, roundings)
    rows = merge_rows(problem, requests)
    best, status = _ascend(problem, rows, tol, max_iterations, max_seconds)
    x, gain = _best_rounding(problem, rows, best.y, roundings, seed)
    return OfflineResult(x, best.y, gain, best.gain, best.bound, _gap(best), best.slope, best.iterations, status)


def check_limits(tol: float, max_iterations: int, max_seconds: float | None, roundings: int) -> None:
    """Raise `InputError` for an argument of `offline` that is out of its range."""
    if not 0 < tol < float("inf"):
        raise InputError(f"tol is {tol}; the gap to stop at must be > 0 and finite")
    if max_iterations < 0:
        raise InputError(f"max_iterations is {max_iterations}; it must be at least 0")
    if max_seconds is not None and not max_seconds > 0:
        raise InputError(f"max_seconds is {max_seconds}; give seconds > 0, or None for no limit")
    if roundings < 1:
        raise InputError(f"roundings is {roundings}; it must be at least 1")


class _Best(NamedTuple):
    y: Tensor
    gain: Tensor
    bound: Tensor
    slope: Tensor
    iterations: Tensor


def _gap(best: _Best) -> Tensor:
    gap = (best.bound - best.gain) / best.bound.where(best.bound > 0, 1.0)
    return gap.where(best.bound > 0, 0.0).clamp(min=0)  # rounding may leave a bound a hair below its gain


def _ascend(
    problem: Problem, rows: Rows, tol: float, max_iterations: int, max_seconds: float | None
) -> tuple[_Best, Tensor]:
    start = time.perf_counter()
    sizes, where = problem.sizes, problem.feasible
    y = first_allocation(sizes, where, "negentropy")
    now = respond(problem, rows, y)
    y = y.expand(*now.value.shape, *problem.shape)
    metric = _metric(problem, rows, now)
    best = _Best(y, now.value, price_bound(problem, rows, now.prices, now.slope), now.slope, now.value.long() * 0)
    step = now.value.new_full(now.value.shape, _FIRST_STEP, dtype=problem.dtype)
    done = _gap(best) <= tol
    late = False
    iteration = 0
    while iteration < max_iterations and not (done.all() or late):
        iteration += 1
        then, now = now, respond(problem, rows, y, now.prices, step * _BALANCE)
        best = _keep(best, ~done & (now.value > best.gain), y=y, gain=now.value)
        if iteration % _ITERATIONS_PER_LOOK == 0 or iteration == max_iterations:
            bound = price_bound(problem, rows, now.prices, now.slope)
            best = _keep(best, ~done & (bound < best.bound), bound=bound, slope=now.slope)
            best = _keep(best, ~done, iterations=torch.full_like(best.iterations, iteration))
            done = done | (_gap(best) <= tol)
            late = max_seconds is not None and time.perf_counter() - start >= max_seconds
        ahead = 2 * now.slope - then.slope
        length = (step / _BALANCE)[..., None, None] / metric.node[..., None]
        moved = mirror_step_kernel(y, ahead, length, sizes, where, "negentropy")
        # An entry that underflows to 0 could never come back.
        moved = lift(moved, sizes, where, 1e-2 * min(tol, 1e-2))
        step = _next_step(step, iteration, metric, problem, y, moved, then, now)
        y = moved
    limit = OfflineStatus.TIME_LIMIT if late else OfflineStatus.ITERATION_LIMIT
    return best, torch.where(done, int(OfflineStatus.GAP_MET), int(limit))


def _keep(best: _Best, better: Tensor, **new: Tensor) -> _Best:
    kept = {}
    for name, value in new.items():
        old = getattr(best, name)
        kept[name] = torch.where(better.reshape((*better.shape, *[1] * (old.ndim - better.ndim))), value, old)
    return best._replace(**kept)


class _Metric(NamedTuple):
    """What turns moves into gain: at each node `max g/s` at the start `(..., V)`, of each price `(..., S, R)`."""

    node: Tensor
    price: Tensor


def _metric(problem: Problem, rows: Rows, now: Response) -> _Metric:
    ranked = problem.ranked
    node = slope_norm(now.slope, problem.sizes, problem.feasible, "negentropy")
    # Nodes that were worth nothing at the first prices: they move as fast as the fastest others.
    least = torch.where(node > 0, node, torch.inf).amin(-1, keepdim=True)
    least = torch.where(least < torch.inf, least, 1.0)
    top = ranked.cost.gather(-1, ranked.first_repository[..., None])[..., 0] - ranked.cost[..., 0]
    top = torch.where(top > 0, top, torch.inf)
    price = rows.requests / top[..., None, :] * rows.share[:, None].to(top.dtype)
    return _Metric(torch.where(node > 0, node, least), price)


def _next_step(
    step: Tensor,
    iteration: int,
    metric: _Metric,
    problem: Problem,
    y: Tensor,
    moved: Tensor,
    then: Response,
    now: Response,
) -> Tensor:
    """Longer as long as the moves' own lengths outweigh how they meet: adaptive primal-dual hybrid gradient."""
    change = moved - y
    logs = moved.clamp(min=torch.finfo(y.dtype).tiny).log() - y.clamp(min=torch.finfo(y.dtype).tiny).log()
    of_nodes = (problem.sizes * change * logs).sum(-1, dtype=torch.float64)
    of_prices = (metric.price * (now.prices - then.prices).square()).sum((-2, -1), dtype=torch.float64)
    length = (_BALANCE * (metric.node * of_nodes).sum(-1) + of_prices / _BALANCE) / 2
    meeting = ((now.slope - then.slope) * change).sum((-2, -1), dtype=torch.float64).abs()
    limit = torch.where(meeting > 0, length / meeting, torch.inf)
    shorter, longer = 1 - (iteration + 1) ** -0.3, 1 + (iteration + 1) ** -0.6
    following = torch.minimum(shorter * limit, longer * step.double())
    return following.clamp(_LEAST_STEP, _LARGEST_STEP).to(step.dtype)


def _best_rounding(problem: Problem, rows: Rows, y: Tensor, roundings: int, seed: int) -> tuple[Tensor, Tensor]:
    """The best of many roundings of y, `(..., V, M)`, and its mean gain, `(...)`.

    All are valued as drawn; to fill their budgets takes longest, and only the best get that far.
    """
    key = torch.tensor(seed, dtype=torch.int64, device=y.device)
    numbers = uniforms(key, *problem.shape, dtype=y.dtype)
    at_once = max(1, _CHUNK // max(1, y.numel()))
    turns = torch.arange(roundings, device=y.device).view(-1, *[1] * (y.ndim - 2)).expand(-1, *y.shape[:-2])
    parts = turns.split(at_once)
    gains = torch.cat([mean_gain(problem, rows, _draw(problem, y, numbers, part, roundings)) for part in parts])
    turns = gains.topk(min(_FILLED, roundings), dim=0).indices
    best, gain = torch.zeros_like(y), y.new_full(y.shape[:-2], -torch.inf, dtype=torch.float64)
    for part in turns.split(at_once):
        x = fill_rows(problem, rows, _draw(problem, y, numbers, part, roundings))
        value, index = mean_gain(problem, rows, x).max(0)
        picked = x.gather(0, index[None, ..., None, None].expand(1, *x.shape[1:]))[0]
        best = torch.where((value > gain)[..., None, None], picked, best)
        gain = torch.maximum(value, gain)
    return best, gain


def _draw(problem: Problem, y: Tensor, numbers: Tensor, turns: Tensor, roundings: int) -> Tensor:
    """Roundings number `turns` (n, ...) within budget, `(n, ..., V, M)`.

    Uniforms shifted around the unit circle are uniform: one drawing serves all roundings, evenly spread.
    """
    turned = numbers + (turns.to(y.dtype) / roundings)[..., None, None]
    turned = torch.where(turned < 1, turned, turned - 1).clamp_(min=0)
    x, residual = depround_kernel(y, problem.sizes, turned)
    return drop_overshoot(problem, x, residual)
