"""The README as a stranger follows it: its own blocks, from top to bottom, in a new folder, by a shell.

In the slow size it is installed first as the README says, from a clone and as a wheel, into an empty environment of
every Python that PATH has: `python3.11`, `python3.12` and `python3.13`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:Save this as `(?P<file>[\w.]+)`:\n\n)?```(?P<kind>python|sh)\n(?P<text>.*?)^```$", re.M | re.S
)
PYTHONS = ("python3.11", "python3.12", "python3.13")
ABOUT = (
    *("stepkeep timeline research", "stepkeep diff research", "stepkeep restore research", "StepkeepSaver("),
    *("stepkeep hooks install", "stepkeep backup ", "stepkeep restore-backup ", "chat.save("),
)
"""What the blocks have to be about, else the walk would be true and short."""


class Block(NamedTuple):
    """A block, and the file that a reader saves it as."""

    file: str
    kind: str
    text: str

    @property
    def is_installing(self) -> bool:
        return self.text.startswith(("pip install", "./dev"))


def blocks() -> list[Block]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = enumerate(BLOCK.finditer(readme), start=1)
    return [Block(each["file"] or f"block_{at}.py", each["kind"], each["text"]) for at, each in found]


def walk(folder: Path, bin_folder: Path) -> dict[str, str]:
    """What each block printed, by its first line. A block that fails ends the walk."""
    wanted = [block for block in blocks() if not block.is_installing]
    script = ["set -e"]
    for at, block in enumerate(wanted):
        script.append(f"echo '@@@ {at}'")
        if block.kind == "sh":
            script.append(block.text)
            continue
        (folder / block.file).write_text(block.text, encoding="utf-8")
        if f"python {block.file}" not in "".join(each.text for each in wanted):
            script.append(f"python {block.file}")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STEPKEEP_", "PYTHON", "XDG_"))
    }
    home = folder / "home"
    home.mkdir()
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", "\n".join(script)],
        cwd=folder,
        env={**kept, "HOME": str(home), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^@@@ \d+\n", done.stdout, flags=re.M)[1:]
    return {block.text.splitlines()[0]: part for block, part in zip(wanted, parts, strict=True)}


def check(folder: Path, told: dict[str, str]) -> None:
    """Each door led where the README says."""
    killed, safe = (next(text for line, text in told.items() if word in line) for word in ("KILL", "backup"))
    _check_calls([int(number) for number in re.findall(r"^asking (\d+)$", killed, re.M)])
    assert "research: completed, 6" in killed
    assert '+ $["ask 4"]: "answer 4"' in killed
    assert '"answer 60"\n' in killed
    assert "Restored to: ask 50" in killed
    everything = "".join(told.values())
    assert "{'messages': ['hello', 'hi']}" in everything
    assert "{'notes': ['begun', 'plan made']}" in everything
    assert "thread-1: " in everything
    hooks = json.loads((folder / ".claude" / "settings.json").read_text())["hooks"]
    assert {"SessionStart", "UserPromptSubmit", "Stop"} <= hooks.keys()
    assert re.search(r"^Stop +a checkpoint", everything, re.M)
    assert re.search(r"Backed up \d+ checkpoints in 3 sessions to agent-backup.db", safe)
    assert re.search(r"Restored \d+ checkpoints in 3 sessions to agent.db", safe)
    assert re.search(r"Verified \d+ checkpoints in 3 sessions: intact", safe)
    assert "\nHealthy" in safe


def _check_calls(calls: list[int]) -> None:
    """60 calls, the one in whose middle the process was killed once more, and ten after the restore."""
    assert calls[-10:] == list(range(51, 61))
    before = calls[:-10]
    assert sorted(set(before)) == list(range(1, 61))
    assert len(before) <= 61
    assert all(later in (earlier, earlier + 1) for earlier, later in pairwise(before))


def test_the_readme_has_all_doors() -> None:
    text = "".join(block.text for block in blocks())
    assert [each for each in ABOUT if each not in text] == []


@pytest.mark.full
def test_the_readme_can_be_followed(tmp_path: Path) -> None:
    """With what is installed here."""
    check(tmp_path, walk(tmp_path, Path(sys.executable).parent))


# --- installed by strangers --------------------------------------------------------------------------------------


def _run(*words: str, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "stepkeep"
    _run("git", "clone", "-q", str(ROOT), str(folder), cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "dist", cwd=clone)
    return next((clone / "dist").glob("*.whl"))


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("kind", ["clone", "wheel"])
def test_a_stranger_installs_it_and_follows_the_readme(
    python: str, kind: str, clone: Path, wheel: Path, tmp_path: Path
) -> None:
    """In an environment that held nothing before, with the commands that the README gives."""
    if shutil.which(python) is None or subprocess.run([python, "-V"], capture_output=True).returncode:
        pytest.skip(f"there is no {python}")
    _run(python, "-m", "venv", str(tmp_path / "venv"), cwd=tmp_path)
    pip = str(tmp_path / "venv" / "bin" / "pip")
    asked = re.findall(
        r"pip install ('?)(\.\S*?)\1(?=[ `:])", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert {what for _, what in asked} >= {".", ".[langgraph]"}
    for what in (".", ".[langgraph]"):
        target = what if kind == "clone" else what.replace(".", str(wheel), 1)
        _run(
            pip,
            "install",
            "-q",
            "--disable-pip-version-check",
            target,
            cwd=clone if kind == "clone" else tmp_path,
        )
    (tmp_path / "work").mkdir()
    check(tmp_path / "work", walk(tmp_path / "work", tmp_path / "venv" / "bin"))
