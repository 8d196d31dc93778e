"""The step on a pretended CUDA device, and on a real one where there is one."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

import idn_torch as idn
from idn_torch import kernels
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.marginal import marginal_gains
from idn_torch.serving import serve_kernel
from idn_torch.simulation import advance, begin
from tests.instances import close, feasible_allocation, random_allocation, random_problem
from tests.pretend import pretended, pretended_cuda

POLICIES = {
    "default": idn.Infida(),
    "fair": idn.Infida(discipline="fair"),
    "euclidean": idn.Infida(mirror_map="euclidean", c=2.0),
    "fresh": idn.Infida(coupling="fresh", residual="draw"),
    "sqrt": idn.Infida(step_size="sqrt", c=0.1, refresh=2),
    "popularity": idn.Popularity(),
}


def devices(value):
    """Devices of all tensors in nested tuples."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    return set().union(*map(devices, value)) if isinstance(value, tuple) else set()


@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_step_never_leaves_a_pretended_cuda_device(monkeypatch, name, path, three_nodes):
    """Fake tensors raise where devices mix and where the host would wait for a value."""
    if path == "torch":
        monkeypatch.setattr(kernels, "TRITON_DEVICES", frozenset())
    else:
        pytest.importorskip("triton")
    problem = three_nodes.to(dtype=torch.float32)
    policy = POLICIES[name]
    state = policy.init(problem)
    with pretended_cuda():
        there, r = pretended(problem), pretended(problem.requests)[0]
        state = pretended(state)
        for _ in range(2):
            state, slot = policy.step(there, state, r, rounds=8)
        assert devices(state) == {"cuda"}
        assert devices(slot) == {"cuda"}
        assert state.x.shape == problem.shape


def test_the_pretended_device_does_catch_mistakes():
    """The check above would be worth nothing if these passed."""
    with pretended_cuda():
        there = pretended(torch.zeros(3))
        with pytest.raises(RuntimeError, match="device"):
            there + torch.zeros(3)
        with pytest.raises(DataDependentOutputException):
            there.sum().item()
        with pytest.raises(DataDependentOutputException):
            torch.equal(there, there)


def test_a_batched_step_and_batched_tables_stay_there(three_nodes):
    batched = three_nodes.with_alpha(torch.tensor([[1.0], [75.0]], dtype=torch.float64))
    policy = idn.Infida()
    state = policy.init(batched, seed=torch.arange(2))
    with pretended_cuda():
        there, r = pretended(batched), pretended(batched.requests)[0]
        following, slot = policy.step(there, pretended(state), r, rounds=8)
        assert devices(following) | devices(slot) == {"cuda"}
        assert following.y.shape == (2, *batched.shape)


OPERATIONS = {
    "potential_capacity": lambda p, r, lam, x, y: potential_capacity_kernel(p, r),
    "gain_and_subgradient": lambda p, r, lam, x, y: gain_and_subgradient_kernel(p, r, lam, y),
    "marginals": lambda p, r, lam, x, y: marginal_gains(p, r, lam, x, p.feasible.free),
    "fcfs": lambda p, r, lam, x, y: tuple(serve_kernel(p, r, x)),
    "fair": lambda p, r, lam, x, y: tuple(serve_kernel(p, r, x, "fair")),
    "project": lambda p, r, lam, x, y: idn.project(y + 0.1, p.sizes, p.budgets, p.repository),
    "project_euclidean": lambda p, r, lam, x, y: idn.project(y * 3, p.sizes, p.budgets, p.repository, "euclidean"),
    "upper_bound": lambda p, r, lam, x, y: idn.upper_bound(p, r[None], lam[None], y),
    "depround": lambda p, r, lam, x, y: idn.depround(y, p.sizes, uniforms=torch.full_like(y, 0.3)),
    "cost_table": lambda p, r, lam, x, y: p.cost_table(),
}


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPERATIONS)
def test_cuda_gives_what_the_cpu_gives(name, dtype):
    for seed in range(10):
        here = random_problem(seed, dtype, whole_costs=True)
        r, x, y = here.requests[0], random_allocation(here, seed, integral=True), random_allocation(here, seed, steps=4)
        if name in ("depround", "upper_bound"):
            y = feasible_allocation(here, seed)
        lam = idn.potential_capacity(here, r)
        there = here.to("cuda")
        assert torch.equal(there.ranked.option.cpu(), here.ranked.option)
        want = OPERATIONS[name](here, r, lam, x, y)
        got = OPERATIONS[name](there, *(t.cuda() for t in (r, lam, x, y)))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
            assert a.device.type == "cuda"
            assert close(a.cpu().nan_to_num(posinf=0), b.nan_to_num(posinf=0), dtype, scale=10)


@pytest.mark.cuda
@pytest.mark.parametrize("name", [n for n in POLICIES if n != "popularity"])
def test_a_run_on_cuda_equals_one_on_the_cpu(name):
    here = random_problem(5, slots=8)
    a = idn.run(here, POLICIES[name], seed=3)
    b = idn.run(here.to("cuda"), POLICIES[name], seed=3)
    assert close(b.gain.cpu(), a.gain)
    assert close(b.state.common.bound(here.to("cuda")).cpu(), a.state.common.bound(here))


@pytest.mark.cuda
def test_ties_rank_the_same_on_cuda():
    here = random_problem(1, torch.float32, whole_costs=True, types=200, nodes=12)
    there = here.to("cuda").with_cost(here.cost_table().nan_to_num(posinf=0.0).cuda())
    assert torch.equal(there.ranked.option.cpu(), here.ranked.option)


def test_a_run_state_advances_without_touching_the_one_before(three_nodes):
    state = begin(three_nodes, idn.Infida())
    kept = [t.clone() for t in (state.previous, state.policy.y, state.cuts.slope)]
    advance(three_nodes, idn.Infida(), state, three_nodes.requests[0])
    for before, now in zip(kept, (state.previous, state.policy.y, state.cuts.slope), strict=True):
        assert torch.equal(before, now)
