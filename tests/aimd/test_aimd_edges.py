"""Edge cases: what must be a status, what must be an error, and that nothing is ever NaN or negative."""

import math

import pytest
import torch
from aimd_tools import DTYPES, check_steps, close, systems

from idn_torch import aimd
from idn_torch.aimd import Status
from idn_torch.errors import InputError

FIELDS = ("period", "admission", "backlog", "service_rate", "queueing_time", "time", "final_admission", "final_backlog")


def assert_sane(run):
    for name in FIELDS:
        value = getattr(run, name)
        assert value.isfinite().all(), name
        assert (value >= 0).all(), name
    live = run.drops > 0
    assert (run.period[live] > 0).all()
    assert (run.period[~live] == 0).all()
    assert (run.drops >= 0).all()


def tensor(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999])
def test_rate_equal_to_the_decreased_sum(dtype, beta):
    """lambda = sum beta u exactly, one ulp below and above: T would be 0. One more decrease, no tiny cycles."""
    alpha, b = tensor(1.0, 2.0, dtype=dtype), torch.full((2,), beta, dtype=dtype)
    u = tensor(3.0, 5.0, dtype=dtype)
    exact = (b * u).sum() if beta > 0 else tensor(1e-3, dtype=dtype)[0]
    for rate in (exact, exact.nextafter(exact * 0), exact.nextafter(exact * 2), exact * (1 + 1e-6), exact * (1 + 4e-6)):
        run = aimd.simulate(alpha, b, rate, u, u * 0, 50)
        assert_sane(run)
        assert run.status == Status.OK
        target = aimd.fixed_point(alpha, b, rate).period
        # At worst one cycle of the guard's size, and then cycles of the usual length.
        assert run.period[0] > 0.5e-6 * rate / (alpha.sum() / 2)
        assert (run.period[1:] > 1e-3 * target).all()
        if beta > 0 and rate <= exact:
            assert run.drops[0] >= 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_of_the_rate_down_and_up(dtype):
    """lambda below sum beta u takes several decreases; then the system settles at the new equilibrium."""
    s = systems(8, 4, dtype, seed=1)
    rates = s.arrival_rate[:, None].repeat(1, 60)
    rates[:, 20:40] /= 1000
    run = aimd.simulate(s.alpha, s.beta, rates, s.u0, s.w0, 60)
    assert_sane(run)
    assert (run.drops[:, 20] > 1).all()
    assert (run.drops[:, 39] == 1).all()
    compared, skipped = check_steps(run, lambda b, k: [(0.0, rates[b, k].double().item())])
    assert skipped < 0.02 * compared


def test_idle_for_ever():
    s = systems(3, 2)
    run = aimd.simulate(s.alpha, s.beta, tensor(0.0, 5.0, 0.0), s.u0, s.w0, 6, record="all")
    assert run.status.tolist() == [Status.IDLE, Status.OK, Status.IDLE]
    assert_sane(run)
    for b in (0, 2):
        assert (run.period[b] == 0).all()
        assert (run.drops[b] == 0).all()
        assert (run.service_rate[b] == 0).all()
        assert (run.queueing_time[b] == 0).all()
        assert (run.admission[b] == s.u0[b]).all()
        close("step backlog", run.backlog[b], s.w0[b].expand(6, 2))
        assert torch.equal(run.final_admission[b], s.u0[b])
    close("step period", run.period[1], aimd.simulate(s.alpha[1], s.beta[1], 5.0, s.u0[1], s.w0[1], 6).period)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infeasible_systems_are_frozen_and_leave_the_others_alone(dtype):
    s = systems(4, 3, dtype, seed=2, headroom=(1.5, 2.0))
    u_max = s.u_max.clone()
    u_max[1] *= 0.4
    rate = s.arrival_rate.clone()
    rate[2] = u_max[2].sum()  # equality is infeasible
    run = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 8, u_max)
    assert run.status.tolist() == [Status.OK, Status.INFEASIBLE, Status.INFEASIBLE, Status.OK]
    assert_sane(run)
    for b in (1, 2):
        assert (run.period[b] == 0).all()
        assert torch.equal(run.final_admission[b], torch.minimum(s.u0[b], u_max[b]))
    check_steps(run, lambda b, k: [(0.0, rate[b].double().item())])


