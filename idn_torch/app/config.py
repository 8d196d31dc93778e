"""What a placement run can be told: plain dataclasses, the schema of conf/ and of every override.

A key that is not here, or a value of another type, is an error that names the key. Fields typed `Any` take a number
or a list of numbers; `idn_torch.app.batch` reads those.
"""

from dataclasses import dataclass, field
from typing import Any

from idn_torch.app.aimd_config import AimdConfig

__all__ = [
    "BackboneConfig",
    "Config",
    "FileConfig",
    "InfidaConfig",
    "LatencyConfig",
    "MasterConfig",
    "PolicyConfig",
    "PopularityConfig",
    "ProblemConfig",
    "SharedConfig",
    "SharedMixedConfig",
    "TreeConfig",
    "register",
]

MISSING: Any = "???"  # OmegaConf's mark of a value that has to be given


@dataclass
class ProblemConfig:
    """Base of the choices of the group `problem`."""


@dataclass
class BackboneConfig(ProblemConfig):
    """`problem=backbone`: the arguments of `idn_torch.networks.backbone`."""

    topology: str = "sndlib/germany50"
    catalog: str = "yolov4"
    repositories: list[str] | None = field(default_factory=lambda: ["Frankfurt", "Leipzig"])
    tasks: int = 20
    copies: int = 1
    alpha: float = 75.0
    requests_per_second: float = 20_000.0
    slots: int = 120
    slot_seconds: float = 60.0
    zipf_exponent: float = 1.0
    popularity: str = "sliding"
    shift_every: int = 60
    edge_budget: float = 8_000.0
    hub_budget: float = 32_000.0
    cloud_budget: float = 64_000.0
    hub_degree: int = 4
    hop_latency: float = 0.5
    km_per_ms: float = 200.0
    size_overhead: float = 800.0
    utilisation: float = 0.5
    edge_gpu: str = "RTX 2070"
    hub_gpu: str = "V100"
    seed: int = 0


@dataclass
class FileConfig(ProblemConfig):
    """`problem=file`: a scenario file.

    Attributes:
        path: relative to the working directory; `example:NAME` is one that ships with the package.
    """

    path: str = MISSING


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


@dataclass
class PopularityConfig(PolicyConfig):
    """`policy=popularity`: the options of `idn_torch.Popularity`."""


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
    """`policy=master`: the options of `idn_torch.shared.Master`; INFIDA is always among its experts."""

    weights: list[float] = field(default_factory=lambda: [0.25])
    moves: int = 1


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
        compare: run INFIDA beside the policy, or the popularity rule beside INFIDA, on the same requests.
        device: such as cpu, cuda or cuda:1.
        dtype: float64 or float32.
        threads: CPU threads; None takes one for a small problem and torch's own number for a large one.
        progress: a progress bar; None shows one where standard error is a terminal.
        plots: draw plots/*.png at the end.
        checkpoint_every: slots between two checkpoints; 0 leaves the one at the end only.
        resume: run directory of a run to continue; its configuration is taken over.
    """

    problem: ProblemConfig = field(default_factory=BackboneConfig)
    policy: PolicyConfig = field(default_factory=InfidaConfig)
    seed: Any = 0
    alpha: Any = None
    slots: int | None = None
    cycle: bool = False
    order: str = "index"
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    compare: bool = True
    device: str = "cpu"
    dtype: str = "float64"
    threads: int | None = None
    progress: bool | None = None
    plots: bool = True
    checkpoint_every: int = 0
    resume: str | None = None


def register() -> None:
    """Put the schema where the files of conf/ name it: `/schema/...`."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    root = OmegaConf.structured(Config)
    root.problem = root.policy = MISSING  # else a choice would have to be a subclass of the default one
    store.store(group="schema", name="config", node=root, package="_global_")
    store.store(group="schema", name="aimd", node=AimdConfig, package="_global_")
    store.store(group="schema/problem", name="backbone", node=BackboneConfig, package="problem")
    store.store(group="schema/problem", name="file", node=FileConfig, package="problem")
    store.store(group="schema/problem", name="tree", node=TreeConfig, package="problem")
    store.store(group="schema/policy", name="infida", node=InfidaConfig, package="policy")
    store.store(group="schema/policy", name="popularity", node=PopularityConfig, package="policy")
    store.store(group="schema/policy", name="shared", node=SharedConfig, package="policy")
    store.store(group="schema/policy", name="shared_mixed", node=SharedMixedConfig, package="policy")
    store.store(group="schema/policy", name="master", node=MasterConfig, package="policy")
