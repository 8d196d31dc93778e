"""conf/, the dataclasses behind it, and the command line's overrides."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import idn_torch
from idn_torch import cli
from idn_torch.app.choices import POLICIES, PROBLEMS, Choice
from idn_torch.app.config import Config, FileConfig, InfidaConfig
from idn_torch.app.experiment import prepare
from idn_torch.app.schema import register
from tests.app.conftest import Command

CONF = Path(idn_torch.__file__).parent.parent / "conf"
EXPERIMENTS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))
RUNS = {name: (CONF / "experiment" / f"{name}.yaml").read_text() for name in EXPERIMENTS}
STUDIES = [name for name, text in RUNS.items() if "override /run: study" in text]
PLACEMENT = [name for name, text in RUNS.items() if "override /run:" not in text]  # aimd: test_aimd_run.py


def composed(*overrides: str) -> Config:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_object(compose("config", overrides=list(overrides)))
    assert isinstance(config, Config)
    return config


def test_the_files_repeat_the_defaults_of_the_dataclasses() -> None:
    assert composed() == Config()


@pytest.mark.parametrize(("group", "choices"), [("problem", PROBLEMS), ("policy", POLICIES)])
def test_every_choice_has_a_file_with_every_option_and_its_default(group: str, choices: dict[str, Choice]) -> None:
    assert {file.stem for file in (CONF / group).glob("*.yaml")} == set(choices)
    for name, choice in choices.items():
        given = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
        assert list(given.pop("defaults")) == [f"/schema/{group}/{name}", "_self_"]
        assert given.keys() == {field.name for field in dataclasses.fields(choice.config)}
        config = getattr(composed(f"{group}={name}", *(["problem.path=x"] if name == "file" else [])), group)
        assert config == (FileConfig("x") if name == "file" else choice.config())


def test_small_numbers_are_floats_from_file_command_line_and_python(tmp_path: Path) -> None:
    mine = tmp_path / "experiment" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text(
        "# @package _global_\ndefaults: [override /policy: infida]\npolicy: {c: 1e-3, floor: 1e-4}\nalpha: 2e+1\n"
    )
    in_python = Config(policy=InfidaConfig(c=1e-3, floor=1e-4), alpha=20.0)
    for config in (
        composed("policy=infida", "policy.c=1e-3", "policy.floor=1e-4", "alpha=2e+1"),
        composed(f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"),
    ):
        assert config == in_python
        assert isinstance(config.policy, InfidaConfig)
        assert type(config.policy.c) is type(config.policy.floor) is type(config.alpha) is float


@pytest.mark.parametrize("text", ["0.5", "5e-1", ".5"])
def test_a_number_that_some_reader_left_as_text_is_a_number_all_the_same(text: str) -> None:
    experiment = prepare(Config(problem=FileConfig("example:campus"), policy=InfidaConfig(c=text)))
    assert experiment.instances.all[0].c == 0.5


@pytest.mark.parametrize("name", PLACEMENT)
def test_every_experiment_runs(name: str, command: Command, tmp_path: Path) -> None:
    # One slot, but the last word of the experiment on all else.
    code, out, err = command(f"experiment={name}", "slots=1", "plots=false", "hydra.run.dir=run")
    assert (code, err) == (0, "")
    assert "NTAG" in out
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs(name: str, command: Command, tmp_path: Path) -> None:
    code, out, err = command(f"experiment={name}", "slots=1", "plots=false", "hydra.run.dir=run")
    assert (code, err) == (0, "")
    assert "best online or tied in" in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_help_names_every_option_and_choice(command: Command) -> None:
    code, out, _ = command("--help", "problem=tree")
    assert code == 0
    text = " ".join(out.split())
    listed = out[out.index("Options, key=value") : out.index("All options as they stand")]
    for key in (field.name for field in dataclasses.fields(Config)):
        assert f" {key} " in listed or f" {key}," in listed or f" {key}." in listed or key in ("problem", "policy"), key
    assert " | ".join(EXPERIMENTS) in text
    assert f"problem {' | '.join(sorted(PROBLEMS))}" in text
    assert f"policy {' | '.join(sorted(POLICIES))}" in text
    assert "models_per_task: 30" in text  # of the choice named


def test_multirun_runs_one_after_the_other(command: Command, tmp_path: Path) -> None:
    code, out, _ = command(
        "--multirun", "experiment=campus", "slots=2", "plots=false", "policy.moves=0,1", "hydra.sweep.dir=sweep"
    )
    assert code == 0
    assert out.count("NTAG") == 2
    assert sorted(file.parent.name for file in tmp_path.glob("sweep/*/summary.json")) == ["0", "1"]


def test_sweepers_get_the_ratio_to_the_bound(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, returned = cli._task, []

    def spy(cfg: DictConfig) -> float | None:
        returned.append(task(cfg))
        return returned[-1]

    monkeypatch.setattr(cli, "_task", spy)
    code, _, _ = command("experiment=campus", "slots=3", "plots=false", "hydra.run.dir=run")
    assert code == 0
    assert returned == [json.loads((tmp_path / "run" / "summary.json").read_text())["ratio_to_upper_bound"]]
