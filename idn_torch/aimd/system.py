"""The parameters of a batch of AIMD systems, checked once on the host and trusted from then on."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idn_torch.aimd.checks import CAPACITY, FRACTION, POSITIVE, broadcast, check_tensor, check_values
from idn_torch.errors import InputError

__all__ = ["System", "flat", "make_system"]


@dataclass(frozen=True, eq=False)
class System:
    """Parameters of systems of n units. Masked units hold zeros, so that they add nothing to any sum.

    Shapes: all `(..., n)`, or `(B, n)` after `flattened`. Rates are requests a second, alpha requests a second squared.
    """

    #: Additive increase, > 0 where `mask`.
    alpha: Tensor
    #: Multiplicative decrease, in [0, 1).
    beta: Tensor
    #: True for units that exist.
    mask: Tensor
    #: Largest admission rate, >= 0, or None for no bound.
    u_max: Tensor | None = None
    #: Service rate over gamma_hat, > 0, or None for gamma_hat itself.
    service_factor: Tensor | None = None
    #: True if no unit is masked, known without looking at the mask.
    complete: bool = False

    def flattened(self, batch: torch.Size) -> "System":
        """The same systems with every tensor expanded to `(B, n)`."""
        return self._map(lambda value: flat(value, batch))

    def expanded(self, batch: torch.Size) -> "System":
        """The same systems with every tensor expanded to `(*batch, n)`, without copies."""
        return self._map(lambda value: value.expand(*batch, value.shape[-1]))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "System":
        return System(
            change(self.alpha),
            change(self.beta),
            change(self.mask),
            None if self.u_max is None else change(self.u_max),
            None if self.service_factor is None else change(self.service_factor),
            self.complete,
        )

    def existing(self, value: Tensor) -> Tensor:
        """`value (..., n)` with 0 at the masked units, which may hold anything."""
        return value if self.complete else torch.where(self.mask, value, 0.0)

    @property
    def total_capacity(self) -> Tensor:
        """`sum u_max`, `(...)`: inf without a bound, 0 without a unit."""
        if self.u_max is not None:
            return self.u_max.sum(-1)
        return torch.where(self.mask.any(-1), math.inf, 0.0).to(self.alpha.dtype)


def flat(value: Tensor, batch: torch.Size) -> Tensor:
    """Expand the leading dims of `(..., n)` to `batch` and flatten them: `(B, n)`."""
    return value.expand(*batch, value.shape[-1]).reshape(batch.numel(), value.shape[-1])


def make_system(
    alpha: Tensor,
    beta: Tensor,
    u_max: Tensor | None = None,
    mask: Tensor | None = None,
    service_factor: Tensor | float | None = None,
    zeros_are_padding: bool = False,
) -> System:
    """Check the parameters and zero the masked units.

    Args:
        alpha, beta, u_max, mask, service_factor: as in `System`, any leading dims that broadcast.
        zeros_are_padding: with `mask` None, units with alpha = beta = 0 are masked.

    Raises:
        InputError: naming the argument and, for a value, its system and unit.
    """
    check_tensor("alpha", alpha)
    if alpha.ndim == 0 or alpha.shape[-1] == 0:
        raise InputError(f"alpha {tuple(alpha.shape)} has no units; expected (..., n), one entry a unit")
    check_tensor("beta", beta, alpha)
    if isinstance(service_factor, Tensor):
        check_tensor("service_factor", service_factor, alpha)
    elif service_factor is not None:
        service_factor = alpha.new_tensor(float(service_factor))
    if u_max is not None:
        check_tensor("u_max", u_max, alpha)
    if zeros_are_padding and mask is None:
        mask = ~((alpha == 0) & (beta == 0))
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.device != alpha.device):
        raise InputError(f"mask must be a bool tensor on {alpha.device}, True for units that exist")
    named = {"alpha": alpha, "beta": beta, "mask": mask, "u_max": u_max, "service_factor": service_factor}
    shape = broadcast(**{name: value.shape for name, value in named.items() if value is not None})
    if shape[-1] != alpha.shape[-1] and alpha.shape[-1] != 1:
        raise InputError(f"alpha has {alpha.shape[-1]} units, the other arguments have {shape[-1]}")

    check_values("alpha", alpha, POSITIVE, mask, hint="; mask a unit to leave it out")
    check_values("beta", beta, FRACTION, mask)
    if u_max is not None:
        check_values("u_max", u_max, CAPACITY, mask)
    if service_factor is not None:
        service_factor = service_factor.expand(shape)
        check_values("service_factor", service_factor, POSITIVE, mask)

    def masked(value: Tensor, fill: float = 0.0) -> Tensor:
        # A copy in either case: a result must not change with the caller's tensors.
        return value.expand(shape).clone() if mask is None else torch.where(mask, value, fill)

    return System(
        masked(alpha),
        masked(beta),
        torch.ones(shape, dtype=torch.bool, device=alpha.device) if mask is None else mask.expand(shape),
        None if u_max is None else masked(u_max),
        None if service_factor is None else masked(service_factor, 1.0),
        complete=mask is None,
    )
