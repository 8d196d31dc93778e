"""Lets threads of OpenMP sleep while they wait. Has to be imported before torch: OpenMP reads its settings once.

Torch and numba come with a pool of threads each. By default a thread that has finished its share spins for some
milliseconds, on a processor that the other pool, or another program, then waits for: a slot of alternating torch and
compiled code takes 1 to 5 times as long. A setting of the user's own stays.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
