import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.serving import serve_kernel
from tests.instances import close, random_allocation, random_problem

FIELDS = ("served", "load", "capacity", "cost")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(40))
def test_both_disciplines_match_the_loops(seed, dtype):
    problem = random_problem(seed, dtype, types=12, whole_costs=seed % 2 == 0, extra_types=seed % 3)
    oracle = ref.Instance.from_problem(problem)
    r, x = problem.requests[seed % 4], random_allocation(problem, seed, integral=True)
    order = torch.randperm(r.shape[0], generator=torch.Generator().manual_seed(seed)) if seed % 2 else None
    r64, x64 = r.double().numpy(), x.double().numpy()
    got = idn.serve(problem, r, x, "fcfs", order)
    want = ref.serve_fcfs(oracle, r64, x64, None if order is None else order.tolist())
    for name in FIELDS:
        assert close(getattr(got, name), getattr(want, name), dtype), name
    assert torch.equal(got.served, torch.as_tensor(want.served, dtype=dtype))  # whole numbers: exact
    got, want = idn.serve(problem, r, x, "fair"), ref.serve_fair(oracle, r64, x64)
    for name in FIELDS:
        assert close(getattr(got, name), getattr(want, name), dtype), name


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    discipline=st.sampled_from(["fcfs", "fair"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_invariants_of_serving(seed, discipline, dtype):
    problem = random_problem(seed % 80, dtype, types=15, whole_costs=seed % 3 == 0)
    r, x = problem.requests[seed % 4], random_allocation(problem, seed, integral=True)
    out = idn.serve(problem, r, x, discipline)
    limited = ~problem.repository
    assert (out.load <= problem.capacity)[limited].all()
    assert (out.load * (1 - x) == 0).all()  # only what is loaded serves
    assert close(out.served.sum(-1), r, dtype)  # every request is served
    assert (out.served <= out.capacity * (1 + 1e-6)).all()
    # With l of eq. (7), eqs. (12) and (16) give the realised cost and gain.
    assert close(idn.serving_cost(problem, r, out.capacity, x), out.cost, dtype)
    assert close(idn.gain(problem, r, out.capacity, x), out.gain, dtype)
    after = torch.arange(out.served.shape[-1]) > problem.ranked.first_repository[:, None]
    assert not out.served[after].any()
    assert not out.capacity[~problem.ranked.mask].any()


def test_a_batch_equals_the_loop():
    problem = random_problem(3, types=14)
    x = torch.stack([random_allocation(problem, s, integral=True) for s in range(6)]).unflatten(0, (2, 3))
    r = problem.requests[:3]
    cost = problem.cost_table() * torch.tensor([1.0, 2.0], dtype=torch.float64)[:, None, None, None, None]
    batched = problem.with_cost(cost)
    order = torch.stack([torch.randperm(14, generator=torch.Generator().manual_seed(s)) for s in range(3)])
    for discipline, arrivals in (("fcfs", order), ("fcfs", None), ("fair", None)):
        out = idn.serve(batched, r, x, discipline, arrivals)
        for i in range(2):
            one = problem.with_cost(cost[i, 0])
            for j in range(3):
                want = idn.serve(one, r[j], x[i, j], discipline, None if arrivals is None else arrivals[j])
                for name in (*FIELDS, "gain"):
                    assert close(getattr(out, name)[i, j], getattr(want, name)), name


@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
def test_a_bounded_number_of_rounds_over_whole_tables_gives_the_same(discipline):
    """The path for devices that the host must not wait for."""
    problem = random_problem(12, types=20)
    r, x = problem.requests[0], random_allocation(problem, 12, integral=True)
    quick = idn.serve(problem, r, x, discipline)
    bounded = serve_kernel(problem, r, x, discipline, rounds=25)
    for a, b in zip(quick, bounded, strict=True):
        assert close(a, b)


def test_first_come_first_served_by_hand(three_nodes):
    """Type a ranks large@hub (40), tiny@edge (100), ...; type b large@hub, tiny@hub."""
    r = torch.tensor([120.0, 7.0], dtype=torch.float64)
    x = torch.ones(three_nodes.shape, dtype=torch.float64)
    first = idn.serve(three_nodes, r, x)
    assert first.served[0, :3].tolist() == [40, 80, 0]
    assert first.served[1, :2].tolist() == [0, 7]
    second = idn.serve(three_nodes, r, x, order=torch.tensor([1, 0]))
    assert second.served[0, :3].tolist() == [33, 87, 0]
    assert second.served[1, :2].tolist() == [7, 0]
    fair = idn.serve(three_nodes, r, x, "fair")
    assert close(fair.served[:, 0], [40 * 120 / 127, 40 * 7 / 127])


def test_displacement_chains_longer_than_a_look_settle():
    """A chain of 20 types, each displacing the next: more rounds than the host waits for at a time."""
    n = 20
    problem = idn.build_problem(
        sizes=torch.ones(n + 1, 1),
        budgets=torch.ones(n + 1),
        capacity=torch.ones(n + 1, 1),
        repository=[[0]] * n + [[1]],
        model_task=[0],
        paths=[[0, n], *[[i, i + 1, n] for i in range(n - 1)]],
        type_task=[0] * n,
        cost=[[[0.0], [9.0], [0.0]], *[[[1.0], [2.0], [9.0]]] * (n - 1)],
    )
    r, x = torch.ones(n, dtype=torch.float64), torch.ones(n + 1, 1, dtype=torch.float64)
    out = idn.serve(problem, r, x)
    assert out.load.flatten().tolist() == [1.0] * n + [0.0]
    assert out.cost.item() == 2 * (n - 1)  # everybody but the first got the second choice


def test_nothing_to_serve():
    problem = random_problem(4)
    x = random_allocation(problem, 4, integral=True)
    for discipline in ("fcfs", "fair"):
        out = idn.serve(problem, torch.zeros_like(problem.requests[0]), x, discipline)
        assert not out.served.any()
        assert not out.load.any()
        assert out.cost.item() == 0


def test_bad_arguments_are_named():
    problem = random_problem(4)
    r, x = problem.requests[0], random_allocation(problem, 4, integral=True)
    with pytest.raises(idn.InputError, match="discipline is 'lifo'"):
        idn.serve(problem, r, x, "lifo")
    with pytest.raises(idn.InputError, match=r"x: node '0', model '0' holds 0\.5; must be 0 or 1"):
        idn.serve(problem, r, torch.full_like(x, 0.5))
    with pytest.raises(idn.InputError, match="repositories stay at 1"):
        idn.serve(problem, r, torch.zeros_like(x))
    with pytest.raises(idn.InputError, match="order must hold each of"):
        idn.serve(problem, r, x, order=torch.zeros(r.shape[0], dtype=torch.int64))
    with pytest.raises(idn.InputError, match="order is only for"):
        idn.serve(problem, r, x, "fair", order=torch.arange(r.shape[0]))
    with pytest.raises(idn.InputError, match=r"has 0\.5 requests"):
        idn.serve(problem, torch.full_like(r, 0.5), x)
