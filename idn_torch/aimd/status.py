"""What can end a system's run: one integer per system, never an exception in the middle of a batch."""

from enum import IntEnum

__all__ = ["Status"]


class Status(IntEnum):
    """State of one AIMD system; results hold it as an int64 tensor.

    A system that is not OK is frozen from that event on: the remaining events have period, drops, service rate and
    queueing time 0 and repeat its admission rates and backlogs. No time passes in them.

    Example:
        >>> Status(2).name
        'INFEASIBLE'
    """

    #: Every event so far has run.
    OK = 0
    #: The arrival rate is zero for ever: the current cycle never ends.
    IDLE = 1
    #: `sum u_max <= lambda` (or no unit at all): the batch queue would never empty again.
    INFEASIBLE = 2
    #: More than `max_drops` decreases in one event would be needed: raise `max_drops` or lower beta.
    DECREASE_LIMIT = 3
    #: The period came out zero or not finite in this dtype: use float64 or rescale the units of time.
    NUMERICAL = 4
