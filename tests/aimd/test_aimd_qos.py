"""Queueing times against numerical integration of the trajectories, and the continuous-time state."""

import math

import pytest
import torch
from aimd_tools import DTYPES, check_steps, close, lists, systems
from test_aimd_workload import random_pieces

from idn_torch import aimd
from idn_torch.aimd.reference import reference_cycle
from idn_torch.errors import InputError

POINTS = 2001


def simpson(values, step, dim):
    """Composite Simpson on POINTS equidistant values; step is the whole length."""
    weights = torch.ones(POINTS, dtype=torch.float64)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    shape = [1] * values.ndim
    shape[dim] = POINTS
    return (values * weights.reshape(shape)).sum(dim) * step / (3 * (POINTS - 1))


def one_cycle(headroom=None, factor=None, seed=1, backlog=2.0):
    s = systems(12, 4, seed=seed, headroom=headroom, backlog=backlog)
    run = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 1, s.u_max, service_factor=factor)
    a = s.u0 if s.u_max is None else torch.minimum(s.u0, s.u_max)
    return s, run, a * s.beta**run.drops


@pytest.mark.parametrize("headroom", [None, (1.05, 1.6)])
def test_queueing_times_are_the_integrals_of_the_queues(headroom):
    """Eqs. (46)-(50): T_delta and T_w by their definitions, from u, w, y, z of Eqs. (34)-(37)."""
    s, run, a = one_cycle(headroom)
    period = run.period[:, 0]
    gamma, w0 = run.service_rate[:, 0], run.backlog[:, 0]
    tau = torch.linspace(0, 1, POINTS, dtype=torch.float64) * period[:, None]
    states = aimd.within_cycle(
        s.alpha[:, None], a[:, None], w0[:, None], gamma[:, None], tau, None if s.u_max is None else s.u_max[:, None]
    )
    admitted = states.admitted[:, -1]
    share = admitted[:, None] * (tau / period[:, None])[..., None]
    length = period[:, None]
    batch = simpson(share - states.admitted, length, 1) / admitted
    unit = simpson(states.backlog, length, 1) / admitted
    found = aimd.queueing_times(s.alpha, a, period, w0, run.final_backlog, s.u_max)
    close("quadrature", found.batch, batch)
    close("quadrature", found.unit, unit)
    close("quadrature", found.total, batch + unit)
    close("step queueing_time", found.total, run.queueing_time[:, 0])
    # The state at both ends of the cycle, and y - z = w while no queue runs dry.
    close("step backlog", states.backlog[:, 0], w0)
    close("step backlog", states.backlog[:, -1], run.final_backlog, w0.max())
    close("step admission", states.rate[:, -1], run.final_admission)
    close("step backlog", states.offered - states.servable, states.backlog)
    close("quadrature", simpson(states.rate, length, 1), admitted)
    assert (states.backlog >= 0).all()


@pytest.mark.parametrize("factor", [0.4, 0.9, 1.2, 3.0])
@pytest.mark.parametrize("headroom", [None, (1.05, 1.6)])
def test_over_and_under_provisioned_queues(headroom, factor):
    """Queues that run dry: the closed forms against integration and against the reference."""
    s, run, a = one_cycle(headroom, factor)
    period = run.period[:, 0]
    tau = torch.linspace(0, 1, POINTS, dtype=torch.float64) * period[:, None]
    states = aimd.within_cycle(
        s.alpha[:, None],
        a[:, None],
        run.backlog[:, :1],
        run.service_rate[:, :1],
        tau,
        None if s.u_max is None else s.u_max[:, None],
    )
    admitted = states.admitted[:, -1]
    share = admitted[:, None] * (tau / period[:, None])[..., None]
    area = simpson(share - states.admitted + states.backlog, period[:, None], 1)
    close("quadrature", run.queueing_time[:, 0], area / admitted)
    close("step backlog", states.backlog[:, -1], run.final_backlog, run.backlog.max())
    for b in range(12):
        caps = [math.inf] * 4 if s.u_max is None else lists(s.u_max[b])
        expected = reference_cycle(
            lists(s.alpha[b]),
            lists(s.beta[b]),
            [(0.0, s.arrival_rate[b].item())],
            lists(run.admission[b, 0]),
            lists(s.w0[b]),
            caps,
            factor,
        )
        scale = max(*expected.backlog, *lists(s.w0[b]))
        close("step backlog", run.final_backlog[b], expected.backlog, scale)
        close("step queueing_time", run.queueing_time[b, 0], expected.queueing_time)
    if factor > 1:
        assert (states.backlog == 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [0.5, 1.3])
def test_provisioned_runs_equal_the_reference(dtype, factor):
    s = systems(10, 4, dtype, seed=5)
    run = aimd.simulate(*s[:5], events=10, service_factor=factor)
    compared, _ = check_steps(run, lambda b, k: [(0.0, s.arrival_rate[b].double().item())], factor)
    assert compared > 90


