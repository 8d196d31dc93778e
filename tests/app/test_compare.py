"""Many policies on the same requests: who takes part, what each came to, and the ranking."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

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


def test_only_hindsight_needs_the_requests_of_every_slot_at_once() -> None:
    config = Config(problem=CAMPUS, slots=10**12, cycle=True)
    assert prepare(config).requests.shape == (48, 5)  # else 40 TB


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


@pytest.mark.parametrize(("name", "shown"), [("olag faster", "OLAG faster"), ("olaga", "olaga"), (7, "7")])
def test_a_name_is_shown_as_it_is_given(name: Any, shown: str, tmp_path: Path) -> None:
    compare = [{"policy": "olag", "name": name}]
    run_experiment(Config(CAMPUS, InfidaConfig(), compare=compare, slots=1, plots=False), tmp_path)
    assert (tmp_path / "table.txt").read_text().splitlines()[2].split("INFIDA")[1].strip() == shown


def test_values_are_converted_as_overrides_are(tmp_path: Path) -> None:
    ((name, options),) = list(entrants(Config(compare=[{"policy": "infida", "floor": 0, "refresh": "3"}])).items())[1:]
    assert name == "infida floor=0 refresh=3"
    assert options == InfidaConfig(floor=0.0, refresh=3)


@pytest.mark.filterwarnings("error")
def test_plots_of_one_slot_many_groups_and_odd_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from idn_torch.app import plots

    figures: dict[str, Figure] = {}
    save = plots.save

    def keep(path: Path, figure: Figure) -> None:
        figures[path.stem] = figure
        save(path, figure)

    monkeypatch.setattr(plots, "save", keep)
    compare: list[Any] = ["popularity", "random_feasible", {"policy": "olag", "name": "$x^$"}]
    policy = InfidaConfig(c=[float(c) for c in range(1, 7)])
    run_experiment(Config(problem=CAMPUS, policy=policy, compare=compare, slots=1), tmp_path)
    panels = [axes for axes in figures["gain"].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"c={c}" for c in range(1, 7)]
    assert all(line.get_marker() == "." for axes in panels for line in axes.get_lines())
    assert figures["gain"].get_figwidth() == 20
    # Nothing can be said of updates, but the legend is there.
    assert not figures["tradeoffs"].axes[1].get_lines()
    legend = figures["tradeoffs"].axes[1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["infida", "popularity", "random_feasible", "$x^$"]


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
    prices = json.loads((tmp_path / "run" / "summary.json").read_text())["shadow_prices"]
    assert [one["alpha"] for one in prices] == [20, 80]
    assert not any(price["right"] > 0 for one in prices for price in one["nodes"].values())
    assert "more budget would pay at no node at alpha=20\nmore budget would pay at no node at alpha=80\n" in out


def test_only_nodes_where_budget_pays_are_named(all_of_them: tuple[dict[str, Any], Path]) -> None:
    summary, directory = all_of_them
    (line,) = (line for line in (directory / "table.txt").read_text().splitlines() if "pay most" in line)
    per_request = 1000 * 48 / summary["requests"]
    prices = {node: per_request * one["right"] for node, one in summary["shadow_prices"][0]["nodes"].items()}
    assert 0 < sum(price > 1e-9 for price in prices.values()) < 3
    for node, price in prices.items():
        assert (f" {node} {price:.3g}" in line) == (price > 1e-9)


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
