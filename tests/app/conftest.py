"""The command line, called within this process: a new one would spend seconds on importing torch."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from idn_torch import cli


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """That of a new process, which finds the package also in a checkout that is not installed."""
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *([before] if before else [])])}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Command]:
    """`command("slots=2")` runs `idn-torch slots=2` in an empty working directory."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["idn-torch", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    yield invoke
    for handler in [handler for handler in root.handlers if handler not in handlers]:  # Hydra's
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
