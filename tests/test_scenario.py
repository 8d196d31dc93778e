"""Scenario files: what they mean, and one error in the user's words for everything that is wrong with one."""

import copy
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from idn_torch.errors import IDNError, InputError, ProblemError, RoutingError, ScenarioError
from idn_torch.scenario import load_problem

THREE_NODES = Path(__file__).parent / "data" / "three_nodes.yaml"

# The same scenario as Python objects.
MAPPING = {
    "schema": "idn-scenario/1",
    "name": "three nodes",
    "units": {"latency": "ms", "size": "MB"},
    "slot_seconds": 60,
    "alpha": 75,
    "nodes": [
        {"id": "edge", "kind": "small", "budget": 500},
        {"id": "hub", "kind": "big", "budget": 900},
        {"id": "cloud", "kind": "big", "budget": 2000},
    ],
    "links": [{"between": ["edge", "hub"], "latency": 6}, {"between": ["hub", "cloud"], "latency": 40}],
    "models": [
        {
            "id": "tiny",
            "task": "detection",
            "accuracy": 0.402,
            "size": 23.1,
            "delay": {"small": 3, "big": 1},
            "capacity": 100,
            "copies": 2,
        },
        {
            "id": "large",
            "task": "detection",
            "accuracy": 0.657,
            "size": 245,
            "delay": {"small": 30, "big": 16},
            "capacity": {"default": 40},
        },
    ],
    "repositories": [{"node": "cloud", "model": "large"}],
    "request_types": [
        {"id": "a", "task": "detection", "path": ["edge", "hub", "cloud"]},
        {"id": "b", "task": "detection", "ingress": "hub"},
    ],
    "requests": [{"a": 120, "b": 7}, {"a": 80}],
}
GONE = object()


def changed(*edits):
    """A copy of MAPPING with `(path of keys, value)` replaced; GONE removes the key."""
    scenario = copy.deepcopy(MAPPING)
    for keys, value in edits:
        place = scenario
        for key in keys[:-1]:
            place = place[key]
        if value is GONE:
            del place[keys[-1]]
        elif isinstance(place, list) and keys[-1] == len(place):
            place.append(value)
        else:
            place[keys[-1]] = value
    return scenario


