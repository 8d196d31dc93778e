import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.marginal import marginal_gains
from tests.instances import close, feasible_allocation, random_allocation, random_problem

DTYPES = [torch.float32, torch.float64]


def cases(seed, dtype):
    """A problem, its oracle, a slot's requests and some lam and allocations, all exact in either dtype."""
    problem = random_problem(seed, dtype, whole_costs=seed % 2 == 0, extra_models=seed % 3 * 2, extra_types=seed % 2)
    r = problem.requests[seed % 4]
    lam = idn.potential_capacity(problem, r)
    if seed % 2:  # any other capacities that eq. (7) could leave
        lam = torch.where(
            problem.ranked.repository,
            lam,
            (lam * torch.rand(lam.shape, generator=torch.Generator().manual_seed(seed))).floor(),
        )
    return problem, ref.Instance.from_problem(problem), r, lam


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(40))
def test_everything_matches_the_loops(seed, dtype):
    problem, oracle, r, lam = cases(seed, dtype)
    r64, lam64 = r.double().numpy(), lam.double().numpy()
    assert close(idn.potential_capacity(problem, r), ref.potential_capacity(oracle, r64), dtype)
    # Fractions in quarters hit the kinks S = r; they are exact in float32 too.
    for y in (random_allocation(problem, seed, integral=True), random_allocation(problem, seed, steps=4)):
        y64 = y.double().numpy()
        value, slope = idn.gain_and_subgradient(problem, r, lam, y)
        assert close(value, ref.gain(oracle, r64, lam64, y64), dtype)
        assert close(slope, ref.subgradient(oracle, r64, lam64, y64), dtype)
        assert close(idn.serving_cost(problem, r, lam, y), ref.serving_cost(oracle, r64, lam64, y64), dtype)
        assert torch.equal(idn.gain(problem, r, lam, y), value)
        assert torch.equal(idn.subgradient(problem, r, lam, y), slope)
        assert close(idn.subgradient_autograd(problem, r, lam, y), slope, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_marginals_match_adding_one_model(seed, dtype):
    problem, oracle, r, lam = cases(seed, dtype)
    x = random_allocation(problem, seed, integral=True)
    expected = ref.marginal_gains(oracle, r.double().numpy(), lam.double().numpy(), x.double().numpy())
    free = problem.feasible.free
    assert close(marginal_gains(problem, r, lam, x, free), expected * free.numpy(), dtype)


def test_padding_reaches_no_value_and_no_gradient():
    small = random_problem(11, extra_models=0, extra_types=0)
    large = random_problem(11, extra_models=3, extra_types=2)
    models, types = small.shape[1], len(small.type_ids)
    r, wide = small.requests[0], large.requests[0]
    y = random_allocation(small, 1)
    padded = torch.nn.functional.pad(y, (0, 3), value=0.7)
    value, slope = idn.gain_and_subgradient(small, r, idn.potential_capacity(small, r), y)
    lam = idn.potential_capacity(large, wide)
    value_padded, slope_padded = idn.gain_and_subgradient(large, wide, lam, padded)
    assert torch.equal(value, value_padded)
    assert torch.equal(slope, slope_padded[:, :models])
    assert not slope_padded[:, models:].any()
    assert not lam[types:].any()


def test_a_permutation_of_types_permutes_nothing_else():
    problem = random_problem(5)
    order = torch.randperm(len(problem.type_ids), generator=torch.Generator().manual_seed(0))
    permuted = idn.build_problem(
        sizes=problem.sizes,
        budgets=problem.budgets,
        capacity=problem.capacity,
        repository=problem.repository,
        model_task=problem.model_task,
        paths=problem.paths[order],
        type_task=problem.type_task[order],
        cost=torch.where(problem.option_exists(), problem.cost_table(), 0.0)[order],
    )
    r, y = problem.requests[0], random_allocation(problem, 5)
    lam = idn.potential_capacity(problem, r)
    assert torch.equal(idn.potential_capacity(permuted, r[order]), lam[order])
    a = idn.gain_and_subgradient(problem, r, lam, y)
    b = idn.gain_and_subgradient(permuted, r[order], lam[order], y)
    assert close(b[0], a[0])
    assert close(b[1], a[1])


@pytest.mark.parametrize("tables", ["one table", "a table each"])
def test_a_batch_equals_the_loop(tables):
    problem = random_problem(6)
    y = torch.stack([random_allocation(problem, s) for s in range(6)]).unflatten(0, (3, 2))
    r = problem.requests[:2]  # (2, R) against (3, 2, V, M)
    batched = problem
    if tables == "a table each":
        factor = torch.tensor([1.0, 0.5, 3.0], dtype=torch.float64)[:, None, None, None, None]
        batched = problem.with_cost(problem.cost_table() * factor)
    lam = idn.potential_capacity(batched, r)
    value, slope = idn.gain_and_subgradient(batched, r, lam, y)
    cost = idn.serving_cost(batched, r, lam, y)
    auto = idn.subgradient_autograd(batched, r, lam, y)
    assert value.shape == (3, 2)
    assert slope.shape == (3, 2, *problem.shape)
    for i in range(3):
        one = problem.with_cost(batched.cost_table()[i, 0]) if tables == "a table each" else problem
        for j in range(2):
            lam_one = idn.potential_capacity(one, r[j])
            want = idn.gain_and_subgradient(one, r[j], lam_one, y[i, j])
            assert close(value[i, j], want[0])
            assert close(slope[i, j], want[1])
            assert close(auto[i, j], want[1])
            assert close(cost[i, j], idn.serving_cost(one, r[j], lam_one, y[i, j]))


def test_chunks_change_nothing(monkeypatch):
    problem = random_problem(7, types=30)
    r, y = problem.requests[0], random_allocation(problem, 7)
    lam = idn.potential_capacity(problem, r)
    from idn_torch.gain import gain_and_subgradient_kernel

    whole = gain_and_subgradient_kernel(problem, r, lam, y)
    parts = gain_and_subgradient_kernel(problem, r, lam, y, chunk_elements=1)
    assert close(parts[0], whole[0])
    assert torch.equal(parts[1], whole[1])
    args = (problem, r, lam, y.round(), problem.feasible.free)
    assert torch.equal(marginal_gains(*args), marginal_gains(*args, chunk_elements=1))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0, 1))
