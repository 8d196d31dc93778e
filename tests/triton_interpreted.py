"""The Triton kernels on CPU tensors, against the torch code and the loops of `reference`.

Run by `test_triton.py` in a process of its own: Triton reads TRITON_INTERPRET when a kernel is defined.
"""

import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import generators, kernels
from idn_torch import reference as ref
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.feasible import feasible_set
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.kernels.triton import gain, projection, rounding
from idn_torch.mirror import mirror_step_kernel
from idn_torch.projection import project_negentropy
from idn_torch.rounding import depround_kernel
from tests.instances import close, feasible_allocation, random_allocation, random_problem

# The interpreter computes both sides of a `where` with numpy.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")

DTYPES = (torch.float32, torch.float64)
MAPS = ("negentropy", "euclidean")
RESIDUAL = {torch.float32: 3e-7, torch.float64: 1e-14}


@pytest.fixture
def interpreted(monkeypatch):
    """Everything goes to Triton."""
    monkeypatch.setattr(kernels, "TRITON_DEVICES", frozenset({"cpu"}))


def both(monkeypatch, function, *args, **kwargs):
    """Results of the torch code and of the Triton kernel, as lists of tensors."""
    results = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(kernels, "TRITON_DEVICES", frozenset(devices))
        out = function(*args, **kwargs)
        results.append(list(out) if isinstance(out, tuple) else [out])
    return results


def over_budget(y, sizes, where):
    """Largest budget residual of the nodes that choose, relative."""
    choose = where.free & ~where.holds_all[..., None]
    used = torch.where(choose, sizes.double() * y.double(), 0.0).sum(-1)
    target = where.budgets.double()
    return float((used / target - 1).abs()[choose.any(-1).expand(used.shape)].max())


@pytest.mark.parametrize("batched_tables", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_gain_agrees_with_torch(monkeypatch, seed, dtype, batched_tables):
    """Costs in whole numbers and fractions in quarters: all sums are exact and S_k = r is hit all the time."""
    problem = random_problem(seed, dtype, whole_costs=True, extra_models=seed % 3 * 2, extra_types=seed % 2)
    if batched_tables:
        factor = torch.tensor([1.0, 2.0, 0.5], dtype=dtype).view(3, 1, 1, 1)
        problem = problem.with_cost(problem.cost_table() * factor)
    r = problem.requests[:3]
    lam = idn.potential_capacity(problem, r)
    for steps in (1, 4):
        y = torch.stack([random_allocation(problem, seed + i, steps=steps) for i in range(3)])
        for a, b in zip(*both(monkeypatch, gain_and_subgradient_kernel, problem, r, lam, y), strict=True):
            assert torch.equal(b, a)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(10))
def test_gain_matches_the_loops(seed, dtype):
    problem = random_problem(seed, dtype, whole_costs=seed % 2 == 0)
    oracle, r = ref.Instance.from_problem(problem), problem.requests[0]
    lam = idn.potential_capacity(problem, r)
    for y in (random_allocation(problem, seed, integral=True), random_allocation(problem, seed, steps=4)):
        arrays = [t.double().numpy() for t in (r, lam, y)]
        value, slope = idn.gain_and_subgradient(problem, r, lam, y)
        assert close(value, ref.gain(oracle, *arrays), dtype)
        assert close(slope, ref.subgradient(oracle, *arrays), dtype)


def wide(dtype):
    """More types than a program takes and more ranks than a step, most of them needed."""
    problem = random_problem(3, dtype, nodes=12, tasks=2, models=24, types=19)
    assert problem.ranked.cost.shape[-1] > 64
    r = problem.requests * 4
    return problem, r, idn.potential_capacity(problem, r)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_ranks_and_types_agree(monkeypatch, dtype):
    problem, r, lam = wide(dtype)
    for y in (random_allocation(problem, 0), random_allocation(problem, 0).expand(4, -1, -1) * 0.5):
        for a, b in zip(*both(monkeypatch, gain_and_subgradient_kernel, problem, r, lam, y), strict=True):
            assert close(b, a, dtype)


