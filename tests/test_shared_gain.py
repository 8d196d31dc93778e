import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import kernels
from idn_torch.bounds import Cuts
from idn_torch.shared import Duals, shared_gain
from idn_torch.shared import gain as module
from idn_torch.shared.gain import shared_gain_kernel
from idn_torch.sums import steady_sum
from tests import shared_oracle as oracle
from tests.instances import close, feasible_allocation, random_allocation, random_problem
from tests.pretend import pretended, pretended_cuda


@pytest.fixture(params=["torch", "compiled"])
def either_path(request, monkeypatch):
    """Small problems through the torch code, or through the compiled kernel."""
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if request.param == "compiled" else 1 << 60)
    return request.param


def without_repositories(problem, y):
    return y.masked_fill(problem.repository, 0.0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("either_path")
def test_no_cut_is_ever_below_the_program(seed):
    problem = random_problem(seed, whole_costs=seed % 2 == 0)
    r, y = problem.requests[0], random_allocation(problem, seed, steps=4 if seed % 3 else 0)
    best, _ = oracle.exact(problem, r, y)
    elsewhere = [random_allocation(problem, 100 + i, integral=i == 0) for i in range(3)]
    others = [oracle.exact(problem, r, z)[0] for z in elsewhere]
    state = None
    for iterations in (0, 1, 2, 5, 20, 200, 2000):
        cut = shared_gain(problem, r, y, iterations)
        warm = shared_gain(problem, r, y, 1, state)
        state = cut.state
        for found in (cut, warm):
            assert found.bound >= best - 1e-9 * max(1.0, best)
            for z, value in zip(elsewhere, others, strict=True):
                assert found.intercept + (found.supergradient * z).sum() >= value - 1e-9 * max(1.0, value)
    assert cut.bound <= best + 1e-3 * max(1.0, best)


@pytest.mark.parametrize("seed", range(6))
def test_the_supergradient_errs_by_no_more_than_the_dual_gap(seed):
    problem = random_problem(seed)
    r, y = problem.requests[1], random_allocation(problem, seed)
    best, _ = oracle.exact(problem, r, y)
    for iterations in (0, 5, 50):
        cut = shared_gain(problem, r, y, iterations)
        gap = cut.bound - best
        for i in range(5):
            z = random_allocation(problem, 50 + i)
            rise = (cut.supergradient * (z - y)).sum()
            assert oracle.exact(problem, r, z)[0] <= best + rise + gap + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_any_prices_give_a_cut(seed):
    """Weak duality, for prices that no iteration made; the closed g is the least over mu."""
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    r = problem.requests[2]
    for scale in (0.1, 1.0, 10.0):
        nu, mu = rng.exponential(scale, len(r)), rng.exponential(scale, problem.shape)
        for i in range(4):
            z = random_allocation(problem, 10 * seed + i)
            value, g = oracle.bound_at(problem, r, z, nu, mu)
            assert value >= oracle.exact(problem, r, z)[0] - 1e-9
            assert (g >= 0).all()


@pytest.mark.parametrize("seed", range(6))
def test_the_gain_is_concave_and_bounds_what_serving_realises(seed):
    problem = random_problem(seed)
    r = problem.requests[0]
    a, b = random_allocation(problem, 1), random_allocation(problem, 2)
    ends = [oracle.exact(problem, r, z)[0] for z in (a, b)]
    for share in (0.25, 0.5, 0.9):
        middle = oracle.exact(problem, r, share * a + (1 - share) * b)[0]
        assert middle >= share * ends[0] + (1 - share) * ends[1] - 1e-9
    for i in range(4):
        x = random_allocation(problem, i, integral=True)
        most = oracle.exact(problem, r, x)[0]
        assert most <= shared_gain(problem, r, x, 200).bound + 1e-9
        for discipline in ("fcfs", "fair"):
            assert idn.serve(problem, r, x, discipline).gain <= most + 1e-9


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("either_path")
def test_the_iteration_matches_plain_loops(seed):
    problem = random_problem(seed)
    r, y = problem.requests[0], random_allocation(problem, seed)
    for iterations in (1, 7):
        phi, nu, mu = oracle.iterate(problem, r, without_repositories(problem, y), iterations)
        state = shared_gain(problem, r, y, iterations).state
        flow = np.zeros(state.flow.shape)
        for key, value in phi.items():
            flow[key] = value
        assert close(state.flow, flow)
        assert close(state.nu, nu)
        assert close(state.mu, mu)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.usefixtures("either_path")
def test_closing_is_exact_and_never_raises_the_bound(seed, monkeypatch):
    """Exact where no tie leaves a choice of prices (then the choice of nu changes the best mu)."""
    problem = random_problem(seed, whole_costs=seed >= 8)
    r, y = problem.requests[0], random_allocation(problem, seed)
    inside = without_repositories(problem, y)
    for iterations in (0, 3, 30):
        _, nu, mu = oracle.iterate(problem, r, inside, iterations)
        raw, _ = oracle.bound_at(problem, r, inside, nu, mu)
        best, g = oracle.close(problem, r, inside, nu, mu)
        assert shared_gain(problem, r, y, iterations).bound <= raw + 1e-9
        with monkeypatch.context() as patch:
            patch.setattr(module, "_PASSES", 40)
            cut = shared_gain(problem, r, y, iterations)
        assert cut.bound <= raw + 1e-9
        if seed < 8:
            assert close(cut.bound, best)
            assert close(cut.supergradient, g)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_kernel_gives_what_torch_gives(seed, dtype, monkeypatch):
    problem = random_problem(seed, dtype, types=20)
    y = torch.stack([random_allocation(problem, s) for s in range(3)])
    r = problem.requests[:3]
    scale = float(r.sum()) * 12
    results = []
    for least in (1 << 60, 0):
        monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
        cut = shared_gain(problem, r, y, 10)
        again = shared_gain(problem, r[0], y, 3, cut.state)
        results.append((*cut[:3], *cut.state, *again[:3]))
    for a, b in zip(*results, strict=True):
        assert close(b, a, dtype, scale=scale)


def test_batches_equal_the_loop():
    problem = random_problem(3)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64).view(2, 1, 1, 1)
    batched = problem.with_cost(problem.cost_table() * scale)
    y = torch.stack([random_allocation(problem, s) for s in range(3)])[:, None]
    together = shared_gain(batched, problem.requests[0], y, 6)
    assert together.bound.shape == (3, 2)
    assert together.state.flow.shape == (3, 2, *problem.ranked.cost.shape)
    again = shared_gain(batched, problem.requests[1], y, 2, together.state)
    for i in range(2):
        one = problem.with_cost(problem.cost_table() * scale[i])
        for s in range(3):
            alone = shared_gain(one, problem.requests[0], y[s, 0], 6)
            assert close(together.bound[s, i], alone.bound)
            assert close(together.supergradient[s, i], alone.supergradient)
            after = shared_gain(one, problem.requests[1], y[s, 0], 2, alone.state)
            assert close(again.bound[s, i], after.bound)


