"""Properties that hold for every system, looked for by hypothesis."""

import math

import torch
from aimd_tools import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_aimd_edges import assert_sane

from idn_torch import aimd
from idn_torch.aimd import Status
from idn_torch.aimd.period import two_branch_root

rates = st.floats(1e-3, 1e4)
betas = st.one_of(st.just(0.0), st.just(0.5), st.floats(0.0, 0.99))


@st.composite
def cases(draw, capped):
    n = draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(DTYPES))

    def column(values):
        return torch.tensor(draw(st.lists(values, min_size=n, max_size=n)), dtype=torch.float64).to(dtype)

    alpha, beta, u0 = column(rates), column(betas), column(st.one_of(st.just(0.0), rates))
    w0 = column(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)))
    if not capped:
        return alpha, beta, torch.tensor(draw(rates), dtype=dtype), u0, w0, None
    u_max = column(st.one_of(st.just(math.inf), rates))
    if draw(st.booleans()):
        u0 = torch.minimum(u0, u_max)
    total = min(float(u_max.sum()), 1e4)
    load = torch.tensor(total * draw(st.floats(1e-3, 0.99)), dtype=dtype)
    return alpha, beta, load, u0, w0, u_max


def check(case, events):
    alpha, beta, rate, u0, w0, u_max = case
    run = aimd.simulate(alpha, beta, rate, u0, w0, events, u_max)
    assert_sane(run)
    assert run.status == Status.OK
    eps = torch.finfo(rate.dtype).eps
    a = run.admission * beta ** run.drops[:, None]
    # The decreased rates stay below lambda, one decrease less would not have done.
    assert (a.sum(-1) < rate * (1 + 4 * eps)).all()
    again = run.drops > 1
    one_less = run.admission * beta ** (run.drops - 1)[:, None]
    assert (one_less.sum(-1) >= rate * (1 - 1e-6) * (1 - 50 * eps))[again].all()
    # Rates rise within a cycle, up to u_max.
    after = torch.cat([run.admission[1:], run.final_admission[None]])
    assert (after >= a * (1 - 4 * eps)).all()
    if u_max is not None:
        assert (after <= u_max).all()
    # Mean rates sum to lambda.
    ramp = run.period[:, None] if u_max is None else torch.minimum(run.period[:, None], (u_max - a) / alpha)
    mean = a + alpha * ramp * (1 - ramp / (2 * run.period[:, None]))
    assert ((mean.sum(-1) - rate).abs() <= 200 * eps * rate * len(alpha)).all()
    # Theorem 3.
    bound = aimd.invariant_bound(alpha, run.period, None if u_max is None else a, u_max)
    backlog = torch.cat([run.backlog[1:], run.final_backlog[None]])
    inside = run.backlog <= bound
    assert (backlog <= bound * (1 + 100 * eps))[inside].all()
    # Nothing is served that was not there: gamma T <= w + admitted.
    served = run.service_rate * run.period[:, None]
    offered = run.backlog + mean * run.period[:, None]
    assert (served <= offered * (1 + 200 * eps)).all()


@settings(max_examples=60, deadline=None)
@given(cases(capped=False))
def test_events_of_any_system(case):
    check(case, 12)


@settings(max_examples=60, deadline=None)
@given(cases(capped=True))
def test_events_of_any_saturating_system(case):
    check(case, 12)


@settings(max_examples=60, deadline=None)
@given(cases(capped=True))
def test_the_fixed_point_is_one(case):
    alpha, beta, rate, _, w0, u_max = case
    found = aimd.fixed_point(alpha, beta, rate, u_max)
    assert found.status == Status.OK
    run = aimd.simulate(alpha, beta, rate, found.admission, w0, 1, u_max)
    # sum a / lambda and the margin of the capacity set how far rounding moves the next state.
    eps = torch.finfo(rate.dtype).eps
    a = (beta * found.admission).sum()
    slack = (1 - a / rate).clamp(min=1e-9)
    margin = (u_max.sum() / rate - 1).clamp(max=1.0)
    allowed = 100 * len(alpha) * eps / slack / margin
    if allowed < 1e-2 and run.drops[0] == 1:
        assert (run.period[0] / found.period - 1).abs() <= allowed
        assert ((run.final_admission - found.admission).abs() <= allowed * found.admission.max()).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(rates, st.floats(0, 0.999)), min_size=1, max_size=6))
def test_phi_is_schur(units):
    alpha, beta = (torch.tensor(v, dtype=torch.float64) for v in zip(*units, strict=True))
    values = aimd.eigenvalues(alpha, beta)
    assert aimd.is_schur(alpha, beta)
    # At most one eigenvalue is below the smallest beta (a rank-one change moves each past one neighbour at most).
    ordered = beta.sort().values
    assert (values[1:] >= ordered[:-1] - 1e-9).all()
    assert (values <= ordered + 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1e6), st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_two_branch_root(a1, a2, a3):
    if a1 == 0 and a2 <= 0:
        return
    if a1 < 1e-6 and a2 <= 1e-6:
        return  # the root leaves the range of the numbers
    a1, a2, a3 = (torch.tensor(v, dtype=torch.float64) for v in (a1, a2, -a3))
    root = two_branch_root(a1, a2, a3)
    assert root >= 0
    terms = torch.stack([a1 * root * root, a2 * root, a3])
    assert terms.sum().abs() <= 1e-14 * terms.abs().max() + torch.finfo(torch.float64).tiny
    assert a1 * root * 2 + a2 >= 0  # the larger root


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_jain_index_lies_between_one_over_n_and_one(values):
    index = aimd.jain_index(torch.tensor(values, dtype=torch.float64))
    assert 1 / len(values) - 1e-12 <= index <= 1 + 1e-12
