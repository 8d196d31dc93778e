"""Policies to compare INFIDA with, on the same requests.

Euclidean online gradient ascent is `Infida(mirror_map="euclidean", c=6.0)`.
"""

from idn_torch.baselines.greedy import StaticGreedy, static_greedy
from idn_torch.baselines.hindsight import Offline, OfflineState
from idn_torch.baselines.olag import Olag, OlagState
from idn_torch.baselines.random_feasible import RandomFeasible, random_feasible
from idn_torch.baselines.repository_only import RepositoryOnly
from idn_torch.baselines.static import StaticPolicy, StaticState

__all__ = [
    "Offline",
    "OfflineState",
    "Olag",
    "OlagState",
    "RandomFeasible",
    "RepositoryOnly",
    "StaticGreedy",
    "StaticPolicy",
    "StaticState",
    "random_feasible",
    "static_greedy",
]
