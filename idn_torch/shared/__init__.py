"""Placement under shared capacity: a gain that counts each model's capacity once, and policies that ascend it."""

from idn_torch.shared.bound import SharedBound, shared_upper_bound
from idn_torch.shared.gain import Duals, SharedGain, shared_gain
from idn_torch.shared.hedge import Master
from idn_torch.shared.incumbent import Incumbent
from idn_torch.shared.policy import Shared, SharedMixed

__all__ = [
    "Duals",
    "Incumbent",
    "Master",
    "Shared",
    "SharedBound",
    "SharedGain",
    "SharedMixed",
    "shared_gain",
    "shared_upper_bound",
]
