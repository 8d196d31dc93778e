"""Runs of the policies under shared capacity: their bound is reported for every policy beside them."""

from pathlib import Path

import pytest

from idn_torch.app.config import Config, FileConfig, MasterConfig, PolicyConfig, SharedConfig, SharedMixedConfig
from idn_torch.app.run import run_experiment
from idn_torch.errors import InputError


@pytest.mark.parametrize("policy", [SharedConfig(), SharedMixedConfig(), MasterConfig()])
def test_the_shared_bound_is_reported_for_all(policy: PolicyConfig, tmp_path: Path) -> None:
    summary = run_experiment(Config(problem=FileConfig("example:campus"), policy=policy, plots=False), tmp_path)
    other = summary["comparison"]
    assert other["policy"] == "infida"
    bound = summary["shared_upper_bound"]
    assert bound == other["shared_upper_bound"] == summary["upper_bound"]
    for figures in (summary, other):
        assert figures["ratio_to_shared_upper_bound"] == pytest.approx(figures["time_averaged_gain"] / bound)
        assert 0 < figures["ratio_to_shared_upper_bound"] <= 1
    assert other["upper_bound"] != bound  # INFIDA's own, at the capacities it left over
    table = (tmp_path / "table.txt").read_text()
    row = next(line for line in table.splitlines() if line.startswith("ratio to the shared-capacity bound"))
    assert f"{summary['ratio_to_shared_upper_bound']:.4f}" in row
    own = next(line for line in table.splitlines() if line.startswith("ratio to the bound at its own"))
    assert own.split()[-2] == "-"


def test_other_runs_have_no_such_row(tmp_path: Path) -> None:
    summary = run_experiment(Config(problem=FileConfig("example:campus"), slots=3, plots=False), tmp_path)
    assert summary["shared_upper_bound"] is None
    assert "shared-capacity" not in (tmp_path / "table.txt").read_text()


def test_bad_options_are_named(tmp_path: Path) -> None:
    campus = FileConfig("example:campus")
    with pytest.raises(InputError, match=r"marginals is 1\.5"):
        run_experiment(Config(problem=campus, policy=SharedConfig(marginals=1.5)), tmp_path / "run")
    with pytest.raises(InputError, match="discipline is 'lifo'"):
        run_experiment(Config(problem=campus, policy=MasterConfig(discipline="lifo")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
