"""The policies on the shared-capacity gain, the master over them, and the theory that they rest on."""

import itertools
import math

import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import generators, kernels, networks
from idn_torch.philox import uniforms
from idn_torch.shared import Incumbent, Master, Shared, SharedMixed, shared_gain
from idn_torch.shared.hedge import follow, hedge_weights
from idn_torch.shared.incumbent import even_requests
from tests import shared_oracle as oracle
from tests.instances import close, feasible_allocation, random_allocation, random_problem
from tests.pretend import pretended, pretended_cuda

SLOTS = 5
POLICIES = {
    "shared": Shared(),
    "mixed": SharedMixed(),
    "fair": SharedMixed(discipline="fair", draws=2),
    "incumbent": Incumbent(),
    "master": Master(),
    "bare master": Master(weights=(0.0, 0.5), moves=0, others=()),
}


def problem_with(seed, **options):
    return random_problem(seed, nodes=7, models=10, types=14, budget=(0.1, 0.7), slots=SLOTS, **options)


def figures(result):
    return result.gain, result.cost, result.model_updates, result.gain_fractional


# ------------------------------------------------------------------------------------------------------- theory


def depround_law(y, sizes):
    """Every outcome of rounding one node along the binary tree, with its probability."""
    if len(y) == 1:
        return [({}, 0, y[0], 1.0)]
    half = 1 << (len(y) - 1).bit_length() - 1
    out = []
    for left, right in itertools.product(depround_law(y[:half], sizes[:half]), depround_law(y[half:], sizes[half:])):
        done = {**left[0], **{m + half: value for m, value in right[0].items()}}
        i, yi, j, yj = left[1], left[2], right[1] + half, right[2]
        p = left[3] * right[3]
        if yi in (0, 1):
            out.append(({**done, i: yi}, j, yj, p))
        elif yj in (0, 1):
            out.append(({**done, j: yj}, i, yi, p))
        else:
            ratio = sizes[j] / sizes[i]
            a, b = min(1 - yi, ratio * yj), min(yi, ratio * (1 - yj))
            up = ({**done, i: 1}, j, max(0, yj - a / ratio)) if 1 - yi <= ratio * yj else ({**done, j: 0}, i, yi + a)
            down = (
                ({**done, i: 0}, j, min(1, yj + b / ratio)) if yi <= ratio * (1 - yj) else ({**done, j: 1}, i, yi - b)
            )
            out += [(*up, p * b / (a + b)), (*down, p * a / (a + b))]
    return out


def integral_law(y, sizes):
    """Rows of 0 and 1 with their probabilities; the last fraction is drawn by itself."""
    law = {}
    for done, last, value, p in depround_law(y, sizes):
        for bit, chance in ((1, value), (0, 1 - value)):
            row = tuple({**done, last: bit}[m] for m in range(len(y)))
            law[row] = law.get(row, 0.0) + p * chance
    return {row: p for row, p in law.items() if p > 0}


@pytest.mark.parametrize("seed", range(12))
def test_rounding_keeps_1_minus_1_over_e_of_the_shared_gain(seed):
    """`E G*(x) >= (1 - 1/e) G*(y)`, already when phi = f / y is all an open option serves of a type; by enumeration."""
    problem = random_problem(seed, nodes=3, models=5, tasks=2, types=6, budget=(0.3, 0.7))
    r, y = problem.requests[0], feasible_allocation(problem, seed)
    best, flow = oracle.exact(problem, r, y)
    models = problem.shape[1]
    lam = idn.potential_capacity(problem, r)
    lam = torch.where(problem.ranked.repository, lam, 0.0)
    for (rho, k), amount in flow.items():
        v, m = divmod(int(problem.ranked.option[rho, k]), models)
        lam[rho, k] = amount / float(y[v, m]) if amount > 0 else 0.0
    laws = [integral_law([float(a) for a in y[v]], problem.sizes[v].tolist()) for v in range(3)]
    for v, law in enumerate(laws):
        assert close(sum(law.values()), 1.0)
        assert close(sum(p * np.array(row) for row, p in law.items()), y[v])
    outcomes = list(itertools.product(*(law.items() for law in laws)))
    x = torch.tensor([[row for row, _ in outcome] for outcome in outcomes], dtype=torch.float64)
    chance = torch.tensor([math.prod(p for _, p in outcome) for outcome in outcomes], dtype=torch.float64)
    limited = idn.gain(problem, r, lam, x)
    assert (chance * limited).sum() >= (1 - 1 / math.e) * best - 1e-9
    for i in chance.argsort(descending=True)[:5].tolist():
        assert limited[i] <= oracle.exact(problem, r, x[i])[0] + 1e-9  # it is a way of serving


