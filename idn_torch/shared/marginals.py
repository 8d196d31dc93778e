"""What loading one model more, or one less, would change in a slot that was served with contention."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels, serving
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.problem import Problem
from idn_torch.serving_rounds import serve_in_rounds
from idn_torch.shared.workers import compiled_for, owners

__all__ = ["Marginals", "realised_gain", "serve_and_marginals", "shared_marginals"]


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
    batch, _, _, gain = _serve(problem, r, x, discipline, order, rounds)
    return gain.to(r.dtype).view(batch)


def serve_and_marginals(
    problem: Problem,
    r: Tensor,
    x: Tensor,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> tuple[Tensor, Marginals]:
    """`realised_gain` and the marginals there."""
    batch, amount, load, gain = _serve(problem, r, x, discipline, order, rounds)
    amount = amount.view(*batch, *amount.shape[1:])
    around = shared_marginals(problem, r, x, amount, load.view(*batch, *problem.shape))
    return gain.to(r.dtype).view(batch), around


def _serve(
    problem: Problem, r: Tensor, x: Tensor, discipline: str, order: Tensor | None, rounds: int | None
) -> tuple[torch.Size, Tensor, Tensor, Tensor]:
    """Batch dims, B in all; served `(B, R, K)`, load `(B, V*M)` and gain `(B,)` float64."""
    types, ranks = problem.ranked.cost.shape[-2:]
    order = torch.arange(types, device=r.device) if order is None else order
    batch, (r, x, order) = flat_batch(problem, (r, 1), (x, 2), (order, 1))
    if rounds is None and compiled_for(r, batch.numel() * types * ranks):
        amount, load, _, _, gain = serving._serve_compiled(problem, batch, r, x, discipline, order)
    else:
        amount, load, _, _, gain = serve_in_rounds(problem, batch, r, x, discipline, order, rounds)
    return batch, amount, load, gain


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
    if compiled_for(r, size * types * ranks):
        from idn_torch.shared import compiled

        saved = load.new_zeros(size, types)
        tables = map(kernels.rows, (cost, option, first, r, loaded))
        compiled.marginals(
            *owners(problem, size),
            *tables,
            *(t.contiguous().numpy() for t in (amount, load, capacity, mass, add, loss, saved)),
        )
    else:
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
