"""A study: the same policies over many cases, each a placement run of its own with some options changed."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from idn_torch.app.choices import POLICIES, PROBLEMS
from idn_torch.app.config import Config
from idn_torch.app.typed import changed
from idn_torch.errors import InputError

__all__ = ["Case", "StudyConfig", "cases"]

_GROUPS = {"problem": PROBLEMS, "policy": POLICIES}
# What a study has only once, or not at all.
_FIXED = ("plots", "progress", "resume", "checkpoint_every", "vary", "cases")


@dataclass
class StudyConfig(Config):
    """A whole study (`run=study`): a placement run for every case, without checkpoints.

    Attributes:
        vary: lists of values by key, such as `problem.topology` or `alpha`: every combination is a case.
        cases: mappings from keys to values, each a case; with `vary`, each in every combination.
    """

    vary: Any = None
    cases: Any = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        changes: options by key that make it.
        config: of its run.
    """

    changes: dict[str, Any]
    config: Config

    @property
    def label(self) -> str:
        """Its changes in one line."""
        return " ".join(
            str(value) if key in ("problem", "problem.topology") else f"{_short(key)}={_shown(value)}"
            for key, value in self.changes.items()
        )


def cases(config: StudyConfig) -> list[Case]:
    """Every case of a study, those of one entry of `cases` together.

    Raises:
        InputError: no case, or a key or value that is wrong (it is named).
    """
    if config.resume is not None or config.checkpoint_every:
        raise InputError("a study writes no checkpoints: leave out resume and checkpoint_every")
    vary, single = config.vary or {}, config.cases or [{}]
    if not isinstance(vary, Mapping) or not all(_is_list(values) and values for values in vary.values()):
        raise InputError(f"vary is {vary!r}; give lists of values by key, such as {{alpha: [25, 75]}}")
    if not _is_list(single) or not all(isinstance(changes, Mapping) for changes in single):
        raise InputError(f"cases is {single!r}; give a list of mappings, such as [{{alpha: 25}}, {{alpha: 75}}]")
    for key in vary:
        if any(key in changes for changes in single):
            raise InputError(f"{key} is both in vary and in cases; leave it out of one of them")
    base = Config(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Config)})
    out = []
    for changes in single:
        for values in itertools.product(*vary.values()):
            together = {str(key): value for key, value in {**changes, **dict(zip(vary, values, strict=True))}.items()}
            out.append(Case(together, _with(base, together)))
    if not any(case.changes for case in out):
        raise InputError("a study has no cases: give vary={...} or cases=[...]")
    return out


def _with(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with some options changed; a choice of a group before the options of it."""
    for key in sorted(changes, key=lambda key: "." in key):
        config = _changed(config, key, changes[key])
    return config


def _changed(config: Config, key: str, value: Any) -> Config:
    group, _, option = key.partition(".")
    known = [f.name for f in dataclasses.fields(config) if f.name not in _FIXED]
    if group not in known:
        raise InputError(f"a case sets {key!r}, which is no option of a case; known: {', '.join(known)}")
    if not option:
        if group in _GROUPS:
            choices = _GROUPS[group]
            if not isinstance(value, str) or value not in choices:
                raise InputError(f"a case sets {group} to {value!r}; use one of {', '.join(choices)}")
            # The discipline is the run's, not the policy's: all its contenders share it.
            shared = {"discipline": config.policy.discipline} if group == "policy" else {}
            return dataclasses.replace(config, **{group: choices[value].config(**shared)})
        return changed(config, {group: value}, "a case sets ")
    part = getattr(config, group)
    inner = [f.name for f in dataclasses.fields(part)] if dataclasses.is_dataclass(part) else []
    if option not in inner:
        raise InputError(f"a case sets {key!r}, but {group} has no such option; known: {', '.join(inner)}")
    return dataclasses.replace(config, **{group: changed(part, {option: value}, f"a case sets {group}.")})


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _short(key: str) -> str:
    """An option without its group, unless the run has one of that name: `alpha` is not `problem.alpha`."""
    option = key.rpartition(".")[2]
    return key if option in (f.name for f in dataclasses.fields(Config)) else option


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