def write(folder, text, name="scenario.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def as_yaml(folder, scenario):
    return write(folder, json.dumps(scenario))  # JSON is YAML, if a plain one


def assert_same(one, other):
    for field in ("name", "node_ids", "model_ids", "task_ids", "type_ids", "latency_unit", "size_unit"):
        assert getattr(one, field) == getattr(other, field)
    assert one.slot_seconds == other.slot_seconds
    assert one.links == other.links
    for field in ("sizes", "budgets", "repository", "capacity", "paths", "type_task", "model_task", "requests"):
        assert torch.equal(getattr(one, field), getattr(other, field)), field
    for field in ("path_latency", "delay", "accuracy", "alpha"):
        assert torch.equal(getattr(one, field), getattr(other, field)), field
    for field in ("cost", "option", "mask"):
        assert torch.equal(getattr(one.ranked, field), getattr(other.ranked, field)), field


# -- what a scenario means ---------------------------------------------------------------------------------------------


def test_three_nodes_field_by_field():
    problem = load_problem(THREE_NODES)
    assert problem.name == "three nodes"
    assert problem.node_ids == ("edge", "hub", "cloud")
    assert problem.model_ids == ("tiny", "tiny#2", "large")
    assert problem.task_ids == ("detection",)
    assert problem.type_ids == ("a", "b")
    assert (problem.latency_unit, problem.size_unit, problem.slot_seconds) == ("ms", "MB", 60.0)
    assert problem.links == ((0, 1, 6.0), (1, 2, 40.0))
    assert problem.sizes.tolist() == [[23.1, 23.1, 245.0]] * 3
    assert problem.budgets.tolist() == [500.0, 900.0, 2000.0]
    assert problem.capacity.tolist() == [[100.0, 100.0, 40.0]] * 3
    assert problem.delay.tolist() == [[3.0, 3.0, 30.0], [1.0, 1.0, 16.0], [1.0, 1.0, 16.0]]
    assert problem.accuracy.tolist() == [0.402, 0.402, 0.657]
    assert problem.repository.tolist() == [[False] * 3, [False] * 3, [False, False, True]]
    assert problem.paths.tolist() == [[0, 1, 2], [1, 2, -1]]  # b: ingress hub, routed to the cloud
    assert problem.path_latency[0].tolist() == [0.0, 6.0, 46.0]
    assert problem.path_latency[1, :2].tolist() == [0.0, 40.0]
    assert problem.requests.tolist() == [[120.0, 7.0], [80.0, 0.0]]
    assert problem.requests.dtype == problem.sizes.dtype == torch.float64


def test_ranked_costs_of_the_three_nodes_by_hand():
    """Eq. (6): latency from the ingress + delay + 75 * (1 - accuracy).

    Lost accuracy: tiny 75 * 0.598 = 44.85, large 75 * 0.343 = 25.725. Type a enters at edge; the hub is 6 ms and the
    cloud 46 ms away. Options are node * 3 + model with models tiny 0, tiny#2 1, large 2:

        edge   tiny   0 +  3 + 44.85  = 47.85   options 0, 1     large   0 + 30 + 25.725 = 55.725   option 2
        hub    tiny   6 +  1 + 44.85  = 51.85   options 3, 4     large   6 + 16 + 25.725 = 47.725   option 5
        cloud  tiny  46 +  1 + 44.85  = 91.85   options 6, 7     large  46 + 16 + 25.725 = 87.725   option 8

    Type b enters at the hub, so its costs at hub and cloud are 6 less, and its last three ranks are padding.
    """
    ranked = load_problem(THREE_NODES).ranked
    a = [47.725, 47.85, 47.85, 51.85, 51.85, 55.725, 87.725, 91.85, 91.85]
    b = [41.725, 45.85, 45.85, 81.725, 85.85, 85.85, 85.85, 85.85, 85.85]
    expected = torch.tensor([a, b], dtype=torch.float64)
    torch.testing.assert_close(ranked.cost, expected, rtol=0, atol=1e-12)
    assert ranked.option.tolist() == [[5, 0, 1, 3, 4, 2, 8, 6, 7], [5, 3, 4, 8, 6, 7, 0, 0, 0]]
    assert ranked.mask.tolist() == [[True] * 9, [True] * 6 + [False] * 3]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_yaml_json_text_and_mapping_are_one_problem(tmp_path, dtype):
    def texts(value):
        if isinstance(value, dict):
            return {key: texts(inner) for key, inner in value.items()}
        return [texts(inner) for inner in value] if isinstance(value, list) else str(value)

    arrays = changed((("nodes", 0, "budget"), np.float64(500)), (("requests", 0, "a"), torch.tensor(120)))
    expected = load_problem(THREE_NODES, dtype=dtype)
    for source in (
        MAPPING,
        texts(MAPPING),
        arrays,
        str(THREE_NODES),
        as_yaml(tmp_path, MAPPING),
        write(tmp_path, json.dumps(MAPPING), "scenario.json"),
        write(tmp_path, "\ufeff" + json.dumps(texts(MAPPING), indent=1), "text.JSON"),
    ):
        assert_same(load_problem(source, dtype=dtype), expected)
    assert expected.sizes.dtype == dtype


def test_optional_keys_may_be_left_out():
    edits = [((key,), GONE) for key in ("name", "slot_seconds")]
    assert load_problem(changed(*edits)).slot_seconds == 60.0
    alone = {
        **MAPPING,
        "nodes": [{"id": "box", "budget": 300}],
        "models": [{"id": "m", "task": "t", "accuracy": 1, "size": 300, "delay": 0, "capacity": 0}],
        "repositories": [{"node": "box", "model": "m"}],
        "request_types": [{"id": "a", "task": "t", "ingress": "box"}],
        "requests": [{"a": 1}],
    }
    del alone["links"], alone["name"]
    problem = load_problem(alone)
    assert problem.name == ""
    assert problem.paths.tolist() == [[0]]
    assert problem.ranked.cost.tolist() == [[0.0]]


def test_ids_are_text(tmp_path):
    """YAML 1.1 would read these as 7, 1.1, False, a date, None and 0.001."""
    ids = ["007", "1.10", "no", "2024-01-01", "null", "1e-3"]
    nodes = "".join(f"  - {{id: {name}, budget: 1e3}}\n" for name in ids)
    links = "".join(f"  - {{between: [{i}, {j}], latency: 1e-3}}\n" for i, j in pairwise(ids))
    text = f"""
schema: idn-scenario/1
units: {{latency: s, size: GiB}}
alpha: {{on: .5}}
nodes:
{nodes}links:
{links}models:
  - {{id: yes, task: on, accuracy: 0.50, size: 1_0, delay: {{007: 2., default: 1E+1}}, capacity: {{no: 3, default: 4}}}}
repositories: [{{node: 1e-3, model: yes}}]
request_types: [{{id: 0x10, task: on, path: [2024-01-01, null, 1e-3]}}]
requests: [{{0x10: 9}}]
"""
    with pytest.raises(ScenarioError, match=r"models\[0\] 'yes': size: must be a number > 0, got '1_0'"):
        load_problem(write(tmp_path, text))
    problem = load_problem(write(tmp_path, text.replace("1_0", "+10")))
    assert problem.node_ids == tuple(ids)
    assert problem.model_ids == ("yes",)
    assert problem.task_ids == ("on",)
    assert problem.type_ids == ("0x10",)
    assert problem.delay[:, 0].tolist() == [2.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    assert problem.capacity[:, 0].tolist() == [4.0, 4.0, 3.0, 4.0, 4.0, 4.0]
    assert problem.links[0] == (0, 1, 0.001)
    assert problem.alpha.tolist() == [0.5]


def test_json_numbers_keep_their_text(tmp_path):
    scenario = json.dumps(changed((("nodes", 0, "id"), "EDGE"))).replace('"EDGE"', "1.10").replace('"edge"', "1.10")
    assert load_problem(write(tmp_path, scenario, "s.json")).node_ids[0] == "1.10"


def test_latencies_are_exact_in_double_precision():
    problem = load_problem(changed((("links", 0, "latency"), 0.1), (("links", 1, "latency"), "0.2")))
    assert problem.path_latency[0].tolist() == [0.0, 0.1, 0.1 + 0.2]


def test_node_wins_over_kind_over_default():
    table = {"hub": 7, "big": 8, "default": 9}
    problem = load_problem(changed((("models", 1, "delay"), table), (("models", 1, "size"), {**table, "hub": 70})))
    assert problem.delay[:, 2].tolist() == [9.0, 7.0, 8.0]
    assert problem.sizes[:, 2].tolist() == [9.0, 70.0, 8.0]


def test_copies_sit_beside_their_model_and_the_repository_holds_the_first():
    problem = load_problem(changed((("models", 1, "copies"), "3"), (("models", 0, "copies"), 1)))
    assert problem.model_ids == ("tiny", "large", "large#2", "large#3")
    assert problem.repository[2].tolist() == [False, True, False, False]
    assert problem.sizes[0].tolist() == [23.1, 245.0, 245.0, 245.0]
    assert problem.accuracy.tolist() == [0.402, 0.657, 0.657, 0.657]


def test_alpha_per_task_and_tasks_by_first_appearance():
    other = {"id": "m", "task": "audio", "accuracy": 0.5, "size": 1, "delay": 0, "capacity": 5}
    edits = [
        (("models", 2), other),
        (("repositories", 1), {"node": "hub", "model": "m"}),
        (("request_types", 2), {"id": "c", "task": "audio", "ingress": "edge"}),
        (("alpha",), {"audio": 10, "detection": 75}),
    ]
    problem = load_problem(changed(*edits))
    assert problem.task_ids == ("detection", "audio")
    assert problem.alpha.tolist() == [75.0, 10.0]
    assert problem.type_task.tolist() == [0, 0, 1]
    assert problem.paths[2].tolist() == [0, 1, -1]  # the hub is the nearest repository of audio
    assert problem.ranked.cost[2, :2].tolist() == [5.0, 11.0]


def test_what_is_declared_but_not_used_stays():
    idle = {"id": "m", "task": "audio", "accuracy": 0.5, "size": 1, "delay": 0, "capacity": 5}
    problem = load_problem(changed((("models", 2), idle), (("nodes", 3), {"id": "spare", "budget": 0, "kind": "big"})))
    assert problem.node_ids[-1] == "spare"
    assert problem.task_ids == ("detection", "audio")
    assert problem.sizes.shape == (4, 4)


def test_two_types_may_share_task_and_path_and_a_slot_may_be_empty():
    twin = {"id": "twin", "task": "detection", "path": ["edge", "hub", "cloud"]}
    problem = load_problem(changed((("request_types", 2), twin), (("requests",), [{}, {"twin": 3}])))
    assert torch.equal(problem.ranked.option[0], problem.ranked.option[2])
    assert problem.requests.tolist() == [[0, 0, 0], [0, 0, 3]]


def test_ingress_takes_the_least_latency_and_ties_go_to_node_order():
    edits = [
        (("links", 2), {"between": ["cloud", "edge"], "latency": "46.0"}),  # equal to 6 + 40, fewer hops
        (("request_types", 0), {"id": "a", "task": "detection", "ingress": "edge"}),
    ]
    assert load_problem(changed(*edits)).paths[0].tolist() == [0, 2]
    edits[0] = (("links", 2), {"between": ["cloud", "edge"], "latency": 46.5})
    assert load_problem(changed(*edits)).paths[0].tolist() == [0, 1, 2]
    second = ((("repositories", 1), {"node": "edge", "model": "large"}), (("links", 1, "latency"), "6"))
    assert load_problem(changed(*second)).paths[1].tolist() == [1, 0, -1]  # edge and cloud, both 6 ms from the hub


def test_a_latency_of_zero_is_a_link():
    problem = load_problem(changed((("links", 0, "latency"), 0), (("links", 1, "latency"), "-0")))
    assert problem.path_latency[0].tolist() == [0.0, 0.0, 0.0]


def test_yaml_aliases_work(tmp_path):
    text = THREE_NODES.read_text(encoding="utf-8")
    text = text.replace("{small: 3, big: 1}", "&d {small: 3, big: 1}").replace("{small: 30, big: 16}", "*d")
    assert load_problem(write(tmp_path, text)).delay[:, 2].tolist() == [3.0, 1.0, 1.0]


# -- requests from CSV -------------------------------------------------------------------------------------------------


def csv_scenario(folder, text, **options):
    folder.mkdir(exist_ok=True)
    write(folder, text, "counts.csv")
    return load_problem(as_yaml(folder, changed((("requests",), {"file": "counts.csv"}))), **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n120,7\n80,0\n", [[120, 7], [80, 0]]),
        ("b,a\r\n7,120\r\n0,80\r\n\r\n", [[120, 7], [80, 0]]),
        ('\ufeff"b", a \n"7", 120', [[120, 7]]),
        ("b\n7\n0\n", [[0, 7], [0, 0]]),
        ("a,b\n1e2,3.0\n", [[100, 3]]),
        ("a,b\n9007199254740992,00012\n", [[2**53, 12]]),
    ],
)
def test_csv_requests(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)  # the file is found beside the scenario, not in the working directory
    assert csv_scenario(tmp_path / "sub", text).requests.tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "counts.csv: the file is empty"),
        ("\n\n", "counts.csv: the file is empty"),
        ("a,b\n", "counts.csv: no requests: there is a header but no row"),
        ("a,b\n0,0\n", "counts.csv: .*|requests: no requests: every count is 0"),
        ("a,c\n1,2\n", r"counts.csv: row 1 \(header\): unknown request type 'c'; request types are a, b"),
        ("a;b\n1;2\n", "row 1 .*unknown request type 'a;b'.*separated by commas"),
        ("a,a\n1,2\n", r"row 1 \(header\): column 'a' occurs twice"),
        ("a,b\n1,2\n1\n", "counts.csv: row 3: has 1 cells, the header has 2"),
        ("a,b\n1,2,3\n", "counts.csv: row 2: has 3 cells, the header has 2"),
        ("a,b\n1,2\n\n1,2\n", "counts.csv: row 3: has 0 cells"),
        ("a,b\n1,2\n,2\n", "counts.csv: row 3: a: must be a whole number .*got nothing"),
        ("a,b\n1,many\n", "counts.csv: row 2: b: must be a whole number .*got 'many'"),
        ("a,b\n1,-2\n", "counts.csv: row 2: b: must not be negative .*got '-2'"),
        ("a,b\n1,2\n1.5,2\n", "counts.csv: row 3: a: must be a whole number .*got '1.5'; round it"),
        ("a,b\n1,nan\n", "counts.csv: row 2: b: .*got 'nan'"),
        ("a,b\n1,1e-999999999999999999999\n", "counts.csv: row 2: b: must be a whole number"),
        ("a,b\n1,9007199254740993\n", "row 2: b: '9007199254740993' .*above 9007199254740992"),
        ("a,b\n1,1e999999999999999999999\n", "row 2: b: .*above 9007199254740992"),
        ('a,b\n1,"2\n', "counts.csv: not CSV"),
    ],
)
def test_bad_csv_names_the_row(tmp_path, text, message):
    with pytest.raises(ScenarioError, match=message):
        csv_scenario(tmp_path, text)