@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
@pytest.mark.parametrize("factor", [None, 1.4])
def test_littles_law_over_a_run(headroom, factor):
    """Requests admitted times their queueing time is the integral of all queues, cycle by cycle, from `sample`."""
    s = systems(6, 3, seed=2, headroom=headroom, backlog=2.0)
    run = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 8, s.u_max, service_factor=factor)
    for k in (0, 1, 3, 7):
        inside = torch.linspace(0, 1, POINTS, dtype=torch.float64)
        # Not the ends themselves, which may round into the neighbouring cycles.
        t = run.time[:, k, None] + run.period[:, k, None] * (inside * (1 - 2e-12) + 1e-12)
        state = aimd.sample(run, t)
        assert (state.event == k).all()
        total = simpson(state.batch_queue + state.backlog.sum(-1), run.period[:, k], 1)
        admitted = simpson(state.admission, run.period[:, k, None], 1)
        close("quadrature", (admitted * run.queueing_time[:, k]).sum(-1), total)
        close("quadrature", admitted.sum(-1), s.arrival_rate * run.period[:, k])


@pytest.mark.parametrize("headroom", [None, (3.0, 6.0)])
def test_littles_law_with_rates_that_vary_in_time(headroom):
    s = systems(3, 3, seed=3, headroom=headroom)
    rate = random_pieces(s, 7, 3)
    run = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 8, s.u_max, record="all")
    short = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 8, s.u_max, record="summary").summary
    edges = torch.linspace(0, 1, POINTS, dtype=torch.float64) * (1 - 2e-12) + 1e-12
    seconds = torch.zeros(3, dtype=torch.float64)
    for k in range(8):
        # Changes of the rate are kinks: more pieces for the rule.
        for part in range(4):
            t = run.time[:, k, None] + run.period[:, k, None] * (part + edges) / 4
            state = aimd.sample(run, t)
            assert (state.batch_queue >= 0).all()
            seconds += simpson(state.batch_queue + state.backlog.sum(-1), run.period[:, k] / 4, 1)
    close("quadrature", short.request_seconds.sum(-1), seconds)
    assert (run.queueing_time >= 0).all()


@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
def test_sample_agrees_with_the_events(headroom):
    s = systems(5, 3, seed=4, headroom=headroom, min_units=1)
    run = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 6, s.u_max, s.mask)
    # Just after each event the rates have dropped; just before the next they are at their peak and the queue is empty.
    after = aimd.sample(run, run.time + 1e-9 * run.period)
    a = run.admission * s.beta[:, None] ** run.drops[..., None]
    assert after.event.tolist() == [list(range(6))] * 5
    close("sample", after.admission, a, run.admission.max())
    close("sample", after.backlog, run.backlog)
    before = aimd.sample(run, run.time + (1 - 1e-9) * run.period)
    peak = torch.cat([run.admission[:, 1:], run.final_admission[:, None]], 1)
    close("sample", before.admission, peak)
    close("sample", before.batch_queue, torch.zeros(5, 6), (s.arrival_rate[:, None] * run.period).max())
    middle = aimd.sample(run, run.time + 0.5 * run.period)
    assert (middle.batch_queue > 0).all()
    assert (middle.backlog[~s.mask[:, None].expand_as(middle.backlog)] == 0).all()
    end = aimd.sample(run, run.final_time[:, None] + torch.tensor([0.0, 10.0], dtype=torch.float64))
    assert torch.equal(end.backlog, run.final_backlog[:, None].expand(-1, 2, -1))
    assert torch.equal(end.admission, run.final_admission[:, None].expand(-1, 2, -1))
    assert (end.batch_queue == 0).all()
    shared = aimd.sample(run, torch.tensor([0.1, 0.2], dtype=torch.float64))
    assert shared.backlog.shape == (5, 2, 3)
    assert shared.batch_queue.shape == (5, 2)


def test_sample_of_one_system_before_its_first_event_and_when_idle():
    one = torch.ones(1, dtype=torch.float64)
    times = torch.tensor([0.0, 5.0, 8.0], dtype=torch.float64)
    rate = aimd.PiecewiseRate(times, torch.tensor([0.0, 4.0, 0.0], dtype=torch.float64))
    run = aimd.simulate(2 * one, 0 * one, rate, one, one, 3)
    state = aimd.sample(run, torch.tensor([1.0, 6.0, 100.0], dtype=torch.float64))
    assert state.event.tolist()[:2] == [-1, 0]
    assert state.admission[:, 0].tolist() == [0.0, 2.0, run.final_admission.item()]
    close("step backlog", state.backlog[0], [1.0])
    close("step backlog", state.batch_queue, [0.0, 3.0, 0.0])
    assert state.backlog[2] == run.final_backlog


def test_sample_needs_all_events_and_times():
    s = systems(2, 2)
    for record in ("last", 2):
        with pytest.raises(InputError, match='record="all"'):
            aimd.sample(aimd.simulate(*s[:5], events=4, record=record), torch.zeros(1, dtype=torch.float64))
    run = aimd.simulate(*s[:5], events=4)
    with pytest.raises(InputError, match="t must be >= 0"):
        aimd.sample(run, torch.tensor([-1.0]))
    with pytest.raises(InputError, match="shapes do not broadcast"):
        aimd.sample(run, torch.zeros(3, 1))


def test_queueing_time_is_zero_where_nothing_is_admitted():
    zero = torch.zeros(2, dtype=torch.float64)
    found = aimd.queueing_times(zero, zero, torch.tensor(1.0, dtype=torch.float64), zero, zero)
    assert found.total.tolist() == [0.0, 0.0]
    assert found.batch.tolist() == [0.0, 0.0]
