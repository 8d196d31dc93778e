"""Ranked options of each request type: every (node, model) pair on its path, cheapest first.

Source: inference delivery networks paper, Sec. III-D and III-E (kappa, gamma, lambda, eq. 9-11).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from idn_torch.shapes import broadcast_shapes

__all__ = ["RankedOptions", "cost_table", "rank_options", "take_options", "type_chunks"]

# Working set of one chunk of types, in table elements. About a megabyte of float32 per temporary: it stays in a
# core's cache on a CPU, and caps the temporaries on any device at a small multiple of it.
CHUNK_ELEMENTS = 1 << 18
# A sort is dear enough for larger chunks; its index tensors still stay far below a large table.
SORT_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class RankedOptions:
    """The K options of each of R request types in order of cost.

    Attributes:
        cost: gamma, `(..., R, K)`, non-decreasing along K. Padded ranks repeat the type's last real cost.
        option: flat index `v * M + m`, `(..., R, K)`, int32 where V*M allows, else int64. Padded ranks hold 0.
        mask: True at real ranks, `(..., R, K)`.
        repository: True where the option is a repository model, `(..., R, K)`.
        first_repository: rank of the type's first repository model, `(..., R)` int64: later ranks never serve.
    """

    cost: Tensor
    option: Tensor
    mask: Tensor
    repository: Tensor
    first_repository: Tensor


def type_chunks(types: int, row_elements: int, chunk_elements: int | None = None) -> Iterator[slice]:
    """Slices of the type axis that hold about `chunk_elements` table elements each.

    Args:
        types: number of types R.
        row_elements: elements of one type's row, batch included (B * K).
        chunk_elements: elements a chunk may hold; `CHUNK_ELEMENTS` when None. One type is the least.
    """
    step = max(1, (CHUNK_ELEMENTS if chunk_elements is None else chunk_elements) // max(1, row_elements))
    for start in range(0, types, step):
        yield slice(start, min(types, start + step))


def rank_options(
    cost: Tensor,
    paths: Tensor,
    type_task: Tensor,
    task_models: Tensor,
    repository: Tensor,
    ranks: int,
) -> RankedOptions:
    """Sort each type's costs increasingly; ties by (path position, model index), the same on every device.

    Works on chunks of types, so that the sort's index tensors never reach the size of the tables.

    Args:
        cost: `(..., R, J, Q)`; entries beyond a type's path or its task's models are ignored.
        paths: node of each path position, `(R, J)`, padded with -1.
        type_task: task of each type, `(R,)`.
        task_models: models of each task in catalog order, `(N, Q)`, padded with -1.
        repository: omega, `(V, M)` bool.
        ranks: K, the largest number of options that a type has.
    """
    *batch, types, length, width = cost.shape
    models = repository.shape[1]
    index_dtype = torch.int32 if repository.numel() < 2**31 else torch.int64
    flat_repository = repository.flatten()
    ranked_cost = cost.new_empty(*batch, types, ranks)
    option = torch.empty_like(ranked_cost, dtype=index_dtype)
    mask = torch.empty_like(ranked_cost, dtype=torch.bool)
    is_repository = torch.empty_like(mask)
    for rows in type_chunks(types, length * width * max(1, cost.shape[:-3].numel()), SORT_ELEMENTS):
        model = task_models[type_task[rows]][:, None, :]  # (C, 1, Q)
        node = paths[rows][:, :, None]  # (C, J, 1)
        valid = ((model >= 0) & (node >= 0)).flatten(1)  # (C, J*Q)
        flat_option = (node * models + model).flatten(1)
        # A stable sort of the path-major, model-minor layout breaks ties as the design asks.
        keyed = cost[..., rows, :, :].flatten(-2).masked_fill(~valid, torch.inf)
        values, order = keyed.sort(dim=-1, stable=True)
        values, order = values[..., :ranks], order[..., :ranks]
        count = valid.sum(-1, keepdim=True)  # (C, 1), real ranks
        real = torch.arange(ranks, device=cost.device) < count
        last = values.gather(-1, (count - 1).expand(*values.shape[:-1], 1))
        picked = flat_option.expand_as(keyed).gather(-1, order).masked_fill(~real, 0)
        ranked_cost[..., rows, :] = torch.where(real, values, last)
        option[..., rows, :] = picked.to(index_dtype)
        mask[..., rows, :] = real
        is_repository[..., rows, :] = flat_repository[picked] & real
    first = is_repository.to(torch.uint8).argmax(-1)
    return RankedOptions(ranked_cost, option, mask, is_repository, first)


def cost_table(ranked: RankedOptions, paths: Tensor, model_rank: Tensor, width: int) -> Tensor:
    """The ranked costs back in path layout, `(..., R, J, Q)`; inf where a type has no such option.

    Args:
        ranked: the ranked options.
        paths: `(R, J)`, padded with -1.
        model_rank: position of each model among the models of its task, `(M,)`.
        width: Q, the largest number of models of a task.
    """
    *batch, types, ranks = ranked.cost.shape
    length = paths.shape[1]
    models = model_rank.shape[0]
    table = ranked.cost.new_full((*batch, types, length * width), torch.inf)
    for rows in type_chunks(types, ranks * length * max(1, ranked.cost.shape[:-2].numel())):
        option = ranked.option[..., rows, :].long()
        node, model = option // models, option % models
        position = (paths[rows][:, None, :] == node[..., None]).to(torch.uint8).argmax(-1)
        slot = position * width + model_rank[model]
        real = ranked.mask[..., rows, :]
        # Padded ranks all write to one spare column, so that no real entry is overwritten.
        wide = table.new_full((*slot.shape[:-1], length * width + 1), torch.inf)
        wide.scatter_(-1, torch.where(real, slot, length * width), ranked.cost[..., rows, :])
        table[..., rows, :] = wide[..., :-1]
    return table.unflatten(-1, (length, width))


def take_options(values: Tensor, option: Tensor) -> Tensor:
    """`values[..., option]` for `(..., V, M)` values at the flat options `(..., R, K)`, batch dims broadcast."""
    flat = values.flatten(-2)
    if option.ndim == 2:
        return torch.index_select(flat, -1, option.flatten()).unflatten(-1, option.shape)
    batch = broadcast_shapes(flat.shape[:-1], option.shape[:-2])
    index = option.flatten(-2).long().expand(*batch, -1)
    return flat.expand(*batch, -1).gather(-1, index).unflatten(-1, option.shape[-2:])
