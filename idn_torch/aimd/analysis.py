"""What the closed loop does in the long run: eigenvalues, equilibrium, shares, feasibility."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.checks import CAPACITY, FRACTION, NONNEGATIVE, POSITIVE, broadcast, check_tensor, check_values
from idn_torch.aimd.period import catch_up_time
from idn_torch.aimd.status import Status
from idn_torch.aimd.system import System, make_system
from idn_torch.errors import InputError

__all__ = [
    "FixedPoint",
    "alpha_for_shares",
    "capacity_margin",
    "convergence_rate",
    "eigenvalues",
    "fixed_point",
    "is_schur",
    "spectral_radius",
    "transition_matrix",
]


class FixedPoint(NamedTuple):
    """The equilibrium of the admission controller."""

    #: T*, seconds `(...)`; 0 where there is none.
    period: Tensor
    #: u*, rates at an event before the decrease, requests / s `(..., n)`; 0 where there is none.
    admission: Tensor
    #: Mean rate over a cycle, requests / s `(..., n)`; sums to lambda.
    average_rate: Tensor
    #: Units at u_max by the end of a cycle, bool `(..., n)`.
    saturated: Tensor
    #: OK, IDLE (lambda = 0) or INFEASIBLE (sum u_max <= lambda), int64 `(...)`; see `Status`.
    status: Tensor


@torch.no_grad()
def transition_matrix(alpha: Tensor, beta: Tensor, mask: Tensor | None = None) -> Tensor:
    """`Phi = B - 2 alpha_bar beta'`, which moves the admission rates from event to event while d = 1.

    `U(k+1) = Phi U(k) + 2 alpha_bar lambda` with alpha_bar = alpha / sum alpha.

    Args:
        alpha: > 0, `(..., n)`.
        beta: in [0, 1), `(..., n)`.
        mask: True for units that exist, `(..., n)`; without it units with alpha = beta = 0 are padding.

    Returns:
        `(..., n, n)`; rows and columns of padding are 0.

    Raises:
        InputError: naming the argument, system and unit.

    Example:
        >>> transition_matrix(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.5]))
        tensor([[ 0.2500, -0.2500],
                [-0.7500, -0.2500]])

    Source: Eqs. (19)-(23).
    """
    system = make_system(alpha, beta, None, mask, zeros_are_padding=True)
    return torch.diag_embed(system.beta) - 2 * _normalised(system)[..., :, None] * system.beta[..., None, :]


@torch.no_grad()
def eigenvalues(alpha: Tensor, beta: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eigenvalues of Phi in increasing order, all real and inside the unit circle, `(..., n)`.

    Phi has the spectrum of the symmetric `B - 2 v v'`, v = sqrt(alpha_bar beta): scale by sqrt(alpha_bar / beta); a
    unit with beta = 0 only adds an eigenvalue 0 to either. Computed in float64. Padding adds zeros.

    Source: Theorems 1 and 2. Arguments as for `transition_matrix`.
    """
    system = make_system(alpha, beta, None, mask, zeros_are_padding=True)
    v = (_normalised(system) * system.beta).double().sqrt()
    symmetric = torch.diag_embed(system.beta.double()) - 2 * v[..., :, None] * v[..., None, :]
    return torch.linalg.eigvalsh(symmetric).to(alpha.dtype)


def spectral_radius(alpha: Tensor, beta: Tensor, mask: Tensor | None = None) -> Tensor:
    """Largest absolute eigenvalue of Phi: the factor by which the distance to u* shrinks per event, `(...)`."""
    return eigenvalues(alpha, beta, mask).abs().amax(-1)


def convergence_rate(alpha: Tensor, beta: Tensor, mask: Tensor | None = None) -> Tensor:
    """`-log(spectral radius)` per event, `(...)`; inf if Phi is nilpotent. `log(1/eps) / rate` events reach eps."""
    return -spectral_radius(alpha, beta, mask).log()


def is_schur(alpha: Tensor, beta: Tensor, mask: Tensor | None = None) -> Tensor:
    """True where every eigenvalue of Phi lies inside the unit circle: always, by Theorem 2, up to rounding. `(...)`."""
    return spectral_radius(alpha, beta, mask) < 1


