import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.bounds import Cuts
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.infida import drop_overshoot, fill_budgets
from idn_torch.mirror import first_allocation, mirror_step_kernel, slope_norm
from idn_torch.philox import uniforms
from idn_torch.rounding import depround_kernel
from idn_torch.theory import PSI
from tests.instances import close, feasible_allocation, random_allocation, random_problem

SLOTS = 6


def compare(problem, policy, seed, orders=None, **options):
    """Run the policy and the oracle on the same requests and uniforms."""
    oracle = ref.Instance.from_problem(problem)
    key = torch.tensor(seed)
    if policy.coupling == "fixed":
        numbers = uniforms(key, *problem.shape).numpy()
    else:
        numbers = np.stack([uniforms(key, *problem.shape, slot=t).numpy() for t in range(SLOTS)])
    arrivals = None if orders is None else [o.tolist() for o in orders]
    want = ref.infida(oracle, problem.requests.numpy(), numbers, orders=arrivals, **options)
    got = idn.run(problem, policy, seed=seed, order=None if orders is None else orders.__getitem__)
    assert close(got.gain, want.gain)
    assert close(got.gain_fractional, want.gain_fractional)
    assert close(got.cost, want.cost)
    assert close(got.state.cuts.bound(problem), want.bound)
    assert close(got.ntag(), want.ntag)
    assert close(got.mean_updates(), want.model_updates)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
def test_the_default_policy_matches_the_oracle(seed, discipline):
    problem = random_problem(seed, slots=SLOTS)
    policy = idn.Infida(discipline=discipline, floor=0.01)
    compare(problem, policy, seed, discipline=discipline, delta=0.01, residual="strict")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {"residual": "draw"},
        {"coupling": "fresh"},
        {"mirror_map": "euclidean", "c": 2.0},
        {"step_size": "sqrt", "c": 0.05},
        {"step_size": "constant", "c": 0.01},
        {"refresh": 3},
    ],
    ids=str,
)
def test_every_option_matches_the_oracle(seed, options):
    problem = random_problem(seed + 50, slots=SLOTS)
    policy = idn.Infida(floor=0.0, **options)
    named = {k: v for k, v in options.items() if k != "coupling"}
    named["step"] = named.pop("step_size", "scale_free")
    compare(problem, policy, seed, **{"residual": "strict", **named})


def test_the_order_of_arrival_matches_the_oracle():
    problem = random_problem(70, slots=SLOTS, types=12)
    orders = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(t)) for t in range(SLOTS)])
    compare(problem, idn.Infida(floor=0.0), 1, orders=orders, residual="strict")


def test_a_batch_of_seeds_step_sizes_and_tables_equals_the_loop():
    problem = random_problem(21, slots=SLOTS)
    seeds = torch.tensor([[3], [9]])  # (2, 1)
    steps = torch.tensor([1.0, 16.0, 60.0])  # (3,)
    scale = torch.tensor([1.0, 4.0], dtype=torch.float64).view(2, 1, 1, 1, 1)
    batched = problem.with_cost(problem.cost_table() * scale)  # (2, 1)
    result = idn.run(batched, idn.Infida(c=steps), seed=seeds)
    assert result.gain.shape == (2, 3, SLOTS)
    for i in range(2):
        one = problem.with_cost(problem.cost_table() * scale[i, 0])
        for j in range(3):
            alone = idn.run(one, idn.Infida(c=float(steps[j])), seed=int(seeds[i, 0]))
            for name in ("requests", "gain", "gain_fractional", "cost", "model_updates"):
                assert close(getattr(result, name)[i, j], getattr(alone, name)), name
            assert close(result.state.policy.x[i, j], alone.state.policy.x)
            assert close(result.state.cuts.bound(batched)[i, j], alone.state.cuts.bound(one))
            assert close(result.state.common.bound(batched)[i, j], alone.state.common.bound(one))


