"""Files of a run directory: written whole or not at all, JSON without NaN."""

import json
import math
import os
from pathlib import Path
from typing import Any

__all__ = ["dump_json", "plain", "write_bytes", "write_json"]


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON, indented."""
    write_bytes(path, (dump_json(value, indent=2) + "\n").encode())


def dump_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: null for what is not a finite number."""
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False, indent=indent)


def plain(value: Any) -> Any:
    """A value with None for every float that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value
