"""Who takes part in a run: the policy, and those that it is compared with."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idn_torch.app.batch import Instances, step_sizes
from idn_torch.app.choices import HINDSIGHT, POLICIES, UNDRAWN, build_policy, choice_name
from idn_torch.app.config import Config, PolicyConfig
from idn_torch.app.typed import changed
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.simulation import Policy

__all__ = ["Contender", "contenders", "entrants"]

_USUAL = ("infida", "popularity")  # beside any other policy, unless told otherwise
_RESERVED = ("policy", "name")  # keys of an entry of `compare` that are no options


@dataclass(frozen=True, eq=False)
class Contender:
    """A policy that takes part, with its batch of instances.

    Attributes:
        name: in every table and file, unlike any other's.
        choice: of the group `policy`.
        policy: built.
        seed: of every instance, `(B,)` or `()`.
        batch: `(B,)` or `()`.
    """

    name: str
    choice: str
    policy: Policy
    seed: Tensor
    batch: tuple[int, ...]


def contenders(
    config: Config, problem: Problem, batch: Instances, requests: Tensor, slots: int
) -> tuple[tuple[Contender, ...], tuple[str, ...]]:
    """The policy of a run first, then those beside it; and what the user should know of those left out.

    Args:
        config: of the run.
        problem: of its first slot.
        batch: of the policy's instances.
        requests: one slot after the other, `(T, R)`; a run of more slots starts over.
        slots: of the run.

    Raises:
        InputError: naming the key or the policy that is wrong.
    """
    seed = torch.tensor(batch.column("seed"), dtype=torch.int64, device=problem.device)
    seed = seed if batch.batch else seed[0]
    out: list[Contender] = []
    notes = []
    for name, options in entrants(config).items():
        choice = choice_name(options, POLICIES)
        first = not out
        if choice == "popularity" and problem.delay is None and not first:
            notes.append("no comparison: the popularity rule needs delays and accuracies, not a cost table")
            continue
        if choice in HINDSIGHT and config.latency.swing > 0:
            raise InputError(
                f"{choice} plans for costs that stay as they are, but latency.swing is {config.latency.swing:g}; "
                f"make it 0, or leave {choice} out"
            )
        # Only who plans for all slots needs a row for each: on a large network many slots would take all memory.
        known = _of_all_slots(requests, slots) if choice in HINDSIGHT else requests
        try:
            policy = build_policy(options, _step_size(batch) if first else _own_step_size(options), known)
        except InputError as error:
            raise error if first else InputError(f"compare: {name}: {error}") from None
        # Where nothing is drawn, one instance stands for all of the same costs and arrivals.
        alone = not first and choice in UNDRAWN and "alpha" not in batch.listed and config.order == "index"
        out.append(
            Contender(
                name,
                choice,
                policy,
                seed.new_zeros(()) if alone else seed,
                () if alone else batch.batch,
            )
        )
    return tuple(out), tuple(notes)


def entrants(config: Config) -> dict[str, PolicyConfig]:
    """The options of everybody who takes part, by name.

    Raises:
        InputError: `compare` holds something else than it may, or the same thing twice.
    """
    main = choice_name(config.policy, POLICIES)
    out = {main: config.policy}
    for entry in _beside(config.compare, main):
        name, options = _entrant(entry, config.policy.discipline)
        if name in out:
            raise InputError(f"compare: {name} takes part twice; leave one out, or give it a name of its own: name=...")
        out[name] = options
    return out


def _of_all_slots(requests: Tensor, slots: int) -> Tensor:
    return requests[torch.arange(slots, device=requests.device) % requests.shape[0]]


def _beside(compare: Any, main: str) -> Sequence[Any]:
    if isinstance(compare, bool):
        return [name for name in _USUAL if name != main] if compare else []
    if isinstance(compare, Sequence) and not isinstance(compare, str):
        return compare
    raise InputError(f"compare is {compare!r}; give true, false, or a list of policies such as [popularity,olag]")


def _entrant(entry: Any, discipline: str) -> tuple[str, PolicyConfig]:
    """Name and options of an entry of `compare`, under the discipline that all share."""
    given = {"policy": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping) or "policy" not in given:
        raise InputError(f"compare holds {entry!r}; give the name of a policy, or a mapping {{policy: NAME, ...}}")
    choice = given["policy"]
    if not isinstance(choice, str) or choice not in POLICIES:
        raise InputError(f"compare: there is no policy {choice!r}; use one of {', '.join(POLICIES)}")
    kind = POLICIES[choice].config
    known = [f.name for f in dataclasses.fields(kind) if f.name != "discipline"]
    changes = {key: value for key, value in given.items() if key not in _RESERVED}
    for key in changes:
        if key not in known:
            raise InputError(f"compare: {choice} has no option {key!r} there; known: {', '.join(known)}")
    made_up = " ".join([choice, *(f"{key}={value}" for key, value in changes.items())])
    name = given.get("name", made_up)
    if isinstance(name, bool) or not isinstance(name, str | int | float) or not str(name).strip():
        raise InputError(f"compare: a name is {name!r}; give some text, or leave it out")
    return str(name), changed(kind(discipline=discipline), changes, f"compare: {choice} ")


def _step_size(batch: Instances) -> float | Tensor:
    c = batch.column("c")
    return torch.tensor(c, dtype=torch.float64) if "c" in batch.listed else _single(c[0])


def _own_step_size(options: PolicyConfig) -> float:
    """That of a policy beside, a single number."""
    c = step_sizes(options)
    if len(c) > 1:
        raise InputError("a list of step sizes is for the policy itself: policy.c=[...]")
    return _single(c[0])


def _single(c: Any) -> float:
    """A policy without step size takes any."""
    return 1.0 if c is None else float(c)
