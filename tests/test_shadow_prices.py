import dataclasses

import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch.bounds import Cuts, knapsack
from idn_torch.exact import best_static
from idn_torch.feasible import feasible_set
from idn_torch.offline import offline
from idn_torch.shadow_prices import shadow_prices
from tests.instances import close, random_problem
from tests.test_exact_bounds import small


def with_budgets(problem, budgets):
    """The same network under other budgets."""
    return dataclasses.replace(
        problem, budgets=budgets, feasible=feasible_set(problem.sizes, budgets, problem.repository)
    )


def changed(problem, v, units):
    budgets = problem.budgets.clone()
    budgets[v] += units
    return with_budgets(problem, budgets)


def loops(problem, slope):
    """Left and right derivative of each node's knapsack, from the definition."""
    left, right = [], []
    for v in range(problem.shape[0]):
        free = problem.feasible.free[v].nonzero().flatten().tolist()
        room = float(problem.feasible.budgets[v])
        last, following = 0.0, 0.0
        for m in sorted(free, key=lambda m: (-float(slope[v, m] / problem.sizes[v, m]), m)):
            size, ratio = float(problem.sizes[v, m]), float(slope[v, m] / problem.sizes[v, m])
            if room > 1e-12:
                last = ratio
            if room < size - 1e-12:
                following = ratio
                break
            room -= size
        else:
            last = last if abs(room) <= 1e-12 else 0.0  # budget left over
        left.append(last)
        right.append(following)
    return left, right


@pytest.mark.parametrize("seed", range(30))
def test_prices_match_the_loops(seed):
    problem = random_problem(seed, budget=((0.2, 0.8), (0.0, 1.2), (0.9, 1.1))[seed % 3])
    rng = np.random.default_rng(seed)
    slope = torch.as_tensor(rng.integers(0, 6, problem.shape) / 2 if seed % 2 else rng.random(problem.shape))
    got = shadow_prices(problem, slope)
    left, right = loops(problem, slope)
    assert close(got.left, left)
    assert close(got.right, right)
    assert (got.left >= got.right).all()
    assert (got.right >= 0).all()
    assert not got.right[problem.feasible.holds_all].any()


@pytest.mark.parametrize("seed", range(20))
def test_prices_are_the_one_sided_derivatives_of_the_knapsack(seed):
    """Sizes and budgets are multiples of 1/8, so steps of 1/64 stay between kinks, and admit the same models."""
    problem = random_problem(seed, budget=(0.3, 1.1))
    slope = torch.as_tensor(np.random.default_rng(seed).random(problem.shape))
    prices, value, h = shadow_prices(problem, slope), knapsack(problem, slope), 1 / 64
    for v in range(problem.shape[0]):
        more, less = changed(problem, v, h), changed(problem, v, -h)
        if torch.equal(more.feasible.free, problem.feasible.free):
            assert close((knapsack(more, slope) - value) / h, prices.right[v], scale=float(value) / h)
        if less.feasible.budgets[v] > 0 and torch.equal(less.feasible.free, problem.feasible.free):
            assert close((value - knapsack(less, slope)) / h, prices.left[v], scale=float(value) / h)


@pytest.mark.parametrize("seed", range(24))
def test_the_exact_fractional_optimum_moves_as_the_prices_say_within_the_gap(seed):
    problem = small(seed * 3)
    result = offline(problem, tol=1e-5, max_iterations=5000)
    prices = shadow_prices(problem, result)
    gap = float(result.upper_bound - result.gain_fractional)
    value = best_static(problem, integral=False).gain
    tiny = 1e-8 * (1 + value)
    for v in range(problem.shape[0]):
        for h in (0.125, 1.0):
            more, less = changed(problem, v, h), changed(problem, v, -h)
            if torch.equal(more.feasible.free, problem.feasible.free):
                rise = best_static(more, integral=False).gain - value
                assert rise <= float(prices.right[v]) * h + gap + tiny
            if float(less.feasible.budgets[v]) >= 0:
                fall = value - best_static(less, integral=False).gain
                assert fall >= float(prices.left[v]) * h - gap - tiny


def two_models(budget):
    """An edge that saves 10 on each of 10 requests with model 0, and 4 on each of 10 others with model 2."""
    return idn.build_problem(
        sizes=[[2.0, 9.0, 2.0, 9.0], [2.0, 1.0, 2.0, 1.0]],
        budgets=[budget, 2.0],
        capacity=np.full((2, 4), 100),
        repository=[[0, 0, 0, 0], [0, 1, 0, 1]],
        model_task=[0, 0, 1, 1],
        paths=[[0, 1], [0, 1]],
        type_task=[0, 1],
        cost=[[[10.0, 20.0], [30.0, 20.0]], [[16.0, 20.0], [30.0, 20.0]]],
        requests=[[10, 10]],
    )


@pytest.mark.parametrize(("budget", "least", "most"), [(2.0, 20, 50), (3.0, 20, 20), (4.0, 0, 20), (5.0, 0, 0)])
def test_prices_lie_between_one_sided_derivatives_known_by_hand(budget, least, most):
    problem = two_models(budget)
    prices = shadow_prices(problem, offline(problem, tol=1e-9))
    assert least - 1e-6 <= float(prices.right[0]) <= float(prices.left[0]) <= most + 1e-6
    assert prices.left[1] == prices.right[1] == 0


def test_a_price_does_not_see_a_model_that_does_not_fit_yet():
    """Below 2 units nothing fits, so nothing is worth anything; at 2 the first model gains 100 at once."""
    problem = two_models(1.75)
    prices = shadow_prices(problem, offline(problem))
    assert not prices.right.any()
    assert not prices.left.any()
    assert float(offline(two_models(2.0)).gain) == pytest.approx(100)


def test_cuts_results_and_slopes_are_taken_alike_and_batches_equal_the_loop():
    problem = random_problem(6, budget=(0.2, 0.7), slots=4)
    run = idn.run(problem, idn.Infida(c=torch.tensor([4.0, 16.0])))
    cuts = run.state.common
    both = shadow_prices(problem, cuts)
    assert both.left.shape == (2, problem.shape[0])
    for i in range(2):
        alone = shadow_prices(problem, cuts.slope[i] / cuts.slots)
        assert close(both.left[i], alone.left)
        assert close(both.right[i], alone.right)
    result = offline(problem)
    assert close(shadow_prices(problem, result).right, shadow_prices(problem, result.slope).right)


def test_wrong_slopes_are_named():
    problem = random_problem(1)
    with pytest.raises(idn.InputError, match="cuts are of no slot"):
        shadow_prices(problem, Cuts.none(problem))
    with pytest.raises(idn.InputError, match=r"slope is \(3, 2\)"):
        shadow_prices(problem, torch.zeros(3, 2))
    wrong = torch.zeros(problem.shape)
    wrong[2, 1] = -1
    with pytest.raises(idn.InputError, match="node '2', model '1' holds -1"):
        shadow_prices(problem, wrong)
