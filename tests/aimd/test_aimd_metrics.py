"""Fairness, settling, random systems."""

import pytest
import torch
from aimd_tools import DTYPES, close, systems

from idn_torch import aimd
from idn_torch.errors import InputError


@pytest.mark.parametrize("dtype", DTYPES)
def test_jain_index(dtype):
    x = torch.tensor(
        [[1.0, 1.0, 1.0, 1.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]], dtype=dtype
    )
    close("conservation", aimd.jain_index(x), [1.0, 0.25, 1.0, 100 / 120])
    close("conservation", aimd.jain_index(x * 1e-30), [1.0, 0.25, 1.0, 100 / 120])
    mask = torch.tensor([True, True, False, False])
    close("conservation", aimd.jain_index(x, mask), [1.0, 0.5, 1.0, 0.9])
    assert aimd.jain_index(x, mask & False).tolist() == [1.0] * 4


def test_equal_units_get_equal_shares():
    """Fairness of AIMD: units with equal parameters end with equal rates wherever they start."""
    s = systems(4, 6, seed=1)
    alike = torch.ones_like(s.alpha)
    run = aimd.simulate(alike, alike / 2, s.arrival_rate, s.u0 * torch.arange(6), s.w0, 80, record="summary")
    close("run admission", aimd.jain_index(run.final_admission), torch.ones(4))
    assert (aimd.jain_index(s.u0 * torch.arange(6)) < 0.9).all()


def test_settling_event():
    s = systems(5, 3, seed=2)
    target = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate).period
    run = aimd.simulate(*s[:5], events=80)
    found = aimd.settling_event(run, target, rtol=1e-4)
    off = (run.period / target[:, None] - 1).abs()
    for b in range(5):
        k = found[b].item()
        assert 0 < k < 80
        assert (off[b, k:] <= 1e-4).all()
        assert off[b, k - 1] > 1e-4
    assert (aimd.settling_event(run, target * 2) == -1).all()
    every_third = aimd.simulate(*s[:5], events=80, record=3)
    coarse = aimd.settling_event(every_third, target, rtol=1e-4)
    assert ((coarse >= found) & (coarse < found + 3) & (coarse % 3 == 0)).all()
    assert (aimd.settling_event(aimd.simulate(*s[:5], events=0), target) == -1).all()
    with pytest.raises(InputError, match="rtol is 0"):
        aimd.settling_event(run, target, 0.0)


def test_invariant_entry_of_a_sparse_record():
    s = systems(6, 3, seed=3, backlog=200.0)
    full = aimd.invariant_entry(aimd.simulate(*s[:5], events=60))
    sparse = aimd.invariant_entry(aimd.simulate(*s[:5], events=60, record=4))
    assert full.max() > 6
    assert (sparse >= full)[sparse >= 0].all()
    none = aimd.invariant_entry(aimd.simulate(*s[:4], s.w0 + 1e12, events=3))
    assert (none == -1).all()
    with pytest.raises(InputError, match="slack"):
        aimd.invariant_entry(aimd.simulate(*s[:5], events=2), -1.0)


def test_random_systems_are_what_they_say():
    s = systems(
        300, 6, seed=4, alpha=(0.5, 2.0), beta=(0.2, 0.7), arrival_rate=(3.0, 30.0), headroom=(1.5, 2.0), min_units=2
    )
    units = s.mask.sum(-1)
    assert units.min() == 2
    assert units.max() == 6
    assert ((s.alpha >= 0.5) & (s.alpha <= 2.0))[s.mask].all()
    assert ((s.beta >= 0.2) & (s.beta <= 0.7))[s.mask].all()
    for value in (s.alpha, s.beta, s.u0, s.w0, s.u_max):
        assert (value[~s.mask] == 0).all()
    headroom = s.u_max.sum(-1) / s.arrival_rate
    assert ((headroom > 1.49) & (headroom < 2.01)).all()
    period = aimd.fixed_point(s.alpha, s.beta, s.arrival_rate, mask=s.mask).period
    assert (s.w0 <= 4.001 * aimd.invariant_bound(s.alpha, period)).all()
    again = systems(
        300,
        6,
        torch.float32,
        seed=4,
        alpha=(0.5, 2.0),
        beta=(0.2, 0.7),
        arrival_rate=(3.0, 30.0),
        headroom=(1.5, 2.0),
        min_units=2,
    )
    assert torch.equal(again.alpha, s.alpha.float())
    assert not torch.equal(systems(300, 6, seed=5).alpha, systems(300, 6, seed=6).alpha)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": (0.0, 1.0)}, "alpha is the range"),
        ({"beta": (0.5, 1.0)}, "beta is the range"),
        ({"arrival_rate": (2.0, 1.0)}, "arrival_rate is the range"),
        ({"headroom": (1.0, 2.0)}, "headroom is the range"),
        ({"min_units": 9}, "min_units 9"),
    ],
)
def test_wrong_ranges(options, message):
    with pytest.raises(InputError, match=message):
        aimd.random_systems(2, 3, **options)
