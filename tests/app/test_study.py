"""Studies: many cases, each as a run of its own would have it."""

import json
from pathlib import Path
from typing import Any

import pytest

from idn_torch.app.config import Config, FileConfig, InfidaConfig, IspConfig, LatencyConfig, OgaConfig, TreeConfig
from idn_torch.app.run import run_experiment
from idn_torch.app.study import StudyConfig, cases
from idn_torch.app.study_run import run_study
from idn_torch.errors import InputError
from tests.app.conftest import Command

CAMPUS = FileConfig("example:campus")
SMALL: dict[str, Any] = {"problem": "tree", "problem.nodes": 7, "problem.tasks": 2, "problem.models_per_task": 3}


def study(**changes: Any) -> StudyConfig:
    return StudyConfig(
        **{"problem": CAMPUS, "policy": InfidaConfig(), "slots": 4, "compare": ["popularity", "offline"], **changes}
    )


def test_every_combination_is_a_case() -> None:
    found = cases(study(vary={"alpha": [20.0, 80.0], "policy.discipline": ["fcfs", "fair"]}, cases=[{}, SMALL]))
    assert [case.label for case in found][:3] == [
        "alpha=20 discipline=fcfs",
        "alpha=20 discipline=fair",
        "alpha=80 discipline=fcfs",
    ]
    assert found[-1].label == "tree nodes=7 tasks=2 models_per_task=3 alpha=80 discipline=fair"
    assert found[-1].config.problem == TreeConfig(nodes=7, tasks=2, models_per_task=3)
    assert found[-1].config.policy.discipline == "fair"
    assert found[0].config.problem == CAMPUS
    assert type(found[0].config) is Config


def test_values_are_converted_as_overrides_are() -> None:
    base = study(problem=FileConfig(), latency=LatencyConfig(period=7))
    (found,) = cases(StudyConfig(**{**vars(base), "cases": [
        {"problem.path": 3, "device": "cpu", "slots": "4", "latency": {"swing": 1}, "alpha": [1, 2]}]}))  # fmt: skip
    assert found.config.problem == FileConfig("3")
    assert found.config.slots == 4
    assert found.config.latency == LatencyConfig(swing=1.0, period=7)
    assert found.config.alpha == [1, 2]


def test_a_label_tells_options_of_the_run_from_those_of_the_problem() -> None:
    labels = [case.label for case in cases(study(cases=[{"seed": 1}, {**SMALL, "problem.seed": 1}]))]
    assert labels == ["seed=1", "tree nodes=7 tasks=2 models_per_task=3 problem.seed=1"]


def test_another_policy_keeps_the_discipline() -> None:
    (case,) = cases(study(policy=InfidaConfig(discipline="fair"), cases=[{"policy": "oga"}]))
    assert case.config.policy == OgaConfig(discipline="fair")


def test_a_case_is_the_run_alone(tmp_path: Path) -> None:
    summary = run_study(study(vary={"alpha": [20.0, 80.0]}, seed=[1, 2]), tmp_path / "study")
    assert (summary["status"], summary["cases"], summary["cases_done"]) == ("finished", 2, 2)
    rows = [json.loads(line) for line in (tmp_path / "study" / "cases.jsonl").read_text().splitlines()]
    assert rows == json.loads((tmp_path / "study" / "summary.json").read_text())["rows"]
    for alpha, row in zip((20.0, 80.0), rows, strict=True):
        config = Config(CAMPUS, InfidaConfig(), [1, 2], alpha, slots=4, compare=["popularity", "offline"])
        alone = run_experiment(Config(**{**vars(config), "plots": False}), tmp_path / f"{alpha}")
        for one in [alone, *alone["comparison"]]:
            mine = row["contenders"][one["name"]]
            for key in ("ntag", "ratio_to_upper_bound", "model_updates"):
                assert mine[key] == pytest.approx(one[key], rel=1e-12)
    infida = summary["contenders"]["infida"]
    each = [row["contenders"]["infida"]["ratio_to_upper_bound"] for row in rows]
    assert infida["mean"] == pytest.approx(sum(each) / 2)
    rule = [row["contenders"]["popularity"]["ratio_to_upper_bound"] for row in rows]
    # The plan with hindsight is shown, but nobody has to beat it.
    assert infida["best"] == sum(a >= b for a, b in zip(each, rule, strict=True))
    assert infida["least_lead"] == pytest.approx(min(a - b for a, b in zip(each, rule, strict=True)))


