import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import kernels
from idn_torch import reference as ref
from idn_torch.averaged import fill_rows, mean_gain, mean_marginals, merge_rows
from idn_torch.baselines import Olag, RandomFeasible, RepositoryOnly, StaticGreedy, random_feasible, static_greedy
from idn_torch.philox import uniforms
from idn_torch.serving import serve_kernel
from tests import baseline_oracle as oracle
from tests.instances import close, random_allocation, random_problem
from tests.pretend import pretended, pretended_cuda

SLOTS = 4
POLICIES = {
    "greedy": StaticGreedy(),
    "olag": Olag(),
    "olag, actual cost": Olag("actual"),
    "olag, fair": Olag(discipline="fair"),
    "random": RandomFeasible(),
    "repository only": RepositoryOnly(),
}


def instance(seed, **options):
    """Random problems, every third one with budgets that decide much, others with none or plenty."""
    budget = ((0.2, 0.7), (0.05, 0.4), (0.0, 1.2))[seed % 3]
    return random_problem(seed, budget=budget, slots=SLOTS, whole_costs=seed % 2 == 0, **options)


def within_budget(problem, x):
    return bool(((problem.sizes * x).sum(-1) <= problem.budgets * (1 + 1e-6)).all())


def permuted(problem, order):
    """The same problem, its request types in another order."""
    return idn.build_problem(
        sizes=problem.sizes,
        budgets=problem.budgets,
        capacity=problem.capacity,
        repository=problem.repository,
        model_task=problem.model_task,
        paths=problem.paths[order],
        type_task=problem.type_task[order],
        cost=problem.cost_table()[order].nan_to_num(posinf=0.0),
        requests=problem.requests[:, order],
        dtype=problem.dtype,
    )


# ---------------------------------------------------------------------------------------------- averaged gain


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(8))
def test_mean_gain_and_marginals_match_the_oracle(monkeypatch, seed, dtype, compiled):
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if compiled else 1 << 60)
    problem = random_problem(seed, dtype, whole_costs=seed % 2 == 0, slots=3)
    inst, requests = ref.Instance.from_problem(problem), problem.requests.double().numpy()
    rows = merge_rows(problem, problem.requests)
    x = torch.stack([random_allocation(problem, seed + i, integral=True) for i in range(2)])
    wanted = problem.feasible.free & (torch.arange(problem.shape[1]) % 3 > 0)
    gains, marginals = mean_gain(problem, rows, x), mean_marginals(problem, rows, x, wanted)
    for i in range(2):
        assert close(gains[i], oracle.mean_gain(inst, requests, x[i].double().numpy()), dtype, scale=10)
        want = np.where(wanted, oracle.mean_marginals(inst, requests, x[i].double().numpy()), 0)
        assert close(marginals[i], want, dtype, scale=10)


@pytest.mark.parametrize("compiled", [False, True])
def test_averages_of_a_batch_of_tables_and_sequences_equal_the_loop(monkeypatch, compiled):
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if compiled else 1 << 60)
    problem = random_problem(11, slots=3)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64).view(2, 1, 1, 1)
    batched = problem.with_cost(problem.cost_table().nan_to_num(posinf=0.0) * scale)
    requests = torch.stack([problem.requests, problem.requests.flip(0) * 2])[:, None]  # (2, 1, T, R)
    x = random_allocation(problem, 5, integral=True)
    rows = merge_rows(batched, requests)
    gains, marginals = mean_gain(batched, rows, x), mean_marginals(batched, rows, x, problem.feasible.free)
    assert gains.shape == (2, 2)
    for i in range(2):
        for j in range(2):
            one = problem.with_cost(problem.cost_table().nan_to_num(posinf=0.0) * scale[j])
            alone = merge_rows(one, requests[i, 0])
            assert close(gains[i, j], mean_gain(one, alone, x))
            assert close(marginals[i, j], mean_marginals(one, alone, x, problem.feasible.free))


def test_equal_slots_merge():
    problem = random_problem(12, slots=3)
    rows = merge_rows(problem, problem.requests[[0, 1, 0, 2, 0, 1]])
    assert rows.requests.shape[0] == 3
    assert sorted(rows.share.tolist()) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    x = random_allocation(problem, 1, integral=True)
    each = [float(mean_gain(problem, merge_rows(problem, problem.requests[[t]]), x)) for t in (0, 1, 0, 2, 0, 1)]
    assert close(mean_gain(problem, rows, x), np.mean(each))


