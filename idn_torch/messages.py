"""The subgradient as nodes compute it among themselves: control messages that travel along each request's path.

Source: inference delivery networks paper, Sec. IV-B.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.batching import flat_batch, flat_tables
from idn_torch.checks import check_tensors
from idn_torch.hops import hop_of_rank
from idn_torch.problem import Problem
from idn_torch.ranking import type_chunks

__all__ = ["ControlMessages", "control_messages"]


class ControlMessages(NamedTuple):
    """A slot's control messages. A type without requests sends none: its figures are 0.

    Attributes:
        cost: gamma_{K*}, what the message brings back down, `(..., R)`.
        hops: nodes the message visits, the ingress included, `(..., R)` int64.
        payload: `(gamma, z)` pairs it carries, summed over the links it goes up, `(..., R)` int64. Besides them every
            message carries r and Z up, and the cost down.
        slope: the subgradient that the nodes put together, eq. (18), `(..., V, M)`.
    """

    cost: Tensor
    hops: Tensor
    payload: Tensor
    slope: Tensor

    def messages(self) -> Tensor:
        """Messages over a link, up and down, `(...)` int64."""
        return 2 * (self.hops - 1).clamp(min=0).sum(-1)

    def share_visited(self, problem: Problem) -> Tensor:
        """Nodes visited of all nodes on the paths of types with requests, `(...)`; 1 where no search stopped early."""
        length = (problem.paths >= 0).sum(-1)
        asked = torch.where(self.hops > 0, length, 0).sum(-1)
        return torch.where(asked > 0, self.hops.sum(-1) / asked.clamp(min=1), 1.0)


@torch.no_grad()
def control_messages(problem: Problem, r: Tensor, lam: Tensor, y: Tensor) -> ControlMessages:
    """Find K* and the subgradient of every type by its control message, hop by hop.

    At path position j the node knows what came with the message (r, the counter Z, a list P of pending `(gamma, z)`),
    its own options, and LB_j, the least cost of the type's options further up. It merges its options with z > 0 into P,
    in rank order, and moves the first of P to Z as long as its cost is at most LB_j: nothing further up comes before
    it. The entry that makes Z reach r is K*: the message stops and gamma_{K*} goes back down, and each node it passes
    adds `lam * relu(gamma_{K*} - gamma)` to its own subgradient. Otherwise the message goes on, without the pending
    entries behind the one where Z and they together reach r.

    (Adding z in the order of the path, as a first reading of step 2 has it, finds another K*: costs need not rise along
    a path. Step 4's sum runs over the request types, not over the models.)

    Args:
        problem: the network.
        r: requests, `(..., R)`.
        lam: potential available capacity, `(..., R, K)`, from `potential_capacity` or `serve`.
        y: allocation in [0, 1], `(..., V, M)`; 1 at repository models.

    Returns:
        `ControlMessages`. K* and the subgradient are those of `subgradient`.

    Raises:
        InputError: naming the argument and the type, node or model that holds a wrong value.

    Example:
        >>> sent = control_messages(problem, r, potential_capacity(problem, r), y)  # doctest: +SKIP
        >>> int(sent.messages()), float(sent.share_visited(problem))  # doctest: +SKIP
        (2310, 0.61)
    """
    check_tensors(problem, r=r, lam=lam, y=y)
    hop = hop_of_rank(problem)
    types, ranks = problem.ranked.cost.shape[-2:]
    batch, (r, lam, y, hop) = flat_batch(problem, (r, 1), (lam, 2), (y, 2), (hop, 2))
    costs, options, _ = flat_tables(problem, batch)
    mask = problem.ranked.mask.reshape(-1, types, ranks)[:1]
    size, length = batch.numel(), problem.paths.shape[1]
    y = y.flatten(-2)
    slope = torch.zeros_like(y, memory_format=torch.contiguous_format)
    figures: tuple[list[Tensor], ...] = ([], [], [])
    for chunk in type_chunks(types, size * ranks):
        gamma, at, real, asked = costs[:, chunk], hop[:, chunk], mask[:, chunk], r[:, chunk] >= 1
        index, available = options[:, chunk].flatten(1).long().expand(size, -1), lam[:, chunk]
        z = available * y.gather(-1, index).view_as(available)  # Eq. (11)
        sent = _travel(gamma, at, real, z, r[:, chunk], length)
        star, last, carried = (torch.where(asked, value, 0) for value in sent)
        reached = asked[..., None] & (at < last[..., None]) & real
        h = torch.where(reached, (star[..., None] - gamma).relu() * available, 0.0)  # Eq. (19)
        slope.scatter_add_(-1, index, h.flatten(1))
        for parts, value in zip(figures, (star, last, carried), strict=True):
            parts.append(value)
    cost, visited, pairs = (torch.cat(parts, -1).view(*batch, types) for parts in figures)
    return ControlMessages(cost, visited, pairs, slope.view(*batch, *problem.shape))


def _travel(
    gamma: Tensor, hop: Tensor, real: Tensor, z: Tensor, r: Tensor, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """gamma_{K*}, nodes visited and pairs carried of each message, `(B, C)`; tables are `(1 or B, C, K)`.

    What a message knows at a hop is a subset of the ranks, and ranks are in P's order: Z is a running sum over it.
    """
    ranks = gamma.shape[-1]
    star = z.new_zeros(r.shape)
    visited = torch.zeros(r.shape, dtype=torch.int64, device=r.device)
    carried = torch.zeros_like(visited)
    for j in range(length):
        under_way = visited == 0
        known = (hop <= j) & real & (z > 0)
        above = torch.where((hop > j) & real, gamma, torch.inf).amin(-1, keepdim=True)  # LB_j
        moved = known & (gamma <= above)
        counter = torch.where(moved, z, 0.0).cumsum(-1)  # Z after each move
        rank = (counter < r[..., None]).sum(-1)
        stops = under_way & ((rank < ranks) | (above[..., 0] == torch.inf))
        at = rank.clamp(max=ranks - 1)[..., None]  # the last rank where nothing reaches r, which no repository allows
        star = torch.where(stops, gamma.expand_as(z).gather(-1, at)[..., 0], star)
        visited = torch.where(stops, j + 1, visited)
        # Z and the pending entries before each one
        ahead = torch.nn.functional.pad(torch.where(known, z, 0.0).cumsum(-1)[..., :-1], (1, 0))
        pending = (known & ~moved & (ahead < r[..., None])).sum(-1)
        carried = torch.where(under_way & ~stops, carried + pending, carried)
    return star, visited, carried
