"""The compiled CPU kernels against the torch code, which is itself tested against the loops."""

import subprocess
import sys

import pytest
import torch

import idn_torch as idn
from idn_torch import kernels
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.marginal import marginal_gains
from idn_torch.mirror import mirror_step_kernel
from idn_torch.philox import uniforms
from idn_torch.rounding import depround_kernel
from idn_torch.serving import serve_kernel
from idn_torch.simulation import advance, begin
from tests.instances import close, feasible_allocation, random_allocation, random_problem

DTYPES = (torch.float32, torch.float64)


def both(monkeypatch, function, *args, **kwargs):
    """Results of the torch code and of the compiled kernel, as lists of tensors."""
    results = []
    for least in (1 << 60, 0):
        monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
        out = function(*args, **kwargs)
        results.append(list(out) if isinstance(out, tuple) else [out])
    return results


def instances(seed, dtype, batched_tables):
    problem = random_problem(seed, dtype, whole_costs=seed % 2 == 0, extra_models=seed % 3 * 2, extra_types=seed % 2)
    if batched_tables:
        factor = torch.tensor([1.0, 2.0, 0.5], dtype=dtype).view(3, 1, 1, 1)
        problem = problem.with_cost(problem.cost_table() * factor)
    r = problem.requests[:3]
    y = torch.stack([random_allocation(problem, seed + i, steps=4 * (i % 2)) for i in range(3)])
    return problem, r, idn.potential_capacity(problem, r), y