def test_csv_that_cannot_be_read(tmp_path):
    path = as_yaml(tmp_path, changed((("requests",), {"file": "nowhere.csv"})))
    with pytest.raises(ScenarioError, match=r"nowhere\.csv: no such request file \(looked in "):
        load_problem(path)
    (tmp_path / "nowhere.csv").write_bytes(b"a,b\n\xff,1\n")
    with pytest.raises(ScenarioError, match=r"nowhere\.csv: byte 4 is not UTF-8"):
        load_problem(path)


def test_counts_are_exact_or_refused():
    for dtype, most in ((torch.float32, 2**24), (torch.float64, 2**53)):
        assert load_problem(changed((("requests", 0, "a"), most)), dtype=dtype).requests[0, 0] == most
        for too_large in (most + 1, str(most + 1), 10**400, "9" * 5000, 1e300):
            with pytest.raises(ScenarioError, match=rf"requests\[0\]: a: .*above {most}"):
                load_problem(changed((("requests", 0, "a"), too_large)), dtype=dtype)
    with pytest.raises(ScenarioError, match=r"or load with dtype=torch\.float64"):
        load_problem(changed((("requests", 0, "a"), 2**24 + 1)), dtype=torch.float32)


# -- what is wrong with a scenario -------------------------------------------------------------------------------------

