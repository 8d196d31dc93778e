"""Runs of the policies under shared capacity, and the bound that every run has."""

from pathlib import Path

import pytest

import idn_torch as idn
from idn_torch.app.choices import EXAMPLES
from idn_torch.app.config import (
    Config,
    FileConfig,
    InfidaConfig,
    MasterConfig,
    PolicyConfig,
    SharedConfig,
    SharedMixedConfig,
)
from idn_torch.app.run import run_experiment
from idn_torch.errors import InputError


@pytest.mark.parametrize("policy", [SharedConfig(), SharedMixedConfig(), MasterConfig(), InfidaConfig()])
def test_every_run_reports_the_same_bound(policy: PolicyConfig, tmp_path: Path) -> None:
    campus = idn.load_problem(EXAMPLES / "campus.yaml")
    assert campus.requests is not None
    summary = run_experiment(Config(problem=FileConfig("example:campus"), policy=policy, plots=False), tmp_path)
    assert [one["policy"] for one in summary["comparison"]] == [
        name for name in ("infida", "popularity") if name != summary["policy"]
    ]
    other = summary["comparison"][0]
    assert other["upper_bound"] == summary["upper_bound"]
    assert summary["upper_bound"] == pytest.approx(float(idn.shared_upper_bound(campus, campus.requests)))
    # It holds for every placement that stays put.
    assert float(idn.run(campus, idn.baselines.StaticGreedy()).gain.mean()) <= summary["upper_bound"]
    for figures in (summary, other):
        assert figures["ratio_to_upper_bound"] == pytest.approx(figures["time_averaged_gain"] / summary["upper_bound"])
    table = (tmp_path / "table.txt").read_text()
    row = next(line for line in table.splitlines() if line.startswith("ratio to the upper bound"))
    assert f"{summary['ratio_to_upper_bound']:.4f}" in row


@pytest.mark.parametrize("policy", [SharedConfig(), MasterConfig()])
def test_a_policy_under_shared_capacity_has_no_bound_of_its_own(policy: PolicyConfig, tmp_path: Path) -> None:
    summary = run_experiment(
        Config(problem=FileConfig("example:campus"), policy=policy, slots=4, plots=False), tmp_path
    )
    assert summary["own_upper_bound"] is None
    assert summary["comparison"][0]["own_upper_bound"] > 0


def test_bad_options_are_named(tmp_path: Path) -> None:
    campus = FileConfig("example:campus")
    with pytest.raises(InputError, match=r"marginals is 1\.5"):
        run_experiment(Config(problem=campus, policy=SharedConfig(marginals=1.5)), tmp_path / "run")
    with pytest.raises(InputError, match="discipline is 'lifo'"):
        run_experiment(Config(problem=campus, policy=MasterConfig(discipline="lifo")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
