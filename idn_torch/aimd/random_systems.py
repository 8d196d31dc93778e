"""Random systems for experiments and tests, the same for a seed on every device."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError

__all__ = ["RandomSystems", "random_systems"]


class RandomSystems(NamedTuple):
    """Arguments of `simulate`: `simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, events, s.u_max, s.mask)`."""

    alpha: Tensor
    beta: Tensor
    arrival_rate: Tensor
    u0: Tensor
    w0: Tensor
    u_max: Tensor | None
    mask: Tensor | None


@torch.no_grad()
def random_systems(
    batch: int,
    n: int,
    *,
    seed: int = 0,
    alpha: tuple[float, float] = (0.1, 10.0),
    beta: tuple[float, float] = (0.1, 0.9),
    arrival_rate: tuple[float, float] = (10.0, 1000.0),
    start: float = 1.0,
    backlog: float = 4.0,
    headroom: tuple[float, float] | None = None,
    min_units: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> RandomSystems:
    """Draw independent systems.

    Args:
        batch: B, number of systems.
        n: units of each.
        seed: the draw is made on the CPU in float64, so that it does not depend on dtype or device.
        alpha: range of alpha, log-uniform; requests / s^2, > 0.
        beta: range of beta, uniform; in [0, 1).
        arrival_rate: range of lambda, log-uniform; requests / s, > 0.
        start: u_0 is uniform in [0, 2 start lambda / n].
        backlog: w_0 is uniform in [0, backlog * alpha/2 T*^2]: multiples of the invariant set at the unsaturated T*.
        headroom: range of sum u_max / lambda, uniform, > 1; the sum is split at random. None: no u_max.
        min_units: each system has between this many and n units, the rest masked. None: all have n.
        dtype, device: of the result.

    Returns:
        `RandomSystems`, tensors `(B, n)` and `(B,)`.

    Raises:
        InputError: a range is empty or outside what the parameter allows.

    Example:
        >>> random_systems(3, 4).alpha.shape
        torch.Size([3, 4])
    """
    ranges = {"alpha": (alpha, 0.0), "arrival_rate": (arrival_rate, 0.0)}
    if headroom is not None:
        ranges["headroom"] = (headroom, 1.0)
    for name, ((low, high), least) in ranges.items():
        if not least < low <= high:
            raise InputError(f"{name} is the range ({low}, {high}); it must lie above {least:g} and not be empty")
    if not 0 <= beta[0] <= beta[1] < 1:
        raise InputError(f"beta is the range {beta}; it must lie in [0, 1) and not be empty")
    if batch < 0 or n < 1 or not (min_units is None or 1 <= min_units <= n):
        raise InputError(f"batch {batch}, n {n} and min_units {min_units}: need 0 <= batch and 1 <= min_units <= n")
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    def log_uniform(low: float, high: float, *shape: int) -> Tensor:
        bounds = torch.tensor([low, high], dtype=torch.float64).log()
        return (bounds[0] + (bounds[1] - bounds[0]) * uniform(0, 1, *shape)).exp().clamp(low, high)

    a, b, rate = log_uniform(*alpha, batch, n), uniform(*beta, batch, n), log_uniform(*arrival_rate, batch)
    mask = None
    if min_units is not None:
        count = torch.randint(min_units, n + 1, (batch, 1), generator=generator)
        mask = torch.arange(n) < count
        a, b = torch.where(mask, a, 0.0), torch.where(mask, b, 0.0)
    period = rate / (a / 2 * (1 + b) / (1 - b)).sum(-1)
    u0 = uniform(0, 1, batch, n) * (2 * start / n) * rate[:, None]
    w0 = uniform(0, 1, batch, n) * backlog * a / 2 * period[:, None] ** 2
    u_max = None
    if headroom is not None:
        split = uniform(0.1, 1, batch, n)
        split = split if mask is None else torch.where(mask, split, 0.0)
        u_max = split / split.sum(-1, keepdim=True) * (rate * uniform(*headroom, batch))[:, None]
    if mask is not None:
        u0 = torch.where(mask, u0, 0.0)

    def out(value: Tensor) -> Tensor:
        return value.to(device, dtype)

    return RandomSystems(
        out(a),
        out(b),
        out(rate),
        out(u0),
        out(w0),
        None if u_max is None else out(u_max),
        None if mask is None else mask.to(device),
    )