def test_filling_uses_mean_marginals_and_keeps_budgets():
    for seed in range(10):
        problem = random_problem(seed, budget=(0.1, 0.7), slots=3)
        rows = merge_rows(problem, problem.requests)
        x = fill_rows(problem, rows, problem.repository.double())
        assert within_budget(problem, x)
        inst = ref.Instance.from_problem(problem)
        left = oracle.mean_marginals(inst, problem.requests.numpy(), x.numpy())
        for v, m in np.argwhere(left > 1e-9):
            assert not oracle.fits(inst, x.numpy(), v, m) or problem.feasible.holds_all[v]


# --------------------------------------------------------------------------------------------- static greedy


@pytest.mark.parametrize("seed", range(30))
def test_static_greedy_matches_one_pick_at_a_time(seed):
    problem = instance(seed)
    want = oracle.static_greedy(ref.Instance.from_problem(problem), problem.requests.numpy())
    assert np.array_equal(static_greedy(problem).numpy(), want)


@pytest.mark.parametrize("seed", range(6))
def test_static_greedy_padded_permuted_and_batched(seed):
    problem = instance(seed * 3 + 1)  # generic costs and tight budgets
    x = static_greedy(problem)
    wide = static_greedy(instance(seed * 3 + 1, extra_models=3, extra_types=2))
    assert torch.equal(wide[:, : problem.shape[1]], x)
    assert not wide[:, problem.shape[1] :].any()
    order = torch.randperm(len(problem.type_ids), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(static_greedy(permuted(problem, order)), x)
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64).view(2, 1, 1, 1)
    costs = problem.cost_table().nan_to_num(posinf=0.0) * scale
    requests = torch.stack([problem.requests, problem.requests * 3, problem.requests.flip(1)])[:, None]
    batch = static_greedy(problem.with_cost(costs), requests)
    assert batch.shape == (3, 2, *problem.shape)
    for i in range(3):
        for j in range(2):
            assert torch.equal(batch[i, j], static_greedy(problem.with_cost(costs[j]), requests[i, 0]))


def test_static_greedy_knows_its_requests_and_keeps_its_choice():
    problem = instance(7)
    early = StaticGreedy(requests=problem.requests[:1]).init(problem).x
    assert torch.equal(early, static_greedy(problem, problem.requests[:1]))
    result = idn.run(problem, StaticGreedy())
    assert torch.equal(result.state.policy.x, static_greedy(problem))
    assert not result.model_updates.any()
    with pytest.raises(idn.InputError, match="no requests"):
        static_greedy(problem, problem.requests[:0])
    with pytest.raises(idn.InputError, match=r"type '1' has 0\.5"):
        static_greedy(problem, torch.full_like(problem.requests, 1.0).index_fill(1, torch.tensor(1), 0.5))


# ------------------------------------------------------------------------------------------------------ OLAG


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
@pytest.mark.parametrize("reference", ["repository", "actual"])
@pytest.mark.parametrize("seed", range(12))
def test_olag_matches_the_oracle(monkeypatch, seed, reference, discipline, compiled):
    problem = instance(seed)
    inst = ref.Instance.from_problem(problem)
    policy = Olag(reference, discipline)
    state = policy.init(problem)
    assert np.array_equal(state.x.numpy(), inst.omega)
    for r in problem.requests:
        serve = ref.serve_fcfs if discipline == "fcfs" else ref.serve_fair
        outcome = serve(inst, r.numpy(), state.x.numpy())
        want = oracle.olag(inst, r.numpy(), outcome.served, reference)
        monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if compiled else 1 << 60)
        x = state.x.numpy()
        state, slot = policy.step(problem, state, r)
        assert close(slot.served.gain, ref.gain(inst, r.numpy(), outcome.capacity, x))
        assert slot.slope is None
        assert np.array_equal(state.x.numpy(), want)
        assert within_budget(problem, state.x)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reference", ["repository", "actual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_olag_padded_permuted_and_batched(monkeypatch, dtype, reference, compiled):
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", 0 if compiled else 1 << 60)
    policy = Olag(reference)
    for seed in (1, 5, 9):
        problem = random_problem(seed, dtype, budget=(0.1, 0.6), slots=SLOTS)
        alone = idn.run(problem, policy)
        wide = idn.run(
            random_problem(seed, dtype, budget=(0.1, 0.6), slots=SLOTS, extra_models=3, extra_types=2), policy
        )
        assert close(wide.gain, alone.gain, dtype)
        order = torch.randperm(len(problem.type_ids), generator=torch.Generator().manual_seed(seed))
        inverse = order.argsort()
        other = idn.run(permuted(problem, order), policy, order=lambda t, inverse=inverse: inverse)
        assert close(other.gain, alone.gain, dtype)
        scale = torch.tensor([1.0, 2.0], dtype=dtype).view(2, 1, 1, 1)
        costs = problem.cost_table().nan_to_num(posinf=0.0) * scale
        batch = idn.run(problem.with_cost(costs), policy, seed=torch.arange(3)[:, None])
        assert batch.gain.shape == (3, 2, SLOTS)
        for j in range(2):
            one = idn.run(problem.with_cost(costs[j]), policy)
            assert close(batch.gain[:, j], one.gain.expand(3, -1), dtype)
            assert torch.equal(batch.state.policy.x[2, j], one.state.policy.x)


