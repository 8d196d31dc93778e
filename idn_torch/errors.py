"""Every error this package raises on purpose.

All of them are `IDNError` and `ValueError`, so a caller can catch either. A message names the offending node,
model, task, type, field or row, and says what to change.
"""

__all__ = ["IDNError", "InputError", "ProblemError", "RoutingError", "ScenarioError"]


class IDNError(ValueError):
    """Base of all errors raised on purpose by idn_torch."""


class ScenarioError(IDNError):
    """A scenario file (or the mapping given in its place) does not follow the schema."""


class RoutingError(IDNError):
    """A routing path is broken, or a request type cannot reach a repository of its task."""


class ProblemError(IDNError):
    """The arrays of a problem do not fit together, or leave no feasible placement."""


class InputError(IDNError):
    """A function was called with tensors or options it cannot work with."""
