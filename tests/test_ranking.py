import numpy as np
import pytest
import torch

import idn_torch as idn
from idn_torch import ranking
from idn_torch import reference as ref
from tests.instances import random_problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(30))
def test_ranked_tables_match_the_reference(seed, dtype):
    problem = random_problem(seed, dtype, whole_costs=seed % 2 == 0, extra_models=seed % 3 * 2, extra_types=seed % 2)
    expected = ref.Instance.from_problem(problem).ranked
    assert np.array_equal(problem.ranked.cost.numpy(), expected.cost)
    assert np.array_equal(problem.ranked.option.numpy(), expected.option)
    assert np.array_equal(problem.ranked.mask.numpy(), expected.mask)


def test_the_order_of_ties_does_not_depend_on_chunks(monkeypatch):
    whole = random_problem(4, whole_costs=True, types=40)
    monkeypatch.setattr(ranking, "SORT_ELEMENTS", 1)
    chunked = whole.with_cost(whole.cost_table())
    for name in ("cost", "option", "mask", "repository", "first_repository"):
        assert torch.equal(getattr(whole.ranked, name), getattr(chunked.ranked, name))


def test_cost_table_returns_what_was_ranked():
    problem = random_problem(1)
    cost = torch.rand(2, *problem.paths.shape, problem.task_models.shape[1], dtype=torch.float64)
    batched = problem.with_cost(cost)
    exists = problem.option_exists()
    assert torch.equal(torch.where(exists, cost, 0.0), torch.where(exists, batched.cost_table(), 0.0))
    assert batched.cost_table()[:, ~exists].isinf().all()
    assert batched.ranked.cost.shape == (2, *problem.ranked.cost.shape)


def test_with_cost_ignores_padding_and_names_a_missing_cost():
    problem = random_problem(2)
    cost = problem.cost_table()
    assert torch.equal(
        problem.with_cost(cost.masked_fill(~problem.option_exists(), torch.nan)).ranked.cost, problem.ranked.cost
    )
    rho, j, q = problem.option_exists().nonzero()[7].tolist()
    cost[rho, j, q] = torch.nan
    model = int(problem.task_models[problem.type_task[rho], q])
    with pytest.raises(
        idn.ProblemError,
        match=f"type '{rho}': the cost of model '{model}' on node '{int(problem.paths[rho, j])}' is nan",
    ):
        problem.with_cost(cost)
    with pytest.raises(idn.ProblemError, match=r"expected \(\.\.\., R, J, Q\)"):
        problem.with_cost(cost[..., :-1])
    with pytest.raises(idn.ProblemError, match="float32"):
        problem.with_cost(cost.float())


def test_with_alpha_is_eq_6(three_nodes):
    alphas = torch.tensor([[0.0], [75.0], [1e4]], dtype=torch.float64)
    batched = three_nodes.with_alpha(alphas)
    assert torch.equal(batched.ranked.cost[1], three_nodes.ranked.cost)
    cheapest = batched.ranked.option[:, 0, 0] % len(three_nodes.model_ids)
    names = [three_nodes.model_ids[m] for m in cheapest.tolist()]
    assert names[0] == "tiny"  # latency alone
    assert names[2] == "large"  # accuracy alone
    with pytest.raises(idn.ProblemError, match="general cost table"):
        random_problem(0).with_alpha(alphas)


def test_moving_keeps_everything():
    problem = random_problem(3, whole_costs=True)
    moved = problem.to(dtype=torch.float32)
    assert moved.dtype == torch.float32
    assert moved.ranked.cost.dtype == torch.float32
    assert moved.feasible.budgets.dtype == torch.float32
    assert torch.equal(moved.ranked.option, problem.ranked.option)
    assert torch.equal(moved.to(dtype=torch.float64).ranked.cost, problem.ranked.cost)


def test_a_problem_is_frozen():
    with pytest.raises(AttributeError):
        random_problem(0).name = "other"


@pytest.mark.slow
def test_a_large_table_is_ranked_in_little_memory():
    """80,000 types x 150 ranks, in a process of its own so that the peak is this table's."""
    import subprocess
    import sys

    code = """
import resource, torch, time
from idn_torch.ranking import rank_options
R, J, Q, V, N = 80_000, 5, 30, 4096, 20
torch.manual_seed(0)
cost = torch.rand(R, J, Q)
paths = torch.randint(0, V, (R, J)); task = torch.randint(0, N, (R,))
models = torch.arange(N * Q).view(N, Q); omega = torch.zeros(V, N * Q, dtype=torch.bool)
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
ranked = rank_options(cost, paths, task, models, omega, J * Q)
took = time.perf_counter() - start
peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024
size = sum(t.numel() * t.element_size() for t in (ranked.cost, ranked.option, ranked.mask, ranked.repository))
print(took, peak / size, bool((ranked.cost.diff(dim=-1) >= 0).all()))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert float(out[1]) < 2, f"peak is {out[1]} times the tables"
    assert out[2] == "True"
