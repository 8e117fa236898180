"""Run the tests of frameworks on our adapters: `./dev interop [NAME…]`.

For each framework it makes an environment, runs the framework's own tests with our adapter in the place of its store,
and then our tests and the how-to page. It prints how many passed of all, and each that did not with the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.interop.frameworks import BUILD, FRAMEWORKS, ROOT, Framework, Suite


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev interop", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(each.name for each in FRAMEWORKS))
    wanted = parser.parse_args().names
    unknown = set(wanted) - {each.name for each in FRAMEWORKS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    results = [_run(each) for each in FRAMEWORKS if not wanted or each.name in wanted]
    return 0 if all(results) else 1


def _run(framework: Framework) -> bool:
    python = _environment(framework)
    is_good = True if framework.suite is None else _run_suite(framework, framework.suite, python)
    pages = ["tests/docs/test_docs.py", "-k", framework.page] if _page(framework).exists() else []
    ours = [f"tests/interop/{name}" for name in framework.tests]
    for arguments in (ours, pages):
        if arguments:
            options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
            options += [f"-W{warning}" for warning in framework.warnings]
            done = subprocess.run([python, "-m", "pytest", *options, *arguments], cwd=ROOT, check=False)
            is_good &= done.returncode == 0
    return is_good


def _page(framework: Framework) -> Path:
    return ROOT / "docs" / "how-to" / framework.page


# --- the environment


def _environment(framework: Framework) -> str:
    """The interpreter of a framework's environment, which is made anew when its requirements changed."""
    folder = BUILD / framework.name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    requirements = ROOT / "requirements" / "interop" / f"{framework.name}.txt"
    files = (requirements, requirements.with_name("base.txt"), ROOT / "requirements" / "runtime.txt")
    wanted = f"{ROOT}\n" + "".join(file.read_text() for file in files)
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    _say(f"{framework.name}: making its environment")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
    stamp.write_text(wanted)
    return str(python)


def _source(framework: Framework, suite: Suite) -> Path | None:
    """Where the tests of a framework are, None when they are not at hand."""
    sources = BUILD / "sources"
    if suite.sdist is None:
        folder = sources / framework.name
        return folder if folder.is_dir() else None
    folder = sources / suite.sdist.replace("==", "-")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as place:
            name = suite.sdist.partition("==")[0]
            pip = [_environment(framework), "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-deps", "--no-binary", name, "-d", place, suite.sdist], check=True)
            (archive,) = Path(place).iterdir()
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
            (unpacked,) = (path for path in Path(place).iterdir() if path.is_dir())
            shutil.copytree(unpacked, folder)
    return folder


# --- the framework's own tests


def _run_suite(framework: Framework, suite: Suite, python: str) -> bool:
    source = _source(framework, suite)
    if source is None:
        _say(
            f"{framework.name}: its own tests did not run: they are in no release. Put a checkout of "
            f"{suite.repository} into {(BUILD / 'sources' / framework.name).relative_to(ROOT)}"
        )
        return True
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.xml")
        paths = (Path(__file__).parent / "substitutes", ROOT / "src")
        plugin = f"substitute_{framework.name.replace('-', '_')}"
        options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", plugin, *suite.arguments]
        subprocess.run(
            [python, "-m", "pytest", *options, f"--junitxml={report}", *suite.tests],
            cwd=source,
            env=os.environ | suite.environment | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if not report.exists():
            _say(f"{framework.name}: its own tests could not be collected")
            return False
        return _tell(framework, suite, ElementTree.parse(report))


def _tell(framework: Framework, suite: Suite, report: ElementTree.ElementTree[ElementTree.Element]) -> bool:
    """Print what passed and what did not; False if something failed for a reason that nobody wrote down."""
    cases = list(report.iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    told = f", {skipped} skipped by themselves" if skipped else ""
    from_where = suite.sdist or suite.repository
    ran = len(cases) - skipped
    _say(f"{framework.name}: {ran - len(failed)} of {ran} of its own tests passed{told} ({from_where})")
    unexpected, reasons = [], Counter[str]()
    for case in failed:
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        plain = re.sub(r"\[.*\]$", "", name)
        reason = next((why for end, why in suite.expected.items() if plain.endswith(end)), None)
        if reason is None:
            unexpected.append(name)
        reasons[f"{plain.rpartition('::')[2]}: {reason or 'NOT EXPECTED'}"] += 1
    for line, count in reasons.items():
        _say(f"    {line}" + (f" ({count} times)" if count > 1 else ""))
    return bool(cases) and not unexpected


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