@torch.no_grad()
def fixed_point(
    alpha: Tensor,
    beta: Tensor,
    arrival_rate: float | Tensor,
    u_max: Tensor | None = None,
    mask: Tensor | None = None,
) -> FixedPoint:
    """Equilibrium period and admission rates, with saturating units if u_max is given.

    Unsaturated `T* = lambda / sum_j alpha_j/2 (1 + beta_j)/(1 - beta_j)` and `u* = alpha T* / (1 - beta)`. (The printed
    Eq. (33) inverts each term of the sum instead of the sum.) A unit saturates if T* > (1 - beta) u_max / alpha; then
    u* = u_max, its mean rate is `u_max - ((1 - beta) u_max)^2 / (2 alpha T)`, and T* is the root at which the mean
    rates sum to lambda.

    Args:
        alpha: > 0, `(..., n)`, requests / s^2.
        beta: in [0, 1), `(..., n)`.
        arrival_rate: lambda >= 0, `(...)` or a number, requests / s.
        u_max: largest rates >= 0, `(..., n)`, requests / s.
        mask: True for units that exist, `(..., n)`; without it units with alpha = beta = 0 are padding.

    Returns:
        `FixedPoint`. Where lambda = 0 or sum u_max <= lambda there is no equilibrium: all values 0, and a status.

    Raises:
        InputError: naming the argument, system and unit.

    Example:
        >>> fixed_point(torch.ones(2), torch.full((2,), 0.5), 3.0).admission
        tensor([2., 2.])

    Source: Eq. (33), corrected; saturation is an addition.
    """
    system = make_system(alpha, beta, u_max, mask, zeros_are_padding=True)
    rate = check_rate(arrival_rate, alpha)
    batch = broadcast(alpha=system.alpha.shape[:-1], arrival_rate=rate.shape)
    system, rate = system.flattened(batch), rate.expand(batch).reshape(-1)
    slope = system.alpha / 2 * (1 + system.beta) / (1 - system.beta)
    status = torch.where(system.total_capacity <= rate, int(Status.INFEASIBLE), int(Status.OK))
    status = torch.where(rate == 0, int(Status.IDLE), status)
    live = status == Status.OK
    if system.u_max is None:
        period = rate / slope.sum(-1)
    else:
        rise = (1 - system.beta) * system.u_max
        end = torch.where(system.mask, rise / system.alpha, torch.inf)
        period = catch_up_time(torch.zeros_like(slope), slope, system.u_max, rise * end / 2, end, rate)
    period = torch.where(live, period, 0.0)
    length = period[:, None]
    admission = system.alpha * length / (1 - system.beta)
    average = slope * length
    saturated = torch.zeros_like(system.mask)
    if system.u_max is not None:
        saturated = (length > end) & live[:, None]
        admission = torch.minimum(admission, system.u_max)
        at_cap = system.u_max - rise * end / (2 * length)
        average = torch.where(saturated, at_cap, average)
    units = (*batch, system.alpha.shape[-1])
    return FixedPoint(
        period.reshape(batch),
        admission.reshape(units),
        average.reshape(units),
        saturated.reshape(units),
        status.reshape(batch),
    )


@torch.no_grad()
def alpha_for_shares(shares: Tensor, beta: Tensor, arrival_rate: float | Tensor, period: float | Tensor) -> Tensor:
    """The alpha that gives every unit a wanted share of the requests at a wanted equilibrium period.

    `alpha_i = kappa p_i (1 - beta_i)/(1 + beta_i)`, kappa = 2 lambda / T*: then the mean rates are p_i lambda. Without
    saturation; a unit at u_max gets less and the others more.

    Args:
        shares: p >= 0, `(..., n)`, scaled to sum 1. A unit with share 0 gets alpha 0: mask it.
        beta: in [0, 1), `(..., n)`.
        arrival_rate: lambda > 0, `(...)` or a number, requests / s.
        period: T* > 0, `(...)` or a number, seconds.

    Returns:
        `(..., n)`, requests / s^2.

    Raises:
        InputError: naming the argument, system and unit.

    Example:
        >>> alpha_for_shares(torch.tensor([0.25, 0.75]), torch.zeros(2), 8.0, 2.0)
        tensor([2., 6.])

    Source: Eq. (33), solved for alpha.
    """
    check_tensor("shares", shares)
    check_tensor("beta", beta, shares)
    check_values("shares", shares, NONNEGATIVE)
    total = shares.sum(-1)
    check_values("sum of shares", total, POSITIVE, last="", hint=": some unit needs a share")
    check_values("beta", beta, FRACTION)
    rate, length = check_rate(arrival_rate, shares), check_rate(period, shares, "period")
    for name, value in (("arrival_rate", rate), ("period", length)):
        check_values(name, value, POSITIVE, last="")
    broadcast(shares=shares.shape[:-1], beta=beta.shape[:-1], arrival_rate=rate.shape, period=length.shape)
    kappa = 2 * rate / length
    return kappa[..., None] * (shares / total[..., None]) * (1 - beta) / (1 + beta)


@torch.no_grad()
def capacity_margin(arrival_rate: float | Tensor, u_max: Tensor, mask: Tensor | None = None) -> Tensor:
    """`sum u_max - lambda`, requests / s `(...)`: a system is feasible exactly where this is positive.

    Args:
        arrival_rate: lambda >= 0, `(...)` or a number.
        u_max: >= 0, `(..., n)`.
        mask: True for units that exist, `(..., n)`.
    """
    check_tensor("u_max", u_max)
    check_values("u_max", u_max, CAPACITY, mask)
    rate = check_rate(arrival_rate, u_max)
    broadcast(u_max=u_max.shape[:-1], arrival_rate=rate.shape)
    return (u_max if mask is None else torch.where(mask, u_max, 0.0)).sum(-1) - rate


def check_rate(value: float | Tensor, like: Tensor, name: str = "arrival_rate") -> Tensor:
    """A per-system argument as a tensor in the dtype and on the device of `like`; >= 0 and finite."""
    if isinstance(value, int | float):
        value = like.new_tensor(float(value))
    elif isinstance(value, Tensor) and value.ndim == 0:
        value = value.to(like.device, like.dtype)
    check_tensor(name, value, like)
    if not isinstance(value, Tensor):
        raise InputError(f"{name} is {type(value).__name__}; expected a number or a tensor")
    check_values(name, value, NONNEGATIVE, last="")
    return value


def _normalised(system: System) -> Tensor:
    """alpha_bar = alpha / sum alpha, Eq. (20); 0 for a system without units."""
    total = system.alpha.sum(-1, keepdim=True)
    return system.alpha / torch.where(total > 0, total, 1.0)
