"""The built wheel works from anywhere: its configuration, data and console script are inside."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves folders behind."""
    source = tmp_path_factory.mktemp("source")
    for name in ("idn_torch", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", source, cwd=source)
    (file,) = (source / "dist").glob("*.whl")
    return file


@pytest.mark.slow
def test_everything_is_in_the_wheel(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    code = {str(file.relative_to(ROOT)) for file in (ROOT / "idn_torch").rglob("*.py")}
    conf = {f"idn_torch/{file.relative_to(ROOT)}" for file in (ROOT / "conf").rglob("*.yaml")}
    examples = {str(file.relative_to(ROOT)) for file in (ROOT / "idn_torch" / "app" / "examples").iterdir()}
    assert code | conf | examples | {"idn_torch/py.typed", "idn_torch/conf/__init__.py"} <= inside
    assert not [name for name in inside if name.startswith(("tests", "benchmarks", "conf"))]


@pytest.mark.slow
def test_the_console_script_runs_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    environment, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(environment, with_pip=False)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    run(
        *(sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--quiet", "--no-deps", "--no-index"),
        wheel,
        cwd=tmp_path,
    )
    # The dependencies of this environment, without what is installed in it for development: no .pth is followed.
    site = next(environment.rglob("site-packages"))
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    package = run(scripts / "python", "-c", "import idn_torch.conf as c; print(c.__file__)", cwd=elsewhere).strip()
    assert Path(package) == site / "idn_torch" / "conf" / "__init__.py"

    out = run(scripts / "idn-torch", "experiment=campus", "slots=3", "hydra.run.dir=run", cwd=elsewhere)
    assert out.startswith("campus: 5 nodes")
    assert {"summary.json", "metrics.jsonl", "allocation.json", "plots", "checkpoints", ".hydra"} <= {
        file.name for file in (elsewhere / "run").iterdir()
    }
    out = run(scripts / "idn-torch", "slots=1", "plots=false", "hydra.run.dir=real", cwd=elsewhere)
    assert out.startswith("sndlib/germany50: 50 nodes")
    assert "problem     backbone | file | isp | tree" in run(scripts / "idn-torch", "--help", cwd=elsewhere)
