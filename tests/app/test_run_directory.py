"""What a run leaves behind, and that it says what the library says."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import yaml

import idn_torch as idn
from idn_torch.app.choices import EXAMPLES
from idn_torch.app.config import Config, FileConfig, InfidaConfig, PopularityConfig
from idn_torch.app.run import run_experiment
from idn_torch.shared import SharedBound
from tests.app.conftest import Command, environment

CAMPUS = FileConfig("example:campus")


def refuse(token: str) -> NoReturn:
    raise AssertionError(f"{token} is not strict JSON")


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=refuse)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [strict(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def campus() -> idn.Problem:
    return idn.load_problem(EXAMPLES / "campus.yaml")


def test_everything_is_there(command: Command, tmp_path: Path) -> None:
    code, out, err = command("experiment=campus", "slots=5", "hydra.run.dir=run")
    assert (code, err) == (0, "")
    run = tmp_path / "run"
    assert sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()) == [
        ".hydra/config.yaml",
        ".hydra/hydra.yaml",
        ".hydra/overrides.yaml",
        "allocation.json",
        "checkpoints/last.pt",
        "idn-torch.log",
        "metrics.csv",
        "metrics.jsonl",
        "plots/allocation.png",
        "plots/gain.png",
        "plots/served.png",
        "plots/shadow_prices.png",
        "plots/tiers.png",
        "summary.json",
        "table.txt",
    ]
    assert list(tmp_path.iterdir()) == [run]  # and nowhere else
    for plot in run.glob("plots/*.png"):
        assert plot.read_bytes().startswith(b"\x89PNG")
    assert out == (run / "table.txt").read_text() + "\nrun directory: run\n"
    assert yaml.safe_load((run / ".hydra" / "config.yaml").read_text())["slots"] == 5
    log = (run / "idn-torch.log").read_text()
    assert "node 'gate': never deployed there" in log
    assert "speech-l" in log
    assert "finished" in log


def test_summary_repeats_what_the_library_computes(campus: idn.Problem, tmp_path: Path) -> None:
    summary = run_experiment(Config(problem=CAMPUS, policy=InfidaConfig(c=2.0), seed=3, plots=False), tmp_path)
    assert summary == strict((tmp_path / "summary.json").read_text())
    infida, rule = idn.run(campus, idn.Infida(c=2.0), seed=3), idn.run(campus, idn.Popularity())
    bound, common = infida.state.cuts.bound(campus), infida.state.common.bound(campus)
    assert campus.requests is not None
    cuts = SharedBound.none(campus)
    for _ in range(2):
        cuts = cuts.again(campus)
        for r in campus.requests:
            cuts = cuts.add(campus, r)
    shared = idn.shared_upper_bound(campus, campus.requests)
    expected = {
        "ntag": infida.ntag(),
        "time_averaged_gain": infida.gain.mean(),
        "time_averaged_gain_fractional": infida.gain_fractional.mean(),
        "model_updates": infida.mean_updates(),
        "upper_bound": shared,
        "ratio_to_upper_bound": infida.gain.mean() / shared,
        "own_upper_bound": bound,
        "ratio_to_own_upper_bound": infida.gain.mean() / bound,
        "common_upper_bound": common,
        "ratio_to_common_upper_bound": infida.gain.mean() / common,
        "cost_per_request": infida.cost.sum() / infida.requests.sum(),
        "requests": infida.requests.sum(),
    }
    assert {key: summary[key] for key in expected} == pytest.approx({key: float(v) for key, v in expected.items()})
    (beside,) = summary["comparison"]
    assert beside["policy"] == "popularity"
    assert beside["ntag"] == pytest.approx(float(rule.ntag()))
    assert beside["model_updates"] == pytest.approx(float(rule.mean_updates()))
    assert beside["ratio_to_common_upper_bound"] == pytest.approx(float(rule.gain.mean() / common))
    assert beside["upper_bound"] == summary["upper_bound"]
    assert beside["own_upper_bound"] is None
    prices = idn.shadow_prices(campus, cuts.cuts)
    (entry,) = summary["shadow_prices"]
    assert entry["alpha"] is None
    for v, node in enumerate(campus.node_ids):
        assert entry["nodes"][node] == pytest.approx({"left": float(prices.left[v]), "right": float(prices.right[v])})
    assert beside["time_averaged_gain_fractional"] is None
    regret = 48 * ((1 - 1 / math.e) * float(bound) - float(infida.gain.mean()))
    assert summary["theory"]["measured_regret"] == pytest.approx(regret)
    assert summary["theory"]["eta"] == pytest.approx(idn.theory(campus, campus.requests).eta)
    for key, value in {"policy": "infida", "slots": 48, "seed": 3, "device": "cpu", "dtype": "float64"}.items():
        assert summary[key] == value
    assert summary["status"] == "finished"
    assert summary["wall_seconds"] > 0
    assert summary["slots_per_second"] > 0
    assert summary["versions"]["torch"] == torch.__version__
    for figures in (summary, beside):
        assert math.fsum(figures["served"].values()) == pytest.approx(1)
        accuracy, latency = figures["accuracy_per_request"], figures["latency_per_request"]
        # Two tasks with an alpha each: the cost lies between those of either alpha.
        assert latency + 80 * (1 - accuracy) < figures["cost_per_request"] < latency + 120 * (1 - accuracy)


def test_a_row_per_slot(campus: idn.Problem, tmp_path: Path) -> None:
    run_experiment(Config(CAMPUS, InfidaConfig(), slots=6, plots=False), tmp_path)
    rows = rows_of(tmp_path)
    assert [row["slot"] for row in rows] == list(range(6))
    assert campus.requests is not None
    infida = idn.run(campus, idn.Infida(), campus.requests[:6])
    for key in ("requests", "gain", "gain_fractional", "cost", "model_updates"):
        assert [row[key] for row in rows] == pytest.approx(getattr(infida, key).tolist())
    assert [row["ntag"] for row in rows] == pytest.approx((infida.gain / infida.requests).tolist())
    rule = idn.run(campus, idn.Popularity(), campus.requests[:6])
    assert [row["popularity_gain"] for row in rows] == pytest.approx(rule.gain.tolist())
    for row in rows:
        served = [row[f"served_{tier}"] for tier in ("ingress", "path", "cloud", "repository")]
        assert sum(served) == row["requests"]
        assert row["popularity_gain_fractional"] is None
    with (tmp_path / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [{key: float(value) if value else None for key, value in row.items()} for row in table] == rows


def test_allocation_is_that_of_the_last_slot(campus: idn.Problem, tmp_path: Path) -> None:
    run_experiment(Config(CAMPUS, InfidaConfig(), slots=6, plots=False), tmp_path)
    assert campus.requests is not None
    x = idn.run(campus, idn.Infida(), campus.requests[:6]).state.previous
    expected = {
        node: [model for m, model in enumerate(campus.model_ids) if x[v, m] == 1]
        for v, node in enumerate(campus.node_ids)
    }
    assert strict((tmp_path / "allocation.json").read_text()) == expected
    assert {"detect-l", "speech-l"} <= set(expected["cloud"])  # repository models are deployed too


def test_slots_without_requests_are_null_and_do_not_count(tmp_path: Path) -> None:
    text = (EXAMPLES / "campus.yaml").read_text().replace("{file: campus.csv}", "[{cameras: 9}, {}, {cameras: 8}]")
    (tmp_path / "quiet.yaml").write_text(text)
    config = Config(problem=FileConfig(str(tmp_path / "quiet.yaml")))
    summary = run_experiment(config, tmp_path / "run")  # plots too: a gap is no error
    rows = rows_of(tmp_path / "run")
    assert (rows[1]["requests"], rows[1]["gain"], rows[1]["ntag"], rows[1]["accuracy"]) == (0, 0, None, None)
    assert summary["ntag"] == pytest.approx((rows[0]["ntag"] + rows[2]["ntag"]) / 2)


def test_one_slot_has_no_updates(tmp_path: Path) -> None:
    summary = run_experiment(Config(problem=CAMPUS, slots=1), tmp_path)
    assert summary["model_updates"] is None
    assert "model updates, MB per slot" in (tmp_path / "table.txt").read_text()


def test_more_slots_than_requests_start_over(campus: idn.Problem, tmp_path: Path) -> None:
    run_experiment(Config(problem=CAMPUS, slots=50, cycle=True, plots=False, compare=False), tmp_path)
    requests = [row["requests"] for row in rows_of(tmp_path)]
    assert campus.requests is not None
    assert requests == [*campus.requests.sum(-1).tolist(), *campus.requests[:2].sum(-1).tolist()]


def test_the_other_policy_may_lead(tmp_path: Path) -> None:
    summary = run_experiment(Config(problem=CAMPUS, policy=PopularityConfig(), slots=4, plots=False), tmp_path)
    assert (summary["policy"], summary["comparison"][0]["policy"]) == ("popularity", "infida")
    assert summary["own_upper_bound"] is None
    assert summary["ratio_to_upper_bound"] < summary["comparison"][0]["ratio_to_upper_bound"] < 1
    alone = run_experiment(
        Config(problem=CAMPUS, policy=PopularityConfig(), slots=4, plots=False, compare=False), tmp_path
    )
    assert alone["comparison"] == []
    assert alone["upper_bound"] == summary["upper_bound"]
    assert alone["ratio_to_common_upper_bound"] is None
    assert alone["ntag"] == summary["ntag"]


def test_a_general_cost_table_has_no_latency_and_no_popularity(
    campus: idn.Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = idn.build_problem(
        sizes=campus.sizes,
        budgets=campus.budgets,
        capacity=campus.capacity,
        repository=campus.repository,
        model_task=campus.model_task,
        paths=campus.paths,
        type_task=campus.type_task,
        cost=torch.where(campus.option_exists(), campus.cost_table(), 0.0),
        requests=campus.requests,
    )
    monkeypatch.setattr("idn_torch.app.experiment.build_problem", lambda *_: bare)
    summary = run_experiment(Config(policy=InfidaConfig(), slots=3), tmp_path)
    assert summary["comparison"] == []
    assert summary["latency_per_request"] is None
    table = (tmp_path / "table.txt").read_text()
    assert [line.split()[-1] for line in table.splitlines() if line.startswith(("latency", "accuracy"))] == ["-", "-"]
    assert campus.requests is not None
    full = idn.run(campus, idn.Infida(), campus.requests[:3])
    assert summary["ntag"] == pytest.approx(float(full.ntag()))


def test_latency_that_varies_changes_costs_and_nothing_else(campus: idn.Problem, tmp_path: Path) -> None:
    config = Config(problem=CAMPUS, slots=8, plots=False)
    config.latency.swing, config.latency.period = 0.5, 8
    run_experiment(config, tmp_path / "varying")
    run_experiment(Config(problem=CAMPUS, slots=8, plots=False), tmp_path / "still")
    varying, still = rows_of(tmp_path / "varying"), rows_of(tmp_path / "still")
    assert [row["requests"] for row in varying] == [row["requests"] for row in still]
    assert varying[0]["latency"] == still[0]["latency"]  # sin 0
    # At slot 0 nothing but the repositories runs under the popularity rule: its latency is all network and one delay.
    rise = [row["popularity_latency"] / base["popularity_latency"] for row, base in zip(varying, still, strict=True)]
    assert rise[2] > 1 > rise[6]


def test_a_failure_is_told_from_a_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no paint")

    monkeypatch.setattr("idn_torch.app.plots.draw_plots", fail)
    with pytest.raises(RuntimeError, match="no paint"):
        run_experiment(Config(problem=CAMPUS, slots=3), tmp_path)
    summary = strict((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["slots"]) == ("failed", 3)
    assert len(rows_of(tmp_path)) == 3


def test_python_m_is_the_same_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "idn_torch", "experiment=campus", "slots=3"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")  # no terminal, no progress bar
    assert done.stdout.startswith("campus: 5 nodes")
    (summary,) = tmp_path.glob("outputs/*/*/summary.json")
    assert strict(summary.read_text())["status"] == "finished"


def test_a_reader_that_has_gone_is_no_failure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "idn_torch", "experiment=campus", "slots=2", "plots=false", "hydra.run.dir=run"]
    run = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    assert (run.stderr.read(), run.wait()) == ("", 0)
    run.stderr.close()
    assert strict((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_importing_the_library_loads_none_of_the_application() -> None:
    code = """if True:
        import sys, torch
        before = set(sys.modules)  # torch has some of its own
        import idn_torch
        heavy = {"hydra", "omegaconf", "matplotlib", "tqdm", "topohub", "idn_torch.app", "idn_torch.cli"}
        assert not heavy & (set(sys.modules) - before), heavy & (set(sys.modules) - before)
    """
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_needs_neither_hydra_nor_the_global_state_of_matplotlib(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from idn_torch.app.config import Config, FileConfig
        from idn_torch.app.run import run_experiment
        run_experiment(Config(problem=FileConfig("example:campus"), slots=2), "run")
        assert not {"hydra", "omegaconf", "matplotlib.pyplot"} & set(sys.modules)
    """
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "run" / "plots" / "gain.png").is_file()
