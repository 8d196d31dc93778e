import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import generators, kernels
from idn_torch import reference as ref
from idn_torch.averaged import Rows, mean_gain, merge_rows
from idn_torch.exact import best_static
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.offline import OfflineStatus, offline
from idn_torch.prices import price_bound, respond
from tests import baseline_oracle as oracle
from tests.instances import close, feasible_allocation, random_problem
from tests.pretend import pretended, pretended_cuda
from tests.test_baselines import permuted, within_budget
from tests.test_exact_bounds import small

MET = int(OfflineStatus.GAP_MET)
# Prices come from inequalities between rounded sums, and bisection in the oracle: looser than plain arithmetic.
PRICE_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}


def alike(a, b, dtype):
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return bool(np.abs(a - b).max() <= PRICE_TOLERANCE[dtype] * max(1.0, np.abs(b).max()))


# ----------------------------------------------------------------------------------------------------- prices


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(12))
def test_prices_match_the_oracle(monkeypatch, seed, dtype, compiled):
    """The best response and proximal steps from there, each minimised by bisection in the oracle."""
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if compiled else 1 << 60)
    problem = random_problem(seed, dtype, slots=3)
    inst = ref.Instance.from_problem(problem)
    rows = merge_rows(problem, problem.requests)
    y = feasible_allocation(problem, seed)
    before, want_before = None, [None] * 3
    for step in (0.0, 0.3, 0.02, 5.0):
        size = None if before is None else torch.tensor(step, dtype=dtype)
        now = respond(problem, rows, y, before, size)
        slope, value = np.zeros(problem.shape), 0.0
        for s, r in enumerate(rows.requests.double().numpy()):
            prices, g, gain = oracle.respond(inst, r, y.double().numpy(), want_before[s], step)
            assert alike(now.prices[s], prices, dtype)
            want_before[s] = np.array(prices)
            slope += g * float(rows.share[s])
            value += gain * float(rows.share[s])
        assert alike(now.slope, slope, dtype)
        assert alike(now.value, value, dtype)
        before = now.prices
        y = feasible_allocation(problem, seed + 100)


@pytest.mark.parametrize("seed", range(10))
def test_the_best_response_is_the_subgradient(seed):
    problem = random_problem(seed, slots=1, whole_costs=seed % 2 == 0)
    r, y = problem.requests[0], feasible_allocation(problem, seed)
    value, slope = gain_and_subgradient_kernel(problem, r, idn.potential_capacity(problem, r), y)
    rows = merge_rows(problem, problem.requests)
    now = respond(problem, rows, y)
    free = problem.feasible.free
    assert close(now.value, value, scale=10)
    assert close(now.slope[free], slope[free], scale=10)
    # ... and its bound is that of the cut there.
    bound = idn.upper_bound(problem, problem.requests, idn.potential_capacity(problem, problem.requests), y)
    assert close(price_bound(problem, rows, now.prices, now.slope), bound, scale=10)


@pytest.mark.parametrize("seed", range(20))
def test_any_prices_bound_the_exact_optimum(seed):
    problem = small(seed + 50)
    best = best_static(problem, integral=False).gain
    rows = merge_rows(problem, problem.requests)
    prices = respond(problem, rows, feasible_allocation(problem, 0)).prices
    for step in (0.01, 0.3, 10.0):
        now = respond(problem, rows, feasible_allocation(problem, seed), prices, torch.tensor(step).double())
        prices = now.prices
        assert (prices >= 0).all()
        assert price_bound(problem, rows, prices, now.slope) >= best - 1e-9 * (1 + best)


@pytest.mark.parametrize("compiled", [False, True])
def test_prices_of_a_batch_equal_the_loop(monkeypatch, compiled):
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if compiled else 1 << 60)
    problem = random_problem(3, slots=3)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64).view(2, 1, 1, 1)
    costs = problem.cost_table().nan_to_num(posinf=0.0) * scale
    batched = problem.with_cost(costs)
    requests = torch.stack([problem.requests, problem.requests * 2])[:, None]  # (2, 1, T, R)
    y = torch.stack([feasible_allocation(problem, i) for i in range(2)])
    step = torch.tensor([0.2, 0.7], dtype=torch.float64)
    rows = merge_rows(batched, requests)
    first = respond(batched, rows, y)
    then = respond(batched, rows, y.flip(0), first.prices, step)
    assert then.prices.shape == (2, 2, *rows.requests.shape[-2:])
    for i in range(2):
        for j in range(2):
            one, alone = problem.with_cost(costs[j]), merge_rows(problem, requests[i, 0])
            a = respond(one, alone, y[j])
            b = respond(one, alone, y[1 - j], a.prices, step[j])
            for got, want in ((first, a), (then, b)):
                assert close(got.slope[i, j], want.slope, scale=10)
                assert close(got.value[i, j], want.value, scale=10)