def savings_ratio(problem, r):
    """kappa: the largest ratio of the savings of two types at one option."""
    at = {}
    for e in oracle.entries(problem):
        if r[e.type] > 0:
            at.setdefault(e.option, []).append(e.saving)
    return max((max(s) / min(s) if min(s) > 0 else math.inf for s in at.values() if max(s) > 0), default=1.0)


@pytest.mark.parametrize("seed", range(15))
def test_serving_in_rank_order_keeps_its_share_of_the_shared_gain(seed):
    problem = random_problem(seed, nodes=4, models=6, tasks=2, types=8)
    generator = torch.Generator().manual_seed(seed)
    for slot in range(2):
        r = problem.requests[slot]
        kappa = savings_ratio(problem, r)
        for draw in range(4):
            x = random_allocation(problem, 10 * seed + draw, integral=True)
            most, _ = oracle.exact(problem, r, x)
            order = torch.randperm(8, generator=generator)
            for served in (idn.serve(problem, r, x, "fcfs", order), idn.serve(problem, r, x, "fair")):
                assert most / (1 + kappa) - 1e-9 <= served.gain <= most + 1e-9


def test_on_a_tree_all_types_save_alike():
    problem = generators.tree(nodes=15, branching=2, depth=5, tasks=2, models_per_task=4, dtype=torch.float64)
    assert savings_ratio(problem, torch.ones(len(problem.type_ids))) < 1 + 1e-9
    abilene = networks.backbone("topozoo/Abilene", repositories=None, tasks=2, slots=1)
    assert savings_ratio(abilene, torch.ones(len(abilene.type_ids))) < 1 + 1e-9


# -------------------------------------------------------------------------------------------------------- hedge


