"""The optional compiled path: which runs may take it, and how the state gets there and back.

For everything the kernel does not cover, and where numba is missing, `step` does the same in torch.
"""

import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from idn_torch.aimd.events import GUARD
from idn_torch.aimd.step import Model, State
from idn_torch.aimd.summary import Totals
from idn_torch.errors import InputError

__all__ = ["choose_engine", "run_ahead"]

#: "auto" compiles from this many unit-events on: below it torch needs less time than loading the kernel.
_WORTH_IT = 1 << 25


def choose_engine(engine: str, model: Model, events: int, kept: Sequence[int]) -> bool:
    """True if the events between recorded ones go to the compiled kernel.

    Raises:
        InputError: an unknown engine, or "numba" where it cannot be used.
    """
    if engine not in ("auto", "torch", "numba"):
        raise InputError(f"engine is {engine!r}; use 'auto', 'torch' or 'numba'")
    if engine == "torch":
        return False
    obstacle = None
    if model.rates is None:
        obstacle = "the arrival rate is piecewise in time"
    elif model.system.service_factor is not None:
        obstacle = "service_factor is given"
    elif model.system.alpha.device.type != "cpu":
        obstacle = f"the tensors are on {model.system.alpha.device}"
    elif importlib.util.find_spec("numba") is None:
        obstacle = "numba is not installed (pip install numba)"
    if engine == "numba":
        if obstacle:
            raise InputError(f"engine 'numba' cannot run this: {obstacle}; use 'auto' or 'torch'")
        return True
    skipped = events - len(kept)
    return obstacle is None and skipped * model.system.alpha.numel() >= _WORTH_IT


def run_ahead(model: Model, state: State, totals: Totals | None, event: int, stop: int) -> tuple[State, Totals | None]:
    """Run the events `event .. stop - 1` without recording them, on as many threads as torch uses.

    The kernel releases the GIL and plain threads share it out: numba's own thread pools do not survive a fork.
    """
    from idn_torch.aimd.numba_kernel import LANES, load_kernel

    system = model.system
    assert model.rates is not None
    rates = model.rates.values
    rates = rates[:, event:stop] if rates.shape[1] > 1 else rates
    # Copies: the kernel works in place.
    state = State(
        state.u.clone(), state.q.clone(), state.status.clone(), state.clock._replace(time=state.clock.time.clone())
    )
    totals = None if totals is None else Totals(*(value.clone() for value in totals))
    none = system.alpha.new_zeros(0, 0)
    u_max = none if system.u_max is None else system.u_max
    no_sums = (state.status[:0], state.status[:0], none.double(), none.double(), none, none.long())
    sums = no_sums if totals is None else totals[1:]
    tensors = (
        system.alpha,
        system.beta,
        u_max,
        model.capacity,
        rates,
        state.u,
        state.q,
        state.status,
        state.clock.time,
    )
    arrays = [value.numpy() for value in (*tensors, *sums)]
    guard = arrays[0].dtype.type(1 - GUARD)
    kernel = load_kernel()

    # Whole blocks to each thread.
    blocks = -(-len(state.u) // LANES)
    threads = max(1, min(torch.get_num_threads(), blocks))
    cuts = [min(len(state.u), LANES * (blocks * j // threads)) for j in range(threads + 1)]

    def work(low: int, high: int) -> None:
        kernel(*arrays, guard, model.plan.max_drops, event, stop, low, high)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts[:-1], cuts[1:]))
    return state, totals if totals is None else totals._replace(elapsed=state.clock.time)
