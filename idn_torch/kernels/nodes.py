"""Compiled kernels over the rows of (node, model) matrices: projections, DepRound, counter-based numbers."""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["depround", "philox", "project_euclidean", "project_negentropy"]

Array = NDArray[Any]

_compiled: Any = njit(parallel=True, cache=True, nogil=True)
# Sums in any order, and so of several numbers at a time.
_summing: Any = njit(fastmath={"reassoc", "contract", "nsz"})


@_summing
def _used(point: Array, weight: Array, tau: float) -> tuple[float, float]:
    """`sum w * clip(point - tau * w, 0, 1)`, and how fast it falls with tau."""
    used, steep = 0.0, 0.0
    for i in range(point.shape[0]):
        moved = point[i] - tau * weight[i]
        if moved >= 1:
            used += weight[i]
        elif moved > 0:
            used += weight[i] * moved
            steep += weight[i] * weight[i]
    return used, steep


# Weights are relative to the largest of an earlier pass: with the largest left above this, those that matter are far
# from underflow in float32.
_SMALLEST = 1e-8


@_compiled
def project_negentropy(log_y: Array, sizes: Array, free: Array, budget: Array, out: Array) -> None:
    """The entropic projection of each row (N, M) at nodes that choose; rows of sizes, free, budget (., 1) repeat.

    Writes the free entries of rows whose budget is >= 0; a negative budget marks a row to leave alone.
    """
    rows, models = log_y.shape
    for row in prange(rows):
        size, choice = sizes[row % sizes.shape[0]], free[row % free.shape[0]]
        # Sizes leave it one by one: in float32 their roundings would add up.
        left = np.float64(budget[row % budget.shape[0], 0])
        if left < 0:
            continue
        index = np.empty(models, np.int32)
        weight = np.empty(models, log_y.dtype)
        count = 0
        for m in range(models):
            if choice[m]:
                index[count] = m
                count += 1
        peak = 0.0
        while count > 0:
            if peak < _SMALLEST:  # else the weights of the pass before still have all their digits
                top = log_y[row, index[0]]
                for i in range(1, count):
                    top = max(top, log_y[row, index[i]])
                for i in range(count):
                    weight[i] = np.exp(log_y[row, index[i]] - top)
            total = 0.0
            for i in range(count):
                total += size[index[i]] * weight[i]
            scale = max(left, 0.0) / total
            kept = 0
            peak = 0.0
            for i in range(count):
                m = index[i]
                if scale * weight[i] >= 1:
                    out[row, m] = 1
                    left -= size[m]
                else:
                    out[row, m] = scale * weight[i]
                    index[kept], weight[kept] = m, weight[i]
                    peak = max(peak, weight[kept])
                    kept += 1
            if kept == count:
                break
            count = kept


@_compiled
def project_euclidean(y: Array, sizes: Array, free: Array, budget: Array, out: Array) -> None:
    """The Euclidean projection of each row, with the arguments of `project_negentropy`.

    Newton steps inside a bracket, bisection where a step would leave it and every third time; twice, the second time
    on what the first left, as the torch code does.
    """
    for row in prange(y.shape[0]):
        size = sizes[row % sizes.shape[0]]
        target = np.float64(budget[row % budget.shape[0], 0])
        index = np.flatnonzero(free[row % free.shape[0]])
        if target < 0 or index.shape[0] == 0:
            continue
        point = np.empty(index.shape[0])
        weight = np.empty(index.shape[0])
        for i in range(index.shape[0]):
            point[i] = y[row, index[i]]
            weight[i] = size[index[i]]
        for _ in range(2):
            low = ((point - 1) / weight).min()
            high = (point / weight).max()
            tau = min(max(((weight * point).sum() - target) / (weight * weight).sum(), low), high)
            for step in range(1, 193):
                used, steep = _used(point, weight, tau)
                excess = used - target
                if abs(excess) <= 4e-16 * target:
                    break
                if excess > 0:
                    low = tau
                else:
                    high = tau
                following = low + (high - low) / 2
                if steep > 0 and step % 3 > 0:
                    newton = tau + excess / steep
                    if low < newton < high:
                        following = newton
                if following == tau:
                    break
                tau = following
            for i in range(index.shape[0]):
                point[i] -= tau * weight[i]
        for i in range(index.shape[0]):
            out[row, index[i]] = min(max(point[i], 0.0), 1.0)


