"""Transition matrix, equilibrium, shares and feasibility, and the theorems in the form that the docstrings state."""

import itertools

import pytest
import torch
from aimd_tools import DTYPES, close, lists, systems

from idn_torch import aimd
from idn_torch.aimd.reference import reference_fixed_point
from idn_torch.errors import InputError


@pytest.mark.parametrize("dtype", DTYPES)
def test_transition_matrix_moves_the_rates(dtype):
    """Eq. (23): U+ = Phi U + 2 alpha_bar lambda, as long as one decrease suffices."""
    s = systems(20, 5, dtype, beta=(0.0, 0.49), start=0.5)
    run = aimd.simulate(*s[:5], events=4)
    assert (run.drops == 1).all()
    phi = aimd.transition_matrix(s.alpha, s.beta)
    assert phi.shape == (20, 5, 5)
    shift = 2 * s.alpha / s.alpha.sum(-1, keepdim=True) * s.arrival_rate[:, None]
    for k in range(3):
        expected = (phi @ run.admission[:, k, :, None])[..., 0] + shift
        close("conservation", run.admission[:, k + 1], expected, expected.abs().amax(-1, keepdim=True))


def test_transition_matrix_entries():
    alpha, beta = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0.5, 0.0, 0.25])
    phi = aimd.transition_matrix(alpha, beta)
    for i, j in itertools.product(range(3), range(3)):
        expected = (beta[i] if i == j else 0.0) - 2 * alpha[i] / alpha.sum() * beta[j]
        assert phi[i, j] == pytest.approx(float(expected), abs=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_are_those_of_phi_and_inside_the_unit_circle(dtype):
    """Theorems 1 and 2: real spectrum, Schur for all alpha > 0 and 0 <= beta < 1."""
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 7, 16):
        alpha = torch.exp(6 * torch.randn(30, n, generator=generator, dtype=torch.float64)).to(dtype)
        beta = torch.rand(30, n, generator=generator, dtype=torch.float64)
        beta = torch.where(beta < 0.2, 0.0, torch.where(beta > 0.9, 0.999, beta)).to(dtype)
        found = aimd.eigenvalues(alpha, beta)
        general = torch.linalg.eigvals(aimd.transition_matrix(alpha.double(), beta.double()))
        assert general.imag.abs().max() < 1e-6
        close("eigenvalue", found, general.real.sort(-1).values, 1.0)
        assert aimd.is_schur(alpha, beta).all()
        radius = aimd.spectral_radius(alpha, beta)
        close("eigenvalue", radius, general.abs().amax(-1), 1.0)
        assert torch.equal(aimd.convergence_rate(alpha, beta), -radius.log())


def test_spectral_radius_is_the_rate_of_convergence():
    s = systems(10, 4, seed=2, beta=(0.3, 0.9))
    target = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate)
    run = aimd.simulate(*s[:5], events=60)
    distance = (run.admission - target.admission[:, None]).norm(dim=-1)
    radius = aimd.spectral_radius(s.alpha, s.beta)
    # Phi is symmetric after scaling by D = sqrt(alpha / beta): in that norm every event (d = 1) contracts.
    scaled = ((run.admission - target.admission[:, None]) * (s.beta / s.alpha).sqrt()[:, None]).norm(dim=-1)
    ratio = scaled[:, 1:] / scaled[:, :-1]
    clear = (scaled[:, :-1] > 1e-6 * scaled[:, :1]) & (run.drops[:, :-1] == 1)
    assert clear.sum() > 100
    assert (ratio <= radius[:, None] * (1 + 1e-6))[clear].all()
    assert (distance[:, -1] <= 1e-3 * distance[:, 0]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("headroom", [None, (1.001, 1.05), (1.05, 3.0)])
def test_fixed_point_equals_the_reference(dtype, headroom):
    s = systems(40, 6, dtype, seed=4, headroom=headroom, beta=(0.0, 0.95))
    found = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate, s.u_max)
    for b in range(40):
        caps = None if s.u_max is None else lists(s.u_max[b])
        period, admission = reference_fixed_point(
            lists(s.alpha[b]), lists(s.beta[b]), s.arrival_rate[b].double().item(), caps
        )
        # Close to sum u_max = lambda the period is 1 / (sum u_max - lambda): the margin's own rounding counts.
        margin = 1.0 if s.u_max is None else (s.u_max[b].double().sum() / s.arrival_rate[b].double() - 1).clamp(max=1.0)
        close("fixed point", found.period[b], period, period / margin)
        close("fixed point", found.admission[b], admission, max(admission) / margin)
    close("fixed point", found.average_rate.sum(-1), s.arrival_rate, s.arrival_rate.double())
    assert (found.status == aimd.Status.OK).all()
    if headroom == (1.001, 1.05):
        assert found.saturated.double().mean() > 0.5


def test_corrected_equation_33():
    """T* = lambda / sum of terms; the printed sum of inverses is wrong."""
    alpha, beta = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([0.5, 0.2], dtype=torch.float64)
    terms = alpha / 2 * (1 + beta) / (1 - beta)
    found = aimd.fixed_point(alpha, beta, 10.0)
    run = aimd.simulate(alpha, beta, 10.0, alpha * 0, alpha * 0, 200, record="last")
    close("fixed point", found.period, 10 / terms.sum())
    close("fixed point", run.period[-1], 10 / terms.sum())
    assert abs(run.period[-1] - (10 / terms).sum()) > 1


