"""Marginals under contention and the local search that they guide."""

import dataclasses

import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import generators, kernels
from idn_torch.philox import uniforms
from idn_torch.serving import serve_kernel
from idn_torch.shared.groups import Grouped, add_in_groups, saved_in_groups
from idn_torch.shared.local_search import evaluate, fill, find_levels, most_models
from idn_torch.shared.marginals import realised_gain, saved_by_type, serve_and_marginals, shared_marginals
from idn_torch.shared.moves import Realised, adopt, ruin_and_recreate
from tests.instances import close, random_allocation, random_problem
from tests.pretend import pretended, pretended_cuda
from tests.shared_oracle import entries


def feasible(problem, seed):
    """An integral allocation within every budget."""
    y = idn.project(random_allocation(problem, seed) + 0.1, problem.sizes, problem.budgets, problem.repository)
    x = idn.depround(y, problem.sizes, generator=torch.Generator().manual_seed(seed))
    over = (problem.sizes * x).sum(-1) > problem.budgets
    return torch.where(over[:, None], problem.repository.to(x.dtype), x)


def within_budgets(problem, x):
    used = (problem.sizes * x).sum(-1)
    return bool((used <= problem.budgets * (1 + 1e-6)).all() and (x[..., problem.repository] == 1).all())


def loops(problem, r, x, served, load):
    """The formulas, type by type."""
    add, mass, loss = (np.zeros(problem.shape) for _ in range(3))
    saved = np.zeros(len(r))
    found = entries(problem)
    for rho in range(len(r)):
        own = [e for e in found if e.type == rho]
        first = len(own)
        for e in own:
            v, m = e.option
            if x[v, m]:
                amount = served[rho, e.rank]
                saved[rho] += amount * e.saving
                room = [x[f.option] and load[f.option] < problem.capacity[f.option] for f in own]
                behind = [f.saving for f in own[e.rank + 1 :] if room[f.rank]]
                loss[v, m] += amount * (e.saving - (behind[0] if behind else 0.0))
            else:
                later = [(served[rho, f.rank], f.saving) for f in own[e.rank + 1 :]] + [(served[rho, first], 0.0)]
                add[v, m] += sum(amount * (e.saving - saving) for amount, saving in later)
                mass[v, m] += sum(amount for amount, _ in later)
    capacity = problem.capacity.numpy()
    share = np.minimum(1, np.divide(capacity, mass, out=np.ones_like(add), where=mass > 0))
    return add * share, loss, saved


@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
@pytest.mark.parametrize("seed", range(12))
def test_marginals_match_the_formulas(seed, discipline, monkeypatch):
    problem = random_problem(seed, whole_costs=seed % 2 == 0)
    r, x = problem.requests[0], random_allocation(problem, seed, integral=True)
    order = torch.randperm(len(r), generator=torch.Generator().manual_seed(seed)) if discipline == "fcfs" else None
    served = serve_kernel(problem, r, x, discipline, order)
    want = loops(problem, r, x.numpy(), served.served.numpy(), served.load.numpy())
    scale = float(r.sum()) * 12
    for a, b in zip(shared_marginals(problem, r, x, served.served, served.load), want, strict=True):
        assert close(a, b, scale=scale)
    for least in (1 << 60, 0):
        monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
        gain, got = serve_and_marginals(problem, r, x, discipline, order)
        for a, b in zip(got, want, strict=True):
            assert close(a, b, scale=scale)
        assert close(gain, served.gain)
        assert close(realised_gain(problem, r, x, discipline, order), served.gain)
        gain, saved = saved_by_type(problem, r, x, discipline, order)
        assert close(gain, served.gain)
        assert close(saved, want[2], scale=scale)


@pytest.mark.parametrize("least", [1 << 60, 0], ids=["torch", "compiled"])
@pytest.mark.parametrize("seed", range(6))
def test_marginals_into_some_nodes_are_those_of_what_fits_there(seed, least, monkeypatch):
    problem = random_problem(seed, budget=(0.2, 0.9))
    r, x = problem.requests[0], feasible(problem, seed)
    _, every = serve_and_marginals(problem, r, x)
    into = torch.arange(problem.shape[0]) % 2 == 0
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
    _, some = serve_and_marginals(problem, r, x, into=into)
    where = problem.feasible
    for v in range(problem.shape[0]):
        room = float(problem.budgets[v] - (problem.sizes[v] * x[v]).sum()) + 1e-9
        for m in range(problem.shape[1]):
            fits = into[v] and where.free[v, m] and not where.holds_all[v] and problem.sizes[v, m] <= room
            assert close(some.add[v, m], every.add[v, m] if fits else 0.0)
    assert close(some.loss, every.loss)


