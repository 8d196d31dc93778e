"""DepRound: the library against sequential pivotal rounding in numba and column by column in torch.

Run: `python -m benchmarks.rounding`.
"""

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from benchmarks.harness import Report
from idn_torch.rounding import depround_kernel


@njit(parallel=True)
def pivotal(y, sizes, uniforms, x):  # type: ignore[no-untyped-def]
    """One fraction meets the models in order: the textbook algorithm."""
    rows, models = y.shape
    for row in prange(rows):
        i, yi = 0, y[row, 0]
        for j in range(1, models):
            yj = y[row, j]
            if yi <= 0 or yi >= 1:
                x[row, i] = yi
                i, yi = j, yj
                continue
            if yj <= 0 or yj >= 1:
                x[row, j] = yj
                continue
            ratio = sizes[row, j] / sizes[row, i]
            a, b = min(1 - yi, ratio * yj), min(yi, ratio * (1 - yj))
            if uniforms[row, j] < b / (a + b):
                yi, yj = yi + a, yj - a / ratio
            else:
                yi, yj = yi - b, yj + b / ratio
            if yi < 1e-6 or yi > 1 - 1e-6:
                x[row, i] = np.round(yi)
                i, yi = j, yj
            else:
                x[row, j] = np.round(yj)
        x[row, i] = 1.0 if uniforms[row, 0] < yi else 0.0


def columns(y: Tensor, sizes: Tensor, uniforms: Tensor) -> Tensor:
    """The same with all rows at once, a step a column."""
    x = y.clone()
    rows = torch.arange(y.shape[0])
    at = torch.zeros(y.shape[0], dtype=torch.int64)
    for j in range(1, y.shape[1]):
        yi, yj = x[rows, at], x[:, j]
        si, sj = sizes[rows, at], sizes[:, j]
        ratio = sj / si
        a, b = torch.minimum(1 - yi, ratio * yj), torch.minimum(yi, ratio * (1 - yj))
        open_pair = (yi > 0) & (yi < 1) & (yj > 0) & (yj < 1)
        step = torch.where(uniforms[:, j] < b / (a + b), a, -b).where(open_pair, 0.0)
        yi, yj = yi + step, yj - step / ratio
        yi = torch.where((yi < 1e-6) | (yi > 1 - 1e-6), yi.round(), yi)
        yj = torch.where((yj < 1e-6) | (yj > 1 - 1e-6), yj.round(), yj)
        x[rows, at], x[:, j] = yi, yj
        at = torch.where((yi > 0) & (yi < 1), at, j)
    x[rows, at] = torch.where(uniforms[:, 0] < x[rows, at], 1.0, 0.0)
    return x


def main() -> None:
    report = Report("DepRound", nodes=(4096, "rows"), models=(600, "columns"))
    generator = torch.Generator().manual_seed(0)
    shape = (report.options.nodes, report.options.models)
    y, sizes, uniforms = (torch.rand(shape, generator=generator) for _ in range(3))
    sizes = sizes * 9 + 1
    x = np.empty(shape, np.float32)
    report.compare(
        "float32",
        {
            "ours": lambda: depround_kernel(y, sizes, uniforms),
            "numba, sequential": lambda: pivotal(y.numpy(), sizes.numpy(), uniforms.numpy(), x),
            "torch, column by column": lambda: columns(y, sizes, uniforms),
        },
        least_bytes=4 * y.numel() * 4,
    )
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
