"""The dataclasses of the configuration as Hydra's schema."""

from idn_torch.app.aimd_config import AimdConfig
from idn_torch.app.choices import POLICIES, PROBLEMS
from idn_torch.app.config import MISSING, Config
from idn_torch.app.study import StudyConfig

__all__ = ["register"]


def register() -> None:
    """Put the schema where the files of conf/ name it: `/schema/...`."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    for name, kind in {"config": Config, "study": StudyConfig}.items():
        root = OmegaConf.structured(kind)
        root.problem = root.policy = MISSING  # else a choice would have to be a subclass of the default one
        store.store(group="schema", name=name, node=root, package="_global_")
    store.store(group="schema", name="aimd", node=AimdConfig, package="_global_")
    for group, choices in {"problem": PROBLEMS, "policy": POLICIES}.items():
        for name, choice in choices.items():
            store.store(group=f"schema/{group}", name=name, node=choice.config, package=group)
