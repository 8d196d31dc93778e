"""The Triton kernels without a GPU: interpreted, compiled for one, and dispatched to on a pretended one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import idn_torch as idn
from idn_torch import kernels
from idn_torch.feasible import feasible_set
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.mirror import mirror_step_kernel
from idn_torch.projection import project_negentropy
from idn_torch.rounding import depround_kernel
from tests.instances import close, feasible_allocation, random_allocation, random_problem
from tests.pretend import pretended, pretended_cuda

triton = pytest.importorskip("triton")

ROOT = Path(__file__).parent.parent
FLOATS = {"fp32": torch.float32, "fp64": torch.float64}
TABLES = dict.fromkeys(("free", "fixed", "holds_all"), "*u1") | {"option": "*i32"}
TABLES |= dict.fromkeys(("value", "time", "admitted", "seconds"), "*fp64")
TABLES |= dict.fromkeys(("repository", "residual", "status", "cycles", "most_drops", "entered"), "*i64")
FLOAT_TABLES = {"cost", "r", "lam", "y", "slope", "sizes", "uniforms", "x", "point", "grad", "budgets", "eta", "out"}
FLOAT_TABLES |= {"alpha", "beta", "capacity", "rates", "u", "q", "largest"}


@pytest.mark.slow
def test_the_kernels_under_the_interpreter():
    """In a process of its own: Triton reads the variable when a kernel is defined."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/triton_interpreted.py"]
    command.append("tests/aimd/aimd_triton_interpreted.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def kernel_and_constants(name):
    from idn_torch.kernels.triton import aimd, gain, projection, rounding

    row = {"WIDTH": 1024}
    events = {"GUARD": 1 - 1e-6, "SYSTEMS": 2, "UNITS": 64}
    step = {"STEP": True, "EACH": False, "LEAST": -1e37, **row}
    return {
        "gain": (gain._gain, {"SCATTER": True, "TYPES": 4, "RANKS": 32}),
        "gain, one rank": (gain._gain, {"SCATTER": False, "TYPES": 4, "RANKS": 1}),
        "negentropy": (projection._project, {**step, "EUCLIDEAN": False}),
        "euclidean": (projection._project, {**step, "EUCLIDEAN": True, "EACH": True}),
        "no step": (projection._project, {**step, "EUCLIDEAN": False, "STEP": False}),
        "events": (aimd._advance, {**events, "SUMS": False}),
        "events and sums": (aimd._advance, {**events, "SUMS": True}),
        "depround": (rounding._depround, {"ROUNDS": 10, **row}),
        "depround, one model": (rounding._depround, {"ROUNDS": 0, "WIDTH": 1}),
    }[name]


def assembly(name, number, whole):
    """PTX of a kernel; whole numbers are `whole`: a type, or the 1 that Triton compiles in."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, constants = kernel_and_constants(name)
    signature, compiled_in = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        kind = f"*{number}" if argument in FLOAT_TABLES else TABLES.get(argument, whole)
        value = constants.get(argument, 1)
        if argument in constants or kind == 1:
            compiled_in[(place,)] = value
            kind = "constexpr"
        signature[argument] = kind
    source = ASTSource(kernel, signature, compiled_in)
    options = {"enable_fp_fusion": False, "num_warps": 4}
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options).asm["ptx"]


@pytest.mark.parametrize("number", FLOATS)
@pytest.mark.parametrize(
    "name",
    [
        "gain",
        "gain, one rank",
        "negentropy",
        "euclidean",
        "no step",
        "depround",
        "depround, one model",
        "events",
        "events and sums",
    ],
)
def test_kernels_compile_for_a_gpu_and_round_as_the_cpu_does(name, number):
    """The interpreter takes code that the compiler does not, and rounds as numpy does whatever the options."""
    ptx = assembly(name, number, "i32")
    if name not in ("negentropy", "no step"):  # where exp and log are polynomials
        assert not re.search(r"\bfma\.", ptx)
        assert not re.search(r"\bdiv\.(full|approx)", ptx)
    assert assembly(name, number, 1)


class Operators(TorchDispatchMode):
    """Names of the operators called within it."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def arguments(dtype):
    problem = random_problem(3, dtype, nodes=6, tasks=2, models=12, types=19)
    r = problem.requests[:2]
    y = torch.stack([feasible_allocation(problem, seed) for seed in range(2)])
    return problem, r, idn.potential_capacity(problem, r), y


CALLS = {
    "gain_and_subgradient": lambda p, r, lam, y: gain_and_subgradient_kernel(p, r, lam, y),
    "mirror_step": lambda p, r, lam, y: mirror_step_kernel(y, y, y[:, :1, :1], p.sizes, p.feasible, "negentropy"),
    "depround": lambda p, r, lam, y: depround_kernel(y, p.sizes, y * 0.7),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_pretended_gpu_sees_one_operator(name):
    """Not even a look at the data: the operator's rule gives shapes, dtypes and device."""
    problem, r, lam, y = arguments(torch.float32)
    want = CALLS[name](problem, r, lam, y)
    with pretended_cuda(), Operators() as operators:
        got = CALLS[name](*map(pretended, (problem, r, lam, y)))
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
        assert (a.shape, a.dtype, a.device.type) == (b.shape, b.dtype, "cuda")
    assert f"idn_torch::{name}" in operators.names


def test_gpus_take_triton_but_not_for_atomic_sums_where_results_must_repeat(monkeypatch):
    with pretended_cuda():
        there = torch.empty(3, device="cuda")
        assert kernels.path_taken(there, 1) == "triton"
        assert kernels.triton_for(there, atomic_sums=True)
        assert not kernels.triton_for(there, row=1 << 20)
        torch.use_deterministic_algorithms(True)
        try:
            assert kernels.path_taken(there, 1) == "triton"
            assert not kernels.triton_for(there, atomic_sums=True)
        finally:
            torch.use_deterministic_algorithms(False)
        monkeypatch.setattr(kernels, "_HAS_TRITON", False)
        assert kernels.path_taken(there, 1 << 30) == "torch"
    assert not kernels.triton_for(torch.zeros(1))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", FLOATS.values())
def test_on_a_gpu_triton_agrees_with_torch(monkeypatch, dtype):
    values = [t.cuda() if isinstance(t, torch.Tensor) else t.to("cuda") for t in arguments(dtype)]
    for call in CALLS.values():
        results = []
        for devices in ((), ("cuda",)):
            monkeypatch.setattr(kernels, "TRITON_DEVICES", frozenset(devices))
            out = call(*values)
            results.append(out if isinstance(out, tuple) else (out,))
        for a, b in zip(*results, strict=True):
            assert close(b.cpu(), a.cpu(), dtype, scale=10)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", FLOATS.values())
def test_on_a_gpu_rounding_agrees_with_the_cpu_bit_for_bit(dtype):
    generator = torch.Generator().manual_seed(0)
    for models in (1, 2, 33, 600):
        y, sizes, numbers = (torch.rand(64, models, dtype=dtype, generator=generator) for _ in range(3))
        here = depround_kernel(y, sizes + 0.1, numbers)
        there = depround_kernel(y.cuda(), sizes.cuda() + 0.1, numbers.cuda())
        assert torch.equal(there.x.cpu(), here.x)
        assert torch.equal(there.residual.cpu(), here.residual)


@pytest.mark.cuda
def test_on_a_gpu_deterministic_runs_repeat():
    problem = random_problem(3, torch.float32, nodes=12, tasks=2, models=24, types=60).to("cuda")
    r = problem.requests[0] * 4
    lam, y = idn.potential_capacity(problem, r), random_allocation(problem, 0).cuda()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (gain_and_subgradient_kernel(problem, r, lam, y) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", FLOATS.values())
def test_on_a_gpu_budgets_are_met(dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(64, 600, dtype=dtype, generator=generator) * 9 + 1
    budgets = sizes.sum(1) * 0.3
    log_y = torch.randn(sizes.shape, dtype=dtype, generator=generator) * 2
    where = feasible_set(sizes.cuda(), budgets.cuda(), None)
    out = project_negentropy(log_y.cuda(), sizes.cuda(), where).cpu()
    residual = (sizes.double() * out.double()).sum(1) / budgets.double() - 1
    assert residual.abs().max() <= {torch.float32: 3e-7, torch.float64: 1e-14}[dtype]
