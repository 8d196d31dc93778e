"""The schema idn-scenario/1: from a tree of text to checked records whose names are resolved to indices.

The first thing that is wrong raises `ScenarioError`; its message begins with the file, the section, the position in
it (counted from 0) and the id. File order is index order everywhere. Routing is left to `idn_torch.scenario`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from idn_torch.errors import ScenarioError
from idn_torch.scenario_field import Field, unknown
from idn_torch.scenario_text import load_csv, show

__all__ = ["SCHEMA", "Scenario", "parse_scenario"]

SCHEMA = "idn-scenario/1"
LATENCY_UNITS = ("us", "ms", "s")
SIZE_UNITS = ("B", "KB", "MB", "GB", "MiB", "GiB")
MOST_COPIES = 1000  # of one model; a typing slip must not fill the memory


class Node(NamedTuple):
    id: str
    kind: str | None
    budget: float


class RequestType(NamedTuple):
    id: str
    task: int
    path: tuple[int, ...] | None
    ingress: int | None


class Models(NamedTuple):
    """The catalog after expansion of copies: M models, the tables (V, M) in node order."""

    ids: list[str]
    task: list[int]
    task_ids: list[str]
    accuracy: np.ndarray
    size: np.ndarray
    delay: np.ndarray
    capacity: np.ndarray
    first_copy: dict[str, int]  # index of each model as declared


@dataclass(frozen=True)
class Scenario:
    """A scenario, checked but for its routing. Indices follow the order of the file."""

    name: str
    latency_unit: str
    size_unit: str
    slot_seconds: float
    nodes: list[Node]
    links: list[tuple[int, int, float]]
    models: Models
    alpha: np.ndarray  # (N,)
    repositories: list[tuple[int, int]]  # (node, model)
    types: list[RequestType]
    requests: np.ndarray  # (T, R) int64


def parse_scenario(tree: Any, where: str, base: Path, dtype: torch.dtype) -> Scenario:
    """Check a tree against the schema and resolve its names.

    Args:
        tree: from `scenario_text`.
        where: what every message begins with, the file as the user named it.
        base: folder against which paths inside the scenario resolve.
        dtype: torch.float32 or torch.float64; numbers must fit it.

    Returns:
        The checked records.

    Raises:
        ScenarioError: at the first thing that is wrong.

    Example:
        >>> parse_scenario({"schema": "idn-scenario/2"}, "net.yaml", Path(), torch.float64)
        Traceback (most recent call last):
        ...
        idn_torch.errors.ScenarioError: net.yaml: schema: must be one of idn-scenario/1; got 'idn-scenario/2' \
