"""The service controller: gamma_hat, Theorem 3, the way into the invariant set, the 2-cycle, saturated backlogs."""

import itertools
import math

import pytest
import torch
from aimd_tools import DTYPES, close, systems

from idn_torch import aimd
from idn_torch.errors import InputError


def at_constant_period(batch=40, n=5, seed=0, backlog=200.0, headroom=None, events=60):
    """Systems started at their fixed point, so that T(k) = T* from the first event on."""
    s = systems(batch, n, seed=seed, backlog=backlog, headroom=headroom, beta=(0.0, 0.9))
    target = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate, s.u_max)
    run = aimd.simulate(s.alpha, s.beta, s.arrival_rate, target.admission, s.w0, events, s.u_max)
    return s, target, run


@pytest.mark.parametrize("dtype", DTYPES)
def test_gamma_hat_is_the_tangent(dtype):
    """The line gamma_hat tau stays below what is offered, w + a tau + alpha tau^2 / 2, and touches it at t_z."""
    s = systems(10, 4, dtype, seed=1)
    gamma = aimd.gamma_hat(s.u0, s.alpha, s.w0)
    t_z = (2 * s.w0 / s.alpha).sqrt()
    for part in torch.linspace(0, 3, 31).tolist():
        tau = part * t_z
        gap = s.w0 + s.u0 * tau + s.alpha / 2 * tau**2 - gamma * tau
        scale = s.w0 + s.u0 * tau + s.alpha / 2 * tau**2
        assert (gap >= -1e-6 * scale).all()
        if part == 1:
            assert (gap.abs() <= 1e-6 * scale).all()
        elif abs(part - 1) > 0.3:
            assert (gap > 1e-3 * s.w0).all()


def test_gamma_hat_with_a_cap_and_a_factor():
    args = (torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]), torch.tensor([4.0, 0.0]))
    assert aimd.gamma_hat(*args).tolist() == [5.0, 1.0]
    assert aimd.gamma_hat(*args, u_max=torch.tensor([3.0, 3.0]), factor=2.0).tolist() == [6.0, 2.0]