def adversarial(kind, experts, slots, rng):
    """Gains and guesses `(T, E)` meant to hurt."""
    gains = rng.random((slots, experts))
    if kind == "alternating":
        gains = np.zeros((slots, experts))
        gains[np.arange(slots), np.arange(slots) % experts] = 1
        gains[0] /= 2
    elif kind == "late reversal":
        gains[: slots // 2] *= np.arange(1, experts + 1)
        gains[slots // 2 :] *= 3 * np.arange(experts, 0, -1)
    elif kind == "growing":
        gains *= 1.5 ** np.arange(slots)[:, None]
    guesses = {"none": 0 * gains, "good": gains + 0.01 * rng.random(gains.shape), "inverted": gains.max() - gains}
    return gains, guesses


@pytest.mark.parametrize("experts", [1, 2, 5])
@pytest.mark.parametrize("kind", ["random", "alternating", "late reversal", "growing"])
def test_hedge_keeps_its_promise_whatever_comes(kind, experts):
    rng = np.random.default_rng(experts)
    gains, guesses = adversarial(kind, experts, 120, rng)
    for scale in (1e-6, 1.0, 1e9):
        regret = {}
        for name, guess in guesses.items():
            got, squares, largest = 0.0, torch.zeros((), dtype=torch.float64), 0.0
            totals = torch.zeros(experts, dtype=torch.float64)
            for gain, expected in zip(torch.tensor(gains * scale), torch.tensor(guess * scale), strict=True):
                p = hedge_weights(totals + expected, squares)
                assert close(p.sum(), 1.0)
                got += float((p * gain).sum())
                surprise = gain - expected
                rho = float(surprise.max() - surprise.min())
                squares = squares + rho**2
                largest = max(largest, rho)
                totals = totals + gain
            term = 1.21 * math.sqrt(math.log(experts) * float(squares)) + 4.42 * largest
            regret[name] = float(totals.max()) - got
            assert regret[name] <= term + 1e-9 * scale
        assert regret["good"] <= max(regret["none"], 0) + 1e-9 * float(totals.max())


def test_one_uniform_follows_the_law():
    p = torch.tensor([[0.2, 0.5], [0.3, 0.25], [0.5, 0.25]], dtype=torch.float64)
    u = (torch.arange(1000, dtype=torch.float64) / 1000)[:, None]
    choice = follow(p[:, None, :], u)
    for e in range(3):
        assert close((choice == e).double().mean(0), p[e], scale=1e10)  # within a hundredth
    assert (choice.diff(dim=0) >= 0).all()


@pytest.mark.parametrize("kind", ["flips", "bursts"])
def test_the_master_is_never_far_below_its_best_expert(kind):
    """On requests that jump, with the expectation over its one uniform number taken exactly."""
    problem = problem_with(3)
    rng = np.random.default_rng(1)
    slots = 24
    pattern = rng.integers(0, 14, (2, 14))
    which = np.arange(slots) % 2 if kind == "flips" else rng.random(slots) < 0.2
    requests = torch.tensor(np.where(which[:, None], pattern[0], pattern[1]), dtype=torch.float64)
    policy = Master(
        weights=(0.0, 0.5), others=(idn.Infida(), idn.Popularity()) if problem.delay is not None else (idn.Infida(),)
    )
    state = policy.init(problem, 5)
    expected, largest = 0.0, 0.0
    for r in requests:
        p = hedge_weights(state.totals + state.expected, state.surprise_squares)
        following, slot = policy.step(problem, state, r)
        gains = following.totals - state.totals
        assert close(slot.served.gain, gains[int(state.choice)])
        expected += float((p * gains).sum())
        surprise = gains - state.expected
        largest = max(largest, float(surprise.max() - surprise.min()))
        state = following
    term = 1.21 * math.sqrt(math.log(len(policy.names)) * float(state.surprise_squares)) + 4.42 * largest
    assert expected >= float(state.totals.max()) - term
    # Its experts are the policies themselves.
    alone = idn.run(problem, idn.Infida(), requests, seed=5)
    assert close(state.totals[policy.names.index("infida")], alone.gain.sum())
    for weight in (0.0, 0.5):
        alone = idn.run(problem, Shared(marginals=weight), requests, seed=5)
        assert close(state.totals[policy.names.index(f"shared({weight:g})")], alone.gain.sum())


# ----------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize("seed", range(6))
def test_the_cuts_bound_every_static_allocation_as_it_is_served(seed):
    problem = random_problem(seed, nodes=3, models=5, tasks=2, types=5, budget=(0.2, 0.8))
    where = problem.feasible
    rows = []
    for v in range(3):
        free = where.free[v].nonzero().flatten().tolist()
        sets = [c for n in range(len(free) + 1) for c in itertools.combinations(free, n)]
        rows.append([c for c in sets if sum(float(problem.sizes[v, m]) for m in c) <= float(where.budgets[v]) + 1e-9])
    x = []
    for choice in itertools.product(*rows):
        allocation = problem.repository.double()
        for v, chosen in enumerate(choice):
            allocation[v, list(chosen)] = 1
        x.append(allocation)
    best = idn.serve(problem, problem.requests[:, None], torch.stack(x)).gain.mean(0).max()
    for policy in (Shared(iterations=1, first_iterations=0), SharedMixed(), Master()):
        result = idn.run(problem, policy, problem.requests.repeat(6, 1))
        assert result.state.cuts.bound(problem) >= best - 1e-9


def test_a_slot_shows_the_cut_at_y():
    problem = problem_with(1)
    policy = Shared()
    state = policy.init(problem)
    following, slot = policy.step(problem, state, problem.requests[0])
    cut = shared_gain(problem, problem.requests[0], state.y, policy.first_iterations)
    assert close(slot.gain_fractional, cut.bound)
    assert close(slot.slope, cut.supergradient)
    _, slot = policy.step(problem, following, problem.requests[1])
    warm = shared_gain(problem, problem.requests[1], following.y, policy.iterations, cut.state)
    assert close(slot.slope, warm.supergradient)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_budgets_hold_and_repositories_stay(name, dtype):
    for seed in range(3):
        problem = problem_with(seed, dtype=dtype)
        policy = POLICIES[name]
        state = policy.init(problem, seed)
        for r in problem.requests:
            state, _ = policy.step(problem, state, r)
            assert ((problem.sizes * state.x).sum(-1) <= problem.budgets * (1 + 1e-6)).all()
            assert (state.x[problem.repository] == 1).all()
            assert ((state.x == 0) | (state.x == 1)).all()


@pytest.mark.parametrize("least", [1 << 60, 0], ids=["torch", "compiled"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_of_seeds_and_tables_equals_the_loop(name, least, monkeypatch):
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
    problem = problem_with(2)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64).view(2, 1, 1, 1, 1)
    batched = problem.with_cost(problem.cost_table() * scale)
    seeds = torch.tensor([4, 9])
    together = idn.run(batched, POLICIES[name], seed=seeds)
    assert together.gain.shape == (2, 2, SLOTS)
    for i in range(2):
        for j in range(2):
            one = problem.with_cost(problem.cost_table() * scale[i, 0])
            alone = idn.run(one, POLICIES[name], seed=int(seeds[j]))
            for a, b in zip(figures(together), figures(alone), strict=True):
                assert close(a[i, j], b)


@pytest.mark.parametrize("make", [lambda c: {"shared": Shared(c=c)}, lambda c: {"others": (idn.Infida(c=c),)}])
def test_a_master_of_several_step_sizes_equals_the_loop(make):
    problem = random_problem(2, slots=3, budget=(0.2, 0.6))
    steps = torch.tensor([4.0, 16.0], dtype=torch.float64)
    together = idn.run(problem, Master(**make(steps)))
    for i, c in enumerate(steps.tolist()):
        one = idn.run(problem, Master(**make(c)))
        assert close(together.gain[i], one.gain)
        assert torch.equal(together.state.policy.x[i], one.state.policy.x)


@pytest.mark.parametrize("name", POLICIES)
def test_padding_leaves_a_run_unchanged(name):
    small = idn.run(problem_with(4), POLICIES[name], seed=1)
    large = idn.run(problem_with(4, extra_models=3, extra_types=2), POLICIES[name], seed=1)
    for a, b in zip(figures(large), figures(small), strict=True):
        assert close(a, b)


@pytest.mark.parametrize("name", POLICIES)
def test_a_step_never_leaves_a_pretended_device(name, three_nodes):
    problem = three_nodes.to(dtype=torch.float32)
    policy = POLICIES[name]
    state = policy.init(problem)
    with pretended_cuda():
        there, r = pretended(problem), pretended(problem.requests)[0]
        state = pretended(state)
        for _ in range(2):
            state, slot = policy.step(there, state, r, rounds=6)
        assert state.x.shape == problem.shape
        assert state.x.device.type == slot.served.gain.device.type == "cuda"


@pytest.mark.cuda
@pytest.mark.parametrize("name", POLICIES)
def test_a_run_on_cuda_equals_one_on_the_cpu(name):
    here = problem_with(5)
    a, b = idn.run(here, POLICIES[name], seed=3), idn.run(here.to("cuda"), POLICIES[name], seed=3)
    assert close(b.gain.cpu(), a.gain)


def test_the_incumbent_gains_on_a_standing_problem():
    """Under the same requests in every slot it can only rise from the second on."""
    for seed in range(4):
        problem = problem_with(seed)
        gain = idn.run(problem, Incumbent(2), problem.requests[:1].repeat(8, 1), seed=seed).gain
        assert (gain.diff() >= -1e-9).all()
        assert gain[-1] >= gain[0]


def test_the_first_allocation_knows_capacities_and_costs():
    """Nothing of the requests, and yet it beats the rounding of an even allocation by far."""
    gains = []
    for name in ("topozoo/Abilene", "sndlib/polska"):
        problem = networks.backbone(name, repositories=None, slots=1)
        guess = even_requests(problem)
        able = problem.feasible.free & ~problem.feasible.holds_all[:, None]
        assert (guess == problem.capacity[able].mean().round()).all()
        first = [policy.init(problem, 1).x for policy in (Master(), Incumbent(), Shared())]
        assert torch.equal(first[0], first[1])
        served = [idn.serve(problem, problem.requests[0], x).gain for x in first[1:]]
        gains.append(float(served[0] / served[1]))
    assert min(gains) > 1.1


def test_equals_are_told_apart_alike_on_every_path(monkeypatch):
    """Where models saturate, those of all tasks gain the same: which are loaded is a function of the seed alone."""
    problem = networks.backbone("sndlib/nobel-germany", repositories=None, requests_per_second=50_000.0, slots=3)
    allocations = []
    for least in (0, 1 << 60):
        monkeypatch.setattr(kernels, "MIN_ELEMENTS", least)
        result = idn.run(problem, Incumbent(), seed=torch.tensor([1, 2]))
        allocations.append((Incumbent().init(problem, torch.tensor([1, 2])).x, result.state.policy.x))
    for compiled, plain in zip(*allocations, strict=True):
        assert torch.equal(compiled, plain)
        assert not torch.equal(plain[0], plain[1])


def test_the_first_choice_leaves_no_surprise():
    problem = problem_with(6)
    policy = Master()
    state = policy.init(problem, 3)
    assert policy.names[int(state.choice)] == policy.names[int(state.expected.argmax())]
    following, _ = policy.step(problem, state, problem.requests[0])
    assert close(following.surprise_squares, (following.totals.max() - following.totals.min()) ** 2)


def test_without_requests_or_choice_nothing_breaks():
    problem = random_problem(8, budget=(1.1, 1.2), slots=3)  # all nodes but one hold everything
    for policy in POLICIES.values():
        result = idn.run(problem, policy, torch.zeros_like(problem.requests))
        assert not result.gain.any()
        assert result.state.policy.x.isfinite().all()
        assert idn.run(problem, policy).gain.isfinite().all()


def test_the_uniform_of_the_master_is_its_own():
    problem = problem_with(0)
    state = Master().init(problem, 7)
    assert state.uniform not in uniforms(torch.tensor(7), *problem.shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shared(marginals=1.5), r"marginals is 1.5; every weight must be in \[0, 1\]"),
        (lambda: Shared(c=0.0), r"c is 0.0; the step size"),
        (lambda: Shared(floor=1.0), r"floor is 1.0"),
        (lambda: Shared(draws=0), r"draws is 0; it must be at least 1"),
        (lambda: Shared(iterations=-1), r"iterations is -1"),
        (lambda: Shared(discipline="lifo"), r"discipline is 'lifo'"),
        (lambda: Incumbent(moves=-1), r"moves is -1"),
        (lambda: Incumbent(discipline="lifo"), r"discipline is 'lifo'"),
        (lambda: Master(weights=(), moves=0, others=()), r"no experts"),
        (lambda: Master(others=(idn.Infida(discipline="fair"),)), r"Infida serves 'fair', the master 'fcfs'"),
        (lambda: Master(weights=(2.0,)), r"every weight must be in"),
        (lambda: Master(discipline="lifo"), r"discipline is 'lifo'"),
    ],
)
def test_errors_name_the_option(make, message):
    with pytest.raises(idn.InputError, match=message):
        make()