NODE, MODEL, TYPE = MAPPING["nodes"][0], MAPPING["models"][0], MAPPING["request_types"][0]

SCHEMA_ERRORS = {
    # keys
    "no schema": (("schema",), GONE, "missing key 'schema'.*idn-scenario/1"),
    "other schema": (("schema",), "idn-scenario/2", "schema: must be one of idn-scenario/1; got 'idn-scenario/2'"),
    "no units": (("units",), GONE, "missing key 'units'"),
    "no size unit": (("units", "size"), GONE, "units: missing key 'size'"),
    "unknown unit": (("units", "latency"), "min", "units: latency: must be one of us, ms, s; got 'min'"),
    "unit in lower case": (("units", "size"), "mb", r"units: size: must be .*got 'mb' \(did you mean 'MB'\?\)"),
    "no alpha": (("alpha",), GONE, "missing key 'alpha'"),
    "no nodes": (("nodes",), GONE, "missing key 'nodes'"),
    "empty nodes": (("nodes",), [], "nodes: is an empty list"),
    "nodes not a list": (("nodes",), {"edge": 1}, "nodes: must be a list, got a mapping"),
    "node not a mapping": (("nodes", 1), "hub", r"nodes\[1\]: must be a mapping, got 'hub'"),
    "no models": (("models",), GONE, "missing key 'models'"),
    "no repositories": (("repositories",), GONE, "missing key 'repositories'"),
    "empty repositories": (("repositories",), [], "repositories: is an empty list"),
    "no types": (("request_types",), [], "request_types: is an empty list"),
    "no requests": (("requests",), GONE, "missing key 'requests'"),
    "empty requests": (("requests",), [], "requests: is an empty list"),
    "requests all zero": (("requests",), [{"a": 0}, {}], "requests: no requests: every count is 0"),
    "requests blank": (("requests",), "", "requests: must be a list, got nothing"),
    "requests null": (("requests",), None, "requests: must be a list, got null"),
    "unknown key": (("link",), [], r"unknown key 'link'.*\(did you mean 'links'\?\)"),
    "unknown node key": (("nodes", 0, "budgt"), 1, r"nodes\[0\] 'edge': unknown key 'budgt'.*did you mean 'budget'"),
    "unknown model key": (("models", 1, "Size"), 1, r"models\[1\] 'large': unknown key 'Size'.*did you mean 'size'"),
    "unknown file key": (("requests",), {"path": "x.csv"}, "requests: unknown key 'path'"),
    "no budget": (("nodes", 2, "budget"), GONE, r"nodes\[2\] 'cloud': missing key 'budget'"),
    "no id": (("nodes", 2, "id"), GONE, r"nodes\[2\]: missing key 'id'"),
    "no delay": (("models", 0, "delay"), GONE, r"models\[0\] 'tiny': missing key 'delay'"),
    "no latency": (("links", 1, "latency"), GONE, r"links\[1\]: missing key 'latency'"),
    # ids
    "empty id": (("nodes", 0, "id"), "", r"nodes\[0\]: id: is empty"),
    "padded id": (("nodes", 0, "id"), "edge ", r"nodes\[0\] 'edge ': id: has spaces around it"),
    "line break in id": (("nodes", 0, "id"), "ed\nge", r"id: has .*control characters"),
    "boolean id": (("nodes", 0, "id"), False, r"nodes\[0\]: id: must be text, got false"),
    "float id": (("nodes", 0, "id"), 1.1, r"nodes\[0\]: id: must be text, got 1.1; put it in quotes"),
    "null id": (("models", 0, "id"), None, r"models\[0\]: id: must be text, got null"),
    "list as id": (("models", 0, "id"), ["tiny"], r"models\[0\]: id: must be text, got a list"),
    "same node twice": (("nodes", 2, "id"), "edge", r"nodes\[2\] 'edge': id: node id 'edge' is taken by .*nodes\[0\]"),
    "same model twice": (("models", 1, "id"), "tiny", r"models\[1\] 'tiny': id: model id 'tiny' is taken"),
    "same type twice": (("request_types", 1, "id"), "a", r"request_types\[1\] 'a': id: request type id 'a' is taken"),
    "copy takes an id": (("models", 1, "id"), "tiny#2", r"model id 'tiny#2' is taken by scenario: models\[0\] 'tiny'"),
    "node is a kind": (("nodes", 0, "id"), "big", r"nodes\[0\] 'big': its id is also the kind of node 'hub'"),
    "node is its own kind": (
        ("nodes", 0, "kind"),
        "edge",
        r"nodes\[0\] 'edge': its id is also the kind of node 'edge'",
    ),
    "node called default": (("nodes", 0, "id"), "default", r"nodes\[0\] 'default': id: 'default' stands for all other"),
    "kind called default": (("nodes", 0, "kind"), "default", r"nodes\[0\] 'edge': kind: 'default' stands"),
    # references
    "unknown node in link": (
        ("links", 0, "between"),
        ["edge", "hubb"],
        r"links\[0\]: between\[1\]: unknown node 'hubb'; nodes are edge, hub, cloud \(did you mean 'hub'\?\)",
    ),
    "unknown repository node": (("repositories", 0, "node"), "sky", r"repositories\[0\]: node: unknown node 'sky'"),
    "unknown repository model": (("repositories", 0, "model"), "x", r"repositories\[0\]: model: unknown model 'x'"),
    "repository holds a copy": (("repositories", 0, "model"), "tiny#2", r"'tiny#2' is a copy.*write 'tiny'"),
    "repository twice": (
        ("repositories", 1),
        {"node": "cloud", "model": "large"},
        r"repositories\[1\]: repeats entry 0",
    ),
    "unknown task": (("request_types", 0, "task"), "detect", r"request_types\[0\] 'a': task: unknown task 'detect'"),
    "unknown node in path": (("request_types", 0, "path", 1), "hob", r"'a': path\[1\]: unknown node 'hob'"),
    "unknown ingress": (("request_types", 1, "ingress"), "hob", r"request_types\[1\] 'b': ingress: unknown node 'hob'"),
    "unknown type": (("requests", 1, "c"), 1, r"requests\[1\]: unknown request type 'c'; request types are a, b"),
    "unknown override": (
        ("models", 0, "delay"),
        {"smal": 3, "big": 1},
        r"models\[0\] 'tiny': delay: unknown node or kind 'smal'; nodes and kinds are .*did you mean 'small'",
    ),
    "unknown task in alpha": (("alpha",), {"detection": 1, "audio": 2}, "alpha: unknown task 'audio'"),
    "alpha misses a task": (("alpha",), {}, "alpha: no alpha for task 'detection'"),
    # tables with a gap name model and node
    "no delay on a node": (
        ("models", 0, "delay"),
        {"small": 3, "cloud": 1},
        r"models\[0\] 'tiny': delay: no delay for node 'hub' of kind 'big'",
    ),
    "no size on a node": (("models", 1, "size"), {"big": 3}, r"models\[1\] 'large': size: no size for node 'edge'"),
    "no capacity": (("models", 1, "capacity"), {}, r"models\[1\] 'large': capacity: no capacity for node 'edge'"),
    # numbers
    "negative latency": (("links", 1, "latency"), -1, r"links\[1\]: latency: must be a number >= 0, got -1"),
    "text latency": (("links", 1, "latency"), "ten", r"links\[1\]: latency: must be a number >= 0, got 'ten'"),
    "nan latency": (("links", 1, "latency"), "nan", r"links\[1\]: latency: .*got 'nan'"),
    "float nan latency": (("links", 1, "latency"), float("nan"), r"links\[1\]: latency: .*got nan"),
    "infinite latency": (("links", 1, "latency"), "inf", r"links\[1\]: latency: .*got 'inf'"),
    "latency overflows": (("links", 1, "latency"), "1e999", r"links\[1\]: latency: .*got '1e999'"),
    "empty latency": (("links", 1, "latency"), "", r"links\[1\]: latency: .*got nothing"),
    "boolean latency": (("links", 1, "latency"), True, r"links\[1\]: latency: .*got true"),
    "list as latency": (("links", 1, "latency"), [1], r"links\[1\]: latency: .*got a list"),
    "latency with a unit": (("links", 1, "latency"), "6 ms", r"links\[1\]: latency: .*got '6 ms'"),
    "digits of another script": (("links", 1, "latency"), "\u0663", r"links\[1\]: latency: must be a number"),
    "zero size": (("models", 0, "size"), 0, r"models\[0\] 'tiny': size: must be a number > 0, got 0"),
    "negative size": (("models", 0, "size"), {"default": "-2"}, r"'tiny': size: default: must be a number > 0, got -2"),
    "percent": (("models", 0, "accuracy"), 40.2, r"'tiny': accuracy: must be a number in \[0, 1\], got 40.2"),
    "negative accuracy": (("models", 0, "accuracy"), "-.1", r"'tiny': accuracy: must be a number in \[0, 1\]"),
    "negative delay": (("models", 0, "delay", "big"), -1, r"'tiny': delay: big: must be a number >= 0, got -1"),
    "negative capacity": (("models", 0, "capacity"), -1, r"'tiny': capacity: must not be negative \(whole requests"),
    "fractional capacity": (("models", 1, "capacity", "default"), 2.5, r"'large': capacity: default: must be a whole"),
    "negative budget": (("nodes", 0, "budget"), -1, r"nodes\[0\] 'edge': budget: must be a number >= 0, got -1"),
    "zero slot": (("slot_seconds",), 0, "slot_seconds: must be a number > 0, got 0"),
    "negative alpha": (("alpha",), -1, "alpha: must be a number >= 0, got -1"),
    "negative alpha of a task": (("alpha",), {"detection": -1}, "alpha: detection: must be a number >= 0"),
    "no copies": (("models", 0, "copies"), 0, r"'tiny': copies: must be a whole number from 1 to 1000, got 0"),
    "copies without end": (("models", 0, "copies"), 10**9, r"'tiny': copies: must be a whole number from 1 to 1000"),
    "half a copy": (("models", 0, "copies"), "1.5", r"'tiny': copies: must be a whole number"),
    "negative count": (("requests", 0, "a"), -3, r"requests\[0\]: a: must not be negative"),
    "fractional count": (("requests", 1, "a"), 0.5, r"requests\[1\]: a: must be a whole number.*got 0.5"),
    "text count": (("requests", 1, "a"), "ten", r"requests\[1\]: a: must be a whole number.*got 'ten'"),
    "boolean count": (("requests", 1, "a"), True, r"requests\[1\]: a: must be a whole number.*got true"),
    "nan count": (("requests", 1, "a"), float("nan"), r"requests\[1\]: a: must be a whole number.*got nan"),
    "row is not a mapping": (("requests", 1), [80, 0], r"requests\[1\]: must be a mapping, got a list"),
    "row is blank": (("requests", 1), "", r"requests\[1\]: must be a mapping, got nothing"),
    # links
    "self-loop": (("links", 1, "between"), ["hub", "hub"], r"links\[1\]: joins node 'hub' to itself"),
    "parallel link": (("links", 2), {"between": ["hub", "edge"], "latency": 1}, r"links\[2\]: nodes 'hub' and 'edge'"),
    "one end": (("links", 0, "between"), ["hub"], r"links\[0\]: between: a link has 2 ends, got 1"),
    "three ends": (("links", 0, "between"), ["edge", "hub", "cloud"], r"links\[0\]: between: .* 2 ends, got 3"),
    "ends as text": (("links", 0, "between"), "edge, hub", r"links\[0\]: between: must be a list"),
    # request types
    "path and ingress": (("request_types", 0, "ingress"), "edge", r"request_types\[0\] 'a': give either path .*or"),
    "neither": (("request_types", 1, "ingress"), GONE, r"request_types\[1\] 'b': give either path .*or ingress"),
    "path as text": (("request_types", 0, "path"), "edge", r"request_types\[0\] 'a': path: must be a list"),
    # objects
    "odd object": (("nodes", 0, "budget"), object(), r"nodes\[0\]: budget: cannot use a object"),
    "odd key": (("nodes", 0, 1.5), 1, r"nodes\[0\]: keys are text, got 1.5"),
}


