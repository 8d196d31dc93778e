"""Many policies on the same requests: who takes part, what each came to, and the ranking."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import idn_torch as idn
from idn_torch.app.choices import EXAMPLES, HINDSIGHT, POLICIES, UNDRAWN
from idn_torch.app.config import Config, FileConfig, InfidaConfig, OfflineConfig, PolicyConfig
from idn_torch.app.contenders import entrants
from idn_torch.app.experiment import prepare
from idn_torch.app.run import run_experiment
from idn_torch.app.spread import half_width
from idn_torch.errors import InputError
from tests.app.conftest import Command

CAMPUS = FileConfig("example:campus")
POLICY: dict[str, Any] = {
    "infida": idn.Infida(),
    "oga": idn.Infida(c=6.0, mirror_map="euclidean"),
    "popularity": idn.Popularity(),
    "olag": idn.baselines.Olag(),
    "static_greedy": idn.baselines.StaticGreedy(),
    "offline": idn.baselines.Offline(),
    "random_feasible": idn.baselines.RandomFeasible(),
    "repository_only": idn.baselines.RepositoryOnly(),
    "shared": idn.Shared(),
    "shared_mixed": idn.SharedMixed(),
}


@pytest.fixture(scope="module")
def campus() -> idn.Problem:
    return idn.load_problem(EXAMPLES / "campus.yaml")


@pytest.fixture(scope="module")
def all_of_them(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    directory = tmp_path_factory.mktemp("compare")
    others = [name for name in POLICIES if name != "infida"]
    return run_experiment(Config(CAMPUS, InfidaConfig(), seed=[3, 4, 5], compare=others), directory), directory


def contenders(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in [summary, *summary["comparison"]]}


@pytest.mark.parametrize("name", POLICY)
def test_each_policy_does_what_the_library_does(
    name: str, all_of_them: tuple[dict[str, Any], Path], campus: idn.Problem
) -> None:
    one = contenders(all_of_them[0])[name]
    alone = idn.run(campus, POLICY[name], seed=torch.tensor([3, 4, 5]))
    ntag = [instance["ntag"] for instance in one["instances"]] if "instances" in one else [one["ntag"]] * 3
    assert ntag == pytest.approx(alone.ntag().tolist())
    assert one["model_updates"] == pytest.approx(float(alone.mean_updates().mean()))
    assert ("instances" in one) == (name not in UNDRAWN)


def test_the_ranking_has_everyone_best_first(all_of_them: tuple[dict[str, Any], Path]) -> None:
    summary, directory = all_of_them
    table = (directory / "table.txt").read_text().splitlines()
    assert "of bound" in table[2]
    lines = table[3 : 3 + len(POLICIES)]
    by_ntag = sorted(contenders(summary).values(), key=lambda one: -one["ntag"])
    for line, one in zip(lines, by_ntag, strict=True):
        assert f"{one['ntag']:.3f}" in line
        ratios = [i["ratio_to_upper_bound"] for i in one.get("instances", [])]
        if ratios:
            assert f"{statistics.fmean(ratios):.4f} ± {half_width(ratios):.4f}" in line
    assert lines[-1].startswith("repository only")


def test_the_plots_of_a_comparison_are_there(all_of_them: tuple[dict[str, Any], Path]) -> None:
    plots = {file.name for file in (all_of_them[1] / "plots").iterdir()}
    assert plots == {"gain.png", "served.png", "tradeoffs.png", "allocation.png", "shadow_prices.png", "tiers.png"}


def test_time_is_told_apart(all_of_them: tuple[dict[str, Any], Path]) -> None:
    seconds = all_of_them[0]["seconds"]
    assert seconds.keys() == POLICIES.keys()
    assert all(one["slot"] > 0 and one["setup"] > 0 for one in seconds.values())


def test_the_offline_optimum_says_what_it_certifies(
    all_of_them: tuple[dict[str, Any], Path], campus: idn.Problem
) -> None:
    (planned,) = contenders(all_of_them[0])["offline"]["planned"]
    found = idn.offline(campus)
    assert planned["status"] == "GAP_MET"
    assert planned["upper_bound"] == pytest.approx(float(found.upper_bound))
    assert planned["gap"] <= 1e-3
    assert max(planned["gain"], planned["gain_fractional"]) <= planned["upper_bound"]


@pytest.mark.parametrize("name", HINDSIGHT)
def test_hindsight_is_of_the_run_not_of_the_file(name: str, campus: idn.Problem, tmp_path: Path) -> None:
    """Fewer slots, and more than the file has: the plan is for those that are run."""
    assert campus.requests is not None
    policy = POLICIES[name].config()
    for slots in (5, 50):
        config = Config(problem=CAMPUS, policy=policy, slots=slots, cycle=True, plots=False, compare=False)
        summary = run_experiment(config, tmp_path / str(slots))
        requests = campus.requests[torch.arange(slots) % 48]
        alone = idn.run(campus, type(POLICY[name])(requests=requests), requests)
        assert summary["ntag"] == pytest.approx(float(alone.ntag()))


def test_a_plan_is_not_stretched_by_resuming(tmp_path: Path) -> None:
    run_experiment(Config(problem=CAMPUS, policy=OfflineConfig(), slots=5, plots=False), tmp_path / "first")
    with pytest.raises(InputError, match=r"offline planned for the 5 slots.*slots=9 is another run"):
        run_experiment(Config(resume=str(tmp_path / "first"), slots=9), tmp_path / "second")


def test_entries_have_options_and_names_of_their_own(tmp_path: Path) -> None:
    compare: list[Any] = [
        {"policy": "infida", "refresh": 4},
        {"policy": "infida", "c": 2.0, "name": "careful"},
        "olag",
    ]
    config = Config(problem=CAMPUS, policy=InfidaConfig(discipline="fair"), compare=compare, slots=6, plots=False)
    named = entrants(config)
    assert list(named) == ["infida", "infida refresh=4", "careful", "olag"]
    assert all(options.discipline == "fair" for options in named.values())
    summary = run_experiment(config, tmp_path)
    careful = contenders(summary)["careful"]
    campus = prepare(config).problem
    assert campus.requests is not None
    alone = idn.run(campus, idn.Infida(c=2.0, discipline="fair"), campus.requests[:6])
    assert careful["ntag"] == pytest.approx(float(alone.ntag()))
    assert careful["policy"] == "infida"
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert "careful_gain" in first
    assert "infida refresh=4_gain" in first


def test_several_alphas_make_a_ranking_each(command: Command, tmp_path: Path) -> None:
    code, out, err = command(
        "experiment=campus",
        "slots=4",
        "alpha=[20,80]",
        "compare=[popularity,olag,random_feasible]",
        "hydra.run.dir=run",
    )
    assert (code, err) == (0, "")
    assert out.count("of bound") == 2
    assert out.index("alpha=20") < out.index("alpha=80")
    assert out.count("pay most at alpha=") == 2
    prices = json.loads((tmp_path / "run" / "summary.json").read_text())["shadow_prices"]
    assert [one["alpha"] for one in prices] == [20, 80]


@pytest.mark.parametrize("policy", [choice.config() for choice in POLICIES.values()], ids=list(POLICIES))
def test_every_policy_leads_a_run_and_resumes(policy: PolicyConfig, tmp_path: Path) -> None:
    config = Config(problem=CAMPUS, policy=policy, slots=7, plots=False, seed=2)
    whole = run_experiment(config, tmp_path / "whole")
    run_experiment(Config(**{**vars(config), "checkpoint_every": 3}), tmp_path / "again")
    rest = run_experiment(Config(resume=str(tmp_path / "again")), tmp_path / "rest")
    assert rest["ntag"] == whole["ntag"]
    assert (tmp_path / "rest" / "table.txt").read_bytes() == (tmp_path / "whole" / "table.txt").read_bytes()


@pytest.mark.parametrize(("count", "quantile"), [(2, 12.7062), (5, 2.77645), (31, 2.04227), (100, 1.98422)])
def test_the_confidence_interval_is_students(count: int, quantile: float) -> None:
    values = [float(i % 7) for i in range(count)]
    expected = quantile * statistics.stdev(values) / math.sqrt(count)
    assert half_width(values) == pytest.approx(expected, rel=1e-3)
