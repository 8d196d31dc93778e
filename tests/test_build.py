import numpy as np
import pytest
import torch

import idn_torch as idn

GOOD = {
    "sizes": [[1.0, 2.0], [1.0, 2.0]],
    "budgets": [1.0, 3.0],
    "capacity": [[5, 9], [5, 9]],
    "repository": [[0, 0], [0, 1]],
    "model_task": [0, 0],
    "paths": [[0, 1]],
    "type_task": [0],
    "path_latency": [[0.0, 0.1]],
    "delay": [[1.0, 2.0], [1.0, 2.0]],
    "accuracy": [0.5, 0.9],
    "alpha": 20.0,
    "requests": [[3], [4]],
    "node_ids": ["edge", "cloud"],
    "model_ids": ["tiny", "large"],
    "task_ids": ["detect"],
    "type_ids": ["a"],
}


def test_lists_numpy_and_tensors_build_the_same():
    def tensor(value):
        return torch.as_tensor(np.asarray(value))

    numeric = [k for k in GOOD if not k.endswith("_ids") and k not in ("paths", "path_latency")]
    a = idn.build_problem(**GOOD)
    b = idn.build_problem(**{k: np.asarray(v) if k in numeric else v for k, v in GOOD.items()})
    c = idn.build_problem(**{k: tensor(v) if k in (*numeric, "paths", "path_latency") else v for k, v in GOOD.items()})
    for other in (b, c):
        assert torch.equal(a.ranked.cost, other.ranked.cost)
        assert torch.equal(a.ranked.option, other.ranked.option)
    # Python floats keep all their digits: 0.1 and not its nearest float32.
    assert a.path_latency[0, 1].item() == 0.1
    assert a.ranked.cost.dtype == torch.float64


def test_decimal_budgets_hold_what_adds_up_to_them():
    problem = idn.build_problem(**{**GOOD, "sizes": [[0.1, 0.2], [0.1, 0.2]], "budgets": [0.30, 0.3]})
    assert problem.feasible.holds_all.tolist() == [True, True]
    assert problem.feasible.free.tolist() == [[True, True], [True, False]]  # 0.3 - 0.2 holds 0.1


BAD = {
    "negative size": ({"sizes": [[1.0, -2.0], [1.0, 2.0]]}, "node 'edge', model 'large': size is -2"),
    "NaN size": ({"sizes": [[1.0, float("nan")], [1.0, 2.0]]}, "node 'edge', model 'large': size is nan"),
    "shape": ({"sizes": [1.0, 2.0]}, r"sizes has shape \(2,\); expected \(V, M\)"),
    "text": ({"sizes": [["a", "b"]] * 2}, "sizes is not an array of numbers"),
    "negative budget": ({"budgets": [-1.0, 3.0]}, "node 'edge': budget is -1"),
    "infinite budget": ({"budgets": [float("inf"), 3.0]}, "node 'edge': budget is inf"),
    "budgets shape": ({"budgets": [1.0]}, r"budgets has shape \(1,\); expected \(2,\)"),
    "fractional capacity": ({"capacity": [[5, 9.5], [5, 9]]}, "node 'edge', model 'large': capacity is 9.5"),
    "repository over budget": ({"budgets": [1.0, 1.5]}, "node 'cloud': size of the repository models is 2; .*budget"),
    "no repository": ({"repository": [[0, 0], [0, 0]]}, "type 'a': its path .*'edge' - node 'cloud'.* task 'detect'"),
    "half a repository": ({"repository": [[0, 0], [0, 0.5]]}, "node 'cloud', model 'large': repository is 0.5"),
    "path repeats": (
        {"paths": [[0, 1, 0]], "path_latency": [[0, 1, 2]]},
        "type 'a': its path visits node 'edge' twice",
    ),
    "unknown node": ({"paths": [[0, 7]]}, "type 'a', position 1: node index on its path is 7"),
    "hole in a path": ({"paths": torch.tensor([[-1, 1]])}, "type 'a', position 0"),
    "no types": ({"paths": [], "type_task": []}, "paths is empty"),
    "unknown task": ({"type_task": [1]}, r"type 'a': task is 1; must be in 0\.\.0"),
    "task of a model": ({"model_task": [0, 3]}, r"model 'large': task is 3"),
    "float task": ({"model_task": [0.0, 0.0]}, "model_task must hold whole numbers"),
    "negative delay": ({"delay": [[1.0, -2.0], [1.0, 2.0]]}, "node 'edge', model 'large': delay is -2"),
    "accuracy": ({"accuracy": [0.5, 1.1]}, "model 'large': accuracy is 1.1"),
    "alpha": ({"alpha": -1.0}, "task 'detect': alpha is -1"),
    "negative latency": ({"path_latency": [[0.0, -1.0]]}, "type 'a', position 1: path latency is -1"),
    "negative requests": ({"requests": [[3], [-4]]}, "slot 1, type 'a': request count is -4"),
    "fractional requests": ({"requests": [[3], [4.5]]}, "slot 1, type 'a': request count is 4.5"),
    "too many requests": ({"requests": [[2**53 + 1], [0]]}, "slot 0, type 'a': request count is 9.0072e"),
    "NaN requests": ({"requests": [[float("nan")]]}, "slot 0, type 'a': request count is nan"),
    "duplicate ids": ({"node_ids": ["edge", "edge"]}, "node_ids: 'edge' occurs twice"),
    "too few ids": ({"model_ids": ["tiny"]}, "model_ids has 1 entries; expected 2"),
    "missing part": ({"delay": None}, "missing: delay"),
    "both forms": ({"cost": [[[1.0, 2.0], [3.0, 4.0]]]}, "not both"),
    "slot length": ({"slot_seconds": 0}, "slot_seconds is 0"),
    "dtype": ({"dtype": torch.float16}, "use torch.float32 or torch.float64"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_named(case):
    change, message = BAD[case]
    with pytest.raises(idn.ProblemError, match=message):
        idn.build_problem(**{**GOOD, **change})


def test_counts_are_checked_before_float32_rounds_them():
    with pytest.raises(idn.ProblemError, match=r"slot 0, type 'a': .*16777216"):
        idn.build_problem(**{**GOOD, "requests": [[2**24 + 1]]}, dtype=torch.float32)
    with pytest.raises(idn.ProblemError, match="capacity"):
        idn.build_problem(**{**GOOD, "capacity": [[5, 2**24 + 1], [5, 9]]}, dtype=torch.float32)
    problem = idn.build_problem(**{**GOOD, "requests": [[2**24]]}, dtype=torch.float32)
    assert problem.requests.item() == 2**24


def test_a_model_larger_than_the_budget_is_excluded():
    problem = idn.build_problem(**{**GOOD, "budgets": [1.5, 3.0]})
    assert problem.feasible.free[0].tolist() == [True, False]
