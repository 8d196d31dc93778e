"""Studies: many cases, each as a run of its own would have it."""

import json
from pathlib import Path
from typing import Any

import pytest

from idn_torch.app.config import Config, FileConfig, InfidaConfig, TreeConfig
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


def test_a_broken_case_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="case alpha=-1: alpha is -1"):
        run_study(study(vary={"alpha": [20.0, -1.0]}), tmp_path / "study")
    assert not (tmp_path / "study").exists()


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
