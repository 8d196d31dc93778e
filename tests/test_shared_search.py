"""Marginals under contention and the local search that they guide."""

import dataclasses

import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import generators, kernels
from idn_torch.philox import uniforms
from idn_torch.serving import serve_kernel
from idn_torch.shared.local_search import evaluate, find_levels, most_models, refill, ruin_and_recreate
from idn_torch.shared.marginals import realised_gain, serve_and_marginals, shared_marginals
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
@pytest.mark.parametrize("least", [1 << 60, 0], ids=["torch", "compiled"])
@pytest.mark.parametrize("seed", range(12))
def test_marginals_match_the_formulas(seed, least, discipline, monkeypatch):
    problem = random_problem(seed, whole_costs=seed % 2 == 0)
    r, x = problem.requests[0], random_allocation(problem, seed, integral=True)
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
    served = serve_kernel(problem, r, x, discipline)
    got = shared_marginals(problem, r, x, served.served, served.load)
    want = loops(problem, r, x.numpy(), served.served.numpy(), served.load.numpy())
    for a, b in zip(got, want, strict=True):
        assert close(a, b, scale=float(r.sum()) * 12)
    gain, again = serve_and_marginals(problem, r, x, discipline)
    assert close(gain, served.gain)
    assert close(realised_gain(problem, r, x, discipline), served.gain)
    assert close(again.saved.sum(), served.gain)
    for a, b in zip(again, got, strict=True):
        assert close(a, b)


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
        better = ruin_and_recreate(problem, levels, r, standing, number, discipline)
        assert within_budgets(problem, better.x)
        assert better.gain >= standing.gain
        assert close(better.gain, idn.serve(problem, r, better.x, discipline).gain)
        standing = better


def test_moves_do_find_something():
    gains = []
    for seed in range(5):
        problem = random_problem(seed, nodes=8, models=12, types=30, budget=(0.2, 0.5))
        r, levels = problem.requests[0], find_levels(problem)
        start = standing = evaluate(problem, r, feasible(problem, seed))
        for move in range(10):
            number = uniforms(torch.tensor(seed), 8, 1, slot=move)[..., 0]
            standing = ruin_and_recreate(problem, levels, r, standing, number)
        gains.append(float(standing.gain / start.gain.clamp(min=1)))
    assert np.mean(gains) > 1.02


def test_batched_moves_equal_the_loop():
    problem = random_problem(4, nodes=8, models=12, types=20, budget=(0.2, 0.6))
    r, levels = problem.requests[0], find_levels(problem)
    x = torch.stack([feasible(problem, s) for s in range(4)]).view(2, 2, *problem.shape)
    number = torch.rand(2, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = ruin_and_recreate(problem, levels, r, evaluate(problem, r, x), number)
    for i in range(2):
        for j in range(2):
            alone = ruin_and_recreate(problem, levels, r, evaluate(problem, r, x[i, j]), number[i, j])
            assert torch.equal(together.x[i, j], alone.x)
            assert close(together.gain[i, j], alone.gain)


@pytest.mark.parametrize("seed", range(10))
def test_refill_fits_and_loads_different_tasks(seed):
    problem = random_problem(seed, nodes=6, models=15, tasks=4, types=20, budget=(0.3, 0.8))
    r = problem.requests[0]
    bare = problem.repository.to(torch.float64)
    for several in (1, 3, 9):
        before = evaluate(problem, r, bare)
        after = refill(problem, r, before, several=several)
        loaded = after.x - bare
        assert within_budgets(problem, after.x)
        assert (loaded >= 0).all()
        assert (loaded.sum(-1) <= several).all()
        assert (before.marginals.add[loaded > 0] > 0).all()
        per_task = torch.stack([loaded[:, problem.model_task == i].sum(-1) for i in range(4)])
        assert (per_task <= 1).all()
    some = torch.arange(6) < 3
    assert not (refill(problem, r, evaluate(problem, r, bare), some).x - bare)[3:].any()
    assert (refill(problem, r, evaluate(problem, r, bare), None, 40).x.sum(-1) <= 15).all()


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
        moved = ruin_and_recreate(there, groups, r, standing, pretended(problem.budgets), rounds=6)
        assert moved.x.device.type == moved.gain.device.type == "cuda"
        assert moved.x.shape == problem.shape
