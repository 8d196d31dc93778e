"""Triton kernels for GPUs, imported only where they are used.

Each is a torch operator with a rule for fake tensors, so that tracing sees one call. Under Triton's interpreter
(`TRITON_INTERPRET=1`) they run on CPU tensors too: the tests do. Results are those of the CPU kernels, which is why no
kernel here lets the compiler fuse a product and a sum into one rounding.
"""
