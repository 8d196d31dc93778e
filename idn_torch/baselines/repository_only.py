"""No model but the repositories': the gain is 0, and the cost what all gains are measured from."""

from dataclasses import dataclass

from torch import Tensor

from idn_torch.baselines.static import StaticPolicy, StaticState, batch_shape, repositories
from idn_torch.problem import Problem

__all__ = ["RepositoryOnly"]


@dataclass(frozen=True, eq=False)
class RepositoryOnly(StaticPolicy):
    """Every request is served by a repository model.

    Example:
        >>> run(problem, RepositoryOnly()).gain.abs().max()  # doctest: +SKIP
        tensor(0., dtype=torch.float64)
    """

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> StaticState:
        """The minimal allocation omega. The seed only gives its batch dims."""
        return StaticState(repositories(problem, batch_shape(problem, seed, batch)))
