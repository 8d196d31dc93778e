"""Compiled CPU kernels for large tables. The torch code is the readable reference; both give the same results.

Threads own whole tasks: types of different tasks never meet at an option, so no two threads add to one sum, and
results do not depend on how many there are.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from idn_torch.problem import Problem

__all__ = ["compiled_for", "owners", "path_taken", "repeating_rows", "rows", "use_threads"]

# Loading the compiled code takes most of a second, and compiling it, once per machine, ten: below this many elements a
# run is mostly over before that.
MIN_ELEMENTS = 1 << 18


def compiled_for(tensor: Tensor, elements: int) -> bool:
    """Whether work on so many elements, where `tensor` lives, goes to the compiled kernels."""
    return (
        elements >= MIN_ELEMENTS
        and type(tensor) is Tensor  # fake tensors have no memory to point at
        and tensor.device.type == "cpu"
    )


def path_taken(tensor: Tensor, elements: int) -> str:
    """Name of the path for a log: "numba" or "torch"."""
    return "numba" if compiled_for(tensor, elements) else "torch"


def rows(tensor: Tensor) -> NDArray[Any]:
    """The memory of a `(B, ...)` tensor as an array; one row of it when all B are the same."""
    shared = tensor.shape[0] > 0 and tensor.stride(0) == 0
    return (tensor[:1] if shared else tensor).contiguous().numpy()


def repeating_rows(tensor: Tensor, lead: torch.Size) -> NDArray[Any]:
    """The rows of `(..., V, M)` as a matrix: V of them where the batch shares them, else one for each of `lead`."""
    if tensor.shape[:-2].numel() > 1 or tensor.shape[-2] != lead[-1]:
        tensor = tensor.expand(*lead, tensor.shape[-1])
    return tensor.reshape(-1, tensor.shape[-1]).contiguous().numpy()


def use_threads() -> int:
    """Give numba as many threads as torch may use, and say how many."""
    from numba import config, set_num_threads

    wanted = torch.get_num_threads()
    threads = min(wanted, getattr(config, "NUMBA_NUM_THREADS", 1))
    set_num_threads(threads)
    # Numba starts its pool here the first time, and with OpenMP sets the number of threads of torch as well.
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return threads


def owners(problem: Problem, instances: int) -> tuple[NDArray[Any], int, NDArray[Any]]:
    """Which worker owns each type `(R,)`, their number, and the types' tasks: whole tasks each, of like size.

    A worker per thread is enough, one where the batch keeps the threads busy.
    """
    workers = 1 if instances >= use_threads() else min(use_threads(), len(problem.task_ids))
    count = problem.type_task.bincount(minlength=len(problem.task_ids))
    middle = count.cumsum(0) - count / 2
    owner = (middle * workers / count.sum()).long().clamp(max=workers - 1)
    return owner[problem.type_task].numpy(), workers, problem.type_task.numpy()
