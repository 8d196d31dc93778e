"""Checks of arguments. They wait for the device: they run once per call, never within an event."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError

__all__ = [
    "CAPACITY",
    "FRACTION",
    "NONNEGATIVE",
    "POSITIVE",
    "Rule",
    "broadcast",
    "check_tensor",
    "check_values",
    "raise_at",
]


class Rule(NamedTuple):
    """An interval that values must lie in, and how to say so. NaN is in no interval."""

    holds: Callable[[Tensor], Tensor]
    text: str


POSITIVE = Rule(lambda x: (x > 0) & (x < torch.inf), "must be > 0 and finite")
NONNEGATIVE = Rule(lambda x: (x >= 0) & (x < torch.inf), "must be >= 0 and finite")
FRACTION = Rule(lambda x: (x >= 0) & (x < 1), "must be in [0, 1)")
CAPACITY = Rule(lambda x: x >= 0, "must be >= 0 (inf: no bound)")


def broadcast(**shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes` with the arguments named when they do not fit."""
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise InputError(f"shapes do not broadcast: {listed}; leading dims must be equal, 1 or missing") from None


def check_tensor(name: str, value: object, like: Tensor | None = None) -> None:
    """A float32 or float64 tensor, of the dtype and device of `like`.

    Raises:
        InputError: naming the argument.
    """
    if not isinstance(value, Tensor):
        raise InputError(f"{name} is {type(value).__name__}; expected a tensor")
    if value.dtype not in (torch.float32, torch.float64):
        raise InputError(f"{name} is {value.dtype}; use float32 or float64")
    if like is not None and (value.dtype != like.dtype or value.device != like.device):
        raise InputError(
            f"{name} is {value.dtype} on {value.device} but alpha is {like.dtype} on {like.device}: convert one of them"
        )


def check_values(
    name: str, value: Tensor, rule: Rule, exists: Tensor | None = None, last: str = "unit", hint: str = ""
) -> None:
    """Raise for the first entry that breaks the rule, masked units (`exists` False) aside.

    Raises:
        InputError: naming the argument, the system and the unit (or what `last` says).
    """
    # An interval holds everything between two values that it holds: one pass is enough where all is well.
    if value.numel() == 0 or rule.holds(torch.stack(torch.aminmax(value))).all():
        return
    good = rule.holds(value)
    raise_at(name, value, good if exists is None else good | ~exists, rule.text + hint, last)


def raise_at(name: str, value: Tensor, good: Tensor, text: str, last: str) -> None:
    """Raise for the first entry of `value` where `good` is False, if there is one."""
    value, good = torch.broadcast_tensors(value, good)
    if good.all():
        return
    index = (~good).nonzero()[0].tolist()
    found = value[tuple(index)].item()
    position = index.pop() if last else None
    place = f"system {index[0] if len(index) == 1 else tuple(index)}" if index else ""
    if last:
        place = f"{place}, {last} {position}" if place else f"{last} {position}"
    raise InputError(f"{name} is {found:g} at {place or 'the system'}; {text}")