def test_the_gain_is_concave_and_its_subgradient_supports_it(seed, share):
    problem = random_problem(seed % 50)
    r = problem.requests[0]
    lam = idn.potential_capacity(problem, r)
    a, b = random_allocation(problem, seed), random_allocation(problem, seed + 1)
    mid = share * a + (1 - share) * b
    values = idn.gain(problem, r, lam, torch.stack((a, b, mid)))
    slack = 1e-9 * (1 + values.abs().max())
    assert values[2] >= share * values[0] + (1 - share) * values[1] - slack
    slope = idn.subgradient(problem, r, lam, mid)
    assert values[0] <= values[2] + (slope * (a - mid)).sum() + slack
    assert (slope >= 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_eq_13_equals_eq_16_for_integral_allocations(seed):
    problem = random_problem(seed % 60, whole_costs=True)
    r = problem.requests[seed % 4]
    lam = idn.potential_capacity(problem, r)
    x = random_allocation(problem, seed, integral=True)
    omega = problem.repository.double()
    difference = idn.serving_cost(problem, r, lam, omega) - idn.serving_cost(problem, r, lam, x)
    assert idn.gain(problem, r, lam, x).item() == difference.item()  # whole costs: exact
    assert idn.gain(problem, r, lam, omega).item() == 0


def test_no_gradient_leaks_and_no_input_changes():
    problem = random_problem(8)
    r = problem.requests[0]
    lam = idn.potential_capacity(problem, r).requires_grad_(True)
    y = feasible_allocation(problem, 8).requires_grad_(True)
    before = (lam.detach().clone(), y.detach().clone())
    outputs = [
        idn.gain(problem, r, lam, y),
        *idn.gain_and_subgradient(problem, r, lam, y),
        idn.subgradient_autograd(problem, r, lam, y),
        idn.serving_cost(problem, r, lam, y),
        idn.upper_bound(problem, r[None], lam[None], y),
    ]
    assert not any(out.requires_grad for out in outputs)
    assert y.grad is None
    assert lam.grad is None
    assert torch.equal(lam.detach(), before[0])
    assert torch.equal(y.detach(), before[1])


def test_no_requests_gain_nothing():
    problem = random_problem(9)
    r = torch.zeros_like(problem.requests[0])
    lam = idn.potential_capacity(problem, r)
    value, slope = idn.gain_and_subgradient(problem, r, lam, random_allocation(problem, 9))
    assert value.item() == 0
    assert not slope.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": -1.0}, "r: type '0' holds -1"),
        ({"r": float("nan")}, "r: type '0' holds nan"),
        ({"lam": float("inf")}, "lam: type '0', rank 0 holds inf"),
        ({"y": -0.5}, "y: node '0', model '0' holds -0.5"),
        ({"y": float("nan")}, "y: node '0', model '0' holds nan"),
    ],
)
def test_bad_values_are_named(change, message):
    problem = random_problem(0)
    inputs = {"r": problem.requests[0].clone(), "y": random_allocation(problem, 0)}
    inputs["lam"] = idn.potential_capacity(problem, inputs["r"])
    for name, value in change.items():
        inputs[name][(0,) * inputs[name].ndim] = value
    with pytest.raises(idn.InputError, match=message):
        idn.gain(problem, **inputs)


def test_bad_shapes_and_counts_are_named():
    problem = random_problem(0)
    r, y = problem.requests[0], random_allocation(problem, 0)
    lam = idn.potential_capacity(problem, r)
    with pytest.raises(idn.InputError, match=r"r is \(8,\); expected a tensor \(\.\.\., R\)"):
        idn.gain(problem, r[:-1], lam, y)
    with pytest.raises(idn.InputError, match=r"y is torch\.float32"):
        idn.gain(problem, r, lam, y.float())
    with pytest.raises(idn.InputError, match="y is ndarray"):
        idn.gain(problem, r, lam, np.ones(problem.shape))
    with pytest.raises(idn.InputError, match="batch dims do not broadcast"):
        idn.gain(problem, r.expand(2, -1), lam, y.expand(3, -1, -1))
    with pytest.raises(idn.InputError, match=r"type '0' has 0\.5 requests"):
        idn.potential_capacity(problem, torch.full_like(r, 0.5))
    with pytest.raises(idn.InputError, match="at most 9007199254740992"):
        idn.potential_capacity(problem, torch.full_like(r, 1e17))


def test_an_overflow_is_an_error_not_an_inf():
    problem = random_problem(0, torch.float32)
    r = torch.full_like(problem.requests[0], 1e6)
    huge = problem.with_cost(problem.cost_table().nan_to_num(posinf=0.0) * 1e35)
    with pytest.raises(idn.InputError, match="overflows"):
        idn.serving_cost(huge, r, idn.potential_capacity(huge, r), random_allocation(problem, 0))
