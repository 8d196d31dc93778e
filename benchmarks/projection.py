"""The entropic projection onto capped, weighted budgets: the library against bisection and Newton in torch.

With jaxopt installed, its Euclidean `projection_box_section` runs beside ours. Run: `python -m benchmarks.projection`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Report
from idn_torch.feasible import feasible_set
from idn_torch.projection import project_euclidean, project_negentropy


def bisection(log_y: Tensor, sizes: Tensor, budgets: Tensor, passes: int = 40) -> Tensor:
    """log c by bisection: what one writes without thinking about it."""
    low = -log_y.amax(1, keepdim=True) - 20
    high = -log_y.amin(1, keepdim=True)
    for _ in range(passes):
        middle = (low + high) / 2
        used = (sizes * (log_y + middle).exp().clamp(max=1)).sum(1, keepdim=True)
        low = torch.where(used < budgets[:, None], middle, low)
        high = torch.where(used < budgets[:, None], high, middle)
    return (log_y + middle).exp().clamp(max=1)


def main() -> None:
    report = Report("projection", nodes=(4096, "rows"), models=(600, "columns"))
    generator = torch.Generator().manual_seed(0)
    shape = (report.options.nodes, report.options.models)
    for dtype in (torch.float32, torch.float64):
        sizes = torch.rand(shape, generator=generator, dtype=dtype) * 9 + 1
        budgets = sizes.sum(1) * (torch.rand(shape[0], generator=generator, dtype=dtype) * 0.4 + 0.05)
        log_y = torch.randn(shape, generator=generator, dtype=dtype) * 2
        where = feasible_set(sizes, budgets, None)
        ways: dict[str, Callable[[], Any]] = {
            "ours": partial(project_negentropy, log_y, sizes, where),
            "ours, torch code": partial(project_negentropy, log_y, sizes, where, passes=6),
            "bisection, torch": partial(bisection, log_y, sizes, budgets),
        }
        name = str(dtype).removeprefix("torch.")
        report.compare(f"entropic {name}", ways, least_bytes=3 * log_y.numel() * log_y.element_size())
        out = project_negentropy(log_y, sizes, where)
        residual = ((sizes.double() * out.double()).sum(1) / budgets.double() - 1).abs().max()
        print(f"  {'':32s} largest relative budget residual {float(residual):.1e}")
        ways = {"ours": partial(project_euclidean, log_y, sizes, where)}
        if dtype == torch.float32:
            ways |= _jaxopt(log_y, sizes, budgets)
        report.compare(f"Euclidean {name}", ways, least_bytes=3 * log_y.numel() * log_y.element_size())
    report.finish()


def _jaxopt(y: Tensor, sizes: Tensor, budgets: Tensor) -> dict[str, Callable[[], Any]]:
    try:
        import jax
        from jaxopt.projection import projection_box_section
    except ImportError:
        return {}
    # One row at a time: x (n,), hyperparams = (alpha, beta, w, c), all but the number c of the shape of x.
    single = jax.jit(jax.vmap(lambda row, low, high, w, c: projection_box_section(row, (low, high, w, c))))
    tensors = (y, torch.zeros_like(y), torch.ones_like(y), sizes, budgets)
    arrays = [jax.numpy.asarray(t.numpy()) for t in tensors]
    return {"jaxopt projection_box_section": lambda: single(*arrays).block_until_ready()}


if __name__ == "__main__":
    with torch.no_grad():
        main()
