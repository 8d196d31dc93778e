"""The bound that policies are compared with."""

import itertools

import pytest
import torch

import idn_torch as idn
from idn_torch.shared import Shared, SharedBound, shared_gain, shared_upper_bound
from tests import shared_oracle as oracle
from tests.instances import close, random_problem
from tests.pretend import pretended, pretended_cuda


def best_static(problem):
    """The largest mean gain that any feasible allocation realises, in index order of arrival and fairly."""
    where = problem.feasible
    rows = []
    for v in range(problem.shape[0]):
        free = where.free[v].nonzero().flatten().tolist()
        sets = [c for n in range(len(free) + 1) for c in itertools.combinations(free, n)]
        rows.append([c for c in sets if sum(float(problem.sizes[v, m]) for m in c) <= float(where.budgets[v]) + 1e-9])
    x = []
    for choice in itertools.product(*rows):
        allocation = problem.repository.double()
        for v, chosen in enumerate(choice):
            allocation[v, list(chosen)] = 1
        x.append(allocation)
    every = torch.stack(x)
    r = problem.requests[:, None]
    return max(float(idn.serve(problem, r, every, how).gain.mean(0).max()) for how in ("fcfs", "fair"))


@pytest.mark.parametrize("seed", range(6))
def test_no_static_allocation_gains_more(seed):
    problem = random_problem(seed, nodes=3, models=5, tasks=2, types=5, budget=(0.2, 0.8))
    best = best_static(problem)
    requests = problem.requests.repeat(5, 1)
    bounds = [shared_upper_bound(problem, requests, passes, iterations) for passes in (1, 3) for iterations in (0, 5)]
    assert all(bound >= best - 1e-9 for bound in bounds)
    assert bounds[3] <= bounds[1] + 1e-9


def test_it_is_tighter_than_the_bound_that_counts_capacity_for_every_type():
    """Eq. (16) under min(L, r) lets each type have a model for itself."""
    for seed in range(3):
        problem = random_problem(seed, nodes=5, models=8, types=30, budget=(0.2, 0.5), slots=4)
        requests = problem.requests.repeat(5, 1)
        common = idn.run(problem, idn.Infida(), requests).state.common.bound(problem)
        assert shared_upper_bound(problem, requests) < common


def test_it_closes_in_on_the_optimum():
    """With one slot for ever the best fractional allocation is within reach, and its gain known by the LP."""
    problem = random_problem(3, nodes=4, models=6, tasks=2, types=8, budget=(0.3, 0.7), slots=1)
    r = problem.requests[0]
    tracker = SharedBound.none(problem)
    for _ in range(150):
        tracker = tracker.add(problem, r)
    reached, _ = oracle.exact(problem, r, tracker.y)
    assert reached <= tracker.bound(problem)
    again = tracker._replace(cuts=SharedBound.none(problem).cuts)
    for _ in range(150):
        again = again.add(problem, r)
    assert again.bound(problem) <= 1.03 * reached


def test_the_tracker_takes_the_steps_of_the_policy():
    problem = random_problem(4, slots=6)
    tracker = SharedBound.none(problem)
    for r in problem.requests:
        tracker = tracker.add(problem, r)
    result = idn.run(problem, Shared())
    assert close(tracker.y, result.state.policy.y)
    assert close(tracker.bound(problem), result.state.cuts.bound(problem))
    assert close(tracker.cuts.offset, sum(_intercepts(problem)))


def _intercepts(problem):
    tracker, found = SharedBound.none(problem), []
    for r in problem.requests:
        iterations = 5 if tracker.started else 50
        found.append(float(shared_gain(problem, r, tracker.y, iterations, tracker.duals).intercept))
        tracker = tracker.add(problem, r)
    return found


def test_a_batch_equals_the_loop():
    problem = random_problem(5, slots=6)
    requests = torch.stack([problem.requests, problem.requests.flip(0)])
    together = shared_upper_bound(problem, requests)
    for one, bound in zip(requests, together, strict=True):
        assert close(shared_upper_bound(problem, one), bound)


def test_a_batch_of_tables_equals_the_loop():
    problem = random_problem(5, slots=6)
    cost = problem.cost_table()
    costs = torch.where(cost.isfinite(), cost, 0.0) * torch.tensor([1.0, 2.0, 0.5], dtype=cost.dtype).view(3, 1, 1, 1)
    together = shared_upper_bound(problem.with_cost(costs), problem.requests)
    for one, bound in zip(costs, together, strict=True):
        assert close(shared_upper_bound(problem.with_cost(one), problem.requests), bound)


def test_the_tracker_stays_on_a_pretended_device(three_nodes):
    problem = three_nodes.to(dtype=torch.float32)
    tracker = SharedBound.none(problem)
    with pretended_cuda():
        there, r = pretended(problem), pretended(problem.requests)[0]
        tracker = pretended(tracker).add(there, r, rounds=4)
        tracker = tracker.add(there, r, rounds=4)
        assert tracker.y.device.type == tracker.bound(there).device.type == "cuda"


def test_errors_name_the_argument():
    problem = random_problem(0)
    with pytest.raises(idn.InputError, match="passes is 0"):
        shared_upper_bound(problem, problem.requests, 0)
    with pytest.raises(idn.InputError, match="no requests"):
        shared_upper_bound(problem, problem.requests[:0])
    with pytest.raises(idn.InputError, match=r"requests; counts must be whole"):
        shared_upper_bound(problem, problem.requests + 0.5)