def test_a_rate_that_becomes_infeasible_freezes_from_there():
    s = systems(2, 3, seed=3, headroom=(1.5, 2.0))
    rates = s.arrival_rate[:, None].repeat(1, 9)
    rates[0, 4] *= 10
    run = aimd.simulate(s.alpha, s.beta, rates, s.u0, s.w0, 9, s.u_max)
    assert run.status.tolist() == [Status.INFEASIBLE, Status.OK]
    assert (run.period[0, :4] > 0).all()
    assert (run.period[0, 4:] == 0).all()
    assert torch.equal(run.final_admission[0], run.admission[0, 4])
    assert_sane(run)


def test_decrease_limit():
    alpha, beta = torch.ones(2, 1, dtype=torch.float64), tensor(0.999, 0.5)[:, None]
    u0 = torch.full((2, 1), 1000.0, dtype=torch.float64)
    run = aimd.simulate(alpha, beta, 1.0, u0, u0 * 0, 5, max_drops=100)
    assert run.status.tolist() == [Status.DECREASE_LIMIT, Status.OK]
    assert torch.equal(run.final_admission[0], u0[0])
    assert run.drops[0].tolist() == [0] * 5
    assert run.drops[1, 0] == 10
    assert_sane(run)
    needed = math.ceil(math.log(1000 / (1 - 1e-6)) / -math.log(0.999))
    for limit, status in ((needed - 1, Status.DECREASE_LIMIT), (needed, Status.OK), (needed + 1, Status.OK)):
        run = aimd.simulate(alpha[:1], beta[:1], 1.0, u0[:1], u0[:1] * 0, 1, max_drops=limit)
        assert run.status.item() == status
        assert run.drops.item() == (needed if status == Status.OK else 0)


def test_nothing_at_the_start():
    """u = w = 0: the first cycle starts from rate 0."""
    one = torch.ones(3, dtype=torch.float64)
    run = aimd.simulate(one, one / 2, 6.0, one * 0, one * 0, 3)
    assert_sane(run)
    close("step period", run.period[0], 4.0)
    assert run.service_rate[0].tolist() == [0.0, 0.0, 0.0]
    close("step admission", run.admission[1], 4 * one)
    close("step backlog", run.backlog[1], 8 * one)