@pytest.mark.parametrize("headroom", [None, (1.01, 1.3), (1.3, 4.0)])
def test_theorem_3_within_a_cycle(headroom):
    """w(k) in W(k) implies w(k+1) in W(k), whatever the period does; also for the saturated W."""
    s = systems(60, 5, seed=2, backlog=4.0, headroom=headroom)
    rates = s.arrival_rate[:, None] * (
        0.5 + 0.49 * torch.rand(60, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    run = aimd.simulate(s.alpha, s.beta, rates, s.u0, s.w0, 40, s.u_max)
    a = run.admission * s.beta[:, None] ** run.drops[..., None]
    caps = (None, None) if s.u_max is None else (a, s.u_max[:, None])
    bound = aimd.invariant_bound(s.alpha[:, None], run.period, *caps)
    after = torch.cat([run.backlog[:, 1:], run.final_backlog[:, None]], 1)
    inside = run.backlog <= bound
    assert 0.2 < inside.double().mean() < 1
    assert (after <= bound * (1 + 1e-12))[inside].all()


def test_a_unit_may_leave_the_set_while_the_period_varies():
    """W(k) shrinks with T(k): Theorem 3 does not say w(k+1) in W(k+1)."""
    s = systems(200, 3, seed=3, backlog=1.0, start=0.0)
    run = aimd.simulate(*s[:5], events=20)
    inside = run.backlog <= aimd.invariant_bound(s.alpha[:, None], run.period)
    assert (inside[:, :-1] & ~inside[:, 1:]).any()


def test_number_of_cycles_until_the_invariant_set():
    s, target, run = at_constant_period()
    count = aimd.cycles_to_invariant(s.alpha, s.w0, target.period)
    assert count.max() > 5
    # A ratio q / T within rounding of a whole number may go either way.
    ratio = (2 * s.w0 / s.alpha).sqrt() / target.period[:, None]
    clear = (ratio - ratio.round()).abs() > 1e-6
    assert torch.equal(aimd.invariant_entry(run)[clear], count[clear])
    again = aimd.cycles_to_invariant(s.alpha, run.backlog[:, 1], target.period)
    assert torch.equal(again[clear], (count - 1).clamp(min=0)[clear])


@pytest.mark.parametrize("headroom", [(1.005, 1.1), (1.1, 1.5), (1.5, 6.0)])
def test_number_of_cycles_with_saturation(headroom):
    s, target, run = at_constant_period(seed=4, backlog=30.0, headroom=headroom, events=600)
    a = s.beta * target.admission
    count = aimd.cycles_to_invariant(s.alpha, s.w0, target.period, a, s.u_max)
    seen = aimd.invariant_entry(run)
    reached = seen >= 0
    assert (count >= 0).all()
    assert reached.double().mean() > 0.8
    assert torch.equal(seen >= 0, count < 600)
    # Backlogs that land on the border within rounding may be a cycle off.
    assert (seen == count)[reached].double().mean() > 0.99
    assert ((seen - count).abs() <= 1)[reached].all()
    assert len(count.unique()) > 5


def test_saturated_backlogs_stay_bounded():
    """Once q <= t_s (or in W) a backlog stays in [0, alpha/2 t (2T - t)], and it does not settle on a 2-cycle."""
    s, target, run = at_constant_period(seed=5, backlog=2.0, headroom=(1.01, 1.3), events=800)
    bound = aimd.invariant_bound(s.alpha, target.period, s.beta * target.admission, s.u_max)
    entered = aimd.invariant_entry(run)
    later = torch.arange(800)[None, :, None] >= entered[:, None]
    inside = run.backlog <= bound[:, None] * (1 + 1e-9)
    assert inside[later & (entered >= 0)[:, None]].all()
    assert ((run.final_backlog <= bound * (1 + 1e-9)) | (entered < 0)).all()
    tail = run.backlog[:, -100:]
    period_two = ((tail[:, 2:] - tail[:, :-2]).abs() < 1e-6 * bound[:, None]).all(1)
    assert target.saturated.sum() > 50
    assert period_two[target.saturated & (bound > 0)].double().mean() < 0.2
    assert period_two[~target.saturated & (entered >= 0) & (entered < 600)].all()


def test_the_backlog_ends_in_a_two_cycle():
    s, target, run = at_constant_period(seed=6, backlog=30.0)
    count = aimd.cycles_to_invariant(s.alpha, s.w0, target.period)
    cycle = aimd.two_cycle(s.alpha, s.w0, target.period)
    b, i = torch.meshgrid(torch.arange(40), torch.arange(5), indexing="ij")
    scale = aimd.invariant_bound(s.alpha, target.period)
    for m in range(4):
        expected = cycle.entered if m % 2 == 0 else cycle.between
        close("two cycle", run.backlog[b, count + m, i], expected, scale)
    q = (2 * cycle.entered / s.alpha).sqrt()
    assert ((q - target.period[:, None] / 2).abs() > 1e-3 * target.period[:, None]).double().mean() > 0.9


def test_queueing_time_on_the_two_cycle():
    """T_i in [alpha T^2 / (8 u_av), alpha T^2 / (4 u_av)], and both ends are attained."""
    s, target, run = at_constant_period(seed=7, backlog=1.0)
    middle = s.alpha * target.period[:, None] ** 2 / (8 * target.average_rate)
    inside = run.queueing_time[:, 2:]
    assert (inside >= middle[:, None] * (1 - 1e-9)).all()
    assert (inside <= 2 * middle[:, None] * (1 + 1e-9)).all()
    for w0, expected in ((0.0, 2.0), (0.25, 1.0)):
        start = w0 * aimd.invariant_bound(s.alpha, target.period)
        exact = aimd.simulate(*s[:3], target.admission, start, 6)
        close("step queueing_time", exact.queueing_time, (expected * middle)[:, None].expand(-1, 6, -1), middle.max())


def test_over_and_under_provisioning_within_a_cycle():
    """From the same state a faster service means shorter queues; over a run it need not (next test)."""
    s = systems(50, 4, seed=8, backlog=2.0)
    times, after = [], []
    for factor in (0.5, 0.9, 1.0, 1.1, 2.0):
        run = aimd.simulate(*s[:5], events=1, service_factor=factor)
        times.append(run.queueing_time[:, 0])
        after.append(run.final_backlog)
    exact = aimd.simulate(*s[:5], events=1)
    close("step queueing_time", times[2], exact.queueing_time[:, 0])
    close("step backlog", after[2], exact.final_backlog)
    for slow, fast in itertools.pairwise(range(5)):
        assert (times[fast] <= times[slow] * (1 + 1e-9)).all()
        assert (after[fast] <= after[slow] + 1e-9 * after[0].max()).all()
    assert (times[4] < 0.9 * times[2]).double().mean() > 0.9
    assert (times[0] > 1.1 * times[2]).double().mean() > 0.9


def test_over_provisioning_over_a_run():
    s = systems(20, 4, seed=8, backlog=1.0)
    args = (*s[:5], 400)
    exact = aimd.simulate(*args, record="summary")
    over = aimd.simulate(*args, record="summary", service_factor=1.5)
    assert torch.equal(over.final_admission, exact.final_admission)
    # A queue that ran dry starts the next cycle with little backlog and so with a slow service: the mean may rise.
    assert (over.summary.mean_system_queueing_time > exact.summary.mean_system_queueing_time).any()


@pytest.mark.parametrize("factor", [0.9, 0.3])
def test_under_provisioning_settles_outside_the_invariant_set(factor):
    """gamma = f (a + sqrt(2 alpha w)) grows with w: w settles where gamma = u_av, on a point and not a 2-cycle."""
    s, target, _ = at_constant_period(seed=9, backlog=1.0, events=1)
    run = aimd.simulate(*s[:3], target.admission, s.w0, 2000, record="last", service_factor=factor)
    a = s.beta * target.admission
    expected = (target.average_rate / factor - a) ** 2 / (2 * s.alpha)
    assert ((run.final_backlog - expected).abs() <= 1e-9 * expected).all()
    assert ((run.backlog[:, 0] - expected).abs() <= 1e-9 * expected).all()
    middle = aimd.invariant_bound(s.alpha, target.period) / 4
    assert (expected > middle).all()
    if factor == 0.3:
        assert (expected > 4 * middle).all()


def test_under_provisioning_of_a_saturated_unit_is_unbounded():
    """The cap u_max on gamma_hat takes that feedback away: with f u_max < u_av the backlog grows for ever."""
    one = torch.ones(1, dtype=torch.float64)
    run = aimd.simulate(one, one / 2, 0.9, one, one, 600, one, service_factor=0.5)
    growth = run.backlog[1:, 0] - run.backlog[:-1, 0]
    assert (growth[100:] > 0.3 * run.period[100:-1]).all()


def test_a_service_factor_per_unit():
    s = systems(5, 4, seed=8)
    args = (*s[:5], 50)
    runs = {f: aimd.simulate(*args, service_factor=f) for f in (1.5, 0.3)}
    mixed = aimd.simulate(*args, service_factor=torch.tensor([1.5, 0.3, 1.5, 0.3], dtype=torch.float64))
    for i, factor in enumerate((1.5, 0.3, 1.5, 0.3)):
        assert torch.equal(mixed.backlog[..., i], runs[factor].backlog[..., i])


def test_edge_values_of_the_counts():
    alpha = torch.tensor([2.0, 2.0, 0.0], dtype=torch.float64)
    backlog = torch.tensor([0.0, 4.0, 0.0], dtype=torch.float64)
    assert aimd.cycles_to_invariant(alpha, backlog, torch.tensor(1.0)).tolist() == [0, 1, 0]
    assert aimd.cycles_to_invariant(alpha, backlog, torch.tensor(0.0)).tolist() == [0, -1, 0]
    # u_max = a: the unit serves exactly what it admits and never drains.
    one = torch.ones(3, dtype=torch.float64)
    assert aimd.cycles_to_invariant(alpha, backlog, torch.tensor(1.0), one, one).tolist() == [0, -1, 0]
    assert aimd.invariant_bound(alpha, torch.tensor(3.0, dtype=torch.float64)).tolist() == [9.0, 9.0, 0.0]
    with pytest.raises(InputError, match="decreased and u_max together"):
        aimd.invariant_bound(alpha, torch.tensor(1.0), one)
    assert math.isclose(aimd.two_cycle(alpha, backlog, torch.tensor(1.0, dtype=torch.float64)).entered[1], 1.0)
