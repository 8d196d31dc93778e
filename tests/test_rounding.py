import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import idn_torch as idn
from idn_torch import reference as ref
from idn_torch.philox import philox4x32, uniforms
from idn_torch.rounding import depround_kernel

DTYPES = (torch.float32, torch.float64)


def fractions(seed, nodes=5, models=11, dtype=torch.float64):
    """Allocations with many whole entries, and sizes."""
    rng = np.random.default_rng(seed)
    y = rng.random((nodes, models))
    y[rng.random(y.shape) < 0.3] = 0
    y[rng.random(y.shape) < 0.2] = 1
    sizes = rng.uniform(0.5, 5, y.shape)
    numbers = rng.random(y.shape)
    return (torch.as_tensor(t, dtype=dtype) for t in (y, sizes, numbers))


@pytest.mark.parametrize("models", [1, 2, 3, 8, 11, 16, 17])
@pytest.mark.parametrize("seed", range(6))
def test_rounding_matches_the_oracle(seed, models):
    y, sizes, numbers = fractions(seed, models=models)
    want = ref.depround(y.numpy(), sizes.numpy(), numbers.numpy())
    assert np.array_equal(idn.depround(y, sizes, uniforms=numbers).numpy(), want)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), models=st.integers(1, 40), dtype=st.sampled_from(DTYPES))
def test_rounding_is_integral_and_keeps_the_total_size(seed, models, dtype):
    y, sizes, numbers = fractions(seed, models=models, dtype=dtype)
    out = depround_kernel(y, sizes, numbers.clamp(max=1 - 2**-24))
    assert ((out.x == 0) | (out.x == 1)).all()
    whole = (y == 0) | (y == 1)
    assert (out.x == y)[whole].all()
    # All but the residual model keep the total; the residual is off by less than its own size.
    at = out.residual.clamp(min=0)[:, None]
    slack = torch.where(out.residual >= 0, sizes.gather(1, at)[:, 0], 0.0).double()
    change = (sizes * (out.x - y)).sum(1, dtype=torch.float64).abs()
    assert (change <= slack + 1e-5 * sizes.sum(1)).all()


def test_marginals_are_exact():
    """The mean over a grid of all uniforms of a three-model tree converges to y at the grid's own rate."""
    y = torch.tensor([0.3, 0.6, 0.5], dtype=torch.float64)
    sizes = torch.tensor([1.0, 2.0, 0.7], dtype=torch.float64)
    grid = (torch.arange(60, dtype=torch.float64) + 0.5) / 60
    numbers = torch.stack(torch.meshgrid(grid, grid, grid, indexing="ij"), -1).reshape(-1, 3)
    mean = idn.depround(y.expand(numbers.shape), sizes.expand(numbers.shape), uniforms=numbers).mean(0)
    assert torch.allclose(mean, y, atol=1.5 / 60)


def test_marginals_over_many_draws():
    y, sizes, _ = fractions(3, nodes=1)
    draws = 40_000
    x = idn.depround(y.expand(draws, -1), sizes.expand(draws, -1), generator=torch.Generator().manual_seed(0))
    error = (x.mean(0) - y[0]).abs()
    assert (error <= 4.5 * (y[0] * (1 - y[0]) / draws).sqrt()).all()


def test_pairs_of_a_node_are_negatively_correlated():
    y = torch.full((20_000, 4), 0.5)
    x = idn.depround(y, torch.ones_like(y), generator=torch.Generator().manual_seed(1))
    covariance = torch.cov(x.T)
    for i, j in itertools.combinations(range(4), 2):
        assert covariance[i, j] <= 0.01


def test_equal_sizes_and_a_whole_budget_leave_no_residual_in_exact_fractions():
    y = torch.tensor([[0.5, 0.25, 0.25, 0.5, 0.5, 1.0, 0.0]], dtype=torch.float64).expand(64, -1)
    x = idn.depround(y, torch.ones_like(y), generator=torch.Generator().manual_seed(2))
    assert (x.sum(1) == 3).all()