@pytest.mark.usefixtures("interpreted")
def test_ranks_in_steps_after_k_star_are_not_read():
    problem, r, lam = wide(torch.float64)
    r, lam = r[0], lam[0]
    y = random_allocation(problem, 0).clamp(min=0.5)
    oracle = ref.Instance.from_problem(problem)
    k_star = ref.k_star(oracle, r.numpy(), lam.numpy(), y.numpy())
    unread = torch.arange(lam.shape[-1]) >= gain._RANKS * (1 + torch.as_tensor(k_star)[:, None] // gain._RANKS)
    assert unread.any(1).all()
    value, slope = gain_and_subgradient_kernel(problem, r, lam, y)
    poisoned = gain_and_subgradient_kernel(problem, r, lam.masked_fill(unread, torch.nan), y)
    assert torch.equal(poisoned[0], value)
    assert torch.equal(poisoned[1], slope)


@pytest.mark.usefixtures("interpreted")
def test_types_without_requests_gain_nothing_and_read_nothing():
    problem, r, lam = wide(torch.float32)
    y = random_allocation(problem, 1)
    value, slope = gain_and_subgradient_kernel(problem, torch.zeros_like(r), torch.full_like(lam, torch.nan), y)
    assert not value.any()
    assert not slope.any()


@pytest.mark.usefixtures("interpreted")
def test_the_gain_alone_is_the_same_gain():
    problem, r, lam = wide(torch.float32)
    y = random_allocation(problem, 1)
    value, _ = gain_and_subgradient_kernel(problem, r, lam, y)
    alone, slope = gain_and_subgradient_kernel(problem, r, lam, y, need_subgradient=False)
    assert torch.equal(alone, value)
    assert not slope.any()


@pytest.mark.usefixtures("interpreted")
def test_what_a_batch_shares_stays_one_row_in_memory(monkeypatch):
    problem, r, lam = wide(torch.float32)
    y = torch.stack([random_allocation(problem, seed) for seed in range(3)])
    batch, (r, lam, y) = flat_batch(problem, (r[0], 1), (lam[0], 2), (y, 2))
    stored = []
    monkeypatch.setattr(gain, "stored_rows", lambda t: stored.append(kernels.stored_rows(t)) or stored[-1])
    gain.gain_and_subgradient(*flat_tables(problem, batch), r, lam, y.flatten(1), True)
    assert [len(t) for t in stored] == [1, 1, 1, 1, 1, 3]
    assert stored[0].data_ptr() == problem.ranked.cost.data_ptr()


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mirror_map", MAPS)
@pytest.mark.parametrize("seed", range(6))
def test_projection_and_step_match_the_loops(seed, mirror_map, dtype):
    problem = random_problem(seed, dtype, extra_models=seed % 3 * 2)
    ours = problem.sizes, problem.budgets, problem.repository
    theirs = [np.asarray(t, dtype=bool if t.dtype == torch.bool else float) for t in ours]
    y = feasible_allocation(problem, seed)
    point = y * 3 + 0.01
    assert close(idn.project(point, *ours, mirror_map), ref.project(point.double().numpy(), *theirs, mirror_map), dtype)
    grad = torch.rand(problem.shape, generator=torch.Generator().manual_seed(seed)).to(dtype) * 5
    step = idn.mirror_ascent_step(y, grad, 0.7, *ours, mirror_map)
    want = ref.mirror_ascent_step(y.double().numpy(), grad.double().numpy(), 0.7, *theirs, mirror_map)
    assert close(step, want, dtype, 5.0)
    assert over_budget(step, problem.sizes, problem.feasible) <= RESIDUAL[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mirror_map", MAPS)
def test_steps_of_a_batch_agree_with_torch(monkeypatch, mirror_map, dtype):
    problem = random_problem(7, dtype, models=40, nodes=3)
    where = problem.feasible
    y = torch.stack([feasible_allocation(problem, s) for s in range(3)])
    grad = torch.rand(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    per_entry = torch.rand(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    for eta in (torch.tensor([0.0, 1.0, 30.0], dtype=dtype).view(3, 1, 1), per_entry[0, :, :1], per_entry):
        for at in (y, y[0], y[:, None]):
            a, b = both(monkeypatch, mirror_step_kernel, at, grad, eta, problem.sizes, where, mirror_map)
            assert a[0].shape == b[0].shape
            assert close(b[0], a[0], dtype, scale=30)
            assert over_budget(b[0], problem.sizes, where) <= RESIDUAL[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mirror_map", MAPS)
def test_nodes_that_hold_all_or_nothing_or_one_model(monkeypatch, mirror_map, dtype):
    """Budgets per instance: 0, too small for the largest model, for some, for all; and a single model."""
    generator = torch.Generator().manual_seed(2)
    for models in (1, 2, 33):
        sizes = torch.rand(3, models, dtype=dtype, generator=generator) + 0.5
        budgets = sizes.sum(-1) * torch.tensor([[0.0], [0.4], [0.9], [1.0], [2.0]], dtype=dtype)
        fixed = torch.zeros_like(sizes, dtype=torch.bool)
        fixed[1, 0] = True
        budgets[:, 1] += sizes[1, 0]
        y = torch.rand(3, models, dtype=dtype, generator=generator) + 0.01
        a, b = both(monkeypatch, idn.project, y, sizes, budgets, fixed, mirror_map)
        assert close(b[0], a[0], dtype)
        where = feasible_set(sizes, budgets, fixed)
        assert (b[0][..., 1, 0] == 1).all()
        assert (b[0][where.free & where.holds_all[..., None]] == 1).all()
        assert not b[0][~where.free & ~where.fixed].any()


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_entropy_spans_hundreds_of_nats(dtype):
    log_y = torch.tensor([[200.0, 0.0, -200.0, 3.0]], dtype=dtype)
    sizes, budgets = torch.ones(1, 4, dtype=dtype), torch.tensor([2.0], dtype=dtype)
    where = feasible_set(sizes, budgets, None)
    out = project_negentropy(log_y, sizes, where)
    assert out[0, 0] == 1
    assert over_budget(out, sizes, where) <= RESIDUAL[dtype]
    # A model at 0 stays there, whatever the others do.
    y = torch.tensor([[0.0, 1.0, 0.5, 0.5]], dtype=dtype)
    step = idn.mirror_ascent_step(y, torch.zeros_like(y), 1.0, sizes, budgets)
    assert torch.equal(step, y)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mirror_map", MAPS)
def test_budgets_are_met_by_many_models(mirror_map, dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(4, 600, dtype=dtype, generator=generator) * 9 + 1
    budgets = sizes.sum(1) * torch.tensor([0.01, 0.1, 0.5, 0.95], dtype=dtype)
    y, grad = (torch.rand(sizes.shape, dtype=dtype, generator=generator) for _ in range(2))
    where = feasible_set(sizes, budgets, None)
    for eta in (0.1, 10.0, 1000.0):
        out = idn.mirror_ascent_step(y, grad, eta, sizes, budgets, mirror_map=mirror_map)
        assert ((out >= 0) & (out <= 1)).all()
        assert over_budget(out, sizes, where) <= RESIDUAL[dtype]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("mirror_map", MAPS)
def test_models_in_another_order_get_the_same(mirror_map):
    problem = random_problem(4, models=13)
    ours = problem.sizes, problem.budgets, problem.repository
    y = feasible_allocation(problem, 0) * 3
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    permuted = idn.project(y[:, order], ours[0][:, order], ours[1], ours[2][:, order], mirror_map)
    assert close(permuted, idn.project(y, *ours, mirror_map)[:, order])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("models", [1, 2, 3, 8, 33])
def test_rounding_agrees_bit_for_bit(monkeypatch, models, dtype):
    generator = torch.Generator().manual_seed(models)
    y = torch.rand(2, 4, models, dtype=dtype, generator=generator)
    y = torch.where(torch.rand(y.shape, generator=generator) < 0.3, y.round(), y)
    sizes = torch.rand(4, models, dtype=dtype, generator=generator) + 0.1
    for numbers in (torch.rand(y.shape, dtype=dtype, generator=generator), torch.full((4, models), 0.4, dtype=dtype)):
        for size in (sizes, sizes.expand(y.shape).flip(0), sizes[0]):
            a, b = both(monkeypatch, depround_kernel, y, size, numbers)
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1], b[1])
    want = ref.depround(*(t.double().numpy() for t in (y[0], sizes, torch.full((4, models), 0.4))))
    assert dtype == torch.float32 or np.array_equal(depround_kernel(y[0], sizes, numbers).x.numpy(), want)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("models", [5, 12])
def test_padding_a_node_changes_no_draw(models):
    generator = torch.Generator().manual_seed(0)
    y, sizes, numbers = (torch.rand(4, 20, generator=generator) for _ in range(3))
    y[:, models:] = 0
    longer = depround_kernel(y, sizes + 0.1, numbers)
    short = depround_kernel(y[:, :models], sizes[:, :models] + 0.1, numbers[:, :models])
    assert torch.equal(longer.x[:, :models], short.x)
    assert torch.equal(longer.residual, short.residual)


@pytest.mark.parametrize("mirror_map", MAPS)
def test_a_run_is_the_same_run(monkeypatch, mirror_map):
    problem = generators.tree(nodes=7, branching=2, depth=3, tasks=3, models_per_task=5, dtype=torch.float64)
    policy = idn.Infida(mirror_map=mirror_map)

    def run():
        result = idn.run(problem, policy, seed=torch.arange(2))
        return result.gain, result.state.policy.x, result.state.policy.y

    (gain_a, x_a, y_a), (gain_b, x_b, y_b) = both(monkeypatch, run)
    assert close(gain_b, gain_a)
    assert torch.equal(x_b, x_a)
    assert close(y_b, y_a)


def test_operators_keep_their_promises():
    """Schemas, aliasing and the rules for fake tensors, as torch checks them."""
    problem, r, lam = wide(torch.float32)
    y = feasible_allocation(problem, 0)
    batch, flat = flat_batch(problem, (r, 1), (lam, 2), (y, 2))
    tables = [t.contiguous() for t in (*flat_tables(problem, batch), *flat)]
    where = problem.feasible
    columns = where.free, where.fixed, where.budgets[:, None], where.holds_all[:, None]
    for operator, arguments in (
        (gain.gain_and_subgradient, (*tables[:-1], tables[-1].flatten(1), True)),
        (projection._operator, (y, y.expand(2, *y.shape).clone(), y[:, :1], problem.sizes, *columns, False)),
        (projection._operator, (y, None, None, problem.sizes, *columns, True)),
        (rounding.depround, (y, problem.sizes, torch.full_like(y, 0.3))),
    ):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
