"""Tests of the oracle against facts that do not depend on it: identities, brute force, enumeration, scipy."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

from idn_torch import reference as ref

SEEDS = range(12)


def random_instance(seed, nodes=4, tasks=2, per_task=2, types=5, ties=False, tight=False, most_capacity=8):
    """A small instance with ragged paths, repositories anywhere on them, and nodes of every kind of budget."""
    rng = np.random.default_rng(seed)
    counts = [per_task + int(rng.integers(0, 2)) for _ in range(tasks)]
    model_task = [i for i in range(tasks) for _ in range(counts[i])]
    models = len(model_task)
    order = rng.permutation(models) if rng.random() < 0.5 else np.arange(models)
    model_task = [model_task[m] for m in order]  # tasks may interleave in the catalog
    sizes = rng.integers(1, 6, (nodes, models)).astype(float)
    if not tight:
        sizes += rng.random((nodes, models))
    capacity = rng.integers(0, most_capacity + 1, (nodes, models)).astype(float)
    repository = np.zeros((nodes, models), dtype=bool)
    for task in range(tasks):
        of_task = [m for m in range(models) if model_task[m] == task]
        for v in rng.choice(nodes, size=int(rng.integers(1, 3)), replace=False):
            repository[v, of_task[int(rng.integers(len(of_task)))]] = True
    kinds = rng.choice(["zero", "small", "medium", "all"], size=nodes, p=[0.15, 0.25, 0.45, 0.15])
    kinds[int(rng.integers(nodes))] = "medium"
    share = {"zero": 0.0, "small": 0.25, "medium": 0.5, "all": 1.0}
    budgets = np.zeros(nodes)
    for v in range(nodes):
        free = float(sizes[v][~repository[v]].sum())
        budgets[v] = sizes[v][repository[v]].sum() + share[kinds[v]] * free
        if tight:
            budgets[v] = math.floor(budgets[v])
    type_task, paths, cost = [], [], []
    for _ in range(types):
        task = int(rng.integers(tasks))
        of_task = [m for m in range(models) if model_task[m] == task]
        path = [int(v) for v in rng.permutation(nodes)[: int(rng.integers(1, nodes + 1))]]
        if not any(repository[v, m] for v in path for m in of_task):
            home = [v for v in range(nodes) if any(repository[v, m] for m in of_task)]
            path.append(home[0])
        table = rng.integers(0, 5, (len(path), len(of_task))) if ties else 10 * rng.random((len(path), len(of_task)))
        type_task.append(task)
        paths.append(path)
        cost.append(table.astype(float))
    return ref.Instance(sizes, budgets, repository, capacity, model_task, paths, type_task, cost)


def with_copy(inst):
    """A second copy of model 0, `tiny#2`: the same sizes, capacity and costs, no repository."""
    cost = []
    for rho, table in enumerate(inst.cost):
        models = inst.models_of(inst.type_task[rho])
        cost.append(np.column_stack([table, table[:, models.index(0)]]) if 0 in models else table)
    return ref.Instance(
        np.column_stack([inst.sizes, inst.sizes[:, 0]]),
        inst.budgets + 0.5 * inst.sizes[:, 0],
        np.column_stack([inst.repository, np.zeros(len(inst.budgets), dtype=bool)]),
        np.column_stack([inst.capacity, inst.capacity[:, 0]]),
        [*inst.model_task, inst.model_task[0]],
        inst.paths,
        inst.type_task,
        cost,
    )


INSTANCES = [
    inst
    for seed in SEEDS
    for inst in (
        random_instance(seed),
        random_instance(seed, ties=True, tight=True),
        with_copy(random_instance(seed, ties=True, types=4)),
    )
]


def random_requests(rng, inst, most=10):
    r = rng.integers(0, most + 1, len(inst.paths)).astype(float)
    r[rng.random(len(r)) < 0.2] = 0.0
    return r


def random_y(rng, inst, mirror_map="negentropy"):
    """A point of Y: on budget, fixed entries 1."""
    return ref.project(rng.random(inst.sizes.shape) ** 3, inst.sizes, inst.budgets, inst.repository, mirror_map)


def random_x(rng, inst):
    return ref.depround_strict(inst, random_y(rng, inst), rng.random(inst.sizes.shape))


def node_allocations(inst, v):
    """All feasible rows x^v."""
    fixed = inst.repository[v]
    for bits in itertools.product([0.0, 1.0], repeat=inst.sizes.shape[1]):
        row = np.array(bits)
        if all(row[fixed] == 1) and float(np.sum(inst.sizes[v] * row)) <= inst.budgets[v] * (1 + 1e-12):
            yield row


def all_allocations(inst):
    for rows in itertools.product(*[list(node_allocations(inst, v)) for v in range(len(inst.budgets))]):
        yield np.array(rows)


def random_lam(rng, inst, r):
    """Any l allowed to the adversary: whole, at most min(L, r); r at repositories."""
    lam = ref.potential_capacity(inst, r)
    for rho, options in enumerate(inst.options):
        for k, (v, m) in enumerate(options):
            if not inst.repository[v, m]:
                lam[rho, k] = float(rng.integers(0, int(lam[rho, k]) + 1))
    return lam


# ------------------------------------------------------------------------------------- instance, ranked table


def test_eq6_by_hand():
    # edge -6- hub -40- cloud; one task, models (accuracy 0.4, 0.6); alpha 10
    latency = {(0, 1): 6.0, (1, 2): 40.0}
    delay = np.array([[3.0, 30.0], [1.0, 16.0], [1.0, 8.0]])
    [table] = ref.eq6_cost([[0, 1, 2]], [0], [0, 0], latency, delay, [0.4, 0.6], 10.0)
    assert table == pytest.approx(np.array([[9.0, 34.0], [13.0, 26.0], [53.0, 58.0]]))
    per_task = ref.eq6_cost([[1], [1]], [0, 1], [1, 0], latency, delay, [0.4, 0.6], [10.0, 100.0])
    assert [float(table[0, 0]) for table in per_task] == pytest.approx([20.0, 61.0])


def test_ranked_table_orders_ties_by_position_then_model():
    inst = ref.Instance(
        sizes=np.ones((3, 3)),
        budgets=np.full(3, 2.0),
        repository=np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0]], dtype=bool),
        capacity=np.ones((3, 3)),
        model_task=[0, 1, 0],
        paths=[[2, 0, 1], [2]],
        type_task=[0, 1],
        cost=[np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([[4.0]])],
    )
    table = ref.ranked_table(inst)
    # type 0, models 0 and 2: (cost, position, model)
    assert table.cost[0].tolist() == [0, 0, 1, 1, 1, 1]
    places = [divmod(int(o), 3) for o in table.option[0]]
    assert places == [(2, 2), (0, 0), (2, 0), (0, 2), (1, 0), (1, 2)]
    assert table.mask.tolist() == [[True] * 6, [True] + [False] * 5]
    assert table.cost[1].tolist() == [4.0] * 6  # padding repeats the last real cost
    assert table.option[1].tolist() == [2 * 3 + 1, 0, 0, 0, 0, 0]
    assert ref.potential_capacity(inst, np.array([5.0, 7.0]))[1].tolist() == [7.0, 0, 0, 0, 0, 0]
    lam = ref.potential_capacity(inst, np.array([0.5, 7.0]))  # min(L, r); (1, 2) and (2, 1) are repositories
    assert lam[0].tolist() == [0.5] * 6
    assert ref.potential_capacity(inst, np.array([5.0, 7.0]))[0].tolist() == [1, 1, 1, 1, 1, 5]


def test_from_problem_reads_padded_tables():
    inst = random_instance(3)
    longest = max(len(path) for path in inst.paths)
    widest = max(table.shape[1] for table in inst.cost) + 1
    paths = np.full((len(inst.paths), longest), -1)
    cost = np.full((len(inst.paths), longest, widest), 99.0)
    for rho, path in enumerate(inst.paths):
        paths[rho, : len(path)] = path
        cost[rho, : len(path), : inst.cost[rho].shape[1]] = inst.cost[rho]
    problem = SimpleNamespace(
        sizes=inst.sizes,
        budgets=inst.budgets,
        repository=inst.repository,
        capacity=inst.capacity,
        model_task=np.array(inst.model_task),
        type_task=np.array(inst.type_task),
        paths=paths,
        cost_table=lambda: cost,
    )
    again = ref.Instance.from_problem(problem)
    assert again.paths == inst.paths
    for left, right in zip(again.ranked, inst.ranked, strict=True):
        assert np.array_equal(left, right)
    for name in ("sizes", "budgets", "repository", "capacity"):
        assert np.array_equal(getattr(again, name), getattr(inst, name))


def test_instance_errors():
    good = random_instance(0)
    with pytest.raises(ValueError, match="no repository of its task"):
        ref.Instance(
            good.sizes,
            good.budgets,
            np.zeros_like(good.repository),
            good.capacity,
            good.model_task,
            good.paths,
            good.type_task,
            good.cost,
        )
    with pytest.raises(ValueError, match="node 1"):
        ref.feasible_set(np.ones((2, 2)), np.array([2.0, 1.0]), np.ones((2, 2), dtype=bool))


def test_the_random_instances_cover_the_edge_cases():
    seen = set()
    for inst in INSTANCES:
        allowed, free = inst.feasible, ~inst.repository
        for v in range(len(inst.budgets)):
            if allowed.budget[v] == 0:
                seen.add("zero budget")
            elif np.all(allowed.held[v] == 1):
                seen.add("everything fits")
            elif np.any(free[v] & ~allowed.movable[v] & (allowed.held[v] == 0)):
                seen.add("excluded model")
        for rho, path in enumerate(inst.paths):
            models = inst.models_of(inst.type_task[rho])
            homes = [j for j, v in enumerate(path) if inst.repository[v, models].any()]
            seen |= {"two repositories"} if len(homes) > 1 else set()
            seen |= {"repository in mid-path"} if homes[0] < len(path) - 1 else set()
            costs = inst.cost[rho].ravel().tolist()
            seen |= {"ties"} if len(set(costs)) < len(costs) else set()
        seen |= {"zero capacity"} if np.any((inst.capacity == 0) & free) else set()
    assert seen == {
        "zero budget",
        "everything fits",
        "excluded model",
        "two repositories",
        "repository in mid-path",
        "ties",
        "zero capacity",
    }


# ---------------------------------------------------------------------------------- gain, cost, subgradient


@pytest.mark.parametrize("inst", INSTANCES)
def test_gain_identities(inst):
    rng = np.random.default_rng(1)
    for _ in range(4):
        r = random_requests(rng, inst)
        for lam in (ref.potential_capacity(inst, r), random_lam(rng, inst, r)):
            for y in (random_y(rng, inst), random_x(rng, inst), inst.omega):
                gain = ref.gain(inst, r, lam, y)
                assert gain == pytest.approx(ref.gain_cost_difference(inst, r, lam, y), abs=1e-9)  # (13) = (16)
                assert gain >= -1e-9
                g = ref.subgradient(inst, r, lam, y)
                assert g == pytest.approx(ref.subgradient(inst, r, lam, y, form="relu"), abs=1e-9)
                assert np.all(g >= 0)
                assert np.all(g[inst.repository] == 0)
                # the identity of section 2
                left, right = gain, float(np.sum(g * y))
                worst, sums = ref.k_star(inst, r, lam, y), ref.cumulative(inst, lam, y)
                base = ref.cumulative(inst, lam, inst.omega)
                for rho, options in enumerate(inst.options):
                    cost = inst.ranked.cost[rho]
                    for k in range(len(options) - 1):
                        left += (cost[k + 1] - cost[k]) * min(r[rho], base[rho][k])
                    right += (cost[len(options) - 1] - cost[worst[rho]]) * min(r[rho], sums[rho][-1])
                assert left == pytest.approx(right, abs=1e-8)
        assert ref.gain(inst, r, lam, inst.omega) == 0


@pytest.mark.parametrize("inst", INSTANCES)
def test_concave_and_supergradient(inst):
    rng = np.random.default_rng(2)
    r = random_requests(rng, inst)
    lam = random_lam(rng, inst, r)
    points = [random_y(rng, inst) for _ in range(3)] + [random_x(rng, inst) for _ in range(3)] + [inst.omega]
    for y, other in itertools.permutations(points, 2):
        g = ref.subgradient(inst, r, lam, y)
        value, elsewhere = ref.gain(inst, r, lam, y), ref.gain(inst, r, lam, other)
        assert elsewhere <= value + float(np.sum(g * (other - y))) + 1e-9
        share = rng.random()
        between = ref.gain(inst, r, lam, share * y + (1 - share) * other)
        assert between >= share * value + (1 - share) * elsewhere - 1e-9
    more = lam + np.where(inst.ranked.mask, rng.random(lam.shape), 0.0) * (lam < r[:, None])
    assert ref.gain(inst, r, more, points[0]) >= ref.gain(inst, r, lam, points[0]) - 1e-9  # G rises with l


def test_subgradient_is_the_right_derivative_at_a_kink():
    # Integral states hit S_k = r exactly; eq. (18) is then the gain of one unit more, as in relu(r - S).
    inst = ref.Instance(
        np.ones((2, 1)),
        np.array([1.0, 1.0]),
        np.array([[False], [True]]),
        np.array([[4.0], [0.0]]),
        [0],
        [[0, 1]],
        [0],
        [np.array([[1.0], [11.0]])],
    )
    r = np.array([4.0])
    lam = ref.potential_capacity(inst, r)
    assert lam.tolist() == [[4.0, 4.0]]
    x = np.array([[1.0], [1.0]])
    assert ref.gain(inst, r, lam, x) == 40.0
    assert ref.k_star(inst, r, lam, x).tolist() == [0]
    assert ref.subgradient(inst, r, lam, x).tolist() == [[0.0], [0.0]]
    assert ref.subgradient(inst, r, lam, inst.omega).tolist() == [[40.0], [0.0]]


@pytest.mark.parametrize("seed", SEEDS)
def test_marginal_gains(seed):
    inst = random_instance(seed)
    rng = np.random.default_rng(seed)
    r = random_requests(rng, inst)
    lam, x = random_lam(rng, inst, r), random_x(rng, inst)
    marginal = ref.marginal_gains(inst, r, lam, x)
    g = ref.subgradient(inst, r, lam, x)
    assert np.all(marginal <= g + 1e-9)  # concavity along e_vm
    assert np.all(marginal >= -1e-9)
    assert np.all(marginal[(x == 1) | inst.repository] == 0)
    more = np.maximum(x, random_x(rng, inst))
    later = ref.marginal_gains(inst, r, lam, more)
    still = more == 0
    assert np.all(later[still] <= marginal[still] + 1e-9)  # submodular


def test_no_requests():
    inst = random_instance(5)
    r = np.zeros(len(inst.paths))
    rng = np.random.default_rng(0)
    x = random_x(rng, inst)
    for outcome in (ref.serve_fcfs(inst, r, x), ref.serve_fair(inst, r, x)):
        assert outcome.cost == 0
        assert np.all(outcome.served == 0)
        assert np.all(outcome.capacity == 0)
    lam = ref.potential_capacity(inst, r)
    assert ref.gain(inst, r, lam, x) == 0
    assert np.all(ref.subgradient(inst, r, lam, x) == 0)
    assert np.all(ref.control_subgradient(inst, r, lam, x) == 0)
    assert ref.ntag([0.0, 6.0], np.array([r, np.r_[3.0, r[1:]]])) == 2.0  # slots with requests only
    assert ref.ntag([0.0], r[None]) == 0.0


def test_repository_in_mid_path_ends_the_ranks():
    # Path 0-1-2, repositories at 1 and 2: rank order is node 0, 1, 2; nothing reaches node 2, L is ignored at 1.
    inst = ref.Instance(
        np.ones((3, 1)),
        np.array([1.0, 1.0, 1.0]),
        np.array([[False], [True], [True]]),
        np.array([[2.0], [1.0], [1.0]]),
        [0],
        [[0, 1, 2], [1, 0]],
        [0, 0],
        [np.array([[1.0], [5.0], [9.0]]), np.array([[4.0], [6.0]])],
    )
    r = np.array([7.0, 3.0])
    x = np.ones((3, 1))
    for outcome in (ref.serve_fcfs(inst, r, x), ref.serve_fair(inst, r, x)):
        assert outcome.served.tolist() == [[2.0, 5.0, 0.0], [3.0, 0.0, 0.0]]
        assert outcome.load.tolist() == [[2.0], [8.0], [0.0]]
        assert outcome.full.tolist() == [[True], [False], [False]]
        assert outcome.capacity.tolist() == [[2.0, 7.0, 7.0], [3.0, 0.0, 0.0]]
        assert outcome.cost == 2 * 1 + 5 * 5 + 3 * 4
        assert ref.gain(inst, r, outcome.capacity, x) == 2 * (5 - 1)
        assert ref.k_star(inst, r, outcome.capacity, x).tolist() == [1, 0]


def test_copies_are_separate_models():
    # one node, `tiny` (repository upstream) and `tiny#2`: each copy deployed adds its capacity at the same cost
    inst = ref.Instance(
        np.ones((2, 2)),
        np.array([2.0, 1.0]),
        np.array([[False, False], [True, False]]),
        np.full((2, 2), 3.0),
        [0, 0],
        [[0, 1]],
        [0],
        [np.array([[1.0, 1.0], [4.0, 4.0]])],
    )
    assert inst.options[0] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    r = np.array([5.0])
    x = np.array([[1.0, 1.0], [1.0, 0.0]])
    for outcome in (ref.serve_fcfs(inst, r, x), ref.serve_fair(inst, r, x)):
        assert outcome.served.tolist() == [[3, 2, 0, 0]]
        assert ref.gain(inst, r, outcome.capacity, x) == 15.0
    one = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert ref.serve_fcfs(inst, r, one).served.tolist() == [[0, 3, 2, 0]]
    assert ref.marginal_gains(inst, r, ref.potential_capacity(inst, r), one)[0].tolist() == [6.0, 0.0]


# -------------------------------------------------------------------------------------------------- serving


@pytest.mark.parametrize("inst", INSTANCES)
def test_serving_invariants(inst):
    rng = np.random.default_rng(3)
    for trial in range(4):
        r = random_requests(rng, inst, most=3 if trial == 0 else 12)
        x = random_x(rng, inst)
        order = [int(rho) for rho in rng.permutation(len(inst.paths))]
        for name in ("fcfs", "fair"):
            outcome = ref.serve_fcfs(inst, r, x, order) if name == "fcfs" else ref.serve_fair(inst, r, x)
            assert outcome.served.sum(axis=1) == pytest.approx(r)  # all served
            assert np.all(outcome.served >= 0)
            assert np.all(outcome.served[~inst.ranked.mask] == 0)
            assert np.all(outcome.load[x == 0] == 0)
            free = ~inst.repository
            assert np.all(outcome.load[free] <= inst.capacity[free])
            assert np.array_equal(outcome.full, free & (x == 1) & (outcome.load == inst.capacity))
            lam = outcome.capacity
            assert ref.serving_cost(inst, r, lam, x) == pytest.approx(outcome.cost)
            assert np.all(lam <= ref.potential_capacity(inst, r))
            flagged = ref.effective_capacity(inst, r, x, outcome.served, outcome.full)
            assert flagged == pytest.approx(lam)
            assert ref.serving_cost(inst, r, flagged, x) == pytest.approx(outcome.cost)
            # (13) is the saving against repositories only
            bare = ref.serve_fcfs(inst, r, inst.omega)
            assert np.array_equal(bare.capacity, ref.potential_capacity(inst, r))  # nothing deployed: min(L, r)
            alone = bare.cost
            assert ref.gain(inst, r, lam, x) == pytest.approx(alone - outcome.cost, abs=1e-9)
            # no type could have used a cheaper open option
            for rho, options in enumerate(inst.options):
                used = [k for k in range(len(options)) if outcome.served[rho, k] > 0]
                for k in range(max(used, default=0)):
                    if x[options[k]] == 1:
                        assert outcome.full[options[k]]
            if name == "fcfs":
                assert np.all(outcome.served == np.floor(outcome.served))
            else:
                assert outcome.rounds <= inst.ranked.cost.shape[1]


def contended(capacity, firsts):
    """Types that meet at node 0 (one model); type i prefers node i+1 (if `firsts`), then 0, then the repository."""
    types = len(firsts)
    nodes = types + 2
    repository = np.zeros((nodes, 1), dtype=bool)
    repository[nodes - 1] = True
    paths = [[i + 1, 0, nodes - 1] if first is not None else [0, nodes - 1] for i, first in enumerate(firsts)]
    cost = [np.arange(1.0, len(path) + 1)[:, None] for path in paths]
    limits = np.array([capacity, *[first or 0 for first in firsts], 0], dtype=float)[:, None]
    return ref.Instance(np.ones((nodes, 1)), np.ones(nodes), repository, limits, [0], paths, [0] * types, cost)


def test_fair_by_hand():
    # Both offer at node 0 in round 1: 6 and 3 for 6 places -> 4 and 2.
    inst = contended(6, [None, None])
    outcome = ref.serve_fair(inst, np.array([6.0, 3.0]), np.ones((4, 1)))
    assert outcome.served.tolist() == [[4, 2], [2, 1]]
    assert outcome.rounds == 2
    # Immediate acceptance: type 1 loses round 1 at its own node and finds node 0 taken.
    inst = contended(6, [None, 1])
    outcome = ref.serve_fair(inst, np.array([6.0, 3.0]), np.ones((4, 1)))
    assert outcome.served.tolist() == [[6, 0, 0], [1, 0, 2]]  # offers of 6 that exactly fill 6: saturated
    # A capacity of 0 is skipped without spending a round, so type 1 competes at once.
    inst = contended(6, [None, 0])
    outcome = ref.serve_fair(inst, np.array([6.0, 3.0]), np.ones((4, 1)))
    assert outcome.served.tolist() == [[4, 2, 0], [0, 2, 1]]
    # fcfs: index order, then reversed
    served = ref.serve_fcfs(inst, np.array([6.0, 3.0]), np.ones((4, 1))).served
    assert served.tolist() == [[6, 0, 0], [0, 0, 3]]
    served = ref.serve_fcfs(inst, np.array([6.0, 3.0]), np.ones((4, 1)), [1, 0]).served
    assert served.tolist() == [[3, 3, 0], [0, 3, 0]]


def test_serving_wants_whole_numbers():
    inst = random_instance(0)
    with pytest.raises(ValueError, match="whole"):
        ref.serve_fcfs(inst, np.full(len(inst.paths), 0.5), inst.omega)


# ----------------------------------------------------------------------------------- feasible sets, projections


def test_feasible_set_kinds():
    sizes = np.array([[1.0, 2.0, 3.0]] * 6)
    fixed = np.zeros((6, 3), dtype=bool)
    fixed[1:, 2] = True
    budgets = np.array([2.5, 3.0, 4.5, 6.0, 5.0, 9.0])
    allowed = ref.feasible_set(sizes, budgets, fixed)
    assert allowed.budget.tolist() == [2.5, 0.0, 1.5, 3.0, 2.0, 6.0]
    assert allowed.movable.tolist() == [
        [True, True, False],  # model 2 is too big
        [False, False, False],  # b' = 0
        [False, False, False],  # model 1 is too big, the rest fits
        [False, False, False],  # everything fits exactly
        [True, True, False],
        [False, False, False],
    ]
    assert allowed.held.tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 1, 1]]
    y = ref.initial_state(sizes, budgets, fixed)
    assert y[0] == pytest.approx([2.5 / 3, 2.5 / 3, 0])
    assert y[4] == pytest.approx([2 / 3, 2 / 3, 1])
    tenths = ref.feasible_set(np.array([[0.1, 0.2]]), np.array([0.3]))  # 0.1 + 0.2 > 0.3 in floats
    assert tenths.held.tolist() == [[1, 1]]


@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
@pytest.mark.parametrize("inst", INSTANCES)
def test_projection_is_feasible_idempotent_and_kkt(inst, mirror_map):
    rng = np.random.default_rng(4)
    allowed = inst.feasible
    for scale in (0.1, 1.0, 30.0):
        raw = scale * rng.random(inst.sizes.shape)
        y = ref.project(raw, inst.sizes, inst.budgets, inst.repository, mirror_map)
        assert np.all((y >= 0) & (y <= 1))
        assert np.array_equal(y[~allowed.movable], allowed.held[~allowed.movable])
        for v in range(y.shape[0]):
            moves = allowed.movable[v]
            if not moves.any():
                continue
            s = inst.sizes[v]
            assert float(np.sum((s * y[v])[moves])) == pytest.approx(allowed.budget[v], rel=1e-13)
            inner, one, zero = moves & (y[v] > 0) & (y[v] < 1), moves & (y[v] == 1), moves & (y[v] == 0)
            # stationarity: dPhi(y) - dPhi(y') = -tau*s (plus multipliers at the two bounds)
            shift = (
                (np.log(y[v], where=y[v] > 0, out=np.zeros_like(s)) - np.log(raw[v]))
                if (mirror_map == "negentropy")
                else (y[v] - raw[v]) / s
            )
            level = shift[inner]
            assert np.ptp(level) < 1e-10 if level.size else True
            for value in level[:1]:
                assert np.all(shift[one] <= value + 1e-10)
                assert np.all(shift[zero] >= value - 1e-10)
        again = ref.project(y, inst.sizes, inst.budgets, inst.repository, mirror_map)
        assert again == pytest.approx(y, abs=1e-13)


@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
@pytest.mark.parametrize("seed", range(6))
def test_projection_against_scipy(seed, mirror_map):
    rng = np.random.default_rng(seed)
    s = rng.uniform(0.5, 3.0, (1, 5))
    budget = np.array([rng.uniform(s.max(), s.sum())])
    raw = rng.uniform(0.01, 1.8, (1, 5))
    y = ref.project(raw, s, budget, None, mirror_map)[0]

    def divergence(z):
        if mirror_map == "euclidean":
            return 0.5 * np.sum((z - raw[0]) ** 2)
        return np.sum(s[0] * (z * np.log(z / raw[0]) - z + raw[0]))

    start = np.full(5, budget[0] / s.sum())
    best = minimize(
        divergence,
        start,
        method="SLSQP",
        bounds=[(1e-9, 1.0)] * 5,
        constraints={"type": "eq", "fun": lambda z: np.sum(s[0] * z) - budget[0]},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert y == pytest.approx(best.x, abs=2e-5)
    assert divergence(np.maximum(y, 1e-12)) <= best.fun + 1e-9


@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
@pytest.mark.parametrize("seed", range(4))
def test_initial_state_minimises_the_map(seed, mirror_map):
    inst = random_instance(seed)
    rng = np.random.default_rng(seed)
    first = ref.initial_state(inst.sizes, inst.budgets, inst.repository, mirror_map)

    def phi(y):
        if mirror_map == "euclidean":
            return 0.5 * float(np.sum(y**2))
        return float(np.sum(inst.sizes * y * np.log(np.maximum(y, 1e-300))))

    for _ in range(20):
        assert phi(first) <= phi(random_y(rng, inst, mirror_map)) + 1e-12


def test_negentropy_projection_of_far_apart_values():
    # the design's example, in logarithms: b = 2, unit sizes
    y = ref.negentropy_row([200.0, 0.0, -200.0, 3.0], [1.0] * 4, 2.0)
    assert y == pytest.approx([1.0, 1 / (1 + math.exp(3)), math.exp(-200) / (1 + math.exp(3)), 1 / (1 + math.exp(-3))])
    assert math.fsum(y) == pytest.approx(2.0, rel=1e-15)
    y = ref.negentropy_row([-2000.0, -3000.0, 1000.0], [2.0, 1.0, 1.0], 1.5)
    assert y == pytest.approx([0.25, 0.0, 1.0])
    # a model at 0 stays there; the others cannot fill the budget
    assert ref.negentropy_row([-math.inf, 0.0, -1.0], [2.0, 1.0, 1.0], 3.0) == [0.0, 1.0, 1.0]


def test_euclidean_projection_of_far_apart_values():
    y = ref.euclidean_row([1e12 + 0.5, 1e12, -1e12, 1e12], [1.0, 1.0, 1.0, 1.0], 1.0)
    assert y == pytest.approx([2 / 3, 1 / 6, 0.0, 1 / 6])
    assert ref.euclidean_row([5.0, 5.0], [1.0, 3.0], 4.0) == [1.0, 1.0]
    assert ref.euclidean_row([5.0, -5.0], [1.0, 1.0], 1.0) == [1.0, 0.0]  # any tau in a whole range


@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
def test_step_equals_formula_then_projection(mirror_map):
    inst = random_instance(7)
    rng = np.random.default_rng(7)
    y, g = random_y(rng, inst), rng.random(inst.sizes.shape)
    eta = rng.random(len(inst.budgets))
    moved = y * np.exp(eta[:, None] * g / inst.sizes) if mirror_map == "negentropy" else y + eta[:, None] * g
    want = ref.project(moved, inst.sizes, inst.budgets, inst.repository, mirror_map)
    got = ref.mirror_ascent_step(y, g, eta, inst.sizes, inst.budgets, inst.repository, mirror_map)
    assert got == pytest.approx(want, abs=1e-14)
    # the step maximises <g, z> - D(z, y)/eta over Y
    one = ref.mirror_ascent_step(y, g, 0.3, inst.sizes, inst.budgets, inst.repository, mirror_map)

    def objective(z):
        if mirror_map == "euclidean":
            return float(np.sum(g * z)) - 0.5 * float(np.sum((z - y) ** 2)) / 0.3
        ratio = np.maximum(z, 1e-300) / np.maximum(y, 1e-300)
        return float(np.sum(g * z)) - float(np.sum(inst.sizes * (z * np.log(ratio) - z + y))) / 0.3

    for _ in range(20):
        assert objective(one) >= objective(random_y(rng, inst)) - 1e-12
    assert ref.mirror_ascent_step(y, g, 0.0, inst.sizes, inst.budgets, inst.repository, mirror_map) == (
        pytest.approx(y, abs=1e-14)
    )


def test_floor_keeps_the_budget():
    for inst in INSTANCES:
        y = random_y(np.random.default_rng(0), inst)
        floored = ref.apply_floor(y, inst.sizes, inst.budgets, inst.repository, 0.25)
        movable = inst.feasible.movable
        assert np.array_equal(floored[~movable], y[~movable])
        for v in range(y.shape[0]):
            if movable[v].any():
                s = inst.sizes[v][movable[v]]
                assert float(np.sum(s * floored[v][movable[v]])) == pytest.approx(inst.feasible.budget[v])
                assert np.all(floored[v][movable[v]] >= 0.25 * inst.feasible.budget[v] / s.sum() - 1e-15)


# ------------------------------------------------------------------------------------- step sizes, guarantee


def test_step_sizes():
    sizes = np.array([[1.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    movable = np.array([[True, True, False], [True, True, True]])
    g = np.array([[3.0, 8.0, 99.0], [0.0, 0.0, 0.0]])
    eta, sums = ref.scale_free_step(16.0, g, sizes, movable, np.zeros(2))
    assert eta.tolist() == [4.0, 0.0]
    eta, sums = ref.scale_free_step(16.0, 0.75 * g, sizes, movable, sums)
    assert eta.tolist() == [3.2, 0.0]
    assert sums.tolist() == [25.0, 0.0]
    eta, sums = ref.scale_free_step(10.0, np.array([[3.0, 4.0, 99.0]] * 2), sizes, movable, np.zeros(2), "euclidean")
    assert eta[0] == 2.0
    assert ref.sqrt_step(6.0, 9) == 2.0


@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
def test_scale_free_step_does_not_see_units(mirror_map):
    inst = random_instance(1)
    rng = np.random.default_rng(1)
    requests = np.array([random_requests(rng, inst) for _ in range(4)])
    u = rng.random(inst.sizes.shape)
    one = ref.infida(inst, requests, u, mirror_map=mirror_map)
    unit = 1024.0  # of size
    scaled = ref.Instance(
        unit * inst.sizes,
        unit * inst.budgets,
        inst.repository,
        inst.capacity,
        inst.model_task,
        inst.paths,
        inst.type_task,
        [7 * table for table in inst.cost],
    )
    other = ref.infida(scaled, requests, u, mirror_map=mirror_map)
    for left, right in zip(one.y, other.y, strict=True):
        assert left == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_theoretical_regret_bound(seed):
    """Concave mirror ascent with l = min(L, r): sum G(y*) - sum G(y_t) <= norm*sqrt(2*D*T/theta)."""
    inst = random_instance(seed, nodes=3, types=4)
    rng = np.random.default_rng(seed)
    slots = 12
    requests = np.array([random_requests(rng, inst) for _ in range(slots)])
    lam = [ref.potential_capacity(inst, r) for r in requests]
    norm = max(ref.norm_bound(inst, r) for r in requests)
    theory = ref.theoretical_step(inst, norm, slots)
    assert theory.psi == pytest.approx(0.6321205588)
    assert theory.regret == pytest.approx(theory.psi * norm * math.sqrt(2 * theory.D * slots / theory.theta))
    y = ref.initial_state(inst.sizes, inst.budgets, inst.repository)
    total = 0.0
    for r, available in zip(requests, lam, strict=True):
        g = ref.subgradient(inst, r, available, y)
        assert ref.dual_norm(inst, g) <= norm + 1e-9
        total += ref.gain(inst, r, available, y)
        y = ref.mirror_ascent_step(y, g, theory.eta, inst.sizes, inst.budgets, inst.repository)
    best = max(
        sum(ref.gain(inst, r, available, x) for r, available in zip(requests, lam, strict=True))
        for x in all_allocations(inst)
    )
    assert best - total <= theory.regret / theory.psi + 1e-9
    # D is the range of the map, theta its strong convexity in the s-weighted l1 norm
    movable = inst.feasible.movable
    s = inst.sizes[movable]
    start = ref.initial_state(inst.sizes, inst.budgets, inst.repository)[movable]
    for _ in range(10):
        one, two = random_y(rng, inst)[movable], random_y(rng, inst)[movable]
        divergence = float(np.sum(s * one * np.log(one / two)))
        assert divergence >= theory.theta / 2 * float(np.sum(s * abs(one - two))) ** 2 - 1e-12
        assert float(np.sum(s * one * np.log(one / start))) <= theory.D + 1e-12


def test_theory_without_anything_to_move():
    inst = contended(3, [None])
    theory = ref.theoretical_step(inst, 0.0, 10)
    assert (theory.eta, theory.regret) == (0.0, 0.0)


# ------------------------------------------------------------------------------------------------- rounding


def test_philox_known_answers():
    """The three published vectors of Random123 for philox4x32-10."""
    ones = 0xFFFFFFFF
    cases = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, want in cases:
        assert ref.philox4x32(counter, key) == want


def test_philox_uniforms():
    u = ref.philox_uniforms(7, 6, 40)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.1
    assert np.array_equal(u[:3, :5], ref.philox_uniforms(7, 3, 5))  # unchanged by padding
    for other in (ref.philox_uniforms(8, 6, 40), ref.philox_uniforms(7, 6, 40, slot=0)):
        assert not np.any(u == other)
    short = ref.philox_uniforms(7, 6, 40, bits=24)
    assert np.array_equal(short, short.astype(np.float32).astype(np.float64))
    assert np.all((u - short >= 0) & (u - short < 2.0**-24))


def leaves(y, s, uniforms, half=1, middle=1):
    """Every outcome of the binary tree: (probability, row, uniforms that lead there), by recursion over up/down."""
    if half >= len(y):
        left = [m for m in range(len(y)) if 0 < y[m] < 1]
        assert len(left) <= 1
        if not left:
            yield 1, y, uniforms
            return
        [m] = left
        for value, chance, u in ((1, y[m], y[m] / 2), (0, 1 - y[m], (1 + y[m]) / 2)):
            yield chance, [*y[:m], type(y[m])(value), *y[m + 1 :]], {**uniforms, 0: u}
        return
    if middle >= len(y):
        yield from leaves(y, s, uniforms, 2 * half, 2 * half)
        return
    i = [m for m in range(middle - half, middle) if 0 < y[m] < 1]
    j = [m for m in range(middle, min(middle + half, len(y))) if 0 < y[m] < 1]
    following = (half, middle + 2 * half)
    if not (i and j):
        yield from leaves(y, s, uniforms, *following)
        return
    chance, up, down = ref.depround_pair(y[i[0]], y[j[0]], s[i[0]], s[j[0]])
    for pair, share, u in ((up, chance, chance / 2), (down, 1 - chance, (1 + chance) / 2)):
        row = list(y)
        row[i[0]], row[j[0]] = pair
        assert any(value in (0, 1) for value in pair)
        if isinstance(chance, Fraction):  # the aggregate size does not change, exactly
            assert s[i[0]] * (pair[0] - y[i[0]]) + s[j[0]] * (pair[1] - y[j[0]]) == 0
        for probability, outcome, used in leaves(row, s, {**uniforms, middle: u}, *following):
            yield share * probability, outcome, used


@pytest.mark.parametrize("models", [1, 2, 3, 5, 6, 8])
def test_depround_marginals_are_exact(models):
    rng = np.random.default_rng(models)
    for _ in range(3):
        s = [Fraction(int(value)) for value in rng.integers(1, 7, models)]
        y = [Fraction(int(value), 12) for value in rng.integers(0, 13, models)]
        total = sum((a * b for a, b in zip(s, y, strict=True)), Fraction(0))
        mean, mass = [Fraction(0)] * models, Fraction(0)
        float_s = np.array([[float(value) for value in s]])
        float_y = np.array([[float(value) for value in y]])
        for probability, row, used in leaves(y, s, {}):
            mass += probability
            mean = [old + probability * value for old, value in zip(mean, row, strict=True)]
            assert all(value in (0, 1) for value in row)
            assert abs(sum((a * b for a, b in zip(s, row, strict=True)), Fraction(0)) - total) < max(s)
            # depround itself, given uniforms on the same side of every threshold. Where the exact tree has no match,
            # floats may have one with an entry at 1e-16 or 1 - 1e-16: chance 0 or 1 but for rounding, so u = 0.5.
            uniforms = np.full((1, models), 0.5)
            for m, u in used.items():
                uniforms[0, m] = float(u)
            assert ref.depround(float_y, float_s, uniforms)[0].tolist() == [float(value) for value in row]
        assert mass == 1
        assert mean == y  # E[x] = y, exactly


def test_depround_pair_assigns_the_limit_exactly():
    rng = np.random.default_rng(0)
    for _ in range(500):
        y_i, y_j = (float(value) for value in rng.random(2) ** rng.choice([0.01, 1, 40]))
        s_i, s_j = (float(value) for value in 10.0 ** rng.uniform(-3, 3, 2))
        chance, up, down = ref.depround_pair(y_i, y_j, s_i, s_j)
        assert 0 <= chance <= 1
        for pair in (up, down):
            assert any(value in (0.0, 1.0) for value in pair)
            assert all(0 <= value <= 1 for value in pair)
            change = s_i * (pair[0] - y_i) + s_j * (pair[1] - y_j)
            assert abs(change) <= 1e-12 * max(s_i, s_j)
        assert chance * up[0] + (1 - chance) * down[0] == pytest.approx(y_i, abs=1e-12)
        assert chance * up[1] + (1 - chance) * down[1] == pytest.approx(y_j, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_depround_state(seed):
    inst = random_instance(seed, nodes=5, per_task=4)
    rng = np.random.default_rng(seed)
    y, u = random_y(rng, inst), rng.random(inst.sizes.shape)
    state = ref.depround_tree(y, inst.sizes, u)
    assert np.all(((state > 0) & (state < 1)).sum(axis=1) <= 1)
    assert (inst.sizes * state).sum(axis=1) == pytest.approx((inst.sizes * y).sum(axis=1), rel=1e-12)
    integral = (y == 0) | (y == 1)
    assert np.array_equal(state[integral], y[integral])
    x = ref.depround(y, inst.sizes, u)
    assert np.all((x == 0) | (x == 1))
    # padding: models appended with y = 0 change nothing
    wide = [np.pad(a, ((0, 0), (0, 3)), constant_values=value) for a, value in ((y, 0), (inst.sizes, 1), (u, 0.5))]
    assert np.array_equal(ref.depround(*wide)[:, : x.shape[1]], x)
    assert np.array_equal(ref.depround(x, inst.sizes, u), x)
    strict = ref.depround_strict(inst, y, u)
    assert np.all((inst.sizes * strict).sum(axis=1) <= inst.budgets * (1 + 1e-12))
    assert np.all(strict <= x)
    r = random_requests(rng, inst)
    lam = ref.potential_capacity(inst, r)
    filled = ref.fill_free_budget(inst, r, lam, strict)
    assert np.all(filled >= strict)
    assert np.all((inst.sizes * filled).sum(axis=1) <= inst.budgets * (1 + 1e-12))
    left = inst.budgets - (inst.sizes * filled).sum(axis=1)
    assert np.all(ref.marginal_gains(inst, r, lam, filled)[inst.sizes <= left[:, None]] <= 0)
    assert np.array_equal(filled[inst.repository], np.ones(inst.repository.sum()))


@pytest.mark.parametrize("seed", range(4))
def test_depround_loses_at_most_a_factor(seed):
    """E G(x) >= (1-1/e) G(y), over all outcomes of all nodes."""
    inst = random_instance(seed, nodes=3, types=4)
    rng = np.random.default_rng(seed)
    r = random_requests(rng, inst)
    lam = random_lam(rng, inst, r)
    y = random_y(rng, inst)
    rows = [list(leaves([float(value) for value in y[v]], list(inst.sizes[v]), {})) for v in range(3)]
    expected = 0.0
    for combination in itertools.product(*rows):
        chance = math.prod(float(probability) for probability, _, _ in combination)
        expected += chance * ref.gain(inst, r, lam, np.array([row for _, row, _ in combination], dtype=float))
    value = ref.gain(inst, r, lam, y)
    assert (1 - 1 / math.e) * value - 1e-9 <= expected <= value + 1e-9


# ---------------------------------------------------------------------------------------------- upper bound


@pytest.mark.parametrize("seed", SEEDS)
def test_upper_bound_is_never_below_brute_force(seed):
    inst = random_instance(seed, nodes=3, types=4, ties=seed % 2 == 0, tight=seed % 3 == 0)
    rng = np.random.default_rng(seed)
    requests = np.array([random_requests(rng, inst) for _ in range(3)])
    lam = np.array([random_lam(rng, inst, r) for r in requests])
    everything = list(all_allocations(inst))
    gains = np.array([[ref.gain(inst, r, c, x) for x in everything] for r, c in zip(requests, lam, strict=True)])
    best = float(gains.mean(axis=0).max())
    points = [
        ref.initial_state(inst.sizes, inst.budgets, inst.repository),
        random_y(rng, inst),
        everything[int(gains.mean(axis=0).argmax())],
        inst.omega,
    ]
    for y in points:
        assert ref.upper_bound(inst, requests, lam, y) >= best - 1e-9
    # and averaged cuts come close: the best fractional point is at most this far above
    y = points[0]
    sums = np.zeros(len(inst.budgets))
    constants, mean, value = 0.0, np.zeros(inst.sizes.shape), 0.0
    steps = 40
    for _ in range(steps):
        cuts = [ref.cut(inst, r, c, y) for r, c in zip(requests, lam, strict=True)]
        g = sum(g for _, g in cuts) / len(cuts)
        constants += sum(constant for constant, _ in cuts) / len(cuts) / steps
        mean += g / steps
        value = max(value, float(np.mean([ref.gain(inst, r, c, y) for r, c in zip(requests, lam, strict=True)])))
        eta, sums = ref.scale_free_step(1.0, g, inst.sizes, inst.feasible.movable, sums)
        y = ref.mirror_ascent_step(y, g, eta, inst.sizes, inst.budgets, inst.repository)
    bound = constants + ref.knapsack(inst, mean)
    assert bound >= max(best, value) - 1e-9
    assert bound <= 1.2 * value + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_knapsack_is_the_maximum(seed):
    rng = np.random.default_rng(seed)
    g, s = rng.uniform(-1, 5, 5), rng.uniform(0.5, 3, 5)
    budget = float(rng.uniform(0, s.sum()))
    value, y = ref.knapsack_row(list(g), list(s), budget)
    assert float(np.dot(s, y)) <= budget + 1e-12
    assert value == pytest.approx(float(np.dot(g, y)))
    # LP duality: min over mu >= 0 of b*mu + sum relu(g - mu*s), at a breakpoint
    dual = min(budget * mu + np.maximum(g - mu * s, 0).sum() for mu in [0.0, *np.maximum(g / s, 0)])
    assert value == pytest.approx(dual)


# ---------------------------------------------------------------------------------------- control messages


@pytest.mark.parametrize("inst", INSTANCES)
def test_control_messages_find_the_same_subgradient(inst):
    rng = np.random.default_rng(6)
    for _ in range(5):
        r = random_requests(rng, inst)
        x = random_x(rng, inst)
        for y, lam in (
            (random_y(rng, inst), random_lam(rng, inst, r)),
            (x, ref.serve_fcfs(inst, r, x).capacity),
        ):
            worst = ref.k_star(inst, r, lam, y)
            g = ref.subgradient(inst, r, lam, y)
            for prune in (False, True):
                assert ref.control_subgradient(inst, r, lam, y, prune) == pytest.approx(g, abs=1e-9)
                for rho, path in enumerate(inst.paths):
                    if r[rho] >= 1:
                        message = ref.control_message(inst, rho, float(r[rho]), lam, y, prune)
                        assert message.cost == inst.ranked.cost[rho, worst[rho]]
                        for v in path[message.hops :]:
                            assert np.all(message.contributions[v] == 0)


def test_control_messages_stop_early():
    hops, lengths = 0, 0
    for inst in INSTANCES:
        r = np.ones(len(inst.paths))
        lam = ref.potential_capacity(inst, r)
        for rho, path in enumerate(inst.paths):
            hops += ref.control_message(inst, rho, 1.0, lam, inst.feasible.held).hops
            lengths += len(path)
    assert hops < 0.9 * lengths


def test_control_message_adds_in_order_of_cost_not_of_path():
    # costs fall along the path: node 0 must wait for its better alternatives upstream
    inst = ref.Instance(
        np.ones((3, 1)),
        np.ones(3),
        np.array([[False], [False], [True]]),
        np.array([[5.0], [3.0], [0.0]]),
        [0],
        [[0, 1, 2]],
        [0],
        [np.array([[4.0], [2.0], [9.0]])],
    )
    r = np.array([5.0])
    lam = ref.potential_capacity(inst, r)
    message = ref.control_message(inst, 0, 5.0, lam, np.ones((3, 1)))
    assert (message.cost, message.hops) == (4.0, 2)  # in path order it would have stopped at node 0, with no share
    assert message.contributions.tolist() == [[0.0], [3.0 * 2.0], [0.0]]
    with pytest.raises(ValueError, match="without requests"):
        ref.control_message(inst, 0, 0.0, lam, np.ones((3, 1)))


# ------------------------------------------------------------------------- popularity, measures and the loop


def test_popularity_by_hand():
    # node 1 is the repository of task 0 (model 1); models 0, 1 of task 0 and 2, 3 of task 1
    inst = ref.Instance(
        sizes=np.array([[2.0, 3.0, 2.0, 1.0]] * 2),
        budgets=np.array([3.0, 8.0]),
        repository=np.array([[0, 0, 0, 0], [0, 1, 0, 1]], dtype=bool),
        capacity=np.ones((2, 4)),
        model_task=[0, 0, 1, 1],
        paths=[[0, 1], [0, 1], [1]],
        type_task=[0, 1, 1],
        cost=[np.ones((2, 2)), np.ones((2, 2)), np.ones((1, 2))],
    )
    average = ref.popularity_average(inst, np.zeros((2, 2)), np.array([4.0, 1.0, 5.0]), 1)
    assert average.tolist() == [[4.0, 1.0], [4.0, 6.0]]
    average = ref.popularity_average(inst, average, np.array([0.0, 3.0, 0.0]), 2)
    assert average.tolist() == [[2.0, 2.0], [2.0, 4.5]]
    local = np.array([[5.0, 1.0, 3.0, 9.0], [5.0, 1.0, 3.0, 9.0]])
    # node 0: tie, task 0 first, model 1 (size 3) fills it. node 1: model 2 for task 1, task 0 has its repository.
    assert ref.popularity_placement(inst, average, local).tolist() == [[0, 1, 0, 0], [0, 1, 1, 1]]
    average[0] = [1.0, 2.0]
    # task 1 takes model 2 (size 2), then nothing of task 0 fits in 1
    assert ref.popularity_placement(inst, average, local)[0].tolist() == [0, 0, 1, 0]
    average[0] = [0.0, 0.0]
    assert ref.popularity_placement(inst, average, local)[0].tolist() == [0, 0, 0, 0]


def test_model_updates_by_hand():
    inst = random_instance(0)
    on = np.ones(inst.sizes.shape)
    assert ref.model_updates(inst, [on]) == 0
    total = float(inst.sizes.sum())
    assert ref.model_updates(inst, [0 * on, on, on, 0 * on, on]) == pytest.approx(total / 2)


@pytest.mark.parametrize("mirror_map", ["negentropy", "euclidean"])
@pytest.mark.parametrize("discipline", ["fcfs", "fair"])
@pytest.mark.parametrize("residual", ["draw", "strict"])
@pytest.mark.parametrize("step", ["scale_free", "sqrt"])
def test_infida_run(mirror_map, discipline, residual, step):
    inst = random_instance(2, nodes=4, ties=True)
    rng = np.random.default_rng(5)
    slots = 9
    requests = np.array([random_requests(rng, inst) for _ in range(slots)])
    requests[4] = 0
    run = ref.infida(
        inst,
        requests,
        ref.philox_uniforms(0, *inst.sizes.shape),
        mirror_map=mirror_map,
        step=step,
        c=1.0,
        delta=0.01,
        discipline=discipline,
        residual=residual,
        refresh=2,
    )
    assert len(run.x) == len(run.y) == len(run.gain) == slots
    assert np.array_equal(run.y[0], ref.initial_state(inst.sizes, inst.budgets, inst.repository, mirror_map))
    used = (inst.sizes * np.array(run.x)).sum(axis=2)
    if residual == "strict":
        assert np.all(used <= inst.budgets * (1 + 1e-12))
    else:
        assert np.all(used < inst.budgets + inst.sizes.max(axis=1))
    for t in range(slots):
        alone = ref.serve_fcfs(inst, requests[t], inst.omega).cost
        assert run.gain[t] == pytest.approx(alone - run.cost[t], abs=1e-9)
        assert np.all(run.x[t][inst.repository] == 1)
        if t % 2 == 1:
            assert np.array_equal(run.x[t], run.x[t - 1])
    # the bound holds for every static y, for the observed capacities
    for x in (random_x(rng, inst) for _ in range(30)):
        static = np.mean([ref.gain(inst, r, lam, x) for r, lam in zip(requests, run.lam, strict=True)])
        assert run.bound >= static - 1e-9
    assert run.bound >= np.mean(run.gain_fractional) - 1e-9
    assert run.ntag == pytest.approx(
        np.mean([g / r.sum() for g, r in zip(run.gain, requests, strict=True) if r.sum() > 0])
    )
    assert run.model_updates >= 0


def test_infida_learns_the_one_useful_model():
    # one edge node with room for one of two models; the second saves ten times as much
    inst = ref.Instance(
        np.array([[1.0, 1.0, 1.0]] * 2),
        np.array([1.0, 1.0]),
        np.array([[False, False, False], [False, False, True]]),
        np.full((2, 3), 100.0),
        [0, 1, 1],
        [[0, 1]],
        [1],
        [np.array([[10.0, 1.0], [20.0, 11.0]])],
    )
    requests = np.full((30, 1), 50.0)
    run = ref.infida(inst, requests, np.full((30, 2, 3), 0.5), c=1.0)
    assert run.y[0][0] == pytest.approx([1 / 3] * 3)
    assert run.y[-1][0, 2] > 0.99
    assert run.gain[-1] == 500.0
    assert 0.85 <= np.mean(run.gain) / run.bound <= 1 + 1e-9
    # x_1 = [0, 1, 0] or the like is left once: the useful model is loaded once
    assert run.model_updates <= 1 / 29 + 1e-12