@pytest.mark.usefixtures("either_path")
def test_padding_and_silent_types_change_nothing():
    small, large = random_problem(5), random_problem(5, extra_models=3, extra_types=2)
    y = random_allocation(small, 0)
    wide = torch.nn.functional.pad(y, (0, 3), value=0.5)
    a, b = shared_gain(small, small.requests[0], y, 9), shared_gain(large, large.requests[0], wide, 9)
    assert close(b.bound, a.bound)
    assert close(b.intercept, a.intercept)
    assert close(b.supergradient[:, :8], a.supergradient)
    assert all(t.isfinite().all() for t in (*b[:3], *b.state))


@pytest.mark.usefixtures("either_path")
def test_repository_entries_and_silence():
    problem = random_problem(6)
    y = random_allocation(problem, 0)
    r = problem.requests[0]
    a, b = shared_gain(problem, r, y), shared_gain(problem, r, without_repositories(problem, y))
    assert torch.equal(a.bound, b.bound)
    assert not a.supergradient[problem.repository].any()
    silent = shared_gain(problem, torch.zeros_like(r), y)
    assert silent.bound == 0
    assert not silent.supergradient.any()
    assert all(t.isfinite().all() for t in silent.state)


def test_a_state_is_left_as_it_was():
    problem = random_problem(7)
    r, y = problem.requests[0], random_allocation(problem, 0)
    state = shared_gain(problem, r, y, 4).state
    kept = [t.clone() for t in state]
    more = shared_gain(problem, r, y, 4, state)
    assert all(torch.equal(a, b) for a, b in zip(kept, state, strict=True))
    whole = shared_gain(problem, r, y, 8)
    assert close(more.bound, whole.bound)


