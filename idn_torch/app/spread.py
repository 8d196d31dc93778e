"""How far a mean can be trusted."""

import math
import statistics
from collections.abc import Sequence

__all__ = ["half_width"]

# The 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.95996


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean of independent values, by Student's t.

    Args:
        values: two or more.
    """
    freedom = len(values) - 1
    # Beyond the table the first term of Fisher's expansion around the normal quantile is right to 1e-3.
    beyond = _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * freedom)
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else beyond
    return quantile * statistics.stdev(values) / math.sqrt(len(values))