@pytest.mark.parametrize("batched_tables", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_table_kernels_agree(monkeypatch, seed, dtype, batched_tables):
    problem, r, lam, y = instances(seed, dtype, batched_tables)
    for a, b in zip(*both(monkeypatch, gain_and_subgradient_kernel, problem, r, lam, y), strict=True):
        assert close(b, a, dtype)
    x = y.round()
    wanted = problem.feasible.free & (torch.arange(problem.shape[1]) % 3 > 0)
    one_node = wanted & (torch.arange(problem.shape[0])[:, None] == seed % problem.shape[0])
    for sought in (wanted, one_node, torch.zeros_like(wanted)):
        for a, b in zip(*both(monkeypatch, marginal_gains, problem, r, lam, x, sought), strict=True):
            assert close(b, a, dtype)


@pytest.mark.parametrize("batched_tables", [False, True])
@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(10))
def test_serving_agrees(monkeypatch, seed, dtype, discipline, batched_tables):
    problem, r, _, _ = instances(seed, dtype, batched_tables)
    x = torch.stack([random_allocation(problem, seed + i, integral=True) for i in range(3)])
    order = None
    if discipline == "fcfs" and seed % 2:
        generator = torch.Generator().manual_seed(seed)
        order = torch.stack([torch.randperm(r.shape[-1], generator=generator) for _ in range(3)])
    for a, b in zip(*both(monkeypatch, serve_kernel, problem, r, x, discipline, order), strict=True):
        assert a.shape == b.shape
        assert close(b, a, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("models", [1, 2, 7, 8, 33])
def test_rounding_agrees_bit_for_bit(monkeypatch, models, dtype):
    generator = torch.Generator().manual_seed(models)
    y = torch.rand(3, 5, models, dtype=dtype, generator=generator)
    y = torch.where(torch.rand(y.shape, generator=generator) < 0.3, y.round(), y)
    sizes = torch.rand(5, models, dtype=dtype, generator=generator) + 0.1
    for numbers in (torch.rand(y.shape, dtype=dtype, generator=generator), torch.full((5, models), 0.4, dtype=dtype)):
        a, b = both(monkeypatch, depround_kernel, y, sizes, numbers)
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
@pytest.mark.parametrize("seed", range(15))
def test_projection_agrees(monkeypatch, seed, mirror_map, dtype):
    problem = random_problem(seed, dtype, extra_models=seed % 2)
    y = torch.stack([feasible_allocation(problem, s) for s in range(3)])
    grad = torch.rand(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    eta = torch.tensor([0.0, 1.0, 30.0], dtype=dtype)[:, None, None]
    a, b = both(monkeypatch, mirror_step_kernel, y, grad, eta, problem.sizes, problem.feasible, mirror_map)
    assert close(b[0], a[0], dtype, scale=30)
    where = problem.feasible
    target = torch.where(where.holds_all, 0.0, where.budgets).double()
    used = torch.where(where.free & ~where.holds_all[:, None], problem.sizes * b[0], 0.0).sum(-1, dtype=torch.float64)
    assert ((used - target).abs() <= 3 * torch.finfo(dtype).eps * target).all()


@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
def test_each_argument_repeats_its_rows_its_own_way(monkeypatch, mirror_map):
    generator = torch.Generator().manual_seed(0)
    y, sizes = torch.rand(2, 4, 5, generator=generator), torch.rand(4, 5, generator=generator) + 1
    budgets = torch.rand(2, 4, generator=generator) * 3 + 2
    for ours in ((y, y, 1.0, sizes, budgets), (y[0], y, 1.0, sizes[0], budgets), (y, y[0, :, :1], 0.5, sizes, budgets)):
        a, b = both(monkeypatch, idn.mirror_ascent_step, *ours, mirror_map=mirror_map)
        assert close(b[0], a[0], torch.float32)
    for ours in ((y, sizes[0], y[0]), (y, sizes, y[:, :, :1]), (y[0], sizes[:1], y)):
        a, b = both(monkeypatch, depround_kernel, *ours)
        assert torch.equal(a[0], b[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slot", [None, 0, 2**31])
def test_uniforms_agree_bit_for_bit(monkeypatch, slot, dtype):
    seeds = torch.tensor([[0, 3], [2**40 + 1, -5]])
    a, b = both(monkeypatch, uniforms, seeds, 4, 7, slot, dtype)
    assert torch.equal(a[0], b[0])


@pytest.mark.parametrize("path", ["torch", "numba"])
@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch, discipline, path):
    """Tables of more elements than torch gives to one thread."""
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if path == "numba" else 1 << 60)
    problem = idn.generators.tree(nodes=60, branching=4, depth=4, tasks=6, models_per_task=8, dtype=torch.float32)
    assert 3 * problem.ranked.cost.numel() > 1 << 15
    threads = torch.get_num_threads()
    runs = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            runs.append(idn.run(problem, idn.Infida(discipline=discipline), seed=torch.arange(3)))
    finally:
        torch.set_num_threads(threads)
    assert runs[0].gain.unique().numel() == runs[0].gain.numel()
    for run in runs[1:]:
        for name in ("gain", "gain_fractional", "cost", "model_updates"):
            assert torch.equal(getattr(runs[0], name), getattr(run, name)), name
        for a, b in zip(runs[0].state.policy[1:], run.state.policy[1:], strict=True):
            assert torch.equal(a, b)
        assert torch.equal(runs[0].state.common.slope, run.state.common.slope)


@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
def test_nothing_is_compiled_after_the_first_slot(monkeypatch, discipline):
    from idn_torch.kernels import nodes, tables

    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0)
    problem = random_problem(3, torch.float32)
    policy = idn.Infida(discipline=discipline)

    def compiled() -> dict[str, int]:
        found = {name: getattr(module, name) for module in (nodes, tables) for name in module.__all__}
        return {name: len(kernel.signatures) for name, kernel in found.items()}

    state = begin(problem, policy)
    state, _, _ = advance(problem, policy, state, problem.requests[0])
    first = compiled()
    assert first[f"serve_{discipline}"] >= 1
    for r in problem.requests[1:]:
        state, _, _ = advance(problem, policy, state, r)
    assert compiled() == first


def test_a_first_compiled_call_leaves_torch_its_threads():
    """In a fresh process: numba starts its pool once."""
    code = """
import torch
torch.set_num_threads(1)
from idn_torch import kernels
from idn_torch.philox import uniforms
kernels.MIN_ELEMENTS = 0
uniforms(torch.tensor(3), 10, 10)
print(torch.get_num_threads())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"


def test_small_work_and_other_devices_stay_with_torch():
    assert not kernels.compiled_for(torch.zeros(1), 1000)
    assert kernels.compiled_for(torch.zeros(1), 1 << 30)
    assert not kernels.compiled_for(torch.zeros(1, device="meta"), 1 << 30)
    assert kernels.path_taken(torch.zeros(1), 10) == "torch"
    assert kernels.path_taken(torch.zeros(1), 1 << 30) == "numba"
