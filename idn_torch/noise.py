"""What unbiased noise on the subgradient costs: the fractional state's gain under it, against the same bound.

Source: inference delivery networks paper, Sec. IV-B, last remark.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.averaged import merge_rows
from idn_torch.bounds import Cuts
from idn_torch.errors import InputError
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.mirror import first_allocation, mirror_step_kernel, slope_norm
from idn_torch.philox import uniforms
from idn_torch.problem import Problem
from idn_torch.shapes import broadcast_shapes

__all__ = ["NoisyAscent", "noisy_ascent"]


class NoisyAscent(NamedTuple):
    """A run of online mirror ascent under noise.

    Attributes:
        gain: G(r_t, min(L, r_t), y_t) of every slot, `(..., T)` float64.
        upper_bound: on the mean gain of every static allocation, from the cuts without noise, `(...)` float64.
    """

    gain: Tensor
    upper_bound: Tensor


@torch.no_grad()
def noisy_ascent(
    problem: Problem, level: float | Tensor, requests: Tensor | None = None, seed: Tensor | int = 0, c: float = 16.0
) -> NoisyAscent:
    """Online mirror ascent that sees `g + noise`: independent, of mean 0, and uniform.

    Each entry's noise per size has `level` times the node's largest slope per size as its standard deviation: at level
    1 even the best model of a node is hard to tell from the rest. The fractional state only, and capacities min(L, r),
    which no draw influences: what the noise costs is all there is to see.

    Args:
        problem: the network.
        level: >= 0, a number or `(...)`.
        requests: `(T, R)`; the problem's own when None.
        seed: `(...)` int64 or a number.
        c: step size, > 0: `c / sqrt(sum of the node's squared noisy slopes)`.

    Raises:
        InputError: a level or c out of range, no requests, or a wrong count.
    """
    requests = problem.requests if requests is None else requests
    merge_rows(problem, requests)  # checks them
    assert requests is not None
    amount = torch.as_tensor(level, dtype=problem.dtype, device=problem.device)
    if not ((amount >= 0) & (amount < torch.inf)).all():
        raise InputError(f"level is {level}; noise has a level >= 0 and finite")
    if not 0 < c < float("inf"):
        raise InputError(f"c is {c}; the step size must be > 0 and finite")
    key = torch.as_tensor(seed, dtype=torch.int64, device=problem.device)
    where, sizes = problem.feasible, problem.sizes
    shape = broadcast_shapes(amount.shape, key.shape, problem.ranked.cost.shape[:-2])
    y = first_allocation(sizes, where, "negentropy").expand(*shape, *problem.shape)
    squares, cuts, gains = y.new_zeros(y.shape[:-1]), Cuts.none(problem, tuple(shape)), []
    for t in range(requests.shape[-2]):
        r = requests[..., t, :]
        value, slope = gain_and_subgradient_kernel(problem, r, potential_capacity_kernel(problem, r), y)
        cuts = cuts.add(value, slope, y)
        gains.append(value.double())
        unit = 12**0.5 * (uniforms(key, *problem.shape, slot=t, dtype=problem.dtype) - 0.5)  # mean 0, variance 1
        scale = amount[..., None] * slope_norm(slope, sizes, where, "negentropy")
        seen = slope + scale[..., None] * sizes * unit
        squares = squares + slope_norm(seen, sizes, where, "negentropy").square()
        eta = torch.where(squares > 0, c * squares.clamp(min=torch.finfo(squares.dtype).tiny).rsqrt(), 0.0)
        y = mirror_step_kernel(y, seen, eta[..., None], sizes, where, "negentropy")
    return NoisyAscent(torch.stack(gains, -1), cuts.bound(problem))
