"""Arrival rates that are piecewise constant in time."""

import math

import pytest
import torch
from aimd_tools import DTYPES, check_steps, close, lists, systems
from test_aimd_edges import assert_sane

from idn_torch import aimd
from idn_torch.aimd import PiecewiseRate, Status
from idn_torch.aimd.reference import reference_simulate
from idn_torch.errors import InputError


def random_pieces(s, pieces, seed, zeros=True):
    """Pieces a few cycles long, some without arrivals; the last one with arrivals."""
    generator = torch.Generator().manual_seed(seed)
    batch = len(s.arrival_rate)
    period = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate).period.double()
    gaps = period[:, None] * 4 * torch.rand(batch, pieces - 1, generator=generator, dtype=torch.float64)
    times = torch.cat([torch.zeros(batch, 1, dtype=torch.float64), gaps.cumsum(1)], 1)
    factor = 0.2 + 2 * torch.rand(batch, pieces, generator=generator, dtype=torch.float64)
    if zeros:
        factor = torch.where(torch.rand(batch, pieces, generator=generator) < 0.3, 0.0, factor)
    factor[:, -1] = 1.0
    return PiecewiseRate(times, s.arrival_rate[:, None] * factor.to(s.alpha.dtype))


def relative(rate, run):
    def pieces(b, k):
        now = run.time[b, k].double().item()
        times, values = lists(rate.times[b]), lists(rate.values[b])
        return [(t - now, v) for t, v in zip(times, values, strict=True)]

    return pieces


@pytest.mark.parametrize("headroom", [None, (3.0, 6.0)])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_cycle_equals_the_reference(headroom, zeros, seed):
    s = systems(8, 4, seed=seed, headroom=headroom)
    rate = random_pieces(s, 9, seed, zeros)
    run = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 25, s.u_max)
    assert_sane(run)
    assert (run.status == Status.OK).all()
    compared = 0
    for b in range(8):
        pairs = list(zip(lists(rate.times[b]), lists(rate.values[b]), strict=True))
        caps = None if s.u_max is None else lists(s.u_max[b])
        expected = reference_simulate(
            lists(s.alpha[b]), lists(s.beta[b]), pairs, lists(s.u0[b]), lists(s.w0[b]), 25, caps
        )
        if expected.margin < 1e-9:
            continue
        compared += 1
        assert run.drops[b].tolist() == expected.drops
        close("run period", run.period[b], expected.period)
        close("run period", run.wait[b], expected.wait, max(expected.period))
        close("run period", run.time[b], expected.time)
        close("run admission", run.admission[b], expected.admission)
        if headroom is None:
            close("run backlog", run.backlog[b], expected.backlog)
            close("run backlog", run.queueing_time[b], expected.queueing_time)
    assert compared >= 6
    if zeros:
        assert (run.wait > 0).any()
    else:
        assert (run.wait == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("headroom", [None, (2.5, 4.0)])
def test_every_step_equals_the_reference(dtype, headroom):
    s = systems(8, 4, dtype, seed=5, headroom=headroom)
    rate = random_pieces(s, 6, 5, zeros=False)
    run = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 10, s.u_max)
    if dtype == torch.float64:
        compared, _ = check_steps(run, relative(rate, run))
        assert compared >= 75
    else:
        # Event times are rounded to float32 in the record: compare what does not depend on them.
        double = PiecewiseRate(rate.times, rate.values.double())
        exact = aimd.simulate(
            *(v.double() for v in s[:2]),
            double,
            *(v.double() for v in s[3:5]),
            10,
            None if s.u_max is None else s.u_max.double(),
        )
        same = (run.drops == exact.drops).all(-1)
        assert same.double().mean() >= 0.7
        close("run period", run.period[same], exact.period[same], exact.period[same].amax(-1, keepdim=True))
        close("run admission", run.final_admission[same], exact.final_admission[same], exact.final_admission.max())


