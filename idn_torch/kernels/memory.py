"""Fresh tables for the compiled kernels. Does not load the compiler."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["new_table"]


def new_table(like: Tensor, *shape: int, zeros: bool = False) -> Tensor:
    """An uninitialised or zeroed tensor of the dtype of `like`, from numpy's memory.

    Numpy asks the system for huge pages, as torch does only if told to, and leaves zeroing to it: a kernel that writes
    to a few entries of a table touches no more.
    """
    dtype = torch.empty(0, dtype=like.dtype).numpy().dtype
    return torch.from_numpy(np.zeros(shape, dtype) if zeros else np.empty(shape, dtype))
