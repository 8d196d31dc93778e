"""Torch operators with a rule for fake tensors: tracing, `torch.compile` and tests see one call, not what is in it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["operator"]

_LIBRARY = torch.library.Library("idn_torch", "FRAGMENT")


def operator(name: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: make a function of tensors that it leaves as they are the operator `idn_torch::name`.

    It runs on the device of its first argument: Triton launches on whatever device is current.

    `torch.library.custom_op` does the same with checks that take 10 to 50 us a call on a CPU; this takes 3.

    Args:
        fake: takes the same arguments, and returns tensors of the right shape, dtype and device with anything in them.
    """

    def register(function: Callable[..., Any]) -> Any:
        def launch(first: Tensor, *rest: Any) -> Any:
            with torch.cuda.device_of(first):
                return function(first, *rest)

        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
        _LIBRARY.impl(name, launch, "CompositeExplicitAutograd")  # on every device
        torch.library.register_fake(f"idn_torch::{name}", fake, lib=_LIBRARY)
        return getattr(torch.ops.idn_torch, name).default

    return register
