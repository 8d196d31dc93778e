"""When the compiled kernels of this package run, and which worker owns what. Does not load the compiler."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idn_torch import kernels
from idn_torch.problem import Problem

__all__ = ["compiled_for", "owners"]

Array = NDArray[Any]

# A slot calls the kernels of this package tens of times: loading them pays that much sooner.
_CALLS = 32


def compiled_for(tensor: Tensor, elements: int) -> bool:
    """As `kernels.compiled_for`, for the elements of one of many calls."""
    return kernels.compiled_for(tensor, elements * _CALLS)


_owners: "WeakKeyDictionary[Problem, dict[int, tuple[Array, int, Array]]]" = WeakKeyDictionary()


def owners(problem: Problem, instances: int) -> tuple[Array, int, Array]:
    """As `kernels.owners`, with the worker of each model `(M,)`, -1 where its task has no types; kept for reuse."""
    known = _owners.setdefault(problem, {})
    key = min(instances, kernels.use_threads())
    if key not in known:
        owner, workers, type_task = kernels.owners(problem, instances)
        of_task = np.full(len(problem.task_ids), -1)
        of_task[type_task] = owner
        known[key] = owner, workers, of_task[problem.model_task.numpy()]
    return known[key]
