"""Triton kernels for GPUs, imported only where they are used.

Those of a slot are torch operators with a rule for fake tensors, so that tracing sees one call. Under Triton's
interpreter (`TRITON_INTERPRET=1`) they run on CPU tensors too: the tests do. Kernels whose decisions have to be the CPU
kernels' own (K*, DepRound) keep the compiler from fusing a product and a sum into one rounding.
"""
