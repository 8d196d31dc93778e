"""Synthetic requests: Zipf popularity over tasks that changes in time, shares over ingresses, Poisson counts."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idn_torch.errors import InputError

__all__ = ["Ranking", "request_counts", "task_shares", "zipf_shares"]

Ranking = Literal["fixed", "sliding", "jumping"]

# float64 does not hold every whole number beyond.
_MOST = 2**53


def zipf_shares(items: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Zipf's law: the share of rank k = 1..items is proportional to `1 / k**exponent`.

    Args:
        items: how many, >= 1.
        exponent: >= 0; 0 makes all shares equal.

    Returns:
        `(items,)`, non-increasing, sum 1.

    Raises:
        InputError: items < 1, or an exponent that is negative or not finite.

    Example:
        >>> zipf_shares(3).round(3)
        array([0.545, 0.273, 0.182])
    """
    if items < 1:
        raise InputError(f"items is {items}; Zipf's law needs at least one")
    if not 0 <= exponent < float("inf"):
        raise InputError(f"zipf_exponent is {exponent}; it must be >= 0 and finite")
    weights = np.arange(1, items + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def task_shares(
    slots: int,
    tasks: int,
    exponent: float = 1.0,
    popularity: Ranking = "sliding",
    shift_every: int = 60,
    seed: int = 0,
) -> NDArray[np.float64]:
    """The share of each task in each slot: Zipf's law over a ranking that changes every `shift_every` slots.

    With h = slot // shift_every, the rank of task i, counted from 0, is

    - "fixed": i, for ever;
    - "sliding": `(i + h) mod tasks`: every task falls one place, the last one becomes the first;
    - "jumping": a random permutation, drawn afresh for every h.

    Args:
        slots: T >= 1.
        tasks: N >= 1.
        exponent: of Zipf's law, >= 0.
        popularity: how the ranking changes.
        shift_every: slots between two changes, >= 1.
        seed: >= 0; of the permutations of "jumping".

    Returns:
        `(T, N)`, each row sums to 1.

    Raises:
        InputError: naming the argument and its range.

    Example:
        >>> task_shares(3, 2, shift_every=2).round(2)
        array([[0.67, 0.33],
               [0.67, 0.33],
               [0.33, 0.67]])
    """
    for name, number in {"slots": slots, "tasks": tasks, "shift_every": shift_every}.items():
        if number < 1:
            raise InputError(f"{name} is {number}; it must be at least 1")
    if popularity not in get_args(Ranking):
        raise InputError(f"popularity is {popularity!r}; use one of {', '.join(get_args(Ranking))}")
    period = np.arange(slots) // shift_every  # (T,)
    task = np.arange(tasks)
    if popularity == "fixed":
        rank = np.broadcast_to(task, (slots, tasks))
    elif popularity == "sliding":
        rank = (task + period[:, None]) % tasks
    else:
        rng = _rng(seed, "popularity")
        rank = rng.permuted(np.tile(task, (period[-1] + 1, 1)), axis=1)[period]
    return zipf_shares(tasks, exponent)[rank]


def request_counts(
    ingress_shares: ArrayLike, shares: ArrayLike, requests_per_slot: float, seed: int = 0
) -> NDArray[np.int64]:
    """Draw how many requests of each (ingress, task) pair arrive in each slot.

    The counts are independent Poisson variables of mean `requests_per_slot * ingress share * task share`, so a slot's
    total is Poisson too and `requests_per_slot` on average.

    Args:
        ingress_shares: >= 0, `(I,)`; scaled to sum 1.
        shares: of the tasks in each slot, >= 0, `(T, N)`, as from `task_shares`.
        requests_per_slot: mean number of requests in a slot, >= 0.
        seed: >= 0.

    Returns:
        `(T, I * N)` whole numbers; the column of ingress i and task n is `i * N + n`.

    Raises:
        InputError: naming the argument and its range.

    Example:
        >>> request_counts([3, 1], task_shares(2, 2), 1000).shape
        (2, 4)
    """
    ingress, task = np.asarray(ingress_shares, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    for name, values, letters, ndim in (("ingress_shares", ingress, "(I,)", 1), ("shares", task, "(T, N)", 2)):
        if values.ndim != ndim or values.size == 0:
            raise InputError(f"{name} has shape {values.shape}; expected {letters}, not empty")
        wrong = ~((values >= 0) & (values < np.inf))
        if wrong.any():
            where = ", ".join(map(str, np.argwhere(wrong)[0]))
            raise InputError(f"{name}[{where}] is {values[wrong][0]}; shares must be >= 0 and finite")
    if ingress.sum() == 0:
        raise InputError("ingress_shares are all 0; at least one ingress must have requests")
    if not 0 <= requests_per_slot <= _MOST:
        raise InputError(f"requests_per_slot is {requests_per_slot}; it must be a number from 0 to {_MOST}")
    mean = requests_per_slot * task[:, None, :] * (ingress / ingress.sum())[:, None]  # (T, I, N)
    return _rng(seed, "counts").poisson(mean).reshape(len(task), -1)


def _rng(seed: int, stream: Literal["popularity", "counts"]) -> np.random.Generator:
    """A generator for one purpose: two draws from one seed are independent."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be >= 0")
    return np.random.default_rng([seed, ("popularity", "counts").index(stream)])