@pytest.mark.parametrize("seed", range(8))
def test_marginals_are_exact_where_capacity_never_binds(seed):
    problem = random_problem(seed, nodes=4, models=5, tasks=2, types=6)
    problem = dataclasses.replace(problem, capacity=torch.full_like(problem.capacity, 1000.0))
    r, x = problem.requests[0], random_allocation(problem, seed, integral=True)
    gain, around = serve_and_marginals(problem, r, x)
    for v in range(4):
        for m in range(5):
            if problem.repository[v, m]:
                continue
            other = x.clone()
            other[v, m] = 1 - x[v, m]
            change = idn.serve(problem, r, other).gain - gain
            assert close(change, around.add[v, m] if other[v, m] else -around.loss[v, m])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_marginals_equal_the_loop_on_both_paths(dtype, monkeypatch):
    problem = random_problem(2, dtype, types=20)
    scale = torch.tensor([1.0, 2.0], dtype=dtype).view(2, 1, 1, 1, 1)
    batched = problem.with_cost(problem.cost_table() * scale)
    x = torch.stack([random_allocation(problem, s, integral=True) for s in range(3)])
    r = problem.requests[0]
    for least in (1 << 60, 0):
        monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
        gain, around = serve_and_marginals(batched, r, x)
        assert around.add.shape == (2, 3, *problem.shape)
        for i in range(2):
            one = problem.with_cost(problem.cost_table() * scale[i, 0])
            for s in range(3):
                alone, single = serve_and_marginals(one, r, x[s])
                assert close(gain[i, s], alone, dtype, scale=1e3)
                for a, b in zip(around, single, strict=True):
                    assert close(a[i, s], b, dtype, scale=1e3)


@pytest.mark.parametrize("seed", range(20))
def test_no_path_meets_a_level_twice(seed):
    problem = random_problem(seed, nodes=9, types=15)
    levels = find_levels(problem)
    for rho, path in enumerate(problem.paths.tolist()):
        nodes = [v for v in path if v >= 0]
        own = [int(levels.level[v]) for v in nodes]
        assert len(set(own)) == len(own)
        visited = levels.visited[:, rho].tolist()
        assert {g: v for g, v in enumerate(visited) if v < 9} == dict(zip(own, nodes, strict=True))


