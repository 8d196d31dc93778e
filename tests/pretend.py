"""Run code on a pretended CUDA device: fake tensors carry shapes, dtypes and devices, but no data.

Mixing devices, and any wait for a value (`.item()`, `if tensor`), raises. It needs no GPU and no CUDA build.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class _WithoutRuntime(TorchFunctionMode):
    """`x[...]` and `~x` through aten operators: Python's own ask for a CUDA runtime, which a CPU build lacks."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__:
            return _get(*args)
        if func is Tensor.__invert__:
            return aten.bitwise_not(*args)
        return func(*args, **(kwargs or {}))


def _get(tensor: Tensor, index: Any) -> Tensor:
    view, tensors = _basic(tensor, index)
    return aten.index(view, tensors) if any(t is not None for t in tensors) else view


def _basic(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Apply slices, numbers and None; leave tensors for one `aten.index`."""
    parts = list(index) if isinstance(index, tuple) else [index]
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if Ellipsis not in [part for part in parts if not isinstance(part, Tensor)]:
        parts.append(Ellipsis)
    tensors: list[Tensor | None] = []
    dim = 0
    for part in parts:
        if part is Ellipsis:
            skipped = tensor.ndim - dim - (used - _consumed(parts, part))
            tensors += [None] * skipped
            dim += skipped
        elif part is None:
            tensor = aten.unsqueeze(tensor, dim)
            tensors.append(None)
            dim += 1
        elif isinstance(part, slice):
            start, stop, step = part.indices(tensor.shape[dim])
            tensor = aten.slice(tensor, dim, start, stop, step)
            tensors.append(None)
            dim += 1
        elif isinstance(part, Tensor):
            tensors.append(part)
            dim += 1
        else:
            tensor = aten.select(tensor, dim, part)
    return tensor, tensors


def _consumed(parts: list[Any], until: Any) -> int:
    count = 0
    for part in parts:
        if part is until:
            break
        count += part is not None
    return count


def pretended(value: Any, device: str = "cuda") -> Any:
    """A copy of tensors, and of what holds them, with the shapes only, on the pretended device."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device=device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: pretended(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        return type(value)(**fields)
    if isinstance(value, tuple):
        items = [pretended(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


@contextmanager
def pretended_cuda() -> Iterator[None]:
    """Within it, tensors are fake and `device="cuda"` is there."""
    with FakeTensorMode(), _WithoutRuntime():
        yield
