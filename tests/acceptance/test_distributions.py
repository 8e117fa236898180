"""What strangers download: the distributions hold what they need, and claim what is tested."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYTHON = "Programming Language :: Python :: 3."


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text())


@pytest.mark.full
def test_the_source_distribution_can_be_tested_and_read(distributions: Path) -> None:
    """Tests, documents, the site and the page about security come along."""
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "README.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "LICENSE",
        "dev",
        "mkdocs.yml",
        "scripts/site_pages.py",
    }
    assert wanted <= names
    assert {"src/stepkeep/py.typed", "tests/conftest.py", "docs/tutorial.md"} <= names


@pytest.mark.full
def test_the_wheel_holds_the_package_alone(distributions: Path) -> None:
    """With the modules of the pages and their licences, without tests or documents."""
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as archive:
        names = archive.namelist()
    assert {"stepkeep/py.typed", "stepkeep/web/static/vendor/preact.mjs"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"stepkeep"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.full
def test_the_text_for_the_package_index_leads_nowhere_wrong(distributions: Path) -> None:
    """Pictures and links of the repository are left out of it, and it says how to install the package by its name."""
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode()
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        info = next(each for each in archive.getmembers() if each.name.endswith("/PKG-INFO"))
        file = archive.extractfile(info)
        assert file is not None
        assert file.read().decode() == metadata
    head, text = metadata.split("\n\n", 1)
    assert "Description-Content-Type: text/markdown" in head
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    assert "pip install stepkeep    # Python 3.11 or newer" in text
    assert re.findall(r"pip install '?\.", text) == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for heading in re.findall(r"^## .*$", readme, re.MULTILINE):
        assert heading in text or heading == "## Read on"


def test_the_package_claims_the_pythons_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = [each.removeprefix(PYTHON) for each in project["classifiers"] if PYTHON in each]
    tested = workflow("check.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert [f"3.{minor}" for minor in claimed if minor.isdigit()] == tested


def test_a_release_is_tested_checked_and_attested() -> None:
    """Every step that must precede the publication stands before it."""
    jobs = workflow("release.yml")["jobs"]
    steps = "\n".join(step.get("run", step.get("uses", "")) for step in jobs["build"]["steps"])
    for step in (".ci/run", "twine check --strict", "attest-build-provenance"):
        assert step in steps
    assert jobs["publish"]["needs"] == "build"
