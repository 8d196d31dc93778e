"""AIMD runs: what they leave says what `aimd.simulate` says, every preset runs, and wrong options are one line."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from idn_torch import aimd, cli
from idn_torch.app import aimd_observe
from idn_torch.app.aimd_config import AimdConfig, PhaseConfig, SystemsConfig
from idn_torch.app.aimd_run import run_aimd
from idn_torch.app.aimd_summary import quantile
from idn_torch.app.schema import register
from tests.app.conftest import Command
from tests.app.test_config import CONF, EXPERIMENTS, PLACEMENT, STUDIES
from tests.app.test_run_directory import rows_of, strict

SMALL = SystemsConfig(systems=40, units=5, events=60)
AIMD_PRESETS = [name for name in EXPERIMENTS if name not in (*PLACEMENT, *STUDIES)]


def config(plots: bool = False, seed: Any = 0, dtype: str = "float64", **changes: Any) -> AimdConfig:
    return AimdConfig(dataclasses.replace(SMALL, **changes), seed=seed, dtype=dtype, plots=plots)


def drawn(seed: int = 0, **options: Any) -> aimd.RandomSystems:
    return aimd.random_systems(40, 5, seed=seed, backlog=100.0, dtype=torch.float64, **options)


def simulated(s: aimd.RandomSystems, rate: Any = None, record: str | int = "all", **options: Any) -> aimd.Simulation:
    rate = s.arrival_rate if rate is None else rate
    return aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 60, s.u_max, s.mask, record=record, **options)


def test_the_files_repeat_the_defaults_of_the_dataclasses() -> None:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for override in ("run=aimd", "experiment=aimd"):
            assert OmegaConf.to_object(compose("config", overrides=[override])) == AimdConfig()
    given = yaml.safe_load((CONF / "run" / "aimd.yaml").read_text())["aimd"]
    assert given.keys() == {field.name for field in dataclasses.fields(SystemsConfig)}


@pytest.mark.parametrize("name", AIMD_PRESETS)
def test_every_preset_runs(name: str, command: Command, tmp_path: Path) -> None:
    overrides = ("aimd.systems=6", "aimd.units=4", "aimd.events=12", "hydra.run.dir=run")
    code, out, err = command(f"experiment={name}", *overrides)
    assert (code, err) == (0, "")
    run = tmp_path / "run"
    assert sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()) == [
        ".hydra/config.yaml",
        ".hydra/hydra.yaml",
        ".hydra/overrides.yaml",
        "idn-torch.log",
        "metrics.csv",
        "metrics.jsonl",
        "plots/convergence.png",
        "plots/cycles_to_invariant.png",
        "plots/events.png",
        "plots/sawtooth.png",
        "summary.json",
        "table.txt",
    ]
    for plot in run.glob("plots/*.png"):
        assert plot.read_bytes().startswith(b"\x89PNG")
    assert out == (run / "table.txt").read_text() + "\nrun directory: run\n"
    summary = strict((run / "summary.json").read_text())
    assert (summary["status"], summary["systems"], summary["events_per_system"]) == ("finished", 6, 12)
    assert [row["event"] for row in rows_of(run)] == list(range(12))


def test_overrides_reach_the_systems(command: Command, tmp_path: Path) -> None:
    code, _, err = command(
        *("experiment=aimd", "aimd.systems=40", "aimd.events=60", "aimd.units=5", "aimd.alpha=[0.5,2]", "seed=3"),
        *("plots=false", "hydra.run.dir=run"),
    )
    assert (code, err) == (0, "")
    s = drawn(3, alpha=(0.5, 2.0))
    rows = rows_of(tmp_path / "run")
    assert [row["period"] for row in rows] == pytest.approx(simulated(s).period.mean(0).tolist())


def test_figures_are_those_of_the_library(tmp_path: Path) -> None:
    summary = run_aimd(config(), tmp_path)
    assert summary == strict((tmp_path / "summary.json").read_text())
    s = drawn()
    run, totals = simulated(s), simulated(s, record="summary").summary
    assert totals is not None
    point = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate)
    bound = aimd.invariant_bound(s.alpha[:, None], run.period)
    expected = {
        "equilibrium_period": point.period,
        "settling_events": aimd.settling_event(run, point.period).double(),
        "max_backlog": totals.max_backlog.amax(-1),
        "final_backlog_over_bound": (run.backlog / bound)[:, -1].amax(-1),
        "cycles_to_invariant": aimd.invariant_entry(run).amax(-1).double(),
        "queueing_time": totals.mean_system_queueing_time,
        "jain_index": aimd.jain_index(totals.mean_admission),
        "jain_index_of_shares": aimd.jain_index(totals.mean_admission / point.average_rate),
    }
    for name, value in expected.items():
        assert summary[name]["mean"] == pytest.approx(float(value.mean())), name
        assert summary[name]["max"] == pytest.approx(float(value.max())), name
        assert summary[name]["median"] == pytest.approx(float(value.quantile(0.5, interpolation="nearest"))), name
        assert summary[name]["p95"] == pytest.approx(float(value.quantile(0.95, interpolation="nearest"))), name
    assert summary["by_status"] == {"OK": 40, "IDLE": 0, "INFEASIBLE": 0, "DECREASE_LIMIT": 0, "NUMERICAL": 0}
    assert (summary["converged"], summary["units"], summary["units_in_invariant_set"]) == (40, 200, 200)
    assert (summary["events"], summary["seed"], summary["device"], summary["dtype"]) == (2400, 0, "cpu", "float64")
    assert summary["versions"]["torch"] == torch.__version__
    assert summary["events_per_second"] > 0
    assert 0 < summary["wall_seconds"] < 60


def test_a_row_per_recorded_event(tmp_path: Path) -> None:
    run_aimd(config(record_every=7), tmp_path)
    rows, run = rows_of(tmp_path), simulated(drawn(), record=7)
    assert [row["event"] for row in rows] == list(range(0, 60, 7))
    for key, value in {
        "period": run.period.mean(0),
        "admission": run.admission.sum(-1).mean(0),
        "backlog": run.backlog.sum(-1).mean(0),
        "queueing_time": run.queueing_time.mean((0, 2)),
        "drops": run.drops.amax(0).double(),
    }.items():
        assert [row[key] for row in rows] == pytest.approx(value.tolist()), key
    assert {row["running"] for row in rows} == {40}
    assert rows[-1]["fairness"] > rows[0]["fairness"]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + len(rows)


def test_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"min_units": 2, "headroom": [1.1, 2.0], "workload": [PhaseConfig("ramp", 0.5, 10.0)]}
    whole = run_aimd(config(**changes), tmp_path / "whole")
    monkeypatch.setattr(aimd_observe, "_CHUNK", 7 * 5 * 60)
    parts = run_aimd(config(**changes), tmp_path / "parts")
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    for key in ("queueing_time", "by_status", "settling_events", "units", "units_in_invariant_set"):
        assert parts[key] == whole[key]


def test_seeds_are_told_apart(tmp_path: Path) -> None:
    summary = run_aimd(config(seed=[1, 2]), tmp_path)
    alone = [run_aimd(config(seed=seed), tmp_path / "one") for seed in (1, 2)]
    assert summary["systems"] == 80
    assert [one["seed"] for one in summary["instances"]] == [1, 2]
    assert [one["queueing_time"] for one in summary["instances"]] == [one["queueing_time"] for one in alone]
    means = [one["queueing_time"]["mean"] for one in alone]
    assert summary["queueing_time"]["mean"] == pytest.approx(sum(means) / 2)
    assert "±" in (tmp_path / "table.txt").read_text()
    assert [(row["event"], row["seed"]) for row in rows_of(tmp_path)][:3] == [(0, 1), (0, 2), (1, 1)]


def test_float32_agrees_roughly(tmp_path: Path) -> None:
    wide, narrow = (run_aimd(config(dtype=dtype), tmp_path) for dtype in ("float64", "float32"))
    assert narrow["dtype"] == "float32"
    assert narrow["queueing_time"]["mean"] == pytest.approx(wide["queueing_time"]["mean"], rel=1e-3)
    assert narrow["converged"] == 40


def test_the_workload_is_in_equilibrium_periods(tmp_path: Path) -> None:
    phases = [PhaseConfig("step", 1.0, 10.0), PhaseConfig("step", 0.5, 10.0)]
    summary = run_aimd(config(workload=phases), tmp_path)
    s = drawn()
    full, half = (aimd.fixed_point(s.alpha, s.beta, s.arrival_rate * factor).period for factor in (1.0, 0.5))
    run = simulated(s, aimd.step_rate(s.arrival_rate, s.arrival_rate / 2, 10 * full))
    assert [row["period"] for row in rows_of(tmp_path)] == pytest.approx(run.period.mean(0).tolist())
    assert summary["equilibrium_period"]["mean"] == pytest.approx(float(half.mean()))
    after = (run.time < 10 * full[:, None]).sum(-1)  # the first event after the step
    settling = (aimd.settling_event(run, half) - after).double()
    assert summary["settling_events"]["mean"] == pytest.approx(float(settling.mean()))


def test_a_ramp_meets_its_ends_and_a_gap_passes(tmp_path: Path) -> None:
    phases = [PhaseConfig("zero", cycles=3.0), PhaseConfig("step", 1.0, 5.0), PhaseConfig("ramp", 2.0, 8.0)]
    summary = run_aimd(config(workload=phases, events=90), tmp_path)
    rows = rows_of(tmp_path)
    assert summary["by_status"]["OK"] == 40
    assert rows[-1]["period_over_equilibrium"] == pytest.approx(2.0, rel=1e-3)
    assert summary["converged"] == 40


def test_a_change_that_is_still_to_come_is_not_convergence(tmp_path: Path) -> None:
    phases = [PhaseConfig("step", 1.0, 1000.0), PhaseConfig("step", 1.0, 1.0)]
    assert run_aimd(config(workload=phases), tmp_path)["converged"] == 0


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"workload": [PhaseConfig("step", 1.0, 5.0), PhaseConfig("zero", cycles=1.0)]}, "IDLE"),
        ({"workload": [PhaseConfig("zero", cycles=1.0)]}, "IDLE"),
        ({"headroom": [1.1, 1.5], "workload": [PhaseConfig("step", 3.0, 5.0)]}, "INFEASIBLE"),
    ],
)
def test_systems_that_stop_are_counted_and_nothing_is_not_a_number(
    changes: dict[str, Any], status: str, tmp_path: Path
) -> None:
    summary = run_aimd(config(plots=True, **changes), tmp_path)  # the plots of nothing, too
    assert summary["by_status"][status] == 40
    assert summary["converged"] == 0
    assert summary["queueing_time"] == {"mean": None, "median": None, "p95": None, "max": None}
    rows = rows_of(tmp_path)
    assert rows[-1]["running"] == 0
    assert rows[-1]["period"] is None
    assert f"status: 40 {status}" in (tmp_path / "table.txt").read_text()


def test_some_systems_stop(tmp_path: Path) -> None:
    summary = run_aimd(config(headroom=[1.1, 3.0], workload=[PhaseConfig("step", 2.0, 5.0)]), tmp_path)
    capacity = drawn(headroom=(1.1, 3.0))
    assert capacity.u_max is not None
    short = int((capacity.u_max.sum(-1) <= 2 * capacity.arrival_rate).sum())
    assert 0 < short < 40
    assert (summary["by_status"]["INFEASIBLE"], summary["by_status"]["OK"]) == (short, 40 - short)
    assert {row["running"] for row in rows_of(tmp_path)} == {40 - short}


def test_over_provisioned_service_queues_less(tmp_path: Path) -> None:
    exact, over = (run_aimd(config(service_factor=factor), tmp_path) for factor in (1.0, 1.5))
    s = drawn()
    totals = simulated(s, record="summary", service_factor=1.5).summary
    assert totals is not None
    assert over["queueing_time"]["mean"] == pytest.approx(float(totals.mean_system_queueing_time.mean()))
    assert over["queueing_time"]["mean"] < exact["queueing_time"]["mean"]


def test_quantiles_leave_out_what_is_not_known() -> None:
    value = torch.tensor([[5.0, 1.0], [3.0, 2.0], [math.nan, 3.0]])
    known = torch.tensor([[True, False], [True, False], [False, False]])
    assert quantile(value, known, 1.0)[0] == 5.0
    assert quantile(value, known, 0.0)[0] == 3.0
    assert quantile(value, known, 0.5)[1].isnan()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["aimd.alpha=[0,2]"], "aimd.alpha is the range (0.0, 2.0); it must lie above 0"),
        (["aimd.alpha=[3,2]"], "aimd.alpha is the range (3.0, 2.0)"),
        (["aimd.alpha=[1]"], "aimd.alpha is [1.0]; give two numbers"),
        (["aimd.alpha=[1,inf]"], "aimd.alpha is [1.0, inf]; give two numbers"),
        (["aimd.alpha=[a,b]"], "aimd.alpha[0]: Value 'a'"),
        (["aimd.alpha=2"], "aimd.alpha: Invalid value assigned"),
        (["aimd.beta=[0.5,1]"], "aimd.beta is the range (0.5, 1.0); it must lie in [0, 1)"),
        (["aimd.beta=[-0.1,0.5]"], "aimd.beta is the range (-0.1, 0.5)"),
        (["aimd.arrival_rate=[0,5]"], "aimd.arrival_rate is the range (0.0, 5.0)"),
        (["aimd.headroom=[1,2]"], "aimd.headroom is the range (1.0, 2.0); it must lie above 1"),
        (["aimd.units=0"], "aimd.units is 0; it must be at least 1"),
        (["aimd.units=2.5"], "aimd.units: Value '2.5'"),
        (["aimd.systems=0"], "aimd.systems is 0; it must be at least 1"),
        (["aimd.min_units=9"], "aimd.min_units is 9; it must be at most aimd.units, 8"),
        (["aimd.events=0"], "aimd.events is 0; it must be at least 1"),
        (["aimd.record_every=0"], "aimd.record_every is 0; it must be at least 1"),
        (["aimd.start=-1"], "aimd.start is -1; it must be >= 0"),
        (["aimd.backlog=nan"], "aimd.backlog is nan; it must be >= 0"),
        (["aimd.service_factor=0"], "aimd.service_factor is 0; it must be > 0"),
        (["aimd.rtol=0"], "aimd.rtol is 0; it must be > 0"),
        (["aimd.engine=fast"], "aimd.engine is 'fast'; use one of auto, torch, numba"),
        (["aimd.workload=[{kind:jump}]"], "aimd.workload[0].kind is 'jump'; use one of step, ramp, zero"),
        (["aimd.workload=[{cycles:0}]"], "aimd.workload[0].cycles is 0; it must be > 0"),
        (["aimd.workload=[{},{kind:ramp,factor:0}]"], "aimd.workload[1].factor is 0; it must be > 0"),
        (["aimd.workload=[{speed:2}]"], "no option speed; known here: kind, factor, cycles"),
        (["aimd.workload=step"], "aimd.workload: Invalid value assigned"),
        (["aimd.sistems=3"], "no option aimd.sistems; known here: systems, units"),
        (["+aimd.foo=3"], "no option aimd.foo; known here: systems, units"),
        (["slots=3"], "no option slots; known here: aimd, seed"),
        (["policy.c=3"], "no option policy; known here: aimd, seed"),
        (["policy=popularity"], "Could not override 'policy'"),
        (["run=foo"], "run has no choice 'foo'; use one of aimd, placement"),
        (["seed=-1"], "seed is -1; give a whole number"),
        (["device=gpu"], "device is 'gpu'; use cpu, cuda or cuda:N"),
        (["dtype=float16"], "dtype is 'float16'; use one of float64, float32"),
        (["threads=0"], "threads is 0; it must be at least 1"),
    ],
)
def test_one_line_that_names_it(overrides: list[str], named: str, command: Command, tmp_path: Path) -> None:
    code, out, err = command("experiment=aimd", "hydra.run.dir=run", *overrides)
    assert code == 2
    assert out == ""
    assert err.startswith("idn-torch: error: ")
    assert named in err
    assert err.count("\n") == 1
    assert {file.name for file in tmp_path.glob("run/*")} <= {".hydra", "idn-torch.log"}


@pytest.mark.parametrize("error", [RuntimeError("no paint"), KeyboardInterrupt()])
def test_a_run_that_does_not_finish_says_so(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("idn_torch.app.aimd_run.observe_systems", fail)
    with pytest.raises(type(error)):
        run_aimd(config(), tmp_path)
    summary = strict((tmp_path / "summary.json").read_text())
    assert summary["status"] == ("failed" if isinstance(error, RuntimeError) else "interrupted")


def test_sweepers_get_the_queueing_time_to_be_lowered(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, returned = cli._task, []
    monkeypatch.setattr(cli, "_task", lambda cfg: returned.append(task(cfg)))
    command("experiment=aimd", "aimd.systems=5", "aimd.events=9", "plots=false", "hydra.run.dir=run")
    assert returned == [-json.loads((tmp_path / "run" / "summary.json").read_text())["queueing_time"]["mean"]]


def test_help_names_what_an_aimd_run_takes(command: Command) -> None:
    code, out, _ = command("--help", "experiment=aimd")
    assert code == 0
    assert "experiment=aimd aimd.systems=1000" in out
    assert "record_every: 1" in out  # of the configuration as it stands
    assert "problem:" not in out.partition("All options as they stand")[2]
