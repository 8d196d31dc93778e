"""The gain under shared capacity: its supergradients and certified bounds, from the duals of a transport program.

With `sav = gamma_rep - gamma`, what an option saves over a type's first repository, on the ranks before it:

    G*(y) = max_f  sum f * sav   s.t.  sum_k f <= r,   sum_rho f <= L * y  (each option),   f <= r * y.

Unlike eq. (16) it counts an option's capacity once, not once for each type. It is concave in y, and depends on the
requests and capacities only, never on how earlier requests were served. Source: this project's own.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.checks import check_counts, check_tensors
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.shared.workers import compiled_for
from idn_torch.sums import steady_sum

__all__ = ["Duals", "SharedGain", "shared_gain", "shared_gain_kernel"]

# Probes of each exact minimisation that closes the duals: on a backbone the fifth is within 1e-4 of the minimum.
_PASSES = 5
# Step: with prices and savings measured in `1 / w`, the primal and dual steps are balanced. Found by trial.
_STEP = 0.3


class Duals(NamedTuple):
    """Where the iteration stands: the warm start of the next call.

    Attributes:
        flow: phi = f / r, the share of each type served at each rank, `(..., R, K)`.
        nu: price of a request of each type, `(..., R)`, in latency units.
        mu: price of a unit of capacity of each option, `(..., V, M)`, in latency units.
    """

    flow: Tensor
    nu: Tensor
    mu: Tensor

    @classmethod
    def zero(cls, problem: Problem, batch: tuple[int, ...] = ()) -> "Duals":
        """The start of an iteration without a warm one, for a batch of instances."""
        types, ranks = problem.ranked.cost.shape[-2:]
        zeros = problem.sizes.new_zeros
        return cls(zeros(*batch, types, ranks), zeros(*batch, types), zeros(*batch, *problem.shape))


class SharedGain(NamedTuple):
    """A cut of the shared-capacity gain: `G*(y') <= intercept + <supergradient, y'>` for every y' in [0, 1].

    Attributes:
        supergradient: g, `(..., V, M)`, 0 on repository entries.
        intercept: `sum r * nu`, `(...)`.
        bound: `intercept + <g, y>`, `(...)`: at least G*(y); the excess is the dual gap.
        state: `Duals`, for a warm start.
    """

    supergradient: Tensor
    intercept: Tensor
    bound: Tensor
    state: Duals


@torch.no_grad()
def shared_gain(problem: Problem, r: Tensor, y: Tensor, iterations: int = 50, state: Duals | None = None) -> SharedGain:
    """A supergradient of the shared-capacity gain at y, and an upper bound on it everywhere.

    Any prices nu >= 0 of requests give a cut that holds for all y, by weak duality:

        G*(y) <= sum_rho r * nu + <g, y>,   g = min_{mu >= 0} L * mu + sum_rho r * relu(sav - nu - mu),

    so the result is a certificate after any number of iterations; more of them close the gap to G*(y).

    The prices come from a diagonally preconditioned primal-dual iteration on (phi = f / r, nu, mu),

        q = clamp(phi + w/2 * (sav - nu - mu), 0, y),   e = 2q - phi,   phi = q,
        nu = relu(nu + (sum_k e - 1) / (n * w)),   mu = relu(mu + (sum_rho r*e - L*y) / (Rbar * w)),

    with n ranks before the type's first repository, Rbar requests of all types that reach the option, and w = 0.3 /
    (mean over requests of the type's largest saving). They are closed by minimising the bound over nu with mu held,
    then over mu with nu held: convex piecewise linear problems in one variable per type, or per option, each solved
    nearly or quite exactly by intersecting tangents. Closing takes as long as eight iterations and leaves a tenth to a
    fifth of the gap.

    Args:
        problem: the network.
        r: requests, `(..., R)`, whole numbers >= 0.
        y: allocation in [0, 1], `(..., V, M)`; repository entries are not looked at: they serve without limit.
        iterations: >= 0.
        state: `.state` of an earlier call on the same problem, whose batch dims broadcast; None starts at zero.

    Returns:
        `SharedGain`. Gains are in requests times latency units.

    Raises:
        InputError: naming the argument and the type, node or model that holds a wrong value.

    Example:
        >>> cut = shared_gain(problem, r, y)
        >>> warm = shared_gain(problem, r, y, iterations=5, state=cut.state)
        >>> bool(warm.bound >= best_gain)  # whatever allocation serves r, however it serves it  # doctest: +SKIP

    Source: this project's own. The iteration: Pock and Chambolle, "Diagonal preconditioning for first order
    primal-dual algorithms in convex optimization" (ICCV 2011).
    """
    check_tensors(problem, r=r, y=y)
    check_counts(problem, r)
    if iterations < 0:
        raise InputError(f"iterations is {iterations}; it must be >= 0")
    if not (y <= 1).all():
        *_, v, m = (y > 1).nonzero()[0].tolist()
        raise InputError(
            f"y: node {problem.node_ids[v]!r}, model {problem.model_ids[m]!r} holds more than 1; y must be in [0, 1]"
        )
    if state is not None:
        _check_state(problem, state)
    return shared_gain_kernel(problem, r, y, iterations, state)


def _check_state(problem: Problem, state: Duals) -> None:
    types, ranks = problem.ranked.cost.shape[-2:]
    wanted = {"flow": (types, ranks), "nu": (types,), "mu": problem.shape}
    for name, shape in wanted.items():
        tensor = getattr(state, name)
        if tuple(tensor.shape[-len(shape) :]) != shape or tensor.dtype != problem.dtype:
            raise InputError(
                f"state.{name} is {tensor.dtype} {tuple(tensor.shape)}; expected {problem.dtype} (..., "
                f"{', '.join(map(str, shape))}): pass the .state of a call on this problem"
            )


def shared_gain_kernel(problem: Problem, r: Tensor, y: Tensor, iterations: int, state: Duals | None) -> SharedGain:
    """`shared_gain` without its checks: no value reaches the host."""
    nodes, models = problem.shape
    types, ranks = problem.ranked.cost.shape[-2:]
    lead = [] if state is None else [(state.flow, 2), (state.nu, 1), (state.mu, 2)]
    batch, (r, y, *duals) = flat_batch(problem, (r, 1), (y, 2), *lead)
    size = batch.numel()
    y = y.masked_fill(problem.repository, 0.0).flatten(1)
    if duals:
        duals[2] = duals[2].flatten(1)
        # The iteration works in place; the caller's state stays as it is.
        flow, nu, mu = (t.clone(memory_format=torch.contiguous_format) for t in duals)
    else:
        flow, nu, mu = y.new_zeros(size, types, ranks), y.new_zeros(size, types), y.new_zeros(size, nodes * models)
    capacity = problem.capacity.masked_fill(problem.repository, 0.0).flatten()
    cost, _, first = flat_tables(problem, batch)
    largest = (cost.gather(-1, first[..., None])[..., 0] - cost[..., 0]).clamp(min=0)
    some = steady_sum(r)
    mean = steady_sum(r * largest) / torch.where(some > 0, some, 1.0)
    w = _STEP / torch.where(mean > 0, mean, 1.0)
    if compiled_for(r, size * types * ranks):
        slope, intercept = _compiled(problem, batch, r, y, capacity, w, iterations, flow, nu, mu)
    else:
        table = _Table(problem, batch, r, y)
        _primal_dual(table, capacity, w, iterations, flow, nu, mu)
        slope, intercept = _close(table, capacity, nu, mu)
    value = intercept + steady_sum(slope * y, torch.float64)
    return SharedGain(
        slope.view(*batch, nodes, models),
        intercept.to(y.dtype).view(batch),
        value.to(y.dtype).view(batch),
        Duals(flow.view(*batch, types, ranks), nu.view(*batch, types), mu.view(*batch, nodes, models)),
    )


class _Table:
    """What the iteration reads, `(B or 1, R, K)`: savings, requests and y at the active ranks, 0 elsewhere."""

    def __init__(self, problem: Problem, batch: torch.Size, r: Tensor, y: Tensor) -> None:
        cost, option, first = flat_tables(problem, batch)
        self.size, self.types, self.ranks = batch.numel(), *cost.shape[-2:]
        # Ranks from the first repository on serve nothing: what they hold must not matter, padding included.
        active = torch.arange(self.ranks, device=r.device) < first[..., None]
        self.saving = torch.where(active, cost.gather(-1, first[..., None]) - cost, 0.0)
        self.option = torch.where(active, option, 0).flatten(1).long()
        self.requests = torch.where(active, r[..., None], 0.0)
        self.r = r
        self.y = y
        self.y_at = torch.where(active, self.at_options(y), 0.0)
        self.count = active.sum(-1).clamp(min=1)

    def at_options(self, values: Tensor) -> Tensor:
        """`(B, V*M)` values at every rank, `(B, R, K)`."""
        shape = (self.size, self.types, self.ranks)
        if self.option.shape[0] == 1:
            return values.index_select(-1, self.option[0]).expand(self.size, -1).view(shape)
        return values.gather(-1, self.option.expand(self.size, -1)).view(shape)

    def sum_at_options(self, values: Tensor) -> Tensor:
        """Sum over the types of `(B, R, K)` values, `(B, V*M)`."""
        out = values.new_zeros(self.size, self.y.shape[-1])
        values = values.expand(self.size, -1, -1).flatten(1)
        if self.option.shape[0] == 1:
            return out.index_add_(-1, self.option[0], values)
        return out.scatter_add_(-1, self.option.expand(self.size, -1), values)

    def largest_at_options(self, values: Tensor) -> Tensor:
        """Largest over the types of `(B, R, K)` values >= 0, `(B, V*M)`."""
        out = values.new_zeros(self.size, self.y.shape[-1])
        values = values.expand(self.size, -1, -1).flatten(1)
        return out.scatter_reduce_(-1, self.option.expand(self.size, -1), values, "amax")


def _primal_dual(
    table: _Table, capacity: Tensor, w: Tensor, iterations: int, flow: Tensor, nu: Tensor, mu: Tensor
) -> None:
    """The iteration, in place on flow `(B, R, K)`, nu `(B, R)` and mu `(B, V*M)`."""
    reach = table.sum_at_options(table.requests)  # Rbar
    step = torch.where(reach > 0, reach * w[:, None], torch.inf)
    room = capacity * table.y
    half = 0.5 * w[:, None, None]
    for _ in range(iterations):
        ahead = flow.neg()
        flow += half * (table.saving - nu[..., None] - table.at_options(mu))
        flow.clamp_(min=0)
        torch.minimum(flow, table.y_at, out=flow)
        ahead.add_(flow, alpha=2)
        nu.add_((ahead.sum(-1) - 1) / (table.count * w[:, None])).clamp_(min=0)
        mu.add_((table.sum_at_options(ahead.mul_(table.requests)) - room) / step).clamp_(min=0)


def _close(table: _Table, capacity: Tensor, nu: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """Minimise the bound over nu given mu, then over mu given nu: slope `(B, V*M)` and intercept `(B,)` float64."""
    closed, _ = _least(
        torch.ones_like(nu),
        table.y_at,
        table.saving - table.at_options(mu),
        nu,
        lambda values: values.sum(-1),
        lambda values: values.amax(-1),
        lambda price: price[..., None],
    )
    _, slope = _least(
        capacity.expand_as(mu),
        table.requests,
        table.saving - closed[..., None],
        mu,
        table.sum_at_options,
        table.largest_at_options,
        table.at_options,
    )
    return slope, steady_sum(table.r * closed, torch.float64)


def _least(
    full: Tensor,
    amount: Tensor,
    value: Tensor,
    guess: Tensor,
    total: Callable[[Tensor], Tensor],
    largest: Callable[[Tensor], Tensor],
    spread: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Minimise `h(t) = full * t + sum amount * relu(value - t)` over t >= 0, one t for each group of table entries.

    h is convex and piecewise linear. Its minimum lies between a point of negative slope and one of slope >= 0; the
    tangents there meet at the next point to look at. Whichever end that point replaces gets lower, so the answer is
    never above h(guess).

    Returns:
        t and h(t), by group.
    """
    wanted = torch.where(amount > 0, value, 0.0).relu_()
    low = torch.zeros_like(full)
    low_height = total(amount * wanted)
    low_slope = full - total(torch.where(wanted > 0, amount, 0.0))
    high = largest(wanted)
    high_height, high_slope = full * high, full
    settled, settled_height = low_slope >= 0, low_height
    price = guess
    for _ in range(_PASSES):
        price = torch.minimum(torch.maximum(price, low), high)
        above = wanted - spread(price)
        height = full * price + total(amount * above.relu())
        slope = full - total(torch.where(above > 0, amount, 0.0))
        rises = slope >= 0
        low, high = torch.where(rises, low, price), torch.where(rises, price, high)
        low_height, high_height = torch.where(rises, low_height, height), torch.where(rises, height, high_height)
        low_slope, high_slope = torch.where(rises, low_slope, slope), torch.where(rises, slope, high_slope)
        bend = low_slope - high_slope
        cross = high_height - low_height + low_slope * low - high_slope * high
        price = torch.where(bend < 0, cross / torch.where(bend < 0, bend, -1.0), high)
    lower = low_height < high_height
    price = torch.where(settled, 0.0, torch.where(lower, low, high))
    return price, torch.where(settled, settled_height, torch.where(lower, low_height, high_height))


def _compiled(
    problem: Problem,
    batch: torch.Size,
    r: Tensor,
    y: Tensor,
    capacity: Tensor,
    w: Tensor,
    iterations: int,
    flow: Tensor,
    nu: Tensor,
    mu: Tensor,
) -> tuple[Tensor, Tensor]:
    from idn_torch.shared import compiled

    closed, slope = torch.zeros_like(nu), torch.zeros_like(mu)
    scratch = mu.new_empty(*mu.shape, compiled.SCRATCH)
    compiled.primal_dual(
        *kernels.owners(problem, batch.numel()),
        *map(kernels.rows, (*flat_tables(problem, batch), r, y)),
        capacity.numpy(),
        w.numpy(),
        iterations,
        _PASSES,
        *(t.numpy() for t in (flow, nu, mu, closed, scratch, slope)),
    )
    return slope, steady_sum(r * closed, torch.float64)