@pytest.mark.parametrize(("keys", "value", "message"), SCHEMA_ERRORS.values(), ids=SCHEMA_ERRORS)
def test_schema_errors_name_the_place(keys, value, message):
    with pytest.raises(ScenarioError, match=f"^scenario: .*?({message})"):
        load_problem(changed((keys, value)))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([(("request_types", 0, "path"), [])], "request type 'a': the path is empty"),
        ([(("request_types", 0, "path"), ["edge", "hub", "edge"])], "'a': node 'edge' is on the path twice"),
        ([(("request_types", 0, "path"), ["edge", "cloud"])], "'a': nodes 'edge' and 'cloud' follow each other"),
        ([(("request_types", 0, "path"), ["edge", "hub"])], r"'a': no repository of task 'detection' on the path"),
        ([(("links", 1), GONE)], "'a': nodes 'hub' and 'cloud' follow each other"),
        (
            [(("links", 1), GONE), (("request_types", 0), GONE), (("requests",), [{"b": 1}])],
            "'b': no route from node 'hub' to a repository of task 'detection'",
        ),
        (
            [
                (("models", 2), {**MAPPING["models"][1], "id": "m", "task": "audio"}),
                (("request_types", 1, "task"), "audio"),
            ],
            "'b': task 'audio' has no repository",
        ),
    ],
)
def test_routing_errors_name_type_and_nodes(edits, message):
    with pytest.raises(RoutingError, match=f"^scenario: request_types: .*?({message})"):
        load_problem(changed(*edits))