def test_levels_of_a_tree_are_its_depths():
    problem = generators.tree(nodes=40, branching=3, depth=5, tasks=2, models_per_task=3)
    level = find_levels(problem).level
    assert level[0] == 0
    for v in range(1, 40):
        assert level[v] == level[(v - 1) // 3] + 1


@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
@pytest.mark.parametrize("seed", range(12))
def test_a_move_never_loses_and_keeps_to_the_budgets(seed, discipline):
    problem = random_problem(seed, nodes=8, models=12, types=20, budget=(0.1, 0.7))
    r = problem.requests[0]
    levels = find_levels(problem)
    standing = evaluate(problem, r, feasible(problem, seed), discipline)
    for move in range(5):
        number = uniforms(torch.tensor(seed), 8, 1, slot=move)[..., 0]
        x, gain, _ = ruin_and_recreate(problem, levels, r, standing, number, discipline)
        assert within_budgets(problem, x)
        assert gain >= standing.gain
        assert close(gain, idn.serve(problem, r, x, discipline).gain)
        standing = evaluate(problem, r, x, discipline)


def test_moves_do_find_something():
    gains = []
    for seed in range(5):
        problem = random_problem(seed, nodes=8, models=12, types=30, budget=(0.2, 0.5))
        r, levels = problem.requests[0], find_levels(problem)
        start = standing = evaluate(problem, r, feasible(problem, seed))
        for move in range(10):
            number = uniforms(torch.tensor(seed), 8, 1, slot=move)[..., 0]
            standing = evaluate(problem, r, ruin_and_recreate(problem, levels, r, standing, number)[0])
        gains.append(float(standing.gain / start.gain.clamp(min=1)))
    assert np.mean(gains) > 1.02


def test_batched_moves_equal_the_loop():
    problem = random_problem(4, nodes=8, models=12, types=20, budget=(0.2, 0.6))
    r, levels = problem.requests[0], find_levels(problem)
    x = torch.stack([feasible(problem, s) for s in range(4)]).view(2, 2, *problem.shape)
    number = torch.rand(2, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together, gains, _ = ruin_and_recreate(problem, levels, r, evaluate(problem, r, x), number)
    for i in range(2):
        for j in range(2):
            alone, gain, _ = ruin_and_recreate(problem, levels, r, evaluate(problem, r, x[i, j]), number[i, j])
            assert torch.equal(together[i, j], alone)
            assert close(gains[i, j], gain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
def test_compiled_moves_equal_those_of_torch(discipline, dtype, monkeypatch):
    for seed in range(6):
        problem = random_problem(seed, dtype, nodes=8, models=12, types=20, budget=(0.2, 0.6))
        r, levels = problem.requests[0], find_levels(problem)
        x = torch.stack([feasible(problem, s) for s in range(2)])
        number = torch.rand(2, 8, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        found = []
        for least in (1 << 60, 0):
            monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
            standing = evaluate(problem, r, x, discipline)
            built = fill(problem, x, standing.marginals.add, several=3)
            found.append((built, *ruin_and_recreate(problem, levels, r, standing, number, discipline)))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])
        assert close(found[0][2], found[1][2], dtype)


@pytest.mark.parametrize("least", [1 << 60, 0], ids=["torch", "compiled"])
@pytest.mark.parametrize("seed", range(10))
def test_filling_fits_and_loads_different_tasks(seed, least, monkeypatch):
    problem = random_problem(seed, nodes=6, models=15, tasks=4, types=20, budget=(0.3, 0.8))
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
    r = problem.requests[0]
    bare = problem.repository.to(torch.float64)
    add = evaluate(problem, r, bare).marginals.add
    for several in (1, 3, 9):
        x = fill(problem, bare, add, several=several)
        loaded = x - bare
        assert within_budgets(problem, x)
        assert (loaded >= 0).all()
        assert (loaded.sum(-1) <= several).all()
        assert (add[loaded > 0] > 0).all()
        per_task = torch.stack([loaded[:, problem.model_task == i].sum(-1) for i in range(4)])
        assert (per_task <= 1).all()
        if several == 1:  # the best of what fits
            assert close((loaded * add).sum(-1), add.amax(-1))
    some = torch.arange(6) < 3
    assert not (fill(problem, bare, add, some) - bare)[3:].any()
    assert torch.equal(fill(problem, bare, add, some)[:3], fill(problem, bare, add)[:3])


def test_most_models_counts_the_smallest():
    problem = random_problem(1, nodes=3, models=6, budget=(0.4, 0.6))
    where = problem.feasible
    counts = []
    for v in range(3):
        left, count = float(where.budgets[v]), 0
        for size in sorted(problem.sizes[v][where.free[v]].tolist()):
            if size <= left:
                left, count = left - size, count + 1
            else:
                break
        counts.append(0 if where.holds_all[v] else count)
    assert most_models(problem) == max(1, *counts)


def test_a_move_stays_on_a_pretended_device(three_nodes):
    problem = three_nodes.to(dtype=torch.float32)
    levels = find_levels(problem)
    with pretended_cuda():
        there, r, groups = pretended(problem), pretended(problem.requests)[0], pretended(levels)
        standing = evaluate(there, r, pretended(problem.sizes), rounds=6)
        moved = ruin_and_recreate(there, groups, r, standing, pretended(problem.budgets), "fcfs", None, 6)
        assert {t.device.type for t in moved} == {"cuda"}
        assert moved[0].shape == problem.shape


@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
@pytest.mark.parametrize("least", [1 << 60, 0], ids=["torch", "compiled"])
@pytest.mark.parametrize("seed", range(6))
def test_groups_equal_their_allocations_one_by_one(seed, least, discipline, monkeypatch):
    problem = random_problem(seed, nodes=8, models=12, types=20, budget=(0.2, 0.8))
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
    r = problem.requests[:2]
    x = torch.stack([feasible(problem, s) for s in (1, 2)])
    proposals = torch.stack([torch.stack([feasible(problem, s + p) for s in (3, 5)]) for p in (0, 1)])
    group = torch.arange(8) % 3
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed)) if discipline == "fcfs" else None
    saved = saved_in_groups(problem, r, Grouped(x, proposals, group, 3), discipline, order)
    add = add_in_groups(problem, r, Grouped(x, proposals[1:], group, 3), discipline, order)
    assert saved.shape == (3, 2, 2, 20)
    assert add.shape == x.shape
    scale = float(r.sum()) * 12
    for g in range(3):
        for p in range(2):
            for e in range(2):
                one = torch.where((group == g)[:, None], proposals[p, e], x[e])
                _, around = serve_and_marginals(problem, r[e], one, discipline, order, into=group == g)
                assert close(saved[g, p, e], around.saved, scale=scale)
                if p == 1:
                    assert close(add[e, group == g], around.add[group == g], scale=scale)


@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
@pytest.mark.parametrize("seed", range(8))
def test_adopting_never_loses_and_takes_over_what_is_better_everywhere(seed, discipline):
    problem = random_problem(seed, nodes=8, models=12, types=20, budget=(0.2, 0.7))
    r, levels = problem.requests[0], find_levels(problem)
    x = feasible(problem, seed)
    begun = Realised(x, *saved_by_type(problem, r, x, discipline))
    proposals = torch.stack([feasible(problem, seed + i) for i in (10, 20, 30)])
    found = adopt(problem, levels, r, begun, proposals, discipline)
    assert within_budgets(problem, found.x)
    assert found.gain >= begun.gain
    assert close(found.gain, idn.serve(problem, r, found.x, discipline).gain)
    assert close(found.saved.sum(), found.gain)
    for v in range(8):  # a node's row is its old one or a proposal's
        assert any(torch.equal(found.x[v], row) for row in (x[v], *proposals[:, v]))
    bare = problem.repository.to(x.dtype)
    begun = Realised(bare, *saved_by_type(problem, r, bare, discipline))
    better = adopt(problem, levels, r, begun, x[None], discipline)
    assert better.gain > begun.gain or idn.serve(problem, r, x, discipline).gain <= begun.gain
    again = adopt(problem, levels, r, better, better.x[None], discipline)  # itself proposed: nothing to gain
    assert torch.equal(again.x, better.x)
    assert again.gain == better.gain
