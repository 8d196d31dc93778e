"""What the README shows is what happens."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.app.conftest import Command

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)]
NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def assert_alike(shown: str, real: str) -> None:
    """Equal words, and numbers within 2 %: another processor may round another way, and a draw may flip."""
    assert re.sub(r"\s+", " ", NUMBER.sub("#", shown)) == re.sub(r"\s+", " ", NUMBER.sub("#", real))
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(real), strict=True)
    for ours, theirs in pairs:
        assert float(ours.replace(",", "")) == pytest.approx(float(theirs.replace(",", "")), rel=0.02, abs=0.2)


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    index = next(i for i, (kind, _) in enumerate(BLOCKS) if kind == "python")
    code, (kind, shown) = BLOCKS[index][1], BLOCKS[index + 1]
    assert kind == "text"
    assert len(code.strip().splitlines()) <= 10
    exec(compile(code, "README.md", "exec"), {})
    assert_alike(shown, capsys.readouterr().out)


@pytest.mark.slow
def test_the_table_is_the_one_of_the_default_run(command: Command) -> None:
    shown = next(text for kind, text in BLOCKS if kind == "text" and text.startswith("sndlib/germany50"))
    code, out, _ = command("hydra.run.dir=run")
    assert code == 0
    assert_alike(shown, out.partition("\n\nrun directory")[0] + "\n")


def test_ci_finds_both_commands_in_the_readme() -> None:
    """.ci/run takes them from there; here they are spelled out."""
    commands = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    assert commands[:2] == ["pip install -e . && idn-torch", "pip install -e '.[test]' && python -m pytest"]
    script = (ROOT / ".ci" / "run").read_text()
    patterns = re.findall(r'readme_command "(.*)"', script)
    assert sorted(patterns) == ["idn-torch", "python -m pytest"]
    for wanted in patterns:
        matching = [line for line in README.splitlines() if re.fullmatch(rf"pip install -e .* && {wanted}", line)]
        assert len(matching) == 1
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=False).returncode == 0


def test_files_that_the_readme_links_to_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_aimd_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    index = next(i for i, (kind, text) in enumerate(BLOCKS) if kind == "python" and "aimd.random_systems" in text)
    exec(compile(BLOCKS[index][1], "README.md", "exec"), {})
    shown, out = BLOCKS[index + 1][1], capsys.readouterr().out
    # A rounding error is another one on another processor.
    assert_alike(re.sub(r"\de-\d+", "tiny", shown), re.sub(r"\de-\d+", "tiny", out))


def test_the_aimd_table_is_the_one_of_the_preset(command: Command) -> None:
    shown = next(text for kind, text in BLOCKS if kind == "text" and text.startswith("AIMD: "))
    code, out, _ = command("experiment=aimd", "plots=false", "hydra.run.dir=run")
    assert code == 0
    assert_alike(shown, out.partition("\n\nrun directory")[0] + "\n")