def test_repository_models_above_the_budget_name_the_node(tmp_path):
    path = as_yaml(tmp_path, changed((("nodes", 2, "budget"), 100)))
    with pytest.raises(ProblemError, match=r"scenario\.yaml: .*'cloud'.*budget"):
        load_problem(path)


def test_numbers_must_fit_the_dtype():
    for value in ("1e39", 1e-39):
        assert load_problem(changed((("links", 0, "latency"), value))).links[0][2] == float(value)
        with pytest.raises(ScenarioError, match=r"links\[0\]: latency: 1e.39 is outside the range of torch.float32"):
            load_problem(changed((("links", 0, "latency"), value)), dtype=torch.float32)
    with pytest.raises(InputError, match=r"dtype is torch\.float16"):
        load_problem(MAPPING, dtype=torch.float16)


def test_a_mapping_is_left_as_it_was_and_may_have_number_ids():
    scenario = copy.deepcopy(MAPPING)
    load_problem(scenario)
    assert scenario == MAPPING
    numbered = json.loads(json.dumps(MAPPING).replace('"edge"', "0").replace('"hub"', "1").replace('"cloud"', "2"))
    assert load_problem(numbered).node_ids == ("0", "1", "2")
    with pytest.raises(ScenarioError, match=r"^scenario: requests\[0\]: duplicate key '7'"):
        load_problem(changed((("requests", 0), {7: 1, "7": 2})))


