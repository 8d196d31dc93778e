"""Options that come in a mapping, converted and checked as Hydra does it with those of an override."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from idn_torch.errors import InputError

__all__ = ["changed"]

T = TypeVar("T")


def changed(config: T, changes: Mapping[str, Any], where: str) -> T:
    """A copy of a configuration with some fields changed; `dataclasses.replace` would take values of any type.

    Args:
        config: a dataclass that has these fields.
        changes: values by field.
        where: what stands in front of a field's name in an error.

    Raises:
        InputError: a value is of another type than its field (it is named).
    """
    if not changes:  # most runs then do without Hydra's parts
        return config
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values = {}
    for key, value in changes.items():
        try:
            merged = OmegaConf.merge(OmegaConf.structured(config), {key: value})
            assert isinstance(merged, DictConfig)
            new = merged[key]
            values[key] = OmegaConf.to_object(new) if OmegaConf.is_config(new) else new
        except OmegaConfBaseException as error:
            named = error.full_key or key
            raise InputError(f"{where}{named}: {str(error).splitlines()[0]}") from None
    out: T = dataclasses.replace(config, **values)  # type: ignore[type-var]
    return out
