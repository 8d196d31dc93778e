"""Benchmarks. Importing this package sets what OpenMP and torch read once; the user's own settings stay.

Torch and numba come with a pool of threads each. By default a thread that has finished its share spins for some
milliseconds, on a processor that the other pool, or another program, then waits for: here they sleep. And tensors of
tens of megabytes take huge pages, else the page faults of small ones take longer than filling them.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
