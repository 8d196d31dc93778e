"""One value of a scenario and where it stands: conversions to text, numbers and references, with errors that say so."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any, NoReturn

import torch

from idn_torch.build import largest_exact
from idn_torch.errors import ScenarioError
from idn_torch.scenario_text import show

__all__ = ["Field", "unknown"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Field:
    """A value of the scenario, where it stands, and the dtype its numbers must fit."""

    value: Any
    where: str
    dtype: torch.dtype

    def fail(self, problem: str) -> NoReturn:
        raise ScenarioError(f"{self.where}: {problem}")

    def mapping_value(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.fail(f"must be a mapping, got {show(self.value)}")
        return self.value

    def mapping(self) -> "dict[str, Field]":
        entries = self.mapping_value().items()
        return {key: Field(value, f"{self.where}: {key}", self.dtype) for key, value in entries}

    def record(self, required: Sequence[str], optional: Sequence[str] = ()) -> "dict[str, Field]":
        """A mapping with fixed keys."""
        fields = self.mapping()
        known = (*required, *optional)
        for key in fields:
            if key not in known:
                self.fail(unknown("key", key, known))
        for key in required:
            if key not in fields:
                self.fail(f"missing key {key!r}; required here: {', '.join(required)}")
        return fields

    def rows(self, key: str = "") -> "list[Field]":
        """The entries of a list; those that are mappings are also named by their entry `key`."""
        if not isinstance(self.value, list):
            self.fail(f"must be a list, got {show(self.value)}")
        rows = []
        for position, value in enumerate(self.value):
            name = value.get(key) if isinstance(value, dict) else None
            label = f" {show(name)}" if isinstance(name, str) and name else ""
            rows.append(Field(value, f"{self.where}[{position}]{label}", self.dtype))
        return rows

    def text(self) -> str:
        """Text that can stand as an id: not empty, printable, no spaces around it."""
        value = self.value
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)  # only from Python mappings; files give text
        if not isinstance(value, str):
            self.fail(f"must be text, got {show(value)}; put it in quotes")
        if value == "":
            self.fail("is empty; give it a value")
        if value != value.strip() or not value.isprintable():
            self.fail(f"has spaces around it or control characters: {show(value)}; remove them")
        return str(value)

    def number(self, above: float | None = None, least: float = 0.0, most: float = float("inf")) -> float:
        """A finite number > `above`, or >= `least` where that is None, and <= `most`."""
        number = _to_float(self.value)
        bound = f">= {least:g}" if above is None else f"> {above:g}"
        wanted = f"a number {bound}" if most == float("inf") else f"a number in [{least:g}, {most:g}]"
        if number is None or not -float("inf") < number < float("inf"):
            self.fail(f"must be {wanted}, got {show(self.value)}")
        if number < least or number > most or (above is not None and number <= above):
            self.fail(f"must be {wanted}, got {number:g}")
        limits = torch.finfo(self.dtype)
        if number != 0 and not limits.tiny <= number <= limits.max:
            self.fail(f"{number:g} is outside the range of {self.dtype} ({limits.tiny:.2g} to {limits.max:.2g})")
        return number + 0.0  # -0 becomes 0

    def whole(self, what: str) -> int:
        """A whole number >= 0 that the dtype holds exactly."""
        value = self.value
        number = _to_float(value)
        if number is None or number != number:
            self.fail(f"must be a whole number >= 0 ({what}), got {show(value)}")
        if number < 0:
            self.fail(f"must not be negative ({what}), got {show(value)}")
        limit = largest_exact(self.dtype)
        if number > limit:
            self._too_large(what, limit)
        try:
            exact = Decimal(value)  # text and Python numbers alike; a float64 could hide a last digit
        except InvalidOperation:
            self.fail(f"must be a whole number ({what}), got {show(value)}")
        if exact != exact.to_integral_value():
            self.fail(f"must be a whole number ({what}), got {show(value)}; round it")
        if exact > limit:
            self._too_large(what, limit)
        return int(exact)

    def _too_large(self, what: str, limit: int) -> NoReturn:
        advice = " or load with dtype=torch.float64" if self.dtype != torch.float64 else ""
        self.fail(
            f"{show(self.value)} ({what}) is above {limit}, up to which {self.dtype} holds every whole number "
            f"exactly; use a smaller number{advice}"
        )

    def one_of(self, names: Sequence[str]) -> str:
        if self.value not in names:
            self.fail(f"must be one of {', '.join(names)}; got {show(self.value)}{_close(self.value, names)}")
        return str(self.value)

    def reference(self, what: str, index: Mapping[str, int]) -> int:
        """The index of the node, model, task or type that is named."""
        name = self.text()
        if name not in index:
            self.fail(unknown(what, name, index))
        return index[name]


def _to_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return float("inf") if value > 0 else -float("inf")  # type: ignore[operator]


def _close(name: object, names: Iterable[str]) -> str:
    close = get_close_matches(str(name).lower(), [known.lower() for known in names], n=1)
    return next((f" (did you mean {known!r}?)" for known in names if close and known.lower() == close[0]), "")


def unknown(what: str, name: str, names: Collection[str], plural: str = "") -> str:
    """What is said of a name that is none of `names`: these, and the closest of them."""
    listed = list(names)[:12]
    more = "" if len(names) == len(listed) else f" and {len(names) - len(listed)} more"
    return f"unknown {what} {show(name)}; {plural or what + 's'} are {', '.join(listed)}{more}{_close(name, names)}"
