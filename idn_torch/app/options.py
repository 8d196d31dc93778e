"""Options that every kind of run has: device, dtype, threads."""

import torch

from idn_torch.errors import InputError

__all__ = ["at_least", "device_named", "dtype_named", "thread_count"]

DTYPES = {"float64": torch.float64, "float32": torch.float32}

# Below so many elements a second thread costs more in waiting than it saves in work.
_SMALL = 1 << 20


def device_named(name: str) -> torch.device:
    """The device of this name, if it is here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; use cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device is {name!r}, but PyTorch sees {torch.cuda.device_count()} CUDA devices here; use device=cpu"
        )
    return device


def dtype_named(name: str) -> torch.dtype:
    """The dtype of this name."""
    if name not in DTYPES:
        raise InputError(f"dtype is {name!r}; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def at_least(key: str, value: int | None, least: int) -> None:
    """Raise if the option is given and less than that."""
    if value is not None and value < least:
        raise InputError(f"{key} is {value}; it must be at least {least}")


def thread_count(wanted: int | None, elements: int) -> int:
    """CPU threads to run with: what is wanted, or else one for a small number of elements and torch's own for more."""
    if wanted is not None:
        return wanted
    return 1 if elements < _SMALL else torch.get_num_threads()
