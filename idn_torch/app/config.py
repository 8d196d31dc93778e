"""What a placement run can be told: plain dataclasses, the schema of conf/ and of every override.

A key that is not here, or a value of another type, is an error that names the key. Fields typed `Any` take a number
or a list of numbers; `idn_torch.app.batch` reads those.
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "MISSING",
    "BackboneConfig",
    "Config",
    "DetectionConfig",
    "FileConfig",
    "InfidaConfig",
    "IspConfig",
    "LatencyConfig",
    "MasterConfig",
    "OfflineConfig",
    "OgaConfig",
    "OlagConfig",
    "PolicyConfig",
    "PopularityConfig",
    "ProblemConfig",
    "RandomFeasibleConfig",
    "RepositoryOnlyConfig",
    "SharedConfig",
    "SharedMixedConfig",
    "StaticGreedyConfig",
    "TreeConfig",
]

MISSING: Any = "???"
"""OmegaConf's mark of a value that has to be given."""


@dataclass
class ProblemConfig:
    """Base of the choices of the group `problem`."""


@dataclass
class DetectionConfig(ProblemConfig):
    """What networks of detectors have in common: arguments of `idn_torch.networks.backbone` and `idn_torch.isp.isp`."""

    catalog: str = "yolov4"
    budget_scale: float = 1.0
    tasks: int = 20
    copies: int = 1
    alpha: float = 75.0
    requests_per_second: float = 20_000.0
    slots: int = 120
    slot_seconds: float = 60.0
    zipf_exponent: float = 1.0
    popularity: str = "sliding"
    shift_every: int = 60
    size_overhead: float = 800.0
    utilisation: float = 0.5
    edge_gpu: str = "RTX 2070"
    hub_gpu: str = "V100"
    seed: int = 0


@dataclass
class BackboneConfig(DetectionConfig):
    """`problem=backbone`: the other arguments of `idn_torch.networks.backbone`."""

    topology: str = "sndlib/germany50"
    repositories: list[str] | None = field(default_factory=lambda: ["Frankfurt", "Leipzig"])
    edge_budget: float = 8_000.0
    hub_budget: float = 32_000.0
    cloud_budget: float = 64_000.0
    hub_degree: int = 4
    hop_latency: float = 0.5
    km_per_ms: float = 200.0


@dataclass
class FileConfig(ProblemConfig):
    """`problem=file`: a scenario file.

    Attributes:
        path: relative to the working directory; `example:NAME` is one that ships with the package.
    """

    path: str = MISSING


@dataclass
class IspConfig(DetectionConfig):
    """`problem=isp`: the other arguments of `idn_torch.isp.isp`."""

    requests_per_second: float = 10_000.0
    fan_out: list[int] = field(default_factory=lambda: [2, 2, 3, 3])
    link_latency: list[float] = field(default_factory=lambda: [2.0, 5.0, 12.0, 40.0])
    budgets: list[float] = field(default_factory=lambda: [4_000.0, 8_000.0, 16_000.0, 32_000.0, 64_000.0])
    edge_tiers: int = 2


@dataclass
class TreeConfig(ProblemConfig):
    """`problem=tree`: the arguments of `idn_torch.generators.tree`."""

    nodes: int = 4096
    branching: int = 8
    depth: int = 5
    tasks: int = 20
    models_per_task: int = 30
    request_types: int | None = None
    seed: int = 0


@dataclass
class PolicyConfig:
    """Base of the choices of the group `policy`."""

    discipline: str = "fcfs"


@dataclass
class InfidaConfig(PolicyConfig):
    """`policy=infida`: the options of `idn_torch.Infida`; `c` may be a list."""

    c: Any = 16.0
    step_size: str = "scale_free"
    mirror_map: str = "negentropy"
    floor: float = 1e-3
    refresh: int = 1
    coupling: str = "fixed"
    residual: str = "strict"
    noise: float = 0.0


