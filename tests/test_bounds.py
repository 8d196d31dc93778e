import itertools

import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.bounds import Cuts, knapsack
from idn_torch.gain import gain_and_subgradient_kernel
from tests.instances import close, feasible_allocation, random_problem


def best_static_gain(problem, lam):
    """The best feasible allocation's mean gain, by trying them all."""
    where = problem.feasible
    options = []
    for v in range(problem.shape[0]):
        free = where.free[v].nonzero().flatten().tolist()
        fitting = []
        for count in range(len(free) + 1):
            for chosen in itertools.combinations(free, count):
                if sum(problem.sizes[v, m].item() for m in chosen) <= where.budgets[v].item():
                    fitting.append(chosen)
        options.append([c for c in fitting if not any(set(c) < set(d) for d in fitting)])
    x = []
    for choice in itertools.product(*options):
        allocation = problem.repository.to(problem.dtype)
        for v, chosen in enumerate(choice):
            allocation[v, list(chosen)] = 1
        x.append(allocation)
    gains = idn.gain(problem, problem.requests[None], lam[None], torch.stack(x)[:, None])
    return gains.mean(-1).max().item()


@pytest.mark.parametrize("seed", range(25))
def test_no_static_allocation_beats_a_bound(seed):
    problem = random_problem(seed, nodes=3, models=5, tasks=2, types=5, budget=(0.2, 0.8))
    lam = idn.potential_capacity(problem, problem.requests)
    best = best_static_gain(problem, lam)
    for point in range(3):
        assert idn.upper_bound(problem, problem.requests, lam, feasible_allocation(problem, point)) >= best - 1e-9
    result = idn.run(problem, idn.Infida(), problem.requests.repeat(10, 1))
    assert result.state.common.bound(problem) >= best - 1e-9


def test_averaged_cuts_close_in_on_the_optimum():
    problem = random_problem(40, nodes=4, models=6, tasks=2, types=8, budget=(0.3, 0.7), slots=3)
    requests = problem.requests.repeat(400, 1)
    result = idn.run(problem, idn.Infida(floor=0.0), requests)
    mean = result.state.policy.y  # the last iterate is near the optimum of the averaged gain
    lam = idn.potential_capacity(problem, problem.requests)
    reached = idn.gain(problem, problem.requests, lam, mean).mean()
    bound = result.state.common.bound(problem)
    assert reached <= bound <= 1.05 * reached


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(15))
def test_bound_and_knapsack_match_the_oracle(seed, dtype):
    problem = random_problem(seed, dtype)
    oracle = ref.Instance.from_problem(problem)
    y = feasible_allocation(problem, seed)
    lam = idn.potential_capacity(problem, problem.requests)
    as64 = [t.double().numpy() for t in (problem.requests, lam, y)]
    assert close(idn.upper_bound(problem, problem.requests, lam, y), ref.upper_bound(oracle, *as64), dtype)
    slope = np.random.default_rng(seed).random(problem.shape)
    assert close(knapsack(problem, torch.as_tensor(slope)), ref.knapsack(oracle, slope))


def test_cuts_add_up_to_upper_bound_and_batch():
    problem = random_problem(3)
    y = torch.stack([feasible_allocation(problem, s) for s in range(3)])
    lam = idn.potential_capacity(problem, problem.requests)
    together = idn.upper_bound(problem, problem.requests, lam, y)
    assert together.shape == (3,)
    cuts = Cuts.none(problem, (3,))
    for r, available in zip(problem.requests, lam, strict=True):
        cuts = cuts.add(*gain_and_subgradient_kernel(problem, r, available, y), y)
    assert close(cuts.bound(problem), together)
    for i in range(3):
        assert close(idn.upper_bound(problem, problem.requests, lam, y[i]), together[i])


def test_tables_of_a_batch_meet_their_own_instances():
    problem = random_problem(4)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64)
    batched = problem.with_cost(problem.cost_table() * scale[:, None, None, None])
    y = feasible_allocation(problem, 4)
    lam = idn.potential_capacity(problem, problem.requests)
    together = idn.upper_bound(batched, problem.requests, lam, y)
    for i in range(2):
        one = problem.with_cost(problem.cost_table() * scale[i])
        assert close(together[i], idn.upper_bound(one, problem.requests, lam, y))


def test_no_cut_bounds_nothing():
    problem = random_problem(3)
    assert Cuts.none(problem, (2,)).bound(problem).tolist() == [float("inf")] * 2
