"""Checks of the tensors that public functions are called with. They wait for the device: inner loops skip them."""

import torch
from torch import Tensor

from idn_torch.build import largest_exact
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.shapes import broadcast_shapes

__all__ = ["check_counts", "check_tensors"]


def check_tensors(problem: Problem, **tensors: Tensor) -> None:
    """Shape, dtype, device, NaN and sign of `r` (..., R), `lam` (..., R, K) and `x` or `y` (..., V, M).

    Raises:
        InputError: naming the argument and, where a value is wrong, the type or the node and model.
    """
    nodes, models = problem.shape
    types, ranks = problem.ranked.cost.shape[-2:]
    wanted = {"r": (types,), "lam": (types, ranks), "x": (nodes, models), "y": (nodes, models)}
    letters = {"r": "(..., R)", "lam": "(..., R, K)", "x": "(..., V, M)", "y": "(..., V, M)"}
    for name, tensor in tensors.items():
        shape = wanted[name]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape[-len(shape) :]) != shape:
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(
                f"{name} is {found}; expected a tensor {letters[name]} = (..., {', '.join(map(str, shape))})"
            )
        if tensor.dtype != problem.dtype or tensor.device != problem.device:
            raise InputError(
                f"{name} is {tensor.dtype} on {tensor.device}; the problem is {problem.dtype} on {problem.device}: "
                f"use {name}.to(problem.device, problem.dtype)"
            )
        good = (tensor >= 0) & (tensor < torch.inf)
        if name == "x":
            good = (tensor == 0) | (tensor == 1)
        if not good.all():
            index = (~good).nonzero()[0].tolist()[-len(shape) :]
            rule = "must be 0 or 1" if name == "x" else "must be >= 0 and finite"
            raise InputError(f"{name}: {_place(problem, name, index)} holds {tensor[~good][0].item():g}; {rule}")
    try:
        broadcast_shapes(*(t.shape[: -len(wanted[n])] for n, t in tensors.items()), problem.ranked.cost.shape[:-2])
    except ValueError:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in tensors.items())
        raise InputError(
            f"batch dims do not broadcast: {shapes}; ranked tables {tuple(problem.ranked.cost.shape)}"
        ) from None


def _place(problem: Problem, name: str, index: list[int]) -> str:
    if name == "r":
        return f"type {problem.type_ids[index[0]]!r}"
    if name == "lam":
        return f"type {problem.type_ids[index[0]]!r}, rank {index[1]}"
    return f"node {problem.node_ids[index[0]]!r}, model {problem.model_ids[index[1]]!r}"


def check_counts(problem: Problem, r: Tensor) -> None:
    """Request counts are whole and small enough for the dtype to count exactly.

    Raises:
        InputError: naming the type.
    """
    limit = largest_exact(r.dtype)
    good = (r == r.floor()) & (r <= limit)
    if not good.all():
        rho = int((~good).nonzero()[0, -1])
        raise InputError(
            f"r: type {problem.type_ids[rho]!r} has {r[~good][0].item():g} requests; counts must be whole and at most "
            f"{limit}, the largest that {r.dtype} counts exactly"
        )
