import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.hops import hop_of_rank
from idn_torch.messages import control_messages
from tests.instances import close, random_allocation, random_problem
from tests.pretend import pretended, pretended_cuda


def carried(inst, rho, r, lam, y):
    """Pairs that a message carries over all links it goes up: Sec. IV-B hop by hop, with the pending list cut."""
    path, models = inst.paths[rho], inst.models_of(inst.type_task[rho])
    at = {place: float(lam[rho, k]) for k, place in enumerate(inst.options[rho])}
    counter, pending, total = 0.0, [], 0
    for j, v in enumerate(path):
        upstream = min((float(c) for row in inst.cost[rho][j + 1 :] for c in row), default=np.inf)
        for q, m in enumerate(models):
            if at[v, m] * y[v, m] > 0:
                pending.append((float(inst.cost[rho][j, q]), j, m, at[v, m] * float(y[v, m])))
        pending.sort()
        while pending and pending[0][0] <= upstream and counter < r:
            counter += pending.pop(0)[3]
        if counter >= r:
            return total
        kept, ahead = [], counter
        for entry in pending:
            if ahead >= r:
                break
            kept.append(entry)
            ahead += entry[3]
        pending = kept
        total += len(pending)
    return total


def cases(seed, dtype=torch.float64):
    problem = random_problem(seed, dtype, whole_costs=seed % 2 == 0, types=14)
    r = problem.requests[0]
    x = random_allocation(problem, seed, integral=True)
    yield problem, r, idn.potential_capacity(problem, r), random_allocation(problem, seed)
    yield problem, r, idn.potential_capacity(problem, r), x
    yield problem, r, idn.serve(problem, r, x).capacity, x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(20))
def test_messages_match_the_oracle_and_the_central_subgradient(seed, dtype):
    for problem, r, lam, y in cases(seed, dtype):
        inst = ref.Instance.from_problem(problem)
        sent = control_messages(problem, r, lam, y)
        as64 = [t.double().numpy() for t in (lam, y)]
        worst = ref.k_star(inst, r.double().numpy(), *as64)
        for rho in range(len(inst.paths)):
            if r[rho] < 1:
                assert sent.hops[rho] == sent.payload[rho] == sent.cost[rho] == 0
                continue
            want = ref.control_message(inst, rho, float(r[rho]), *as64, prune=True)
            assert int(sent.hops[rho]) == want.hops
            assert close(sent.cost[rho], want.cost, dtype, scale=10)
            assert close(sent.cost[rho], inst.ranked.cost[rho, worst[rho]], dtype, scale=10)
            assert int(sent.payload[rho]) == carried(inst, rho, float(r[rho]), *as64)
        assert close(sent.slope, ref.control_subgradient(inst, r.double().numpy(), *as64), dtype, scale=100)
        assert close(sent.slope, idn.subgradient(problem, r, lam, y), dtype, scale=100)


def test_traffic_is_counted_and_searches_stop_early():
    problem = random_problem(4, types=30, nodes=8)
    r = problem.requests[0]
    lam = idn.potential_capacity(problem, r)
    length = (problem.paths >= 0).sum(-1)
    full = torch.ones(problem.shape, dtype=torch.float64)
    none = problem.repository.double()
    early, late = (control_messages(problem, r, lam, y) for y in (full, none))
    assert (early.hops <= length).all()
    assert int(early.messages()) == 2 * int((early.hops - 1).clamp(min=0).sum())
    assert float(early.share_visited(problem)) == pytest.approx(
        float(early.hops.sum()) / float(length[early.hops > 0].sum())
    )
    assert early.share_visited(problem) < 1
    # With the repositories alone a message carries nothing but a repository's entry past dearer costs further up.
    assert (late.payload <= length).all()
    silent = control_messages(problem, r * 0, lam * 0, full)
    assert int(silent.messages()) == 0
    assert float(silent.share_visited(problem)) == 1
    assert not silent.slope.any()


def test_adding_in_path_order_would_be_wrong():
    """A cheap model further up: the ingress may not count its own dearer one first."""
    problem = idn.build_problem(
        sizes=np.ones((2, 2)),
        budgets=[1.0, 2.0],
        capacity=np.full((2, 2), 5),
        repository=[[0, 0], [0, 1]],
        model_task=[0, 0],
        paths=[[0, 1]],
        type_task=[0],
        cost=[[[5.0, 9.0], [3.0, 8.0]]],
        requests=[[5]],
    )
    r = problem.requests[0]
    y = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    sent = control_messages(problem, r, idn.potential_capacity(problem, r), y)
    assert sent.cost.tolist() == [3]
    assert sent.hops.tolist() == [2]
    assert sent.payload.tolist() == [1]


def test_a_batch_of_allocations_and_tables_equals_the_loop():
    problem = random_problem(8)
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64).view(2, 1, 1, 1)
    costs = problem.cost_table().nan_to_num(posinf=0.0) * scale
    costs[1] = costs[1].flip(1)  # another order of ranks
    r = problem.requests[:3, None]  # (3, 1, R)
    lam = idn.potential_capacity(problem.with_cost(costs), r)
    y = torch.stack([random_allocation(problem, i) for i in range(2)])
    batch = control_messages(problem.with_cost(costs), r, lam, y)
    assert batch.hops.shape == (3, 2, len(problem.type_ids))
    for i in range(3):
        for j in range(2):
            one = problem.with_cost(costs[j])
            alone = control_messages(one, r[i, 0], idn.potential_capacity(one, r[i, 0]), y[j])
            assert torch.equal(batch.hops[i, j], alone.hops)
            assert torch.equal(batch.payload[i, j], alone.payload)
            assert close(batch.cost[i, j], alone.cost)
            assert close(batch.slope[i, j], alone.slope, scale=100)
            assert int(batch.messages()[i, j]) == int(alone.messages())


def test_hops_of_ranks_match_the_paths():
    problem = random_problem(12, extra_models=2, extra_types=1)
    inst, hop = ref.Instance.from_problem(problem), hop_of_rank(problem)
    for rho, options in enumerate(inst.options):
        assert hop[rho, : len(options)].tolist() == [inst.paths[rho].index(v) for v, _ in options]
        assert not hop[rho, len(options) :].any()


def test_padding_changes_nothing():
    small, wide = random_problem(13), random_problem(13, extra_models=3, extra_types=2)
    y = random_allocation(small, 1)
    more = torch.zeros(wide.shape, dtype=torch.float64)
    more[:, : small.shape[1]] = y
    r, s = small.requests[1], wide.requests[1]
    a = control_messages(small, r, idn.potential_capacity(small, r), y)
    b = control_messages(wide, s, idn.potential_capacity(wide, s), more)
    count = len(small.type_ids)
    assert torch.equal(b.hops[:count], a.hops)
    assert torch.equal(b.payload[:count], a.payload)
    assert not b.hops[count:].any()
    assert close(b.slope[:, : small.shape[1]], a.slope, scale=100)


def test_wrong_arguments_are_named_and_the_rest_runs_where_its_inputs_are(three_nodes):
    problem = random_problem(1)
    r = problem.requests[0]
    lam = idn.potential_capacity(problem, r)
    with pytest.raises(idn.InputError, match="y is"):
        control_messages(problem, r, lam, torch.zeros(2, 2, dtype=torch.float64))
    with pretended_cuda():
        there = pretended(three_nodes)
        assert hop_of_rank(there).device.type == "cuda"