def test_the_directory_and_the_table(tmp_path: Path) -> None:
    run_study(study(vary={"alpha": [20.0, 80.0], "policy.discipline": ["fcfs", "fair"]}), tmp_path)
    files = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    plots = ["plots/cases.png", "plots/lead_infida.png", "plots/lead_popularity.png"]
    assert files == ["cases.jsonl", *plots, "summary.json", "table.txt"]
    table = (tmp_path / "table.txt").read_text()
    assert table.startswith("4 of 4 cases")
    assert "alpha=80 discipline=fair" in table


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vary": {"alpha": [20.0, -1.0]}}, "case alpha=-1: alpha is -1"),
        ({"vary": {"alpha": [20.0]}, "compare": [{"policy": "offline", "tol": 0}]}, "compare: offline tol=0: tol is 0"),
        ({"cases": [{"policy": "offline", "policy.roundings": 0}]}, "roundings is 0"),
        ({"cases": [{"problem": "file"}]}, "case file: problem.path is missing; give problem.path"),
        ({"vary": {"policy": ["infida", "oga"]}}, "case policy=infida: oga does not take part in it, but in others"),
    ],
)
def test_a_broken_case_is_named_before_anything_is_written(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        run_study(study(**{"compare": ["popularity"], **changes}), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_case_that_breaks_on_its_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^case alpha=1e\+36: slot 0: the figures of infida overflow float32"):
        run_study(study(vary={"alpha": [20.0, 1e36]}, compare=False, dtype="float32"), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["cases_done"]) == ("failed", 1)


def test_alone_nobody_leads(tmp_path: Path) -> None:
    summary = run_study(
        study(vary={"alpha": [20.0, 80.0], "policy.discipline": ["fcfs", "fair"]}, compare=["offline"]), tmp_path
    )
    assert (summary["contenders"]["infida"]["best"], summary["contenders"]["infida"]["best_or_tied"]) == (None, None)
    assert (tmp_path / "table.txt").read_text().count("of 4") == 2  # the heading, and the plan against INFIDA
    assert [file.name for file in (tmp_path / "plots").iterdir()] == ["cases.png"]


@pytest.mark.filterwarnings("error")
def test_plots_of_odd_names_and_cases_without_requests(tmp_path: Path) -> None:
    names = [{"policy": "olag", "name": "a/b"}, {"policy": "olag", "name": "a b"}, {"policy": "oga", "name": "$x^$"}]
    vary = {"alpha": [20.0, 80.0], "policy.discipline": ["fcfs", "fair"]}
    run_study(study(vary=vary, compare=names), tmp_path / "names")
    plots = sorted(file.stem for file in (tmp_path / "names" / "plots").iterdir())
    assert plots == ["cases", "lead__x__", "lead_a_b", "lead_a_b_", "lead_infida"]
    quiet = IspConfig(requests_per_second=0, tasks=1, slots=4)
    run_study(study(problem=quiet, vary=vary, compare=names), tmp_path / "quiet")
    assert [file.stem for file in (tmp_path / "quiet" / "plots").iterdir()] == ["cases"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "a study has no cases"),
        ({"vary": {"alpha": []}}, "vary is"),
        ({"vary": [3]}, "vary is"),
        ({"cases": {"alpha": 3}}, "cases is"),
        ({"cases": [3]}, "cases is"),
        ({"cases": [{"speed": 3}]}, "a case sets 'speed', which is no option of a case"),
        ({"cases": [{"resume": "x"}]}, "a case sets 'resume'"),
        ({"cases": [{"policy.speed": 3}]}, "a case sets 'policy.speed', but policy has no such option"),
        ({"cases": [{"problem": "lake"}]}, "a case sets problem to 'lake'; use one of backbone"),
        ({"cases": [{"problem": ["tree"]}]}, r"a case sets problem to \['tree'\]; use one of backbone"),
        ({"cases": [{**SMALL, "problem.tasks": "abc"}]}, "a case sets problem.tasks: Value 'abc' of type 'str'"),
        ({"cases": [{"policy.refresh": 2.5}]}, "a case sets policy.refresh: Value '2.5' of type 'float'"),
        ({"vary": {"slots": [2.5]}}, "a case sets slots: Value '2.5' of type 'float'"),
        ({"vary": {"cycle": ["maybe"]}}, "a case sets cycle: Value 'maybe' is not a valid bool"),
        ({"vary": {"latency": [3]}}, "a case sets latency: "),
        ({"vary": {"latency.swing": ["abc"]}}, "a case sets latency.swing: Value 'abc'"),
        ({"vary": {"alpha": [1]}, "cases": [{"alpha": 2}]}, "alpha is both in vary and in cases"),
        ({"vary": {"alpha": [1]}, "resume": "run"}, "a study writes no checkpoints: leave out resume"),
        ({"vary": {"alpha": [1]}, "checkpoint_every": 5}, "a study writes no checkpoints: leave out resume"),
    ],
)
def test_wrong_studies_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        cases(study(**changes))


def test_on_the_command_line(command: Command, tmp_path: Path) -> None:
    code, out, err = command(
        "run=study",
        "problem=file",
        "problem.path=example:campus",
        "slots=2",
        "vary={alpha:[20,80]}",
        "compare=[popularity]",
        "plots=false",
        "hydra.run.dir=run",
    )
    assert (code, err) == (0, "")
    assert out == (tmp_path / "run" / "table.txt").read_text() + "\nrun directory: run\n"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_an_interrupted_study_keeps_the_cases_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from idn_torch.app import study_run

    play, played = study_run._play, []

    def once(case: Any) -> Any:
        if played:
            raise KeyboardInterrupt
        played.append(case)
        return play(case)

    monkeypatch.setattr(study_run, "_play", once)
    with pytest.raises(KeyboardInterrupt):
        run_study(study(vary={"alpha": [20.0, 80.0]}), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["cases_done"], len(summary["rows"])) == ("interrupted", 1, 1)