def test_start_above_u_max():
    s = systems(5, 3, seed=4, headroom=(1.2, 2.0))
    run = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u_max * 7, s.w0, 10, s.u_max)
    same = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u_max, s.w0, 10, s.u_max)
    assert torch.equal(run.admission, same.admission)
    assert (run.admission <= s.u_max[:, None]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_unit(dtype):
    """n = 1: U+ = 2 lambda - a."""
    run = aimd.simulate(
        tensor(2.0, dtype=dtype), tensor(0.25, dtype=dtype), 3.0, tensor(1.0, dtype=dtype), tensor(0.0, dtype=dtype), 40
    )
    close("step admission", run.admission[1], tensor(6 - 0.25))
    close("run admission", run.final_admission, tensor(2 * 3.0 / 1.25))
    assert_sane(run)


def test_beta_zero_restarts_from_nothing():
    s = systems(4, 3, seed=5, beta=(0.0, 0.0))
    run = aimd.simulate(*s[:5], events=5)
    assert (run.drops == 1).all()
    expected = 2 * s.arrival_rate / s.alpha.sum(-1)
    close("step period", run.period, expected[:, None].expand(-1, 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capped", [False, True])
def test_backlog_far_outside_the_invariant_set(dtype, capped):
    s = systems(6, 3, dtype, seed=6, headroom=(1.1, 1.4) if capped else None)
    run = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0 * 0 + 1e9, 30, s.u_max)
    assert_sane(run)
    if not capped:
        assert (run.final_backlog < run.backlog[:, 0]).all()
    check_steps(run, lambda b, k: [(0.0, s.arrival_rate[b].double().item())])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_unit_with_capacity_zero_and_one_without_bound(dtype):
    alpha, beta = torch.ones(3, dtype=dtype), torch.full((3,), 0.5, dtype=dtype)
    u_max = tensor(0.0, math.inf, 2.0, dtype=dtype)
    run = aimd.simulate(alpha, beta, 9.0, alpha, alpha, 300, u_max)
    assert_sane(run)
    assert (run.admission[:, 0] == 0).all()
    close("step backlog", run.final_backlog[0], 1.0)
    found = aimd.fixed_point(alpha, beta, 9.0, u_max)
    close("run admission", run.final_admission, found.admission)


@pytest.mark.parametrize("capped", [False, True])
def test_extreme_scales_stay_finite(capped):
    for dtype in DTYPES:
        big = 1e12 if dtype == torch.float32 else 1e100
        for scale in (1 / big, big):
            s = systems(5, 4, dtype, seed=7, headroom=(1.1, 2.0) if capped else None)
            u_max = None if s.u_max is None else s.u_max * scale
            # All rates times `scale`: periods stay, counts scale.
            run = aimd.simulate(s.alpha * scale, s.beta, s.arrival_rate * scale, s.u0 * scale, s.w0 * scale, 20, u_max)
            plain = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 20, s.u_max)
            assert_sane(run)
            assert (run.status == Status.OK).all()
            close("run period", run.period, plain.period.double(), plain.period.double())


def test_period_below_the_smallest_number_is_a_status():
    tiny = torch.full((1,), 1e-30, dtype=torch.float32)
    run = aimd.simulate(torch.full((1,), 1e30), tiny * 0, 1e-30, tiny * 0, tiny * 0, 3)
    assert run.status == Status.NUMERICAL
    assert (run.period == 0).all()
    assert run.final_admission.isfinite().all()


def test_systems_without_units():
    alpha, beta = torch.ones(2, 2), torch.full((2, 2), 0.5)
    mask = torch.tensor([[False, False], [True, False]])
    run = aimd.simulate(alpha, beta, torch.tensor([3.0, 3.0]), alpha, alpha, 4, mask=mask)
    assert run.status.tolist() == [Status.INFEASIBLE, Status.OK]
    assert (run.admission[0] == 0).all()
    assert (run.final_backlog[0] == 0).all()
    assert_sane(run)
    idle = aimd.simulate(alpha, beta, torch.tensor([0.0, 3.0]), alpha, alpha, 4, mask=mask)
    assert idle.status.tolist() == [Status.IDLE, Status.OK]
    empty = aimd.simulate(alpha[:0], beta[:0], torch.ones(0), alpha[:0], alpha[:0], 4)
    assert empty.period.shape == (0, 4)
    assert empty.admission.shape == (0, 4, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": (1, 0, 0.0)}, r"alpha is 0 at system 1, unit 0; must be > 0.*mask"),
        ({"alpha": (1, 0, -2.0)}, r"alpha is -2 at system 1, unit 0"),
        ({"alpha": (0, 1, math.nan)}, r"alpha is nan at system 0, unit 1"),
        ({"alpha": (0, 1, math.inf)}, r"alpha is inf"),
        ({"beta": (1, 1, 1.0)}, r"beta is 1 at system 1, unit 1; must be in \[0, 1\)"),
        ({"beta": (1, 1, -0.1)}, r"beta is -0.1 at system 1, unit 1"),
        ({"beta": (1, 1, math.nan)}, r"beta is nan"),
        ({"u0": (1, 0, -1.0)}, r"u0 is -1 at system 1, unit 0; must be >= 0"),
        ({"u0": (1, 0, math.inf)}, r"u0 is inf"),
        ({"w0": (0, 0, math.nan)}, r"w0 is nan at system 0, unit 0"),
        ({"u_max": (0, 1, -1.0)}, r"u_max is -1 at system 0, unit 1"),
        ({"u_max": (0, 1, math.nan)}, r"u_max is nan"),
    ],
)
def test_wrong_values_name_system_and_unit(change, message):
    given = {name: torch.full((2, 2), 0.5) for name in ("alpha", "beta", "u0", "w0", "u_max")}
    ((name, (b, i, value)),) = change.items()
    given[name][b, i] = value
    with pytest.raises(InputError, match=message):
        aimd.simulate(arrival_rate=0.7, events=3, **given)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (-1.0, r"arrival_rate is -1 at the system; must be >= 0"),
        (math.nan, r"arrival_rate is nan"),
        (torch.tensor([1.0, -2.0]), r"arrival_rate is -2 at system 1;"),
        (torch.tensor([1.0, math.inf]), r"arrival_rate is inf at system 1;"),
        (torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]), r"arrival_rate is 0 at system 1, event 1; .*PiecewiseRate"),
        (torch.ones(2, 4), r"one rate per event, but there are 3 events"),
        (torch.ones(3), r"shapes do not broadcast: alpha \(2,\), arrival_rate \(3,\)"),
        (torch.ones(2, dtype=torch.float64), r"arrival_rate is torch.float64 .* alpha is torch.float32"),
        (torch.ones(2, dtype=torch.int64), r"arrival_rate is torch.int64; use float32 or float64"),
        ("fast", r"arrival_rate is str"),
    ],
)
def test_wrong_rates(rate, message):
    value = torch.full((2, 2), 0.5)
    with pytest.raises(InputError, match=message):
        aimd.simulate(value, value, rate, value, value, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": torch.tensor(1.0)}, r"alpha \(\) has no units"),
        ({"alpha": torch.ones(2, 0)}, r"alpha \(2, 0\) has no units"),
        ({"alpha": [1.0]}, r"alpha is list; expected a tensor"),
        ({"alpha": torch.ones(2, 2, dtype=torch.float16)}, r"alpha is torch.float16; use float32 or float64"),
        ({"beta": torch.zeros(2, 2, dtype=torch.float64)}, r"beta is torch.float64 .* convert"),
        ({"beta": torch.zeros(2, 3)}, r"shapes do not broadcast: alpha \(2, 2\), beta \(2, 3\)"),
        ({"u0": torch.zeros(2, 3)}, r"u0 \(2, 3\) must end in the 2 units"),
        ({"w0": torch.zeros(3, 2)}, r"shapes do not broadcast: alpha \(2, 2\), w0 \(3, 2\)"),
        ({"w0": torch.tensor(0.0)}, r"w0 \(\) must end in the 2 units"),
        ({"mask": torch.ones(2, 2)}, r"mask must be a bool tensor"),
        ({"events": -1}, r"events is -1"),
        ({"events": 2.5}, r"events is 2.5"),
        ({"max_drops": 0}, r"max_drops is 0"),
        ({"record": "some"}, r"record is 'some'; use 'all', 'last', 'summary'"),
        ({"record": 0}, r"record is 0"),
        ({"engine": "cuda"}, r"engine is 'cuda'; use 'auto', 'torch' or 'numba'"),
        ({"service_factor": 0.0}, r"service_factor is 0 at system 0, unit 0; must be > 0"),
        ({"service_factor": torch.ones(2, dtype=torch.float64)}, r"service_factor is torch.float64"),
    ],
)
def test_wrong_arguments(change, message):
    value = torch.full((2, 2), 0.5)
    given = {"alpha": value, "beta": value, "arrival_rate": 1.0, "u0": value, "w0": value, "events": 3, **change}
    with pytest.raises(InputError, match=message):
        aimd.simulate(**given)


def test_numba_where_it_cannot_run():
    value = torch.full((2, 2), 0.5)
    rate = aimd.PiecewiseRate(torch.zeros(1), torch.ones(1))
    with pytest.raises(InputError, match="engine 'numba' cannot run this: the arrival rate is piecewise"):
        aimd.simulate(value, value, rate, value, value, 3, engine="numba")
    with pytest.raises(InputError, match="service_factor is given"):
        aimd.simulate(value, value, 1.0, value, value, 3, engine="numba", service_factor=1.1)
