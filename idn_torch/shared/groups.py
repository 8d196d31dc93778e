"""An allocation changed at the nodes of one group at a time: what each change saves, and what it makes room for."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.batching import flat_batch
from idn_torch.problem import Problem
from idn_torch.shared.marginals import gains_at, room_arrays, saved_by_type, serve_and_marginals, walk_arrays, walks

__all__ = ["Grouped", "add_in_groups", "saved_in_groups"]


class Grouped(NamedTuple):
    """For each of G groups and P proposals the allocation x with the proposal's rows at the nodes of the group.

    Attributes:
        x: `(..., V, M)`.
        proposals: `(P, ..., V, M)`.
        group: of each node, 0..G-1, `(V,)` int64.
        groups: G.
    """

    x: Tensor
    proposals: Tensor
    group: Tensor
    groups: int

    def own(self) -> Tensor:
        """Which nodes each group owns, `(G, V)` bool."""
        return self.group == torch.arange(self.groups, device=self.group.device)[:, None]

    def dense(self) -> Tensor:
        """The allocations themselves, `(G, P, ..., V, M)` bool."""
        own = self.own().view(self.groups, *(1,) * (self.x.ndim - 1), -1, 1)
        return torch.where(own, self.proposals > 0.5, self.x > 0.5)

    def loaded(self) -> tuple[Tensor, Tensor]:
        """Options that any of them loads, `(C,)`, and which of those each does, `(C, G*P*E)` for E batch elements."""
        proposals = (self.proposals > 0.5).reshape(len(self.proposals), -1, self.x.shape[-2:].numel())
        x = (self.x > 0.5).reshape(1, -1, proposals.shape[-1])
        used = (proposals.flatten(0, 1).any(0) | x[0].any(0)).nonzero()[:, 0]
        own = self.own()[:, used // self.x.shape[-1]]
        return used, torch.where(own[:, None, None], proposals[..., used], x[..., used]).flatten(0, 2).T


def saved_in_groups(
    problem: Problem,
    r: Tensor,
    grouped: Grouped,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> Tensor:
    """The second part of `saved_by_type`, `(G, P, ..., R)`."""
    batch, (requests, x) = flat_batch(problem, (r, 1), (grouped.x, 2))
    lead = (grouped.groups, len(grouped.proposals))
    if not walks(problem, r, lead[0] * lead[1] * batch.numel(), discipline, order, rounds):
        return saved_by_type(problem, r, grouped.dense(), discipline, order, rounds)[1]
    _, saved = gains_at(problem, requests, order, *_flat(grouped, batch, x).loaded())
    return saved.view(*lead, *batch, -1)


def add_in_groups(
    problem: Problem,
    r: Tensor,
    grouped: Grouped,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> Tensor:
    """`Marginals.add` at every node, of the models that fit there, under the allocation of its own group `(..., V, M)`.

    For a single proposal.
    """
    batch, (requests, x) = flat_batch(problem, (r, 1), (grouped.x, 2))
    own = grouped.own()
    if not walks(problem, r, grouped.groups * batch.numel(), discipline, order, rounds):
        into = own.view(grouped.groups, *(1,) * (grouped.x.ndim - 2), -1)
        return serve_and_marginals(problem, r, grouped.dense()[:, 0], discipline, order, rounds, into)[1].add.sum(0)
    from idn_torch.shared import compiled_walk

    flat = _flat(grouped, batch, x)
    rows = (flat.proposals[0] > 0.5).flatten(1).contiguous()
    wanted = torch.zeros_like(rows, dtype=torch.int32)
    mass, add = (r.new_zeros(rows.shape) for _ in range(2))
    owner, workers, _ = kernels.owners(problem, 1)
    compiled_walk.add_in_groups(
        owner,
        workers,
        grouped.group.numpy(),
        *walk_arrays(problem, requests, order, *flat.loaded()),
        *room_arrays(problem),
        problem.capacity.flatten().numpy(),
        *(t.numpy() for t in (rows, wanted, mass, add)),
    )
    return add.view(*batch, *problem.shape)


def _flat(grouped: Grouped, batch: torch.Size, x: Tensor) -> Grouped:
    """With one batch dim; x is flat already."""
    proposals = grouped.proposals.expand(-1, *batch, *x.shape[-2:])
    return grouped._replace(x=x, proposals=proposals.reshape(len(proposals), *x.shape))
