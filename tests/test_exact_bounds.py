"""Bounds against exact optima by mixed-integer and linear programming (HiGHS)."""

import sys

import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.bounds import Cuts
from idn_torch.exact import best_static, flow_program, shared_capacity_bound
from tests.instances import feasible_allocation, random_problem

BUDGETS = ((0.2, 0.8), (0.05, 0.3), (0.0, 1.2))


def small(seed):
    """Instances that differ in everything, small enough for exact optima in milliseconds."""
    return random_problem(
        seed,
        nodes=2 + seed % 4,
        models=4 + seed % 5,
        tasks=1 + seed % 2,
        types=3 + seed % 8,
        budget=BUDGETS[seed % 3],
        slots=1 + seed % 4,
        whole_costs=seed % 5 == 0,
    )


def observed(problem, policy, repeats, seed):
    """The potential capacities that a run saw, `(T, R, K)`, and its state at the end."""
    state, seen = policy.init(problem, seed), []
    cuts = Cuts.none(problem)
    requests = problem.requests.repeat(repeats, 1)
    for r in requests:
        state, slot = policy.step(problem, state, r)
        cuts = cuts.add(slot.gain_fractional, slot.slope, slot.y)
        seen.append(slot.served.capacity)
    return requests, torch.stack(seen), cuts


@pytest.mark.parametrize("block", [pytest.param(i, marks=[pytest.mark.slow] if i > 2 else []) for i in range(10)])
def test_no_bound_is_below_the_exact_optimum(block):
    """300 instances: `upper_bound` anywhere, averaged cuts for the observed capacities, the common bound."""
    tight = 0
    for seed in range(block * 30, block * 30 + 30):
        problem = small(seed)
        best = best_static(problem).gain
        loose = best_static(problem, integral=False).gain
        slack = 1e-9 * (1 + best)
        assert loose >= best - slack
        lam = idn.potential_capacity(problem, problem.requests)
        for point in range(2):
            y = feasible_allocation(problem, seed + point)
            assert idn.upper_bound(problem, problem.requests, lam, y) >= loose - slack
        result = idn.run(problem, idn.Infida(), problem.requests.repeat(6, 1), seed=seed)
        common = float(result.state.common.bound(problem))
        assert common >= loose - slack
        tight += common <= 1.1 * loose + slack
        requests, seen, cuts = observed(problem, idn.Infida(), 3, seed)
        under_contention = best_static(problem, requests, seen, integral=False).gain
        assert cuts.bound(problem) >= under_contention - slack
        assert under_contention >= best_static(problem, requests, seen).gain - slack
        assert under_contention <= loose + slack  # l <= min(L, r), and the gain rises with l
    assert tight >= 10  # or the bounds would say little


@pytest.mark.parametrize("seed", range(40))
def test_the_program_is_the_gain(seed):
    """At the allocation that it finds, eq. (16) gives the program's own value, by the loop oracle."""
    problem = small(seed + 400)
    inst = ref.Instance.from_problem(problem)
    for integral in (False, True):
        best = best_static(problem, integral=integral)
        y = best.allocation.numpy()
        gains = [ref.gain(inst, r, ref.potential_capacity(inst, r), y) for r in problem.requests.numpy()]
        assert np.mean(gains) == pytest.approx(best.gain, rel=1e-7, abs=1e-7)
        assert ((inst.sizes * y).sum(1) <= inst.budgets * (1 + 1e-7)).all()
        assert (y[inst.repository] == 1).all()
        if integral:
            assert np.allclose(y, y.round(), atol=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_what_any_static_allocation_realises_is_below_the_shared_capacity_bound(seed):
    problem = small(seed + 500)
    bound = shared_capacity_bound(problem)
    slack = 1e-7 * (1 + bound)
    assert bound <= best_static(problem, integral=False).gain + slack
    assert bound <= shared_capacity_bound(problem, problem.requests.mean(0, keepdim=True)) + slack
    allocations = [best_static(problem).allocation.round()]
    draws = torch.rand(6, *problem.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    allocations += list(idn.depround(feasible_allocation(problem, 1), problem.sizes, uniforms=draws))
    for x in allocations:
        if ((problem.sizes * x).sum(-1) > problem.budgets * (1 + 1e-9)).any():
            continue
        for discipline in ("fcfs", "fair"):
            realised = idn.serve(problem, problem.requests, x, discipline).gain.mean()
            assert realised <= bound + slack


def test_a_single_shared_option_counts_its_capacity_once():
    """Two types of 8 requests, one edge model of capacity 10 that saves 5 on each: 50, where min(L, r) promises 80."""
    problem = idn.build_problem(
        sizes=np.ones((2, 2)),
        budgets=[1.0, 1.0],
        capacity=np.full((2, 2), 10),
        repository=[[0, 0], [0, 1]],
        model_task=[0, 0],
        paths=[[0, 1], [0, 1]],
        type_task=[0, 0],
        cost=[[[1.0, 9.0], [8.0, 6.0]]] * 2,
        requests=[[8, 8]],
    )
    assert best_static(problem).gain == pytest.approx(80)
    assert shared_capacity_bound(problem) == pytest.approx(50)
    x = best_static(problem).allocation.round()
    assert idn.serve(problem, problem.requests[0], x).gain == pytest.approx(50)


def test_programs_say_what_they_cannot_do(monkeypatch):
    problem = small(3)
    costs = problem.cost_table().nan_to_num(posinf=0.0)
    batched = problem.with_cost(torch.stack([costs, costs]))
    with pytest.raises(idn.InputError, match="batch of cost tables"):
        best_static(batched)
    with pytest.raises(idn.InputError, match=r"not \(T, R\)"):
        best_static(problem, problem.requests.expand(2, -1, -1))
    program = flow_program(problem)
    assert program.matrix.shape == (len(program.limit), len(program.cost))
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(idn.IDNError, match=r"need scipy: pip install 'idn-torch\[exact\]'"):
        best_static(problem)