def test_prices_never_leave_a_pretended_cuda_device(three_nodes):
    rows = merge_rows(three_nodes, None)
    with pretended_cuda():
        there, requests, share = pretended(three_nodes), pretended(rows.requests), pretended(rows.share)
        y = pretended(three_nodes.sizes)
        now = respond(there, Rows(requests, share), y)
        then = respond(there, Rows(requests, share), y, now.prices, torch.ones((), dtype=y.dtype, device="cuda"))
        bound = price_bound(there, Rows(requests, share), then.prices, then.slope)
        assert {t.device.type for t in (*then, bound, mean_gain(there, Rows(requests, share), y))} == {"cuda"}


# ---------------------------------------------------------------------------------------------------- offline


@pytest.mark.parametrize("seed", range(60))
def test_offline_brackets_the_exact_optimum_within_its_gap(seed):
    problem = small(seed)
    result = offline(problem, tol=1e-3, seed=seed)
    loose, best = best_static(problem, integral=False).gain, best_static(problem).gain
    slack = 1e-9 * (1 + loose)
    assert int(result.status) == MET
    assert float(result.gap) <= 1e-3
    assert result.gain_fractional <= loose + slack
    assert result.upper_bound >= loose - slack
    assert result.gain <= best + slack
    assert result.gain >= 0.85 * best - slack
    rows = merge_rows(problem, problem.requests)
    for allocation, gain in ((result.x, result.gain), (result.y, result.gain_fractional)):
        assert within_budget(problem, allocation)
        assert (allocation[problem.repository] == 1).all()
        assert close(mean_gain(problem, rows, allocation), gain, scale=10)
    assert ((result.x == 0) | (result.x == 1)).all()
    assert not result.x[~problem.feasible.free & ~problem.repository].any()


def test_offline_is_near_the_exact_integral_optimum_on_average():
    ratios = []
    for seed in range(60):
        best = best_static(small(seed)).gain
        if best > 0:
            ratios.append(float(offline(small(seed)).gain) / best)
    assert np.mean(ratios) > 0.98
    assert np.mean(np.array(ratios) > 1 - 1e-9) > 0.6


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
def test_a_smaller_gap_is_certified_too(tol):
    problem = random_problem(9, nodes=4, models=8, tasks=2, types=12, budget=(0.2, 0.6), slots=3)
    result = offline(problem, tol=tol, max_iterations=20_000)
    assert int(result.status) == MET
    best = best_static(problem, integral=False).gain
    assert best <= result.upper_bound * (1 + 1e-9)
    assert (result.upper_bound - best) <= tol * result.upper_bound
    assert (best - result.gain_fractional) <= tol * result.upper_bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tree_and_both_dtypes(dtype):
    problem = generators.tree(nodes=60, branching=3, depth=5, tasks=5, models_per_task=6, dtype=dtype)
    result = offline(problem)
    assert int(result.status) == MET
    assert result.x.dtype == result.y.dtype == dtype
    assert result.gain >= 0.97 * result.upper_bound
    wide = offline(problem.to(dtype=torch.float64))
    # Both bracket the same optimum.
    assert result.gain_fractional <= wide.upper_bound * (1 + 1e-5)
    assert wide.gain_fractional <= result.upper_bound * (1 + 1e-5)


def test_compiled_and_torch_code_take_the_same_steps(monkeypatch):
    problem = random_problem(21, nodes=8, models=16, types=40, budget=(0.1, 0.5), slots=5)
    early, late = [], []
    for least in (0, 1 << 60):
        monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
        early.append(offline(problem, max_iterations=15))
        late.append(offline(problem))
    for name in ("y", "slope", "upper_bound", "gain_fractional", "gain"):
        assert alike(getattr(early[0], name), getattr(early[1], name), torch.float64), name
    # Later steps magnify the last digits; what both certify has to overlap all the same.
    assert late[0].gain_fractional <= late[1].upper_bound
    assert late[1].gain_fractional <= late[0].upper_bound


