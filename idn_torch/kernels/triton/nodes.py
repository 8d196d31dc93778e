"""What the kernels over the rows of (node, model) matrices share: launch and division."""

import triton
import triton.language as tl

__all__ = ["divide", "launch"]


def launch(models: int) -> dict[str, int | bool]:
    """Launch options for a program that holds a row: its padded width, and 8 entries or more a thread."""
    width = triton.next_power_of_2(models)
    return {"WIDTH": width, "num_warps": min(max(width // 256, 1), 16), "enable_fp_fusion": False}


@triton.jit
def divide(a, b):  # type: ignore[no-untyped-def]
    """Correctly rounded, as on the CPU; Triton's `/` is not in float32."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b