@pytest.mark.parametrize("headroom", [None, (3.0, 6.0)])
def test_arrivals_over_the_run_are_admitted(headroom):
    """Each cycle admits the integral of the rate over it, gaps included."""
    s = systems(20, 4, seed=7, headroom=headroom)
    rate = random_pieces(s, 12, 7)
    run = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 40, s.u_max, record="summary")
    stop = torch.cat([rate.times[:, 1:], torch.full((20, 1), math.inf, dtype=torch.float64)], 1)
    start = torch.where(rate.values > 0, rate.times, math.inf).amin(1, keepdim=True)
    span = (torch.minimum(stop, run.final_time[:, None]) - torch.maximum(rate.times, start)).clamp(min=0)
    arrived = (rate.values * span).sum(1)
    close("step period", run.summary.admitted.sum(-1), arrived, arrived)
    close("step period", run.summary.elapsed, run.final_time - start[:, 0], run.final_time)


def test_a_single_piece_is_a_constant_rate():
    s = systems(6, 3, seed=8, headroom=(1.1, 2.0))
    rate = PiecewiseRate(torch.zeros(1, dtype=torch.float64), s.arrival_rate[:, None])
    timed = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 20, s.u_max)
    plain = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 20, s.u_max)
    for name in ("period", "admission", "status", "time"):
        assert torch.equal(getattr(timed, name), getattr(plain, name))
    close("step backlog", timed.backlog[:, :3], plain.backlog[:, :3])
    close("step queueing_time", timed.queueing_time[:, :3], plain.queueing_time[:, :3], plain.queueing_time.max())


def test_cycle_that_spans_a_gap_by_hand():
    """One unit, alpha 2, beta 0: rate 4 for 3 s, nothing until 10 s, then 4 again."""
    one = torch.ones(1, dtype=torch.float64)
    rate = PiecewiseRate(
        torch.tensor([0.0, 3.0, 10.0], dtype=torch.float64), torch.tensor([4.0, 0.0, 4.0], dtype=torch.float64)
    )
    run = aimd.simulate(2 * one, 0 * one, rate, 0 * one, 0 * one, 3)
    # 12 requests arrive, u = 2 tau admits tau^2: the queue empties at sqrt(12) s and the next event is at 10 s.
    close("step period", run.time, [0.0, 10.0, 14.0])
    close("step period", run.period, [10.0, 4.0, 4.0])
    close("step period", run.wait, [10 - math.sqrt(12), 0.0, 0.0])
    close("step admission", run.admission[1], 2 * math.sqrt(12) * one)
    # w_0 = 0 means service rate 0 in the first cycle: all 12 wait.
    close("step backlog", run.backlog[1], 12 * one)
    # Arrivals at a mean of 1.5 s; all are still queued at 10 s.
    close("step queueing_time", run.queueing_time[0], (10 - 1.5) * one)


def test_zero_for_ever_ends_idle_and_drops_nothing():
    one = torch.ones(2, 1, dtype=torch.float64)
    times = torch.tensor([[0.0, 3.0], [0.0, 3.0]], dtype=torch.float64)
    rate = PiecewiseRate(times, torch.tensor([[4.0, 0.0], [4.0, 2.0]], dtype=torch.float64))
    run = aimd.simulate(2 * one, 0 * one, rate, 0 * one, 0 * one, 4)
    assert run.status.tolist() == [Status.IDLE, Status.OK]
    close("step period", run.period[0], [math.sqrt(12), 0, 0, 0])
    close("step backlog", run.final_backlog[0], torch.tensor([12.0]))
    assert_sane(run)
    never = PiecewiseRate(times, torch.zeros(2, 2, dtype=torch.float64))
    idle = aimd.simulate(2 * one, 0 * one, never, one, one, 4)
    assert idle.status.tolist() == [Status.IDLE] * 2
    assert (idle.period == 0).all()
    assert torch.equal(idle.final_admission, one)