def test_a_batch_equals_the_loop_and_each_instance_stops_by_itself():
    problem = random_problem(23, nodes=6, models=10, types=14, budget=(0.1, 0.5), slots=3)
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64).view(2, 1, 1, 1)
    costs = problem.cost_table().nan_to_num(posinf=0.0) * scale
    requests = torch.stack([problem.requests, problem.requests.roll(1, 1) * 3, problem.requests // 4])[:, None]
    batch = offline(problem.with_cost(costs), requests, seed=4)
    assert batch.x.shape == (3, 2, *problem.shape)
    assert len(set(batch.iterations.flatten().tolist())) > 1
    for i in range(3):
        for j in range(2):
            one = offline(problem.with_cost(costs[j]), requests[i, 0], seed=4)
            assert torch.equal(batch.x[i, j], one.x)
            assert int(batch.iterations[i, j]) == int(one.iterations)
            assert int(batch.status[i, j]) == int(one.status)
            for name in ("gain", "gain_fractional", "upper_bound", "slope", "y"):
                assert alike(getattr(batch, name)[i, j], getattr(one, name), torch.float64), name


def test_padding_the_order_of_types_and_repeated_slots_change_nothing():
    def build(**extra):
        return random_problem(24, nodes=6, models=10, types=14, budget=(0.1, 0.5), slots=3, **extra)

    problem = build()
    alone = offline(problem, seed=2)
    wide = offline(build(extra_models=3, extra_types=2), seed=2)
    assert torch.equal(wide.x[:, :10], alone.x)
    assert not wide.x[:, 10:].any()
    other = offline(permuted(problem, torch.randperm(14, generator=torch.Generator().manual_seed(0))), seed=2)
    repeated = offline(problem, problem.requests.repeat(5, 1), seed=2)
    for result in (wide, other, repeated):
        assert int(result.iterations) == int(alone.iterations)
        assert alike(result.upper_bound, alone.upper_bound, torch.float64)
        assert alike(result.gain, alone.gain, torch.float64)


def test_limits_leave_the_best_so_far_and_say_so():
    problem = random_problem(9, nodes=4, models=8, tasks=2, types=12, budget=(0.2, 0.6), slots=3)
    best = best_static(problem, integral=False).gain
    gaps = []
    for limit in (0, 1, 4, 12):
        result = offline(problem, tol=1e-9, max_iterations=limit)
        assert int(result.status) == OfflineStatus.ITERATION_LIMIT
        assert int(result.iterations) == limit
        assert result.gain_fractional <= best <= result.upper_bound
        assert within_budget(problem, result.x)
        gaps.append(float(result.gap))
    assert gaps == sorted(gaps, reverse=True)
    late = offline(problem, tol=1e-9, max_seconds=1e-9)
    assert int(late.status) == OfflineStatus.TIME_LIMIT
    assert 0 < int(late.iterations) < 20
    assert late.gain_fractional <= best <= late.upper_bound


def test_where_there_is_nothing_to_decide_or_to_gain():
    everything = random_problem(31, budget=(2.0, 2.0))
    result = offline(everything)
    assert int(result.status) == MET
    assert close(result.gain, result.upper_bound, scale=10)
    chooses = everything.feasible.free & everything.feasible.holds_all[:, None]
    assert (result.x[chooses] == 1).all()
    nothing = offline(random_problem(32, budget=(0.0, 0.0)))
    assert float(nothing.gain) == float(nothing.upper_bound) == float(nothing.gap) == 0
    idle = random_problem(33)
    silent = offline(idle, idle.requests * 0)
    assert int(silent.status) == MET
    assert float(silent.upper_bound) == float(silent.gain) == float(silent.gap) == 0


def test_more_roundings_are_no_worse_and_each_seed_is_itself():
    problem = random_problem(25, nodes=6, models=12, types=20, budget=(0.1, 0.5), slots=3)
    few, many = offline(problem, roundings=1), offline(problem, roundings=64)
    assert many.gain >= few.gain
    assert torch.equal(offline(problem, seed=5).x, offline(problem, seed=5).x)
    assert len({tuple(offline(problem, seed=s, roundings=1).x.flatten().tolist()) for s in range(6)}) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, r"tol is 0\.0"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"max_iterations": -1}, "max_iterations is -1"),
        ({"max_seconds": 0.0}, r"max_seconds is 0\.0"),
        ({"roundings": 0}, "roundings is 0"),
        ({"requests": torch.zeros(0, 9, dtype=torch.float64)}, "no requests"),
        ({"requests": torch.full((1, 9), -1.0, dtype=torch.float64)}, "type '0' holds -1"),
        ({"requests": torch.full((1, 9), 0.5, dtype=torch.float64)}, r"type '0' has 0\.5 requests"),
        ({"requests": torch.zeros(2, 8, dtype=torch.float64)}, r"r is \(2, 8\)"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(idn.InputError, match=message):
        offline(random_problem(1), **options)


def test_no_gradients_leak():
    problem = random_problem(1)
    result = offline(problem, problem.requests.clone().requires_grad_(True))
    assert not any(value.requires_grad for value in result)


@pytest.mark.cuda
def test_cuda_certifies_what_the_cpu_certifies():
    here = random_problem(5, nodes=8, models=16, types=40, budget=(0.1, 0.5), slots=5)
    a, b = offline(here), offline(here.to("cuda"))
    assert b.x.device.type == "cuda"
    assert int(b.status) == MET
    assert b.gain_fractional.cpu() <= a.upper_bound * (1 + 1e-9)
    assert a.gain_fractional <= b.upper_bound.cpu() * (1 + 1e-9)