(did you mean 'idn-scenario/1'?)
    """
    top = Field(tree, where, dtype)
    if not isinstance(tree, dict):
        top.fail(f"a scenario is a mapping that starts with schema: {SCHEMA}, got {show(tree)}")
    if "schema" not in tree:
        top.fail(f"missing key 'schema'; start the scenario with schema: {SCHEMA}")
    top.mapping()["schema"].one_of([SCHEMA])  # before the keys: another version may have others
    required = ("schema", "units", "alpha", "nodes", "models", "repositories", "request_types", "requests")
    fields = top.record(required, ("name", "slot_seconds", "links"))
    units = fields["units"].record(("latency", "size"))
    nodes = _nodes(fields["nodes"])
    node_index = {node.id: v for v, node in enumerate(nodes)}
    models = _models(fields["models"], nodes)
    task_index = {task: i for i, task in enumerate(models.task_ids)}
    types = _types(fields["request_types"], node_index, task_index)
    return Scenario(
        name=fields["name"].text() if "name" in fields else "",
        latency_unit=units["latency"].one_of(LATENCY_UNITS),
        size_unit=units["size"].one_of(SIZE_UNITS),
        slot_seconds=fields["slot_seconds"].number(above=0) if "slot_seconds" in fields else 60.0,
        nodes=nodes,
        links=_links(fields["links"], node_index) if "links" in fields else [],
        models=models,
        alpha=_alpha(fields["alpha"], models.task_ids),
        repositories=_repositories(fields["repositories"], node_index, models),
        types=types,
        requests=_requests(fields["requests"], [kind.id for kind in types], base),
    )


def _nodes(field: Field) -> list[Node]:
    nodes, seen = [], _Unique("node id")
    for row in _some(field, "id"):
        entry = row.record(("id", "budget"), ("kind",))
        kind = entry["kind"].text() if "kind" in entry else None
        node = Node(seen.add(entry["id"]), kind, entry["budget"].number())
        for word, key in ((node.id, "id"), (kind, "kind")):
            if word == "default":
                entry[key].fail("'default' stands for all other nodes in the models' tables; use another name")
        nodes.append(node)
    first = {node.kind: position for position, node in reversed(list(enumerate(nodes)))}
    for row, node in zip(field.rows("id"), nodes, strict=True):
        if node.id in first:
            row.fail(f"its id is also the kind of node {nodes[first[node.id]].id!r}; rename one of them")
    return nodes


def _links(field: Field, nodes: Mapping[str, int]) -> list[tuple[int, int, float]]:
    links = []
    for row in field.rows():
        entry = row.record(("between", "latency"))
        ends = [end.reference("node", nodes) for end in entry["between"].rows()]
        if len(ends) != 2:
            entry["between"].fail(f"a link has 2 ends, got {len(ends)}")
        links.append((ends[0], ends[1], entry["latency"].number()))
    return links


def _models(field: Field, nodes: Sequence[Node]) -> Models:
    seen, tasks = _Unique("model id"), dict[str, int]()
    ids: list[str] = []
    model_task: list[int] = []
    accuracy: list[float] = []
    columns: dict[str, list[list[float]]] = {"size": [], "delay": [], "capacity": []}
    first_copy: dict[str, int] = {}
    convert: dict[str, Callable[[Field], float]] = {
        "size": lambda value: value.number(above=0),
        "delay": lambda value: value.number(),
        "capacity": lambda value: value.whole("whole requests a slot"),
    }
    for row in _some(field, "id"):
        entry = row.record(("id", "task", "accuracy", "size", "delay", "capacity"), ("copies",))
        name = seen.add(entry["id"])
        first_copy[name] = len(ids)
        table = {key: _per_node(entry[key], key, nodes, convert[key]) for key in columns}
        task = tasks.setdefault(entry["task"].text(), len(tasks))
        score = entry["accuracy"].number(most=1.0)
        for copy in range(1, 1 + (_copies(entry["copies"]) if "copies" in entry else 1)):
            ids.append(name if copy == 1 else seen.add(entry["copies"], f"{name}#{copy}"))
            model_task.append(task)
            accuracy.append(score)
            for key, column in table.items():
                columns[key].append(column)
    size, delay, capacity = (np.array(columns[key], dtype=np.float64).T for key in ("size", "delay", "capacity"))
    return Models(ids, model_task, list(tasks), np.array(accuracy), size, delay, capacity, first_copy)


def _copies(field: Field) -> int:
    copies = field.whole("copies")
    if not 1 <= copies <= MOST_COPIES:
        field.fail(f"must be a whole number from 1 to {MOST_COPIES}, got {copies}")
    return copies


def _per_node(field: Field, key: str, nodes: Sequence[Node], convert: Callable[[Field], float]) -> list[float]:
    """One value for each node: the entry of its id, else of its kind, else the default."""
    if not isinstance(field.value, dict):
        return [convert(field)] * len(nodes)
    known = dict.fromkeys([node.id for node in nodes] + [node.kind for node in nodes if node.kind is not None])
    table = {}
    for name, value in field.mapping().items():
        if name != "default" and name not in known:
            field.fail(unknown("node or kind", name, known, "nodes and kinds"))
        table[name] = convert(value)
    values = []
    for node in nodes:
        keys = [name for name in (node.id, node.kind, "default") if name in table]
        if not keys:
            kind = "" if node.kind is None else f" of kind {node.kind!r}"
            field.fail(f"no {key} for node {node.id!r}{kind}; add one for the node, its kind or default")
        values.append(table[keys[0]])
    return values


def _alpha(field: Field, task_ids: Sequence[str]) -> np.ndarray:
    if not isinstance(field.value, dict):
        return np.full(len(task_ids), field.number())
    values = {}
    for name, value in field.mapping().items():
        if name not in task_ids:
            field.fail(unknown("task", name, task_ids))
        values[name] = value.number()
    for task in task_ids:
        if task not in values:
            field.fail(f"no alpha for task {task!r}; add it, or give one number for all tasks")
    return np.array([values[task] for task in task_ids])


def _repositories(field: Field, nodes: Mapping[str, int], models: Models) -> list[tuple[int, int]]:
    entries: dict[tuple[int, int], int] = {}
    for position, row in enumerate(_some(field)):
        entry = row.record(("node", "model"))
        node = entry["node"].reference("node", nodes)
        name = entry["model"].value
        if name in models.ids and name not in models.first_copy:
            original = models.ids[max(m for m in models.first_copy.values() if m < models.ids.index(name))]
            entry["model"].fail(f"{name!r} is a copy, and a repository holds the first; write {original!r}")
        model = entry["model"].reference("model", models.first_copy)
        if (node, model) in entries:
            row.fail(f"repeats entry {entries[node, model]} of this list; remove one")
        entries[node, model] = position
    return list(entries)


def _types(field: Field, nodes: Mapping[str, int], tasks: Mapping[str, int]) -> list[RequestType]:
    types, seen = [], _Unique("request type id")
    for row in _some(field, "id"):
        entry = row.record(("id", "task"), ("path", "ingress"))
        if ("path" in entry) == ("ingress" in entry):
            row.fail("give either path (a list of nodes) or ingress (one node; the path is then computed)")
        path = ingress = None
        if "path" in entry:
            path = tuple(stop.reference("node", nodes) for stop in entry["path"].rows())
        else:
            ingress = entry["ingress"].reference("node", nodes)
        types.append(RequestType(seen.add(entry["id"]), entry["task"].reference("task", tasks), path, ingress))
    return types


def _requests(field: Field, type_ids: Sequence[str], base: Path) -> np.ndarray:
    index = {name: rho for rho, name in enumerate(type_ids)}
    if isinstance(field.value, dict):
        field = Field(base / field.record(("file",))["file"].text(), field.where, field.dtype)
        counts = _csv_requests(field, index)
    else:
        rows = _some(field)
        counts = np.zeros((len(rows), len(type_ids)), dtype=np.int64)
        for t, row in enumerate(rows):
            entry = row.mapping_value()
            for name in entry:
                if name not in index:
                    row.fail(unknown("request type", name, index))
            counts[t, [index[name] for name in entry]] = _counts(entry, entry.values(), row)
    if not counts.any():
        field.fail("no requests: every count is 0; give some")
    return counts


def _csv_requests(source: Field, index: Mapping[str, int]) -> np.ndarray:
    path = source.value
    table = load_csv(path)
    if not table:
        raise ScenarioError(f"{path}: the file is empty; its first row holds the request type ids")
    header = Field(table[0], f"{path}: row 1 (header)", source.dtype)
    columns: dict[int, str] = {}
    for name in table[0]:
        if name not in index:
            advice = "" if len(table[0]) > 1 else "; columns are separated by commas"
            header.fail(unknown("request type", name, index) + advice)
        if index[name] in columns:
            header.fail(f"column {name!r} occurs twice; keep one")
        columns[index[name]] = name
    if len(table) == 1:
        raise ScenarioError(f"{path}: no requests: there is a header but no row; add a row for each slot")
    counts = np.zeros((len(table) - 1, len(index)), dtype=np.int64)
    for number, row in enumerate(table[1:], 2):
        if len(row) != len(columns):
            raise ScenarioError(f"{path}: row {number}: has {len(row)} cells, the header has {len(columns)}")
        counts[number - 2, list(columns)] = _counts(table[0], row, Field(row, f"{path}: row {number}", source.dtype))
    return counts


def _counts(names: Iterable[str], values: Iterable[Any], row: Field) -> list[int]:
    """The counts of one slot. There may be millions, so a `Field` is made only of what is not a short number."""
    return [
        int(value)
        if isinstance(value, str) and len(value) < 8 and value.isascii() and value.isdigit()
        else Field(value, f"{row.where}: {name}", row.dtype).whole("requests in a slot")
        for name, value in zip(names, values, strict=True)
    ]


class _Unique:
    """Ids seen so far, and where."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: dict[str, str] = {}

    def add(self, field: Field, name: str | None = None) -> str:
        name = field.text() if name is None else name
        if name in self._seen:
            field.fail(f"{self._what} {name!r} is taken by {self._seen[name]}; ids are unique")
        self._seen[name] = field.where.rpartition(": ")[0]
        return name


def _some(field: Field, key: str = "") -> list[Field]:
    rows = field.rows(key)
    if not rows:
        field.fail("is an empty list; at least one entry is needed")
    return rows
