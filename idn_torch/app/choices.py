"""The choices of the groups `problem` and `policy`: what each one's options build."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idn_torch.app.config import (
    BackboneConfig,
    FileConfig,
    InfidaConfig,
    MasterConfig,
    PolicyConfig,
    PopularityConfig,
    ProblemConfig,
    SharedConfig,
    SharedMixedConfig,
    TreeConfig,
)
from idn_torch.errors import InputError
from idn_torch.generators import tree
from idn_torch.infida import Infida
from idn_torch.networks import backbone
from idn_torch.popularity import Popularity
from idn_torch.problem import Problem
from idn_torch.scenario import load_problem
from idn_torch.shared import Master, Shared
from idn_torch.simulation import Policy

__all__ = ["POLICIES", "PROBLEMS", "Choice", "build_policy", "build_problem", "choice_name", "located"]

EXAMPLES = Path(__file__).parent / "examples"
_EXAMPLE = "example:"


class Choice(NamedTuple):
    """One choice of a group: the class of its options, and what makes the object of them."""

    config: type[Any]
    build: Callable[..., Any]


def located(config: ProblemConfig) -> ProblemConfig:
    """The same options with absolute paths, so that they mean the same wherever they are read again.

    Raises:
        InputError: no example of that name.
    """
    if isinstance(config, FileConfig):
        return FileConfig(str(_scenario_file(config.path)))
    if isinstance(config, BackboneConfig) and Path(config.catalog).suffix:  # else a catalog of the package
        return dataclasses.replace(config, catalog=str(Path(config.catalog).absolute()))
    return config


def _scenario_file(path: str) -> Path:
    if not path.startswith(_EXAMPLE):
        return Path(path).absolute()
    file = EXAMPLES / f"{path.removeprefix(_EXAMPLE)}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(_EXAMPLE + other.stem for other in EXAMPLES.glob("*.yaml")))
        raise InputError(f"problem.path is {path!r}; the package has {known}, or give the path of a file of yours")
    return file


def _backbone(config: BackboneConfig, dtype: torch.dtype, device: torch.device) -> Problem:
    return backbone(**_options(config), dtype=dtype, device=device)


def _file(config: FileConfig, dtype: torch.dtype, device: torch.device) -> Problem:
    return load_problem(config.path, dtype=dtype, device=device)


def _tree(config: TreeConfig, dtype: torch.dtype, device: torch.device) -> Problem:
    return tree(**_options(config), dtype=dtype, device=device)


def _infida(config: InfidaConfig, c: float | Tensor) -> Policy:
    return Infida(**{**_options(config), "c": c})


def _popularity(config: PopularityConfig, c: float | Tensor) -> Policy:
    return Popularity(**_options(config))


def _shared(config: SharedConfig, c: float | Tensor) -> Policy:
    return Shared(**{**_options(config), "c": c})


def _master(config: MasterConfig, c: float | Tensor) -> Policy:
    infida = Infida(discipline=config.discipline)  # type: ignore[arg-type]  # checked by the policy
    return Master(**{**_options(config), "weights": tuple(config.weights), "others": (infida,)})


PROBLEMS = {
    "backbone": Choice(BackboneConfig, _backbone),
    "file": Choice(FileConfig, _file),
    "tree": Choice(TreeConfig, _tree),
}
POLICIES = {
    "infida": Choice(InfidaConfig, _infida),
    "popularity": Choice(PopularityConfig, _popularity),
    "shared": Choice(SharedConfig, _shared),
    "shared_mixed": Choice(SharedMixedConfig, _shared),
    "master": Choice(MasterConfig, _master),
}


def choice_name(config: ProblemConfig | PolicyConfig, choices: Mapping[str, Choice]) -> str:
    """Which choice of a group these are the options of."""
    for name, choice in choices.items():
        if type(config) is choice.config:
            return name
    raise InputError(f"{type(config).__name__} is no choice; use one of {', '.join(choices)}")


def build_problem(config: ProblemConfig, dtype: torch.dtype, device: torch.device) -> Problem:
    """The problem that these options describe."""
    problem: Problem = PROBLEMS[choice_name(config, PROBLEMS)].build(config, dtype, device)
    return problem


def build_policy(config: PolicyConfig, c: float | Tensor) -> Policy:
    """The policy that these options describe, with this step size if it has one."""
    policy: Policy = POLICIES[choice_name(config, POLICIES)].build(config, c)
    return policy


def _options(config: ProblemConfig | PolicyConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
