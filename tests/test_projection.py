import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.feasible import feasible_set
from idn_torch.mirror import first_allocation, lift, slope_norm
from idn_torch.projection import project_negentropy
from tests.instances import close, feasible_allocation, random_problem

MAPS = ("negentropy", "euclidean")
DTYPES = (torch.float32, torch.float64)


def point(problem, seed, mirror_map, scale=3.0):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=problem.shape) * scale
    y = y.clip(-85, 85) if mirror_map == "negentropy" else y  # float32 ends at exp(88)
    return torch.as_tensor(np.exp(y) if mirror_map == "negentropy" else y, dtype=problem.dtype)


def arrays(problem):
    """The arguments after y, for the library and for the oracle."""
    ours = (problem.sizes, problem.budgets, problem.repository)
    return ours, tuple(np.asarray(t, dtype=bool if t.dtype == torch.bool else float) for t in ours)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mirror_map", MAPS)
@pytest.mark.parametrize("seed", range(30))
def test_projection_and_step_match_the_oracle(seed, mirror_map, dtype):
    problem = random_problem(seed, dtype, extra_models=seed % 3 * 2)
    ours, theirs = arrays(problem)
    y = point(problem, seed, mirror_map)
    scale = float(y.abs().max()) if mirror_map == "euclidean" else 1.0
    want = ref.project(y.double().numpy(), *theirs, mirror_map)
    assert close(idn.project(y, *ours, mirror_map), want, dtype, scale)
    y = feasible_allocation(problem, seed)
    grad = torch.rand(problem.shape, generator=torch.Generator().manual_seed(seed)).to(dtype) * 5
    want = ref.mirror_ascent_step(y.double().numpy(), grad.double().numpy(), 0.7, *theirs, mirror_map)
    assert close(idn.mirror_ascent_step(y, grad, 0.7, *ours, mirror_map), want, dtype, 5.0)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    mirror_map=st.sampled_from(MAPS),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from([0.1, 3.0, 40.0, 1e4]),
)
def test_a_projection_is_feasible_and_projects_onto_itself(seed, mirror_map, dtype, scale):
    problem = random_problem(seed % 60, dtype)
    if mirror_map == "negentropy":
        scale = min(scale, 15.0)  # exp(15 * 5.9) overflows float32 before it reaches the projection
    y = point(problem, seed, mirror_map, scale)
    ours, _ = arrays(problem)
    out = idn.project(y, *ours, mirror_map)
    assert ((out >= 0) & (out <= 1)).all()
    assert (out[problem.repository] == 1).all()
    where = problem.feasible
    choose = ~where.holds_all
    used = torch.where(where.free, problem.sizes * out, 0.0).sum(-1, dtype=torch.float64)
    target = where.budgets.double()
    assert ((used - target).abs() <= 4 * torch.finfo(dtype).eps * target)[choose].all()
    assert (out[~choose] == torch.where(where.free | where.fixed, 1.0, 0.0)[~choose]).all()
    assert not out[~where.free & ~where.fixed].any()
    if mirror_map == "euclidean":
        assert close(idn.project(out, *ours, mirror_map), out, dtype)


@pytest.mark.parametrize("mirror_map", MAPS)
def test_the_projection_satisfies_its_kkt_conditions(mirror_map):
    problem = random_problem(17, models=12, budget=(0.2, 0.6))
    y, (ours, _) = point(problem, 17, mirror_map), arrays(problem)
    out = idn.project(y, *ours, mirror_map)
    for v in torch.where(~problem.feasible.holds_all)[0].tolist():
        free = problem.feasible.free[v]
        if not free.any():
            continue
        p, q, s = out[v][free], y[v][free], problem.sizes[v][free]
        # Multiplier of each model: log(p / q), or (q - p) / s with the sign turned.
        slope = (p / q).log() if mirror_map == "negentropy" else (p - q) / s
        inside = (p > 1e-9) & (p < 1)
        shared = slope[inside].mean() if inside.any() else slope.max()
        assert close(slope[inside], shared.expand(int(inside.sum())), scale=10)
        assert (slope[p == 1] <= shared + 1e-9).all()  # clipped at 1: would go further
        assert (slope[p == 0] >= shared - 1e-9).all()


def test_far_apart_weights_do_not_underflow():
    """A shift by the row maximum would leave only the clipped model: b = 2 must come out exact in float32."""
    log_y = torch.tensor([[200.0, 0.0, -200.0, 3.0]])
    where = feasible_set(torch.ones(1, 4), torch.tensor([2.0]), None)
    out = project_negentropy(log_y, torch.ones(1, 4), where)
    assert out.sum().item() == pytest.approx(2.0, rel=3e-7)
    assert out[0, 0] == 1
    assert out[0, 1] / out[0, 3] == pytest.approx(np.exp(-3.0), rel=1e-6)


def test_a_long_euclidean_step_keeps_the_budget():
    y = torch.tensor([[1e8, 1e8, -1e8, 0.0]])
    out = idn.project(y, torch.ones(1, 4), torch.tensor([1.0]), mirror_map="euclidean")
    assert out.tolist() == [[0.5, 0.5, 0.0, 0.0]]


