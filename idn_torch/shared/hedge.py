"""The master: several policies run side by side, and a Hedge over what each of them gained."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.infida import Infida, Slot
from idn_torch.philox import uniforms
from idn_torch.problem import Problem
from idn_torch.serving import DISCIPLINES, serve_kernel
from idn_torch.shapes import broadcast_shapes
from idn_torch.shared.incumbent import Incumbent, IncumbentState, even_requests
from idn_torch.shared.local_search import select
from idn_torch.shared.marginals import realised_gain
from idn_torch.shared.policy import Shared, SharedState

__all__ = ["Master", "MasterState", "follow", "hedge_weights"]

# Size of the guess at the first slot, in requests times latency units: small beside any gain, so that it does not
# count as a surprise later.
_FIRST_GUESS = 1e-12


class MasterState(NamedTuple):
    """State before a slot. Experts are in the order of `Master.names`.

    Attributes:
        slot: number of slots done.
        x: allocation in use: that of the expert followed, `(..., V, M)`.
        choice: which one, `(...)` int64.
        shared: the mirror ascents on the shared-capacity gain, with a leading batch dim; None without.
        incumbent: the local search; None without.
        others: states of the other policies.
        totals: gain of each expert so far, `(E, ...)` float64.
        expected: M, what each expert's allocation would have gained in the slot before, `(E, ...)` float64.
        surprise_squares: `sum_t rho_t^2` so far, `(...)` float64.
        uniform: fixed number in [0, 1) that picks the expert, `(...)`.
    """

    slot: int
    x: Tensor
    choice: Tensor
    shared: SharedState | None
    incumbent: IncumbentState | None
    others: tuple[Any, ...]
    totals: Tensor
    expected: Tensor
    surprise_squares: Tensor
    uniform: Tensor


@dataclass(frozen=True, eq=False)
class Master:
    """Follow the best of several policies without knowing beforehand which it is.

    Every expert runs on the same requests, each with its own trajectory; gains of all are observed, since requests and
    capacities are. The master deploys expert e with probability `p_e ~ exp(eta * (H_e + M_e))`: H are the gains so far,
    M what the expert's new allocation would have gained on the requests of the last slot, a guess at its next gain.
    With rho_t = largest - smallest over the experts of (gain - guess), eta = 2 * sqrt(ln E / sum of rho^2 so far), and
    against any sequence of requests

        E sum G(x_t) >= max_e sum G(x_t^e) - 1.21 * sqrt(ln E * sum_t rho_t^2) - 4.42 * max_t rho_t.

    One uniform number, fixed for the run, draws the expert, so that the master rarely switches.

    Experts: a mirror ascent on the shared-capacity gain for each of `weights`, all in one batch; the incumbent, whose
    search starts in every slot from the expert that did best there, with the others' allocations as proposals; and
    other policies.

    Attributes:
        weights: of the sampled marginals, one `Shared` expert for each; none when empty.
        moves: of the incumbent a slot; 0 leaves the incumbent out.
        others: policies of any kind, under the same discipline.
        shared: the options of the `Shared` experts but for `marginals`.
        discipline: how requests contend, "fcfs" or "fair".

    Source: this project's own. Hedge with guesses: Rakhlin and Sridharan, "Online learning with predictable
    sequences" (COLT 2013). The constants: sum_t min(rho_t, eta_t rho_t^2 / 8), slots with rho_t^2 below and above the
    sum before them taken apart; in the latter the sum doubles.
    """

    weights: tuple[float, ...] = (0.25,)
    moves: int = 1
    others: tuple[Any, ...] = field(default_factory=lambda: (Infida(),))
    shared: Shared = field(default_factory=Shared)
    discipline: Literal["fcfs", "fair"] = "fcfs"

    def __post_init__(self) -> None:
        if self.discipline not in DISCIPLINES:
            raise InputError(f"discipline is {self.discipline!r}; use one of {', '.join(DISCIPLINES)}")
        for policy in self.others:
            other = getattr(policy, "discipline", self.discipline)
            if other != self.discipline:
                raise InputError(
                    f"others: {type(policy).__name__} serves {other!r}, the master {self.discipline!r}; make them the "
                    "same, or their gains do not compare"
                )
        if not self.names:
            raise InputError("the master has no experts; give weights, moves or others")
        self._incumbent()
        if self.weights:
            self._shared()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the experts, in the order of their gains."""
        mirror = tuple(f"shared({weight:g})" for weight in self.weights)
        local = ("incumbent",) if self.moves else ()
        return (*mirror, *local, *(type(policy).__name__.lower() for policy in self.others))

    def _shared(self) -> Shared:
        """One policy for all weights, along a leading batch dim."""
        return dataclasses.replace(self.shared, marginals=self.weights, discipline=self.discipline)

    def _incumbent(self) -> Incumbent:
        return Incumbent(self.moves, self.discipline)

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> MasterState:
        """The experts' own first states; arguments as in `Infida.init`."""
        key = torch.as_tensor(seed, dtype=torch.int64, device=problem.device)
        steps = (torch.as_tensor(getattr(policy, "c", 1.0)).shape for policy in (self.shared, *self.others))
        shape = tuple(broadcast_shapes(batch, key.shape, problem.ranked.cost.shape[:-2], *steps))
        shared, incumbent = None, None
        if self.weights:
            shared = self._shared().init(problem, key, shape)
        if self.moves:
            incumbent = self._incumbent().init(problem, key, shape)
        others = tuple(policy.init(problem, key, shape) for policy in self.others)
        nodes = problem.shape[0]
        # A number of its own: the rounding uses those of nodes 0..V-1.
        uniform = uniforms(key.expand(shape), nodes + 1, 1, dtype=problem.dtype)[..., nodes, 0]
        totals = torch.zeros(len(self.names), *shape, dtype=torch.float64, device=problem.device)
        state = MasterState(
            0, uniform, uniform, shared, incumbent, others, totals, totals, totals.new_zeros(shape), uniform
        )
        # Nothing gained yet, so that any guess, however small, decides: only the order of these numbers matters.
        guess = realised_gain(
            problem,
            even_requests(problem),
            torch.stack(_allocations(state)),
            self.discipline,
        )
        guess = guess.double()
        return self._decide(state._replace(expected=_FIRST_GUESS * guess / guess.amax(0).clamp(min=1)))

    def step(
        self, problem: Problem, state: MasterState, r: Tensor, order: Tensor | None = None, rounds: int | None = None
    ) -> tuple[MasterState, Slot]:
        """Run every expert through a slot, and decide whom to follow in the next; as `Infida.step`.

        The slot shown is that of the expert followed, with the cut of the first `Shared` expert: a certified bound.
        """
        how = (self.discipline, order, rounds)
        gains: list[Tensor] = []
        shared, others = None, []
        cut: Slot | None = None
        if state.shared is not None:
            shared, shown = self._shared().step(problem, state.shared, r, order, rounds)
            gains += shown.served.gain.unbind()
            assert shown.gain_fractional is not None
            assert shown.slope is not None
            assert shown.y is not None
            cut = Slot(shown.served, shown.gain_fractional[0], shown.slope[0], shown.y[0])
        for policy, own in zip(self.others, state.others, strict=True):
            following, shown = policy.step(problem, own, r, order, rounds)
            others.append(following)
            gains.append(shown.served.gain)
        following = state._replace(slot=state.slot + 1, shared=shared, others=tuple(others))
        candidates = _allocations(following)  # the incumbent's is still the old one
        expected = realised_gain(problem, r, torch.stack(candidates), *how).double()
        if state.incumbent is not None:
            own = self.names.index("incumbent")
            gains.insert(own, expected[own])
            best, experts = self._best(expected), len(candidates)
            start, *rest = (select((best + i) % experts, candidates) for i in range(experts))
            incumbent, found = self._incumbent().improve(
                problem, state.incumbent, r, start, order, rounds, torch.stack(rest) if rest else None
            )
            following = following._replace(incumbent=incumbent)
            expected = torch.cat((expected[:own], found.double()[None], expected[own + 1 :]))
        gained = torch.stack(gains).double()
        surprise = gained - state.expected
        following = self._decide(
            following._replace(
                totals=state.totals + gained,
                expected=expected,
                surprise_squares=state.surprise_squares + (surprise.amax(0) - surprise.amin(0)).square(),
            )
        )
        followed = serve_kernel(problem, r, state.x, *how)
        return following, Slot(followed) if cut is None else cut._replace(served=followed)

    def _best(self, gains: Tensor) -> Tensor:
        """The expert that did best, `(...)`; the incumbent where another only draws level."""
        own = self.names.index("incumbent")
        return torch.where(gains.amax(0) > gains[own], gains.argmax(0), own)

    def _decide(self, state: MasterState) -> MasterState:
        choice = follow(hedge_weights(state.totals + state.expected, state.surprise_squares), state.uniform)
        return state._replace(choice=choice, x=select(choice, _allocations(state)))


def hedge_weights(gains: Tensor, squares: Tensor) -> Tensor:
    """`p_e ~ exp(eta * gains_e)`, `(E, ...)`, with `eta = 2 * sqrt(ln E / squares)`; squares `(...)`, both float64."""
    rate = 2 * (math.log(len(gains)) / squares.clamp(min=torch.finfo(squares.dtype).tiny)).sqrt()
    return ((gains - gains.amax(0)) * rate).softmax(0)


def follow(probability: Tensor, uniform: Tensor) -> Tensor:
    """The expert at quantile `uniform` `(...)`: near-equal probabilities pick the same one."""
    below = probability.cumsum(0) <= uniform
    return below.sum(0).clamp(max=len(probability) - 1)


def _allocations(state: MasterState) -> list[Tensor]:
    """Of every expert."""
    shared = [] if state.shared is None else list(state.shared.x.unbind())
    local = [] if state.incumbent is None else [state.incumbent.x]
    return [*shared, *local, *(own.x for own in state.others)]
