"""A batch is the loop over its instances."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import idn_torch as idn
from idn_torch.app.batch import instances
from idn_torch.app.config import BackboneConfig, Config, InfidaConfig, LatencyConfig
from idn_torch.app.experiment import prepare
from idn_torch.app.run import run_experiment
from tests.app.conftest import Command

SMALL = BackboneConfig(topology="sndlib/polska", repositories=["Warsaw"], tasks=3, requests_per_second=3000.0)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("order", ["index", "random"])
def test_a_batch_equals_the_loop(order: str, tmp_path: Path) -> None:
    seeds, steps, alphas = [0, 7], [4.0, 16.0], [25.0, 75.0]

    def config(seed: Any, c: Any, alpha: Any) -> Config:
        latency = LatencyConfig(swing=0.3, period=5)
        return Config(SMALL, InfidaConfig(c=c), seed, alpha, slots=6, order=order, latency=latency, plots=False)

    batch = run_experiment(config(seeds, steps, alphas), tmp_path / "batch")
    rows = rows_of(tmp_path / "batch")
    assert [(row["slot"], row["instance"]) for row in rows] == list(itertools.product(range(6), range(8)))
    for index, (c, alpha, seed) in enumerate(itertools.product(steps, alphas, seeds)):
        single = run_experiment(config(seed, c, alpha), tmp_path / f"{index}")
        mine = batch["instances"][index]
        assert (mine["seed"], mine["c"], mine["alpha"]) == (seed, c, alpha)
        for ours, theirs in zip(rows[index::8], rows_of(tmp_path / f"{index}"), strict=True):
            assert ours.keys() - theirs.keys() == {"instance", "seed", "c", "alpha"}
            for key, value in theirs.items():
                assert ours[key] == (None if value is None else pytest.approx(value, rel=1e-12)), key
        for key in ("ntag", "model_updates", "own_upper_bound", "latency_per_request", "cost_per_request"):
            assert mine[key] == pytest.approx(single[key], rel=1e-12)
        # Prices of requests are not unique: another kernel, for more instances, may end on others, as good.
        assert mine["upper_bound"] == pytest.approx(single["upper_bound"], rel=1e-3)
        # Any instance's certificate holds for all of the same problem: the batch reports the best of them.
        assert mine["common_upper_bound"] <= single["common_upper_bound"] * (1 + 1e-12)
        other = batch["comparison"][0]["instances"][index]
        assert other["ntag"] == pytest.approx(single["comparison"][0]["ntag"], rel=1e-12)
    assert batch["ntag"] == pytest.approx(sum(one["ntag"] for one in batch["instances"]) / 8)
    allocation = json.loads((tmp_path / "batch" / "allocation.json").read_text())
    for index, one in enumerate(allocation):
        assert one["nodes"] == json.loads((tmp_path / f"{index}" / "allocation.json").read_text())


def test_the_common_bound_of_a_batch_is_the_tightest(tmp_path: Path) -> None:
    batch = run_experiment(Config(SMALL, InfidaConfig(c=[0.5, 16.0]), slots=6, plots=False), tmp_path)
    problem = prepare(Config(SMALL)).problem
    assert problem.requests is not None
    bounds = [
        float(idn.run(problem, idn.Infida(c=c), problem.requests[:6]).state.common.bound(problem)) for c in (0.5, 16.0)
    ]
    assert [one["common_upper_bound"] for one in batch["instances"]] == pytest.approx([min(bounds)] * 2, rel=1e-12)
    # The popularity rule draws nothing and knows no step size: one instance stands for both.
    assert "instances" not in batch["comparison"][0]
    assert batch["comparison"][0]["common_upper_bound"] == pytest.approx(min(bounds), rel=1e-12)


def test_seeds_share_a_column_other_lists_do_not(command: Command, tmp_path: Path) -> None:
    code, out, _ = command(
        "experiment=campus",
        "policy=infida",
        "slots=3",
        "seed=[0,1,2]",
        "policy.c=[4,8]",
        "plots=false",
        "hydra.run.dir=run",
    )
    assert code == 0
    header = out.splitlines()[2]
    assert header.split() == ["INFIDA", "c=4", "INFIDA", "c=8", "popularity"]
    ntag = next(line for line in out.splitlines() if line.startswith("NTAG"))
    assert ntag.count("±") == 2
    members = [one["ntag"] for one in json.loads((tmp_path / "run" / "summary.json").read_text())["instances"]]
    mean, spread = sum(members[:3]) / 3, torch.tensor(members[:3], dtype=torch.float64).std()
    assert f"{mean:.3f} ± {spread:.3f}" in ntag


def test_wide_tables_break_into_blocks(command: Command) -> None:
    _, out, _ = command(
        "experiment=campus", "policy=infida", "slots=2", "policy.c=[1,2,3,4,5,6,7,8]", "hydra.run.dir=run"
    )
    assert out.count("NTAG") > 1
    assert all(len(line) <= 100 for line in out.splitlines()[1:])
    for c in range(1, 9):
        assert out.count(f"INFIDA c={c}\n") + out.count(f"INFIDA c={c} ") == 1


def test_labels_and_order_of_instances() -> None:
    batch = instances(Config(policy=InfidaConfig(c=[1, 2]), seed=[5, 6], alpha=3))
    assert [tuple(one) for one in batch.all] == [(5, 1.0, 3.0), (6, 1.0, 3.0), (5, 2.0, 3.0), (6, 2.0, 3.0)]
    assert batch.labels()[2] == {"seed": 5, "c": 2.0}
    assert batch.groups() == {"c=1": [0, 1], "c=2": [2, 3]}
    assert batch.batch == (4,)
    assert instances(Config()).batch == ()


def test_random_arrivals_are_permutations_that_only_seed_and_slot_decide() -> None:
    both = prepare(Config(SMALL, seed=[3, 4], order="random"))
    alone = prepare(Config(SMALL, seed=4, order="random", policy=InfidaConfig(c=1.0)))
    first, second = both.order_at(0), both.order_at(1)
    assert first is not None
    assert second is not None
    assert torch.equal(first.sort(-1).values, torch.arange(first.shape[-1]).expand_as(first))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    ours = alone.order_at(1)
    assert ours is not None
    assert torch.equal(ours, second[1])
