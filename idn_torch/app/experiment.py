"""A run made ready: everything that the configuration names, built and checked before anything is written."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from idn_torch.app.batch import Instances, instances
from idn_torch.app.choices import build_problem, located
from idn_torch.app.config import Config
from idn_torch.app.contenders import Contender, contenders
from idn_torch.app.options import at_least, device_named, dtype_named, thread_count
from idn_torch.checks import check_counts
from idn_torch.errors import InputError
from idn_torch.philox import uniforms
from idn_torch.problem import Problem

__all__ = ["Experiment", "prepare"]

ORDERS = ("index", "random")

# Keeps the uniforms that shuffle arrivals apart from those that round allocations: "order" in ASCII.
_ORDER_KEY = 0x6F72646572


@dataclass(frozen=True, eq=False)
class Experiment:
    """What a run needs.

    Attributes:
        config: what it was built from.
        problem: the network, with a batch of cost tables where alpha is a list.
        requests: one slot after the other, `(T, R)`; a run of more slots starts over.
        slots: how many to run.
        instances: the batch.
        contenders: the policy first, then those it is compared with, if any.
        notes: what the user should know, for the log.
    """

    config: Config
    problem: Problem
    requests: Tensor
    slots: int
    instances: Instances
    contenders: tuple[Contender, ...]
    notes: tuple[str, ...]

    @property
    def varies(self) -> bool:
        """Whether costs change from slot to slot."""
        return self.config.latency.swing > 0

    @property
    def timed(self) -> bool:
        """Whether contenders are told apart by time: on a GPU each then waits for the one before."""
        return not isinstance(self.config.compare, bool)

    @cached_property
    def threads(self) -> int:
        """CPU threads to run with: a function of the problem, so that a resumed run adds up in the same order."""
        return thread_count(self.config.threads, self.elements)

    @property
    def elements(self) -> int:
        """Entries of the ranked tables, over all instances."""
        return self.requests.shape[-1] * self.problem.ranked.cost.shape[-1] * len(self.instances.all)

    def requests_at(self, slot: int) -> Tensor:
        """The requests of this slot, `(R,)`."""
        return self.requests[slot % self.requests.shape[0]]

    def problem_at(self, slot: int) -> Problem:
        """The problem with the costs of this slot."""
        if not self.varies:
            return self.problem
        problem, latency = self.problem, self.config.latency
        assert problem.path_latency is not None
        rise = latency.swing * math.sin(2 * math.pi * slot / latency.period)
        cost = self._base_cost + rise * problem.path_latency[:, :, None]
        return dataclasses.replace(
            problem.with_cost(cost, validate=False), path_latency=(1 + rise) * problem.path_latency
        )

    def order_at(self, slot: int) -> Tensor | None:
        """The order of arrival in this slot, `(R,)` or `(B, R)`: a function of the seed and the slot alone."""
        if self.config.order == "index":
            return None
        key = self.contenders[0].seed ^ _ORDER_KEY << 16
        return uniforms(key, 1, self.requests.shape[-1], slot=slot)[..., 0, :].argsort(dim=-1, stable=True)

    @cached_property
    def _base_cost(self) -> Tensor:
        return self.problem.cost_table()


def prepare(config: Config) -> Experiment:
    """Build and check a run.

    Raises:
        IDNError: naming the key, or the part of the scenario, that is wrong.
    """
    config = dataclasses.replace(config, problem=located(config.problem))
    device, dtype = device_named(config.device), dtype_named(config.dtype)
    if config.order not in ORDERS:
        raise InputError(f"order is {config.order!r}; use one of {', '.join(ORDERS)}")
    if config.order == "random" and config.policy.discipline != "fcfs":
        raise InputError(
            f"order=random is for policy.discipline=fcfs; it makes no difference to {config.policy.discipline!r}"
        )
    at_least("checkpoint_every", config.checkpoint_every, 0)
    at_least("threads", config.threads, 1)
    batch = instances(config)
    problem = build_problem(config.problem, dtype, device)
    problem = _with_alpha(problem, batch)
    _check_latency(config, problem)
    requests = _requests(config, problem)
    slots = config.slots or requests.shape[0]
    policies, notes = contenders(config, problem, batch, requests, slots)
    return Experiment(config, problem, requests, slots, batch, policies, (*notes, *_excluded(problem)))


def _with_alpha(problem: Problem, batch: Instances) -> Problem:
    alpha = batch.column("alpha")
    if alpha[0] is None:
        return problem
    if "alpha" in batch.listed:
        return problem.with_alpha(torch.tensor(alpha, dtype=torch.float64)[:, None])
    return problem.with_alpha(torch.tensor(alpha[:1], dtype=torch.float64))


def _check_latency(config: Config, problem: Problem) -> None:
    latency = config.latency
    if not 0 <= latency.swing < 1:
        raise InputError(f"latency.swing is {latency.swing:g}; it must be in [0, 1)")
    at_least("latency.period", latency.period, 2)
    if latency.swing > 0 and problem.path_latency is None:
        raise InputError("latency.swing needs a problem with latencies; this one has a general cost table")


def _requests(config: Config, problem: Problem) -> Tensor:
    requests = problem.requests
    if requests is None or requests.shape[0] == 0:
        raise InputError("the problem has no requests; a run needs those of at least one slot")
    if config.slots is not None:
        at_least("slots", config.slots, 1)
        if config.slots > requests.shape[0] and not config.cycle:
            raise InputError(
                f"slots is {config.slots}, but the problem has requests for {requests.shape[0]} slots only; "
                "ask for no more, or start over with cycle=true"
            )
    check_counts(problem, requests)
    return requests[: config.slots]


def _excluded(problem: Problem) -> list[str]:
    """A line for each node that has models too large for it."""
    where = problem.feasible
    never = (~where.free & ~where.fixed).cpu()
    lines = []
    for v in never.any(-1).nonzero()[:, 0].tolist():
        names = [problem.model_ids[m] for m in never[v].nonzero()[:, 0].tolist()]
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        lines.append(
            f"node {problem.node_ids[v]!r}: never deployed there, for being larger than its free budget of "
            f"{float(where.budgets[v]):g} {problem.size_unit}: {', '.join(names[:10])}{more}"
        )
    return lines