def test_a_mapping_that_contains_itself():
    scenario = copy.deepcopy(MAPPING)
    scenario["nodes"].append(scenario)
    with pytest.raises(ScenarioError, match="contain itself"):
        load_problem(scenario)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: three nodes", "name: x\nname: y", "line 3, column 1: duplicate key 'name', first on line 2"),
        ("budget: 500", "budget: 500, budget: 600", "line 7, column 42: duplicate key 'budget', first on line 7"),
        ("name: three nodes", "<<: {name: x}", "line 2, column 1: merge keys .* not supported"),
        ("name: three nodes", "name: !!python/none x", "line 2, column 7: the tag .*python/none is not supported"),
        ("name: three nodes", "name: !!int 7", "line 2, column 7: the tag .*int is not supported"),
        ("name: three nodes", "!!int 7: x", "line 2, column 1: the tag .*int is not supported"),
        ("name: three nodes", "[a, b]: x", "line 2, column 1: a key must be text"),
        ("name: three nodes", "name: *none", "line 2, column 7: .*undefined alias"),
        ("name: three nodes", "name: &a [*a]", "line 2, column 7: .*recursive"),
        ("name: three nodes", "name: [1", "line 3, column .*"),
        ("name: three nodes", "name: \x07", "not YAML|control characters"),
        ("requests:", "---\nrequests:", "line 21, column 1: expected a single document"),
        ("name: three nodes", "name: " + "[" * 5000, ""),
    ],
)
def test_broken_yaml_names_the_line(tmp_path, old, new, message):
    text = THREE_NODES.read_text(encoding="utf-8")
    assert old in text
    path = write(tmp_path, text.replace(old, new, 1))
    with pytest.raises(ScenarioError, match=rf"scenario\.yaml: .*({message})"):
        load_problem(path)


