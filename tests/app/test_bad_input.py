"""Whatever is wrong with a command: one line that names it, exit code 2, and no run."""

import json
from pathlib import Path

import pytest

from tests.app.conftest import Command

CAMPUS = ("experiment=campus", "policy=infida", "hydra.run.dir=run")
BROKEN = """
schema: idn-scenario/1
units: {latency: ms, size: MB}
alpha: 1
nodes: [{id: a, budget: 5}, {id: a, budget: 5}]
"""


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["problem.pth=x"], "no option problem.pth; known here: path"),
        (["polcy.c=3"], "no option polcy; known here: problem, policy, seed"),
        (["+foo=2"], "no option foo; known here: problem, policy, seed"),
        (["+policy.foo=2"], "no option policy.foo; known here: discipline, c"),
        (["policy.floor=abc"], "policy.floor: Value 'abc'"),
        (["slots=2.5"], "slots: Value '2.5'"),
        (["compare=maybe"], "compare is 'maybe'; give true, false, or a list of policies"),
        (["compare=[foo]"], "compare: there is no policy 'foo'; use one of infida, oga, popularity"),
        (["compare=[3]"], "compare holds 3; give the name of a policy"),
        (["compare=[infida]"], "compare: infida takes part twice"),
        (["compare=[{policy: olag, reference: actual, speed: 3}]"], "compare: olag has no option 'speed' there"),
        (["compare=[{policy: infida, c: [1, 2]}]"], "a list of step sizes is for the policy itself"),
        (["compare=[{policy: infida, c: -1}]"], "compare: infida c=-1: policy.c is -1"),
        (["compare=[{policy: infida, c: abc}]"], "compare: infida c=abc: policy.c is 'abc'"),
        (["compare=[{policy: infida, refresh: abc}]"], "compare: infida refresh: Value 'abc' of type 'str'"),
        (["compare=[{policy: infida, refresh: 2.5}]"], "compare: infida refresh: Value '2.5' of type 'float'"),
        (["compare=[{policy: infida, refresh: 0}]"], "compare: infida refresh=0: refresh is 0"),
        (["compare=[{policy: infida, floor: null}]"], "compare: infida floor: Incompatible value 'None'"),
        (["compare=[{policy: master, weights: 3}]"], "compare: master weights: Invalid value"),
        (["compare=[{policy: master, weights: [a]}]"], "compare: master weights[0]: Value 'a'"),
        (["compare=[{policy: [olag]}]"], "compare: there is no policy ['olag']"),
        (["compare=[{policy: olag, name: null}]"], "compare: a name is None; give some text"),
        (["compare=[{policy: olag, name: ''}]"], "compare: a name is ''; give some text"),
        (["compare=[{policy: olag, reference: x}]"], "reference is 'x'; use one of repository, actual"),
        (["compare=[offline]", "latency.swing=0.5"], "offline plans for costs that stay as they are"),
        (["policy=offline", "policy.tol=0"], "tol is 0"),
        (["policy=foo"], "policy has no choice 'foo'; use one of infida, master, offline, oga, olag, popularity"),
        (["problem=foo"], "problem has no choice 'foo'; use one of backbone, file, isp, tree"),
        (["experiment=foo"], "experiment has no choice 'foo'; use one of aimd"),
        (["policy.c=[1,"], "'[1,'"),
        (["policy.c=-1"], "policy.c is -1; give a number > 0"),
        (["policy.c=[1,-2]"], "policy.c is -2; give a number > 0"),
        (["policy.c=[1,1]"], "policy.c lists 1 twice"),
        (["policy.c=abc"], "policy.c is 'abc'"),
        (["policy.c=true"], "policy.c is True"),
        (["policy.c=nan"], "policy.c is nan"),
        (["policy.c=inf"], "policy.c is inf"),
        (["policy.floor=1"], "floor is 1.0; it must be in [0, 1)"),
        (["policy.coupling=x"], "coupling is 'x'; use one of fixed, fresh"),
        (["seed=-1"], "seed is -1; give a whole number"),
        (["seed=1.5"], "seed is 1.5; give a whole number"),
        (["seed=[]"], "seed is an empty list"),
        (["alpha=-3"], "alpha is -3; give a number >= 0"),
        (["slots=0"], "slots is 0; it must be at least 1"),
        (["slots=49"], "slots is 49, but the problem has requests for 48 slots only"),
        (["order=sorted"], "order is 'sorted'; use one of index, random"),
        (["order=random", "policy.discipline=fair"], "order=random is for policy.discipline=fcfs"),
        (["latency.swing=1"], "latency.swing is 1; it must be in [0, 1)"),
        (["latency.period=1"], "latency.period is 1; it must be at least 2"),
        (["device=gpu"], "device is 'gpu'; use cpu, cuda or cuda:N"),
        (["device=cuda:77"], "device is 'cuda:77', but PyTorch sees"),
        (["dtype=float16"], "dtype is 'float16'; use one of float64, float32"),
        (["threads=0"], "threads is 0; it must be at least 1"),
        (["checkpoint_every=-1"], "checkpoint_every is -1; it must be at least 0"),
        (["resume=nowhere"], "resume is 'nowhere', which holds no checkpoints/last.pt"),
        (["problem.path=nope.yaml"], "nope.yaml: no such scenario file"),
        (["problem.path=example:nope"], "problem.path is 'example:nope'; the package has example:campus"),
        (["problem.path=broken.yaml"], "broken.yaml"),
        (["problem=backbone", "~problem.path"], "problem.path"),
        (["hydra.foo=1"], "no option hydra.foo"),
    ],
)
def test_one_line_that_names_it(overrides: list[str], named: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(BROKEN)
    code, out, err = command(*CAMPUS, *overrides)
    assert code == 2
    assert out == ""
    assert err.startswith("idn-torch: error: ")
    assert named in err
    assert err.count("\n") == 1
    # Hydra's own, if anything.
    assert {file.name for file in tmp_path.glob("run/*")} <= {".hydra", "idn-torch.log"}


def test_a_missing_path_is_asked_for(command: Command) -> None:
    code, _, err = command("problem=file", "hydra.run.dir=run")
    assert (code, err) == (2, "idn-torch: error: problem.path is missing; give problem.path=...\n")


def test_unknown_topology_is_named_with_what_comes_close(command: Command) -> None:
    code, _, err = command("problem.topology=sndlib/germany5", "hydra.run.dir=run")
    assert code == 2
    assert "did you mean sndlib/germany50" in err
    assert err.count("\n") == 1


def test_an_overflow_ends_the_run_and_says_so(command: Command, tmp_path: Path) -> None:
    code, _, err = command(*CAMPUS, "dtype=float32", "alpha=1e36", "slots=2")
    assert code == 2
    assert err.count("\n") == 1
    assert "slot 0: the figures of infida overflow float32; use dtype=float64" in err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
