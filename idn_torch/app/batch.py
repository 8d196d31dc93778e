"""The instances of a run: every combination of the seeds, step sizes and alphas that were listed."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from idn_torch.app.config import Config, PolicyConfig
from idn_torch.errors import InputError

__all__ = ["Instance", "Instances", "instances", "seeds", "step_sizes"]

_LARGEST_SEED = 2**63 - 1


class Instance(NamedTuple):
    """One instance. c is None for a policy without a step size, alpha where the problem's own holds."""

    seed: int
    c: float | None
    alpha: float | None


@dataclass(frozen=True)
class Instances:
    """All instances, seeds innermost.

    Attributes:
        all: one after the other, the batch dimension of the run.
        listed: the fields that hold more than one value.
    """

    all: tuple[Instance, ...]
    listed: frozenset[str]

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch dims of the run: none for a single instance."""
        return (len(self.all),) if len(self.all) > 1 else ()

    def column(self, field: str) -> list[Any]:
        """One field of every instance."""
        return [getattr(instance, field) for instance in self.all]

    def labels(self) -> list[dict[str, Any]]:
        """What tells the instances apart: their listed fields."""
        return [{key: value for key, value in one._asdict().items() if key in self.listed} for one in self.all]

    def groups(self) -> dict[str, list[int]]:
        """Instances that differ in the seed alone, by what the others have: `{"c=8, alpha=75": [0, 1, 2]}`."""
        out: dict[str, list[int]] = {}
        for index, label in enumerate(self.labels()):
            name = ", ".join(f"{key}={value:g}" for key, value in label.items() if key != "seed")
            out.setdefault(name, []).append(index)
        return out


def instances(config: Config) -> Instances:
    """Read `seed`, `policy.c` and `alpha`, each a number or a list.

    Raises:
        InputError: naming the key that holds something else, or a number out of range.
    """
    seed = seeds(config.seed)
    c = step_sizes(config.policy)
    alpha: list[Any] = [None]
    if config.alpha is not None:
        alpha = _numbers("alpha", config.alpha, "a number >= 0", lambda value: 0 <= value < math.inf)
    combinations = tuple(Instance(s, _float(k), _float(a)) for k, a, s in itertools.product(c, alpha, seed))
    listed = {"seed": seed, "c": c, "alpha": alpha}
    return Instances(combinations, frozenset(key for key, values in listed.items() if len(values) > 1))


def step_sizes(policy: PolicyConfig) -> list[Any]:
    """Read `policy.c`, a number or a list of them; `[None]` for a policy without step size.

    Raises:
        InputError: it holds something else.
    """
    if not hasattr(policy, "c"):
        return [None]
    return _numbers("policy.c", policy.c, "a number > 0", lambda value: 0 < value < math.inf)


def seeds(value: Any) -> list[int]:
    """Read `seed`, a whole number or a list of them.

    Raises:
        InputError: it holds something else.
    """
    return [int(one) for one in _numbers("seed", value, "a whole number from 0 to 2^63 - 1", _is_seed)]


def _is_seed(value: float) -> bool:
    return value == math.floor(value) and 0 <= value <= _LARGEST_SEED


def _numbers(key: str, value: Any, what: str, good: Any) -> list[Any]:
    """The numbers of an option: of text too, since not every YAML reader takes 1e-3 for a number."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not values:
        raise InputError(f"{key} is an empty list; give {what}, or a list of them")
    out = [_number(one) for one in values]
    for given, number in zip(values, out, strict=True):
        if number is None or not good(number):
            raise InputError(f"{key} is {given!r}; give {what}, or a list of them")
        if out.count(number) > 1:
            raise InputError(f"{key} lists {given!r} twice; give each value once")
    return out


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value
    try:
        return float(value) if math.isfinite(float(value)) else None
    except ValueError:
        return None


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
