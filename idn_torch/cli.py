"""The command `idn-torch`: Hydra composes the configuration, `idn_torch.app` runs it.

Exit codes: 0 done, 1 a crash (with its traceback), 2 a wrong option or scenario (one line on standard error), 130
interrupted.
"""

import dataclasses
import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from idn_torch.app.aimd_config import AimdConfig
from idn_torch.app.aimd_run import run_aimd
from idn_torch.app.aimd_table import render_aimd
from idn_torch.app.checkpoint import CHECKPOINT
from idn_torch.app.config import Config
from idn_torch.app.run import run_experiment
from idn_torch.app.schema import register
from idn_torch.app.study import StudyConfig
from idn_torch.app.study_run import run_study
from idn_torch.app.study_table import render_study
from idn_torch.app.table import render
from idn_torch.errors import IDNError, InputError

__all__ = ["main"]

_FULL_ERROR = "HYDRA_FULL_ERROR"


class _Run(NamedTuple):
    """A choice of the group `run`, by the class of its configuration."""

    go: Callable[[Any, str], dict[str, Any]]
    render: Callable[[dict[str, Any]], str]
    objective: Callable[[dict[str, Any]], float | None]


def _ratio(summary: dict[str, Any]) -> float | None:
    ratio: float | None = summary["ratio_to_upper_bound"]
    return ratio


def _mean_ratio(summary: dict[str, Any]) -> float | None:
    first = next(iter(summary["contenders"].values()), None)
    return None if first is None else first["mean"]


def _promptness(summary: dict[str, Any]) -> float | None:
    seconds = summary["queueing_time"]["mean"]
    return None if seconds is None else -seconds


_RUNS: dict[type[Any], _Run] = {
    Config: _Run(run_experiment, render, _ratio),
    AimdConfig: _Run(run_aimd, render_aimd, _promptness),
    StudyConfig: _Run(run_study, render_study, _mean_ratio),
}


def main() -> None:
    """Run the command line in `sys.argv`; leaves by `SystemExit` unless all went well."""
    register()
    command = hydra.main(version_base="1.3", config_path=_config_path(), config_name="config")(_task)
    try:
        with _raw_errors():
            command()
    except (IDNError, HydraException, OmegaConfBaseException) as error:
        _stop(_one_line(error), 2)


def _task(cfg: DictConfig) -> float | None:
    """One run: what Hydra calls, once or, with --multirun, once for every combination.

    Returns:
        The objective for sweepers, to be maximised: the ratio to the bound; of a study its mean over the cases; of
        an AIMD run the mean queueing time with a minus sign.
    """
    directory = HydraConfig.get().runtime.output_dir
    try:
        config = _config(cfg)
        run = _RUNS[type(config)]
        with _terminated_as_interrupted():
            summary = run.go(config, directory)
    except (IDNError, OmegaConfBaseException) as error:
        # Hydra would print its own line about a failed job before this one.
        _stop(_one_line(error), 2)
    except KeyboardInterrupt:
        begun = (Path(directory) / CHECKPOINT).is_file()
        _stop(f"interrupted; go on with: idn-torch resume={_shown(directory)}" if begun else "interrupted", 130)
    _print(f"{run.render(summary)}\n\nrun directory: {_shown(directory)}")
    return run.objective(summary)


def _config(cfg: DictConfig) -> Config | AimdConfig:
    """The configuration as dataclasses. `+key=value` lets Hydra add keys to any schema: they are refused here."""
    for part in (cfg, *(value for value in cfg.values() if isinstance(value, DictConfig))):
        kind = OmegaConf.get_type(part) or Config
        if not dataclasses.is_dataclass(kind):  # an option that holds a mapping
            continue
        known = [f.name for f in dataclasses.fields(kind)]
        for key in part:
            if key not in known:
                raise InputError(_no_option(part._get_full_key(str(key)), known))
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config | AimdConfig)
    return config


def _no_option(key: str, known: Sequence[str]) -> str:
    return f"there is no option {key}; known here: {', '.join(known)}"


def _config_path() -> str:
    """Where conf/ is: in the installed package, or beside it in a checkout that is not installed."""
    if importlib.util.find_spec("idn_torch.conf") is not None:
        return "pkg://idn_torch.conf"
    return str(Path(__file__).parent.parent / "conf")


@contextmanager
def _raw_errors() -> Iterator[None]:
    """Have Hydra raise its errors instead of printing them: the documented switch, for the time of the command."""
    before = os.environ.get(_FULL_ERROR)
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    except Exception:
        if before == "1":
            traceback.print_exc()
        raise
    finally:
        if before is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = before


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM, by which schedulers stop a job, end a run in order as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # a launcher may run jobs elsewhere
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print(text: str) -> None:
    """To standard output, unless who reads it, such as `head`, has gone."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail again


def _stop(line: str, code: int) -> NoReturn:
    print(f"idn-torch: {line}", file=sys.stderr)
    raise SystemExit(code) from None


def _shown(directory: str) -> str:
    """A path as the user would type it."""
    path = Path(directory)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _one_line(error: Exception) -> str:
    """What was wrong and what to change, in one line that names the key."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"error: {group} has no choice {name!r}; use one of {', '.join(error.options)}"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip() and not line.startswith("See ")]
    if not isinstance(cause, OmegaConfBaseException):
        return f"error: {'; '.join(lines)}"
    key = cause.full_key or cause.key
    if isinstance(cause, MissingMandatoryValue):
        return f"error: {key} is missing; give {key}=..."
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and dataclasses.is_dataclass(cause.object_type):
        return f"error: {_no_option(str(key), [f.name for f in dataclasses.fields(cause.object_type)])}"
    return f"error: {key}: {lines[0]}"
