"""Zipf's law, rankings that change in time, and Poisson counts."""

import numpy as np
import pytest

from idn_torch.errors import InputError
from idn_torch.workload import request_counts, task_shares, zipf_shares


@pytest.mark.parametrize(("items", "exponent"), [(1, 1.0), (5, 0.0), (20, 1.0), (20, 0.8), (100_000, 1.2)])
def test_zipf_shares_sum_to_one_and_fall_by_the_law(items, exponent):
    shares = zipf_shares(items, exponent)
    rank = np.arange(1, items + 1)
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(shares * rank**exponent, shares[0])


def test_a_fixed_ranking_never_changes():
    shares = task_shares(7, 4, popularity="fixed", shift_every=2)
    np.testing.assert_array_equal(shares, np.tile(zipf_shares(4), (7, 1)))


def test_a_sliding_ranking_moves_every_task_one_place_per_period():
    slots, tasks, every = 50, 6, 7
    shares = task_shares(slots, tasks, 0.9, "sliding", every)
    np.testing.assert_array_equal(shares[:every], np.tile(zipf_shares(tasks, 0.9), (every, 1)))
    for t in range(every, slots):
        before = shares[t - every]
        np.testing.assert_array_equal(shares[t, :-1], before[1:])  # task i now stands where i + 1 stood
        assert shares[t, -1] == before[0]  # and the last task where the first stood
    np.testing.assert_array_equal(shares[every * tasks], shares[0])  # a full turn


def test_a_jumping_ranking_is_a_fresh_permutation_every_period():
    tasks, every = 12, 5
    shares = task_shares(40, tasks, 1.0, "jumping", every, seed=3)
    np.testing.assert_array_equal(np.sort(shares, 1)[:, ::-1], np.tile(zipf_shares(tasks), (40, 1)))
    periods = shares.reshape(8, every, tasks)
    assert (periods == periods[:, :1]).all()
    assert len({tuple(row) for row in periods[:, 0]}) == 8
    np.testing.assert_array_equal(shares, task_shares(40, tasks, 1.0, "jumping", every, seed=3))
    assert (shares != task_shares(40, tasks, 1.0, "jumping", every, seed=4)).any()


def test_counts_are_whole_reproducible_and_change_with_the_seed():
    shares = task_shares(3, 4)
    counts = request_counts([0.2, 0.8], shares, 1000, seed=5)
    assert counts.shape == (3, 8)
    assert counts.dtype == np.int64
    assert (counts >= 0).all()
    np.testing.assert_array_equal(counts, request_counts([0.2, 0.8], shares, 1000, seed=5))
    assert (counts != request_counts([0.2, 0.8], shares, 1000, seed=6)).any()


def test_counts_have_the_mean_and_the_variance_of_their_poisson_law():
    slots, ingress = 4000, np.array([3.0, 0.0, 1.0])  # scaled to 3/4, 0, 1/4
    shares = task_shares(slots, 3, popularity="fixed")
    counts = request_counts(ingress, shares, 50.0, seed=1)
    mean = 50.0 * (ingress / 4)[:, None] * shares[0]  # (I, N)
    found = counts.reshape(slots, 3, 3)
    assert (np.abs(found.mean(0) - mean) <= 5 * np.sqrt(mean / slots)).all()
    assert (found[:, 1] == 0).all()
    busy = mean > 0
    np.testing.assert_allclose(found.var(0)[busy] / mean[busy], 1, atol=0.15)
    total = counts.sum(1)
    assert abs(total.mean() - 50) <= 5 * np.sqrt(50 / slots)
    assert total.var() == pytest.approx(50, rel=0.15)


def test_counts_follow_the_slots_in_which_a_task_is_popular():
    shares = task_shares(4, 5, popularity="sliding", shift_every=2)
    counts = request_counts([1.0], shares, 1e8)
    np.testing.assert_allclose(counts / 1e8, shares, rtol=0.01)


def test_no_requests_is_a_workload_too():
    assert request_counts([1, 1], task_shares(2, 3), 0).sum() == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zipf_shares(0), "items is 0"),
        (lambda: zipf_shares(3, -0.5), "exponent is -0.5"),
        (lambda: zipf_shares(3, float("nan")), "exponent is nan"),
        (lambda: task_shares(0, 3), "slots is 0"),
        (lambda: task_shares(3, 0), "tasks is 0"),
        (lambda: task_shares(3, 3, shift_every=0), "shift_every is 0"),
        (lambda: task_shares(3, 3, popularity="drifting"), "'drifting'; use one of fixed, sliding, jumping"),
        (lambda: task_shares(3, 3, popularity="jumping", seed=-1), "seed is -1"),
        (lambda: request_counts([1], task_shares(2, 2), 10, seed=-1), "seed is -1"),
        (lambda: request_counts([], task_shares(2, 2), 10), r"ingress_shares has shape \(0,\)"),
        (lambda: request_counts([1], [0.5, 0.5], 10), r"shares has shape \(2,\); expected \(T, N\)"),
        (lambda: request_counts([1, -1], task_shares(2, 2), 10), r"ingress_shares\[1\] is -1"),
        (lambda: request_counts([1], [[0.5, np.nan]], 10), r"shares\[0, 1\] is nan"),
        (lambda: request_counts([0, 0], task_shares(2, 2), 10), "ingress_shares are all 0"),
        (lambda: request_counts([1], task_shares(2, 2), -1), "requests_per_slot is -1"),
        (lambda: request_counts([1], task_shares(2, 2), float("nan")), "requests_per_slot is nan"),
        (lambda: request_counts([1], task_shares(2, 2), 1e30), r"requests_per_slot is 1e\+30"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(InputError, match=message):
        call()