@dataclass
class OgaConfig(InfidaConfig):
    """`policy=oga`: online gradient ascent, the Euclidean mirror map, which wants a smaller step."""

    c: Any = 6.0
    mirror_map: str = "euclidean"


@dataclass
class PopularityConfig(PolicyConfig):
    """`policy=popularity`: the options of `idn_torch.Popularity`."""


@dataclass
class OlagConfig(PolicyConfig):
    """`policy=olag`: the options of `idn_torch.baselines.Olag`."""

    reference: str = "repository"


@dataclass
class StaticGreedyConfig(PolicyConfig):
    """`policy=static_greedy`: `idn_torch.baselines.StaticGreedy` on the requests of the run."""


@dataclass
class OfflineConfig(PolicyConfig):
    """`policy=offline`: `idn_torch.baselines.Offline` on the requests of the run."""

    tol: float = 1e-3
    max_iterations: int = 2000
    max_seconds: float | None = None
    roundings: int = 64


@dataclass
class RandomFeasibleConfig(PolicyConfig):
    """`policy=random_feasible`: `idn_torch.baselines.RandomFeasible`."""


@dataclass
class RepositoryOnlyConfig(PolicyConfig):
    """`policy=repository_only`: `idn_torch.baselines.RepositoryOnly`."""


@dataclass
class SharedConfig(PolicyConfig):
    """`policy=shared`: the options of `idn_torch.shared.Shared`; `c` may be a list."""

    c: Any = 16.0
    floor: float = 1e-3
    marginals: float = 0.0
    draws: int = 1
    iterations: int = 5
    first_iterations: int = 50


@dataclass
class SharedMixedConfig(SharedConfig):
    """`policy=shared_mixed`: the same, with a share of sampled marginals."""

    marginals: float = 0.25


@dataclass
class MasterConfig(PolicyConfig):
    """`policy=master`: the options of `idn_torch.shared.Master`; `others` are choices of `policy`, as they come."""

    weights: list[float] = field(default_factory=lambda: [0.25])
    moves: int = 1
    iterations: int = 5
    others: list[str] = field(default_factory=lambda: ["infida"])


@dataclass
class LatencyConfig:
    """Network latency that rises and falls: in slot t it is `1 + swing * sin(2 pi t / period)` times the problem's."""

    swing: float = 0.0
    period: int = 24


@dataclass
class Config:
    """A whole placement run (`run=placement`).

    Attributes:
        problem: the network, its models and its requests.
        policy: who decides what is deployed.
        seed: of the rounding and of random arrival orders; a list runs that many instances in one program.
        alpha: latency units per unit of lost accuracy, in place of the problem's own; a list likewise.
        slots: run so many slots instead of all.
        cycle: start over when the requests run out; else more slots than they last for are an error.
        order: of arrival within a slot: "index" or "random".
        latency: how the network's latency varies in time.
        compare: run INFIDA and the popularity rule beside the policy, on the same requests; false for none, or a list
            of those to run: each the name of a choice of `policy`, or a mapping with that name as `policy`, options of
            that choice, and a `name` for the table if the made-up one will not do.
        device: such as cpu, cuda or cuda:1.
        dtype: float64 or float32.
        threads: CPU threads; None takes one for a small problem and torch's own number for a large one.
        progress: a progress bar; None shows one where standard error is a terminal.
        plots: draw plots/*.png at the end.
        checkpoint_every: slots between two checkpoints; 0 leaves the one at the end only.
        resume: run directory of a run to continue; its configuration is taken over.
    """

    problem: ProblemConfig = field(default_factory=BackboneConfig)
    policy: PolicyConfig = field(default_factory=MasterConfig)
    seed: Any = 0
    alpha: Any = None
    slots: int | None = None
    cycle: bool = False
    order: str = "index"
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    compare: Any = True
    device: str = "cpu"
    dtype: str = "float64"
    threads: int | None = None
    progress: bool | None = None
    plots: bool = True
    checkpoint_every: int = 0
    resume: str | None = None
