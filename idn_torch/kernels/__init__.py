"""Compiled kernels: numba for large tables on CPUs, Triton on GPUs. The torch code is the readable reference.

All give the same results.

Threads own whole tasks: types of different tasks never meet at an option, so no two threads add to one sum, and
results do not depend on how many there are.
"""

import importlib.util
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray
from torch import Tensor

from idn_torch.problem import Problem

__all__ = [
    "Owners",
    "compiled_for",
    "owners",
    "path_taken",
    "repeating_rows",
    "rows",
    "stored_rows",
    "triton_for",
    "use_threads",
]

# Loading the compiled code takes most of a second, and compiling it, once per machine, ten: below this many elements a
# run is mostly over before that.
MIN_ELEMENTS = 1 << 18

# Where tensors go to Triton if it is installed. Its interpreter would take "cpu" as well.
TRITON_DEVICES = frozenset({"cuda"})

# Longer rows do not fit into the registers of one Triton program.
MAX_ROW = 1 << 13

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def compiled_for(tensor: Tensor, elements: int) -> bool:
    """Whether work on so many elements, where `tensor` lives, goes to the compiled kernels."""
    return (
        elements >= MIN_ELEMENTS
        and type(tensor) is Tensor  # fake tensors have no memory to point at
        and tensor.device.type == "cpu"
    )


def triton_for(tensor: Tensor, row: int = 1, atomic_sums: bool = False) -> bool:
    """Whether work where `tensor` lives goes to the Triton kernels, fake tensors included.

    Args:
        row: entries that one program keeps in registers.
        atomic_sums: the kernel adds in any order, so that last digits vary: not taken under
            `torch.use_deterministic_algorithms`.
    """
    return (
        _HAS_TRITON
        and tensor.device.type in TRITON_DEVICES
        and row <= MAX_ROW
        and not (atomic_sums and torch.are_deterministic_algorithms_enabled())
    )


def path_taken(tensor: Tensor, elements: int) -> str:
    """Name of the path for a log: "triton", "numba" or "torch"."""
    if triton_for(tensor):
        return "triton"
    return "numba" if compiled_for(tensor, elements) else "torch"


def stored_rows(tensor: Tensor) -> Tensor:
    """A `(B, ...)` tensor in contiguous memory; one row of it when all B are the same."""
    shared = tensor.shape[0] > 0 and tensor.stride(0) == 0
    return (tensor[:1] if shared else tensor).contiguous()


def rows(tensor: Tensor) -> NDArray[Any]:
    """`stored_rows` as an array."""
    return stored_rows(tensor).numpy()


def repeating_rows(tensor: Tensor, lead: torch.Size, width: int) -> Tensor:
    """The rows of `(..., V, width or 1)` as a contiguous matrix: 1 or V where the rest repeats, else all of `lead`.

    Row i of `lead = (..., V)`, flattened, is row `i % rows` of the result.
    """
    own = tensor.shape[:-1]
    if tensor.ndim == 2 and own[0] in (1, lead[-1]) and tensor.shape[1] == width:
        return tensor.contiguous()
    if own.numel() != 1 and (own[:-1].numel() > 1 or own[-1] != lead[-1]):
        own = lead
    return tensor.expand(*own, width).reshape(-1, width).contiguous()


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


class Owners(NamedTuple):
    """Which worker owns what: whole tasks each, of like size.

    Attributes:
        type: of each type, `(R,)`.
        workers: their number.
        model: of each model, `(M,)`, -1 where its task has no types.
    """

    type: NDArray[Any]
    workers: int
    model: NDArray[Any]


_owners: "WeakKeyDictionary[Problem, dict[int, Owners]]" = WeakKeyDictionary()


def owners(problem: Problem, instances: int) -> Owners:
    """A worker per thread is enough, one where the batch keeps the threads busy. Kept for the problem's other calls."""
    threads = use_threads()
    workers = 1 if instances >= threads else min(threads, len(problem.task_ids))
    known = _owners.setdefault(problem, {})
    if workers not in known:
        count = problem.type_task.bincount(minlength=len(problem.task_ids))
        middle = count.cumsum(0) - count / 2
        owner = (middle * workers / count.sum()).long().clamp(max=workers - 1)
        model = torch.where(count > 0, owner, -1)[problem.model_task]
        known[workers] = Owners(owner[problem.type_task].numpy(), workers, model.numpy())
    return known[workers]
