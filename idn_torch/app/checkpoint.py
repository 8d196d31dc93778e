"""checkpoints/last.pt: everything a run needs to go on as if it had never stopped."""

import dataclasses
import hashlib
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idn_torch.app.choices import HINDSIGHT, POLICIES, PROBLEMS, choice_name, located
from idn_torch.app.config import Config, LatencyConfig, ProblemConfig
from idn_torch.app.experiment import Experiment
from idn_torch.app.files import write_bytes
from idn_torch.app.loop import Loop
from idn_torch.errors import InputError
from idn_torch.problem import Problem

__all__ = ["CHECKPOINT", "Checkpoint", "load_checkpoint", "resumed_config", "save_checkpoint"]

FORMAT = 2
CHECKPOINT = Path("checkpoints", "last.pt")
"""Where it lies in a run directory."""

_OF_THE_COMMAND = ("slots", "cycle", "threads", "progress", "plots", "checkpoint_every", "resume")
"""Keys that a command that resumes may set; all others belong to the run."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back.

    Attributes:
        file: where it was read.
        config: of the run.
        data: slots to run, slot, seconds, fingerprint, history, states and bound.
    """

    file: Path
    config: Config
    data: dict[str, Any]

    def restore(self, experiment: Experiment) -> tuple[Loop, float]:
        """The loop where the run had stopped, and the seconds it had taken.

        Raises:
            InputError: the problem is not the one that the run started with, or fewer slots are asked for than done.
        """
        slot = self.data["slot"]
        if slot > experiment.slots:
            raise InputError(f"the run in {self.file} has already done {slot} slots; slots={experiment.slots} is less")
        planning = [one.name for one in experiment.contenders if one.choice in HINDSIGHT]
        if planning and experiment.slots != self.data["slots"]:
            raise InputError(
                f"{planning[0]} planned for the {self.data['slots']} slots of the run in {self.file}; "
                f"slots={experiment.slots} is another run: start it anew"
            )
        if fingerprint(experiment.problem, experiment.requests[:slot]) != self.data["fingerprint"]:
            raise InputError(
                f"the problem has changed since {self.file} was written (network, models, costs or past requests): "
                "resume needs it as it was"
            )
        loop = Loop.start(experiment)
        for name, state in loop.states.items():
            loop.states[name] = _unpack(state, self.data["states"][name], experiment.problem.device)
        loop.bound = _unpack(loop.bound, self.data["bound"], experiment.problem.device)
        loop.history = self.data["history"]
        loop.slot = slot
        return loop, self.data["seconds"]


def save_checkpoint(directory: Path, loop: Loop, seconds: float) -> None:
    """Write the checkpoint of a run whose figures have been collected."""
    experiment = loop.experiment
    data = {
        "format": FORMAT,
        "config": _config_data(experiment.config),
        "fingerprint": fingerprint(experiment.problem, experiment.requests[: loop.slot]),
        "slots": experiment.slots,
        "slot": loop.slot,
        "seconds": seconds,
        "history": loop.history,
        "states": {name: _pack(state) for name, state in loop.states.items()},
        "bound": _pack(loop.bound),
    }
    buffer = io.BytesIO()
    torch.save(data, buffer)
    write_bytes(directory / CHECKPOINT, buffer.getvalue())


def load_checkpoint(directory: str) -> Checkpoint:
    """Read the checkpoint of a run directory.

    Raises:
        InputError: there is none, or it is not one of this package.
    """
    file = Path(directory).absolute() / CHECKPOINT
    if not file.is_file():
        raise InputError(
            f"resume is {directory!r}, which holds no {CHECKPOINT}; give the directory of a run that wrote a checkpoint"
        )
    try:
        data = torch.load(file, map_location="cpu", weights_only=True)
        wrong = data["format"] != FORMAT
        config = _config_from(data["config"])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{file} is not a checkpoint of this version of idn_torch ({reason})") from None
    if wrong:
        raise InputError(f"{file} has format {data['format']}; this version of idn_torch reads {FORMAT}")
    return Checkpoint(file, config, data)


def resumed_config(given: Config, saved: Config) -> Config:
    """The configuration to go on with: the run's own, but for what the command sets and may set.

    Raises:
        InputError: the command sets something else (naming the key).
    """
    default = Config()
    changes: dict[str, Any] = {}
    for key in (f.name for f in dataclasses.fields(Config)):
        new, old = getattr(given, key), getattr(saved, key)
        new = located(new) if isinstance(new, ProblemConfig) else new
        if new in (old, getattr(default, key)):
            continue
        if key not in _OF_THE_COMMAND:
            raise InputError(
                f"resume={given.resume} goes on with the configuration of that run, in which "
                f"{_difference(key, new, old)}: leave out what is not one of {', '.join(_OF_THE_COMMAND)}"
            )
        changes[key] = new
    return dataclasses.replace(saved, **changes)


def fingerprint(problem: Problem, requests: Tensor) -> str:
    """A hash of all that decides a run: networks that differ in a figure differ in it."""
    digest = hashlib.sha256()
    ranked = problem.ranked
    for tensor in (
        problem.sizes,
        problem.budgets,
        problem.repository,
        problem.capacity,
        problem.paths,
        ranked.cost,
        ranked.option,
        requests,
    ):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _difference(key: str, new: Any, old: Any) -> str:
    if dataclasses.is_dataclass(new) and type(new) is type(old):
        for f in dataclasses.fields(new):
            if getattr(new, f.name) != getattr(old, f.name):
                return _difference(f"{key}.{f.name}", getattr(new, f.name), getattr(old, f.name))
    return f"{key} is {old!r} and not {new!r}"


def _pack(value: Any) -> Any:
    """NamedTuples as dicts, tuples as lists: a checkpoint holds no code, only tensors, numbers and text."""
    if hasattr(value, "_asdict"):
        return {key: _pack(one) for key, one in value._asdict().items()}
    return [_pack(one) for one in value] if isinstance(value, tuple) else value


def _unpack(template: Any, value: Any, device: torch.device) -> Any:
    if hasattr(template, "_asdict"):
        return type(template)(**{key: _unpack(one, value[key], device) for key, one in template._asdict().items()})
    if isinstance(template, tuple):
        return tuple(_unpack(one, saved, device) for one, saved in zip(template, value, strict=True))
    return value.to(device) if isinstance(value, Tensor) else value


def _config_data(config: Config) -> dict[str, Any]:
    data = dataclasses.asdict(config)
    data["problem"]["choice"] = choice_name(config.problem, PROBLEMS)
    data["policy"]["choice"] = choice_name(config.policy, POLICIES)
    return data


def _config_from(data: dict[str, Any]) -> Config:
    problem, policy = dict(data["problem"]), dict(data["policy"])
    parts = {
        "problem": PROBLEMS[problem.pop("choice")].config(**problem),
        "policy": POLICIES[policy.pop("choice")].config(**policy),
        "latency": LatencyConfig(**data["latency"]),
    }
    return Config(**{**data, **parts})
