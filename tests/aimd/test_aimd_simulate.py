"""The simulation against the float64 loop reference, batched, padded, permuted, in both dtypes and both engines."""

import pytest
import torch
from aimd_tools import DTYPES, check_steps, clear_margin, close, lists, systems

from idn_torch import aimd
from idn_torch.aimd.reference import reference_simulate

EVENTS = 12


def run(s, events=EVENTS, **options):
    return aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, events, s.u_max, s.mask, **options)


def constant(s):
    return lambda b, k: [(0.0, s.arrival_rate[b].double().item())]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("headroom", [None, (1.02, 1.5), (1.5, 4.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_event_equals_the_reference_step(dtype, headroom, seed):
    s = systems(12, 6, dtype, seed=seed, headroom=headroom, min_units=1, beta=(0.0, 0.95), backlog=9.0)
    result = run(s)
    compared, skipped = check_steps(result, constant(s))
    assert compared == 12 * EVENTS - skipped
    assert skipped <= 0.03 * 12 * EVENTS
    assert (result.status == aimd.Status.OK).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_runs_equal_the_reference(dtype):
    """Without saturation errors do not grow from event to event, so whole trajectories can be compared."""
    s = systems(10, 5, dtype, seed=3)
    result = run(s, 40)
    compared = 0
    for b in range(10):
        expected = reference_simulate(
            lists(s.alpha[b]), lists(s.beta[b]), s.arrival_rate[b].double().item(), lists(s.u0[b]), lists(s.w0[b]), 40
        )
        if expected.margin < clear_margin(dtype):
            continue
        compared += 1
        assert result.drops[b].tolist() == expected.drops
        close("run period", result.period[b], expected.period)
        close("run admission", result.admission[b], expected.admission)
        close("run admission", result.final_admission[b], expected.final_admission)
        scale = torch.tensor(expected.backlog, dtype=torch.float64).amax(0)
        close("run backlog", result.backlog[b], expected.backlog, scale)
        close("run backlog", result.final_backlog[b], expected.final_backlog, scale)
        close("run backlog", result.service_rate[b], expected.service_rate)
        close("run backlog", result.queueing_time[b], expected.queueing_time)
        close("run period", result.time[b], expected.time)
    assert compared >= 9


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_rate_per_event(dtype):
    s = systems(6, 4, dtype, seed=5)
    factors = 0.3 + 2 * torch.rand(6, EVENTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rates = s.arrival_rate[:, None] * factors.to(dtype)
    result = aimd.simulate(s.alpha, s.beta, rates, s.u0, s.w0, EVENTS)
    compared, _ = check_steps(result, lambda b, k: [(0.0, rates[b, k].double().item())])
    assert compared >= 0.95 * 6 * EVENTS
    explicit = aimd.simulate(s.alpha, s.beta, aimd.EventRate(rates), s.u0, s.w0, EVENTS)
    assert torch.equal(explicit.period, result.period)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
def test_arrivals_are_admitted_exactly(dtype, headroom):
    """Eq. (15): what is admitted in a cycle is what arrived in it; Eq. (49)."""
    s = systems(50, 8, dtype, seed=7, headroom=headroom, min_units=2)
    result = run(s, 30, record="summary")
    arrived = s.arrival_rate.double() * result.summary.elapsed.double()
    close("conservation", result.summary.admitted.sum(-1), arrived, arrived)


@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
def test_a_batch_equals_its_systems_one_by_one(headroom):
    s = systems(7, 5, seed=11, headroom=headroom)
    whole = run(s)
    for b in range(7):
        alone = aimd.simulate(
            s.alpha[b],
            s.beta[b],
            s.arrival_rate[b],
            s.u0[b],
            s.w0[b],
            EVENTS,
            None if s.u_max is None else s.u_max[b],
        )
        assert alone.admission.shape == (EVENTS, 5)
        assert alone.period.shape == (EVENTS,)
        assert alone.status.shape == ()
        close("step period", alone.period, whole.period[b])
        close("step admission", alone.admission, whole.admission[b])
        close("run backlog", alone.backlog[:3], whole.backlog[b, :3])


@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
def test_padding_changes_nothing_and_returns_zeros(headroom):
    s = systems(6, 4, seed=13, headroom=headroom)
    plain = run(s)

    def pad(value, fill):
        return torch.cat([value, torch.full((6, 3), fill, dtype=value.dtype)], 1)

    mask = torch.cat([torch.ones(6, 4, dtype=torch.bool), torch.zeros(6, 3, dtype=torch.bool)], 1)
    # What stands in masked entries must not matter, NaN included.
    padded = aimd.simulate(
        pad(s.alpha, float("nan")),
        pad(s.beta, 7.0),
        s.arrival_rate,
        pad(s.u0, -1.0),
        pad(s.w0, float("nan")),
        EVENTS,
        None if s.u_max is None else pad(s.u_max, -5.0),
        mask,
    )
    close("step period", padded.period, plain.period)
    assert torch.equal(padded.drops, plain.drops)
    for name in ("admission", "backlog", "service_rate", "queueing_time"):
        value = getattr(padded, name)
        assert (value[..., 4:] == 0).all()
        close("step backlog", value[:, :2, :4], getattr(plain, name)[:, :2])
    assert (padded.final_admission[:, 4:] == 0).all()
    assert (padded.final_backlog[:, 4:] == 0).all()


def test_permuting_units_permutes_the_result():
    s = systems(6, 5, seed=17, headroom=(1.2, 2.0))
    order = torch.tensor([3, 0, 4, 1, 2])
    plain = run(s)
    moved = aimd.simulate(
        s.alpha[:, order], s.beta[:, order], s.arrival_rate, s.u0[:, order], s.w0[:, order], EVENTS, s.u_max[:, order]
    )
    close("step period", moved.period, plain.period)
    close("step admission", moved.admission, plain.admission[..., order])
    close("run backlog", moved.backlog[:, :3], plain.backlog[:, :3, order])


def test_leading_dims_broadcast():
    s = systems(3, 4, seed=19)
    rates = torch.stack([s.arrival_rate, s.arrival_rate * 2])  # (2, 3)
    result = aimd.simulate(s.alpha, s.beta[0], aimd.EventRate(rates[..., None]), s.u0[:1], s.w0[0], 4)
    assert result.period.shape == (2, 3, 4)
    assert result.admission.shape == (2, 3, 4, 4)
    assert result.final_backlog.shape == (2, 3, 4)
    alone = aimd.simulate(s.alpha[2], s.beta[0], rates[1, 2], s.u0[0], s.w0[0], 4)
    close("step admission", result.admission[1, 2], alone.admission)
    grid = aimd.simulate(s.alpha[0], s.beta[0], rates, s.u0[0], s.w0[0], 4)
    assert grid.period.shape == (2, 3, 4)
    close(
        "step period", grid.period[1, 2], aimd.simulate(s.alpha[0], s.beta[0], rates[1, 2], s.u0[0], s.w0[0], 4).period
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_is_kept_and_no_gradient_leaks(dtype):
    s = systems(2, 3, dtype, headroom=(1.5, 2.0))
    alpha, u0 = s.alpha.requires_grad_(), s.u0.requires_grad_()
    result = aimd.simulate(alpha, s.beta, s.arrival_rate, u0, s.w0, 3, s.u_max, record="all")
    for name in ("period", "admission", "backlog", "service_rate", "queueing_time", "final_admission", "final_backlog"):
        value = getattr(result, name)
        assert value.dtype == dtype
        assert not value.requires_grad
    for name in ("drops", "status", "events"):
        assert getattr(result, name).dtype == torch.int64
    assert not aimd.fixed_point(alpha, s.beta, s.arrival_rate).admission.requires_grad
    assert not aimd.transition_matrix(alpha, s.beta).requires_grad


def test_inputs_are_not_modified():
    s = systems(2, 3)
    kept = [v.clone() for v in s[:5]]
    first = run(s, 0)
    first.final_admission.add_(1)
    run(s, 5)
    run(s, 5, engine="torch", record="last")
    assert all(torch.equal(a, b) for a, b in zip(kept, s[:5], strict=True))


@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
def test_record_modes_keep_the_same_events(headroom):
    s = systems(5, 4, seed=23, headroom=headroom)
    full = run(s, 11)
    assert full.events.tolist() == list(range(11))
    for record, kept in ((1, range(11)), (4, range(0, 11, 4)), ("last", [10]), ("summary", [10])):
        part = run(s, 11, record=record, engine="torch")
        assert part.events.tolist() == list(kept)
        for name in ("period", "drops", "admission", "backlog", "service_rate", "queueing_time", "time"):
            assert torch.equal(getattr(part, name), getattr(full, name)[:, list(kept)])
        assert torch.equal(part.final_backlog, full.final_backlog)
        assert torch.equal(part.final_time, full.final_time)
    assert full.summary is None
    close("step period", full.time[:, -1] + full.period[:, -1], full.final_time)


def test_zero_events_return_the_start():
    s = systems(2, 3)
    result = run(s, 0)
    assert result.period.shape == (2, 0)
    assert result.admission.shape == (2, 0, 3)
    assert torch.equal(result.final_admission, s.u0)
    close("step backlog", result.final_backlog, s.w0)
    assert run(s, 0, record="summary").summary.mean_period.tolist() == [0, 0]


@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
def test_summary_equals_the_sums_over_the_recorded_events(headroom):
    s = systems(6, 4, seed=29, headroom=headroom, min_units=2)
    full, short = run(s, 25), run(s, 25, record="summary", engine="torch")
    total = short.summary
    after = torch.cat([full.backlog[:, 1:], full.final_backlog[:, None]], 1)
    close("step period", total.elapsed, full.period.sum(-1))
    assert (total.cycles == 25).all()
    assert torch.equal(total.max_drops, full.drops.amax(-1))
    area = (full.backlog + after) / 2 * full.period[..., None]
    close("step backlog", total.request_seconds, area.sum(1))
    some = full.queueing_time > 0
    admitted = torch.where(some, area / torch.where(some, full.queueing_time, 1.0), 0.0).sum(1)
    close("step backlog", torch.where(s.mask, total.admitted, 0.0), admitted, admitted.max())
    close(
        "step backlog",
        total.max_backlog,
        torch.maximum(full.backlog[:, 1:].amax(1), torch.maximum(s.w0, after.amax(1))) * s.mask,
    )
    assert torch.equal(total.entered, aimd.invariant_entry(full))
    close("step backlog", total.mean_queueing_time, torch.where(admitted > 0, area.sum(1) / admitted, 0.0))
    close("step period", total.mean_period, full.period.mean(-1))
    close("conservation", total.mean_admission.sum(-1), s.arrival_rate, s.arrival_rate)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rates", ["constant", "per event"])
@pytest.mark.parametrize("headroom", [None, (1.05, 2.0)])
def test_engines_agree(dtype, rates, headroom):
    pytest.importorskip("numba")
    # 70 systems: two whole blocks of the kernel and a part of one, some frozen from the start, one by decreases.
    s = systems(70, 6, dtype, seed=31, headroom=headroom, min_units=1, backlog=9.0)
    rate = s.arrival_rate.clone()
    rate[3] = 0.0
    s.beta[40, 0], s.u0[40, 0] = 0.999, 1e4 * rate[40]
    if s.u_max is not None:
        s.u_max[5] /= 4
        s.u_max[40, 0] = 1e9 * rate[40]
    if rates == "per event":
        rate[3] = 1.0
        change = torch.rand(70, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rate = rate[:, None] * (0.8 + 0.4 * change).to(dtype)
    args = (s.alpha, s.beta, rate, s.u0, s.w0, 9, s.u_max, s.mask)
    plain = aimd.simulate(*args, record="summary", engine="torch", max_drops=600)
    fast = aimd.simulate(*args, record="summary", engine="numba", max_drops=600)
    # Float32 may settle a tie of the decrease differently.
    same = plain.summary.max_drops == fast.summary.max_drops
    assert same.float().mean() > 0.95
    assert torch.equal(plain.status, fast.status)
    assert {0, 3} <= set(plain.status.tolist())
    if rates == "constant":
        assert plain.status[3] == aimd.Status.IDLE
    if headroom is not None:
        assert plain.status[5] == aimd.Status.INFEASIBLE
    assert torch.equal(plain.summary.cycles, fast.summary.cycles)
    close("engine", fast.final_time[same], plain.final_time[same], plain.final_time[same].double() + 1e-30)
    close("engine", fast.final_admission[same], plain.final_admission[same])
    admitted = plain.summary.admitted[same].double()
    close("engine", fast.summary.admitted[same], admitted, admitted.amax(-1, keepdim=True))
    whole = aimd.simulate(*args, record=4, engine="numba", max_drops=600)
    other = aimd.simulate(*args, record=4, engine="torch", max_drops=600)
    close("engine", whole.period[same], other.period[same], other.period[same].double().amax(-1, keepdim=True))
    if headroom is not None:
        return  # A saturated backlog is chaotic: over a run the engines' rounding errors grow to its own size.
    assert torch.equal(plain.summary.entered[same], fast.summary.entered[same])
    for name in ("max_backlog", "request_seconds"):
        found, expected = getattr(fast.summary, name)[same], getattr(plain.summary, name)[same]
        close("engine", found, expected, expected.double().amax(-1, keepdim=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("headroom", [None, (1.02, 1.2), (1.2, 3.0)])
def test_one_event_of_the_compiled_engine_equals_one_of_torch(dtype, headroom):
    pytest.importorskip("numba")
    s = systems(40, 6, dtype, seed=37, headroom=headroom, min_units=1, backlog=9.0)
    full = run(s, 20, engine="torch")
    u, w = (torch.cat([value[:, k] for k in range(20)]) for value in (full.admission, full.backlog))
    many = [None if v is None else torch.cat([v] * 20) for v in s]
    args = (many[0], many[1], many[2], u, w, 2, many[5], many[6])
    plain = aimd.simulate(*args, record="summary", engine="torch")
    fast = aimd.simulate(*args, record="summary", engine="numba")
    # The kernel runs the first of the two events; what is recorded is the state after it.
    clear = plain.summary.max_drops == fast.summary.max_drops
    assert clear.double().mean() > 0.98
    reach = torch.maximum(w, aimd.invariant_bound(s.alpha, full.period.amax(1)).repeat(20, 1))[clear].double() + 1e-30
    close("step period", fast.time[clear, 0], plain.time[clear, 0])
    close("step admission", fast.admission[clear, 0], plain.admission[clear, 0])
    close("step backlog", fast.backlog[clear, 0], plain.backlog[clear, 0], 2 * reach)
    assert (fast.summary.entered == plain.summary.entered)[clear].double().mean() > 0.999