@pytest.mark.parametrize("mirror_map", MAPS)
def test_a_batch_equals_the_loop_and_padding_and_order_change_nothing(mirror_map):
    problem = random_problem(9, models=9)
    ours, _ = arrays(problem)
    y = torch.stack([point(problem, s, mirror_map) for s in range(6)]).unflatten(0, (2, 3))
    out = idn.project(y, *ours, mirror_map)
    for i in range(2):
        for j in range(3):
            assert close(out[i, j], idn.project(y[i, j], *ours, mirror_map))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    turned = idn.project(y[..., order], ours[0][:, order], ours[1], ours[2][:, order], mirror_map)
    assert close(turned, out[..., order])
    pad = torch.nn.functional.pad
    padded = idn.project(
        pad(y, (0, 4), value=0.5),
        pad(ours[0], (0, 4), value=1e4),
        ours[1],
        pad(ours[2], (0, 4), value=False),
        mirror_map,
    )
    assert close(padded[..., :9], out)
    assert not padded[..., 9:].any()


def test_steps_may_differ_by_instance_and_by_node():
    problem = random_problem(10)
    ours, _ = arrays(problem)
    y = feasible_allocation(problem, 10)
    grad = torch.rand(3, *problem.shape, dtype=torch.float64)
    per_instance = idn.mirror_ascent_step(y, grad, torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64), *ours)
    assert close(per_instance[0], y)
    assert close(per_instance[1], idn.mirror_ascent_step(y, grad[1], 0.5, *ours))
    rates = torch.linspace(0, 1, problem.shape[0], dtype=torch.float64)[:, None]
    per_node = idn.mirror_ascent_step(y, grad[1], rates, *ours)
    assert close(per_node[0], y[0])
    assert close(per_node[-1], idn.mirror_ascent_step(y, grad[1], 1.0, *ours)[-1])
    everything = idn.mirror_ascent_step(y, grad, rates.expand(3, -1, -1), *ours)
    assert close(everything[1], per_node)


@pytest.mark.parametrize("mirror_map", MAPS)
def test_the_first_allocation_minimises_the_mirror_map(mirror_map):
    problem = random_problem(13)
    _, theirs = arrays(problem)
    got = first_allocation(problem.sizes, problem.feasible, mirror_map)
    assert close(got, ref.initial_state(*theirs, mirror_map))


def test_the_floor_is_exact_on_budget():
    problem = random_problem(14, torch.float32)
    _, theirs = arrays(problem)
    y = feasible_allocation(problem, 14)
    got = lift(y, problem.sizes, problem.feasible, 0.25)
    assert close(got, ref.apply_floor(y.double().numpy(), *theirs, 0.25), torch.float32)
    used = (problem.sizes * got).sum(-1, dtype=torch.float64)
    assert close(used, (problem.sizes * y).sum(-1, dtype=torch.float64), torch.float32)
    choose = problem.feasible.free & ~problem.feasible.holds_all[:, None]
    assert (got[choose] > 0).all()


def test_the_slope_norm_counts_only_models_that_move():
    problem = random_problem(15)
    oracle = ref.Instance.from_problem(problem)
    grad = torch.rand(problem.shape, dtype=torch.float64)
    assert close(
        slope_norm(grad, problem.sizes, problem.feasible, "negentropy").max(), ref.dual_norm(oracle, grad.numpy())
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mirror_map": "l1"}, "mirror_map is 'l1'; use one of negentropy, euclidean"),
        ({"y": torch.tensor([[-1.0, 1.0]])}, "y: node 0, model 0 is negative"),
        ({"y": torch.tensor([[torch.nan, 1.0]])}, r"y\[0, 0\] is nan"),
        ({"y": torch.tensor([[0.0, 0.0]])}, "node 0 with y > 0 fill less than its budget"),
        ({"sizes": torch.tensor([[0.0, 1.0]])}, r"sizes\[0, 0\] is 0; must be > 0"),
        ({"budgets": torch.tensor([-1.0])}, r"budgets\[0\] is -1"),
        ({"budgets": torch.tensor([1.0, 1.0, 1.0])}, "shapes do not fit"),
        ({"sizes": torch.ones(1, 2).double()}, "sizes is torch.float64"),
        ({"fixed": torch.tensor([[1.0, 0.0]])}, "fixed is torch.float32; expected bool"),
        ({"fixed": torch.tensor([[True, True]])}, "the fixed models of node 0 are larger than its budget"),
    ],
)
def test_bad_input_is_named(change, message):
    good = {"y": torch.tensor([[1.0, 1.0]]), "sizes": torch.ones(1, 2), "budgets": torch.ones(1)}
    if "budgets" in change and change["budgets"].numel() == 3:
        good["y"] = torch.ones(2, 2)
    with pytest.raises(idn.InputError, match=message):
        idn.project(**{**good, **change})


def test_bad_steps_are_named():
    y, s, b = torch.full((1, 2), 0.5), torch.ones(1, 2), torch.ones(1)
    with pytest.raises(idn.InputError, match="lr must be >= 0"):
        idn.mirror_ascent_step(y, y, -1.0, s, b)
    with pytest.raises(idn.InputError, match=r"grad\[0, 1\] is nan"):
        idn.mirror_ascent_step(y, torch.tensor([[0.0, torch.nan]]), 1.0, s, b)