def test_aliases_of_aliases_do_not_fill_the_memory(tmp_path):
    bomb = "".join(f"  k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    path = write(tmp_path, f"schema: idn-scenario/1\nunits:\n  k0: &a0 x\n{bomb}")
    with pytest.raises(ScenarioError, match="missing key"):
        load_problem(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "idn-scenario/1", "schema": "x"}', "duplicate key 'schema'"),
        ('{"schema": ', "line 1, column 12: not JSON"),
        ("[1, 2]", "a scenario is a mapping that starts with schema: idn-scenario/1, got a list"),
        ("7", "a scenario is a mapping .*got '7'"),
        ('{"schema": NaN}', "schema: must be one of idn-scenario/1; got 'NaN'"),
        ('{"schema": null}', "schema: must be one of idn-scenario/1; got null"),
        ("[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_broken_json(tmp_path, text, message):
    with pytest.raises(ScenarioError, match=rf"scenario\.json: .*({message})"):
        load_problem(write(tmp_path, text, "scenario.json"))


def test_json_nan_is_no_number(tmp_path):
    text = json.dumps(changed((("links", 0, "latency"), float("nan"))))
    assert "NaN" in text
    with pytest.raises(ScenarioError, match=r"links\[0\]: latency: must be a number >= 0, got 'NaN'"):
        load_problem(write(tmp_path, text, "scenario.json"))


@pytest.mark.parametrize("text", ["", " \n\n", "# only a comment\n"])
def test_empty_files(tmp_path, text):
    with pytest.raises(ScenarioError, match=r"scenario\.yaml: (the file is empty|a scenario is a mapping)"):
        load_problem(write(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: no such scenario file \(looked in "):
        load_problem(tmp_path / "nowhere.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ScenarioError, match=r"folder\.yaml: is a directory"):
        load_problem(tmp_path / "folder.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ScenarioError, match=r"latin\.yaml: byte 9 is not UTF-8"):
        load_problem(tmp_path / "latin.yaml")
    with pytest.raises(ScenarioError, match=r"scenario\.toml: a scenario file ends in \.yaml, \.yml, \.json"):
        load_problem(write(tmp_path, "schema = 1", "scenario.toml"))
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_problem("a\0b.yaml")
    with pytest.raises(ScenarioError, match="by its path or as a mapping, got list"):
        load_problem([1, 2])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(tmp_path):
    path = as_yaml(tmp_path, MAPPING)
    path.chmod(0)
    with pytest.raises(ScenarioError, match=r"scenario\.yaml: the scenario file cannot be read: Permission denied"):
        load_problem(path)


def test_every_error_is_an_idn_error_and_a_value_error():
    with pytest.raises(ValueError, match="missing key 'schema'") as caught:
        load_problem({})
    assert isinstance(caught.value, IDNError)


def test_import_loads_no_hydra_and_keeps_yaml_as_it_is():
    program = (
        "import sys, yaml; import idn_torch.scenario; assert 'hydra' not in sys.modules; "
        "assert yaml.safe_load('a: no') == {'a': False}; assert yaml.safe_load('7') == 7"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