def test_padding_leaves_a_run_unchanged():
    small = idn.run(random_problem(22, slots=SLOTS), idn.Infida(), seed=4)
    large = idn.run(random_problem(22, slots=SLOTS, extra_models=3, extra_types=2), idn.Infida(), seed=4)
    assert close(large.gain, small.gain)
    assert close(large.state.policy.x[..., :8], small.state.policy.x)
    assert not large.state.policy.x[..., 8:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strict_never_exceeds_a_budget_and_draw_by_less_than_a_model(dtype):
    for seed in range(10):
        problem = random_problem(seed, dtype, budget=(0.1, 0.7), slots=1)
        y = torch.stack([feasible_allocation(problem, s) for s in range(40)])
        numbers = torch.rand(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        x, residual = depround_kernel(y, problem.sizes, numbers)
        used = (problem.sizes * x).sum(-1)
        assert (used < problem.budgets + problem.sizes.amax(-1)).all()
        r = problem.requests[0]
        kept = drop_overshoot(problem, x, residual)
        assert ((problem.sizes * kept).sum(-1) <= problem.budgets * (1 + 1e-6)).all()
        assert (kept <= x).all()
        filled = fill_budgets(problem, kept, r, idn.potential_capacity(problem, r))
        assert ((problem.sizes * filled).sum(-1) <= problem.budgets * (1 + 1e-6)).all()
        assert (filled >= kept).all()
        lam = idn.potential_capacity(problem, r)
        assert (idn.gain(problem, r, lam, filled) >= idn.gain(problem, r, lam, kept)).all()


def test_fixed_coupling_reloads_less_than_fresh_at_the_same_law():
    problem = random_problem(31, nodes=8, models=16, tasks=2, types=30, budget=(0.3, 0.6), slots=40)
    seeds = torch.arange(64)
    fixed = idn.run(problem, idn.Infida(coupling="fixed", residual="draw"), seed=seeds)
    fresh = idn.run(problem, idn.Infida(coupling="fresh", residual="draw"), seed=seeds)
    assert fixed.mean_updates().mean() < 0.5 * fresh.mean_updates().mean()
    a, b = fixed.ntag(), fresh.ntag()
    error = (a.var() / 64 + b.var() / 64).sqrt()
    assert (a.mean() - b.mean()).abs() < 4 * error + 0.02 * b.mean()


def test_refresh_changes_models_only_when_due():
    problem = random_problem(32, slots=12)
    result = idn.run(problem, idn.Infida(refresh=4))
    changed = (result.model_updates > 0).nonzero().flatten()
    assert all(int(t) % 4 == 0 for t in changed)


def against(problem, y, rng):
    """The requests of an adversary: of ten random sequences, those that y serves worst against the best of all."""
    drawn = torch.tensor(rng.integers(0, 30, (10, len(problem.type_ids))), dtype=torch.float64)
    drawn *= torch.tensor(rng.random((10, len(problem.type_ids))) < 0.3)
    lam = idn.potential_capacity(problem, drawn)
    everything = torch.ones_like(y)
    return drawn[(idn.gain(problem, drawn, lam, everything) - idn.gain(problem, drawn, lam, y)).argmax()]


@pytest.mark.parametrize("kind", ["random", "bursts", "jumps", "adversary"])
@pytest.mark.parametrize("seed", range(4))
def test_the_regret_bound_holds_with_the_theoretical_step(kind, seed):
    """`psi * sum G(x*) - E sum G(x_t) <= psi * norm * sqrt(2 D T / theta)` under the theorem's conditions.

    Its conditions: l_t = min(L, r) does not depend on x_t, no floor, the residual drawn.
    """
    slots, draws = 60, 40
    rng = np.random.default_rng(seed)
    problem = random_problem(seed + 3, budget=(0.2, 0.6), slots=slots)
    requests = problem.requests
    if kind == "bursts":
        requests = requests * (torch.arange(slots) % 7 < 3).double()[:, None]
    elif kind == "jumps":
        requests = requests[:1].repeat(slots, 1) * (
            (torch.arange(slots)[:, None] // 10 + torch.arange(len(requests.T))) % 2
        )
    elif kind == "adversary":
        requests = torch.full_like(requests, 29.0)  # the most that it may ask: what the constants have to know
    constants = idn.theory(problem, requests)
    where = problem.feasible
    y = first_allocation(problem.sizes, where, "negentropy")
    fractional, rounded, cuts, norm = 0.0, torch.zeros(draws, dtype=torch.float64), Cuts.none(problem), 0.0
    for t in range(slots):
        r = against(problem, y, rng) if kind == "adversary" else requests[t]
        lam = idn.potential_capacity(problem, r)
        value, slope = gain_and_subgradient_kernel(problem, r, lam, y)
        cuts = cuts.add(value, slope, y)
        fractional += value.item()
        x = idn.depround(y.expand(draws, *y.shape), problem.sizes, torch.Generator().manual_seed(100 * seed + t))
        rounded += idn.gain(problem, r, lam, x)
        choose = where.free & ~where.holds_all[:, None]
        norm = max(norm, float((slope / problem.sizes)[choose].max()))
        y = mirror_step_kernel(y, slope, torch.tensor(constants.eta).double(), problem.sizes, where, "negentropy")
    best = float(cuts.bound(problem)) * slots  # no static allocation gains more
    assert norm <= constants.norm
    # E G(x_t) >= psi * G(y_t): the fractional regret keeps the bound without psi, and the rounded one with it.
    assert best - fractional <= constants.regret / PSI
    error = float(rounded.std()) / draws**0.5
    assert PSI * best - float(rounded.mean()) <= constants.regret + 4 * error


def test_unbiased_noise_costs_little_and_less_the_longer_the_run():
    problem = random_problem(31, nodes=8, models=16, tasks=2, types=30, budget=(0.3, 0.6), slots=4)
    requests = problem.requests.repeat(100, 1)
    best = float(idn.shared_upper_bound(problem, requests))
    late = {}
    for noise in (0.0, 0.25, 1.0):
        result = idn.run(problem, idn.Infida(noise=noise), requests, seed=torch.arange(8))
        regret = 1 - result.gain.mean(0) / best
        late[noise] = float(regret[200:].mean())
        if noise:
            assert late[noise] < float(regret[:50].mean())
        # Cuts without noise stay bounds, of INFIDA's own capacities.
        assert (result.state.cuts.bound(problem) >= result.gain_fractional.mean(-1) * (1 - 1e-9)).all()
    assert late[0.25] < late[0.0] + 0.03
    assert late[0.25] < late[1.0] < late[0.0] + 0.12


def test_noise_is_unbiased_of_the_level_asked_for_and_its_own_for_every_slot_and_seed():
    problem = random_problem(2, budget=(0.2, 0.6), slots=3)
    policy = idn.Infida(noise=0.5)
    state = policy.init(problem, torch.arange(4000))
    slope = random_allocation(problem, 1) + 0.1
    added = policy._blur(problem, state, slope.expand(4000, *problem.shape)) - slope
    scale = 0.5 * slope_norm(slope, problem.sizes, problem.feasible, "negentropy")[:, None] * problem.sizes
    unit = added / torch.where(scale > 0, scale, 1.0)
    assert (unit.mean(0).abs() < 5 / 4000**0.5).all()
    assert close(unit.std(0)[scale > 0], torch.ones(int((scale > 0).sum())).double(), torch.float32, 1e5)
    again = policy._blur(problem, state._replace(slot=1), slope.expand(4000, *problem.shape)) - slope
    assert not torch.equal(added, again)
    with pytest.raises(idn.InputError, match=r"noise is -1\.0"):
        idn.Infida(noise=-1.0)


def test_theory_matches_the_oracle():
    problem = random_problem(5, budget=(0.2, 0.6), slots=SLOTS)
    oracle = ref.Instance.from_problem(problem)
    got = idn.theory(problem, problem.requests)
    norm = ref.norm_bound(oracle, problem.requests.amax(0).numpy())
    want = ref.theoretical_step(oracle, norm, SLOTS)
    for name, value in {
        "theta": want.theta,
        "diameter": want.D,
        "norm": norm,
        "eta": want.eta,
        "regret": want.regret,
    }.items():
        assert getattr(got, name) == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("seed", range(8))
def test_popularity_matches_the_oracle(seed):
    rng = np.random.default_rng(seed)
    base = random_problem(seed, slots=SLOTS, whole_costs=True)
    problem = idn.build_problem(
        sizes=base.sizes,
        budgets=base.budgets,
        capacity=base.capacity,
        repository=base.repository,
        model_task=base.model_task,
        paths=base.paths,
        type_task=base.type_task,
        path_latency=np.sort(rng.integers(0, 9, base.paths.shape), axis=1),
        delay=rng.integers(1, 9, base.shape),
        accuracy=rng.integers(0, 5, base.shape[1]) / 4,
        alpha=8,
        requests=base.requests,
    )
    oracle = ref.Instance.from_problem(problem)
    burden = (problem.delay + 8 * (1 - problem.accuracy)).numpy()
    policy = idn.Popularity()
    state = policy.init(problem)
    average = np.zeros((problem.shape[0], len(problem.task_ids)))
    assert np.array_equal(state.x.numpy(), oracle.omega)
    for t, r in enumerate(problem.requests):
        state, slot = policy.step(problem, state, r)
        assert slot.slope is None
        average = ref.popularity_average(oracle, average, r.numpy(), t + 1)
        assert close(state.passing, average)
        assert np.array_equal(state.x.numpy(), ref.popularity_placement(oracle, average, burden))
    with pytest.raises(idn.InputError, match="compares delay and accuracy"):
        policy.init(base)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": 0.0}, "the step size must be > 0"),
        ({"c": float("nan")}, "the step size must be > 0"),
        ({"c": torch.tensor([1.0, -1.0])}, "the step size must be > 0"),
        ({"step_size": "adam"}, "step_size is 'adam'; use one of scale_free, sqrt, constant"),
        ({"mirror_map": "l1"}, "mirror_map is 'l1'"),
        ({"coupling": "loose"}, "coupling is 'loose'"),
        ({"residual": "keep"}, "residual is 'keep'"),
        ({"discipline": "lifo"}, "discipline is 'lifo'"),
        ({"floor": 1.0}, r"floor is 1\.0"),
        ({"refresh": 0}, "refresh is 0"),
    ],
    ids=str,
)
def test_bad_options_are_named(options, message):
    with pytest.raises(idn.InputError, match=message):
        idn.Infida(**options)


def test_bad_requests_are_named():
    problem = random_problem(0)
    with pytest.raises(idn.InputError, match="no requests"):
        idn.run(problem, idn.Infida(), problem.requests[:0])
    wrong = problem.requests.clone()
    wrong[1, 2] = 1.5
    with pytest.raises(idn.InputError, match=r"type '2' has 1\.5 requests"):
        idn.run(problem, idn.Infida(), wrong)
