"""Scenario files as plain trees: mappings, lists and text, before any of it means anything.

Ids are text. YAML's own typing turns 007 into 7, 1.10 into 1.1 and no into False, so every scalar is loaded as the
text that was written, from YAML and JSON alike; numbers are made of it by the schema. JSON's true, false and null
have no such text and stay what they are.
"""

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from idn_torch.errors import ScenarioError

__all__ = ["load_csv", "load_file", "load_mapping", "show"]

_TEXT = "tag:yaml.org,2002:str"
_LIST = "tag:yaml.org,2002:seq"
_MAPPING = "tag:yaml.org,2002:map"
_FORMATS = (".yaml", ".yml", ".json")


def show(value: object) -> str:
    """How a value of a scenario is quoted in a message: short, whatever its size."""
    if isinstance(value, str):
        return "nothing" if value == "" else repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)[:60]


def load_file(path: str | os.PathLike[str]) -> Any:
    """The tree in a .yaml, .yml or .json file; every error is a `ScenarioError` that begins with the path."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ScenarioError(f"{path}: a scenario file ends in {', '.join(_FORMATS)}; rename it")
    text = _read(path, "scenario")
    if not text.strip():
        raise ScenarioError(f"{path}: the file is empty; a scenario starts with schema: idn-scenario/1")
    try:
        return _load_json(text) if suffix == ".json" else yaml.load(text, Loader=_TextLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ScenarioError(f"{path}: {place}{problem}") from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except json.JSONDecodeError as error:
        raise ScenarioError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except _DuplicateKey as error:
        raise ScenarioError(f"{path}: {error}") from None
    except RecursionError:
        raise ScenarioError(f"{path}: nested too deeply to be a scenario") from None


def load_mapping(source: Mapping[Any, Any], where: str) -> Any:
    """A scenario given as Python objects, as the same kind of tree.

    Keys become text; numbers stay Python numbers; arrays and tensors become lists.
    """
    try:
        return _plain(source, where)
    except RecursionError:
        raise ScenarioError(f"{where}: nested too deeply to be a scenario; does it contain itself?") from None


def load_csv(path: Path) -> list[list[str]]:
    """The rows of a CSV file, cells stripped of the spaces around them, blank lines at the end left out."""
    text = _read(path, "request")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
        rows = [[cell.strip() for cell in row] for row in reader]
    except csv.Error as error:
        raise ScenarioError(f"{path}: not CSV: {error}") from None
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def _read(path: str | os.PathLike[str], what: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError(f"{path}: no such {what} file (looked in {Path(path).absolute().parent})") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path}: is a directory; give the {what} file in it") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file system takes
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{path}: the {what} file cannot be read: {reason}") from None


class _DuplicateKey(Exception):
    pass


def _load_json(text: str) -> Any:
    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise _DuplicateKey(f"duplicate key {key!r} in the mapping with the keys {', '.join(dict(pairs))}")
            result[key] = value
        return result

    return json.loads(text, object_pairs_hook=mapping, parse_int=str, parse_float=str, parse_constant=str)


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise ScenarioError(f"{where}: keys are text, got {show(key)} ({type(key).__name__})")
            name = str(key)
            if name in result:
                raise ScenarioError(f"{where}: duplicate key {name!r}: once as text, once as a number")
            result[name] = _plain(inner, f"{where}: {name}")
        return result
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{position}]") for position, inner in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy and torch, scalars and arrays
        return _plain(value.tolist(), where)
    raise ScenarioError(f"{where}: cannot use a {type(value).__name__}; give text, numbers, lists and mappings")


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextLoader(_Loader):
    """YAML with one scalar type, text. Anchors and aliases work; merge keys (<<) and tags are errors."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 (PyYAML's own class attribute)
    yaml_constructors: dict[str, Any] = {}  # noqa: RUF012
    yaml_multi_constructors: dict[str, Any] = {}  # noqa: RUF012


def _yaml_text(loader: Any, node: yaml.ScalarNode) -> str:
    return loader.construct_scalar(node)


def _yaml_list(loader: Any, node: yaml.SequenceNode) -> list[Any]:
    return [loader.construct_object(inner, deep=True) for inner in node.value]


def _yaml_mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    result: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        mark = key_node.start_mark
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be text, not a list or a mapping", problem_mark=mark)
        key = loader.construct_object(key_node)
        if key == "<<":
            problem = "merge keys (<<) are not supported; write the keys out, or use an alias for the whole value"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if key in lines:
            raise yaml.MarkedYAMLError(problem=f"duplicate key {key!r}, first on line {lines[key]}", problem_mark=mark)
        lines[key] = mark.line + 1
        result[key] = loader.construct_object(value_node, deep=True)
    return result


def _yaml_tag(loader: Any, node: yaml.Node) -> Any:
    problem = f"the tag {node.tag} is not supported; write the value without it"
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


_TextLoader.add_constructor(_TEXT, _yaml_text)
_TextLoader.add_constructor(_LIST, _yaml_list)
_TextLoader.add_constructor(_MAPPING, _yaml_mapping)
_TextLoader.add_constructor(None, _yaml_tag)