def test_a_gap_at_the_start_is_waited_for():
    one = torch.ones(1, dtype=torch.float64)
    rate = PiecewiseRate(torch.tensor([0.0, 5.0], dtype=torch.float64), torch.tensor([0.0, 4.0], dtype=torch.float64))
    run = aimd.simulate(2 * one, 0 * one, rate, one, one, 3, record="summary")
    later = aimd.simulate(2 * one, 0 * one, 4.0, one, one, 3, record="summary")
    close("step period", run.final_time, later.final_time + 5)
    close("step period", run.summary.elapsed, later.summary.elapsed)
    close("step backlog", run.final_backlog, later.final_backlog, 10.0)


def test_infeasible_for_a_while_and_for_ever():
    """Above sum u_max for a while the batch queue grows and the cycle is long; for ever it never ends."""
    alpha, beta, u_max = (torch.full((2, 2), v, dtype=torch.float64) for v in (1.0, 0.5, 3.0))
    times = torch.tensor([0.0, 5.0, 50.0], dtype=torch.float64)
    values = torch.tensor([[4.0, 10.0, 4.0], [4.0, 10.0, 10.0]], dtype=torch.float64)
    run = aimd.simulate(alpha, beta, PiecewiseRate(times, values), alpha, alpha, 12, u_max)
    assert run.status.tolist() == [Status.OK, Status.INFEASIBLE]
    assert run.period[0].max() > 100
    assert_sane(run)
    assert (run.final_time[1] <= 50).all()


def test_builders():
    step = aimd.step_rate(torch.tensor([1.0, 2.0]), torch.tensor(5.0), torch.tensor(3.0))
    assert step.times.tolist() == [[0.0, 3.0], [0.0, 3.0]]
    assert step.values.tolist() == [[1.0, 5.0], [2.0, 5.0]]
    ramp = aimd.ramp_rate(torch.tensor(2.0), torch.tensor(6.0), 10.0, 20.0, pieces=4)
    assert ramp.times.tolist() == [0.0, 10.0, 12.5, 15.0, 17.5, 20.0]
    assert ramp.values.tolist() == [2.0, 2.5, 3.5, 4.5, 5.5, 6.0]
    one = torch.ones(2, dtype=torch.float32)
    run = aimd.simulate(one, one / 2, ramp, one, one, 150)
    assert run.admission.dtype == torch.float32
    close("run period", run.period[-1], aimd.fixed_point(one, one / 2, 6.0).period)
    with pytest.raises(InputError, match="0 < start < stop"):
        aimd.ramp_rate(torch.tensor(2.0), torch.tensor(6.0), 20.0, 10.0)


@pytest.mark.parametrize(
    ("times", "values", "message"),
    [
        ([1.0, 2.0], [1.0, 1.0], r"times is 1 at piece 0; must start at 0"),
        ([0.0, 2.0, 2.0], [1.0, 1.0, 1.0], r"times is 2 at piece 2; must start at 0, increase"),
        ([0.0, math.inf], [1.0, 1.0], r"times is inf at piece 1"),
        ([0.0, 1.0], [1.0, -1.0], r"values is -1 at piece 1; must be >= 0"),
        ([0.0, 1.0], [math.nan, 1.0], r"values is nan at piece 0"),
        ([0.0, 1.0], [1.0], r"must end in the same number of pieces"),
    ],
)
def test_wrong_pieces(times, values, message):
    with pytest.raises(InputError, match=message):
        PiecewiseRate(torch.tensor(times), torch.tensor(values))


def test_values_must_have_the_dtype_of_alpha():
    one = torch.ones(1)
    rate = PiecewiseRate(torch.zeros(1), torch.ones(1, dtype=torch.float64))
    with pytest.raises(InputError, match=r"arrival_rate is torch.float64"):
        aimd.simulate(one, one / 2, rate, one, one, 3)
