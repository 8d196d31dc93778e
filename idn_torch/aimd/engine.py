"""The optional compiled paths: which runs may take them, and how the state gets there and back.

For everything the kernels do not cover, and where numba or Triton is missing, `step` does the same in torch.
"""

import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.aimd.events import GUARD
from idn_torch.aimd.step import Model, State
from idn_torch.aimd.summary import Totals
from idn_torch.errors import InputError

__all__ = ["choose_engine", "run_ahead"]

#: "auto" compiles from this many unit-events on: below it torch needs less time than loading the kernel.
_WORTH_IT = 1 << 25
#: And Triton from this many events on: on a GPU a torch event takes as long for few units as for many.
_WORTH_LAUNCHING = 100


def choose_engine(engine: str, model: Model, events: int, kept: Sequence[int]) -> bool:
    """True if the events between recorded ones go to the compiled kernel.

    Raises:
        InputError: an unknown engine, or "numba" where it cannot be used.
    """
    if engine not in ("auto", "torch", "numba"):
        raise InputError(f"engine is {engine!r}; use 'auto', 'torch' or 'numba'")
    if engine == "torch":
        return False
    skipped = events - len(kept)
    if engine == "auto" and _on_gpu(model):
        return skipped >= _WORTH_LAUNCHING
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
    return obstacle is None and skipped * model.system.alpha.numel() >= _WORTH_IT


def _on_gpu(model: Model) -> bool:
    """Whether the systems are where Triton runs, and what its kernel covers."""
    system = model.system
    covered = model.rates is not None and system.service_factor is None and system.u_max is None
    return covered and kernels.triton_for(system.alpha, row=system.alpha.shape[1])


def run_ahead(model: Model, state: State, totals: Totals | None, event: int, stop: int) -> tuple[State, Totals | None]:
    """Run the events `event .. stop - 1` without recording them."""
    system = model.system
    assert model.rates is not None
    rates = model.rates.values
    rates = rates[:, event:stop] if rates.shape[1] > 1 else rates
    # Copies: the kernels work in place.
    u, q, status = (value.contiguous().clone() for value in (state.u, state.q, state.status))
    state = State(u, q, status, state.clock._replace(time=state.clock.time.clone()))
    totals = None if totals is None else Totals(*(value.clone() for value in totals))
    if _on_gpu(model):
        from idn_torch.kernels.triton.aimd import advance

        now = (u, q, status, state.clock.time)
        sums = () if totals is None else totals[1:]
        tables = (system.alpha, system.beta, model.capacity, rates)
        advance(*tables, now, sums, 1 - GUARD, model.plan.max_drops, event, stop)
    else:
        _on_threads(model, state, totals, rates, event, stop)
    return state, totals if totals is None else totals._replace(elapsed=state.clock.time)


def _on_threads(model: Model, state: State, totals: Totals | None, rates: Tensor, event: int, stop: int) -> None:
    """Run the numba kernel on as many threads as torch uses.

    It releases the GIL and plain threads share it out: numba's own thread pools do not survive a fork.
    """
    from idn_torch.aimd.numba_kernel import LANES, load_kernel

    system = model.system
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
