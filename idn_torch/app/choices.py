"""The choices of the groups `problem` and `policy`: what each one's options build."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idn_torch.app.config import (
    MISSING,
    BackboneConfig,
    DetectionConfig,
    FileConfig,
    InfidaConfig,
    IspConfig,
    MasterConfig,
    OfflineConfig,
    OgaConfig,
    OlagConfig,
    PolicyConfig,
    PopularityConfig,
    ProblemConfig,
    RandomFeasibleConfig,
    RepositoryOnlyConfig,
    SharedConfig,
    SharedMixedConfig,
    StaticGreedyConfig,
    TreeConfig,
)
from idn_torch.baselines import Offline, Olag, RandomFeasible, RepositoryOnly, StaticGreedy
from idn_torch.errors import InputError
from idn_torch.generators import tree
from idn_torch.infida import Infida
from idn_torch.isp import isp
from idn_torch.networks import backbone
from idn_torch.popularity import Popularity
from idn_torch.problem import Problem
from idn_torch.scenario import load_problem
from idn_torch.shared import Master, Shared
from idn_torch.simulation import Policy

__all__ = [
    "HINDSIGHT",
    "POLICIES",
    "PROBLEMS",
    "UNDRAWN",
    "Choice",
    "build_policy",
    "build_problem",
    "choice_name",
    "located",
]

EXAMPLES = Path(__file__).parent / "examples"
_EXAMPLE = "example:"


class Choice(NamedTuple):
    """One choice of a group: the class of its options, and what makes the object of them."""

    config: type[Any]
    build: Callable[..., Any]


def located(config: ProblemConfig) -> ProblemConfig:
    """The same options with absolute paths, so that they mean the same wherever they are read again.

    Raises:
        InputError: no path, or no example of that name.
    """
    if isinstance(config, FileConfig):
        if config.path == MISSING:
            raise InputError("problem.path is missing; give problem.path=...")
        return FileConfig(str(_scenario_file(config.path)))
    if isinstance(config, DetectionConfig) and Path(config.catalog).suffix:  # else a catalog of the package
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


def _made_by(problem: Callable[..., Problem]) -> Callable[..., Problem]:
    """A problem whose options are the arguments of the function that makes it."""
    return lambda config, dtype, device: problem(**_options(config), dtype=dtype, device=device)


def _file(config: FileConfig, dtype: torch.dtype, device: torch.device) -> Problem:
    return load_problem(config.path, dtype=dtype, device=device)


def _of(policy: Callable[..., Policy]) -> Callable[..., Policy]:
    """A policy whose options are those of its configuration."""
    return lambda config, c, requests: policy(**_options(config))


def _stepping(policy: Callable[..., Policy]) -> Callable[..., Policy]:
    """Likewise, with a step size."""
    return lambda config, c, requests: policy(**{**_options(config), "c": c})


def _knowing(policy: Callable[..., Policy]) -> Callable[..., Policy]:
    """Likewise, with hindsight."""
    return lambda config, c, requests: policy(**_options(config), requests=requests)


def _master(config: MasterConfig, c: float | Tensor, requests: Tensor) -> Policy:
    others = []
    for name in config.others:
        if name not in POLICIES or name in ("master", *HINDSIGHT):
            raise InputError(f"policy.others holds {name!r}; a master follows policies without hindsight, not itself")
        options = POLICIES[name].config(discipline=config.discipline)
        others.append(build_policy(options, getattr(options, "c", c), requests))
    return Master(
        weights=tuple(config.weights),
        moves=config.moves,
        others=tuple(others),
        shared=Shared(iterations=config.iterations),
        discipline=config.discipline,  # type: ignore[arg-type]  # checked by the policy
    )


PROBLEMS = {
    "backbone": Choice(BackboneConfig, _made_by(backbone)),
    "isp": Choice(IspConfig, _made_by(isp)),
    "file": Choice(FileConfig, _file),
    "tree": Choice(TreeConfig, _made_by(tree)),
}
POLICIES = {
    "infida": Choice(InfidaConfig, _stepping(Infida)),
    "oga": Choice(OgaConfig, _stepping(Infida)),
    "popularity": Choice(PopularityConfig, _of(Popularity)),
    "olag": Choice(OlagConfig, _of(Olag)),
    "static_greedy": Choice(StaticGreedyConfig, _knowing(StaticGreedy)),
    "offline": Choice(OfflineConfig, _knowing(Offline)),
    "random_feasible": Choice(RandomFeasibleConfig, _of(RandomFeasible)),
    "repository_only": Choice(RepositoryOnlyConfig, _of(RepositoryOnly)),
    "shared": Choice(SharedConfig, _stepping(Shared)),
    "shared_mixed": Choice(SharedMixedConfig, _stepping(Shared)),
    "master": Choice(MasterConfig, _master),
}

HINDSIGHT = ("static_greedy", "offline")
"""Policies that look at the requests of the whole run, under the costs of its first slot."""

UNDRAWN = ("popularity", "olag", "repository_only", *HINDSIGHT)
"""Policies in which nothing depends on the seed of a run."""


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


def build_policy(config: PolicyConfig, c: float | Tensor, requests: Tensor) -> Policy:
    """The policy that these options describe, with this step size if it has one; hindsight is of these requests."""
    policy: Policy = POLICIES[choice_name(config, POLICIES)].build(config, c, requests)
    return policy


def _options(config: ProblemConfig | PolicyConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
