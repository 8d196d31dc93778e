"""When the compiled kernels of this package run. Does not load the compiler."""

from torch import Tensor

from idn_torch import kernels

__all__ = ["compiled_for"]

# A slot calls the kernels of this package tens of times: loading them pays that much sooner.
_CALLS = 32


def compiled_for(tensor: Tensor, elements: int) -> bool:
    """As `kernels.compiled_for`, for the elements of one of many calls."""
    return kernels.compiled_for(tensor, elements * _CALLS)
