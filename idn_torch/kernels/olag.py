"""Compiled kernel of `idn_torch.baselines.olag`: each node by itself, over the requests that reached it."""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["place"]

Array = NDArray[Any]

_compiled: Any = njit(parallel=True, cache=True, nogil=True)


@_compiled
def place(
    option: Array,
    hop: Array,
    saving: Array,
    reached: Array,
    capacity: Array,
    sizes: Array,
    free: Array,
    room: Array,
    slack: Array,
    model_task: Array,
    x: Array,
) -> None:
    """Loads into x (B, V, M), which holds the repositories. Uses up reached (B, R, J) and room (B, V).

    Arrays with a batch axis hold one row or B; row `b % rows` belongs to instance b. capacity is (V*M,).
    """
    nodes, models = sizes.shape
    types, ranks = saving.shape[1:]
    length = reached.shape[2]
    for b in prange(x.shape[0]):
        bo, bh = b % option.shape[0], b % hop.shape[0]
        # The entries that would save anything, by option: those of option o are listed[start[o] : start[o + 1]].
        start = np.zeros(nodes * models + 1, np.int64)
        for rho in range(types):
            for k in range(ranks):
                if saving[b, rho, k] > 0 and reached[b, rho, hop[bh, rho, k]] > 0:
                    start[option[bo, rho, k] + 1] += 1
        start = np.cumsum(start)
        turn = start.copy()
        listed = np.empty(start[-1], np.int64)
        for rho in range(types):
            for k in range(ranks):
                if saving[b, rho, k] > 0 and reached[b, rho, hop[bh, rho, k]] > 0:
                    at = option[bo, rho, k]
                    listed[turn[at]] = rho * ranks + k
                    turn[at] += 1
        left = reached[b].reshape(types * length)
        worth, volume = np.zeros(models, saving.dtype), np.zeros(models, saving.dtype)
        share = np.zeros(models, saving.dtype)
        for v in range(nodes):
            stale = -1  # the task to look at again, all of them at first
            while True:
                best, pick = 0.0, -1
                for m in range(models):
                    at = v * models + m
                    if stale < 0 or model_task[m] == stale:
                        volume[m], worth[m] = 0, 0
                        for i in range(start[at], start[at + 1]):
                            rho, k = listed[i] // ranks, listed[i] % ranks
                            amount = left[rho * length + hop[bh, rho, k]]
                            volume[m] += amount
                            worth[m] += amount * saving[b, rho, k]
                        share[m] = min(capacity[at] / volume[m], 1.0) if volume[m] > 0 else 0.0
                    if x[b, v, m] < 0.5 and free[v, m] and sizes[v, m] <= room[b, v] + slack[v]:
                        density = worth[m] * share[m] / sizes[v, m]
                        if density > best:
                            best, pick = density, m
                if pick < 0:
                    break
                x[b, v, pick] = 1
                room[b, v] -= sizes[v, pick]
                at = v * models + pick
                for i in range(start[at], start[at + 1]):
                    rho, k = listed[i] // ranks, listed[i] % ranks
                    left[rho * length + hop[bh, rho, k]] *= 1 - share[pick]
                stale = model_task[pick]
