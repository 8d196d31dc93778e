"""Settings that torch reads once: imported before torch, or without effect. The user's own settings stay.

Threads of OpenMP sleep while they wait. Torch and numba come with a pool of threads each, and by default a thread that
has finished its share spins for some milliseconds, on a processor that the other pool, or another program, then waits
for: a slot of alternating torch and compiled code can take several times as long.

Torch asks the system for huge pages. On tensors of tens of megabytes the page faults of small ones take longer than
filling them.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