@pytest.mark.parametrize("headroom", [None, (1.01, 1.2), (1.2, 3.0)])
def test_simulation_converges_to_the_fixed_point(headroom):
    s = systems(60, 5, seed=6, headroom=headroom, min_units=1, beta=(0.0, 0.9))
    target = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate, s.u_max)
    run = aimd.simulate(s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 3000, s.u_max, s.mask, record="last")
    margin = 1.0 if s.u_max is None else (s.u_max.sum(-1) / s.arrival_rate - 1).clamp(max=1.0)
    close("fixed point", run.period[:, -1], target.period, target.period / margin)
    scale = target.admission.amax(-1, keepdim=True) / (margin if s.u_max is None else margin[:, None])
    close("fixed point", run.final_admission, target.admission, scale)
    assert (run.drops == 1).all()


def test_fixed_point_without_an_equilibrium_is_a_status():
    alpha, beta = torch.ones(4, 2), torch.full((4, 2), 0.5)
    u_max = torch.tensor([[3.0, 3.0], [1.0, 1.0], [1.0, 1.5], [2.0, float("inf")]])
    rate = torch.tensor([0.0, 2.0, 2.0, 50.0])
    found = aimd.fixed_point(alpha, beta, rate, u_max)
    assert found.status.tolist() == [aimd.Status.IDLE, aimd.Status.INFEASIBLE, aimd.Status.OK, aimd.Status.OK]
    for b in (0, 1):
        assert found.period[b] == 0
        assert (found.admission[b] == 0).all()
        assert (found.average_rate[b] == 0).all()
    assert found.saturated.tolist() == [[False, False], [False, False], [True, True], [True, False]]
    for value in found[:3]:
        assert value.isfinite().all()


def test_padding_in_the_analysis():
    """Units with alpha = beta = 0 are padding, with or without a mask."""
    alpha = torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64)
    beta = torch.tensor([[0.5, 0.25, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    for given in (None, mask):
        padded = aimd.fixed_point(alpha, beta, 5.0, None, given)
        plain = aimd.fixed_point(alpha[:, :2], beta[:, :2], 5.0)
        close("fixed point", padded.period, plain.period)
        assert padded.admission[0, 2] == 0
        close("fixed point", padded.admission[:, :2], plain.admission)
        phi = aimd.transition_matrix(alpha, beta, given)
        close("fixed point", phi[:, :2, :2], aimd.transition_matrix(alpha[:, :2], beta[:, :2]))
        assert (phi[:, 2] == 0).all()
        assert (phi[:, :, 2] == 0).all()
        close("eigenvalue", aimd.spectral_radius(alpha, beta, given), aimd.spectral_radius(alpha[:, :2], beta[:, :2]))
    capped = aimd.fixed_point(alpha, beta, 5.0, torch.full_like(alpha, 4.0), mask)
    close("fixed point", capped.period, aimd.fixed_point(alpha[:, :2], beta[:, :2], 5.0, alpha[:, :2] * 0 + 4).period)
    assert capped.admission[0, 2] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_shares_are_met(dtype):
    generator = torch.Generator().manual_seed(3)
    shares = torch.rand(9, 4, generator=generator, dtype=torch.float64).to(dtype)
    shares = shares / shares.sum(-1, keepdim=True)
    beta = (0.9 * torch.rand(9, 4, generator=generator, dtype=torch.float64)).to(dtype)
    rate, period = torch.linspace(1, 500, 9).to(dtype), torch.linspace(0.1, 9, 9).to(dtype)
    alpha = aimd.alpha_for_shares(3 * shares, beta, rate, period)
    found = aimd.fixed_point(alpha, beta, rate)
    close("fixed point", found.period, period)
    close("fixed point", found.average_rate / rate[:, None], shares)
    with pytest.raises(InputError, match=r"shares is -1 at system 2, unit 1"):
        aimd.alpha_for_shares(torch.where(torch.arange(36).reshape(9, 4) == 9, -1.0, shares), beta, rate, period)
    with pytest.raises(InputError, match="sum of shares is 0 at system 4"):
        aimd.alpha_for_shares(shares * (torch.arange(9) != 4)[:, None], beta, rate, period)
    with pytest.raises(InputError, match="period is 0"):
        aimd.alpha_for_shares(shares, beta, rate, 0.0)


def test_capacity_margin():
    u_max = torch.tensor([[1.0, 2.0], [1.0, float("inf")]])
    margin = aimd.capacity_margin(torch.tensor([3.0, 100.0]), u_max)
    assert margin.tolist() == [0.0, float("inf")]
    assert aimd.capacity_margin(1.0, u_max, torch.tensor([True, False])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_near_infeasible_is_still_finite_and_positive(dtype):
    u_max = torch.tensor([[1.0, 1.0]], dtype=dtype)
    rate = torch.nextafter(torch.tensor([2.0], dtype=dtype), torch.tensor([0.0], dtype=dtype))
    alpha, beta = torch.ones_like(u_max), torch.full_like(u_max, 0.5)
    found = aimd.fixed_point(alpha, beta, rate, u_max)
    assert found.status.item() == aimd.Status.OK
    # T (sum u_max - lambda) = sum ((1 - beta) u_max)^2 / (2 alpha).
    close("fixed point", found.period, 0.25 / (2 - rate.double()))
    assert (found.admission == u_max).all()
