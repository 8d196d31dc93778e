"""The problem as tensors: nodes, models, budgets, routing paths and ranked options on one device and dtype.

Source: inference delivery networks paper, Sec. III.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idn_torch.errors import ProblemError
from idn_torch.feasible import FeasibleSet
from idn_torch.ranking import RankedOptions, cost_table, rank_options

__all__ = ["Problem", "eq6_cost"]


@dataclass(frozen=True, eq=False)
class Problem:
    """An inference delivery network. Built and checked by `build_problem` or `load_problem`, then trusted.

    Letters: V nodes, M models, N tasks, Q models of a task (padded), R request types, J path positions (padded),
    K ranks (padded), T slots. All tensors share one device, all floating ones one dtype.

    Attributes:
        sizes: s > 0, `(V, M)`, in `size_unit`.
        budgets: b, `(V,)`, totals with the repository models included, in `size_unit`.
        repository: omega, `(V, M)` bool.
        capacity: L, `(V, M)`, whole requests a slot.
        feasible: the free entries of each node and the budget b' left for them.
        fill_rounds: how many models fit at most into the room that one unloaded model leaves, over all nodes.
        model_task: task of each model, `(M,)` int64.
        task_models: models of each task in catalog order, `(N, Q)` int64, padded with -1.
        model_rank: position of each model among its task's, `(M,)` int64.
        paths: node of each path position, `(R, J)` int64, padded with -1.
        type_task: task of each request type, `(R,)` int64.
        ranked: the options of each type in order of cost; leading batch dims after `with_cost` with a batch.
        requests: `(T, R)`, or None when built without.
        path_latency: round-trip latency from the ingress to each position, `(R, J)`, in `latency_unit`; like the
            three below it is None when the problem was built from a general cost table.
        delay: d, `(V, M)`, in `latency_unit`.
        accuracy: a in [0, 1], `(M,)`.
        alpha: `(N,)`, `latency_unit` per unit of lost accuracy.
    """

    name: str
    node_ids: tuple[str, ...]
    model_ids: tuple[str, ...]
    task_ids: tuple[str, ...]
    type_ids: tuple[str, ...]
    latency_unit: str
    size_unit: str
    slot_seconds: float
    links: tuple[tuple[int, int, float], ...]
    sizes: Tensor
    budgets: Tensor
    repository: Tensor
    capacity: Tensor
    feasible: FeasibleSet
    fill_rounds: int
    model_task: Tensor
    task_models: Tensor
    model_rank: Tensor
    paths: Tensor
    type_task: Tensor
    ranked: RankedOptions
    requests: Tensor | None = None
    path_latency: Tensor | None = None
    delay: Tensor | None = None
    accuracy: Tensor | None = None
    alpha: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Floating dtype of all real tensors."""
        return self.sizes.dtype

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.sizes.device

    @property
    def shape(self) -> tuple[int, int]:
        """(V, M)."""
        return (len(self.node_ids), len(self.model_ids))

    def cost_table(self) -> Tensor:
        """Costs in path layout, `(..., R, J, Q)`, eq. (6) or whatever `with_cost` gave; inf at padding."""
        return cost_table(self.ranked, self.paths, self.model_rank, self.task_models.shape[1])

    def with_cost(self, cost: Tensor, validate: bool = True) -> "Problem":
        """The same network under other costs: time-varying, measured, or a batch of them.

        Args:
            cost: `(..., R, J, Q)` in `latency_unit`, Q in catalog order of the type's task. Entries beyond a type's
                path or its task's models are ignored. Leading dims become batch dims of the ranked tables.
            validate: check for NaN and inf, which waits for the device; turn off inside a loop on a GPU.

        Returns:
            A Problem that shares everything but the ranked tables.

        Raises:
            ProblemError: wrong shape, dtype or device, or a cost that is not finite (the message names the type).

        Example:
            >>> dearer = problem.with_cost(problem.cost_table() * 2)
        """
        expected = (*self.paths.shape, self.task_models.shape[1])
        if tuple(cost.shape[-3:]) != expected:
            raise ProblemError(
                f"cost has shape {tuple(cost.shape)}; expected (..., R, J, Q) with {expected} at the end"
            )
        if cost.dtype != self.dtype or cost.device != self.device:
            raise ProblemError(
                f"cost is {cost.dtype} on {cost.device}; this problem is {self.dtype} on {self.device}: convert it"
            )
        if validate:
            self.check_cost(cost)
        ranks = self.ranked.cost.shape[-1]
        ranked = rank_options(cost, self.paths, self.type_task, self.task_models, self.repository, ranks)
        return dataclasses.replace(self, ranked=ranked)

    def check_cost(self, cost: Tensor) -> None:
        """Raise `ProblemError` naming type, node and model where an option on a path has no finite cost."""
        wrong = ~cost.isfinite() & self.option_exists()
        if wrong.any():
            *_, rho, j, q = wrong.nonzero()[0].tolist()
            node, model = int(self.paths[rho, j]), int(self.task_models[self.type_task[rho], q])
            raise ProblemError(
                f"type {self.type_ids[rho]!r}: the cost of model {self.model_ids[model]!r} on node "
                f"{self.node_ids[node]!r} is {float(cost[wrong][0])}; every option on a path needs a finite cost"
            )

    def option_count(self) -> Tensor:
        """K_rho, the number of options of each type, `(R,)` int64."""
        per_task = (self.task_models >= 0).sum(-1)
        return (self.paths >= 0).sum(-1) * per_task[self.type_task]

    def option_exists(self) -> Tensor:
        """True where path position j and model q of the type's task exist, `(R, J, Q)`."""
        return (self.paths >= 0)[:, :, None] & (self.task_models[self.type_task] >= 0)[:, None, :]

    def with_alpha(self, alpha: Tensor) -> "Problem":
        """The same network under other weights of lost accuracy, eq. (6): a batch of them in one program.

        Args:
            alpha: `(..., N)`, `latency_unit` per unit of lost accuracy; `(..., 1)` for one number for all tasks.

        Raises:
            ProblemError: the problem was built from a general cost table, or alpha has a wrong shape.
        """
        if self.path_latency is None or self.delay is None or self.accuracy is None:
            raise ProblemError("with_alpha needs latency, delay and accuracy; this problem has a general cost table")
        tasks = len(self.task_ids)
        if alpha.ndim == 0 or alpha.shape[-1] not in (1, tasks):
            raise ProblemError(f"alpha has shape {tuple(alpha.shape)}; expected (..., {tasks}) or (..., 1)")
        alpha = alpha.to(self.sizes).expand(*alpha.shape[:-1], tasks)
        cost = eq6_cost(
            self.paths, self.type_task, self.task_models, self.path_latency, self.delay, self.accuracy, alpha
        )
        return dataclasses.replace(self.with_cost(cost), alpha=alpha)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Problem":
        """A copy on another device or in another floating dtype; nothing is checked again."""

        def move(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
            if isinstance(value, RankedOptions):
                return RankedOptions(**{f.name: move(getattr(value, f.name)) for f in dataclasses.fields(value)})
            if isinstance(value, FeasibleSet):
                return FeasibleSet(*map(move, value))
            return value

        return Problem(**{f.name: move(getattr(self, f.name)) for f in dataclasses.fields(self)})


def eq6_cost(
    paths: Tensor,
    type_task: Tensor,
    task_models: Tensor,
    path_latency: Tensor,
    delay: Tensor,
    accuracy: Tensor,
    alpha: Tensor,
) -> Tensor:
    """Eq. (6): `C[rho, j, m] = path_latency[rho, j] + d[p_j, m] + alpha * (1 - a_m)`.

    Args:
        paths: `(R, J)`, padded with -1.
        type_task: `(R,)`.
        task_models: `(N, Q)`, padded with -1.
        path_latency: `(R, J)`.
        delay: `(V, M)`.
        accuracy: `(M,)`.
        alpha: `(..., N)`.

    Returns:
        `(..., R, J, Q)`; entries at padding hold some other option's figures.
    """
    model = task_models[type_task].clamp(min=0)  # (R, Q)
    node = paths.clamp(min=0)  # (R, J)
    quality = alpha[..., type_task, None] * (1 - accuracy[model])  # (..., R, Q)
    serving = path_latency[:, :, None] + delay[node[:, :, None], model[:, None, :]]  # (R, J, Q)
    return serving + quality[..., None, :]
