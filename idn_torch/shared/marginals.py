"""What loading one model more, or one less, would change in a slot that was served with contention."""

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from idn_torch import kernels
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.feasible import budget_slack
from idn_torch.infida import free_room
from idn_torch.problem import Problem
from idn_torch.serving_rounds import serve_in_rounds
from idn_torch.shapes import broadcast_shapes
from idn_torch.shared.workers import compiled_for

__all__ = [
    "Marginals",
    "gains_at",
    "realised_gain",
    "room_arrays",
    "saved_by_type",
    "serve_and_marginals",
    "shared_marginals",
    "walk_arrays",
    "walks",
]


class Marginals(NamedTuple):
    """First-order changes of the realised gain around an integral allocation.

    Attributes:
        add: what loading a model gains, `(..., V, M)`, >= 0; 0 where it is loaded.
        loss: what unloading a model costs, `(..., V, M)`, >= 0; 0 where it is not loaded, and at repositories.
        saved: realised gain of each type, `(..., R)`.
    """

    add: Tensor
    loss: Tensor
    saved: Tensor


def realised_gain(
    problem: Problem,
    r: Tensor,
    x: Tensor,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> Tensor:
    """The gain of serving a slot under x, `(...)`; arguments as in `serve_kernel`, whose eq. (7) it leaves out."""
    return saved_by_type(problem, r, x, discipline, order, rounds)[0]


def saved_by_type(
    problem: Problem,
    r: Tensor,
    x: Tensor,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`realised_gain` and each type's part of it, `(..., R)`."""
    instances = broadcast_shapes(r.shape[:-1], x.shape[:-2]).numel()
    if walks(problem, r, instances, discipline, order, rounds):
        return _gains_compiled(problem, r, x, order)
    if _compiles(problem, r, x, order, rounds):
        gain, around = _compiled(problem, r, x, discipline, order, None, False)
        return gain, around.saved
    batch, served, _, gain = _serve(problem, r, x, discipline, order, rounds)
    cost, _, first = flat_tables(problem, batch)
    saving = cost.gather(-1, first[..., None]) - cost
    saved = torch.where(served > 0, saving * served, 0.0).sum(-1)
    return gain.to(r.dtype).view(batch), saved.view(*batch, -1)


def serve_and_marginals(
    problem: Problem,
    r: Tensor,
    x: Tensor,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
    into: Tensor | None = None,
) -> tuple[Tensor, Marginals]:
    """`realised_gain` and the marginals there.

    Args:
        problem, r, x, discipline, order, rounds: as in `serve_kernel`.
        into: nodes `(..., V)` bool: take `add` only where one of them could load the model, which fits into the room
            that x leaves and is neither on every feasible allocation nor on none. Of every model when None.
    """
    if _compiles(problem, r, x, order, rounds):
        return _compiled(problem, r, x, discipline, order, into, True)
    batch, served, load, gain = _serve(problem, r, x, discipline, order, rounds)
    served, load = served.view(*batch, *served.shape[1:]), load.view(*batch, *problem.shape)
    around = shared_marginals(problem, r, x, served, load)
    if into is not None:
        fits = problem.sizes <= free_room(problem, x)[..., None]
        around = around._replace(add=torch.where(problem.feasible.choices & fits & into[..., None], around.add, 0.0))
    return gain.to(r.dtype).view(batch), around


def _serve(
    problem: Problem, r: Tensor, x: Tensor, discipline: str, order: Tensor | None, rounds: int | None
) -> tuple[torch.Size, Tensor, Tensor, Tensor]:
    """Batch dims, B in all; served `(B, R, K)`, load `(B, V*M)` and gain `(B,)` float64."""
    order = torch.arange(r.shape[-1], device=r.device) if order is None else order
    batch, (r, x, order) = flat_batch(problem, (r, 1), (x, 2), (order, 1))
    served, load, _, _, gain = serve_in_rounds(problem, batch, r, x, discipline, order, rounds)
    return batch, served, load, gain


def _compiles(problem: Problem, r: Tensor, x: Tensor, order: Tensor | None, rounds: int | None) -> bool:
    if rounds is not None:
        return False
    lead = () if order is None else order.shape[:-1]
    size = broadcast_shapes(r.shape[:-1], x.shape[:-2], lead, problem.ranked.cost.shape[:-2]).numel()
    return compiled_for(r, size * problem.ranked.cost.shape[-2:].numel())


def _compiled(
    problem: Problem, r: Tensor, x: Tensor, discipline: str, order: Tensor | None, into: Tensor | None, around: bool
) -> tuple[Tensor, Marginals]:
    """`serve_and_marginals`; without `around` nothing but what is saved."""
    from idn_torch.shared import compiled_search

    nodes, models = problem.shape
    order = torch.arange(r.shape[-1]) if order is None else order
    everywhere = torch.ones(nodes, dtype=torch.bool) if into is None else into
    batch, (r, x, order, everywhere) = flat_batch(problem, (r, 1), (x, 2), (order, 1), (everywhere, 1))
    size, options = batch.numel(), nodes * models
    load = r.new_zeros(size, options)
    mass, add, loss = (r.new_zeros(size, options if around else 0) for _ in range(3))
    saved = r.new_zeros(size, r.shape[-1])
    gain = r.new_zeros(size, len(problem.task_ids), dtype=torch.float64)
    compiled_search.evaluate(
        *kernels.owners(problem, size),
        problem.type_task.numpy(),
        discipline == "fair",
        *map(kernels.rows, (order, *flat_tables(problem, batch), r, x.flatten(1) > 0.5, everywhere)),
        *room_arrays(problem),
        into is None,
        around,
        problem.capacity.flatten().numpy(),
        *(t.numpy() for t in (load, mass, add, loss, saved, gain)),
    )
    shape = (*batch, nodes, models if around else 0)
    return gain.sum(-1).to(r.dtype).view(batch), Marginals(add.view(shape), loss.view(shape), saved.view(*batch, -1))


def _gains_compiled(problem: Problem, r: Tensor, x: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, (r, x) = flat_batch(problem, (r, 1), (x, 2))
    loaded = (x[:1] if x.stride(0) == 0 else x).flatten(1) > 0.5
    used = loaded.any(0).nonzero()[:, 0]
    gain, saved = gains_at(problem, r, order, used, loaded[:, used].T.expand(-1, batch.numel()))
    return gain.to(r.dtype).view(batch), saved.view(*batch, -1)


def gains_at(problem: Problem, r: Tensor, order: Tensor | None, used: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """`saved_by_type`, compiled, in one walk along the tables for all instances: they take longer to read than to use.

    Args:
        r: `(B, R)`, or fewer rows that repeat.
        used: options that any of the allocations loads, `(C,)`.
        x: which of them each loads, `(C, B)` bool.

    Returns:
        Gain `(B,)` float64, and of each type `(B, R)`.
    """
    from idn_torch.shared import compiled_walk

    size = x.shape[1]
    saved = r.new_zeros(size, r.shape[-1])
    gain = r.new_zeros(size, len(problem.task_ids), dtype=torch.float64)
    owner, workers, _ = kernels.owners(problem, 1)
    compiled_walk.gains(
        owner,
        workers,
        problem.type_task.numpy(),
        *walk_arrays(problem, r, order, used, x),
        *(t.numpy() for t in (saved, gain)),
    )
    return gain.sum(-1), saved


def walk_arrays(problem: Problem, r: Tensor, order: Tensor | None, used: Tensor, x: Tensor) -> tuple[NDArray[Any], ...]:
    """What a walk along the tables reads, and the zeroed loads; as in `gains_at`."""
    ranked = problem.ranked
    place = torch.full((problem.sizes.numel(),), -1, dtype=torch.int32)
    place[used] = torch.arange(len(used), dtype=torch.int32)
    order = torch.arange(r.shape[-1]) if order is None else order
    return (
        *(t.contiguous().numpy() for t in (order, ranked.cost, ranked.option, ranked.first_repository)),
        kernels.rows(r),
        *(t.contiguous().numpy() for t in (place, x, problem.capacity.flatten()[used], r.new_zeros(x.shape))),
    )


def walks(
    problem: Problem, r: Tensor, instances: int, discipline: str, order: Tensor | None, rounds: int | None
) -> bool:
    """Whether so many allocations are compiled in one walk along the tables: of one order and one table."""
    one = discipline == "fcfs" and problem.ranked.cost.ndim == 2 and (order is None or order.ndim == 1)
    return one and rounds is None and compiled_for(r, instances * problem.ranked.cost.numel())


def room_arrays(problem: Problem) -> tuple[NDArray[Any], ...]:
    """What the kernels need to tell what fits: sizes, budgets, the room of each node that is none, and the choices."""
    slack = budget_slack(problem.budgets).double()
    return tuple(t.numpy() for t in (problem.sizes, problem.budgets, slack, problem.feasible.choices))


def shared_marginals(problem: Problem, r: Tensor, x: Tensor, served: Tensor, load: Tensor) -> Marginals:
    """Marginals of every model on every node at once, from one served slot. Never waits for the device.

    With Q the requests that a type has served after a rank, repository included, and P what those save, a model loaded
    there would draw all Q of every type, up to its capacity, in proportion to Q:
    `add = sum_rho (sav * Q - P) * min(1, L / sum_rho Q)`. An unloaded model's requests go to the type's next loaded
    option with capacity left: `loss = sum_rho served * (sav - sav of that option)`. Both leave out what happens next:
    the capacity that the moved requests free where they were, and whether it suffices where they go.

    Args:
        problem: the network.
        r: `(..., R)`.
        x: 0 or 1, `(..., V, M)`.
        served: requests of each type served at each rank under x, by either discipline, `(..., R, K)`.
        load: requests served by each model, `(..., V, M)`.

    Source: this project's own.
    """
    nodes, models = problem.shape
    types, ranks = problem.ranked.cost.shape[-2:]
    batch, (r, x, amount, load) = flat_batch(problem, (r, 1), (x, 2), (served, 2), (load, 2))
    size = batch.numel()
    loaded, load = x.flatten(1) > 0.5, load.flatten(1)
    cost, option, first = flat_tables(problem, batch)
    capacity = problem.capacity.flatten()
    add, mass, loss = (load.new_zeros(size, nodes * models) for _ in range(3))
    active = torch.arange(ranks, device=r.device) < first[..., None]
    saving = torch.where(active, cost.gather(-1, first[..., None]) - cost, 0.0)
    index = torch.where(active, option, 0).flatten(1).long().expand(size, -1)
    here = loaded.gather(-1, index).view(size, types, ranks) & active
    open_here = here & (load < capacity).gather(-1, index).view(size, types, ranks)
    behind = (r[..., None] - amount.cumsum(-1)).clamp(min=0)  # Q
    worth = saving * amount
    saved = worth.sum(-1)
    kept = (saved[..., None] - worth.cumsum(-1)).clamp(min=0)  # P
    absent = active & ~here
    add.scatter_add_(-1, index, torch.where(absent, (saving * behind - kept).clamp(min=0), 0.0).flatten(1))
    mass.scatter_add_(-1, index, torch.where(absent, behind, 0.0).flatten(1))
    add *= torch.where(mass > capacity, capacity / torch.where(mass > 0, mass, 1.0), 1.0)
    # Savings fall along the ranks: the largest of the open options behind is the next one.
    following = torch.where(open_here, saving, 0.0).flip(-1).cummax(-1).values.flip(-1)
    following = torch.nn.functional.pad(following[..., 1:], (0, 1))
    loss.scatter_add_(-1, index, torch.where(here, amount * (saving - following), 0.0).flatten(1))
    shape = (*batch, nodes, models)
    return Marginals(add.view(shape), loss.view(shape), saved.view(*batch, types))