def test_padding_and_batch_shape_change_nothing():
    y, sizes, numbers = fractions(5, nodes=6, models=13)
    out = idn.depround(y, sizes, uniforms=numbers)
    pad = torch.nn.functional.pad
    wide = idn.depround(pad(y, (0, 30)), pad(sizes, (0, 30), value=2.0), uniforms=pad(numbers, (0, 30), value=0.5))
    assert torch.equal(wide[:, :13], out)
    assert not wide[:, 13:].any()
    shaped = idn.depround(y.view(2, 3, 13), sizes.view(2, 3, 13), uniforms=numbers.view(2, 3, 13))
    assert torch.equal(shaped.view(6, 13), out)
    assert torch.equal(idn.depround(y, sizes[:1], uniforms=numbers)[0], out[0])  # sizes broadcast


def test_tiny_fractions_and_sizes_do_not_make_nan():
    y = torch.tensor([[1e-38, 1 - 6e-8, 1e-45, 0.5]])
    sizes = torch.tensor([[1e-6, 1e6, 1.0, 1e-3]])
    for value in (0.0, 0.3, 0.999):
        x = idn.depround(y, sizes, uniforms=torch.full_like(y, value))
        assert ((x == 0) | (x == 1)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.tensor([[1.5, 0.0]])}, r"y\[0, 0\] is 1.5; must be in \[0, 1\]"),
        ({"y": torch.tensor([[torch.nan, 0.0]])}, r"y\[0, 0\] is nan"),
        ({"sizes": torch.tensor([[1.0, 0.0]])}, r"sizes\[0, 1\] is 0"),
        ({"uniforms": torch.tensor([[1.0, 0.0]])}, r"uniforms\[0, 0\] is 1; must be in \[0, 1\)"),
        ({"uniforms": torch.rand(1, 2).double()}, "uniforms is torch.float64"),
        ({"uniforms": torch.rand(1, 3)}, "shapes do not broadcast"),
        ({"uniforms": torch.rand(1, 2), "generator": torch.Generator()}, "not both"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(idn.InputError, match=message):
        idn.depround(**{"y": torch.tensor([[0.5, 0.5]]), "sizes": torch.ones(1, 2), **change})


def words(*values):
    return tuple(torch.tensor(value) for value in values)


FULL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Known answers of the authors' Random123 distribution, philox4x32 with 10 rounds.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((FULL,) * 4, (FULL,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_numbers(counter, key, expected):
    assert tuple(int(w) for w in philox4x32(words(*counter), words(*key))) == expected


@pytest.mark.parametrize("slot", [None, 0, 5])
def test_uniforms_match_the_oracle(slot):
    seeds = torch.tensor([3, 2**40 + 1])
    got = uniforms(seeds, 3, 5, slot)
    for i, seed in enumerate(seeds.tolist()):
        assert np.array_equal(got[i].numpy(), ref.philox_uniforms(seed, 3, 5, slot))


def test_uniforms_depend_on_seed_node_model_and_slot_alone(monkeypatch):
    seed = torch.tensor([1, 2])
    small, large = uniforms(seed, 3, 5), uniforms(seed, 7, 12)
    assert torch.equal(large[:, :3, :5], small)
    monkeypatch.setattr("idn_torch.philox._CHUNK", 1)
    assert torch.equal(uniforms(seed, 7, 12), large)
    assert not torch.equal(uniforms(seed, 3, 5, slot=0), small)
    assert not torch.equal(uniforms(seed, 3, 5, slot=0), uniforms(seed, 3, 5, slot=1))
    single = uniforms(seed, 7, 12, dtype=torch.float32)
    assert (single.double() <= large).all()
    assert (large - single.double() < 2**-24).all()


def test_uniforms_are_uniform():
    numbers = uniforms(torch.tensor(5), 400, 500).flatten()
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    counts = torch.histc(numbers, 50, 0, 1)
    expected = numbers.numel() / 50
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 90  # 49 degrees of freedom: beyond 99.9 %