@_compiled
def depround(y: Array, sizes: Array, uniforms: Array, x: Array, residual: Array) -> None:
    """DepRound of each row (N, M) along the binary tree over the models; rows of sizes repeat."""
    rows, models = y.shape
    for row in prange(rows):
        node = row % sizes.shape[0]
        turn = row % uniforms.shape[0]
        ones = np.ones(1, y.dtype)
        one, zero = ones[0], ones[0] - ones[0]  # a bare 1 would turn float32 arithmetic into float64
        value = np.empty(models, y.dtype)
        at = np.empty(models, np.int32)
        for m in range(models):
            value[m] = y[row, m]
            at[m] = m
        width = models
        half = 1
        while width > 1:
            for p in range((width + 1) // 2):
                i = 2 * p
                if i + 1 >= width:
                    # A missing right half is whole: the left one goes up as it is.
                    value[p], at[p] = value[i], at[i]
                    continue
                yi, yj, ki, kj = value[i], value[i + 1], at[i], at[i + 1]
                if yi <= 0 or yi >= 1:
                    x[row, ki] = yi
                    value[p], at[p] = yj, kj
                elif yj <= 0 or yj >= 1:
                    x[row, kj] = yj
                    value[p], at[p] = yi, ki
                else:
                    rise_j, rise_i = sizes[node, kj] / sizes[node, ki], sizes[node, ki] / sizes[node, kj]
                    to_one, from_j = one - yi, rise_j * yj
                    from_i = rise_j * (one - yj)
                    a, b = min(to_one, from_j), min(yi, from_i)
                    if uniforms[turn, half * (2 * p + 1)] < b / (a + b):
                        if to_one <= from_j:
                            x[row, ki] = 1
                            value[p], at[p] = max(yj - rise_i * to_one, zero), kj
                        else:
                            x[row, kj] = 0
                            value[p], at[p] = min(yi + from_j, one), ki
                    elif yi <= from_i:
                        x[row, ki] = 0
                        value[p], at[p] = min(yj + rise_i * yi, one), kj
                    else:
                        x[row, kj] = 1
                        value[p], at[p] = max(yi - from_i, zero), ki
            width = (width + 1) // 2
            half *= 2
        if value[0] <= 0 or value[0] >= 1:
            x[row, at[0]] = value[0]
            residual[row] = -1
        else:
            x[row, at[0]] = 1 if uniforms[turn, 0] < value[0] else 0
            residual[row] = at[0]


@_compiled
def philox(seed: Array, nodes: int, slot: int, slotted: int, out: Array) -> None:
    """Philox 4x32-10 numbers: out (B * nodes, M), the leading 53 or 24 bits of 64 in [0, 1)."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    single = out.itemsize == 4
    for row in prange(out.shape[0]):
        b, node = row // nodes, row % nodes
        for pair in range((out.shape[1] + 1) // 2):
            c0, c1, c2, c3 = np.uint64(pair), np.uint64(node), np.uint64(slot), np.uint64(slotted)
            k0, k1 = seed[b] & low, seed[b] >> half
            for _ in range(10):
                p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
                c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
                k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
            for lane in range(2):
                m = 2 * pair + lane
                if m < out.shape[1]:
                    high, rest = (c0, c1) if lane == 0 else (c2, c3)
                    if single:
                        out[row, m] = np.float64(high >> np.uint64(8)) * 2.0**-24
                    else:
                        out[row, m] = np.float64((high << np.uint64(21)) | (rest >> np.uint64(11))) * 2.0**-53