# ------------------------------------------------------------------------------- random and repository only


@pytest.mark.parametrize("seed", range(10))
def test_random_feasible_matches_the_oracle_and_leaves_no_room(seed):
    problem = instance(seed)
    inst = ref.Instance.from_problem(problem)
    seeds = torch.arange(5)
    x = RandomFeasible().init(problem, seeds).x
    numbers = uniforms(seeds, *problem.shape)
    for i in range(5):
        assert np.array_equal(x[i].numpy(), oracle.random_feasible(inst, numbers[i].numpy()))
        for v in range(problem.shape[0]):
            assert not any(oracle.fits(inst, x[i].numpy(), v, m) for m in range(problem.shape[1]))
    wide = instance(seed, extra_models=3, extra_types=2)
    assert torch.equal(RandomFeasible().init(wide, seeds).x[..., : problem.shape[1]], x)


def test_random_feasible_draws_equal_models_alike():
    problem = idn.build_problem(
        sizes=[[1.0] * 5, [9.0] * 5],
        budgets=[2.0, 9.0],
        capacity=np.ones((2, 5)),
        repository=[[0] * 5, [1, 0, 0, 0, 0]],
        model_task=[0] * 5,
        paths=[[0, 1]],
        type_task=[0],
        cost=np.zeros((1, 2, 5)),
    )
    drawn = random_feasible(problem, uniforms(torch.arange(4000), *problem.shape))
    assert (drawn[:, 0].sum(-1) == 2).all()
    assert (drawn.mean(0)[0] - 0.4).abs().max() < 4 * (0.24 / 4000) ** 0.5


def test_repository_only_gains_nothing():
    problem = instance(4)
    result = idn.run(problem, RepositoryOnly(), seed=torch.arange(3))
    assert not result.gain.any()
    assert not result.model_updates.any()
    inst = ref.Instance.from_problem(problem)
    for t, r in enumerate(problem.requests.numpy()):
        lam = ref.potential_capacity(inst, r)
        assert close(result.cost[:, t], np.full(3, ref.serving_cost(inst, r, lam, inst.omega)))


# ------------------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_serves_as_the_oracle_does(name):
    problem = instance(9)
    inst, policy = ref.Instance.from_problem(problem), POLICIES[name]
    state = policy.init(problem, seed=2)
    for r in problem.requests:
        serve = ref.serve_fair if policy.discipline == "fair" else ref.serve_fcfs
        want = serve(inst, r.numpy(), state.x.numpy())
        before = state
        state, slot = policy.step(problem, state, r)
        assert within_budget(problem, before.x)
        assert (before.x >= problem.repository).all()
        assert close(slot.served.cost, want.cost)
        assert torch.equal(slot.served.gain, serve_kernel(problem, r, before.x, policy.discipline).gain)


@pytest.mark.parametrize("name", POLICIES)
def test_a_step_never_leaves_a_pretended_cuda_device(name, three_nodes):
    problem = three_nodes.to(dtype=torch.float32)
    policy = POLICIES[name]
    state = policy.init(problem)
    with pretended_cuda():
        there, r, state = pretended(problem), pretended(problem.requests)[0], pretended(state)
        for _ in range(2):
            state, slot = policy.step(there, state, r, rounds=8)
        assert state.x.device.type == slot.served.gain.device.type == "cuda"
        assert state.x.shape == problem.shape


@pytest.mark.cuda
@pytest.mark.parametrize("name", POLICIES)
def test_a_run_on_cuda_equals_one_on_the_cpu(name):
    here = random_problem(5, slots=8)
    a, b = (idn.run(problem, POLICIES[name], seed=3) for problem in (here, here.to("cuda")))
    assert close(b.gain.cpu(), a.gain)


def test_bad_options_are_named():
    with pytest.raises(idn.InputError, match="reference is 'cloud'; use one of repository, actual"):
        Olag("cloud")
    for policy in (Olag, StaticGreedy, RandomFeasible, RepositoryOnly):
        with pytest.raises(idn.InputError, match="discipline is 'lifo'"):
            policy(discipline="lifo")
