"""The public surface: what other code may rely on, examples, and importing without side effects."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest
import torch

from idn_torch import aimd
from idn_torch.errors import IDNError, InputError


def test_the_contract():
    """The calls that other code may make, by position and by name."""
    alpha, beta = torch.ones(2, 3), torch.full((2, 3), 0.5)
    u0 = w0 = torch.ones(2, 3)
    mask = torch.tensor([True, True, False])
    for rate in (torch.tensor([4.0, 5.0]), torch.full((2, 7), 4.0)):
        run = aimd.simulate(alpha, beta, rate, u0, w0, 7, None, mask)
        assert run.period.shape == run.drops.shape == (2, 7)
        for value in (run.admission, run.backlog, run.service_rate, run.queueing_time):
            assert value.shape == (2, 7, 3)
            assert (value[..., 2] == 0).all()
        assert run.final_admission.shape == run.final_backlog.shape == (2, 3)
        assert run.status.tolist() == [0, 0]
        assert torch.equal(run.admission[:, 0], u0 * mask)
    aimd.simulate(alpha=alpha, beta=beta, arrival_rate=4.0, u0=u0, w0=w0, events=2, u_max=alpha * 9, mask=mask)
    point = aimd.fixed_point(alpha, beta, torch.tensor([4.0, 5.0]), u_max=alpha * 9)
    assert point.period.shape == (2,)
    assert point.admission.shape == (2, 3)
    assert aimd.transition_matrix(alpha, beta).shape == (2, 3, 3)


def test_everything_public_is_documented():
    for name in aimd.__all__:
        value = getattr(aimd, name)
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            assert value.__module__.startswith("idn_torch.aimd.")
    assert sorted(aimd.__all__) == aimd.__all__


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(aimd.__path__) if m.name != "numba_kernel"])
def test_examples(module):
    found = doctest.testmod(importlib.import_module(f"idn_torch.aimd.{module}"))
    assert found.failed == 0


def test_the_package_example():
    assert doctest.testmod(aimd).failed == 0
    assert doctest.testmod(aimd).attempted >= 3


def test_errors_are_typed():
    assert issubclass(InputError, IDNError)
    assert issubclass(InputError, ValueError)


def test_importing_has_no_side_effects():
    code = (
        "import sys, torch; before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled());"
        "import idn_torch.aimd;"
        "assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled());"
        "assert not {'numba', 'hydra', 'matplotlib', 'simpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_numba_everything_works(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    one = torch.ones(2, dtype=torch.float64)
    run = aimd.simulate(one, one / 2, 3.0, one, one, 5, record="last")
    assert run.status == aimd.Status.OK
    with pytest.raises(InputError, match="numba is not installed"):
        aimd.simulate(one, one / 2, 3.0, one, one, 5, record="last", engine="numba")
