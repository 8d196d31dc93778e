"""A run that stopped goes on as if it had not."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from idn_torch.app.config import (
    BackboneConfig,
    Config,
    FileConfig,
    InfidaConfig,
    LatencyConfig,
    MasterConfig,
    SharedMixedConfig,
)
from idn_torch.app.loop import Loop
from idn_torch.app.run import run_experiment
from idn_torch.errors import InputError
from tests.app.conftest import Command, environment

CAMPUS = FileConfig("example:campus")
SMALL = BackboneConfig(topology="sndlib/polska", repositories=["Warsaw"], tasks=3, requests_per_second=3000.0)


def files(directory: Path) -> dict[str, bytes]:
    return {
        name: (directory / name).read_bytes()
        for name in ("metrics.jsonl", "metrics.csv", "allocation.json", "table.txt")
    }


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key not in ("wall_seconds", "slots_per_second", "seconds")}


def states(directory: Path) -> dict[str, Any]:
    data: dict[str, Any] = torch.load(directory / "checkpoints" / "last.pt", weights_only=True)
    return data


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):  # NaN: a figure that does not exist
        return a.dtype == b.dtype and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    return bool(a == b)


@pytest.mark.parametrize(
    "config",
    [
        Config(problem=SMALL),
        Config(problem=CAMPUS, policy=InfidaConfig(coupling="fresh", residual="draw", c=[4.0, 8.0]), seed=[1, 2]),
        Config(problem=CAMPUS, order="random", seed=[5, 6], latency=LatencyConfig(0.4, 7), dtype="float32"),
        Config(problem=CAMPUS, policy=InfidaConfig(discipline="fair", refresh=3, mirror_map="euclidean"), alpha=[50]),
        Config(problem=CAMPUS, policy=MasterConfig(), seed=[1, 2]),
        Config(problem=CAMPUS, policy=SharedMixedConfig(c=[8.0, 16.0])),
    ],
    ids=["backbone", "fresh-batch", "varying-batch", "fair-euclidean", "master", "shared"],
)
def test_bit_for_bit(config: Config, tmp_path: Path) -> None:
    def settings(**changes: Any) -> Config:
        return Config(**{**vars(config), "plots": False, **changes})

    whole = run_experiment(settings(slots=17), tmp_path / "whole")
    run_experiment(settings(slots=5), tmp_path / "first")
    before = files(tmp_path / "first")
    second = Config(resume=str(tmp_path / "first"), slots=11)
    run_experiment(second, tmp_path / "second")
    third = run_experiment(Config(resume=str(tmp_path / "second"), slots=17), tmp_path / "third")
    assert files(tmp_path / "third") == files(tmp_path / "whole")
    assert figures(third) == figures(whole)
    a, b = states(tmp_path / "whole"), states(tmp_path / "third")
    assert a["slot"] == b["slot"] == 17
    assert same(a["states"], b["states"])
    assert same(a["history"], b["history"])
    assert files(tmp_path / "first") == before  # what was resumed is left alone
    assert not (tmp_path / "third" / "plots").exists()  # plots=False was taken over


def test_an_interrupted_run_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    whole = run_experiment(Config(problem=CAMPUS, slots=9, plots=False), tmp_path / "whole")
    step = Loop.step

    def interrupted(self: Loop) -> None:
        step(self)
        if self.slot == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "step", interrupted)
    code, out, err = command("experiment=campus", "slots=9", "plots=false", "hydra.run.dir=stopped")
    assert (code, out, err) == (130, "", "idn-torch: interrupted; go on with: idn-torch resume=stopped\n")
    summary = json.loads((tmp_path / "stopped" / "summary.json").read_text())
    assert (summary["status"], summary["slots"]) == ("interrupted", 4)
    assert len((tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()) == 4
    monkeypatch.undo()

    monkeypatch.chdir(tmp_path)
    code, _, err = command("resume=stopped", "hydra.run.dir=rest")
    assert (code, err) == (0, "")
    assert files(tmp_path / "rest") == files(tmp_path / "whole")
    assert figures(json.loads((tmp_path / "rest" / "summary.json").read_text())) == figures(whole)


@pytest.mark.parametrize("during", ["append", "advance"])
def test_an_interrupt_between_two_statements_loses_no_slot(
    during: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in a slot it falls, the slot is either done, with its figures, or not."""
    whole = run_experiment(Config(problem=CAMPUS, slots=6, plots=False), tmp_path / "whole")
    step = Loop.step

    def interrupted(self: Loop) -> None:
        if self.slot == 3:
            if during == "append":  # figures noted, states not yet taken over
                states, bound, slot = self.states, self.bound, self.slot
                step(self)
                self.states, self.bound, self.slot = states, bound, slot
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Loop, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(Config(problem=CAMPUS, slots=6, plots=False), tmp_path / "stopped")
    monkeypatch.setattr(Loop, "step", step)
    again = run_experiment(Config(resume=str(tmp_path / "stopped")), tmp_path / "rest")
    assert figures(again) == figures(whole)
    assert files(tmp_path / "rest") == files(tmp_path / "whole")


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_experiment(Config(problem=CAMPUS, slots=9, plots=False), tmp_path / "whole")
    saved = {}
    step = Loop.step

    def watched(self: Loop) -> None:
        step(self)
        if self.slot == 7:  # what a kill would leave here
            saved["checkpoint"] = (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes()
            saved["summary"] = (tmp_path / "run" / "summary.json").read_bytes()

    monkeypatch.setattr(Loop, "step", watched)
    run_experiment(Config(problem=CAMPUS, slots=9, plots=False, checkpoint_every=3), tmp_path / "run")
    assert json.loads(saved["summary"])["status"] == "running"
    killed = tmp_path / "killed" / "checkpoints"
    killed.mkdir(parents=True)
    (killed / "last.pt").write_bytes(saved["checkpoint"])
    assert states(tmp_path / "killed")["slot"] == 6
    again = run_experiment(Config(resume=str(tmp_path / "killed")), tmp_path / "rest")
    assert figures(again) == figures(whole)
    assert files(tmp_path / "rest") == files(tmp_path / "whole")


def test_in_place(tmp_path: Path) -> None:
    whole = run_experiment(Config(problem=CAMPUS, slots=6, plots=False), tmp_path / "whole")
    run_experiment(Config(problem=CAMPUS, slots=2, plots=False), tmp_path / "run")
    again = run_experiment(Config(resume=str(tmp_path / "run"), slots=6), tmp_path / "run")
    assert figures(again) == figures(whole)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_finished_run_is_reported_again(tmp_path: Path) -> None:
    first = run_experiment(Config(problem=CAMPUS, slots=3, plots=False), tmp_path / "first")
    again = run_experiment(Config(resume=str(tmp_path / "first")), tmp_path / "again")
    assert figures(again) == figures(first)
    assert again["slots_per_second"] is None or again["slots_per_second"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": InfidaConfig(c=3.0)}, r"in which policy\.c is 16\.0 and not 3\.0: leave out"),
        ({"seed": 4}, "in which seed is 0 and not 4"),
        ({"problem": FileConfig("other.yaml")}, r"problem\.path is '.*campus\.yaml' and not '.*other\.yaml'"),
        ({"slots": 2}, "already done 3 slots; slots=2 is less"),
    ],
)
def test_what_a_resumed_run_cannot_change(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    run_experiment(Config(CAMPUS, InfidaConfig(), slots=3, plots=False), tmp_path / "first")
    with pytest.raises(InputError, match=message):
        run_experiment(Config(resume=str(tmp_path / "first"), **changes), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_scenario_that_changed_is_noticed_one_that_grew_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "mine.yaml"
    text = Path("tests/data/three_nodes.yaml").read_text()
    scenario.write_text(text)
    monkeypatch.chdir(tmp_path)  # a relative path must mean the same file later
    run_experiment(Config(problem=FileConfig("mine.yaml"), plots=False), "first")
    monkeypatch.chdir("first")
    scenario.write_text(text + "  - {b: 3}\n")
    assert run_experiment(Config(resume="."), tmp_path / "more")["slots"] == 3
    scenario.write_text(text.replace("budget: 900", "budget: 800"))
    with pytest.raises(InputError, match="the problem has changed since"):
        run_experiment(Config(resume="."), tmp_path / "other")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_a_broken_checkpoint_is_an_error(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints" / "last.pt"
    file.parent.mkdir()
    if content is None:
        torch.save({"format": 99}, file)
    else:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"last\.pt is not a checkpoint of this version|has format 99"):
        run_experiment(Config(resume=str(tmp_path)), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_run_in_order_and_a_terminal_shows_progress(number: int, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "idn_torch", "experiment=campus", "slots=1000000", "cycle=true"]
    process = subprocess.Popen(
        [*command, "hydra.run.dir=run"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.is_file() and metrics.stat().st_size > 0):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 130
    assert out == ""
    assert "slot/s" in shown
    assert "idn-torch: interrupted; go on with: idn-torch resume=run" in shown
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
