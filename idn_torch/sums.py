"""Sums that do not depend on the number of threads."""

import torch
from torch import Tensor

__all__ = ["steady_sum"]

# Torch splits a sum that gives a single number between its threads from 32,768 elements on, and rounds accordingly.
_PIECE = 1 << 12


def steady_sum(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`values.sum(-1)`, `(..., n)` to `(...)`, with the same bits however many threads torch has."""
    while values.shape[-1] > _PIECE:
        short = -values.shape[-1] % _PIECE
        values = torch.nn.functional.pad(values, (0, short)).unflatten(-1, (-1, _PIECE)).sum(-1, dtype=dtype)
    return values.sum(-1, dtype=dtype)