def test_one_large_instance_does_not_depend_on_the_number_of_threads():
    """More types, and more options, than torch sums in one thread."""
    problem = idn.generators.tree(nodes=2000, tasks=18, models_per_task=1, dtype=torch.float64)
    assert min(len(problem.type_ids), problem.sizes.numel()) > 1 << 15
    y = random_allocation(problem, 0)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            cut = shared_gain(problem, problem.requests[0], y, 3)
            found.append((*cut[:3], *cut.state, Cuts.none(problem).add(cut.bound, cut.supergradient, y).bound(problem)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_steady_sum_is_the_sum():
    values = torch.rand(2, 3, 9001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for n in (0, 1, 4096, 4097, 9001):
        assert close(steady_sum(values[..., :n]), values[..., :n].sum(-1))
    assert steady_sum(values.float(), torch.float64).dtype == torch.float64
    ones = torch.ones(1 << 14, dtype=torch.float32) * (1 << 24)
    assert steady_sum(ones + 2, torch.float64) == float((1 << 24) + 2) * (1 << 14)


def test_it_stays_on_a_pretended_device(three_nodes):
    problem = three_nodes.to(dtype=torch.float32)
    with pretended_cuda():
        there, r = pretended(problem), pretended(problem.requests)[0]
        y = pretended(problem.sizes)
        cut = shared_gain_kernel(there, r, y, 3, None)
        cut = shared_gain_kernel(there, r, y, 3, cut.state)
        assert {t.device.type for t in (*cut[:3], *cut.state)} == {"cuda"}
        assert cut.supergradient.shape == problem.shape


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_gives_what_the_cpu_gives(dtype):
    for seed in range(6):
        here = random_problem(seed, dtype)
        r, y = here.requests[0], feasible_allocation(here, seed)
        want, got = shared_gain(here, r, y, 10), shared_gain(here.to("cuda"), r.cuda(), y.cuda(), 10)
        assert close(got.bound.cpu(), want.bound, dtype, scale=float(r.sum()) * 12)


def test_errors_name_the_thing():
    problem = random_problem(0)
    r, y = problem.requests[0], random_allocation(problem, 0)
    with pytest.raises(idn.InputError, match=r"iterations is -1"):
        shared_gain(problem, r, y, -1)
    with pytest.raises(idn.InputError, match=r"node '0', model '1' holds more than 1"):
        shared_gain(problem, r, torch.where(torch.arange(8) == 1, 1.5, 0.0).double().expand(6, 8))
    with pytest.raises(idn.InputError, match=r"type '2' has 0.5 requests"):
        shared_gain(problem, torch.where(torch.arange(9) == 2, 0.5, 1.0).double(), y)
    good = shared_gain(problem, r, y, 0).state
    with pytest.raises(idn.InputError, match=r"state.nu is .*pass the .state"):
        shared_gain(problem, r, y, 1, Duals(good.flow, good.nu[:3], good.mu))
