"""Batched placement of ML models on inference delivery networks, with a certified distance to the optimum."""

from idn_torch import aimd, baselines, generators
from idn_torch.bounds import Cuts, upper_bound
from idn_torch.build import build_problem
from idn_torch.errors import IDNError, InputError, ProblemError, RoutingError, ScenarioError
from idn_torch.gain import (
    gain,
    gain_and_subgradient,
    potential_capacity,
    serving_cost,
    subgradient,
    subgradient_autograd,
)
from idn_torch.infida import Infida
from idn_torch.messages import control_messages
from idn_torch.mirror import mirror_ascent_step
from idn_torch.offline import offline
from idn_torch.popularity import Popularity
from idn_torch.problem import Problem
from idn_torch.projection import project
from idn_torch.rounding import depround
from idn_torch.scenario import load_problem
from idn_torch.serving import Served, serve
from idn_torch.shadow_prices import shadow_prices
from idn_torch.shared import Master, Shared, SharedMixed, shared_gain, shared_upper_bound
from idn_torch.simulation import Result, run
from idn_torch.theory import theory

__version__ = "0.1.0"

__all__ = [
    "Cuts",
    "IDNError",
    "Infida",
    "InputError",
    "Master",
    "Popularity",
    "Problem",
    "ProblemError",
    "Result",
    "RoutingError",
    "ScenarioError",
    "Served",
    "Shared",
    "SharedMixed",
    "aimd",
    "baselines",
    "build_problem",
    "control_messages",
    "depround",
    "gain",
    "gain_and_subgradient",
    "generators",
    "load_problem",
    "mirror_ascent_step",
    "offline",
    "potential_capacity",
    "project",
    "run",
    "serve",
    "serving_cost",
    "shadow_prices",
    "shared_gain",
    "shared_upper_bound",
    "subgradient",
    "subgradient_autograd",
    "theory",
    "upper_bound",
]
